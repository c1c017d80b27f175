"""The broker of the one-process console: Kombu's in memory, with a bell.

Kombu's own looks for messages many times a second. That was a tenth of what an idle console computed, and each call waited for the next look.
"""

import threading
from contextlib import suppress
from queue import Empty
from time import monotonic
from typing import Any

from kombu.transport import memory

# One for all queues, as a process has one worker (docs/adr/0001).
_bell = threading.Event()
_times_woken = 0


def wake() -> None:
    """Whoever waits for a message waits no longer: it finds that none came in time, and looks whether it is to go on."""
    global _times_woken
    _times_woken += 1
    _bell.set()


class Channel(memory.Channel):
    """Rings when there may be something to deliver: a message has come, or one that was delivered no longer counts against the worker's limit."""

    def _put(self, queue: str, message: Any, **options: Any) -> None:
        super()._put(queue, message, **options)
        _bell.set()

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        super().basic_ack(delivery_tag, multiple)
        _bell.set()

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        super().basic_reject(delivery_tag, requeue)
        _bell.set()


class Transport(memory.Transport):
    Channel = Channel

    def drain_events(self, connection: Any, timeout: float | None = None, **options: Any) -> None:
        """Deliver one message; a `TimeoutError` when none comes in time."""
        assert self.cycle is not None
        ends, woken = None if timeout is None else monotonic() + timeout, _times_woken
        while True:
            _bell.clear()
            with suppress(Empty):
                self.cycle.get(self._deliver)
                return
            if not _bell.wait(None if ends is None else ends - monotonic()) or woken != _times_woken:
                raise TimeoutError
