"""What of a job's life others are told: the kinds of happenings, and which step of the state machine is which."""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from scheduler.jobs.transitions import FOLLOWING
from scheduler.models.jobs import HOLDING, JobState

# Of the payload that receivers read; raised when something that they rely on goes or changes.
PAYLOAD_VERSION = 1


class Happened(StrEnum):
    SUBMITTED = "job.submitted"
    STARTED = "job.started"
    PREEMPTED = "job.preempted"
    REQUEUED = "job.requeued"
    MOVED = "job.moved"
    DEGRADED = "job.degraded"
    REPLACE_STOPPED = "job.replace_stopped"
    NEAR_LIMIT = "job.near_limit"
    NODE_DRAINING = "job.node_draining"
    COMPLETED = "job.completed"
    FAILED = "job.failed"
    CANCELLED = "job.cancelled"


class FleetEvent(StrEnum):
    """What happens to the fleet or to a team rather than to a job's state."""

    ALERT_FIRING = "alert.firing"
    ALERT_ESCALATED = "alert.escalated"
    ALERT_RESOLVED = "alert.resolved"
    INCIDENT_OPENED = "incident.opened"
    INCIDENT_CLOSED = "incident.closed"
    STRAGGLER = "straggler.named"
    SERVICE_BREACHED = "service.breached"
    SERVICE_RESOLVED = "service.resolved"
    IDLE_NOTIFIED = "idle.notified"
    IDLE_WARNED = "idle.warned"
    IDLE_RECLAIMED = "idle.reclaimed"
    DEFRAG_PLANNED = "defrag.planned"
    DEFRAG_BEGUN = "defrag.begun"
    DEFRAG_ENDED = "defrag.ended"
    QUOTA_PROPOSED = "quota.proposed"
    QUOTA_APPROVED = "quota.approved"
    QUOTA_REJECTED = "quota.rejected"
    QUOTA_APPLIED = "quota.applied"
    QUOTA_FAILED = "quota.failed"
    RESERVE_REQUESTED = "reserve.requested"
    RESERVE_APPROVED = "reserve.approved"
    RESERVE_DENIED = "reserve.denied"
    RESERVE_CANCELLED = "reserve.cancelled"
    RESERVE_SHORT = "reserve.short"
    RESERVE_RELEASED = "reserve.released"
    BUDGET_WARNED = "budget.warned"
    BUDGET_STOPPED = "budget.stopped"
    BUDGET_RESUMED = "budget.resumed"


# What a webhook may choose to be told of.
HOOK_KINDS: tuple[StrEnum, ...] = (*Happened, *FleetEvent)

# A delivery that somebody asked for, to see whether it arrives. No hook chooses it.
TEST = "test"
# What one person's own webhook is sent.
NOTICES = "notices"

