"""Lengths of time as people write them: `90m`, `2h`, `1.5d`, or plain seconds."""

import re

_WRITTEN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)?")
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


def seconds_read(text: str) -> float | None:
    """None where it is no length."""
    found = _WRITTEN.fullmatch(text.strip().lower())
    return float(found[1]) * _UNITS[found[2] or "s"] if found else None


def length_written(seconds: int) -> str:
    """In the largest unit that divides it: `7d`, `90m`, `45s`."""
    if not seconds:
        return "0s"
    size, unit = next((size, unit) for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)) if seconds % size == 0)
    return f"{seconds // size}{unit}"
