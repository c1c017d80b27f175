"""Servers that fail, lie or take their time, and a driver that hangs: what is known grows old, and nothing is done for it."""

import contextlib
import http.server
import json
import re
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import urllib3
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dashboards.alerts import defaults as alert_defaults
from dashboards.alerts.models import Alert, AlertRule
from dashboards.alerts.round import alerts_round
from dashboards.gap.causes import Cause
from dashboards.gap.snapshot import gap_now
from dashboards.health import defaults as health_defaults
from dashboards.health.models import HealthFinding, HealthFrame, HealthRule
from dashboards.health.round import health_round
from dashboards.health.stragglers import stragglers_round
from dashboards.idle.ending import idle_ends
from dashboards.idle.episodes import idle_round
from dashboards.idle.models import IdleEpisode, IdlePolicy
from dashboards.prometheus import asking
from dashboards.prometheus.collect import MACHINE_THREAD, answer_of, gpus_known, prometheus_collect
from dashboards.prometheus.models import PrometheusServer
from dashboards.telemetry import machine as machine_asked
from dashboards.telemetry.local import local_write
from dashboards.telemetry.nvml import GPM, Reading
from dashboards.telemetry.rollups import telemetry_rollup
from gpufleet.core.times import now
from scheduler.models import Health, Job, JobState, Node, Order
from scheduler.notify.outgoing import MOST_ADDRESSES, Rules
from scheduler.services.loop.measuring import tally
from tests import builders
from tests.dashboards.prometheus_worlds import LOCAL, fleet, frame, said
from tests.dashboards.signals import watched
from tests.dashboards.worlds import gpus_of
from tests.personas import Personas
from tests.prometheus import scraped


@pytest.fixture
def held(personas: Personas) -> Job:
    """A gang of one node on two of its four GPUs: one has computed all the time, one not in the last quarter of an hour. Idle ones are reclaimed."""
    node = fleet()
    team = personas.nodes["acme/research/vision"]
    IdlePolicy.objects.create(node=team, classes=["batch"], window_minutes=20, notify_minutes=0, warn_minutes=0, reclaim_minutes=20)
    for model, rules in ((HealthRule, health_defaults.default_rules()), (AlertRule, alert_defaults.default_rules())):
        model.objects.all().delete()  # those of the migration, as far as a test before this one has left them
        model.objects.bulk_create(model(public_id=f"first-{number}", **values) for number, values in enumerate(rules))
    job = builders.job(state=JobState.RUNNING, on=team, gpus_milli=2000)
    gpus = gpus_of(node)[:2]
    for gpu in gpus:
        builders.placement(job, gpu, since=now() - timedelta(hours=5))
    job.attempts.update(running_at=now() - timedelta(hours=5))
    watched({gpus[0]: 90, gpus[1]: [90] * 15 + [0] * 15}, until=now() - timedelta(seconds=62))
    return job


def outage_is_told_and_nothing_is_done(job: Job, began: datetime, personas: Personas) -> None:
    """A minute after the last reading, and hours later: the whole chain from rounds and pages to idle rules, health rules and alerts."""
    browser = personas.client("operator")
    assert now() - began < timedelta(seconds=75), "this machine is too slow for what is said here"
    assert "<strong>Stale</strong>" in browser.get("/telemetry/").content.decode()
    (seen,) = browser.get("/api/v1/fleet/summary").json()["types"]
    assert (seen["allocated_milli"], seen["allocated_without_reading_milli"]) == (2000, 2000)
    assert (seen["active_milli"], seen["idle_milli"], seen["gap_milli"]) == (0, 0, 0)
    assert re.search(r'<li data-if="unread">.*?<b data-f="unread_gpus">[1-9]', browser.get("/overview/").content.decode())
    assert browser.get("/gpus/?use=allocated").content.decode().count('title="No reading"') >= 2
    causes = {part.cause for part, milli in gap_now(now=now()).items() if milli}
    assert Cause.UNREAD in causes
    assert not causes & {Cause.IDLE, Cause.DRAINED, Cause.FAILED}

    moment = began + timedelta(seconds=60)
    for minutes in (1, 2, 2, 5, 5, 5, 10, 30, 60, 120):
        moment += timedelta(minutes=minutes)
        telemetry_rollup(now=moment)
        idle_round(now=moment)
        idle_ends(now=moment)
        health_round(now=moment)
        stragglers_round(now=moment)
        alerts_round(now=moment)
    assert not IdleEpisode.objects.exists()
    assert not HealthFinding.objects.exists()
    assert set(Node.objects.values_list("health", flat=True)) == {Health.HEALTHY}
    assert Job.objects.get(pk=job.pk).state == JobState.RUNNING
    assert not Order.objects.exists()
    assert Alert.objects.filter(rule__figure="telemetry_age", resolved_at__isnull=True).exists()


