"""Measurements of the product by the product.

`gpufleet bench KIND --json` prints `{"cases": [{"case": …, "median_ms": …, "p95_ms": …, "runs": …}, …]}`, whatever the kind.
"""

import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

KINDS = {
    "api": "submissions by the hundred, and lists over a hundred thousand jobs",
    "chargeback": "a year of charges of 200 teams: the month's page, and its files",
    "console": "pages, live updates and start times of the console",
    "engine": "the scheduler's planning",
    "loop": "ticks, submissions, live pages and an idle console",
    "predictions": "foreseen starts against starts, over simulated weeks",
    "quotas": "the quota editor of 1,500 projects, and previews of a change",
    "simulate": "whole simulations, of a drawn fleet and of real traces",
    "slurm": "starts on a real Slurm of simulated nodes, beside plain sbatch",
    "telemetry": "ingest of 4,000 GPUs, charts of 30 days, and pages over months",
}


def main(arguments: Sequence[str]) -> int:
    """Measure the product with its own programs. Without a kind, or with one that there is not, the kinds are listed."""
    lines = ["usage: gpufleet bench KIND [--json] [--case NAME] [--long]", *(f"  {kind:11} {text}" for kind, text in KINDS.items())]
    asks_for_help = bool(arguments) and arguments[0] in {"-h", "--help"}
    print("\n".join(lines), file=sys.stdout if asks_for_help else sys.stderr)
    return 0 if asks_for_help else 2


def percentile(values: Sequence[float], part: float) -> float:
    """The nearest-rank percentile: a value that was measured, not one between two."""
    ordered = sorted(values)
    return ordered[max(1, math.ceil(part * len(ordered))) - 1]


def timing(case: str, runs: Sequence[Sequence[float]], **more: Any) -> dict[str, Any]:
    """One case from the seconds of several runs: the median over the runs of each run's median and 95th percentile."""
    return {
        "case": case,
        "median_ms": round(statistics.median(statistics.median(run) for run in runs) * 1000, 2),
        "p95_ms": round(statistics.median(percentile(run, 0.95) for run in runs) * 1000, 2),
        "runs": len(runs),
        **more,
    }


def show(cases: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"cases": list(cases)}, indent=2))
        return
    for case in cases:
        print(f"{case['case']:34}" + "  ".join(f"{name} {value}" for name, value in case.items() if name != "case"))
