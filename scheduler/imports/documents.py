"""YAML, JSON and CSV as one kind of tree in which every value knows its line and column.

Values stay texts here: the schema knows what each must be, so a rack called 012 is not a number and a port called `no` is not a truth value.
Aliases, tags and deep or endless nesting have no use in an inventory and are refused before they cost anything.
"""

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

FORMAT = "gpufleet-inventory/1"
MAX_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 12
MAX_VALUES = 1_000_000
FORMATS = ("yaml", "json", "csv")
KUBERNETES = "kubernetes"  # what kubectl get nodes -o json writes; it becomes YAML when it is previewed
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_PAIR = re.compile(r"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """Something wrong in a file, and where."""

    line: int
    column: int
    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.line}:{self.column}: {f'{self.path}: ' if self.path else ''}{self.message}"


class Unreadable(Exception):
    """The file is no document at all; the faults say where it ends to make sense."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__("; ".join(str(fault) for fault in faults))
        self.faults = list(faults)


@dataclass(slots=True)
class Item:
    """A value of the file: a text, a list, or named values."""

    line: int
    column: int
    kind: str = "text"
    text: str = ""
    quoted: bool = False
    items: list["Item"] = field(default_factory=list)
    entries: dict[str, tuple["Item", "Item"]] = field(default_factory=dict)

    @property
    def is_null(self) -> bool:
        return self.kind == "text" and not self.quoted and self.text in _NULLS


def format_of(filename: str) -> str:
    """The format that a file name promises; empty where it promises none."""
    ending = filename.rpartition(".")[2].lower()
    return {"yaml": "yaml", "yml": "yaml", "json": "json", "csv": "csv"}.get(ending, "")


def decoded(data: bytes) -> str:
    """The file's text. Inventories are UTF-8; a byte order mark is dropped."""
    if len(data) > MAX_BYTES:
        raise Unreadable(Fault(1, 1, "", f"the file has {len(data):,} bytes; {MAX_BYTES:,} are read"))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        before = data[: fault.start]
        line, column = before.count(b"\n") + 1, fault.start - (before.rfind(b"\n") + 1) + 1
        raise Unreadable(Fault(line, column, "", f"byte 0x{data[fault.start]:02x} is not UTF-8; save the file as UTF-8")) from fault


def read(text: str, form: str) -> tuple[Item, list[Fault]]:
    """The document and the faults of its form (a key that is there twice, an alias). Raises `Unreadable` where there is no document."""
    if len(text) > MAX_BYTES:
        raise Unreadable(Fault(1, 1, "", f"the file has {len(text):,} characters; {MAX_BYTES:,} are read"))
    if form == "csv":
        return read_csv(text)
    if form == "json":
        _check_json(text)
        # What YAML reads differently: tabs between values, and characters that JSON writes as two escapes.
        text = _PAIR.sub(_joined, text.replace("\t", " "))
    builder = _Builder()
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            builder.take(event)
    except yaml.MarkedYAMLError as fault:
        mark = fault.problem_mark or fault.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise Unreadable(*builder.faults, Fault(line, column, "", f"this is not a {form.upper()}: {fault.problem or fault.context}")) from fault
    except yaml.reader.ReaderError as fault:
        before = text[: fault.position]
        raise Unreadable(
            Fault(before.count("\n") + 1, fault.position - before.rfind("\n"), "", "a control character; the file is damaged or no text")
        ) from fault
    if builder.root is None:
        raise Unreadable(Fault(1, 1, "", "the file is empty"))
    return builder.root, builder.faults


def _joined(match: "re.Match[str]") -> str:
    character = bytes.fromhex(match[1] + match[2]).decode("utf-16-be")
    return f"\\U{ord(character):08x}"


def _check_json(text: str) -> None:
    """YAML reads almost all JSON and much that is none; a file that calls itself JSON is held to it."""
    try:
        json.loads(text)
    except json.JSONDecodeError as fault:
        raise Unreadable(Fault(fault.lineno, fault.colno, "", f"this is not valid JSON: {fault.msg[:1].lower()}{fault.msg[1:]}")) from fault
    except RecursionError as fault:
        raise Unreadable(Fault(1, 1, "", f"values are nested deeper than {MAX_DEPTH} levels")) from fault


class _Builder:
    """Builds the tree from the parser's events, so that a bad document is refused while it is read and not after it was built."""

    def __init__(self) -> None:
        self.root: Item | None = None
        self.faults: list[Fault] = []
        self.open: list[tuple[Item, list[Item]]] = []  # container, and the key that waits for its value
        self.count = 0

    def take(self, event: Any) -> None:
        mark = event.start_mark
        match event:
            case yaml.ScalarEvent():
                item = Item(mark.line + 1, mark.column + 1, "text", event.value, quoted=bool(event.style))
                self._tag(event, item)
                self._add(item)
            case yaml.SequenceStartEvent() | yaml.MappingStartEvent():
                item = Item(mark.line + 1, mark.column + 1, "list" if isinstance(event, yaml.SequenceStartEvent) else "map")
                self._tag(event, item)
                self._add(item)
                self.open.append((item, []))
                if len(self.open) > MAX_DEPTH:
                    raise Unreadable(*self.faults, Fault(item.line, item.column, "", f"values are nested deeper than {MAX_DEPTH} levels"))
            case yaml.SequenceEndEvent() | yaml.MappingEndEvent():
                self.open.pop()
            case yaml.AliasEvent():
                self.faults.append(Fault(mark.line + 1, mark.column + 1, "", f"the alias *{event.anchor}; write the value out"))
                self._add(Item(mark.line + 1, mark.column + 1))
            case yaml.DocumentStartEvent() if self.root is not None:
                raise Unreadable(*self.faults, Fault(mark.line + 1, mark.column + 1, "", "a second document; one file holds one inventory"))

    def _tag(self, event: Any, item: Item) -> None:
        if event.tag is not None:
            self.faults.append(Fault(item.line, item.column, "", f"the tag {event.tag}; an inventory needs none"))

    def _add(self, item: Item) -> None:
        self.count += 1
        if self.count > MAX_VALUES:
            raise Unreadable(*self.faults, Fault(item.line, item.column, "", f"more than {MAX_VALUES:,} values"))
        if not self.open:
            self.root = item
            return
        container, waiting = self.open[-1]
        if container.kind == "list":
            container.items.append(item)
        elif not waiting:
            waiting.append(item)
        else:
            self._enter(container, waiting.pop(), item)

    def _enter(self, container: Item, key: Item, value: Item) -> None:
        if key.kind != "text":
            self.faults.append(Fault(key.line, key.column, "", "a list or a map as a name; names are texts"))
        elif key.text in container.entries:
            first = container.entries[key.text][0]
            self.faults.append(Fault(key.line, key.column, key.text, f"is there twice; the first is in line {first.line}"))
        else:
            container.entries[key.text] = (key, value)


def read_csv(text: str) -> tuple[Item, list[Fault]]:
    """One row a node, as a list of maps whose `entries` are the header. Cells know where they begin; empty ones are left out."""
    faults: list[Fault] = []
    lines = text.splitlines(keepends=True)
    rows = _csv_rows(lines)
    try:
        header = next(rows, None)
        if header is None:
            raise Unreadable(Fault(1, 1, "", "the file is empty"))
        names = _header(header, faults)
        root = Item(1, 1, "list", entries={name: (cell, cell) for name, cell in zip(names, header, strict=True) if name})
        for cells in rows:
            if any(cell.text.strip() for cell in cells):
                root.items.append(_row(cells, names, faults))
    except csv.Error as fault:
        raise Unreadable(*faults, Fault(len(lines), 1, "", f"this is not valid CSV: {fault}")) from fault
    return root, faults


def _header(cells: list[Item], faults: list[Fault]) -> list[str]:
    names: list[str] = []
    for cell in cells:
        name = cell.text.strip().lower()
        if name and name in names:
            faults.append(Fault(cell.line, cell.column, name, "this column is there twice"))
        names.append(name if name not in names else "")
    return names


def _row(cells: list[Item], names: list[str], faults: list[Fault]) -> Item:
    row = Item(cells[0].line, cells[0].column, "map")
    for number, cell in enumerate(cells):
        cell.text = cell.text.strip()
        if number >= len(names):
            if cell.text:
                faults.append(Fault(cell.line, cell.column, "", f"a value beyond the last column; the header names {len(names)}"))
        elif cell.text and names[number]:
            row.entries[names[number]] = (cell, cell)
    return row


def _csv_rows(lines: list[str]) -> Iterator[list[Item]]:
    reader = csv.reader(lines, strict=True)
    first = 0
    for values in reader:
        places = _cell_places(lines[first : reader.line_num], first + 1)
        first = reader.line_num
        if values:
            yield [Item(line, column, "text", value) for value, (line, column) in zip(values, places, strict=False)]


def _cell_places(lines: list[str], number: int) -> Iterator[tuple[int, int]]:
    """Where the text of each cell of one record begins: the record was read already, so only commas and quotes matter."""
    quoted = False
    yield number, 1 + lines[0].startswith('"')
    for offset, line in enumerate(lines):
        for position, character in enumerate(line):
            if character == '"':
                quoted = not quoted
            elif character == "," and not quoted:
                yield number + offset, position + 2 + line.startswith('"', position + 1)
