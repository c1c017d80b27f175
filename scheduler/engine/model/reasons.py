"""Why a decision was taken and why a job waits: a closed list of codes, each with an entry in docs/reasons.md; and how a plan spells amounts."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

# What a decision may say.
WHY = {
    "fits": "Free capacity suffices and no earlier job is delayed.",
    "backfill": "The job runs in a gap before a reservation, or leaves that gap.",
    "reclaim": "Capacity is reclaimed for a team within its fair share or guarantee.",
    "preempt": "A job of the same leaf with a higher class or number needs the GPUs.",
    "shrink": "Surplus of an elastic job is released for a waiting minimum.",
    "desired": "The service wants fewer workers than it has.",
    "consolidate": "A job moves so that a waiting job finds a block.",
    "moved": "The job was evicted for another job and placed elsewhere in the same plan.",
    "stale": "The gang was below its minimum for longer than its grace period without repair.",
    "repair": "Lost workers are replaced.",
    "grow": "The job grows into idle capacity that no waiting minimum can use.",
    "repartition": "A GPU is repartitioned for a waiting job.",
    "reserve": "The earliest time and place by the estimates of running work.",
    "relief": "A service is over its objective, and the job beside it gives way.",
    "reservation_due": "The holder of a reservation takes the GPUs that were lent to backfilled work.",
}

# What a waiting job may be told.
REASONS = {
    "held": "The job is not due before a given time.",
    "stale": "The job was ended as stale in this plan and is not restarted in it.",
    "backoff": "The job was evicted recently and would exceed its guarantee.",
    "no_type": "No node has a GPU type on which the job runs.",
    "no_node": "No node in service satisfies labels, attributes, processors, memory or size.",
    "empty_fleet": "Even the empty fleet cannot hold the gang under its topology.",
    "limit": "A quota limit on the job's path would be exceeded.",
    "guarantee": "Non-preemptible work must fit inside the guarantee on every level.",
    "capacity": "Not enough GPUs are free.",
    "fragmentation": "Enough GPUs are free in total, but not in the shape that the workers need.",
    "topology": "No domain of the required level has enough free GPUs.",
    "reservation": "The job would delay a reservation ahead of it.",
    "window": "Capacity is kept for a window that starts before the job can end.",
    "power": "A power cap would be exceeded while the job may run.",
    "colocation": "Services and other work would be neighbours without a verified boundary, or against a service level.",
    "share": "The job is above its fair share and may use only idle GPUs.",
    "victims": "No preemptible work would free enough GPUs.",
    "balance": "Reclaiming would leave the other team worse off than this one.",
    "worth": "The lost work would exceed the bound in the settings.",
    "delay": "The job may not cause evictions yet.",
    "moves": "No allowed set of moves frees a block at an acceptable cost.",
    "sharing": "No shared GPU has room for the part.",
    "repartition": "The GPU could be repartitioned, but the rate limit is used up or the pass is off.",
    "passes": "The passes that could serve the job are disabled.",
    "shortage": "Guarantees in force exceed the healthy capacity.",
    "deadline": "The deadline has passed, or no possible start leaves enough time before it.",
    "order": "Jobs ahead of it take the GPUs.",
    # Remembered by the loop: the engine is not shown these jobs.
    "hold": "A person put the job on hold.",
    "retry": "The job failed and is retried at a given time.",
    "dependency": "The job waits for another job.",
    "deferred": "The job is deferred to an hour in which energy is cheaper or cleaner.",
    "budget": "A budget of its team, or of a node above it, is used up.",
    "aside": "The job is excluded from planning because of a fault; an operator must check it.",
}


@dataclass(frozen=True, slots=True)
class Reason:
    """A code of the closed list, a sentence with numbers and names, and the same facts for programs."""

    code: str
    detail: str
    facts: tuple[tuple[str, Any], ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        return {"code": self.code, "detail": self.detail, **dict(self.facts)}


def reason(code: str, detail: str, **facts: Any) -> Reason:
    assert code in REASONS or code in WHY, f"{code} is not in the closed list"
    return Reason(code, detail, tuple(sorted(facts.items())))


@lru_cache(maxsize=4096)
def gpus(milli: int) -> str:
    """Milli-GPU as people write GPUs."""
    whole, rest = divmod(milli, 1000)
    return f"{whole}.{rest:03d}".rstrip("0") if rest else str(whole)


def counted(milli: int) -> str:
    """Milli-GPU as people write GPUs, with the word."""
    return f"{gpus(milli)} GPU{'s' * (milli != 1000)}"


def thousandths(amount: int) -> int | float:
    """So many thousandths as a number: 1.5 of 1500, and whole ones without a point."""
    return amount / 1000 if amount % 1000 else amount // 1000


@lru_cache(maxsize=4096)
def spell_instant(milliseconds: int) -> str:
    """An instant as a plan writes it; milliseconds only where there are any."""
    seconds, rest = divmod(milliseconds, 1000)
    try:
        spelt = datetime.fromtimestamp(seconds, UTC).isoformat().removesuffix("+00:00")
    except (OverflowError, ValueError, OSError):
        return "9999-12-31T23:59:59Z"
    return f"{spelt}.{rest:03d}Z" if rest else f"{spelt}Z"
