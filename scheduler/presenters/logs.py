"""Lines that were found in a log, and whose log can be chosen, for a page."""

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.selectors.log_search import Hit
from scheduler.selectors.logs import Writer

# Of a gang with more, the page of the job offers workers alone; the log's own page has their ranks.
MOST_RANKS = 512


@dataclass(frozen=True, slots=True)
class HitLine:
    """`found` is what was looked for, between what stands in front of it and behind it."""

    line: int
    offset: int
    front: str
    found: str
    behind: str


def hit_lines(hits: Sequence[Hit]) -> list[HitLine]:
    return [_hit_line(hit) for hit in hits]


def _hit_line(hit: Hit) -> HitLine:
    end = hit.start + hit.length
    return HitLine(hit.line, hit.offset, hit.text[: hit.start], hit.text[hit.start : end], hit.text[end:])


@dataclass(frozen=True, slots=True)
class WriterChoice:
    """`value` is role, index and rank, the last empty for all of the worker."""

    value: str
    label: str


def writer_choices(writers: Sequence[Writer]) -> list[WriterChoice]:
    """Each worker, and behind one with several ranks each of these. The first is where rank 0 writes."""
    with_ranks = bool(writers) and writers[-1].ranks.stop <= MOST_RANKS
    found = []
    for writer in writers:
        name, several = f"{writer.role} {writer.index}", len(writer.ranks) > 1
        if not several and writer.index != writer.ranks[0]:
            name += f", rank {writer.ranks[0]}"
        found.append(WriterChoice(f"{writer.role}|{writer.index}|", f"{name}, all ranks" if several and with_ranks else name))
        if several and with_ranks:
            found += [WriterChoice(f"{writer.role}|{writer.index}|{rank}", f"{name}, rank {rank}") for rank in writer.ranks]
    return found
