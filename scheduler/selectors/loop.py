"""What the scheduler did and does: who leads, its last plans, and the orders that back-ends have not carried out."""

import gzip
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import Count, Func, IntegerField, Min, Q, QuerySet, Subquery
from django.http import Http404

from gpufleet.core.models import Progress
from quotas.permissions import Access, Can
from scheduler.loop.measures import PHASES, TICK_FINISHED
from scheduler.loop.policy import policy
from scheduler.models import HOLDING, Cluster, Job, Lease, Order, PlanRecord
from scheduler.selectors.jobs import WAITING
from scheduler.selectors.spreads import Spread, spread
from scheduler.snapshots import Snapshots
from scheduler.snapshots.spelling import Speller

LEASE = "tick"
MEASURED = 200
# Beat looks every second, and who was killed is replaced within five.
PATIENCE = timedelta(seconds=10)
# The longest tick of a large fleet takes a fraction of it.
LONGEST_TICK = timedelta(seconds=60)


class JsonLength(Func):
    """The number of elements of a list in a JSON column, so that a page of plans need not load their decisions."""

    function = "JSONB_ARRAY_LENGTH"
    output_field = IntegerField()

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return super().as_sql(compiler, connection, function="JSON_ARRAY_LENGTH", **context)


@dataclass(frozen=True, slots=True)
class Leadership:
    """Who decides, and whether that goes on as it should. A holder gives the lease back when it has nothing to decide."""

    lease: Lease | None
    now: datetime
    silent: int = 0  # seconds without a finished tick, where that is too long

    @property
    def paused(self) -> bool:
        return bool(self.lease and self.lease.paused_at)

    @property
    def holds(self) -> bool:
        return bool(self.lease and self.lease.expires_at and self.lease.expires_at > self.now)

    @property
    def unseen(self) -> int:
        """Events that no plan has seen yet."""
        return max(0, self.lease.wanted - self.lease.done) if self.lease else 0

    @property
    def overdue(self) -> bool:
        """Something asks for a plan, and nobody has looked for too long."""
        if self.lease is None or self.holds:
            return False
        last = self.lease.expires_at
        if last is not None and self.now - last < PATIENCE:
            return False
        woken = self.lease.next_wake_at is not None and self.now - self.lease.next_wake_at >= PATIENCE
        return self.unseen > 0 or woken

    @property
    def state(self) -> str:
        if self.paused:
            return "paused"
        if self.lease is None or (not self.lease.epoch and not self.unseen):
            return "never"
        if self.overdue or self.silent:
            return "overdue"
        return "deciding" if self.holds else "watching"


def leadership(now: datetime) -> Leadership:
    lease = Lease.objects.filter(name=LEASE).annotate(finished_at=FINISHED_AT).first()
    return Leadership(lease, now, _silent(lease.finished_at if lease else None, now))


FINISHED_AT = Subquery(Progress.objects.filter(name=TICK_FINISHED).values("reached_at")[:1])


def _silent(finished_at: datetime | None, now: datetime) -> int:
    """Seconds since a tick was finished, where that is too long, else 0. A console on which none ever was has only begun."""
    return int((now - finished_at).total_seconds()) if finished_at is not None and now - finished_at > LONGEST_TICK else 0


def scheduler_silent(now: datetime) -> int:
    return _silent(Progress.objects.filter(name=TICK_FINISHED).values_list("reached_at", flat=True).first(), now)


class Standstill(NamedTuple):
    """Why nothing is decided: somebody paused the scheduler, or it has not finished a tick for so many seconds."""

    at: datetime | None
    reason: str
    silent: int


def standstill_now(now: datetime) -> Standstill | None:
    """Told to everyone who waits."""
    found = Lease.objects.filter(name=LEASE).annotate(finished_at=FINISHED_AT).values_list("paused_at", "paused_reason", "finished_at").first()
    if found is None:
        return None
    paused_at, reason, finished_at = found
    silent = _silent(finished_at, now)
    return Standstill(paused_at, reason, silent) if paused_at is not None or silent else None


class Pause(NamedTuple):
    at: datetime
    reason: str


def pause_now() -> Pause | None:
    """Since when and why nothing is decided, if somebody paused the scheduler. Told to everyone: whoever waits must know."""
    found = Lease.objects.filter(name=LEASE).values_list("paused_at", "paused_reason").first()
    return Pause(found[0], found[1]) if found and found[0] is not None else None


