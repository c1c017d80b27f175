"""What a caller sends so that something is done by it."""

from datetime import datetime
from typing import Annotated, Any, ClassVar

from ninja import Schema
from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, GetJsonSchemaHandler, field_validator, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from gpufleet.core.faults import NO_TEXT
from gpufleet.core.strict import Strict

# No column of text holds U+0000.
STORABLE: dict[str, Any] = {"pattern": r"^[^\u0000]*$"}
# Nor is a text of nothing but spaces one that says something.
SAID: dict[str, Any] = {"minLength": 1, "pattern": r"^[^\u0000]*[^\s\u0000][^\u0000]*$"}


class Storable(BaseModel):
    """Texts that a column can hold, and a description that says so."""

    @field_validator("*", mode="before")
    @classmethod
    def _can_be_stored(cls, value: Any) -> Any:
        if isinstance(value, str) and "\0" in value:
            raise PydanticCustomError("not_storable", NO_TEXT)
        return value

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        described = handler(schema)
        for field in handler.resolve_ref_schema(described).get("properties", {}).values():
            for one in (field, *field.get("anyOf", ())):
                if one.get("type") == "string" and not {"enum", "format", "pattern"} & set(one):
                    one |= STORABLE
        return described


def _no_number(asked: Any) -> Any:
    """Pydantic takes 0.5 for half a second after 1970."""
    if isinstance(asked, str) and asked.lstrip("+-").replace(".", "", 1).isdigit():
        raise PydanticCustomError("datetime_parsing", "a number is not a time")
    return asked


AskedTime = Annotated[datetime, BeforeValidator(_no_number)]
# With its zone: a moment at which something is done.
AskedMoment = Annotated[AwareDatetime, BeforeValidator(_no_number)]


class Taken(Storable, Strict, Schema):
    """Keys that there are not are refused: what is misspelt, or stands in the body instead of the address, would be done without otherwise.

    For a `PUT` of a whole object, to which callers send what they have read, there is `PutBack`.
    """

    model_config = ConfigDict(extra="forbid")


class PutBack(Storable, Strict, Schema):
    """A whole object that takes the place of the one that was read. What was read beside it may be sent along and changes nothing; other keys are
    refused: misspelt, they would set what they mean to its default.
    """

    model_config = ConfigDict(extra="forbid", json_schema_extra=lambda schema: schema.pop("additionalProperties", None))
    read_along: ClassVar[frozenset[str]]

    @model_validator(mode="before")
    @classmethod
    def _without_what_was_read(cls, sent: Any) -> Any:
        return {key: value for key, value in sent.items() if key not in cls.read_along} if isinstance(sent, dict) else sent
