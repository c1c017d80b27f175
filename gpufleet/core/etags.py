"""Which revision of a row a caller has read: `ETag` in answers, `If-Match` on writes (RFC 9110)."""

import re

from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse

_TAG = re.compile(r'(?:W/)?"(\d{1,18})"')


def stamped(answer: HttpResponse, revision: int) -> HttpResponse:
    answer["ETag"] = f'"{revision}"'
    return answer


def revision_wanted(request: HttpRequest) -> int | None:
    """The revision on which alone the caller wants to write; None: on any."""
    said = request.headers.get("If-Match", "").strip()
    if said in ("", "*"):
        return None
    found = _TAG.fullmatch(said)
    if found is None:
        raise ValidationError({"If-Match": "Send the ETag of the answer that you read, as it was, or *."})
    return int(found[1])
