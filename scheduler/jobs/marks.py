"""What jobs are looked for by besides their columns: labels, and GPU types that they name or have run on. `JobMark` has a row for each."""

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from scheduler.jobs.stored import types_of
from scheduler.models import MarkKind

LONGEST = 160  # of a value as it is kept; the key of an index has an end
KEPT = 90


class Mark(NamedTuple):
    kind: str
    key: str
    value: str


def marks_of(spec: Mapping[str, Any], labels: Mapping[str, Any]) -> list[Mark]:
    """Of a job that was checked, or of one that the system made: what reads as no label or type has no mark."""
    found = [Mark(MarkKind.TYPE, name, "") for name in types_of(spec) if len(name) <= 100]
    return found + label_marks(labels)


def label_marks(labels: Mapping[str, Any]) -> list[Mark]:
    return [label_mark(key, value) for key, value in labels.items() if len(key) <= 100]


def label_mark(key: str, value: Any) -> Mark:
    return Mark(MarkKind.LABEL, key, mark_value(value))


def mark_value(value: Any) -> str:
    """A label's value as it is looked for: a long one by its beginning and its digest, so that only the very same is found."""
    text = str(value)
    return text if len(text) <= LONGEST else f"{text[:KEPT]}…{hashlib.sha256(text.encode()).hexdigest()}"


def is_cut(value: str) -> bool:
    """Whether this is what `mark_value` made of a longer one."""
    return len(value) == KEPT + 65 and value[KEPT] == "…"
