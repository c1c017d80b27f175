"""How plain data is read and written: codecs for values, and one table of fields for each kind of object, which both ways use."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .faults import Bad, all_wrong, kind_of, rows
from .written import UNSET

Check = Callable[[Any], Any]
MISSING: Any = ...


def same(value: Any) -> Any:
    return value


class Codec(NamedTuple):
    """How a value of a document becomes one of the engine, and is written again."""

    read: Check
    write: Check = same


class Field(NamedTuple):
    """A field of an object: its name in the engine, its codec, what it is where it is not stated, whether it is written only where it is not
    that, and how it is told of the engine's value where that is no attribute of the name."""

    name: str
    codec: Codec
    default: Any = MISSING
    seldom: bool = False
    of: Callable[[Any], Any] | None = None


def with_defaults_of(value: Any, fields: Mapping[str, tuple[str, Codec]]) -> dict[str, Field]:
    return {key: Field(name, codec, getattr(value, name)) for key, (name, codec) in fields.items()}


class Table:
    """The fields of an object by their keys. `beside`: keys that it may have, and that are read elsewhere."""

    def __init__(self, fields: Mapping[str, Field], beside: Iterable[str] = ()) -> None:
        self.fields = fields
        self.allowed = sorted({*fields, *beside})
        self.reads = {key: (field.name, field.codec.read) for key, field in fields.items()}
        self.defaults = {field.name: field.default for field in fields.values()}
        self.required = {key for key, field in fields.items() if field.default is MISSING}

    def read(self, raw: Any) -> dict[str, Any]:
        """The values of an object by their names in the engine."""
        if type(raw) is not dict:
            raise Bad(f"must be an object, not {kind_of(raw)}")
        values = self.defaults.copy()
        try:
            for key, value in raw.items():
                name, read = self.reads[key]
                values[name] = read(value)
        except (Bad, KeyError):
            raise self.wrong(raw) from None
        if not raw.keys() >= self.required:
            raise self.wrong(raw)
        return values

    def wrong(self, raw: dict[str, Any]) -> Bad:
        bad = all_wrong((key, self.reads[key][1], value) for key, value in raw.items() if key in self.reads)
        for key in raw:
            if key not in self.reads:
                bad.add(f"unknown key; allowed are {', '.join(self.allowed)}", str(key))
        for key in self.reads:
            if key in self.required and key not in raw:
                bad.add("is missing", key)
        return bad

    def columns(self, stated: Collection[Sequence[Any]]) -> dict[str, list[Any]]:
        """The same of many objects at once, column by column, from what each of them states for each key."""
        found = {}
        columns = zip(*stated, strict=True) if stated else [()] * len(self.fields)
        for (name, codec, default, *_), column in zip(self.fields.values(), columns, strict=True):
            read = codec.read
            found[name] = [*map(read, column)] if default is MISSING else [default if value is UNSET else read(value) for value in column]
        return found

    def write(self, value: Any) -> dict[str, Any]:
        """The same back; what can't be told of the engine's value is left to the caller."""
        stated = [(key, field, field.of(value) if field.of else getattr(value, field.name, MISSING)) for key, field in self.fields.items()]
        return {key: field.codec.write(one) for key, field, one in stated if one is not MISSING and not (field.seldom and one == field.default)}


def record(fields: Mapping[str, Field], make: Callable[..., Any]) -> Codec:
    """An object; `make` takes its values by name, and may find that they don't go together."""
    table = Table(fields)
    return Codec(lambda raw: make(**table.read(raw)), table.write)


def optional(codec: Codec, absent: Any = None) -> Codec:
    """A value, or null for what is `absent` in the engine."""
    read, write = codec
    return Codec(lambda value: absent if value is None else read(value), lambda value: None if value == absent else write(value))


def listed(codec: Codec, what: str = "a list") -> Codec:
    def read(value: Any) -> tuple[Any, ...]:
        items = rows(value, what)
        try:
            return tuple(map(codec.read, items))
        except Bad:
            raise all_wrong((place, codec.read, item) for place, item in enumerate(items)) from None

    return Codec(read, lambda values: [codec.write(value) for value in values])
