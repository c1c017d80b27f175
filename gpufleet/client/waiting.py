"""`gpufleet why`: all that stands in the way of a job, who holds it, and what would help."""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from gpufleet.client import DONE
from gpufleet.client.calls import Console
from gpufleet.client.commands import console_meant, ends_well, parser_of, print_json
from gpufleet.client.words import ago, ahead, coloured, dated, due_in_words, exact, gpus_told, lasting, plain, plural, starts

PATIENCE_SECONDS = 10.0
WAITS = ("queued", "preempted")


@ends_well
def why(arguments: Sequence[str]) -> int:
    """Say why a job waits: all that stands in its way, who holds it, what would help, and when it is expected to start."""
    asked = parser_of("why", why.__doc__, jobs="1").parse_args(arguments)
    console = console_meant()
    told = console.get(f"/jobs/{asked.job}/why")
    sooner = _sooner(console, asked.job) if told["may_steer"] and told["state"] in WAITS else None
    if asked.json:
        return print_json(told | {"sooner": sooner})
    print(f"{told['id']} is {coloured(told['state'])}. {plain(told['now']['text'])}".rstrip())
    for reason in told["reasons"]:
        _print_reason(reason)
    if told["waits_for"]:
        print(f"  waits for {', '.join(told['waits_for'])}")
    if told["promise"]:
        print(f"  promised what {', '.join(map(plain, told['promise']['after'])) or 'is free'} leaves, until {exact(told['promise']['until'])}")
    _print_start(told)
    change = told["would_start_if"]
    if change:
        print(f"It would start now with {plain(change.get('change'))}: {plain(change.get('to'))}.")
    if sooner:
        _print_sooner(sooner)
    return DONE


def _sooner(console: Console, job: str) -> dict[str, Any] | None:
    """While the console still reads the fleet it is asked again, for a little while: the reasons are told in any case."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        told: dict[str, Any] = console.get(f"/jobs/{job}/sooner")
        if "changes" in told:
            return told
        if time.monotonic() >= until:
            return None
        console.pause(told["retry_after_s"])


def _print_reason(reason: Mapping[str, Any]) -> None:
    print(f"  {reason['code']}: {dated(plain(reason['detail']))}")
    if unblock := reason.get("unblock"):
        at = f" ({ahead(unblock['at'])})" if unblock["at"] else ""
        print(f"    would help: {plain(unblock['text'])}{at}")
    if held := reason.get("holders"):
        _print_holders(held)


def _print_holders(held: Mapping[str, Any]) -> None:
    for job in held["jobs"]:
        who = f"{plain(job['name'])} {job['id']}" if job["id"] else "another team"
        ends = f"until about {exact(job['ends_at'])}" if job["ends_at"] else "no known end"
        print(f"    held by {who}: {gpus_told(round(1000 * job['gpus']))}, {ends}")
    if held["others"]:
        teams = ", ".join(f"{one['gpus']:g} of {plain(one['quota']) or 'other teams'}" for one in held["teams"])
        print(f"    and by {held['others']} more: {gpus_told(round(1000 * held['gpus']))} in all, {teams}")
    if held["enough_at"]:
        print(f"    enough is given back {ahead(held['enough_at'])} by estimates")
    elif held["missing_gpus"] is not None:
        print("    no estimate when enough is released")


def _print_start(told: Mapping[str, Any]) -> None:
    if told["predicted_start"]:
        early, late = told["earliest_start"], told["latest_start"]
        print(f"Predicted start: {exact(told['predicted_start'])} ({starts(told)}){_from_now(early, late)}, predicted {ago(told['predicted_at'])}.")
    first, record = told["first_told"], told["record"]
    if first:
        print(f"First prediction: {exact(first['expected'])}{_between(first['earliest'], first['latest'])}.")
    if record:
        alike = "about as far ahead" if record["as_far_ahead"] else "so"
        print(
            f"Of the last {plural(record['starts'], 'start')} foreseen {alike}, {record['inside_percent']:.0f}% lay inside their range; "
            f"half of them came within {lasting(record['error_s'])} of the prediction."
        )


def _from_now(early: str | None, late: str | None) -> str:
    """What is left of the range: nobody starts in the past."""
    now = datetime.now(UTC)
    if not early or not late or datetime.fromisoformat(late) <= now:
        return ""
    return f", between now and {exact(late)}" if datetime.fromisoformat(early) <= now else _between(early, late)


def _between(early: str, late: str) -> str:
    return f", between {exact(early)} and {exact(late)}" if early != late else ""


def _print_sooner(sooner: Mapping[str, Any]) -> None:
    if sooner["changes"]:
        as_it_is = f" (as it is, {due_in_words(sooner['at'])})" if sooner["at"] else ""
        print(f"By estimates it would start sooner{as_it_is}:")
    for change in sooner["changes"]:
        when = "now" if change["now"] else f"{ahead(change['at'])}, {exact(change['at'])}"
        how = "" if change["in_place"] else " (submitted again, and this one cancelled)"
        print(f"  {plain(change['text'])}: {when}{how}")
    if not sooner["changes"] and not sooner["note"]:
        print("No change that was tried starts it sooner.")
