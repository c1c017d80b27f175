"""What beat and the services call: one thread of a process at a time, awake at once when it is called, and never for ever."""

import itertools
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from gpufleet.core.times import now
from scheduler import tasks
from scheduler.backends.base import BackendError
from scheduler.services.loop.tick import TickResult
from tests.builders import NOON
from tests.servers import wait_until


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], list[float]]:
    """When ticks were made; the first says that the next thing is due in so many seconds."""

    def due_in(seconds: float) -> list[float]:
        moments: list[float] = []

        def tick_run(**_: Any) -> TickResult:
            moments.append(time.monotonic())
            return TickResult(led=True, next_at=now() + timedelta(seconds=seconds) if len(moments) == 1 else None)

        monkeypatch.setattr(tasks, "A_CALL", timedelta(hours=1))
        monkeypatch.setattr(tasks, "LONGEST_CALL", timedelta(hours=2))
        monkeypatch.setattr(tasks, "tick_run", tick_run)
        monkeypatch.setattr(tasks, "_count", lambda *_: None)
        monkeypatch.setattr("scheduler.backends.registry.backends_all", dict)
        return moments

    return due_in


def test_who_waits_for_the_next_due_thing_is_woken_by_a_call(ticking: Callable[[float], list[float]], monkeypatch: pytest.MonkeyPatch) -> None:
    ticked = ticking(1800)
    waiting = threading.Thread(target=tasks.tick, daemon=True)
    waiting.start()
    wait_until(lambda: ticked, what="the first tick")

    assert tasks.tick() == 0  # the other thread is at it
    waiting.join(60)

    assert len(ticked) == 2


def test_without_a_call_it_looks_again_when_something_is_due(ticking: Callable[[float], list[float]]) -> None:
    ticked = ticking(0.6)
    assert tasks.tick() == 2
    assert ticked[1] - ticked[0] >= 0.5


def test_under_load_a_call_ends_and_asks_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    moments = itertools.count()
    monkeypatch.setattr(tasks, "now", lambda: NOON + next(moments) * timedelta(seconds=1))  # each look at the clock is a second later
    monkeypatch.setattr(tasks, "tick_run", lambda **_: TickResult(led=True, again=True))
    monkeypatch.setattr(tasks, "_count", lambda *_: None)
    monkeypatch.setattr(tasks, "tick_call", lambda: calls.append(1))
    monkeypatch.setattr("scheduler.backends.registry.backends_all", dict)
    assert tasks.tick() > 1
    assert calls == [1]


class Tidied:
    """A back-end that is asked to tidy, and to delete no checkpoint."""

    def __init__(self, answer: int | Exception) -> None:
        self.answer = answer

    def tidy(self) -> int:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_a_back_end_that_cannot_be_tidied_keeps_no_checkpoint_from_being_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    deleted: list[set[int]] = []

    def old_checkpoints_delete(*, backends: dict[int, Tidied], **_: object) -> int:
        deleted.append(set(backends))
        return 4

    backends = {1: Tidied(BackendError("It does not answer.")), 2: Tidied(3)}
    monkeypatch.setattr("scheduler.backends.registry.backends_all", lambda: backends)
    monkeypatch.setattr(tasks, "old_checkpoints_delete", old_checkpoints_delete)

    assert tasks.backends_tidy() == 7
    assert deleted == [{1, 2}]
