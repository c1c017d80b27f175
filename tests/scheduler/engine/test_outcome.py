"""What a plan says of the last state: the quick ways of finding it, held against plain ones."""

import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.engine.cycle import settled
from scheduler.engine.state.fleet import on_gpus
from scheduler.engine.tell.decisions import Changes
from scheduler.scenarios.reading import parse
from tests.scheduler.twin.strategies import scenario_random

drawn = settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@drawn
@given(st.integers(0, 10**6))
def test_who_leaves_many_nodes_is_who_leaves_each_of_them(seed: int):
    cycle = settled(parse(scenario_random(seed, "small")))
    chance = random.Random(seed)
    changes = Changes(cycle, cycle.cluster.works, ())
    nodes = range(cycle.grid.size)
    wanted = {node: chance.randrange(256) for node in nodes if chance.random() < 0.7}
    crowded = {node for node in wanted if chance.random() < 0.2}

    found = changes.leaving(wanted, crowded)

    gone = {
        work.job.name
        for work in cycle.cluster.works
        for seat in set(work.first_seats) - set(work.seats)
        if on_gpus(seat) & wanted.get(seat.node, 0) or seat.node in crowded
    }
    assert gone <= set(found)


def test_some_of_these_fleets_have_somebody_leave():
    fleets = [settled(parse(scenario_random(seed, "small"))) for seed in range(40)]

    assert sum(any(work.first_seats and not work.seats for work in cycle.cluster.works) for cycle in fleets) > 5
