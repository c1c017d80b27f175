"""What the API tells of clusters, nodes and GPUs, and what it takes to act upon them."""

from datetime import datetime
from typing import Any, Literal

from ninja import Schema
from pydantic import Field

from gpufleet.core.taken import SAID, AskedMoment, Storable, Taken
from scheduler.models import DrainWay, GpuMode, Health
from scheduler.services.hardware.draining import MOST_NODES
from scheduler.services.hardware.giving_up import After
from scheduler.services.hardware.hardware import REASON_LENGTH

HEALTH = f"One of {', '.join(Health.values)}."
MODE = f"One of {', '.join(GpuMode.values)}."
# What the services refuse is told here and judged there, so that no rule is written twice.
_ANY_HEALTH: dict[str, Any] = {"enum": list(Health.values)}
REASON: dict[str, Any] = SAID | {"maxLength": REASON_LENGTH}
BACKEND = "local, slurm, kubernetes or simulated. Under any other name nothing is started."


class ClusterRow(Schema):
    id: str
    name: str
    title: str
    backend: str = Field(description=BACKEND)
    nodes: int
    nodes_out_of_service: int
    gpus: int
    allocated_milli: int


class ClustersOut(Schema):
    """One page of clusters. `next` and `previous` go into `after` and `before`; null where there is nothing more."""

    items: list[ClusterRow]
    next: str | None
    previous: str | None


class LevelOut(Schema):
    """A level of the topology, wide to narrow, as the operator names it."""

    name: str
    bandwidth_gbps: int | None = Field(description="Of one node's links into a place of this level.")
    oversubscription: float = Field(description="2: twice as much can be requested as exists.")
    rails: bool = Field(description="GPU i of each node below hangs on rail switch i.")


class BranchOut(Schema):
    """A place of the topology with all that lies below it."""

    name: str
    path: str = Field(description="Its whole name inside the cluster.")
    level: str
    bandwidth_gbps: int | None
    oversubscription: float
    rails: int | None = Field(description="How many rail switches it has; null where its level has none.")
    nodes: int
    nodes_out_of_service: int
    gpus: int
    free_gpus: int = Field(description="Whole, healthy, in service, no spares, not allocated.")
    allocated_milli: int
    node_ids: list[str] = Field(description="Nodes that stand right here, in no narrower place.")
    domains: list["BranchOut"] = Field(description="The places inside it, each like this one.")


class ClusterOut(Schema):
    id: str
    name: str
    title: str
    backend: str = Field(description=BACKEND)
    levels: list[LevelOut] = Field(description="Wide to narrow.")
    pools: list[str]
    topology: list[BranchOut]
    unplaced: list[str] = Field(description="Ids of nodes that stand nowhere in the topology.")
    nodes: int
    gpus: int
    free_gpus: int = Field(description="Whole, healthy, in service, no spares, not allocated.")
    allocated_milli: int
    outside_gpus: int = Field(description="Of those allocated: held by jobs that gpufleet did not start.")
    removed_at: datetime | None = Field(description="When it left the fleet; null: it is part of it.")


class OutsideJobOut(Schema):
    """A job that the cluster runs beside gpufleet's."""

    number: int = Field(description="What the cluster calls it.")
    name: str
    person: str
    partition: str
    gpus: int
    nodes: list[str]
    since: datetime


class OutsidePersonOut(Schema):
    person: str
    jobs: int
    gpu_hours: float


class OutsideOut(Schema):
    """What holds the cluster's GPUs that is not gpufleet's, and the GPU-hours of the last days by person."""

    items: list[OutsideJobOut]
    start: datetime
    end: datetime
    usage: list[OutsidePersonOut]


class HolderJob(Schema):
    id: str
    name: str
    quota: str


class GpuHolderOut(Schema):
    """Who holds a part of a GPU. `job` is null where the caller may not know it."""

    gpu_milli: int
    since: datetime
    job: HolderJob | None
    outside: bool = Field(description="True: a job that gpufleet did not start.")


class MigOut(Schema):
    """One MIG instance: `start` and `size` are memory slices."""

    id: str
    profile: str
    start: int
    size: int
    uuid: str | None


class GpuFacts(Schema):
    id: str
    index: int = Field(description="Its number on the node.")
    uuid: str | None
    type: str
    memory_mib: int
    mode: str = Field(description=MODE)
    health: str = Field(description=HEALTH)
    health_since: datetime
    island: str | None = Field(description="The part of the node with an NVLink of its own; null: the node's.")
    numa_node: int | None
    pcie_generation: int | None
    pcie_width: int | None


