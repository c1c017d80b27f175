"""The dates of blocked jobs and the places that are kept for them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..state.fleet import Seat
from ..state.work import Work
from .lookahead import Lookahead
from .stays import Stays


class Date(NamedTuple):
    """When a job could start, and where."""

    at: int  # milliseconds from now
    places: list[tuple[int, int]]  # (node, whole GPUs)
    seats: tuple[Seat, ...]  # its workers one by one, where it was tried and not only counted


def counted_on(work: Work, date: Date) -> list[int]:
    """The nodes of the workers that a job lacks, one by one, where they were only counted."""
    gpus = work.kind.roles[work.missing()[0][0]].gpus or 1
    return [node for node, count in sorted(date.places) for _ in range(count // gpus)]


def seats_of(work: Work, date: Date) -> Sequence[Seat]:
    """What workers hold of hosts at a date: as they were placed, or on the nodes that were counted."""
    if date.seats:
        return date.seats
    role = work.kind.roles[work.missing()[0][0]]
    return [Seat(0, 0, node, 0, role.cpu_milli, role.host_memory_mib, 0) for node in counted_on(work, date)]


@dataclass(slots=True)
class Entry:
    work: Work
    quota_type: int
    date: Date
    length: int
    guaranteed: bool  # whether its holder would stay within its guarantees
    place: int  # in the order of the book
    served: bool = False  # by a later pass: its holder stands, and nothing is kept any more

    @property
    def at(self) -> int:
        return self.date.at

    @property
    def places(self) -> list[tuple[int, int]]:
        return self.date.places

    def keeps(self, node: int) -> int:
        return sum(count for place, count in self.places if place == node)


@dataclass(slots=True)
class Prospect:
    """The look-ahead, and who stands where until when. It goes on from plan to plan."""

    geometry: Sequence[tuple[int, int]]  # GPUs that had been split anew by the plan that made it
    ahead: Lookahead
    stays: Stays
    changed: dict[Work, bool] = field(default_factory=dict)  # jobs that may stand otherwise since the plan before, and whether they are still there
