"""The pages of jobs and of the scheduler, as several kinds of people see them."""

import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from gpufleet.core.templatetags.shell import THIN, starts
from gpufleet.core.times import now
from scheduler.jobs.filters import BLOCKERS
from scheduler.models import (
    Checkpoint,
    CheckpointShard,
    Cluster,
    Dependency,
    GpuMode,
    JobEvent,
    JobState,
    Lease,
    MigInstance,
    Order,
    Promise,
    Wait,
)
from scheduler.presenters.jobs import MOST_WORDS, Line, start_bar
from scheduler.selectors.foreseen import ForeseenStart
from scheduler.services.forecasts import fitting
from tests.builders import NOON, attempt, cluster, gpu, job, mig_gpu, node, outlook, placement, plan

pytestmark = pytest.mark.django_db


@pytest.fixture
def ours(personas):
    return personas.nodes["acme/research/nlp"]


@pytest.fixture
def theirs(personas):
    return personas.nodes["acme/product/search"]


def text(client, address, status=200):
    answer = client.get(address)
    assert answer.status_code == status, address
    return answer.content.decode()


def page(client, of):
    return text(client, reverse("job", args=[of.public_id]))


@pytest.mark.parametrize(
    ("held", "code", "said"),
    [
        ({}, "dependency", "Waits for {first}"),
        ({"not_before": NOON.replace(year=2999)}, "held", "Not before 2999-11-20"),
        ({"retry_at": NOON.replace(year=2999)}, "retry", "Tried again"),
    ],
)
def test_what_keeps_a_job_out_of_the_queue_is_told_before_any_forecast(personas, ours, held, code, said):
    """Plans leave such a job out, and the next forecast may be minutes away."""
    first, waiting = job("first", on=ours), job("second", on=ours, **held)
    if not held:
        Dependency.objects.create(job=waiting, on=first)
    new = job("third", on=ours)

    html, told = page(personas.client("viewer"), waiting), personas.client("viewer").get(f"/api/v1/jobs/{waiting.public_id}/why").json()

    assert [reason["code"] for reason in told["reasons"]] == [code]
    assert said.format(first=first.public_id).lower() in re.sub(r"<[^>]+>", "", html).lower()
    assert "has not looked at it yet" not in html
    assert told["looked_at"] is None and "Looked at" not in html, "no plan has"
    assert "has not looked at it yet" in page(personas.client("viewer"), new)


def test_before_the_first_job_the_pages_say_what_comes(personas):
    assert "No job has been submitted yet" in text(personas.client("viewer"), "/jobs/")
    html = text(personas.client("operator"), "/scheduler/")
    assert "No plan has been made yet" in html
    assert "Not started yet" in html


def test_a_waiting_job_says_in_its_row_why_it_waits(personas, ours):
    waiting = job("big", on=ours)
    outlook(waiting, "needs 8 H100 GPUs; 5 are free where it may run", "second", predicted_start=now() + timedelta(hours=2))

    html = text(personas.client("viewer"), "/jobs/")

    assert "Needs 8 H100 GPUs; 5 are free where it may run." in html
    assert "+1 more" in html
    assert "starts" in html


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"change": "gpu_types", "to": ["A100-SXM-80GB", "L40S-48GB"]}, "It would start now on A100-SXM-80GB or L40S-48GB."),
        ({"change": "topology.required", "to": None}, "It would start now with its required level widened to the whole cluster."),
        ({"change": "roles.worker.min", "to": 3}, "It would start now with 3 workers of role worker."),
        ({"change": "preemptible", "to": True}, "It would start now as preemptible work."),
    ],
)
def test_the_change_that_would_start_it_now_is_told_in_words(personas, ours, change, said):
    waiting = job("big", on=ours)
    outlook(waiting, "needs 8 GPUs", would_start_if=change)

    assert said in page(personas.client("viewer"), waiting)


