"""Prometheus as a source: against a real one that scrapes an exporter, and against answers that no exporter should give."""

import contextlib
import csv
import http.server
import io
import ipaddress
import itertools
import json
import random
import re
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dashboards.alerts import defaults as alert_defaults
from dashboards.alerts.models import Alert, AlertRule
from dashboards.alerts.round import alerts_round
from dashboards.gap.causes import Cause
from dashboards.gap.snapshot import gap_now
from dashboards.gap.store import gap_turn
from dashboards.health import defaults as health_defaults
from dashboards.health.defaults import default_rules
from dashboards.health.models import HealthBucket, HealthFinding, HealthFrame, HealthRule
from dashboards.health.round import health_round
from dashboards.health.stragglers import stragglers_round
from dashboards.idle.ending import idle_ends
from dashboards.idle.episodes import idle_round
from dashboards.idle.models import IdleEpisode, IdlePolicy
from dashboards.models import NO_READING, FleetSample, GpuRollup, TelemetryFrame
from dashboards.prometheus import asking
from dashboards.prometheus.asking import PrometheusFault
from dashboards.prometheus.collect import answer_of, gpus_known, prometheus_collect
from dashboards.prometheus.dcgm import FIELDS, NICS, ODDITIES, look, query_of
from dashboards.prometheus.models import PrometheusServer
from dashboards.readings import hardware_now, network_now
from dashboards.telemetry import machine as machine_asked
from dashboards.telemetry.frames import NO_POWER
from dashboards.telemetry.kernel_log import KernelLog, Xid
from dashboards.telemetry.local import local_write
from dashboards.telemetry.nvml import GPM, Reading
from dashboards.telemetry.rollups import telemetry_rollup
from dashboards.telemetry.spans import UNREAD, gpu_courses
from gpufleet.core.times import now
from scheduler.models import Gpu, Health, Job, JobState, Node, Order
from scheduler.notify.outgoing import Rules
from scheduler.services.loop.measuring import tally
from tests import builders
from tests.builders import NOON
from tests.dashboards.signals import watched
from tests.dashboards.worlds import gpus_of
from tests.personas import Personas
from tests.prometheus import Exporter, Prometheus, Sample, scraped
from tests.servers import wait_until

LOCAL = Rules((ipaddress.ip_network("127.0.0.0/8"),), http=True)


def fleet(gpus: int = 4) -> Node:
    node = builders.node(gpus=gpus)
    for gpu in Gpu.objects.filter(node=node):
        Gpu.objects.filter(pk=gpu.pk).update(uuid=f"GPU-{gpu.index}")
    return node


def said(gpu: int, **values: str) -> list[Sample]:
    """Samples of one GPU by field key, with the labels of the exporter."""
    metrics = {one.key: one.metric for one in FIELDS}
    labels = {"gpu": str(gpu), "UUID": f"GPU-{gpu}", "device": f"nvidia{gpu}", "modelName": "NVIDIA H100 80GB HBM3", "Hostname": "n1"}
    return [(metrics[key], labels, value) for key, value in values.items()]


def nics(node: Node, *, rx: int, symbols: int) -> list[Sample]:
    """As the node exporter tells of adapters; bridges and the loopback say nothing of the hardware."""
    host = {"instance": f"{node.name}.example.org:9100"}
    return [
        ("node_network_receive_errs_total", host | {"device": "eth0"}, str(rx)),
        ("node_network_transmit_errs_total", host | {"device": "veth12"}, str(1000 * rx)),
        ("node_infiniband_port_errors_received_total", host | {"device": "mlx5_0", "port": "1"}, str(symbols)),
    ]


def ports(node: Node, *, gbps: dict[str, float], down: tuple[str, ...] = (), again: float = 0, sent: float = 0) -> list[Sample]:
    """As the node exporter tells of links and of TCP; a port that is down has no speed, or a negative one."""
    host = {"instance": f"{node.name}:9100"}
    found = [("node_netstat_Tcp_RetransSegs", host, str(again)), ("node_netstat_Tcp_OutSegs", host, str(sent))]
    for name, speed in gbps.items():
        infiniband = name.startswith("mlx5")
        metric = "node_infiniband_rate_bytes_per_second" if infiniband else "node_network_speed_bytes"
        found.append((metric, host | {"device": name} | ({"port": "1"} if infiniband else {}), str(round(speed * 1e9 / 8))))
    return [*found, *(("node_network_up", host | {"device": name}, str(int(name not in down))) for name in (*gbps, *down))]


@pytest.fixture(scope="module")
def real() -> Iterator[tuple[Exporter, Prometheus]]:
    with scraped() as both:
        yield both


