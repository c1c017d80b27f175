"""Repartitioning a GPU by hand, the way the engine's own repartitions go: drain, order, verify.

The GPU takes no new jobs and what runs in the instances that go may end. Then its back-end is told, and the inventory changes once that has
confirmed it.
Only what the vendor's hardware can hold is accepted, and an instance that is in use is never taken away (INV-6, SCH-8, JOB-7).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q

from gpufleet.core.audit import SYSTEM, Actor, audit_record
from gpufleet.core.etags import revision_of
from gpufleet.core.faults import Conflict, Stale
from gpufleet.core.ids import public_ids
from gpufleet.core.prepared import Prepared
from gpufleet.core.templatetags.shell import plural
from quotas.permissions import Access, Can
from scheduler.backends.base import BackendError
from scheduler.backends.registry import backend_for
from scheduler.engine.model.mig import BOARDS, Board, Instance, layout_faults
from scheduler.models import (
    IN_SERVICE,
    OPEN_SPLITS,
    Gpu,
    GpuMode,
    GpuSplit,
    Health,
    MigInstance,
    Order,
    OrderKind,
    PromisedSeat,
    Repartition,
    SplitState,
)
from scheduler.selectors.holders import open_placements
from scheduler.services.hardware.hardware import REASON_LENGTH, hardware_event, hardware_published, locked_gpu
from scheduler.services.loop.lease import lease_want
from scheduler.services.loop.usage import timeline_follow, usage_moment

# Those that a repartition leads to.
SPLIT_MODES = (GpuMode.WHOLE, GpuMode.MIG)
SINCE_YOU_LOOKED = "Its geometry was changed since you looked. Look again, then decide."
# Those that drain, and those whose back-end has answered though nobody has written that down: the console was killed in between.
UNSETTLED_SPLITS = Prepared[GpuSplit](
    lambda: (
        GpuSplit.objects.filter(Q(state=SplitState.DRAINING) | Q(state=SplitState.ORDERED, order__done_at__isnull=False))
        .select_related("gpu", "order")
        .order_by("id")
    )
)


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """What a repartition would do: which instances go, come and stay, and how many jobs have to end first."""

    mode: GpuMode
    wanted: tuple[Instance, ...]
    leaving: tuple[MigInstance, ...]
    staying: tuple[MigInstance, ...]
    coming: tuple[Instance, ...]
    jobs: tuple[int, ...]

    @property
    def waits(self) -> bool:
        return bool(self.jobs)


def split_plan(*, gpu: Gpu, layout: Sequence[Instance] | None) -> SplitPlan:
    """What a repartition as `layout` says would do now; None makes the GPU whole. A ValidationError says why there can be none."""
    board = _board(gpu)
    wanted = sorted(layout or ())
    if faults := layout_faults(board, wanted):
        raise ValidationError({"layout": [f"{fault}." for fault in faults]})
    _check_back_end(gpu)
    mode = GpuMode.WHOLE if layout is None else GpuMode.MIG
    present = _present(gpu)
    if gpu.mode == mode and geometry_of(present) == wanted:
        raise ValidationError({"layout": "That is how it is split already."})
    if Health.DOWN in (gpu.health, gpu.node.health):
        raise ValidationError({"layout": f"{gpu.node.name} does not respond. Repair it first."})
    return _plan(gpu, mode, wanted, present)


def gpu_geometry_change(
    *,
    access: Access,
    gpu: Gpu,
    layout: Sequence[Instance] | None,
    reason: str,
    now: datetime,
    seen: Sequence[Instance] | None = None,
    revision: int | None = None,
) -> GpuSplit:
    """Repartition a GPU as `layout` says, or make it whole again with None. Instances that are in both layouts stay, and so does what runs in them.

    `seen` is the layout that the operator started from; a newer one is a conflict. `revision` says the same by its number.
    """
    access.must_everywhere(Can.OPERATE)
    with transaction.atomic():
        now = usage_moment(now=now)
        gpu = locked_gpu(gpu)
        present = geometry_of(_present(gpu))
        present_revision = geometry_revision(gpu.mode, present)
        if revision is not None and revision != present_revision:
            raise Stale(SINCE_YOU_LOOKED, present_revision)
        if seen is not None and sorted(seen) != present:
            raise Conflict(SINCE_YOU_LOOKED)
        if GpuSplit.objects.filter(gpu=gpu, state__in=OPEN_SPLITS).exists():
            raise Conflict("It is being repartitioned already. Cancel that first.")
        plan = split_plan(gpu=gpu, layout=layout)
        if not reason.strip():
            raise ValidationError({"reason": "A reason is required for the record."})
        actor = access.actor
        split = GpuSplit.objects.create(
            gpu=gpu,
            mode=plan.mode,
            instances=[[one.profile, one.start] for one in plan.wanted],
            reason=reason.strip()[:REASON_LENGTH],
            health_before=gpu.health if gpu.health in IN_SERVICE else "",
            asked_at=now,
            asked_by=actor.user,
            asked_by_name=actor.name,
        )
        split.gpu = gpu
        before = {"mode": gpu.mode, "layout": layout_text(present)}
        after = {"mode": plan.mode.value, "layout": layout_text(plan.wanted)}
        audit_record(actor=actor, action="gpu.geometry", kind="gpu", object_id=gpu.public_id, before=before, after=after, reason=reason.strip()[:500])
        if split.health_before:
            _health(split, Health.DRAINING, f"Repartition to {split_text(split)}.", actor, now)
        _order_if_empty(split, plan, now)
    return split


def gpu_geometry_cancel(*, access: Access, gpu: Gpu, now: datetime) -> GpuSplit:
    """Give up a repartition that still waits for jobs to end; the GPU goes back to work."""
    access.must_everywhere(Can.OPERATE)
    with transaction.atomic():
        now = usage_moment(now=now)
        gpu = locked_gpu(gpu)
        split = GpuSplit.objects.select_for_update().filter(gpu=gpu, state__in=OPEN_SPLITS).first()
        if split is None:
            raise Conflict("It is not being repartitioned.")
        if split.state == SplitState.ORDERED:
            raise Conflict("Its back-end has been told already. Repartition it again once it has answered.")
        split.gpu = gpu
        after = {"state": SplitState.CANCELLED.value}
        audit_record(
            actor=access.actor,
            action="gpu.geometry",
            kind="gpu",
            object_id=gpu.public_id,
            before={"state": split.state},
            after=after,
            reason="Repartition cancelled.",
        )
        _settle(split, SplitState.CANCELLED, "", "Its repartition was cancelled.", access.actor, now)
    return split


def gpu_geometry_undo(*, access: Access, gpu: Gpu, split: int, mode: str, layout: Sequence[Instance] | None, now: datetime) -> GpuSplit:
    """Take back the repartition with the key `split`: give it up while it waits, or repartition to the `mode` and `layout` before.

    A `Conflict` where the GPU has been repartitioned since, or where jobs use the instances that it made.
    """
    access.must_everywhere(Can.OPERATE)
    with transaction.atomic():
        now = usage_moment(now=now)
        gpu = locked_gpu(gpu)
        name = f"GPU {gpu.index} of {gpu.node.name}"
        found = GpuSplit.objects.select_for_update(of=("self",)).select_related("order").filter(gpu=gpu).order_by("-pk").first()
        if found is None or found.pk != split or found.state in (SplitState.CANCELLED, SplitState.REFUSED):
            raise Conflict(f"{name} was repartitioned or given up since. Nothing was undone.")
        if found.state == SplitState.DRAINING:
            return gpu_geometry_cancel(access=access, gpu=gpu, now=now)
        if found.state == SplitState.ORDERED:
            raise Conflict(f"The back-end of {name} has not answered yet. Undo it once it has.")
        if mode not in SPLIT_MODES:
            raise Conflict(f"{name} was shared before, which no repartition brings back. Nothing was undone.")
        present = _present(gpu)
        ordered = found.order.sequence if found.order is not None else 0
        later = Repartition.objects.filter(gpu=gpu, pk__gt=ordered).exists()
        if later or gpu.mode != found.mode or geometry_of(present) != _wanted(found):
            raise Conflict(f"{name} was repartitioned since. Nothing was undone.")
        if waiting := len(split_plan(gpu=gpu, layout=layout).jobs):
            raise Conflict(f"{plural(waiting, 'job')} on {name} would have to end first. Nothing was undone.")
        return gpu_geometry_change(access=access, gpu=gpu, layout=layout, reason="Undo of a repartition.", now=now)


def splits_advance(*, now: datetime) -> int:
    """Order the repartitions whose GPUs have drained. Returns how many."""
    advanced = 0
    for found in UNSETTLED_SPLITS():
        if found.order is not None:
            if found.order.fault:
                split_refused(order=found.order, fault=found.order.fault, now=now)
            advanced += splits_confirm(orders=[found.order.pk], now=now)
            continue
        with transaction.atomic():
            moment = usage_moment(now=now)
            gpu = _locked_if_there(found, moment)
            split = GpuSplit.objects.select_for_update().filter(pk=found.pk, state=SplitState.DRAINING).first()
            if split is not None and gpu is not None:
                split.gpu = gpu
                advanced += _order_if_empty(split, _plan_of(split), moment)
    return advanced


def splits_confirm(*, orders: Sequence[int], now: datetime) -> int:
    """Their back-ends have carried these orders out: now the inventory says so. Returns how many GPUs were repartitioned."""
    done = 0
    for found in GpuSplit.objects.filter(order__in=orders, state=SplitState.ORDERED).order_by("id"):
        with transaction.atomic():
            moment = usage_moment(now=now)
            gpu = _locked_if_there(found, moment)
            if gpu is None:
                continue
            found.gpu = gpu
            plan = _plan_of(found)
            actor = Actor(found.asked_by, found.asked_by_name, "system")
            before = {"mode": gpu.mode, "layout": layout_text(geometry_of(_present(gpu)))}
            _write(gpu, _board(gpu), plan, moment)
            after = {"mode": plan.mode.value, "layout": layout_text(plan.wanted)}
            hardware_event(actor=actor, node=gpu.node, gpu=gpu, kind="geometry", before=before, after=after, cause=found.reason, now=moment)
            _settle(found, SplitState.DONE, "", "Repartitioned and confirmed.", SYSTEM, moment)
            done += 1
    return done


def split_refused(*, order: Order, fault: str, now: datetime) -> None:
    """The back-end will never do it. A GPU that an operator wanted repartitioned goes back to work as it is; one of a plan takes no more jobs."""
    with transaction.atomic():
        moment = usage_moment(now=now)
        split = GpuSplit.objects.filter(order=order, state=SplitState.ORDERED).first()
        if split is not None:
            if (gpu := _locked_if_there(split, moment)) is None:
                return
            split.gpu = gpu
            _settle(split, SplitState.REFUSED, fault, f"Its repartition was refused: {fault}", SYSTEM, moment)
            return
        found = Gpu.objects.filter(
            node__name=order.payload["node"], node__cluster=order.cluster_id, index=order.payload["gpu"], removed_at__isnull=True
        ).first()
        if found is not None and (there := locked_gpu(found)).health in IN_SERVICE:
            cause = f"Its repartition was refused, so its instances are not known: {fault}"
            _health(GpuSplit(gpu=there), Health.DRAINING, cause, SYSTEM, moment)


def _locked_if_there(split: GpuSplit, now: datetime) -> Gpu | None:
    """Its GPU; None where that was taken out of the fleet meanwhile. Then the repartition is given up."""
    try:
        return locked_gpu(split.gpu)
    except Conflict:
        fault = f"GPU {split.gpu.index} was taken out of the fleet."
        GpuSplit.objects.filter(pk=split.pk, state__in=OPEN_SPLITS).update(state=SplitState.CANCELLED, fault=fault, settled_at=now)
        return None


def split_jobs(split: GpuSplit) -> tuple[int, ...]:
    """Keys of the jobs that have to end first."""
    return _plan_of(split).jobs


def split_text(split: GpuSplit) -> str:
    """`whole`, or the wanted layout in one line."""
    return "whole" if split.mode == GpuMode.WHOLE else layout_text(_wanted(split)) or "no instances"


def _wanted(split: GpuSplit) -> list[Instance]:
    return sorted(Instance(start, profile) for profile, start in split.instances)


def _present(gpu: Gpu) -> list[MigInstance]:
    return list(MigInstance.objects.filter(gpu=gpu, removed_at__isnull=True).order_by("start"))


def _plan_of(split: GpuSplit) -> SplitPlan:
    return _plan(split.gpu, GpuMode(split.mode), _wanted(split), _present(split.gpu))


def _plan(gpu: Gpu, mode: GpuMode, wanted: Sequence[Instance], present: Sequence[MigInstance]) -> SplitPlan:
    staying = [row for row in present if Instance(row.start, row.profile) in wanted]
    leaving = [row for row in present if row not in staying]
    coming = [one for one in wanted if one not in geometry_of(present)]
    stays = Q(mig__in=[row.pk for row in staying]) if mode == gpu.mode else Q(pk__in=())
    jobs = set(open_placements().filter(gpu=gpu).exclude(stays).values_list("job_id", flat=True))
    jobs |= set(PromisedSeat.objects.filter(gpu=gpu).exclude(stays).values_list("promise__job_id", flat=True))
    return SplitPlan(mode, tuple(wanted), tuple(leaving), tuple(staying), tuple(coming), tuple(sorted(jobs)))


def _check_back_end(gpu: Gpu) -> None:
    cluster = gpu.node.cluster
    try:
        able = backend_for(cluster).facts.creates_mig
    except BackendError as fault:
        raise ValidationError({"layout": f"{fault}"}) from fault
    if not able:
        why = f"The {cluster.backend} back-end of {cluster.name} cannot repartition GPUs."
        raise ValidationError({"layout": f"{why} Use nvidia-smi on the node, then discover it again."})


def _order_if_empty(split: GpuSplit, plan: SplitPlan, now: datetime) -> bool:
    """Tell the back-end once nothing runs in what goes. False: something still does."""
    if plan.waits:
        return False
    gpu = split.gpu
    record = Repartition.objects.create(gpu=gpu, cluster_id=gpu.node.cluster_id, at=now, instances=split.instances)
    payload = {"node": gpu.node.name, "gpu": gpu.index, "instances": split.instances}
    split.order = Order.objects.create(
        cluster_id=gpu.node.cluster_id, sequence=record.pk, kind=OrderKind.REPARTITION, payload=payload, made_at=now, due_at=now
    )
    split.state = SplitState.ORDERED
    split.save(update_fields=["order", "state"])
    _publish(gpu)
    lease_want()
    return True


def _settle(split: GpuSplit, state: SplitState, fault: str, cause: str, actor: Actor, now: datetime) -> None:
    split.state, split.fault, split.settled_at = state, fault[:REASON_LENGTH], now
    split.save(update_fields=["state", "fault", "settled_at"])
    if split.health_before and split.gpu.health == Health.DRAINING:
        _health(split, split.health_before, cause, actor, now)
    _publish(split.gpu)
    lease_want(hint=False)


def _health(split: GpuSplit, to: str, cause: str, actor: Actor, now: datetime) -> None:
    gpu = split.gpu
    before = {"health": gpu.health, "reason": gpu.health_reason}
    gpu.health, gpu.health_since, gpu.health_reason = to, now, "" if to == Health.HEALTHY else cause[:REASON_LENGTH]
    gpu.save(update_fields=["health", "health_since", "health_reason"])
    after = {"health": to, "reason": gpu.health_reason}
    hardware_event(actor=actor, node=gpu.node, gpu=gpu, kind="health", before=before, after=after, cause=cause, now=now)
    timeline_follow(gpus=[gpu.pk], at=now)
    _publish(gpu)


def _publish(gpu: Gpu) -> None:
    hardware_published(nodes=[gpu.node_id], gpus=[gpu.pk])


def geometry_of(instances: Sequence[MigInstance]) -> list[Instance]:
    return sorted(Instance(instance.start, instance.profile) for instance in instances)


def geometry_revision(mode: str, layout: Sequence[Instance]) -> int:
    """Another one when the GPU is split otherwise."""
    return revision_of(str(mode), layout_text(layout))


def layout_text(layout: Sequence[Instance]) -> str:
    """`4g.40gb@0 3g.40gb@4`: a layout in one line, as the import file and the history write it."""
    return " ".join(f"{instance.profile}@{instance.start}" for instance in sorted(layout))


def _board(gpu: Gpu) -> Board:
    board = BOARDS.get(gpu.gpu_type.board)
    if board is None:
        raise ValidationError({"layout": f"A {gpu.gpu_type.name} can't be split: its type names no board of the MIG catalogue."})
    return board


def _write(gpu: Gpu, board: Board, plan: SplitPlan, now: datetime) -> None:
    if plan.leaving:
        MigInstance.objects.filter(pk__in=[instance.pk for instance in plan.leaving]).update(removed_at=now)
    MigInstance.objects.bulk_create(instance_rows(gpu, board, plan.coming, public_ids("m", len(plan.coming)) if plan.coming else [], now))
    if gpu.mode != plan.mode:
        gpu.mode = plan.mode
        gpu.save(update_fields=["mode"])


def instance_rows(gpu: Gpu, board: Board, layout: Sequence[Instance], ids: Sequence[str], now: datetime) -> list[MigInstance]:
    rows = []
    for instance, public_id in zip(layout, ids, strict=True):
        profile = board.known(instance.profile)
        rows.append(MigInstance(public_id=public_id, gpu=gpu, profile=profile.name, start=instance.start, size=profile.memory, created_at=now))
    return rows
