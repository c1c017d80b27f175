"""When to plan again although nothing has happened. What is due because of one job as it stands at first is known from plan to plan."""

from collections.abc import Collection, Container, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count

from ..model.values import HOUR_MS, QUEUED
from ..rules.times import backoff_until, ends_at, protected_for
from ..rules.windows import NEVER
from ..state.planning import Cycle
from ..state.standing import most_freed
from ..state.work import Work

NEXT_PLAN_MS = 1000  # until the plan that goes on where this one stopped


def next_wake(cycle: Cycle, before: int | None = None) -> int | None:
    """The earliest instant at which a plan could differ although nothing happened; or, of those before an instant, the earliest."""
    now, cluster = cycle.now, cycle.cluster
    touched = dict.fromkeys((*cluster.journal, *(work for work in cycle.waiting.queues.open if work.degraded)))
    wakes = Wakes.of(cycle)
    times = [at for work, mine in wakes.times(cycle, touched).items() if work not in touched for at in mine]
    times += [at for work in _may_wake(cycle, touched) for at in wakes.times_of(cycle, work)]
    if cluster.scenario.windows:
        times += cluster.windows.times()
    if cluster.power is not None:
        times += cluster.power.times()
    times += [at + HOUR_MS for at in cycle.grid.repartitioned]
    if cycle.continues:
        times.append(now + NEXT_PLAN_MS)
    if cluster.geometry:
        times.append(now + HOUR_MS)  # from when on those of this plan count no longer
    if before is None or not cycle.book.unsettled or _may_be_kept(cycle, wakes.freed_before(before, cycle, touched)):
        times += [now + entry.at for entry in cycle.book.entries]
    return min([at for at in times if at > now], default=None)


def _may_be_kept(cycle: Cycle, freed: int) -> bool:
    """A bound: False where so many milli-GPU that come free are room for nobody who waits."""
    if not freed:
        return False
    if cycle.cluster.forms.parted or any(work.degraded for work in cycle.waiting.queues.open):
        return True
    room = freed + 1000 * cycle.fleet.soon.idle + cycle.book.lent_milli()
    return any(work.form.lowest <= room for work in cycle.waiting)


class Wakes:
    """Instants to come because of jobs as they stand at first. Valid behind the plan that it was last asked in."""

    def __init__(self, works: Iterable[Work]) -> None:
        self.turn = -1
        self._times: dict[Work, tuple[int, ...]] = {}
        self._untimed = dict.fromkeys(works)  # of whom these are not known yet
        self._protections: dict[int, set[int]] = {}  # by leaf
        # When those leave who stand at first, once that was asked, the soonest before; who has gone since is passed over by and by.
        self._unasked: dict[Work, None] = {}
        self._ends: dict[Work, int] = {}
        self._soonest: list[tuple[int, int, Work]] = []
        self._numbers = count()

    @classmethod
    def of(cls, cycle: Cycle) -> "Wakes":
        """What the plan before has found, without the jobs that have gone since; or nothing."""
        state, wakes = cycle.cluster.state, cycle.cluster.state.wakes
        if wakes is None or wakes.turn + 1 != state.turn:
            wakes = state.wakes = cls(_may_wake(cycle, cycle.cluster.works))
            wakes._stand(cycle.cluster.works)
        else:
            for work in state.since.gone:
                for known in (wakes._times, wakes._untimed, wakes._ends, wakes._unasked):
                    known.pop(work, None)
            wakes._untimed.update(dict.fromkeys(_may_wake(cycle, state.since.come)))
            wakes._stand(state.since.come)
        if len(wakes._soonest) > 2 * len(cycle.cluster.works):
            wakes._soonest = [entry for entry in wakes._soonest if wakes._ends.get(entry[2]) == entry[0]]
            heapify(wakes._soonest)
        wakes.turn = state.turn
        return wakes

    def _stand(self, works: Iterable[Work]) -> None:
        self._unasked.update(dict.fromkeys([work for work in works if work.first_seats]))

    def times(self, cycle: Cycle, touched: Container[Work]) -> dict[Work, tuple[int, ...]]:
        """The instants by job, of those that have any. Who is touched stands otherwise in this plan than at first."""
        for work in [work for work in self._untimed if work not in touched]:
            del self._untimed[work]
            times = self.times_of(cycle, work)
            if times:
                self._times[work] = times
        return self._times

    def times_of(self, cycle: Cycle, work: Work) -> tuple[int, ...]:
        """The instants to come at which a plan could differ because of one job."""
        return tuple([at for at in self._instants(cycle, work) if at > cycle.now])

    def _instants(self, cycle: Cycle, work: Work) -> Iterator[int]:
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
            for span in self._spans(cycle, work.charged_leaf):
                yield run.started + span
            if longest is not None and run.started - job.submitted >= longest:
                yield run.started + longest  # until then it is safe from work above its guarantee
        if run.reclaimed is not None and settings.fairness.step_ms:
            yield (run.reclaimed // settings.fairness.step_ms + 1) * settings.fairness.step_ms
        if work.degraded:
            yield (run.degraded_since or cycle.now) + settings.stale_grace_ms

    def _spans(self, cycle: Cycle, leaf: int) -> Iterable[int]:
        """For how long something may protect what stands in a leaf: within it, and on each level on which another queue may take from it."""
        if leaf not in self._protections:
            found = {protected_for(cycle, place, "reclaim") for place in cycle.tree.path[leaf]}
            self._protections[leaf] = (found | {protected_for(cycle, leaf, "preempt")}) - {0}
        return self._protections[leaf]

    def freed_before(self, instant: int, cycle: Cycle, touched: Collection[Work]) -> int:
        """Milli-GPU of who is expected to leave before an instant: no place comes free before, as far as anyone knows."""
        due, self._unasked = self._unasked, {}
        while self._soonest and self._soonest[0][0] < instant:
            at, _, work = heappop(self._soonest)
            if self._ends.get(work) == at:
                due[work] = None
        leaving = [work for work in touched if work.seats and ends_at(cycle, work) < instant]
        for work in due:
            if work in touched:
                self._unasked[work] = None
                continue
            at = self._ends[work] = ends_at(cycle, work)
            if at < instant:
                leaving.append(work)
            if at < NEVER:
                heappush(self._soonest, (at, next(self._numbers), work))
        return sum(map(most_freed, leaving))


def _may_wake(cycle: Cycle, works: Collection[Work]) -> Collection[Work]:
    """Those of them because of whom alone a later plan could differ, and perhaps others."""
    settings = cycle.settings
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
