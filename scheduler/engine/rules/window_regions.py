"""Where windows keep GPUs clear: each in its block or on all of a type, and together where they last at one time.

What may start before them, and the jobs that they displace: windows.py.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..model.values import Window

Span = tuple[int, int]  # the first node of a block, and the one behind its last


def inside(one: Span, other: Span) -> bool:
    return other[0] <= one[0] and one[1] <= other[1]


@dataclass(slots=True)
class Region:
    """A block, or all of a type, with the windows that last at one instant and have their GPUs in it."""

    low: int
    high: int
    capacity: int  # milli-GPU
    windows: tuple[Window, ...]
    whole: bool  # all of the type, and no part of it
    staying: dict[int, int] = field(default_factory=dict)  # milli-GPU that may still be held then, by which of the windows their holders may use

    @property
    def kept(self) -> int:
        return sum(window.gpus for window in self.windows)

    def stays(self, mask: int, milli: int) -> None:
        self.staying[mask] = self.staying.get(mask, 0) + milli

    def in_the_way(self, mask: int = 0, milli: int = 0) -> int:
        """What may still be held then by whom no window holds, if so much more came of somebody who may use these windows."""
        amounts = {**self.staying, mask: self.staying.get(mask, 0) + milli} if milli else self.staying
        return sum(amounts.values()) - held_by_windows([window.gpus for window in self.windows], amounts)

    def over(self, mask: int = 0, milli: int = 0) -> int:
        """How much more would be held or promised then than there is."""
        return self.in_the_way(mask, milli) + self.kept - self.capacity


def held_by_windows(rooms: Sequence[int], amounts: Mapping[int, int]) -> int:
    """How much of these amounts stands in windows: each in those of its mask, whoever may use the fewest first."""
    left = list(rooms)
    total = 0
    for mask in sorted(amounts, key=lambda mask: (mask.bit_count(), mask)):
        rest = amounts[mask]
        for place, room in enumerate(left):
            if mask >> place & 1 and rest:
                taken = min(room, rest)
                left[place] -= taken
                rest -= taken
                total += taken
    return total


def regions_around(span: Span, placed: Iterable[tuple[Window, Span]], capacities: Mapping[Span, int], whole: Span) -> list[Region]:
    """The blocks of these windows that hold a block, it among them, and in each the windows that have their own inside it."""
    placed = list(placed)
    spans = sorted({other for _, other in placed if inside(span, other)} | {span})
    return [Region(*one, capacities[one], tuple(window for window, other in placed if inside(other, one)), one == whole) for one in spans]
