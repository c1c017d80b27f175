"""Who is asked before whom, and by what: the walk of the engine itself, and each fact by hand."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from scheduler.engine.cycle import make_plan
from scheduler.engine.model.values import QUEUED, Job, Scenario
from scheduler.engine.passes.allocate import Walk
from scheduler.engine.state.planning import Cycle
from scheduler.engine.state.state import Kept
from scheduler.engine.state.work import Work
from scheduler.engine.tell.turns import FIRST, ROUND, Turn, turns
from scheduler.engine.trial import Ground, unlike
from scheduler.scenarios.reading import parse
from tests.scheduler.twin.strategies import scenario_random

from .scenes import A100, H100, at, job, node, quota, running, scene


class Refusing(Walk):
    """The engine's own walk, on which nobody gets anything and nobody is passed over."""

    def __init__(self, cycle: Cycle, choice: int, division: Any) -> None:
        super().__init__(cycle, choice, division, keep=None, free_start=True)
        self.asked: list[str] = []

    def _serve(self, work: Work, types: tuple[int, ...]) -> bool:
        self.asked.append(work.job.name)
        return False

    def _over(self) -> bool:
        return False

    def onward(self, queue: Sequence[Work], at: int) -> int:
        return at


def walked(scenario: Scenario) -> list[str]:
    """Whoever accepts several types is asked several times: his first turn counts."""
    cycle = Cycle(scenario)
    asked: dict[str, None] = {}
    for choice, division in cycle.waiting.rounds():
        walk = Refusing(cycle, choice, division)
        walk.run()
        asked.update(dict.fromkeys(walk.asked))
    return [*asked]


def scenarios(first: int, count: int) -> Iterator[Scenario]:
    for seed in range(first, first + count):
        for size in ("small", "medium"):
            yield parse(scenario_random(seed, size))


@pytest.mark.parametrize("first", [0, 50, *(pytest.param(first, marks=pytest.mark.soak) for first in (100, 150))])
def test_it_is_the_order_in_which_the_engine_asks_them(first: int) -> None:
    facts: set[str] = set()
    most = 0
    for scenario in scenarios(first, 50):
        found = turns(scenario)
        assert [turn.job.name for turn in found] == walked(scenario)
        assert [turn.number for turn in found] == [*range(1, len(found) + 1)]
        facts |= {turn.by for turn in found}
        most = max(most, len(found))

    assert facts >= {FIRST, "class", "priority", "submitted", "guarantee", "share_with"}, "what is drawn meets the common facts"
    assert most > 10


def test_asking_for_the_order_leaves_nothing_behind() -> None:
    for scenario in scenarios(0, 40):
        if not scenario.jobs:
            continue
        kept = Kept()
        ground = Ground(scenario, kept)
        before = turns(ground.scenario, kept)
        tried = ground.trial(wish(scenario))

        assert turns(ground.scenario, kept) == before == turns(ground.scenario)
        assert ground.trial(wish(scenario)) == tried == Ground(scenario).trial(wish(scenario))


def test_a_plan_after_the_order_knows_who_went_in_between() -> None:
    """`ends` holds the only node as the plan is made that the next ones go on from, and is gone when the order is asked for."""
    kept = Kept()
    full = parse(scene([node("n1")], [quota("q")], [running("ends", [at("n1", *range(8))]), job("next", gpus=8)]))
    free = replace(full, jobs=full.jobs[1:])
    make_plan(full, kept)
    make_plan(full, kept)
    turns(free, kept)

    assert [one.job for one in make_plan(free, kept).decisions] == ["next"]


def wish(scenario: Scenario) -> Job:
    return replace(scenario.jobs[0], name=unlike(scenario.jobs), submitted=scenario.now, run=QUEUED, not_before=None)


def told(quotas: list[dict[str, Any]], jobs: list[dict[str, Any]], nodes: list[dict[str, Any]] | None = None, **fields: Any) -> list[Turn]:
    return [*turns(parse(scene(nodes or [node("n1"), node("n2")], quotas, jobs, **fields)))]


def names(found: list[Turn]) -> list[tuple[str, str]]:
    return [(turn.job.name, turn.by) for turn in found]


