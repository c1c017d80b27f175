"""A plan made with what the plan before handed on equals the plan made from scratch, byte for byte, whatever happened in between."""

import gc
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.benchmarks import cases
from scheduler.engine.ahead.lookahead import Lookahead
from scheduler.engine.ahead.reservations import Book
from scheduler.engine.cycle import make_course, make_plan
from scheduler.engine.model.plan import Course, Plan
from scheduler.engine.model.values import QUEUED, Job, Run, Scenario
from scheduler.engine.place.gradient import Columns
from scheduler.engine.place.slots import SlotCounts
from scheduler.engine.state.cluster import Cluster
from scheduler.engine.state.fleet import View
from scheduler.engine.state.grid import Grid
from scheduler.engine.state.planning import Cycle
from scheduler.engine.state.state import Kept, alike_at_both_ends
from scheduler.scenarios.reading import parse
from scheduler.simulation.applying import carried_out
from scheduler.simulation.world import World
from tests.scheduler.engine.scenes import actions, at, job, node, quota, running, scene
from tests.scheduler.twin.colocated import colocated_random
from tests.scheduler.twin.powered import powered_random
from tests.scheduler.twin.strategies import scenario_random

EVENTS = ("submit", "submit", "cancel", "finish", "later", "later", "apply", "apply", "nothing", "lose", "node", "quota", "stop", "stop", "setting")
EVENTS += ("requeue", "requeue", "order", "order", "begin")  # who has stopped waits again; orders are on their way; what was reserved runs


def by_age(jobs: Any) -> tuple[Job, ...]:
    return tuple(sorted(jobs, key=lambda job: (job.submitted, job.name)))


def after(scenario: Scenario, plan: Plan, event: str, chance: random.Random, turn: int) -> Scenario:
    """The same fleet a moment later; what has not changed is the same object."""
    jobs = scenario.jobs
    pick = chance.choice(jobs) if jobs else None
    if event == "apply":
        done = carried_out(scenario, plan)
        return replace(done, jobs=by_age(done.jobs), nodes=scenario.nodes if done.nodes == scenario.nodes else done.nodes)
    if event == "later":
        return replace(scenario, now=scenario.now + chance.choice((1, 1000, 60_000, 3_600_000)))
    if event == "quota":
        heavier = [replace(quota, weight=quota.weight + 1000 * (place == turn)) for place, quota in enumerate(scenario.quotas)]
        return replace(scenario, quotas=tuple(heavier))
    if event == "order":
        return ordered(scenario, plan)
    if event == "requeue":
        gone = {job.name for job in jobs if job.run.state == "stopping" and chance.random() < 0.7}
        back = {job.name: replace(job, run=Run(last_evicted=job.run.last_evicted, evictions=job.run.evictions + 1)) for job in jobs}
        done = [back[job.name] if job.name in gone else job for job in jobs if job.name not in gone or job.run.last_evicted is not None]
        rest = [replace(job, run=replace(job.run, leaving=())) if job.run.leaving and chance.random() < 0.7 else job for job in done]
        return replace(scenario, jobs=tuple(rest))
    if event == "begin":
        split = {node.name for node in scenario.nodes if node.split}
        return replace(scenario, jobs=tuple(begun(job, scenario.now) if may_begin(job, split) else job for job in jobs))
    if event == "setting":
        other = replace(scenario.settings, backfill_depth=chance.choice((0, 1, 8)), placement=chance.choice(("pack", "spread", "fgd")))
        return replace(scenario, settings=other)
    if event == "node":
        held = {worker.node for job in jobs for worker in (*job.run.workers, *job.run.leaving)}
        free = sorted(node.name for node in scenario.nodes if node.name not in held)
        gone = free[0] if free and len(scenario.nodes) > 1 else ""
        return replace(scenario, nodes=tuple(node for node in scenario.nodes if node.name != gone))
    if pick is None:
        return scenario
    if event == "submit":
        again = replace(pick, name=f"{pick.name}-{turn}", submitted=scenario.now - chance.randrange(0, 100) * 1000, run=QUEUED)
        return replace(scenario, jobs=by_age((*jobs, again)))
    if event == "lose" and len(pick.run.workers) > 1 and pick.run.state == "running":
        less = replace(pick, run=replace(pick.run, workers=pick.run.workers[1:], degraded_since=scenario.now))
        return replace(scenario, jobs=tuple(less if job is pick else job for job in jobs))
    if event == "stop" and pick.run.state == "running":
        gone = replace(pick, run=replace(pick.run, state="stopping", until=scenario.now + 30_000, last_evicted=scenario.now))
        return replace(scenario, jobs=tuple(gone if job is pick else job for job in jobs))
    if event == "finish":
        return replace(scenario, jobs=tuple(job for job in jobs if job is not pick or not job.run.workers))
    if event == "cancel":
        return replace(scenario, jobs=tuple(job for job in jobs if job is not pick or job.run.workers))
    return scenario


