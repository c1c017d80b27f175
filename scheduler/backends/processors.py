"""Which processors of a machine a worker gets for itself, and which are left for the workers that get none. Values in, values out."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import chain

SERVICES, OTHERS = "services", "others"


@dataclass(frozen=True, slots=True)
class Processor:
    """A processor that Linux schedules on. Threads of one core have the same `core`."""

    number: int
    core: int
    numa: int = 0


@dataclass(frozen=True, slots=True)
class Topology:
    """The processors that workers may have. The first of them stays with the workers that own none, and with the console."""

    processors: tuple[Processor, ...]

    @property
    def numbers(self) -> frozenset[int]:
        return frozenset(one.number for one in self.processors)

    @property
    def kept(self) -> frozenset[int]:
        return frozenset(sorted(self.numbers)[:1])

    @property
    def most(self) -> int:
        """How many of them workers can own together."""
        return len(self.numbers - self.kept)


def chosen(topology: Topology, owned: Collection[int], wanted: int, *, near: int | None = None, spared: int = 0) -> frozenset[int] | None:
    """So many processors that nobody owns; None where there are not that many. `spared`: so many more than the first one stay free.

    Those of the NUMA node `near` go first, then one node that has room for all the rest, the fullest such. On each node whole cores are chosen before
    threads of cores that are split already, and no more than one core is split for it.
    """
    free = topology.numbers - topology.kept - frozenset(owned)
    if len(free) - spared < wanted:
        return None
    nodes: dict[int, list[Processor]] = defaultdict(list)
    sizes: dict[int, int] = defaultdict(int)
    for one in sorted(topology.processors, key=lambda one: one.number):
        sizes[one.core] += 1
        if one.number in free:
            nodes[one.numa].append(one)
    found: list[int] = []
    while len(found) < wanted:
        rest = wanted - len(found)
        node = near if near in nodes else min(nodes, key=lambda name: _preference(len(nodes[name]), rest, name))
        found += _of_node(nodes.pop(node), sizes, rest)
    return frozenset(found)


def _preference(room: int, rest: int, name: int) -> tuple[bool, int, int]:
    """The least room that suffices, else the most room."""
    return (room < rest, room if room >= rest else -room, name)


def _of_node(free: Collection[Processor], sizes: Mapping[int, int], wanted: int) -> list[int]:
    cores: dict[int, list[int]] = defaultdict(list)
    for one in free:
        cores[one.core].append(one.number)
    whole = [core for core in cores if len(cores[core]) == sizes[core]]
    split = [core for core in cores if len(cores[core]) < sizes[core]]
    found: list[int] = []
    for core in whole:
        if len(found) + len(cores[core]) <= wanted:
            found += cores[core]
    taken = set(found)
    # What is left is less than a core: threads of split cores, and of whole ones only then.
    left = [number for number in chain.from_iterable(cores[core] for core in (*split, *whole)) if number not in taken]
    return found + left[: wanted - len(found)]


def pools(topology: Topology, owned: Collection[int], kinds: Collection[str]) -> dict[str, frozenset[int]]:
    """The processors of the workers that own none, by kind of work: all that nobody owns. Where both kinds are there they have no processor in
    common, and no core where there are two; a kind that finds none left has none."""
    free = [one for one in sorted(topology.processors, key=lambda one: (one.numa, one.core, one.number)) if one.number not in owned]
    everything = frozenset(one.number for one in free)
    if set(kinds) != {SERVICES, OTHERS}:
        return {SERVICES: everything, OTHERS: everything}
    cores = sorted({(one.numa, one.core) for one in free})
    if len(cores) > 1:
        first = set(cores[: (len(cores) + 1) // 2])
        of_services = frozenset(one.number for one in free if (one.numa, one.core) in first)
    else:
        of_services = frozenset(one.number for one in free[: (len(free) + 1) // 2])
    return {SERVICES: of_services, OTHERS: everything - of_services}
