"""What a simulation says about a policy."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from scheduler.engine.model.values import CLASSES

from .progress import MILLION
from .world import Life, World


def summary(world: World, *, policy: str, seed: int, wall_s: float, per_job: bool) -> dict[str, Any]:
    """Means are over completed jobs; unfinished ones are counted, never averaged in."""
    lives = [life for life in world.lives.values() if life.arrived <= world.now]
    began = world.template.now
    completed = [life for life in lives if life.ended is not None and not life.failed]
    failed = [life for life in lives if life.failed]
    span = max(1, world.now - began)
    capacity = 1000 * max(1, world.capacity) * span
    totals = world.totals
    spans = [took_s(life) for life in completed]
    document: dict[str, Any] = {
        "format": "gpufleet-simulation/1",
        "policy": policy,
        "seed": seed,
        "simulated_s": span / 1000,
        "wall_s": round(wall_s, 3),
        "events": totals.events,
        "jobs": {
            "arrived": len(lives),
            "completed": len(completed),
            "unfinished": len(lives) - len(completed) - len(failed),
            "failed": len(failed),
        },
        "jct_s": spread(spans),
        "wait_s": {"by_class": {name: spread(_waits(completed, rank)) for rank, name in enumerate(CLASSES)}},
        "makespan_s": max((life.ended - began for life in completed if life.ended is not None), default=0) / 1000,
        "utilization": round((totals.useful + under_way(world)) / capacity, 6),
        "allocation": round(totals.held / capacity, 6),
        "fragmentation": round(totals.fragmented / max(1, totals.plans) / max(1, world.capacity), 6),
        "finish_time_fairness": fairness_of(completed, began),
        "preemptions": totals.preemptions,
        "moves": totals.moves,
        "lost_work_gpu_s": sum(life.lost for life in world.lives.values()) / 1_000_000,
        "saturated": saturated(totals.queue),
    }
    if per_job:
        document["per_job"] = [_row(life, began) for life in sorted(lives, key=lambda life: (life.arrived, life.job.name))]
    return document


def took_s(life: Life) -> float:
    assert life.ended is not None
    return (life.ended - life.arrived) / 1000


def _waits(lives: Sequence[Life], rank: int) -> list[float]:
    return [(life.first_start - life.arrived) / 1000 for life in lives if life.job.kind.class_rank == rank and life.first_start is not None]


def under_way(world: World) -> int:
    """What has been computed by those who are not done, and is not lost: milli-GPU times milliseconds at speed 1.0, of the simulated time."""
    total = 0
    for name in world.active:
        life = world.lives[name]
        total += (life.progress.done_by(world.now) - life.brought) // MILLION * life.least
    return max(0, total)


def fairness_of(completed: Sequence[Life], began: int) -> dict[str, float | None]:
    """Of jobs that have ended: the mean and the worst, each None where there is no job."""
    found = [_fairness(life, began) for life in completed]
    return {"mean": round(float(np.mean(found)), 4) if found else None, "max": round(max(found), 4) if found else None}


def _fairness(life: Life, began: int) -> float:
    """Completion time over the time it would have taken with its share of a fleet as crowded as it was."""
    assert life.ended is not None
    took = max(1, life.ended - life.arrived)
    crowd = max(1.0, life.contention / max(1, life.ended - max(life.arrived, began)) / 1000)
    return took / max(1.0, life.work / 1_000_000 * crowd)


def spread(values: Sequence[float], percentiles: Sequence[int] = (50, 95, 99)) -> dict[str, float | None]:
    """The mean and the percentiles of values, each None where there is no value."""
    names = ("mean", *(f"p{one}" for one in percentiles))
    if not values:
        return dict.fromkeys(names)
    return {name: round(float(one), 3) for name, one in zip(names, (np.mean(values), *np.percentile(np.array(values), percentiles)), strict=True)}


def _row(life: Life, start: int) -> dict[str, Any]:
    def at(time: int | None) -> float | None:
        return None if time is None else (time - start) / 1000

    return {
        "job": life.job.name,
        "submitted": at(life.job.submitted),
        "started": at(life.first_start),
        "ended": at(life.ended),
        "evictions": life.evictions,
    }


def saturated(queue: Sequence[tuple[int, int]], windows: int = 8) -> bool:
    """Whether jobs come faster than they are completed, window after window: the fewest that wait in each are more than in the one before, and in the
    last well more than half-way. Its fewest, not its mean: bursts that are worked off leave an empty queue between them, however long it was.
    """
    total = sum(span for span, _ in queue)
    fewest: list[int | None] = [None] * windows
    at = 0
    for span, waiting in queue:
        last = (at + max(1, span) - 1) * windows // max(1, total)
        for place in range(at * windows // max(1, total), min(last, windows - 1) + 1):
            least = fewest[place]
            fewest[place] = waiting if least is None else min(least, waiting)
        at += span
    known = [least or 0 for least in fewest]
    rising = sum(1 for earlier, later in itertools.pairwise(known) if later > earlier)
    return rising >= windows - 2 and known[-1] > 1.5 * known[windows // 2 - 1]
