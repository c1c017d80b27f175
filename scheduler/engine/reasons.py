"""Why a decision was taken and why a job waits: a closed list of codes with the facts each one carries.

docs/reasons.md has an entry for every code; a test holds the two together.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

# What a decision may say.
WHY = {
    "fits": "Free capacity suffices and nothing ahead in the order is held back.",
    "backfill": "Runs in a gap before a reservation, or makes room for it at short notice.",
    "reclaim": "Capacity is taken back for a queue that is within its fair share or its guarantee.",
    "preempt": "A job of the same queue with a higher class or number needs the room.",
    "shrink": "Surplus of an elastic job is given back for a waiting minimum.",
    "desired": "The service asks for fewer workers than it has.",
    "consolidate": "Moved so that a waiting job finds a block.",
    "moved": "Evicted for another job and placed again elsewhere.",
    "stale": "Below its minimum for longer than its grace, without a repair.",
    "repair": "Workers that were lost are replaced.",
    "grow": "Idle capacity that no waiting minimum can use.",
    "repartition": "A GPU is split anew for a waiting job.",
    "reserve": "The earliest time and place by the estimates of what runs.",
    "reservation_due": "The holder of a reservation takes the place that backfilled work was lent.",
}

# What a waiting job may be told.
REASONS = {
    "held": "Not due before a given time.",
    "stale": "Was ended as stale in this plan and is not started again in it.",
    "backoff": "Was evicted a short while ago and would not stand inside its guarantee.",
    "no_type": "No node has a GPU type that the job accepts at a speed above zero.",
    "no_node": "No node, however empty, satisfies labels, attributes, processors, memory or size, or none that does is in service.",
    "empty_fleet": "Even the empty fleet can't hold the gang in one quota type, under its topology and with what its hosts have.",
    "limit": "A quota limit on the way up would be exceeded.",
    "guarantee": "Non-preemptible work must fit inside the guarantee on every level.",
    "capacity": "Too few GPUs are free.",
    "fragmentation": "Enough GPUs are free in sum, but not as the workers need them.",
    "topology": "No domain of the required level has enough room.",
    "reservation": "Would delay a reservation ahead of it.",
    "window": "Capacity is kept for a window that starts before the job could be off it.",
    "share": "Above its fair share, so it may only use what is idle.",
    "victims": "Nothing may be taken back that would make room.",
    "balance": "Taking it back would leave the victim's queue worse off than this one.",
    "worth": "The work that would be lost is worth more than the settings allow.",
    "delay": "May not cause evictions yet.",
    "moves": "No moves that one plan may make, and that win more than they lose, would make room.",
    "sharing": "No split GPU has room for the part.",
    "repartition": "The GPU could be split for it, but the rate limit is used up or the pass is off.",
    "passes": "The passes that could serve it are left out.",
    "shortage": "Guarantees in force exceed the healthy capacity.",
    "deadline": "The deadline has passed, or a start now, at the date kept for it or at the predicted one leaves too little time before it.",
    "order": "Served after others in the order of queues.",
    # Told by the loop: the engine is not shown these jobs.
    "hold": "A person holds it back.",
    "retry": "It failed, and is tried again at a given time.",
    "dependency": "It waits for another job.",
    "budget": "A budget of its team, or of a node above, is used up.",
    "aside": "It is left out of planning, as something about it is wrong; an operator has to look.",
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
    """The same with the word."""
    return f"{gpus(milli)} GPU{'s' * (milli != 1000)}"
