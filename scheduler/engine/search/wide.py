"""The search for victims over many units at once: the same answers as `victims`, by columns instead of one unit after the other.

Worth it from a few hundred units on, and only where counting GPUs by node decides. The tests hold every function here against its
plain form.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ..state.grid import Ints
from .columns import Flags, ints
from .ranking import UNBOUNDED, WideRanking

if TYPE_CHECKING:
    from ..state.cluster import Cluster
    from .victims import Target


def grouped(numbers: Ints, most: int) -> Ints:
    """Rows by a number below `most`; those with the same stay in their order."""
    return np.argsort(numbers.astype(np.uint16) if most < 1 << 16 else numbers, kind="stable")  # short numbers are sorted by counting


def can_count(target: "Target") -> bool:
    """Whether counting GPUs by node tells that a job fits."""
    return target.fits is None and target.gpus > 0 and not target.cpus and not target.memory


def passed_over(asked: Sequence[int], most: int, at_most: int) -> Flags:
    """Which units may be taken one after the other where one that is too large does not stop those behind it."""
    taken = 0
    allowed = np.zeros(len(asked), dtype=np.bool_)
    for place, milli in enumerate(asked):
        if taken >= most:
            break
        if taken + milli <= at_most:
            taken += milli
            allowed[place] = True
    return allowed


class WideSearch:
    """One search for one job in one slice of the fleet."""

    def __init__(self, cluster: "Cluster", ranking: WideRanking, target: "Target") -> None:
        assert target.allowed is not None
        self.target = target
        self.ranking = ranking
        self.columns = columns = ranking.columns
        self.free: Ints = cluster.fleet.soon.count_np
        self.allowed: Flags = np.zeros(cluster.grid.size, dtype=np.bool_)
        self.allowed[target.low : target.high] = target.allowed[target.low : target.high] != 0
        self.room: Ints = self.free // target.gpus
        self.room_before = int(self.room[self.allowed].sum())
        if target.short or self.allowed.all():
            self.places: Ints = np.arange(len(ranking.rows))
        else:
            place, seat = columns.entries(ranking.rows)
            stands = np.zeros(len(ranking.rows), dtype=np.bool_)
            stands[place[self.allowed[columns.node[seat]]]] = True
            self.places = np.flatnonzero(stands)
        self.refused = False

    def find(self) -> list[int] | None:
        """Places in the ranking of the units to take, in order; None where there is no such set."""
        single = self._smallest_single()
        taken = [single] if single is not None else self._collect()
        if taken is None:
            return None
        return self._give_back(taken)

    def _legal(self) -> Flags:
        """Of the useful units those that may be taken when all legal ones before them are."""
        columns, rows = self.columns, self.ranking.rows[self.places]
        leaf, milli = columns.leaf[rows], columns.milli[rows]
        legal = np.zeros(len(rows), dtype=np.bool_)
        for first, end, most, at_most in self.ranking.bounds:
            here = np.flatnonzero((leaf >= first) & (leaf < end))
            asked = milli[here]
            sums = np.cumsum(asked)
            allowed = (sums - asked < most) & (sums <= at_most)  # the first is final: what was taken only grows
            if not allowed.all() and sums[allowed].max(initial=0) < min(most, at_most):
                allowed = passed_over(asked.tolist(), most, at_most)
            legal[here] = allowed
        return legal

    def _legal_alone(self) -> Flags:
        """Of the useful units those that may be taken when nothing else is."""
        columns, rows = self.columns, self.ranking.rows[self.places]
        leaf, milli = columns.leaf[rows], columns.milli[rows]
        legal = np.ones(len(rows), dtype=np.bool_)
        for first, end, _, at_most in self.ranking.bounds:
            if at_most < UNBOUNDED:
                legal &= (leaf < first) | (leaf >= end) | (milli <= at_most)
        return legal

    def _collect(self) -> list[int] | None:
        """Add legal units in order until the job fits."""
        target, columns = self.target, self.columns
        legal = self._legal()
        places = self.places[legal]
        rows = self.ranking.rows[places]
        if self.room_before + self.gained_by(rows) >= target.count:
            enough = self.room_before + self._room_gained(rows) >= target.count
            for first, end, milli in target.short:
                leaf = columns.leaf[rows]
                left = np.where((leaf >= first) & (leaf < end), columns.milli[rows], 0)
                enough &= np.cumsum(left) >= milli
            if enough.any():
                return list(places[: int(enough.argmax()) + 1].tolist())
        if not legal.all() and target.gpus > 1 and not target.short:
            return self._collect_by_node()
        return None

    def gained_by(self, rows: Ints) -> int:
        """How many workers more fit with all these units gone."""
        columns, (_, seat) = self.columns, self.columns.entries(rows)
        free = self.free.copy()
        np.add.at(free, columns.node[seat], columns.gpus[seat])
        return int((free // self.target.gpus - self.room)[self.allowed].sum())

    def _room_gained(self, rows: Ints) -> Ints:
        """How many workers more fit with the first unit gone, with the first two gone, and so on."""
        columns, gpus = self.columns, self.target.gpus
        place, seat = columns.entries(rows)
        node, freed = columns.node[seat], columns.gpus[seat]
        inside = self.allowed[node]
        place, node, freed = place[inside], node[inside], freed[inside]
        order = grouped(node, len(self.free))
        before = running_sums(node[order], freed[order])[0]
        free = self.free[node[order]]
        gained = (free + before + freed[order]) // gpus - (free + before) // gpus
        per_unit = np.zeros(len(rows), dtype=np.int64)
        np.add.at(per_unit, place[order], gained)
        return np.cumsum(per_unit)

    def _smallest_single(self) -> int | None:
        """If one unit of the best category suffices by itself: the smallest such."""
        target, ranking, columns = self.target, self.ranking, self.columns
        if columns.sole and not target.short and columns.most_held // target.gpus + 1 < target.count - self.room_before:
            return None
        alone = self.places[self._legal_alone()]
        if not len(alone):
            return None
        first = alone[ranking.code[alone] == ranking.code[alone[0]]]
        rows = ranking.rows[first]
        if not target.short:
            place, seat = columns.entries(rows)
            most = np.zeros(len(rows), dtype=np.int64)
            np.add.at(most, place, columns.held[seat] // target.gpus + 1)
            first = first[most >= target.count - self.room_before]  # a place can complete at most one worker more than it holds itself
        best: tuple[int, int] | None = None
        for at in first.tolist():
            milli = int(columns.milli[ranking.rows[at]])
            if (best is None or milli < best[0]) and self._suffices(at):
                best = (milli, at)
        return None if best is None else best[1]

    def _suffices(self, at: int) -> bool:
        unit = self.columns.units[self.ranking.rows[at]]
        if any(milli > (unit.milli if first <= unit.leaf < end else 0) for first, end, milli in self.target.short):
            return False
        freed: dict[int, int] = {}
        start = int(self.columns.first[self.ranking.rows[at]])
        for seat in range(start, start + len(unit.seats)):
            node = int(self.columns.node[seat])
            if self.allowed[node]:
                freed[node] = freed.get(node, 0) + int(self.columns.gpus[seat])
        gpus = self.target.gpus
        gained = sum((int(self.free[node]) + more) // gpus - int(self.free[node]) // gpus for node, more in freed.items())
        return self.room_before + gained >= self.target.count

    # Clearing node by node

    def _collect_by_node(self) -> list[int] | None:
        """Where only so much may be taken, it must not be taken here and there: clear the nodes that cost least, one worker's room at a time.

        Where every unit stands on one node, that is done at once for all the room that may be made; what is left, one worker's room after the other.
        """
        missing = self.target.count - self.room_before
        if missing <= 0:
            return []
        shelves = Shelves(self)
        done, at_once = self._cleared_at_once(shelves, missing) if shelves.apart else (0, [])
        if int(shelves.gains[:done].sum()) >= missing:
            return at_once
        taken = dict.fromkeys(at_once)
        charged = self._charged(ints(at_once))
        room = Room(self, at_once)
        blocked: set[int] = set()
        for node, units in shelves.slots(done):
            if room.gained >= missing:
                break
            if node in blocked:
                continue
            fresh = [at for at in units if at not in taken]
            trial = list(charged)
            if not self._all_legal(fresh, trial):
                blocked.add(node)  # what comes behind it on this node needs it
                continue
            charged = trial
            for at in fresh:
                taken[at] = None
                room.free_up(at, 1)
        return list(taken) if room.gained >= missing else None

    def _cleared_at_once(self, shelves: "Shelves", missing: int) -> tuple[int, list[int]]:
        """From the cheapest on as many slots as are needed, or as may be taken one after the other; and their units."""
        columns, rows = self.columns, self.ranking.rows[shelves.units]
        leaf, milli = columns.leaf[rows], columns.milli[rows]
        legal = np.zeros(len(rows), dtype=np.bool_)
        for first, end, most, at_most in self.ranking.bounds:
            here = np.flatnonzero((leaf >= first) & (leaf < end))
            sums = np.cumsum(milli[here])
            legal[here] = (sums - milli[here] < most) & (sums <= at_most)
        enough = int(np.searchsorted(np.cumsum(shelves.gains), missing)) + 1
        done = min(enough, int(shelves.slot[legal.argmin()]) if not legal.all() else enough)
        taken: list[int] = shelves.units[: np.searchsorted(shelves.slot, done)].tolist()
        return done, taken

    def _charged(self, places: Ints) -> list[int]:
        """What units come to below each of the nodes of the tree that answer for them."""
        rows = self.ranking.rows[places]
        leaf, milli = self.columns.leaf[rows], self.columns.milli[rows]
        return [int(milli[(leaf >= first) & (leaf < end)].sum()) for first, end, _, _ in self.ranking.bounds]

    @cached_property
    def _listed(self) -> tuple[list[int], list[int]]:
        """Leaf and milli-GPU by place in the ranking, to be read one at a time."""
        rows = self.ranking.rows
        return self.columns.leaf[rows].tolist(), self.columns.milli[rows].tolist()

    def _all_legal(self, fresh: Sequence[int], charged: list[int]) -> bool:
        leaves, amounts = self._listed
        for at in fresh:
            leaf, milli = leaves[at], amounts[at]
            for number, (first, end, most, at_most) in enumerate(self.ranking.bounds):
                if first <= leaf < end:
                    if charged[number] >= most or charged[number] + milli > at_most:
                        return False
                    charged[number] += milli
                    break
            else:
                return False
        return True

    def _give_back(self, taken: list[int]) -> list[int]:
        """Last taken first, give back each unit without which the job still fits."""
        missing = self.target.count - self.room_before
        if not self.target.short and self._all_needed(taken, missing):
            return taken
        room = Room(self, taken)
        if not self.target.short:
            needed = [at for at in reversed(taken) if not room.spares(at, missing)]
            needed.reverse()
            return needed
        short = [list(part) for part in self.target.short]
        units, rows = self.columns.units, self.ranking.rows
        for at in taken:
            for part in short:
                unit = units[rows[at]]
                if part[0] <= unit.leaf < part[1]:
                    part[2] -= unit.milli
        needed = []
        for at in reversed(taken):
            unit = units[rows[at]]
            room.free_up(at, -1)
            parts = [part for part in short if part[0] <= unit.leaf < part[1]]
            if room.gained >= missing and all(part[2] + unit.milli <= 0 for part in parts):
                for part in parts:
                    part[2] += unit.milli
                continue
            room.free_up(at, 1)
            needed.append(at)
        needed.reverse()
        return needed

    def _all_needed(self, taken: list[int], missing: int) -> bool:
        """Whether there is no more room than is needed, and each unit, holding one place, completes a worker's room there."""
        columns, rows, gpus = self.columns, self.ranking.rows[ints(taken)], self.target.gpus
        if (columns.seats[rows] != 1).any():
            return False
        seats = columns.first[rows]
        node, freed = columns.node[seats], columns.gpus[seats]
        free = self.free.copy()
        np.add.at(free, node, freed)
        gained = (free // gpus - self.free // gpus)[self.allowed].sum()
        return bool(gained == missing and self.allowed[node].all() and (free[node] % gpus < freed).all())


def running_sums(group: Ints, values: Ints) -> tuple[Ints, Ints]:
    """For groups that stand side by side: the sum of what stands before each value in its group, and where the group begins."""
    if not len(group):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    sums = np.cumsum(values) - values
    begins = np.ones(len(group), dtype=np.bool_)
    begins[1:] = group[1:] != group[:-1]
    start = np.maximum.accumulate(np.where(begins, np.arange(len(group)), 0))
    return sums - sums[start], start


class Room:
    """How many workers more fit while units are taken and given back, one at a time."""

    def __init__(self, search: WideSearch, taken: Sequence[int] = ()) -> None:
        self.gpus = search.target.gpus
        self.gained = 0
        free = search.free
        if taken:
            _, seat = search.columns.entries(search.ranking.rows[ints(taken)])
            free = free.copy()
            np.add.at(free, search.columns.node[seat], search.columns.gpus[seat])
            self.gained = int((free // self.gpus - search.free // self.gpus)[search.allowed].sum())
        self._free: list[int] = free.tolist()
        self._allowed: list[bool] = search.allowed.tolist()
        self._rows: list[int] = search.ranking.rows.tolist()
        self._first, self._count, self._node, self._freed = search.columns.lists

    def free_up(self, at: int, sign: int) -> None:
        """Take a unit (1) or give it back (-1)."""
        row = self._rows[at]
        free, gpus = self._free, self.gpus
        start = self._first[row]
        for seat in range(start, start + self._count[row]):
            node = self._node[seat]
            if self._allowed[node]:
                before = free[node]
                after = free[node] = before + sign * self._freed[seat]
                self.gained += after // gpus - before // gpus

    def spares(self, at: int, missing: int) -> bool:
        """Give a unit back if as many workers as were missing still fit without it."""
        row = self._rows[at]
        if self._count[row] > 1:
            self.free_up(at, -1)
            if self.gained >= missing:
                return True
            self.free_up(at, 1)
            return False
        seat = self._first[row]
        node = self._node[seat]
        if self._allowed[node]:
            before, gpus = self._free[node], self.gpus
            after = before - self._freed[seat]
            left = self.gained + after // gpus - before // gpus
            if left < missing:
                return False
            self._free[node] = after
            self.gained = left
        return self.gained >= missing


class Shelves:
    """The units of a ranking by the node they stand on, and how they make room there for one worker after the other.

    A slot is what makes room for one worker more than the units before it on the same node do; slots stand in the order of what their node
    has cost with them.
    """

    def __init__(self, search: WideSearch) -> None:
        columns, ranking, gpus = search.columns, search.ranking, search.target.gpus
        place, seat = columns.entries(ranking.rows)
        node = columns.node[seat]
        inside = search.allowed[node]
        place, seat, node = place[inside], seat[inside], node[inside]
        order = grouped(node, len(search.free))  # places ascend already
        place, node, freed = place[order], node[order], columns.gpus[seat][order]
        if len(place) > 1 and not columns.sole:  # a unit with several workers on a node stands there once, with all their GPUs
            same = np.zeros(len(place), dtype=np.bool_)
            same[1:] = (place[1:] == place[:-1]) & (node[1:] == node[:-1])
            if same.any():
                group = np.cumsum(~same) - 1
                sums = np.zeros(int(group[-1]) + 1, dtype=np.int64)
                np.add.at(sums, group, freed)
                place, node, freed = place[~same], node[~same], sums
        self.apart = columns.sole or not len(place) or int(np.bincount(place).max()) == 1  # whether each unit stands on one node
        rows = ranking.rows[place]
        before, start = running_sums(node, freed)
        free = search.free[node]
        room_before, room = (free + before) // gpus, (free + before + freed) // gpus
        ends = np.flatnonzero(room > room_before)
        begins = start[ends]
        behind = node[ends[1:]] == node[ends[:-1]]
        begins[1:][behind] = ends[:-1][behind] + 1
        milli, lost = columns.milli[rows], columns.lost[rows]
        milli += running_sums(node, milli)[0]
        lost += running_sums(node, lost)[0]
        order = np.lexsort((ends, lost[ends], milli[ends], ranking.code[place][ends]))  # at the end of the order: the node, and how many units
        begins, ends = begins[order], ends[order]
        self.node: Ints = node[ends]
        self.gains: Ints = (room - room_before)[ends]  # workers more
        counts = ends - begins + 1
        self.slot: Ints = np.repeat(np.arange(len(ends)), counts)  # of every unit
        self.first: Ints = np.cumsum(counts) - counts
        self.units: Ints = place[np.arange(len(self.slot)) + (begins - self.first)[self.slot]]  # by place in the ranking, slot by slot

    def slots(self, since: int) -> Iterator[tuple[int, list[int]]]:
        """Node and units of every slot from one on."""
        if since >= len(self.node):
            return
        begin = int(self.first[since])
        units, firsts = self.units[begin:].tolist(), (self.first[since:] - begin).tolist()
        for node, first, end in zip(self.node[since:].tolist(), firsts, [*firsts[1:], len(units)], strict=True):
            yield node, units[first:end]
