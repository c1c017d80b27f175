"""Health of nodes and GPUs, and the spare flag: an operator's decisions about hardware."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q

from gpufleet.core.audit import Actor, audit_record
from gpufleet.core.faults import Conflict
from gpufleet.core.live.feed import feed_publish
from quotas.permissions import Access, Can
from scheduler.hardware.boundaries import BOUNDARIES, Voucher, boundaries_of, labels_stated
from scheduler.hardware.lifecycle import MUST_BE_EMPTY, may_follow, steps_from
from scheduler.models import IN_SERVICE, Gpu, Health, InventoryEvent, Node, Placement
from scheduler.selectors.holders import jobs_on
from scheduler.services.hardware.deadlines import deadlines_call_off, deadlines_of
from scheduler.services.loop.lease import lease_want
from scheduler.services.loop.steps import jobs_locked
from scheduler.services.loop.usage import timeline_follow, usage_moment

REASON_LENGTH = 300
HEALTH, DRAIN = ("health", "health_since", "health_reason"), ("drain_way", "drain_at")
HEALTH_STEPS = ("health", "drain")


def health_mark(row: Node | Gpu) -> str:
    """Which of its healths this is, since when, how a node drains, and by which step: another one whenever somebody decides that anew."""
    drain: list[str | datetime | None] = [row.drain_way, row.drain_at] if isinstance(row, Node) else []
    parts: list[str | datetime | None] = [row.health, row.health_since, *drain, str(row.health_event or _health_event(row))]
    return " ".join(part.astimezone(UTC).isoformat() if isinstance(part, datetime) else part or "-" for part in parts)


def _health_event(row: Node | Gpu) -> int:
    """The newest step of its health or drain, also one that left everything as it was."""
    own = InventoryEvent.objects.filter(node=row, gpu__isnull=True) if isinstance(row, Node) else InventoryEvent.objects.filter(gpu=row)
    return own.filter(kind__in=HEALTH_STEPS).order_by("-at", "-pk").values_list("pk", flat=True).first() or 0


@dataclass(frozen=True, slots=True)
class Undone:
    """What an Undo takes back, by its `health_mark`, and the reason that stood before: Slurm knows by it which drains are its own."""

    mark: str
    reason: str


def unmarked_or_conflict(row: Node | Gpu, undone: Undone | None) -> None:
    if undone is not None and health_mark(row) != undone.mark:
        raise Conflict("Its health has been changed since. Look again, then decide.")


def newest_or_conflict(node: Node, kind: str, undone: str) -> None:
    """`undone` is the id of the step of this kind that an Undo takes back; empty where it is none."""
    steps = InventoryEvent.objects.filter(node=node, gpu__isnull=True, kind=kind).order_by("-pk")
    if undone and str(steps.values_list("pk", flat=True).first()) != undone:
        raise Conflict(f"{node.name} has been changed since. Look again, then decide.")


def node_health_change(
    *, access: Access, node: Node, to: str, reason: str, now: datetime, seen: str | None = None, undone: Undone | None = None
) -> Node:
    """Take a node to another health. `seen` is the health that the operator saw; a newer one is a conflict, as is another than `undone`."""
    access.must_everywhere(Can.OPERATE)
    with transaction.atomic():
        now = usage_moment(now=now)
        jobs_of_nodes_locked([node])
        node = locked_node(node)
        unmarked_or_conflict(node, undone)
        check_step(node, to, reason, seen, lambda: jobs_on(Q(node=node)))
        _step(access, node, None, to, reason, now, undone.reason if undone else None)
        timeline_follow(gpus=Gpu.objects.filter(node=node, removed_at__isnull=True).values_list("pk", flat=True), at=now)
        lease_want()
    return node


def node_reason_change(*, access: Access, node: Node, reason: str, now: datetime) -> Node:
    """Say why a node still has the health that it had: its page and its history tell it. A newer health than the caller saw is a conflict."""
    access.must_everywhere(Can.OPERATE)
    with transaction.atomic():
        seen, node = node.health, locked_node(node)
        unseen_or_conflict(node, seen)
        check_reason(reason)
        before = {"health": node.health, "reason": node.health_reason}
        node.health_reason = reason.strip()
        node.save(update_fields=["health_reason"])
        hardware_record(access.actor, "node.health", node, None, "health", before, {"health": node.health, "reason": node.health_reason}, reason, now)
    return node


def health_checked(*, node: Node, to: str, reason: str, seen: str | None = None) -> None:
    """What `node_health_change` refuses now, refused before anything is done."""
    check_step(node, to, reason, seen, lambda: jobs_on(Q(node=node)))


def health_step(*, access: Access, node: Node, to: str, reason: str, now: datetime, stands: str | None = None) -> None:
    """The same of a node that the caller has locked, in his transaction; the timeline is his, too. `stands`: the reason that it keeps."""
    check_step(node, to, reason, None, lambda: jobs_on(Q(node=node)))
    _step(access, node, None, to, reason, now, stands)


def gpu_health_change(*, access: Access, gpu: Gpu, to: str, reason: str, now: datetime, seen: str | None = None, undone: Undone | None = None) -> Gpu:
    """The same for one GPU: the others of its node stay in service."""
    access.must_everywhere(Can.OPERATE)
    with transaction.atomic():
        now = usage_moment(now=now)
        gpu = locked_gpu(gpu)
        unmarked_or_conflict(gpu, undone)
        check_step(gpu, to, reason, seen, lambda: jobs_on(Q(gpu=gpu)))
        _step(access, gpu.node, gpu, to, reason, now, undone.reason if undone else None)
        timeline_follow(gpus=[gpu.pk], at=now)
        lease_want()
    return gpu


def _step(access: Access, node: Node, gpu: Gpu | None, to: str, reason: str, now: datetime, stands: str | None) -> None:
    """Write another health of a node, or of one of its GPUs. `stands` is kept there as its reason instead of the one of this step."""
    row, kind = (node, "node") if gpu is None else (gpu, "gpu")
    if gpu is None and to in IN_SERVICE:
        deadlines_call_off(access=access, deadlines=deadlines_of([node], now), now=now)
    before, after = health_take(row, to, reason.strip() if stands is None else stands, now)
    row.save(update_fields=HEALTH if gpu else (*HEALTH, *DRAIN))
    hardware_record(access.actor, f"{kind}.health", node, gpu, "health", before, after, reason, now)


def health_take(row: Node | Gpu, to: str, reason: str, now: datetime) -> tuple[dict[str, str], dict[str, str]]:
    """Give it another health, yet to be saved: columns `HEALTH`, and `DRAIN` of a node. Returns what the log tells, before and after."""
    before = {"health": row.health, "reason": row.health_reason}
    row.health, row.health_since, row.health_reason = to, now, reason
    if isinstance(row, Node) and to != Health.DRAINING:
        row.drain_way, row.drain_at = "", None
    return before, {"health": to, "reason": reason}


def node_spare_set(*, access: Access, node: Node, spare: bool, reason: str, now: datetime, undone: str = "") -> Node:
    """Keep a node out of normal placement as a replacement (INV-7), or give it back. What runs on it stays. `undone`: see `newest_or_conflict`."""
    access.must_everywhere(Can.OPERATE)
    with transaction.atomic():
        node = locked_node(node)
        newest_or_conflict(node, "spare", undone)
        check_reason(reason)
        if node.spare == spare:
            raise ValidationError({"spare": f"{node.name} is {'already' if spare else 'not'} a spare."})
        before = {"spare": node.spare}
        node.spare = spare
        node.save(update_fields=["spare"])
        hardware_record(access.actor, "node.spare", node, None, "spare", before, {"spare": spare}, reason, now)
        lease_want()
    return node


def node_boundaries_state(*, access: Access, node: Node, boundaries: Collection[str], reason: str, now: datetime, undone: str = "") -> Node:
    """State which boundaries between jobs a node was verified to enforce: all of them, so that one that is left out is stated no more.

    What its back-end or Slurm vouches for needs no statement and stays. `undone`: see `newest_or_conflict`.
    """
    access.must_everywhere(Can.OPERATE)
    with transaction.atomic():
        node = locked_node(node)
        newest_or_conflict(node, "boundaries", undone)
        check_reason(reason)
        if unknown := sorted(set(boundaries) - BOUNDARIES.keys()):
            raise ValidationError({"boundaries": f"There is no boundary {unknown[0][:40]}; there are {', '.join(BOUNDARIES)}."})
        known = boundaries_of(node.labels, node.cluster.backend)
        vouched = {name for name, voucher in known.items() if voucher != Voucher.OPERATOR}
        before, after = sorted(known.keys() - vouched), sorted(set(boundaries) - vouched)
        if before == after:
            told = sorted(vouched.intersection(boundaries))
            why = f"needs no statement for {_listed(told)}" if told else f"is stated to enforce {_listed(before)} already"
            raise ValidationError({"boundaries": f"{node.name} {why}."})
        node.labels = labels_stated(node.labels, frozenset(after), node.cluster.backend)
        node.save(update_fields=["labels"])
        changed = {"boundaries": before}, {"boundaries": after}
        hardware_record(access.actor, "node.boundaries", node, None, "boundaries", *changed, reason, now)
        lease_want()
    return node


def _listed(names: Collection[str]) -> str:
    return " and ".join(names) or "no boundary"


def jobs_of_nodes_locked(nodes: Iterable[Node]) -> None:
    """Hold all jobs on nodes, before the nodes themselves: locks are taken in one order (`lease.py`). After the ledger's moment none comes there."""
    there = Placement.objects.filter(node__in=[node.pk for node in nodes], until__isnull=True)
    jobs_locked(there.values_list("job_id", flat=True))