@pytest.fixture
def own() -> Iterator[tuple[Exporter, Prometheus]]:
    """For a test whose series outlast it, and are many: a scrape that takes too long takes all of them away."""
    with scraped(every="5s") as both:
        yield both


@pytest.fixture
def pair() -> Iterator[tuple[tuple[Exporter, Prometheus], tuple[Exporter, Prometheus]]]:
    """Two servers, each with an exporter of its own."""
    with scraped() as first, scraped() as second:
        yield first, second


def frame() -> dict[int, int]:
    row = TelemetryFrame.objects.get()
    keys = np.frombuffer(bytes(row.gpu_ids), "<u4").tolist()
    index = dict(Gpu.objects.values_list("pk", "index"))
    return {index[key]: percent for key, percent in zip(keys, bytes(row.sm_active), strict=True)}


@pytest.mark.django_db
def test_readings_come_from_a_real_prometheus(real: tuple[Exporter, Prometheus]) -> None:
    exporter, server = real
    node = fleet()
    slices = [
        ("DCGM_FI_PROF_SM_ACTIVE", {"UUID": f"GPU-{gpu}", "GPU_I_ID": str(number), "GPU_I_PROFILE": profile}, value)
        for gpu, number, profile, value in ((2, 1, "3g.40gb", "1"), (2, 2, "4g.40gb", "0.5"), (3, 3, "x", "0.1"))
    ]
    exporter.samples = [
        *said(0, sm="0.62", tensor="0.3", used="20000", free="60000", power="412.4", temperature="61", xid="0"),
        *nics(node, rx=10, symbols=5),
        *said(0, ecc_corrected="7", nvlink_errors="3", remaps_corrected="1", remaps_uncorrected="0"),
        *said(1, driver="97", power="200", reasons="64", xid="79", remaps_corrected="4"),
        *slices,
        *said(3, sm="NaN", power="1e9", temperature="-5"),
        *[(metric, {**labels, "UUID": "GPU-elsewhere"}, value) for metric, labels, value in said(0, sm="0.5")],
        ("DCGM_FI_PROF_SM_ACTIVE", {"gpu": "9"}, "0.5"),
    ]
    server.knows("DCGM_FI_PROF_SM_ACTIVE", 7)
    row = PrometheusServer.objects.create(public_id="ps-1", name="main", url=server.url)

    assert prometheus_collect(now=now(), rules=LOCAL) == 3
    row.refresh_from_db()
    assert (row.fault, row.gpus) == ("", 3)
    assert frame() == {0: 62, 1: 97, 2: 71}
    stored = TelemetryFrame.objects.get()
    assert stored.source == "prometheus-driver"
    assert [Gpu.objects.get(pk=key).index for key in np.frombuffer(bytes(stored.weak_ids), "<u4").tolist()] == [1]
    assert list(bytes(stored.memory_used)) == [25, NO_READING, NO_READING]
    assert list(bytes(stored.tensor_active)) == [30, NO_READING, NO_READING]
    assert {key: row.oddities[key] for key in ("unknown_gpu", "no_uuid", "not_a_number", "out_of_range", "wrong_profile")} == {
        "unknown_gpu": 1,
        "no_uuid": 1,
        "not_a_number": 1,
        "out_of_range": 2,
        "wrong_profile": 1,
    }
    assert HealthFrame.objects.get().source == "prometheus"
    node.refresh_from_db()
    assert node.heartbeat_at is not None

    sick = {"nvlink_errors": "5", "pcie_width": "8", "pcie_widest": "16", "remaps_corrected": "1", "remaps_uncorrected": "2", "reasons": "128"}
    exporter.samples = [
        *said(0, sm="0.62", ecc_corrected="9", xid="63", **sick),
        *nics(node, rx=14, symbols=7),
        *said(1, driver="97", xid="79"),
        *said(1, remaps_corrected="4", remaps_uncorrected="6"),
    ]
    server.knows("DCGM_FI_PROF_SM_ACTIVE", 1)
    prometheus_collect(now=now() + timedelta(seconds=15), rules=LOCAL)
    grown = dict(HealthBucket.objects.filter(gpu__index=0).values_list("signal", "value"))
    assert grown.pop("power_brake") >= 15
    assert grown == {"xid": 1, "ecc_corrected": 2, "nvlink_errors": 2, "row_remaps": 2, "pcie_lost": 50}
    assert HealthBucket.objects.get(node=node, gpu=None).signal == "nic_errors"
    assert HealthBucket.objects.get(node=node, gpu=None).value == 6
    assert not HealthBucket.objects.filter(gpu__index=1, signal="row_remaps").exists(), "a counter that was missing has not grown"
    assert HealthBucket.objects.get(signal="xid").code == 63
    for step, adapters in enumerate((nics(node, rx=14, symbols=7)[:2], nics(node, rx=15, symbols=7))):
        exporter.samples = [*said(0, sm="0.62"), *adapters, ("step", {}, str(step))]
        server.knows("step", 1)
        wait_until(lambda step=step: server.value("step") == step, what="the next scrape")
        prometheus_collect(now=now() + timedelta(seconds=30 + 15 * step), rules=LOCAL)
    assert HealthBucket.objects.get(signal="nic_errors").value == 6, "an adapter that is missing in a scrape is no reset"


