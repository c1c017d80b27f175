"""`gpufleet reserve` and `gpufleet budget`: capacity held by the calendar, and what teams may use."""

import sys
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from gpufleet.client import DONE, REFUSED
from gpufleet.client.calls import Console
from gpufleet.client.commands import Arguments, console_meant, ends_well, parser_of, print_json
from gpufleet.client.description import seconds
from gpufleet.client.words import coloured, exact, gpus, gpus_told, plain, plural, table
from gpufleet.core.amounts import ungrouped

Action = Callable[[Sequence[str]], int]


def _chosen(name: str, actions: dict[str, Action], arguments: Sequence[str], text: str | None) -> int:
    parser = Arguments(prog=f"gpufleet {name}", description=text, allow_abbrev=False)
    parser.add_argument("action", choices=tuple(actions))
    asked = parser.parse_args(list(arguments[:1]))
    return actions[asked.action](arguments[1:])


@ends_well
def reserve(arguments: Sequence[str]) -> int:
    """Reserve GPUs by the calendar: ls, add, show, windows, floors, approve, deny, cancel, end."""
    return _chosen("reserve", RESERVE, arguments, reserve.__doc__)


@ends_well
def budget(arguments: Sequence[str]) -> int:
    """Limit what teams use: ls, add, show, change, except, rm."""
    return _chosen("budget", BUDGET, arguments, budget.__doc__)


# Reservations


def _reserve_ls(arguments: Sequence[str]) -> int:
    parser = parser_of("reserve ls", "List reservations and floors that you may see.")
    parser.add_argument("--state", choices=("requested", "approved", "denied", "cancelled"), action="append", help="may be repeated")
    parser.add_argument("--team", help="path of a quota, with all below it")
    parser.add_argument("-n", "--limit", type=int, default=50, help="at most so many (default: 50)")
    asked = parser.parse_args(arguments)
    rows = list(console_meant().pages("/reservations", asked.limit, state=asked.state, team=asked.team))
    if asked.json:
        return print_json({"items": rows})
    lines = [
        (
            row["id"],
            plain(row["name"]),
            row["state"],
            _owner(row),
            gpus(row["gpus_milli"]),
            plain(row["gpu_type"]),
            exact(row["starts_at"]),
            _end(row),
        )
        for row in rows
    ]
    print("\n".join(table(("RESERVATION", "NAME", "STATE", "FOR", "GPUS", "TYPE", "START", "END"), lines)))
    return DONE


def _owner(row: dict[str, Any]) -> str:
    return plain(row["quota"] or f"{row['job_class']} jobs")


def _end(row: dict[str, Any]) -> str:
    return exact(row["ends_at"]) if row["ends_at"] else "standing"


def _reserve_add(arguments: Sequence[str]) -> int:
    parser = parser_of("reserve add", "Reserve GPUs for a team, or hold a floor for a class of jobs.")
    parser.add_argument("--name", required=True)
    parser.add_argument("--team", help="path of the team's quota")
    parser.add_argument("--class", dest="job_class", choices=("inference", "interactive", "batch"), help="of a floor, instead of a team")
    parser.add_argument("--type", dest="gpu_type", required=True, help="GPU type")
    parser.add_argument("--gpus", type=int, help="so many GPUs")
    parser.add_argument("--nodes", type=int, help="so many whole nodes, instead of GPUs")
    parser.add_argument("--block", dest="level", help="all GPUs in one block of this level of the topology")
    parser.add_argument("--from", dest="starts_at", required=True, metavar="TIME", help="start, such as 2026-12-01T09:00:00+01:00")
    parser.add_argument("--until", dest="ends_at", metavar="TIME", help="end; without it the reservation is standing")
    parser.add_argument("--rule", help="RFC 5545 rule, such as FREQ=WEEKLY;BYDAY=MO,TU,WE,TH,FR")
    parser.add_argument("--zone", help="time zone whose clock the rule follows (default: UTC)")
    parser.add_argument("--notice", metavar="LENGTH", help="how long before the start jobs are asked to leave (default: 10m)")
    parser.add_argument("--lead", metavar="LENGTH", help="how long before the start no job in the way starts (default: 15m)")
    parser.add_argument("--decay", metavar="LENGTH", help="release a window that nobody claims within this time")
    parser.add_argument("--lend", action="store_true", help="lend unused GPUs to preemptible jobs")
    parser.add_argument("--purpose", help="what it is for")
    parser.add_argument("--dry-run", action="store_true", help="show the preview: windows, capacity, jobs that must leave")
    asked = parser.parse_args(arguments)
    names = {"name": "name", "team": "quota", "job_class": "job_class", "gpu_type": "gpu_type", "gpus": "gpus", "nodes": "nodes", "level": "level"}
    names |= {"starts_at": "starts_at", "ends_at": "ends_at", "rule": "rule", "zone": "zone", "purpose": "purpose"}
    said = {key: value for name, key in names.items() if (value := getattr(asked, name)) is not None}
    lengths = {"notice_s": asked.notice, "lead_s": asked.lead, "decay_s": asked.decay}
    said |= {key: int(seconds(length)) for key, length in lengths.items() if length}
    said |= {"idle": "lent"} if asked.lend else {}
    console = console_meant()
    if asked.dry_run:
        return _preview(console.post("/reservations/preview", said), as_json=asked.json)
    made = console.post("/reservations", said)
    if asked.json:
        return print_json(made)
    print(f"{made['id']}  {plain(made['name'])}  {coloured(made['state'])}")
    return DONE


