"""How good foreseen starts were, and what is learnt from it."""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

from gpufleet.core.times import MILLISECOND, millis
from scheduler.engine.model.values import Job as EngineJob
from scheduler.loop.foresight import WINDOW, Foresight, Outcome, Ranged, Score, score
from scheduler.models import Attempt, Job, Prediction
from scheduler.simulation.futures import Lasted, Past, Waits, past_of
from scheduler.snapshots.jobs import Kinds

LOOKED_BACK = timedelta(days=7)
MOST = 4000  # starts that are scored
SCORED, ENOUGH = 1000, 20  # predictions that a job's record is drawn from, and from how many on only those count that looked as far ahead
MOST_LASTED, MOST_SUBMITTED = 2000, 4000  # run times that are learnt from, and submissions
RECALLED_EVERY = timedelta(minutes=5)
FUTURES = ("soonest", "foreseen", "longest")
COLUMNS = ("at", "earliest", "expected", "latest", "started_at")


def foresight_now() -> Foresight:
    """What the console's own history says about waits to come."""
    rows = Prediction.objects.filter(soonest__isnull=False, longest__isnull=False)
    known = rows.filter(started_at__isnull=False).order_by("-started_at", "-id").values_list(*FUTURES, *COLUMNS)[:WINDOW]
    told = rows.order_by("-at", "-id").values_list(*FUTURES, "at")[:WINDOW]
    return Foresight(
        (
            Outcome(_waits(futures, at), (started - at) // MILLISECOND, earliest <= started <= latest, millis(at))
            for *futures, at, earliest, _, latest, started in reversed(known)
        ),
        (_waits(futures, at) for *futures, at in reversed(told)),
    )


def _waits(futures: Iterable[datetime], at: datetime) -> Waits:
    return Waits(*((moment - at) // MILLISECOND for moment in futures))


class Recalled(NamedTuple):
    """The past as of a moment, in the kinds of the snapshots that are planned from."""

    past: Past
    kinds: Kinds
    at: datetime


def past_recalled(known: Recalled | None, *, kinds: Kinds, now: datetime) -> Recalled:
    """How long jobs took and who was submitted, read anew every few minutes."""
    if known is not None and known.kinds is kinds and timedelta(0) <= now - known.at < RECALLED_EVERY:
        return known
    return Recalled(past_of(_lasted(), _submitted(kinds, now), _running(now)), kinds, now)


def _lasted() -> Iterator[Lasted]:
    """Of the newest that ended in their first attempt, by themselves."""
    ended = Attempt.objects.filter(outcome__in=("completed", "failed"), number=1, ended_at__isnull=False, running_at__isnull=False).order_by("-id")
    columns = ("job__quota__path", "job__estimate_seconds", "job__limit_seconds", "running_at", "ended_at")
    for quota, estimate, limit, since, until in ended.values_list(*columns)[:MOST_LASTED]:
        yield quota, 1000 * (estimate or limit or 0), (until - since) // MILLISECOND


def _running(now: datetime) -> Iterator[Lasted]:
    """Of those that run in their first attempt, so many as are learnt from that have ended."""
    running = Attempt.objects.filter(outcome="", number=1, ended_at__isnull=True, running_at__isnull=False, running_at__lte=now).order_by("-id")
    columns = ("job__quota__path", "job__estimate_seconds", "job__limit_seconds", "running_at")
    for quota, estimate, limit, since in running.values_list(*columns)[:MOST_LASTED]:
        yield quota, 1000 * (estimate or limit or 0), (now - since) // MILLISECOND


def _submitted(kinds: Kinds, now: datetime) -> Iterator[EngineJob]:
    """The newest, as the engine would have had them."""
    newest = Job.objects.filter(submitted_at__gt=now - LOOKED_BACK).order_by("-submitted_at", "-id")
    columns = ("quota__path", "spec", "job_class", "priority", "preemptible", "submitted_at", "estimate_seconds", "limit_seconds")
    for quota, spec, job_class, priority, preemptible, at, estimate, limit in newest.values_list(*columns)[:MOST_SUBMITTED]:
        asks = kinds.asks(spec, job_class, priority, preemptible)
        if not isinstance(asks, str):  # what can't be read now is not expected again
            lengths = {"estimate_ms": estimate and 1000 * estimate, "limit_ms": limit and 1000 * limit}
            yield EngineJob(name="", quota=quota, kind=asks.kind, submitted=millis(at), **lengths)


def predictions_score(*, now: datetime) -> Score | None:
    """How good the predictions were whose jobs started in the last days; None: there were none."""
    return score(_started(now, MOST))


def _started(now: datetime, most: int) -> list[Ranged]:
    """What was told of those that started in the last days, the last ones first."""
    rows = Prediction.objects.filter(started_at__gte=now - LOOKED_BACK).order_by("-started_at", "-id").values_list(*COLUMNS)[:most]
    return [
        Ranged(*((moment - at) // MILLISECOND for moment in (earliest, expected, latest, started)))
        for at, earliest, expected, latest, started in rows
        if started is not None
    ]


class Record(NamedTuple):
    """How predictions like one's own have fared, and whether these are only those that looked about as far ahead."""

    score: Score
    as_far: bool


def record_of(told: Prediction, *, now: datetime) -> Record | None:
    """What past predictions say about this one: those as far ahead where there are enough, else all."""
    ahead = (told.expected - told.at) // MILLISECOND
    started = _started(now, SCORED)
    alike = [one for one in started if ahead <= 2 * one.at and one.at <= 2 * ahead]
    found = score(alike if len(alike) >= ENOUGH else started)
    return Record(found, len(alike) >= ENOUGH) if found is not None else None


def prediction_of(job: Job) -> Prediction | None:
    """What it was told first; to be asked for a job that the reader may see."""
    return Prediction.objects.filter(job=job).first()
