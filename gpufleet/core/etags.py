"""Which revision of a row a caller has read: `ETag` in answers, `If-Match` on writes (RFC 9110)."""

import hashlib
import re
from typing import Any

from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse

# For the API's description of an operation that minds it.
IF_MATCH: dict[str, Any] = {
    "parameters": [
        {
            "in": "header",
            "name": "If-Match",
            "description": "The `ETag` of what was read: nothing is written if it has changed since.",
            "required": False,
            "schema": {"type": "string", "pattern": '^((W/)?"[0-9]{1,18}"|[*])?$'},
        }
    ]
}
_TAG = re.compile(r'(?:W/)?"(\d{1,18})"')


def stamped(answer: HttpResponse, revision: int) -> HttpResponse:
    answer["ETag"] = f'"{revision}"'
    return answer


def revision_of(*values: object) -> int:
    """The revision of what counts none: the same for the same values, and another one for others."""
    return int.from_bytes(hashlib.sha256(repr(values).encode()).digest()[:7])


def revision_wanted(request: HttpRequest) -> int | None:
    """The revision on which alone the caller wants to write; None: on any."""
    said = request.headers.get("If-Match", "").strip()
    if said in ("", "*"):
        return None
    found = _TAG.fullmatch(said)
    if found is None:
        raise ValidationError({"If-Match": "Send the ETag of the answer that you read, as it was, or *."})
    return int(found[1])
