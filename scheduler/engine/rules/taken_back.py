"""Who was served at the cost of others in this plan, and what follows when a later pass takes that place away again.

Its victims would have given way to nobody, and whoever took the place may have no right to them. So the plan begins anew, and the one that lost
its place takes nothing from others until nobody else can do anything more. What it gets then is looked at as the next plan would.
"""

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..state.work import Work

if TYPE_CHECKING:
    from ..state.planning import Cycle

MOST_LOSSES = 2  # of one job for which a plan begins anew
MOST_AT_ALL = 12


class TakenBack(Exception):
    """What this plan gave would be taken again: it begins anew."""


class Takers:
    def __init__(self, cycle: "Cycle") -> None:
        self.cycle = cycle
        self.dear: dict[int, str] = {}  # for whom others stopped running in this plan or were moved, or who was repaired; and by which pass
        self._lost: Counter[int] = Counter()  # how often a job lost such a place
        self._by: dict[int, str] = {}  # and by which pass it had it
        self._later: set[int] = set()  # of those, who takes nothing now

    def begin_anew(self) -> None:
        for work in self.cycle.cluster.journal:
            work.firm = False
        self.dear.clear()
        self._later = {*self._lost}

    def holds_back(self, work: Work, *, inside: bool = False) -> bool:
        """Whether a job may not take anything now, because it would only be taken from it again. Inside its leaf it takes other places than those
        that it has reclaimed and lost."""
        return work.order in self._later and not (inside and self._by[work.order] == "reclaim")

    def served(self, work: Work, losers: Iterable[Work], code: str, *, upset: bool) -> None:
        """A job got a place at the cost of others; `upset` says that somebody stopped running for it."""
        out = {one.order for one in losers if not one.seats and self._lost[one.order] < MOST_LOSSES}
        last = next((order for order in reversed(self.dear) if order in out), None)  # without it there may be no set that takes others
        if last is not None and self._lost.total() < MOST_AT_ALL:
            self._lost[last] += 1
            self._by[last] = self.dear[last]
            raise TakenBack
        if upset:
            self.dear[work.order] = code

    def second_chance(self) -> bool:
        """Nobody else can do anything more: those that were held back try again, as in the next plan, to which all that stands by then is ordinary
        running work. False where there is nobody."""
        again = {order for order in self._later if self._lost[order] < MOST_LOSSES}
        if not again:
            return False
        cluster = self.cycle.cluster
        for work in dict.fromkeys(cluster.journal):
            if work.order in again or (work.seats and (work.evicted or not work.first_seats)):
                work.firm = True
        self._later -= again
        self.cycle.changed()
        return True
