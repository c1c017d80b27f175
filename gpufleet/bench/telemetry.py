"""`gpufleet bench telemetry`: what it costs to read 4,000 GPUs from Prometheus, and to draw a month of them."""

import argparse
from collections.abc import Sequence

from gpufleet.bench.apart import Row, Told, measured_apart

CASES = ("ingest", "rollup", "read-gpu-7d", "read-gpu-30d", "read-node-30d", "read-fleet-30d", "read-cluster-30d", "read-team-30d", "read-gap-30d")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="gpufleet bench telemetry", description="Measure ingest and charts of telemetry with 4,000 GPUs.")
    return measured_apart(parser, arguments, CASES, _measure)


def _measure(told: Told, wanted: list[str], _: argparse.Namespace) -> list[Row]:
    return told(f"from dashboards.benchmarks import print_measured; print_measured({wanted!r})")
