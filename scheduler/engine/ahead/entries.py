"""The dates of blocked jobs, the places that are kept for them, and who stands where until when by what is expected of jobs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..state.fleet import Seat
from ..state.work import Work
from .lookahead import END, Lookahead


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

    @property
    def stands(self) -> bool:
        """Whether its holder has its place by now."""
        return bool(self.work.seats) and not self.work.degraded

    def keeps(self, node: int) -> int:
        return sum(count for place, count in self.places if place == node)


class Held(NamedTuple):
    """How a job stands: until which instant (0: it gives way at once), and where."""

    until: int
    seats: tuple[Seat, ...]


class Use(NamedTuple):
    """What is taken of a node from one instant to another."""

    start: int
    end: int
    seat: Seat


NOWHERE = Held(0, ())


class Stays:
    def __init__(self) -> None:
        self.held: dict[Work, Held] = {}
        self.tenants: dict[tuple[int, int], dict[Work, int]] = {}  # of GPUs in parts: until when each holds it
        self._by_node: dict[int, list[Use]] | None = None  # once that was asked

    def of(self, work: Work) -> Held:
        return self.held.get(work, NOWHERE)

    def change(self, work: Work, new: Held) -> None:
        """It stands so from now on, or nowhere."""
        old = self.held.pop(work, NOWHERE)
        if new.seats:
            self.held[work] = new
        for seat in old.seats:
            if self._by_node is not None:
                self._by_node[seat.node].remove(Use(0, old.until, seat))
            for part in seat.parts:
                self.tenants[seat.node, part.gpu].pop(work, None)
        for seat in new.seats:
            if self._by_node is not None:
                self._by_node.setdefault(seat.node, []).append(Use(0, new.until, seat))
            for part in seat.parts:  # an instance leaves a GPU that is split on
                self.tenants.setdefault((seat.node, part.gpu), {})[work] = new.until if part.mode != "mig" else END

    def on(self, node: int) -> Sequence[Use]:
        if self._by_node is None:
            self._by_node = {}
            for held in self.held.values():
                for seat in held.seats:
                    self._by_node.setdefault(seat.node, []).append(Use(0, held.until, seat))
        return self._by_node.get(node, ())

    def shared_until(self, node: int, gpu: int) -> int:
        """When a shared GPU is whole again: the last of its tenants has left by then."""
        return max(self.tenants.get((node, gpu), {}).values(), default=0)


@dataclass(slots=True)
class Prospect:
    """The look-ahead, and who stands where until when. It goes on from plan to plan."""

    geometry: Sequence[tuple[int, int]]  # GPUs that had been split anew by the plan that made it
    ahead: Lookahead
    stays: Stays
    changed: dict[Work, bool] = field(default_factory=dict)  # jobs that may stand otherwise since the plan before, and whether they are still there
