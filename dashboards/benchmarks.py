"""What telemetry costs on a fleet of 4,000 GPUs: measured in a process that has an empty database of its own (`gpufleet bench telemetry`)."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_network
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import numpy as np

from dashboards.courses import cluster_chart, gpu_chart, node_chart, team_chart
from dashboards.gap.causes import Cause, Part
from dashboards.gap.models import GapRollup
from dashboards.gap.store import Gap, gap_course, gaps_write
from dashboards.health.lifecycle import RULES_ACT
from dashboards.models import GpuRollup
from dashboards.prometheus.collect import prometheus_collect
from dashboards.prometheus.dcgm import FIELDS
from dashboards.prometheus.models import PrometheusServer
from dashboards.telemetry.frames import SETTLE, Columns, frame_write, minute_of
from dashboards.telemetry.packing import ids_packed
from dashboards.telemetry.rollups import telemetry_rollup
from dashboards.telemetry.spans import HOUR, QUARTER, gpu_courses
from gpufleet.core.ranges import BY_KEY
from gpufleet.core.times import now
from quotas.models import QuotaNode
from scheduler.benchmarks.kernel import in_kernels, kernel_ms
from scheduler.models import Cluster, Gpu, GpuType, Node
from scheduler.notify.outgoing import Rules

GPUS, EACH = 4_000, 8
RUNS = 30
ANEW_SECONDS = 30
DAYS = 30
VALUES = {
    "sm": "0.42",
    "tensor": "0.2",
    "dram": "0.3",
    "driver": "88",
    "used": "40000",
    "free": "41000",
    "power": "430",
    "temperature": "63",
    "pcie_width": "16",
    "pcie_widest": "16",
}


def measured(wanted: Callable[[str], bool]) -> Iterator[dict[str, Any]]:
    """Each case as soon as it is done."""
    _fleet()
    cases = {"ingest": _ingest, "rollup": _rollup, "read": _read}
    for prefix, case in cases.items():
        if any(wanted(name) for name in CASES if name.startswith(prefix)):
            yield from (one for one in case() if wanted(one["case"]))


CASES = ("ingest", "rollup", "read-gpu-7d", "read-gpu-30d", "read-node-30d", "read-fleet-30d", "read-cluster-30d", "read-team-30d", "read-gap-30d")


def _fleet() -> None:
    kind = GpuType.objects.create(name="H100-SXM-80GB", board="H100-80", memory_mib=81_559)
    cluster = Cluster.objects.create(public_id="c-1", name="bench")
    Node.objects.bulk_create(
        Node(public_id=f"n-{number}", cluster=cluster, name=f"node-{number:04}", gpu_type=kind) for number in range(GPUS // EACH)
    )
    nodes = list(Node.objects.order_by("pk"))
    Gpu.objects.bulk_create(
        (
            Gpu(public_id=f"g-{number}", node=nodes[number // EACH], index=number % EACH, gpu_type=kind, memory_mib=81_559, uuid=f"GPU-{number}")
            for number in range(GPUS)
        ),
        batch_size=1000,
    )


def _timed(case: str, run: Callable[[], object], *, runs: int = RUNS, **more: Any) -> dict[str, Any]:
    run()
    before, took, cpu = kernel_ms(), [], []
    for _ in range(runs):
        began, computed = time.perf_counter(), time.process_time()
        run()
        took.append(1000 * (time.perf_counter() - began))
        cpu.append(1000 * (time.process_time() - computed))
    figures = {
        "case": case,
        "median_ms": round(float(np.median(took)), 2),
        "p95_ms": round(float(np.percentile(took, 95)), 2),
        "cpu_ms": round(float(np.median(cpu)), 2),
        "runs": runs,
        **more,
    }
    return in_kernels(figures, before, kernel_ms())


class _Exporter(BaseHTTPRequestHandler):
    """Answers instant queries as a Prometheus that scrapes 4,000 GPUs does."""

    protocol_version = "HTTP/1.1"
    known: ClassVar[dict[str, tuple[float, bytes]]] = {}

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query).get("query", [""])[0]
        made, body = self.known.get(query, (0.0, b""))
        # Made anew now and then only, as what is measured runs in the same process.
        if time.time() - made > ANEW_SECONDS:
            self.known[query] = made, body = time.time(), self.answer(query, time.time())
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    @staticmethod
    def answer(query: str, moment: float) -> bytes:
        key = next((one.key for one in FIELDS if query.endswith(f"({one.metric})")), "")
        value = f"{moment:.3f}" if "timestamp(" in query else VALUES.get(key, "0")
        series = ",".join(f'{{"metric":{{"UUID":"GPU-{number}"}},"value":[{moment:.3f},"{value}"]}}' for number in range(GPUS))
        return f'{{"status":"success","data":{{"resultType":"vector","result":[{series}]}}}}'.encode()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is told of each request."""