@pytest.mark.django_db
def test_of_two_servers_the_newest_reading_counts_and_one_goes_on_where_the_other_fails_or_lies(
    pair: tuple[tuple[Exporter, Prometheus], tuple[Exporter, Prometheus]], personas: Personas
) -> None:
    """Both know GPU 0. Of what an exporter dates itself the date is that of the reading, not of the scrape."""
    (one, left), (two, right) = pair
    node = fleet(3)
    servers = {"left": left, "right": right}
    rows = {name: PrometheusServer.objects.create(public_id=f"ps-{name}", name=name, url=server.url) for name, server in servers.items()}

    def dated(gpu: int, sm: str, at: datetime) -> list[Sample]:
        return [(metric, labels, f"{value} {round(at.timestamp()) * 1000}") for metric, labels, value in said(gpu, sm=sm)]

    def collected() -> tuple[int, dict[int, int]]:
        count = prometheus_collect(now=now(), rules=LOCAL)
        for row in rows.values():
            row.refresh_from_db()
        return count, frame()

    begun = now()
    one.samples = [*dated(0, "0.3", begun - timedelta(seconds=20)), *said(0, power="100"), *said(1, sm="0.4")]
    two.samples = [*said(0, sm="0.8", power="500"), *said(2, sm="0.5")]
    for server in (left, right):
        server.knows("DCGM_FI_PROF_SM_ACTIVE", 2)
        server.knows("DCGM_FI_DEV_POWER_USAGE", 1)
    assert collected() == (3, {0: 80, 1: 40, 2: 50})
    assert [row.oddities.get("older", 0) for row in rows.values()] == [1, 0]

    fixed = now()
    two.samples = [*dated(0, "0.9", fixed), *said(0, temperature="61"), *said(2, sm="0.5")]
    one.samples = [*said(0, sm="0.3", power="100"), *said(1, sm="0.4")]
    asked = 'timestamp(DCGM_FI_PROF_SM_ACTIVE{UUID="GPU-0"})'
    wait_until(lambda: left.value(asked) > fixed.timestamp() + 1, what="a newer reading of the first server")
    right.knows("DCGM_FI_DEV_GPU_TEMP", 1)
    assert collected() == (3, {0: 30, 1: 40, 2: 50})
    assert bytes(TelemetryFrame.objects.get().temperature_c)[0] == 61, "what the newest does not have the other fills in"
    assert [row.oddities.get("older", 0) for row in rows.values()] == [1, 1]

    lies = [
        *said(0, sm="1e9", power="-4", temperature="NaN"),
        *said(2, sm="+Inf", tensor="7"),
        ("DCGM_FI_PROF_SM_ACTIVE", {}, "0.5"),
        ("lies", {}, "1"),
    ]
    two.samples = lies
    right.knows("lies", 1)
    assert collected() == (2, {0: 30, 1: 40})
    assert (rows["left"].fault, rows["right"].fault) == ("", "It answered without a reading of any GPU in the inventory.")
    assert {key: rows["right"].oddities[key] for key in ("out_of_range", "not_a_number", "no_uuid")} == {
        "out_of_range": 3,
        "not_a_number": 2,
        "no_uuid": 1,
    }

    right.program.kill()
    assert collected() == (2, {0: 30, 1: 40})
    assert (rows["left"].fault, "nothing answers" in rows["right"].fault) == ("", True)
    assert rows["right"].read_at is not None and rows["right"].read_at < rows["left"].read_at
    node.refresh_from_db()
    assert (node.health, node.heartbeat_at is not None) == (Health.HEALTHY, True)
    page = personas.client("operator").get("/telemetry/").content.decode()
    told = dict(re.findall(r'<th scope="row"[^>]*>([^<]+)</th><td[^>]*>([^<]+)</td></tr>', page))
    assert told[ODDITIES["older"]] == "left: 1; right: 1"


