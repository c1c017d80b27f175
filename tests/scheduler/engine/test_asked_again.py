"""Who asks for places in the same order as before gets the same ones at once, unless something speaks against it."""

from dataclasses import replace

import pytest

from scheduler.engine.cycle import make_plan
from scheduler.engine.model.values import Scenario
from scheduler.engine.reading.scenario import parse
from scheduler.engine.search.reservations import Book
from scheduler.engine.state.kept import Kept
from tests.scheduler.engine.scenes import at, job, node, quota, running, scene
from tests.scheduler.engine.test_kept import written
from tests.scheduler.twin.strategies import scenario_random

EIGHT = range(8)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether places were kept as before, by each time that some were worked out."""
    found: list[bool] = []
    all_again = Book._all_again

    def noted(book: Book, asking: list[tuple[object, int]]) -> bool:
        found.append(all_again(book, asking))  # type: ignore[arg-type]
        return found[-1]

    monkeypatch.setattr(Book, "_all_again", noted)
    return found


def two_in_line() -> Scenario:
    """Three full nodes; the first two of who waits have places kept on those that come free first."""
    nodes = [node(f"n{number}") for number in range(3)]
    stand = [running(f"r{number}", [at(f"n{number}", *EIGHT)], limit_s=3600 * (number + 1), priority=9) for number in range(3)]
    wait = [job(f"w{number}", gpus=8, limit_s=7200, submitted=-90 + number) for number in range(3)]
    return parse(scene(nodes, [quota("q", 24)], stand + wait, settings={"backfill_depth": 2, "forecast": "head"}))


def planned(scenario: Scenario, kept: Kept, found: list[bool]) -> list[bool]:
    """What came of asking again in the next plan, which is that from scratch."""
    found.clear()
    plan = make_plan(scenario, kept)
    seen = [*found]
    assert written(plan) == written(make_plan(scenario))
    return seen


def ending(scenario: Scenario, name: str, limit_ms: int) -> Scenario:
    return replace(scenario, jobs=tuple(replace(one, limit_ms=limit_ms) if one.name == name else one for one in scenario.jobs))


def test_gates_are_kept_for_a_job_that_asks_in_its_second_type_behind_others() -> None:
    """Its date is known although another job, for which nothing is kept, asked before it: j-15 comes before j-11 in their queue."""
    scenario = parse(scenario_random(78000315, "medium"))
    reserved = [decision.job for decision in make_plan(scenario).decisions if decision.action == "reserve"]
    assert "j-15" in reserved
    assert "j-11" not in reserved


def test_places_are_kept_as_before_while_nothing_speaks_against_it(found: list[bool]) -> None:
    scenario, kept = two_in_line(), Kept()
    assert planned(scenario, kept, found) == [False]
    assert planned(scenario, kept, found) == [True]
    another = replace(scenario, jobs=(*scenario.jobs, replace(scenario.jobs[-1], name="w3", submitted=scenario.now)))
    assert planned(another, kept, found) == [True]
    later = replace(another, now=another.now + 60_000)
    assert planned(later, kept, found) == [True]
    assert planned(ending(later, "r2", 20_000_000), kept, found) == [True]  # it leaves later still, and nobody counts on it


def test_they_are_looked_for_again_where_somebody_leaves_sooner(found: list[bool]) -> None:
    scenario, kept = two_in_line(), Kept()
    planned(scenario, kept, found)
    assert planned(ending(scenario, "r2", 1_800_000), kept, found) == [False]  # sooner than the others
    assert planned(ending(scenario, "r0", 1_800_000), kept, found) == [False]


def test_they_are_looked_for_again_where_others_ask_or_their_time_has_come(found: list[bool]) -> None:
    scenario, kept = two_in_line(), Kept()
    planned(scenario, kept, found)
    urgent = replace(scenario, jobs=tuple(one for one in scenario.jobs if one.name != "w0"))
    assert planned(urgent, kept, found) == [False]
    assert planned(replace(urgent, now=urgent.now + 3_600_000), kept, found) == [False]