def _ingest() -> Iterator[dict[str, Any]]:
    """A round over a server: all fields of all GPUs are asked for, checked, and written as a frame with its raw state."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Exporter)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    PrometheusServer.objects.create(public_id="ts-1", name="bench", url=f"http://127.0.0.1:{server.server_port}")
    rules = Rules((ip_network("127.0.0.0/8"),), http=True)
    try:
        yield _timed("ingest", lambda: _all(prometheus_collect(now=now(), rules=rules)), gpus=GPUS, fields=len(FIELDS))
    finally:
        server.shutdown()
        server.server_close()


def _all(read: int) -> None:
    assert read == GPUS, f"{read} GPUs were read, not {GPUS}"


def _rollup() -> Iterator[dict[str, Any]]:
    """What beat does when a minute is over: a reading of that minute is made into samples, and into coarser grains where they are due."""
    cluster, keys = Cluster.objects.get().pk, np.array(Gpu.objects.order_by("pk").values_list("pk", flat=True), np.uint32)
    percents, watts = np.full(GPUS, 42, np.uint8), np.full(GPUS, 430, np.uint16)
    moment = [minute_of(now())]

    def run() -> None:
        frame_write(cluster_id=cluster, at=moment[0], source="bench", columns=Columns(keys, percents, percents, watts, percents))
        moment[0] += timedelta(minutes=1)
        telemetry_rollup(now=moment[0] + SETTLE)

    yield _timed("rollup", run, gpus=GPUS)


def _read() -> Iterator[dict[str, Any]]:
    """Charts over a full store of 30 days."""
    moment = now()
    _store(moment)
    gpu = Gpu.objects.select_related("node").order_by("pk")[GPUS // 2]
    keys = list(Gpu.objects.order_by("pk").values_list("pk", flat=True))
    team = QuotaNode.objects.create(public_id="q-1", name="bench", path="bench")
    month, week = BY_KEY["30d"], BY_KEY["7d"]
    since = month.begin(moment)
    rows = GpuRollup.objects.count() + GapRollup.objects.count()
    cases: dict[str, Callable[[], object]] = {
        "read-gpu-7d": lambda: gpu_chart(gpu, chosen=week, now=moment),
        "read-gpu-30d": lambda: gpu_chart(gpu, chosen=month, now=moment),
        "read-node-30d": lambda: node_chart(gpu.node, chosen=month, now=moment),
        "read-fleet-30d": lambda: gpu_courses(cluster_id=gpu.node.cluster_id, gpus=keys, measures=["sm"], since=since, until=moment, span=HOUR),
        "read-cluster-30d": lambda: cluster_chart(gpu.node.cluster, chosen=month, now=moment),
        "read-team-30d": lambda: team_chart(team, access=RULES_ACT, chosen=month, now=moment),
        "read-gap-30d": lambda: gap_course(since, moment, step=month.step, span=HOUR),
    }
    for case, run in cases.items():
        yield _timed(case, run, gpus=GPUS, rows=rows)


def _store(moment: datetime) -> None:
    """Quarters and hours of 30 days, of all GPUs and of the gap."""
    rng = np.random.default_rng(1)
    cluster = Cluster.objects.get()
    keys = np.array(Gpu.objects.order_by("pk").values_list("pk", flat=True), np.uint32)
    ids = ids_packed(keys)
    parts = [Part(cause, "H100-SXM-80GB", "", "batch" if cause == Cause.COMPUTING else "", None) for cause in Cause]
    GpuRollup.objects.all().delete()  # of the case before, whose minutes run ahead of the clock
    for span in (QUARTER, HOUR):
        end, count = int(moment.timestamp()) // span * span, DAYS * 86_400 // span
        for batch in range(0, count, 240):
            ats = [datetime.fromtimestamp(end - span * step, moment.tzinfo) for step in range(batch, min(batch + 240, count))]
            GpuRollup.objects.bulk_create(
                GpuRollup(cluster=cluster, span=span, at=at, gpu_ids=ids, minutes=bytes([15]) * GPUS, sm=_drawn(rng), memory=_drawn(rng))
                for at in ats
            )
            gaps_write(span, {at: Gap(1, {part: int(rng.integers(1, 800_000)) for part in parts}) for at in ats})


def _drawn(rng: np.random.Generator) -> bytes:
    return rng.integers(0, 10_000, GPUS).astype("<u2").tobytes()


def print_measured(names: list[str]) -> None:
    """Each case as a line of JSON."""
    for case in measured(lambda one: not names or any(one.startswith(name) for name in names)):
        print(json.dumps(case), flush=True)