@pytest.mark.django_db
def test_links_are_read_against_what_they_could_carry(real: tuple[Exporter, Prometheus], personas: Personas) -> None:
    """Network ports against the inventory's speed, retransmissions against what is sent, and PCIe against generation and width of the link."""
    exporter, server = real
    HealthRule.objects.all().delete()
    for number, values in enumerate(default_rules()):
        if values["signal"] in ("nic_lost", "retransmits", "pcie_saturated"):
            HealthRule.objects.create(public_id=f"hr-{number}", **values)
    HealthRule.objects.filter(signal="pcie_saturated").update(threshold=10, clear_below=5)
    sick, well = fleet(2), builders.node(name="well", gpus=1)
    Gpu.objects.filter(node=well).update(uuid="GPU-7", pcie_generation=5, pcie_width=16)
    for node in (sick, well):
        for name, gbps in (("eth0", 25), ("eth1", 25), ("mlx5_0", 400)):
            builders.nic(node, name=name, speed_gbps=gbps)
    row = PrometheusServer.objects.create(public_id="ps-1", name="main", url=server.url)
    busy = {"pcie_mib_tx": "2e9", "pcie_mib_rx": "27e9"}
    steps = itertools.count()

    def scrape(again: int, **more: float) -> None:
        step = next(steps)
        exporter.samples = [
            *said(0, sm="0.6", pcie_generation="4", pcie_width="16", **busy),
            *said(1, sm="0.6", pcie_generation="5", pcie_width="16", **busy),
            *said(7, sm="0.6", **busy),
            *ports(
                sick, gbps={"eth0": 25, "mlx5_0": 200, "veth1": 10, "eth9": 1}, down=("eth1",), again=50_000 + 5 * again, sent=1_000_000 + 100 * again
            ),
            *ports(well, gbps={"eth0": 25, "eth1": 25, "mlx5_0": 400}, again=50_000 + again / 100, sent=1_000_000 + 100 * again),
            ("node_network_speed_bytes", {"instance": "elsewhere:9100", "device": "eth0"}, "1"),
            ("node_network_speed_bytes", {"instance": f"{well.name}:9100", "device": "bond0"}, "1e15"),
            ("step", {}, str(step)),
        ]
        server.knows("step", 1)
        wait_until(lambda: server.value("step") == step, what="the next scrape")

    scrape(0)
    scrape(1000)
    scrape(2000)
    moment = now()
    assert prometheus_collect(now=moment, rules=LOCAL) == 3
    prometheus_collect(now=moment + timedelta(seconds=15), rules=LOCAL)
    row.refresh_from_db()
    assert (row.oddities["unknown_node"], row.oddities["out_of_range"]) == (2, 2)
    found = {(one.node, one.gpu and one.gpu.index, one.signal): one.value for one in HealthBucket.objects.select_related("node", "gpu")}
    again = found.pop((sick, None, "retransmits"))
    assert again == pytest.approx(500, abs=2)
    assert found == {(sick, None, "nic_lost"): 100, (sick, 0, "pcie_saturated"): 15}
    assert network_now(sick, now=moment).slow == {"eth1": 0.0, "mlx5_0": 200.0}

    assert health_round(now=moment + timedelta(seconds=15)).opened == 3
    page = personas.client("operator").get(f"/nodes/{sick.public_id}/").content.decode()
    assert "200 of 400" in page and "Down" in page
    assert "5%" in re.sub(r"<[^>]+>", "", page[page.index("TCP retransmissions") :])[:60]
    assert "TCP retransmissions: up to" in personas.client("operator").get("/incidents/").content.decode()
    assert personas.client("operator").get(f"/nodes/{well.public_id}/").content.decode().count(" of 400") == 0
    told = personas.client("operator").get(f"/api/v1/nodes/{sick.public_id}").json()["nics"]
    assert {one["name"]: one["slow_gbps"] for one in told} == {"eth0": None, "eth1": 0, "mlx5_0": 200}


