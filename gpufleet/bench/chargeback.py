"""`gpufleet bench chargeback`: a year of charges of 200 teams: rating, closing, the month's page, and its files."""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpufleet.bench import percentile, show, timing
from gpufleet.throwaway import Manage, Missing, Postgres

CASES = ("rate-month", "close-month", "page", "export-csv", "export-focus", "export-xlsx", "export-pdf", "export-summary")
NEEDED = ("rate-month", "close-month")  # the others look at what these leave
INTERVALS = 1_000_000
SECONDS = 3600


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="gpufleet bench chargeback", description="Measure a year of charges: twelve months of 200 teams.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--case", action="append", help=f"tell this case only (may be repeated; a beginning is enough): {', '.join(CASES)}")
    parser.add_argument("--intervals", type=int, default=INTERVALS, help="intervals of the ledger (default: 1,000,000)")
    parser.add_argument("--postgres", action="store_true", help="on a PostgreSQL server of its own instead of SQLite")
    given = parser.parse_args(arguments)
    wanted = [case for case in CASES if not given.case or case.startswith(tuple(given.case))]
    if not wanted:
        print(f"There is no case that begins with {' or '.join(given.case)}.", file=sys.stderr)
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

        def told(code: str) -> str:
            return manage.run("shell", "--verbosity", "0", "-c", f"from quotas import benchmarks as m; {code}", seconds=SECONDS).stdout

        told(f"m.year_fill({given.intervals})")
        # Each in a process of its own: the peak of its memory is that of the case.
        said = [told(f"m.say(m.measured({case!r}))") for case in CASES if case in wanted or case in NEEDED]
        found = [json.loads(line) for text in said for line in text.splitlines() if line.startswith("{")]
        show([_told(one) for one in found if one["case"] in wanted], as_json=given.json)
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _told(one: dict[str, Any]) -> dict[str, Any]:
    """With the 95th percentile of what the process computed: on a busy machine it says more than the clock does."""
    cpu = round(1000 * percentile(one.pop("cpu"), 0.95), 1)
    return timing(one.pop("case"), [one.pop("seconds")], cpu_p95_ms=cpu, **one)
