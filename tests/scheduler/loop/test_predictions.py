"""What jobs were told about their start, held against the start: written down, learnt from and shown."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest

from gpufleet.core.times import millis, now
from quotas.models import QuotaNode
from scheduler.engine.model.values import Settings
from scheduler.loop.foresight import LATER, Foresight, estimated, ruled
from scheduler.models import Attempt, Job, JobState, Outlook, Prediction
from scheduler.selectors.predictions import foresight_now, past_recalled, predictions_score
from scheduler.services.forecasts import grounds
from scheduler.services.forecasts.fitting import Fit, fit_of
from scheduler.services.forecasts.forecasting import ForecastMemory, forecast_run
from scheduler.services.forecasts.outlooks import Start
from scheduler.services.forecasts.predictions import Foreseen, predictions_close, predictions_keep, starts_foresee
from scheduler.services.jobs.jobs import job_stop
from scheduler.simulation.futures import UNKNOWN, Past, Waits
from scheduler.snapshots import Snapshots
from tests import builders
from tests.builders import NOON

from .worlds import Loop, leaf, submit

pytestmark = pytest.mark.django_db


ENOUGH = 40


def seen(*, minutes: int, waited: int, count: int = ENOUGH) -> None:
    """So many jobs that were told a start so many minutes ahead, and waited so many; they have started within the last hours."""
    at = now() - timedelta(hours=5)
    for number in range(count):
        job = builders.job(state=JobState.COMPLETED)
        begin = at + timedelta(seconds=number)
        started = begin + timedelta(minutes=waited)
        told = begin + timedelta(minutes=minutes)
        Prediction.objects.create(
            job=job,
            at=begin,
            foreseen=told,
            soonest=told - timedelta(minutes=minutes / 4),
            longest=told + timedelta(minutes=minutes / 4),
            earliest=told - timedelta(minutes=10),
            expected=told,
            latest=told + timedelta(minutes=20),
            started_at=started,
        )


def full_fleet(at: datetime = NOON) -> tuple[Loop, QuotaNode, Job]:
    """A node that one job has for an hour at most, and the team behind both."""
    builders.node(gpus=8)
    quota = leaf("team", 8)
    loop = Loop()
    loop.now = at
    running = submit(quota, gpus=8, at=at, limit_seconds=3600)
    loop.tick()
    loop.up(running)
    return loop, quota, running


def test_what_a_job_is_told_first_is_kept_and_its_start_is_written_beside_it() -> None:
    loop, quota, running = full_fleet()
    waiting = submit(quota, gpus=8, at=loop.now, limit_seconds=600)
    loop.after(seconds=5).tick()

    forecast_run(holder="one", now=loop.now)
    told = Prediction.objects.get()
    assert (told.job_id, told.at, told.started_at) == (waiting.pk, loop.now, None)
    assert told.soonest is not None
    assert told.longest is not None
    assert loop.now < told.soonest < told.foreseen <= told.longest <= NOON + timedelta(hours=1), "by its limit the other one has ended"
    assert told.earliest < told.expected == told.foreseen < told.latest
    forecast_run(holder="one", now=loop.now + timedelta(minutes=5), force=True)
    assert Prediction.objects.get().at == told.at, "only what it was told first"

    loop.after(minutes=30).over(running)
    loop.tick()
    forecast_run(holder="one", now=loop.now + timedelta(minutes=1), force=True)
    assert Prediction.objects.get().started_at == Attempt.objects.get(job=waiting).started_at == loop.now
    assert predictions_close() == 0


def test_who_was_cancelled_before_the_start_is_held_to_none() -> None:
    loop, quota, _ = full_fleet()
    waiting, cancelled = (submit(quota, gpus=8, at=loop.now, limit_seconds=600) for _ in range(2))
    loop.after(seconds=5).tick()
    forecast_run(holder="one", now=loop.now)
    assert Prediction.objects.count() == 2

    job_stop(job=cancelled, to=JobState.CANCELLED, outcome="cancelled", cause="Not needed.", now=loop.now)
    assert predictions_close() == 0
    assert [told.job for told in Prediction.objects.all()] == [waiting]


def test_who_has_run_before_or_was_told_no_start_is_not_held_to_one() -> None:
    once, never, waits = builders.job(), builders.job(), builders.job()
    Attempt.objects.create(job=once, number=1, started_at=NOON, ended_at=NOON, outcome="preempted")
    Job.objects.update(state=JobState.QUEUED)
    snapshot = Snapshots().take(settings=Settings(), now=NOON, start_timeout=timedelta(minutes=5))

    def keep(at: datetime) -> int:
        hour = dict.fromkeys((once.pk, waits.pk), 3_600_000)
        return predictions_keep(foreseen=starts_foresee(waits=hour, known={}, snapshot=snapshot, past=Past(), foresight=Foresight(), now=at))

    assert keep(NOON) == 1
    told = Prediction.objects.get()
    assert told.job == waits
    later = NOON + timedelta(hours=1)
    assert (told.foreseen, told.soonest, told.longest) == (later, NOON, NOON + timedelta(hours=1 + LATER)), "by the forecast alone"
    assert keep(NOON + timedelta(minutes=1)) == 0
    assert not Prediction.objects.filter(job=never).exists()


def test_what_a_waiting_job_is_told_now_is_learnt_as_well() -> None:
    """Its list, its page and the API say what is kept of it, not what estimates alone would give."""
    loop, quota, _ = full_fleet(now())
    waiting = submit(quota, gpus=8, at=loop.now, limit_seconds=600)
    memory = ForecastMemory.empty()

    def told(after: timedelta = timedelta(0)) -> Outlook:
        forecast_run(holder="one", now=loop.now + after, memory=memory, force=True)
        return Outlook.objects.get(job=waiting)

    first, kept = told(), Prediction.objects.get()
    assert (first.earliest_start, first.predicted_start, first.latest_start) == (kept.earliest, kept.expected, kept.latest)
    assert first.earliest_start != first.latest_start

    seen(minutes=60, waited=30, count=400)
    soon = told(timedelta(seconds=30))
    assert soon.predicted_start == first.predicted_start, "it is not played again at once"
    later = told(timedelta(seconds=61))
    assert later.predicted_start is not None
    assert first.predicted_start is not None
    assert later.predicted_start < first.predicted_start, "everyone came sooner than was foreseen"
    assert Prediction.objects.get(job=waiting).expected == kept.expected, "only what it was told first is kept"


def test_what_runs_and_what_has_ended_is_learnt_from() -> None:
    """Who has run for long is no short job, though nobody knows yet how long."""
    loop, quota, running = full_fleet()
    snapshots = Snapshots()
    snapshots.take(settings=Settings(), now=loop.now, start_timeout=timedelta(minutes=5))
    kinds = snapshots.kinds

    def known(minutes: int) -> Past:
        return past_recalled(None, kinds=kinds, now=loop.now + timedelta(minutes=minutes)).past

    assert known(0).everyone == UNKNOWN
    assert sum(known(110).everyone) > sum(UNKNOWN)
    attempt = Attempt.objects.get(job=running)
    assert attempt.running_at is not None
    Attempt.objects.update(ended_at=attempt.running_at + timedelta(minutes=30), outcome="completed")
    assert known(110).own == {quota.path: (0.5,)}


def test_what_has_hardly_moved_is_told_as_before() -> None:
    waits = builders.job()
    Job.objects.update(state=JobState.QUEUED)
    snapshot = Snapshots().take(settings=Settings(), now=NOON, start_timeout=timedelta(minutes=5))

    def foreseen(minutes: int, known: Mapping[int, Foreseen], at: datetime) -> Foreseen:
        wait = {waits.pk: 60_000 * minutes}
        return starts_foresee(waits=wait, known=known, snapshot=snapshot, past=Past(), foresight=Foresight(), now=at)[waits.pk]

    first = foreseen(60, {}, NOON)
    later = NOON + timedelta(minutes=2)
    again = foreseen(59, {waits.pk: first}, later)
    assert (again.start, again.at) == (first.start, later)
    assert foreseen(90, {waits.pk: first}, later).start.at > first.start.at + timedelta(minutes=29)
    assert foreseen(59, {waits.pk: first}, first.start.at + timedelta(seconds=1)).start != first.start, "nobody is told a time that has passed"


def test_ranges_are_learnt_from_the_history() -> None:
    hour = Waits(2_700_000, 3_600_000, 4_500_000)
    assert foresight_now().foreseen(hour).known == 0
    seen(minutes=60, waited=30)

    found = foresight_now().foreseen(hour)

    assert found.known == ENOUGH
    unlearnt = ruled(hour)
    assert found.earliest < 1_800_000, "all of them waited half an hour"
    assert found.at < unlearnt.at
    score = predictions_score(now=now())
    assert score is not None
    assert (score.starts, score.inside, score.error_seconds, score.wait_seconds, score.width_seconds) == (ENOUGH, 0, 1800, 1800, 1800)
    assert predictions_score(now=now() + timedelta(days=9)) is None


def test_who_still_waits_says_how_sure_starts_are() -> None:
    """Where everyone is told an unsure start, nobody's is wide for it, long before the first of them has started."""
    at, hour = now(), timedelta(hours=1)
    waits = Waits(6 * 3_600_000, 10 * 3_600_000, 16 * 3_600_000)
    before = foresight_now()
    for _ in range(400):
        first, middle, last = (at + hours * hour for hours in (6, 10, 16))
        times = {"soonest": first, "foreseen": middle, "longest": last, "earliest": first, "expected": middle, "latest": last}
        Prediction.objects.create(job=builders.job(), at=at, **times)
    found = foresight_now()

    assert found.known == 0
    assert found.measure.border > before.measure.border
    narrow, wide = found.foreseen(waits), before.foreseen(waits)
    assert narrow.latest - narrow.earliest < wide.latest - wide.earliest


