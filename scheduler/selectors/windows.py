"""Reservations, their windows and the capacity they stand on. The one door to a reservation: outside the reader's subtrees there is none."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.core.exceptions import PermissionDenied
from django.db.models import Count, Q, QuerySet, Sum
from django.http import Http404

from gpufleet.core.times import millis
from quotas.models import LedgerEntry, QuotaNode, QuotaShare, Reservation, ReservationState, ShareClass, Window
from quotas.permissions import Access, Can, at_or_below
from scheduler.models import Gpu, Health, TopologyLevel
from scheduler.windows.capacity import Booking

SERVING = (Health.HEALTHY, Health.SUSPECT)


def reservations_listed(access: Access) -> QuerySet[Reservation]:
    """Those of the subtrees where the reader may see; floors of a class are everybody's to see."""
    access.must_somewhere(Can.SEE)
    seen = access.visible(Can.SEE, "quota__path") | Q(quota__isnull=True)
    return Reservation.objects.filter(seen).select_related("quota", "requested_by")


def reservation_for(access: Access, public_id: str) -> Reservation:
    found = reservations_listed(access).filter(public_id=public_id).first()
    if found is None:
        raise Http404(f"There is no reservation {public_id}.")
    return found


def windows_between(access: Access, since: datetime, until: datetime, *, gpu_type: str = "") -> list[Window]:
    """The windows that last at some moment of a span and that the reader may see."""
    rows = _lasting(since, until, gpu_type).filter(access.visible(Can.SEE, "reservation__quota__path") | Q(reservation__quota__isnull=True))
    return list(rows.select_related("reservation__quota").order_by("starts_at", "id"))


def _lasting(since: datetime, until: datetime | None, gpu_type: str) -> QuerySet[Window]:
    rows = Window.objects.filter(Q(ends_at__isnull=True) | Q(ends_at__gt=since))
    if until is not None:
        rows = rows.filter(starts_at__lt=until)
    return rows.filter(reservation__gpu_type=gpu_type) if gpu_type else rows


def bookings(gpu_type: str, since: datetime, *, but: Reservation | None = None) -> list[Booking]:
    """What is promised of a type from a moment on, by whomever."""
    rows = _lasting(since, None, gpu_type).filter(released_at__isnull=True)
    if but is not None:
        rows = rows.exclude(reservation=but)
    found = rows.order_by("starts_at", "id").values_list("reservation__public_id", "starts_at", "ends_at", "reservation__gpus_milli")
    return [Booking(*row) for row in found]


# Who may do what


def may_ask_on(access: Access, node: QuotaNode | None) -> bool:
    """Whether the reader may ask for a reservation: those who manage jobs of the team or its quota; of a floor those who look after the fleet."""
    if node is None:
        return access.can_everywhere(Can.EDIT_QUOTA) or access.can_everywhere(Can.OPERATE)
    return access.can(Can.MANAGE_JOBS, node.path) or access.can(Can.EDIT_QUOTA, node.path)


def may_decide_on(access: Access, node: QuotaNode | None) -> bool:
    """Whether the reader approves it: what a node is promised is decided above it, and a floor where all is decided."""
    if node is None:
        return access.can_everywhere(Can.EDIT_QUOTA)
    return access.can(Can.EDIT_QUOTA, node.parent.path if node.parent is not None else node.path)


def may_steer_reservation(access: Access, reservation: Reservation) -> bool:
    """Whether the reader may change, end or cancel it."""
    return may_ask_on(access, reservation.quota) or may_decide_on(access, reservation.quota)


def must_steer_reservation(access: Access, reservation: Reservation) -> None:
    if not may_steer_reservation(access, reservation):
        raise PermissionDenied("Team leads and quota admins of this subtree may do this.")


def pending(access: Access) -> int:
    """How many requests wait for this reader's decision."""
    waiting = reservations_listed(access).filter(state=ReservationState.REQUESTED).select_related("quota__parent")
    return sum(may_decide_on(access, one.quota) for one in waiting)


# What there is


@dataclass(frozen=True, slots=True)
class Capacity:
    """Healthy GPUs of the fleet in milli-GPU, without spares: by type, and by the blocks of each level."""

    by_type: Mapping[str, int]
    blocks: Mapping[tuple[str, str], int] = field(default_factory=dict)  # the largest block, by type and level
    node_size: Mapping[str, int] = field(default_factory=dict)
    whole_nodes: Mapping[str, int] = field(default_factory=dict)  # how many have all of their GPUs

    @property
    def levels(self) -> list[str]:
        return list(dict.fromkeys(level for _, level in self.blocks))


