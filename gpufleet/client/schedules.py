"""`gpufleet schedule`: jobs that are submitted again and again."""

import sys
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from gpufleet.client import DONE, NOT_THERE, REFUSED, ClientError
from gpufleet.client.calls import Console
from gpufleet.client.commands import Arguments, console_meant, ends_well, parser_of, print_json
from gpufleet.client.description import documents, seconds
from gpufleet.client.words import ago, coloured, exact, plain, table


@ends_well
def schedule(arguments: Sequence[str]) -> int:
    """Submit jobs again and again: ls, add, show, pause, resume, run, rm."""
    parser = Arguments(prog="gpufleet schedule", description=schedule.__doc__, allow_abbrev=False)
    parser.add_argument("action", choices=tuple(ACTIONS))
    asked = parser.parse_args(list(arguments[:1]))
    return ACTIONS[asked.action](arguments[1:])


def _ls(arguments: Sequence[str]) -> int:
    parser = parser_of("schedule ls", "List schedules that you may see.")
    parser.add_argument("--state", choices=("active", "paused", "ended"), action="append", help="may be repeated")
    parser.add_argument("--team", help="path of a quota, with all below it")
    parser.add_argument("--owner", help="user name")
    parser.add_argument("-q", "--search", default="", help="words in name or id")
    parser.add_argument("-n", "--limit", type=int, default=50, help="at most so many (default: 50)")
    parser.add_argument("--ids", action="store_true", help="only the ids, one a line")
    asked = parser.parse_args(arguments)
    rows = list(console_meant().pages("/schedules", asked.limit, state=asked.state, team=asked.team, owner=asked.owner, q=asked.search))
    if asked.json:
        return print_json({"items": rows})
    if asked.ids:
        print("".join(f"{row['id']}\n" for row in rows), end="")
        return DONE
    heads = ("SCHEDULE", "NAME", "STATE", "WHEN", "ZONE", "NEXT", "LAST", "TEAM", "OWNER")
    lines = [
        (
            *(row["id"], plain(row["name"]), row["state"], plain(row["cron"]), plain(row["zone"])),
            *(ago(row["next_due"]) if row["state"] == "active" else "-", ago(row["last_due"]), plain(row["quota"]), plain(row["owner"] or "-")),
        )
        for row in rows
    ]
    print("\n".join(table(heads, lines)))
    return DONE


def _add(arguments: Sequence[str]) -> int:
    parser = parser_of("schedule add", "Submit the job of a file again and again.")
    parser.add_argument("file", help="the job, as gpufleet submit takes it; - reads standard input")
    parser.add_argument("--cron", required=True, help='minute, hour, day of the month, month, day of the week: "30 2 * * MON-FRI"')
    parser.add_argument("--zone", default="UTC", help="time zone, such as Europe/Berlin (default: UTC)")
    parser.add_argument("--name", help="of the schedule (default: the job's)")
    parser.add_argument("--overlap", choices=("allow", "skip", "replace"), help="while an earlier run has not ended (default: skip)")
    parser.add_argument("--catch-up", choices=("none", "last", "all"), help="of times that were missed (default: last)")
    parser.add_argument("--start-within", metavar="LENGTH", help="how late a run may still be submitted: 90m, 2h")
    parser.add_argument("--from", dest="starts_at", metavar="TIME", help="not due before, such as 2026-11-20T09:00:00Z")
    parser.add_argument("--until", dest="ends_at", metavar="TIME", help="not due after")
    asked = parser.parse_args(arguments)
    found = documents(asked.file)
    if len(found) > 1:
        parser.error("the file describes several jobs; a schedule has one")
    job = found[0]
    said = {"name": asked.name or job.get("name"), "cron": asked.cron, "zone": asked.zone, "description": job}
    if not isinstance(said["name"], str):
        parser.error("name it with --name, or the job in its file")
    said |= {key: value for key in ("overlap", "catch_up", "starts_at", "ends_at") if (value := getattr(asked, key)) is not None}
    said |= {"start_within_s": int(seconds(asked.start_within))} if asked.start_within else {}
    made = console_meant().post("/schedules", said)
    if asked.json:
        return print_json(made)
    print(f"{made['id']}  {plain(made['name'])}  next due {exact(made['next_due'])}")
    return DONE