LABELS: dict[str, str] = {
    Happened.SUBMITTED: "A job was submitted",
    Happened.STARTED: "It runs",
    Happened.PREEMPTED: "It lost its GPUs to others and waits to resume",
    Happened.REQUEUED: "Its run ended early and it waits again",
    Happened.MOVED: "It is moved to other GPUs",
    Happened.DEGRADED: "It lost workers and runs on",
    Happened.REPLACE_STOPPED: "Replacing its replicas stopped early",
    Happened.NEAR_LIMIT: "Its time limit is near",
    Happened.NODE_DRAINING: "Its node is drained at a stated time",
    Happened.COMPLETED: "It completed",
    Happened.FAILED: "It failed",
    Happened.CANCELLED: "It was cancelled",
    FleetEvent.ALERT_FIRING: "An alert fires",
    FleetEvent.ALERT_ESCALATED: "An alert is not acknowledged in time",
    FleetEvent.ALERT_RESOLVED: "An alert is over",
    FleetEvent.INCIDENT_OPENED: "A node has a problem",
    FleetEvent.INCIDENT_CLOSED: "A node is healthy again",
    FleetEvent.STRAGGLER: "A rank slows its job down",
    FleetEvent.SERVICE_BREACHED: "A service is over its latency objective",
    FleetEvent.SERVICE_RESOLVED: "A service meets its objective again or is no longer watched",
    FleetEvent.IDLE_NOTIFIED: "The owner of idle GPUs was notified",
    FleetEvent.IDLE_WARNED: "The owner of idle GPUs was warned",
    FleetEvent.IDLE_RECLAIMED: "Idle GPUs were reclaimed",
    FleetEvent.DEFRAG_PLANNED: "A defragmentation is planned",
    FleetEvent.DEFRAG_BEGUN: "A defragmentation has begun",
    FleetEvent.DEFRAG_ENDED: "A defragmentation has ended or is called off",
    FleetEvent.QUOTA_PROPOSED: "A quota change needs approval",
    FleetEvent.QUOTA_APPROVED: "A quota change is approved",
    FleetEvent.QUOTA_REJECTED: "A quota change is rejected",
    FleetEvent.QUOTA_APPLIED: "A quota change is in force",
    FleetEvent.QUOTA_FAILED: "A scheduled quota change failed",
    FleetEvent.RESERVE_REQUESTED: "A reservation needs approval",
    FleetEvent.RESERVE_APPROVED: "A reservation is approved",
    FleetEvent.RESERVE_DENIED: "A reservation is denied",
    FleetEvent.RESERVE_CANCELLED: "A reservation is cancelled",
    FleetEvent.RESERVE_SHORT: "A window begins soon and lacks GPUs",
    FleetEvent.RESERVE_RELEASED: "An unused window is released",
    FleetEvent.BUDGET_WARNED: "A budget is near its limit",
    FleetEvent.BUDGET_STOPPED: "A budget is used up",
    FleetEvent.BUDGET_RESUMED: "A budget is open again",
    TEST: "Test",
    NOTICES: "Notices",
}
# Of one and of several.
_COUNTED: dict[str, tuple[str, str]] = {
    FleetEvent.ALERT_FIRING: ("alert fires", "alerts fire"),
    FleetEvent.ALERT_ESCALATED: ("alert is not acknowledged", "alerts are not acknowledged"),
    FleetEvent.ALERT_RESOLVED: ("alert is over", "alerts are over"),
}
_ENDS = {JobState.COMPLETED: Happened.COMPLETED, JobState.FAILED: Happened.FAILED, JobState.CANCELLED: Happened.CANCELLED}
_LEAVES = {JobState.PREEMPTED: Happened.PREEMPTED, JobState.QUEUED: Happened.REQUEUED, JobState.RESERVED: Happened.MOVED}


def _happened(before: str, after: JobState) -> Happened | None:
    if after in _ENDS:
        return _ENDS[after]
    if before in HOLDING and after in _LEAVES:
        return _LEAVES[after]
    if after == JobState.DEGRADED:
        return Happened.DEGRADED
    if after == JobState.RUNNING and before in (JobState.STARTING, JobState.RESUMING):
        return Happened.STARTED
    return Happened.SUBMITTED if after == JobState.QUEUED and before in ("", JobState.DRAFT) else None


# (before, after) of every step that is told. Looked at for each event of a tick, so it is made once.
TOLD: dict[tuple[str, str], Happened] = {
    (str(before), str(after)): kind
    for before, following in [("", (JobState.QUEUED,)), *FOLLOWING.items()]
    for after in following
    if (kind := _happened(before, after)) is not None
}


# Longer texts are cut off by chats.
MOST_LISTED = 30_000


def slack_text(said: Mapping[str, Any]) -> str:
    """A message as chats that read Slack's webhooks show it: one line in bold, what happened, and where it is shown.

    Several events of one moment are a list, in which each leads to its page.
    """
    if "events" in said:
        return _listed(said["events"])
    console = str(said.get("console", ""))
    job = said.get("job")
    if isinstance(job, Mapping):
        title, text, link = (
            f"{job['name']} ({job['id']}): {said['to']}",
            f"{said.get('cause', '')} Team {job['quota']}.",
            f"{console}/jobs/{job['id']}/",
        )
    elif said.get("kind") == TEST:
        title, text, link = "Test from gpufleet", f"Sent by {said.get('by', '')}.", f"{console}/"
    else:
        title, text, link = str(said.get("title", "")), str(said.get("text", "")), f"{console}{said.get('link', '/')}"
    return f"*{_plain(title)}*\n{_plain(text)}\n<{link}|Open in gpufleet>"


def _plain(text: str) -> str:
    """Slack reads these three characters as markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _listed(events: Sequence[Mapping[str, Any]]) -> str:
    counts = Counter(str(one["kind"]) for one in events)
    title = ", ".join(f"{count:,} {_COUNTED.get(kind, ('event', 'events'))[count > 1]}" for kind, count in counts.items())
    lines, length = [f"*{title}*"], 0
    for place, one in enumerate(events):
        line = f"• <{one['console']}{one['link']}|{_plain(str(one['title']))}> {_plain(str(one['text']))}"
        length += len(line)
        if length > MOST_LISTED:
            lines.append(f"and {len(events) - place:,} more: <{one['console']}/activity/|Open in gpufleet>")
            break
        lines.append(line)
    return "\n".join(lines)