@pytest.mark.django_db
@pytest.mark.parametrize("fault", ["killed", "lying"])
def test_a_dead_or_lying_server_is_told_within_a_minute_and_nothing_is_done(fault: str, held: Job, personas: Personas) -> None:
    with scraped() as (exporter, server):
        exporter.samples = [*said(0, sm="0.9"), *said(1, sm="0")]
        server.knows("DCGM_FI_PROF_SM_ACTIVE", 2)
        row = PrometheusServer.objects.create(public_id="ps-1", name="main", url=server.url)
        began = now() - timedelta(seconds=61)
        assert prometheus_collect(now=began, rules=LOCAL) == 2
        if fault == "killed":
            server.program.kill()
        else:
            exporter.samples = []  # it answers, and says nothing
            server.knows_nothing("DCGM_FI_PROF_SM_ACTIVE")
        for seconds in (15, 30, 45, 60):
            assert prometheus_collect(now=began + timedelta(seconds=seconds), rules=LOCAL) == 0
        row.refresh_from_db()
        assert {"killed": "nothing answers", "lying": "without a reading"}[fault] in row.fault
        outage_is_told_and_nothing_is_done(held, began, personas)


@pytest.fixture
def slow() -> Iterator[tuple[str, threading.Event]]:
    """A server that answers as its Prometheus does, and once the event is set only after thirty seconds, byte by byte."""
    late = threading.Event()

    class Slow(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urllib.parse.unquote(self.path).replace("timestamp(DCGM_FI_PROF_SM_ACTIVE)", "")
            series = [{"metric": {"UUID": f"GPU-{gpu}"}, "value": [time.time(), value]} for gpu, value in ((0, "0.9"), (1, "0"))]
            body = json.dumps(
                {"status": "success", "data": {"resultType": "vector", "result": series if "(DCGM_FI_PROF_SM_ACTIVE)" in asked else []}}
            ).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body) + 30))
            self.end_headers()
            with contextlib.suppress(OSError):
                for _ in range(30):
                    self.wfile.write(b" ")
                    late.is_set() and time.sleep(1)
                self.wfile.write(body)

        def log_message(self, *said: object) -> None:
            """Nothing to read here."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", late
    late.clear()
    server.shutdown()
    server.server_close()


@pytest.mark.django_db
def test_a_driver_that_hangs_holds_up_no_round_and_is_asked_once(monkeypatch: pytest.MonkeyPatch, slow: tuple[str, threading.Event]) -> None:
    """Also, the driver wrote a frame while the server took its time: the server's is the newest all the same."""
    monkeypatch.setattr(machine_asked, "MACHINE_SECONDS", 0.2)
    gpus = gpus_of(fleet())
    PrometheusServer.objects.create(public_id="ps-1", name="main", url=slow[0])
    go_on, asked = threading.Event(), []

    def hangs(known: object) -> tuple[list[Reading], None]:
        asked.append(known)
        go_on.wait(60)
        return [], None

    moment = now()
    reading = Reading("GPU-2", "H100", 10.0, None, None, None, GPM, 25.0, 400, 61, {})
    local_write(uuids=["GPU-2"], readings=[reading], now=moment + timedelta(milliseconds=100))
    try:
        assert prometheus_collect(now=moment, rules=LOCAL, machine=hangs) == 2
        assert frame() == {0: 90, 1: 0}
        assert HealthFrame.objects.get().source == "prometheus"
        assert prometheus_collect(now=moment + timedelta(seconds=15), rules=LOCAL, machine=hangs) == 2
        assert (len(asked), len(gpus)) == (1, 4)
    finally:
        go_on.set()
        machine_asked._last[MACHINE_THREAD].result(10)  # the next test asks anew


