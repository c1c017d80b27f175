"""Seats on GPUs: which can be taken now, and why not. The one place that says when a GPU is free.

Whoever takes seats holds the locks of their nodes until the end of the transaction, so nobody takes them, repartitions or removes them meanwhile.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from django.db.models import QuerySet

from gpufleet.core.bulk import rows_insert
from gpufleet.core.prepared import Prepared, together
from scheduler.models import IN_SERVICE, Attempt, Gpu, GpuMode, MigInstance, Node, Placement, PromisedSeat
from scheduler.services.jobs.marks import types_sat_on

WHOLE_MILLI = 1000
GONE = "A GPU of the plan is no longer in the fleet."
NODE_GONE = "A node of the plan is no longer in the fleet."
SPLIT = "A GPU of the plan has been split differently meanwhile."
TAKEN = "A GPU of the plan has been taken meanwhile."
PROMISED = "A GPU of the plan is promised to another job."
UNHEALTHY = "A GPU of the plan is no longer in service."

SITTING: Prepared[tuple[int, int | None, int]] = Prepared(
    lambda gpus: Placement.objects.filter(gpu__among=gpus, until__isnull=True).values_list("gpu_id", "mig_id", "gpu_milli")
)
PROMISED_ON: Prepared[tuple[int, int, int | None, int]] = Prepared(
    lambda gpus: PromisedSeat.objects.filter(gpu__among=gpus).order_by("id").values_list("gpu_id", "promise__job_id", "mig_id", "gpu_milli")
)
LOCKED_NODES = Prepared(
    lambda nodes: Node.objects.select_for_update().filter(pk__among=nodes).order_by("pk").values_list("pk", "removed_at", "health")
)
GPUS = Prepared(lambda gpus: Gpu.objects.filter(pk__among=gpus, removed_at__isnull=True).values_list("pk", "node_id", "mode", "health"))
LIVE_INSTANCES: Prepared[tuple[int, int]] = Prepared(
    lambda keys: MigInstance.objects.filter(pk__among=keys, removed_at__isnull=True).values_list("pk", "gpu_id")
)
OPEN_OF = Prepared[Placement](lambda attempts: open_of(attempts))

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Seat:
    """Where one worker sits: a whole GPU, a part of one, a MIG instance, or (without a GPU) just the node."""

    node_id: int
    gpu_id: int | None
    worker: int = 0
    role: str = "worker"
    gpu_milli: int = WHOLE_MILLI
    mig_id: int | None = None


def seats_faults(
    *, wanted: Mapping[Key, Sequence[Seat]], own: Mapping[Key, int] | None = None, serving_only: bool = True
) -> tuple[dict[Key, str], dict[Key, str]]:
    """For each group of seats why it can't be taken now, if it can't: `(broken, busy)`.

    Broken: the device is gone, split differently, out of service, or promised to somebody else. Busy: somebody still sits there. Groups are judged in
    their order, and what an earlier one takes is taken for the later ones. `own` names the job of a group, whose own promise is none against it.
    """
    own = own or {}
    seats = [seat for group in wanted.values() for seat in group]
    if not seats:
        return {}, {}
    gpus = {seat.gpu_id for seat in seats if seat.gpu_id is not None}
    # Nodes are locked first: what is asked behind that is true until the end of the transaction.
    nodes, present, sitting, promises = together(
        LOCKED_NODES.asking({seat.node_id for seat in seats}), GPUS.asking(gpus), SITTING.asking(gpus), PROMISED_ON.asking(gpus)
    )
    devices = _Devices(nodes, present, seats, serving_only)
    held: dict[int, int] = defaultdict(int)
    slices: set[int] = set()
    for gpu, mig, milli in sitting:
        held[gpu] += milli
        if mig is not None:
            slices.add(mig)
    promised = _promised(promises)
    broken: dict[Key, str] = {}
    busy: dict[Key, str] = {}
    for key, group in wanted.items():
        fault = next((fault for seat in group if (fault := devices.fault(seat))), "")
        if not fault and any(_others_promise(seat, promised, own.get(key)) for seat in group):
            fault = PROMISED
        if fault:
            broken[key] = fault
            continue
        trial = _with(held, group)
        if any(trial[seat.gpu_id] > WHOLE_MILLI for seat in group if seat.gpu_id is not None) or any(seat.mig_id in slices for seat in group):
            busy[key] = TAKEN
            continue
        held.update(trial)
        slices.update(seat.mig_id for seat in group if seat.mig_id is not None)
    return broken, busy


def _with(held: Mapping[int, int], group: Iterable[Seat]) -> dict[int, int]:
    """What would be held on the group's GPUs with the group on them."""
    sums: dict[int, int] = {}
    for seat in group:
        if seat.gpu_id is not None:
            sums[seat.gpu_id] = sums.get(seat.gpu_id, held.get(seat.gpu_id, 0)) + seat.gpu_milli
    return sums