def locked_node(node: Node) -> Node:
    locked = Node.objects.select_for_update().get(pk=node.pk)
    if locked.removed_at is not None:
        raise Conflict(f"{locked.name} was taken out of the fleet; its history can't be added to.")
    return locked


def locked_gpu(gpu: Gpu) -> Gpu:
    """The GPU as it is now, held against other writers. Its node is locked too, so that no job is placed meanwhile."""
    node = locked_node(gpu.node)
    locked = Gpu.objects.select_for_update(of=("self",)).select_related("gpu_type").get(pk=gpu.pk)
    if locked.removed_at is not None:
        raise Conflict(f"GPU {locked.index} of {node.name} was taken out of the fleet.")
    locked.node = node
    return locked


def check_step(device: Node | Gpu, to: str, reason: str, seen: str | None, jobs: Callable[[], int]) -> None:
    """`jobs` says how many hold something of it, where that matters."""
    unseen_or_conflict(device, seen)
    fault = unfit_step(device, to)
    if not fault and to in MUST_BE_EMPTY and (running := jobs()):
        fault = f"{running} {'job runs' if running == 1 else 'jobs run'} here. Drain it and wait until nothing is left, or move the work first."
    _raise({"to": fault, "reason": _reason_fault(reason)})


def unfit_step(device: Node | Gpu, to: str) -> str:
    """Why this health cannot follow on the one that it has; empty where it can."""
    if to not in Health.values:
        return f"There is no health “{to[:40]}”; it can be {', '.join(Health.values)}."
    if may_follow(device.health, to):
        return ""
    allowed = ", ".join(Health(step.to).label.lower() for step in steps_from(device.health))
    return f"From {Health(device.health).label.lower()} it can become {allowed}, not {Health(to).label.lower()}."


