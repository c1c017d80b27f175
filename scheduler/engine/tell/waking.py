"""When to plan again although nothing has happened. What is due because of one job as it stands at first is known from plan to plan."""

from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush

from ..model.values import HOUR_MS, QUEUED, Settings
from ..rules.times import backoff_until, ends_at
from ..state.planning import Cycle
from ..state.standing import most_freed
from ..state.work import Work

NEXT_PLAN_MS = 1000  # until the plan that goes on where this one stopped


class Wakes:
    """Instants to come because of jobs as they stand at first. Valid behind the plan that it was last asked in."""

    def __init__(self, settings: Settings, untimed: dict[Work, None]) -> None:
        self.settings = settings
        self.turn = -1
        self.times: dict[Work, tuple[int, ...]] = {}
        self.protections: dict[int, tuple[int, ...]] = {}  # by leaf, for how long work is safe from its own queue, and from others
        self.untimed = untimed  # of whom these are not known yet
        self.ends: Ends | None = None

    def forget(self, works: Iterable[Work]) -> None:
        for work in works:
            self.times.pop(work, None)
            self.untimed.pop(work, None)
            if self.ends is not None:
                self.ends.forget(work)


class Ends:
    """Who is expected to leave first, of all who stand at first: no place comes free before, as far as anyone knows."""

    def __init__(self, works: Iterable[Work]) -> None:
        self._fresh: dict[Work, None] = dict.fromkeys(work for work in works if work.first_seats)  # of whom it is not known yet
        self._at: dict[Work, int] = {}
        self._line: list[tuple[int, int, Work]] = []

    def forget(self, work: Work) -> None:
        self._fresh.pop(work, None)
        self._at.pop(work, None)

    def come(self, works: Iterable[Work]) -> None:
        self._fresh.update(dict.fromkeys(work for work in works if work.first_seats))

    def freed_before(self, instant: int, cycle: Cycle, touched: Mapping[Work, None]) -> int:
        """Milli-GPU of who is expected to leave before an instant. Who is touched stands otherwise in this plan than at first."""
        freed = sum([most_freed(work) for work in touched if work.seats and ends_at(cycle, work) < instant])
        known, line = self._at, self._line
        for work in [work for work in self._fresh if work not in touched]:
            del self._fresh[work]
            known[work] = at = ends_at(cycle, work)
            heappush(line, (at, id(work), work))
        soon: list[tuple[int, int, Work]] = []
        while line and line[0][0] < instant:
            entry = heappop(line)
            at, key, work = entry
            if known.get(work) != at:
                continue
            if at <= cycle.now and work not in touched:
                known[work] = at = ends_at(cycle, work)  # its time was up, and it goes on
                entry = at, key, work
            if at <= cycle.now or at < instant:
                soon.append(entry)
                freed += most_freed(work)
            else:
                heappush(line, entry)
        for entry in soon:
            heappush(line, entry)
        return freed


def next_wake(cycle: Cycle, before: int | None = None) -> int | None:
    """The earliest instant at which a plan could differ although nothing happened; or, of those before an instant, the earliest."""
    now, cluster = cycle.now, cycle.cluster
    wakes = _wakes(cycle)
    touched = dict.fromkeys(cluster.journal)
    if cycle.waiting.queues.open:
        touched.update(dict.fromkeys(work for work in cycle.waiting.queues.open if work.degraded))
    untimed = wakes.untimed
    untimed.update(dict.fromkeys(cluster.first_state.since.come))
    times: list[int] = []
    if untimed or touched:
        ahead = Ahead(cycle, wakes.protections)
        for work in ahead.some(untimed):
            if work not in touched and (mine := ahead.of(work)):
                wakes.times[work] = mine
        wakes.untimed = {work: None for work in touched if work in untimed}
        times += [at for work in ahead.some(touched) for at in ahead.of(work)]
    times += [at for work, mine in wakes.times.items() if work not in touched for at in mine]
    if cycle.cluster.scenario.windows:
        times.extend(cluster.windows.times())
    if cycle.grid.repartitioned:
        times.extend(at + HOUR_MS for at in cycle.grid.repartitioned)
    if cycle.continues:
        times.append(now + NEXT_PLAN_MS)
    if cluster.geometry:
        times.append(now + HOUR_MS)  # from when on those of this plan count no longer
    if before is None or not cycle.book.unsettled or _may_be_kept_before(before, cycle, _ends(cycle, wakes).freed_before(before, cycle, touched)):
        times += [now + entry.at for entry in cycle.book.entries]
    return min([at for at in times if at > now], default=None)


