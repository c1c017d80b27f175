"""A message after a change with a button that takes the change back: a new change of its own, by the same person, with its own audit entry."""

from dataclasses import dataclass
from typing import Any

import orjson
from django.contrib import messages
from django.contrib.messages.storage.base import Message
from django.http import HttpRequest

_MARK = "undo "


@dataclass(frozen=True, slots=True)
class Undo:
    """What the button posts, and where. `reason` is among the fields where the address wants one."""

    address: str
    fields: dict[str, str]


def done_with_undo(request: HttpRequest, text: str, undo: Undo | None) -> None:
    """Say that something is done; without an `undo` it can't be taken back."""
    tags = "" if undo is None else _MARK + orjson.dumps([undo.address, undo.fields]).decode()
    messages.success(request, text, extra_tags=tags)


def undo_of(message: Message | Any) -> Undo | None:
    tags = getattr(message, "extra_tags", None) or ""
    return Undo(*orjson.loads(tags.removeprefix(_MARK))) if tags.startswith(_MARK) else None