def _preview(found: dict[str, Any], *, as_json: bool) -> int:
    if as_json:
        print_json(found)
        return REFUSED if found["errors"] else DONE
    for fault in found["errors"]:
        print(f"{plain(fault['path'])}: {plain(fault['message'])}", file=sys.stderr)
    if found["errors"]:
        return REFUSED
    healthy, reserved, promised = (gpus(found[name]) for name in ("capacity_milli", "reserved_milli", "promised_milli"))
    print(f"Healthy {healthy} GPUs, reserved by others {reserved}, guaranteed {promised}.")
    if found["over_guarantees_milli"]:
        print(f"Promises exceed the healthy capacity by {gpus_told(found['over_guarantees_milli'])}.")
    for window in found["windows"]:
        print(f"Window {exact(window['starts_at'])} to {_end(window)}")
    _leaving(found)
    return DONE


def _leaving(found: dict[str, Any]) -> None:
    print("Will be met." if found["met"] else f"Will not be met: {gpus_told(found['missing_milli'])} missing.")
    for one in found["leaving"]:
        print(f"  {one['job'] or 'a job of another team'} must leave {gpus_told(one['gpus_milli'])} at {exact(one['leave_at'])}")
    for name in found["displaced"]:
        print(f"  {name or 'a job of another team'} is in the way and cannot be asked to leave")


def _reserve_show(arguments: Sequence[str]) -> int:
    parser = _one("reserve show", "Show a reservation with its windows and its use.", "RESERVATION", "r-3")
    asked = parser.parse_args(arguments)
    found = console_meant().get(f"/reservations/{asked.which}")
    if asked.json:
        return print_json(found)
    use = found["use"]
    facts = [
        ("State", coloured(found["state"])),
        ("For", _owner(found)),
        ("GPUs", f"{gpus(found['gpus_milli'])} {plain(found['gpu_type'])}"),
        ("First", f"{exact(found['starts_at'])} to {_end(found)}"),
        ("Repeats", f"{plain(found['rule'])} in {plain(found['zone'])}" if found["rule"] else ""),
        ("Requested", f"{exact(found['requested_at'])} by {plain(found['requested_by'])}"),
        ("Decided", f"{exact(found['decided_at'])} by {plain(found['decided_by'])}" if found["decided_at"] else ""),
        ("Used", f"{use['used_gpu_hours']:.1f} of {use['promised_gpu_hours']:.1f} GPU-hours" if use["promised_gpu_hours"] else ""),
    ]
    print(f"{found['id']}  {plain(found['name'])}")
    print("\n".join(f"  {name:<10} {value}" for name, value in facts if value))
    _windows_shown(found["windows"])
    return DONE


