"""Nodes: the list, one node, its history."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Exists, IntegerField, Max, Min, OuterRef, Prefetch, Q, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce
from django.http import Http404

from quotas.models import LedgerEntry, ShareClass
from quotas.permissions import Access, Can
from quotas.selectors.rates import rates_now
from scheduler.hardware.draining import Running
from scheduler.jobs.speeds import as_planned
from scheduler.models import Checkpoint, Gpu, Health, InventoryEvent, Job, MigInstance, Nic, Node, Placement, PlannedHealth
from scheduler.selectors.holders import open_placements, outside_seats
from scheduler.snapshots.overrun import overrun_for

HISTORY_LENGTH = 50
PLANS_SHOWN = 200


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node as lists show it."""

    node: Node
    gpus: int
    healths: tuple[tuple[int, str], ...]  # index and health of each GPU
    taken_milli: int
    gpu_keys: tuple[int, ...] = ()

    @property
    def sick_gpus(self) -> int:
        return sum(health != Health.HEALTHY for _, health in self.healths)

    @property
    def health_strip(self) -> list[tuple[int, str]]:
        """Where each GPU stands in a row of squares, and its health."""
        return [(8 * place, health) for place, (_, health) in enumerate(self.healths)]

    @property
    def strip_width(self) -> int:
        return max(0, 8 * len(self.healths) - 2)

    @property
    def health_told(self) -> str:
        """The GPUs that are not healthy, by health: `GPU 3 suspect, GPUs 5, 6 down`."""
        sick: dict[str, list[str]] = {}
        for index, health in self.healths:
            if health != Health.HEALTHY:
                sick.setdefault(health, []).append(str(index))
        told = [f"GPU{'s' if len(found) > 1 else ''} {', '.join(found)} {Health(health).label.lower()}" for health, found in sick.items()]
        return ", ".join(told) or "All healthy"

    @property
    def capacity_milli(self) -> int:
        return self.gpus * 1000


def nodes_listed(access: Access) -> QuerySet[Node]:
    """Every node that there is. Hardware is no team's secret: any role anywhere sees all of it."""
    access.must_somewhere(Can.SEE)
    counted = Gpu.objects.filter(node=OuterRef("pk"), removed_at__isnull=True).order_by().values("node").annotate(n=Count("pk")).values("n")
    held = open_placements().filter(node=OuterRef("pk")).order_by().values("node").annotate(n=Sum("gpu_milli")).values("n")
    outside = outside_seats().filter(node=OuterRef("pk")).order_by().values("node").annotate(n=Count("pk") * 1000).values("n")
    return (
        Node.objects.filter(removed_at__isnull=True)
        .select_related("cluster", "pool", "domain", "gpu_type")
        .annotate(
            gpu_count=Coalesce(Subquery(counted, output_field=IntegerField()), 0),
            taken_milli=Coalesce(Subquery(held, output_field=IntegerField()), 0) + Coalesce(Subquery(outside, output_field=IntegerField()), 0),
        )
    )


def node_rows(nodes: Sequence[Node]) -> list[NodeRow]:
    """Listed nodes with what lists show beside them. One query."""
    healths: dict[int, list[tuple[int, str]]] = defaultdict(list)
    keys: dict[int, list[int]] = defaultdict(list)
    rows = Gpu.objects.filter(node__in=[node.pk for node in nodes], removed_at__isnull=True).order_by("node_id", "index")
    for node_id, key, index, health in rows.values_list("node_id", "pk", "index", "health"):
        healths[node_id].append((index, health))
        keys[node_id].append(key)
    return [NodeRow(node, node.gpu_count, tuple(healths[node.pk]), node.taken_milli, tuple(keys[node.pk])) for node in nodes]  # type: ignore[attr-defined]


def node_for(access: Access, public_id: str) -> Node:
    """One node, also one that was taken out of the fleet: its history stays."""
    access.must_somewhere(Can.SEE)
    nodes = Node.objects.select_related("cluster", "pool", "domain", "domain__level", "gpu_type", "planned_health")
    found = nodes.filter(public_id=public_id).first()
    if found is None:
        raise Http404(f"There is no node {public_id}.")
    return found


def plan_of(node: Node) -> PlannedHealth | None:
    """Another health of it that has not begun yet."""
    return getattr(node, "planned_health", None)


