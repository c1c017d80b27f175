"""`gpufleet chargeback`: a month of costs as a file on standard output."""

import shutil
import sys
from collections.abc import Sequence

from gpufleet.client import DONE
from gpufleet.client.commands import console_meant, ends_well, parser_of

FORMATS = ("csv", "xlsx", "pdf", "focus-1.4", "focus-1.2", "summary")


@ends_well
def chargeback(arguments: Sequence[str]) -> int:
    """Write the costs of a month as a file."""
    parser = parser_of("chargeback", chargeback.__doc__, as_json=False)
    parser.add_argument("--month", required=True, metavar="YYYY-MM")
    parser.add_argument("--format", choices=FORMATS, default="csv", help="default: csv")
    parser.add_argument("--by", default="team", help="of a summary: team, cost_centre, owner, job, gpu_type, ... or label:KEY")
    parser.add_argument("--users", action="store_true", help="with the names of people")
    parser.add_argument("--output", metavar="FILE", help="default: standard output")
    asked = parser.parse_args(arguments)
    query = {"format": asked.format, "by": asked.by, "users": "true" if asked.users else "false"}
    with console_meant().opened(f"/costs/{asked.month}/file", **query) as answer:
        if asked.output:
            with open(asked.output, "wb") as file:  # noqa: PTH123 (a path that the caller gave)
                shutil.copyfileobj(answer, file)
        else:
            shutil.copyfileobj(answer, sys.stdout.buffer)
    return DONE
