"""When a job starts and how long it takes, as pages and lists say it."""

import re
from datetime import timedelta

import pytest

from gpufleet.core.templatetags.shell import starts
from gpufleet.core.times import now
from scheduler.models import (
    Dependency,
    JobState,
    Promise,
)
from scheduler.presenters.jobs import start_bar
from scheduler.selectors.foreseen import ForeseenStart
from tests.builders import NOON, attempt, job, node, outlook, placement
from tests.scheduler.read_pages import page, text

pytestmark = pytest.mark.django_db


@pytest.fixture
def ours(personas):
    return personas.nodes["acme/research/nlp"]


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
