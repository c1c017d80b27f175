"""What no database holds, wherever it stands in a description: of free texts and values the schema says nothing."""

from collections.abc import Iterator
from typing import Any

from gpufleet.core.faults import NO_TEXT
from scheduler.jobs.reading import Faults

DEEPEST = 20
LARGEST = 1e18
TOO_DEEP = f"It is nested more than {DEEPEST} levels deep."


def unstorable(value: Any) -> Faults:
    """Faults by path; where it is nested too deep, that alone, as nothing else should look at it."""
    found = {path or "description": [message] for path, message in _unstorable(value, "", 0)}
    deep = {path: messages for path, messages in found.items() if TOO_DEEP in messages}
    return deep or found


def text_is_storable(value: Any) -> bool:
    return isinstance(value, str) and not _is_no_text(value)


def _unstorable(value: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:
    if depth > DEEPEST:
        yield path, TOO_DEEP
    elif isinstance(value, str):
        if _is_no_text(value):
            yield path, NO_TEXT
    elif isinstance(value, dict):
        for key, inner in value.items():
            if _is_no_text(str(key)):
                yield path, "A name in it holds a character that no text has."
            else:
                yield from _unstorable(inner, f"{path}.{key}" if path else str(key), depth + 1)
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _unstorable(inner, f"{path}[{place}]", depth + 1)
    elif isinstance(value, int | float) and not abs(value) <= LARGEST:
        yield path, "The number is too large."


def _is_no_text(text: str) -> bool:
    return "\0" in text or (not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text))
