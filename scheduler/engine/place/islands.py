"""NVLink islands: the GPUs of a `tp_group`, which consecutive ranks hold together, sit inside one; and whole ones stay whole where they can."""

from collections.abc import Sequence

from ..state.cluster import Cluster
from ..state.fleet import Seat, View, lowest
from ..state.grid import Grid, Slice, common, span_bits
from ..state.work import Work


def gpus_on(grid: Grid, view: View, node: int, count: int, group: int) -> int:
    """Which idle GPUs of a node one worker gets; 0 where its groups do not find their islands."""
    free = view.free[node]
    if node not in grid.narrow_islands:
        return lowest(free, count)
    parts = sorted((free & island for island in grid.nodes[node].islands), key=lambda mask: (mask.bit_count(), mask))
    for part in parts:
        if part.bit_count() >= count:
            return lowest(part, count)
    result = 0
    for part in reversed(parts):  # the roomiest first, so that few islands are broken into
        wanted = count - result.bit_count()
        usable = part.bit_count() // group * group
        result |= lowest(part, min(usable, wanted))
    return result if result.bit_count() == count else 0


class Groups:
    """Groups of several workers of one role, which may stand on some nodes."""

    def __init__(self, cluster: Cluster, work: Work, view: View, bits: int, place: int) -> None:
        self.grid, self.fleet, self.work, self.view, self.bits, self.place = cluster.grid, cluster.fleet, work, view, bits, place
        self.role = work.kind.roles[place]
        self.spread = cluster.settings.placement == "spread"

    def fill(self, ranks: Sequence[int], within: Slice, tp_group: int) -> list[Seat] | None:
        """Take places in a slice for workers of these ranks, whole groups in the order of the fabric; what was taken before a failure stays."""
        size = max(1, tp_group // self.role.gpus)
        groups: dict[int, list[int]] = {}
        for rank in ranks:
            groups.setdefault(rank // size, []).append(rank)
        pinned: dict[int, Seat] = {seat.rank // size: seat for seat in self.work.seats if seat.role == self.place}
        seats, blocks = list[Seat](), list[list[Seat]]()
        for number, members in sorted(groups.items()):
            if (block := self._place_group(members, within, pinned.get(number))) is None:
                return None
            if number in pinned or len(members) < size:
                seats.extend(block)
            else:
                blocks.append(block)
        whole_ranks = [seat.rank for block in blocks for seat in block]
        blocks.sort(key=lambda block: min(seat.node for seat in block))
        in_order = [seat for block in blocks for seat in sorted(block, key=lambda seat: (seat.node, seat.mask))]
        seats.extend(seat._replace(rank=rank) for seat, rank in zip(in_order, whole_ranks, strict=True))
        return seats

    def _place_group(self, ranks: Sequence[int], within: Slice, pin: Seat | None) -> list[Seat] | None:
        """Consecutive ranks inside one island: the tightest island that holds them."""
        islands = self.grid.islands
        if pin is not None:
            # An island may reach beyond the domain in which the gang stands.
            within = common(within, islands.slice_of(islands.domain_of(pin.node)))
        low, high = within
        bits = self.bits & span_bits(low, high)
        found: list[tuple[int, int, int, list[int]]] = []
        for domain in range(islands.domain_of(low), islands.domain_of(max(low, high - 1)) + 1):
            start, stop = common(islands.slice_of(domain), within)
            nodes = [node for node in range(start, stop) if bits >> node & 1]
            inside = len(nodes) == 1 and nodes[0] in self.grid.narrow_islands  # whether the islands are parts of a node
            parts = [part for part in self.grid.nodes[nodes[0]].islands if pin is None or part & pin.mask] if inside else [-1]
            for part in parts:
                if sum(self._room(node, part) for node in nodes) >= len(ranks):
                    free = sum((self.view.free[node] & part).bit_count() for node in nodes)
                    found.append((-free if self.spread else free, start, max(part, 0), nodes))
        if not found:
            return None
        _, _, part, nodes = min(found)
        part = part or -1
        role, left, seats = self.role, list(ranks), list[Seat]()
        for node in sorted(nodes, key=lambda node: (-self._room(node, part), node)):
            while left and self._room(node, part):
                mask = lowest(self.view.free[node] & part, role.gpus)
                seats.append(Seat(self.place, left.pop(0), node, mask, role.cpu_milli, role.host_memory_mib, role.gpus * 1000))
                self.fleet.take(seats[-1])
        return seats

    def _room(self, node: int, part: int) -> int:
        role = self.role
        room = (self.view.free[node] & part).bit_count() // role.gpus
        return min(room, self.view.room_on(node, role.gpus, role.cpu_milli, role.host_memory_mib))
