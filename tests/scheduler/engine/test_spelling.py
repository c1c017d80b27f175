"""A scenario that is spelt out and read again is the same scenario, and gives the same plan."""

import json

import pytest

from scheduler.benchmarks import cases
from scheduler.benchmarks.engine import typed
from scheduler.engine.cycle import make_plan
from scheduler.engine.scenario import load, parse
from scheduler.engine.spelling import spelt


@pytest.mark.parametrize("seed", [1, 2])
def test_spelt_out_and_read_again_it_plans_the_same(seed: int) -> None:
    scenario = parse(cases.steady(seed, 20, 120))
    again = load(json.dumps(spelt(scenario)))

    assert spelt(again) == spelt(scenario)
    assert make_plan(again).as_json() == make_plan(scenario).as_json()


@pytest.mark.soak
def test_what_the_bench_dumps_plans_as_the_bench_does() -> None:
    scenario = typed("explain", 1)

    assert make_plan(load(json.dumps(spelt(scenario)))).as_json() == make_plan(scenario).as_json()