def ordered(scenario: Scenario, plan: Plan) -> Scenario:
    """Everyone knows of the plan and nobody has done anything yet: who leaves still holds his places, and who starts has them promised."""
    now, jobs = scenario.now, {job.name: job for job in scenario.jobs}
    done = {job.name: job for job in carried_out(scenario, plan).jobs}
    for decision in plan.decisions:
        if decision.job is None or decision.action == "reserve":
            continue
        before, then = jobs[decision.job], done.get(decision.job)
        if decision.action == "evict":
            jobs[decision.job] = replace(before, run=replace(before.run, state="stopping", since=now, until=now + 30_000, last_evicted=now))
        elif decision.action in ("start", "move") and then is not None:
            jobs[decision.job] = replace(then, run=replace(then.run, state="reserved", since=now, started=None, until=now + 60_000))
        elif decision.action == "shrink" and then is not None:
            left = tuple(worker for worker in before.run.workers if worker not in then.run.workers)
            jobs[decision.job] = replace(then, run=replace(then.run, leaving=(*then.run.leaving, *left)))
    return replace(scenario, jobs=tuple(jobs.values()))


def may_begin(job: Job, split: set[str]) -> bool:
    """Nobody runs on a GPU whose new layout is not there yet."""
    parted = any(role.parted for role in job.kind.roles)
    return job.run.state == "reserved" and not parted and not any(worker.node in split for worker in job.run.workers)


def begun(job: Job, now: int) -> Job:
    return replace(job, run=replace(job.run, state="running", started=now, until=None))


def written(plan: Plan) -> str:
    return json.dumps(plan.as_json())


def holds_through(scenario: Scenario, events: list[str], seed: int) -> None:
    """State goes on from plan to plan in one of them, and is made anew in the other."""
    kept, chance = Kept(), random.Random(seed)
    for turn, event in enumerate(events):
        plan = make_plan(scenario, kept)
        assert written(plan) == written(make_plan(scenario)), (turn, events[:turn])
        scenario = after(scenario, plan, event, chance, turn)


@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**6), st.sampled_from(["tiny", "small"]), st.lists(st.sampled_from(EVENTS), min_size=2, max_size=9))
def test_whatever_happens_in_between_the_plan_is_that_from_scratch(seed: int, size: str, events: list[str]):
    holds_through(parse(scenario_random(seed, size)), events, seed)


def of_whole_gpus(seed: int, size: str) -> Scenario:
    """Windows and parts of GPUs make the look-ahead and the reasons anew: without them these go on too, whoever leaves or is on the way."""
    document = scenario_random(seed, size)
    document["reservations"] = []
    whole = [job for job in document["jobs"] if all("gpus" in role for role in job["roles"])]
    document["jobs"] = [{key: value for key, value in job.items() if key != "sharing"} for job in whole]
    for machine in document["nodes"]:
        machine.pop("mig", None)
    document.setdefault("settings", {})["forecast"] = ("all", "head", "none")[seed % 3]
    return parse(document)


@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**6), st.sampled_from(["small", "small", "medium"]), st.lists(st.sampled_from(EVENTS), min_size=3, max_size=14))
def test_so_it_is_with_whole_gpus_and_no_window_where_state_goes_on(seed: int, size: str, events: list[str]):
    holds_through(of_whole_gpus(seed, size), events, seed)


