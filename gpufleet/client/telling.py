"""`gpufleet webhooks` and `gpufleet notices`: what others are told of a subtree's jobs, and what one is told oneself."""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

from gpufleet.client import DONE, JOB_FAILED, USAGE, ClientError
from gpufleet.client.calls import Console
from gpufleet.client.commands import Arguments, console_meant, ends_well, print_json
from gpufleet.client.words import ago, exact, plain, table

LOOK_AGAIN_SECONDS = 0.5
PATIENCE_SECONDS = 30.0
WAYS = ("console", "email", "webhook")

Handler = Callable[[Console, argparse.Namespace], int]


def _group(name: str, text: str | None, handlers: dict[str, Handler]) -> tuple[Arguments, Any]:
    parser = Arguments(prog=f"gpufleet {name}", description=text, allow_abbrev=False)
    return parser, parser.add_subparsers(dest="verb", required=True, metavar="|".join(handlers), parser_class=Arguments)


def _verb(verbs: Any, name: str, text: str) -> Arguments:
    parser: Arguments = verbs.add_parser(name, description=text, help=text, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="what the API answers, for programs")
    return parser


def _told(asked: argparse.Namespace, value: Any, lines: Sequence[str]) -> int:
    if asked.json:
        return print_json(value)
    print("\n".join(lines))
    return DONE


# Webhooks


@ends_well
def webhooks(arguments: Sequence[str]) -> int:
    """Manage webhooks: what happens to the jobs of a subtree, told to a chat, a pager or a program."""
    parser, verbs = _group("webhooks", webhooks.__doc__, WEBHOOKS)
    listing = _verb(verbs, "ls", "list the webhooks that you manage")
    listing.add_argument("--state", choices=("active", "paused", "disabled"), action="append", help="may be repeated")
    listing.add_argument("-n", "--limit", type=int, default=100, help="at most so many (default: 100)")
    adding = _verb(verbs, "add", "make a webhook; its secret is printed once")
    adding.add_argument("name")
    adding.add_argument("url", help="address that receives events, https")
    adding.add_argument("--quota", required=True, help="path of a node: the webhook reports the jobs below it")
    adding.add_argument("--on", dest="kinds", action="append", required=True, metavar="KIND", help="such as job.failed; may be repeated")
    for name, text in (("pause", "pause the webhook"), ("resume", "go on telling it")):
        _verb(verbs, name, text).add_argument("id", metavar="WEBHOOK")
    trying = _verb(verbs, "test", "send it a test message, and say what it answered")
    trying.add_argument("id", metavar="WEBHOOK", help="such as w-3")
    trying.add_argument("--no-wait", action="store_true", help="don't stay for the answer")
    removing = _verb(verbs, "rm", "remove a webhook")
    removing.add_argument("id", metavar="WEBHOOK")
    for writing in (adding, removing):
        writing.add_argument("--reason", default="", help="kept in the audit log")
    sent = _verb(verbs, "deliveries", "list what it was sent, the newest first")
    sent.add_argument("id", metavar="WEBHOOK")
    sent.add_argument("--state", choices=("waiting", "delivered", "parked"), action="append", help="may be repeated")
    sent.add_argument("-n", "--limit", type=int, default=50, help="at most so many (default: 50)")
    again = _verb(verbs, "redeliver", "send a message once more")
    again.add_argument("id", metavar="WEBHOOK")
    again.add_argument("delivery", metavar="DELIVERY", help="such as dl-9f…")
    asked = parser.parse_args(arguments)
    return WEBHOOKS[asked.verb](console_meant(), asked)


def _hooks(console: Console, asked: argparse.Namespace) -> int:
    rows = list(console.pages("/webhooks", asked.limit, state=asked.state))
    lines = [(row["id"], row["state"], plain(row["quota"]), plain(row["name"]), " ".join(row["kinds"]), plain(row["url"])) for row in rows]
    return _told(asked, {"items": rows}, table(("WEBHOOK", "STATE", "JOBS OF", "NAME", "TOLD OF", "ADDRESS"), lines) if rows else ["There are none."])


