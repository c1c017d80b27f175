"""`gpufleet bench telemetry`: what it costs to read 4,000 GPUs from Prometheus, and to draw a month of them."""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gpufleet.bench import show
from gpufleet.throwaway import Manage, Missing, Postgres

CASES = ("ingest", "rollup", "read-gpu-7d", "read-gpu-30d", "read-node-30d", "read-fleet-30d", "read-gap-30d")
SECONDS = 1200


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="gpufleet bench telemetry", description="Measure ingest and charts of telemetry with 4,000 GPUs.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--case", action="append", help=f"measure this case only (may be repeated; a beginning is enough): {', '.join(CASES)}")
    parser.add_argument("--postgres", action="store_true", help="on a PostgreSQL server of its own instead of SQLite")
    given = parser.parse_args(arguments)
    asked = given.case or []
    if asked and not any(case.startswith(name) for case in CASES for name in asked):
        print(f"There is no case that begins with {' or '.join(asked)}.", file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="gpufleet-bench-"))
    try:
        server = Postgres() if given.postgres else None
    except Missing as fault:
        print(fault, file=sys.stderr)
        return 2
    try:
        manage = Manage(folder, GPUFLEET_LOG_LEVEL="warning", **({"GPUFLEET_DATABASE_URL": server.create_database()} if server else {}))
        manage.run("migrate", "--verbosity", "0", seconds=600)
        code = f"from dashboards.benchmarks import print_measured; print_measured({asked!r})"
        told = manage.run("shell", "--verbosity", "0", "-c", code, seconds=SECONDS).stdout
        show([json.loads(line) for line in told.splitlines() if line.startswith("{")], as_json=given.json)
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return 0