def test_the_scheduler_page_and_the_page_of_a_job_say_how_good_they_were(personas: Any) -> None:
    client = personas.client("operator")
    assert "No job with a prediction has started" in client.get("/scheduler/").content.decode()
    seen(minutes=60, waited=70, count=5)
    job = builders.job(on=personas.nodes["acme/research/nlp"])
    Job.objects.filter(pk=job.pk).update(state=JobState.QUEUED, ended_at=None)
    at = now()
    start = Start(*(at + timedelta(hours=hours) for hours in (1, 2, 3)))
    predictions_keep(foreseen={job.pk: Foreseen(at, estimated(7_200_000), start)})

    page = client.get("/scheduler/").content.decode()
    assert "How good foreseen starts were" in page
    assert "5 starts" in page
    own = personas.client("submitter").get(f"/jobs/{job.public_id}/").content.decode()
    assert "First prediction: " in own
    assert "Of the last 5 starts foreseen so, 100% lay inside their range" in own
    seen(minutes=5, waited=500, count=50)
    seen(minutes=130, waited=140, count=20)
    own = personas.client("submitter").get(f"/jobs/{job.public_id}/").content.decode()
    assert "Of the last 25 starts foreseen about as far ahead, 100% lay inside their range" in own, "not those of minutes, all wrong"