@pytest.mark.parametrize(
    ("due", "late", "said"),
    [
        (timedelta(minutes=16), None, "starts in 16 min"),
        (timedelta(seconds=-90), None, "starts any moment"),
        (timedelta(minutes=-3), None, "late by 3 min"),
        (timedelta(seconds=10), timedelta(minutes=-37), "late by 37 min"),
    ],
)
def test_a_start_is_due_for_two_minutes_then_late(personas, ours, due, late, said):
    """37 minutes long a job was to start at any moment: each forecast said anew that it does now."""
    waiting = job("late", on=ours)
    fields = {"predicted_start": now() + due, "late_since": late and now() + late}
    outlook(waiting, "needs 8 H100 GPUs; 5 are free where it may run", **fields)

    def plain(html):
        return html.replace("\u202f", " ").replace("\u00a0", " ")

    assert said in plain(text(personas.client("viewer"), "/jobs/"))
    html = plain(page(personas.client("viewer"), waiting))
    assert html.count(said) == 2
    assert (": Needs 8 H100 GPUs; 5 are free where it may run." in html) == ("late" in said)


def test_a_list_tells_the_time_range_of_a_start(personas, ours):
    soon = now() + timedelta(minutes=90)
    window = {"earliest_start": soon - timedelta(minutes=30), "latest_start": soon + timedelta(minutes=45)}
    outlook(job("dated", on=ours), "needs 8 GPUs", predicted_start=soon, **window)
    outlook(job("late", on=ours), "needs 8 GPUs", predicted_start=soon, late_since=now() - timedelta(minutes=37), **window)
    outlook(job("point", on=ours), "needs 8 GPUs", predicted_start=soon, earliest_start=soon, latest_start=soon)

    def started(name):
        html = text(personas.client("viewer"), f"/jobs/?q={name}")
        return re.findall(r'data-moment="start"[^>]*>([^<]*)<', html)[0].replace("\u00a0", " ")

    assert started("dated") == starts(soon, now(), tuple(window.values())).replace("\u00a0", " ")
    assert "–" in started("dated")
    assert (started("late"), started("point")) == ("late by 37 min", "starts in 1 h 30 min")


@pytest.mark.parametrize(("latest", "said"), [(timedelta(hours=2), ", between now and <time"), (timedelta(minutes=-1), None)])
def test_nobody_is_expected_to_start_in_the_past(personas, ours, latest, said):
    waiting = job("late", on=ours)
    begins = {"earliest_start": now() - timedelta(hours=1), "latest_start": now() + latest}
    outlook(waiting, "needs 8 GPUs", predicted_start=now() + timedelta(minutes=3), **begins)

    html = page(personas.client("viewer"), waiting)

    assert said in html if said else "between" not in html


def test_the_time_until_a_start_is_drawn_with_its_range(personas, ours):
    waiting = job("train", on=ours)
    begins = {"earliest_start": now() + timedelta(minutes=30), "latest_start": now() + timedelta(hours=2)}
    outlook(waiting, "needs 8 GPUs", predicted_start=now() + timedelta(hours=1), **begins)

    html = page(personas.client("viewer"), waiting).replace("\u00a0", " ")

    assert re.search(r'<svg class="start-bar"[^>]* aria-label="Starts in 1 h, in 30 min at the earliest, in 2 h at the latest."', html)
    labels = dict(re.findall(r'<text class="start-\w+" x="([\d.]+)%"[^>]*>([^<]+)', html))
    assert labels == {"0": "Now", "25.0": "Earliest in 30 min", "50.0": "Predicted in 1 h", "100": "Latest in 2 h"}
    assert re.search(r'<rect class="start-range" x="25.0%" y="20" width="75.0%"', html)


@pytest.mark.parametrize(
    ("start", "earliest", "latest", "said", "kinds"),
    [
        (60, None, None, "Starts in 1 h.", "now predicted"),
        (60, -5, 90, "Starts in 1 h, now at the earliest, in 1 h 30 min at the latest.", "now predicted latest"),
        (60, 70, 90, "Starts in 1 h, in 1 h at the earliest, in 1 h 30 min at the latest.", "now predicted latest"),
        (60, 20, 50, "Starts in 1 h.", "now earliest predicted"),
        (-1, -9, 90, None, ""),
    ],
)
def test_a_start_bar_shows_what_is_foreseen_and_nothing_that_is_over(start, earliest, latest, said, kinds):
    def at(minutes):
        return None if minutes is None else NOON + timedelta(minutes=minutes)

    bar = start_bar(ForeseenStart(at(start), at(earliest), at(latest), NOON, None), NOON)

    assert (bar.said.replace("\u00a0", " ") if bar else None) == said
    assert " ".join(mark.kind for mark in (bar.marks if bar else ())) == kinds
    assert bar is None or all(0 <= mark.x <= 100 for mark in bar.marks)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"held_at": NOON}, "Held back by a person."),
        ({"not_before": NOON + timedelta(days=900)}, "Not due yet."),
        ({"retry_at": NOON + timedelta(days=900)}, "Backs off before it is tried again."),
        ({"state": JobState.DRAFT}, "Not submitted yet."),
        ({"state": JobState.RUNNING, "degraded_since": NOON}, "Some of its workers are lost."),
        ({}, "Not looked at yet."),
    ],
)
def test_what_the_plan_does_not_know_is_said_all_the_same(personas, ours, fields, said):
    job(on=ours, **fields)

    assert said in text(personas.client("viewer"), "/jobs/")


