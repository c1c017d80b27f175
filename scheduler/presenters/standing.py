"""On whose account a running job stands, and what could take its GPUs back, in words."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpufleet.core.templatetags.shell import gpus_told
from quotas.models import ShareClass
from scheduler.models import Job

OWN_QUEUE = "a job of its own queue with a higher class or priority"


@dataclass(frozen=True, slots=True)
class StandingTold:
    """`kind`: guaranteed, reserved or borrowed, by what binds least, and `word` the same on pages. `parts` says how much, where it is of several."""

    kind: str
    word: str
    parts: str
    takers: str


def standing_told(job: Job, holds: Mapping[str, int]) -> StandingTold | None:
    """None where it holds nothing, or nothing that the ledger knows of yet."""
    kinds = [kind for kind in (ShareClass.BORROWED, ShareClass.RESERVED, ShareClass.GUARANTEED) if holds.get(kind)]
    if not kinds:
        return None
    parts = ", ".join(f"{gpus_told(holds[kind])} {kind.label.lower()}" for kind in kinds) if len(kinds) > 1 else ""
    return StandingTold(kinds[0].value, kinds[0].label, parts, _takers(job.preemptible, kinds[0]))


def _takers(preemptible: str, kind: ShareClass) -> str:
    if preemptible == "no":
        return "It is never preempted: it is not preemptible."
    if kind == ShareClass.BORROWED:
        return f"Teams whose guaranteed GPUs it stands on can take them back when they need them; so can {OWN_QUEUE}."
    if preemptible == "when_borrowed":
        return "It is not preempted while it is within the guarantee."
    within = "its reservation" if kind == ShareClass.RESERVED else "the guarantee"
    return f"No other team can take it back while it is within {within}; only {OWN_QUEUE} could."