def capacity_now() -> Capacity:
    """One query a table, whatever the size of the fleet."""
    rows = (
        Gpu.objects.filter(removed_at__isnull=True, health=Health.HEALTHY, node__removed_at__isnull=True, node__health__in=SERVING, node__spare=False)
        .order_by()
        .values_list("gpu_type_id", "node_id", "node__cluster__name", "node__domain__path")
        .annotate(Count("id"))
    )
    depths: dict[str, list[str]] = defaultdict(list)
    for cluster, name in TopologyLevel.objects.order_by("cluster_id", "depth").values_list("cluster__name", "name"):
        depths[cluster].append(name)
    by_type: dict[str, int] = defaultdict(int)
    blocks: dict[tuple[str, str, tuple[str, ...]], int] = defaultdict(int)
    sizes: dict[str, dict[int, int]] = defaultdict(dict)
    for gpu_type, node, cluster, path, count in rows:
        by_type[gpu_type] += 1000 * count
        sizes[gpu_type][node] = count
        blocks[gpu_type, "node", (str(node),)] = 1000 * count
        steps = path.split("/") if path else []
        for depth, level in enumerate(depths[cluster][: len(steps)]):
            blocks[gpu_type, level, (cluster, *steps[: depth + 1])] += 1000 * count
    largest: dict[tuple[str, str], int] = {}
    for (gpu_type, level, _), milli in blocks.items():
        largest[gpu_type, level] = max(milli, largest.get((gpu_type, level), 0))
    usual = {gpu_type: max(counts.values()) for gpu_type, counts in sizes.items()}
    whole = {gpu_type: sum(count == usual[gpu_type] for count in counts.values()) for gpu_type, counts in sizes.items()}
    return Capacity(dict(by_type), largest, usual, whole)


def promised_milli(gpu_type: str, capacity: int) -> int:
    """What the tree guarantees of a type: on each branch the node's own guarantee, or those below it where they are more."""
    rows = QuotaNode.objects.filter(archived_at__isnull=True).order_by("-depth").values_list("pk", "parent_id")
    stated = dict(QuotaShare.objects.filter(gpu_type=gpu_type, node__archived_at__isnull=True).values_list("node_id", "guaranteed_milli"))
    below: dict[int | None, int] = defaultdict(int)
    for key, parent in rows:
        own = stated.get(key, 0)
        below[parent] += max(below[key], 0 if own is None else own)
    return min(below[None], capacity) if None in below else 0


# What came of it


@dataclass(frozen=True, slots=True)
class Held:
    """What a job held on a window."""

    job: str
    milli_millis: int
    now_milli: int


@dataclass(frozen=True, slots=True)
class Use:
    """What of a reservation's windows was used until now, in thousandths of a GPU times milliseconds."""

    promised: int
    used: int
    now_milli: int
    jobs: tuple[Held, ...]

    @property
    def percent(self) -> int:
        return 100 * self.used // self.promised if self.promised else 0

    @property
    def unused(self) -> int:
        return max(0, self.promised - self.used)


def use_of(reservation: Reservation, windows: Sequence[Window], now: datetime) -> Use:
    """From the ledger: what stood on a window of this subtree or class. Where several windows last at once, they share what is counted."""
    spans = [(one.starts_at, min(end for end in (one.ends_at, one.released_at, now) if end is not None)) for one in windows if one.starts_at < now]
    spans = [(start, end) for start, end in spans if end > start]
    promised = sum(reservation.gpus_milli * (millis(end) - millis(start)) for start, end in spans)
    if not spans:
        return Use(promised, 0, 0, ())
    first, last = min(start for start, _ in spans), max(end for _, end in spans)
    rows = LedgerEntry.objects.filter(share_class=ShareClass.RESERVED, gpu_type=reservation.gpu_type, since__lt=last).filter(
        Q(until__isnull=True) | Q(until__gt=first)
    )
    if reservation.quota is not None:
        rows = rows.filter(at_or_below(reservation.quota.path, "quota_path"))
    else:
        rows = rows.filter(job_class=reservation.job_class)
    total: dict[str, int] = defaultdict(int)
    holds: dict[str, int] = defaultdict(int)
    for job, since, until, milli in rows.order_by("since").values_list("job", "since", "until").annotate(Sum("gpu_milli")):
        for start, end in spans:
            total[job] += milli * max(0, millis(min(until or now, end)) - millis(max(since, start)))
        if until is None:
            holds[job] += milli
    jobs = tuple(Held(job, amount, holds[job]) for job, amount in sorted(total.items(), key=lambda one: (-one[1], one[0])) if amount)
    return Use(promised, min(promised, sum(total.values())), sum(holds.values()), jobs)


def lasting_windows(reservations: Iterable[Reservation], since: datetime) -> dict[int, list[Window]]:
    """The windows of each that have not ended before a moment, in order."""
    found: dict[int, list[Window]] = defaultdict(list)
    rows = Window.objects.filter(Q(ends_at__isnull=True) | Q(ends_at__gt=since), reservation__in=list(reservations)).order_by("starts_at")
    for row in rows:
        found[row.reservation_id].append(row)
    return found
