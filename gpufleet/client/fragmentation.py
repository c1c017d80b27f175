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
    parser.add_argument("--plan", type=int, metavar="MOVES", help="what would happen if so many jobs may move; changes nothing")
    parser.add_argument("--apply", type=int, metavar="MOVES", help="let so many more jobs be moved for an hour")
    parser.add_argument("--reason", default="", help="why, for the record; required with --apply")
    asked = parser.parse_args(arguments)
    if asked.plan is not None:
        plan = console_meant().get("/fleet/defragmentation", moves=asked.plan)
        return print_json(plan) if asked.json else _print(_planned(plan))
    if asked.apply is not None:
        made = console_meant().post("/defragmentations", {"moves": asked.apply, "reason": asked.reason})
        allowed = f"{made['id']}: up to {plural(made['moves'], 'job')} more may move until {made['ends_at']}."
        return print_json(made) if asked.json else _print([allowed])
    told = console_meant().get("/fleet/fragmentation", gpu_type=asked.type)
    if asked.json:
        return print_json(told)
    return _print(_lines(told))


def _print(lines: Sequence[str]) -> int:
    print("\n".join(lines))
    return DONE


def _planned(plan: dict[str, Any]) -> list[str]:
    lines = ["No job would move."] if not plan["moves"] else []
    rows = [(*_job(one), _tenths(one["gpus_milli"]), _nodes(one["leaves"]), _nodes(one["comes_to"]), f"{one['lost_s']} s") for one in plan["moves"]]
    if rows:
        lines += table(("JOB", "NAME", "GPUS", "LEAVES", "COMES TO", "DONE AGAIN"), rows)
    if plan["starts"]:
        starts = [(*_job(one), _tenths(one["gpus_milli"])) for one in plan["starts"]]
        lines += ["", *table(("STARTS", "NAME", "GPUS"), starts)]
    if plan["largest"]:
        largest = [(plain(one["gpu_type"]), plain(one["level"]), str(one["now_gpus"]), str(one["then_gpus"])) for one in plan["largest"]]
        lines += ["", *table(("TYPE", "LARGEST GANG IN ONE", "NOW", "THEN"), largest)]
    if plan["stuck"]:
        stuck = [(*_job(one), plain(one["why"])) for one in plan["stuck"]]
        lines += ["", *table(("WAITS ON", "NAME", "WHY"), stuck)]
    return lines


def _job(one: dict[str, Any]) -> tuple[str, str]:
    return plain(one["job"]) or "-", plain(one["job_name"]) or "-"


def _nodes(names: Sequence[str]) -> str:
    return ", ".join(plain(name) for name in names)


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
