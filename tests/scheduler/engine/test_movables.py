"""Which nodes are cleared by moves: those on which least is lost, among those whose jobs find room elsewhere."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product

import pytest

from scheduler.engine.cycle import make_plan
from scheduler.engine.model.reasons import reason
from scheduler.engine.search.clearable import cost_of, weight_of
from scheduler.engine.search.victims import Target
from scheduler.engine.state.planning import Cycle
from scheduler.engine.state.state import Kept
from scheduler.engine.state.work import Work
from scheduler.scenarios.reading import parse
from tests.scheduler.engine import scenes
from tests.scheduler.engine.scenes import at, quota, running, scene
from tests.scheduler.engine.test_kept import EVENTS, after, of_whole_gpus


def all_on(cycle: Cycle, node: int) -> list[tuple[int, Work]]:
    """Who could be moved off a node, the GPUs that he has there, most first."""
    held = [(sum(seat.mask.bit_count() for seat in work.seats if seat.node == node), work) for work in cycle.cluster.works if work.movable]
    return sorted([pair for pair in held if pair[0]], key=lambda pair: -pair[0])


def leaving(cycle: Cycle, node: int, needed: int) -> tuple[list[Work], bool]:
    """The slow way: whoever has most as long as nobody suffices, then who loses least; and whether that was a choice."""
    chosen: list[Work] = []
    for count, work in (here := all_on(cycle, node)):
        if count < needed:
            chosen.append(work)
            needed -= count
            continue
        enough = [one for held, one in here if held >= needed and one not in chosen]
        return [*chosen, min(enough, key=lambda one: weight_of(one, cycle.now))], len(enough) > 1
    return [], False


def leaves_room(cycle: Cycle, cleared: Sequence[tuple[int, list[Work]]], gpus: int, stand: int) -> bool:
    """Whether those who leave these nodes find places of their sizes beside so many workers, one on each of the nodes, where that can be counted."""
    if any(leaving(cycle, node, gpus - cycle.fleet.soon.count[node] % gpus)[1] for node, _ in cleared):
        return True  # others could leave
    idle, usable = cycle.fleet.soon.count, cycle.grid.usable_count
    moved = [(node, seat) for node, works in cleared for work in works for seat in work.seats if seat.mask]
    if any(seat.node != node and seat.mask.bit_count() != usable[seat.node] for node, seat in moved):
        return True  # what comes free there is not counted
    room = [*idle]
    for _, seat in moved:
        room[seat.node] += seat.mask.bit_count()
    for node, _ in cleared:
        room[node] -= gpus
    sizes = [seat.mask.bit_count() for _, seat in moved]
    others = stand - len(cleared)
    return all(sum(here // size for here in room) >= others * (gpus // size) + sum(each // size for each in sizes) for size in set(sizes))


def cheapest(cycle: Cycle, target: Target, short: int) -> list[int] | None:
    """The slow way: every set of nodes of a slice weighed with all that its jobs would lose."""
    options, gpus = [], target.gpus
    assert target.allowed is not None
    for node in range(target.low, target.high):
        chosen, _ = leaving(cycle, node, gpus - cycle.fleet.soon.count[node] % gpus)
        first = target.count - short + 1
        if target.allowed[node] and chosen and leaves_room(cycle, [(node, chosen)], gpus, first):
            options.append((cost_of(chosen, node, cycle.now), chosen))
    found = []
    for chosen in combinations(options, short):
        if leaves_room(cycle, [(weight[4], works) for weight, works in chosen], gpus, target.count):
            weights = sorted(weight for weight, _ in chosen)
            found.append((sum(weight[0] for weight in weights), sum(weight[1] for weight in weights), weights))
    return sorted(weight[4] for weight in min(found)[2]) if found else None


def in_slices(cycle: Cycle) -> int:
    """How many times the nodes were the same that are cleared for so many workers more, as far as anything can be cleared."""
    same, grid = 0, cycle.grid
    allowed = grid.startable[False]
    slices = {(0, grid.size), *(grid.levels[0].slice_of(domain) for domain in range(len(grid.levels[0])))}
    for (low, high), gpus, short in product(sorted(slices), (1, 4, 8), (1, 2)):
        target = Target(low, high, 2, gpus, allowed=allowed)
        found = cycle.movables.clearable(gpus).cheapest(target, short, 1 << 30)
        assert (None if found is None else sorted(found)) == cheapest(cycle, target, short), (low, high, short, gpus)
        same += found is not None
    return same


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_the_nodes_that_are_cleared_are_those_on_which_least_is_lost(first: int) -> None:
    same = 0
    for seed in range(first, first + 20):
        scenario, chance = of_whole_gpus(seed, "medium"), random.Random(seed)
        for turn in range(6):
            cycle = Cycle(scenario)
            same += in_slices(cycle)
            one = next((work for work in cycle.cluster.works if work.movable), None)
            if one is not None:
                cycle.cluster.unseat(one, one.seats, reason("preempt", "to see what follows"), None)
                same += in_slices(cycle)
            scenario = after(scenario, make_plan(scenario), chance.choice(EVENTS), chance, turn)
    assert same > 100


def test_another_node_is_cleared_from_when_on_less_is_lost_there() -> None:
    """A gang of two nodes loses twice as much in a second as a job of one: when it is as old as the other was before it, it has lost as much."""
    jobs = [
        running("gang", [at("n0", *range(8)), at("n1", *range(8))], started=-100),
        running("one", [at("n2", *range(8))], started=-300),
    ]
    scenario = parse(scene([*(scenes.node(f"n{place}") for place in range(4))], [quota("q", 32)], jobs))
    cleared = []
    for later in (0, 99, 101, 200):
        cycle = Cycle(replace(scenario, now=scenario.now + 1000 * later))
        cleared.append(cycle.movables.clearable(8).cheapest(Target(0, 3, 1, 8, allowed=cycle.grid.startable[False]), 1, 8))
    assert cleared == [[0], [0], [2], [2]]


def test_who_could_not_be_made_room_for_may_be_once_others_have_less_to_lose() -> None:
    """Where the nodes on which least is lost leave no room for all who are moved, others may later."""
    nodes = [*(scenes.node(f"n{place:03d}") for place in range(108)), scenes.node("z", 5)]
    jobs = [running(f"a{place:03d}", [at(f"n{place:03d}", *range(5))], started=-10) for place in range(100)]
    jobs += [running(f"b{place:03d}", [at(f"n{place:03d}", *range(4))], started=-30) for place in range(100, 108)]
    jobs.append(scenes.job("w", gpus=8, workers=2, submitted=-90))
    scenario, kept = parse(scene(nodes, [quota("q", 864)], jobs, settings={"forecast": "none"})), Kept()
    moved = []
    for later in (0, 200):
        then = replace(scenario, now=scenario.now + 1000 * later)
        plan = make_plan(then, kept).as_json()
        assert plan == make_plan(then).as_json()
        moved.append(scenes.actions(plan))

    assert moved == [{}, {"b100": "move", "b101": "move", "w": "start"}]


def test_who_finds_no_place_beside_the_job_that_he_makes_room_for_is_not_moved_for_it() -> None:
    """Where he stood he could stay beside nobody who comes there; another one loses more, and finds a place."""
    jobs = [
        running("large", [at("n0", *range(5))], started=-10),
        running("one", [at("n0", 5)], preemptible=False),
        running("small", [at("n1", 0, 1)], started=-500),
        running("five", [at("n1", *range(2, 7))], preemptible=False),
    ]
    plan = scenes.plan_of(scene([scenes.node(f"n{place}") for place in range(2)], [quota("q", 16)], [*jobs, scenes.job("new", gpus=3)]))

    assert scenes.actions(plan) == {"small": "move", "new": "start"}
