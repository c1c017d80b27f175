"""A scenario that is spelt out and read again is the same scenario, and gives the same plan."""

import json
from dataclasses import replace

import pytest

from scheduler.benchmarks import cases
from scheduler.benchmarks.engine import typed
from scheduler.engine.cycle import make_plan
from scheduler.engine.model.reasons import spell_instant
from scheduler.scenarios.checkers import moment
from scheduler.scenarios.reading import load, parse
from scheduler.scenarios.spelling import spelt
from scheduler.snapshots.spelling import Speller

from .scenes import job, node, quota, scene


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


def test_parts_of_processors_are_exact_and_spelt_as_written() -> None:
    """Three times 1.1 and 1 are 4.3: not a thousandth is left, and none is missing."""
    asked = (1.1, 1.1, 1.1, 1.001, 1, 2.0)
    jobs = [job(f"j{place}", gpus=0, role={"cpus": cpus}, submitted=place - 100) for place, cpus in enumerate(asked)]
    scenario = load(json.dumps(scene([node("n0", cpus=4.3)], [quota("q", 8)], jobs)))

    document = spelt(scenario)
    assert [document["nodes"][0]["cpus"], *(json.dumps(one["roles"][0]["cpus"]) for one in document["jobs"])] == [
        *(4.3, "1.1", "1.1", "1.1", "1.001", "1", "2"),
    ]
    plan = make_plan(scenario).as_json()
    assert {one["job"] for one in plan["decisions"] if one["action"] == "start"} == {"j0", "j1", "j2", "j4"}
    assert "each needs 1.001 processors, of which one node has 0 left" in plan["waiting"][0]["reasons"][0]["detail"]


@pytest.mark.soak
def test_what_the_bench_dumps_plans_as_the_bench_does() -> None:
    scenario = typed("explain", 1)

    assert make_plan(load(json.dumps(spelt(scenario)))).as_json() == make_plan(scenario).as_json()


def test_an_instant_of_any_year_is_read_as_it_is_spelt() -> None:
    for year in (1, 999, 1970, 9999):
        text = f"{year:04d}-01-01T00:00:00Z"
        assert spell_instant(moment(0).read(text)) == text
