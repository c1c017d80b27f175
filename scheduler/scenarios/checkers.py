"""How the values of a scenario are read and written. They know nothing of what a scenario is."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from scheduler.engine.model.reasons import spell_instant, thousandths

from .faults import Bad, all_wrong, kind_of, short
from .fields import Codec, listed

LARGEST = 10**12  # any number in a scenario; beyond it sums could leave the exact range of what numpy holds
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def text(value: Any) -> str:
    if type(value) is not str:
        raise Bad(f"must be a string, not {kind_of(value)}")
    if not 0 < len(value) <= 200:
        raise Bad("must have 1 to 200 characters")
    if not value.isprintable():
        raise Bad("must not hold control characters")
    return value


def flag(value: Any) -> bool:
    if type(value) is not bool:
        raise Bad(f"must be true or false, not {kind_of(value)}")
    return value


TEXT, FLAG = Codec(text), Codec(flag)


def chosen(values: Mapping[Any, Any]) -> Codec:
    """One of some names, true and false among them, and what each of them is in the engine."""
    allowed = ", ".join(name if type(name) is str else short(name) for name in values)

    def read(value: Any) -> Any:
        if type(value) not in (str, bool) or value not in values:
            raise Bad(f"must be one of {allowed}, not {short(value)}")
        return values[value]

    return Codec(read, {value: name for name, value in values.items()}.__getitem__)


def one_of(*allowed: str) -> Codec:
    return Codec(chosen({name: name for name in allowed}).read)


def number(value: Any, least: int = -LARGEST, most: int = LARGEST) -> int | float:
    if type(value) is not int and type(value) is not float:
        raise Bad(f"must be a number, not {kind_of(value)}")
    if least <= value <= most:
        return value
    if -LARGEST <= value <= LARGEST:
        raise Bad(f"must be between {least} and {most}, not {short(value)}")
    raise Bad(f"must be a finite number within {LARGEST}")  # NaN and infinity, too


def scaled(factor: int, most: int = LARGEST) -> Codec:
    """A number times the factor, rounded to a whole one: 1.5 GPUs are 1500 milli-GPU."""

    def read(value: Any) -> int:
        if type(value) is int and 0 <= value <= most:
            return value * factor
        return round(number(value, 0, most) * factor)

    return Codec(read, lambda value: value / factor)


MILLI = scaled(1000, most=100_000_000)
RATIO = scaled(1_000_000, most=1000)
MILLIONTHS = scaled(1_000_000, most=1_000_000)
SHARE = scaled(1000, most=1)
GIGABYTES = scaled(1024, most=1_000_000_000)
SECONDS = Codec(scaled(1000).read, thousandths)


def _processors(value: Any) -> int:
    result = round(number(value, 0, 1_000_000) * 1000)
    if thousandths(result) != value:
        raise Bad(f"must have at most three decimals, not {short(value)}")
    return result


PROCESSORS = Codec(_processors, thousandths)  # in thousandths; what would have to be rounded is refused


def whole(least: int = 0, most: int = LARGEST) -> Codec:
    def read(value: Any) -> int:
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int:
            raise Bad(f"must be a whole number, not {short(value)}")
        if not least <= value <= most:
            raise Bad(f"must be between {least} and {most}, not {short(value)}")
        return value

    return Codec(read)


def above_zero(codec: Codec) -> Codec:
    def read(value: Any) -> Any:
        found = codec.read(value)
        if found < 1:
            raise Bad("must be above 0")
        return found

    return Codec(read, codec.write)


TEXTS = listed(TEXT, "a list of strings")


def table_of(codec: Codec) -> Codec:
    """An object with free keys, as sorted pairs."""

    def pair(item: tuple[Any, Any]) -> tuple[str, Any]:
        return text(item[0]), codec.read(item[1])

    def read(value: Any) -> tuple[tuple[str, Any], ...]:
        if type(value) is not dict:
            raise Bad(f"must be an object, not {kind_of(value)}")
        try:
            return tuple(sorted(map(pair, value.items())))
        except Bad:
            raise all_wrong((str(item[0]), pair, item) for item in value.items()) from None

    return Codec(read, lambda pairs: {key: codec.write(item) for key, item in pairs})


# Times


def moment(now: int) -> Codec:
    """An instant: ISO 8601 in UTC, or seconds from `now`."""

    def read(value: Any) -> int:
        return instant(value) if type(value) is str else now + round(number(value) * 1000)

    return Codec(read, spell_instant)


def instant(value: Any) -> int:
    if type(value) is not str:
        raise Bad(f"must be a time such as 2026-11-20T09:00:00Z, not {kind_of(value)}")
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        raise Bad(f"must be a time such as 2026-11-20T09:00:00Z, not {short(value)}") from None
    if at.tzinfo is not UTC:
        if at.utcoffset() is None:
            raise Bad(f"must say its time zone (end in Z): {short(value)}")
        if at.utcoffset():
            raise Bad(f"must be in UTC (end in Z): {short(value)}")
    return (at - _EPOCH) // _MILLISECOND
