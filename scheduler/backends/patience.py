"""Calls that may hang, as of a folder on a network or of a server that is stopped: nobody waits for them longer than they want to."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class Late(Exception):
    """The call, or one before it, has not come back in time. It may yet do what it was to do."""


class Patient:
    """Makes calls one after the other in a thread of its own, which a call that hangs holds up and nobody else."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._late: Future[Any] | None = None

    @property
    def is_late(self) -> bool:
        """Whether a call that nobody waits for any more has not come back yet. Until then no other is made."""
        return self._late is not None and not self._late.done()

    def late_answer(self) -> Future[Any] | None:
        """What came of the last call that was late, once it has come back. Told once."""
        if self._late is None or not self._late.done():
            return None
        answer, self._late = self._late, None
        return answer

    def call(self, function: Callable[[], T], *, wait: float) -> T:
        if self.is_late:
            raise Late
        answer: Future[T] = Future()
        self._calls.put((function, answer))
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        try:
            return answer.result(wait)
        except TimeoutError:
            if answer.done():
                raise  # of the call itself: a file system may say so
            self._late = answer
            raise Late from None

    def _work(self) -> None:
        while True:
            function, answer = self._calls.get()
            try:
                answer.set_result(function())
            except BaseException as fault:
                answer.set_exception(fault)
            del function, answer
