"""Cases that are measured in processes over a database of their own, which is gone afterwards."""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpufleet.bench import show
from gpufleet.throwaway import Manage, Missing, Postgres

Row = dict[str, Any]
# Runs a piece of code in a process of its own, and returns the rows that it printed: the peak of its memory is that of the case.
Told = Callable[[str], list[Row]]
SECONDS = 3600


def measured_apart(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str],
    cases: Sequence[str],
    measure: Callable[[Told, list[str], argparse.Namespace], list[Row]],
) -> int:
    """Read what is asked, make an empty database, measure, and print. `measure` gets the cases that are wanted."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--case", action="append", help=f"measure this case only (may be repeated; a beginning is enough): {', '.join(cases)}")
    parser.add_argument("--postgres", action="store_true", help="on a PostgreSQL server of its own instead of SQLite")
    given = parser.parse_args(arguments)
    wanted = [case for case in cases if not given.case or case.startswith(tuple(given.case))]
    if not wanted:
        print(f"There is no case that begins with {' or '.join(given.case)}.", file=sys.stderr)
        return 2
    try:
        server = Postgres() if given.postgres else None
    except Missing as fault:
        print(fault, file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="gpufleet-bench-"))
    try:
        manage = Manage(folder, GPUFLEET_LOG_LEVEL="warning", **({"GPUFLEET_DATABASE_URL": server.create_database()} if server else {}))
        manage.run("migrate", "--verbosity", "0", seconds=600)

        def told(code: str) -> list[Row]:
            said = manage.run("shell", "--verbosity", "0", "-c", code, seconds=SECONDS).stdout
            return [json.loads(line) for line in said.splitlines() if line.startswith("{")]

        show(measure(told, wanted, given), as_json=given.json)
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return 0
