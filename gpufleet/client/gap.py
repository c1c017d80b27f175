"""`gpufleet gap`: what every GPU does now, and what the rest costs."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from gpufleet.client import AWAY, DONE, ClientError
from gpufleet.client.calls import Console
from gpufleet.client.commands import console_meant, ends_well, parser_of, print_json
from gpufleet.client.words import gpus, gpus_told, plain, table

CAUSES = ("computing", "idle", "unread", "starting", "failed", "reserved", "drained", "wanted", "fragmented", "unwanted")
TRIES, PAGE = 5, 500


@ends_well
def gap(arguments: Sequence[str]) -> int:
    """Show what every GPU does now by cause, and by team, class, GPU type or pool; `rows` lists the GPUs behind a figure."""
    parser = parser_of("gap", gap.__doc__)
    parser.add_argument("action", nargs="?", default="show", choices=("show", "rows"))
    parser.add_argument("--by", choices=("team", "class", "type", "pool"), default="team", help="what to break it down by (default: team)")
    parser.add_argument("--type", default="", help="one GPU type, such as H100-SXM-80GB")
    parser.add_argument("--cause", action="append", default=[], choices=CAUSES, help="rows: of this cause (may be repeated)")
    parser.add_argument("--team", default="", help="rows: of this team, or of those with this in their name")
    parser.add_argument("--class", dest="job_class", default="", help="rows: of jobs of this class, such as Batch")
    parser.add_argument("--pool", default="", help="rows: in this pool")
    parser.add_argument("-n", "--limit", type=int, default=50, help="rows: at most so many (default: 50)")
    asked = parser.parse_args(arguments)
    if asked.action == "rows":
        return _rows(asked)
    if asked.cause or asked.team or asked.job_class or asked.pool:
        parser.error("--cause, --team, --class and --pool go with `gpufleet gap rows`")
    told = console_meant().get("/fleet/gap", by=asked.by, gpu_type=asked.type)
    if asked.json:
        return print_json(told)
    print("\n".join(_lines(told)))
    return DONE


def _rows(asked: argparse.Namespace) -> int:
    place = console_meant()
    chosen = {"cause": asked.cause, "team": asked.team, "class": asked.job_class, "type": asked.type, "pool": asked.pool}
    whole, rows = _of_one_snapshot(place, asked.limit, chosen)
    if asked.json:
        return print_json({**{key: whole[key] for key in ("at", "gpu_milli", "hour_micros")}, "items": rows})
    heads = ("NODE", "GPU", "TYPE", "POOL", "TEAM", "CLASS", "JOBS", "COUNTED", "AN HOUR")
    lines = [
        (
            plain(row["node"]),
            str(row["index"]),
            plain(row["gpu_type"]),
            plain(row["pool"] or "-"),
            plain(", ".join(row["teams"])),
            ", ".join(row["classes"]),
            " ".join(row["jobs"]) or "-",
            gpus(row["gpu_milli"]),
            _money(row["hour_micros"]),
        )
        for row in rows
    ]
    print("\n".join([*table(heads, lines), "", f"{gpus_told(whole['gpu_milli'], 'counted')}, {_money(whole['hour_micros'])} an hour."]))
    return DONE


def _of_one_snapshot(place: Console, limit: int, chosen: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The figure and its rows. Where a snapshot is taken between two pages, all are read again: there is one a minute."""
    for _ in range(TRIES):
        whole = page = place.get("/fleet/gap/gpus", size=max(1, min(limit, PAGE)), **chosen)
        rows = page["items"]
        while page["next"] and len(rows) < limit and page["at"] == whole["at"]:
            page = place.get("/fleet/gap/gpus", size=min(limit - len(rows), PAGE), after=page["next"], **chosen)
            rows = [*rows, *page["items"]]
        if page["at"] == whole["at"]:
            return whole, rows[: max(0, limit)]
    raise ClientError(AWAY, "Each time that the rows were read, a new snapshot was taken meanwhile. Ask for fewer with --limit.")


def _lines(told: dict[str, Any]) -> list[str]:
    if told["at"] is None:
        return ["There is no snapshot yet. The first is taken within a minute after GPUs are known."]
    whole = told["gpu_milli"]
    causes = [
        (row["cause"], gpus(row["gpu_milli"]), _share(row["gpu_milli"], whole), _money(row["hour_micros"]), _weeks(row)) for row in told["causes"]
    ]
    rows = [
        (
            plain(row["name"]),
            gpus(row["gpu_milli"]),
            gpus(row["causes"].get("computing", 0)),
            gpus(row["causes"].get("idle", 0)),
            _money(row["gap_hour_micros"]),
            _weeks(row, "gap_"),
        )
        for row in told["rows"]
    ]
    first = table(("CAUSE", "GPUS", "SHARE", "AN HOUR", "WEEK / BEFORE"), [*causes, ("all", gpus(whole), "", "", "")])
    return [*first, "", *table((told["by"].upper(), "GPUS", "COMPUTING", "IDLE", "GAP AN HOUR", "GAP: WEEK / BEFORE"), rows)]


def _share(milli: int, whole: int) -> str:
    return f"{100 * milli / whole:.1f}%" if whole else "-"


def _money(micros: int | None) -> str:
    return "-" if micros is None else f"{micros / 1_000_000:,.2f}"


def _weeks(row: dict[str, Any], of: str = "") -> str:
    return " / ".join("-" if row[key] is None else gpus(row[key]) for key in (f"{of}this_week_milli", f"{of}last_week_milli"))
