"""What only one of two plans does: the plan of the fleet as it is, and the plan of the fleet after a change."""

from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple

from scheduler.engine.model.plan import Decision, Waiting

WORDS = {"evict": "preempted", "shrink": "shrinks", "move": "moves", "start": "starts", "grow": "grows"}
OTHERWISE_STARTS = "It would start without this change."
OTHERWISE_LEAVES = "It would be preempted without this change."


class Effect(NamedTuple):
    """What a change does to a job: preempted, shrinks, moves, starts, grows, waits (it would start otherwise) or stays."""

    job: str
    effect: str
    detail: str


def differences(
    decisions: Sequence[Decision], planned: Sequence[Decision], begun: Set[str] = frozenset(), waiting: Iterable[Waiting] = ()
) -> Iterable[Effect]:
    """The effects in the order of the changed plan. `begun` are jobs that the plan finds running though they only start with it."""
    now = {(one.action, one.job): one for one in decisions if one.job is not None}
    then = {(one.action, one.job): one for one in planned if one.job is not None}
    for (action, job), decision in then.items():
        if (action, job) not in now and action in WORDS:
            waits = action == "evict" and job in begun
            yield Effect(str(job), "waits" if waits else WORDS[action], OTHERWISE_STARTS if waits else _why(decision))
    reasons = {one.job: one.reasons for one in waiting}
    for action, job in now:
        if action == "start" and ("start", job) not in then:
            told = reasons.get(str(job))
            yield Effect(str(job), "waits", told[0].detail if told else OTHERWISE_STARTS)
        elif action == "evict" and ("evict", job) not in then:
            yield Effect(str(job), "stays", OTHERWISE_LEAVES)


def _why(decision: Decision) -> str:
    detail, whom = decision.why.detail, decision.for_job
    return f"{detail} (for {whom})" if whom and whom not in detail else detail
