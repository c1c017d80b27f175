"""What jobs of the last four weeks asked for, told to the scheduler, which leaves room for it between places that are equally good."""

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from dashboards.fragmentation.measure import Shape
from dashboards.fragmentation.snapshot import LEARNT_EVERY, WIDEST, usual_demand
from scheduler.services.loop.demand import demand_learn
from scheduler.snapshots.demand import demand_learnt_at


def demand_turn(*, now: datetime) -> bool:
    """Learn it anew, once an hour."""
    learnt = demand_learnt_at()
    if learnt is not None and learnt <= now < learnt + LEARNT_EVERY:
        return False
    demand_learn(parts=parts_of(usual_demand(now=now)), now=now)
    return True


def parts_of(shapes: Mapping[Shape, int]) -> list[dict[str, Any]]:
    """The `demand` of a scenario. Of MIG instances, and of parts by memory, no share is known; they are not in it."""
    jobs: dict[tuple[Any, ...], int] = defaultdict(int)
    for shape, count in shapes.items():
        if shape.gpus or shape.share_milli:
            together = shape.level != ""  # in one domain; within a cluster it needs no level
            level = shape.level if shape.level != WIDEST else ""
            jobs[shape.gpus, shape.share_milli, shape.workers if together else 1, level, shape.cpu_milli, tuple(sorted(shape.types))] += count
    whole = sum(jobs.values())
    return [
        {
            "share": round(count / whole, 6),
            **({"gpus": gpus} if gpus else {"gpu_share": share_milli / 1000}),
            "workers": workers,
            "required": level or None,
            "cpus": cpu_milli / 1000,
            "gpu_types": list(types),
        }
        for (gpus, share_milli, workers, level, cpu_milli, types), count in sorted(jobs.items())
    ]