def with_shares(seed: int, size: str) -> Scenario:
    """Shares of GPUs beside whole ones, without MIG."""
    document = scenario_random(seed, size)
    chance = random.Random(seed)
    document["reservations"] = []
    document["jobs"] = [job for job in document["jobs"] if job.get("sharing") != "mig" and not any("mig" in role for role in job["roles"])]
    for place, one in enumerate([*document["jobs"]]):
        if len(one["roles"]) == 1 and not one.get("workers") and chance.random() < 0.5:
            role = {"name": "worker", "gpu_share": chance.choice((0.2, 0.5, 0.7)), "cpus": chance.choice((0, 1.5))}
            own = {key: one[key] for key in ("name", "quota", "class", "priority", "preemptible", "submitted", "limit_s") if key in one}
            document["jobs"][place] = {**own, "roles": [role], "sharing": "mps"}
    for machine in document["nodes"]:
        machine.pop("mig", None)
    document.setdefault("settings", {})["forecast"] = ("all", "head", "none")[seed % 3]
    document["settings"]["placement"] = ("pack", "fgd")[seed % 2]
    return parse(document)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**6), st.sampled_from(["small", "small", "medium"]), st.lists(st.sampled_from(EVENTS), min_size=3, max_size=10))
def test_so_it_is_with_shares_of_gpus(seed: int, size: str, events: list[str]):
    holds_through(with_shares(seed, size), [*events[:2], "apply", *events[2:]], seed)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**6), st.sampled_from(["tiny", "small"]), st.lists(st.sampled_from(EVENTS), min_size=3, max_size=9))
def test_so_it_is_under_power_caps(seed: int, size: str, events: list[str]):
    holds_through(parse(powered_random(seed, size)), events, seed)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**6), st.sampled_from(["tiny", "small"]), st.lists(st.sampled_from(EVENTS), min_size=3, max_size=9))
def test_so_it_is_beside_services(seed: int, size: str, events: list[str]):
    holds_through(parse(colocated_random(seed, size)), events, seed)


@pytest.mark.parametrize(
    ("seed", "size", "events"),
    [
        (1173, "small", ["setting", "cancel"]),  # what would fit an empty fleet depends on how it is filled
        (3333, "medium", ["later", "submit", "lose", "cancel", "finish", "setting", "apply", "apply", "submit", "submit"]),  # two types in one gang
        (1234, "small", ["submit", "submit", "submit", "quota"]),  # nobody waits for a shape any more, then somebody does
    ],
)
def test_what_once_was_another_plan_is_the_same(seed: int, size: str, events: list[str]):
    holds_through(of_whole_gpus(seed, size), events, seed)


def test_so_is_one_in_which_others_than_before_are_charged_to_a_window():
    holds_through(parse(scenario_random(2360, "tiny")), ["submit", "node", "requeue", "order", "nothing"], 2360)


def test_so_is_one_after_whoever_asked_for_much_of_a_host_has_gone():
    """Nobody's processors bind any more, though a job that they bound has left what is known of its kind."""
    holds_through(parse(scenario_random(11686, "medium")), ["stop", "stop", "nothing", "nothing", "cancel", "stop", "later", "nothing"], 11686)


@pytest.mark.parametrize("seed", range(2))
def test_a_whole_simulation_is_the_same_with_and_without_what_is_kept(seed: int):
    scenario = parse(cases.simulated(seed, 120))
    kept, scratch = World(scenario), World(scenario, make_plan)
    kept.run()
    scratch.run()

    def story(world: World) -> list[Any]:
        return [(name, life.first_start, life.ended, life.evictions, life.lost) for name, life in sorted(world.lives.items())]

    assert story(kept) == story(scratch)


