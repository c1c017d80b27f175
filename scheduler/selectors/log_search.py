"""Lines of a worker's log that hold some text, found slice by slice: a log may be far larger than what one answer should read."""

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scheduler.backends.base import LogPart
from scheduler.models import Job
from scheduler.selectors.log_ranks import rank_text
from scheduler.selectors.logs import MOST_BYTES, LogSource, LogState, Unread, log_source, nothing_written

# Of one answer: so much is read, for about so long, and so many lines are told. Whoever wants more goes on from where it ended.
MOST_READ = 4 * 1024 * 1024
MOST_SECONDS = 1.0
MOST_HITS = 200
LONGEST_WANTED = 200
CONTEXT_LINES = 2
NEAR_LINES = 64  # of all ranks of a worker, among which those around a line are looked for
SHOWN, SHOWN_AROUND = 500, 200  # characters of a line, and of each of those around it
BEFORE_IT = 100  # of a long line, in front of what was found in it
WHOLE_LINE = 64 * 1024


@dataclass(frozen=True, slots=True)
class Hit:
    """A line that holds it, with what stands around it. `text` has what was found at `start`; of a long line it is a part."""

    line: int
    offset: int
    text: str
    start: int
    length: int
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """The lines of one stretch of a log that hold it. The next stretch begins at `next_offset`, in line `next_line`.

    `done`: all that is there has been looked at; `ended`: and nothing will be added. Lines are counted from the first that is kept, at `begins_at`;
    where a rank is asked for, its own.
    """

    attempt: int
    role: str
    index: int
    rank: int | None
    hits: tuple[Hit, ...]
    next_offset: int
    next_line: int
    begins_at: int
    size: int
    done: bool
    ended: bool
    state: LogState
    note: str


def log_search(
    job: Job,
    *,
    wanted: str,
    attempt: int | None,
    role: str,
    index: int,
    offset: int,
    line: int,
    rank: int | None = None,
    limit: int = MOST_HITS,
    shown: int = SHOWN,
) -> Found:
    """The next lines that hold `wanted`, whatever its case. `offset` and `line` are where the stretch before ended, or 0 and 1."""
    source = log_source(job, attempt=attempt, role=role, index=index, rank=rank)
    named = source.named
    end, begin = source.read(-1, 1), source.read(0, 1)
    missing = next((part for part in (end, begin) if isinstance(part, Unread)), None)
    if missing is not None:
        return Found(*named, (), offset, line, 0, offset, True, missing.ended, missing.state, missing.note)
    assert not isinstance(end, Unread)
    assert not isinstance(begin, Unread)
    search = _Search(source, wanted, end.next_offset, min(limit, MOST_HITS), shown)
    search.run(max(offset, begin.offset), line)
    state, note = search.fault or nothing_written(end, source.over or end.ended)
    size = max(search.offset, end.next_offset)
    return Found(*named, tuple(search.hits), search.offset, search.line, begin.offset, size, search.done, search.done and search.ended, state, note)


def lines_found(job: Job, *, wanted: str, attempt: int | None, role: str, index: int, rank: int | None = None) -> Iterator[str]:
    """All lines that hold it, each with its number, as they are found."""
    offset, line, done = 0, 1, False
    while not done:
        found = log_search(job, wanted=wanted, attempt=attempt, role=role, index=index, rank=rank, offset=offset, line=line, shown=WHOLE_LINE)
        yield "".join(f"{hit.line}: {hit.text}\n" for hit in found.hits)
        done = found.done or (found.next_offset, found.next_line) == (offset, line)
        offset, line, attempt, role = found.next_offset, found.next_line, found.attempt or attempt, found.role
    if found.note:
        yield f"{found.note}\n"


