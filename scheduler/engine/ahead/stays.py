"""Who stands where until when, by what is expected of jobs: followed job by job, from one plan to the next."""

from collections.abc import Sequence
from typing import NamedTuple

from ..state.fleet import Seat
from ..state.work import Work
from .lookahead import END


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

    def out_of_date(self, now: int) -> list[Work]:
        """Whose time was up by now, or is counted from now on. Who gives way at once goes on to do so."""
        return [work for work, held in self.held.items() if 0 < held.until < END and (held.until <= now or work.job.run.started is None)]