def _show(arguments: Sequence[str]) -> int:
    parser = _named("show", "Show a schedule with its next due times and what came of the last ones.")
    parser.add_argument("-n", "--limit", type=int, default=10, help="so many runs (default: 10)")
    asked = parser.parse_args(arguments)
    console = console_meant()
    found = console.get(f"/schedules/{asked.schedule}")
    runs = list(console.pages(f"/schedules/{asked.schedule}/runs", asked.limit))
    if asked.json:
        return print_json(found | {"runs": runs})
    print(f"{found['id']}  {plain(found['name'])}")
    late = f", at most {found['start_within_s']} s late" if found["start_within_s"] else ""
    facts = [
        ("State", coloured(found["state"])),
        ("Paused", f"{exact(found['paused_at'])} by {plain(found['paused_by'])}: {plain(found['paused_reason'])}" if found["paused_at"] else ""),
        ("Due", f"{plain(found['cron'])} in {plain(found['zone'])}"),
        ("From", exact(found["starts_at"]) if found["starts_at"] else ""),
        ("Until", exact(found["ends_at"]) if found["ends_at"] else ""),
        ("Next", ", ".join(exact(due) for due in found["times_ahead"])),
        ("Overlap", found["overlap"]),
        ("Catch-up", f"{found['catch_up']}{late}"),
        ("Team", f"{plain(found['quota'])}, by {plain(found['owner'] or '-')}"),
    ]
    print("\n".join(f"  {name:<11} {value}" for name, value in facts if value))
    if runs:
        lines = [(exact(run["due_at"]), run["outcome"], plain(" - ".join(run["jobs"])) or "-", plain(run["note"])) for run in runs]
        print("\n".join(table(("DUE", "OUTCOME", "JOBS", "WHY"), lines)))
    return DONE


def _rm(arguments: Sequence[str]) -> int:
    def remove(console: Console, name: str, reason: str) -> dict[str, Any]:
        console.delete(f"/schedules/{name}", reason=reason)
        return {"id": name, "removed": True}

    return _each(_many("rm", "Remove schedules. Their jobs stay, and go on."), arguments, remove, lambda row: "removed")


def _steering(name: str, text: str, said: Callable[[dict[str, Any]], str]) -> Callable[[Sequence[str]], int]:
    def steer(console: Console, which: str, reason: str) -> dict[str, Any]:
        key = uuid.uuid4().hex if name == "run" else ""  # pausing twice does no harm
        told: dict[str, Any] = console.post(f"/schedules/{which}/{name}", {"reason": reason}, key=key)
        return {"id": which, **told}

    return lambda arguments: _each(_many(name, text), arguments, steer, said)


def _named(name: str, text: str) -> Arguments:
    parser = parser_of(f"schedule {name}", text)
    parser.add_argument("schedule", metavar="SCHEDULE", help="public id, such as s-3")
    return parser


def _many(name: str, text: str) -> Arguments:
    parser = parser_of(f"schedule {name}", text)
    parser.add_argument("schedules", metavar="SCHEDULE", nargs="+", help="public ids, such as s-3")
    parser.add_argument("--reason", default="", help="kept in the audit log")
    return parser


def _each(
    parser: Arguments,
    arguments: Sequence[str],
    do: Callable[[Console, str, str], dict[str, Any]],
    said: Callable[[dict[str, Any]], str],
) -> int:
    """One after the other; the first that is refused decides how the program ends, and the others are done all the same."""
    asked = parser.parse_args(arguments)
    console, rows, worst = console_meant(), [], DONE
    for name in asked.schedules:
        try:
            rows.append(do(console, name, asked.reason))
        except ClientError as fault:
            if fault.status not in (REFUSED, NOT_THERE):
                raise
            worst = worst or fault.status
            print("\n".join((f"{name}: {plain(fault)}", *(f"  {plain(detail)}" for detail in fault.details))), file=sys.stderr)
    if asked.json:
        print_json({"schedules": rows})
    else:
        for row in rows:
            print(f"{row['id']}  {said(row)}")
    return worst


ACTIONS: dict[str, Callable[[Sequence[str]], int]] = {
    "ls": _ls,
    "add": _add,
    "show": _show,
    "pause": _steering("pause", "Submit nothing for a while. What runs goes on.", lambda row: "paused"),
    "resume": _steering("resume", "Go on from now.", lambda row: f"next due {exact(row['next_due'])}"),
    "run": _steering("run", "Submit once now, besides its own times.", lambda row: plain(" - ".join(row["jobs"]))),
    "rm": _rm,
}
