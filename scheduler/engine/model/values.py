"""What a decision depends on, as frozen values: the typed form of a scenario.

Whole numbers only: milli-GPU, MiB, milliseconds (instants since the epoch), usage in millionths of the fleet. What many jobs have in common is one
shared `Kind`, compared by identity, so that whatever is computed about a shape is computed once.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, make_dataclass, replace
from enum import IntEnum
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")
CLASSES = ("batch", "interactive", "inference")  # the rank of a class is its place here
CLASS_RANK = {name: rank for rank, name in enumerate(CLASSES)}
PASSES = ("stale", "allocate", "backfill", "shrink", "consolidate", "reclaim", "preempt", "repartition", "grow")
STATES = ("queued", "reserved", "starting", "running", "stopping")
PLACEMENTS = ("pack", "spread", "fgd")
COLOCATIONS = ("any", "gpu", "node")
TYPE_CHOICES = ("fastest", "cheapest", "stated")  # which of the GPU types that a job accepts it is tried in first
ANY_TYPE = "*"
HOUR_MS = 3_600_000
UNSTATED_CPU_MILLI, UNSTATED_MEMORY_MIB = 10**12, 10**12  # of a node that does not say what its host has: more than any worker asks for


class Preemptible(IntEnum):
    NEVER = 0
    WHEN_BORROWED = 1
    ALWAYS = 2


def maker(kind: Callable[P, T]) -> Callable[P, T]:
    """Makes values of a frozen class with slots four times as fast as its own constructor, which sets field by field past the freeze. What it makes
    is of a twin with the same slots that is not frozen, and of the class itself from the moment it is whole."""

    def freeze(value: Any) -> None:
        value.__class__ = kind

    made = cast(Any, kind)
    bare = [(one.name, Any, field(default=one.default)) for one in fields(made)]
    return cast(Callable[P, T], make_dataclass(made.__name__, bare, slots=True, namespace={"__post_init__": freeze}))


@dataclass(frozen=True, slots=True)
class Fairness:
    half_life_ms: int = 604_800_000
    usage_weight_millionths: int = 0
    step_ms: int | None = None


class ByClass(NamedTuple):
    """One value per class, by rank."""

    batch: int | None = None
    interactive: int | None = None
    inference: int | None = None


FOR_NONE = ByClass()


@dataclass(frozen=True, slots=True)
class Settings:
    placement: str = "pack"
    passes: tuple[str, ...] = PASSES
    max_moves: int | None = 4
    preempt_min_runtime_ms: int = 0
    reclaim_min_runtime_ms: int = 0
    stale_grace_ms: int = 60_000
    hysteresis_ms: int = 0
    backfill_depth: int = 8
    backfill_notice_ms: int = 120_000
    overrun_millionths: int = 1_000_000
    window_horizon_ms: int = 1_209_600_000
    repartition_per_hour: int = 6
    max_wait_ms: ByClass = FOR_NONE
    worth_gpu_ms: ByClass = FOR_NONE  # lost milli-GPU times seconds, that is GPU-milliseconds
    fairness: Fairness = Fairness()
    sharing_trust: str = "quota"
    colocation: str = "any"
    type_choice: str = "fastest"  # of a job that states none
    gpu_prices: tuple[tuple[str, int], ...] = ()  # millionths by gpu_type, of any unit: only how they compare counts
    forecast: str = "all"

    @property
    def waits_end(self) -> bool:
        """Whether any class is to wait only so long."""
        return self.max_wait_ms != FOR_NONE


@dataclass(frozen=True, slots=True)
class Topology:
    levels: tuple[str, ...] = ()  # the operator's, wide to narrow; "cluster" before and "node" after them are implied
    rails: str | None = None
    bandwidth_gbps: tuple[tuple[str, int], ...] = ()
    oversubscription: tuple[tuple[str, int], ...] = ()

    @property
    def all_levels(self) -> tuple[str, ...]:
        return ("cluster", *self.levels, "node")


@dataclass(frozen=True, slots=True, order=True)
class Instance:
    start: int  # a memory slice
    profile: str


class SplitGpu(NamedTuple):
    """A GPU in MIG mode, and its instances in their order."""

    gpu: int
    instances: tuple[Instance, ...]


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    gpu_type: str
    quota_type: str
    gpus: int
    gpu_memory_mib: int
    path: tuple[str, ...]  # cluster, then one name per operator level
    island: str
    islands: tuple[int, ...]  # masks of the parts of the node that are NVLink islands; empty: the node is one
    health: str
    unhealthy: int  # mask
    spare: bool
    cpu_milli: int
    host_memory_mib: int
    labels: tuple[tuple[str, str], ...]
    attributes: tuple[tuple[str, int], ...]  # in millionths of the unit in the key
    mig: tuple[SplitGpu, ...]  # in their order
    repartitioned: tuple[int, ...] = ()  # when a GPU of it was split anew, as far as that is told
    boundaries: tuple[str, ...] = ()  # that it was verified to enforce between jobs: "cores", "mig"

    @property
    def split(self) -> int:
        """The GPUs that are in MIG mode, as a mask."""
        return sum([1 << gpu for gpu, _ in self.mig])


@dataclass(frozen=True, slots=True)
class Amount:
    """A guarantee or limit: one number over all types, a number per type, or neither (unlimited)."""

    total: int | None = None
    by_type: tuple[tuple[str, int], ...] | None = None

    @property
    def unlimited(self) -> bool:
        return self.total is None and self.by_type is None

    def of(self, quota_type: str) -> int | None:
        if self.by_type is None:
            return self.total
        return dict(self.by_type).get(quota_type)


@dataclass(frozen=True, slots=True)
class Quota:
    name: str
    parent: str | None
    guaranteed: Amount
    limit: Amount
    weight: int  # in thousandths
    priority: int
    preempt_min_runtime_ms: int | None
    reclaim_min_runtime_ms: int | None
    created: int
    usage: tuple[tuple[str, int], ...]  # millionths by quota type; "*" stands for every type
    weights: tuple[tuple[str, int], ...] = ()  # by quota type, where they are not `weight`
    priorities: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Window:
    name: str
    quota: str | None
    class_rank: int | None
    gpus: int
    gpu_type: str | None
    level: str | None
    start: int
    end: int | None
    notice_ms: int
    decay_ms: int | None

    def lasts(self, instant: int) -> bool:
        return self.start <= instant and (self.end is None or instant < self.end)


@dataclass(frozen=True, slots=True)
class PowerCap:
    """So many watts at most, drawn by the GPUs of a pool, or of the whole fleet, from one instant to another."""

    pool: str | None
    watts: int
    start: int
    end: int | None


@dataclass(frozen=True, slots=True)
class PowerCaps:
    gpu_watts: tuple[tuple[str, int], ...] = ()  # rated, by GPU type
    caps: tuple[PowerCap, ...] = ()  # by (start, pool)


NO_POWER = PowerCaps()


class Apart(NamedTuple):
    """A service and other work, by the tenants that their jobs name, that may not be neighbours: the service would break its service level."""

    service: str
    other: str
    where: str  # "gpu": as MIG instances; "node": at all
    figure: str
    predicted_ms: int
    allowed_ms: int
    measured: bool = False  # it has broken it there: they are kept apart whatever `colocation` asks for


@dataclass(frozen=True, slots=True)
class Demand:
    """A part of the usual demand: its share in millionths and the gang it asks for."""

    share: int
    gpus: int  # whole GPUs of each worker; 0: a share of one, or processors only
    workers: int
    required: str | None
    share_milli: int | None = None
    cpu_milli: int = 0
    gpu_types: tuple[str, ...] = ()  # empty: any


@dataclass(frozen=True, slots=True)
class Placing:
    """Where workers of a job, or of one role, must or would rather stand together."""

    required: str | None = None
    preferred: str | None = None
    tp_group: int = 1
    span_clusters: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Role:
    name: str
    least: int
    most: int
    step: int
    desired: int | None
    gpus: int  # whole GPUs per worker
    mig: str | None
    memory_mib: int | None  # GPU memory of a part
    share_milli: int | None
    devices: int  # parts per worker, each on another GPU
    gpu_types: tuple[str, ...]  # empty: any
    cpu_milli: int
    host_memory_mib: int
    placing: Placing | None

    @property
    def parted(self) -> bool:
        """Whether a worker takes parts of GPUs rather than whole ones."""
        return self.mig is not None or self.memory_mib is not None or self.share_milli is not None

    def part_milli(self, memory_mib: int) -> int:
        """What a share of a GPU with so much memory comes to: all of it where nobody says how much that is."""
        if self.memory_mib is None:
            return self.share_milli or 0
        return max(1, 1000 * self.memory_mib // memory_mib) if memory_mib else 1000

    @property
    def ceiling(self) -> int:
        """The most workers it may have now."""
        return self.most if self.desired is None else max(self.least, min(self.most, self.desired))


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """What is alike in many jobs, interned: compare by identity."""

    class_rank: int
    priority: int
    preemptible: Preemptible
    roles: tuple[Role, ...]
    placing: Placing
    sharing: str
    labels: tuple[tuple[str, str], ...]
    needs: tuple[tuple[str, int], ...]  # in millionths of the unit in the key
    tolerates_suspect: bool
    preemption_delay_ms: int
    grace_ms: int
    throughput: tuple[tuple[str, int], ...]  # millionths by gpu_type
    tenant: str = ""  # by which `Scenario.apart` speaks of it
    type_choice: str = ""  # one of TYPE_CHOICES; empty: as the settings say

    @property
    def elastic(self) -> bool:
        return any(role.least < role.most for role in self.roles)

    @property
    def level(self) -> tuple[int, int]:
        """Class and number together: what one job must exceed to preempt another."""
        return (self.class_rank, self.priority)

    @property
    def slow(self) -> tuple[str, ...]:
        """The GPU types on which it can't run."""
        return tuple(name for name, speed in self.throughput if speed == 0)

    def speed(self, gpu_type: str) -> int:
        return dict(self.throughput).get(gpu_type, 1_000_000)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    interval_ms: int | None
    last: int | None
    save_ms: int
    restore_ms: int


