"""`gpufleet fragmentation`: free GPUs that jobs cannot use, and what that keeps out."""

from collections.abc import Sequence
from typing import Any

from gpufleet.client import DONE
from gpufleet.client.commands import console_meant, ends_well, parser_of, print_json
from gpufleet.client.words import gpus, plain, plural, table


@ends_well
def fragmentation(arguments: Sequence[str]) -> int:
    """Show free GPUs that jobs cannot use by type, pool and cause, and the jobs that this keeps out."""
    parser = parser_of("fragmentation", fragmentation.__doc__)
    parser.add_argument("--type", default="", help="one GPU type, such as H100-SXM-80GB")
    asked = parser.parse_args(arguments)
    told = console_meant().get("/fleet/fragmentation", gpu_type=asked.type)
    if asked.json:
        return print_json(told)
    print("\n".join(_lines(told)))
    return DONE


def _lines(told: dict[str, Any]) -> list[str]:
    if told["at"] is None:
        return ["There is no snapshot yet. The first is taken within a minute after GPUs are known."]
    rows = [
        (
            plain(pile["gpu_type"]),
            plain(pile["pool"]) or "-",
            _tenths(pile["free_milli"]),
            _unusable(pile["waiting"]),
            _unusable(pile["usual"]),
            ", ".join(f"{cause} {_tenths(milli)}" for cause, milli in pile["waiting"]["causes"].items()) or "-",
        )
        for pile in told["piles"]
    ]
    lines = table(("TYPE", "POOL", "FREE", "UNUSABLE BY QUEUE", "BY USUAL DEMAND", "CAUSES"), rows)
    gangs = [(plain(kind), ", ".join(f"{gpus_} in one {plain(level)}" for level, gpus_ in of.items())) for kind, of in told["largest_gang"].items()]
    lines += ["", *table(("TYPE", "LARGEST GANG NOW"), gangs)]
    if told["kept_out"]:
        kept = [
            (plain(one["gpu_type"]), _shape(one), str(one["jobs"]), str(one["free_gpus"]), f"{one['room_workers']} of {one['workers']}", one["cause"])
            for one in told["kept_out"]
        ]
        lines += ["", *table(("TYPE", "KEPT OUT", "JOBS", "FREE", "WORKERS THAT FIT", "CAUSE"), kept)]
    return lines


def _unusable(against: dict[str, Any]) -> str:
    return _tenths(against["useless_milli"]) if against["jobs"] else "-"


def _tenths(milli: int) -> str:
    return gpus(round(milli, -2))


def _shape(one: dict[str, Any]) -> str:
    text = f"{plural(one['workers'], 'worker')} x {plural(one['gpus'], 'GPU')}"
    return f"{text} in one {plain(one['level'])}" if one["level"] and one["workers"] > 1 else text
