"""Who says what has become of the jobs gets the same courses as who lets the engine compare them."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.engine.cycle import make_course, make_plan
from scheduler.engine.model.values import Checkpoint, Job, Run, Scenario
from scheduler.engine.reading.scenario import parse
from scheduler.engine.state.difference import stepped
from scheduler.engine.state.kept import Kept
from scheduler.engine.state.planning import Cycle
from scheduler.engine.state.roll import Roll, Step
from tests.scheduler.engine.scenes import at, job, node, quota, running, scene
from tests.scheduler.engine.test_calm import arrivals
from tests.scheduler.engine.test_kept import EVENTS, after, by_age, of_whole_gpus, written


def steps_between(one: Sequence[Job], other: Sequence[Job], chance: random.Random) -> list[Step]:
    """Some way from one list to another: jobs go, come and become others, some of them more than once."""
    line = list(one)
    steps: list[Step] = []
    stay = {each.name for each in other}
    for place in reversed(range(len(line))):
        if line[place].name not in stay:
            del line[place]
            steps.append((place, None, -1))
    for place, each in enumerate(other):
        if place < len(line) and line[place] is each:
            continue
        here = place < len(line) and line[place].name == each.name
        interim = replace(each, run=Run(evictions=7)) if chance.random() < 0.3 else each
        if here:
            line[place] = each
        else:
            line.insert(place, each)
        steps.append((place, interim, 0 if here else 1))
        if interim is not each:
            steps.append((place, each, 0))
            if chance.random() < 0.3:
                steps += [(place, None, -1), (place, each, 1)]
    assert line == list(other)
    return steps


def played(seed: int) -> int:
    """How many courses went by what was said; each is held against the plan from scratch, and so is what is planned on in between."""
    chance = random.Random(seed)
    drawn = arrivals(seed)
    coming, told = list(drawn.jobs), 0
    scenario, kept = replace(drawn, jobs=()), Kept()
    known: tuple[Job, ...] | None = None
    for turn in range(60):
        event = chance.choice(("submit", "submit", "finish", "later", "nothing"))
        if event == "submit" and coming:
            scenario = replace(scenario, jobs=by_age((*scenario.jobs, replace(coming.pop(), submitted=scenario.now - 1000 * chance.randrange(3)))))
        elif event != "submit":
            scenario = after(scenario, make_plan(scenario), event, chance, turn)
        plan = make_plan(scenario)
        if chance.random() < 0.15:
            assert written(make_plan(scenario, kept)) == written(plan), (turn, event)
        else:
            steps = None if known is None or chance.random() < 0.1 else steps_between(known, scenario.jobs, chance)
            told += steps is not None
            made = make_course(scenario, kept, steps=steps)
            known = scenario.jobs
            assert made.decisions == tuple(decision for decision in plan.decisions if decision.action != "reserve"), (turn, event)
            assert (made.next_wake, made.fragmented) == (plan.next_wake, plan.metrics["fragmented"]), (turn, event)
        scenario = after(scenario, plan, chance.choice(("apply", "apply", "apply", "order")), chance, turn)
    return told


def test_the_course_is_the_same_with_steps_and_without() -> None:
    assert sum(map(played, range(30))) > 1000


def saved(scenario: Scenario, chance: random.Random) -> Scenario:
    """Time goes by, and some have saved a checkpoint."""
    now = scenario.now + chance.choice((0, 1000, 600_000))
    jobs = []
    for each in scenario.jobs:
        if each.run.workers and chance.random() < 0.5:
            known = each.checkpoint or Checkpoint(600_000, None, 5000, 5000)
            jobs.append(each.with_run(each.run, replace(known, last=now - chance.choice((0, 1000)))))
        else:
            jobs.append(each)
    return replace(scenario, now=now, jobs=tuple(jobs))


@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**6), st.lists(st.sampled_from((*EVENTS, *("save",) * 6)), min_size=3, max_size=12))
def test_who_has_saved_a_checkpoint_has_less_to_lose(seed: int, events: list[str]) -> None:
    chance = random.Random(seed)
    scenario, kept = of_whole_gpus(seed, "small"), Kept()
    known: tuple[Job, ...] | None = None
    for turn, event in enumerate(events):
        plan = make_plan(scenario)
        if chance.random() < 0.1:
            assert written(make_plan(scenario, kept)) == written(plan), (turn, event)
        else:
            made = make_course(scenario, kept, steps=None if known is None else steps_between(known, scenario.jobs, chance))
            known = scenario.jobs
            assert made.decisions == tuple(decision for decision in plan.decisions if decision.action != "reserve"), (turn, event)
            assert (made.next_wake, made.fragmented) == (plan.next_wake, plan.fragmented), (turn, event)
        scenario = saved(scenario, chance) if event == "save" else after(scenario, plan, event, chance, turn)


def test_steps_that_lead_elsewhere_are_not_believed() -> None:
    scenario = parse(scene([node("n0")], [quota("q", 8)], [running("a", [at("n0", 0)]), job("b", gpus=2)]))
    kept = Kept()
    make_course(scenario, kept)
    make_course(scenario, kept, steps=())
    fewer = replace(scenario, jobs=scenario.jobs[:1])
    with pytest.raises(AssertionError, match="the steps lead to the jobs"):
        make_course(fewer, kept, steps=())


def test_who_asks_for_what_nobody_has_looked_at_yet_is_looked_at_again() -> None:
    scenario = parse(scene([node("n0")], [quota("q", 8)], [running("a", [at("n0", 0)])]))
    kept = Kept()
    roll = Roll(scenario.jobs, kept.forms)
    assert len(roll.open) == 1, "he may ask for anything"
    make_plan(scenario, kept)
    roll = Roll(scenario.jobs, kept.forms)
    assert not roll.open
    of_another_kind = replace(scenario.jobs[0], kind=replace(scenario.jobs[0].kind, grace_ms=1))
    roll.follow([(0, of_another_kind, 0)], (of_another_kind,))
    assert len(roll.open) == 1
    make_plan(replace(scenario, jobs=(of_another_kind,)), kept)
    roll.follow([], (of_another_kind,))
    assert not roll.open


def one_runs_and_others_wait(many: int) -> Scenario:
    held = running("held", [at("n1", *range(8))], estimate_s=100)
    waiting = [job(f"j{number:03d}", gpus=8) for number in range(many)]
    return parse(scene([node("n1")], [quota("q", 8)], [held, *waiting], settings={"forecast": "none"}))


def test_behind_a_course_with_steps_the_beginning_of_the_list_is_looked_at_again() -> None:
    scenario, kept = one_runs_and_others_wait(300), Kept()
    jobs = scenario.jobs
    make_course(replace(scenario, jobs=jobs[:299]), kept)
    make_course(scenario, kept)
    make_course(replace(scenario, jobs=jobs[:5] + jobs[6:]), kept, steps=[(5, None, -1)])

    assert make_plan(scenario, kept) == make_plan(scenario)


def test_of_a_list_to_which_nothing_has_happened_nobody_stands_at_both_ends() -> None:
    works = Cycle(one_runs_and_others_wait(2)).cluster.works
    between = stepped(works, [], later=False)

    assert (between.first + between.last, between.before, between.now) == (len(works), [], [])