@pytest.mark.django_db
def test_figures_of_pages_are_those_of_promql(real: tuple[Exporter, Prometheus], personas: Personas) -> None:
    """Half of 240 GPUs are allocated; what computes by the gap and by Home is what Prometheus itself works out, within half a percent."""
    exporter, server = real
    rng, numbers = random.Random(20), itertools.count()
    job = builders.job(state=JobState.RUNNING, on=personas.nodes["acme/research/vision"], gpus_milli=120_000)
    builders.attempt(job, running_at=NOON)
    exporter.samples = []
    for worker in range(30):
        for gpu in Gpu.objects.filter(node=builders.node(gpus=8)).select_related("node"):
            number = next(numbers)
            Gpu.objects.filter(pk=gpu.pk).update(uuid=f"GPU-{number}")
            allocated = worker < 15
            exporter.samples += said(number, sm=f"{rng.betavariate(2, 2) if allocated else 0:.6f}", power=f"{rng.uniform(90, 690):.3f}")
            if allocated:
                builders.placement(job, gpu, worker=worker)
    server.knows("DCGM_FI_PROF_SM_ACTIVE", 240)
    PrometheusServer.objects.create(public_id="ps-1", name="main", url=server.url)
    moment = now()
    assert prometheus_collect(now=moment, rules=LOCAL) == 240

    computing = server.value("sum(DCGM_FI_PROF_SM_ACTIVE)")
    parts = Counter({part.cause: 0 for part in gap_now(now=moment)})
    for part, milli in gap_now(now=moment).items():
        parts[part.cause] += milli
    assert parts[Cause.COMPUTING] / 1000 == pytest.approx(computing, rel=0.005)
    assert (parts[Cause.COMPUTING] + parts[Cause.IDLE], sum(parts.values())) == (120_000, 240_000)
    (seen,) = personas.client("operator").get("/api/v1/fleet/summary").json()["types"]
    assert (seen["allocated_milli"], seen["without_reading"]) == (120_000, 0)
    assert seen["active_milli"] / 1000 == pytest.approx(computing, rel=0.005)
    watts = np.frombuffer(bytes(TelemetryFrame.objects.get().power_watts), "<u2").sum()
    assert watts == pytest.approx(server.value("sum(DCGM_FI_DEV_POWER_USAGE)"), rel=0.005)


@pytest.mark.django_db
def test_servers_and_this_machine_s_driver_share_a_cluster(real: tuple[Exporter, Prometheus]) -> None:
    """One of them speaks for a GPU at a time, in one frame: neither takes the other's readings for missing, and counters go on across outages."""
    exporter, server = real
    gpus = {gpu.index: gpu for gpu in gpus_of(fleet())}
    row = PrometheusServer.objects.create(public_id="ps-1", name="main", url=server.url)
    begun = now() - timedelta(seconds=90)

    def machine(ecc: int) -> list[Reading]:
        return [
            Reading(f"GPU-{index}", "H100", sm, None, None, 20.0, GPM, 25.0, 400, 61, {"processes": index, "ecc_corrected": ecc if index == 2 else 4})
            for index, sm in ((1, 10.0), (2, 50.0))
        ]

    def log_at(seconds: int) -> KernelLog:
        xids = tuple(Xid(110, f"GPU-{gpu}", 79) for gpu in (1, 2) if seconds > 10)
        return KernelLog("b-1", begun - timedelta(days=9), 100 + seconds, frozenset({"GPU-1", "GPU-2"}), xids)

    def rounds(seconds: int, *, first: int, own: int) -> int:
        xid = str(79 if seconds > 10 else 0)
        exporter.samples = [
            *said(0, sm="0.62", ecc_corrected=str(first)),
            *said(1, power="200", ecc_corrected="4", xid=xid),
            ("round", {}, str(seconds)),
        ]
        server.knows("round", 1)
        wait_until(lambda: server.value("round") == seconds, what="the next scrape")
        return prometheus_collect(
            now=begun + timedelta(seconds=seconds),
            rules=LOCAL,
            machine=lambda known: (machine(own), log_at(seconds)),
        )

    def local(seconds: int, *, own: int) -> int:
        return local_write(uuids=["GPU-1", "GPU-2"], readings=machine(own), now=begun + timedelta(seconds=seconds))

    assert rounds(0, first=7, own=5) == 3
    assert frame() == {0: 62, 1: 10, 2: 50}
    assert list(bytes(TelemetryFrame.objects.get().memory_used)) == [NO_READING, NO_READING, 25], "the server speaks for the second one"
    assert hardware_now(now=begun).processes == {gpus[1].pk: 1, gpus[2].pk: 2}
    assert local(5, own=5) == 0
    assert rounds(15, first=9, own=6) == 3
    PrometheusServer.objects.update(url="http://127.0.0.1:1")
    assert prometheus_collect(now=begun + timedelta(seconds=30), rules=LOCAL, machine=lambda known: (machine(6), None)) == 0
    assert local(75, own=8) == 2
    assert frame() == {1: 10, 2: 50}
    PrometheusServer.objects.update(url=row.url)
    assert rounds(80, first=12, own=8) == 3
    grown = Counter[int]()
    for index, value in HealthBucket.objects.filter(signal="ecc_corrected").values_list("gpu__index", "value"):
        grown[index] += value
    assert grown == {0: 5, 2: 3}
    told = HealthBucket.objects.filter(signal="xid").order_by("gpu__index").values_list("gpu__index", "code", "value")
    assert list(told) == [(1, 79, 1), (2, 79, 1)], "that the server tells of one of them too does not count"


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
    threading.Thread(target=server.serve_forever, daemon=True).start()
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
    monkeypatch.setattr(asking, "WHOLE_SECONDS", 0.6)
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
        threading.Thread(target=server.serve_forever, daemon=True).start()
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