def test_a_line_of_a_list_has_at_most_eight_words(personas, ours) -> None:
    assert all(len(words.split()) <= MOST_WORDS for words in BLOCKERS.values())
    waits = job("train", on=ours)
    outlook(waits, reasons=[{"code": "capacity", "detail": "needs 1 L40S-48GB GPU; 0 are free where it may run"}])
    client = personas.client("operator")

    (cell,) = re.findall(r'<span class="job-line"[^>]*>[^<]*', client.get(reverse("jobs")).content.decode())
    assert cell == '<span class="job-line" title="Needs 1 L40S-48GB GPU; 0 are free where it may run.">Too few GPUs free.'
    assert "Needs 1 L40S-48GB GPU; 0 are free where it may run." in client.get(reverse("job", args=[waits.public_id])).content.decode()
    assert Line("Rank 3 of the gang ended with the code 137.").brief == "Details on its page."
    assert Line("alpha-7 stopped answering; the job waits for another place.").brief == "alpha-7 stopped answering."
    assert Line("Waits for 2 jobs to end.", short="Waits for another job.").brief == "Waits for 2 jobs to end."


def test_the_line_of_a_list_tells_when_it_starts_rather_than_who_leaves_first(personas, ours):
    """Six lines of a narrow column were told of each job. Where no start is foreseen who leaves first is all that is known."""
    detail = "needs 8 GPUs; 5 are free where it may run; j-1 is expected to leave first, by 2026-11-23T15:32:00Z"
    reasons = [{"code": "capacity", "detail": detail, "held_by": "j-1", "until": "2026-11-23T15:32:00Z"}]
    dated = job("dated", on=ours)
    outlook(dated, reasons=reasons, predicted_start=now() + timedelta(minutes=9))
    outlook(job("open", on=ours), reasons=reasons)
    seen = text(personas.client("operator"), "/jobs/?q=dated")
    assert "Needs 8 GPUs; 5 are free where it may run." in seen
    assert "expected to leave first" not in seen
    assert "expected to leave first" in text(personas.client("operator"), "/jobs/?q=open")
    assert "expected to leave first" in page(personas.client("operator"), dated)


def test_a_job_that_waits_for_others_says_for_how_many(personas, ours):
    last = job("last", on=ours)
    Dependency.objects.create(job=last, on=job("first", on=ours))
    Dependency.objects.create(job=last, on=job("over", on=ours, state=JobState.COMPLETED))

    assert "Waits for 1 job to end." in text(personas.client("viewer"), "/jobs/?q=last")


def test_other_teams_are_not_named_where_they_stand_in_the_way(personas, ours, theirs):
    secret = job("secret", on=theirs, state=JobState.RUNNING)
    waiting = job("mine", on=ours)
    outlook(waiting, f"above their share: acme/product/search; {secret.public_id} holds GPUs there until later, acme/research may too")
    Promise.objects.create(job=waiting, until=NOON, after=[secret.public_id], cause=f"fits once {secret.public_id} has gone")
    JobEvent.objects.create(job=waiting, at=NOON, cause=f"acme/product/search takes it back for {secret.public_id}")

    for address in ("/jobs/", reverse("job", args=[waiting.public_id])):
        seen = text(personas.client("viewer"), address)
        assert secret.public_id not in seen
        assert "product" not in seen
    html = page(personas.client("viewer"), waiting)
    assert "another team" in html
    assert "Another team takes it back for another job." in html, "a sentence, also where a name that it began with is kept back"
    assert "acme/research may too" in html
    assert "1 job of another team leaves" in html
    assert secret.public_id in page(personas.client("operator"), waiting)


