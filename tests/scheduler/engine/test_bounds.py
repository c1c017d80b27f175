"""The cheap bounds that spare searches, against the searches they spare: what a bound rules out, no search may find."""

from dataclasses import replace
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.benchmarks import cases
from scheduler.engine.cycle import RUNS, settled
from scheduler.engine.model.values import Preemptible, Role
from scheduler.engine.passes import consolidate
from scheduler.engine.place.placement import Placer
from scheduler.engine.place.slots import SlotCounts
from scheduler.engine.rules.order import QueueOrder
from scheduler.engine.rules.taken_back import TakenBack, TakenInVain
from scheduler.engine.search.evicting import Target, hopeful_domains, targets
from scheduler.engine.search.units import Unit
from scheduler.engine.search.victims import Found, Rights, category, search
from scheduler.engine.state.charged import Level, Standing
from scheduler.engine.state.fleet import View
from scheduler.engine.state.grid import Eligible
from scheduler.engine.state.planning import Cycle
from scheduler.engine.state.work import Work
from scheduler.scenarios.reading import parse
from scheduler.simulation.world import World
from tests.scheduler.twin.strategies import scenario_random


def after_some_passes(seed: int, passes: int) -> Cycle:
    cycle = Cycle(parse(scenario_random(seed, "small")))
    for name in list(RUNS)[:passes]:
        try:
            RUNS[name](cycle)
        except (TakenBack, TakenInVain):
            break
    return cycle


class AnyUnit(Rights):
    """Everything may be taken."""

    def guard(self, found: Found) -> None:
        return None


def everything(cycle: Cycle, work: Work, quota_type: int) -> list[tuple[tuple[int, ...], Unit]]:
    units = [unit for unit in cycle.units().below(0) if unit.work is not work and unit.work.quota_type == quota_type]
    return sorted(((category(unit, False, 1 << 60), unit) for unit in units), key=itemgetter(0))


@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(0, 7), st.sampled_from([0, 1, 0b101]))
def test_no_search_finds_victims_where_a_bound_saw_no_hope(seed: int, passes: int, every: int, off: int):
    cycle = after_some_passes(seed, passes)
    for work in list(cycle.waiting):
        for quota_type in work.open_types:
            ranked = [pair for place, pair in enumerate(everything(cycle, work, quota_type)) if place % 8 >= every]
            hopeful = hopeful_domains(cycle, work, quota_type, ranked, off)
            if hopeful is None:
                continue
            for domain, target in enumerate(targets(cycle, work, quota_type, off=off)):
                if domain in hopeful:
                    continue
                found = search(cycle.cluster, ranked, AnyUnit(), target, cycle.units())
                assert found is None or not found.units, (work.job.name, domain)


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**6), st.lists(st.integers(0, 10**6), min_size=1, max_size=12))
def test_an_order_that_follows_what_was_charged_is_that_of_all_keys_anew(seed: int, picks: list[int]):
    cycle = Cycle(parse(scenario_random(seed, "small")))
    for choice, division in cycle.waiting.rounds():
        queues = cycle.waiting.of_round(division, choice)
        leaves = [place for place in range(1, len(cycle.tree.names)) if not cycle.tree.children[place]]
        if not queues or not leaves:
            continue

        def milli(work: Work, choice: int = choice) -> int:
            return work.form.least_milli(cycle.waiting.tried_types(work, choice)[0]) if not work.seats else 1000

        order = QueueOrder(cycle.tree, division, queues, milli)
        for pick in picks:
            leaf = leaves[pick % len(leaves)]
            cycle.tree.charge(leaf, division.types[0], 1000 * (pick % 5), pick % 2 == 0)
            order.refresh([leaf])
            anew = QueueOrder(cycle.tree, division, {at: queue[order.at[at] :] for at, queue in queues.items()}, milli)
            assert order.best() is anew.best()
            best = order.best()
            if best is None:
                break
            order.drop(best.home)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**6), st.integers(1, 9))
def test_sums_over_units_are_those_of_units_made_anew(seed: int, passes: int):
    cycle = after_some_passes(seed, 2)
    before = cycle.units()
    _ = before.below(0), [cycle.standing.lowest(leaf) for leaf in range(len(cycle.tree.names))]
    for name in list(RUNS)[2 : 2 + passes]:
        try:
            RUNS[name](cycle)
        except (TakenBack, TakenInVain):
            break
    kept = cycle.units()
    standing = Standing(cycle.cluster)
    anew = type(kept)(cycle.cluster, standing)

    def told(units: Any) -> list[Any]:
        return [(unit.work.job.name, unit.seats, unit.milli, unit.surplus, unit.leaf) for unit in units]

    assert told(kept.below(0)) == told(anew.below(0))
    assert kept.any_surplus == anew.any_surplus == any(unit.surplus for unit in anew.below(0))
    assert kept.parted == anew.parted
    for place in range(1, len(cycle.tree.names)):
        if not cycle.tree.children[place]:
            assert cycle.standing.lowest(place) == standing.lowest(place) == lowest_of(anew.of_leaf(place))
        for division in cycle.tree.divisions:
            assert sorted(told(kept.borrowed(place, division)), key=str) == sorted(told(anew.borrowed(place, division)), key=str)


