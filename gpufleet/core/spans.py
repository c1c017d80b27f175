"""Traces of what a process does (OPS-5), sent by OTLP over HTTP to the collector of `GPUFLEET_TRACES_URL`; without one nothing is measured.

Spans are only noted while something runs, and whoever began the outermost one says at its end whether it is worth telling: most looks of the
scheduler find nothing to do. Sending happens in a thread, in batches; a collector that does not answer delays nothing, and loses what is too old.
"""

import atexit
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from django.conf import settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

Value = str | int | float | bool
TIMEOUT = 3.0  # seconds that the collector has for an answer
LAST = 2.0  # seconds that the end of a process waits for it
SAID_EVERY = 60.0  # seconds, that none can be sent
MOST_UNSENT = 512  # spans, of some 50 ticks; all of them are one batch
log = logging.getLogger(__name__)
_said = float("-inf")
_inside: "ContextVar[Span | None]" = ContextVar("span", default=None)


@dataclass(slots=True)
class Span:
    """Something that took time, and what was done inside it. Instants are nanoseconds since the epoch."""

    name: str
    attributes: dict[str, Value]
    began: int
    ended: int = 0
    fault: str = ""
    within: "list[Span]" = field(default_factory=list)
    told: bool = True  # of an outermost one: whether it is sent

    @property
    def seconds(self) -> float:
        return (self.ended - self.began) / 1e9


@contextmanager
def traced(name: str, **attributes: Value) -> Iterator[Span]:
    """The outermost span. It is sent with all within it once it has ended, unless `told` is set to False meanwhile."""
    if not settings.TRACES_URL:
        yield Span(name, attributes, 0)
        return
    mine = None
    try:
        with _noted(name, attributes) as mine:
            yield mine
    finally:
        if mine is not None and mine.told:
            _send_safely(mine)


@contextmanager
def span(name: str, **attributes: Value) -> Iterator[None]:
    """A part of what is traced; nothing where nothing is."""
    outer = _inside.get()
    if outer is None:
        yield
        return
    with _noted(name, attributes) as mine:
        outer.within.append(mine)
        yield


@contextmanager
def _noted(name: str, attributes: Mapping[str, Value]) -> Iterator[Span]:
    mine = Span(name, dict(attributes), time.time_ns())
    token = _inside.set(mine)
    try:
        yield mine
    except BaseException as fault:
        mine.fault = f"{type(fault).__name__}: {fault}"
        raise
    finally:
        _inside.reset(token)
        mine.ended = time.time_ns()


def _send_safely(outermost: Span) -> None:
    """What keeps it from being sent, such as settings of the packages, is said now and then, and ends nothing that was traced."""
    global _said
    try:
        _send(outermost)
    except Exception as fault:
        if time.monotonic() - _said >= SAID_EVERY:
            _said = time.monotonic()
            log.warning("a trace is not sent: %s: %s", type(fault).__name__, fault)


def _send(outermost: Span) -> None:
    from opentelemetry.context import Context
    from opentelemetry.trace import Status, StatusCode, set_span_in_context

    tracer = _provider(os.getpid(), settings.TRACES_URL).get_tracer("gpufleet")
    line = [(outermost, Context())]
    while line:
        mine, context = line.pop()
        told = tracer.start_span(mine.name, context=context, start_time=mine.began, attributes=mine.attributes)
        if mine.fault:
            told.set_status(Status(StatusCode.ERROR, mine.fault))
        told.end(end_time=mine.ended)
        line += [(each, set_span_in_context(told, Context())) for each in mine.within]


@cache
def _provider(process: int, url: str) -> "TracerProvider":
    """What sends spans: of each process its own, as its thread does not live on in one that is forked."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from gpufleet.core.spans_sent import Exporter

    source = Resource.create({"service.name": "gpufleet", "service.instance.id": f"{socket.gethostname()}:{process}"})
    provider = TracerProvider(resource=source, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(Exporter(endpoint=url, timeout=TIMEOUT), max_queue_size=MOST_UNSENT))
    ends = threading.Event()
    last = threading.Thread(target=_shut_down, args=(provider, ends), daemon=True)
    last.start()  # from Python 3.12 on none can be started any more as the process ends
    atexit.register(_send_last, last, ends)
    return provider


def _shut_down(provider: "TracerProvider", ends: threading.Event) -> None:
    ends.wait()
    provider.shutdown()


def _send_last(sending: threading.Thread, ends: threading.Event) -> None:
    ends.set()
    sending.join(LAST)


def flush() -> None:
    """Send what has not been sent yet."""
    if settings.TRACES_URL:
        _provider(os.getpid(), settings.TRACES_URL).force_flush()
