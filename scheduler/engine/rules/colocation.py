"""Work beside services, where the fleet asks for boundaries between them (`settings.colocation`): the nodes that a job has to stay off.

Serving is the class inference; other work is the other two. They share a GPU only as MIG instances, and have those on one node only if the node was
verified to enforce MIG: by MPS a service is a trust domain of its own. Where the setting is `node`, they stand on one node only if it was verified to
pin jobs to their processors. A pair in `Scenario.apart` keeps off nodes of each other, or of each other's instances; one that was measured does so
whatever the setting.
Only a start, a repair, a growth or a move is refused: who stands beside a service stays. Who leaves counts no more.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from ..model.reasons import Reason, reason
from ..model.values import CLASSES, Apart
from ..state.fleet import Seat
from ..state.form import Side
from ..state.work import Work

if TYPE_CHECKING:
    from ..state.cluster import Cluster


class Wall(NamedTuple):
    """The nodes on which two sides may not both stand; and the pair of which that is told, if it is one."""

    nodes: int
    pair: Apart | None = None


class Colocation:
    """Who stands on which node, by side. It follows what the plan changes."""

    def __init__(self, cluster: "Cluster") -> None:
        self.cluster, nodes = cluster, cluster.grid.nodes
        self._everywhere, self._walled = (1 << len(nodes)) - 1, cluster.settings.colocation != "any"
        self._without = {wall: sum([1 << place for place, node in enumerate(nodes) if wall not in node.boundaries]) for wall in ("cores", "mig")}
        self._pairs = {(pair.service, pair.other, pair.where): pair for pair in cluster.scenario.apart if self._walled or pair.measured}
        self._held: dict[Work, tuple[Seat, ...]] = {}
        self._on: dict[Side, dict[int, dict[Work, None]]] = {}  # who stands where
        self._bits: dict[Side, int] = {}
        self._shared: dict[tuple[int, int], dict[Work, None]] = {}  # who has which GPU in common with others
        self._read = len(cluster.journal)
        self._look(cluster.works)

    def off(self, work: Work) -> int:
        """The nodes that a job has to stay off because of who stands there now, as a bit set."""
        self._follow()
        found = 0
        for side, bits in self._bits.items():
            found |= bits & self.wall(work, side).nodes
        return found | (self._mixed() if self._walled and work.kind.sharing == "mps" else 0)

    def neighbours(self, work: Work) -> Iterator[tuple[Work, int]]:
        """Each of those because of whom it has to stay off a node, and the node."""
        self._follow()
        for side, here in self._on.items():
            closed = self._bits[side] & self.wall(work, side).nodes
            yield from ((other, node) for node, works in here.items() if closed >> node & 1 for other in works)

    def parts(self, work: Work, other: Work, node: int) -> bool:
        """Whether two jobs may not both stand on a node."""
        assert other.form.side is not None
        return bool(self.wall(work, other.form.side).nodes >> node & 1)

    def wall(self, work: Work, other: Side) -> Wall:
        mine = work.form.side
        assert mine is not None
        if mine.serves is other.serves:
            return Wall(0)
        service, beside = (mine, other) if mine.serves else (other, mine)
        instances = mine.sharing == other.sharing == "mig"
        for where in ("node", "gpu") if instances else ("node",):
            if (pair := self._pairs.get((service.tenant, beside.tenant, where))) is not None:
                return Wall(self._everywhere, pair)
        if not self._walled:
            return Wall(0)
        nodes = self._without["cores"] if self.cluster.settings.colocation == "node" else 0
        return Wall(nodes | self._without["mig"] if instances else nodes)

    def _mixed(self) -> int:
        """Nodes with a GPU that services and others share since before that was asked about: nobody joins them there."""
        return sum({1 << node for (node, _), works in self._shared.items() if len({one.form.side.serves for one in works if one.form.side}) > 1})

    def _follow(self) -> None:
        journal = self.cluster.journal
        if self._read < len(journal):
            self._look(dict.fromkeys(journal[self._read :]))
            self._read = len(journal)

    def _look(self, works: Iterable[Work]) -> None:
        for work in works:
            before, side = self._held.get(work, ()), work.form.side
            if before == work.seats or side is None:
                continue
            self._held[work] = work.seats
            here, bits = self._on.setdefault(side, {}), self._bits.get(side, 0)
            for node in {seat.node for seat in before}:
                del here[node][work]
                if not here[node]:
                    bits ^= 1 << node
            for seat in work.seats:
                if not (there := here.setdefault(seat.node, {})):
                    bits |= 1 << seat.node
                there[work] = None
            self._bits[side] = bits
            for key in _shares(before):
                del self._shared[key][work]
            for key in _shares(work.seats):
                self._shared.setdefault(key, {})[work] = None

    def reason(self, work: Work, node: int) -> Reason:
        """Why a job can't stand on a node that it has to stay off."""
        name = self.cluster.grid.nodes[node].name
        other = min((one for one, there in self.neighbours(work) if there == node), key=lambda one: one.order, default=None)
        if other is None or other.form.side is None:
            return reason("colocation", f"services and other work share a GPU of {name} already; nobody joins them", node=name)
        assert work.form.side is not None
        pair, service = self.wall(work, other.form.side).pair, work if work.form.side.serves else other
        facts: dict[str, object] = {"node": name, "beside": other.job.name, "beside_class": CLASSES[other.kind.class_rank]}
        if pair is not None:
            whose = "its" if service is work else "the service's"
            comma, verb, of = (",", "was", "measured_ms") if pair.measured else ("", "would be", "predicted_ms")
            told = f"beside {_told(other)} on {name}{comma} {whose} {pair.figure} {verb} {pair.predicted_ms} ms of {pair.allowed_ms} ms allowed"
            return reason("colocation", told, **facts, figure=pair.figure, **{of: pair.predicted_ms}, allowed_ms=pair.allowed_ms)
        boundary = "cores" if self._without["cores"] >> node & 1 and self.cluster.settings.colocation == "node" else "mig"
        detail = f"{_told(other)} stands on {name}, which was not verified to {BOUNDARIES[boundary]}"
        return reason("colocation", detail, **facts, boundary=boundary)


BOUNDARIES = {"cores": "pin jobs to their processors", "mig": "enforce MIG instances"}


def _told(work: Work) -> str:
    return f"{'service' if work.form.side is not None and work.form.side.serves else 'job'} {work.job.name}"


def _shares(seats: Iterable[Seat]) -> set[tuple[int, int]]:
    return {(seat.node, part.gpu) for seat in seats for part in seat.parts if part.mode == "mps"}
