"""Who could be moved off a node is known from plan to plan as if it were looked at anew, and clearing a node costs what its jobs lose."""

import random

import pytest

from scheduler.engine.cycle import make_course, make_plan
from scheduler.engine.kept import Kept
from scheduler.engine.movables import Movables
from scheduler.engine.passes.consolidate import _off_node, _plan
from scheduler.engine.state import Cycle
from tests.scheduler.engine.test_kept import EVENTS, after, of_whole_gpus


def told(movables: Movables) -> dict[int, list[tuple[int, str]]]:
    return {node: [(count, work.job.name) for count, work in movables.here(node)] for node in movables.nodes()}


def compared(cycle: Cycle) -> int:
    """How many ways to clear a node were the same as when all of its jobs are weighed."""
    movables, same = cycle.movables, 0
    for node in [*movables.nodes()]:
        here = movables.here(node)
        for needed in range(1, 9):
            chosen = _off_node(cycle, here, needed)
            assert movables.fewest(node, needed) == len(chosen)
            clearing = movables.clearing(node, needed) if chosen else None
            if clearing is not None and clearing.since <= cycle.now:
                assert (len(clearing.works), clearing.lost(cycle.now), clearing.ages, clearing.names) == _plan(cycle, chosen, 0)[:4]
                assert clearing.works == chosen
                same += 1
    return same


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_what_is_kept_is_what_is_there(first: int) -> None:
    same = 0
    for seed in range(first, first + 20):
        scenario, chance, kept = of_whole_gpus(seed, "medium"), random.Random(seed), Kept()
        for turn in range(6):
            plan = make_plan(scenario)
            course = make_course(scenario, kept)
            assert course.decisions == tuple(one for one in plan.decisions if one.action != "reserve"), (seed, turn)
            if kept.movables is not None:
                cycle = Cycle(scenario)
                now = Movables(cycle.cluster)
                assert told(kept.movables) == told(now), (seed, turn)
                same += compared(cycle)
                of_kept = {(node, needed): kept.movables.fewest(node, needed) for node in kept.movables.nodes() for needed in range(1, 9)}
                assert of_kept == {(node, needed): now.fewest(node, needed) for node in now.nodes() for needed in range(1, 9)}
            scenario = after(scenario, plan, chance.choice(EVENTS), chance, turn)
    assert same > 100
