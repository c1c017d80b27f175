"""What a caller sends so that something is done by it."""

from typing import Any, ClassVar

from ninja import Schema
from pydantic import ConfigDict, model_validator

from gpufleet.core.strict import Strict


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