class ReadingOut(Schema):
    """What its source reads now: null for what it does not read."""

    at: datetime = Field(description="When it was read.")
    utilization_percent: int | None = Field(description="SM activity.", examples=[71])
    signal: Literal["sm_activity", "driver_utilization"] = Field(
        description="What utilization is: SM activity, or the driver's, which counts a GPU as busy while any kernel runs on it.",
        examples=["sm_activity"],
    )
    tensor_percent: int | None = Field(description="Activity of tensor cores.", examples=[38])
    dram_percent: int | None = Field(description="Memory bandwidth used.", examples=[44])
    memory_percent: int | None = Field(description="Memory used.", examples=[82])
    power_watts: int | None = Field(description="Power.", examples=[612])
    temperature_c: int | None = Field(description="Temperature in °C.", examples=[61])


class GpuRowOut(GpuFacts):
    node: str = Field(description="Id of its node.")
    node_name: str
    cluster: str
    allocated_milli: int
    held_by: list[GpuHolderOut]
    reading: ReadingOut | None = Field(description="What it reads now; null: nothing was read within 45 seconds.")


class GpusOut(Schema):
    """One page of GPUs. `next` and `previous` go into `after` and `before`; null where there is nothing more."""

    items: list[GpuRowOut]
    next: str | None
    previous: str | None


class LayoutOut(Schema):
    """One wanted MIG instance: `start` is a memory slice."""

    profile: str
    start: int = Field(description="The memory slice at which it begins.")


class RepartitionOut(Schema):
    """A repartition that somebody asked for, until it is done: the GPU drains, its back-end is told, and the instances change when it confirms."""

    state: str = Field(description="preview, draining, ordered or refused.", examples=["draining"])
    mode: str = Field(description=MODE)
    instances: list[LayoutOut]
    since: datetime | None = Field(description="When somebody asked for it; null in a preview.")
    by: str
    reason: str
    jobs_ahead: int = Field(description="How many jobs have to end first.", examples=[1])
    fault: str = Field(description="What its back-end said against it; empty for nothing.", examples=[""])
    opening: list[str] = Field(
        description="In a preview: which waiting jobs would start because of it, and what else it opens or closes.",
        examples=[["half-0 with 1 × 3g.40gb would start."]],
    )


class GpuOut(GpuRowOut):
    instances: list[MigOut]
    repartition: RepartitionOut | None = Field(description="The repartition under way, or the last one where it was refused; null for none.")


class GpuOfNode(GpuFacts):
    instances: list[MigOut]
    held_by: list[GpuHolderOut]


class NicOut(Schema):
    id: str
    name: str
    rail: int | None = Field(description="The rail switch that it hangs on.")
    speed_gbps: int
    slow_gbps: float | None = Field(description="What it runs at now, where a source reads less than that; 0: it is down.", examples=[200])
    health: str = Field(description=HEALTH)


class DrainFacts(Schema):
    """How a node is drained."""

    jobs: str = Field(description="What becomes of running jobs: finish, move or stop.")
    at: datetime | None = Field(description="When jobs that still run are moved or stopped.")


class PlannedHealthFacts(Schema):
    """Another health that begins later."""

    id: str
    to: str = Field(description=f"What the node becomes. {HEALTH}")
    begins: datetime = Field(description="When it is to become so.")
    jobs: str | None = Field(description="Of a drain, what becomes of running jobs: finish, move or stop; else null.")
    at: datetime | None = Field(description="Of a drain, when jobs that still run are moved or stopped; null: as it begins.")
    reason: str
    author: str


class PlannedHealthRow(PlannedHealthFacts):
    node: str = Field(description="The id of the node.")
    node_name: str
    cluster: str
    made_at: datetime = Field(description="When it was planned.")


class PlannedHealthsOut(Schema):
    """Planned changes of nodes, those first that begin next."""

    items: list[PlannedHealthRow]
    more: bool = Field(description="Whether there are more than are listed.")


class NodeFacts(Schema):
    id: str
    name: str
    cluster: str
    pool: str | None
    path: str | None = Field(description="Its place in the topology.")
    gpu_type: str | None
    island: str | None = Field(description="The NVLink domain over several nodes that it belongs to; null: it is its own.")
    spare: bool = Field(description="Kept out of normal placement, for replacements.")
    health: str = Field(description=HEALTH)
    health_since: datetime
    health_reason: str
    drain: DrainFacts | None = Field(description="While the node drains; else null.")
    heartbeat_at: datetime | None
    cpus: int
    host_memory_mib: int
    labels: dict[str, Any]
    boundaries: dict[str, str] = Field(
        description="What it enforces between jobs (`cores`, `mig`), each with its source: `backend`, `slurm` or `operator`.",
        examples=[{"cores": "slurm"}],
    )


