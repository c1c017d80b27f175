"""How a GPU is split. Only what the vendor's hardware can hold is written, and an instance that is in use is never taken away (INV-6)."""

from collections.abc import Sequence
from datetime import datetime

from django.core.exceptions import ValidationError
from django.db import transaction

from gpufleet.core.audit import audit_record
from gpufleet.core.etags import revision_of
from gpufleet.core.faults import Conflict, Stale
from gpufleet.core.ids import public_ids
from gpufleet.core.live.feed import feed_publish
from quotas.permissions import Access, Can
from scheduler.engine.mig import BOARDS, Board, Instance, layout_faults
from scheduler.models import Gpu, GpuMode, MigInstance
from scheduler.selectors.holders import open_placements
from scheduler.services.hardware.hardware import hardware_event, locked_gpu


def gpu_geometry_change(
    *,
    access: Access,
    gpu: Gpu,
    layout: Sequence[Instance] | None,
    reason: str,
    now: datetime,
    seen: Sequence[Instance] | None = None,
    revision: int | None = None,
) -> Gpu:
    """Split a GPU as `layout` says, or make it whole again with None. Instances that are in both layouts stay, and so does what runs in them.

    `seen` is the layout that the operator started from; a newer one is a conflict. `revision` says the same by its number.
    """
    access.must_everywhere(Can.OPERATE)
    with transaction.atomic():
        gpu = locked_gpu(gpu)
        present = list(MigInstance.objects.select_for_update().filter(gpu=gpu, removed_at__isnull=True).order_by("start"))
        present_revision = geometry_revision(gpu.mode, geometry_of(present))
        if revision is not None and revision != present_revision:
            raise Stale("Its geometry was changed since you looked. Look again, then decide.", present_revision)
        if seen is not None and sorted(seen) != geometry_of(present):
            raise Conflict("Its geometry was changed since you looked. Look again, then decide.")
        board = _board(gpu)
        wanted = sorted(layout or ())
        if faults := layout_faults(board, wanted):
            raise ValidationError({"layout": [f"{fault}." for fault in faults]})
        if not reason.strip():
            raise ValidationError({"reason": "A reason is required for the record."})
        leaving = [instance for instance in present if Instance(instance.start, instance.profile) not in wanted]
        mode = GpuMode.WHOLE if layout is None else GpuMode.MIG
        _check_unused(gpu, leaving, mode)
        before = {"mode": gpu.mode, "layout": layout_text(geometry_of(present))}
        _write(gpu, board, leaving, [instance for instance in wanted if instance not in geometry_of(present)], mode, now)
        after = {"mode": mode.value, "layout": layout_text(wanted)}
        if before == after:
            raise ValidationError({"layout": "That is how it is split already."})
        hardware_event(actor=access.actor, node=gpu.node, gpu=gpu, kind="geometry", before=before, after=after, cause=reason.strip(), now=now)
        audit_record(
            actor=access.actor, action="gpu.geometry", kind="gpu", object_id=gpu.public_id, before=before, after=after, reason=reason.strip()[:500]
        )
        feed_publish(changes={"gpus": [{"id": gpu.pk}], "nodes": [{"id": gpu.node_id}]})
    return gpu


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


def _check_unused(gpu: Gpu, leaving: Sequence[MigInstance], mode: GpuMode) -> None:
    held = set(open_placements().filter(gpu=gpu).values_list("mig_id", flat=True))
    if mode != gpu.mode and held:
        raise ValidationError({"layout": f"GPU {gpu.index} of {gpu.node.name} is in use; its mode can only change while nothing runs there."})
    if faults := [f"{instance.profile} at slice {instance.start} is in use; it has to stay." for instance in leaving if instance.pk in held]:
        raise ValidationError({"layout": faults})


def _write(gpu: Gpu, board: Board, leaving: Sequence[MigInstance], coming: Sequence[Instance], mode: GpuMode, now: datetime) -> None:
    if leaving:
        MigInstance.objects.filter(pk__in=[instance.pk for instance in leaving]).update(removed_at=now)
    MigInstance.objects.bulk_create(instance_rows(gpu, board, coming, public_ids("m", len(coming)) if coming else [], now))
    if gpu.mode != mode:
        gpu.mode = mode
        gpu.save(update_fields=["mode"])


def instance_rows(gpu: Gpu, board: Board, layout: Sequence[Instance], ids: Sequence[str], now: datetime) -> list[MigInstance]:
    rows = []
    for instance, public_id in zip(layout, ids, strict=True):
        profile = board.profile(instance.profile)
        assert profile is not None, "the layout was checked"
        rows.append(MigInstance(public_id=public_id, gpu=gpu, profile=profile.name, start=instance.start, size=profile.memory, created_at=now))
    return rows
