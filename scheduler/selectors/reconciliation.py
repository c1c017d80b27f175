"""Do ledger, capacity timeline and placements tell the same story? They are held against each other at every instant, not only in their sums.

Each record is a sum of intervals, so it is known by its steps: so much more from this moment on, so much less from that one. Two records agree
at every instant exactly if all their steps cancel out.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import Count, Max, Q

from gpufleet.core.moment import one_moment
from gpufleet.core.times import millis
from quotas.models import CHARGED, LedgerClock, LedgerEntry
from scheduler.models import Attempt, CapacityEntry, Gpu, Placement
from scheduler.services.loop.usage import phase_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Difference:
    """`gpu_millis`: thousandths of a GPU times milliseconds, without sign; 0 where the fault is not one of amounts."""

    what: str
    gpu_millis: int = 0


class _Steps:
    """Steps of two records by key and moment, the second one's negative."""

    def __init__(self, begin: int, end: int) -> None:
        self.begin, self.end = begin, end
        self.steps: dict[Any, dict[int, int]] = defaultdict(lambda: defaultdict(int))

    def add(self, key: Any, since: datetime, until: datetime | None, milli: int) -> None:
        first = max(millis(since), self.begin)
        last = self.end if until is None else max(millis(until), self.begin)
        steps = self.steps[key]
        steps[first] += milli
        steps[last] -= milli

    def differences(self) -> Iterator[tuple[Any, int, int]]:
        """What does not cancel out: the key, the first moment, and the amount in thousandths times milliseconds."""
        for key in sorted(self.steps, key=repr):
            steps = sorted((at, milli) for at, milli in self.steps[key].items() if milli)
            if steps:
                level, total, before = 0, 0, steps[0][0]
                for at, milli in steps:
                    total += abs(level) * (at - before)
                    level, before = level + milli, at
                yield key, steps[0][0], total


def usage_differences() -> list[Difference]:
    """All that does not agree; nothing in a sound database. The moment looked at is that of the newest entry."""
    with one_moment():
        clock = LedgerClock.objects.filter(pk=1).first()
        if clock is None:
            return []
        return [
            *_ledger_against_placements(clock),
            *_timeline_against_placements(clock),
            *_timeline_against_charges(clock),
            *_timeline_against_capacity(clock),
            *_present_against_rows(),
        ]


def _said(at: int) -> str:
    return f"{EPOCH + timedelta(milliseconds=at):%Y-%m-%d %H:%M:%S.%f}"[:-3]


def _ledger_against_placements(clock: LedgerClock) -> Iterator[Difference]:
    steps = _Steps(millis(clock.began_at), millis(clock.at))
    rows = Placement.objects.filter(gpu__isnull=False).values_list("attempt_id", "role", "worker", "since", "until", "gpu_milli")
    for *key, since, until, milli in rows.iterator():
        steps.add(tuple(key), since, until, milli)
    for *key, since, until, milli in LedgerEntry.objects.values_list("attempt", "role", "worker", "since", "until", "gpu_milli").iterator():
        steps.add(tuple(key), since, until, -milli)
    for key, at, amount in steps.differences():
        attempt, role, worker = key
        yield Difference(f"The ledger and the placements of attempt {attempt}, {role} {worker}, differ from {_said(at)} on.", amount)


def _timeline_against_placements(clock: LedgerClock) -> Iterator[Difference]:
    steps = _Steps(millis(clock.began_at), millis(clock.at))
    rows = Placement.objects.filter(gpu__isnull=False).values_list("gpu_id", "since", "until", "gpu_milli")
    for gpu, since, until, milli in rows.iterator():
        steps.add(gpu, since, until, milli)
    for gpu, since, until, used, starting in _entries("used_milli", "starting_milli"):
        steps.add(gpu, since, until, -used - starting)
    for gpu, at, amount in steps.differences():
        yield Difference(f"What the timeline says is used of GPU {gpu} is not what was placed there, from {_said(at)} on.", amount)


def _timeline_against_charges(clock: LedgerClock) -> Iterator[Difference]:
    """Every GPU millisecond is charged or idle cost, never both."""
    steps = _Steps(millis(clock.began_at), millis(clock.at))
    rows = CapacityEntry.objects.filter(used_milli__gt=0).values_list("gpu__gpu_type_id", "since", "until", "used_milli")
    for kind, since, until, milli in rows.iterator():
        steps.add(kind, since, until, milli)
    for kind, since, until, milli in LedgerEntry.objects.filter(CHARGED).values_list("gpu_type", "since", "until", "gpu_milli").iterator():
        steps.add(kind, since, until, -milli)
    for kind, at, amount in steps.differences():
        yield Difference(f"What the timeline says is used of {kind} is not what is charged, from {_said(at)} on.", amount)


def _timeline_against_capacity(clock: LedgerClock) -> Iterator[Difference]:
    """Every GPU has an entry for every instant from when it came (or the ledger began) until it goes, and never two."""
    gpus = {key: (created, removed) for key, created, removed in Gpu.objects.values_list("pk", "created_at", "removed_at")}
    reached: dict[int, datetime | None] = {}
    for gpu, since, until in _entries():
        if gpu not in reached:
            due = max(gpus[gpu][0], clock.began_at)
            if since > due:
                yield Difference(f"The timeline of GPU {gpu} begins late, at {since}.", 1000 * (millis(since) - millis(due)))
        elif reached[gpu] != since:
            before = reached[gpu]
            yield Difference(
                f"The timeline of GPU {gpu} has a gap or an overlap at {since}.", 1000 * abs(millis(since) - millis(before)) if before else 0
            )
        reached[gpu] = until
    for gpu, (created, removed) in sorted(gpus.items()):
        if gpu not in reached:
            if removed is None or removed > max(created, clock.began_at):
                yield Difference(f"GPU {gpu} has no timeline.")
        elif (reached[gpu] is None) != (removed is None):
            yield Difference(f"The timeline of GPU {gpu} {'goes on' if removed else 'has ended'}, the GPU {'does not' if removed else 'is there'}.")


def _entries(*columns: str) -> Iterator[tuple[Any, ...]]:
    return CapacityEntry.objects.order_by("gpu", "since", "id").values_list("gpu_id", "since", "until", *columns).iterator()


def _present_against_rows() -> Iterator[Difference]:
    """What runs now is in the phase that its open entries say, worker by worker, and no attempt that has ended has an open entry."""
    seats = Placement.objects.filter(until__isnull=True, gpu__isnull=False).order_by("attempt", "role", "worker")
    standing = ("job__state", "attempt__running_at", "attempt__stop_asked_at")
    grouped = seats.values_list("attempt_id", "role", "worker", *standing).annotate(leaving=Max("leaving_since"), joins=Count("pk", Q(joining=True)))
    workers = {
        (attempt, role, worker): phase_of(state=state, running_at=running, stop_asked_at=asked, leaving_since=leaving, joining=joins > 0)
        for attempt, role, worker, state, running, asked, leaving, joins in grouped
    }
    running = set(Attempt.objects.filter(ended_at__isnull=True).values_list("pk", flat=True))
    entries = LedgerEntry.objects.filter(until__isnull=True).order_by("attempt", "id").values_list("attempt", "role", "worker", "phase")
    for attempt, role, worker, phase in entries:
        if attempt not in running:
            yield Difference(f"Attempt {attempt} has ended, and its ledger goes on.")
        elif phase != workers.get((attempt, role, worker), phase):  # one that holds nothing was told as a difference of amounts
            held = workers[attempt, role, worker]
            yield Difference(f"The ledger says that {role} {worker} of attempt {attempt} is {phase}; it is {held}.")
