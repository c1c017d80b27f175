"""What is wrong in plain data, each with its path: first inside a value, at last in the whole."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

MOST_FAULTS = 1000
PLAIN = (dict, list, int, float, type(None))  # and true and false: what JSON spells in its own way

T = TypeVar("T")


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class ScenarioError(Exception):
    """A scenario that can't be planned, with every fault found in it."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = tuple(faults)


class Bad(Exception):
    """A value that can't be used: all that is wrong in it, each with its path inside the value and what is allowed there."""

    def __init__(self, message: str = "", *path: str | int) -> None:
        self.found: list[tuple[tuple[str | int, ...], str]] = []
        if message:
            self.add(message, *path)

    def add(self, message: str, *path: str | int) -> None:
        self.found.append((path, message))

    @property
    def is_full(self) -> bool:
        """Whether what is told of a scenario is found: the rest of it need not be looked at."""
        return len(self.found) >= MOST_FAULTS

    def when(self, wrong: object, message: str, *path: str | int) -> None:
        if wrong:
            self.add(message, *path)

    def take(self, read: Callable[[Any], T], raw: Any, *path: str | int) -> T | None:
        """What is read of the value at a path, or None after its faults."""
        try:
            return read(raw)
        except Bad as bad:
            self.note(bad, *path)
            return None

    def note(self, bad: "Bad", *path: str | int) -> None:
        self.found += [((*path, *inside), message) for inside, message in bad.found]

    def rows(self, read: Callable[[Any], T], raw: Any, key: str) -> Iterator[tuple[int, T]]:
        """The rows of a list that can be read, each with its place."""
        for place, row in enumerate(self.take(rows, raw, key) or ()):
            value = self.take(read, row, key, place)
            if value is not None:
                yield place, value
            if self.is_full:
                break

    def named(self, read: Callable[[Any], Any], raw: Any, key: str, noun: str) -> dict[str, tuple[int, Any]]:
        """The same by name, which only one may have."""
        found: dict[str, tuple[int, Any]] = {}
        for place, value in self.rows(read, raw, key):
            if value.name in found:
                self.add(f"{short(value.name)} is the name of another {noun}", key, place, "name")
            found.setdefault(value.name, (place, value))
        return found

    def raise_if_any(self) -> None:
        if self.found:
            raise self

    def faults(self, *path: str | int) -> list[Fault]:
        """As faults of a whole in which the value stands at a path."""
        return [Fault(spell((*path, *inside)), message) for inside, message in self.found[:MOST_FAULTS]]


def all_wrong(values: Iterable[tuple[str | int, Callable[[Any], Any], Any]]) -> Bad:
    """What is wrong in any of some values, each with its key and how it is read."""
    bad = Bad()
    for key, read, value in values:
        bad.take(read, value, key)
        if bad.is_full:
            break
    return bad


def spell(path: Sequence[str | int]) -> str:
    parts = ["$"]
    for part in path:
        if isinstance(part, int):
            parts.append(f"[{part}]")
        else:
            parts.append(f".{part}" if part.isidentifier() else f"[{short(part)}]")
    return "".join(parts)


def short(value: Any) -> str:
    """A value as it was written, or the beginning of it."""
    try:
        text = ascii(value) if isinstance(value, str) or not isinstance(value, PLAIN) else json.dumps(value)
    except RecursionError:
        return f"{kind_of(value)} that is nested too deeply"
    return text if len(text) <= 60 else f"{text[:57]}..."


def kind_of(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return {dict: "an object", list: "a list", str: "a string", int: "a number", float: "a number"}.get(type(value), "something else")


def rows(value: Any, what: str = "a list") -> list[Any]:
    if type(value) is not list:
        raise Bad(f"must be {what}, not {kind_of(value)}")
    return value