@dataclass(frozen=True, slots=True)
class Placed:
    """One worker where it stands. `gpus` is a mask; a part is a share in milli-GPU, GPU memory, or a MIG instance per GPU."""

    role: int
    index: int
    node: str
    gpus: int
    share_milli: int | None = None
    mig: tuple[tuple[int, str, int], ...] = ()  # (gpu, profile, start)


new_placed = maker(Placed)


@dataclass(frozen=True, slots=True)
class Run:
    """What a job has been through and where it stands."""

    state: str = "queued"
    since: int | None = None
    started: int | None = None
    until: int | None = None
    workers: tuple[Placed, ...] = ()
    leaving: tuple[Placed, ...] = ()
    backfilled: bool = False
    degraded_since: int | None = None
    last_evicted: int | None = None
    last_moved: int | None = None
    evictions: int = 0
    reclaimed: int | None = None  # when it came to its place by reclaim

    def given_up(self) -> "Run":
        """It asks for places like anyone who waits; or, as long as it has others to leave, it does that first."""
        if self.leaving:
            return replace(self, state="stopping", workers=self.leaving, leaving=(), backfilled=False, degraded_since=None, reclaimed=None)
        return self.as_it_waits()

    def as_it_waits(self) -> "Run":
        """What is left of it for who has no place: what became of it before."""
        if self.last_evicted is None and self.last_moved is None and not self.evictions:
            return QUEUED
        return Run(last_evicted=self.last_evicted, last_moved=self.last_moved, evictions=self.evictions)


