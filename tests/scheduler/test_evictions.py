"""When a job was put out, for whom, why and what was lost: on its page, over HTTP and through the loop."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from gpufleet.core.templatetags.shell import THIN
from quotas.permissions import access_for_user
from scheduler.models import Attempt, Checkpoint, Job, JobEvent, JobState, Placement, PlanRecord
from scheduler.presenters.evictions import evictions_told
from scheduler.selectors.discretion import Discretion
from scheduler.selectors.evictions import NOTHING_LOST, Held, Loss, job_evictions, loss_of
from scheduler.selectors.jobs import job_attempts
from scheduler.services.jobs.checkpoints import Shard, shard_report
from scheduler.services.jobs.steering import job_cancel
from tests import builders
from tests.builders import NOON, attempt, gpu, job, node, person, plan, role
from tests.scheduler.loop.worlds import Loop, attempt_of, leaf, submit

UP, ASKED, GONE = (NOON + timedelta(minutes=minutes) for minutes in (10, 70, 71))
WHOLE = (Held(8000, NOON, None),)
MS = 1000


def minutes(count):
    return timedelta(minutes=count)


# What is lost: a function of its arguments


def lost(**said):
    return loss_of(**({"running_at": UP, "asked_at": ASKED, "ended_at": GONE, "saved_at": None, "held": WHOLE} | said))


def test_all_since_the_workers_were_up_is_lost_of_who_saved_nothing():
    assert lost() == Loss(61 * 60 * MS, 8000 * 61 * 60 * MS)
    assert lost().gpu_hours == pytest.approx(8 * 61 / 60)


def test_what_was_computed_since_the_last_checkpoint_is_lost():
    assert lost(saved_at=ASKED - minutes(5)) == Loss(6 * 60 * MS, 8000 * 6 * 60 * MS)


@pytest.mark.parametrize("saved_at", [ASKED, ASKED + timedelta(seconds=30)])
def test_who_saves_after_being_asked_loses_nothing(saved_at):
    assert lost(saved_at=saved_at) == NOTHING_LOST


def test_who_was_not_up_has_computed_nothing():
    assert lost(running_at=None) == NOTHING_LOST


def test_only_what_was_held_at_the_time_counts():
    """Of an elastic gang: two workers left before, one joined since."""
    held = (Held(2000, NOON, ASKED - minutes(30)), Held(4000, NOON, None), Held(1000, ASKED - minutes(2), None), Held(1000, NOON, GONE + minutes(9)))

    assert lost(saved_at=ASKED - minutes(9), held=held) == Loss(10 * 60 * MS, (4000 * 10 + 1000 * 3 + 1000 * 10) * 60 * MS)


def test_a_checkpoint_from_before_the_workers_were_up_makes_no_more_of_it():
    assert lost(saved_at=NOON) == lost()


# What the page and the API tell


@pytest.fixture
def ours(personas):
    return personas.nodes["acme/research/nlp"]


@pytest.fixture
def theirs(personas):
    return personas.nodes["acme/product/search"]


@pytest.fixture
def api(personas):
    def call(who, of, status=200):
        answer = personas.client(who).get(f"/api/v1/jobs/{of.public_id}/evictions")
        assert answer.status_code == status, answer.content
        return answer.json()

    return call


@pytest.fixture
def page(personas):
    def read(who, of):
        answer = personas.client(who).get(reverse("job", args=[of.public_id]))
        assert answer.status_code == 200
        html = answer.content.decode().replace(THIN, " ")
        return html[html.index('data-part="evictions"') :].partition("</section>")[0]

    return read


def held(run, index, **fields):
    device = gpu()
    return Placement.objects.create(**({"attempt": run, "job": run.job, "worker": index, "node": device.node, "gpu": device} | fields))


def put_out(of, *, begun=NOON, gpus=8, outcome="preempted", detail=None, cause="acme reclaims 8 GPUs", actor="gpufleet", saved=(), **fields):
    """An attempt that came up ten minutes after `begun`, was asked to leave after seventy and was gone a minute later. `saved`: step, when, whole."""
    asked, gone = begun + (ASKED - NOON), begun + (GONE - NOON)
    facts = {
        "started_at": begun,
        "running_at": begun + minutes(10),
        "ended_at": gone,
        "outcome": outcome,
        "stop_to": JobState.PREEMPTED,
        "stop_outcome": outcome,
        "stop_cause": cause,
        "stop_asked_at": asked,
        "stop_until": asked + minutes(5),
    }
    run = attempt(of, **(facts | fields))
    for index in range(gpus):
        held(run, index, since=begun, until=run.ended_at)
    if detail is not None:
        JobEvent.objects.create(
            job=of, attempt=run, at=asked, from_state="running", to_state="checkpointing", cause=cause, detail=detail, actor_name=actor
        )
    for step, at, whole in saved:
        Checkpoint.objects.create(job=of, attempt=run, step=step, reported_at=at, verified_at=at if whole else None)
    return run


@pytest.mark.django_db
def test_a_job_that_was_let_alone_has_no_such_panel(personas, page, api, ours):
    quiet = job(on=ours, state=JobState.FAILED)
    attempt(quiet, outcome="failed", running_at=NOON)
    attempt(quiet, outcome="lost", stop_to="queued", stop_outcome="lost", stop_asked_at=NOON, stop_cause="It was not running in time.")
    attempt(quiet, outcome="cancelled", stop_to="cancelled", stop_outcome="cancelled", stop_asked_at=NOON)

    assert "Preemptions" not in page("viewer", quiet)
    assert api("viewer", quiet) == {"items": [], "counts": {}, "lost_s": 0.0, "lost_gpu_hours": 0.0}


@pytest.mark.django_db
def test_who_saved_in_time_lost_nothing_and_went_on_from_there(page, api, ours):
    mine = job(on=ours, state=JobState.RUNNING)
    run = put_out(mine, saved=[(1100, ASKED - minutes(20), True), (1200, ASKED + timedelta(seconds=40), True)])
    attempt(mine, started_at=GONE + minutes(10), running_at=GONE + minutes(12), resumed_from=run.checkpoints.get(step=1200))

    told = api("viewer", mine)

    (row,) = told["items"]
    assert (row["lost_s"], row["lost_gpu_hours"], row["saved_in_time"], row["saved_step"]) == (0, 0, True, 1200)
    assert (row["grace_s"], row["left_s"]) == (300, 60)
    assert (row["then"], row["resumed_step"], row["waited_s"]) == ("again", 1200, 720)
    assert row["text"] == "Evicted. Lost: nothing: it saved step 1,200 in time. It went on from step 1,200 after 12 min."
    html = page("viewer", mine)
    for part in ("Evicted once; no work lost", "Nothing: it saved step 1,200 in time", "It had 5 min to leave and took 1 min.", "after 12 min."):
        assert part in html, part


@pytest.mark.django_db
def test_what_is_not_whole_does_not_count(page, api, ours):
    mine = job(on=ours, state=JobState.PREEMPTED)
    put_out(mine, saved=[(1100, ASKED - minutes(20), True), (1200, ASKED + timedelta(seconds=40), False)])

    (row,) = api("viewer", mine)["items"]

    assert (row["lost_s"], row["lost_gpu_hours"], row["saved_in_time"], row["saved_step"]) == (21 * 60, 2.8, False, 1100)
    assert (row["then"], row["resumed_at"], row["waited_s"]) == ("waiting", None, None)
    html = page("viewer", mine)
    for part in (
        "2.8 GPU-hours, 21 min of work since step 1,100; step 1,200 was not whole",
        "Evicted once; 2.8 GPU-hours lost",
        "waits still",
    ):
        assert part in html, part


@pytest.mark.django_db
def test_a_checkpoint_that_was_whole_too_late_to_be_gone_on_from_does_not_count(api, ours):
    mine = job(on=ours, state=JobState.RUNNING)
    run = put_out(mine, saved=[(1100, ASKED - minutes(20), True), (1200, ASKED + minutes(1), True)])
    attempt(mine, started_at=GONE + minutes(1), running_at=GONE + minutes(2), resumed_from=run.checkpoints.get(step=1100))

    (row,) = api("viewer", mine)["items"]

    assert (row["saved_step"], row["saved_in_time"], row["lost_s"], row["resumed_step"]) == (1100, False, 21 * 60, 1100)


@pytest.mark.django_db
def test_who_saved_nothing_lost_all_of_the_attempt_and_only_that(page, api, ours):
    """The second attempt went on from what the first had saved, and added nothing to it: the first lost little, the second all of its own."""
    mine = job(on=ours, state=JobState.STARTING)
    first = put_out(mine, saved=[(500, ASKED - minutes(3), True)])
    step = first.checkpoints.get()
    again = NOON + timedelta(hours=5)
    put_out(mine, begun=again, resumed_from=step, stop_until=again + minutes(71), ended_at=again + minutes(71))
    attempt(mine, started_at=again + timedelta(hours=3), resumed_from=step)

    told = api("viewer", mine)

    assert [(row["attempt"], row["lost_s"], row["saved_step"], row["resumed_step"]) for row in told["items"]] == [
        (2, 61 * 60, None, 500),
        (1, 4 * 60, 500, 500),
    ]
    assert [row["then"] for row in told["items"]] == ["starting", "again"]
    assert told["counts"] == {"evicted": 2}
    assert told["lost_gpu_hours"] == pytest.approx(8 * 65 / 60, abs=1e-6)
    html = page("viewer", mine)
    assert "Evicted twice; 8.7 GPU-hours lost" in html
    assert "8.1 GPU-hours, 1 h 1 min of work: this attempt had saved nothing" in html
    assert "Then it was stopped by force." in html


@pytest.mark.django_db
def test_who_saved_nothing_at_all_began_anew(api, ours):
    mine = job(on=ours, state=JobState.RUNNING)
    put_out(mine)
    attempt(mine, started_at=GONE, running_at=GONE + minutes(3))

    (row,) = api("viewer", mine)["items"]

    assert (row["lost_s"], row["resumed_step"], row["waited_s"]) == (61 * 60, None, 180)
    assert "Restarted from the beginning after 3 min." in row["text"]


@pytest.mark.django_db
def test_what_was_kept_without_the_moment_of_asking_is_told_by_its_event(page, api, ours):
    """As a demo's past is, or what was brought along from elsewhere."""
    mine = job(on=ours, state=JobState.PREEMPTED)
    known = {"begun": NOON, "detail": {}, "stop_to": "", "stop_outcome": "", "stop_cause": "", "stop_asked_at": None, "stop_until": None}
    put_out(mine, **known)
    put_out(mine, **known | {"begun": GONE, "detail": None, "running_at": GONE, "cause": "", "outcome": "moved"})
    JobEvent.objects.filter(job=mine).update(cause="a100-n1 is being drained.")

    rows = api("viewer", mine)["items"]

    assert [(row["kind"], row["lost_s"], row["grace_s"], row["then"]) for row in rows] == [
        ("moved", None, None, "waiting"),
        ("evicted", None, None, "again"),
    ]
    assert "It ran again after 0 s." in rows[1]["text"]
    html = page("viewer", mine)
    assert "what was lost is not known" in html and "Not known: what it saved was not written down" in html
    put_out(mine, begun=GONE + minutes(90))
    assert "Evicted twice, moved once; 8.1 GPU-hours lost, as far as is known" in page("viewer", mine)
    assert [row["cause"] for row in rows] == ["", "a100-n1 is being drained."]
    assert rows[1]["at"] == ASKED.isoformat().replace("+00:00", "Z")


