"""The scheduler's tables.

What hardware there is (`inventory`), what runs on it (`jobs`), what runs there that is not ours (`outside`), what was decided (`loop`), what was
ordered (`execution`), what the hardware was good for (`timeline`), what the scheduler counts of itself (`measures`), what people begin with when
they submit (`templates`), what they may ask for again (`repeats`), what views they keep (`saved_views`), what is submitted again and again
(`schedules`), what pools may draw and what their energy costs (`power`), how many replicas of services were wanted (`scaling`), when more jobs may be
moved (`defragmenting`), and what others are told (`notices`).
"""

from scheduler.models.defragmenting import Defragmentation
from scheduler.models.execution import (
    OPEN_SPLITS,
    Checkpoint,
    CheckpointShard,
    GpuSplit,
    Order,
    OrderKind,
    SimulatedRun,
    SlurmCluster,
    SlurmRun,
    SplitState,
)
from scheduler.models.inventory import (
    IN_SERVICE,
    Cluster,
    Domain,
    DrainWay,
    Gpu,
    GpuMode,
    GpuType,
    Health,
    InventoryEvent,
    InventoryImport,
    MigInstance,
    Nic,
    Node,
    PlannedHealth,
    Pool,
    TopologyLevel,
)
from scheduler.models.jobs import ENDED, HOLDING, Attempt, Dependency, Job, JobClass, JobEvent, JobMark, JobState, MarkKind, Placement, Wait, WaitKind
from scheduler.models.loop import KeptApart, Lease, Outlook, PlanRecord, Prediction, Promise, PromisedSeat, Repartition, UsualDemand
from scheduler.models.measures import Measure
from scheduler.models.notices import (
    Delivery,
    DeliveryState,
    Happening,
    HookForm,
    JobFollow,
    Notice,
    NoticeChoices,
    Sending,
    SendingState,
    Webhook,
    WebhookState,
)
from scheduler.models.outside import OutsideJob, OutsideSeat
from scheduler.models.planned_changes import PlannedJobChange
from scheduler.models.power import EnergyForecast, EnergyRate, PowerCap
from scheduler.models.repeats import JobBatch, SubmissionKey
from scheduler.models.replays import GOING_ON, LOST, LOST_AFTER, QuotaReplay, ReplayState
from scheduler.models.saved_views import SavedView, ViewedList
from scheduler.models.scaling import Replacement, ReplacementEnd, ReplacementStep, ReplicaRule, Scaling, ScalingEnd, StepEnd, WorkerState
from scheduler.models.schedules import CatchUp, Overlap, RunOutcome, Schedule, ScheduleRun
from scheduler.models.templates import JobDraft, JobTemplate, JobTemplateVersion, TemplateSpeeds
from scheduler.models.timeline import USES, CapacityEntry, ShareStep, UsageStep
from scheduler.models.traces import Trace

__all__ = [
    "ENDED",
    "GOING_ON",
    "HOLDING",
    "IN_SERVICE",
    "LOST",
    "LOST_AFTER",
    "OPEN_SPLITS",
    "USES",
    "Attempt",
    "CapacityEntry",
    "CatchUp",
    "Checkpoint",
    "CheckpointShard",
    "Cluster",
    "Defragmentation",
    "Delivery",
    "DeliveryState",
    "Dependency",
    "Domain",
    "DrainWay",
    "EnergyForecast",
    "EnergyRate",
    "Gpu",
    "GpuMode",
    "GpuSplit",
    "GpuType",
    "Happening",
    "Health",
    "HookForm",
    "InventoryEvent",
    "InventoryImport",
    "Job",
    "JobBatch",
    "JobClass",
    "JobDraft",
    "JobEvent",
    "JobFollow",
    "JobMark",
    "JobState",
    "JobTemplate",
    "JobTemplateVersion",
    "KeptApart",
    "Lease",
    "MarkKind",
    "Measure",
    "MigInstance",
    "Nic",
    "Node",
    "Notice",
    "NoticeChoices",
    "Order",
    "OrderKind",
    "Outlook",
    "OutsideJob",
    "OutsideSeat",
    "Overlap",
    "Placement",
    "PlanRecord",
    "PlannedHealth",
    "PlannedJobChange",
    "Pool",
    "PowerCap",
    "Prediction",
    "Promise",
    "PromisedSeat",
    "QuotaReplay",
    "Repartition",
    "Replacement",
    "ReplacementEnd",
    "ReplacementStep",
    "ReplayState",
    "ReplicaRule",
    "RunOutcome",
    "SavedView",
    "Scaling",
    "ScalingEnd",
    "Schedule",
    "ScheduleRun",
    "Sending",
    "SendingState",
    "ShareStep",
    "SimulatedRun",
    "SlurmCluster",
    "SlurmRun",
    "SplitState",
    "StepEnd",
    "SubmissionKey",
    "TemplateSpeeds",
    "TopologyLevel",
    "Trace",
    "UsageStep",
    "UsualDemand",
    "ViewedList",
    "Wait",
    "WaitKind",
    "Webhook",
    "WebhookState",
    "WorkerState",
]
