"""A scenario that is spelt out and read again is the same scenario, and gives the same plan."""

import json
from dataclasses import replace

import pytest

from scheduler.benchmarks import cases
from scheduler.benchmarks.engine import typed
from scheduler.engine.cycle import make_plan
from scheduler.engine.scenario import load, parse
from scheduler.engine.spelling import Speller, spelt


@pytest.mark.parametrize("seed", [1, 2])
def test_spelt_out_and_read_again_it_plans_the_same(seed: int) -> None:
    scenario = parse(cases.steady(seed, 20, 120))
    again = load(json.dumps(spelt(scenario)))

    assert spelt(again) == spelt(scenario)
    assert make_plan(again).as_json() == make_plan(scenario).as_json()


@pytest.mark.parametrize("jobs", [0, 1, 700, 1500])
def test_in_parts_it_is_the_same_document_and_few_parts_change_with_a_job(jobs: int) -> None:
    scenario = parse(cases.steady(1, 20, 1500))
    speller, scenario = Speller(), replace(scenario, jobs=scenario.jobs[:jobs])
    first = speller.blocks(scenario)
    assert json.loads(b"".join(first)) == spelt(scenario)
    for place in {0, jobs // 2, jobs - 1} if jobs else ():
        less = replace(scenario, now=scenario.now + 1, jobs=(*scenario.jobs[:place], *scenario.jobs[place + 1 :]))
        later = speller.blocks(less)
        assert json.loads(b"".join(later)) == spelt(less)
        assert len(set(later) - set(first)) <= 4  # the head, the end, and where it stood


@pytest.mark.soak
def test_what_the_bench_dumps_plans_as_the_bench_does() -> None:
    scenario = typed("explain", 1)

    assert make_plan(load(json.dumps(spelt(scenario)))).as_json() == make_plan(scenario).as_json()
