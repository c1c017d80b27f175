"""What the commands print: tables and times for people at a terminal."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Any, TextIO

UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
INSTANT = re.compile(r"\b(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(?::\d\d(?:\.\d+)?)?Z")
SOON_S = 5  # nearer than this no number is told
ANY_MOMENT = timedelta(minutes=2)  # so long what is due may come at any moment

TONES = {
    "running": "34",
    "completed": "34",
    "queued": "2",
    "preempted": "33",
    "degraded": "33",
    "failed": "31",
    "cancelled": "2",
    "submitted": "34",
    "delayed": "33",
    "skipped": "2",
    "missed": "33",
    "refused": "31",
    "active": "34",
    "paused": "33",
    "ended": "2",
    "starting": "35",
    "resuming": "35",
    "reserved": "35",
    "checkpointing": "35",
}


def is_terminal(stream: TextIO | None = None) -> bool:
    """Whether somebody reads this stream, standard output unless it is named, at a terminal."""
    return (stream or sys.stdout).isatty() and os.environ.get("TERM") != "dumb"


def coloured(word: str, stream: TextIO | None = None) -> str:
    """A state in its colour, where it is written to a terminal whose owner has not asked for none."""
    tone = TONES.get(word)
    return f"\x1b[{tone}m{word}\x1b[0m" if tone and is_terminal(stream) and "NO_COLOR" not in os.environ else word


def emphasised(text: str) -> str:
    """Text that was looked for, marked for somebody who reads it at a terminal and has not asked for no colours."""
    return f"\x1b[1;31m{text}\x1b[0m" if text and is_terminal() and "NO_COLOR" not in os.environ else text


def plain(text: Any) -> str:
    """Text of others without anything that a terminal would obey."""
    return "".join(letter if letter.isprintable() else "�" for letter in str(text))


def logged(text: str) -> str:
    """A job's own output: as it is into a file, but without commands to a terminal other than lines, tabs and carriage returns."""
    if not is_terminal():
        return text
    return "".join(letter if letter.isprintable() or letter in "\n\t\r" else "�" for letter in text)


def ago(moment: str | None, now: datetime | None = None) -> str:
    """`5 min ago`, `in 1 h 59 min`, as the console's pages say it: what is to come in two units, and never sooner than it is."""
    if not moment:
        return "-"
    when = datetime.fromisoformat(moment)
    now = now or datetime.now(UTC)
    if when > now:
        left = ceil((when - now).total_seconds())
        if left < SOON_S:
            return "in a moment"
        step = 1 if left < 60 else 60 if left <= 86_400 else 3600
        return f"in {lasting(-(-left // step) * step)}"
    gone = int((now - when).total_seconds())
    if gone < SOON_S:
        return "just now"
    size, unit = next((size, unit) for size, unit in UNITS if gone >= size)
    return f"{gone // size:,} {unit} ago"


def ahead(moment: str | None, now: datetime | None = None) -> str:
    """`in 3 h 5 min`; of what was expected earlier, `any moment`."""
    if not moment:
        return "-"
    return "any moment" if datetime.fromisoformat(moment) <= (now or datetime.now(UTC)) else ago(moment, now)


def starts(told: Mapping[str, Any], now: datetime | None = None) -> str:
    """How the predicted start of a waiting job stands: `in 16 min`, `any moment`, and two minutes on `late by 12 min`."""
    return due_in_words(told["late_since"] or told["predicted_start"], now)


def due_in_words(due: str | None, now: datetime | None = None) -> str:
    late = (now or datetime.now(UTC)) - datetime.fromisoformat(due) if due else timedelta(0)
    return f"late by {lasting(late // timedelta(minutes=1) * 60)}" if late > ANY_MOMENT else ahead(due, now)


def dated(text: str) -> str:
    """Moments in a sentence of the scheduler as people write them."""
    return INSTANT.sub(r"\1 \2 UTC", text)


def exact(moment: str | None) -> str:
    return datetime.fromisoformat(moment).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if moment else "-"


def lasting(seconds: float) -> str:
    """The two largest units, as the console's pages say it: `45 s`, `12 min`, `3 h 20 min`, `2 d 4 h`."""
    left = int(seconds)
    if left < 60:
        return f"{left} s"
    parts: list[tuple[int, str]] = []
    for size, unit in UNITS[:-1]:
        count, left = divmod(left, size)
        if count or parts:
            parts.append((count, unit))
    return " ".join(f"{count:,} {unit}" for count, unit in parts[:2] if count)


def gpus(milli: int) -> str:
    return f"{milli / 1000:g}"


def gpus_told(milli: int, kind: str = "") -> str:
    """`1 GPU`, `0.5 GPUs`, `8 H100 GPUs`."""
    return f"{gpus(milli)} {f'{kind} ' if kind else ''}GPU{'' if milli == 1000 else 's'}"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as they must be; the last one as long as it is. States are coloured after they are measured."""
    widths = [max(len(head), *(len(row[number]) for row in rows), 0) for number, head in enumerate(heads)]
    lines = []
    for row in (heads, *rows):
        cells = [cell if number == len(heads) - 1 else cell.ljust(widths[number]) for number, cell in enumerate(row)]
        cells = [coloured(cell.strip()) + " " * (len(cell) - len(cell.strip())) if cell.strip() in TONES else cell for cell in cells]
        lines.append("  ".join(cells).rstrip())
    return lines
