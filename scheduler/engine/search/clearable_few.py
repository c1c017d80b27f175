"""The same as `Clearable` for so few nodes that bit sets of alike ones are sooner gone through than columns of all.

Nodes are alike if as many jobs have to leave them, and find room elsewhere under the same conditions: then one answer holds for all of them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..place.placement import bits_of_large
from ..state.fleet import View
from ..state.grid import Ints, span_bits
from ..state.work import Work
from .clearable import MANY, NEVER, Flags, Need, Weighed, least_lost, pool_of, sizes_leaving, ways, won_by_leaving
from .columns import ints

if TYPE_CHECKING:
    from .movables import Movables

# Places that are won by clearing a node, by the GPUs of a worker who is moved, without those that are taken by who leaves it; and which of these
# sizes leave it.
Places = tuple[tuple[int, ...], tuple[int, ...]]
Alike = tuple[int, Places | None]  # how many jobs leave a node, and the places, where they can be counted


class ClearableFew:
    """For workers of so many GPUs."""

    def __init__(self, gpus: int, size: int, most: int) -> None:
        self.gpus = gpus
        self.stale: set[int] = set()  # nodes off which somebody else could be moved than when they were looked at
        self.needed = [0] * size  # GPUs that must come free
        self._idle = [-1] * size  # as of which that is so
        self._largest = most
        self._movables: Movables
        self._looks = 0  # how often nodes were looked at again
        self._of: dict[int, Alike] = {}  # by node, where any number of jobs makes room
        self._nodes: dict[Alike, int] = {}  # a bit set of those that are alike
        self._there: dict[int, int] = {}  # by the GPUs of a worker, the places that there are
        self._allowed: tuple[Ints, int] | None = None  # which nodes serve who asked last, in two forms
        self._none: dict[
            tuple[Need, int], tuple[Ints, int]
        ] = {}  # needs with no answer, however long anybody has run: for whom, and as of which look
        self._chose = False  # whether there may be another answer once others have less to lose
        self._sets: dict[
            Need, tuple[Ints, int, list[list[int]]]
        ] = {}  # sets with the fewest jobs that leave room for all, for whom, and as of which look

    def catch_up(self, movables: "Movables", soon: View) -> None:
        count, idle = soon.count, self._idle
        stale = self.stale
        if idle != count:
            stale.update([node for node, (one, other) in enumerate(zip(idle, count, strict=True)) if one != other])
        elif not stale:
            return
        self._movables = movables
        self._looks += 1
        self._there.clear()
        there, gpus, usable, known, alike = movables.nodes(), self.gpus, soon.grid.usable_count, self._of, self._nodes
        for node in stale:
            here = idle[node] = count[node]
            needed = self.needed[node] = gpus - here % gpus if gpus else 1
            jobs, works = movables.leaving(node, needed) if node in there else (0, None)
            now = (jobs, self._places(node, works, usable)) if jobs else None
            before = known.get(node)
            if now == before:
                continue
            if before is not None:
                alike[before] ^= 1 << node
                if not alike[before]:
                    del alike[before]
            if now is None:
                del known[node]
            else:
                known[node] = now
                alike[now] = alike.get(now, 0) | 1 << node
        stale.clear()

    def _places(self, node: int, works: Sequence[Work] | None, usable: Sequence[int]) -> Places | None:
        """What is won and taken where these leave a node."""
        leaving = None if works is None else sizes_leaving(node, works, usable)
        return None if leaving is None else (won_by_leaving(self._idle[node], leaving[0], self.gpus, self._largest), leaving[1])

    def _beyond(self, stand: int, size: int) -> int:
        """How many places must be won for so many workers of the job on other nodes, where somebody of this size is moved."""
        there = self._there.get(size)
        if there is None:
            there = self._there[size] = sum([idle // size for idle in self._idle])
        return stand * (self.gpus // size) - there

    def _is_roomy(self, places: Places | None, stand: int) -> bool:
        """Whether those who leave such a node find room elsewhere, beside one worker of the job there and so many on others: a bound."""
        if places is not None:
            won = places[0]
            for size in places[1]:
                if won[size - 1] < self._beyond(stand, size):
                    return False
        return True

    def cheapest(self, need: Need, allowed: Ints, most: int, now: int, weighed: Weighed) -> list[int] | None:
        """So many nodes of a slice that are cleared by moving the fewest jobs each, and of these where least is lost.

        None where there are not as many whose jobs find room elsewhere, or where that takes more jobs than may be moved.
        """
        known = self._none.get((need, most))
        if known is not None and known[0] is allowed and known[1] == self._looks:
            return None
        if self._allowed is None or self._allowed[0] is not allowed:
            self._allowed = allowed, int.from_bytes(np.packbits(allowed > 0, bitorder="little").tobytes(), "little")
        within = self._allowed[1] & span_bits(need.low, need.high)
        self._chose = False
        if need.short == 1:
            nodes = self._cheapest_one(need, within, most, now, weighed)
        else:
            nodes = self._cheapest_set(need, within, allowed, most, now, weighed)
        if nodes is None and not self._chose:
            self._none[need, most] = allowed, self._looks
        return nodes

    def _cheapest_one(self, need: Need, within: int, most: int, now: int, weighed: Weighed) -> list[int] | None:
        fewest, equal = most, 0
        for (jobs, places), nodes in self._nodes.items():
            if jobs <= fewest and (here := nodes & within) and self._is_roomy(places, need.workers - 1):
                fewest, equal = jobs, equal | here if jobs == fewest else here
        return self._least_lost(bits_of_large(equal), 1, now, weighed) if equal else None

    def _cheapest_set(self, need: Need, within: int, allowed: Ints, most: int, now: int, weighed: Weighed) -> list[int] | None:
        _, _, count, short = need
        elsewhere = count - short
        roomy = [(jobs, here) for (jobs, places), nodes in self._nodes.items() if (here := nodes & within) and self._is_roomy(places, elsewhere)]
        nodes = sorted([(jobs, node) for jobs, here in roomy for node in bits_of_large(here)])
        if len(nodes) < short:
            return None
        alone = {node: self._alone(node) for _, node in nodes}
        if sum(sorted(alone.values())[:short]) > most:
            return None
        enough = nodes[short - 1][0]
        chosen = [node for jobs, node in nodes if jobs < enough]
        equal = [node for jobs, node in nodes if jobs == enough]
        chosen += self._least_lost(equal, short - len(chosen), now, weighed)
        if self._leave_room(chosen, count):
            return chosen
        known = self._sets.get(need)
        if known is None or known[0] is not allowed or known[1] != self._looks:
            known = self._sets[need] = allowed, self._looks, self._together(nodes, count, short)
        fewest = known[2]
        if all(sum([alone[node] for node in each]) > most for each in fewest):  # or there is none
            self._chose = pool_of(len(nodes), short) < len(nodes)
            return None
        return least_lost(fewest, weighed)

    def _alone(self, node: int) -> int:
        """How many jobs at least leave this node that leave no other one with it."""
        jobs, works = self._movables.leaving(node, self.needed[node])
        if works is not None:
            return sum([len(work.seats) == 1 for work in works])
        return jobs if all(len(work.seats) == 1 for _, work in self._movables.here(node)) else 0

    def _least_lost(self, equal: list[int], many: int, now: int, weighed: Weighed) -> list[int]:
        """So many of the nodes that are cleared by moving as many jobs: those where least is lost."""
        if many == len(equal):
            return equal
        if many > 1:
            return sorted(equal, key=weighed)[:many]
        movables, needed, least, even = self._movables, self.needed, NEVER, []
        for node in equal:
            clearing = movables.clearing(node, needed[node])
            if clearing is None or clearing.since > now:  # what is lost there is not a matter of time alone
                lost = weighed(node)[1]
            else:
                lost = clearing.each_ms * now + clearing.before
            if lost < least:
                least, even = lost, [node]
            elif lost == least:
                even.append(node)
        return even if len(even) == 1 else [min(even, key=weighed)]  # then the younger one tells, and so on

    def _leave_room(self, nodes: Sequence[int], count: int) -> bool:
        """A bound: False where those who leave these nodes together certainly find no room beside so many workers."""
        places = [here for node in nodes if (here := self._of[node][1]) is not None]
        if len(places) < len(nodes):
            return True
        sizes = {size for _, leaving in places for size in leaving}
        return all(sum([won[size - 1] for won, _ in places]) >= self._beyond(count - len(nodes), size) for size in sizes)

    def _together(self, nodes: Sequence[tuple[int, int]], count: int, short: int) -> list[list[int]]:
        """Of the nodes that are cleared with the fewest jobs each, sets that leave room for all who are moved: those with the fewest jobs."""
        pool = pool_of(len(nodes), short)
        if pool == short:
            return []
        here = [self._of[node][1] for _, node in nodes[:pool]]
        sets = ways(pool, short)
        roomy: Flags = np.ones(len(sets), dtype=np.bool_)
        for size in {size for each in here if each is not None for size in each[1]}:
            won = ints([MANY if each is None else each[0][size - 1] for each in here])
            content: Flags = np.array([each is None or size not in each[1] for each in here])
            roomy &= (won[sets].sum(axis=1) >= self._beyond(count - short, size)) | content[sets].all(axis=1)
        sets = sets[roomy]
        if not len(sets):
            return []
        moved = ints([jobs for jobs, _ in nodes[:pool]])[sets].sum(axis=1)
        return [[nodes[at][1] for at in each] for each in sets[moved == moved.min()].tolist()]
