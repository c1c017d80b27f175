"""Units that may be taken, by columns, in the order in which they are tried."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..state.grid import Ints
from .columns import Columns, Flags, in_order_of

if TYPE_CHECKING:
    from .units import Unit

# (first leaf, end, milli-GPU, milli-GPU): so much may be taken below a node of the tree before the next unit is refused, and so much in all
Bound = tuple[int, int, int, int]
UNBOUNDED = 1 << 60


class WideRanking:
    """Units that may be taken, in the order in which they are tried."""

    def __init__(self, columns: Columns, rows: Ints, borrowed: Flags, large: int, bounds: Sequence[Bound]) -> None:
        """`rows` ascend; `borrowed` is over all rows of the columns."""
        self.columns = columns
        self.bounds = tuple(bounds)
        self.large = large
        kinds = () if columns.one_kind else (columns.class_rank[rows], columns.priority[rows])
        keys = (*columns.by_standing(rows), ~borrowed[rows], columns.milli[rows] > large, *kinds)
        order, alike = in_order_of(len(rows), keys)  # within a category the order of units stays
        self.rows: Ints = rows[order]
        changes = np.zeros(len(rows), dtype=np.bool_)
        changes[1:] = ~alike
        self.code: Ints = np.cumsum(changes)
        self.borrowed: Flags = borrowed[self.rows]
        self._pairs: list[tuple[tuple[int, ...], Unit]] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[tuple[tuple[int, ...], "Unit"]]:
        return iter(self.pairs())

    def pairs(self) -> list[tuple[tuple[int, ...], "Unit"]]:
        """The plain form: each unit with its category."""
        if self._pairs is None:
            units = self.columns.units
            self._pairs = [(self.category(place), units[row]) for place, row in enumerate(self.rows.tolist())]
        return self._pairs

    def category(self, place: int) -> tuple[int, ...]:
        columns, row = self.columns, self.rows[place]
        large = bool(columns.milli[row] > self.large)
        kind = columns.works[row].kind
        return (not columns.fresh[row], not columns.surplus[row], not self.borrowed[place], large, kind.class_rank, kind.priority)

    def units_at(self, places: Sequence[int]) -> list["Unit"]:
        units = self.columns.units
        return [units[row] for row in self.rows[places].tolist()] if places else []

    def no_larger(self, most: int) -> "WideRanking":
        """Those of them that are not larger."""
        keep = self.columns.milli[self.rows] <= most
        if keep.all():
            return self
        other = WideRanking.__new__(WideRanking)
        other.columns, other.bounds, other.large, other._pairs = self.columns, self.bounds, self.large, None
        other.rows, other.code, other.borrowed = self.rows[keep], self.code[keep], self.borrowed[keep]
        return other

    def freed(self, size: int) -> dict[int, int]:
        """GPUs by node that they hold, a shared one once for each part."""
        columns = self.columns
        _, seats = columns.entries(self.rows)
        counts = np.zeros(size, dtype=np.int64)
        np.add.at(counts, columns.node[seats], columns.gpus[seats] + columns.parts[seats])
        nodes = np.unique(columns.node[seats])
        return dict(zip(nodes.tolist(), counts[nodes].tolist(), strict=True))

    @property
    def has_fresh(self) -> bool:
        return bool(self.columns.fresh[self.rows].any())