@pytest.mark.django_db
def test_a_driver_that_fails_costs_servers_no_reading_and_is_told(slow: tuple[str, threading.Event], caplog: pytest.LogCaptureFixture) -> None:
    fleet()
    server = PrometheusServer.objects.create(public_id="ps-1", name="main", url=slow[0])
    tally.take()

    def fails(known: object) -> tuple[list[Reading], None]:
        raise ValueError("an odd answer of the driver")

    moment = now()
    assert prometheus_collect(now=moment, rules=LOCAL, machine=fails) == 2

    server.refresh_from_db()
    assert (server.fault, server.read_at) == ("", moment)
    assert "an odd answer of the driver" in caplog.text and "Traceback" in caplog.text
    assert tally.take() == {("gpufleet_telemetry_faults", '["nvml"]', "count"): 1}


@pytest.mark.soak
@pytest.mark.django_db
def test_a_server_that_takes_half_a_minute_is_given_up_and_told_within_a_minute(
    slow: tuple[str, threading.Event], held: Job, personas: Personas
) -> None:
    url, late = slow
    row = PrometheusServer.objects.create(public_id="ps-1", name="main", url=url)
    began = now()
    assert prometheus_collect(now=began, rules=LOCAL) == 2
    late.set()
    for seconds in (15, 30, 45):
        time.sleep(max(0.0, seconds - (now() - began).total_seconds()))
        moment = now()
        assert prometheus_collect(now=moment, rules=LOCAL) == 0
        assert now() - moment < timedelta(seconds=asking.WHOLE_SECONDS + 1)
    row.refresh_from_db()
    assert "12 s" in row.fault
    outage_is_told_and_nothing_is_done(held, began, personas)


def test_a_server_that_is_slow_is_given_up(monkeypatch: pytest.MonkeyPatch, slow: tuple[str, threading.Event]) -> None:
    monkeypatch.setattr(asking, "ROUND", asking.Bounds(seconds=0.6, silence_seconds=0.6))
    url, late = slow
    late.set()
    begun = time.monotonic()
    answer = answer_of(PrometheusServer(url=url), {}, LOCAL, now())

    assert "0.6 s" in answer.fault
    assert time.monotonic() - begun < 3