def unseen_or_conflict(device: Node | Gpu, seen: str | None) -> None:
    """`seen` is the health that the caller was shown; None: any."""
    if seen is not None and seen != device.health:
        raise Conflict(f"It is {Health(device.health).label.lower()} by now, no longer {seen.replace('_', ' ')}. Look again, then decide.")


def check_reason(reason: str) -> None:
    _raise({"reason": _reason_fault(reason)})


def check_confirmed(name: str, *, confirm: str, reason: str, **others: str) -> None:
    """What ends a cluster is confirmed by its name, with a reason. `others`: by field, what else is wrong, to be told in one round."""
    _raise({"confirm": "" if confirm.strip() == name else f"Type {name} to confirm.", "reason": _reason_fault(reason), **others})


def _reason_fault(reason: str) -> str:
    if not reason.strip():
        return "A reason is required for the record."
    length = len(reason.strip())
    return f"The reason has {length} characters; {REASON_LENGTH} are kept." if length > REASON_LENGTH else ""


def _raise(faults: Mapping[str, str]) -> None:
    if found := {field: fault for field, fault in faults.items() if fault}:
        raise ValidationError(found)


def hardware_record(
    actor: Actor, action: str, node: Node, gpu: Gpu | None, kind: str, before: Mapping[str, Any], after: Mapping[str, Any], reason: str, now: datetime
) -> None:
    event = hardware_event(actor=actor, node=node, gpu=gpu, kind=kind, before=before, after=after, cause=reason.strip(), now=now)
    device: Node | Gpu = gpu or node
    if kind in HEALTH_STEPS:
        device.health_event = event.pk
    else:
        device.other_event = event.pk
    audit_record(
        actor=actor, action=action, kind="gpu" if gpu else "node", object_id=device.public_id, before=before, after=after, reason=reason.strip()
    )
    gpus = [gpu.pk] if gpu else Gpu.objects.filter(node=node, removed_at__isnull=True).order_by("index").values_list("pk", flat=True)
    hardware_published(nodes=[node.pk], gpus=gpus)


def hardware_published(*, nodes: Iterable[int], gpus: Iterable[int]) -> None:
    """Open pages of these, and of the fleet, are told that something has changed."""
    feed_publish(changes={"nodes": [{"id": key} for key in nodes], "gpus": [{"id": key} for key in gpus], "overview": [{"id": 1}]})


def hardware_event(
    *,
    actor: Actor,
    node: Node,
    gpu: Gpu | None,
    kind: str,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
    cause: str,
    now: datetime,
) -> InventoryEvent:
    """One line of the hardware's own history."""
    return InventoryEvent.objects.create(
        at=now,
        node=node,
        gpu=gpu,
        cluster_id=node.cluster_id,
        kind=kind,
        before=before,
        after=after,
        cause=cause[:REASON_LENGTH],
        actor=actor.user,
        actor_name=actor.name,
    )