def plans_listed(access: Access) -> QuerySet[PlanRecord]:
    """Every plan that is kept, without its bulk. Plans name jobs of all teams, so they are for those who see the whole fleet."""
    access.must_everywhere(Can.SEE)
    counted = {"decided": JsonLength("decisions"), "refused": JsonLength("dropped")}
    return PlanRecord.objects.defer("scenario", "decisions", "dropped").annotate(**counted)


def plan_for(access: Access, pk: int) -> PlanRecord:
    access.must_everywhere(Can.SEE)
    found = PlanRecord.objects.defer("scenario").filter(pk=pk).first()
    if found is None:
        raise Http404(f"There is no plan {pk}.")
    return found


def plan_latest() -> PlanRecord | None:
    return PlanRecord.objects.defer("scenario").order_by("-at", "-id").first()


def plan_changing() -> PlanRecord | None:
    """The last plan that decided something, of the last few."""
    lately = PlanRecord.objects.order_by("-at", "-id").annotate(decided=JsonLength("decisions")).values_list("pk", "decided")[:MEASURED]
    found = next((key for key, decided in lately if decided), None)
    return None if found is None else PlanRecord.objects.defer("scenario").get(pk=found)


def plan_has_scenario(pk: int) -> bool:
    return PlanRecord.objects.filter(pk=pk, scenario__isnull=False).exists()


def plan_scenario(access: Access, pk: int) -> bytes:
    """The scenario that a plan was made from, still packed (gzip). It is kept for hours, not days."""
    access.must_everywhere(Can.SEE)
    found = PlanRecord.objects.filter(pk=pk).values_list("scenario", flat=True).first()
    if found is None:
        raise Http404("The scenario of this plan is not kept any more.")
    return bytes(found)


def scenario_now(access: Access, now: datetime) -> bytes:
    """The fleet, the tree and the jobs of this moment, as a plan made now would find them."""
    access.must_everywhere(Can.SEE)
    chosen = policy()
    return Speller().spell(Snapshots().take(settings=chosen.engine, now=now, start_timeout=chosen.start_timeout).scenario)


def plan_unpacked(packed: bytes) -> bytes:
    return gzip.decompress(packed)


def phase_times(plans: int = MEASURED) -> tuple[int, dict[str, Spread]]:
    """How many milliseconds each phase of the last plans took, and of how many plans. `all`, the last, is the sum of a plan's phases."""
    rows = list(PlanRecord.objects.order_by("-at", "-id").values_list("phases", flat=True)[:plans])
    # In a tick's order, as a database gives the names in one of its own.
    by_phase: dict[str, list[float]] = {name: [] for name in PHASES}
    for phases in rows:
        for name, value in phases.items():
            by_phase.setdefault(str(name), []).append(float(value))
    by_phase["all"] = [float(sum(phases.values())) for phases in rows]
    return len(rows), {name: spread(values) for name, values in by_phase.items() if values}


@dataclass(frozen=True, slots=True)
class OpenOrders:
    """What one cluster's back-end has still to do. `fault` is what it said last to the order that waits longest."""

    cluster: Cluster
    due: int
    later: int
    failing: int
    oldest: datetime | None
    fault: str


def orders_open(now: datetime) -> list[OpenOrders]:
    undone = Order.objects.filter(done_at__isnull=True)
    sums: dict[int, dict[str, Any]] = {
        row["cluster"]: dict(row)
        for row in undone.order_by()
        .values("cluster")
        .annotate(due=Count("pk", Q(due_at__lte=now)), later=Count("pk", Q(due_at__gt=now)), failing=Count("pk", ~Q(fault="")), oldest=Min("made_at"))
    }
    faults: dict[int, str] = {}
    for key, fault in undone.exclude(fault="").order_by("made_at", "id").values_list("cluster_id", "fault")[:50]:
        faults.setdefault(key, fault)
    nothing: dict[str, Any] = {"due": 0, "later": 0, "failing": 0, "oldest": None}
    found = []
    for cluster in Cluster.objects.filter(removed_at__isnull=True).order_by("name"):
        mine = sums.get(cluster.pk, nothing)
        found.append(OpenOrders(cluster, mine["due"], mine["later"], mine["failing"], mine["oldest"], faults.get(cluster.pk, "")))
    return found


def job_counts() -> dict[str, int]:
    """How many jobs wait and how many hold something, in the whole fleet."""
    counts: dict[str, int] = dict(Job.objects.filter(state__in=(*WAITING, *HOLDING)).order_by().values_list("state").annotate(Count("pk")))
    return {"waiting": sum(counts.get(state, 0) for state in WAITING), "holding": sum(counts.get(state, 0) for state in HOLDING)}
