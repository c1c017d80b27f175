"""Small checkers for plain data: each returns the engine's value or says what is wrong and what is allowed.

They know nothing of scenarios. A checker raises `Bad`; `Faults` turns that into one line with its JSON path and reading
goes on behind it, so that a person sees everything that is wrong at once.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

Check = Callable[[Any], Any]
LARGEST = 10**12  # any number in a scenario; beyond it sums could leave the exact range of what numpy holds
MOST_FAULTS = 1000
MISSING: Any = ...
PLAIN = (dict, list, int, float, type(None))  # and true and false: what JSON spells in its own way


class Bad(Exception):
    """A value that can't be used; the message says what is allowed, and `inside` where in the value it is."""

    def __init__(self, message: str, *inside: str | int) -> None:
        super().__init__(message)
        self.inside = inside

    def within(self, key: str | int) -> "Bad":
        """The same of the value that this one stands in."""
        return Bad(str(self), key, *self.inside)


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


class Faults:
    """Collects faults by path; a path is a tuple of keys and places, spelt out only when something is wrong."""

    def __init__(self) -> None:
        self.found: list[Fault] = []

    def add(self, path: tuple[str | int, ...], message: str) -> None:
        if len(self.found) < MOST_FAULTS:
            self.found.append(Fault(spell(path), message))

    def within(self, key: str) -> bool:
        """Whether anything below a key of the whole is wrong."""
        return any(fault.path.startswith((f"$.{key}.", f"$.{key}[")) or fault.path == f"$.{key}" for fault in self.found)

    def raise_if_any(self) -> None:
        if self.found:
            raise ScenarioError(self.found)

    def fields(self, raw: Any, table: Mapping[str, tuple[Check, Any]], path: tuple[str | int, ...]) -> dict[str, Any] | None:
        """The checked fields of an object with the defaults of the table; None where one was wrong. `...` as default: required."""
        if not isinstance(raw, dict):
            self.add(path, f"must be an object, not {kind_of(raw)}")
            return None
        sound = True
        values: dict[str, Any] = {}
        for key, value in raw.items():
            entry = table.get(key)
            if entry is None:
                self.unknown(path, key, table)
                sound = False
                continue
            try:
                values[key] = entry[0](value)
            except Bad as bad:
                self.add((*path, key, *bad.inside), str(bad))
                sound = False
        for key, (_, default) in table.items():
            if key not in raw:
                if default is MISSING:
                    self.add((*path, key), "is missing")
                    sound = False
                else:
                    values[key] = default
        return values if sound else None

    def unknown(self, path: tuple[str | int, ...], key: Any, allowed: Mapping[str, Any] | frozenset[str]) -> None:
        self.add((*path, str(key)), f"unknown key; allowed are {', '.join(sorted(allowed))}")

    def rows(self, raw: Any, path: tuple[str | int, ...]) -> list[Any]:
        """The list under a key, or an empty one after a fault."""
        if isinstance(raw, list):
            return raw
        self.add(path, f"must be a list, not {kind_of(raw)}")
        return []


def spell(path: tuple[str | int, ...]) -> str:
    parts = ["$"]
    for part in path:
        if isinstance(part, int):
            parts.append(f"[{part}]")
        elif part.isidentifier():
            parts.append(f".{part}")
        else:
            parts.append(f"[{short(part)}]")
    return "".join(parts)


def short(value: Any) -> str:
    """A value as it was written, or the beginning of it."""
    text = ascii(value) if isinstance(value, str) or not isinstance(value, PLAIN) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def kind_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return {dict: "an object", list: "a list", str: "a string", int: "a number", float: "a number"}.get(type(value), "something else")


def text(value: Any) -> str:
    if type(value) is not str:
        raise Bad(f"must be a string, not {kind_of(value)}")
    if not value or len(value) > 200:
        raise Bad("must have 1 to 200 characters")
    if not value.isprintable():
        raise Bad("must not hold control characters")
    return value


def flag(value: Any) -> bool:
    if value is True or value is False:
        return bool(value)
    raise Bad(f"must be true or false, not {kind_of(value)}")


def one_of(*allowed: str) -> Check:
    def check(value: Any) -> str:
        if type(value) is str and value in allowed:
            return value
        raise Bad(f"must be one of {', '.join(allowed)}, not {short(value)}")

    return check


