"""How many jobs a person and a node of the quota tree may submit in a minute, and how many may wait there at once."""

import json
import threading
from datetime import datetime, timedelta
from fractions import Fraction

import pytest
from django.core.exceptions import ValidationError
from django.db import connections
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.core.faults import TooMany
from gpufleet.core.models import AuditEntry
from quotas.models import QuotaNode
from scheduler.jobs.submission_rates import burst, full_after, instant, moment_of, opens_at, room
from scheduler.models import Job, JobState, ScheduleRun, SubmissionKey, SubmissionRate
from scheduler.services.jobs.edits import job_enqueue
from scheduler.services.jobs.repeats import submission_once, submissions_each
from scheduler.services.jobs.submission import submission_create, submissions_create
from scheduler.services.loop.measuring import tally
from scheduler.services.schedules.schedules import schedules_turn
from tests.builders import NOON, node
from tests.builders import job as job_of
from tests.scheduler.schedules.making import HOUR, MINUTE, end_all, make, outcomes
from tests.servers import Manage

TEAM = "acme/research/nlp"
WISH = {"name": "train", "quota": TEAM, "gpus": 1}
RATES = st.sampled_from([1, 2, 3, 6, 60, 600, 1000, 60_000])  # a whole number of microseconds for each job, so that the model agrees exactly


@given(RATES, st.lists(st.tuples(st.integers(0, 900_000), st.integers(1, 12_000)), max_size=40))
def test_the_rate_is_that_of_a_bucket_of_tokens(per_minute: int, submissions: list[tuple[int, int]]):
    """The model holds tokens and fills up by the second; what is larger than the bucket passes when it is full, and leaves it owing."""
    held, size = Fraction(burst(per_minute)), burst(per_minute)
    now_us, full_at_us = instant(NOON), 0
    for pause_ms, count in submissions:
        now_us += 1000 * pause_ms
        held = min(Fraction(size), held + Fraction(per_minute * pause_ms, 60_000))
        passes = held >= min(count, size)

        assert (opens_at(full_at_us, count, per_minute) <= now_us) == passes
        assert room(full_at_us, per_minute, now_us) == max(0, int(held))
        if passes:
            held -= count
            full_at_us = full_after(full_at_us, count, per_minute, now_us)
        else:
            opens = opens_at(full_at_us, count, per_minute)
            assert held + Fraction(per_minute * (opens - now_us), 60_000_000) == min(count, size), "then, and not before"


@given(st.integers(1, 1_000_000), st.lists(st.integers(1, 3000), max_size=30))
def test_no_rate_is_exceeded_however_it_is_rounded(per_minute: int, counts: list[int]):
    now_us, full_at_us, passed = instant(NOON), 0, 0
    for count in counts:
        if opens_at(full_at_us, count, per_minute) > now_us:
            now_us = opens_at(full_at_us, count, per_minute)
        full_at_us = full_after(full_at_us, count, per_minute, now_us)
        passed += count
    minutes = Fraction(now_us - instant(NOON), 60_000_000)

    assert passed - max(counts, default=0) <= burst(per_minute) + per_minute * minutes


def test_instants_are_exact():
    assert moment_of(instant(NOON + timedelta(microseconds=1001))) == NOON + timedelta(microseconds=1001)


@pytest.fixture
def submit(personas):
    """`submit(count, at)`: an array of so many at that time."""
    node(gpus=2)

    def call(count: int = 1, at: datetime = NOON, *, who: str = "submitter", **said: object) -> list[Job]:
        access = personas.access(who)
        described = WISH | ({"array": {"size": count}} if count > 1 else {}) | said
        return submission_create(access=access, description=described, now=at, actor=access.actor)

    return call


def refused(call, *words, **named) -> TooMany:
    before, audited = Job.objects.count(), AuditEntry.objects.count()
    with pytest.raises(TooMany) as fault:
        call(*words, **named)
    assert (Job.objects.count(), AuditEntry.objects.count()) == (before, audited), "nothing is half done"
    return fault.value


@pytest.mark.django_db
def test_a_person_submits_at_the_rate_of_the_settings(submit, settings):
    settings.SUBMITS_PER_MINUTE = 6

    assert len(submit(60)) == 60
    told = refused(submit, 10)
    assert told.message_dict == {"quota": ["submitter may submit 6 jobs a minute; this array of 10 fits at 12:01:40 UTC."]}
    assert (told.wait_seconds, told.limit) == (100, "person")
    assert refused(submit, 10, NOON + timedelta(seconds=99, milliseconds=999)).wait_seconds == 1
    assert len(submit(10, NOON + timedelta(seconds=100))) == 10
    assert refused(submit, at=NOON + timedelta(seconds=100)).message_dict["quota"][0].endswith("; this job fits at 12:01:50 UTC.")
    submit(who="team_lead"), "somebody else has a rate of his own"


