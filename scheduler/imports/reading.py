"""Takes typed values out of a document. Every fault is written down and reading goes on, so that all of them are told at once."""

import difflib
import re
from collections.abc import Iterable, Iterator
from typing import Any

from scheduler.imports.documents import Fault, Item

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?")
_TRUTH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
SLUG = re.compile(r"[A-Za-z0-9_-]+")


class Section:
    """A map of the file whose keys are known. Unknown keys are faults; so is what is required and not there."""

    def __init__(self, faults: list[Fault], item: Item, path: str, known: Iterable[str], required: Iterable[str] = ()) -> None:
        self.faults, self.item, self.path = faults, item, path
        self.known = tuple(known)
        self.entries = item.entries if item.kind == "map" else {}
        if item.kind != "map":
            self.fault(item, "", "must be a map of names and values")
            return
        for name, (key, _) in self.entries.items():
            if name not in self.known:
                near = difflib.get_close_matches(name, self.known, 1)
                self.fault(key, name, f"is not known here; {f'did you mean {near[0]}?' if near else 'known are ' + ', '.join(self.known)}")
        for name in required:
            if name not in self.entries or self.entries[name][1].is_null:
                self.fault(item, name, "is missing")

    def fault(self, item: Item, name: str, message: str) -> None:
        path = f"{self.path}.{name}" if self.path and name else self.path or name
        self.faults.append(Fault(item.line, item.column, path, message))

    def given(self, name: str) -> bool:
        """Whether the file says anything about it, be it null."""
        return name in self.entries

    def value(self, name: str) -> Item | None:
        """The value's place; None where it is absent or null."""
        found = self.entries.get(name)
        return None if found is None or found[1].is_null else found[1]

    def text(self, name: str, *, longest: int, pattern: "re.Pattern[str] | None" = None) -> str | None:
        item = self.value(name)
        if item is None:
            return None
        if item.kind != "text":
            self.fault(item, name, "must be a text")
        elif not item.text.strip() or "\0" in item.text:
            self.fault(item, name, "must not be blank")
        elif len(item.text) > longest:
            self.fault(item, name, f"has {len(item.text)} characters; {longest} are the most")
        elif pattern is not None and not pattern.fullmatch(item.text):
            self.fault(item, name, f"“{item.text[:40]}” may hold letters, digits{', dots' if pattern is NAME else ''}, hyphens and underscores only")
        else:
            return item.text
        return None

    def choice(self, name: str, allowed: Iterable[str]) -> str | None:
        item = self.value(name)
        if item is None:
            return None
        options = list(allowed)
        if item.kind == "text" and item.text in options:
            return item.text
        self.fault(item, name, f"“{item.text[:40]}” is none of {', '.join(options)}")
        return None

    def number(self, name: str, *, least: float = 0, most: float = 2_000_000_000) -> float | None:
        item = self.value(name)
        return None if item is None else self.number_of(item, name, least=least, most=most)

    def number_of(self, item: Item, name: str, *, least: float = 0, most: float = 2_000_000_000) -> float | None:
        if item.kind != "text" or item.quoted or not _NUMBER.fullmatch(item.text):
            shown = f"“{item.text[:40]}”" if item.kind == "text" else f"a {item.kind}"
            self.fault(item, name, f"must be a number, not {shown}")
            return None
        value = float(item.text)
        if not least <= value <= most:
            self.fault(item, name, f"{item.text} is out of range; it can be {least:,g} to {most:,.0f}")
            return None
        return value

    def whole(self, name: str, *, least: int = 0, most: int = 2_000_000_000) -> int | None:
        item = self.value(name)
        return None if item is None else self.whole_of(item, name, least=least, most=most)

    def whole_of(self, item: Item, name: str, *, least: int = 0, most: int = 2_000_000_000) -> int | None:
        value = self.number_of(item, name, least=least, most=most)
        if value is None:
            return None
        if value != int(value):
            self.fault(item, name, f"must be a whole number, not {item.text}")
            return None
        return int(value)

    def truth(self, name: str) -> bool | None:
        item = self.value(name)
        if item is None:
            return None
        if item.kind == "text" and not item.quoted and item.text.lower() in _TRUTH:
            return _TRUTH[item.text.lower()]
        self.fault(item, name, "must be true or false")
        return None

    def list(self, name: str) -> Iterator[tuple[str, Item]]:
        """The entries of a list, each with its path."""
        item = self.value(name)
        if item is None:
            return
        if item.kind != "list":
            self.fault(item, name, "must be a list")
            return
        for number, entry in enumerate(item.items):
            yield f"{name}[{number}]", entry

    def section(self, name: str, known: Iterable[str], required: Iterable[str] = ()) -> "Section | None":
        item = self.value(name)
        return None if item is None else self.inner(item, name, known, required)

    def inner(self, item: Item, name: str, known: Iterable[str], required: Iterable[str] = ()) -> "Section":
        return Section(self.faults, item, f"{self.path}.{name}" if self.path else name, known, required)

    def take(self, target: dict[str, Any], name: str, value: Any, *, to: str = "", empty: Any = None) -> None:
        """Put a value that the file gives into `target`; null gives `empty`. What is absent, or was refused, leaves no trace."""
        if not self.given(name):
            return
        if value is not None:
            target[to or name] = value
        elif self.value(name) is None:
            target[to or name] = empty
