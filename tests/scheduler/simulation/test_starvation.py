"""No starvation: a gang within its share starts, however many small jobs stream past it."""

import random

import pytest

from scheduler.scenarios.reading import parse
from scheduler.simulation.world import World

from ..engine.scenes import job, node, quota, scene

LONGEST = 3600
GRACE = 60


def adversary(seed: int) -> dict:
    """Small jobs of other queues keep every GPU busy; one gang of 64 GPUs, within its fair share, waits among them."""
    chance = random.Random(seed)
    jobs = []
    for place in range(500):
        name = chance.choice(("small/a", "small/b", "small/c"))
        length = chance.randrange(600, LONGEST)
        gpus = chance.choice((1, 1, 1, 2, 4))
        small = job(f"s-{place:04d}", name, gpus, submitted=chance.randrange(0, 20_000), work_s=length, limit_s=LONGEST, grace_s=GRACE)
        jobs.append(small | {"preemptible": chance.random() < 0.8, "priority": chance.choice((0, 50))})
    jobs.append(job("gang", "large", 8, 8, submitted=3000, work_s=3600, limit_s=7200))
    quotas = [quota("small", 40), *(quota(f"small/{name}", 10, parent="small") for name in "abc"), quota("large", 64)]
    settings = {"reclaim_min_runtime_s": 300, "preempt_min_runtime_s": 300, "forecast": "none"}
    return scene([node(f"n{place:02d}") for place in range(16)], quotas, jobs, settings=settings)


def wait_of_the_gang(seed: int) -> float:
    world = World(parse(adversary(seed)))
    bound = LONGEST + GRACE + 300
    world.run(world.now + 1000 * (3000 + bound))
    started = world.lives["gang"].first_start
    assert started is not None, f"seed {seed}: still waiting after {bound} s"
    return (started - world.lives["gang"].arrived) / 1000


@pytest.mark.parametrize("seed", range(2))
def test_a_gang_starts_within_the_bound(seed: int) -> None:
    assert wait_of_the_gang(seed) <= LONGEST + GRACE + 300


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 10))
def test_a_gang_starts_within_the_bound_whatever_streams_past(seed: int) -> None:
    assert wait_of_the_gang(seed) <= LONGEST + GRACE + 300
