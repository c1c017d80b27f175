"""Where everyone stands and at most one job waits, and fits, a course is known without a plan, and is what a plan would be."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.engine.calm import Room, calm_at
from scheduler.engine.cycle import make_course, make_plan
from scheduler.engine.model.plan import Course
from scheduler.engine.model.values import QUEUED, Run, Scenario
from scheduler.engine.passes.allocate import FITS
from scheduler.engine.reading.scenario import parse
from scheduler.engine.rules.invariants import InvariantBroken
from scheduler.engine.state.cluster import Cluster
from scheduler.engine.state.fleet import Seat
from scheduler.engine.state.kept import Kept
from scheduler.engine.state.work import Work
from tests.scheduler.engine.scenes import at, job, leafed, node, quota, running, scene
from tests.scheduler.engine.test_kept import EVENTS, after, by_age, of_whole_gpus, ordered, written


def calm(**settings: Any) -> Scenario:
    jobs = [running("a", [at("n0", 0, 1)]), running("b", [at("n0", 2), at("n1", 0)])]
    return parse(scene([node("n0"), node("n1")], [quota("q", 16)], jobs, **settings))


def calm_course(scenario: Scenario, kept: Kept) -> Course | None:
    found = calm_at(scenario, kept)
    return None if found is None or found.newcomer is not None else found.course()


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


def waits_after_an_eviction(scenario: Scenario) -> Scenario:
    evicted = Run(last_evicted=scenario.now, evictions=1)
    return replace(scenario, jobs=(replace(scenario.jobs[0], run=evicted), *scenario.jobs[1:]))


def wait(scenario: Scenario) -> Scenario:
    return replace(scenario, jobs=tuple(replace(one, run=QUEUED) for one in scenario.jobs))


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


@pytest.mark.parametrize(
    "change",
    [waits_after_an_eviction, wait, stops, loses_a_worker, is_of_another_kind, protects, has_other_nodes],
    ids=lambda change: change.__name__,
)
def test_elsewhere_a_plan_is_made(change: Any) -> None:
    scenario = calm()
    assert calm_at(change(scenario), known(scenario)) is None


def test_one_is_made_where_somebody_may_grow() -> None:
    jobs = [running("a", [at("n0", 0)], most=4), job("b", gpus=8)]
    scenario = parse(scene([node("n0")], [quota("q", 8)], jobs))
    alone = replace(scenario, jobs=scenario.jobs[:1])
    kept = known(scenario)
    assert calm_at(alone, kept) is None
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


def one_more(scenario: Scenario, **fields: Any) -> Scenario:
    """The same objects, and one job that has just come."""
    document = scene([node("n0"), node("n1")], [quota("q", 16)], [job("z", **fields)])
    (newcomer,) = parse(document).jobs
    return replace(scenario, jobs=(*scenario.jobs, replace(newcomer, submitted=scenario.now)))


def taken_up(scenario: Scenario, kept: Kept) -> Course | None:
    found = calm_at(scenario, kept)
    assert found is not None, "only where everyone else has what he asks for"
    return None if found.newcomer is None else found.with_newcomer(Cluster(scenario, kept))


def test_who_comes_alone_and_fits_starts_without_a_plan() -> None:
    scenario = one_more(calm(), gpus=3)
    course, plan = taken_up(scenario, known(scenario)), make_plan(scenario)
    assert course is not None
    assert course == (plan.decisions, plan.next_wake, 0)
    assert course.decisions[0].workers[0].node == "n0"


@pytest.mark.parametrize(
    ("quotas", "fields"),
    [
        ([quota("q", 16)], {"gpus": 8}),  # nowhere are so many idle
        ([quota("q", 16, limit=5)], {"gpus": 3}),
        ([quota("q", 5)], {"gpus": 3, "preemptible": False}),
    ],
)
def test_who_comes_alone_and_may_not_start_at_once_is_left_to_a_plan(quotas: list[dict[str, Any]], fields: dict[str, Any]) -> None:
    jobs = [running("a", [at("n0", 0, 1)], preemptible=False), running("b", [at("n0", 2), at("n1", 0)], preemptible=False)]
    scenario = one_more(parse(scene([node("n0"), node("n1")], quotas, jobs)), **fields)
    kept = known(scenario)
    assert taken_up(scenario, kept) is None
    assert make_course(scenario, known(scenario)).decisions == () != make_plan(scenario).waiting


SHAPES = ((1, 1), (1, 1), (1, 2), (1, 4), (2, 4), (3, 4), (2, 8), (1, 8))


def arrivals(seed: int) -> Scenario:
    """Small jobs and gangs that come one by one, on a fleet with something idle."""
    chance = random.Random(seed)
    jobs = []
    for number in range(40):
        workers, gpus = chance.choice(SHAPES)
        fields: dict[str, Any] = {"preemptible": chance.random() < 0.8, "class": chance.choice(("batch", "batch", "interactive"))}
        if workers > 1 and chance.random() < 0.8:
            fields["topology"] = {chance.choice(("required", "preferred")): "leaf"}
        if chance.random() < 0.1:
            fields["preemption_delay_s"] = 90
        if chance.random() < 0.7:
            fields["estimate_s"] = chance.randrange(60, 3000)
        jobs.append(job(f"j{number:02d}", chance.choice("ab"), gpus, workers, **fields))
    quotas = [quota("a", 20, limit=chance.choice((30, None))), quota("b", 16)]
    gangs = chance.sample(((2, 8), (3, 8), (3, 4), (4, 4)), chance.randrange(3))
    demand = [{"share": 0.25, "gpus": gpus, "workers": workers, "required": "leaf"} for workers, gpus in gangs]
    return parse(scene(leafed(9, per_leaf=3), quotas, jobs, settings={"placement": chance.choice(("pack", "spread"))}, demand=demand))


def started_alone(seed: int) -> int:
    """How often somebody came alone and started; each course is held against the plan from scratch, and so is what is planned on in between."""
    chance = random.Random(seed)
    drawn = arrivals(seed)
    coming = list(drawn.jobs)
    scenario, kept, alone = replace(drawn, jobs=()), Kept(), 0
    make_plan(scenario, kept)
    for turn in range(60):
        event = chance.choice(("submit", "submit", "finish", "later", "nothing"))
        if event == "submit" and coming:
            scenario = replace(scenario, jobs=by_age((*scenario.jobs, replace(coming.pop(), submitted=scenario.now - 1000 * chance.randrange(3)))))
        elif event != "submit":
            scenario = after(scenario, make_plan(scenario), event, chance, turn)
        calm_now = calm_at(scenario, kept)
        plan = make_plan(scenario)
        if chance.random() < 0.15:
            assert written(make_plan(scenario, kept)) == written(plan), (turn, event)
        else:
            made = make_course(scenario, kept)
            alone += calm_now is not None and calm_now.newcomer is not None and bool(made.decisions)
            assert made.decisions == tuple(decision for decision in plan.decisions if decision.action != "reserve"), (turn, event)
            assert (made.next_wake, made.fragmented) == (plan.next_wake, plan.metrics["fragmented"]), (turn, event)
        scenario = after(scenario, plan, chance.choice(("apply", "apply", "apply", "order")), chance, turn)
    return alone


def test_where_jobs_come_one_by_one_it_is_the_course_of_a_plan() -> None:
    assert sum(map(started_alone, range(40))) > 80


def test_the_validator_looks_at_a_start_without_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = one_more(calm(), gpus=3)
    kept = known(scenario)

    def on_top_of_others(room: Room, work: Work) -> tuple[Seat, ...]:
        seats = (Seat(0, 0, 0, 0b111, 0, 0, 3000),)
        room.cluster.seat(work, seats, 0, work.home, FITS)
        return seats

    monkeypatch.setattr(Room, "start", on_top_of_others)
    with pytest.raises(InvariantBroken, match="held twice"):
        make_course(scenario, kept)