def number(value: Any) -> int | float:
    if type(value) is not int and type(value) is not float:
        raise Bad(f"must be a number, not {kind_of(value)}")
    if not -LARGEST <= value <= LARGEST:  # also refuses NaN and infinity
        raise Bad(f"must be a finite number within {LARGEST}")
    return value


def scaled(factor: int, *, least: int = 0, most: int = LARGEST) -> Check:
    """A number times the factor, rounded to a whole one: 1.5 GPUs are 1500 milli-GPU."""

    def check(value: Any) -> int:
        if type(value) is int and 0 <= value <= 1_000_000 and value >= least:
            result = value * factor
            if result <= most * factor:
                return result
        plain = number(value)
        if not least <= plain <= most:
            raise Bad(f"must be between {least} and {most}, not {short(value)}")
        return plain * factor if isinstance(plain, int) else round(plain * factor)

    return check


def exact_thousandths(most: int) -> Check:
    """A number of at most three decimals, in thousandths: 1.5 processors are 1500. What would have to be rounded is refused."""

    def check(value: Any) -> int:
        if type(value) is int and 0 <= value <= most:
            return value * 1000
        plain = number(value)
        if not 0 <= plain <= most:
            raise Bad(f"must be between 0 and {most}, not {short(value)}")
        result = round(plain * 1000)
        if thousandths(result) != plain:
            raise Bad(f"must have at most three decimals, not {short(value)}")
        return result

    return check


def thousandths(amount: int) -> int | float:
    """So many thousandths as a number: 1.5 of 1500, and whole ones without a point."""
    return amount / 1000 if amount % 1000 else amount // 1000


def whole(least: int = 0, most: int = LARGEST) -> Check:
    def check(value: Any) -> int:
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int:
            raise Bad(f"must be a whole number, not {short(value)}")
        if not least <= value <= most:
            raise Bad(f"must be between {least} and {most}, not {short(value)}")
        return value

    return check


def optional(check: Check) -> Check:
    def checked(value: Any) -> Any:
        return None if value is None else check(value)

    return checked


def texts(value: Any) -> tuple[str, ...]:
    if type(value) is not list:
        raise Bad(f"must be a list of strings, not {kind_of(value)}")
    return tuple(_each(text, value))


def _each(check: Check, items: Iterable[Any]) -> Iterator[Any]:
    for place, item in enumerate(items):
        try:
            yield check(item)
        except Bad as bad:
            raise bad.within(place) from None


def table_of(check: Check) -> Check:
    """An object with free keys, as sorted pairs."""

    def checked(value: Any) -> tuple[tuple[str, Any], ...]:
        if type(value) is not dict:
            raise Bad(f"must be an object, not {kind_of(value)}")
        pairs = []
        for key, item in value.items():
            try:
                pairs.append((text(key), check(item)))
            except Bad as bad:
                raise bad.within(str(key)) from None
        return tuple(sorted(pairs))

    return checked


def instant_after(now: int) -> Check:
    """An instant: ISO 8601 in UTC, or seconds from `now`."""

    def check(value: Any) -> int:
        if type(value) is str:
            return instant(value)
        return now + round(number(value) * 1000)

    return check


def instant(value: Any) -> int:
    if type(value) is not str:
        raise Bad(f"must be a time such as 2026-11-20T09:00:00Z, not {kind_of(value)}")
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise Bad(f"must be a time such as 2026-11-20T09:00:00Z, not {short(value)}") from None
    if moment.tzinfo is not UTC:
        if moment.utcoffset() is None:
            raise Bad(f"must say its time zone (end in Z): {short(value)}")
        if moment.utcoffset():
            raise Bad(f"must be in UTC (end in Z): {short(value)}")
        moment = moment.replace(tzinfo=UTC)
    since = moment - _EPOCH
    return since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@lru_cache(maxsize=4096)
def spell_instant(milliseconds: int) -> str:
    """An instant as a plan writes it; milliseconds only where there are any."""
    seconds, rest = divmod(milliseconds, 1000)
    try:
        spelt = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return "9999-12-31T23:59:59Z"
    return f"{spelt}.{rest:03d}Z" if rest else f"{spelt}Z"
