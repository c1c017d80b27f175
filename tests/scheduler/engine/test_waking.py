"""No plan is missed: between a plan and its `next_wake` nothing is decided, as long as nothing happens."""

from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.engine.cycle import make_plan
from scheduler.engine.model.plan import Plan
from scheduler.engine.model.values import Scenario
from scheduler.scenarios.reading import parse
from tests.scheduler.engine.scenes import at, job, node, quota, running, scene
from tests.scheduler.twin.focused import ABOUT
from tests.scheduler.twin.planner import plan_of
from tests.scheduler.twin.replay import apply_plan
from tests.scheduler.twin.strategies import scenario_random, scenarios

WEEK_MS = 7 * 24 * 3_600_000
FULL = tuple(range(8))


def changes(plan: Plan) -> list[tuple[str, str | None]]:
    return [(decision.action, decision.job) for decision in plan.decisions if decision.action != "reserve"]


def a_moment_later(scenario: dict[str, Any]) -> Scenario:
    """Who came to his place by this plan has been there for a while: at the same instant he might as well have come by the next one."""
    settled = parse(apply_plan(scenario, plan_of(scenario)))
    return replace(settled, now=settled.now + 1)


def sleeps_through(first: Scenario, moments: list[float]) -> list[tuple[int, list[tuple[str, str | None]]]]:
    """What is decided before the next wake of a plan that decides nothing, at the last instant before it and at shares of the way there."""
    plan = make_plan(first)
    if changes(plan):
        return []  # what it changes is an event
    span = (first.now + WEEK_MS if plan.next_wake is None else plan.next_wake) - first.now
    spans = sorted({min(span - 1, round(span**share)) for share in (*moments, 1)} - {0})
    return [(at, found) for at in spans if (found := changes(make_plan(replace(first, now=first.now + at))))]


@st.composite
def worlds(draw: st.DrawFn) -> dict[str, Any]:
    """Any fleet, with settings by which time alone decides something."""
    subject = st.tuples(st.sampled_from(sorted(ABOUT)), st.integers(0, 10**9))
    scenario: dict[str, Any] = draw(st.one_of(scenarios("tiny"), scenarios("small"), subject.map(lambda one: ABOUT[one[0]](one[1]))))
    spans = st.sampled_from([0, 0, 300, 3600])
    stated = {key: draw(spans) for key in ("preempt_min_runtime_s", "reclaim_min_runtime_s", "hysteresis_s")}
    longest = {kind: draw(st.sampled_from([None, None, 600, 3600])) for kind in ("batch", "interactive", "inference")}
    return {**scenario, "settings": {**scenario["settings"], **stated, "max_wait_s": longest}}


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(scenario=worlds(), moments=st.lists(st.floats(0, 1), max_size=2))
def test_nothing_is_decided_before_a_plan_wakes(scenario: dict[str, Any], moments: list[float]) -> None:
    assert sleeps_through(a_moment_later(scenario), moments) == []


def test_a_plan_wakes_when_work_outlives_the_end_that_a_held_gate_was_dated_by() -> None:
    assert sleeps_through(a_moment_later(scenario_random(1281)), [0.86, 0.9, 0.95]) == []


def test_a_plan_wakes_for_a_protection_only_where_somebody_waits_who_could_take_the_place() -> None:
    """Whoever waits in another leaf above its share, or in the same one no higher, waits for no protection to end."""
    quotas = [quota("a", 8, preempt_min_runtime_s=600, reclaim_min_runtime_s=900), quota("b", 8)]
    work = running("work", [at("n0", *FULL)], "a", started=-60)
    for waits, wakes_s in ((), None), ((job("same", "a", 8),), None), ((job("higher", "a", 8, priority=200),), 540), ((job("owed", "b", 8),), None):
        plan = make_plan(parse(scene([node("n0")], quotas, [work, *waits])))
        assert (changes(plan), plan.next_wake) == ([], None if wakes_s is None else plan.now + 1000 * wakes_s)
    borrows = running("borrows", [at("n1", *FULL)], "a", started=-60)
    plan = make_plan(parse(scene([node("n0"), node("n1")], quotas, [work, borrows, job("owed", "b", 8)])))
    assert (changes(plan), plan.next_wake) == ([], plan.now + 840_000)
