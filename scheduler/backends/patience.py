"""Calls that may hang, as of a folder on a network or of a server that is stopped: nobody waits for them longer than they want to."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from time import monotonic
from typing import Any, TypeVar

T = TypeVar("T")
# Seconds after a call was late until another is tried beside it: what was mounted anew answers, and the call of before never comes back. It is twice
# as long each time, as a thread that hangs stays.
AGAIN_AFTER = 60.0
MOST_THREADS = 6
Calls = SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]


class Late(Exception):
    """The call, or one before it, has not come back in time. It may yet do what it was to do."""


class Patient:
    """Makes calls one after the other in a thread of its own, which a call that hangs holds up and nobody else."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: Calls = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._late: Future[Any] | None = None
        self._again = (0.0, AGAIN_AFTER)  # when another call is tried, and how long after that
        self._left: list[threading.Thread] = []  # with calls that hang

    @property
    def is_late(self) -> bool:
        """Whether a call that nobody waits for any more has not come back yet. Until then another is made now and then alone."""
        return self._late is not None and not self._late.done()

    def late_answer(self) -> Future[Any] | None:
        """What came of the last call that was late, once it has come back. Told once."""
        if self._late is None or not self._late.done():
            return None
        answer, self._late = self._late, None
        return answer

    def call(self, function: Callable[[], T], *, wait: float) -> T:
        answer: Future[T] = Future()
        if self.is_late:
            self._leave_thread_or_raise()
            self._late = answer  # nobody else waits beside this one
        else:
            self._again = (0.0, AGAIN_AFTER)
        self._calls.put((function, answer))
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=_work, args=(self._calls,), name=self._name, daemon=True)
            self._thread.start()
        try:
            return answer.result(wait)
        except TimeoutError:
            if answer.done():
                return answer.result()  # at the last moment; or the fault is of the call itself: a file system may say so
            self._late = answer
            if not self._again[0]:
                self._again = (monotonic() + AGAIN_AFTER, 2 * AGAIN_AFTER)
            raise Late from None
        finally:
            if self._late is answer and answer.done():
                self._late = None

    def _leave_thread_or_raise(self) -> None:
        due, pause = self._again
        self._left = [thread for thread in self._left if thread.is_alive()]
        if monotonic() < due or len(self._left) + 1 >= MOST_THREADS:
            raise Late
        self._again = (monotonic() + pause, 2 * pause)
        if self._thread is not None:
            self._left.append(self._thread)
        self._calls.put(None)
        self._calls, self._thread = SimpleQueue(), None


def _work(calls: Calls) -> None:
    """Until it is left, which it sees when its call comes back after all."""
    while (asked := calls.get()) is not None:
        function, answer = asked
        try:
            answer.set_result(function())
        except BaseException as fault:
            answer.set_exception(fault)
        del function, answer, asked
