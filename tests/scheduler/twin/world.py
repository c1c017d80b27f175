"""A scenario in whole numbers with every default filled in, and nothing cleverer than that.

Times are milliseconds relative to `now`, GPUs are milli-GPU, memory is MiB. The objects are small bags of values: rules live elsewhere.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime
from fractions import Fraction
from typing import Any

from .boards import charge_milli, profiles_of

ALL = "all types"  # the name of the one division of a tree whose guarantees are numbers
CLASSES = ("batch", "interactive", "inference")  # lowest first
HOLDING = ("reserved", "starting", "running")  # states that count in A and N

DEFAULT_SETTINGS: dict[str, Any] = {
    "placement": "pack",
    "passes": None,
    "preemption": True,
    "consolidation": True,
    "backfill": True,
    "max_moves": 4,
    "preempt_min_runtime_s": 0,
    "reclaim_min_runtime_s": 0,
    "stale_grace_s": 60,
    "hysteresis_s": 0,
    "backfill_depth": 8,
    "backfill_notice_s": 120,
    "overrun": 1.0,
    "window_horizon_s": 1209600,
    "repartition_per_hour": 6,
    "max_wait_s": {},
    "worth": {},
    "fairness": {},
    "sharing_trust": "quota",
    "colocation": "any",
    "forecast": "all",
}


@dataclass(frozen=True)
class Worker:
    role: str
    index: int
    node: str
    gpus: tuple[int, ...]
    share: int | None = None  # milli-GPU on each of its GPUs
    mig: tuple[tuple[str, int], ...] | None = None  # (profile, start) on each of its GPUs

    @property
    def key(self) -> tuple[str, int]:
        return (self.role, self.index)


@dataclass(frozen=True)
class Role:
    name: str
    min: int
    max: int
    step: int
    desired: int | None
    gpus: int
    mig: str | None
    memory_mib: int | None
    share: int | None
    devices: int
    gpu_types: tuple[str, ...]
    cpus: Fraction
    host_mib: int
    topology: dict[str, Any]

    @property
    def most(self) -> int:
        """What it may hold now: a service wants no more than `desired`, but never less than its minimum."""
        return self.max if self.desired is None else max(self.min, min(self.max, self.desired))

    @property
    def whole(self) -> bool:
        return self.mig is None and self.memory_mib is None and self.share is None


@dataclass
class Job:
    name: str
    quota: str
    cls: str
    priority: int
    preemptible: bool | str
    submitted: int
    roles: dict[str, Role]
    topology: dict[str, Any]
    sharing: str
    node_labels: dict[str, str]
    needs: dict[str, float]
    tolerates_suspect: bool
    preemption_delay: int
    estimate: int | None
    limit: int | None
    not_before: int | None
    checkpoint: dict[str, Any] | None
    checkpoint_stated: bool
    grace: int
    throughput: dict[str, float]
    state: str
    since: int
    started: int | None
    until: int | None
    workers: tuple[Worker, ...]
    leaving: tuple[Worker, ...]
    backfilled: bool
    degraded_since: int | None
    last_evicted: int | None
    last_moved: int | None
    evictions: int
    reclaimed: int | None
    tenant: str = ""

    @property
    def rank(self) -> tuple[int, int]:
        """(class, number): what priority means."""
        return (CLASSES.index(self.cls), self.priority)

    @property
    def holds(self) -> bool:
        return self.state in HOLDING

    def count(self, role: str) -> int:
        return sum(worker.role == role for worker in self.workers)

    @property
    def missing(self) -> bool:
        """Below the minimum of a role: degraded where it runs, of course so where it waits."""
        return any(self.count(role.name) < role.min for role in self.roles.values())


@dataclass
class Node:
    name: str
    gpu_type: str
    gpus: int
    memory_mib: int
    path: tuple[str, ...]  # cluster, the levels, node: the prefix of length i + 1 is the domain at level i
    quota_type: str
    island: str
    islands: tuple[tuple[int, ...], ...] | None
    health: str
    unhealthy: frozenset[int]
    spare: bool
    cpus: Fraction | None
    host_mib: int | None
    labels: dict[str, str]
    attributes: dict[str, float]
    mig: dict[int, tuple[tuple[str, int], ...]]
    repartitioned: tuple[int, ...]  # how long ago, below zero
    boundaries: tuple[str, ...] = ()

    @property
    def alive(self) -> bool:
        """Whether its GPUs are capacity."""
        return self.health in ("healthy", "suspect")

    def good_gpus(self) -> list[int]:
        return [gpu for gpu in range(self.gpus) if gpu not in self.unhealthy]

    def island_of(self, gpu: int) -> tuple[str, int]:
        """A name for the NVLink domain of one GPU; -1 stands for the whole node, or for an island over several nodes."""
        if self.islands is None:
            return (self.island, -1)
        part = next((number for number, members in enumerate(self.islands) if gpu in members), None)
        return (self.name, 1000 + gpu if part is None else part)


@dataclass
class Quota:
    name: str
    parent: str | None
    guaranteed: int | dict[str, int] | None
    limit: int | dict[str, int | None] | None
    weight: Fraction | dict[str, Fraction]
    priority: int | dict[str, int]
    preempt_min_runtime: int | None
    reclaim_min_runtime: int | None
    created: int
    usage: float | dict[str, float]


@dataclass
class Window:
    name: str
    quota: str | None
    cls: str | None
    milli: int
    gpu_type: str | None
    level: str | None
    start: int
    end: int | None
    notice: int
    decay: int | None

    def open_at(self, time: int) -> bool:
        return self.start <= time and (self.end is None or time < self.end)


def _due(not_before: int | None, submitted: int) -> int | None:
    """Who comes only later is not due before."""
    return not_before if submitted <= 0 else max(submitted, not_before or submitted)


@dataclass
class World:
    now: datetime
    settings: dict[str, Any]
    levels: list[str]  # from "cluster" to "node"
    nodes: dict[str, Node]
    quotas: dict[str, Quota]
    windows: list[Window]
    jobs: dict[str, Job] = field(default_factory=dict)
    apart: frozenset[tuple[str, str, str]] = frozenset()  # (service, other, where)
    measured: frozenset[tuple[str, str, str]] = frozenset()  # those of them that count whatever the setting

    @property
    def by_type(self) -> bool:
        """Whether the tree speaks in maps: one division per quota type."""
        return any(isinstance(quota.guaranteed, dict) for quota in self.quotas.values())

    def divisions(self) -> list[str]:
        return sorted({node.quota_type for node in self.nodes.values()}) if self.by_type else [ALL]

    def division_of(self, node: str) -> str:
        return self.nodes[node].quota_type if self.by_type else ALL

    def ancestry(self, quota: str) -> list[str]:
        """The node itself, its parent, and so on up to the top."""
        line = [quota]
        while (parent := self.quotas[line[-1]].parent) is not None:
            line.append(parent)
        return line

    def children(self, parent: str | None) -> list[str]:
        return sorted(name for name, quota in self.quotas.items() if quota.parent == parent)

    def charge(self, worker: Worker, role: Role) -> int:
        """What a placed worker costs in milli-GPU."""
        node = self.nodes[worker.node]
        if worker.mig is not None:
            return sum(charge_milli(node.gpu_type, profile) for profile, _ in worker.mig)
        if worker.share is not None:
            return worker.share * len(worker.gpus)
        return charge_on(role, node)

    def held(self, job: Job, division: str) -> int:
        """What the job counts in A of a division."""
        if not job.holds:
            return 0
        return sum(self.charge(w, job.roles[w.role]) for w in job.workers if self.division_of(w.node) == division)

    def capacity(self, division: str) -> int:
        """Healthy milli-GPU. A spare is none: it serves replacements only, so nobody's share may count on it."""
        nodes = [node for node in self.nodes.values() if node.alive and not node.spare and division in (ALL, node.quota_type)]
        return 1000 * sum(len(node.good_gpus()) for node in nodes)

    def domain(self, node: str, level: str) -> tuple[str, ...]:
        return self.nodes[node].path[: self.levels.index(level) + 1]

    def with_job(self, job: Job) -> "World":
        return replace(self, jobs={**self.jobs, job.name: job})


