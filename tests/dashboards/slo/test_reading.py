"""Figures of services against a real Prometheus: one number a query, every fault in words, and no query that holds up another service."""

import threading
import urllib.parse
from collections.abc import Iterator
from email.message import Message
from time import monotonic

import pytest

from dashboards.prometheus.asking import QueryFault
from dashboards.prometheus.models import PrometheusServer
from dashboards.slo import reading
from dashboards.slo.models import ServiceLevel
from dashboards.slo.reading import NO_SERIES, Read, levels_read, number_of
from tests.dashboards.prometheus_worlds import LOCAL
from tests.prometheus import Answering, Exporter, Gate, Prometheus, scraped


@pytest.fixture(scope="module")
def real() -> Iterator[Prometheus]:
    with scraped() as (exporter, server):
        fill(exporter)
        server.knows("chat_latency_seconds", 2)
        yield server


def fill(exporter: Exporter) -> None:
    exporter.samples = [
        ("chat_latency_seconds", {"pod": "a"}, "0.182"),
        ("chat_latency_seconds", {"pod": "b"}, "0.3"),
        ("chat_requests", {}, "41.5"),
        ("chat_broken", {}, "NaN"),
        ("chat_below", {}, "-1"),
    ]


def server_at(url: str, **fields: object) -> PrometheusServer:
    return PrometheusServer(public_id="ps-1", name="main", url=url, for_services=True, **fields)


def level(latency: str, rate: str = "", wanted: str = "") -> ServiceLevel:
    return ServiceLevel(title="p99 latency", latency=latency, rate=rate, wanted=wanted, objective_ms=250)


def read(real: Prometheus, *levels: ServiceLevel) -> list[Read]:
    return levels_read(levels, [server_at(real.url)], LOCAL)


def test_each_query_gives_one_number(real: Prometheus) -> None:
    (found,) = read(real, level('chat_latency_seconds{pod="a"}', rate="sum(chat_requests)", wanted="scalar(ceil(chat_requests)) / 14"))

    assert found.values == {"latency": 0.182, "rate": 41.5, "wanted": 3}
    assert (found.faults, found.asked) == ({}, True)


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("chat_latency", NO_SERIES),
        ("chat_latency_seconds", "several series"),
        ("chat_broken", "NaN"),
        ("chat_below", "-1 cannot be true of it."),
        ("1 / 0", "+Inf cannot be true of it."),
        ("chat_requests[5m]", "no single number"),
        ("sum(chat_requests", 'main: it refused the query: invalid parameter "query": 1:'),
        ('"words"', "not a number"),
    ],
)
def test_what_is_no_number_is_told_in_words(real: Prometheus, query: str, told: str) -> None:
    wrong, right = read(real, level(query), level("max(chat_latency_seconds)"))

    assert told in wrong.faults["latency"]
    assert wrong.values == {}
    assert right.values == {"latency": 0.3}, "a wrong query is the fault of its service alone"


def test_of_a_server_with_credentials_a_wrong_query_is_still_one_services_fault(real: Prometheus) -> None:
    gate = Gate(real.url, {"THANOS-TENANT": "serving"})
    try:
        server = server_at(gate.url, tenant="serving")
        wrong, right = levels_read([level("sum("), level("max(chat_latency_seconds)")], [server], LOCAL)
    finally:
        gate.stop()

    assert list(wrong.faults) == ["latency"]
    assert right.values == {"latency": 0.3}


def test_a_refused_sign_in_is_told_of_every_service(real: Prometheus) -> None:
    gate = Gate(real.url, {"Authorization": "Bearer right"})
    try:
        reads = levels_read([level("chat_requests")] * 5, [server_at(gate.url)], LOCAL)
    finally:
        gate.stop()

    assert [one.faults["latency"] for one in reads] == ["main: it answered 401: a password or token, or a tenant, is required."] * 5
    assert len(gate.asked) == 2, "who is not let in does not ask again and again"


def test_the_first_server_that_has_a_number_speaks(real: Prometheus) -> None:
    with scraped() as (exporter, other):
        exporter.samples = [("search_latency_seconds", {}, "0.05"), ("chat_requests", {}, "7")]
        other.knows("search_latency_seconds", 1)
        servers = [server_at(real.url), server_at(other.url)]
        chat, search = levels_read([level("max(chat_latency_seconds)", rate="chat_requests"), level("search_latency_seconds")], servers, LOCAL)

    assert chat.values == {"latency": 0.3, "rate": 41.5}
    assert (search.values, search.faults) == ({"latency": 0.05}, {})


