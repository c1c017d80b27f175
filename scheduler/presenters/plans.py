"""Plans in words: what was decided, for whom, and why."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpufleet.core.templatetags.shell import plural
from scheduler.loop.measures import PHASES
from scheduler.models import PlanRecord
from scheduler.presenters.jobs import sentence

ACTIONS = {
    "start": "starts",
    "evict": "is evicted",
    "shrink": "gives back surplus",
    "grow": "grows",
    "repair": "gets its lost workers back",
    "move": "moves",
    "reserve": "is promised a place",
    "repartition": "is repartitioned",
}


LONGEST_SHOWN = 3


@dataclass(frozen=True, slots=True)
class PlanLine:
    """A row of the list of plans."""

    plan: PlanRecord
    total_ms: float
    phases_text: str

    @property
    def outcome(self) -> str:
        return "failed" if self.plan.fault else "completed"

    @property
    def word(self) -> str:
        return "Nothing written" if self.plan.fault else "Carried out" if self.plan.decided else "Nothing to do"  # type: ignore[attr-defined]


def plan_lines(plans: Sequence[PlanRecord]) -> list[PlanLine]:
    return [PlanLine(plan, total_ms(plan), phases_text(plan.phases, LONGEST_SHOWN)) for plan in plans]


def total_ms(plan: PlanRecord) -> float:
    return float(sum(plan.phases.values()))


def phases_text(phases: Mapping[str, Any], most: int | None = None) -> str:
    """Milliseconds by phase: all in their order, or the longest so many."""
    # A database gives the names in an order of its own.
    names = [name for name in PHASES if name in phases] if most is None else sorted(phases, key=lambda name: -float(phases[name]))[:most]
    return " · ".join(f"{name} {float(phases[name]):,.0f}" for name in names)


@dataclass(frozen=True, slots=True)
class DecisionLine:
    """One decision: `job` is a public id, or empty where the decision is about a GPU, which `subject` then names."""

    action: str
    verb: str
    job: str
    subject: str
    where: str
    after: tuple[str, ...]
    code: str
    why: str
    for_job: str
    at: str


def decision_lines(decisions: Sequence[Mapping[str, Any]]) -> list[DecisionLine]:
    return [_decision(decision) for decision in decisions]


def _decision(decision: Mapping[str, Any]) -> DecisionLine:
    action, why = str(decision.get("action", "")), decision.get("why") or {}
    job = str(decision.get("job", ""))
    subject = job or f"GPU {decision.get('gpu')} of {decision.get('node')}"
    return DecisionLine(
        action,
        ACTIONS.get(action, action),
        job,
        subject,
        _where(decision),
        tuple(str(name) for name in decision.get("after") or ()),
        str(why.get("code", "")),
        sentence(str(why.get("detail", ""))),
        str(why.get("for") or ""),
        sentence(str(decision.get("at") or "")).removesuffix("."),
    )


def _where(decision: Mapping[str, Any]) -> str:
    workers = decision.get("workers") or ()
    if not workers:
        return ""
    nodes = list(dict.fromkeys(str(worker.get("node", "")).rpartition("/")[2] for worker in workers))
    shown = ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
    return f"{plural(len(workers), 'worker')} on {shown}"


@dataclass(frozen=True, slots=True)
class DroppedLine:
    """A decision that was not carried out, and what had changed. Kept as the decision itself, with `dropped` beside it."""

    subject: str
    verb: str
    why: str


def dropped_lines(dropped: Sequence[Mapping[str, Any]]) -> list[DroppedLine]:
    found = []
    for entry in dropped:
        line = _decision(entry)
        found.append(DroppedLine(line.subject, line.verb, sentence(str(entry.get("dropped", "")))))
    return found
