"""A job's description as YAML: read so that every fault has its line, and written so that people like to read it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from scheduler.jobs.reading import Faults
from scheduler.jobs.schema import JobDescription
from scheduler.jobs.shown import keys_of

MAX_CHARACTERS = 1_000_000
MAX_DEPTH = 30
MAX_VALUES = 20_000
MAX_DIGITS = 40
KEYS = {key: place for place, key in enumerate(keys_of(JobDescription))}


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Times stay as they are written: what they mean, and that they need a zone, is for the schema to say.

    libyaml's parser where PyYAML brings it: the one in Python takes half a minute for a megabyte.
    """

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _whole(loader: _Loader, node: yaml.ScalarNode) -> Any:
    """A number that a person could have meant: one of thousands of digits can be neither printed nor stored."""
    if len(str(node.value)) > MAX_DIGITS:
        raise ValueError(f"line {node.start_mark.line + 1} has a number of more than {MAX_DIGITS} digits")
    return loader.construct_yaml_int(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _whole)


def _bounded(text: str) -> None:
    """Refuse a text that is too large before anything is made of it."""
    values = depth = 0
    for event in yaml.parse(text, _Loader):
        if isinstance(event, yaml.ScalarEvent | yaml.AliasEvent):
            values += 1
        elif isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            values += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if values > MAX_VALUES:
            raise ValueError(f"it has more than {MAX_VALUES:,} values")
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")


@dataclass(slots=True)
class Document:
    """What a text says, where it says it, and what is wrong with its form."""

    value: Any = None
    lines: dict[str, int] = field(default_factory=dict)  # by path
    faults: Faults = field(default_factory=dict)

    def line(self, path: str) -> int | None:
        """The line of a path, or of the nearest thing above it."""
        while path:
            if path in self.lines:
                return self.lines[path]
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return None


def read_yaml(text: str) -> Document:
    """One description. A text that is not valid YAML has one fault, with its line and column."""
    found = Document()
    if len(text) > MAX_CHARACTERS:
        found.faults["yaml"] = [f"At most {MAX_CHARACTERS:,} characters."]
        return found
    try:
        _bounded(text)
        nodes = list(yaml.compose_all(text, _Loader))
        if len(nodes) > 1:
            found.faults["yaml"] = [f"Line {nodes[1].start_mark.line + 1}: a second document; one page submits one description."]
        if nodes and nodes[0] is not None:
            _walk(nodes[0], "", 0, found)
            found.value = _built(nodes[0])
    except yaml.MarkedYAMLError as fault:
        where = _place(text, fault.problem_mark or fault.context_mark)
        found.faults["yaml"] = [f"{where}this is not valid YAML: {fault.problem or fault.context}."]
    except (yaml.YAMLError, ValueError, RecursionError) as fault:
        found.faults["yaml"] = [f"This is not valid YAML: {str(fault).splitlines()[0]}."]
    return found


def _place(text: str, mark: yaml.Mark | None) -> str:
    """Line and column for people; what is missing at the end is missing behind the last character."""
    if mark is None:
        return ""
    lines = text.splitlines() or [""]
    line, column = (mark.line, mark.column) if mark.line < len(lines) else (len(lines) - 1, len(lines[-1]))
    return f"Line {line + 1}, column {column + 1}: "


def _walk(node: Any, path: str, depth: int, found: Document) -> None:
    """The line of everything, and keys that are there twice."""
    found.lines.setdefault(path, node.start_mark.line + 1)
    if len(found.lines) > MAX_VALUES:
        raise ValueError(f"it has more than {MAX_VALUES:,} values")
    if depth > MAX_DEPTH:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            below = f"{path}.{name}" if path else name
            if name in seen:
                found.faults.setdefault(below, []).append(f"{name} is stated twice; the second time in line {key.start_mark.line + 1}.")
            seen.add(name)
            found.lines[below] = key.start_mark.line + 1
            _walk(value, below, depth + 1, found)
    elif isinstance(node, yaml.SequenceNode):
        for place, value in enumerate(node.value):
            _walk(value, f"{path}[{place}]", depth + 1, found)


def _built(node: Any) -> Any:
    loader = _Loader("")
    try:
        return loader.construct_document(node)
    finally:
        loader.dispose()


def write_yaml(description: Mapping[str, Any]) -> str:
    """The keys in the order of the schema; unknown ones at the end."""
    ordered = dict(sorted(description.items(), key=lambda pair: KEYS.get(str(pair[0]), len(KEYS))))
    return yaml.dump(ordered, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100) if ordered else ""


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)
