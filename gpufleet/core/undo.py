"""A message after a change with a button that takes the change back: a new change of its own, by the same person, with its own audit entry."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from django.contrib import messages
from django.contrib.messages.storage.base import Message
from django.http import HttpRequest

_MARK = "undo "
NAMED = 5


@dataclass(frozen=True, slots=True)
class Undo:
    """What the button posts, and where. `reason` is among the fields where the address wants one."""

    address: str
    fields: dict[str, str]


def done_with_undo(request: HttpRequest, text: str, undo: Undo | None, *, level: int = messages.SUCCESS) -> None:
    """Say that something is done; without an `undo` it can't be taken back."""
    tags = "" if undo is None else _MARK + orjson.dumps([undo.address, undo.fields]).decode()
    messages.add_message(request, level, text, extra_tags=tags)


def undone_said(done: int, left: int, names: Sequence[str], noun: str) -> str:
    """What an Undo of many came to: how many are as before, and how many are not; the first of those by name, as far as `names` has them."""
    said = f"{done:,} {noun}{' is' if done == 1 else 's are'} as before."
    if not left:
        return said
    changed = f"{noun} has changed since and is" if left == 1 else f"{noun}s have changed since and are"
    return f"{said} {left:,} {changed} left alone{named(names, left)}."


def named(names: Sequence[str], count: int) -> str:
    """The first of them behind a colon, and how many more there are. Nothing where none may be named."""
    more = count - len(names[:NAMED])
    return f": {', '.join(names[:NAMED])}{f' and {more:,} more' if more else ''}" if names else ""


def undo_of(message: Message | Any) -> Undo | None:
    tags = getattr(message, "extra_tags", None) or ""
    return Undo(*orjson.loads(tags.removeprefix(_MARK))) if tags.startswith(_MARK) else None
