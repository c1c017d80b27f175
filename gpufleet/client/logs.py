"""`gpufleet logs`: what a worker of a job has written, as it grows, or only the lines that hold some text."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpufleet.client import AWAY, DONE, NOT_THERE, USAGE, ClientError
from gpufleet.client.calls import Console
from gpufleet.client.commands import console_meant, ends_well, parser_of
from gpufleet.client.words import emphasised, logged, plain

LOG_PART = 65_536
LOOK_AGAIN_SECONDS = 1.0
MOST_CONTEXT = 2
# A log that can't be had is no empty one: scripts are to notice.
STATUSES = {"gone": NOT_THERE, "unreachable": AWAY}


@ends_well
def logs(arguments: Sequence[str]) -> int:
    """Print what a worker of a job has written, or with --search the lines that hold some text."""
    parser = parser_of("logs", logs.__doc__, jobs="1", as_json=False)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the attempt has ended")
    parser.add_argument("--attempt", type=int, help="which attempt (default: the latest)")
    parser.add_argument("--role", help="which role (default: that of the first worker)")
    parser.add_argument("--index", type=int, default=0, help="which worker of the role (default: 0)")
    parser.add_argument("--rank", type=int, metavar="N", help="only lines of this rank of the gang, in place of --role and --index")
    parser.add_argument("--tail", type=int, help="begin so many bytes before the end")
    parser.add_argument(
        "--search", "--grep", metavar="TEXT", help="only lines that contain this text, ignoring case, with their numbers; not a pattern"
    )
    parser.add_argument("--context", type=int, default=0, metavar="LINES", help=f"with --search: so many lines around each, {MOST_CONTEXT} at most")
    parser.add_argument("--json", action="store_true", help="with --search: the lines as the API has them, one a line")
    asked = parser.parse_args(arguments)
    if asked.rank is not None and (asked.role or asked.index):
        parser.error("--rank names its worker; --role and --index do not go with it")
    if asked.search is None:
        if asked.context or asked.json:
            parser.error("--context and --json go with --search")
        return _follow(console_meant(), asked) if asked.follow else _read(console_meant(), asked)
    if asked.tail is not None:
        parser.error("--search looks at the whole log; --tail does not go with it")
    if not 0 <= asked.context <= MOST_CONTEXT:
        parser.error(f"--context has {MOST_CONTEXT} lines at most")
    if not asked.search or "\n" in asked.search:
        raise ClientError(USAGE, "--search: a text of one line is wanted.")
    return _search(console_meant(), asked)


def _read(console: Console, asked: argparse.Namespace) -> int:
    offset, attempt = -asked.tail if asked.tail else 0, asked.attempt
    while True:
        part = console.get(f"/jobs/{asked.job}/logs", **_writer(asked), attempt=attempt, offset=offset, limit=LOG_PART)
        attempt = part["attempt"]
        _print(part["text"])
        moved = part["next_offset"] != offset
        offset = part["next_offset"]
        if moved and (part["text"] or asked.rank is not None):
            continue
        if part["note"]:
            print(plain(part["note"]), file=sys.stderr)
        return STATUSES.get(part["state"], DONE)


def _follow(console: Console, asked: argparse.Namespace) -> int:
    offset, status, came = -asked.tail if asked.tail else 0, DONE, False
    query = {**_writer(asked), "attempt": asked.attempt, "offset": offset}
    for kind, part in console.events(f"/jobs/{asked.job}/logs/stream", **query):
        if kind:
            continue  # the end, or what a newer console tells besides
        _print(part["text"])
        if part["note"]:
            print(plain(part["note"]), file=sys.stderr)
        came |= bool(part["text"])
        # Where a run is over its log may go at once: who has read it to there has read it.
        status = DONE if came else STATUSES.get(part["state"], DONE)
    return status


def _writer(asked: argparse.Namespace) -> dict[str, Any]:
    return {"role": asked.role, "index": asked.index, "rank": asked.rank}


def _print(text: str) -> None:
    sys.stdout.write(logged(text))
    sys.stdout.flush()


def _search(console: Console, asked: argparse.Namespace) -> int:
    printer, count, found = _Printer(asked.context), 0, None
    for found in _answers(console, asked):
        count += len(found["hits"])
        for hit in found["hits"]:
            if asked.json:
                print(json.dumps(hit, ensure_ascii=False))
            else:
                printer.hit(hit)
        if found["done"]:
            printer.rest()
        sys.stdout.flush()
    assert found is not None, "a console answers at least once"
    if found["note"]:
        print(plain(found["note"]), file=sys.stderr)
    elif not count:
        print(f"No line holds {plain(asked.search)}.", file=sys.stderr)
    return STATUSES.get(found["state"], DONE)


def _answers(console: Console, asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One stretch of the log after the other; with --follow also what is written meanwhile, until nothing can be added."""
    attempt, offset, line = asked.attempt, 0, 1
    while True:
        query = {**_writer(asked), "q": asked.search, "attempt": attempt, "offset": offset, "line": line}
        found = console.get(f"/jobs/{asked.job}/logs/search", **query)
        yield found
        attempt, offset, line = found["attempt"] or attempt, found["next_offset"], found["next_line"]
        if found["done"]:
            if found["ended"] or not asked.follow:
                return
            console.pause(LOOK_AGAIN_SECONDS)


class _Printer:
    """Lines as `grep -n` writes them: `12:` for one that holds it, `13-` for one beside it. Each is printed once."""

    def __init__(self, context: int) -> None:
        self.context = context
        self.printed = 0
        self.behind: list[tuple[int, str]] = []

    def hit(self, hit: Mapping[str, Any]) -> None:
        number, text = hit["line"], hit["text"]
        self.rest(before=number)
        around = hit["before"][-self.context :] if self.context else []
        lines = [(number - len(around) + place, line) for place, line in enumerate(around)]
        lines = [(place, line) for place, line in lines if place > self.printed]
        if self.context and self.printed and (lines[0][0] if lines else number) > self.printed + 1:
            print("--")
        for place, line in lines:
            print(f"{place}-{_one_line(line)}")
        start, end = hit["start"], hit["start"] + hit["length"]
        print(f"{number}:{_one_line(text[:start])}{emphasised(_one_line(text[start:end]))}{_one_line(text[end:])}")
        self.printed = number
        self.behind = list(enumerate(hit["after"][: self.context], number + 1))

    def rest(self, before: int | None = None) -> None:
        """What stands behind the last one, up to the next one."""
        for place, line in self.behind:
            if self.printed < place and (before is None or place < before):
                print(f"{place}-{_one_line(line)}")
                self.printed = place
        self.behind = []


def _one_line(text: str) -> str:
    return logged(text).replace("\r", "")
