"""Traces of ticks, as a collector gets them over HTTP."""

import gzip
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from gpufleet.core import spans
from scheduler.backends.simulated import MemoryStore, SimulatedBackend
from scheduler.models import Cluster, PlanRecord
from scheduler.services.loop.tick import tick_run
from tests import builders
from tests.scheduler.loop.worlds import Loop, submit

pytestmark = pytest.mark.django_db


class Collector:
    """What was sent, as requests and as spans."""

    def __init__(self) -> None:
        outer, self.requests = self, list[ExportTraceServiceRequest]()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                outer.requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Not to the terminal."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"

    @property
    def spans(self) -> list[Span]:
        spans.flush()
        return [one for request in self.requests for source in request.resource_spans for scope in source.scope_spans for one in scope.spans]


@pytest.fixture
def collector(settings) -> Iterator[Collector]:
    found = Collector()
    thread = threading.Thread(target=found.server.serve_forever)
    thread.start()
    settings.TRACES_URL = found.url
    try:
        yield found
    finally:
        found.server.shutdown()
        thread.join()
        found.server.server_close()


def attributes(one: Span) -> dict[str, object]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value") or "") for each in one.attributes}


def test_a_tick_that_plans_is_one_trace_with_its_parts_and_each_back_end_in_them(collector) -> None:
    builders.node(gpus=8)
    submit(gpus=4)
    (cluster,) = Cluster.objects.values_list("pk", flat=True)
    loop = Loop()
    result = tick_run(holder="one", now=loop.now, backends={cluster: SimulatedBackend(MemoryStore())}, memory=loop.memory)

    found = collector.spans
    (tick,) = (one for one in found if not one.parent_span_id)
    assert {one.trace_id for one in found} == {tick.trace_id}
    assert attributes(tick) == {"holder": "one", "decided": 1, "dropped": 0, "wishes": result.wishes, "plan": PlanRecord.objects.get().pk}
    below: dict[bytes, list[Span]] = {}
    for one in found:
        below.setdefault(one.parent_span_id, []).append(one)
        assert tick.start_time_unix_nano <= one.start_time_unix_nano <= one.end_time_unix_nano <= tick.end_time_unix_nano
    parts = {one.name: one for one in below[tick.span_id]}
    assert [*sorted(parts, key=lambda name: parts[name].start_time_unix_nano)] == [*result.phases]
    assert [(one.name, attributes(one)) for one in below[parts["dispatch"].span_id]] == [("orders", {"cluster": cluster, "orders": 1})]
    (observed,) = below[parts["observe"].span_id]
    assert observed.name in ("observe", "news")
    assert attributes(observed) == {"cluster": cluster}
    resource = {each.key: each.value.string_value for each in collector.requests[0].resource_spans[0].resource.attributes}
    assert resource["service.name"] == "gpufleet"


def test_a_look_that_finds_nothing_to_do_is_none(collector) -> None:
    builders.node(gpus=8)
    loop = Loop()
    assert not loop.tick().planned
    assert collector.spans == []
    assert loop.tick(force=True).planned
    assert collector.spans != []


def test_one_that_fails_says_why(collector, monkeypatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no such rack")

    builders.node(gpus=8)
    submit(gpus=4)
    monkeypatch.setattr("scheduler.services.loop.tick.make_plan", broken)
    assert Loop().tick().fault

    failed = {one.name: one.status.message for one in collector.spans if one.status.code == Status.STATUS_CODE_ERROR}
    assert failed == {"plan": "RuntimeError: no such rack", "tick": "RuntimeError('no such rack')"}


def test_a_collector_that_is_gone_is_said_once_and_ticks_go_on(settings, caplog) -> None:
    gone = Collector()
    gone.server.server_close()
    settings.TRACES_URL = gone.url.replace("://", "://fleet:secret@")
    builders.node(gpus=8)
    submit(gpus=4)
    loop = Loop()
    for decided in (1, 0):
        assert loop.tick(force=True).decided == decided
        spans.flush()
    (said,) = (one.getMessage() for one in caplog.records if one.name == "gpufleet.core.spans_sent")
    assert said.startswith(f"the collector of traces at {gone.url} takes no spans: ")


def test_nothing_is_noted_without_a_collector(settings) -> None:
    settings.TRACES_URL = ""
    with spans.traced("tick") as outermost, spans.span("part"):
        pass
    assert outermost.within == []


def test_one_that_ends_with_a_fault_is_sent_too(collector, monkeypatch) -> None:
    def broken(**_: object) -> None:
        raise RuntimeError("no such row")

    builders.node(gpus=8)
    monkeypatch.setattr("scheduler.services.loop.tick.timers_run", broken)
    with pytest.raises(RuntimeError):
        Loop().tick()

    failed = {one.name: one.status.message for one in collector.spans if one.status.code == Status.STATUS_CODE_ERROR}
    assert failed == dict.fromkeys(("timers", "tick"), "RuntimeError: no such row")


def test_what_keeps_spans_from_being_sent_keeps_no_tick_from_its_end(collector, monkeypatch, caplog) -> None:
    """As settings of the packages may, `OTEL_BSP_MAX_EXPORT_BATCH_SIZE` for one."""

    def broken(*_: object) -> None:
        raise ValueError("no such sampler")

    monkeypatch.setattr(spans, "_provider", broken)
    builders.node(gpus=8)
    submit(gpus=4)
    loop = Loop()
    for decided in (1, 0):
        assert loop.tick(force=True).decided == decided
    (said,) = (one.getMessage() for one in caplog.records if one.name == "gpufleet.core.spans")
    assert said == "a trace is not sent: ValueError: no such sampler"


def test_the_last_spans_are_sent_as_the_process_ends_which_begins_no_thread(collector, monkeypatch) -> None:
    """From Python 3.12 on it cannot."""
    at_exit: list[Callable[[], object]] = []
    monkeypatch.setattr(spans.atexit, "register", lambda call, *facts: at_exit.append(partial(call, *facts)))
    with spans.traced("last"):
        pass
    start = threading.Thread.start

    def refused(one: threading.Thread) -> None:
        assert threading.current_thread() is not threading.main_thread(), "can't start new thread at interpreter shutdown"
        start(one)

    monkeypatch.setattr(threading.Thread, "start", refused)
    for call in at_exit:
        call()
    assert [one.name for request in collector.requests for one in request.resource_spans[0].scope_spans[0].spans] == ["last"]
