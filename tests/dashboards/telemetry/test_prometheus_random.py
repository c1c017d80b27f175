"""Ten thousand series by chance, from a real Prometheus through to every page and table."""

import csv
import io
import random
import re
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta

import numpy as np
import pytest

from dashboards.gap.store import gap_turn
from dashboards.models import NO_READING, FleetSample, GpuRollup, TelemetryFrame
from dashboards.prometheus.collect import prometheus_collect
from dashboards.prometheus.dcgm import FIELDS, ODDITIES
from dashboards.prometheus.models import PrometheusServer
from dashboards.telemetry.frames import NO_POWER
from dashboards.telemetry.rollups import telemetry_rollup
from dashboards.telemetry.spans import UNREAD, gpu_courses
from gpufleet.core.times import now
from scheduler.models import Gpu
from tests import builders
from tests.dashboards.prometheus_worlds import LOCAL
from tests.personas import Personas
from tests.prometheus import Exporter, Prometheus, scraped
from tests.servers import wait_until


@pytest.fixture
def own() -> Iterator[tuple[Exporter, Prometheus]]:
    """For a test whose series outlast it, and are many: a scrape that takes too long takes all of them away."""
    with scraped(every="2s") as both:
        yield both


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