@pytest.mark.django_db
def test_who_is_leaving_has_lost_nothing_that_is_known(page, api, ours):
    mine = job(on=ours, state=JobState.CHECKPOINTING)
    put_out(mine, ended_at=None, outcome="")
    Attempt.objects.filter(job=mine).update(stop_outcome="preempted")

    told = api("viewer", mine)

    assert (told["items"][0]["then"], told["items"][0]["lost_s"], told["items"][0]["left_s"]) == ("leaving", None, None)
    assert "Not known yet" in page("viewer", mine)


@pytest.mark.django_db
def test_who_completed_while_it_was_asked_lost_nothing(api, ours):
    mine = job(on=ours, state=JobState.COMPLETED)
    put_out(mine, outcome="completed")
    Attempt.objects.filter(job=mine).update(stop_outcome="preempted")

    (row,) = api("viewer", mine)["items"]

    assert (row["kind"], row["then"], row["lost_s"]) == ("evicted", "completed", 0)


@pytest.mark.django_db
def test_a_move_is_told_as_such_and_may_lose_work_as_well(page, api, ours):
    mine = job(on=ours, state=JobState.RUNNING)
    first = put_out(mine, outcome="moved", detail={"code": "consolidate", "action": "move"}, saved=[(7, ASKED - minutes(29), True)])
    step = first.checkpoints.get()
    put_out(mine, begun=GONE, outcome="moved", detail={"code": "grow", "action": "grow"}, running_at=None, resumed_from=step)

    told = api("viewer", mine)

    assert [(row["kind"], row["code"], row["lost_s"]) for row in told["items"]] == [("grown", "grow", 0), ("moved", "consolidate", 30 * 60)]
    html = page("viewer", mine)
    assert "Moved once, moved to grow once; 4 GPU-hours lost" in html
    assert "Nothing: its workers were not up yet" in html


