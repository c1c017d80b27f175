"""Faults that a service can tell its caller about. Bad values are Django's `ValidationError` with a message per field; a right that is missing is
`PermissionDenied`; what a person may not see does not exist (`Http404`). What remains is here.
"""

from django.core.exceptions import ValidationError
from django.http import Http404

NO_TEXT = "It holds a character that no text has."
RETRY_SECONDS = 5  # what a caller is told to wait while the database is away


class Missing(Http404):
    """Part of something that the caller may see does not exist, so its words may say which."""


class Conflict(Exception):
    """Somebody else changed the row since it was read. Nothing was written; read it again and decide anew."""


class Stale(Conflict):
    """The caller named the revision that he had read, and the row has another one by now."""

    def __init__(self, message: str, revision: int) -> None:
        super().__init__(message)
        self.revision = revision


class TooMany(ValidationError):
    """A limit leaves no room at present: in so many seconds the same may be tried again. `limit` is the kind of the limit."""

    def __init__(self, faults: dict[str, list[str]], *, limit: str, wait_seconds: int) -> None:
        super().__init__(faults)
        self.limit = limit
        self.wait_seconds = wait_seconds


def text_faults(text: str, most: int, name: str = "reason") -> dict[str, list[str]]:
    """What keeps a text from being stored, by its field."""
    if "\0" in text:
        return {name: [NO_TEXT]}
    return {} if len(text) <= most else {name: [f"At most {most} characters."]}