def test_the_panel_tells_what_is_kept_once_the_job_is_submitted(personas: Any) -> None:
    """Also the range that is learnt: here everyone waited half an hour less than was foreseen."""
    builders.node(gpus=8)
    quota = personas.nodes["acme/research/nlp"]
    loop = Loop()
    loop.now = now()
    running = submit(quota, gpus=8, at=loop.now, limit_seconds=3600)
    loop.tick()
    loop.up(running)

    def panel() -> Fit:
        grounds.GROUNDS.forget()
        found = fit_of(access=personas.access("submitter"), description={"name": "a", "quota": quota.path, "gpus": 8, "limit_s": 600}, now=loop.now)
        assert found is not None
        return found

    unlearnt = panel()
    seen(minutes=60, waited=30)
    found = panel()
    assert unlearnt.at is not None
    assert found.at is not None
    assert found.at < unlearnt.at

    waiting = submit(quota, gpus=8, at=loop.now, limit_seconds=600)
    forecast_run(holder="one", now=loop.now, force=True)

    kept = Prediction.objects.get(job=waiting)
    assert (kept.earliest, kept.expected, kept.latest) == (found.earliest, found.at, found.latest)


def test_who_ran_and_who_was_submitted_is_recalled(personas: Any) -> None:
    """Only what ended by itself says how long jobs take; the past is read anew after minutes."""
    node = personas.nodes["acme/research/nlp"]
    taken = Snapshots()
    taken.take(settings=Settings(), now=NOON, start_timeout=timedelta(minutes=5))
    for number, outcome in enumerate(("completed", "failed", "preempted")):
        job = builders.job(on=node)
        Job.objects.filter(pk=job.pk).update(estimate_seconds=3600, submitted_at=NOON - timedelta(hours=3 - number))
        since = NOON - timedelta(hours=2)
        Attempt.objects.create(job=job, number=1, started_at=since, running_at=since, ended_at=NOON - timedelta(hours=1, minutes=30), outcome=outcome)

    recalled = past_recalled(None, kinds=taken.kinds, now=NOON)

    assert recalled.past.own == {node.path: (0.5, 0.5)}
    assert [job.submitted for job in recalled.past.submitted[node.path]] == [millis(NOON - timedelta(hours=hours)) for hours in (3, 2, 1)]
    assert past_recalled(recalled, kinds=taken.kinds, now=NOON + timedelta(minutes=1)) is recalled
    assert past_recalled(recalled, kinds=taken.kinds, now=NOON + timedelta(minutes=6)) is not recalled
