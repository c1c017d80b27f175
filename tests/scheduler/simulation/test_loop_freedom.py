"""Loop-freedom: with arrivals frozen and nobody coming to an end, no job is evicted twice, however long the plans go on."""

import copy
from typing import Any

import pytest

from scheduler.scenarios.reading import parse
from scheduler.simulation.world import World

from ..twin.focused import growth_random, step_random
from ..twin.strategies import scenario_random

Json = dict[str, Any]
DAY = 86_400_000
MANY = 10**7  # seconds of work: more than is played


def frozen(scenario: Json) -> Json:
    """The same fleet without windows, in which all jobs are there and none of them ends. What protects them still runs out."""
    still = copy.deepcopy(scenario)
    still["reservations"] = []
    for job in still["jobs"]:
        for key in ("limit_s", "estimate_s", "not_before"):
            job.pop(key, None)
        job["work_s"] = MANY
    return still


def evicted(scenario: Json) -> list[int]:
    """How often each job was, of those that were at all."""
    world = World(parse(frozen(scenario)))
    world.run(world.now + DAY)
    return [life.evictions for life in world.lives.values() if life.evictions]


@pytest.mark.parametrize("draw", [growth_random, step_random, scenario_random], ids=["growth", "steps", "anything"])
@pytest.mark.parametrize("seeds", [pytest.param(range(14), id="few"), pytest.param(range(14, 120), id="more", marks=pytest.mark.soak)])
def test_nobody_is_evicted_twice(draw: Any, seeds: range):
    found = {seed: evicted(draw(seed)) for seed in seeds}

    assert [seed for seed, times in found.items() if any(count > 1 for count in times)] == []
    assert draw is growth_random or sum(map(len, found.values())) >= len(seeds) / 3, "else nobody would be evicted at all"


@pytest.mark.parametrize(
    "seeds", [pytest.param(range(700_000, 700_016), id="few"), pytest.param(range(700_016, 700_056), id="more", marks=pytest.mark.soak)]
)
def test_nobody_is_evicted_twice_on_a_larger_fleet(seeds: range):
    found = {seed: evicted(scenario_random(seed, "medium")) for seed in seeds}

    assert [seed for seed, times in found.items() if any(count > 1 for count in times)] == []
    assert sum(map(len, found.values())) >= len(seeds) / 2
