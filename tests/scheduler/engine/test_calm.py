"""Where everyone stands and nobody waits, a course is known without a plan, and is what a plan would be."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.engine.calm import calm_course
from scheduler.engine.cycle import make_course, make_plan
from scheduler.engine.kept import Kept
from scheduler.engine.scenario import parse
from scheduler.engine.values import QUEUED, Scenario
from tests.scheduler.engine.scenes import at, job, node, quota, running, scene
from tests.scheduler.engine.test_kept import EVENTS, after, of_whole_gpus, ordered, written


def calm(**settings: Any) -> Scenario:
    jobs = [running("a", [at("n0", 0, 1)]), running("b", [at("n0", 2), at("n1", 0)])]
    return parse(scene([node("n0"), node("n1")], [quota("q", 16)], jobs, **settings))


def known(scenario: Scenario) -> Kept:
    kept = Kept()
    make_plan(scenario, kept)
    return kept


def test_where_nobody_waits_nothing_is_decided() -> None:
    scenario = calm()
    assert calm_course(scenario, known(scenario)) == ((), None, 0)


def test_it_says_when_somebody_who_is_on_his_way_is_due() -> None:
    scenario = calm()
    first, second = scenario.jobs
    begins = replace(first, run=replace(first.run, state="reserved", until=scenario.now + 60_000))
    later = replace(second, run=replace(second.run, until=scenario.now + 90_000))
    scenario = replace(scenario, jobs=(begins, later))
    course = calm_course(scenario, known(scenario))
    assert course is not None
    assert course.next_wake == scenario.now + 60_000 == make_plan(scenario).next_wake


def waits(scenario: Scenario) -> Scenario:
    return replace(scenario, jobs=(replace(scenario.jobs[0], run=QUEUED), *scenario.jobs[1:]))


def stops(scenario: Scenario) -> Scenario:
    one = scenario.jobs[0]
    return replace(scenario, jobs=(replace(one, run=replace(one.run, state="stopping", until=scenario.now + 1)), *scenario.jobs[1:]))


def loses_a_worker(scenario: Scenario) -> Scenario:
    one = scenario.jobs[1]
    return replace(scenario, jobs=(scenario.jobs[0], replace(one, run=replace(one.run, workers=one.run.workers[1:]))))


def is_of_another_kind(scenario: Scenario) -> Scenario:
    """Nobody knows what it may ask for."""
    one = scenario.jobs[0]
    return replace(scenario, jobs=(replace(one, kind=replace(one.kind, grace_ms=one.kind.grace_ms + 1)), *scenario.jobs[1:]))


def protects(scenario: Scenario) -> Scenario:
    """A time comes from which on its work may be taken."""
    return replace(scenario, settings=replace(scenario.settings, preempt_min_runtime_ms=60_000))


def has_other_nodes(scenario: Scenario) -> Scenario:
    return replace(scenario, nodes=(*scenario.nodes[:1], replace(scenario.nodes[1], health="draining")))


@pytest.mark.parametrize("change", [waits, stops, loses_a_worker, is_of_another_kind, protects, has_other_nodes], ids=lambda change: change.__name__)
def test_elsewhere_a_plan_is_made(change: Any) -> None:
    scenario = calm()
    assert calm_course(change(scenario), known(scenario)) is None


def test_one_is_made_where_somebody_may_grow() -> None:
    jobs = [running("a", [at("n0", 0)], most=4), job("b", gpus=8)]
    scenario = parse(scene([node("n0")], [quota("q", 8)], jobs))
    alone = replace(scenario, jobs=scenario.jobs[:1])
    kept = known(scenario)
    assert calm_course(alone, kept) is None
    assert make_course(alone, kept).decisions == make_plan(alone).decisions != ()


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**6), st.lists(st.sampled_from(EVENTS), min_size=3, max_size=9), st.integers(0, 3))
def test_it_is_the_course_of_a_plan_and_the_next_one_goes_on_from_what_was_before(seed: int, events: list[str], waiting: int) -> None:
    chance = random.Random(seed)
    drawn = of_whole_gpus(seed, "small")
    rigid = [one for one in drawn.jobs if not one.kind.elastic and all(role.desired is None for role in one.kind.roles)]
    scenario = replace(drawn, jobs=tuple(rigid))
    kept = known(scenario)
    for turn, event in enumerate(events):
        here = [one for one in scenario.jobs if one.run.workers]
        rest = [one for one in scenario.jobs if not one.run.workers]
        some = replace(scenario, jobs=tuple(one for one in scenario.jobs if one in here or one in rest[: waiting * (turn % 2)]))
        plan = make_plan(some)
        course = calm_course(some, kept)
        if course is not None:
            assert course == (plan.decisions, plan.next_wake, plan.metrics["fragmented"])
        made = make_course(some, kept)
        assert (made.next_wake, made.fragmented) == (plan.next_wake, plan.metrics["fragmented"])
        assert made.decisions == tuple(decision for decision in plan.decisions if decision.action != "reserve")
        if turn == len(events) - 1:
            assert written(make_plan(scenario, kept)) == written(make_plan(scenario))
        scenario = ordered(scenario, make_plan(scenario)) if turn % 3 == 2 else after(scenario, make_plan(scenario), event, chance, turn)