@pytest.mark.django_db
def test_a_gang_that_shrank_went_on(page, api, ours):
    mine = job(on=ours, state=JobState.RUNNING)
    run = attempt(mine, running_at=UP)
    for index in range(4):
        held(run, index, leaving_since=ASKED if index > 1 else None)
    facts = {"at": ASKED, "from_state": "running", "to_state": "running", "attempt": run}
    JobEvent.objects.create(job=mine, detail={"action": "shrink", "code": "reclaim", "for": "j-1"}, cause="acme takes back", **facts)
    JobEvent.objects.create(job=mine, detail={"action": "grow", "code": "grow"}, cause="grows", **facts)

    told = api("viewer", mine)

    (row,) = told["items"]
    assert (row["kind"], row["gave_back_milli"], row["then"], row["lost_s"]) == ("shrunk", 2000, "went_on", None)
    assert (told["lost_s"], told["counts"]) == (0, {"shrunk": 1})
    assert "It gave back 2 GPUs." in page("viewer", mine)


@pytest.mark.django_db
def test_a_person_who_restarts_it_is_named(page, api, ours):
    mine = job(on=ours, state=JobState.PREEMPTED)
    put_out(mine, detail={}, actor="Tessa", cause="New data.")

    (row,) = api("viewer", mine)["items"]

    assert (row["kind"], row["by"], row["for"], row["code"]) == ("restarted", "Tessa", None, None)
    assert "Tessa" in page("viewer", mine)


