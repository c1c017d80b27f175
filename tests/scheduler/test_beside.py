"""Futures that are played in a process of their own come out as they do here."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.core.stopping import stopping
from scheduler.services.forecasts import beside
from scheduler.services.forecasts.beside import GivenUp, waits_foreseen_beside
from scheduler.simulation.futures import Stage, past_of, waits_foreseen
from tests.scheduler.simulation.test_futures import fleet, job
from tests.servers import wait_until


@settings(max_examples=5, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([1, 4, 8]), st.integers(1, 8)), min_size=2, max_size=12), st.integers(0, 1000))
def test_they_come_out_the_same(drawn: list[tuple[int, int]], seed: int) -> None:
    scenario = fleet([job(f"j{number}", gpus, hours, at=number) for number, (gpus, hours) in enumerate(drawn)])
    past = past_of([("a", 100, 50), ("a", 100, 130), ("b", 100, 300)], scenario.jobs)
    names = {each.name for each in scenario.jobs}

    assert waits_foreseen_beside(scenario, past, names, seed=seed) == waits_foreseen(Stage(scenario, past), names, seed=seed)


@pytest.fixture
def played() -> tuple[list[BaseException | dict], Thread]:
    """Futures of a fleet that takes its time, played in a thread."""
    scenario = fleet([job(f"j{number}", 4, 1 + number % 7, at=number) for number in range(4_000)])
    past = past_of([("a", 100, 50), ("a", 100, 130), ("b", 100, 300)], scenario.jobs)
    ended: list[BaseException | dict] = []

    def play() -> None:
        try:
            ended.append(waits_foreseen_beside(scenario, past, {each.name for each in scenario.jobs}, seed=1))
        except BaseException as error:
            ended.append(error)

    thread = Thread(target=play, daemon=True)
    thread.start()
    return ended, thread


def children() -> set[int]:
    found = set()
    for task in Path(f"/proc/{os.getpid()}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread or a child that ended between two looks
            found |= {int(pid) for pid in (task / "children").read_text().split() if b"forecasts.beside" in Path(f"/proc/{pid}/cmdline").read_bytes()}
    return found


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_child_that_is_ended_keeps_nobody_waiting(played, how: str) -> None:
    ended, thread = played
    (child,) = wait_until(children, what="the child")
    os.kill(child, signal.SIGSTOP)  # it can't be done before it is ended

    if how == "stop":
        stopping.send(None)
    else:
        os.kill(child, signal.SIGKILL)
    thread.join(10)

    assert [type(one) for one in ended] == [GivenUp]
    assert not children()


def test_what_takes_too_long_is_given_up_and_told_by_estimates(monkeypatch, caplog) -> None:
    """An error here would leave every waiting job without a start, again and again, for as long as the machine is busy."""
    monkeypatch.setattr(beside, "LONGEST", 0.2)
    scenario = fleet([job(f"j{number}", 4, 1 + number % 7, at=number) for number in range(4_000)])

    assert waits_foreseen_beside(scenario, past_of([("a", 100, 50)], scenario.jobs), {"j1"}, seed=1) == {}

    assert not children()
    assert "not played within" in caplog.text
