"""The demo's hardware as plain values, as it stands in the halls. Times are milliseconds since 1970."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler.models import Health


@dataclass(frozen=True, slots=True)
class SliceOf:
    key: int
    gpu: int
    node: int
    profile: str
    milli: int


@dataclass(slots=True, eq=False)
class Machine:
    key: int
    name: str
    cluster: int
    spine: str
    leaf: str
    gpu_type: str
    spare: bool
    sliced: bool
    health: str
    since: int
    gpus: tuple[int, ...]  # every GPU in the order of its index
    usable: tuple[int, ...]  # those of them that are well

    @property
    def serves(self) -> bool:
        return self.health == Health.HEALTHY and not self.spare


@dataclass(frozen=True, slots=True)
class Share:
    guaranteed: int
    limit: int | None


@dataclass(slots=True)
class Hardware:
    """What stands in the halls; the same from step to step while nobody changes the inventory."""

    machines: dict[int, Machine]
    slices: tuple[SliceOf, ...]
    shares: Mapping[tuple[str, str], Share]  # (team, type)
    stretch: int = 1  # how much longer the quick work runs on a large fleet
    pressure: int = 100  # percent of what people want
    by_type: dict[str, list[Machine]] = field(default_factory=dict)
    capacity: dict[str, int] = field(default_factory=dict)
    slice_count: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        groups: dict[str, list[Machine]] = defaultdict(list)
        for machine in sorted(self.machines.values(), key=lambda machine: (machine.name, machine.key)):
            if not machine.sliced:
                groups[machine.gpu_type].append(machine)
        self.by_type = dict(groups)
        self.capacity = {name: sum(len(machine.usable) for machine in group if not machine.spare) for name, group in groups.items()}
        counts: dict[str, int] = defaultdict(int)
        for part in self.slices:
            counts[part.profile] += 1
        self.slice_count = dict(counts)