def _hook_add(console: Console, asked: argparse.Namespace) -> int:
    wish = {"name": asked.name, "url": asked.url, "quota": asked.quota, "kinds": asked.kinds, "reason": asked.reason}
    made = console.post("/webhooks", wish)
    return _told(asked, made, [f"{made['id']}  {plain(made['name'])}", f"Its secret, shown once: {made['secret']}"])


def _hook_switch(console: Console, asked: argparse.Namespace) -> int:
    state = "paused" if asked.verb == "pause" else "active"
    told = console.patch(f"/webhooks/{asked.id}", {"state": state})
    return _told(asked, told, [f"{told['id']}  {told['state']}"])


def _hook_test(console: Console, asked: argparse.Namespace) -> int:
    sent = console.post(f"/webhooks/{asked.id}/test")
    until = time.monotonic() + PATIENCE_SECONDS
    while not asked.no_wait and sent["state"] == "waiting" and not sent["attempts"] and time.monotonic() < until:
        console.pause(LOOK_AGAIN_SECONDS)
        sent = console.get(f"/webhooks/{asked.id}/deliveries/{sent['id']}")
    if sent["state"] == "delivered":
        line = f"{sent['id']}  delivered: it answered {sent['status']} in {sent['duration_ms']} ms."
    elif sent["attempts"]:
        line = f"{sent['id']}  not delivered: {plain(sent['fault'] or sent['status'])}"
    else:
        line = f"{sent['id']}  on its way; gpufleet webhooks deliveries {asked.id} says what becomes of it."
    _told(asked, sent, [line])
    return JOB_FAILED if sent["attempts"] and sent["state"] != "delivered" else DONE


def _hook_rm(console: Console, asked: argparse.Namespace) -> int:
    console.delete(f"/webhooks/{asked.id}", reason=asked.reason)
    return _told(asked, {"removed": asked.id}, [f"{plain(asked.id)}  removed"])


def _deliveries(console: Console, asked: argparse.Namespace) -> int:
    rows = list(console.pages(f"/webhooks/{asked.id}/deliveries", asked.limit, state=asked.state))
    lines = [
        (
            row["id"],
            ago(row["made_at"]),
            row["kind"],
            row["job"] or "-",
            row["state"],
            str(row["status"] or "-"),
            str(row["attempts"]),
            plain(row["fault"]),
        )
        for row in rows
    ]
    heads = ("DELIVERY", "MADE", "WHAT", "JOB", "STATE", "ANSWER", "TRIES", "FAULT")
    return _told(asked, {"items": rows}, table(heads, lines) if rows else ["It was sent nothing yet."])


def _redeliver(console: Console, asked: argparse.Namespace) -> int:
    sent = console.post(f"/webhooks/{asked.id}/deliveries/{asked.delivery}/redeliver")
    return _told(asked, sent, [f"{sent['id']}  on its way"])


WEBHOOKS: dict[str, Handler] = {
    "ls": _hooks,
    "add": _hook_add,
    "pause": _hook_switch,
    "resume": _hook_switch,
    "test": _hook_test,
    "rm": _hook_rm,
    "deliveries": _deliveries,
    "redeliver": _redeliver,
}


# Notices


@ends_well
def notices(arguments: Sequence[str]) -> int:
    """Read and choose what you are told of your jobs and of those that you follow."""
    parser, verbs = _group("notices", notices.__doc__, NOTICES)
    listing = _verb(verbs, "ls", "list your notifications, newest first")
    listing.add_argument("--unread", action="store_true", help="only what you have not read")
    listing.add_argument("-n", "--limit", type=int, default=50, help="at most so many (default: 50)")
    _verb(verbs, "read", "mark all as read")
    setting = _verb(verbs, "set", "change your notification settings; without arguments, show them")
    setting.add_argument("ways", nargs="*", metavar="KIND=WAYS", help="such as failed=console,email, or started= for not at all")
    setting.add_argument("--zone", help="your time zone, such as Europe/Helsinki")
    setting.add_argument("--quiet", metavar="FROM-UNTIL", help="quiet hours such as 22:00-07:00, or none")
    setting.add_argument("--quiet-rule", choices=("hold", "drop"), help="what becomes of e-mail and webhook meanwhile")
    setting.add_argument("--urgent", metavar="KINDS", help="kinds that quiet hours do not keep back, with commas; or none")
    _verb(verbs, "test", "send yourself a test by every way that you use")
    sent = _verb(verbs, "log", "list how notices were sent, the newest first")
    sent.add_argument("-n", "--limit", type=int, default=50, help="at most so many (default: 50)")
    asked = parser.parse_args(arguments)
    return NOTICES[asked.verb](console_meant(), asked)


