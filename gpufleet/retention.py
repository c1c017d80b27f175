"""How long each kind of row is kept (OPS-6). One table says it all: docs/operate/retention.md shows it, and a test holds every model to it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.apps import apps
from django.db import models, transaction

from gpufleet.core.partitions import Series, is_partitioned, partitions_keep

STEP_ROWS = 500
STEPS_A_CALL = 4
# How wide partitions are: what is past its time stays longer by that much at most.
HALF_DAY, DAY, FORTNIGHT = timedelta(hours=12), timedelta(days=1), timedelta(days=14)


@dataclass(frozen=True, slots=True)
class Kind:
    """Rows of one model. `keep` None: for ever. `column` is the moment that the time counts from.

    `part`: on PostgreSQL its table is partitioned by time, and each partition of these rows is so wide.
    """

    model: str
    keep: timedelta | None
    column: str = ""
    why: str = ""
    only: Mapping[str, Any] = field(default_factory=dict)  # of the model's rows, where not all are meant
    part: timedelta | None = None

    def rows(self) -> type[models.Model]:
        return apps.get_model(self.model)


KINDS: tuple[Kind, ...] = (
    Kind("core.Change", timedelta(minutes=10), "at", "Only browsers that were just connected read it; others take a fresh snapshot."),
    Kind(
        "dashboards.TelemetryMinute", timedelta(hours=48), "at", "Rules look back at most two days; coarser roll-ups are made from it.", part=HALF_DAY
    ),
    Kind("dashboards.GpuRollup", timedelta(days=30), "at", "A month in quarters of an hour.", {"span": 900}, DAY),
    Kind("dashboards.GpuRollup", timedelta(days=400), "at", "A year in hours can be compared with the year before.", {"span": 3600}, FORTNIGHT),
    Kind("dashboards.JobRollup", timedelta(hours=48), "at", "As for telemetry minutes.", {"span": 60}, HALF_DAY),
    Kind("dashboards.JobRollup", timedelta(days=30), "at", "A month in quarters of an hour.", {"span": 900}, DAY),
    Kind("dashboards.JobRollup", timedelta(days=400), "at", "A year in hours can be compared with the year before.", {"span": 3600}, FORTNIGHT),
    Kind("dashboards.GapRollup", timedelta(hours=48), "at", "As for telemetry minutes.", {"span": 60}, HALF_DAY),
    Kind("dashboards.GapRollup", timedelta(days=30), "at", "A month in quarters of an hour.", {"span": 900}, DAY),
    Kind("dashboards.GapRollup", timedelta(days=400), "at", "A year in hours can be compared with the year before.", {"span": 3600}, FORTNIGHT),
    Kind("dashboards.FragmentationRollup", timedelta(hours=48), "at", "As for telemetry minutes.", {"span": 60}, HALF_DAY),
    Kind("dashboards.FragmentationRollup", timedelta(days=30), "at", "A month in quarters of an hour.", {"span": 900}, DAY),
    Kind(
        "dashboards.FragmentationRollup",
        timedelta(days=400),
        "at",
        "A year in hours can be compared with the year before.",
        {"span": 3600},
        FORTNIGHT,
    ),
    Kind("dashboards.GapNewest", None, why="One row, overwritten each minute."),
    Kind("dashboards.GapPart", None, why="A few hundred rows; the gap of a year ago names them."),
    Kind("dashboards.NodeSample", timedelta(days=14), "at", "Long enough to look back at a fortnight's incidents."),
    Kind("dashboards.ServiceSample", timedelta(days=14), "at", "As for samples of nodes."),
    Kind("dashboards.ServiceBreach", timedelta(days=400), "until", "A year of breaches can be compared with the year before."),
    Kind("dashboards.RunLearned", timedelta(days=90), "since", "A quarter: what is learned of a template is of its newest 100 runs of that time."),
    Kind("dashboards.FleetSample", timedelta(days=400), "at", "A year can be compared with the year before."),
    Kind("dashboards.ActivityEntry", timedelta(days=90), "at", "A quarter: what happened; episodes, incidents and alerts have their own rows."),
    Kind("dashboards.HealthBucket", timedelta(days=31), "at", "A month of raw hardware state, for dry runs of rules. Healthy hardware leaves none."),
    Kind("dashboards.HealthFinding", timedelta(days=400), "cleared_at", "As for incidents."),
    Kind("dashboards.Incident", timedelta(days=400), "closed_at", "What happened to a machine, and what it cost."),
    Kind("dashboards.Straggler", timedelta(days=90), "ended_at", "A quarter: which GPUs were slow."),
    Kind("dashboards.Alert", timedelta(days=400), "resolved_at", "What fired, and the person who acknowledged it."),
    Kind("dashboards.IdleEpisode", timedelta(days=400), "ended_at", "A year of waste can be compared with the year before."),
    Kind("scheduler.JobEvent", timedelta(days=400), "at", "As above: why a job waited or went."),
    Kind("scheduler.Scaling", timedelta(days=400), "at", "As above: how many replicas were wanted, and how soon they were there."),
    Kind("scheduler.Relieved", timedelta(days=400), "at", "As for breaches: which jobs were evicted for a service."),
    Kind("scheduler.Relief", None, why="One row a service that was in a breach, and gone with it."),
    Kind("scheduler.Replacement", timedelta(days=400), "over_at", "As for scalings: which replicas were replaced, and what came of it."),
    Kind("scheduler.ReplacementStep", None, why="A few rows a replacement, and gone with it."),
    Kind("scheduler.WorkerState", timedelta(days=1), "since", "Of runs that ended only.", {"attempt__ended_at__isnull": False}),
    Kind("scheduler.InventoryEvent", timedelta(days=400), "at", "As above: what happened to a machine."),
    Kind("scheduler.InventoryImport", timedelta(days=7), "created_at", "A preview that was not applied is out of date.", {"applied_at": None}),
    Kind("scheduler.InventoryImport", timedelta(days=400), "applied_at", "As for inventory events: what was imported."),
    Kind("scheduler.OutsideJob", timedelta(days=400), "until", "A year of what others used can be compared with the year before."),
    Kind("scheduler.PlanRecord", timedelta(days=7), "at", "Long enough to ask why a week's decision was taken; its scenario goes after three hours."),
    Kind("scheduler.Prediction", timedelta(days=90), "at", "Ranges of foreseen starts are learnt from the newest; a quarter can be looked back on."),
    Kind("scheduler.Order", timedelta(days=7), "done_at", "What a back-end has done; as for plans."),
    Kind("scheduler.Repartition", timedelta(days=7), "at", "The rate per pool counts the last hour; as for plans."),
    Kind("scheduler.GpuSplit", timedelta(days=400), "settled_at", "As for inventory events: it names the user that repartitioned a GPU."),
    Kind("scheduler.Defragmentation", timedelta(days=400), "ended_at", "As for inventory events: it names the user that had jobs moved."),
    Kind("scheduler.PlannedHealth", None, why="Goes when the change begins or is called off."),
    Kind("scheduler.PlannedJobChange", None, why="Goes when the change begins or is called off."),
    Kind("scheduler.UsageStep", timedelta(days=7), "at", "Only the newest is gone on from; as for plans."),
    Kind("scheduler.ShareStep", timedelta(days=31), "at", "A row an hour, for the plot of fairness over a month."),
    Kind("scheduler.SubmissionKey", timedelta(days=7), "at", "A client that tries a submission again does so within minutes."),
    Kind("scheduler.SubmissionRate", None, why="A row for each person and node with submissions; goes with them."),
    Kind(
        "scheduler.JobBatch",
        timedelta(days=90),
        "at",
        "A quarter: what became of each job; the audit log keeps it for ever.",
    ),
    Kind("scheduler.QuotaReplay", timedelta(days=30), "asked_at", "A month: what-ifs of the last days; one runs them again."),
    Kind("scheduler.Trace", None, why="At most 50, removed by people who no longer replay them."),
    Kind("scheduler.Sweep", timedelta(days=90), "asked_at", "A quarter: what capacity was planned by; one runs them again."),
    Kind("scheduler.ScheduleRun", timedelta(days=90), "at", "A quarter: what came of each time; its jobs are kept for ever."),
    Kind("quotas.CostExport", timedelta(days=30), "asked_at", "A month: it names each file and its requester; the file is deleted when it expires."),
    Kind("quotas.Window", timedelta(days=400), "ends_at", "As for job events: what was held when, and the jobs that left for it."),
    Kind("scheduler.Delivery", timedelta(days=14), "done_at", "Long enough to see what a webhook was sent, and to send it again."),
    Kind("scheduler.Notice", timedelta(days=90), "at", "A quarter: notifications to people about their jobs."),
    Kind("sessions.Session", timedelta(0), "expire_date", "An expired session signs no one in."),
    Kind("core.AuditEntry", None, why="The record of changes is permanent; the database refuses to change or delete it."),
    Kind("quotas.Reservation", None, why="Cancelled, not deleted: windows and the audit log name them."),
    Kind("quotas.Budget", None, why="Removed, not deleted: the audit log names them."),
    Kind("scheduler.PowerCap", None, why="A few, until somebody removes them; the audit log keeps what they were."),
    Kind("scheduler.EnergyRate", None, why="As for power caps."),
    Kind("scheduler.EnergyForecast", None, why="One row a pool, overwritten."),
    Kind("quotas.BudgetDay", None, why="A row a day; periods can be compared with those before."),
    Kind("quotas.BudgetException", None, why="It explains why a budget was exceeded."),
    Kind("core.User", None, why="The audit log and the jobs name them; a person who leaves is switched off."),
    Kind("core.Sequence", None, why="A number is never used twice."),
    Kind("core.Installation", None, why="One row."),
    Kind("core.Feed", None, why="One row."),
    Kind("core.Progress", None, why="One row for each piece of work that goes on for ever."),
    Kind("quotas.QuotaNode", None, why="Archived, not deleted: what was used is charged to it."),
    Kind("quotas.QuotaShare", None, why="Part of its node."),
    Kind("quotas.QuotaChange", None, why="The history of the tree; a change is withdrawn or reverted, not deleted."),
    Kind("quotas.QuotaPath", None, why="Under which path a node used what, for budgets: a row for each path that it had before."),
    Kind("quotas.QuotaVersion", None, why="The tree as of any time in the past."),
    Kind("quotas.RoleBinding", None, why="Goes when the role is taken away; the audit log keeps the fact."),
    Kind("quotas.ServiceToken", None, why="Revoked, not deleted: the audit log names it."),
    Kind("quotas.RateCard", None, why="What was charged must be explicable."),
    Kind("quotas.ChargeMonth", None, why="The books; the database refuses to change a closed month."),
    Kind("quotas.ChargeLine", None, why="Part of its month."),
    Kind("quotas.ChargeSum", None, why="Part of its month: some hundred rows."),
    Kind("quotas.ChargeUse", None, why="A row a job and day: the efficiency of months that are over."),
    Kind("quotas.ChargeIdle", None, why="Part of its month."),
    Kind("quotas.ChargeIdleDay", None, why="Part of its month: some hundred rows."),
    Kind("quotas.CostMail", None, why="Removed, not deleted: the audit log names them."),
    Kind("quotas.CostMailing", None, why="A row a month and recipient of cost e-mails."),
    Kind("quotas.Reconciliation", None, why="How a month was explained against its invoice."),
    Kind("quotas.RateLine", None, why="Part of its card."),
    Kind("quotas.LedgerEntry", None, why="Usage by person and account; the database refuses to change or delete it."),
    Kind("quotas.LedgerClock", None, why="One row."),
    Kind("scheduler.CapacityEntry", None, why="What every GPU was good for; the ledger is held against it."),
    Kind("scheduler.GpuType", None, why="Inventory."),
    Kind("scheduler.Cluster", None, why="Inventory."),
    Kind("scheduler.Pool", None, why="Inventory."),
    Kind("scheduler.TopologyLevel", None, why="Inventory."),
    Kind("scheduler.Domain", None, why="Inventory."),
    Kind("scheduler.Node", None, why="Inventory: taken out, not deleted."),
    Kind("scheduler.Gpu", None, why="Inventory: taken out, not deleted."),
    Kind("scheduler.MigInstance", None, why="Placements name it."),
    Kind("scheduler.Nic", None, why="Inventory."),
    Kind("scheduler.Job", None, why="What usage is charged for."),
    Kind("scheduler.Attempt", None, why="What usage is charged for."),
    Kind("scheduler.Dependency", None, why="Part of its job."),
    Kind("scheduler.Wait", None, why="Part of its job: at most one row of it."),
    Kind("scheduler.JobMark", None, why="Part of its job."),
    Kind("scheduler.ReplicaRule", None, why="Part of its job: at most one row of it."),
    Kind("scheduler.Checkpoint", None, why="Goes with its files: the three newest complete ones of a job are kept."),
    Kind("scheduler.CheckpointShard", None, why="Part of its checkpoint."),
    Kind("scheduler.JobTemplate", None, why="Archived, not deleted: jobs name it."),
    Kind("scheduler.JobTemplateVersion", None, why="What a job began with must be explicable."),
    Kind("scheduler.TemplateSpeeds", None, why="What a job was given must be explicable."),
    Kind("scheduler.JobDraft", None, why="Its owner's; the newest twenty of each person."),
    Kind("scheduler.Schedule", None, why="Its owner's, until removed; 200 of each person at most."),
    Kind("scheduler.SavedView", None, why="Its owner's; fifty of each list and person at most."),
    Kind("scheduler.Lease", None, why="A row for each kind of work that one process does at a time."),
    Kind("scheduler.Happening", None, why="Goes when it has been made into messages, within seconds."),
    Kind("scheduler.Sending", None, why="Part of its notice."),
    Kind("scheduler.NoticeChoices", None, why="What a person chose."),
    Kind("scheduler.JobFollow", None, why="Goes when the person no longer follows."),
    Kind("scheduler.Webhook", None, why="Removed, not deleted: the audit log names it."),
    Kind("scheduler.UsualDemand", None, why="One row."),
    Kind("scheduler.LearnedOverrun", None, why="One row."),
    Kind("scheduler.KeptApart", None, why="One row."),
    Kind("scheduler.Measure", None, why="A row for each figure of /metrics, added to."),
    Kind("scheduler.Promise", None, why="Goes when it is taken or given up."),
    Kind("scheduler.PromisedSeat", None, why="Part of its promise."),
    Kind("scheduler.Outlook", None, why="One row a waiting job, overwritten."),
    Kind(
        "scheduler.SimulatedRun", None, why="The simulated back-end's own; of what is over it keeps the newest 2,000 in each cluster, for their logs."
    ),
    Kind("scheduler.SlurmCluster", None, why="How Slurm is reached."),
    Kind("scheduler.OutsideSeat", None, why="Part of its outside job."),
    Kind("scheduler.SlurmRun", None, why="The Slurm back-end's own; of what is over it keeps the newest 2,000 in each cluster, for their logs."),
    Kind("scheduler.KubernetesCluster", None, why="How Kubernetes is reached."),
    Kind(
        "scheduler.KubernetesRun",
        None,
        why="The Kubernetes back-end's own; of what is over it keeps the newest 1,000 in each cluster.",
    ),
    Kind("scheduler.Placement", None, why="The allocation history that the ledger is held against."),
    Kind("dashboards.PrometheusServer", None, why="Removed, not deleted: the audit log names it."),
    Kind("dashboards.ServiceLevel", None, why="Part of its job, until removed; the audit log keeps the fact."),
    Kind("dashboards.HealthFrame", None, why="One row a cluster, overwritten."),
    Kind("dashboards.HealthRule", None, why="Removed, not deleted: incidents name it."),
    Kind("dashboards.HealthSettings", None, why="One row."),
    Kind("dashboards.IncidentStep", None, why="Part of its incident."),
    Kind("dashboards.StepLook", None, why="One row a run, overwritten; goes with its attempt."),
    Kind("dashboards.AlertRule", None, why="Removed, not deleted: alerts name it."),
    Kind("dashboards.Silence", None, why="Ended, not deleted: the audit log names it."),
    Kind("dashboards.IdleStep", None, why="Part of its episode."),
    Kind("dashboards.IdlePolicy", None, why="What an admin chose."),
    Kind("dashboards.IdleExemption", None, why="Ended, not deleted: the audit log names it."),
    Kind("dashboards.TelemetryFrame", None, why="One row a cluster, overwritten."),
)


def retention_prune(*, now: datetime, step: int = STEP_ROWS, steps: int = STEPS_A_CALL) -> dict[str, int]:
    """Delete what is past its time, oldest first, a few hundred rows a transaction and a few transactions a call; the next call goes on."""
    gone: Counter[str] = Counter()
    for kind in KINDS:
        if kind.keep is not None:
            gone[kind.model] += _prune(kind, kind.keep, now, step, steps)
    return dict(+gone)


def _prune(kind: Kind, keep: timedelta, now: datetime, step: int, steps: int) -> int:
    table = kind.rows()._meta.db_table
    if kind.part is not None and is_partitioned(table):
        return partitions_keep(Series(table, kind.part, kind.only.get("span")), keep=keep, now=now)
    rows = kind.rows()._default_manager.filter(**kind.only)
    gone = 0
    for _ in range(steps):
        with transaction.atomic():
            old = list(rows.filter(**{f"{kind.column}__lt": now - keep}).order_by(kind.column, "pk").values_list("pk", flat=True)[:step])
            if old:
                gone += rows.filter(pk__in=old).delete()[0]
        if len(old) < step:
            break
    return gone
