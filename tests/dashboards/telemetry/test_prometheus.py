"""Prometheus as a source: against a real one that scrapes an exporter."""

import itertools
import random
import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta

import numpy as np
import pytest

from dashboards.gap.causes import Cause
from dashboards.gap.snapshot import gap_now
from dashboards.health.defaults import default_rules
from dashboards.health.models import HealthBucket, HealthFrame, HealthRule
from dashboards.health.round import health_round
from dashboards.models import NO_READING, TelemetryFrame
from dashboards.prometheus.collect import prometheus_collect
from dashboards.prometheus.dcgm import ODDITIES
from dashboards.prometheus.models import PrometheusServer
from dashboards.readings import hardware_now, network_now
from dashboards.telemetry.kernel_log import KernelLog, Xid
from dashboards.telemetry.local import local_write
from dashboards.telemetry.nvml import GPM, Reading
from gpufleet.core.times import now
from scheduler.models import Gpu, Health, JobState
from tests import builders
from tests.builders import NOON
from tests.dashboards.prometheus_worlds import LOCAL, fleet, frame, nics, ports, said
from tests.dashboards.worlds import gpus_of
from tests.personas import Personas
from tests.prometheus import Exporter, Prometheus, Sample, scraped
from tests.servers import wait_until


@pytest.fixture(scope="module")
def real() -> Iterator[tuple[Exporter, Prometheus]]:
    with scraped() as both:
        yield both


@pytest.fixture
def pair() -> Iterator[tuple[tuple[Exporter, Prometheus], tuple[Exporter, Prometheus]]]:
    """Two servers, each with an exporter of its own."""
    with scraped() as first, scraped() as second:
        yield first, second


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
