"""Draining a node: it takes no new jobs, and what runs there finishes or is moved."""

from datetime import datetime

from gpufleet.core.audit import audit_record
from quotas.permissions import Access
from scheduler.models import Health, JobState, Node
from scheduler.selectors.nodes import node_guests
from scheduler.services.hardware.hardware import node_health_change
from scheduler.services.loop.runs import Stop, attempts_stop


def node_drain(*, access: Access, node: Node, reason: str, move: bool, seen: str | None, now: datetime) -> tuple[Node, int]:
    """Drain a node. With `move` its preemptible jobs are asked to save and leave; returns how many were asked.

    The node is closed first, in a transaction of its own: no job is placed there between the two.
    """
    node = node_health_change(access=access, node=node, to=Health.DRAINING, reason=reason, now=now, seen=seen)
    if not move:
        return node, 0
    cause = f"{node.name} is drained; the job resumes elsewhere."
    stops = [Stop(guest.job.pk, JobState.PREEMPTED, "preempted", cause) for guest in node_guests(access, node, now=now) if guest.movable]
    asked = attempts_stop(stops=stops, now=now, actor=access.actor)
    audit_record(actor=access.actor, action="node.move_jobs", kind="node", object_id=node.public_id, after={"jobs": asked}, reason=reason.strip())
    return node, asked