def charge_on(role: Role, node: Node) -> int:
    """What one worker of the role costs on a node of this kind."""
    if role.mig is not None:
        return charge_milli(node.gpu_type, role.mig) * role.devices if role.mig in profiles_of(node.gpu_type) else 0
    if role.share is not None:
        return role.share * role.devices
    if role.memory_mib is not None:
        share = max(1, 1000 * role.memory_mib // node.memory_mib) if node.memory_mib else 1000
        return share * role.devices
    return 1000 * role.gpus


def _exact(number: float) -> Fraction:
    return Fraction(str(number))


def _each(read: Any, value: Any) -> Any:
    """A value for every type, or one for each that a map names."""
    return {name: read(one) for name, one in value.items()} if isinstance(value, dict) else read(value)


def milli(number: float) -> int:
    return int(_exact(number) * 1000)


def _mib(gigabytes: float) -> int:
    return int(_exact(gigabytes) * 1024)


class Reader:
    """Turns the document into values; `now` is needed for every time in it."""

    def __init__(self, scenario: dict[str, Any]) -> None:
        self.now = datetime.fromisoformat(scenario["now"])
        self.levels = ["cluster", *(scenario.get("topology") or {}).get("levels", []), "node"]
        self.memory = {node["name"]: _mib(node.get("gpu_memory_gb") or 0) for node in scenario["nodes"]}

    def time(self, value: float | str | None) -> int | None:
        if isinstance(value, str):
            return round((datetime.fromisoformat(value) - self.now).total_seconds() * 1000)
        return None if value is None else int(_exact(value) * 1000)

    def seconds(self, value: float | None) -> int | None:
        return None if value is None else int(_exact(value) * 1000)

    def quantity(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: None if number is None else milli(number) for name, number in value.items()}
        return None if value is None else milli(value)

    def node(self, raw: dict[str, Any]) -> Node:
        path = raw.get("path") or {}
        domains = (raw.get("cluster") or "default", *(path[level] for level in self.levels[1:-1] if level in path), raw["name"])
        return Node(
            name=raw["name"],
            gpu_type=raw["gpu_type"],
            gpus=raw["gpus"],
            memory_mib=_mib(raw["gpu_memory_gb"]) if raw.get("gpu_memory_gb") else 0,
            path=domains,
            quota_type=raw.get("quota_type") or raw["gpu_type"],
            island=raw.get("island") or raw["name"],
            islands=tuple(map(tuple, raw["islands"])) if raw.get("islands") else None,
            health=raw.get("health", "healthy"),
            unhealthy=frozenset(raw.get("unhealthy_gpus") or []),
            spare=raw.get("spare", False),
            cpus=None if raw.get("cpus") is None else _exact(raw["cpus"]),
            host_mib=None if raw.get("host_memory_gb") is None else _mib(raw["host_memory_gb"]),
            labels=raw.get("labels") or {},
            attributes=raw.get("attributes") or {},
            mig={gpu["gpu"]: tuple((i["profile"], i["start"]) for i in gpu["instances"]) for gpu in raw.get("mig") or []},
            repartitioned=tuple(self.time(at) or 0 for at in raw.get("repartitioned") or []),
            boundaries=tuple(raw.get("boundaries") or ()),
        )

    def quota(self, raw: dict[str, Any]) -> Quota:
        return Quota(
            name=raw["name"],
            parent=raw.get("parent"),
            guaranteed=self.quantity(raw.get("guaranteed", 0)),
            limit=self.quantity(raw.get("limit")),
            weight=_each(_exact, raw.get("weight", 1)),
            priority=raw.get("priority", 100),
            preempt_min_runtime=self.seconds(raw.get("preempt_min_runtime_s")),
            reclaim_min_runtime=self.seconds(raw.get("reclaim_min_runtime_s")),
            created=self.time(raw.get("created", 0)) or 0,
            usage=raw.get("usage") or 0,
        )

    def window(self, raw: dict[str, Any]) -> Window:
        return Window(
            name=raw["name"],
            quota=raw.get("quota"),
            cls=raw.get("class"),
            milli=milli(raw["gpus"]),
            gpu_type=raw.get("gpu_type"),
            level=raw.get("level"),
            start=self.time(raw["start"]) or 0,
            end=self.time(raw.get("end")),
            notice=self.seconds(raw.get("notice_s", 0)) or 0,
            decay=self.seconds(raw.get("decay_s")),
        )

    def role(self, raw: dict[str, Any]) -> Role:
        least = raw.get("min", 1)
        return Role(
            name=raw["name"],
            min=least,
            max=raw.get("max", least),
            step=raw.get("step", 1),
            desired=raw.get("desired"),
            gpus=raw.get("gpus", 0),
            mig=raw.get("mig"),
            memory_mib=_mib(raw["gpu_memory_gb"]) if raw.get("gpu_memory_gb") is not None else None,
            share=milli(raw["gpu_share"]) if raw.get("gpu_share") is not None else None,
            devices=raw.get("devices") or 1,
            gpu_types=tuple(raw.get("gpu_types") or ()),
            cpus=_exact(raw.get("cpus") or 0),
            host_mib=_mib(raw.get("host_memory_gb") or 0),
            topology=raw.get("topology") or {},
        )

    def worker(self, raw: dict[str, Any], roles: dict[str, Role]) -> Worker:
        """A worker that runs; the size of its part goes without saying."""
        worker, role = worker_of(raw), roles[raw["role"]]
        if role.whole or worker.mig is not None or worker.share is not None:
            return worker
        memory = self.memory[worker.node]
        share = role.share if role.memory_mib is None else max(1, 1000 * role.memory_mib // memory) if memory else 1000
        return replace(worker, share=share)

    def as_of_now(self, raw: dict[str, Any]) -> dict[str, Any]:
        """A reserved or starting job holds its places until its `until`. Then it waits again, or first leaves what else it has to leave."""
        until = self.time(raw.get("until"))
        if raw.get("state") not in ("reserved", "starting") or until is None or until > 0:
            return raw
        told = {key: value for key, value in raw.items() if key not in ("since", "started", "backfilled", "degraded_since", "reclaimed")}
        if raw.get("leaving"):
            return {**told, "state": "stopping", "workers": raw["leaving"], "leaving": []}
        return {**told, "state": "queued", "until": None, "workers": []}

    def job(self, raw: dict[str, Any]) -> Job:
        cls = raw.get("class", "batch")
        preemptible = raw.get("preemptible")
        roles = {role["name"]: self.role(role) for role in raw["roles"]}
        raw = self.as_of_now(raw)
        return Job(
            name=raw["name"],
            quota=raw["quota"],
            cls=cls,
            priority=raw.get("priority", 0),
            preemptible=preemptible if preemptible is not None else ("when_borrowed" if cls == "inference" else True),
            submitted=self.time(raw.get("submitted", 0)) or 0,
            roles=roles,
            topology=raw.get("topology") or {},
            sharing=raw.get("sharing") or _usual_sharing(roles),
            node_labels=raw.get("node_labels") or {},
            needs=raw.get("needs") or {},
            tolerates_suspect=raw.get("tolerates_suspect", False),
            preemption_delay=self.seconds(raw.get("preemption_delay_s") or 0) or 0,
            estimate=self.seconds(raw.get("estimate_s")),
            limit=self.seconds(raw.get("limit_s")),
            not_before=_due(self.time(raw.get("not_before")), self.time(raw.get("submitted", 0)) or 0),
            checkpoint=raw.get("checkpoint"),
            checkpoint_stated="checkpoint" in raw,
            grace=self.seconds(raw.get("grace_s", 0)) or 0,
            throughput=raw.get("throughput") or {},
            state=raw.get("state", "queued"),
            since=self.time(raw.get("since", 0)) or 0,
            started=self.time(raw.get("started")),
            until=self.time(raw.get("until")),
            workers=tuple(self.worker(w, roles) for w in raw.get("workers") or []),
            leaving=tuple(self.worker(w, roles) for w in raw.get("leaving") or []),
            backfilled=raw.get("backfilled", False),
            degraded_since=self.time(raw.get("degraded_since")),
            last_evicted=self.time(raw.get("last_evicted")),
            last_moved=self.time(raw.get("last_moved")),
            evictions=raw.get("evictions", 0),
            reclaimed=self.time(raw.get("reclaimed")),
            tenant=raw.get("tenant") or "",
        )


def _usual_sharing(roles: dict[str, Role]) -> str:
    if any(role.mig is not None for role in roles.values()):
        return "mig"
    return "exclusive" if all(role.whole for role in roles.values()) else "mps"


def worker_of(raw: dict[str, Any]) -> Worker:
    parts = raw.get("mig")
    parts = [parts] if isinstance(parts, dict) else parts
    share = raw.get("gpu_share")
    return Worker(
        role=raw["role"],
        index=raw["index"],
        node=raw["node"],
        gpus=tuple(raw.get("gpus") or ()),
        share=None if share is None else milli(share),
        mig=None if not parts else tuple((part["profile"], part["start"]) for part in parts),
    )


def read(scenario: dict[str, Any]) -> World:
    """The scenario as values. It must be a valid one: faults are the engine's to find."""
    reader = Reader(scenario)
    stated = scenario.get("settings") or {}
    return World(
        now=reader.now,
        settings={**DEFAULT_SETTINGS, **{key: value for key, value in stated.items() if value is not None or key in ("max_moves", "passes")}},
        levels=reader.levels,
        nodes={raw["name"]: reader.node(raw) for raw in scenario["nodes"]},
        quotas={raw["name"]: reader.quota(raw) for raw in scenario["quotas"]},
        windows=[reader.window(raw) for raw in scenario.get("reservations") or []],
        jobs={raw["name"]: reader.job(raw) for raw in scenario["jobs"]},
        apart=frozenset((pair["service"], pair["other"], pair["where"]) for pair in scenario.get("apart") or []),
        measured=frozenset((pair["service"], pair["other"], pair["where"]) for pair in scenario.get("apart") or [] if pair.get("measured")),
    )
