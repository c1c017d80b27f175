"""`gpufleet ledger`: what each job held, when and in which class."""

import shutil
import sys
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from gpufleet.client import DONE
from gpufleet.client.commands import console_meant, ends_well, parser_of, print_json
from gpufleet.client.words import exact, gpus, plain, table

CLASSES = ("guaranteed", "reserved", "borrowed")
HOUR = 1000 * 3_600_000


@ends_well
def ledger(arguments: Sequence[str]) -> int:
    """Show the usage ledger: what each job held, when and in which class. Or write it as a file with --csv."""
    parser = parser_of("ledger", ledger.__doc__)
    parser.add_argument("--team", help="path of a node, with all below it")
    parser.add_argument("--job", metavar="JOB", help="public id, such as j-17")
    parser.add_argument("--type", dest="gpu_type", help="GPU type")
    parser.add_argument("--class", dest="share_class", choices=CLASSES, action="append", help="may be repeated")
    parser.add_argument("--from", dest="start", metavar="TIME", help="a day or a moment in UTC")
    parser.add_argument("--to", dest="end", metavar="TIME", help="a day or a moment in UTC")
    parser.add_argument("--sums", action="store_true", help="only GPU-hours by type and class")
    parser.add_argument("--csv", action="store_true", help="all entries as a file, on standard output")
    parser.add_argument("-n", "--limit", type=int, default=50, help="at most so many entries (default: 50)")
    asked = parser.parse_args(arguments)
    facts = {
        "team": asked.team,
        "job": asked.job,
        "type": asked.gpu_type,
        "class": asked.share_class,
        "from": asked.start,
        "to": asked.end,
    }
    console = console_meant()
    if asked.csv:
        with console.opened("/ledger/file", **facts) as answer:
            shutil.copyfileobj(answer, sys.stdout.buffer)
        return DONE
    if asked.sums:
        found = console.get("/ledger/sums", **facts)
        if asked.json:
            return print_json(found)
        print("\n".join(_sums(found["items"])))
        return DONE
    rows = list(console.pages("/ledger", asked.limit, **facts))
    if asked.json:
        return print_json({"items": rows})
    print("\n".join(_lines(rows)))
    return DONE


def _lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        (
            row["job"],
            plain(row["quota_path"]),
            plain(row["gpu_type"]),
            row["share_class"],
            gpus(row["gpu_milli"]),
            exact(row["since"]),
            exact(row["until"]) if row["until"] else "now",
            _hours(row["milli_millis"]),
        )
        for row in rows
    ]
    return table(("JOB", "TEAM", "TYPE", "CLASS", "GPUS", "FROM", "TO", "GPU-HOURS"), lines)


def _sums(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    names = [*(f"{name}_milli_millis" for name in CLASSES), "milli_millis"]
    lines = [(plain(row["gpu_type"]), *(_hours(row[name]) for name in names)) for row in rows]
    return table(("TYPE", *(name.upper() for name in CLASSES), "TOTAL"), lines)


def _hours(milli_millis: int) -> str:
    return f"{Decimal(milli_millis) / HOUR:,.3f}"
