"""What a plan says: decisions in the order in which they are carried out, and for every waiting job all that blocks it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from ..state.fleet import bits_of
from .mig import Instance
from .reasons import Reason, spell_instant, thousandths

PLAN_FORMAT = "gpufleet-plan/1"


class Stand(NamedTuple):
    """One worker's place as a plan writes it."""

    role: str
    index: int  # type: ignore[assignment]  # nobody asks where in a place something stands
    node: str
    gpus: int
    share_milli: int | None = None
    mig: tuple[tuple[int, str, int], ...] = ()  # (gpu, profile, start)

    def as_json(self) -> dict[str, Any]:
        result: dict[str, Any] = {"role": self.role, "index": self.index, "node": self.node, "gpus": list(bits_of(self.gpus))}
        if self.share_milli is not None:
            result["gpu_share"] = self.share_milli / 1000
        if len(self.mig) == 1:
            result["mig"] = {"profile": self.mig[0][1], "start": self.mig[0][2]}
        elif self.mig:
            result["mig"] = [{"profile": profile, "start": start} for _, profile, start in self.mig]
        return result


class Decision(NamedTuple):
    action: str  # evict, shrink, repartition, move, start, repair, grow or reserve
    why: Reason
    job: str | None = None
    for_job: str | None = None
    workers: tuple[Stand, ...] = ()
    after: tuple[str, ...] = ()
    backfilled: bool = False
    grace_ms: int = 0
    at: int | None = None
    node: str | None = None
    gpu: int | None = None
    instances: tuple[Instance, ...] = ()

    def as_json(self) -> dict[str, Any]:
        why: dict[str, Any] = {"code": self.why.code, "detail": self.why.detail}
        if self.for_job is not None:
            why["for"] = self.for_job
        result: dict[str, Any] = {"action": self.action}
        if self.action == "repartition":
            result |= {"node": self.node, "gpu": self.gpu, "instances": [{"profile": one.profile, "start": one.start} for one in self.instances]}
        else:
            result["job"] = self.job
        if self.at is not None:
            result["at"] = spell_instant(self.at)
        if self.action not in ("repartition", "evict"):
            result["workers"] = [worker.as_json() for worker in self.workers]
        if self.action in ("repartition", "start", "repair", "move", "grow"):
            result["after"] = list(self.after)
        if self.action == "start" or (self.action == "move" and self.backfilled):
            result["backfilled"] = self.backfilled
        result["why"] = why
        if self.action == "evict":
            result["grace_s"] = thousandths(self.grace_ms)
        return result


class Waiting(NamedTuple):
    job: str
    reasons: tuple[Reason, ...]
    predicted_start: int | None = None
    would_start_if: tuple[str, Any] | None = None

    def as_json(self, reasons: list[dict[str, Any]]) -> dict[str, Any]:
        """`reasons`: spelt already."""
        change = self.would_start_if
        return {
            "job": self.job,
            "reasons": reasons,
            "predicted_start": None if self.predicted_start is None else spell_instant(self.predicted_start),
            "would_start_if": None if change is None else {"change": change[0], "to": change[1]},
        }


class Share(NamedTuple):
    quota: str
    quota_type: str
    fair: int
    used: int
    guaranteed: int | None
    borrowed: int

    def as_json(self) -> dict[str, Any]:
        return {
            "quota": self.quota,
            "type": self.quota_type,
            "fair": self.fair / 1000,
            "used": self.used / 1000,
            "guaranteed": None if self.guaranteed is None else self.guaranteed / 1000,
            "borrowed": self.borrowed / 1000,
        }


# Of all the fields at once, past the slow constructors.
new_waiting, new_decision = partial(tuple.__new__, Waiting), partial(tuple.__new__, Decision)


@dataclass(frozen=True, slots=True)
class Plan:
    now: int
    decisions: tuple[Decision, ...]
    waiting: tuple[Waiting, ...]
    shares: tuple[Share, ...]
    next_wake: int | None
    metrics: dict[str, Any] = field(default_factory=dict)

    @property
    def fragmented(self) -> int:
        """Idle GPUs that a waiting job can't use, on average."""
        return int(self.metrics.get("fragmented", 0))

    def as_json(self) -> dict[str, Any]:
        shared = {id(one.reasons): one.reasons for one in self.waiting}  # many jobs have one tuple of them
        spelt = {key: [each.as_json() for each in reasons] for key, reasons in shared.items()}
        return {
            "format": PLAN_FORMAT,
            "now": spell_instant(self.now),
            "decisions": [decision.as_json() for decision in self.decisions],
            "waiting": [one.as_json(spelt[id(one.reasons)]) for one in self.waiting],
            "shares": [share.as_json() for share in self.shares],
            "next_wake": None if self.next_wake is None else spell_instant(self.next_wake),
            "metrics": self.metrics,
        }


class Course(NamedTuple):
    """What a plan does, and nothing of what it tells: for who only plays it forward."""

    decisions: tuple[Decision, ...]  # without what is only kept for somebody
    next_wake: int | None
    fragmented: int


def names(items: Sequence[str], most: int = 4, of: str = "") -> str:
    """A short list of names for a sentence."""
    shown = ", ".join(items[:most])
    return f"{shown} and {len(items) - most} more{of}" if len(items) > most else shown