def test_other_teams_in_a_row_are_counted(personas, ours, theirs):
    waiting = job("mine", on=ours)
    outlook(waiting, f"above their share: {theirs.path}, {theirs.parent.path} and {theirs.path}; {ours.path} is not")

    html = page(personas.client("viewer"), waiting)

    assert "Above their share: 3 other teams; acme/research/nlp is not." in html


def limit_reason(quota, *, used, needed, limit, kind="H100-SXM-80GB"):
    detail = f"{quota.path} uses {used} of its limit of {limit} {kind}; {needed} more would exceed it"
    return {"code": "limit", "detail": detail, "quota": quota.path, "used": used, "needed": needed, "limit": limit, "type": kind}


def running_on(quota, gpus, *, kind="H100-SXM-80GB", **fields):
    """A job that has run for an hour on so many GPUs."""
    made = job(on=quota, state=JobState.RUNNING, **fields)
    attempt(made, running_at=now() - timedelta(hours=1))
    for device in node(gpus=gpus, type_name=kind).gpus.all():
        placement(made, device)
    return made


def test_a_job_on_a_cluster_that_does_not_respond_says_what_that_means(personas, ours):
    running, ended = running_on(ours, 1), job("over", on=ours, state=JobState.COMPLETED)
    assert "has not responded" not in page(personas.client("viewer"), running)
    Cluster.objects.update(silent_since=NOON)

    told = page(personas.client("viewer"), running)
    assert ">north</a> has not responded <time" in told
    assert "A cancel or a change takes effect when the cluster responds." in told
    assert "has not responded" not in page(personas.client("viewer"), ended)


def test_who_waits_for_a_limit_is_told_who_holds_it_and_when_enough_is_given_back(personas, ours, theirs):
    soon = running_on(ours, 2, name="soon", estimate_seconds=9000)
    running_on(theirs, 4, name="secret", estimate_seconds=5 * 3600)
    running_on(ours, 1, name="other-type", kind="L40S-48GB")
    whole = ours.parent.parent
    waiting = job("mine", on=ours)
    outlook(waiting, reasons=[limit_reason(whole, used=6, needed=4, limit=8)])
    viewer, operator = page(personas.client("viewer"), waiting), page(personas.client("operator"), waiting)

    assert "holds 2 GPUs" in viewer
    assert viewer.index(soon.public_id) < viewer.index("another team")
    assert "secret" not in viewer
    assert "secret" in operator
    assert "other-type" not in operator
    assert "Predicted release of enough GPUs" in viewer
    assert f"in 1{THIN}h" in viewer


def test_where_nobody_knows_when_a_limit_has_room_again_that_is_said(personas, ours):
    running_on(ours, 2, name="serving")
    for number in range(6):
        running_on(ours, 1, name=f"over-{number}", estimate_seconds=1800)
    waiting = job("mine", on=ours)
    outlook(waiting, reasons=[limit_reason(ours, used=8, needed=8, limit=8)], forecast_at=NOON)

    html = page(personas.client("viewer"), waiting)

    assert html.count("its end is not known") == 5
    assert "2 more jobs: 8 GPUs in all, 8 of acme/research/nlp." in html
    assert "No estimate when enough is released." in html
    assert "No start can be predicted now." in html


def test_jobs_of_other_subtrees_are_not_there(personas, ours, theirs):
    mine, other = job("mine", on=ours), job("secret", on=theirs)

    seen = text(personas.client("viewer"), "/jobs/")

    assert "mine" in seen
    assert "secret" not in seen
    text(personas.client("viewer"), reverse("job", args=[other.public_id]), 404)
    assert "secret" in text(personas.client("operator"), "/jobs/")
    rows = f"/jobs/?rows={mine.public_id},{other.public_id}"
    assert mine.public_id in text(personas.client("viewer"), rows)
    assert other.public_id not in text(personas.client("viewer"), rows)
    assert other.public_id in text(personas.client("operator"), rows)
    assert personas.client("stranger").get(rows).status_code == 403
    assert personas.client("stranger").get(reverse("job", args=[mine.public_id])).status_code == 403