class _Search:
    """One stretch. `offset` and `line` move on with what has been looked at."""

    def __init__(self, source: LogSource, wanted: str, end: int, limit: int, shown: int) -> None:
        self.source, self.end, self.limit, self.shown = source, end, limit, shown
        self.folded, self.pattern = wanted.casefold(), re.compile(re.escape(wanted), re.IGNORECASE)
        self.overlap = 4 * len(wanted)  # bytes: what is found may lie across two pieces of one line
        self.offset, self.line = 0, 1
        self.hits: list[Hit] = []
        self.done = self.ended = False
        self.fault: tuple[LogState, str] | None = None
        self._before: list[bytes] = []
        self._near = CONTEXT_LINES if source.local is None else NEAR_LINES
        self._cut = False  # it goes on within a line of which nobody knows whose it is

    def run(self, offset: int, line: int) -> None:
        self.offset, self.line = offset, line
        if self.source.local is not None and offset:
            before = self.source.read(offset - 1, 1)
            self._cut = isinstance(before, LogPart) and before.data != b"\n"
        until, read = time.monotonic() + MOST_SECONDS, 0
        while not self.done and len(self.hits) < self.limit and read < MOST_READ and time.monotonic() < until:
            part = self.source.read(self.offset, MOST_BYTES)
            if isinstance(part, Unread):
                self.done, self.ended, self.fault = True, part.ended, (part.state, part.note)
                return
            read += max(1, len(part.data))
            self._cut = self._cut or (self.source.local is not None and part.offset != self.offset)
            self.offset = part.offset  # further on, where what was asked for has just been given up
            is_all = part.ended or not part.data or part.next_offset >= self.end
            self.ended = is_all and (part.ended or self.source.over)
            self._slice(part.data, is_all=is_all)

    def _slice(self, data: bytes, *, is_all: bool) -> None:
        lines = data.split(b"\n")
        rest = lines.pop()
        if self.ended and rest:
            looked = self._look([*lines, rest], len(lines) + 1, unfinished=True)
        elif is_all or len(lines) > CONTEXT_LINES:
            # What has no end yet waits for it, and the last lines for the next slice, which shows what stands behind them.
            looked = self._look(lines, len(lines) if is_all else len(lines) - CONTEXT_LINES)
        elif lines:
            looked = self._look(lines, len(lines))
        else:
            looked = self._piece(rest)
        self.done = is_all and looked

    def _look(self, lines: Sequence[bytes], count: int, *, unfinished: bool = False) -> bool:
        """Look at so many of these lines; whether at all of them. Those behind are shown, and not looked at."""
        own = self._own(lines)
        place = count
        if self._holds(b"\n".join(lines[:count])):
            for place, text in enumerate(own[:count]):
                if len(self.hits) >= self.limit:
                    break
                if text is not None and self._holds(text):
                    self._hit(text, self._lines_before(own, place), _some(own[place + 1 : place + 1 + self._near])[:CONTEXT_LINES])
                self._move_on(len(lines[place]) + (not (unfinished and place == count - 1)), text is not None)
            else:
                place = count
        else:
            self._move_on(sum(map(len, lines[:count])) + count - unfinished, len(_some(own[:count])))
        self._before = self._lines_before(own, place)
        self._cut = self._cut and not place
        return place == count

    def _lines_before(self, own: Sequence[bytes | None], place: int) -> list[bytes]:
        near = _some(own[max(0, place - self._near) : place])
        return [*(self._before if place <= self._near else ()), *near][-CONTEXT_LINES:]

    def _piece(self, data: bytes) -> bool:
        """Of a line that is longer than a slice. Of a rank's, only the first piece is known to be its own."""
        (text,) = self._own([data])
        holds = text is not None and self._holds(text)
        if holds:
            assert text is not None
            self._hit(text, self._before, ())
        of_rank = self.source.local is not None
        self._move_on(len(data) if holds else max(1, len(data) - self.overlap), of_rank and text is not None)
        self._cut = of_rank
        return True

    def _own(self, lines: Sequence[bytes]) -> list[bytes | None]:
        """The lines without the number of their rank; None for those of other ranks."""
        local = self.source.local
        if local is None:
            return list(lines)
        return [None if self._cut and not place else rank_text(line, local) for place, line in enumerate(lines)]

    def _holds(self, data: bytes) -> bool:
        return self.folded in data.decode(errors="replace").casefold()

    def _move_on(self, size: int, lines: int) -> None:
        self.offset += size
        self.line += lines

    def _hit(self, data: bytes, before: Sequence[bytes], after: Sequence[bytes]) -> None:
        text = data.decode(errors="replace").rstrip("\r")
        found = self.pattern.search(text)  # letters that fold into several are found and not marked
        start, end = found.span() if found else (0, 0)
        cut = max(0, start - BEFORE_IT) if len(text) > self.shown else 0
        around = [tuple(line[: 4 * SHOWN_AROUND].decode(errors="replace").rstrip("\r")[:SHOWN_AROUND] for line in some) for some in (before, after)]
        self.hits.append(Hit(self.line, self.offset, text[cut : cut + self.shown], start - cut, end - start, *around))


def _some(lines: Sequence[bytes | None]) -> list[bytes]:
    return [line for line in lines if line is not None]