@pytest.mark.django_db
def test_what_is_larger_than_the_burst_passes_once_and_owes_the_rest(submit, settings):
    settings.SUBMITS_PER_MINUTE = 2

    submit(50)
    assert refused(submit).wait_seconds == 15 * 60 + 30
    assert refused(submit, 50).message_dict["quota"][0].endswith("fits at 12:25:00 UTC.")
    submit(50, NOON + timedelta(minutes=25))


@pytest.mark.django_db
def test_by_default_an_array_of_thousands_passes_at_once_and_a_script_does_not(submit):
    assert len(submit(5000)) == 5000
    assert len(submit(5000)) == 5000
    assert refused(submit, 5000).wait_seconds == 300


@pytest.mark.django_db
def test_a_clock_that_is_behind_gives_nothing_back(submit, settings):
    settings.SUBMITS_PER_MINUTE = 6
    submit(60)

    assert refused(submit, at=NOON - MINUTE).wait_seconds == 70


@pytest.mark.django_db
def test_the_nearest_rate_up_the_tree_applies(submit, personas):
    settings_of("acme", submits_per_minute=1)
    settings_of("acme/research", submits_per_minute=3)

    submit(20)
    submit(10, who="team_lead")
    told = refused(submit, 3)
    assert (told.message_dict["quota"], told.limit) == (["acme/research may submit 3 jobs a minute; this array of 3 fits at 12:01:00 UTC."], "node")
    settings_of(TEAM, submits_per_minute=2)
    submit(20)
    assert refused(submit).message_dict["quota"][0].startswith(f"{TEAM} may submit 2 jobs a minute;")
    settings_of(TEAM, submits_per_minute=0)
    submit(100)


def settings_of(path: str, **limits: int | None) -> None:
    QuotaNode.objects.filter(path=path).update(**limits)


@pytest.mark.django_db
def test_so_many_jobs_wait_in_a_queue_at_most(submit, settings):
    settings.WAITING_LIMIT = 5

    jobs = submit(4)
    told = refused(submit, 2)
    assert told.message_dict == {"quota": [f"{TEAM} may have 5 waiting jobs at once, with no room for this array of 2 now."]}
    assert (told.wait_seconds, told.limit) == (60, "waiting")
    Job.objects.filter(pk=jobs[0].pk).update(state=JobState.RUNNING)
    submit(2)
    Job.objects.filter(pk=jobs[0].pk).update(state=JobState.PREEMPTED)
    refused(submit)
    with pytest.raises(ValidationError) as never:
        submit(6)
    assert not isinstance(never.value, TooMany), "trying again does not help"
    assert never.value.message_dict == {"quota": [f"{TEAM} may have 5 waiting jobs at once, too few for this array of 6."]}


@pytest.mark.django_db
def test_a_stated_waiting_limit_counts_all_below_that_states_none(submit, personas):
    settings_of("acme/research", waiting_limit=3)
    job_of(on=personas.nodes["acme/research/vision"], state=JobState.QUEUED)
    submit(2)

    assert refused(submit).message_dict["quota"][0].startswith("acme/research may have 3 waiting jobs")
    settings_of("acme/research/vision", waiting_limit=10)
    submit()
    settings_of(TEAM, waiting_limit=0)
    submit(10)


@pytest.mark.django_db
def test_a_draft_counts_when_it_is_kept_and_waits_once_it_is_submitted(submit, personas, settings):
    settings.WAITING_LIMIT, settings.SUBMITS_PER_MINUTE = 1, 1
    submit()
    (draft,) = submit(draft=True)
    access = personas.access("submitter")

    assert refused(job_enqueue, access=access, job=draft, reason="", now=NOON).limit == "waiting"
    Job.objects.filter(state=JobState.QUEUED).update(state=JobState.RUNNING)
    assert job_enqueue(access=access, job=draft, reason="", now=NOON).state == JobState.QUEUED
    assert SubmissionRate.objects.get(user=access.actor.user).full_at_us == instant(NOON + 2 * MINUTE)