@pytest.fixture
def busy(ours):
    """A job in its second attempt, after an eviction, with a checkpoint and a whole one."""
    one = node("alpha", gpus=4)
    running = job(
        "gang",
        on=ours,
        state=JobState.RUNNING,
        gpus_milli=2000,
        submitted_at=NOON,
        evictions=1,
        labels={"run": "<script>alert(1)</script>"},
        spec={
            "roles": [{"name": "worker", "min": 2, "max": 4, "gpus": 1, "cpus": 8}],
            "gpu_types": ["H100-SXM-80GB"],
            "topology": {"required": "leaf"},
        },
    )
    first = attempt(running, ended_at=NOON + timedelta(hours=1), outcome="preempted", cause="Gave way.", running_at=NOON + timedelta(minutes=5))
    second = attempt(running, started_at=NOON + timedelta(hours=2))
    devices = list(one.gpus.order_by("index"))
    placement(running, devices[1], worker=0, attempt=second)
    placement(running, devices[2], worker=1, attempt=second, leaving_since=NOON)
    whole = Checkpoint.objects.create(job=running, attempt=first, step=100, shards_expected=2, verified_at=NOON, location="/ckpt/100")
    part = Checkpoint.objects.create(job=running, attempt=second, step=200, shards_expected=2)
    for checkpoint, count in ((whole, 2), (part, 1)):
        for number in range(count):
            CheckpointShard.objects.create(checkpoint=checkpoint, number=number)
    second.resumed_from = whole
    second.save()
    JobEvent.objects.create(job=running, at=NOON, to_state="queued", cause="Submitted.", actor_name="Sam")
    JobEvent.objects.create(job=running, attempt=first, at=NOON, from_state="running", to_state="running", cause="Told to save its work.")
    return running


def test_the_page_of_a_running_job_shows_all_of_it(personas, busy):
    html = page(personas.client("viewer"), busy)

    for part in (
        "alpha",
        "worker 0–1",
        "GPU 1–2",
        "preempted",
        "Gave way.",
        "step 100",
        "2 of 2",
        "1 of 2",
        "2 to 4 × 1 GPU, 8 CPUs",
        "all within one leaf",
    ):
        assert part in html, part
    assert "seat-held" in html and "seat-leaving" in html and "seat-rest" in html
    assert "<strong>Note</strong>" in html and "by Sam" in html
    assert "<script>alert(1)" not in html
    assert "&lt;script&gt;alert(1)" in html
    assert "Why it waits" not in html
    assert html.count("from GPUs to all workers up") == 1
    assert "evicted 1 time, 0 failures" in html and "<p>Evicted 1 time; " in html, "above and below it is one count"


def test_the_list_says_where_a_job_runs(personas, busy):
    html = text(personas.client("viewer"), "/jobs/?phase=holding")

    assert "alpha" in html
    assert f'data-key="{busy.public_id}"' in html


def test_a_part_of_a_gpu_is_told_as_such(personas, ours):
    split = mig_gpu()
    running = job("slice", on=ours, state=JobState.RUNNING, spec={"roles": [{"min": 1, "mig": "3g.40gb"}]})
    placement(running, split, mig=MigInstance.objects.filter(gpu=split).first(), gpu_milli=500)
    shared = job("shared", on=ours, state=JobState.RUNNING, spec={"roles": [{"gpu_share": 0.25}]})
    placement(shared, gpu(mode=GpuMode.MPS), gpu_milli=250)

    assert "3g.40gb on GPU 0" in page(personas.client("viewer"), running)
    assert "0.25 of GPU 0" in page(personas.client("viewer"), shared)


def test_time_is_told_as_waiting_starting_and_running():
    from scheduler.presenters.jobs import life_of

    done = job("done", state=JobState.COMPLETED, ended_at=NOON + timedelta(hours=4))
    runs = [
        attempt(done, started_at=NOON + timedelta(hours=1), running_at=NOON + timedelta(minutes=70), ended_at=NOON + timedelta(hours=2)),
        attempt(done, started_at=NOON + timedelta(hours=3), running_at=None, ended_at=NOON + timedelta(hours=4)),
    ]

    life = life_of(done, runs, NOON + timedelta(days=9), None)

    assert [(part.key, part.seconds / 60) for part in life.parts] == [("quota", 0), ("gpus", 120), ("start", 70), ("run", 50)]
    assert sum(part.width for part in life.parts) == 1000