def health_plans(access: Access) -> tuple[list[PlannedHealth], bool]:
    """What health nodes are to have later, those first that begin next, and whether there are more."""
    access.must_somewhere(Can.SEE)
    plans = list(PlannedHealth.objects.filter(node__removed_at__isnull=True).select_related("node", "node__cluster")[: PLANS_SHOWN + 1])
    return plans[:PLANS_SHOWN], len(plans) > PLANS_SHOWN


def planned_count() -> int:
    return PlannedHealth.objects.filter(node__removed_at__isnull=True).count()


def node_gpus(node: Node) -> list[Gpu]:
    """Its GPUs by index, with their types and MIG instances. Two queries."""
    return list(node.gpus.filter(removed_at__isnull=True).select_related("gpu_type").prefetch_related(live_instances()).order_by("index"))


def node_history(node: Node) -> list[InventoryEvent]:
    """What happened to the node and its GPUs, the latest first."""
    return list(InventoryEvent.objects.filter(node=node).select_related("gpu").order_by("-at", "-id")[:HISTORY_LENGTH])


def events_since(since: datetime, **of: Any) -> QuerySet[InventoryEvent]:
    """Changes of a `gpu` or a `node` since then, the latest first."""
    return InventoryEvent.objects.filter(at__gte=since, **of).select_related("gpu", "node").order_by("-at", "-id")


def node_events_since(since: datetime, **of: Any) -> QuerySet[InventoryEvent]:
    """Changes of health of whole nodes since then, the latest first: of one cluster with `node__cluster`, else of all."""
    return events_since(since, node__isnull=False, gpu__isnull=True, kind="health", **of)


@dataclass(frozen=True, slots=True)
class Left:
    """A job that had GPUs of a node when it went down or was drained, and what became of it."""

    job: Job
    nodes: str  # where it is now; empty: nowhere


def jobs_left(access: Access, node: Node) -> list[Left]:
    """Jobs that left the node since it went down or was drained, as far as the reader may see them. Two queries."""
    if node.health not in (Health.DOWN, Health.DRAINING, Health.DRAINED):
        return []
    was_here = Placement.objects.filter(job=OuterRef("pk"), node=node, until__gte=node.health_since)
    jobs = list(Job.objects.filter(Exists(was_here), access.visible(Can.SEE, "quota__path")).select_related("quota").order_by("-pk")[:HISTORY_LENGTH])
    places: dict[int, list[str]] = defaultdict(list)
    for job, name in open_placements().filter(job__in=jobs).order_by("node__name").values_list("job_id", "node__name").distinct():
        places[job].append(name)
    return [Left(job, ", ".join(places[job.pk])) for job in jobs]


def jobs_left_count(node: Node) -> int:
    """How many jobs have left the node since its health changed last."""
    here = open_placements().filter(node=node).values("job")
    return Placement.objects.filter(node=node, until__gte=node.health_since).exclude(job__in=here).aggregate(n=Count("job", distinct=True))["n"] or 0


@dataclass(frozen=True, slots=True)
class Guest:
    """A job with workers on a node, and when it ends by its estimate or its time limit. `named` is false where the reader may not know it.

    `leaving` says that it was asked to leave already, or its workers on the node were.
    """

    job: Job
    named: bool
    milli: int
    by_limit: bool
    leaving: bool
    run: Running

    @property
    def ends_at(self) -> datetime | None:
        return self.run.ends_at

    @property
    def movable(self) -> bool:
        return self.run.movable


def hourly_micros(access: Access, gpus: Iterable[Gpu], *, now: datetime) -> int | None:
    """What GPUs cost in an hour at the guaranteed rate, in micro-units; None where the reader may not know it, or a type has no price."""
    if not access.can_everywhere(Can.SEE_COSTS):
        return None
    rates, types = rates_now(now=now), [gpu.gpu_type_id for gpu in gpus]
    return sum(rates[one] for one in types) if all(one in rates for one in types) else None


def node_guests(access: Access, *nodes: Node, now: datetime) -> list[Guest]:
    """The jobs on nodes, the largest part first. What is preemptible when it borrows is movable as long as it does.

    Three queries, and another two where an end goes by an estimate.
    """
    return _guests(access, open_placements().filter(node__in=nodes), now)