@contextlib.contextmanager
def answering(body: bytes) -> Iterator[str]:
    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *said: object) -> None:
            """Nothing to read here."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.django_db
@pytest.mark.parametrize(
    "series",
    ["[" * 100_000, '{"metric":{"UUID":["GPU-0"]},"value":[1,"0.5"]}', '{"metric":{"UUID":{},"instance":1,"GPU_I_PROFILE":7},"value":[1,"1"]}'],
    ids=["nested", "list", "numbers"],
)
def test_what_one_server_answers_costs_another_no_reading(series: str, slow: tuple[str, threading.Event]) -> None:
    fleet(2)
    body = f'{{"status":"success","data":{{"resultType":"vector","result":[{series}]}}}}'.encode()
    with answering(body) as url:
        for number, address in enumerate((url, slow[0])):
            PrometheusServer.objects.create(public_id=f"ps-{number}", name=f"server {number}", url=address)
        assert prometheus_collect(now=now(), rules=LOCAL) == 2

    assert frame() == {0: 90, 1: 0}
    told, other = PrometheusServer.objects.order_by("pk")
    assert (told.fault, other.fault) == ("Its answer is not one of a Prometheus.", "")


@pytest.mark.parametrize("url", ["http://169.254.169.254/latest", "http://10.0.0.1:9090", "file:///etc/passwd", "https://user:secret@example.com"])
def test_addresses_are_checked_as_those_of_webhooks(url: str) -> None:
    assert answer_of(PrometheusServer(url=url), {}, Rules(), now()).fault


@pytest.mark.django_db
def test_the_next_address_of_a_name_is_asked_where_the_first_refuses(monkeypatch: pytest.MonkeyPatch, slow: tuple[str, threading.Event]) -> None:
    """The name is looked up once a look, and each query goes to the address that took the first."""
    port = urllib.parse.urlsplit(slow[0]).port
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in ("127.0.0.9", "127.0.0.1")]
    looked_up: list[str] = []
    connected: list[str] = []
    connect: Any = urllib3.util.connection.create_connection

    def lookup(host: str, *_: object, **__: object) -> list[Any]:
        looked_up.append(host)
        return found

    def connecting(where: tuple[str, int], *rest: object, **more: object) -> socket.socket:
        connected.append(where[0])
        with monkeypatch.context() as usual:  # urllib3 looks an address up, too
            usual.setattr(socket, "getaddrinfo", getaddrinfo)
            return connect(where, *rest, **more)

    getaddrinfo = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    monkeypatch.setattr(urllib3.util.connection, "create_connection", connecting)
    fleet(2)

    answer = answer_of(PrometheusServer(url=f"http://prometheus.example.org:{port}"), gpus_known(), LOCAL, now())

    assert (answer.fault, sorted(answer.look.gpus)) == ("", ["GPU-0", "GPU-1"])
    assert looked_up == ["prometheus.example.org"]
    assert (connected[:2], set(connected[2:])) == (["127.0.0.9", "127.0.0.1"], {"127.0.0.1"})


def test_a_name_of_which_one_address_is_not_allowed_is_asked_at_none(monkeypatch: pytest.MonkeyPatch, slow: tuple[str, threading.Event]) -> None:
    port = urllib.parse.urlsplit(slow[0]).port
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in ("127.0.0.1", "10.0.0.7")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)

    answer = answer_of(PrometheusServer(url=f"http://prometheus.example.org:{port}"), {}, LOCAL, now())

    assert answer.fault.startswith("10.0.0.7 is not a public address.")


def test_where_no_address_of_a_name_takes_a_connection_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = [f"127.0.0.{number}" for number in range(9, 30)]
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 9)) for address in tried]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    asked: list[str] = []

    def refuse(where: tuple[str, int], *_: object, **__: object) -> socket.socket:
        asked.append(where[0])
        raise ConnectionRefusedError

    monkeypatch.setattr(urllib3.util.connection, "create_connection", refuse)

    answer = answer_of(PrometheusServer(url="http://prometheus.example.org:9"), {}, LOCAL, now())

    assert answer.fault == "No connection: nothing answers at this address."
    assert asked == tried[:MOST_ADDRESSES]


@contextlib.contextmanager
def secured(certified: str, folder: Path) -> Iterator[int]:
    """A server whose certificate is that of one name. Yields its port; the certificate is in the folder."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, certified)])
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now() - timedelta(days=1), now() + timedelta(days=1))
    names = x509.SubjectAlternativeName([x509.DNSName(certified)])
    signed = made.add_extension(names, critical=False).sign(key, hashes.SHA256())
    (folder / "own.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "own.key").write_bytes(private)

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"status":"success","data":{"resultType":"vector","result":[]}}')

        def log_message(self, *said: object) -> None:
            """Nothing to read here."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "own.pem", folder / "own.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.mark.parametrize(
    ("certified", "fault"),
    [
        ("prometheus.example.org", "It answered without a reading of any GPU in the inventory."),
        ("other.example.org", "Its certificate is not valid for this name."),
    ],
)
def test_the_certificate_must_be_that_of_the_name(certified: str, fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with secured(certified, tmp_path) as port:
        monkeypatch.setattr("requests.adapters.DEFAULT_CA_BUNDLE_PATH", str(tmp_path / "own.pem"))
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))])

        answer = answer_of(PrometheusServer(url=f"https://prometheus.example.org:{port}"), {}, LOCAL, now())

    assert answer.fault == fault