def test_the_wait_for_quota_stands_beside_that_for_gpus(personas, ours):
    waiting = job("mine", on=ours, submitted_at=now() - timedelta(hours=3), state_since=now() - timedelta(hours=3))
    Wait.objects.create(job=waiting, kind="quota", since=now() - timedelta(hours=1), quota_ms=1_800_000)

    html = page(personas.client("viewer"), waiting)
    told = personas.client("viewer").get(f"/api/v1/jobs/{waiting.public_id}").json()["life"]

    assert f'<dt>Waited for quota</dt><dd><span class="value">1{THIN}h 30{THIN}min' in html
    assert f'<dt>Waited for GPUs</dt><dd><span class="value">1{THIN}h 30{THIN}min' in html
    assert "Held or not due" not in html
    assert [round(told[key]) for key in ("waited_for_quota_s", "waited_for_gpus_s", "aside_s", "starting_s", "running_s")] == [5400, 5400, 0, 0, 0]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("phase=waiting", {"waits"}),
        ("phase=holding", {"runs"}),
        ("phase=ended", {"over"}),
        ("phase=waiting&phase=ended", {"waits", "over"}),
        ("state=running", {"runs"}),
        ("class=inference", {"over"}),
        ("team=acme/research", {"waits", "runs", "over"}),
        ("team=acme/rese", set()),
        ("owner=submitter", {"runs"}),
        ("held=yes", {"waits"}),
        ("q=uns", {"runs"}),
        ("array=j-9", {"over"}),
        ("from=2030-01-01", set()),
    ],
)
def test_the_list_filters(personas, ours, query, expected):
    job("waits", on=ours, held_at=NOON)
    job("runs", on=ours, state=JobState.RUNNING, owner=personas.users["submitter"])
    job("over", on=ours, state=JobState.COMPLETED, job_class="inference", array="j-9", array_index=3)

    answer = personas.client("viewer").get(f"/jobs/?{query}")

    assert {row.job.name for row in answer.context["page"].rows} == expected
    assert not answer.context["page"].problems


def test_every_heading_of_the_lists_sorts_both_ways(personas, ours):
    from scheduler.jobs.lists import JOBS, PLANS

    job("one", on=ours)
    plan()
    for table, address in ((JOBS, "/jobs/"), (PLANS, "/scheduler/")):
        for column in table.columns:
            for sort in [column.key, f"-{column.key}"] if column.sort else []:
                answer = personas.client("operator").get(address, {"sort": sort})
                assert answer.status_code == 200
                assert not answer.context["page"].problems, sort


# Of the list, one is what telemetry reads now, for its column of utilization.
BUDGETS = {"/jobs/": 13, "job": 26, "/scheduler/": 14}


@pytest.mark.parametrize("address", BUDGETS)
def test_pages_cost_the_same_for_few_and_for_many(personas, ours, busy, address):
    place = reverse("job", args=[busy.public_id]) if address == "job" else address
    person = personas.client("operator" if address == "/scheduler/" else "viewer")

    def queries():
        with CaptureQueriesContext(connection) as seen:
            text(person, place)
        return len(seen)

    plan()
    Dependency.objects.create(job=job("next", on=ours), on=busy)
    queries()
    few = queries()
    for number in range(15):
        waiting = job(f"waits-{number}", on=ours)
        outlook(waiting, f"needs j-{number} to go")
        placement(job(f"runs-{number}", on=ours, state=JobState.RUNNING), gpu(node(gpus=1)))
        JobEvent.objects.create(job=busy, at=NOON, cause=f"for j-{number}")
        Dependency.objects.create(job=waiting, on=busy)
        plan()
    assert queries() <= few + 1  # the first other job that a sentence names costs one
    assert few <= BUDGETS[address]


# The scheduler


def test_the_page_tells_who_leads_and_what_is_late(personas):
    moment = now()
    lease = Lease.objects.create(name="tick", holder="worker-1", epoch=7, expires_at=moment + timedelta(seconds=3), wanted=9, done=9)
    html = text(personas.client("operator"), "/scheduler/")
    assert "Deciding" in html and "worker-1, epoch 7" in html

    Lease.objects.filter(pk=lease.pk).update(expires_at=moment - timedelta(seconds=3))
    assert "Watching" in text(personas.client("operator"), "/scheduler/")
    Lease.objects.filter(pk=lease.pk).update(wanted=11)
    assert "Watching" in text(personas.client("operator"), "/scheduler/"), "a wish of this moment is not late"
    Lease.objects.filter(pk=lease.pk).update(expires_at=moment - timedelta(minutes=3))
    html = text(personas.client("operator"), "/scheduler/")
    assert "Overdue" in html and "2 changes wait for a plan" in html
    Lease.objects.filter(pk=lease.pk).update(paused_at=moment, paused_by="Oona", paused_reason="New switches.")
    html = text(personas.client("operator"), "/scheduler/")
    assert "Paused by Oona" in html and "New switches." in html


