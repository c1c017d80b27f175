"""The words of a filter line: `team:vision state:waiting,running gpu:h100 "my job"`. A word with the name of a filter in front sets that filter."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpufleet.core.filters import Choice, Filter, Flag, Moment, word_spelt

# A name and a value, or a word as the search reads it. What is not closed runs to the end.
_PART = re.compile(
    r'(?P<name>[A-Za-z][\w-]*):(?:"(?P<quoted>(?:[^"]|"")*)(?:"|$)|(?P<bare>[^\s"]*))'
    r'|"(?P<phrase>(?:[^"]|"")*)(?:"|$)|(?P<word>[^\s"]+)'
)
LEAST_PREFIX = 2


@dataclass(slots=True)
class Told:
    """What a filter line says: `values` by the filters' keys, `words` for the search, and the names that stand `empty`, with an example each."""

    words: str = ""
    values: dict[str, list[str]] = field(default_factory=dict)
    empty: list[tuple[str, str]] = field(default_factory=list)


def tokens_read(text: str, filters: Sequence[Filter]) -> Told:
    told = Told()
    words: list[str] = []
    for found in _PART.finditer(text):
        item = filter_named(found["name"], filters) if found["name"] else None
        if item is None:
            words.append(found[0] if found["phrase"] is None else word_spelt(found["phrase"].replace('""', '"').strip()))
            continue
        value = found["quoted"].replace('""', '"') if found["quoted"] is not None else found["bare"]
        if value:
            told.values.setdefault(item.key, []).extend(_values(item, value, quoted=found["quoted"] is not None))
        else:
            told.empty.append((found["name"], _example(item)))
    told.words = " ".join(word for word in words if word)
    return told


def filter_named(name: str, filters: Sequence[Filter]) -> Filter | None:
    """The filter with this key or label; else the only one whose key or label begins so."""
    name = name.casefold()
    for item in filters:
        if name in _names(item):
            return item
    begun = [item for item in filters if any(known.startswith(name) for known in _names(item))] if len(name) >= LEAST_PREFIX else []
    return begun[0] if len(begun) == 1 else None


def _names(item: Filter) -> set[str]:
    return {item.key, item.key.replace("_", "-"), item.label.casefold().replace(" ", "-")}


def _values(item: Filter, value: str, *, quoted: bool) -> list[str]:
    if isinstance(item, Choice):
        return [known for part in ([value] if quoted else value.split(",")) if part for known in _chosen(item, part)]
    if isinstance(item, Flag):
        told = {item.yes.casefold(): "yes", item.no.casefold(): "no"}
        return [told.get(value.casefold(), value.casefold())]
    return [value]


def _chosen(item: Choice, part: str) -> list[str]:
    """The value that is written so; else all whose value or word begins so, then all that hold it: `gpu:h100` means each kind of H100."""
    choices = list(item.choices() if callable(item.choices) else item.choices)
    wanted = part.casefold()
    spelled = [(value, {value.casefold(), label.casefold()}) for value, label in choices]
    for fits in (str.__eq__, str.startswith, str.__contains__):
        if found := [value for value, words in spelled if any(fits(word, wanted) for word in words)]:
            return found
    return [part]


def _example(item: Filter) -> str:
    if isinstance(item, Choice):
        choices = item.choices() if callable(item.choices) else item.choices
        return choices[0][0] if choices else "value"
    return {Flag: "yes", Moment: "2026-11-20"}.get(type(item), "value")