class HostRow(NodeFacts):
    gpus: int
    sick_gpus: int
    allocated_milli: int


class HostsOut(Schema):
    """One page of nodes. `next` and `previous` go into `after` and `before`; null where there is nothing more."""

    items: list[HostRow]
    next: str | None
    previous: str | None


class HostOut(NodeFacts):
    pcie_gbps: int | None
    pcie_lost: int = Field(description="Percent that the slowest GPU has lost of it, while a health rule finds that.", examples=[0])
    nvme_gbps: int | None
    removed_at: datetime | None = Field(description="When it was taken out of the fleet.")
    planned_health: PlannedHealthFacts | None = Field(description="Another health of it that has not begun yet; else null.")
    nics: list[NicOut]
    gpus: list[GpuOfNode]


class MomentOut(Schema):
    """One thing that happened to a piece of hardware. `before` and `after` hold what changed, by field."""

    at: datetime
    kind: str = Field(description="added, removed, health, geometry, spare or changed.")
    gpu: str | None = Field(description="Id of the GPU; null: the node itself.")
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    cause: str
    by: str


class MomentsOut(Schema):
    """The latest first."""

    items: list[MomentOut]


class HealthOut(Schema):
    id: str
    health: str = Field(description=HEALTH)
    since: datetime
    reason: str


class NodeHealthOut(HealthOut):
    planned: PlannedHealthFacts | None = Field(description="What was planned by this; null: it was done at once.")
    told: list[str] = Field(description="Of a dry run, what it would do, in sentences; else empty.")


class SpareOut(Schema):
    id: str
    spare: bool


class GeometryOut(Schema):
    id: str
    mode: str = Field(description=MODE)
    instances: list[MigOut]
    repartition: RepartitionOut | None = Field(description="The repartition under way, or the last one where it was refused; null for none.")


class GeometryQuery(Schema):
    dry_run: bool = Field(False, description="Say what it would do, and change nothing.")


class ProfileOut(Schema):
    """One kind of instance. `usable_mib` is what a process can allocate; the name promises more than that."""

    name: str
    compute: int = Field(description="Compute slices.")
    memory: int = Field(description="Memory slices.")
    starts: list[int] = Field(description="The memory slices at which it may begin.")
    most: int = Field(description="How many of them one GPU can have.")
    usable_mib: int
    charge_milli: int = Field(description="What an instance is charged, in thousandths of a GPU: its memory slices.")
    sms: int | None = Field(description="Multiprocessors of an instance, on an SXM module; null where they aren't known.")
    inferred: bool = Field(description="Derived from sister boards, not read off a device.")


class BoardOut(Schema):
    name: str
    memory_slices: int
    compute_slices: int
    sms: int | None = Field(description="Multiprocessors of the whole GPU, as an SXM module; null where they aren't known.")
    profiles: list[ProfileOut]


class BoardsOut(Schema):
    items: list[BoardOut]


class HealthIn(Taken):
    to: str = Field(description="What it becomes; not every health follows on every other.", json_schema_extra=_ANY_HEALTH)
    reason: str = Field(description="Kept in its history and in the audit log.", json_schema_extra=REASON)
    seen: str | None = Field(None, description="The health that was read: if it has changed since, the answer is 409.")


class NodeHealthIn(HealthIn):
    begins: AskedMoment | None = Field(None, description="When it becomes so; null: at once. It is checked again then.")


class DrainIn(Taken):
    nodes: list[str] = Field(description="Ids of the nodes, as `GET /nodes` has them.", min_length=1, max_length=MOST_NODES)
    jobs: str = Field(
        DrainWay.FINISH.value,
        description="What becomes of running jobs: finish, move (those that may be preempted), stop (all).",
        json_schema_extra={"enum": list(DrainWay.values)},
    )
    at: AskedMoment | None = Field(None, description="When jobs that still run are moved or stopped; null: at once. Not with finish.")
    begins: AskedMoment | None = Field(None, description="When the drain begins; null: at once. Until then the nodes take jobs as usual.")
    reason: str = Field(description="Kept in its history and in the audit log.", json_schema_extra=REASON)


