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
    parser.add_argument("-n", "--limit", type=int, default=50, help="at most so many (default: 50)")
    asked = parser.parse_args(arguments)
    told = _queue(console_meant(), asked.team, max(1, asked.limit))
    if asked.json:
        return print_json(told)
    print("\n".join(_lines(told)))
    return DONE


def _queue(console: Console, team: str | None, limit: int) -> dict[str, Any]:
    """As many as are wanted of one queue, page by page."""
    told = _page(console, team, limit, "")
    items = told["items"]
    while told["next"] and len(items) < limit:
        told = _page(console, team, limit - len(items), told["next"])
        items += told["items"]
    return {**told, "items": items}


def _page(console: Console, team: str | None, limit: int, after: str) -> dict[str, Any]:
    """One page; while the console still reads the fleet it is asked again."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        told: dict[str, Any] = console.get("/jobs/queue", team=team, size=min(limit, MOST_OF_A_PAGE), after=after)
        if "items" in told:
            return told
        if time.monotonic() >= until:
            raise ClientError(AWAY, "The console is still reading the fleet. Try again in a moment.")
        console.pause(told["retry_after_s"])


def _lines(told: dict[str, Any]) -> list[str]:
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
        return [f"No job that you may see waits here; {plural(told['waiting'], 'job')} in the whole queue, as of {exact(told['as_of'])}."]
    return [*table(heads, lines), counted]