@pytest.mark.django_db
def test_another_team_is_unnamed_but_for_those_who_see_it(page, api, ours, theirs):
    secret = job("secret", on=theirs, state=JobState.RUNNING)
    made = plan()
    mine = job(on=ours, state=JobState.PREEMPTED)
    why = f"{secret.public_id} of acme/product/search reclaims 8 GPUs"
    put_out(mine, cause=why, detail={"action": "evict", "code": "reclaim", "for": secret.public_id, "plan": made.pk})

    (row,) = api("viewer", mine)["items"]
    assert (row["for"], row["code"], row["plan"]) == ({"id": "", "name": "", "quota": ""}, "reclaim", None)
    assert row["text"].startswith("Evicted for a job of another team (reclaim). Lost: 8.1 GPU-hours")
    for seen in (str(row), page("viewer", mine)):
        assert secret.public_id not in seen and "secret" not in seen and "product" not in seen
    html = page("viewer", mine)
    assert "a job of another team" in html and "<code>reclaim</code>" in html and "/scheduler/plans/" not in html

    (row,) = api("operator", mine)["items"]
    assert (row["for"], row["plan"]) == ({"id": secret.public_id, "name": "secret", "quota": "acme/product/search"}, made.pk)
    html = page("operator", mine)
    assert f'<a href="{reverse("job", args=[secret.public_id])}">secret {secret.public_id}</a>' in html
    assert f'href="{reverse("plan", args=[made.pk])}"' in html
    PlanRecord.objects.all().delete()
    assert api("operator", mine)["items"][0]["plan"] is None
    assert "/scheduler/plans/" not in page("operator", mine)


