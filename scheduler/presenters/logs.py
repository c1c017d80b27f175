"""Lines that were found in a log, for a page."""

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.selectors.log_search import Hit


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
