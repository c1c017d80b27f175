"""The pages of jobs and their lists, as several kinds of people see them."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from gpufleet.core.templatetags.shell import THIN
from gpufleet.core.times import now
from scheduler.models import (
    Checkpoint,
    CheckpointShard,
    Dependency,
    GpuMode,
    JobEvent,
    JobState,
    MigInstance,
    Wait,
)
from tests import builders
from tests.builders import NOON, attempt, gpu, job, mig_gpu, node, outlook, placement, plan
from tests.scheduler.read_pages import page, text

pytestmark = pytest.mark.django_db


@pytest.fixture
def ours(personas):
    return personas.nodes["acme/research/nlp"]


@pytest.fixture
def theirs(personas):
    return personas.nodes["acme/product/search"]


def test_before_the_first_job_the_pages_say_what_comes(personas):
    assert "No job has been submitted yet" in text(personas.client("viewer"), "/jobs/")
    html = text(personas.client("operator"), "/scheduler/")
    assert "No plan has been made yet" in html
    assert "Not started yet" in html


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
    assert "evicted once, 0 failures" in html and "<p>Evicted once; " in html, "above and below it is one count"


def test_the_list_says_where_a_job_runs(personas, busy):
    html = text(personas.client("viewer"), "/jobs/?phase=holding")

    assert "alpha" in html
    assert f'data-key="{busy.public_id}"' in html


@pytest.mark.parametrize(("state", "form"), [(JobState.COMPLETED, "relative"), (JobState.QUEUED, "for")])
def test_what_is_over_was_some_time_ago_and_what_lasts_has_lasted(personas, ours, state, form):
    """It said “Completed for 47 min”."""
    one = job("train", on=ours, state=state, ended_at=now() if state == JobState.COMPLETED else None)

    head = personas.client("team_lead").get(f"/jobs/{one.public_id}/").content.decode().split('<p class="page-sub">')[1].split("</p>")[0]

    assert f'data-moment="{form}"' in head


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
    assert 5400 <= told["waited_for_quota_s"] < 5460, "it waits for quota now"
    assert [round(told[key]) for key in ("waited_for_gpus_s", "aside_s", "starting_s", "running_s")] == [5400, 0, 0, 0]


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
BUDGETS = {"/jobs/": 13, "job": 26, "/scheduler/": 16}


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


@pytest.mark.parametrize("address", ["/jobs/", "/idle/", "/incidents/"])
def test_lists_have_a_column_of_costs_for_those_alone_who_may_see_some(personas, address):
    builders.job(on=personas.nodes["acme/research/nlp"])

    def heads(who: str) -> list[str]:
        client = personas.client(who)
        file = b"".join(client.get(f"{address}?format=csv").streaming_content).decode()
        if address == "/jobs/":
            assert ('num c-cost"' in client.get(address).content.decode()) == (",Cost," in file)
        return file.splitlines()[0].split(",")

    assert "Cost" in heads("finance")
    assert "Cost" not in heads("viewer")