def _windows_shown(rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        lines = [(exact(row["starts_at"]), _end(row), row["state"], gpus(row["gpus_milli"]), plain(row["name"])) for row in rows]
        print("\n".join(table(("START", "END", "STATE", "GPUS", "RESERVATION"), lines)))


def _reserve_windows(arguments: Sequence[str]) -> int:
    parser = parser_of("reserve windows", "List the windows of a span of time.")
    parser.add_argument("--from", dest="since", metavar="TIME", help="default: now")
    parser.add_argument("--to", dest="until", metavar="TIME", help="default: a week later")
    asked = parser.parse_args(arguments)
    found = console_meant().get("/windows", **{"from": asked.since, "to": asked.until})
    if asked.json:
        return print_json(found)
    _windows_shown(found["items"])
    return DONE


def _reserve_floors(arguments: Sequence[str]) -> int:
    asked = parser_of("reserve floors", "Say of each coming window whether it will be met, and which jobs must leave.").parse_args(arguments)
    found = console_meant().get("/floors")
    if asked.json:
        return print_json(found)
    for one in found["items"]:
        window = one["window"]
        held = f"{gpus(window['gpus_milli'])} {plain(window['gpu_type'])} from {exact(window['starts_at'])}"
        print(f"{window['reservation']}  {plain(window['name'])}  {held}")
        _leaving(one)
    return DONE


def _one(name: str, text: str, what: str, example: str) -> Arguments:
    parser = parser_of(name, text)
    parser.add_argument("which", metavar=what, help=f"public id, such as {example}")
    return parser


def _steering(action: str, text: str) -> Action:
    def steer(arguments: Sequence[str]) -> int:
        parser = _one(f"reserve {action.partition('-')[0]}", text, "RESERVATION", "r-3")
        parser.add_argument("--reason", default="", help="kept in the audit log")
        asked = parser.parse_args(arguments)
        found = console_meant().post(f"/reservations/{asked.which}/{action}", {"reason": asked.reason})
        if asked.json:
            return print_json(found)
        print(f"{found['id']}  {coloured(found['state'])}")
        return DONE

    return steer


RESERVE: dict[str, Action] = {
    "ls": _reserve_ls,
    "add": _reserve_add,
    "show": _reserve_show,
    "windows": _reserve_windows,
    "floors": _reserve_floors,
    "approve": _steering("approve", "Approve a request."),
    "deny": _steering("deny", "Deny a request."),
    "cancel": _steering("cancel", "Cancel a reservation. Jobs on it go on as borrowers."),
    "end": _steering("end-window", "End the window that lasts now."),
}


# Budgets


def _amount(value: int, unit: str) -> str:
    return f"{value / 1_000_000:,.2f}" if unit == "money" else f"{value / 1000:,.1f} GPU-h"


def _read_amount(parser: Arguments, text: str, unit: str) -> int:
    try:
        return int(Decimal(ungrouped(text)) * (1_000_000 if unit == "money" else 1000))
    except (InvalidOperation, ValueError, OverflowError):
        parser.error("the amount is a number of GPU-hours or of money, such as 10000 or 2500.50")


def _budget_ls(arguments: Sequence[str]) -> int:
    asked = parser_of("budget ls", "List budgets and how they stand.").parse_args(arguments)
    found = console_meant().get("/budgets")
    if asked.json:
        return print_json(found)
    lines = [
        (
            *(row["id"], plain(row["name"]), plain(row["quota"]), row["state"], f"{row['used_percent']}%", _amount(row["amount"], row["unit"])),
            *(f"{row['forecast_percent']}%", exact(row["period_end"])),
        )
        for row in found["items"]
    ]
    print("\n".join(table(("BUDGET", "NAME", "TEAM", "STATE", "USED", "OF", "FORECAST", "ENDS"), lines)))
    return DONE


def _budget_add(arguments: Sequence[str]) -> int:
    parser = parser_of("budget add", "Set a budget of a team.")
    parser.add_argument("--name", required=True)
    parser.add_argument("--team", required=True, help="path of the team's quota, with all below it")
    parser.add_argument("--amount", required=True, help="GPU-hours, or money with --unit money")
    parser.add_argument("--unit", choices=("gpu_hours", "money"), default="gpu_hours")
    parser.add_argument("--period", choices=("month", "quarter", "year", "custom"), default="month")
    parser.add_argument("--from", dest="starts_at", metavar="TIME", help="of a custom period")
    parser.add_argument("--until", dest="ends_at", metavar="TIME", help="of a custom period")
    parser.add_argument("--zone", default="UTC", help="by whose clock periods begin (default: UTC)")
    parser.add_argument("--type", dest="gpu_type", default="", help="of one GPU type (default: all)")
    parser.add_argument("--warn", type=int, default=80, help="percent (default: 80)")
    parser.add_argument("--stop", type=int, default=100, help="percent; 0: it only warns (default: 100)")
    parser.add_argument("--wind-down", action="store_true", help="running jobs save their work and leave when it is used up")
    asked = parser.parse_args(arguments)
    said = {name: getattr(asked, name) for name in ("name", "unit", "period", "zone", "gpu_type", "starts_at", "ends_at")}
    said |= {"quota": asked.team, "amount": _read_amount(parser, asked.amount, asked.unit), "warn_percent": asked.warn}
    said |= {"stop_percent": asked.stop or None, "at_stop": "wind_down" if asked.wind_down else "nothing_new"}
    return _budget_told(console_meant().post("/budgets", said), as_json=asked.json)


def _budget_told(found: dict[str, Any], *, as_json: bool) -> int:
    if as_json:
        return print_json(found)
    unit = found["unit"]
    facts = [
        ("State", coloured(found["state"])),
        ("Team", plain(found["quota"])),
        ("Used", f"{_amount(found['used'], unit)} of {_amount(found['amount'], unit)} ({found['used_percent']}%)"),
        ("Forecast", f"{_amount(found['forecast'], unit)} ({found['forecast_percent']}%)"),
        ("Period", f"{exact(found['period_start'])} to {exact(found['period_end'])}"),
        ("Stops", f"at {found['stop_percent']}%, {found['at_stop'].replace('_', ' ')}" if found["stop_percent"] else "never"),
        ("Exception", f"until {exact(found['exception']['until'])}: {plain(found['exception']['reason'])}" if found["exception"] else ""),
    ]
    print(f"{found['id']}  {plain(found['name'])}")
    print("\n".join(f"  {name:<10} {value}" for name, value in facts if value))
    return DONE


def _budget_show(arguments: Sequence[str]) -> int:
    asked = _one("budget show", "Show a budget and how it stands.", "BUDGET", "b-3").parse_args(arguments)
    return _budget_told(console_meant().get(f"/budgets/{asked.which}"), as_json=asked.json)


def _budget_change(arguments: Sequence[str]) -> int:
    parser = _one("budget change", "Change a budget.", "BUDGET", "b-3")
    parser.add_argument("--amount", help="GPU-hours, or money")
    parser.add_argument("--warn", type=int, help="percent")
    parser.add_argument("--stop", type=int, help="percent; 0: it only warns")
    parser.add_argument("--reason", default="", help="kept in the audit log")
    asked = parser.parse_args(arguments)
    console = console_meant()
    said: dict[str, Any] = {"reason": asked.reason}
    if asked.amount is not None:
        said["amount"] = _read_amount(parser, asked.amount, console.get(f"/budgets/{asked.which}")["unit"])
    said |= {"warn_percent": asked.warn} if asked.warn is not None else {}
    said |= {"stop_percent": asked.stop or None} if asked.stop is not None else {}
    return _budget_told(console.patch(f"/budgets/{asked.which}", said), as_json=asked.json)


def _budget_except(arguments: Sequence[str]) -> int:
    parser = _one("budget except", "Let a budget be exceeded until a time.", "BUDGET", "b-3")
    parser.add_argument("--until", required=True, metavar="TIME", help="when the exception expires")
    parser.add_argument("--more", help="so much more; without it the budget does not stop")
    parser.add_argument("--reason", required=True, help="shown on the budget's page")
    asked = parser.parse_args(arguments)
    console = console_meant()
    extra = _read_amount(parser, asked.more, console.get(f"/budgets/{asked.which}")["unit"]) if asked.more else None
    found = console.post(f"/budgets/{asked.which}/exception", {"extra": extra, "until": asked.until, "reason": asked.reason})
    return _budget_told(found, as_json=asked.json)


def _budget_rm(arguments: Sequence[str]) -> int:
    parser = parser_of("budget rm", "Remove budgets.")
    parser.add_argument("budgets", metavar="BUDGET", nargs="+", help="public ids, such as b-3")
    parser.add_argument("--reason", default="", help="kept in the audit log")
    asked = parser.parse_args(arguments)
    console: Console = console_meant()
    for name in asked.budgets:
        console.delete(f"/budgets/{name}", reason=asked.reason)
    if asked.json:
        return print_json({"removed": asked.budgets})
    print(f"Removed {plural(len(asked.budgets), 'budget')}.")
    return DONE


BUDGET: dict[str, Action] = {
    "ls": _budget_ls,
    "add": _budget_add,
    "show": _budget_show,
    "change": _budget_change,
    "except": _budget_except,
    "rm": _budget_rm,
}
