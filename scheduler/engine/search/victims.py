"""Which victims, and how few: the least set of units that makes room for a job.

The search walks the units in the order in which they are tried, passes over what the `Rights` do not allow, stops when the job
fits and gives back, last taken first, what is not needed. Of several sets the one of the least `Found.rank` is taken.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from heapq import heapify, heappop, heappush
from typing import NamedTuple, TypeVar

import numpy as np

from ..model.reasons import Reason
from ..model.values import Preemptible
from ..state.cluster import Cluster
from ..state.fleet import Part
from ..state.form import Form
from ..state.grid import Ints, ints
from ..state.work import Work
from .units import Unit, Units

T = TypeVar("T")
Ranked = Sequence[tuple[tuple[int, ...], "Unit"]]
FEW = 10  # units of which every set is looked at
ANY = 1 << 60
ROUNDS = 16  # in each an elastic job is left out whose other workers could not go along
MOST_NODES = 16  # tried one by one for a job whose room can't be counted


@dataclass(slots=True)
class Target:
    """What must fit: workers of one plain shape inside a slice, or anything at all judged by trying."""

    low: int
    high: int
    count: int = 0
    gpus: int = 0
    cpus: int = 0
    memory: int = 0
    allowed: Ints | None = None  # nodes that may serve it
    flags: bytes | None = None  # the same, one byte per node; None where every node may
    fits: Callable[[Sequence[Unit]], bool] | None = None  # for shapes that can't be counted
    lacking: int = 0  # how many GPUs must come free at the least
    growth: bool = False  # for nobody's minimum: then no surplus goes that does not help
    short: tuple[tuple[int, int, int], ...] = ()  # (first, end, milli-GPU): what must leave below nodes of the tree that are at their limit
    room: int = -1  # how many workers of a plain shape there is room for as it is, once that was counted
    # By node, those that may not be its neighbours, each with its workers there: it serves only once all of them have left.
    crowd: Mapping[int, Mapping[Work, int]] = field(default_factory=dict)


class Found:
    """Units that together make room in a slice of the fleet."""

    def __init__(self, units: Sequence[Unit], charged: dict[int, int], low: int, high: int, ranked: Ranked = ()) -> None:
        self.units = units
        self.charged = charged  # milli-GPU taken, by the node of the tree that answers for it
        self.low = low
        self.high = high
        self.ranked = ranked  # among all that could be taken
        self.crosses = False  # whether the node of a victim is left below its line

    @property
    def works(self) -> list[Work]:
        return [unit.work for unit in self.units]

    @property
    def milli(self) -> int:
        return sum(unit.milli for unit in self.units)

    @property
    def lost(self) -> int:
        return sum(unit.lost for unit in self.units)

    def minima(self) -> Iterable[tuple[int, Work]]:
        """Leaf and job of the units that are a minimum, one for all of a leaf that ask for the same."""
        distinct: dict[tuple[int, Form], Work] = {}
        leaf, form = -1, None
        for unit in self.units:
            if not unit.surplus and (unit.form is not form or unit.leaf != leaf):  # neighbours are often alike
                leaf, form = unit.leaf, unit.form
                distinct.setdefault((leaf, form), unit.work)
        return [(leaf, work) for (leaf, _), work in distinct.items()]

    def rank(self) -> tuple[object, ...]:
        """How one set compares with another: the least is taken. That it crosses no line goes before rank."""
        jobs, mine = [work.job for work in self.works], set(self.units)
        worst = max((rank for rank, unit in self.ranked if unit in mine), default=())
        oldest_first = sorted((-job.submitted for job in jobs), reverse=True)
        return (self.crosses, worst, self.milli, self.lost, oldest_first, sorted(job.name for job in jobs), self.low)


class Giver(NamedTuple):
    """The node of the tree that is charged with what is taken from a leaf, and how much may be taken of it, in milli-GPU."""

    place: int
    until: int = ANY  # a unit may be taken while less than this was taken before it
    most: int = ANY  # and with it no more than this

    def gives(self, milli: int, taken: int = 0) -> bool:
        return taken < self.until and taken + milli <= self.most


NOBODY = Giver(-1, 0, 0)


class Rights(ABC):
    """By which rules running work may be taken for a job."""

    own = -1  # the leaf that gives surplus back for it beside what is taken

    def giver(self, leaf: int) -> Giver:
        """Who answers for a leaf."""
        return Giver(leaf)

    @abstractmethod
    def guard(self, found: Found) -> Reason | None:
        """Why the whole of a set may not be taken."""

    def crosses(self, found: Found) -> bool:
        """Whether a set leaves the node of a victim below its line."""
        return False

    def crossing_none(self) -> "Rights":
        """These rules for sets that cross no line."""
        return self


def category(unit: Unit, borrowed: bool, large: int) -> tuple[int, ...]:
    """The rank of a unit by kind, before lost work and age tell units of one kind apart."""
    kind = unit.work.kind
    return (not unit.fresh, not unit.surplus, not borrowed, unit.milli > large, kind.class_rank, kind.priority)


def in_categories(units: Iterable[Unit], outside: Collection[Unit], large: int) -> list[tuple[tuple[int, ...], Unit]]:
    """Those of the units that may give way, by their category; within one the order stays. `outside` holds those that are borrowed."""
    here: dict[tuple[int, ...], list[tuple[tuple[int, ...], Unit]]] = {}
    alike: dict[tuple[Form, bool, bool, bool, bool], tuple[tuple[int, ...], list[tuple[tuple[int, ...], Unit]]]] = {}
    for unit in units:
        borrowed = unit in outside
        form = unit.form
        same = (form, unit.fresh, unit.surplus, borrowed, unit.milli > large)
        if (known := alike.get(same)) is None:
            preemptible = form.kind.preemptible
            rank: tuple[int, ...] = ()
            if preemptible is Preemptible.ALWAYS or (preemptible is Preemptible.WHEN_BORROWED and borrowed):
                rank = category(unit, borrowed, large)
            known = alike[same] = (rank, here.setdefault(rank, []))
        if known[0]:  # who may not be put out has none
            known[1].append((known[0], unit))
    return [pair for rank in sorted(here) for pair in here[rank]]


def usual_size(milli: int) -> int:
    """For a job that asks for so much, units larger than this are taken only where no set of others suffices."""
    return max(8000, 2 * milli)


def no_larger(ranked: Ranked, most: int) -> Ranked:
    return [pair for pair in ranked if pair[1].milli <= most] if any(unit.milli > most for _, unit in ranked) else ranked


def in_sizes(ranked: Ranked, most: int) -> Iterator[Ranked]:
    """Those of the units that are not larger, then all of them; no list twice, and none that is empty."""
    small = no_larger(ranked, most)
    yield from (some for some in ((small, ranked) if len(small) < len(ranked) else (ranked,)) if some)


def as_if_running(ranked: Ranked) -> list[tuple[tuple[int, ...], Unit]]:
    """The order of a later plan, to which what this one starts is running work like any other."""
    plain = [((1, *rank[1:]), unit) for rank, unit in ranked]
    plain.sort(key=lambda pair: (pair[0], pair[1].cost))
    return plain


def least_sets(cluster: Cluster, ranked: Ranked, rights: Rights, target: Target, jobs: Units) -> list[Found]:
    """The least set that makes room in a slice; where it crosses a line, before it the least that crosses none."""
    found = search(cluster, ranked, rights, target, jobs)
    if found is None or not found.units:
        return []
    found.crosses = rights.crosses(found)
    if not found.crosses:
        return [found]
    other = search(cluster, ranked, rights.crossing_none(), target, jobs)
    return [found] if other is None else [other, found]


def search(cluster: Cluster, ranked: Ranked, rights: Rights, target: Target, jobs: Units) -> Found | None:
    """The units to take, in order; `ranked` has them with their category, sorted by it."""
    everywhere = bool(target.short) or (target.low == 0 and target.high == cluster.grid.size and target.flags is None)
    useful = ranked if everywhere else [pair for pair in ranked if _useful(pair[1], target)]
    if target.fits is not None and target.lacking > 0 and most_freed_by([unit for _, unit in useful]) < target.lacking:
        return None
    for _ in range(ROUNDS):
        counter = None if target.fits is not None else Counter(cluster, target)
        taken = _smallest_single(cluster, useful, rights, target, counter) or _collect(cluster, useful, rights, target, counter, jobs)
        if taken is None:
            return None
        needed = _give_back(taken, target, counter)
        if not needed or not cluster.forms.elastic:
            return _found(needed, ranked, rights, target)
        kept = _from_the_top(cluster, needed, rights, target, jobs)
        whole = None if kept is None else complete(kept, jobs)
        # Surplus goes first, and may leave too little above the line for the minima.
        if whole is not None and (whole is kept or Together(rights).may_grow_by(whole)):
            return _found(whole, ranked, rights, target)
        worst = next(unit for unit in reversed(needed) if _takes_others_along(unit, needed, jobs))
        useful = [pair for pair in useful if pair[1] is not worst]  # with what goes along it is illegal, or makes no room
    return None


def _takes_others_along(unit: Unit, needed: Sequence[Unit], jobs: Units) -> bool:
    """Whether other units of its job go with it, as they are kept less long."""
    others = [one for one in jobs.units_of(unit.work.order) if one.surplus and one not in needed]
    role, index = unit.seats[0].role, unit.index
    return any(not unit.surplus or (one.seats[0].role == role and one.index > index) for one in others)


def _found(kept: list[Unit], units: Ranked, rights: Rights, target: Target) -> Found:
    giver = cache(rights.giver)
    charged: dict[int, int] = {}
    for unit in kept:
        place = giver(unit.leaf)[0]
        charged[place] = charged.get(place, 0) + unit.milli
    return Found(kept, charged, target.low, target.high, units)


def _from_the_top(cluster: Cluster, needed: list[Unit], rights: Rights, target: Target, jobs: Units) -> list[Unit] | None:
    """The units needed where a lower index is kept longest: as many steps from the top of a role, or also all above those that are needed."""
    lowest: dict[tuple[int, int], list[Unit]] = {}
    whole = {unit.work.order for unit in needed if not unit.surplus}
    for unit in needed:
        if unit.surplus and unit.work.order not in whole:
            lowest.setdefault((unit.work.order, unit.seats[0].role), []).append(unit)
    if not lowest:
        return needed
    swapped, closed = set(needed), set(needed)
    for (order, role), mine in lowest.items():
        steps = [unit for unit in jobs.units_of(order) if unit.surplus and unit.seats[0].role == role]
        steps.sort(key=lambda unit: -unit.index)
        swapped.difference_update(mine)
        swapped.update(steps[: len(mine)])
        closed.update(steps[: 1 + max(steps.index(unit) for unit in mine)])
    if len(closed) == len(needed):
        return needed
    for chosen in (swapped,) if target.growth else (swapped, closed):
        units = sorted(chosen, key=lambda unit: unit.key)
        if Together(rights).may_grow_by(units) and _enough(cluster, units, target):
            return units
    return None


def _enough(cluster: Cluster, units: Sequence[Unit], target: Target) -> bool:
    if target.fits is not None:
        return target.fits(units)
    return Counter(cluster, target).change(units, 1)


def complete(kept: list[Unit], jobs: Units) -> list[Unit]:
    """A job whose minimum goes takes all its surplus with it."""
    whole = {unit.work.order for unit in kept if not unit.surplus and unit.form.elastic}
    if not whole:
        return kept
    have = {id(unit) for unit in kept}
    more = [unit for order in sorted(whole) for unit in jobs.units_of(order) if id(unit) not in have]
    return kept + more if more else kept


class Counter:
    """How many workers of a plain shape fit into a slice while units are taken and given back."""

    def __init__(self, cluster: Cluster, target: Target) -> None:
        self.target = target
        self.count, self.gpus, self.cpus, self.memory = target.count, target.gpus, target.cpus, target.memory
        self.soon, self.usable, self.crowd = cluster.fleet.soon, cluster.grid.usable, target.crowd
        assert target.allowed is not None
        if target.room < 0:
            target.room = self.soon.slots_in(target.gpus, target.cpus, target.memory, target.allowed, target.low, target.high)
        self.begin_anew()

    def begin_anew(self) -> None:
        self.free: dict[int, list[int]] = {}
        self.gone: dict[tuple[int, int], int] = {}  # of a shared GPU, how many of its tenants
        self.total = self.target.room
        self.short = [list(part) for part in self.target.short]

    def change(self, units: Iterable[Unit], sign: int) -> bool:
        """Take units (1) or give them back (-1); whether there is enough then."""
        free, usable, asked, cpus_asked, memory_asked, crowd = self.free, self.usable, self.gpus, self.cpus, self.memory, self.crowd
        for unit in units:
            for part in self.short:
                if part[0] <= unit.leaf < part[1]:
                    part[2] -= sign * unit.milli
            for _, _, node, mask, cpus, memory, _, parts in unit.seats:
                state = free.get(node) or self._begin(node)
                if not state[4]:
                    continue
                whole = (mask & usable[node]).bit_count() + (self._emptied(node, parts, sign) if parts else 0)
                gpus = state[0] = state[0] + sign * whole
                room = gpus // asked if asked else 10**6
                if node in crowd:
                    state[5] -= sign * (unit.work in crowd[node])
                    room = 0 if state[5] else room
                if cpus_asked:
                    left = state[1] = state[1] + sign * cpus
                    if left < room * cpus_asked:
                        room = left // cpus_asked if left > 0 else 0
                if memory_asked:
                    left = state[2] = state[2] + sign * memory
                    if left < room * memory_asked:
                        room = left // memory_asked if left > 0 else 0
                if room != state[3]:
                    self.total += room - state[3]
                    state[3] = room
        return self.total >= self.count and (not self.short or self.enough)

    def _emptied(self, node: int, parts: Sequence[Part], sign: int) -> int:
        """How many shared GPUs their last tenant leaves, or their first one comes back to. One that is split into instances stays so."""
        emptied = 0
        for part in parts:
            key = (node, part.gpu)
            split, before = self.soon.splits.get(key), self.gone.get(key, 0)
            self.gone[key] = before + sign
            if split is not None and split.mode != "mig" and split.tenants == max(before, before + sign):
                emptied += self.usable[node] >> part.gpu & 1
        return emptied

    def _begin(self, node: int) -> list[int]:
        """GPUs, processors, memory and room for workers of a node as it is; whether it may serve; and how many workers are not to be neighbours."""
        target, soon = self.target, self.soon
        assert target.allowed is not None
        serves = target.low <= node < target.high and bool(target.allowed[node])
        crowd = sum(self.crowd[node].values()) if node in self.crowd else 0
        room = soon.room_on(node, self.gpus, self.cpus, self.memory) if serves and not crowd else 0
        state = self.free[node] = [soon.count[node], soon.cpus[node], soon.memory[node], room, serves, crowd]
        return state

    def needs(self, unit: Unit) -> bool:
        """Whether a unit on one node surely can't be given back: a bound by GPUs alone."""
        if len(unit.seats) != 1 or not self.gpus:
            return False
        seat = unit.seats[0]
        state = self.free[seat.node]
        if not state[4]:
            return False
        left = (state[0] - (seat.mask & self.usable[seat.node]).bit_count()) // self.gpus
        return left < state[3] and self.total - state[3] + left < self.count

    @property
    def enough(self) -> bool:
        return self.total >= self.count and (not self.short or all(part[2] <= 0 for part in self.short))