def test_orders_that_fail_are_told_with_what_the_back_end_said(personas):
    Order.objects.create(cluster=cluster(), sequence=1, kind="stop", fault="no route to host", tries=3)
    Order.objects.create(cluster=cluster(), sequence=2, kind="start", due_at=now() + timedelta(hours=1))

    html = text(personas.client("operator"), "/scheduler/")

    assert "no route to host" in html
    assert "(1 failing)" in html


def test_a_plan_tells_what_it_decided_and_why(personas, ours):
    one, two = job("a", on=ours), job("b", on=ours)
    made = plan(
        decisions=[
            {
                "action": "evict",
                "job": one.public_id,
                "why": {"code": "reclaim", "for": two.public_id, "detail": "acme reclaims 8 GPUs"},
                "grace_s": 120,
            },
            {
                "action": "start",
                "job": two.public_id,
                "after": [one.public_id],
                "workers": [{"role": "worker", "index": 0, "node": "north/n1", "gpus": [0, 1]}],
                "why": {"code": "fits", "detail": "first in the order"},
            },
            {"action": "repartition", "node": "north/n2", "gpu": 3, "instances": [], "why": {"code": "repartition", "detail": "for a slice"}},
        ],
        dropped=[{"action": "grow", "job": one.public_id, "why": {"code": "grow"}, "dropped": "the job moved on"}],
        waiting=4,
    )

    html = text(personas.client("operator"), reverse("plan", args=[made.pk]))

    for part in ("is evicted", "Acme reclaims 8 GPUs.", "1 worker on n1", "GPU 3 of north/n2", "The job moved on.", "with 4 jobs left waiting"):
        assert part in html, part
    listed = text(personas.client("operator"), "/scheduler/?decided=yes")
    assert "plan 120 · " in listed, "where most of the time went, the longest first"
    assert "snapshot 8 · plan 120" in html
    assert "No plan matches" in text(personas.client("operator"), "/scheduler/?decided=no")
    plan(at=now() + timedelta(minutes=1))
    page = text(personas.client("operator"), "/scheduler/")
    last = page[page.index("What it did last") : page.index("<h2>Plans")]
    for part in (f"Plan {made.pk}", "is evicted", "Acme reclaims 8 GPUs.", two.public_id):
        assert part in last, part


def test_a_plan_that_broke_says_that_nothing_was_written(personas):
    made = plan(fault="GPU 3 of north/n1 is held twice", scenario=None)

    html = text(personas.client("operator"), reverse("plan", args=[made.pk]))

    assert "Nothing of it was written: GPU 3 of north/n1 is held twice" in html
    assert "scenario" not in html
    text(personas.client("operator"), reverse("plan_scenario", args=[made.pk]), 404)
    assert made.fault in text(personas.client("operator"), "/scheduler/?fault=yes")


def test_the_scenario_of_a_plan_is_downloaded_as_it_was(personas):
    answer = personas.client("operator").get(reverse("plan_scenario", args=[plan().pk]))

    assert answer.json() == {"format": "gpufleet-scenario/1"}
    assert "attachment" in answer["Content-Disposition"]


def test_tabs_count_no_further_than_anybody_reads(personas, ours, theirs, monkeypatch):
    monkeypatch.setattr("scheduler.selectors.jobs.MOST_COUNTED", 2)
    monkeypatch.setattr("scheduler.views.jobs.MOST_COUNTED", 2)
    for _ in range(4):
        job(on=ours)
    job(on=ours, state=JobState.RUNNING)
    for _ in range(3):
        job(on=theirs, state=JobState.RUNNING)
    viewer = personas.client("viewer")

    with CaptureQueriesContext(connection) as asked:
        html = text(viewer, "/jobs/")

    assert 'Waiting <span class="tab-count">2+</span>' in html
    assert 'On GPUs <span class="tab-count">1</span>' in html
    assert len(asked) <= 12
    # A count ends at a limit, or is one of the rows that are shown.
    bounds = ("LIMIT", "json_each(", "ANY(")
    assert [query["sql"] for query in asked if "COUNT(" in query["sql"] and not any(bound in query["sql"] for bound in bounds)] == []


