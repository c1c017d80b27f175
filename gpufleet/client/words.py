"""What the commands print: tables and times for people at a terminal."""

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, TextIO

TONES = {
    "running": "34",
    "completed": "34",
    "queued": "2",
    "preempted": "33",
    "degraded": "33",
    "failed": "31",
    "cancelled": "2",
    "submitted": "34",
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
    """`5 min ago`, `in 3 h`."""
    if not moment:
        return "-"
    when = datetime.fromisoformat(moment)
    now = now or datetime.now(UTC)
    ahead, distance = when > now, abs(int((now - when).total_seconds()))
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if distance >= size:
            return f"in {distance // size} {unit}" if ahead else f"{distance // size} {unit} ago"
    return "in a moment" if ahead else "now"


def ahead(moment: str | None, now: datetime | None = None) -> str:
    """`in 3 h`; of what was expected earlier, `any moment`."""
    if not moment:
        return "-"
    return "any moment" if datetime.fromisoformat(moment) <= (now or datetime.now(UTC)) else ago(moment, now)


def exact(moment: str | None) -> str:
    return datetime.fromisoformat(moment).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if moment else "-"


def lasting(seconds: float) -> str:
    """`45 s`, `12 min`, `3.5 h`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h".replace(".0 h", " h")


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
