"""What is wrong with a value that a schema refuses, in words for people: the same for descriptions of jobs and for all else that the API takes."""

from collections.abc import Mapping
from typing import Any

from gpufleet.core.lengths import length_written

# By the kind of pydantic's fault. Those of a pattern are told by the pattern, by whoever has it.
WORDS: dict[str, str] = {
    "missing": "This field is required.",
    "greater_than_equal": "At least {ge}.",
    "greater_than": "More than {gt}.",
    "less_than_equal": "At most {le}.",
    "less_than": "Less than {lt}.",
    "string_too_short": "It is empty.",
    "string_too_long": "At most {max_length} characters.",
    "too_short": "At least {min_length}.",
    "too_long": "At most {max_length}.",
    "literal_error": "{expected} is wanted.",
    "enum": "{expected} is wanted.",
    "string_type": "A text is wanted; in YAML, quote it.",
    "finite_number": "A finite number is wanted.",
    "timezone_aware": "The time needs its zone, such as 2026-11-20T09:00:00Z.",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "A whole number is wanted."),
    **dict.fromkeys(("float_type", "float_parsing"), "A number is wanted."),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false is wanted."),
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "Keys with values are wanted."),
    "list_type": "A list is wanted.",
    **dict.fromkeys(("datetime_type", "datetime_parsing", "datetime_from_date_parsing"), "A time is wanted, such as 2026-11-20T09:00:00Z."),
}


BOUNDS = {"ge", "gt", "le", "lt"}


def said(fault: Mapping[str, Any]) -> str:
    """One of pydantic's faults, as the console speaks. Bounds of lengths of time have their unit."""
    words = WORDS.get(fault["type"])
    told = {name: int(value) if isinstance(value, float) and value.is_integer() else value for name, value in (fault.get("ctx") or {}).items()}
    if str((fault.get("loc") or ("",))[-1]).endswith("_s"):
        told = {name: length_written(value) if name in BOUNDS and isinstance(value, int) else value for name, value in told.items()}
    return words.format(**told) if words else f"{fault['msg'].removeprefix('Value error, ').rstrip('.')}."
