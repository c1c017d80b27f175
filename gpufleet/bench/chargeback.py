"""`gpufleet bench chargeback`: a year of charges of 200 teams: rating, closing, the month's page, and its files."""

import argparse
from collections.abc import Sequence

from gpufleet.bench import percentile, timing
from gpufleet.bench.apart import Row, Told, measured_apart

CASES = (
    *("rate-month", "sum-month", "close-month", "page", "page-job", "page-label", "page-period", "page-days", "doctor"),
    *("export-csv", "export-focus", "export-xlsx", "export-pdf", "export-summary"),
)
NEEDED = ("rate-month", "sum-month", "close-month")  # the others look at what these leave
INTERVALS = 1_000_000
MODULE = "from quotas import benchmarks as m; "
# With the calibration kernel before and after, in the same process.
MEASURE = (
    f"{MODULE}from scheduler.benchmarks.kernel import kernel_ms; before = kernel_ms(); found = m.measured({{case!r}}); "
    "m.say(found | {{'kernel_ms': round((before + kernel_ms()) / 2, 2)}})"
)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="gpufleet bench chargeback", description="Measure a year of charges: twelve months of 200 teams.")
    parser.add_argument("--intervals", type=int, default=INTERVALS, help="intervals of the ledger (default: 1,000,000)")
    return measured_apart(parser, arguments, CASES, _measure)


def _measure(told: Told, wanted: list[str], given: argparse.Namespace) -> list[Row]:
    told(f"{MODULE}m.year_fill({given.intervals})")
    found = [row for case in CASES if case in wanted or case in NEEDED for row in told(MEASURE.format(case=case))]
    return [_told(one) for one in found if one["case"] in wanted]


def _told(one: Row) -> Row:
    """With the 95th percentile of what the process computed: on a busy machine it says more than the clock does."""
    cpu = round(1000 * percentile(one.pop("cpu"), 0.95), 1)
    timed = timing(one.pop("case"), [one.pop("seconds")], cpu_p95_ms=cpu, **one)
    return timed | {"p95_kernels": round(timed["p95_ms"] / timed["kernel_ms"], 2)}
