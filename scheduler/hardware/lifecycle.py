"""The life cycle of hardware (HLT-7): which health may follow which, and what each step is called where people choose it."""

from dataclasses import dataclass

from scheduler.models import Health

_FOLLOWING: dict[str, tuple[Health, ...]] = {
    Health.HEALTHY: (Health.SUSPECT, Health.DRAINING, Health.DOWN),
    Health.SUSPECT: (Health.HEALTHY, Health.DRAINING, Health.DOWN),
    Health.DRAINING: (Health.DRAINED, Health.HEALTHY, Health.SUSPECT, Health.DOWN),
    Health.DRAINED: (Health.REPAIRING, Health.BURN_IN, Health.HEALTHY, Health.DOWN),
    # What was repaired is tried out before jobs get it.
    Health.REPAIRING: (Health.BURN_IN, Health.DRAINED, Health.DOWN),
    Health.BURN_IN: (Health.HEALTHY, Health.REPAIRING, Health.DOWN),
    Health.DOWN: (Health.REPAIRING, Health.BURN_IN, Health.DRAINED, Health.SUSPECT),
}
_VERBS = {
    Health.SUSPECT: ("Mark suspect", "Running work stays; new gangs avoid it."),
    Health.DRAINING: ("Drain", "No new jobs; running jobs finish unless an operator preempts them."),
    Health.DRAINED: ("Mark drained", "No job runs here."),
    Health.REPAIRING: ("Start repair", "Someone works on it."),
    Health.BURN_IN: ("Start burn-in", "It is tried out; jobs don't get it yet."),
    Health.HEALTHY: ("Mark healthy", "Jobs may use it again."),
    Health.DOWN: ("Mark down", "Not responding. Gangs lose their workers here: they are repaired elsewhere, shrunk or queued again."),
}
# In these states nothing may run, so they can't be entered while something does.
MUST_BE_EMPTY = frozenset({Health.DRAINED, Health.REPAIRING, Health.BURN_IN})


@dataclass(frozen=True, slots=True)
class Step:
    to: str
    verb: str
    meaning: str


def steps_from(health: str) -> list[Step]:
    """What an operator may do next."""
    return [Step(following, *_VERBS[following]) for following in _FOLLOWING[health]]


def step_verb(to: str) -> str:
    """What the step to a health is called."""
    return _VERBS[Health(to)][0]


def may_follow(health: str, to: str) -> bool:
    return to in _FOLLOWING.get(health, ())


# From bad to good again: the step that an operator takes next.
NEXT = {
    Health.SUSPECT: Health.DRAINING,
    Health.DRAINING: Health.DRAINED,
    Health.DRAINED: Health.REPAIRING,
    Health.DOWN: Health.REPAIRING,
    Health.REPAIRING: Health.BURN_IN,
    Health.BURN_IN: Health.HEALTHY,
}


def next_verb(health: str) -> str:
    """What an operator does next with a node or GPU of that health; empty where nothing is to be done."""
    to = NEXT.get(Health(health))
    return next((step.verb for step in steps_from(health) if step.to == to), "")
