"""How a form shows a key of a description: the words beside its field. They stand at the key itself, in the schema.

What a key takes is its type's to say, and so which kind of field it has, what there is to choose, and what an empty field means.
"""

from dataclasses import dataclass
from datetime import datetime
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

Choices = tuple[tuple[str, str], ...]
YES_NO: Choices = (("true", "Yes"), ("false", "No"))
NOTHING_CHOSEN = "–"
# Whose default stands in the empty field.
SHOWS_ITS_DEFAULT = ("text", "number", "length")


@dataclass(frozen=True, slots=True)
class Shown:
    """The words beside a field. `kind` and `choices` only where the type says too little; `blank` is the choice that says nothing."""

    label: str
    hint: str = ""
    kind: str = ""
    choices: Choices = ()
    blank: str = NOTHING_CHOSEN
    example: str = ""

    def kind_of(self, key: str, info: FieldInfo) -> str:
        """text, code (several lines), number, length (of time), moment, choice, or one of the lists that `scheduler.jobs.fields` reads."""
        return self.kind or ("choice" if self.choices else _kind(key, _types(info.annotation)))

    def choices_of(self, key: str, info: FieldInfo) -> Choices:
        if self.kind_of(key, info) != "choice":
            return ()
        types = _types(info.annotation)
        named = [str(word) for one in types if get_origin(one) is Literal for word in get_args(one)]
        usual = (*(YES_NO if bool in types else ()), *((word, word.capitalize()) for word in named))
        return (("", self.blank), *(self.choices or usual))

    def placeholder_of(self, key: str, info: FieldInfo) -> str:
        if self.example or info.default in (None, "") or self.kind_of(key, info) not in SHOWS_ITS_DEFAULT or info.is_required():
            return self.example
        return str(info.default)


def keys_of(schema: type[BaseModel]) -> dict[str, FieldInfo]:
    """The keys of a part of a description as people write them."""
    return {info.alias or name: info for name, info in schema.model_fields.items()}


def part_of(info: FieldInfo) -> type[BaseModel]:
    """The schema of what stands below a key."""
    return next(one for one in _types(info.annotation) if isinstance(one, type) and issubclass(one, BaseModel))


def shown_of(info: FieldInfo) -> Shown | None:
    """None: the form has no field for it."""
    return next((one for one in info.metadata if isinstance(one, Shown)), None)


def _types(annotation: Any) -> list[Any]:
    """What a key may be, but for null."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _types(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return [one for choice in get_args(annotation) for one in _types(choice) if one is not NoneType]
    return [annotation]


def _kind(key: str, types: list[Any]) -> str:
    if key.endswith("_s"):
        return "length"
    if bool in types or any(get_origin(one) is Literal for one in types):
        return "choice"
    one = types[0]
    if get_origin(one) is dict:
        return "numbers" if _types(get_args(one)[1])[0] is float else "pairs"
    if get_origin(one) is list:
        return "words"
    if one in (int, float):
        return "number"
    return "moment" if "datetime" in one.__name__.lower() or (isinstance(one, type) and issubclass(one, datetime)) else "text"
