"""What beat and the services call: one thread of a process at a time, awake at once when it is called, and never for ever."""

import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from gpufleet.core.times import now
from scheduler import tasks
from scheduler.services.tick import TickResult


@pytest.fixture
def ticked(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When ticks were made; each says that the next thing is due in 0.6 s."""
    moments: list[float] = []

    def tick_run(**_: Any) -> TickResult:
        moments.append(time.monotonic())
        return TickResult(led=True, next_at=now() + timedelta(seconds=0.6) if len(moments) == 1 else None)

    monkeypatch.setattr(tasks, "tick_run", tick_run)
    monkeypatch.setattr(tasks, "_count", lambda *_: None)
    monkeypatch.setattr("scheduler.backends.registry.backends_all", dict)
    return moments


def test_who_waits_for_the_next_due_thing_is_woken_by_a_call(ticked: list[float]) -> None:
    waiting = threading.Thread(target=tasks.tick)
    waiting.start()
    while not ticked:
        time.sleep(0.001)
    assert tasks.tick() == 0  # the other thread is at it
    waiting.join(5)

    assert len(ticked) == 2
    assert ticked[1] - ticked[0] < 0.5


def test_without_a_call_it_looks_again_when_something_is_due(ticked: list[float]) -> None:
    assert tasks.tick() == 2
    assert ticked[1] - ticked[0] >= 0.5


def test_under_load_a_call_ends_and_asks_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(tasks, "LONGEST_CALL", timedelta(seconds=0.2))
    monkeypatch.setattr(tasks, "tick_run", lambda **_: TickResult(led=True, again=True))
    monkeypatch.setattr(tasks, "_count", lambda *_: None)
    monkeypatch.setattr(tasks, "tick_call", lambda: calls.append(1))
    monkeypatch.setattr("scheduler.backends.registry.backends_all", dict)
    assert tasks.tick() > 1
    assert calls == [1]