def test_a_look_outlives_a_query_of_adapters_that_fails() -> None:
    def ask(query: str) -> list[dict[str, object]]:
        if query == NICS:
            raise PrometheusFault("query timed out")
        return [{"metric": {"UUID": "GPU-0"}, "value": [0, "0.5"]}] if query == query_of(FIELDS[0]) else []

    found = look(ask, known={"GPU-0": 7}, now=0)
    assert (dict(found.gpus), found.odd["no_nics"]) == ({"GPU-0": {FIELDS[0].key: 0.5}}, 1)


@pytest.mark.parametrize(
    ("slices", "instances", "percent", "odd"),
    [
        (7, [("1g.10gb", 1), ("1g.10gb+me", 1), ("2g.20gb", 1), ("3g.40gb", 1)], 100, 0),
        (7, [("1g.10gb+me", 0.7)], 10, 0),
        (4, [("1g.6gb", 1)] * 4, 100, 0),
        (4, [("2g.12gb", 0.5), ("1g.6gb", 1)], 50, 0),
        (7, [("3g.40gb", 0), ("4g.40gb", 1.7)], None, 0),
        (7, [("3g.40gb", 0), ("4g.40gb", float("nan"))], None, 0),
        (4, [("7g.80gb", 1), ("1g.6gb", 1)], None, 1),
    ],
)
def test_instances_count_by_their_slices_of_the_board(slices: int, instances: list[tuple[str, float]], percent: int | None, odd: int) -> None:
    """One that cannot be believed leaves the GPU without a reading: the others alone would make it look idle."""
    labels = [{"UUID": "GPU-0", "GPU_I_ID": str(number), "GPU_I_PROFILE": profile} for number, (profile, _) in enumerate(instances)]
    series = [{"metric": one, "value": [0, str(value)]} for one, (_, value) in zip(labels, instances, strict=True)]

    found = look(lambda query: series if query == query_of(FIELDS[0]) else [], known={"GPU-0": slices}, now=0)

    sm = found.gpus["GPU-0"].get("sm")
    assert (None if sm is None else round(100 * sm), found.odd["wrong_profile"]) == (percent, odd)


@pytest.mark.django_db
def test_a_board_of_four_slices_is_known_by_its_type() -> None:
    for number, kind in enumerate(("A30-24GB", "H100-SXM-80GB", "L40S-48GB")):
        gpu = gpus_of(builders.node(gpus=1))[0]
        Gpu.objects.filter(pk=gpu.pk).update(uuid=f"GPU-{number}", gpu_type=builders.gpu_type(kind))

    assert [one.slices for one in gpus_known().values()] == [4, 7, 7]


@pytest.mark.parametrize("url", ["http://169.254.169.254/latest", "http://10.0.0.1:9090", "file:///etc/passwd", "https://user:secret@example.com"])
def test_addresses_are_checked_as_those_of_webhooks(url: str) -> None:
    assert answer_of(PrometheusServer(url=url), {}, Rules(), now()).fault


ODD = st.sampled_from(["0", "0.5", "1", "1.7", "-1", "NaN", "+Inf", "1e9", "", "x", "100", "41", 10**400, None, [], {}])
LABELS = st.fixed_dictionaries(
    {},
    optional={
        "UUID": st.sampled_from(["GPU-0", "GPU-1", "GPU-x", "", '"}) or vector(1)']),
        "GPU_I_ID": st.sampled_from(["", "1", "2"]),
        "GPU_I_PROFILE": st.sampled_from(["1g.10gb", "7g.80gb", "9g.1gb", "?"]),
    },
)


@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.fixed_dictionaries({"metric": LABELS, "value": st.tuples(st.just(100.0), ODD)}) | st.just({"metric": None}), max_size=12))
def test_no_answer_gives_an_impossible_reading(series: list[dict[str, object]]) -> None:
    asked: list[str] = []

    def ask(query: str) -> list[dict[str, object]]:
        asked.append(query)
        return series

    found = look(ask, known={"GPU-0": 7, "GPU-1": 4}, now=100.0)

    bounds = {one.key: one for one in FIELDS}
    assert all(
        bounds[key].least <= value <= bounds[key].most for read in found.gpus.values() for key, value in read.items() if key not in ("used", "free")
    )
    assert set(found.gpus) <= {"GPU-0", "GPU-1"}
    assert set(found.odd) <= set(ODDITIES)
    assert not any("vector(1)" in query for query in asked)