def _notices(console: Console, asked: argparse.Namespace) -> int:
    rows = list(console.pages("/me/notices", asked.limit, unread="yes" if asked.unread else None))
    lines = [(ago(row["at"]), "" if row["read_at"] else "*", row["kind"], row["job"] or "-", plain(row["title"])) for row in rows]
    return _told(asked, {"items": rows}, table(("WHEN", "", "KIND", "JOB", "WHAT"), lines) if rows else ["No notifications."])


def _read(console: Console, asked: argparse.Namespace) -> int:
    told = console.post("/me/notices/read")
    return _told(asked, told, [f"{told['read']} marked as read."])


def _set(console: Console, asked: argparse.Namespace) -> int:
    before = console.get("/me/notices/choices")
    wish = {key: before[key] for key in ("zone", "quiet_from", "quiet_until", "quiet_rule", "urgent")} | {"ways": dict(before["ways"])}
    for word in asked.ways:
        kind, equals, ways = word.partition("=")
        if not equals:
            raise ClientError(USAGE, f"{plain(word)}: write KIND=WAYS, such as failed=console,email.")
        wish["ways"][kind] = _listed(ways)
    if asked.quiet is not None:
        wish["quiet_from"], wish["quiet_until"] = _quiet(asked.quiet)
    if asked.urgent is not None:
        wish["urgent"] = _listed(asked.urgent)
    wish |= {key: value for key, value in (("zone", asked.zone), ("quiet_rule", asked.quiet_rule)) if value is not None}
    changed = any(wish[key] != before[key] for key in wish)
    told = console.put("/me/notices/choices", wish | {"seen": before["revision"]}) if changed else before
    lines = table(("KIND", "TOLD BY"), [(kind, ", ".join(ways) or "-") for kind, ways in told["ways"].items()])
    if told["quiet_from"] is not None:
        hours = f"{_clock(told['quiet_from'])}-{_clock(told['quiet_until'])} {plain(told['zone'])}"
        rule = "wait until then" if told["quiet_rule"] == "hold" else "are left out"
        lines.append(f"Quiet hours {hours}: e-mail and webhook {rule}{', but for ' + ', '.join(told['urgent']) if told['urgent'] else ''}.")
    return _told(asked, told, lines)


def _listed(text: str) -> list[str]:
    return [] if text.strip() in ("", "none") else [part.strip() for part in text.split(",") if part.strip()]


def _quiet(text: str) -> tuple[int | None, int | None]:
    if text == "none":
        return None, None
    first, dash, last = text.partition("-")
    found = [_minutes(part) for part in (first, last)]
    if not dash or None in found:
        raise ClientError(USAGE, f"--quiet {plain(text)}: write 22:00-07:00, or none.")
    return found[0], found[1]


def _minutes(text: str) -> int | None:
    hours, colon, minutes = text.strip().partition(":")
    if not (colon and hours.isdigit() and minutes.isdigit() and int(hours) < 24 and int(minutes) < 60):
        return None
    return 60 * int(hours) + int(minutes)


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"


def _test(console: Console, asked: argparse.Namespace) -> int:
    told = console.post("/me/notices/test")
    return _told(asked, told, [f"Sent by {', '.join(told['ways'])}."])


def _log(console: Console, asked: argparse.Namespace) -> int:
    rows = list(console.pages("/me/notices/log", asked.limit))
    lines = [(exact(row["made_at"]), row["way"], row["state"], str(row["attempts"]), plain(row["title"]), plain(row["fault"])) for row in rows]
    return _told(asked, {"items": rows}, table(("MADE", "BY", "STATE", "TRIES", "WHAT", "FAULT"), lines) if rows else ["Nothing was sent."])


NOTICES: dict[str, Handler] = {"ls": _notices, "read": _read, "set": _set, "test": _test, "log": _log}
