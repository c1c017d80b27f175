"""Calls that hang: nobody waits for them for long, and what answers again is asked again."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from scheduler.backends import patience
from scheduler.backends.patience import AGAIN_AFTER, MOST_THREADS, Late, Patient
from tests.servers import wait_until


class Folder:
    """Calls made while it hangs never come back, as of a folder that was unmounted meanwhile; later ones do, once it answers."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.hangs = True
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.hangs:
            self.over.wait(60)
        return "there"


@pytest.fixture
def folder() -> Iterator[Folder]:
    folder = Folder()
    yield folder
    folder.over.set()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [1000.0]
    monkeypatch.setattr(patience, "monotonic", lambda: clock[0])
    return clock


def late(patient: Patient, folder: Folder) -> None:
    with pytest.raises(Late):
        patient.call(folder, wait=0.05)


def test_what_was_mounted_anew_answers_though_the_call_of_before_never_comes_back(folder, clock):
    patient = Patient("folder")
    late(patient, folder)
    folder.hangs = False
    late(patient, folder)
    assert (patient.is_late, folder.calls) == (True, 1), "no other call is made at once"

    clock[0] += AGAIN_AFTER
    assert patient.call(folder, wait=10) == "there"
    assert not patient.is_late
    assert patient.call(folder, wait=10) == "there"


def test_few_threads_hang_however_long_it_does(folder, clock):
    patient = Patient("hanging-folder")
    for _ in range(10 * MOST_THREADS):
        late(patient, folder)
        clock[0] += 3600

    assert folder.calls == MOST_THREADS
    assert len([one for one in threading.enumerate() if one.name == "hanging-folder"]) == MOST_THREADS
    folder.over.set()
    wait_until(lambda: not patient.is_late, what="the last call to come back")
    wait_until(lambda: len([one for one in threading.enumerate() if one.name == "hanging-folder"]) <= 1, what="the others to end")
    folder.hangs = False
    assert patient.call(folder, wait=10) == "there"


def test_an_answer_that_comes_at_the_last_moment_is_no_fault(monkeypatch):
    """Between the end of the wait and the look at it."""
    result = Future.result

    def at_the_last_moment(answer: Future[Any], timeout: float | None = None) -> Any:
        told = result(answer)
        if timeout is not None:
            raise TimeoutError
        return told

    monkeypatch.setattr(Future, "result", at_the_last_moment)

    assert Patient("folder").call(lambda: 5, wait=1) == 5


def test_a_timeout_of_the_call_itself_is_told_as_its_own():
    def call() -> None:
        raise TimeoutError("The server does not answer.")

    with pytest.raises(TimeoutError, match="The server does not answer"):
        Patient("folder").call(call, wait=10)