SERIES, ROUNDS = 10_000, 3
VALUES = ("0", "0.5", "1", "1.7", "41", "100", "-1", "1e9", "NaN", "+Inf", "-Inf")


def drawn(rng: random.Random) -> dict[tuple[str, str, str, str], str]:
    """Values of series by metric, UUID, instance and profile; no two series have the same labels."""
    found: dict[tuple[str, str, str, str], str] = {}
    while len(found) < SERIES:
        uuid = rng.choice(("", f"GPU-{rng.randrange(1, 300)}", f"GPU-{rng.randrange(1, 300)}", f"GPU-{rng.randrange(1, 600)}"))
        instance = rng.choice(("", "", "1", "2"))
        profile = rng.choice(("1g.10gb", "7g.80gb", "9g.1gb", "?")) if instance else ""
        found[rng.choice(FIELDS).metric, uuid, instance, profile] = rng.choice(VALUES)
    return found


def expected_odd(series: dict[tuple[str, str, str, str], str]) -> Counter[str]:
    bounds, shared = {one.metric: one for one in FIELDS}, {"sm", "tensor", "dram", "occupancy"}
    odd: Counter[str] = Counter(stale=1, unknown_node=1)
    whole, parts, broken = set[tuple[str, str]](), set[tuple[str, str]](), set[tuple[str, str]]()
    for (metric, uuid, instance, profile), value in series.items():
        one, number = bounds[metric], float(value)
        is_part = bool(instance) and one.key in shared | {"used", "free"}
        before = odd.total()
        if not uuid:
            odd["no_uuid"] += 1
        elif int(uuid.removeprefix("GPU-")) >= 300:
            odd["unknown_gpu"] += 1
        elif value in ("NaN", "+Inf", "-Inf"):
            odd["not_a_number"] += 1
        elif not one.least <= number <= one.most:
            odd["out_of_range"] += 1
        elif instance and one.key in shared and profile in ("9g.1gb", "?"):
            odd["wrong_profile"] += 1
        else:
            (parts if is_part else whole).add((uuid, one.key))
        if is_part and odd.total() > before:
            broken.add((uuid, one.key))
    believed = whole | (parts - broken)
    gpus = {uuid for uuid, _ in believed}
    odd["missing"] = len(gpus) * len({key for _, key in believed}) - len(believed)
    return odd


