"""`gpufleet bench quotas`: the editor of a tree of 1,500 projects, and the previews of a change of it."""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gpufleet.bench import show, timing
from gpufleet.throwaway import Manage, Missing, Postgres

CASES = ("editor", "preview", "week")
SECONDS = 900


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="gpufleet bench quotas", description="Measure a quota tree of 1,500 projects over 4,000 GPUs.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--case", action="append", help=f"run this case only (may be repeated; a beginning is enough): {', '.join(CASES)}")
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
            return manage.run("shell", "--verbosity", "0", "-c", f"from scheduler.benchmarks import quotas as m; {code}", seconds=SECONDS).stdout

        told("m.world_fill()")
        said = [told(f"m.measured({case!r})") for case in wanted]
        found = [json.loads(line) for text in said for line in text.splitlines() if line.startswith("{")]
        show([timing(one["case"], [one["seconds"]]) for one in found], as_json=given.json)
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return 0
