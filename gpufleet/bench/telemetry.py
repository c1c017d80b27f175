"""`gpufleet bench telemetry`: what it costs to read 4,000 GPUs from Prometheus, to draw a month of them, and pages over a store of months."""

import argparse
import sys
from collections.abc import Iterator, Sequence

from gpufleet.bench import show
from gpufleet.bench.apart import Row, Told, measured_apart
from gpufleet.throwaway import Missing

CASES = ("ingest", "rollup", "read-gpu-7d", "read-gpu-30d", "read-node-30d", "read-fleet-30d", "read-cluster-30d", "read-team-30d", "read-gap-30d")


def main(arguments: Sequence[str]) -> int:
    if "--pages" in arguments:
        return _pages(arguments)
    if "--drift" in arguments:
        return _drift(arguments)
    parser = argparse.ArgumentParser(prog="gpufleet bench telemetry", description="Measure ingest and charts of telemetry with 4,000 GPUs.")
    parser.add_argument("--pages", action="store_true", help="pages over a store of months instead: see gpufleet bench telemetry --pages --help")
    parser.add_argument("--drift", action="store_true", help="rounds over a real Prometheus instead: see gpufleet bench telemetry --drift --help")
    return measured_apart(parser, arguments, CASES, _measure)


def _measure(told: Told, wanted: list[str], _: argparse.Namespace) -> list[Row]:
    return told(f"from dashboards.benchmarks import print_measured; print_measured({wanted!r})")


def _pages(arguments: Sequence[str]) -> int:
    from gpufleet.bench.telemetry_pages import measured_pages

    parser = argparse.ArgumentParser(prog="gpufleet bench telemetry --pages", description="Measure pages over a store of months.")
    parser.add_argument("--pages", action="store_true", help="this")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--case", action="append", help="measure these cases only (may be repeated; a beginning is enough)")
    parser.add_argument("--postgres", action="store_true", help="4,000 GPUs and 30 days on a PostgreSQL server of its own; else 512 and 90 on SQLite")
    parser.add_argument("--days", type=int, help="so many days instead")
    parser.add_argument("--keep", action="store_true", help="then go on serving the store, until interrupted")
    given = parser.parse_args(arguments)
    wanted = [] if given.case is None else given.case
    rows = measured_pages(
        postgres=given.postgres,
        days=given.days or (30 if given.postgres else 90),
        size="large" if given.postgres else "small",
        keep=given.keep,
        wanted=lambda case: not wanted or any(case.startswith(one) or one.startswith(case) for one in wanted),
    )
    return _shown(rows, as_json=given.json)


def _drift(arguments: Sequence[str]) -> int:
    from gpufleet.bench.telemetry_drift import GPUS, measured_drift

    parser = argparse.ArgumentParser(
        prog="gpufleet bench telemetry --drift", description="Measure rounds of ingest from a real Prometheus over time."
    )
    parser.add_argument("--drift", action="store_true", help="this")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--postgres", action="store_true", help="on a PostgreSQL server of its own instead of SQLite")
    parser.add_argument("--minutes", type=float, default=30.0, help="for so long")
    parser.add_argument("--gpus", type=int, default=GPUS, help="of so many GPUs")
    given = parser.parse_args(arguments)
    return _shown(measured_drift(postgres=given.postgres, minutes=given.minutes, gpus=given.gpus), as_json=given.json)


def _shown(rows: Iterator[Row], *, as_json: bool) -> int:
    found = []
    try:
        for row in rows:
            found.append(row)
            if not as_json:
                show([row], as_json=False)
                sys.stdout.flush()
    except Missing as fault:
        print(fault, file=sys.stderr)
        return 2
    if as_json:
        show(found, as_json=True)
    return 0
