"""What is not as it should be, in words for whoever runs the console: the doctor and the pages that set something up say the same."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be. A note is worth knowing and needs nothing done."""

    what: str
    means: str
    do: str
    note: bool = False


def some(things: Sequence[object], limit: int = 5) -> str:
    """The first few by name, and how many more there are."""
    shown = ", ".join(str(thing) for thing in things[:limit])
    return shown if len(things) <= limit else f"{shown} and {len(things) - limit} more"