class GiveUpIn(Taken):
    jobs: str = Field(
        After.REQUEUE.value,
        description="What becomes of the jobs: requeue (those that fit another cluster; the others fail), fail (all).",
        json_schema_extra={"enum": [after.value for after in After]},
    )
    confirm: str = Field("", description="The name of the cluster once more. Not needed with `dry_run`.", max_length=60)
    reason: str = Field(description="Kept in the history of each job and in the audit log.", json_schema_extra=REASON)


class GivenUpJobOut(Schema):
    """What becomes of one job."""

    id: str
    name: str
    quota: str
    gpus_milli: int
    fits: bool = Field(description="Another cluster that answers has GPUs as it needs them.")
    requeued: bool = Field(description="It waits again. Otherwise it fails, or becomes what it was asked to leave for.")


class GiveUpOut(Schema):
    silent_since: datetime = Field(description="When the cluster answered last.")
    jobs: list[GivenUpJobOut] = Field(description="Jobs there that the caller may see.")
    others: int = Field(description="Jobs of other teams there.")
    requeued: int = Field(description="Of all of them those that wait again.")
    uncharged_milli_seconds: int = Field(description="GPU time held since then, in thousandths of a GPU times seconds. It is not charged.")
    uncharged_micros: int | None = Field(description="What it costs at the guaranteed rate; null for those who may not see costs.")


class RemovalIn(Taken):
    confirm: str = Field("", description="The name of the cluster once more. Not needed with `dry_run`.", max_length=60)
    reason: str = Field(description="Kept in the history of each node and in the audit log.", json_schema_extra=REASON)


class RemovalOut(Schema):
    """What leaves the fleet."""

    nodes: int = Field(description="How many nodes.")
    gpus: int
    planned: int = Field(description="Planned drains and other changes of health of its nodes, which do not begin.")
    stranded: int = Field(description="Waiting jobs that fit no other cluster.")
    folder: str = Field(description="Shared folder where logs and checkpoints stay; empty where there is none.")


class DrainQuery(Schema):
    dry_run: bool = Field(False, description="Say what it would do, and change nothing.")


class HealthCallOffQuery(Storable, Schema):
    plan: str = Field("", max_length=24, description="The id of the planned change that is meant; empty: whichever it is.")
    reason: str = Field("", max_length=500, description="Kept in the history of the node.")


class DrainNodeOut(Schema):
    id: str
    name: str
    health: str = Field(description=HEALTH)


class DrainJobOut(Schema):
    """What becomes of one job."""

    id: str
    name: str
    quota: str
    gpus_milli: int
    ends_at: datetime | None = Field(description="By its estimate, else by its time limit.")
    fate: str = Field(description="ends (before the moment), moved, stopped, or stays.")
    leaves_at: datetime | None = Field(description="When it is asked to save and leave.")
    lost_seconds: int = Field(description="Work since its last checkpoint by then.")


class DrainOut(Schema):
    nodes: list[DrainNodeOut]
    jobs: list[DrainJobOut] = Field(description="Jobs that run on the nodes and that the caller may see.")
    others: int = Field(description="Jobs of other teams that run there.")
    asked: int = Field(description="Jobs that were asked to save and leave at once.")
    told: int = Field(description="Jobs whose owners were told of the moment.")


class SpareIn(Taken):
    spare: bool = Field(description="Whether it is kept out of normal placement, for replacements.")
    reason: str = Field(description="Kept in its history and in the audit log.", json_schema_extra=REASON)


class BoundariesIn(Taken):
    boundaries: list[Literal["cores", "mig"]] = Field(description="`cores`: jobs are pinned to their processors; `mig`: instances are enforced.")
    reason: str = Field(description="Kept in its history and in the audit log.", json_schema_extra=REASON)


class BoundariesOut(Schema):
    id: str
    boundaries: dict[str, str] = Field(description="What it enforces between jobs, each with its source.", examples=[{"cores": "operator"}])


class InstanceIn(Taken):
    profile: str = Field(description="As `GET /mig/boards` names it.")
    start: int = Field(description="The memory slice at which it begins.")


class GeometryIn(Taken):
    """`mode` whole takes no instances. `seen` is the layout that the caller started from; a newer one is answered with 409."""

    mode: Literal["mig", "whole"]
    instances: list[InstanceIn] = []
    seen: list[InstanceIn] | None = None
    reason: str = Field(description="Kept in its history and in the audit log.", json_schema_extra=REASON)
