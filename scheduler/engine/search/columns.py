"""Units by columns: one array per property, so that hundreds of them are looked at in one step."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from ..model.values import Kind, Preemptible
from ..state.grid import Ints

if TYPE_CHECKING:
    from ..state.fleet import Seat
    from ..state.work import Work
    from .units import Unit

T = TypeVar("T")
Flags = npt.NDArray[np.bool_]
WIDE = 256


def ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def neighbours_alike(keys: Sequence[npt.NDArray[Any]], order: Ints) -> Flags:
    """In an order: whether each but the first is equal to the one before it by all the keys."""
    alike = np.ones(max(0, len(order) - 1), dtype=np.bool_)
    for key in keys:
        ordered = key[order]
        alike &= ordered[1:] == ordered[:-1]
    return alike


def in_order_of(size: int, keys: Sequence[npt.NDArray[Any]]) -> tuple[Ints, Flags]:
    """Rows by these keys, the first of them deciding most, and which but the first are equal to the one before by all of them.

    Rows that are equal in all keys stay in their order. What is the same in every row is left out, and only rows that are equal in the first
    key that is left are sorted by the others.
    """
    keys = [key for key in keys if size and (key != key[0]).any()]
    if not keys:
        return np.arange(size), np.ones(max(0, size - 1), dtype=np.bool_)
    short = keys[0].itemsize < 8
    order = np.argsort(keys[0], kind="stable" if short else None)  # long numbers are sorted sooner where it need not be stable
    alike = neighbours_alike(keys[:1], order)
    if alike.any() and not (short and neighbours_alike(keys[1:], order)[alike].all()):
        tied = np.zeros(size, dtype=np.bool_)
        tied[1:] |= alike
        tied[:-1] |= alike
        rows = order[tied]
        order[tied] = rows[np.lexsort((rows, *[key[rows] for key in reversed(keys)]))]
        alike = neighbours_alike(keys, order)
    return order, alike


def picked(values: Sequence[T], rows: Ints) -> list[T]:
    """The values in these rows, in their order."""
    found: list[T] = np.fromiter(values, dtype=object, count=len(values))[rows].tolist()
    return found


class Picked(Sequence[T]):
    """Values in another order, looked up when they are asked for: of thousands few ever are."""

    def __init__(self, values: Sequence[T], rows: Ints) -> None:
        self.values = values
        self.rows = rows  # of each value its place in `values`

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, row: int) -> T: ...

    @overload
    def __getitem__(self, row: slice) -> list[T]: ...

    def __getitem__(self, row: int | slice) -> T | list[T]:
        if isinstance(row, slice):
            return picked(self.values, self.rows[row])
        return self.values[self.rows[row]]

    def __iter__(self) -> Iterator[T]:
        return iter(picked(self.values, self.rows))


BY_UNIT = ("leaf", "milli", "lost", "began", "surplus", "fresh", "quota_type", "kind", "class_rank", "priority", "preemptible", "seats")
BY_SEAT = ("node", "held", "gpus")


class Columns:
    """Units in the order in which they are tried, one array per property; seats of one unit stand side by side."""

    sole: bool  # whether every unit has one worker, so that its seat stands in the row of the unit

    def __init__(self, units: Sequence["Unit"], usable: Sequence[int]) -> None:
        self.units = units
        self._note_seats([unit.seats for unit in units], usable)
        self._note_works([unit.work for unit in units])
        self.leaf = ints(list(map(attrgetter("leaf"), units)))
        self.milli = ints(list(map(attrgetter("milli"), units)))
        self.lost = ints(list(map(attrgetter("lost"), units)))
        self.began = ints(list(map(attrgetter("began"), units)))
        self.surplus: Flags = np.array(list(map(attrgetter("surplus"), units)), dtype=np.bool_)
        self.fresh: Flags = np.array(list(map(attrgetter("fresh"), units)), dtype=np.bool_)

    @classmethod
    def of_works(cls, works: "Sequence[Work]", usable: Sequence[int], milli: Ints, lost: Ints, began: Ints, fresh: Flags, make: "Make") -> "Columns":
        """Those of jobs that are one unit each; a unit is made when somebody asks for it."""
        new = cls.__new__(cls)
        new._note_seats([work.seats for work in works], usable)
        new._note_works(works)
        new.leaf = ints([work.charged_leaf for work in works])
        new.milli, new.lost, new.began, new.fresh = milli, lost, began, fresh
        new.surplus = np.zeros(len(works), dtype=np.bool_)
        new.any_surplus = False
        new.units = Made(new, make)
        return new

    def _note_works(self, works: "Sequence[Work]") -> None:
        self.works = works
        self.quota_type = ints([work.quota_type for work in works])
        kinds: list[Kind] = [work.kind for work in works]
        codes = {kind: code for code, kind in enumerate(dict.fromkeys(kinds))}
        self.kind = ints([codes[kind] for kind in kinds]) if len(codes) > 1 else np.zeros(len(kinds), dtype=np.int64)
        self.class_rank = ints([kind.class_rank for kind in codes])[self.kind]
        self.priority = ints([kind.priority for kind in codes])[self.kind]
        self.preemptible = ints([kind.preemptible for kind in codes])[self.kind]

    def _note_seats(self, held: "Sequence[tuple[Seat, ...]]", usable: Sequence[int]) -> None:
        self.held_by = held
        seats = [*chain.from_iterable(held)]
        self.sole = len(seats) == len(held) and all(held)
        if self.sole:
            self.seats, self.first = np.ones(len(held), dtype=np.int64), np.arange(len(held))
        else:
            self.seats = ints(list(map(len, held)))
            self.first = np.cumsum(self.seats) - self.seats
        self.node = np.fromiter(map(attrgetter("node"), seats), dtype=np.int64, count=len(seats))
        mask = np.fromiter(map(attrgetter("mask"), seats), dtype=np.uint64, count=len(seats))
        self.held = np.bitwise_count(mask).astype(np.int64)
        self.gpus = np.bitwise_count(mask & np.array(usable, dtype=np.uint64)[self.node]).astype(np.int64)

    def _tail(self, row: int) -> tuple[int, str, int, int]:
        """What tells two units apart that are alike in everything else: submitted last, name, and place in its job."""
        seats = self.held_by[row]
        index = self.units[row].index if self.any_surplus and self.surplus[row] else 0
        job = self.works[row].job
        return -job.submitted, job.name, -index, seats[0].role if seats else 0

    def _by_name(self, rows: Ints, before: Ints) -> bool:
        """Whether rows surely stand by name behind those before them: so do whole jobs that were submitted at once, in their order."""
        if self.any_surplus:
            return False
        in_turn = isinstance(self.units, Made)  # whether the rows stand in the order of jobs
        if not in_turn:
            order = ints([work.order for work in self.works])
            rows_in_turn = order[rows] > order[before]
        else:
            rows_in_turn = rows > before
        if not rows_in_turn.all():
            return False
        submitted = [work.job.submitted for work in self.works]
        pairs = zip(rows.tolist(), before.tolist(), strict=True)
        return all(submitted[row] == submitted[other] for row, other in pairs)

    @cached_property
    def parts(self) -> Ints:
        """Parts of shared GPUs, by seat."""
        return ints([len(seat.parts) for seats in self.held_by for seat in seats])

    @cached_property
    def any_surplus(self) -> bool:
        return bool(self.surplus.any())

    @cached_property
    def any_fresh(self) -> bool:
        return bool(self.fresh.any())

    @cached_property
    def one_kind(self) -> bool:
        """Whether all units are of one kind of job, which then decides about nothing."""
        return not self.kind.any()

    @cached_property
    def most_held(self) -> int:
        """The most GPUs that one worker holds."""
        return int(self.held.max(initial=0))

    def by_standing(self, rows: Ints | slice = slice(None)) -> list[npt.NDArray[Any]]:
        """What the category of a unit begins with, of these rows: nothing that is the same in all of them."""
        return [~flags[rows] for flags, any_set in ((self.fresh, self.any_fresh), (self.surplus, self.any_surplus)) if any_set]

    @cached_property
    def lists(self) -> tuple[list[int], list[int], list[int], list[int]]:
        """First seat and seats by unit, node and usable GPUs by seat, to be read one at a time."""
        return self.first.tolist(), self.seats.tolist(), self.node.tolist(), self.gpus.tolist()

    @cached_property
    def by_unit(self) -> tuple[list[int], list[int], list[int], list[int], list[bool]]:
        """Leaf, milli-GPU, lost work, begin and freshness by unit, to be read one at a time."""
        return self.leaf.tolist(), self.milli.tolist(), self.lost.tolist(), self.began.tolist(), self.fresh.tolist()

    def in_order(self) -> "Columns":
        """The same with the units in the order in which they are tried."""
        kinds = () if self.one_kind else (self.class_rank, self.priority)
        order, same = in_order_of(len(self.works), (*self.by_standing(), *kinds, self.lost, -self.began))
        alike = np.flatnonzero(same)
        if len(alike):  # names are compared only where nothing else tells two units apart
            tied = np.zeros(len(order), dtype=np.bool_)
            tied[alike] = tied[alike + 1] = True
            begins = tied.copy()
            begins[alike + 1] = False  # of every group
            rows = order[tied]
            if not self._by_name(rows[1:][~begins[tied][1:]], rows[:-1][~begins[tied][1:]]):
                tails = [self._tail(row) for row in rows.tolist()]
                rank = np.empty(len(rows), dtype=np.int64)
                rank[sorted(range(len(rows)), key=tails.__getitem__)] = np.arange(len(rows))
                order[tied] = rows[np.lexsort((rank, np.cumsum(begins)[tied]))]
        seats = order if self.sole else self.entries(order)[1]
        other = Columns.__new__(Columns)
        other.works = Picked(self.works, order)
        other.held_by = Picked(self.held_by, order)
        other.units = Made(other, self.units.make) if isinstance(self.units, Made) else picked(self.units, order)
        for name in BY_UNIT:
            setattr(other, name, getattr(self, name)[order])
        for name in BY_SEAT:
            setattr(other, name, getattr(self, name)[seats])
        other.first = np.cumsum(other.seats) - other.seats
        other.any_surplus, other.any_fresh, other.one_kind, other.sole = self.any_surplus, self.any_fresh, self.one_kind, self.sole
        return other

    def works_at(self, rows: Ints) -> "list[Work]":
        """The jobs in these rows, in the order in which the columns were made: they lie side by side there, and thousands are read sooner."""
        works = self.works
        values, places = (works.values, np.sort(works.rows[rows])) if isinstance(works, Picked) else (works, rows)
        return [values[place] for place in places.tolist()]

    def entries(self, rows: Ints) -> tuple[Ints, Ints]:
        """(place in `rows`, seat) of every seat of the units in these rows, in their order."""
        if self.sole:
            return np.arange(len(rows)), rows
        counts = self.seats[rows]
        place = np.repeat(np.arange(len(rows)), counts)
        ends = np.cumsum(counts)
        within = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)
        return place, self.first[rows][place] + within

    def protection_order(self, rows: Ints) -> Ints:
        """The rows as they are lined up at a guarantee: who stands inside it first."""
        kinds = () if self.one_kind else (self.preemptible[rows], -self.class_rank[rows], -self.priority[rows])
        keys = (*kinds, self.began[rows])
        order, alike = in_order_of(len(rows), keys)
        if not alike.any():
            return rows[order]
        works = [*self.works]
        # Minima of the same standing, lost work and age come by name already, as the units themselves do.
        submitted = ints([works[row].job.submitted for row in rows.tolist()])
        alike &= ~neighbours_alike((self.lost[rows], self.surplus[rows], self.fresh[rows], submitted), order) | self.surplus[rows][order][1:]
        if alike.any():  # name, then surplus behind the minimum, then a lower index first
            names = [(works[row].job.name, bool(self.surplus[row]), -self._tail(row)[2]) for row in rows.tolist()]
            rank = np.empty(len(rows), dtype=np.int64)
            rank[sorted(range(len(rows)), key=names.__getitem__)] = np.arange(len(rows))
            order = in_order_of(len(rows), (*keys, rank))[0]
        return rows[order]

    def borrowed(self, first: int, end: int, types: Sequence[int], promised: int | None) -> Flags:
        """Which units do not stand inside a guarantee of the node whose leaves are `first` to `end`."""
        outside = np.zeros(len(self.units), dtype=np.bool_)
        if promised is None:
            return outside
        here = (self.leaf >= first) & (self.leaf < end)
        here &= self.quota_type == types[0] if len(types) == 1 else np.isin(self.quota_type, types)
        if promised <= 0:
            return here
        rows = self.protection_order(np.flatnonzero(here))
        outside[rows[np.cumsum(self.milli[rows]) > promised]] = True
        return outside

    def freeable(self, size: int) -> Ints:
        """Whole GPUs per node that would come free if everything that is ever preemptible left."""
        counts = np.zeros(size, dtype=np.int64)
        leaves = np.repeat(self.preemptible != Preemptible.NEVER, self.seats)
        np.add.at(counts, self.node[leaves], self.held[leaves])
        return counts


Make = Callable[[Columns, int], "Unit"]


class Made(Sequence["Unit"]):
    """The units of columns that were read from jobs, each made when it is first asked for."""

    def __init__(self, columns: Columns, make: "Make") -> None:
        self._columns = columns
        self.make = make
        self._made: dict[int, Unit] = {}

    def __len__(self) -> int:
        return len(self._columns.works)

    @overload
    def __getitem__(self, row: int) -> "Unit": ...

    @overload
    def __getitem__(self, row: slice) -> "list[Unit]": ...

    def __getitem__(self, row: int | slice) -> "Unit | list[Unit]":
        if isinstance(row, slice):
            return [self[each] for each in range(*row.indices(len(self)))]
        unit = self._made.get(row)
        if unit is None:
            unit = self._made[row] = self.make(self._columns, row)
        return unit

    def __iter__(self) -> "Iterator[Unit]":
        columns, made, make = self._columns, self._made, self.make
        columns.works, columns.held_by = [*columns.works], [*columns.held_by]  # each of them is asked for
        return iter([made.get(row) or made.setdefault(row, make(columns, row)) for row in range(len(self))])
