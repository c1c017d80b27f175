"""When to plan again although nothing has happened."""

from collections.abc import Collection
from heapq import heappop, heappush
from itertools import count

from ..rules.times import ends_at
from ..state.charged import most_freed
from ..state.planning import Cycle
from ..state.work import Work

NEXT_PLAN_MS = 1000  # until the plan that goes on where this one stopped


def next_wake(cycle: Cycle, before: int | None = None) -> int | None:
    """The earliest instant, or the earliest before one, at which a plan could differ although nothing happened: stated, a reservation's, or noted."""
    now, cluster = cycle.now, cycle.cluster
    leaving = cluster.state.leaving = cluster.state.leaving or Leaving(cluster.works)
    times = [*leaving.until.values()]
    if cluster.scenario.windows:
        times += cluster.windows.times()
    if cluster.power is not None:
        times += cluster.power.times()
    if cycle.continues:
        times.append(now + NEXT_PLAN_MS)
    is_kept = True  # a bound
    if before is not None and cycle.book.asking:  # mostly what comes free by then is room for nobody who waits
        freed, any_room = leaving.freed_before(before, cycle), cluster.forms.parted or any(work.degraded for work in cycle.waiting.queues.open)
        room = freed + 1000 * cycle.fleet.soon.idle + cycle.book.lent_milli()
        is_kept = bool(freed) and (any_room or any(work.form.lowest <= room for work in cycle.waiting))
    if is_kept:
        times += [now + entry.at for entry in cycle.book.entries]
    if cluster.next_turn is not None:
        times.append(cluster.next_turn)
    return min([at for at in times if at > now], default=None)


class Leaving:
    """When those leave who stand at first, once that was asked. It goes on from plan to plan."""

    def __init__(self, works: Collection[Work]) -> None:
        self.until: dict[Work, int] = {}  # who is in transit, until an instant that is stated
        self._fresh: dict[Work, None] = {}  # who stands, and was not asked yet when he leaves
        self._ends: dict[Work, int] = {}  # of the others
        self._next: list[tuple[int, int, Work]] = []  # the same, the soonest first; who has gone or was asked again since stays until his turn
        self._serial = count()
        self.follow((), works)

    def follow(self, gone: Collection[Work], come: Collection[Work]) -> None:
        for work in gone:
            self.until.pop(work, None)
            self._fresh.pop(work, None)
            self._ends.pop(work, None)
        self._fresh.update(dict.fromkeys([work for work in come if work.first_seats]))
        self.until.update({work: until for work in come if (until := work.job.run.until) is not None})

    def freed_before(self, instant: int, cycle: Cycle) -> int:
        """Milli-GPU of who is expected to leave before an instant: no place comes free before, as far as anyone knows."""
        touched = dict.fromkeys(cycle.cluster.journal)
        due = {work: 0 if work in touched else ends_at(cycle, work) for work in self._fresh}
        self._fresh.clear()
        while self._next and self._next[0][0] < instant:
            at, _, work = heappop(self._next)
            if self._ends.get(work) == at:
                due[work] = at if work in touched else ends_at(cycle, work)
        self._ends.update(due)
        if len(self._next) > 2 * len(self._ends):  # mostly of those who have gone
            self._next.clear()
            due |= self._ends
        for work, at in due.items():
            heappush(self._next, (at, next(self._serial), work))
        gone = [work for work, at in due.items() if at < instant and work not in touched]
        return sum(map(most_freed, (*gone, *(work for work in touched if work.seats and ends_at(cycle, work) < instant))))