QUEUED = Run()
new_run = maker(Run)


def has_lapsed(state: str, until: int | None, now: int) -> bool:
    """Whether a job was promised its places, or was starting in them, until a moment that has come: it gives them up."""
    return until is not None and until <= now and state in ("reserved", "starting")


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    quota: str
    kind: Kind
    submitted: int
    estimate_ms: int | None = None
    limit_ms: int | None = None
    deadline: int | None = None
    not_before: int | None = None
    checkpoint: Checkpoint | None = None
    movable: bool = True  # False: the scenario says in so many words that it has no checkpoint
    work_ms: int | None = None
    run: Run = QUEUED
    waits_since: int | None = None  # as of when its wait counts, where for a while it was held, not due or behind other jobs

    @property
    def waiting_since(self) -> int:
        return self.submitted if self.waits_since is None else self.waits_since

    def with_run(self, run: Run, checkpoint: Checkpoint | None = None) -> "Job":
        """The same job elsewhere, in another state or with another checkpoint."""
        return replace(self, run=run, checkpoint=checkpoint or self.checkpoint)


new_job = maker(Job)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything a decision depends on. Lists are in their canonical order, whatever order they came in."""

    now: int
    settings: Settings
    topology: Topology
    nodes: tuple[Node, ...]  # by (path, island, name)
    quotas: tuple[Quota, ...]  # by name
    windows: tuple[Window, ...]  # by (start, name)
    demand: tuple[Demand, ...]
    jobs: tuple[Job, ...]  # by (submitted, name)
    power: PowerCaps = NO_POWER
    apart: tuple[Apart, ...] = ()  # in their order

    @property
    def asks_apart(self) -> bool:
        """Whether anything is asked of neighbours."""
        return self.settings.colocation != "any" or any(pair.measured for pair in self.apart)