@pytest.mark.django_db
def test_several_at_once_pass_together_or_not_at_all(submit, personas, settings):
    settings.SUBMITS_PER_MINUTE = 1
    access = personas.access("submitter")
    node(gpus=1)

    submit(8)
    told = refused(submissions_create, access=access, descriptions=[WISH] * 3, now=NOON, actor=access.actor)
    assert told.message_dict["quota"] == ["submitter may submit 1 job a minute; these 3 jobs fit at 12:01:00 UTC."]
    assert len(submissions_create(access=access, descriptions=[WISH] * 2, now=NOON, actor=access.actor)) == 2


@pytest.mark.django_db
def test_a_key_counts_once_and_one_that_was_refused_may_be_used_again(submit, personas, settings):
    settings.SUBMITS_PER_MINUTE = 1
    access = personas.access("submitter")
    wish = WISH | {"array": {"size": 8}}

    first = submission_once(access=access, description=wish, key="a", now=NOON)
    again = submission_once(access=access, description=wish, key="a", now=NOON)
    assert again.repeated and [job.pk for job in again.jobs] == [job.pk for job in first.jobs]
    refused(submission_once, access=access, description=wish, key="b", now=NOON)
    assert not SubmissionKey.objects.filter(key="b").exists()
    assert not submission_once(access=access, description=wish, key="b", now=NOON + 6 * MINUTE).repeated


@pytest.mark.django_db
def test_of_many_those_are_submitted_that_there_is_room_for(personas, settings):
    settings.SUBMITS_PER_MINUTE = 1
    node(gpus=1)
    wishes = [("a", WISH | {"array": {"size": 9}}), ("b", WISH | {"array": {"size": 2}}), ("c", WISH), ("d", {})]

    verdicts = submissions_each(access=personas.access("submitter"), wishes=wishes, now=NOON)
    assert [len(one.jobs) for one in verdicts] == [9, 0, 1, 0]
    assert verdicts[1].faults == {"quota": ["submitter may submit 1 job a minute; this array of 2 fits at 12:01:00 UTC."]}
    assert [one.wait_seconds for one in verdicts] == [0, 60, 0, 0]
    verdicts = submissions_each(access=personas.access("submitter"), wishes=wishes[:3], now=NOON + 2 * MINUTE)
    assert [(len(one.jobs), one.repeated) for one in verdicts] == [(9, True), (2, False), (1, True)]


@pytest.mark.django_db
def test_the_api_says_when_to_try_again(personas, settings):
    settings.SUBMITS_PER_MINUTE = 1
    node(gpus=1)
    browser = personas.client("submitter")

    def post(path: str, body: object, **headers: str):
        return browser.post(f"/api/v1/{path}", body, content_type="application/json", headers=headers)

    assert post("jobs", WISH | {"array": {"size": 10}}).status_code == 201
    answer = post("jobs", WISH, **{"Idempotency-Key": "one"})
    assert (answer.status_code, answer["Content-Type"]) == (429, "application/problem+json")
    assert 50 <= int(answer["Retry-After"]) <= 60
    assert answer.json()["errors"][0]["path"] == "quota"
    assert "may submit 1 job a minute; this job fits at" in answer.json()["errors"][0]["message"]
    batch = post("submissions", {"jobs": [{"key": "x", "description": WISH}]})
    assert (batch.status_code, batch.json()["verdicts"][0]["errors"]) == (200, answer.json()["errors"])
    assert 50 <= int(batch["Retry-After"]) <= 60
    assert post("jobs", WISH | {"quota": "nowhere"}).status_code == 422
    job = Job.objects.first()
    assert post(f"jobs/{job.public_id}/clone", {"changes": {}}).status_code == 429
    assert Job.objects.count() == 10


@pytest.mark.django_db
def test_the_form_says_it_at_the_queue(personas, settings):
    settings.WAITING_LIMIT = 1
    node(gpus=1)
    browser = personas.client("submitter")

    assert browser.post("/jobs/new/", WISH).status_code == 302
    answer = browser.post("/jobs/new/", WISH)
    html = answer.content.decode()
    assert (answer.status_code, answer["Retry-After"]) == (429, "60")
    assert f"{TEAM} may have 1 waiting job at once, with no room for this job now." in html
    assert Job.objects.count() == 1


