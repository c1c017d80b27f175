"""What was told of each job in the plan before, as long as nothing that it was told from has changed.

The reasons of a waiting job come from the books of its leaf, of all above it and of what stands beside that path, and from the room
on the fleet for its shape. Where all of these are as they were, so are the reasons. Everything else (a note of this plan, a date, a
delay that runs out, whoever was changed in it) is told anew.
"""

from collections.abc import Sequence
from itertools import compress
from operator import ne

import numpy as np

from ..model.plan import Decision, Share, Waiting
from ..model.reasons import Reason
from ..model.values import Settings
from ..state.difference import Difference
from ..state.fleet import View
from ..state.grid import Flags
from ..state.tree import Tree
from ..state.work import Work

Books = list[list[int]]  # what is used, of which fixed, fair shares, and what may be counted on


class Repeated:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.turn = -1  # of which plan it is
        self._line: list[Waiting] = []  # what is told, in the order of jobs
        self._waits: Flags = np.zeros(0, dtype=np.bool_)  # by job whether anything is told of it
        self.rooms: dict[tuple[int, int], Reason | None] = {}  # by shape and quota type
        self.shares: list[Share] = []
        self.own: dict[Work, None] = {}  # of whom the last plan told something that came from itself alone
        self.due: dict[Work, None] = {}  # of whom it depends on the time whether their deadline can be met
        self.reserved: dict[Work, tuple[int, list[tuple[int, int]], Decision]] = {}  # by holder: when, on how many GPUs of which nodes
        self._books: list[Books] | None = None
        self._room: tuple[list[int], list[int], list[int]] = ([], [], [])

    def tell(self, entries: Sequence[Waiting | None]) -> None:
        """What is told of every job, by its place."""
        self._line = [entry for entry in entries if entry is not None]
        self._waits = np.array([entry is not None for entry in entries], dtype=np.bool_)

    def tell_of(self, order: int, entry: Waiting | None) -> None:
        """What is told of one job now."""
        waited = self._waits[order]
        if entry is None:
            if waited:
                del self._line[self._told_before(order)]
                self._waits[order] = False
        elif waited:
            self._line[self._told_before(order)] = entry
        else:
            self._line.insert(self._told_before(order), entry)
            self._waits[order] = True

    def changed_places(self, tree: Tree) -> list[int] | None:
        """Nodes of the tree whose numbers are not those of the plan before; None: there are none to compare. These count from now on."""
        before = self._books
        if before is None or len(before) != len(tree.divisions):
            self._books = [[list(each.used), list(each.fixed), list(each.fair), list(each.counts_on)] for each in tree.divisions]
            return None
        changed: set[int] = set()
        for old, each in zip(before, tree.divisions, strict=True):
            for number, now in enumerate((each.used, each.fixed, each.fair, each.counts_on)):
                if old[number] != now:
                    changed.update(compress(range(len(now)), map(ne, old[number], now)))
                    old[number] = list(now)
        return sorted(changed)

    def same_room(self, view: View) -> bool:
        """Whether the fleet is as it was when the plan before was told. This one counts from now on."""
        if self._room == (view.free, view.cpus, view.memory):
            return True
        self._room = (list(view.free), list(view.cpus), list(view.memory))
        return False

    def _told_before(self, order: int) -> int:
        """How many of the jobs before a place are told anything."""
        return int(np.count_nonzero(self._waits[:order]))

    def follow(self, since: Difference) -> None:
        """Jobs came and went."""
        for work in since.gone:
            self.own.pop(work, None)
            self.due.pop(work, None)
        first, last, before, now, *_ = since
        if len(before) == len(now) == 1:  # most of all, where jobs come one by one
            if before[0] is not now[0]:
                self.tell_of(first, None)
            return
        waits = self._waits
        end = len(waits) - last
        at = self._told_before(first)
        told = [work for work, waited in zip(before, waits[first:end].tolist(), strict=True) if waited]
        until = at + len(told)
        known = {id(work): entry for work, entry in zip(told, self._line[at:until], strict=True)}
        here: Flags = np.array([id(work) in known for work in now], dtype=np.bool_)
        if len(now) == end - first:
            waits[first:end] = here
        else:
            self._waits = np.concatenate((waits[:first], here, waits[end:]))
        self._line[at:until] = [known[id(work)] for work in now if id(work) in known]

    def told(self) -> tuple[Waiting, ...]:
        return tuple(self._line)
