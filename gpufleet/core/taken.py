"""What a caller sends so that something is done by it."""

from ninja import Schema
from pydantic import ConfigDict


class Taken(Schema):
    """Keys that there are not are refused: what is misspelt, or stands in the body instead of the address, would be done without otherwise.

    Not for a `PUT` of a whole object, to which callers send what they have read.
    """

    model_config = ConfigDict(extra="forbid")
