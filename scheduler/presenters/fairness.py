"""Fairness of a node of the quota tree, for its page and for programs: its course over time, and its rows now."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpufleet.core.ranges import Range
from quotas.models import QuotaNode
from quotas.presenters import summed
from scheduler.selectors.fairness import decayed_course, fair_course, held_course
from scheduler.selectors.usage import held_by_quota
from scheduler.services.forecasts.standing import TreeStanding


@dataclass(frozen=True, slots=True)
class FairnessCourse:
    """GPUs of one type over time; None where nothing was recorded."""

    at: Sequence[datetime]
    allocated: Sequence[float | None]
    decayed: Sequence[float | None]
    fair: Sequence[float | None]


def fairness_course(node: QuotaNode, gpu_type: str, chosen: Range, now: datetime, *, capacity: int, half_life: int) -> FairnessCourse:
    """`capacity`: of the type, in milli-GPU; `half_life` of past usage in seconds."""
    begin = chosen.begin(now)
    moments = [begin + chosen.step * place for place in range(chosen.length // chosen.step)]
    parts = decayed_course(node, gpu_type, moments, half_life)
    return FairnessCourse(
        moments,
        [round(float(value), 2) for value in held_course(node.path, gpu_type, begin, begin + chosen.length, chosen.step)],
        [None if part is None else round(part * capacity / 1000, 2) for part in parts],
        fair_course(node, gpu_type, moments),
    )


def fairness_rows(nodes: list[QuotaNode], gpu_type: str, standing: TreeStanding, capacity: int) -> list[dict[str, Any]]:
    """The node and what is directly below it, now, in milli-GPU."""
    paths = dict(QuotaNode.objects.values_list("pk", "path"))
    held = summed(paths, held_by_quota())
    return [
        {
            "node": one,
            "held": held.get(one.path, {}).get(gpu_type, 0),
            "fair": standing.fair.get((one.path, gpu_type)),
            "decayed": standing.decayed.get((one.path, gpu_type), 0) * capacity // 1_000_000,
            "waiting": standing.waiting.get((one.path, gpu_type), 0),
        }
        for one in nodes
    ]