def _useful(unit: Unit, target: Target) -> bool:
    """Whether a unit stands where the job could run: the rest would be taken in vain."""
    low, high, flags = target.low, target.high, target.flags
    return any(low <= seat.node < high and (flags is None or flags[seat.node]) for seat in unit.seats)


def _collect(cluster: Cluster, units: Ranked, rights: Rights, target: Target, counter: Counter | None, jobs: Units) -> list[Unit] | None:
    """Add legal units in order until the job fits."""
    giver = cache(rights.giver)
    charged: dict[int, int] = {}
    taken: list[Unit] = []
    counted, refused = 0, False
    lacking = 1000 * target.lacking  # before so much comes free, nothing is counted
    for _, unit in units:
        milli = unit.milli
        place, until, most = giver(unit.leaf)
        before = charged.get(place, 0)
        if before >= until or before + milli > most:
            refused = True
            continue
        charged[place] = before + milli
        taken.append(unit)
        lacking -= 1000 * most_freed_by((unit,)) if unit.form.parted else milli
        if counter is not None and lacking <= 0:
            if counter.change(taken[counted:], 1):
                return taken
            counted = len(taken)
    if counter is not None:
        counter.begin_anew()
        if refused and len(units) <= FEW:
            return _least_set(units, rights, target, counter)
        one_by_one = bool(target.crowd) or jobs.parted  # on a node where a GPU comes free only when several have left it
        if refused and target.gpus > 1 and not target.short and not jobs.parted and _could_clear(cluster, units, rights, target):
            found = _collect_by_node(cluster, units, rights, target, counter)
            if found is not None or not one_by_one:
                return found
        if refused and one_by_one:
            counter.begin_anew()
            alone = replace(target, fits=lambda some: Counter(cluster, target).change(some, 1))
            found = _collect_on_one_node(units, rights, alone)
            counter.change(found or (), 1)
            return found
        return None
    if target.fits is None:
        return None
    return _shortest(taken, target.fits) or (_collect_on_one_node(units, rights, target) if refused else None)


