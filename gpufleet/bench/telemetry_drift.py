"""Rounds of ingest every fifteen seconds from a real Prometheus that scrapes an exporter of 4,000 GPUs, for half an hour: how long they take, and
whether that grows. The exporter is a process of its own: `python -m gpufleet.bench.telemetry_drift PORT GPUS`.
"""

import contextlib
import json
import os
import random
import shutil
import sys
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from time import time
from typing import Any

from gpufleet.bench import percentile, timing
from gpufleet.throwaway import Manage, Missing, Postgres, Program, accepts, free_port, wait_until

GPUS, EVERY_SECONDS = 4_000, 15
# As NVIDIA's exporter names them; a value is drawn between the two, anew for each scrape.
METRICS = {
    "DCGM_FI_PROF_SM_ACTIVE": (0.0, 1.0),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": (0.0, 0.6),
    "DCGM_FI_PROF_DRAM_ACTIVE": (0.0, 0.8),
    "DCGM_FI_DEV_GPU_UTIL": (0, 100),
    "DCGM_FI_DEV_FB_USED": (0, 80_000),
    "DCGM_FI_DEV_FB_FREE": (1, 80_000),
    "DCGM_FI_DEV_POWER_USAGE": (70, 700),
    "DCGM_FI_DEV_GPU_TEMP": (30, 80),
    "DCGM_FI_DEV_XID_ERRORS": (0, 0),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": (0, 0),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": (0, 0),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": (0, 0),
}
FLEET = """
from dashboards.prometheus.models import PrometheusServer
from scheduler.models import Cluster, Gpu, GpuType, Node
kind = GpuType.objects.create(name="H100-SXM-80GB", board="H100-80", memory_mib=81_559)
cluster = Cluster.objects.create(public_id="c-1", name="bench")
Node.objects.bulk_create(Node(public_id=f"n-{{n}}", cluster=cluster, name=f"node-{{n:04}}", gpu_type=kind) for n in range(({gpus} + 7) // 8))
nodes = list(Node.objects.order_by("pk"))
Gpu.objects.bulk_create(
    (Gpu(public_id=f"g-{{n}}", node=nodes[n // 8], index=n % 8, gpu_type=kind, memory_mib=81_559, uuid=f"GPU-{{n}}") for n in range({gpus})),
    batch_size=1000,
)
PrometheusServer.objects.create(public_id="ts-1", name="bench", url="{url}")
"""
# Begins a round every fifteen seconds by the clock, and the minute's roll-ups as beat does; says of each what it took.
ROUNDS = """
import json, os, resource, time
from ipaddress import ip_network
from dashboards.models import TelemetryFrame
from dashboards.prometheus.collect import prometheus_collect
from dashboards.telemetry.rollups import telemetry_rollup
from gpufleet.core.times import now
from scheduler.notify.outgoing import Rules
if {core} is not None:
    os.sched_setaffinity(0, [{core}])
rules, first = Rules((ip_network("127.0.0.0/8"),), http=True), time.time()
for number in range({rounds}):
    wait = first + number * {every} - time.time()
    if wait > 0:
        time.sleep(wait)
    moment, began, computed = now(), time.perf_counter(), time.process_time()
    read = prometheus_collect(now=moment, rules=rules)
    took, cpu = time.perf_counter() - began, time.process_time() - computed
    sm = sum(sum(frame.sm_active) for frame in TelemetryFrame.objects.all())
    print(json.dumps({{"late": max(0.0, -wait), "seconds": took, "cpu": cpu, "read": read, "at": moment.timestamp(), "sm": sm,
                       "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}}), flush=True)
    if number % 4 == 3:
        telemetry_rollup(now=now())
"""


def measured_drift(*, postgres: bool, minutes: float, gpus: int) -> Iterator[dict[str, Any]]:
    found = shutil.which("prometheus")
    if found is None:
        raise Missing("Prometheus is not installed (Debian package: prometheus).")
    folder = Path(tempfile.mkdtemp(prefix="gpufleet-bench-"))
    with ExitStack() as ends:
        ends.callback(shutil.rmtree, folder, ignore_errors=True)
        core = ends.enter_context(_core_apart())
        server = ends.enter_context(closing(Postgres())) if postgres else None
        manage = Manage(folder, GPUFLEET_LOG_LEVEL="warning", **({"GPUFLEET_DATABASE_URL": server.create_database()} if server else {}))
        port = free_port()
        exporter = manage.start("-m", "gpufleet.bench.telemetry_drift", str(port), str(gpus), name="exporter")
        ends.callback(exporter.stop)
        exporter.wait_for(lambda: accepts(port), what="the exporter to answer")
        url, prometheus = _prometheus(found, folder, port)
        ends.callback(prometheus.stop)
        manage.run("migrate", "--verbosity", "0", seconds=600)
        manage.run("shell", "--verbosity", "0", "-c", FLEET.format(gpus=gpus, url=url))
        wait_until(lambda: _value(url, "count(DCGM_FI_DEV_PCIE_REPLAY_COUNTER)") == gpus, seconds=90, what="the first scrape")
        rounds = max(4, round(minutes * 60 / EVERY_SECONDS))
        done = manage.run("shell", "--verbosity", "0", "-c", ROUNDS.format(rounds=rounds, every=EVERY_SECONDS, core=core), seconds=minutes * 60 + 300)
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        yield told(rows, gpus=gpus, core=core, computed=[_value(url, "sum(DCGM_FI_PROF_SM_ACTIVE)", at=row["at"]) for row in rows])