def job_guests(access: Access, jobs: Sequence[int], *, now: datetime) -> list[Guest]:
    """The same of jobs by their keys, wherever they run."""
    return _guests(access, open_placements().filter(job__among=list(jobs)), now)


def gpu_guests(access: Access, gpu: Gpu, *, now: datetime, besides: Collection[int] = ()) -> list[Guest]:
    """The same of the jobs on one GPU, but for those on some of its instances."""
    return _guests(access, open_placements().filter(gpu=gpu).exclude(mig__in=besides), now)


def _guests(access: Access, placements: QuerySet[Placement], now: datetime) -> list[Guest]:
    held = (
        placements.order_by()
        .values_list("job_id")
        .annotate(
            Sum("gpu_milli"),
            Min("attempt__started_at"),
            Min("attempt_id"),
            Min("attempt__stop_asked_at"),
            staying=Count("pk", Q(leaving_since__isnull=True)),
        )
    )
    parts = {key: (*facts, asked is not None or not staying) for key, *facts, asked, staying in held}
    attempts = [attempt for _, _, attempt, _ in parts.values()]
    borrowed = LedgerEntry.objects.filter(attempt__in=attempts, until__isnull=True, share_class=ShareClass.BORROWED)
    borrowing = set(borrowed.values_list("attempt", flat=True))
    safe = Checkpoint.objects.filter(attempt__in=attempts, verified_at__isnull=False, removed_at__isnull=True)
    saved = dict(safe.order_by().values_list("job_id").annotate(Max("reported_at")))
    found, jobs = [], list(Job.objects.filter(pk__in=parts).select_related("quota", "owner").defer("launch"))
    overrun = overrun_for((job.estimate_seconds, job.limit_seconds) for job in jobs)
    for job in jobs:
        milli, began, attempt, is_leaving = parts[job.pk]
        planned = as_planned(job.estimate_seconds, job.limit_seconds, overrun)
        estimate = began + timedelta(seconds=planned) if planned else None
        limit = began + timedelta(seconds=job.limit_seconds) if job.limit_seconds else None
        by_limit = estimate is None or estimate <= now  # an estimate that is over says nothing about the end
        movable = job.preemptible == "yes" or (job.preemptible == "when_borrowed" and attempt in borrowing)
        run = Running(began, saved.get(job.pk), _saves_every(job), limit if by_limit else estimate, movable)
        found.append(Guest(job, access.can(Can.SEE, job.quota.path), milli, by_limit, is_leaving, run))
    return sorted(found, key=lambda guest: (-guest.milli, guest.job.pk))


def _saves_every(job: Job) -> int | None:
    saving = job.spec.get("checkpoint")
    seconds = saving.get("interval_s") if isinstance(saving, dict) else None
    return int(seconds) if isinstance(seconds, int | float) and seconds >= 1 else None


def live_instances() -> "Prefetch[str]":
    """MIG instances that there are, in `instances`."""
    return Prefetch("mig_instances", MigInstance.objects.filter(removed_at__isnull=True).order_by("start"), to_attr="instances")


def health_counts() -> dict[str, int]:
    return dict(Node.objects.filter(removed_at__isnull=True).order_by().values_list("health").annotate(Count("pk")))


def node_is_taken() -> Q:
    """A condition on nodes: something runs there."""
    return Q(Exists(open_placements().filter(node=OuterRef("pk"))) | Exists(outside_seats().filter(node=OuterRef("pk"))))


def node_sizes(names: Sequence[str]) -> dict[str, int]:
    """How many GPUs nodes have, by their names as the engine has them: with their cluster. One query."""
    nodes = Node.objects.filter(name__in={name.rpartition("/")[2] for name in names}, removed_at__isnull=True)
    rows = nodes.annotate(size=Count("gpus", Q(gpus__removed_at__isnull=True))).values_list("cluster__name", "name", "size")
    return {f"{cluster}/{name}": size for cluster, name, size in rows}


def nominal_speeds(nodes: Collection[int]) -> dict[int, dict[str, int]]:
    """Gb/s by node and network port, as the inventory has them. One query."""
    found: dict[int, dict[str, int]] = {}
    for node, name, speed in Nic.objects.filter(node__in=nodes, speed_gbps__gt=0).values_list("node_id", "name", "speed_gbps"):
        found.setdefault(node, {})[name] = speed
    return found
