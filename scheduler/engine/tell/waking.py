"""When to plan again although nothing has happened."""

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache, partial

from ..model.values import HOUR_MS, QUEUED
from ..rules.times import backoff_until, ends_at, protected_for
from ..state.planning import Cycle
from ..state.standing import most_freed
from ..state.work import Work

NEXT_PLAN_MS = 1000  # until the plan that goes on where this one stopped


def next_wake(cycle: Cycle, before: int | None = None) -> int | None:
    """The earliest instant at which a plan could differ although nothing happened; or, of those before an instant, the earliest."""
    now, cluster = cycle.now, cycle.cluster
    spans = cache(partial(_spans, cycle))
    times = [at for work in _may_wake(cycle) for at in _instants(cycle, work, spans)]
    if cluster.scenario.windows:
        times += cluster.windows.times()
    times += [at + HOUR_MS for at in cycle.grid.repartitioned]
    if cycle.continues:
        times.append(now + NEXT_PLAN_MS)
    if cluster.geometry:
        times.append(now + HOUR_MS)  # from when on those of this plan count no longer
    if before is None or not cycle.book.unsettled or _may_be_kept(cycle, before):
        times += [now + entry.at for entry in cycle.book.entries]
    return min([at for at in times if at > now], default=None)


def _may_be_kept(cycle: Cycle, before: int) -> bool:
    """A bound: False where what comes free before an instant, as far as anyone knows, is room for nobody who waits."""
    freed = sum([most_freed(work) for work in cycle.cluster.works if work.seats and ends_at(cycle, work) < before])
    if not freed:
        return False
    if cycle.cluster.forms.parted or any(work.degraded for work in cycle.waiting.queues.open):
        return True
    room = freed + 1000 * cycle.fleet.soon.idle + cycle.book.lent_milli()
    return any(work.form.lowest <= room for work in cycle.waiting)


def _may_wake(cycle: Cycle) -> Collection[Work]:
    """Those because of whom alone a later plan could differ, and perhaps others."""
    settings, works = cycle.settings, cycle.cluster.works
    if settings.waits_end or cycle.cluster.forms.delay:
        return works
    protected = settings.preempt_min_runtime_ms or settings.reclaim_min_runtime_ms or cycle.tree.protects
    return [
        work
        for work in works
        if work.job.not_before is not None
        or (
            (run := work.job.run) is not QUEUED
            and ((protected and run.workers) or work.degraded or not run.until is run.last_evicted is run.reclaimed is None)
        )
    ]


def _instants(cycle: Cycle, work: Work, spans: Callable[[int], Iterable[int]]) -> Iterator[int]:
    """The instants at which a plan could differ because of one job."""
    job, run, settings = work.job, work.job.run, cycle.settings
    stands, longest = work.seats and run is not QUEUED, settings.max_wait_ms[work.kind.class_rank]
    if run.until is not None:
        yield run.until
    if work.kind.preemption_delay_ms and (not stands or work.degraded or work.form.elastic):
        yield job.submitted + work.kind.preemption_delay_ms  # what it lacks, or grows by, it may take from others then
    if not stands:
        if run.last_evicted is not None:
            yield backoff_until(cycle, work)
        if job.not_before is not None:
            yield job.not_before
        if longest is not None:
            yield job.submitted + longest
        return
    if run.started is not None:
        for span in spans(work.charged_leaf):
            yield run.started + span
        if longest is not None and run.started - job.submitted >= longest:
            yield run.started + longest  # until then it is safe from work above its guarantee
    if run.reclaimed is not None and settings.fairness.step_ms:
        yield (run.reclaimed // settings.fairness.step_ms + 1) * settings.fairness.step_ms
    if work.degraded:
        yield (run.degraded_since or cycle.now) + settings.stale_grace_ms


def _spans(cycle: Cycle, leaf: int) -> Iterable[int]:
    """For how long something may protect what stands in a leaf: within it, and on each level on which another queue may take from it."""
    found = {protected_for(cycle, place, "reclaim") for place in cycle.tree.path[leaf]}
    return (found | {protected_for(cycle, leaf, "preempt")}) - {0}
