"""`gpufleet gap`: what every GPU does now, and what the rest costs."""

from collections.abc import Sequence
from typing import Any

from gpufleet.client import DONE
from gpufleet.client.commands import console_meant, ends_well, parser_of, print_json
from gpufleet.client.words import gpus, plain, table


@ends_well
def gap(arguments: Sequence[str]) -> int:
    """Show what every GPU does now by cause, and by team, class, GPU type or pool."""
    parser = parser_of("gap", gap.__doc__)
    parser.add_argument("--by", choices=("team", "class", "type", "pool"), default="team", help="what to break it down by (default: team)")
    parser.add_argument("--type", default="", help="one GPU type, such as H100-SXM-80GB")
    asked = parser.parse_args(arguments)
    told = console_meant().get("/fleet/gap", by=asked.by, gpu_type=asked.type)
    if asked.json:
        return print_json(told)
    print("\n".join(_lines(told)))
    return DONE


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
        )
        for row in told["rows"]
    ]
    first = table(("CAUSE", "GPUS", "SHARE", "AN HOUR", "WEEK / BEFORE"), [*causes, ("all", gpus(whole), "", "", "")])
    return [*first, "", *table((told["by"].upper(), "GPUS", "COMPUTING", "IDLE", "GAP AN HOUR"), rows)]


def _share(milli: int, whole: int) -> str:
    return f"{100 * milli / whole:.1f} %" if whole else "-"


def _money(micros: int | None) -> str:
    return "-" if micros is None else f"{micros / 1_000_000:,.2f}"


def _weeks(row: dict[str, Any]) -> str:
    return " / ".join("-" if row[key] is None else gpus(row[key]) for key in ("this_week_milli", "last_week_milli"))
