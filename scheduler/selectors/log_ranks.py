"""The lines of one rank in the log of a worker that has several.

A back-end begins each line of such a log with the rank within the worker, as `[3] ` or `3: `. A line without is the back-end's own, such as Slurm's
word that memory ran out: it belongs to every rank. So the log of a rank is no file of its own, and is there for runs that ended long ago as well.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from scheduler.backends.base import LogPart, whole_characters

NUMBER = re.compile(rb"\[([0-9]{1,6})\] | {0,5}([0-9]{1,6}): ")
TELLING = 16  # bytes that tell whose a line is
AHEAD = TELLING + 3  # read beyond what is wanted: a back-end cuts a character that is not whole
# Where a part begins within a line, the line's beginning is looked for so far before it: first near by, then further off.
BACK = (4 * 1024, 192 * 1024)
Other = TypeVar("Other")  # why nothing could be read


@dataclass(frozen=True, slots=True)
class RankPart:
    """What one rank wrote between two places of its worker's log. `next_offset` also passes over what others wrote."""

    offset: int
    data: bytes
    next_offset: int
    ended: bool

    @property
    def text(self) -> str:
        return self.data.decode(errors="replace")


def rank_text(line: bytes, local: int) -> bytes | None:
    """A whole line as the rank wrote it; None: it is another's."""
    number = NUMBER.match(line)
    if number is None:
        return line
    return line[number.end() :] if int(number[1] or number[2]) == local else None


def rank_part(read: Callable[[int, int], LogPart | Other], *, local: int, offset: int, limit: int, over: bool) -> RankPart | LogPart | Other:
    """At most `limit` bytes of the worker's log, and of these the rank's own. Parts that meet give together what one part over both gives."""
    part = read(offset, limit + AHEAD)
    if not isinstance(part, LogPart) or not part.data:
        return part
    there = part.data
    mine = whole_characters(there[:limit]) if len(there) > limit else there
    may_go_on = not (part.ended or over)
    head = _head_of_line(read, part.offset)
    kept: list[bytes] = []
    place = 0
    if head is None:  # nobody knows whose it is
        place = min(len(mine), there.find(b"\n") + 1 or len(there))
        head = b""
    while place < len(mine):
        start = head + there[place : place + TELLING]
        number = NUMBER.match(start)
        if number is None and may_go_on and len(start) < TELLING and b"\n" not in start:
            break
        end = mine.find(b"\n", place) + 1 or len(mine)
        if number is None:
            kept.append(mine[place:end])
        elif int(number[1] or number[2]) == local:
            kept.append(mine[place + max(0, number.end() - len(head)) : end])
        place, head = end, b""
    return RankPart(part.offset, b"".join(kept), part.offset + place, part.ended and place == len(there))


def _head_of_line(read: Callable[[int, int], LogPart | Other], offset: int) -> bytes | None:
    """What stands before a place in its line, as far as it tells whose it is; None where that is not kept, or too far off."""
    if offset == 0:
        return b""
    for back in BACK:
        begin = max(0, offset - back)
        before = read(begin, offset - begin)
        if not isinstance(before, LogPart):
            return None
        data = before.data[: max(0, offset - before.offset)]
        newline = data.rfind(b"\n")
        if newline >= 0 or before.offset == 0:
            return data[newline + 1 :]
        if before.offset > begin:
            return None
    return None
