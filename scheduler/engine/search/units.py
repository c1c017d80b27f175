"""Who could give something back: the minimum of a gang, or a step of an elastic job's surplus, in the order in which it is tried."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from ..model.values import Job, Preemptible
from ..state.cluster import Cluster
from ..state.fleet import Seat
from ..state.grid import Ints
from ..state.standing import Standing
from ..state.tree import Division
from ..state.work import Work
from .columns import WIDE, Columns, ints

Key = tuple[bool, bool, int, int, int, int, int, str, int, int]
Protection = tuple[int, int, int, int, str, bool, int]

T = TypeVar("T")


class Unit:
    """What is taken as one, with its place in the order in which units are tried."""

    __slots__ = ("_key", "_protection", "began", "fresh", "index", "leaf", "lost", "milli", "seats", "surplus", "work")

    def __init__(self, work: Work, seats: tuple[Seat, ...], milli: int, surplus: bool, index: int, now: int) -> None:
        self.work = work
        self.seats = seats
        self.milli = milli
        self.surplus = surplus
        self.index = index  # of its highest worker: a lower one is kept longest
        self.leaf = work.charged_leaf
        self._key: Key | None = None
        self._protection: Protection | None = None
        if work.moved:
            self.fresh = False
            self.lost, self.began = lost_since(work.job, milli, now, begun=now), now  # as the next plan would see it
        elif work.evicted or not work.first_seats:
            self.fresh = not work.firm  # nobody has begun to work here, and nothing says that it is to stay
            self.lost, self.began = 0, now if work.firm else begin_of(work.job, now)
        else:
            self.fresh = False
            job = work.job
            started = job.run.started
            if started is None:
                self.lost, self.began = 0, begin_of(job, now)
            else:
                self.lost, self.began = lost_since(job, milli, now), started

    @property
    def key(self) -> Key:
        if self._key is None:
            kind = self.work.kind
            job, role = self.work.job, self.seats[0].role if self.seats else 0
            youngest = (-self.began, -job.submitted)
            self._key = (not self.fresh, not self.surplus, kind.class_rank, kind.priority, self.lost, *youngest, job.name, -self.index, role)
        return self._key

    @property
    def protection(self) -> Protection:
        """Its place where work is lined up at a guarantee."""
        if self._protection is None:
            kind, name = self.work.kind, self.work.job.name
            rank = _PROTECTION[kind.preemptible]
            self._protection = (rank, -kind.class_rank, -kind.priority, self.began, name, self.surplus, self.index)
        return self._protection

    @property
    def level(self) -> tuple[int, int]:
        return self.work.form.level


def stands_by_plan(work: Work) -> bool:
    """Whether nobody has begun to work where it stands, and nothing says that it is to stay there."""
    return (work.evicted or not work.first_seats) and not work.firm and not work.moved


def lost_work(work: Work, milli: int, now: int) -> int:
    """GPU-milliseconds lost by an eviction now: since the last complete checkpoint or the start, plus saving and restoring."""
    if work.fresh or work.evicted:
        return 0
    return lost_since(work.job, milli, now)


def begin_of(job: Job, now: int) -> int:
    """Since when it runs. Who was only promised places, or is starting in them, begins now."""
    run = job.run
    if run.started is None:
        return run.since if run.since is not None and run.state == "running" else now
    return run.started


def lost_since(job: Job, milli: int, now: int, begun: int | None = None) -> int:
    """The same from its start on, or from a later begin."""
    since = job.run.started if begun is None else begun
    if since is None:
        return 0
    checkpoint = job.checkpoint
    if checkpoint is None:
        return milli * (now - since) // 1000 if now > since else 0
    last = checkpoint.last
    if last is not None and last > since:
        since = last
    return milli * ((now - since if now > since else 0) + checkpoint.save_ms + checkpoint.restore_ms) // 1000


def _key(unit: Unit) -> Key:
    return unit.key


def _are_whole(cluster: Cluster) -> bool:
    """Whether every job is one unit, and no window lasts."""
    return not (cluster.forms.elastic or cluster.forms.parted or cluster.windows.lasting)


class Units:
    """All units of the cluster in the order in which they are tried, kept up to date job by job."""

    def __init__(self, cluster: Cluster, standing: Standing | None = None) -> None:
        """With who stands below each leaf at hand, only the units of leaves that are asked for are made, as long as every job is one unit."""
        self.cluster = cluster
        self._standing = standing
        self._some: dict[int, list[Unit]] | None = None  # by leaf, where only these were made so far
        self._surplus = self._parted = 0  # how many units are surplus, and how many hold parts of GPUs
        self._freeable: Ints | None = None
        self._kept: dict[tuple[object, ...], tuple[int, Any]] = {}
        self._changes = 0
        self._changed: dict[int, int] = {}  # with which of all changes the units below a node of the tree were changed last
        self._columns: Columns | None = None
        self._all: list[Unit] = []
        self._of_work: dict[int, list[Unit]] = {}
        self._by_leaf: dict[int, list[Unit]] = {}
        self._alone = False  # whether the columns alone are known
        self._rows: dict[int, int] | None = None  # of them, by order
        if standing is not None and _are_whole(cluster):
            self._some = {}
        else:
            self._make_all()

    def whole(self) -> "Units":
        """The same with the units of all leaves at hand."""
        if self._some is not None:
            self._make_all()
        return self

    def _make_all(self) -> None:
        cluster, self._some = self.cluster, None
        self._kept.clear()
        works = [work for work in cluster.works if work.seats and not work.stale]
        if cluster.forms.elastic or cluster.forms.parted or len(works) < WIDE:
            self._put_in_order([unit for work in works for unit in self._of(work)])
            self._group()
            for unit in self._all:
                self._count(unit, 1)
        else:
            self._columns = columns_of(works, cluster.grid.usable, cluster.now, changed=bool(cluster.journal))
            self._alone = True

    def _group(self) -> None:
        for unit in self._all:
            self._of_work.setdefault(unit.work.order, []).append(unit)
            self._by_leaf.setdefault(unit.leaf, []).append(unit)
        for mine in self._of_work.values():
            if len(mine) > 1:
                mine.sort(key=_by_role)

    def _one_by_one(self) -> None:
        """Go on with units where columns were enough so far."""
        if self._alone:
            assert self._columns is not None
            self._alone, self._rows = False, None
            self._all = list(self._columns.units)
            self._group()

    @property
    def all(self) -> list[Unit]:
        self.whole()._one_by_one()
        return self._all

    @all.setter
    def all(self, units: list[Unit]) -> None:
        self._all = units

    @property
    def of_work(self) -> dict[int, list[Unit]]:
        self.whole()._one_by_one()
        return self._of_work

    @property
    def _leaves(self) -> dict[int, list[Unit]]:
        self.whole()._one_by_one()
        return self._by_leaf

    def _put_in_order(self, units: list[Unit]) -> None:
        self._all = sorted(units, key=_key) if len(units) < WIDE else []
        self._columns = None
        if len(units) >= WIDE:
            self._columns = Columns(units, self.cluster.grid.usable).in_order()
            self._all = list(self._columns.units)

    @property
    def columns(self) -> Columns:
        if self._columns is None:
            self._columns = Columns(self.all, self.cluster.grid.usable)
        return self._columns

    def wide(self, places: Sequence[int]) -> bool:
        """Whether so many units stand below these nodes of the tree that looking at them by columns pays."""
        tree = self.cluster.tree
        if self._some is not None:
            assert self._standing is not None
            # Where nobody has asked who stands below a leaf, columns of all of them are made sooner.
            asked = (leaf for place in places for leaf in range(place, tree.end[place]))
            if self._standing.begun and sum(len(self._standing.below(leaf)) for leaf in asked) < WIDE:
                return False
            self._make_all()
        if self._alone:
            assert self._columns is not None
            leaf = self._columns.leaf
            count = sum(int(((leaf >= place) & (leaf < tree.end[place])).sum()) for place in places)
            return count >= WIDE
        leaves = self._leaves
        count = sum(len(leaves.get(leaf, ())) for place in places for leaf in range(place, tree.end[place]))
        return count >= WIDE and (self._columns is not None or 2 * count >= len(self.all))

    def _count(self, unit: Unit, sign: int) -> None:
        """Keep the sums over all units up to date: one came (1) or went (-1)."""
        self._surplus += sign * unit.surplus
        if unit.work.form.parted:
            self._parted += sign * any(seat.parts for seat in unit.seats)
        if self._freeable is not None and unit.work.kind.preemptible is not Preemptible.NEVER:
            for seat in unit.seats:
                self._freeable[seat.node] += sign * seat.mask.bit_count()

    def _touch(self, leaf: int) -> None:
        changed = self._changed
        self._changes += 1
        for place in self.cluster.tree.path[leaf]:
            changed[place] = self._changes

    def renew(self, works: dict[int, Work]) -> None:
        """Take up what has changed about some jobs; what was tried and undone has not."""
        works = {order: work for order, work in works.items() if not self._is_known(work)}
        if self._some is not None:
            self._forget(works.values())
            return
        if works:
            self._take_up(works)

    def _forget(self, works: Iterable[Work]) -> None:
        """Make the units of these jobs' leaves anew when somebody asks for them."""
        assert self._some is not None
        for leaf in {work.home for work in works}:
            self._some.pop(leaf, None)
            self._touch(leaf)

    def _take_up(self, works: dict[int, Work]) -> None:
        self._one_by_one()
        self._columns = None
        if len(works) > 32 + len(self.all) // 32:
            self._renew_many(works)
            return
        for order in sorted(works):
            work = works[order]
            for unit in self.of_work.pop(order, ()):
                _remove(self.all, unit)
                _remove(self._leaves[unit.leaf], unit)
                self._count(unit, -1)
                self._touch(unit.leaf)
            if work.seats and not work.stale:
                units = self.of_work[order] = self._of(work)
                for unit in units:
                    insort(self.all, unit, key=_key)
                    insort(self._leaves.setdefault(unit.leaf, []), unit, key=_key)
                    self._count(unit, 1)
                    self._touch(unit.leaf)

    def _is_known(self, work: Work) -> bool:
        """Whether its units are still those that were made of it."""
        if self._some is not None:
            mine = [unit for unit in self._some.get(work.home, ()) if unit.work is work]
            if work.home not in self._some or not work.seats or work.stale:
                return not mine
            return bool(mine) and mine[0].fresh == stands_by_plan(work) and mine[0].seats == work.seats
        if self._alone:
            assert self._columns is not None
            if self._rows is None:
                self._rows = {each.order: row for row, each in enumerate(self._columns.works)}
            row = self._rows.get(work.order)
            if row is None or not work.seats or work.stale:
                return row is None and not (work.seats and not work.stale)
            columns = self._columns
            same = columns.leaf[row] == work.charged_leaf and columns.fresh[row] == stands_by_plan(work)
            return bool(same) and columns.held_by[row] == work.seats
        units = self.of_work.get(work.order)
        if not work.seats or work.stale:
            return not units
        if not units or units[-1].leaf != work.charged_leaf or units[-1].fresh != stands_by_plan(work):
            return False
        if len(units) == 1:
            return units[0].seats == work.seats
        return sorted(seat for unit in units for seat in unit.seats) == sorted(work.seats)

    def _renew_many(self, works: dict[int, Work]) -> None:
        leaves: set[int] = set()
        for order, work in works.items():
            gone = self.of_work.pop(order, ())
            come: list[Unit] = []
            if work.seats and not work.stale:
                come = self.of_work[order] = self._of(work)
            for units, sign in ((gone, -1), (come, 1)):
                for unit in units:
                    leaves.add(unit.leaf)
                    self._count(unit, sign)
        kept = [unit for unit in self.all if unit.work.order not in works]
        fresh = [unit for order in sorted(works) for unit in self.of_work.get(order, ())]
        if len(fresh) > 64:
            self._put_in_order(kept + fresh)
        else:
            for unit in fresh:
                insort(kept, unit, key=_key)
            self.all = kept
        regrouped: dict[int, list[Unit]] = {leaf: [] for leaf in sorted(leaves)}
        for unit in self.all:
            if unit.leaf in regrouped:
                regrouped[unit.leaf].append(unit)
        self._leaves.update(regrouped)
        for leaf in regrouped:
            self._touch(leaf)

    def _of(self, work: Work) -> list[Unit]:
        now = self.cluster.now
        if not work.form.elastic or work.order in self.cluster.made_whole or work.repaired:
            return [Unit(work, work.seats, work.milli, False, 0, now)]
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

    def units_of(self, order: int) -> list[Unit]:
        if self._some is not None:
            return [unit for unit in self.of_leaf(self.cluster.works[order].home) if unit.work.order == order]
        return self.of_work.get(order, [])

    @property
    def parted(self) -> bool:
        """Whether anyone holds parts of GPUs."""
        return self._parted > 0

    @property
    def surplus(self) -> list[Unit]:
        return [unit for unit in self.all if unit.surplus] if self._surplus else []

    def of_leaf(self, leaf: int) -> list[Unit]:
        if self._some is not None:
            assert self._standing is not None
            if leaf not in self._some:
                now = self.cluster.now
                units = [Unit(work, work.seats, work.milli, False, 0, now) for work in self._standing.below(leaf)]
                self._some[leaf] = sorted(units, key=_key)
            return self._some[leaf]
        return self._leaves.get(leaf, [])

    def below(self, place: int) -> list[Unit]:
        """Units charged at or below a node of the tree, in the order in which they are tried."""
        tree = self.cluster.tree
        if not tree.children[place]:
            return self.of_leaf(place)
        if self._some is not None:
            leaves = [units for leaf in range(place, tree.end[place]) if not tree.children[leaf] and (units := self.of_leaf(leaf))]
        else:
            leaves = [self._leaves[leaf] for leaf in range(place, tree.end[place]) if leaf in self._leaves]
        if len(leaves) == 1:
            return leaves[0]
        key = ("below", place)
        known: list[Unit] | None = self.kept(key, place)
        if known is None:
            known = self.keep(key, place, sorted([unit for units in leaves for unit in units], key=_key))
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
        key = ("borrowed", place, id(division))
        known: frozenset[Unit] | None = self.kept(key, place)
        return self.keep(key, place, self._line_up(place, division)) if known is None else known

    def _line_up(self, place: int, division: Division) -> frozenset[Unit]:
        promised = division.guaranteed[place]
        if promised is None:
            return frozenset()
        members = [unit for unit in self.below(place) if unit.work.quota_type in division.types]
        if promised <= 0:
            return frozenset(members)
        if sum([unit.milli for unit in members]) <= promised:
            return frozenset()
        members.sort(key=attrgetter("protection"))
        sums = [*accumulate(map(attrgetter("milli"), members))]
        return frozenset(members[bisect_right(sums, promised) :])

    @property
    def freeable(self) -> Ints:
        """Whole GPUs per node that would come free if everything that is ever preemptible left."""
        if self._some is not None:  # whoever asks goes on with the units that he has
            assert self._standing is not None
            counts = [0] * self.cluster.grid.size
            for leaf in range(len(self.cluster.tree.names)):
                for node, (gpus, _) in self._standing.on_node(leaf).items():
                    counts[node] += gpus
            return np.array(counts, dtype=np.int64)
        if self._freeable is None:
            if self._columns is not None:
                self._freeable = self.columns.freeable(self.cluster.grid.size)
                return self._freeable
            counts = [0] * self.cluster.grid.size
            for unit in self.all:
                if unit.work.kind.preemptible is not Preemptible.NEVER:
                    for seat in unit.seats:
                        counts[seat.node] += seat.mask.bit_count()
            self._freeable = np.array(counts, dtype=np.int64)
        return self._freeable