def _promised(rows: Iterable[tuple[int, int, int | None, int]]) -> dict[int, list[tuple[int, int | None, int]]]:
    """(job, MIG instance, milli) of what is promised, by GPU."""
    found: dict[int, list[tuple[int, int | None, int]]] = defaultdict(list)
    for gpu, job, mig, milli in rows:
        found[gpu].append((job, mig, milli))
    return found


def _others_promise(seat: Seat, promised: Mapping[int, Sequence[tuple[int, int | None, int]]], own: int | None) -> bool:
    if seat.gpu_id is None:
        return False
    others = [(mig, milli) for job, mig, milli in promised.get(seat.gpu_id, ()) if job != own]
    if seat.mig_id is not None:
        return any(mig == seat.mig_id for mig, _ in others)
    return bool(others) and sum(milli for _, milli in others) + seat.gpu_milli > WHOLE_MILLI


class _Devices:
    """The nodes, GPUs and instances behind some seats."""

    def __init__(self, nodes: Iterable[Any], gpus: Iterable[Any], seats: Sequence[Seat], serving_only: bool) -> None:
        self.serving_only = serving_only
        self.nodes = {pk: (removed, health) for pk, removed, health in nodes}
        self.gpus = {pk: (node, mode, health) for pk, node, mode, health in gpus}
        wanted = {seat.mig_id for seat in seats if seat.mig_id is not None}
        self.slices = dict(LIVE_INSTANCES(wanted))

    def fault(self, seat: Seat) -> str:
        removed, health = self.nodes.get(seat.node_id, (True, ""))
        if removed:
            return NODE_GONE
        if self.serving_only and health not in IN_SERVICE:
            return UNHEALTHY
        if seat.gpu_id is None:
            return ""
        node, mode, gpu_health = self.gpus.get(seat.gpu_id, (None, None, ""))
        if node != seat.node_id:
            return GONE
        if (mode == GpuMode.MIG) != (seat.mig_id is not None) or (seat.mig_id is not None and self.slices.get(seat.mig_id) != seat.gpu_id):
            return SPLIT
        return UNHEALTHY if self.serving_only and gpu_health not in IN_SERVICE else ""


def placements_insert(taken: Iterable[tuple[Attempt, int, Seat, bool]], now: datetime) -> None:
    """Open placements: (attempt, job, seat, whether its worker joins a run that goes on)."""
    taken = list(taken)
    rows_insert(
        Placement,
        ("attempt_id", "job_id", "role", "worker", "node_id", "gpu_id", "mig_id", "gpu_milli", "since", "joining"),
        (
            (attempt.pk, job, seat.role, seat.worker, seat.node_id, seat.gpu_id, seat.mig_id, seat.gpu_milli, now, joining)
            for attempt, job, seat, joining in taken
        ),
    )
    types_sat_on(attempt.pk for attempt, _, _, _ in taken)


def open_of(attempts: Iterable[int]) -> QuerySet[Placement]:
    return Placement.objects.filter(attempt__among=attempts, until__isnull=True).order_by("id")
