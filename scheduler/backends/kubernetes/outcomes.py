"""What a pod's end means: an exit code, the reason for its owner, and whether the job is to blame or Kubernetes and its nodes."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from scheduler.backends.base import Refusal
from scheduler.backends.kubernetes.values import Pod

KILLED = 128 + 9
AGREED = timedelta(seconds=30)  # so long Kubernetes may find no room for a pod: by then the console knows what others hold there
PULLED_FOR = timedelta(seconds=180)  # so long an image may fail to be pulled: a registry may be away for a moment
MADE_FOR = timedelta(seconds=60)
NEVER_PULLED = frozenset({"InvalidImageName", "ErrImageNeverPull"})
NOT_PULLED = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError", "SignatureValidationFailed"})
NOT_MADE = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreCreateHookError", "PostStartHookError"})
# Of what a pod itself has used too much.
OWN_USE = ("exceeds the limit", "exceeded its local ephemeral storage limit", "exceeds the total limit")
DISRUPTED = {
    "DeletionByTaintManager": "its node stopped answering, or was given a taint",
    "PreemptionByScheduler": "Kubernetes preempted it for a pod of a higher priority",
    "EvictionByEvictionAPI": "it was evicted, as when its node is drained",
    "TerminationByKubelet": "its node was shut down or ran out of a resource",
    "DeletionByPodGC": "its node is gone",
}


@dataclass(frozen=True, slots=True)
class End:
    """How one worker ended."""

    code: int | None
    why: str = ""
    lost: bool = False  # by no doing of the job
    at: datetime | None = None
    started: datetime | None = None
    refusal: tuple[str, str] | None = None  # code and words
    asked: bool = False  # its run was being ended by then, or it was to leave, so that it is not why
    killed: bool = False  # by somebody, and not as it used too much memory

    def document(self) -> dict[str, Any]:
        told: dict[str, Any] = {"code": self.code, "why": self.why, "lost": self.lost, "asked": self.asked}
        told |= {"killed": self.killed, "refusal": list(self.refusal) if self.refusal else None}
        return told | {name: moment.isoformat() if (moment := getattr(self, name)) is not None else None for name in ("at", "started")}

    @classmethod
    def read(cls, kept: dict[str, Any]) -> "End":
        at, started = (datetime.fromisoformat(kept[name]) if kept.get(name) else None for name in ("at", "started"))
        refusal = kept.get("refusal")
        refused = (refusal[0], refusal[1]) if refusal else None
        return cls(kept["code"], kept["why"], kept["lost"], at, started, refused, kept["asked"], bool(kept.get("killed")))

    def refused_by(self, node: str) -> tuple[Refusal, ...]:
        return (Refusal(node, *self.refusal),) if self.refusal else ()


def end_of(pod: Pod, worker: str, node: str, *, is_ending: bool) -> End:
    """Of a pod that is over. `is_ending`: its run was asked to leave, so that nothing is said of who ended it."""
    code, why, lost, refusal = _told(pod, worker, node, is_ending=is_ending)
    return End(code, why, lost, pod.ended_at, pod.started_at, refusal, is_ending, code == KILLED and pod.exit_reason != "OOMKilled")


def _told(pod: Pod, worker: str, node: str, *, is_ending: bool) -> tuple[int | None, str, bool, tuple[str, str] | None]:
    code = pod.exit_code
    if pod.phase == "Succeeded":
        return (0 if code is None else code), "", False, None
    message = pod.message or pod.disrupted_message
    if pod.reason == "UnexpectedAdmissionError":
        return None, f"{node} refused {worker}: {message}", True, ("devices", message)
    if pod.reason.startswith("OutOf") or pod.reason in ("NodeAffinity", "NodePorts"):
        return None, f"{node} had no room for {worker}: {message or pod.reason}", True, None
    if pod.reason == "Evicted" and any(words in message for words in OWN_USE):
        return code, f"{worker} was evicted from {node}: {message}", False, None
    if is_ending:
        return code, _exited(pod, worker, node), False, None
    if pod.disrupted or pod.reason in ("Evicted", "NodeLost", "NodeShutdown", "Shutdown", "Terminated", "Preempting"):
        told = DISRUPTED.get(pod.disrupted) or f"{pod.reason or pod.disrupted}: {message or 'no reason given'}"
        return code, f"{worker} was ended on {node}: {told}.", True, None
    if pod.deleting_since is not None:
        return code, f"The pod {pod.name} was deleted in Kubernetes.", True, None
    if pod.reason == "DeadlineExceeded":
        return code, f"{worker} was ended on {node}: somebody set a deadline on its pod.", False, None
    if code is None:
        return None, f"{worker} ended on {node} without an exit code: {pod.exit_reason or pod.reason or 'no reason given'}.", True, None
    return code, _exited(pod, worker, node), False, None


def _exited(pod: Pod, worker: str, node: str) -> str:
    if pod.exit_code is None or pod.exit_code == 0:
        return ""
    if pod.exit_reason == "OOMKilled":
        return f"{worker} on {node} used more memory than it may and was killed (OOMKilled)."
    if pod.exit_reason in ("StartError", "ContainerCannotRun"):
        return (
            f"{worker} could not be started on {node}: {pod.waiting_message or pod.message or 'its command is not in the image, or may not be run'}."
        )
    return f"{worker} on {node}: exit code {pod.exit_code}."


def silent(worker: Mapping[str, Any], *, asked: bool) -> End:
    """Of one whose node does not answer."""
    name = f"{worker['role'].capitalize()} {worker['index']}"
    return End(None, f"{worker['node']} does not answer Kubernetes; {name} was there.", lost=True, asked=asked)


def gone(pod: str) -> End:
    """Of one that was deleted while nobody looked."""
    return End(None, f"The pod {pod} was deleted in Kubernetes.", lost=True)


def waits_for(pod: Pod) -> str:
    """What keeps a pod from its start, as Kubernetes says it; empty: nothing that it says."""
    if pod.unschedulable:
        return pod.unschedulable
    return f"{pod.waiting}: {pod.waiting_message}" if pod.waiting and pod.waiting_message else pod.waiting


def stuck(pod: Pod, worker: str, node: str, released: datetime, now: datetime) -> End | None:
    """Why a pod is not waited for any more."""
    for_so_long = now - released
    if pod.unschedulable and for_so_long >= AGREED:
        return End(None, f"Kubernetes found no room for {worker} on {node}: {pod.unschedulable}", lost=True)
    image_fails = pod.waiting in NEVER_PULLED or (pod.waiting in NOT_PULLED and for_so_long >= PULLED_FOR)
    if image_fails:
        return End(None, f"The image of {worker} cannot be pulled on {node} ({pod.waiting}): {pod.waiting_message}")
    if pod.waiting in NOT_MADE and for_so_long >= MADE_FOR:
        return End(None, f"{worker} cannot be started on {node} ({pod.waiting}): {pod.waiting_message}")
    return None