def columns_of(works: Sequence[Work], usable: Sequence[int], now: int, *, changed: bool = True) -> Columns:
    """The columns of jobs that are one unit each, in the order in which they are tried; whether the plan may have changed any of them."""
    jobs = [work.job for work in works]
    started = [job.run.started for job in jobs]
    if None in started:
        began = ints([begin_of(job, now) for job in jobs])
        since = ints([now if each is None else each for each in started])  # who has not started loses no work
    else:
        began = since = np.array(started, dtype=np.int64)
    beside: Ints = np.zeros(1, dtype=np.int64)  # what saving and restoring take
    points = [job.checkpoint for job in jobs]
    if points.count(None) < len(points):
        points = [None if each is None else point for each, point in zip(started, points, strict=True)]
        saved = [0 if point is None or point.last is None else point.last for point in points]
        since = np.where(np.array([point is not None and point.last is not None for point in points]), np.maximum(since, ints(saved)), since)
        beside = ints([0 if point is None else point.save_ms + point.restore_ms for point in points])
    milli = ints([work.milli for work in works])
    spans = np.maximum(0, now - since) + beside
    if int(milli.max(initial=0)) * int(spans.max(initial=0)) < 1 << 62:
        lost = milli * spans // 1000
    else:
        lost = ints([each * span // 1000 for each, span in zip(milli.tolist(), spans.tolist(), strict=True)])
    fresh = np.zeros(len(works), dtype=np.bool_)
    for row, work in enumerate(works) if changed else ():
        if work.evicted or work.moved or not work.first_seats:
            unit = Unit(work, work.seats, int(milli[row]), False, 0, now)
            lost[row], began[row], fresh[row] = unit.lost, unit.began, unit.fresh
    return Columns.of_works(works, usable, milli, lost, began, fresh, _unit_of).in_order()


def _unit_of(columns: Columns, row: int) -> Unit:
    """The whole of a job as it stood when the columns were made, wherever it stands now."""
    unit = Unit.__new__(Unit)
    unit.work, unit.seats = columns.works[row], columns.held_by[row]
    leaf, milli, lost, began, fresh = columns.by_unit
    unit.leaf, unit.milli, unit.lost, unit.began, unit.fresh = leaf[row], milli[row], lost[row], began[row], fresh[row]
    unit.surplus, unit.index, unit._key, unit._protection = False, 0, None, None
    return unit


def _by_role(unit: Unit) -> tuple[bool, int, int]:
    """Surplus first, by role and index, as `Units._of` makes them."""
    return (not unit.surplus, unit.seats[0].role if unit.seats else 0, unit.index)


def _remove(units: list[Unit], unit: Unit) -> None:
    place = bisect_left(units, unit.key, key=_key)
    assert units[place] is unit, "two units of one key"
    del units[place]


_PROTECTION = {Preemptible.NEVER: 0, Preemptible.WHEN_BORROWED: 1, Preemptible.ALWAYS: 2}
