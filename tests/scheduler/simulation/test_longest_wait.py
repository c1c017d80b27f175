"""`max_wait_s` holds for a gang far above its queue's fair share, whatever streams past it or runs in the gap before it."""

import random
from typing import Any

import pytest

from scheduler.scenarios.reading import parse
from scheduler.simulation.world import World

from ..engine.scenes import job, node, quota, scene

HOUR = 3600
LONGEST = HOUR  # of the small jobs
MAX_WAIT = 2 * HOUR


def stream(nodes: int, workers: int, hours: int, promised: int, seed: int, load: float, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Small jobs of three queues, and a gang every 12 hours: the share of its queue is a quarter, and it asks for half of the fleet or more."""
    chance = random.Random(seed)
    count = int(load * 8 * nodes * hours / (sum(sizes) / len(sizes) * LONGEST / HOUR * 0.6))
    jobs = []
    for number in range(count):
        small = job(f"s-{number:05d}", chance.choice("abc"), chance.choice(sizes), submitted=chance.randrange(hours * HOUR), grace_s=60)
        jobs.append(small | {"work_s": chance.randrange(LONGEST // 5, LONGEST), "limit_s": LONGEST})
    times = range(HOUR, (hours - 4) * HOUR, 12 * HOUR)
    jobs += [job(f"gang-{at // HOUR:03d}", "large", 8, workers, submitted=at, work_s=HOUR, limit_s=2 * HOUR) for at in times]
    quotas = [*(quota(name, promised) for name in "abc"), quota("large", promised)]
    settings = {"forecast": "none", "max_wait_s": {"batch": MAX_WAIT}, "reclaim_min_runtime_s": 300, "preempt_min_runtime_s": 300}
    return scene([node(f"n{place:02d}") for place in range(nodes)], quotas, jobs, settings=settings)


def longest_wait(nodes: int, workers: int, hours: int, promised: int, seed: int, *, load: float = 0.8, sizes: tuple[int, ...] = (2, 4)) -> float:
    made = stream(nodes, workers, hours, promised, seed, load, sizes)
    world = World(parse(made))
    world.run(world.now + 1000 * hours * HOUR)
    starts = [life.first_start and life.first_start - life.arrived for name, life in world.lives.items() if name.startswith("gang")]
    assert starts and None not in starts, f"{starts.count(None)} of {len(starts)} gangs never started"
    return max(start for start in starts if start is not None) / 1000


# What runs ends within LONGEST; work within its guarantees, which a gang above its own cannot hold back, may take as long once more.
BOUND = MAX_WAIT + 2 * LONGEST


@pytest.mark.parametrize("promised", [0, 8])
def test_a_gang_of_64_gpus_above_its_share_starts_within_the_bound(promised: int) -> None:
    assert longest_wait(16, 8, 6, promised, seed=1, load=1.0, sizes=(4, 8)) <= BOUND


def test_gangs_above_their_share_start_all_week() -> None:
    assert longest_wait(4, 3, 7 * 24, 2, seed=1, sizes=(4, 8)) <= BOUND


@pytest.mark.soak
@pytest.mark.parametrize(("nodes", "workers", "promised", "seed"), [(4, 3, 2, 2), (4, 3, 0, 3), (16, 8, 8, 4)])
def test_gangs_above_their_share_start_whatever_streams_past(nodes: int, workers: int, promised: int, seed: int) -> None:
    assert longest_wait(nodes, workers, 48, promised, seed) <= BOUND
