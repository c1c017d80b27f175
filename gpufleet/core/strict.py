"""Bodies say what they mean: true and false are no numbers, and are refused where a number or a text is wanted."""

from functools import cache
from typing import Any, get_args

from pydantic import BaseModel, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError


class Strict(BaseModel):
    """Python counts True as 1: `gpus: true` was one GPU, and `ids: [false]` the number 0."""

    @field_validator("*", mode="before")
    @classmethod
    def _no_booleans(cls, value: Any, info: ValidationInfo) -> Any:
        if _holds_boolean(value) and info.field_name not in _open_to_booleans(cls):
            raise PydanticCustomError("not_boolean", "true and false are not allowed here.")
        return value


def _holds_boolean(value: Any) -> bool:
    if isinstance(value, list):
        return any(isinstance(one, bool) for one in value)
    if isinstance(value, dict):
        return any(isinstance(one, bool) for one in value.values())
    return isinstance(value, bool)


@cache
def _open_to_booleans(schema: type[BaseModel]) -> frozenset[str]:
    """Fields that take a boolean, anything at all, or a part that judges its own fields."""
    return frozenset(name for name, field in schema.model_fields.items() if _takes_boolean(field.annotation))


def _takes_boolean(annotation: Any) -> bool:
    if annotation in (bool, Any, object) or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return True
    return any(_takes_boolean(part) for part in get_args(annotation))