@pytest.mark.django_db
def test_what_jobs_and_people_write_stays_text(page, ours):
    evil = "<script>alert(1)</script>"
    other = job(evil, on=ours)
    mine = job(on=ours, state=JobState.PREEMPTED)
    put_out(mine, cause=evil, actor=evil, detail={"code": evil, "for": other.public_id})

    html = page("operator", mine)

    assert "<script" not in html
    assert html.count("&lt;script&gt;") == 4


@pytest.mark.django_db
def test_it_costs_the_same_for_one_time_and_for_many(personas, ours, theirs):
    viewer = personas.access("viewer")
    mine = job(on=ours, state=JobState.PREEMPTED)
    other = job(on=theirs)

    def queries():
        attempts = job_attempts(Job.objects.get(pk=mine.pk))
        with CaptureQueriesContext(connection) as seen:
            found = job_evictions(viewer, mine, attempts)
        return len(seen), len(found.rows)

    assert queries() == (1, 0)
    for number in range(12):
        begun = NOON + timedelta(hours=2 * number)
        at = begun + minutes(30)
        put_out(mine, begun=begun, gpus=1, detail={"code": "reclaim", "for": other.public_id, "plan": number}, saved=[(number, at, True)])
        if number == 0:
            few, times = queries()
            assert (few <= 5, times) == (True, 1)
    assert queries() == (few, 12)


# Through the loop


@pytest.mark.django_db
def test_the_loop_keeps_for_whom_and_by_which_rule():
    node(gpus=8)
    lender, borrower = leaf("lender", 8), leaf("borrower")
    loop = Loop()
    taken = submit(borrower, gpus=8, spec={"grace_s": 60})
    loop.tick()
    loop.after(seconds=5).up(taken)
    loop.after(minutes=30)
    shard_report(attempt=attempt_of(taken), step=9, shard=Shard(0), shards_expected=1, location="", now=loop.now)
    loop.after(minutes=30)
    owner = submit(lender, gpus=4, at=loop.now)
    loop.tick()
    loop.after(seconds=20).over(taken, exit_code=143)
    loop.tick()
    loop.after(seconds=5).up(owner)
    loop.after(hours=1).over(owner)
    loop.tick()
    loop.after(seconds=10).up(taken)

    reader = person("ada")
    role(reader, "operator", builders.quota())
    access = access_for_user(reader)
    fresh = Job.objects.get(pk=taken.pk)
    (row,) = job_evictions(access, fresh, job_attempts(fresh)).rows

    assert row.served is not None and row.served.job == owner
    assert (row.kind, row.code, row.by) == ("evicted", "reclaim", "")
    assert (row.grace_seconds, row.left_seconds) == (60, 20)
    assert row.loss == Loss((30 * 60 + 20) * MS, 8000 * (30 * 60 + 20) * MS)
    assert (row.saved_step, row.then, row.resumed_step, row.waited_seconds) == (9, "again", 9, 3615)
    told = evictions_told(job_evictions(access, fresh, job_attempts(fresh)), Discretion(access, []))
    assert told.head == "Evicted once; 4 GPU-hours lost"


@pytest.mark.django_db
def test_who_is_cancelled_while_it_leaves_was_not_put_out(ours):
    """A person ended it: what it had computed since its checkpoint nobody will compute again."""
    node(gpus=8)
    lender, borrower = leaf("lender", 8), leaf("borrower")
    loop = Loop()
    taken = submit(borrower, gpus=8)
    loop.tick()
    loop.up(taken)
    submit(lender, gpus=4, at=loop.after(hours=1).now)
    loop.tick()
    reader = person("ada")
    role(reader, "operator", builders.quota())
    access = access_for_user(reader)
    assert len(job_evictions(access, taken, job_attempts(taken)).rows) == 1
    job_cancel(access=access, job=Job.objects.get(pk=taken.pk), reason="", now=loop.now)

    assert job_evictions(access, taken, job_attempts(taken)).rows == ()
