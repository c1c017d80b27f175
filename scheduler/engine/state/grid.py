"""The fleet's fixed shape: nodes in path order, so that every domain of every level is a slice.

Nodes are sorted once by (path, island, name). A domain is then a pair of positions, "ties by path" is "the lowest
position", and the capacity of all domains of a level is one `np.add.reduceat`.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from itertools import compress, count
from operator import ne

import numpy as np
import numpy.typing as npt

from ..model.mig import Board, board_of
from ..model.values import Kind, Node, Role, Scenario

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
ANYWHERE = -1
NO_PRICE = 1 << 80  # above any: a GPU type without a price comes last
FEW_BITS = 12  # that are sooner taken one by one


def ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)


class Level:
    """One level of the fabric: where its domains begin, and which domain a node is in."""

    def __init__(self, name: str, keys: list[tuple[str, ...]]) -> None:
        self.name = name
        self.starts = [0, *compress(count(1), map(ne, keys, keys[1:]))] if keys else []
        self.bounds = [*self.starts, len(keys)]
        self._keys = keys
        self.starts_np = np.array(self.starts, dtype=np.int64)
        bounds = np.array(self.bounds, dtype=np.int64)
        self.sizes: Ints = bounds[1:] - bounds[:-1]  # nodes per domain

    @cached_property
    def names(self) -> list[str]:
        return ["/".join(self._keys[start]) for start in self.starts]

    def __len__(self) -> int:
        return len(self.starts)

    def domain_of(self, node: int) -> int:
        return bisect_right(self.starts, node) - 1

    def slice_of(self, domain: int) -> tuple[int, int]:
        return self.bounds[domain], self.bounds[domain + 1]

    def sums(self, values: Ints) -> Ints:
        if not len(self.starts):
            return np.zeros(0, dtype=np.int64)
        return np.add.reduceat(values, self.starts_np)


class Grid:
    """Everything about the nodes that no decision changes."""

    def __init__(self, scenario: Scenario) -> None:
        nodes, self.settings = scenario.nodes, scenario.settings
        self.nodes: tuple[Node, ...] = nodes
        self.size = len(nodes)
        self.index = {node.name: place for place, node in enumerate(nodes)}
        self.level_names = scenario.topology.all_levels
        paths = [node.path for node in nodes]
        self.levels = [Level(name, [path[: depth + 1] for path in paths]) for depth, name in enumerate(self.level_names[:-1])]
        self.levels.append(Level("node", [(*node.path, node.island, node.name) for node in nodes]))
        self.level_index = {name: depth for depth, name in enumerate(self.level_names)}
        # The level that a gang prefers which states none: the rails, else the narrowest oversubscribed or described level.
        topology = scenario.topology
        preferred = [topology.rails] if topology.rails is not None else [name for name, factor in topology.oversubscription if factor > 1_000_000]
        self.habitual = max([self.level_index[name] for name in preferred or dict(topology.bandwidth_gbps)], default=None)
        self.most_gpus = max([node.gpus for node in nodes], default=0)
        # Down and draining nodes and unhealthy GPUs are no capacity.
        self.usable = [0 if node.health in ("down", "draining") else ((1 << node.gpus) - 1) & ~node.unhealthy for node in nodes]
        self.usable_count = [mask.bit_count() for mask in self.usable]
        self.types = sorted({node.quota_type for node in nodes})
        self.type_index = {name: place for place, name in enumerate(self.types)}
        self.type_of = [self.type_index[node.quota_type] for node in nodes]
        self.on_type = [np.array([kind == index for kind in self.type_of], dtype=np.bool_) for index in range(len(self.types))]
        self.usable_np = ints(self.usable_count)
        self.gpus = sum(self.usable_count)
        self.capacity = [0] * len(self.types)  # milli-GPU by quota type; spares serve replacements only
        for node, kind, usable in zip(nodes, self.type_of, self.usable_count, strict=True):
            if not node.spare:
                self.capacity[kind] += 1000 * usable
        self.pool_of = [dict(node.labels).get("pool", "") if node.labels else "" for node in nodes]
        self._eligible: dict[tuple[object, ...], Eligible] = {}

    def sums(self, values: Ints, level: int) -> Ints:
        """By domain of a level; -1 is the whole fleet."""
        return self.levels[level].sums(values) if level >= 0 else values.sum(keepdims=True)

    @cached_property
    def gpu_types(self) -> list[str]:
        return sorted({name for name, _ in self._pairs})

    @cached_property
    def makes(self) -> list[int]:
        """The nodes of each make of GPU as a bit set: parts of whole GPUs are the same on all of them."""
        makes: dict[tuple[str, int], int] = {}
        for place, node in enumerate(self.nodes):
            make = (node.gpu_type, node.gpu_memory_mib)
            makes[make] = makes.get(make, 0) | 1 << place
        return [*makes.values()]

    @cached_property
    def any_split(self) -> bool:
        return any(node.mig for node in self.nodes)

    @cached_property
    def hosts(self) -> list[tuple[int, int, int]]:
        """The different sizes of nodes: GPUs, processors, memory."""
        return sorted({(node.gpus, node.cpu_milli, node.host_memory_mib) for node in self.nodes})

    @cached_property
    def islands(self) -> Level:
        return Level("island", [(*node.path, node.island) for node in self.nodes])

    @cached_property
    def startable(self) -> tuple[Ints, Ints]:
        """1 where a job may start, by node; secondly, one that tolerates suspect nodes. Nothing but a repair starts on a spare."""
        plain, brave = ([not node.spare and node.health in healths for node in self.nodes] for healths in (("healthy",), ("healthy", "suspect")))
        return np.array(plain, dtype=np.int64), np.array(brave, dtype=np.int64)

    @cached_property
    def plain(self) -> bool:
        """Whether all GPUs are of one type, and whatever is idle may be started on."""
        return len(self.types) == 1 and bool(self.startable[False].all())

    @cached_property
    def narrow_islands(self) -> frozenset[int]:
        """Nodes that hold several islands of their own."""
        return frozenset(place for place, node in enumerate(self.nodes) if len(node.islands) > 1)

    @cached_property
    def boards(self) -> list[list[Board]]:
        """What there is to be split in each quota type."""
        boards = [(board_of(name), kind) for name, kind in self._pairs]
        return [[board for board, kind in boards if board is not None and kind == index] for index in range(len(self.types))]

    def smallest_memory(self, quota_type: int, needed: int) -> int:
        """The smallest GPU memory of a quota type that holds so much, by which a request for it is charged before it has a place; 0: none does."""
        return min([memory for kind, memory in self._memories if kind == quota_type and memory >= max(1, needed)], default=0)

    @cached_property
    def _memories(self) -> set[tuple[int, int]]:
        return {*zip(self.type_of, [node.gpu_memory_mib for node in self.nodes], strict=True)}

    def types_for(self, kind: Kind) -> tuple[int, ...]:
        """Quota types the job may be tried in, by its choice of types; then higher throughput first, then the order it states, then by name."""
        stated = [role.gpu_types for role in kind.roles if role.gpu_types and (role.gpus or role.parted)]
        choice, prices = kind.type_choice or self.settings.type_choice, dict(self.settings.gpu_prices)
        best: dict[int, tuple[Fraction, int, int]] = {}
        for gpu_type, quota_type in self._pairs:
            if any(gpu_type not in names for names in stated):
                continue
            speed = kind.speed(gpu_type)
            if speed <= 0:
                continue
            mine = type_rank(choice, prices, gpu_type, speed, stated[0].index(gpu_type) if stated else 0)
            best[quota_type] = min(best.get(quota_type, mine), mine)
        return tuple(sorted(best, key=lambda quota_type: (best[quota_type], self.types[quota_type])))

    @cached_property
    def _pairs(self) -> list[tuple[str, int]]:
        return sorted({(node.gpu_type, self.type_index[node.quota_type]) for node in self.nodes})

    def eligible(self, kind: Kind, role: Role, quota_type: int, *, suspect: bool, spare: bool) -> "Eligible":
        """Nodes on which a worker of the role may stand, were they empty. Suspect ones come last, and spares are for repairs: placement.py."""
        if not role.gpus and not role.parted:
            quota_type = ANYWHERE  # a worker without GPUs needs only a node
        group = (role.gpu_types, kind.slow, quota_type, kind.labels, kind.needs, suspect, spare)
        if (known := self._eligible.get(group)) is not None:
            return known
        places, slow, gpu_types = [], kind.slow, role.gpu_types
        for place, node in enumerate(self.nodes):
            if quota_type not in (ANYWHERE, self.type_of[place]) or node.health in ("down", "draining"):
                continue
            if (node.health == "suspect" and not suspect) or (node.spare and not spare):
                continue
            if (gpu_types and node.gpu_type not in gpu_types) or node.gpu_type in slow:
                continue
            if kind.labels and not set(kind.labels) <= set(node.labels):
                continue
            offers = dict(node.attributes) if kind.needs else {}
            if all(offers.get(name, 0) >= least for name, least in kind.needs):
                places.append(place)
        return self._eligible.setdefault(group, Eligible(places, self.size))


def type_rank(choice: str, prices: Mapping[str, int], gpu_type: str, speed: int, place: int) -> tuple[Fraction, int, int]:
    """Of a type on which the job has a speed above 0 and that comes at a place among those that it names: the least is tried first. By what a unit of
    work costs there, or by the place; the faster type first where these are equal, then by the place."""
    first = Fraction(place if choice == "stated" else 0)
    if choice == "cheapest":
        first = Fraction(prices.get(gpu_type, NO_PRICE), speed)
    return first, -speed, place


class Eligible:
    """A set of nodes in the two forms in which it is read: a bit set and an array of 0 and 1."""

    __slots__ = ("array", "bits", "flags", "full")

    def __init__(self, places: list[int], size: int) -> None:
        self.array = np.zeros(size, dtype=np.int64)
        self.array[places] = 1
        self.flags = self.array.astype(np.uint8).tobytes()  # one byte per node, read one at a time
        self.full = len(places) == size
        self.bits = bit_set(self.array > 0)


def bit_set(flags: npt.NDArray[np.bool_]) -> int:
    """The places that are set, as one number."""
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")


Slice = tuple[int, int]  # the nodes from one position to another


def common(one: Slice, other: Slice) -> Slice:
    return max(one[0], other[0]), min(one[1], other[1])


def span_bits(low: int, high: int) -> int:
    return ((1 << (high - low)) - 1) << low


def ascending(mask: int) -> Iterator[int]:
    """Positions of the set bits of a wide bit set, for who may not want them all."""
    while mask:
        yield (mask & -mask).bit_length() - 1
        mask &= mask - 1


def flags_of(mask: int, size: int) -> Ints:
    """1 where a bit of a wide bit set is set, of so many."""
    raw = np.frombuffer((mask & (1 << size) - 1).to_bytes((size + 7) // 8, "little"), dtype=np.uint8)
    return np.unpackbits(raw, bitorder="little")[:size].astype(np.int64)


def bits_of_large(mask: int) -> list[int]:
    """Positions of the set bits of a wide bit set."""
    if mask.bit_count() <= FEW_BITS:
        return [*ascending(mask)]
    found: list[int] = np.flatnonzero(flags_of(mask, mask.bit_length())).tolist()
    return found
