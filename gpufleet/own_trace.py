"""`gpufleet trace own`: the fleet's own past as a scenario, read from the database on the machine of the console."""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from scheduler.cli import BAD_INPUT, whole
from scheduler.trace_command import write_scenario
from scheduler.traces import MOST_OWN_DAYS

EPILOG = "Without a shell: What-if, Traces, Add a trace in the console, or GET /api/v1/traces/own?days=7."


def main(arguments: Sequence[str]) -> int:
    """Write the jobs of this fleet's last days, with its nodes and quotas of today, as a scenario to simulate."""
    parser = argparse.ArgumentParser(prog="gpufleet trace own", description=main.__doc__, epilog=EPILOG)
    parser.add_argument("--days", type=whole(1), default=7, metavar="N", help=f"how far it goes back, up to {MOST_OWN_DAYS} (default 7)")
    parser.add_argument("--data-dir", metavar="PATH", help="the folder of an embedded console")
    parser.add_argument("--out", default="-", metavar="FILE", help="where to write the scenario (default -: standard output)")
    options = parser.parse_args(arguments)
    if options.days > MOST_OWN_DAYS:
        parser.error(f"--days is at most {MOST_OWN_DAYS}")
    if options.data_dir:
        os.environ["GPUFLEET_DATA_DIR"] = str(Path(options.data_dir).expanduser().absolute())
    from gpufleet.environment import ConfigurationError

    try:
        return _written(options.days, options.out)
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return BAD_INPUT


def _written(days: int, out: str) -> int:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpufleet.settings")
    import django
    from django.apps import apps
    from django.conf import settings

    database = settings.DATABASES["default"]
    if not apps.ready:
        if database["ENGINE"] == "gpufleet.core.sqlite" and not Path(database["NAME"]).exists():
            print(f"There is no database in {Path(database['NAME']).parent}. Name the folder of the console by --data-dir.", file=sys.stderr)
            return BAD_INPUT
        django.setup()
    from django.db import DatabaseError
    from django.utils import timezone

    from scheduler.services.forecasts.history import history

    left_out: Counter[str] = Counter()
    try:
        document = history(length=timedelta(days=days), now=timezone.now(), left_out=left_out)
    except DatabaseError as error:
        print(f"The database cannot be read: {error}. gpufleet doctor says more.", file=sys.stderr)
        return BAD_INPUT
    return write_scenario(document, out, None, left_out.most_common())