def _could_clear(cluster: Cluster, units: Ranked, rights: Rights, target: Target) -> bool:
    """A bound by node: what may be taken whatever else goes is as good as idle, and the rest frees no more than may be taken of all of it."""
    assert target.allowed is not None
    grid, here, gpus = cluster.grid, slice(target.low, target.high), target.gpus
    idle, largest, budgets, giver = cluster.fleet.soon.count_np.copy(), dict[int, int](), dict[int, int](), cache(rights.giver)
    for _, unit in units:
        leaf = unit.leaf
        if giver(leaf)[1] != ANY:
            if unit.milli > largest.get(leaf, 0):
                largest[leaf] = unit.milli
            continue
        for seat in unit.seats:
            idle[seat.node] += (seat.mask & grid.usable[seat.node]).bit_count()
    for leaf, milli in largest.items():  # the last unit, and the largest, is taken while less than that was taken before it
        place, until, most = giver(leaf)
        budgets[place] = max(budgets.get(place, 0), min(most, until - 1 + milli))
    allowed = target.allowed[here] > 0
    idle, usable = idle[here][allowed], ints(grid.usable_count)[here][allowed]
    missing = target.count - int((idle // gpus).sum())
    lacking = np.sort((gpus - idle % gpus)[idle // gpus < usable // gpus])
    return 1000 * (int(lacking[: max(0, missing)].sum()) + gpus * max(0, missing - len(lacking))) <= sum(budgets.values())


def _least_set(units: Ranked, rights: Rights, target: Target, counter: Counter) -> list[Unit] | None:
    """Where only so much may be taken, it must not be taken in vain: of all sets of a few units that make room, the one that ranks least."""
    best = min(
        _sets([unit for _, unit in units], rights, counter, []), key=lambda some: Found(some, {}, target.low, target.high, units).rank(), default=None
    )
    counter.change(best or (), 1)
    return best


def _sets(units: Sequence[Unit], rights: Rights, counter: Counter, chosen: list[Unit]) -> Iterator[list[Unit]]:
    """Those that may be taken together with the chosen ones and make room with them, where the last of them is needed for it."""
    for at, unit in enumerate(units):
        some = [*chosen, unit]
        if Together(rights).may_grow_by(some):  # else nothing that holds them may be taken
            if counter.change((unit,), 1):
                yield some
            else:
                yield from _sets(units[at + 1 :], rights, counter, some)
            counter.change((unit,), -1)


def most_freed_by(units: Sequence[Unit]) -> int:
    """A bound: how many GPUs become idle without the units. Whoever leaves a part of a GPU may leave the whole."""
    leave = [seat for unit in units for seat in (unit.seats if unit.surplus else unit.work.seats)]
    return sum([seat.mask.bit_count() + len(seat.parts) for seat in leave])


def fewest(taken: Sequence[T], fits: Callable[[Sequence[T]], bool]) -> list[T]:
    """What is left if each unit without which the job still fits is given back, last taken first. More room never hurts, so as many as can go
    together go one after the other as well, and are found by doubling and halving."""
    kept, end = list(taken), len(taken)  # what stands from `end` on is needed
    while end:
        gone, bad, step = 0, end + 1, 1  # so many before `end` can go, so many can't
        while bad - gone > 1:
            tried = min(gone + step, (gone + bad) // 2 if bad <= end else end)
            if fits([*kept[: end - tried], *kept[end:]]):
                gone, step = tried, 2 * step
            else:
                bad, step = tried, 1 << 60
        del kept[end - gone : end]
        end = max(0, end - gone - 1)
    return kept


def _shortest(taken: list[Unit], fits: Callable[[Sequence[Unit]], bool]) -> list[Unit] | None:
    """The fewest units from the front that make room. More room never hurts, so they can be found by halving."""
    if not taken or not fits(taken):
        return None
    return taken[: 1 + bisect_left(range(1, len(taken)), True, key=lambda most: fits(taken[:most]))]


def _collect_on_one_node(units: Ranked, rights: Rights, target: Target) -> list[Unit] | None:
    """What to take where only trying tells whether the job fits: all of it from one node, the one whose first unit ranks least."""
    assert target.fits is not None
    here: dict[int, list[Unit]] = {}
    charged: dict[tuple[int, int], int] = {}
    for _, unit in units:
        giver = rights.giver(unit.leaf)
        for node in sorted({seat.node for seat in unit.seats}):
            if target.low <= node < target.high and (node in here or len(here) < MOST_NODES):
                before = charged.get((node, giver.place), 0)
                if giver.gives(unit.milli, before):
                    charged[node, giver.place] = before + unit.milli
                    here.setdefault(node, []).append(unit)
    return next((found for mine in here.values() if (found := _shortest(mine, target.fits)) is not None), None)


Here = tuple[int, tuple[int, ...], Unit]  # what a unit frees on a node; category
Slot = tuple[tuple[int, ...], int, int, int, list[Unit]]  # what the node has cost with it: category, milli-GPU, lost work; node, units


def _collect_by_node(cluster: Cluster, units: Ranked, rights: Rights, target: Target, counter: Counter) -> list[Unit] | None:
    """Where only so much may be taken, it must not be taken here and there: clear the nodes that cost least, one worker's room at a time. Where that
    has been used up before the job fits, the search goes on behind the first unit that was taken."""
    usable, low, high, flags = cluster.grid.usable, target.low, target.high, target.flags
    here: dict[int, list[Here]] = {node: [] for node in range(low, high) if flags is None or flags[node]}
    for rank, unit in units:
        for _, _, node, mask, _, _, _, _ in unit.seats:
            if (mine := here.get(node)) is not None:
                count = (mask & usable[node]).bit_count()
                if mine and mine[-1][2] is unit:
                    count += mine.pop()[0]
                mine.append((count, rank, unit))
    slots = {node: [*_slots(cluster, target.gpus, node, mine)] for node, mine in here.items()}
    for _ in range(ROUNDS):
        taken = _clear(slots, rights, counter)
        if counter.enough:
            return taken
        if not taken:
            return None
        counter.begin_anew()
        for node in {seat.node for seat in taken[0].seats if seat.node in here}:
            here[node] = [one for one in here[node] if one[2] is not taken[0]]
            slots[node] = [*_slots(cluster, target.gpus, node, here[node])]
    return None


def _clear(slots: dict[int, list[Slot]], rights: Rights, counter: Counter) -> list[Unit]:
    """The units of the slots that cost least, until the job fits or nothing more may be taken; each node's slots one after the other."""
    heap = [(*mine[0][:4], 0) for mine in slots.values() if mine]
    heapify(heap)
    together = Together(rights)
    taken: dict[Unit, None] = {}
    while heap and not counter.enough:
        *_, node, at = heappop(heap)
        fresh = [unit for unit in slots[node][at][4] if unit not in taken]
        if not together.may_grow_by(fresh):
            continue
        taken.update(dict.fromkeys(fresh))
        counter.change(fresh, 1)
        if at + 1 < len(slots[node]):
            heappush(heap, (*slots[node][at + 1][:4], at + 1))
    return list(taken)


class Together:
    """Units that may be taken together: surplus first, then minima, smaller first, so that only the last leaves its node below the line."""

    def __init__(self, rights: Rights) -> None:
        self._giver = cache(rights.giver)
        self._charged: dict[int, int] = {}  # by the node that answers
        self._last: dict[int, Unit] = {}  # the others are legal if this one is

    def may_grow_by(self, units: Sequence[Unit]) -> bool:
        """Add them if all are legal together with those before."""
        charged: dict[int, int] = {}
        last: dict[int, Unit] = {}
        leaf = place = -1
        for unit in units:
            if unit.leaf != leaf:
                leaf = unit.leaf
                place = self._giver(leaf)[0]
            if place not in last:
                charged[place], last[place] = self._charged.get(place, 0), self._last.get(place, unit)
            charged[place] += unit.milli
            before = last[place]
            if unit.milli > before.milli if unit.surplus is before.surplus else before.surplus:
                last[place] = unit
        if not all(self._giver(unit.leaf).gives(unit.milli, charged[place] - unit.milli) for place, unit in last.items()):
            return False
        self._charged.update(charged)
        self._last.update(last)
        return True


def _slots(cluster: Cluster, gpus: int, node: int, here: Sequence[Here]) -> Iterator[Slot]:
    """The units of a node that make room for one worker more after those before, each time, and what all of them cost."""
    idle = cluster.fleet.soon.count[node]
    goal = (idle // gpus + 1) * gpus
    worst: tuple[int, ...] = ()
    milli = lost = 0
    mine: list[Here] = []
    for one in here:
        mine.append(one)
        idle += one[0]
        while idle >= goal:
            spared = _not_needed(mine, idle - goal) if idle > goal else []
            needed = [one for one in mine if one not in spared] if spared else mine
            worst = max(worst, needed[-1][1])
            for _, _, gone in needed:
                milli += gone.milli
                lost += gone.lost
            yield worst, milli, lost, node, [gone for _, _, gone in needed]
            mine = spared
            goal = ((idle - sum([count for count, _, _ in spared])) // gpus + 1) * gpus


def _not_needed(mine: Sequence[Here], most: int) -> list[Here]:
    """What can be given back, last taken first, where so many GPUs more than needed come free."""
    spared = []
    for one in reversed(mine):
        if one[0] <= most:
            most -= one[0]
            spared.append(one)
    return spared[::-1]


def _smallest_single(cluster: Cluster, units: Ranked, rights: Rights, target: Target, counter: Counter | None) -> list[Unit]:
    """If one unit of the best category suffices by itself: the smallest such."""
    best: Unit | None = None
    giver, first = cache(rights.giver), None
    short = target.count - counter.total if counter is not None else 0
    least = max([milli for _, _, milli in target.short], default=0)  # below a node that is at its limit
    each = cluster.grid.most_gpus // target.gpus if target.gpus else ANY  # workers that a node has room for at most
    for rank, unit in units:
        if first is not None and rank is not first and rank != first:
            break
        if first is None:
            if not giver(unit.leaf).gives(unit.milli):
                continue
            first = rank
        if unit.milli < least or (best is not None and unit.milli >= best.milli) or short > each * len(unit.seats):
            continue
        if giver(unit.leaf).gives(unit.milli) and _enough(cluster, [unit], target):
            best = unit
    if best is not None and counter is not None:
        counter.change((best,), 1)
    return [] if best is None else [best]


def _give_back(taken: list[Unit], target: Target, counter: Counter | None) -> list[Unit]:
    """Last taken first, give back each unit without which the job still fits."""
    if counter is None:
        assert target.fits is not None
        return fewest(taken, target.fits)
    needed = []
    for unit in reversed(taken):
        if counter.needs(unit):
            needed.append(unit)
        elif not counter.change((unit,), -1):
            counter.change((unit,), 1)
            needed.append(unit)
    needed.reverse()
    return needed