class Slow(Answering):
    """A Prometheus of which one query never ends."""

    def __init__(self) -> None:
        self.over = threading.Event()
        super().__init__()

    def answer(self, path: str, headers: Message) -> tuple[int, bytes]:
        asked = urllib.parse.parse_qs(urllib.parse.urlsplit(path).query)
        assert (asked["timeout"], asked["limit"]) == (["2s"], ["2"]), "Prometheus is told to give up itself"
        if asked["query"] == ["forever"]:
            self.over.wait(30)
        if asked["query"] == ["deadly"]:
            raise ConnectionAbortedError
        if asked["query"] == ["endless"]:
            return 200, b'{"status":"success","data":{"result":[' + b" " * (300 << 10) + b"]}}"
        return 200, b'{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"0.1"]}]}}'

    def stop(self) -> None:
        self.over.set()
        super().stop()


def test_no_query_keeps_another_one_from_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BOUNDS", reading.Bounds(seconds=20, silence_seconds=0.2, most_bytes=256 << 10))
    server = Slow()
    try:
        levels = [level(query) for query in ("forever", "endless", "deadly", "quick")]
        slow, large, deadly, quick = levels_read(levels, [server_at(f"http://127.0.0.1:{server.port}")], LOCAL)
    finally:
        server.stop()

    assert slow.faults == {"latency": "main: it did not answer within 0.2 s."}
    assert large.faults == {"latency": "main: its answer is larger than 256 KiB."}
    assert deadly.faults == {"latency": "main: no connection: nothing answers at this address."}
    assert quick.values == {"latency": 0.1}


def test_a_round_ends_in_its_time_and_says_whom_it_did_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BOUNDS", reading.Bounds(seconds=0.3, silence_seconds=0.2, most_bytes=256 << 10))
    server, begun = Slow(), monotonic()
    try:
        reads = levels_read([level("forever")] * 40, [server_at(f"http://127.0.0.1:{server.port}")], LOCAL)
    finally:
        server.stop()

    assert monotonic() - begun < 5
    assert reads[0].asked
    assert not reads[-1].asked
    assert reads[-1].faults == {}


def test_a_query_that_the_end_of_the_round_cut_off_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BOUNDS", reading.Bounds(seconds=1, silence_seconds=3, most_bytes=256 << 10))
    server = Slow()
    try:
        first, cut = levels_read([level("quick"), level("quick", rate="forever")], [server_at(f"http://127.0.0.1:{server.port}")], LOCAL)
        (alone,) = levels_read([level("quick", rate="forever")], [server_at(f"http://127.0.0.1:{server.port}")], LOCAL)
    finally:
        server.stop()

    assert (first.asked, first.values) == (True, {"latency": 0.1})
    assert (cut.asked, cut.faults) == (False, {}), "it comes first in the next round"
    assert (alone.asked, alone.faults) == (True, {"rate": "main: it did not answer within 1 s."}), "the first of a round has had its time"


def test_what_one_server_had_no_time_for_is_not_said_to_have_no_series(real: Prometheus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BOUNDS", reading.Bounds(seconds=1, silence_seconds=3, most_bytes=256 << 10))
    slow = Slow()
    try:
        servers = [server_at(f"http://127.0.0.1:{slow.port}"), server_at(real.url)]
        levels = [level("forever"), level("quick"), level("max(chat_latency_seconds)")]
        _, only_there, here = levels_read(levels, servers, LOCAL)
    finally:
        slow.stop()

    assert (only_there.asked, only_there.faults) == (False, {}), "the server that may have it was not asked"
    assert (here.asked, here.values) == (True, {"latency": 0.3})


def test_nobody_is_asked_where_no_server_is_allowed() -> None:
    assert levels_read([level("x")], [], LOCAL) == [Read()]


@pytest.mark.parametrize("result", [[{"value": "x"}], "x", None, {"value": [1, "2"]}, [1, 2, 3]])
def test_what_is_no_prometheus_is_no_number(result: object) -> None:
    with pytest.raises(Exception, match="not one of a Prometheus") as told:
        number_of(result, "latency")
    assert not isinstance(told.value, QueryFault)
