"""How soon one plan follows another: at once, unless very many ask for one."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler import tasks
from scheduler.services.loop.pace import APART_SECONDS, MANY, Pace
from scheduler.services.loop.tick import TickResult
from tests import builders
from tests.scheduler.loop.worlds import Loop, leaf, submit


def paced(*plans: tuple[float, int]) -> Pace:
    pace = Pace()
    for began, wishes in plans:
        pace.planned(began=began, wishes=wishes)
    return pace


def test_the_first_plan_and_one_after_a_quiet_time_begin_at_once() -> None:
    assert Pace().pause(now=100.0) == 0
    assert paced((100.0, 5 * MANY)).pause(now=101.5) == 0


def test_who_submits_one_after_the_other_is_planned_for_at_once() -> None:
    assert paced(*((100 + place / 20, 1) for place in range(MANY - 1))).pause(now=101.0) == 0


def test_in_a_flood_plans_begin_apart() -> None:
    pace = paced((99.5, MANY // 2), (100.0, MANY // 2))
    assert pace.pause(now=100.1) == pytest.approx(APART_SECONDS - 0.1)
    assert pace.pause(now=100.0 + APART_SECONDS) == pytest.approx(0, abs=1e-9)


def test_a_plan_that_took_long_is_followed_at_once() -> None:
    assert paced((100.0, 5 * MANY)).pause(now=100.0 + 2 * APART_SECONDS) == 0


def test_what_was_long_ago_is_no_flood() -> None:
    assert paced((98.9, MANY), (100.0, 1)).pause(now=100.01) == 0


def test_a_clock_that_went_back_stops_nobody() -> None:
    assert paced((100.0, 5 * MANY)).pause(now=10.0) == 0


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[float]]:
    """The rests that the loop takes between six plans in a row, each of which takes a tenth of a second and has seen so many wishes."""

    def of(wishes: int) -> list[float]:
        found: list[float] = []
        clock = [1000.0]
        left = list(range(6))

        def tick_run(**_: Any) -> TickResult:
            left.pop()
            clock[0] += 0.1
            return TickResult(led=True, planned=True, wishes=wishes, again=bool(left))

        def rest(seconds: float) -> None:
            found.append(round(seconds, 6))
            clock[0] += seconds

        monkeypatch.setattr(tasks, "_pace", Pace())
        monkeypatch.setattr(tasks, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=rest))
        monkeypatch.setattr(tasks, "tick_run", tick_run)
        monkeypatch.setattr(tasks, "_count", lambda *_: None)
        monkeypatch.setattr("scheduler.backends.registry.backends_all", dict)
        assert tasks.tick() == 6
        return found

    return of


def test_the_loop_rests_between_plans_of_a_flood(rests: Callable[[int], list[float]]) -> None:
    assert rests(MANY) == [pytest.approx(APART_SECONDS - 0.1)] * 5


def test_the_loop_does_not_rest_where_few_ask(rests: Callable[[int], list[float]]) -> None:
    assert rests(1) == []


@pytest.mark.django_db
def test_a_tick_says_how_often_it_was_asked_for() -> None:
    builders.node(gpus=8)
    loop, team = Loop(), leaf("team")
    loop.tick()
    for _ in range(3):
        submit(team, gpus=1)
    assert loop.tick().wishes == 3
    assert loop.tick().wishes == 0
