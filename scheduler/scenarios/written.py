"""JSON text as plain data, quickly where nothing about it is unusual."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypedDict

import msgspec
import numpy as np
from msgspec import UNSET, Raw, Struct
from msgspec.structs import astuple

from .faults import Fault, ScenarioError, short

__all__ = ["UNSET", "Raw", "astuple"]
_encoder = msgspec.json.Encoder()


class Unusual(Exception):
    """Something about a text is unusual: `carefully` says whether it is wrong."""


def row_type(keys: Iterable[str], types: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """Objects with these keys. What is left as text, or is a row in a row, `plain` makes plain data; what many share is read once by `alike`."""
    return msgspec.defstruct("Row", [(key, types.get(key, Any), UNSET) for key in keys], gc=False)


def decoder(keys: Iterable[str], rows: str, row: Any) -> msgspec.json.Decoder[Any]:
    """Of an object with one long list."""
    whole = TypedDict("whole", {key: list[row] if key == rows else Any for key in keys}, total=False)  # type: ignore[misc]
    return msgspec.json.Decoder(whole)


def decoded(document: bytes, using: msgspec.json.Decoder[Any]) -> Any:
    keys = keys_written(document)
    try:
        found = using.decode(document)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Unusual from None
    # Of a key that is given twice the decoder keeps one, and none of a key that it does not know: then there are fewer in what it found.
    if keys_written(_encoder.encode(found)) != keys:
        raise Unusual
    return found


def alike(value: Any) -> bytes | None:
    """A key that values share only where they are written alike; None for what no scenario holds."""
    try:
        return _keys.encode(value)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None


def _unset(value: Any) -> bytes:
    if value is UNSET:
        return b""  # not in JSON
    raise TypeError


_keys = msgspec.msgpack.Encoder(enc_hook=_unset)


def plain(value: Any) -> Any:
    """A value as a plain decoder would have it. What was left as text was not looked into before."""
    if type(value) is Raw:
        return carefully(bytes(value))
    return msgspec.to_builtins(value) if isinstance(value, Struct) else value


def keys_written(text: bytes) -> int:
    """How many keys stand in a JSON text that has no backslash and no space before a colon; others are unusual.

    With no backslash in it a quote always begins or ends a string. So a quote right before a colon ends a key, or begins a text
    with a colon: such a text is counted as often as it stands there, before and after decoding.
    """
    if b"\\" in text:
        raise Unusual
    letters = np.frombuffer(text, dtype=np.uint8)
    before = letters[np.flatnonzero(letters[1:] == ord(":"))]
    if (before <= ord(" ")).any():
        raise Unusual
    return int(np.count_nonzero(before == ord('"')))


def carefully(document: str | bytes) -> Any:
    """The data, or what is wrong with the text. NaN and infinity are left to be refused at their path."""
    repeated: set[str] = set()

    def once(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            repeated.update(key for key, count in Counter(key for key, _ in items).items() if count > 1)
        return found

    try:
        if isinstance(document, bytes):
            document = document.decode(json.detect_encoding(document), "surrogatepass")
        raw = json.loads(document, object_pairs_hook=once)
        faults = [f"key {short(key)} is given twice in one object" for key in sorted(repeated)]
    except json.JSONDecodeError as error:
        faults = [f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"]
    except UnicodeDecodeError:
        faults = ["is not UTF-8 text"]
    except RecursionError:
        faults = ["is nested too deeply"]
    except ValueError as error:
        faults = [f"is not JSON: {error}"]
    if faults:
        raise ScenarioError([Fault("$", fault) for fault in faults])
    return raw
