"""What a caller sends so that something is done by it."""

from datetime import datetime
from typing import Annotated, Any, ClassVar

from ninja import Schema
from pydantic import AwareDatetime, BeforeValidator, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from gpufleet.core.strict import Strict

# No column of text holds U+0000.
STORABLE: dict[str, Any] = {"pattern": r"^[^\u0000]*$"}


def _no_number(asked: Any) -> Any:
    """Pydantic takes 0.5 for half a second after 1970."""
    if isinstance(asked, str) and asked.lstrip("+-").replace(".", "", 1).isdigit():
        raise PydanticCustomError("datetime_parsing", "a number is not a time")
    return asked


AskedTime = Annotated[datetime, BeforeValidator(_no_number)]
# With its zone: a moment at which something is done.
AskedMoment = Annotated[AwareDatetime, BeforeValidator(_no_number)]


class Taken(Strict, Schema):
    """Keys that there are not are refused: what is misspelt, or stands in the body instead of the address, would be done without otherwise.

    For a `PUT` of a whole object, to which callers send what they have read, there is `PutBack`.
    """

    model_config = ConfigDict(extra="forbid")


class PutBack(Strict, Schema):
    """A whole object that takes the place of the one that was read. What was read beside it may be sent along and changes nothing; other keys are
    refused: misspelt, they would set what they mean to its default.
    """

    model_config = ConfigDict(extra="forbid", json_schema_extra=lambda schema: schema.pop("additionalProperties", None))
    read_along: ClassVar[frozenset[str]]

    @model_validator(mode="before")
    @classmethod
    def _without_what_was_read(cls, sent: Any) -> Any:
        return {key: value for key, value in sent.items() if key not in cls.read_along} if isinstance(sent, dict) else sent