@pytest.mark.django_db
def test_the_form_says_so_before_it_is_sent_and_counts_nothing(personas, settings, monkeypatch):
    """Its look answers after each change, also after a refusal: what it does not say is gone from the page."""
    settings.SUBMITS_PER_MINUTE = 1
    node(gpus=1)
    browser = personas.client("submitter")

    def looked(size: int) -> dict[str, list[str]]:
        return browser.post("/jobs/new/look", WISH | {"array.size": str(size)}).json()["faults"]

    assert "quota" not in looked(10)
    assert browser.post("/jobs/new/", WISH | {"array.size": "8"}).status_code == 302
    monkeypatch.setattr("scheduler.services.jobs.admission._count", pytest.fail)
    kept = list(SubmissionRate.objects.order_by("pk").values())
    for _ in range(3):
        assert "this array of 8 fits at" in looked(8)["quota"][0]
    assert "quota" not in looked(2)
    assert list(SubmissionRate.objects.order_by("pk").values()) == kept


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("limit", ["person", "node", "waiting"])
def test_of_those_that_submit_at_the_same_time_no_more_pass_than_there_is_room_for(personas, settings, limit):
    settings.SUBMITS_PER_MINUTE = 2 if limit == "person" else 0
    settings_of("acme/research", **({"submits_per_minute": 2} if limit == "node" else {"waiting_limit": 20} if limit == "waiting" else {}))
    node(gpus=1)
    secrets = [personas.token(who, "submit") for who in (["submitter"] if limit == "person" else ["submitter", "team_lead"])]
    statuses, go = [], threading.Barrier(6)

    def ask(secret: str) -> None:
        go.wait()
        answer = Client().post(
            "/api/v1/jobs", WISH | {"array": {"size": 8}}, content_type="application/json", headers={"Authorization": f"Bearer {secret}"}
        )
        statuses.append(answer.status_code)
        connections.close_all()

    threads = [threading.Thread(target=ask, args=(secrets[number % len(secrets)],)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert sorted(statuses) == [201, 201, 429, 429, 429, 429]
    assert Job.objects.count() == 16
    assert AuditEntry.objects.filter(action="job.create").count() == 2


@pytest.mark.django_db
def test_a_run_that_has_no_room_is_delayed_and_submitted_later(submit, personas, settings):
    settings.SUBMITS_PER_MINUTE = 1
    schedule = make(personas, overlap="allow")
    submit(12, NOON + HOUR)

    turn = NOON + HOUR + timedelta(seconds=5)
    for seconds in (0, 1, 20):
        assert schedules_turn(now=turn + timedelta(seconds=seconds)) == 0
    run = ScheduleRun.objects.get(schedule=schedule)
    assert (run.outcome, run.due_at, run.at) == ("delayed", NOON + HOUR, turn + timedelta(seconds=20))
    assert run.note == "submitter may submit 1 job a minute; this job fits at 13:03:00 UTC."
    schedule.refresh_from_db()
    assert (schedule.refusals, schedule.paused_at, schedule.next_due) == (0, None, NOON + HOUR)
    page = personas.client("submitter").get(f"/schedules/{schedule.public_id}/").content.decode()
    assert "Delayed" in page and "fits at 13:03:00 UTC" in page
    assert schedules_turn(now=NOON + HOUR + 3 * MINUTE) == 1
    assert outcomes(schedule) == [("20 13:00", "submitted", 1)]
    assert Job.objects.get(schedule=schedule.public_id).due_at == NOON + HOUR


@pytest.mark.django_db
def test_a_run_that_is_delayed_beyond_its_rule_is_missed_for_the_limit(submit, personas, settings):
    settings.SUBMITS_PER_MINUTE = 1
    schedule = make(personas, overlap="allow", start_within_s=60)
    submit(20, NOON + HOUR)

    assert schedules_turn(now=NOON + HOUR) == 0
    assert schedules_turn(now=NOON + HOUR + 2 * MINUTE) == 1
    run = ScheduleRun.objects.get(schedule=schedule)
    assert (run.outcome, run.note) == ("missed", "submitter may submit 1 job a minute; this job fits at 13:11:00 UTC.")


@pytest.mark.django_db
def test_a_run_that_never_fits_is_refused(submit, personas, settings):
    schedule = make(personas, overlap="allow", description={"quota": TEAM, "gpus": 1, "array": {"size": 6}})
    settings.WAITING_LIMIT = 5

    assert schedules_turn(now=NOON + HOUR) == 1
    run = ScheduleRun.objects.get(schedule=schedule)
    assert (run.outcome, list(run.faults)) == ("refused", ["quota"])
    answer = personas.client("submitter").post(f"/api/v1/schedules/{schedule.public_id}/run", {}, content_type="application/json")
    assert answer.status_code == 422
    end_all()


@pytest.mark.django_db
def test_the_page_of_a_node_and_the_api_tell_what_is_used(submit, personas, settings):
    moment = datetime.now(NOON.tzinfo)
    settings_of("acme/research", submits_per_minute=600)
    settings_of(TEAM, waiting_limit=50)
    submit(20, moment)
    submit(5, moment, who="team_lead")

    viewer = personas.client("viewer")
    told = viewer.get(f"/api/v1/quotas/{personas.nodes[TEAM].public_id}/submissions").json()
    assert told.pop("room") >= 5975
    assert told == {
        "rate_per_minute": 600,
        "rate_stated_at": "acme/research",
        "person_rate_per_minute": 1000,
        "submitted": 25,
        "busiest": [{"username": "submitter", "jobs": 20}, {"username": "team_lead", "jobs": 5}],
        "waiting": 25,
        "waiting_limit": 50,
        "waiting_stated_at": TEAM,
    }
    page = viewer.get(f"/quotas/{personas.nodes[TEAM].public_id}/").content.decode()
    assert "600 jobs a minute, of acme/research; room for" in page and "Submitter 20, Team Lead 5" in page and "25; limit 50" in page
    assert viewer.get(f"/api/v1/quotas/{personas.nodes['acme/product'].public_id}/submissions").status_code == 404


@pytest.mark.django_db
def test_the_limits_of_a_node_are_decided_above_it(personas):
    admin = personas.client("quota_admin")

    def put(path: str, **said: object) -> int:
        address = f"/api/v1/quotas/{QuotaNode.objects.get(path=path).public_id}"
        body = admin.get(address).json() | said
        return admin.put(address, body, content_type="application/json").status_code

    assert put(TEAM, submits_per_minute=60, waiting_limit=0) == 200
    assert put(TEAM, waiting_limit=1_000_001) == 422
    assert put("acme/research", submits_per_minute=60) == 403
    node_of = QuotaNode.objects.get(path=TEAM)
    assert (node_of.submits_per_minute, node_of.waiting_limit) == (60, 0)


@pytest.mark.django_db(transaction=True)
def test_a_refusal_is_written_down_also_where_no_scheduler_runs(personas, settings):
    settings.SUBMITS_PER_MINUTE = 1
    node(gpus=1)
    tally.take()
    browser = personas.client("submitter")

    for path, body in (("jobs", WISH | {"array": {"size": 10}}), ("jobs", WISH), ("submissions", {"jobs": [{"description": WISH}]})):
        for key in ("", "one"):
            headers = {"Idempotency-Key": key} if key else {}
            browser.post(f"/api/v1/{path}", body, content_type="application/json", headers=headers)
    told = personas.client("superuser").get("/metrics").content.decode()
    assert 'gpufleet_submissions_limited_total{limit="person"} 5.0' in told


# What comes after a draft is submitted while the draft is: one holds the person's rate and wants to refer to the job, the other the other way round.
BOTH = """
import json
from gpufleet.core.audit import Actor
from gpufleet.core.times import now
from quotas.permissions import Access, Can, Grant
from scheduler.models import Job
from scheduler.services.jobs.edits import job_enqueue
from scheduler.services.jobs.submission import submission_create
from tests import builders
from tests.locking import together

actor = Actor(builders.person("root"), "root", "session")
access = Access(actor, (Grant("", frozenset(Can)),))
builders.quota("acme")
builders.node("n1", gpus=1)
(draft,) = submission_create(access=access, description={"name": "first", "quota": "acme", "gpus": 1, "draft": True}, now=now(), actor=actor)
wish = {"name": "second", "quota": "acme", "gpus": 1, "after": [{"job": draft.public_id}]}
told = together(
    lambda: submission_create(access=access, description=wish, now=now(), actor=actor),
    lambda: job_enqueue(access=access, job=draft, reason="", now=now()),
    job=draft.pk,
)
print(json.dumps([told, dict(Job.objects.values_list("name", "state"))]))
"""


@pytest.mark.postgres
def test_a_draft_and_what_comes_after_it_are_submitted_at_once_and_neither_fails(tmp_path, migrated_postgres):
    manage = Manage(tmp_path, GPUFLEET_DATABASE_URL=migrated_postgres(), GPUFLEET_SUBMITS_PER_MINUTE="600")

    told = json.loads(manage.run("shell", "--verbosity", "0", "-c", BOTH).stdout.splitlines()[-1])

    assert told == [["done", "mine"], {"first": "queued", "second": "queued"}]