def test_in_a_leaf_class_goes_before_number_and_number_before_age() -> None:
    jobs = [
        job("old", submitted=-900),
        job("young", submitted=-800),
        job("urgent", priority=80, submitted=-10),
        job("service", submitted=-5, **{"class": "inference"}),
    ]

    found = told([quota("q", 8)], jobs)

    assert names(found) == [("service", FIRST), ("urgent", "class"), ("old", "priority"), ("young", "submitted")]
    assert [(turn.of_leaf, turn.before and turn.before.name) for turn in found] == [(1, None), (2, "service"), (3, "urgent"), (4, "old")]
    assert all(turn.ours is None for turn in found)


def test_who_is_above_the_fair_share_comes_behind_who_is_not() -> None:
    quotas = [quota("a", 8), quota("b", 0, weight=0)]
    jobs = [running("r", [at("n1", *range(8))], "b"), job("of-b", "b", submitted=-900), job("of-a", "a", submitted=-10)]

    first, second = told(quotas, jobs)

    assert (first.job.name, second.job.name, second.by) == ("of-a", "of-b", "fair")
    assert second.ours is not None
    assert second.theirs is not None
    assert (second.ours.quota, second.ours.used, second.theirs.quota, second.theirs.used) == ("b", 8000, "a", 0)
    assert second.ours.fair < second.ours.used


def test_of_two_within_their_guarantees_the_smaller_part_of_it_goes_first() -> None:
    quotas = [quota("a", 8), quota("b", 8)]
    jobs = [
        running("r", [at("n1", 0, 1, 2, 3)], "a"),
        running("s", [at("n1", 4)], "b"),
        job("of-a", "a", submitted=-900),
        job("of-b", "b", submitted=-10),
    ]

    first, second = told(quotas, jobs)

    assert (first.job.name, second.job.name, second.by) == ("of-b", "of-a", "share_with")
    assert second.ours is not None
    assert second.theirs is not None
    assert (second.ours.used + second.ours.asked, second.ours.counts_on) == (5000, 8000)
    assert (second.theirs.used + second.theirs.asked, second.theirs.counts_on) == (2000, 8000)


@pytest.mark.parametrize(
    ("a", "b", "by"),
    [
        ({"guaranteed": 8}, {"guaranteed": 0}, "guarantee"),
        ({"guaranteed": 8, "priority": 200}, {"guaranteed": 8}, "node_priority"),
        ({"guaranteed": 8}, {"guaranteed": 8}, "age"),
    ],
)
def test_what_tells_two_teams_apart(a: dict[str, Any], b: dict[str, Any], by: str) -> None:
    quotas = [quota("a", **a), quota("b", **b)]

    first, second = told(quotas, [job("of-b", "b", submitted=-900), job("of-a", "a", submitted=-10)])

    assert (first.job.name, second.job.name, second.by) == ("of-a", "of-b", by)


def test_teams_are_compared_where_their_ways_part() -> None:
    quotas = [quota("x", 8), quota("x/one", 8, parent="x"), quota("y", 8), quota("y/two", 8, parent="y")]
    jobs = [running("r", [at("n1", 0, 1)], "x/one"), job("of-x", "x/one", submitted=-900), job("of-y", "y/two", submitted=-10)]

    _, second = told(quotas, jobs)

    assert second.ours is not None
    assert second.theirs is not None
    assert (second.ours.quota, second.theirs.quota) == ("x", "y")


def test_where_types_are_divided_everyones_first_choice_goes_before_anyones_second() -> None:
    quotas = [quota("a", {H100: 8, A100: 8})]
    jobs = [
        job("either", "a", submitted=-900, role={"gpu_types": [A100, H100]}),
        job("h100", "a", submitted=-10, role={"gpu_types": [H100]}),
    ]

    found = told(quotas, jobs, [node("n1"), node("n2", gpu_type=A100, gpu_memory_gb=40)])

    assert sorted(turn.job.name for turn in found) == ["either", "h100"], "each is told once"
    assert [turn.by for turn in found] == [FIRST, ROUND]


def test_who_is_held_or_can_never_start_has_no_turn() -> None:
    jobs = [job("waits"), job("held", not_before=3600), job("never", gpus=8, workers=9)]

    assert [turn.job.name for turn in told([quota("q", 8)], jobs)] == ["waits"]
