"""Asking this machine's driver, which may hang for good: in a thread that nobody waits for longer than some seconds, one at a time for each purpose.

What is asked in it reads no table: the thread would keep a connection.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from scheduler.loop.measures import SOURCE_FAULTS
from scheduler.services.loop.measuring import tally

logger = logging.getLogger(__name__)

MACHINE, MACHINE_SECONDS = "nvml", 5

T = TypeVar("T")

_guard = threading.Lock()
_last: dict[str, Future[Any]] = {}  # by purpose


def machine_begun(purpose: str, ask: Callable[[], T], nothing: T) -> Future[T]:
    """Its answer, to be waited for with `machine_told`. As long as the last one of the purpose hangs no other is begun: then it is `nothing`."""
    told: Future[T] = Future()
    with _guard:
        last = _last.get(purpose)
        if last is not None and not last.done():
            told.set_result(nothing)
            return told
        _last[purpose] = told

    def run() -> None:
        try:
            told.set_result(ask())
        except Exception as fault:
            told.set_exception(fault)

    threading.Thread(target=run, name=purpose, daemon=True).start()
    return told


def machine_told(begun: Future[T], nothing: T) -> T:
    """The answer; `nothing` where the driver takes too long or fails, in whatever way."""
    try:
        return begun.result(timeout=MACHINE_SECONDS)
    except Exception as fault:
        tally.count(SOURCE_FAULTS, MACHINE)
        if isinstance(fault, TimeoutError):
            logger.warning("This machine's driver did not answer within %s s.", MACHINE_SECONDS)
        else:
            logger.exception("This machine's GPUs could not be read.")
        return nothing
