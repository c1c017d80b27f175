"""Who was served at the cost of others in this plan, and what follows when a later pass takes that place away again.

Its victims gave way to nobody then. So everything since is undone, and the new job has to find victims of its own; where it takes the places of
several, that goes for the last of them first. The one that lost its place tries again when nobody else can do anything more, and what it gets then is
safe for its minimum run time. After a few such losses nothing is undone any more: the plan goes on as the next one would, to which those victims are
history. That what a plan has started is taken first, without lost work or protection: `fresh` in units.py and victims.py.
"""

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..state.work import Work

if TYPE_CHECKING:
    from ..state.planning import Cycle

MOST_LOSSES = 4  # of one job in one plan that are undone; after twice as many it waits for the next one


class TakenBack(Exception):
    """The plan was set back to an earlier state: the sweep begins anew."""


class TakenInVain(Exception):
    """One queue took back what this plan had started in another."""


class Takers:
    def __init__(self, cycle: "Cycle") -> None:
        self.cycle = cycle
        self.dear: dict[int, int] = {}  # for whose place in this plan others stopped running, or who was repaired there: the state before
        self._movers: dict[int, int] = {}  # for whom a job was moved
        self.held_back: dict[int, bool] = {}  # who takes nothing now; true where it lost what it had reclaimed, and may still preempt
        self._reclaimed: set[int] = set()  # who was last served by reclaim
        self._lost: Counter[int] = Counter()  # how often a job lost its place again
        self._settled = False  # whether all that stands was taken for ordinary running work at last
        self._tried: dict[int, int] = {}  # when it last tried once more: as long as nothing has changed since, it would only lose again

    def forget(self) -> None:
        cluster = self.cycle.cluster
        for work in (*cluster.journal, *(cluster.works[order] for order in self._tried)):
            work.firm = False
        self._settled = False
        for known in (self.dear, self._movers, self.held_back, self._reclaimed, self._lost, self._tried):
            known.clear()

    def holds_back(self, work: Work, *, inside: bool = False) -> bool:
        """Whether a job may take nothing now, as it would lose it again. Inside its leaf it takes other places than what it reclaimed and lost."""
        return work.order in self.held_back and not (inside and self.held_back[work.order])

    def moved(self, work: Work, before: int, moved: Iterable[Work] = ()) -> None:
        """A job got a place because others were moved: who puts one of them out undoes that as well, as it was moved for nothing. Or a degraded gang
        got its missing workers: who takes the whole of it afterwards must have a right to it without them."""
        self.dear.setdefault(work.order, before)
        for one in moved:
            self.dear.setdefault(one.order, before)
            self._movers[one.order] = work.order

    def served(self, work: Work, before: int, losers: Iterable[Work], code: str, *, upset: bool) -> None:
        """A job got a place at the cost of others. Who loses here what it got in the same way takes its victims back with it. `upset`: somebody
        stopped running for it. Who only took what this plan had started has nothing to give back should it lose the place again."""
        self.held_back.pop(work.order, None)
        (self._reclaimed.add if code == "reclaim" else self._reclaimed.discard)(work.order)
        ousted = [one.order for one in dict.fromkeys(losers) if not one.seats and one.order in self.dear] if self.dear else []
        lost = list(dict.fromkeys(self._movers.get(order, order) for order in ousted))
        if all(self._lost[order] >= MOST_LOSSES for order in lost):  # mostly nobody
            # Who lost his place so often loses it as he would in the next plan: his victims have left, and he looks for another place at once.
            for order in ousted:
                del self.dear[order]
            self._lost.update(lost)
            self.held_back.update(dict.fromkeys([order for order in lost if self._lost[order] >= 2 * MOST_LOSSES], False))
            if upset:
                self.dear.setdefault(work.order, before)
            return
        # Of several the last one: without it there may be no set that takes the others.
        latest = max(self.dear[order] for order in ousted)
        for order in dict.fromkeys(self._movers.get(order, order) for order in ousted if self.dear[order] == latest):
            self.held_back[order] = order in self._reclaimed
            self._lost[order] += 1
        self.dear = {order: mark for order, mark in self.dear.items() if mark < latest}
        self._movers = {order: mover for order, mover in self._movers.items() if order in self.dear}
        self.cycle.cluster.undo(latest)
        self.cycle.changed()
        raise TakenBack

    def second_chance(self) -> bool:
        """Nobody else can do anything more: let those try again who were held back. False where there is nobody. At last, once in a plan, they try as
        in the next one, to which all that stands by then is ordinary running work."""
        if not self.held_back:
            return False
        cluster, here = self.cycle.cluster, self.cycle.cluster.mark()
        again = sorted(order for order in self.held_back if self._lost[order] <= MOST_LOSSES and self._tried.get(order) != here)
        for order in again:
            cluster.works[order].firm = True
            self._tried[order] = here
            del self.held_back[order]
        if again or self._settled:
            return bool(again)
        self._settled = True
        fresh = [work for work in dict.fromkeys(cluster.journal) if work.seats and not work.firm and (work.evicted or not work.first_seats)]
        for work in fresh:
            work.firm = True
        cluster.journal += fresh
        for known in (self.dear, self._movers, self.held_back, self._lost):
            known.clear()
        self.cycle.changed()
        return True