def _may_be_kept_before(instant: int, cycle: Cycle, freed: int) -> bool:
    """A bound: False where no place that comes free before an instant is room for anybody who waits."""
    if not freed:
        return False
    if cycle.cluster.forms.parted or any(work.degraded for work in cycle.waiting.queues.open):
        return True
    room = freed + 1000 * cycle.fleet.soon.idle + cycle.book.lent_milli()
    return any(work.form.lowest <= room for work in cycle.waiting)


def _ends(cycle: Cycle, wakes: Wakes) -> Ends:
    if wakes.ends is None:
        wakes.ends = Ends(cycle.cluster.works)
    return wakes.ends


def _wakes(cycle: Cycle) -> Wakes:
    """What the plan before has found, without the jobs that have gone since; or nothing."""
    cluster = cycle.cluster
    kept = cluster.kept
    wakes = kept.wakes
    if cluster.first_state.goes_on and wakes is not None and wakes.turn + 1 == kept.turn and wakes.settings == cycle.settings:
        wakes.forget(cluster.first_state.since.gone)
        if wakes.ends is not None:
            wakes.ends.come(cluster.first_state.since.come)
    else:
        wakes = kept.wakes = Wakes(cycle.settings, dict.fromkeys(_may_wake(cycle)))
    wakes.turn = kept.turn
    return wakes


def _may_wake(cycle: Cycle) -> Iterable[Work]:
    """All jobs because of which alone a later plan could differ, and perhaps others."""
    cluster, settings = cycle.cluster, cycle.settings
    protected = settings.preempt_min_runtime_ms or settings.reclaim_min_runtime_ms
    if cluster.first_state.timed is None or protected or cycle.tree.protects or settings.waits_end or cluster.forms.delay:
        return cluster.works
    return [*cluster.first_state.timed, *cycle.waiting.queues.held]


class Ahead:
    """Instants to come at which a plan could differ because of one job."""

    def __init__(self, cycle: Cycle, protections: dict[int, tuple[int, ...]]) -> None:
        self.cycle = cycle
        self.waits_end = cycle.settings.waits_end
        self.protections = protections

    def some(self, works: Iterable[Work]) -> Iterable[Work]:
        """Those of them that may have any: most jobs that wait have none."""
        if self.waits_end:
            return works
        return [
            work
            for work in works
            if ((run := (job := work.job).run) is not QUEUED and (work.seats or run.until is not None or run.last_evicted is not None))
            or job.not_before is not None
            or work.kind.preemption_delay_ms
        ]

    def of(self, work: Work) -> tuple[int, ...]:
        job = work.job
        run = job.run
        lasting = work.seats and run is not QUEUED and run.until is None and run.reclaimed is None and not work.degraded
        if lasting and not self.waits_end and (run.started is None or not self._spans(work.charged_leaf)):
            return ()  # most jobs that run
        return tuple(at for at in self._all(work) if at > self.cycle.now)

    def _all(self, work: Work) -> Iterator[int]:
        job, run, settings = work.job, work.job.run, self.cycle.settings
        if run.until is not None:
            yield run.until
        if work.seats and run is not QUEUED:
            if run.started is not None:
                for span in self._spans(work.charged_leaf):
                    yield run.started + span
            longest = settings.max_wait_ms.of(work.kind.class_rank) if self.waits_end else None
            if run.started is not None and longest is not None and run.started - job.submitted >= longest:
                yield run.started + longest  # until then it is safe from work above its guarantee
            if run.reclaimed is not None and settings.fairness.step_ms:
                yield (run.reclaimed // settings.fairness.step_ms + 1) * settings.fairness.step_ms
            if work.degraded:
                yield (run.degraded_since or self.cycle.now) + settings.stale_grace_ms
            return
        if run.last_evicted is not None:
            yield backoff_until(self.cycle, work)
        if job.not_before is not None:
            yield job.not_before
        if work.kind.preemption_delay_ms:
            yield job.submitted + work.kind.preemption_delay_ms
        if self.waits_end:
            longest = settings.max_wait_ms.of(work.kind.class_rank)
            if longest is not None:
                yield job.submitted + longest

    def _spans(self, leaf: int) -> tuple[int, ...]:
        """For how long something may protect what stands in a leaf: within it, and on each level on which another queue may take from it."""
        spans = self.protections.get(leaf)
        if spans is None:
            tree, settings = self.cycle.tree, self.cycle.settings
            found = {tree.nearest(place, "reclaim_min_runtime_ms", settings.reclaim_min_runtime_ms) for place in tree.path[leaf]}
            found.add(tree.nearest(leaf, "preempt_min_runtime_ms", settings.preempt_min_runtime_ms))
            spans = self.protections[leaf] = tuple(sorted(found - {0}))
        return spans
