"""`gpufleet queue`: who waits, in the order in which the scheduler asks them, and why in that order."""

import time
from collections.abc import Sequence
from typing import Any

from gpufleet.client import AWAY, DONE, ClientError
from gpufleet.client.calls import Console
from gpufleet.client.commands import console_meant, ends_well, parser_of, print_json
from gpufleet.client.words import ago, exact, gpus, plain, plural, starts, table

PATIENCE_SECONDS = 30.0
MOST_OF_A_PAGE = 500


@ends_well
def queue(arguments: Sequence[str]) -> int:
    """List the jobs that wait, in the order in which the scheduler asks them, and why in that order."""
    parser = parser_of("queue", queue.__doc__)
    parser.add_argument("--team", help="path of a quota, with all below it")
    parser.add_argument("--class", dest="class_", choices=("inference", "interactive", "batch"), action="append", help="may be repeated")
    parser.add_argument("--owner", help="user name")
    parser.add_argument("--type", help="GPU type that it names")
    parser.add_argument("--label", action="append", metavar="KEY[=VALUE]", help="may be repeated; all must be there")
    parser.add_argument("--blocker", action="append", metavar="CODE", help="jobs with this reason, such as limit; may be repeated")
    parser.add_argument("-q", "--search", help="words in name or id")
    parser.add_argument("-n", "--limit", type=int, default=50, help="at most so many (default: 50)")
    asked = parser.parse_args(arguments)
    filters = {"team": asked.team, "class": asked.class_, "owner": asked.owner, "type": asked.type, "blocker": asked.blocker, "q": asked.search}
    filters["label"] = [f'"{label}"' for label in asked.label or ()]
    told = _queue(console_meant(), {key: value for key, value in filters.items() if value}, max(1, asked.limit))
    if asked.json:
        return print_json(told)
    print("\n".join(_lines(told, filtered=any(filters.values()))))
    return DONE


def _queue(console: Console, filters: dict[str, Any], limit: int) -> dict[str, Any]:
    """As many as are wanted of one queue, page by page."""
    told = _page(console, filters, limit, "")
    items = told["items"]
    while told["next"] and len(items) < limit:
        told = _page(console, filters, limit - len(items), told["next"])
        items += told["items"]
    return {**told, "items": items}


def _page(console: Console, filters: dict[str, Any], limit: int, after: str) -> dict[str, Any]:
    """One page; while the console still reads the fleet it is asked again."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        told: dict[str, Any] = console.get("/jobs/queue", **filters, size=min(limit, MOST_OF_A_PAGE), after=after)
        if "items" in told:
            return told
        if time.monotonic() >= until:
            raise ClientError(AWAY, "The console is still reading the fleet. Try again in a moment.")
        console.pause(told["retry_after_s"])


def _lines(told: dict[str, Any], *, filtered: bool) -> list[str]:
    rows = told["items"]
    heads = ("TURN", "JOB", "NAME", "TEAM", "CLASS", "GPUS", "SUBMITTED", "STARTS", "WHY THERE")
    lines = [
        (
            str(row["turn"]),
            row["id"],
            plain(row["name"]),
            plain(row["quota"]),
            f"{row['class']} {row['priority']}",
            gpus(row["gpus_milli"]),
            ago(row["submitted_at"]),
            starts(row),
            plain(row["why"]),
        )
        for row in rows
    ]
    counted = f"{len(rows)} of {plural(told['waiting'], 'job')} in the queue, as of {exact(told['as_of'])}."
    if not rows:
        which = "matches" if filtered else "waits here"
        return [f"No job that you may see {which}; {plural(told['waiting'], 'job')} in the whole queue, as of {exact(told['as_of'])}."]
    return [*table(heads, lines), counted]