@contextlib.contextmanager
def _core_apart() -> Iterator[int | None]:
    """A core for ingest alone: what is started meanwhile (exporter, Prometheus, PostgreSQL) has the others. None where there is no other."""
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    if len(before) < 2:
        yield None
        return
    core = min(before)
    os.sched_setaffinity(0, before - {core})
    try:
        yield core
    finally:
        os.sched_setaffinity(0, before)


def told(rows: Sequence[dict[str, Any]], *, gpus: int, computed: Sequence[float | None], core: int | None = None) -> dict[str, Any]:
    """One case from all rounds. `drift_ms`: by how much the median of the last third is above that of the first. `computed`: by Prometheus itself.

    `core`: the one on which all rounds ran, None: on any. `late_ms_last`: how late the last third began at most.
    """
    cpu = [row["cpu"] for row in rows]
    took, third = [row["seconds"] for row in rows], max(1, len(rows) // 3)
    off = [abs(row["sm"] / 100 - value) / value * 100 for row, value in zip(rows, computed, strict=True) if value]
    return timing(
        "ingest-drift",
        [took],
        core=core,
        max_ms=round(1000 * max(took)),
        cpu_ms=round(1000 * median(cpu)),
        cpu_p95_ms=round(1000 * percentile(cpu, 0.95)),
        rounds=len(rows),
        fields=len(METRICS),
        drift_ms=round(1000 * (median(took[-third:]) - median(took[:third])), 1),
        cpu_drift_ms=round(1000 * (median(cpu[-third:]) - median(cpu[:third])), 1),
        late_ms_max=round(1000 * max(row["late"] for row in rows)),
        late_ms_last=round(1000 * max(row["late"] for row in rows[-third:])),
        short_rounds=sum(row["read"] != gpus for row in rows),
        memory_mib_first=round(rows[min(3, len(rows) - 1)]["mib"]),
        memory_mib_last=round(rows[-1]["mib"]),
        off_promql_percent_max=round(max(off), 3) if off else None,
        compared_rounds=len(off),
    )


def _prometheus(program: str, folder: Path, exporter: int) -> tuple[str, Program]:
    port, every = free_port(), f"{EVERY_SECONDS}s"
    scrape = {"job_name": "dcgm", "honor_labels": True, "static_configs": [{"targets": [f"127.0.0.1:{exporter}"]}]}
    settings = {"global": {"scrape_interval": every, "scrape_timeout": every}, "scrape_configs": [scrape]}
    (folder / "prometheus.yml").write_text(json.dumps(settings))  # JSON is YAML
    flags = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb", f"--web.listen-address=127.0.0.1:{port}"]
    run = Program([program, *flags, "--log.level=warn"], log=folder / "prometheus.log")
    run.wait_for(lambda: accepts(port), what="Prometheus to answer")
    return f"http://127.0.0.1:{port}", run


def _value(url: str, query: str, *, at: float | None = None) -> float | None:
    asked = urllib.parse.urlencode({"query": query, **({"time": f"{at:.3f}"} if at else {})})
    try:
        with urllib.request.urlopen(f"{url}/api/v1/query?{asked}", timeout=30) as answer:  # noqa: S310 (our own Prometheus)
            result = json.load(answer)["data"]["result"]
    except OSError:
        return None  # it is not ready yet
    return float(result[0]["value"][1]) if result else None


def exporter_serve(port: int, gpus: int) -> None:
    """Answers every scrape with values drawn anew."""
    labels = [f'{{gpu="{number % 8}",UUID="GPU-{number}",Hostname="node-{number // 8:04}",modelName="NVIDIA H100"}}' for number in range(gpus)]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            rng = random.Random(time())  # noqa: S311 (load)
            lines = [f"{metric}{label} {rng.uniform(*ends):.4f}\n" for metric, ends in METRICS.items() for label in labels]
            body = "".join(lines).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing is told of each scrape."""

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    exporter_serve(int(sys.argv[1]), int(sys.argv[2]))