@pytest.mark.django_db
def test_ten_thousand_random_series_leave_nothing_impossible_anywhere(own: tuple[Exporter, Prometheus], personas: Personas) -> None:
    """Rounds in which series come, go, fall and lie: frames, roll-ups, plots and pages show what can be true, and every oddity is counted."""
    exporter, server = own
    nodes = [builders.node(gpus=8) for _ in range(40)]
    for number, key in enumerate(Gpu.objects.order_by("pk").values_list("pk", flat=True)[:300]):
        Gpu.objects.filter(pk=key).update(uuid=f"GPU-{number}")
    row = PrometheusServer.objects.create(public_id="ps-1", name="main", url=server.url)
    rng, odd, ago = random.Random(20), Counter[str](), timedelta(seconds=75)  # plots end with the last whole minute
    for number in range(1, ROUNDS + 1):
        series = drawn(rng)
        odd.update(expected_odd(series))
        exporter.samples = [
            (metric, {key: label for key, label in (("UUID", uuid), ("GPU_I_ID", instance), ("GPU_I_PROFILE", profile)) if label}, value)
            for (metric, uuid, instance, profile), value in series.items()
        ] + [
            ("round", {}, str(number)),
            ("node_network_receive_errs_total", {"instance": "elsewhere:9100", "device": "eth0"}, "3"),
            ("DCGM_FI_PROF_SM_ACTIVE", {"UUID": "GPU-0"}, f"0.5 {round((now() - 2 * ago).timestamp()) * 1000}"),
        ]
        server.knows("round", 1)
        wait_until(lambda number=number: server.value("round") == number, what="the next scrape")  # type: ignore[misc]
        moment = now() - ago
        assert prometheus_collect(now=moment, rules=LOCAL) > 200
        stored = TelemetryFrame.objects.get()
        for column, most in (("sm_active", 100), ("memory_used", 100), ("tensor_active", 100), ("dram_active", 100), ("temperature_c", 200)):
            assert {value for value in bytes(getattr(stored, column)) if value != NO_READING} <= set(range(most + 1)), column
        watts = np.frombuffer(bytes(stored.power_watts), "<u2")
        assert watts[watts != NO_POWER].max() <= 5000

    row.refresh_from_db()
    assert row.oddities == dict(odd)
    assert set(odd) == set(ODDITIES) - {"no_nics", "older"}
    sources = personas.client("operator").get("/telemetry/").content.decode()
    told = dict(re.findall(r'<th scope="row"[^>]*>([^<]+)</th><td[^>]*>main: (\d+)</td></tr>', sources))
    assert told == {ODDITIES[key]: str(count) for key, count in odd.items()}, "each oddity is counted, and the page says how often"
    later = moment + timedelta(minutes=70)
    telemetry_rollup(now=moment + timedelta(minutes=3))
    telemetry_rollup(now=later)
    assert gap_turn(now=moment)
    for rollup in GpuRollup.objects.all():
        for name in ("sm", "memory", "tensor", "dram"):
            column = np.frombuffer(bytes(getattr(rollup, name)), "<u2")
            assert column[column != UNREAD].max(initial=0) <= 10_000, name
    assert GpuRollup.objects.count() == 2
    for sample in FleetSample.objects.all():
        assert 0 <= sample.active_milli <= sample.capacity_milli == 320_000
        assert 0 < sample.unread_milli <= sample.capacity_milli
    for gpu in Gpu.objects.order_by("pk")[:300:20]:
        since = moment - timedelta(hours=1)
        (course,) = gpu_courses(cluster_id=gpu.node.cluster_id, gpus=[gpu.pk], measures=["sm"], since=since, until=later, span=60)
        assert np.nanmin(course.values, initial=0) >= 0
        assert np.nanmax(course.values, initial=0) <= 100
    operator = personas.client("operator")
    gpu, node = Gpu.objects.order_by("pk")[1].public_id, nodes[0].public_id
    for path, most in ((f"/gpus/{gpu}/course", 100), (f"/nodes/{node}/course", 100), ("/overview/history", 320), ("/gap/history", 320)):
        answer = operator.get(path, {"range": "1h", "format": "csv"})
        rows = list(csv.reader(io.StringIO(b"".join(answer).decode())))[1:]
        plotted = [float(cell) for row in rows for cell in row[1:] if re.fullmatch(r"-?[\d.e+]+|nan|inf", cell)]
        assert plotted and all(0 <= value <= most for value in plotted), (path, plotted)
    for path in ("/gpus/", f"/nodes/{nodes[0].public_id}/", f"/gpus/{Gpu.objects.order_by('pk')[0].public_id}/", "/overview/"):
        page = operator.get(path).content.decode()
        told = {
            float(figure)
            for figure in re.findall(r"(-?[0-9][0-9.]*)\s?%", re.sub(r"<(?:script|style)[^>]*>.*?</(?:script|style)>", "", page, flags=re.S))
        }
        assert told <= {figure for figure in told if 0 <= figure <= 100}, (path, sorted(told))
        assert not re.search(r"\b(?:nan|inf|1e9|1000000000|1,000,000,000)\b", re.sub(r"<[^>]+>", " ", page)), path


def test_operators_add_test_and_remove_a_server(personas: Personas, real: tuple[Exporter, Prometheus], settings: object) -> None:
    settings.WEBHOOKS = {"NETWORKS": LOCAL.networks, "HTTP": True}  # type: ignore[attr-defined]
    exporter, server = real
    fleet()
    exporter.samples = said(0, sm="0.9")
    # One series may be that of a test before.
    wait_until(lambda: server.value('sum(DCGM_FI_PROF_SM_ACTIVE{UUID="GPU-0"} or vector(0))') == 0.9, what="the next scrape")
    browser = personas.client("operator")

    assert "169" not in browser.post("/telemetry/new/", {"name": "main", "url": "http://169.254.169.254/", "enabled": "on"}).headers.get(
        "Location", ""
    )
    assert PrometheusServer.objects.count() == 0
    assert browser.post("/telemetry/new/", {"name": "main", "url": server.url, "enabled": "on"}).status_code == 302
    row = PrometheusServer.objects.get()
    page = browser.post(f"/telemetry/{row.public_id}/test/", follow=True).content.decode()
    assert "has readings of 1 GPU" in page
    assert browser.get("/api/v1/telemetry/sources").json()["items"][0]["state"] == "new"
    assert browser.post(f"/telemetry/{row.public_id}/remove/", {"reason": ""}).status_code == 302
    assert not PrometheusServer.objects.filter(removed_at__isnull=True).exists()