def plan_with_answers_at_once(scenario: Scenario) -> Plan:
    """The plan from scratch, in which everyone who waits is told at once when and where a place is kept for him."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Book, "add_later", lambda book, work, quota_type: book.add(work, (quota_type,)))
        return make_plan(scenario)


def test_a_crowded_simulation_takes_step_by_step_the_plans_that_are_made_from_scratch():
    """With gangs that wait beside each other, and moves that make room for them. Who is answered later, if at all, gets the same answer."""
    scenario = parse(cases.simulated(6, 500))
    scenario = replace(scenario, settings=replace(scenario.settings, forecast="none"))
    kept, moves = Kept(), 0

    def both(scenario: Scenario) -> Course:
        nonlocal moves
        course, plan = make_course(scenario, kept), plan_with_answers_at_once(scenario)
        assert course.decisions == tuple(one for one in plan.decisions if one.action != "reserve")
        assert course.next_wake == plan.next_wake
        moves += sum(one.action == "move" for one in course.decisions)
        return course

    World(scenario, both).run()

    assert moves > 20


@pytest.mark.parametrize("guaranteed", [0, {"H100": 8}], ids=["of all types", "by type"])
@pytest.mark.parametrize("waiting", [0, 1])
def test_so_it_is_where_there_is_no_hardware_yet(waiting: int, guaranteed: Any):
    """Teams may submit before the first node is in, and a last node may go."""
    many = parse(scene([], [quota("q", guaranteed)], [job(f"job-{number}", gpus=8) for number in range(4)]))
    kept = Kept()
    for count in (waiting, 2, 1, 4):
        some = replace(many, jobs=many.jobs[:count])
        assert written(make_plan(some, kept)) == written(make_plan(some))


def test_a_plan_that_goes_on_is_not_made_from_scratch():
    """Else the tests above would compare a thing with itself."""
    scenario = parse(cases.simulated(1, 40))
    scenario = replace(scenario, now=max(job.submitted for job in scenario.jobs))
    kept = Kept()
    first = make_plan(scenario, kept)
    later = carried_out(scenario, first)
    assert goes_on(kept, later)


def goes_on(kept: Kept, scenario: Scenario) -> bool:
    """Whether the plan of a scenario goes on from the state of the plan before."""
    before = kept.state
    make_plan(scenario, kept)
    return before is not None and before is kept.state


def test_so_is_one_beside_instances_and_windows_as_long_as_layouts_and_the_windows_that_last_are_the_same():
    nodes = [node("n0", mig=[{"gpu": 0, "instances": [{"profile": "3g.40gb", "start": 0}, {"profile": "3g.40gb", "start": 4}]}]), node("n1")]
    windows = [{"name": "w", "quota": "q", "gpus": 4, "gpu_type": nodes[0]["gpu_type"], "start": 3600, "end": 7200, "notice_s": 600}]
    halves = [{**job(f"half-{number}"), "roles": [{"mig": "3g.40gb"}], "sharing": "mig"} for number in range(2)]
    scenario = parse(scene(nodes, [quota("q", 16)], [*halves, job("whole", gpus=8)], reservations=windows))
    kept = Kept()
    for _ in range(3):  # who was to start runs, then one leaves an instance and waits
        plan = make_plan(scenario, kept)
        assert written(plan) == written(make_plan(scenario))
        scenario = carried_out(scenario, plan)
        stops = next((one for one in scenario.jobs if one.kind.sharing == "mig" and one.run.state == "running"), None)
        if stops is not None:
            stopped = replace(stops, run=replace(stops.run, state="stopping", until=scenario.now + 30_000))
            scenario = replace(scenario, jobs=tuple(stopped if one is stops else one for one in scenario.jobs))
        assert goes_on(kept, scenario)
    begun = replace(scenario, now=scenario.now + 3_600_000)
    assert not goes_on(kept, begun), "the window has begun"


def test_so_is_one_while_somebody_leaves():
    scenario = parse(scene([node("n0"), node("n1")], [quota("q", 16)], [running("a", [at("n0", *range(8))]), job("b", gpus=8), job("c", gpus=8)]))
    stops = replace(scenario.jobs[0].run, state="stopping", until=scenario.now + 30_000)
    leaving = replace(scenario, jobs=(replace(scenario.jobs[0], run=stops), *scenario.jobs[1:]))
    gone = replace(leaving, jobs=leaving.jobs[1:])
    kept = Kept()
    make_plan(scenario, kept)
    for later in (leaving, leaving, gone):
        assert goes_on(kept, later)
        assert written(make_plan(later, kept)) == written(make_plan(later))


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    st.integers(0, 10**6),
    st.lists(st.sampled_from(EVENTS), min_size=2, max_size=8),
    st.lists(st.booleans(), min_size=9, max_size=9),
    st.lists(st.integers(1, 7200), min_size=9, max_size=9),
)
def test_a_course_is_the_plan_without_what_it_tells(seed: int, events: list[str], told: list[bool], sooner: list[int]):
    """Whether or not the plans in between told anything. Who plans again soon is told of no later moment than that."""
    scenario, kept, chance = of_whole_gpus(seed, "small"), Kept(), random.Random(seed)
    for turn, event in enumerate(events):
        plan = make_plan(scenario)
        if told[turn]:
            assert written(make_plan(scenario, kept)) == written(plan)
        else:
            course = make_course(scenario, kept)
            assert course.decisions == tuple(decision for decision in plan.decisions if decision.action != "reserve")
            assert (course.next_wake, course.fragmented) == (plan.next_wake, plan.fragmented)
            before = scenario.now + 1000 * sooner[turn]
            course = make_course(scenario, kept, before)
            due = plan.next_wake if plan.next_wake is not None and plan.next_wake < before else None
            assert (course.next_wake if course.next_wake is not None and course.next_wake < before else None) == due
        scenario = after(scenario, plan, event, chance, turn)


def same_as_anew(scenario: Scenario, kept: Kept) -> dict[str, Any]:
    found = make_plan(scenario, kept).as_json()
    assert json.dumps(found) == json.dumps(make_plan(scenario).as_json())
    return found


def test_a_date_that_was_counted_is_not_given_again_once_processors_bind() -> None:
    held = running("held", [at("n1", *range(8))], role={"cpus": 4}, limit_s=3600)
    large = job("large", gpus=8, role={"cpus": 12}, estimate_s=600, submitted=-90)
    first = parse(scene([node("n1", cpus=16)], [quota("q", 8)], [held, large]))
    kept = Kept()
    (promised,) = (one["at"] for one in same_as_anew(first, kept)["decisions"] if one["action"] == "reserve")
    assert promised

    beside = parse(scene([node("n1", cpus=16)], [quota("q", 8)], [held, large, job("beside", gpus=0, role={"cpus": 6}, limit_s=36_000)]))
    jobs = {one.name: one for one in (*beside.jobs, *first.jobs)}
    same_as_anew(replace(first, jobs=tuple(jobs[one.name] for one in beside.jobs)), kept)


def test_who_was_to_be_evicted_and_stays_is_taken_from_when_its_protection_ends() -> None:
    victim = running("victim", [at("n1", *range(8))], "borrows", started=-600)
    quotas = [quota("q", 8), quota("borrows", preempt_min_runtime_s=3600)]
    higher = job("higher", "borrows", gpus=8, priority=200, submitted=-50)
    both = parse(scene([node("n1")], quotas, [victim, job("taker", gpus=8), higher], settings={"reclaim_min_runtime_s": 60}))
    scenario, withdrawn = (replace(both, jobs=tuple(one for one in both.jobs if one.name != name)) for name in ("higher", "taker"))
    kept = Kept()
    assert actions(make_plan(scenario, kept).as_json()) == {"victim": "evict", "taker": "start"}

    assert same_as_anew(withdrawn, kept)["next_wake"] == "2026-11-20T09:50:00Z"


def of_other_quotas(scenario: Scenario) -> Scenario:
    return replace(scenario, quotas=tuple(replace(quota, weight=quota.weight + 1) for quota in scenario.quotas))


def on_other_nodes(scenario: Scenario) -> Scenario:
    return replace(scenario, nodes=(replace(scenario.nodes[0], cpu_milli=scenario.nodes[0].cpu_milli + 1), *scenario.nodes[1:]))


def while_somebody_stops(scenario: Scenario) -> Scenario:
    """So that what is idle now and what will be are two."""
    stops = next(job for job in scenario.jobs if job.run.state == "running")
    gone = replace(stops, run=replace(stops.run, state="stopping", until=scenario.now + 30_000))
    return replace(scenario, jobs=tuple(gone if job is stops else job for job in scenario.jobs))


@pytest.mark.parametrize("placement", ["pack", "fgd"])
@pytest.mark.parametrize(("changed", "views"), [(of_other_quotas, 1), (on_other_nodes, 1), (while_somebody_stops, 2)])
def test_a_plan_leaves_nothing_of_the_one_before(changed: Callable[[Scenario], Scenario], views: int, placement: str):
    """What is gone only when the garbage collector comes by is a whole fleet a plan, and the tick in which it comes takes twice as long."""
    scenario, kept = parse(cases.steady(1, 20, 200)), Kept()
    scenario = replace(scenario, settings=replace(scenario.settings, placement=placement))
    scenario = carried_out(scenario, make_plan(scenario))
    gc.collect()
    others = {id(each) for each in states()}
    gc.disable()
    try:
        for _ in range(3):
            make_plan(scenario, kept)
            scenario = changed(scenario)
        alive = [type(each).__name__ for each in states() if id(each) not in others]
    finally:
        gc.enable()
    assert sorted(set(alive) - {"SlotCounts", "Columns"}) == ["Grid", "Lookahead", "View"]
    assert alive.count("View") == views
    assert max(Counter(alive).values()) <= views


def states() -> list[object]:
    # By their types alone: `isinstance` would wake whatever lazy object another test has left behind.
    return [each for each in gc.get_objects() if type(each) in (SlotCounts, Cluster, Columns, Cycle, Grid, Lookahead, View)]


@pytest.mark.parametrize(("started", "due_s"), [(-50, 550), (-900, 300)], ids=["as estimated", "beyond its estimate"])
def test_a_course_says_when_a_kept_place_comes_free_unless_that_is_no_sooner(started: int, due_s: int) -> None:
    """Nobody needs the place that is kept in this plan, so it is worked out only where the moment matters."""
    holder = running("holder", [at("n1", *range(8))], started=started, estimate_s=600)
    scenario = parse(scene([node("n1")], [quota("q", 8)], [holder, job("waits", gpus=8, estimate_s=60)]))
    due = scenario.now + 1000 * due_s
    assert make_plan(scenario).next_wake == due
    kept = Kept()
    make_plan(scenario, kept)
    assert make_course(scenario, kept, due + 1).next_wake == due
    assert make_course(scenario, kept, due).next_wake is None
    again = replace(scenario, now=due - 1)
    assert make_course(again, kept, due + 1).next_wake == due, "what was known of the plan before holds on"


def test_another_weight_of_past_usage_divides_anew_what_is_asked_for_as_before() -> None:
    past = [quota("a", 0, usage=0.5), quota("b", 0)]
    waiting = [job(f"{name}-{number}", quota=name, gpus=1) for name in ("a", "b") for number in range(8)]
    scenario, kept = parse(scene([node("n1")], past, waiting)), Kept()
    shares = set()
    for weight in (0, 2_000_000):
        fairness = replace(scenario.settings.fairness, usage_weight_millionths=weight)
        found = same_as_anew(replace(scenario, settings=replace(scenario.settings, fairness=fairness)), kept)
        shares.add(tuple(each["fair"] for each in found["shares"]))
    assert len(shares) == 2


@pytest.mark.parametrize(
    "changed", [{"passes": ("backfill",)}, {"preempt_min_runtime_ms": 900_000}, {"overrun_millionths": 2_000_000}], ids=["reasons", "wake", "date"]
)
def test_other_settings_tell_anew_of_jobs_that_have_not_changed(changed: dict[str, Any]) -> None:
    low = running("low", [at("n1", *range(8))], estimate_s=1200)
    first = parse(scene([node("n1")], [quota("q", 8)], [low, job("high", gpus=8, priority=200), job("next", gpus=8)], settings={"forecast": "none"}))
    before = replace(first.settings, passes=("backfill", "preempt"), preempt_min_runtime_ms=600_000, backfill_depth=1)
    kept = Kept()
    found = [same_as_anew(replace(first, settings=each), kept) for each in (before, replace(before, **changed), before)]
    assert found[0] == found[2] != found[1]


def test_guarantees_by_type_ask_anew_what_an_instance_is_charged_in_each() -> None:
    """Together an instance counts as large as on any board, by type as large as on the boards of that type."""
    nodes = [node("n1", 1, gpu_type="A100-SXM4-40GB", gpu_memory_gb=40), node("n2", 1, gpu_type="A30", gpu_memory_gb=24)]
    part = {"name": "part", "quota": "q", "submitted": -1, "sharing": "mig", "roles": [{"min": 1, "max": 1, "gpu_memory_gb": 4}]}
    first = parse(scene(nodes, [quota("q", 0)], [part], settings={"passes": ["stale"]}))
    by_type = parse(scene(nodes, [quota("q", {"A100-SXM4-40GB": 0, "A30": 0})], [part]))
    kept, shares = Kept(), []
    for quotas in (first.quotas, by_type.quotas):
        found = same_as_anew(replace(first, quotas=quotas), kept)
        shares.append([each["fair"] for each in found["shares"]])
    assert shares[1] == [0.125, 0.25]


def test_lists_of_jobs_are_alike_at_their_beginning_and_end() -> None:
    jobs = parse(scene([node("n1")], [quota("q", 8)], [job(f"job-{number:04}") for number in range(700)])).jobs
    other = parse(scene([node("n1")], [quota("q", 8)], [job(f"other-{number}") for number in range(3)])).jobs
    for first in (0, 1, 255, 256, 300, 699, 700):
        changed = (*jobs[:first], *other, *jobs[first + 1 :])
        assert alike_at_both_ends(jobs, changed) == (first, max(0, 699 - first)), first
    assert alike_at_both_ends(jobs, jobs[:10]) == (10, 0)
    assert alike_at_both_ends(jobs, jobs) == (700, 0)
