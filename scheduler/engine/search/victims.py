"""Who could give something back, and the least that must be taken so that a job fits.

A `Unit` is what is taken as one: a step of an elastic job's surplus, or the minimum of a gang. The search walks the units
in the order of semantics, passes over what is not legal, stops when the job fits and gives back what it did not need.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TypeVar

from ..model.reasons import Reason
from ..model.values import Preemptible
from ..state.cluster import Cluster
from ..state.form import Form
from ..state.grid import Ints
from ..state.work import Work
from .units import Unit, Units

T = TypeVar("T")
Ranked = Sequence[tuple[tuple[int, ...], "Unit"]]
ROUNDS = 4  # in each a unit is left out that leads nowhere: with what goes along it is illegal, or it uses up what may be taken
MOST_NODES = 16  # tried one by one for a job whose room can't be counted
Legal = Callable[["Unit", dict[int, int]], int | None]  # the node that is charged with it, None where it may not be taken


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
    growth: bool = False  # for nobody's minimum: then no surplus goes that does not help
    short: tuple[tuple[int, int, int], ...] = ()  # (first, end, milli-GPU): what must leave below nodes of the tree that are at their limit
    room: int = -1  # how many workers of a plain shape there is room for as it is, once that was counted


class Found:
    """Units that together make room in a slice of the fleet."""

    def __init__(self, units: Sequence[Unit], charged: dict[int, int], low: int, high: int, ranked: Ranked = ()) -> None:
        self.units = units
        self.charged = charged  # milli-GPU taken, by the node of the tree that answers for it
        self.low = low
        self.high = high
        self.ranked = ranked  # among all that could be taken
        self.crosses = False  # whether the node of a victim is left below its line

    def __len__(self) -> int:
        return len(self.units)

    @property
    def works(self) -> list[Work]:
        """The job of each unit."""
        return [unit.work for unit in self.units]

    @property
    def milli(self) -> int:
        return sum(unit.milli for unit in self.units)

    @property
    def lost(self) -> int:
        return sum(unit.lost for unit in self.units)

    @property
    def surplus(self) -> bool:
        """Whether it is the surplus of somebody that goes."""
        return any(unit.surplus for unit in self.units)

    @property
    def fresh(self) -> bool:
        """Whether all of it stands only by this plan."""
        return all(unit.fresh for unit in self.units)

    def takes_fresh_beside(self, leaf: int) -> bool:
        """Whether something goes that the plan has started in another leaf."""
        return any(unit.fresh and unit.leaf != leaf for unit in self.units)

    def minima(self) -> Iterable[tuple[int, Work]]:
        """Leaf and job of the units that are a minimum, one for all of a leaf that ask for the same."""
        distinct: dict[tuple[int, Form], Work] = {}
        leaf, form = -1, None
        for unit in self.units:
            if not unit.surplus and (unit.work.form is not form or unit.leaf != leaf):  # neighbours are often alike
                leaf, form = unit.leaf, unit.work.form
                distinct.setdefault((leaf, form), unit.work)
        return [(leaf, work) for (leaf, _), work in distinct.items()]

    def rank(self) -> tuple[object, ...]:
        """How one set compares with another: the least is taken. That it crosses no line goes before rank."""
        jobs, mine = [work.job for work in self.works], set(self.units)
        worst = max((rank for rank, unit in self.ranked if unit in mine), default=())
        oldest_first = sorted((-job.submitted for job in jobs), reverse=True)
        return (self.crosses, worst, self.milli, self.lost, oldest_first, sorted(job.name for job in jobs), self.low)


class Rights(ABC):
    """By which rules running work may be taken for a job."""

    own = -1  # the leaf that gives surplus back for it beside what is taken

    @abstractmethod
    def legal(self, unit: Unit, taken: dict[int, int]) -> int | None:
        """The node of the tree that is charged with a unit beside what was taken so far; None where it may not be taken."""

    @abstractmethod
    def guard(self, found: Found) -> Reason | None:
        """Why the whole of a set may not be taken."""

    def crosses(self, found: Found) -> bool:
        """Whether a set leaves the node of a victim below its line."""
        return False

    def crossing_none(self) -> "Rights":
        """The same rules for sets that cross no line."""
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
        form = unit.work.form
        same = (form, unit.fresh, unit.surplus, borrowed, unit.milli > large)
        known = alike.get(same)
        if known is None:
            preemptible = form.kind.preemptible
            rank: tuple[int, ...] = ()
            if preemptible is Preemptible.ALWAYS or (preemptible is Preemptible.WHEN_BORROWED and borrowed):
                rank = category(unit, borrowed, large)
            known = alike[same] = (rank, here.setdefault(rank, []))
        if known[0]:  # who may not be put out has none
            known[1].append((known[0], unit))
    return [pair for rank in sorted(here) for pair in here[rank]]


def no_larger(ranked: Ranked, most: int) -> Ranked:
    """Those of the units that are not larger."""
    return [pair for pair in ranked if pair[1].milli <= most] if any(unit.milli > most for _, unit in ranked) else ranked


def has_fresh(ranked: Ranked) -> bool:
    """Whether some of the units stand only by this plan."""
    return any(unit.fresh for _, unit in ranked)


def as_if_running(ranked: Ranked) -> list[tuple[tuple[int, ...], Unit]]:
    """The order of a later plan, to which what this one starts is running work like any other."""
    plain = [((1, *rank[1:]), unit) for rank, unit in ranked]
    plain.sort(key=lambda pair: (pair[0], pair[1].cost))
    return plain


def least_sets(cluster: Cluster, ranked: Ranked, rights: Rights, target: Target, jobs: Units) -> list[Found]:
    """The least set that makes room in a slice; where it crosses a line, before it the least that crosses none."""
    found = search(cluster, ranked, rights.legal, target, jobs)
    if found is None or not found.units:
        return []
    found.crosses = rights.crosses(found)
    if not found.crosses:
        return [found]
    other = search(cluster, ranked, rights.crossing_none().legal, target, jobs)
    return [found] if other is None else [other, found]


def search(cluster: Cluster, ranked: Ranked, legal: Legal, target: Target, jobs: Units) -> Found | None:
    """The units to take, in order; `ranked` has them with their category, sorted by it."""
    useful = ranked if _wanted_everywhere(cluster, target) else [pair for pair in ranked if _useful(pair[1], target)]
    for _ in range(ROUNDS):
        counter = None if target.fits is not None else Counter(cluster, target)
        taken, enough = _smallest_single(useful, legal, target, counter), True
        if not taken:
            taken, enough = _collect(cluster, useful, legal, target, counter)
        if enough:
            needed = _give_back(taken, target, counter)
            kept = needed if target.growth else _with_what_goes_along(cluster, needed, jobs)
            if len(kept) == len(needed) or Together(legal).may_grow_by(kept):
                return _found(kept, ranked, legal, target)
            led_nowhere = next(unit for unit in reversed(needed) if not set(_along(unit, jobs)).issubset(needed))
        elif taken:
            led_nowhere = taken[0]
        else:
            return None
        useful = [pair for pair in useful if pair[1] is not led_nowhere]
    return None


def _along(unit: Unit, jobs: Units) -> list[Unit]:
    """What goes where a unit does: all surplus with a minimum, and of its role the steps above one, as a lower index is kept longer."""
    surplus = [one for one in jobs.units_of(unit.work.order) if one.surplus and one is not unit]
    return [one for one in surplus if one.seats[0].role == unit.seats[0].role and one.index > unit.index] if unit.surplus else surplus


def _with_what_goes_along(cluster: Cluster, needed: list[Unit], jobs: Units) -> list[Unit]:
    if not cluster.forms.elastic:
        return needed
    return [*dict.fromkeys([*needed, *(one for unit in needed if unit.work.form.elastic for one in _along(unit, jobs))])]


def _found(kept: list[Unit], units: Ranked, legal: Legal, target: Target) -> Found:
    by_leaf: dict[int, list[Unit]] = {}
    for unit in kept:
        by_leaf.setdefault(unit.leaf, []).append(unit)
    charged: dict[int, int] = {}
    for mine in by_leaf.values():
        place = legal(mine[0], {})  # one answers for all of a leaf
        if place is not None:
            charged[place] = charged.get(place, 0) + sum([unit.milli for unit in mine])
    return Found(kept, charged, target.low, target.high, units)


class Counter:
    """How many workers of a plain shape fit into a slice while units are taken and given back."""

    def __init__(self, cluster: Cluster, target: Target) -> None:
        self.target = target
        self.count, self.gpus, self.cpus, self.memory = target.count, target.gpus, target.cpus, target.memory
        self.soon, self.usable = cluster.fleet.soon, cluster.grid.usable
        assert target.allowed is not None
        if target.room < 0:
            target.room = self.soon.slots_in(target.gpus, target.cpus, target.memory, target.allowed, target.low, target.high)
        self.begin_anew()

    def begin_anew(self) -> None:
        self.free: dict[int, list[int]] = {}
        self.left: dict[tuple[int, int], int] = {}  # how many tenants of a shared GPU
        self.total = self.target.room
        self.short = [list(part) for part in self.target.short]

    def change(self, unit: Unit, sign: int) -> bool:
        """Take a unit (1) or give it back (-1); whether there is enough then."""
        if self.short:
            for part in self.short:
                if part[0] <= unit.leaf < part[1]:
                    part[2] -= sign * unit.milli
        for _, _, node, mask, cpus, memory, _, parts in unit.seats:
            state = self.free.get(node) or self._begin(node)
            if not state[4]:
                continue
            freed = (mask & self.usable[node]).bit_count()
            if parts:
                freed += sum([self._made_whole(node, part.gpu, sign) for part in parts])
            gpus = state[0] = state[0] + sign * freed
            room = gpus // self.gpus if self.gpus else 10**6
            if self.cpus:
                left = state[1] = state[1] + sign * cpus
                if left < room * self.cpus:
                    room = left // self.cpus if left > 0 else 0
            if self.memory:
                left = state[2] = state[2] + sign * memory
                if left < room * self.memory:
                    room = left // self.memory if left > 0 else 0
            if room != state[3]:
                self.total += room - state[3]
                state[3] = room
        return self.total >= self.count and (not self.short or self.enough)

    def _made_whole(self, node: int, gpu: int, sign: int) -> int:
        """Whether the last tenant of a shared GPU leaves it, or is the first to stay after all. One that is split into instances stays so."""
        before = self.left.get((node, gpu), 0)
        self.left[node, gpu] = before + sign
        split = self.soon.splits.get((node, gpu))
        whole = split is not None and split.mode != "mig" and split.tenants == max(before, before + sign)
        return self.usable[node] >> gpu & 1 if whole else 0

    def _begin(self, node: int) -> list[int]:
        """GPUs, processors, memory and room for workers of a node as it is; last whether it may serve."""
        target, soon = self.target, self.soon
        assert target.allowed is not None
        serves = target.low <= node < target.high and bool(target.allowed[node])
        room = soon.room_on(node, self.gpus, self.cpus, self.memory) if serves else 0
        state = self.free[node] = [soon.count[node], soon.cpus[node], soon.memory[node], room, serves]
        return state

    def enough_without(self, unit: Unit) -> bool:
        """Whether there is enough with a unit gone: each of its places completes at most one worker more than it holds itself."""
        if self.gpus and not (self.cpus or self.memory):
            most = sum([(seat.mask.bit_count() + len(seat.parts)) // self.gpus + 1 for seat in unit.seats])
            if self.total + most < self.count:
                return False
        enough = self.change(unit, 1)
        self.change(unit, -1)
        return enough

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


def _wanted_everywhere(cluster: Cluster, target: Target) -> bool:
    return bool(target.short) or (target.low == 0 and target.high == cluster.grid.size and target.flags is None)


def _useful(unit: Unit, target: Target) -> bool:
    """Whether a unit stands where the job could run: the rest would be taken in vain."""
    low, high, flags = target.low, target.high, target.flags
    if len(unit.seats) == 1:
        node = unit.seats[0].node
        return low <= node < high and (flags is None or flags[node] != 0)
    if flags is None:
        return any(low <= seat.node < high for seat in unit.seats)
    return any(low <= seat.node < high and flags[seat.node] for seat in unit.seats)


def _collect(cluster: Cluster, units: Ranked, legal: Legal, target: Target, counter: Counter | None) -> tuple[list[Unit], bool]:
    """Add legal units in order until the job fits, else node by node; and whether it does."""
    charged: dict[int, int] = {}
    taken: list[Unit] = []
    refused = 0
    for _, unit in units:
        place = legal(unit, charged)
        if place is None:
            refused += 1
            continue
        charged[place] = charged.get(place, 0) + unit.milli
        taken.append(unit)
        if counter is not None and counter.change(unit, 1):
            return taken, True
    if target.fits is not None:
        found = _shortest(taken, target.fits) or (_collect_on_one_node(units, legal, target) if refused else [])
        return found, bool(found)
    if counter is None or not refused or target.gpus <= 1 or target.short or not _could_suffice(cluster, units, charged, target):
        return [], False
    counter.begin_anew()
    cleared = _clear(cluster, units, legal, target, counter)
    return cleared, counter.enough


def _could_suffice(cluster: Cluster, units: Ranked, charged: dict[int, int], target: Target) -> bool:
    """A bound: who was refused a unit may give less than one unit more, whichever are taken."""
    assert target.allowed is not None
    low, high = target.low, target.high
    idle = int(cluster.fleet.soon.count_np[low:high][target.allowed[low:high] > 0].sum())
    most = sum(charged.values()) + len(charged) * max(unit.milli for _, unit in units)
    return 1000 * idle + most >= 1000 * target.count * target.gpus


def fewest(taken: Sequence[T], fits: Callable[[Sequence[T]], bool]) -> list[T]:
    """What is left if each unit without which the job still fits is given back, last taken first.

    More room never hurts, so as many as can go together go one after the other as well, and are found by doubling and halving.
    """
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


def _shortest(taken: list[Unit], fits: Callable[[Sequence[Unit]], bool]) -> list[Unit]:
    """The fewest units from the front that make room; none where all of them do not. More room never hurts, so they can be found by halving."""
    if not taken or not fits(taken):
        return []
    return taken[: 1 + bisect_left(range(1, len(taken)), True, key=lambda count: fits(taken[:count]))]


def _collect_on_one_node(units: Ranked, legal: Legal, target: Target) -> list[Unit]:
    """The same where only trying tells whether the job fits: what may be taken is taken from one node, the one whose first unit ranks least."""
    assert target.fits is not None
    here: dict[int, list[Unit]] = {}
    charged: dict[int, dict[int, int]] = {}
    for _, unit in units:
        for node in sorted({seat.node for seat in unit.seats}):
            if target.low <= node < target.high and (node in here or len(here) < MOST_NODES):
                taken = charged.setdefault(node, {})
                place = legal(unit, taken)
                if place is not None:
                    taken[place] = taken.get(place, 0) + unit.milli
                    here.setdefault(node, []).append(unit)
    return next((found for mine in here.values() if (found := _shortest(mine, target.fits))), [])


Cost = tuple[tuple[int, ...], int, int]  # category, milli-GPU, lost work


def _clear(cluster: Cluster, units: Ranked, legal: Legal, target: Target, counter: Counter) -> list[Unit]:
    """Where only so much may be taken, it must not be taken here and there: clear the nodes that cost least, room for one worker at a time, until the
    job fits or nothing more may be taken."""
    usable, flags = cluster.grid.usable, target.flags
    idle, here = [*cluster.fleet.soon.count], dict[int, list[tuple[int, tuple[int, ...], Unit]]]()  # the GPUs of each unit on a node; its category
    for rank, unit in units:
        for _, _, node, mask, _, _, _, _ in unit.seats:
            if target.low <= node < target.high and (flags is None or flags[node]):
                gpus, mine = (mask & usable[node]).bit_count(), here.setdefault(node, [])
                if mine and mine[-1][2] is unit:  # another worker of it
                    gpus += mine.pop()[0]
                mine.append((gpus, rank, unit))

    def cheapest(node: int) -> tuple[Cost, list[Unit]] | None:
        """The first units of a node that make room for one worker more, without those that are not needed for it."""
        spare, mine = idle[node] % target.gpus - target.gpus, []
        for one in here[node]:
            mine.append(one)
            spare += one[0]
            if spare >= 0:
                break
        else:
            return None
        for one in mine[::-1] if spare else ():
            if one[0] <= spare:
                mine.remove(one)
                spare -= one[0]
        chosen = [unit for _, _, unit in mine]
        return (max([rank for _, rank, _ in mine]), sum([unit.milli for unit in chosen]), sum([unit.lost for unit in chosen])), chosen

    together, taken = Together(legal), list[Unit]()
    following = {node: cheapest(node) for node in sorted(here)}
    line = [(found[0], node) for node, found in following.items() if found is not None]
    heapify(line)
    while line and not counter.enough:
        _, node = heappop(line)
        found = following[node]
        if found is None or not together.may_grow_by(found[1]):
            continue
        for unit in found[1]:
            taken.append(unit)
            counter.change(unit, 1)
        gone = set(found[1])
        for place in {seat.node for unit in found[1] for seat in unit.seats}.intersection(here):
            idle[place] += sum([gpus for gpus, _, unit in here[place] if unit in gone])
            here[place] = [one for one in here[place] if one[2] not in gone]
            following[place] = cheapest(place)
        if (more := following[node]) is not None:
            heappush(line, (more[0], node))
    return taken


class Together:
    """Units that may be taken together: surplus first, then minima, smaller first, so that only the last leaves its node below the line."""

    def __init__(self, legal: Legal) -> None:
        self.legal = legal
        self._charged: dict[int, int] = {}
        self._last: dict[int, Unit] = {}  # by the node that is charged: the others are legal if this one is

    def may_grow_by(self, units: Sequence[Unit]) -> bool:
        """Add them if all are legal together with those before."""
        charged, last = dict(self._charged), dict(self._last)
        places: dict[int, None] = {}
        for unit in units:
            place = self.legal(unit, {})
            if place is None:
                return False
            places[place] = None
            charged[place] = charged.get(place, 0) + unit.milli
            before = last.get(place)
            if before is None or (not unit.surplus, unit.milli) > (not before.surplus, before.milli):
                last[place] = unit
        if any(self.legal(last[place], {place: charged[place] - last[place].milli}) is None for place in places):
            return False
        self._charged, self._last = charged, last
        return True


def _smallest_single(units: Ranked, legal: Legal, target: Target, counter: Counter | None) -> list[Unit]:
    """If one unit of the best category suffices by itself: the smallest such."""
    best: Unit | None = None
    first: tuple[int, ...] | None = None
    for rank, unit in units:
        if first is not None and rank != first:
            break
        if (best is None or unit.milli < best.milli) and legal(unit, {}) is not None:
            first = rank
            if target.fits([unit]) if target.fits is not None else counter is not None and counter.enough_without(unit):
                best = unit
    if best is not None and counter is not None:
        counter.change(best, 1)
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
        elif not counter.change(unit, -1):
            counter.change(unit, 1)
            needed.append(unit)
    needed.reverse()
    return needed
