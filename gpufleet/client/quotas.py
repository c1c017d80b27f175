"""`gpufleet quota changes|change|set|export|import|apply|…`: changes of the quota tree, with their preview."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from gpufleet.client import DONE, REFUSED, ClientError
from gpufleet.client.calls import Console
from gpufleet.client.commands import Arguments, console_meant, parser_of, print_json
from gpufleet.client.description import seconds
from gpufleet.client.words import coloured, exact, gpus, is_terminal, lasting, plain, table

STATES = ("draft", "proposed", "approved", "scheduled", "applied", "rejected", "withdrawn", "failed")


def _changes(arguments: Sequence[str]) -> int:
    parser = parser_of("quota changes", "List changes of the quota tree, the newest first.")
    parser.add_argument("--state", choices=STATES, action="append", help="may be repeated")
    parser.add_argument("--team", help="path of a node, with all below it")
    parser.add_argument("-n", "--limit", type=int, default=50, help="at most so many (default: 50)")
    asked = parser.parse_args(arguments)
    rows = list(console_meant().pages("/quota-changes", asked.limit, state=asked.state, team=asked.team))
    if asked.json:
        return print_json({"items": rows})
    lines = [
        (row["id"], row["state"], plain(row["author"]), plain(row["approver"] or "–"), exact(row["changed_at"]), plain(row["title"])) for row in rows
    ]
    print("\n".join(table(("CHANGE", "STATE", "AUTHOR", "APPROVER", "UPDATED", "TITLE"), lines)))
    return DONE


def _change(arguments: Sequence[str]) -> int:
    asked = _one("quota change", "Show a change, and what it would do if applied now.").parse_args(arguments)
    console = console_meant()
    found = console.get(f"/quota-changes/{asked.which}")
    is_open = found["state"] in ("draft", "proposed", "approved", "scheduled", "failed") and not found["errors"]
    preview = console.get(f"/quota-changes/{asked.which}/preview") if is_open else None
    if asked.json:
        return print_json(found | {"preview": preview})
    print(f"{found['id']}  {plain(found['title'])}  {coloured(found['state'])}")
    facts = {"Author": found["author"], "Reason": found["reason"], "Approver": found["approver"], "Fault": found["fault"], "Needs": found["approval"]}
    print("".join(f"  {name:<9} {plain(str(value))}\n" for name, value in facts.items() if value), end="")
    _lines(found["lines"])
    for text in found["overtaken"]:
        print(f"  Changed by others: {plain(text)}")
    if preview is not None:
        _preview(preview)
    if found["steps"]:
        print(f"  Next: {', '.join(found['steps'])}")
    return DONE


def _lines(lines: Sequence[Mapping[str, Any]]) -> None:
    for line in lines:
        if line["what"] and not line["field"]:
            print(f"  {plain(line['path'])}: {line['what']}")
        else:
            print(f"  {plain(line['path'])}: {plain(line['field'].removesuffix('_milli'))} {_value(line, 'before')} → {_value(line, 'after')}")


def _value(line: Mapping[str, Any], side: str) -> str:
    value = line[side]
    if line["field"].endswith("guaranteed_milli"):
        return "unlimited" if value is None else gpus(value)
    if line["field"].endswith("limit_milli"):
        return "none" if value is None else gpus(value)
    return plain(str(value)) if value not in (None, "") else "–"


def _preview(found: Mapping[str, Any]) -> None:
    for text in found["sentences"]:
        print(f"  {'! ' if text in found['warnings'] else ''}{plain(text)}")
    rows = [
        (one["job"], plain(one["name"]), plain(one["path"]), one["effect"], gpus(one["gpus_milli"]), plain(one["detail"])) for one in found["jobs"]
    ]
    if rows:
        print("\n".join(table(("JOB", "NAME", "TEAM", "EFFECT", "GPUS", "WHY"), rows)))
    shares = [
        (
            plain(one["path"]),
            plain(one["gpu_type"]),
            *(" → ".join("unlimited" if milli is None else gpus(milli) for milli in one[key]) for key in SHARES),
        )
        for one in found["shares"]
    ]
    if shares:
        print("\n".join(table(("NODE", "TYPE", "FAIR", "GUARANTEED", "BORROWED"), shares)))


INHERIT = "inherit"
SHARES = ("fair_milli", "guaranteed_milli", "borrowed_milli")


def _set(arguments: Sequence[str]) -> int:
    parser = parser_of("quota set", "Draft a change of one node, or preview it.")
    parser.add_argument("path", help="path of the node")
    parser.add_argument("--type", dest="gpu_type", help="GPU type of --guaranteed and --limit")
    parser.add_argument("--guaranteed", help="GPUs, or unlimited")
    parser.add_argument("--limit", help="GPUs, or none")
    parser.add_argument("--weight", type=int)
    parser.add_argument("--priority", type=int)
    for what, done in (("preempt", "preempted"), ("reclaim", "reclaimed")):
        parser.add_argument(f"--{what}-min-runtime", metavar="LENGTH", help=f"how long its jobs run before they are {done}; inherit: as above it")
    parser.add_argument("--default-class", choices=("batch", "interactive", "inference", "inherit"), help="of jobs that state none")
    parser.add_argument("--rule", metavar="NAME=VALUE", action="append", default=[], help="fleet-wide rule, of the top node; NAME= unsets it")
    parser.add_argument("--reason", default="", help="kept in the audit log")
    parser.add_argument("--dry-run", action="store_true", help="only preview it")
    asked = parser.parse_args(arguments)
    wanted: dict[str, Any] = {name: getattr(asked, name) for name in ("weight", "priority") if getattr(asked, name) is not None}
    share = {f"{name}_milli": _milli(parser, name, text) for name in ("guaranteed", "limit") if (text := getattr(asked, name)) is not None}
    if share and not asked.gpu_type:
        parser.error("--type is required with --guaranteed and --limit.")
    wanted |= {"shares": {asked.gpu_type: share}} if share else {}
    for name in ("preempt_min_runtime", "reclaim_min_runtime"):
        if (length := getattr(asked, name)) is not None:
            wanted[f"{name}_s"] = None if length == INHERIT else int(seconds(length))
    if asked.default_class is not None:
        wanted["default_class"] = "" if asked.default_class == INHERIT else asked.default_class
    if asked.rule:
        wanted["policy"] = dict(_rule(parser, text) for text in asked.rule)
    if not wanted:
        parser.error("No changes given.")
    console = console_meant()
    edits = [{"op": "update", "node": _node(console, parser, asked.path), "set": wanted}]
    if asked.dry_run:
        found = console.post("/quota-changes/preview", {"edits": edits})
        if asked.json:
            return print_json(found)
        _preview(found)
        return DONE
    return _told(console.post("/quota-changes", {"edits": edits, "reason": asked.reason}), as_json=asked.json)


def _rule(parser: Arguments, text: str) -> tuple[str, int | str | None]:
    name, given, value = text.partition("=")
    if not given:
        parser.error("--rule is NAME=VALUE, such as max_wait_batch_s=86400.")
    return name.strip(), int(value) if value.isascii() and value.isdecimal() else value.strip() or None


def _node(console: Console, parser: Arguments, path: str) -> str:
    found = next((str(node["id"]) for node in console.get("/quotas") if node["path"] == path.strip("/")), None)
    return found or parser.error(f"There is no quota {path} that you may see.")


def _milli(parser: Arguments, name: str, text: str) -> int | None:
    if text == {"guaranteed": "unlimited", "limit": "none"}[name]:
        return None
    try:
        milli = Decimal(text) * 1000
    except InvalidOperation:
        milli = Decimal("NaN")
    if not milli.is_finite() or milli != milli.to_integral_value():
        parser.error(f"--{name} is a number of GPUs with at most three decimals.")
    return int(milli)


def _told(made: dict[str, Any], *, as_json: bool) -> int:
    if as_json:
        return print_json(made)
    print(f"{made['id']}  {plain(made['title'])}  {coloured(made['state'])}")
    return DONE


def _step(step: str, text: str) -> Callable[[Sequence[str]], int]:
    def take(arguments: Sequence[str]) -> int:
        parser = _one(f"quota {step}", text)
        parser.add_argument("--reason", default="", help="kept in the audit log")
        if step == "schedule":
            parser.add_argument("--at", required=True, metavar="TIME", help="when it takes effect")
        asked = parser.parse_args(arguments)
        body = {"step": step, "reason": asked.reason} | ({"apply_at": asked.at} if step == "schedule" else {})
        return _told(console_meant().post(f"/quota-changes/{asked.which}/steps", body), as_json=asked.json)

    return take


def _one(name: str, text: str) -> Arguments:
    parser = parser_of(name, text)
    parser.add_argument("which", metavar="CHANGE", help="public id, such as qc-3")
    return parser


def _export(arguments: Sequence[str]) -> int:
    parser = parser_of("quota export", "Print the quota tree as a file.")
    parser.add_argument("--format", choices=("yaml", "csv"), default="yaml")
    asked = parser.parse_args(arguments)
    found = console_meant().get("/quota-file", format=asked.format)
    if asked.json:
        return print_json(found)
    print(found["text"], end="")
    return DONE


def _import(arguments: Sequence[str]) -> int:
    parser = parser_of("quota import", "Draft the change that makes the tree what a file says, and show the difference.")
    parser.add_argument("file", help="YAML or CSV as export writes it; - is standard input")
    parser.add_argument("--format", choices=("yaml", "csv"), help="default: by the file's name, else yaml")
    parser.add_argument("--archive-missing", action="store_true", help="archive nodes that the file does not name")
    parser.add_argument("--reason", default="", help="kept in the audit log")
    parser.add_argument("--dry-run", action="store_true", help="only show the difference")
    asked = parser.parse_args(arguments)
    text = sys.stdin.read() if asked.file == "-" else Path(asked.file).read_text()
    form = asked.format or ("csv" if asked.file.endswith(".csv") else "yaml")
    body = {"format": form, "text": text, "archive_missing": asked.archive_missing, "reason": asked.reason, "dry_run": asked.dry_run}
    found = console_meant().post("/quota-file", body)
    if asked.json:
        return print_json(found)
    _lines(found["lines"])
    print(f"Draft {found['change']}." if found["change"] else "Nothing was drafted.")
    return DONE


LOOK_AGAIN_SECONDS = 1.0


def _week(arguments: Sequence[str]) -> int:
    parser = _one("quota week", "Simulate the last 7 days under a change: queue time and GPU-hours by team, before and after.")
    parser.add_argument("--cancel", action="store_true", help="cancel the simulation that is going on")
    asked = parser.parse_args(arguments)
    console, address = console_meant(), f"/quota-changes/{asked.which}/week"
    if asked.cancel:
        console.delete(address)
        return DONE
    found = console.post(address)
    while found["state"] in ("waiting", "playing"):
        if is_terminal():
            print(f"\r{found['hours']} of {found['of_hours']} hours", end="", file=sys.stderr, flush=True)
        time.sleep(LOOK_AGAIN_SECONDS)
        found = console.get(address)
    if is_terminal():
        print(file=sys.stderr)
    if asked.json:
        return print_json(found)
    if found["state"] != "done":
        raise ClientError(REFUSED, f"The simulation is {found['state']}. {found['fault']}".strip())
    rows = [
        (
            plain(one["path"]),
            str(one["jobs"]),
            *(
                f"{told(one[key][0])} → {told(one[key][1])}"
                for key, told in (("started", str), ("mean_wait_seconds", lasting), ("milli_millis", _hours))
            ),
        )
        for one in found["teams"]
    ]
    print("\n".join(table(("TEAM", "JOBS", "STARTED", "MEAN QUEUE TIME", "GPU-HOURS"), rows)))
    if found["hours"] < found["of_hours"]:
        print(f"The first {found['hours']} of {found['of_hours']} hours.")
    return DONE


def _hours(milli_millis: int) -> str:
    return f"{Decimal(milli_millis) / (1000 * 3_600_000):,.1f}"


QUOTA_ACTIONS: dict[str, Callable[[Sequence[str]], int]] = {
    "changes": _changes,
    "change": _change,
    "week": _week,
    "set": _set,
    "export": _export,
    "import": _import,
    "propose": _step("propose", "Request approval of a change."),
    "approve": _step("approve", "Approve a change that somebody else proposed."),
    "reject": _step("reject", "Reject a change."),
    "withdraw": _step("withdraw", "Withdraw a change."),
    "schedule": _step("schedule", "Let a change take effect at a time."),
    "apply": _step("apply", "Apply a change now."),
    "rebase": _step("rebase", "Keep the edits of a change as of the present tree."),
    "allow": _step("allow", "Let guarantees of a change exceed the healthy capacity; --reason says why."),
    "revert": _step("revert", "Draft the change that undoes an applied one."),
}
