"""What is taken as one: the minimum of a gang, or a step of an elastic job's surplus; in the order in which it is tried, inside or borrowed."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Any, TypeVar

from ..rules.times import begin_of, lost_since
from ..state.charged import Standing
from ..state.cluster import Cluster
from ..state.fleet import Seat
from ..state.tree import Division
from ..state.work import Work

Cost = tuple[int, int, int, str, int, int]

T = TypeVar("T")


class Unit:
    """What is taken as one, with its place in the order in which units are tried."""

    __slots__ = ("began", "cost", "form", "fresh", "index", "leaf", "lost", "milli", "quota_type", "seats", "surplus", "work")

    def __init__(self, work: Work, seats: tuple[Seat, ...], milli: int, surplus: bool, index: int, now: int) -> None:
        self.work = work
        self.seats = seats
        self.milli = milli
        self.surplus = surplus
        self.index = index  # of its highest worker: a lower one is kept longest
        self.leaf, self.form, self.quota_type = work.charged_leaf, work.form, work.quota_type
        job, role = work.job, seats[0].role if seats else 0
        stayed = work.stayed
        self.fresh = not stayed and stands_by_plan(work)
        self.lost = lost_since(job, milli, now, job.run.started if stayed else now) if stayed or work.moved else 0
        self.began = begin_of(job, now) if stayed or self.fresh else now
        self.cost: Cost = (self.lost, -self.began, -job.submitted, job.name, -index, role)  # how units of one kind compare

    @property
    def key(self) -> tuple[bool, bool, tuple[int, int], Cost]:
        """How any two units compare."""
        return not self.fresh, not self.surplus, self.form.level, self.cost


def stands_by_plan(work: Work) -> bool:
    """Whether nobody has begun to work where it stands, and nothing says that it is to stay there."""
    return not (work.stayed or work.firm or work.moved)


_cost = attrgetter("cost")
_began = attrgetter("began")
_milli = attrgetter("milli")
_protection = attrgetter("work.job.name", "surplus", "index")  # who stands inside a guarantee first, of one kind that began at once


class Units:
    """The units of each leaf, within a kind in the order in which they are tried: made when somebody asks for them, and kept up to date job by job
    from then on."""

    def __init__(self, cluster: Cluster, standing: Standing) -> None:
        self.cluster = cluster
        self.standing = standing
        self._leaves: dict[int, list[Unit]] = {}
        self._of_work: dict[int, Sequence[Unit]] = {}
        self._kept: dict[tuple[object, ...], tuple[int, Any]] = {}
        self._read = len(cluster.journal)  # so much of it is known
        self._changes = 0
        self._changed: dict[int, int] = {}  # with which of all changes the units below a node of the tree were changed last

    def follow(self) -> None:
        """Take up what has changed about some jobs; what was tried and undone has not."""
        if self._read == len(self.cluster.journal):
            return
        works = {work.order: work for work in self.cluster.journal[self._read :]}
        self._read = len(self.cluster.journal)
        leaves: dict[int, list[Unit]] = {}
        changed = {order: works[order] for order in sorted(works) if not self._is_known(works[order])}
        for order, work in changed.items():
            for unit in self._of_work.pop(order, ())[-1:]:
                leaves.setdefault(unit.leaf, [])
            if work.seats and not work.stale and work.charged_leaf in self._leaves:
                mine = self._of_work[order] = self._of(work)
                leaves.setdefault(work.charged_leaf, []).extend(mine)
        for leaf, come in leaves.items():
            stay = [unit for unit in self._leaves[leaf] if unit.work.order not in changed]
            self._leaves[leaf] = sorted(stay + come, key=_cost)
            self._changes += 1
            for place in (0, *self.cluster.tree.path[leaf]):
                self._changed[place] = self._changes

    def _is_known(self, work: Work) -> bool:
        """Whether its units are still those that were made of it, or nobody has asked for them."""
        units = self._of_work.get(work.order)
        if not work.seats or work.stale:
            return units is None
        if units is None:
            return False
        if units[-1].leaf != work.charged_leaf or units[-1].fresh != stands_by_plan(work):
            return False
        if len(units) == 1:
            return units[0].seats == work.seats
        return sorted(seat for unit in units for seat in unit.seats) == sorted(work.seats)

    def _of(self, work: Work) -> Sequence[Unit]:
        now = self.cluster.now
        if not work.form.elastic or work.order in self.cluster.lessons.made_whole or work.repaired:
            return (Unit(work, work.seats, work.milli, False, 0, now),)
        units: list[Unit] = []
        rest: list[Seat] = []
        grown = work.grown()
        for place, role in enumerate(work.kind.roles):
            seats = [seat for seat in work.seats if seat.role == place and seat not in grown]  # ascending by rank
            rest.extend(seats[: role.least])
            # Who came in this plan is given back first, whatever his rank: a minimum that runs is made of those who do.
            for first, steps in ((0, seats[role.least :]), (role.most, [seat for seat in grown if seat.role == place])):
                for start in range(0, len(steps), role.step):
                    step = tuple(steps[start : start + role.step])
                    units.append(Unit(work, step, sum(seat.milli for seat in step), True, first + step[-1].rank, now))
        units.append(Unit(work, tuple(rest), sum(seat.milli for seat in rest), False, 0, now))
        return units

    def units_of(self, order: int) -> Sequence[Unit]:
        """Those of a job: its surplus first, by role and index."""
        self.of_leaf(self.cluster.works[order].charged_leaf)
        return self._of_work.get(order, ())

    @property
    def parted(self) -> bool:
        """Whether anyone holds parts of GPUs."""
        return self.cluster.forms.parted and any(split.tenants for split in self.cluster.fleet.soon.splits.values())

    @property
    def any_surplus(self) -> bool:
        """Whether anybody has more than its minimum."""
        return self.cluster.forms.elastic and any(unit.surplus for unit in self.below(0))

    def of_leaf(self, leaf: int) -> list[Unit]:
        if (known := self._leaves.get(leaf)) is None:
            units: list[Unit] = []
            for work in self.standing.below(leaf):
                mine = self._of_work[work.order] = self._of(work)
                units += mine
            known = self._leaves[leaf] = sorted(units, key=_cost)
        return known

    def below(self, place: int) -> list[Unit]:
        """Units charged at or below a node of the tree, within a kind in the order in which they are tried."""
        leaves = [units for leaf in range(place, self.cluster.tree.end[place]) if (units := self.of_leaf(leaf))]
        if len(leaves) < 2:
            return leaves[0] if leaves else []
        key = ("below", place)
        known: list[Unit] | None = self.kept(key, place)
        if known is None:
            known = self.keep(key, place, sorted([unit for units in leaves for unit in units], key=_cost))
        return known

    def kept(self, key: tuple[object, ...], place: int) -> Any:
        """What was computed about the units at or below a node of the tree, unless one of them has changed since."""
        known = self._kept.get(key)
        return known[1] if known is not None and known[0] == self._changed.get(place, 0) else None

    def keep(self, key: tuple[object, ...], place: int, value: T) -> T:
        self._kept[key] = (self._changed.get(place, 0), value)
        return value

    def borrowed(self, place: int, division: Division) -> frozenset[Unit]:
        """The units that do not stand inside the guarantee of a node of the tree."""
        known: frozenset[Unit] | None = self.kept(key := ("borrowed", place, division), place)
        if known is not None:
            return known
        if (promised := division.guaranteed[place]) is None:
            return self.keep(key, place, frozenset())
        members = [unit for unit in self.below(place) if unit.quota_type in division.types]
        if promised <= 0:
            return self.keep(key, place, frozenset(members))
        kinds: defaultdict[tuple[int, ...], list[Unit]] = defaultdict(list)
        for unit in members:
            kinds[unit.form.protected].append(unit)
        outside: list[Unit] = []
        for _, alike in sorted(kinds.items()):
            if not outside:
                held = sum([unit.milli for unit in alike])
                alike = _beyond(alike, promised) if held > promised else []
                promised -= held
            outside += alike
        return self.keep(key, place, frozenset(outside))


def _beyond(alike: list[Unit], promised: int) -> list[Unit]:
    """The units of one kind behind the first that hold so much, in line with who stands longest; names tell only those apart who began at once."""
    alike.sort(key=_began)
    line = alike[bisect_right([*accumulate(map(_milli, alike))], promised)].began
    first, end = bisect_left(alike, line, key=_began), bisect_right(alike, line, key=_began)
    alike[first:end] = sorted(alike[first:end], key=_protection)
    return alike[bisect_right([*accumulate(map(_milli, alike))], promised) :]