def test_who_has_to_leave_before_it_stands_elsewhere_is_not_told_of_itself_as_of_another(personas, ours):
    moved = job("moved", on=ours, state=JobState.RESERVED)
    other = job("other", on=ours, state=JobState.RUNNING)
    promise = Promise.objects.create(job=moved, until=NOON, after=[moved.public_id])

    assert "Has been promised the GPUs that its own last attempt leaves." in text(personas.client("viewer"), "/jobs/")

    promise.after = [other.public_id, moved.public_id]
    promise.save()
    told = f"Has been promised the GPUs that its own last attempt and {other.public_id} leave."
    assert told in text(personas.client("viewer"), "/jobs/")
    assert told in text(personas.client("viewer"), f"/jobs/{moved.public_id}/")


def test_a_row_is_told_by_its_last_attempt_and_what_lies_ahead(personas, ours):
    owner = personas.users["viewer"]
    ended = job("over", on=ours, owner=owner, state=JobState.FAILED, ended_at=NOON)
    attempt(ended, ended_at=NOON, outcome="preempted", cause="Gave way.")
    attempt(ended, ended_at=NOON, outcome="failed", cause="Exit code 3.")
    promised = job("promised", on=ours, owner=owner, state=JobState.RESERVED)
    Promise.objects.create(job=promised, until=NOON, after=[ended.public_id])
    behind = job("behind", on=ours)
    for on, done in ((ended, True), (promised, False), (job("third", on=ours), True)):
        Dependency.objects.create(job=behind, on=on, if_completed=done)

    viewer = personas.client("viewer")
    viewer.cookies["columns-jobs"] = "now.owner"

    html = text(viewer, "/jobs/")

    assert "Exit code 3." in html
    assert "Gave way." not in html
    assert f"Has been promised the GPUs that {ended.public_id} leaves." in html
    assert "Waits for 2 jobs to end." in html
    assert html.count(f">{owner.username}</td>") == 2


def test_a_job_on_a_slower_type_is_expected_to_take_longer(personas, ours):
    running = job("slow", on=ours, state=JobState.RUNNING, estimate_seconds=3600, spec={"throughput": {"H100-SXM-80GB": 0.5}})
    placement(running, node(gpus=1).gpus.get(), attempt=attempt(running, running_at=NOON))

    html = page(personas.client("viewer"), running)

    assert "of about 2" in html
    assert "at speed 1" in html and "0.5×" in html


# A scheduler that is paused


def paused() -> None:
    Lease.objects.update_or_create(name="tick", defaults={"paused_at": NOON, "paused_by": "Operator", "paused_reason": "New switches"})


def test_whoever_waits_is_told_that_the_scheduler_is_paused(personas, ours):
    waiting, running = job("waits", on=ours), job("runs", on=ours, state=JobState.RUNNING)
    assert "The scheduler was paused" not in text(personas.client("viewer"), "/jobs/")
    assert "It does so within seconds." in text(personas.client("viewer"), f"/jobs/{waiting.public_id}/")
    paused()

    html = text(personas.client("viewer"), "/jobs/")
    assert "The scheduler was paused" in html and "New switches" in html
    told = text(personas.client("viewer"), f"/jobs/{waiting.public_id}/")
    assert "It does so once it is resumed." in told and "within seconds" not in told
    outlook(waiting, "needs 8 GPUs")
    assert "The scheduler was paused" in text(personas.client("viewer"), f"/jobs/{waiting.public_id}/")
    assert "was paused" not in text(personas.client("viewer"), f"/jobs/{running.public_id}/")
    page = text(personas.client("operator"), "/scheduler/")
    assert "New switches Nothing" not in page and "decided once it is resumed" in page


def test_no_start_is_promised_while_the_scheduler_is_paused(personas, ours):
    node(gpus=4)
    description = {"name": "train", "quota": ours.path, "gpus": 1}
    fitting.GROUNDS.forget()
    assert fitting.fit_of(access=personas.access("submitter"), description=description, now=NOON).verdict == "now"
    paused()

    found = fitting.fit_of(access=personas.access("submitter"), description=description, now=NOON)

    assert (found.verdict, found.waits_for) == ("held", ("The scheduler is paused: it starts nothing until an operator resumes it.",))