@pytest.mark.parametrize("seed", [74_000_057, 74_000_083, 74_000_191, *range(74_000_000, 74_000_040)])
def test_the_look_ahead_that_follows_a_plan_is_the_one_made_anew_behind_it(seed: int):
    """The first three start jobs in instances on GPUs that were split before."""
    book = settled(parse(scenario_random(seed, "small"))).book
    followed, anew = book.ahead, book.fresh_lookahead()
    followed.keep_nothing()
    for node in range(len(book.cycle.grid.nodes)):
        for count in range(1, 9):
            gaps = [(max(start, anew.now), end) for start, end in anew.gaps(node, count) if end > anew.now]
            assert [(max(start, anew.now), end) for start, end in followed.gaps(node, count) if end > anew.now] == gaps


def lowest_of(units: list[Unit]) -> tuple[Level, int] | None:
    """By the units themselves: the least class and number, and what could come free."""
    preemptible = [unit for unit in units if unit.work.kind.preemptible is not Preemptible.NEVER]
    if not preemptible:
        return None
    milli = sum(unit.milli + sum(1000 * len(seat.parts) for seat in unit.seats) for unit in preemptible)
    return min(unit.form.level for unit in preemptible), milli


@pytest.mark.parametrize("seed", (0, 2))
def test_nobody_is_moved_where_a_bound_saw_no_room(monkeypatch: pytest.MonkeyPatch, seed: int):
    bound, carry_out = consolidate._leave_room, consolidate._carry_out
    hopeless: dict[tuple[int, ...], bool] = {}
    seen: list[bool] = []

    def noted(cycle: Cycle, target: Target, moved: list[Work]) -> bool:
        no_room = hopeless[(target.low, *(one.order for one in moved))] = not bound(cycle, target, moved)
        seen.append(no_room)
        return True

    def tried(cycle: Cycle, work: Work, quota_type: int, target: Target, moved: list[Work]) -> bool:
        done = carry_out(cycle, work, quota_type, target, moved)
        assert not (hopeless.pop((target.low, *(one.order for one in moved)), False) and done)
        return done

    monkeypatch.setattr(consolidate, "_leave_room", noted)
    monkeypatch.setattr(consolidate, "_carry_out", tried)
    scenario = parse(cases.simulated(seed, 900))
    World(replace(scenario, settings=replace(scenario.settings, forecast="none"))).run()
    assert True in seen
    assert False in seen


@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**6), st.integers(0, 8), st.sampled_from([0, 1, 100]))
def test_a_node_has_parts_of_gpus_for_no_more_workers_than_its_bound_says(seed: int, passes: int, may_be_split: int):
    cycle = after_some_passes(seed, passes)
    budget = dict.fromkeys(cycle.grid.pool_of, may_be_split)
    asking = [(work, place, role) for work in cycle.waiting for place, role in enumerate(work.kind.roles) if role.parted]
    for work, place, role in asking:
        for view in cycle.fleet.views():
            for quota_type in work.form.types:
                before = cycle.fleet.mark()
                placer = Placer(cycle.cluster, work, quota_type, view, budget=budget)
                placer.suspect = True
                eligible = placer.eligible(place)
                bound = placer.parts.slots(role, eligible).array.tolist()
                found = dict.fromkeys(range(cycle.grid.size), 0)
                while (seats := placer.parts.fill(place, role, [0], eligible.bits)) is not None:
                    found[seats[0].node] += 1
                    assert placer.parts.slots(role, eligible).array.tolist() == of_parts(cycle, view, placer, role, eligible)
                cycle.fleet.undo(before)

                assert all(found[node] <= bound[node] for node in found), (work.job.name, found, bound)
                assert placer.parts.slots(role, eligible).array.tolist() == bound


def of_parts(cycle: Cycle, view: View, placer: Placer, role: Role, eligible: Eligible) -> list[int]:
    """The same, from nothing that was known before."""
    anew = frozenset(pool for pool, left in placer.parts.budget.items() if left > 0) | placer.parts._anew
    return SlotCounts(cycle.grid, view).parts(role, placer.parts.mode, eligible, anew).array.tolist()
