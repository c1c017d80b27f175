"""Every error of the API in one form: problem+json (RFC 9457) with a path for each bad field and the id of the request."""

import math
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import structlog
from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.core.exceptions import NON_FIELD_ERRORS, ObjectDoesNotExist, PermissionDenied, RequestDataTooBig, TooManyFieldsSent, ValidationError
from django.db import DataError, InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils.decorators import sync_and_async_middleware
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, HttpError, Throttled
from ninja.errors import ValidationError as RequestError

from gpufleet.core.faults import RETRY_SECONDS, Conflict, Missing, Stale, TooMany
from gpufleet.core.schema_words import said

log = structlog.get_logger(__name__)


class UnreadableBody(Exception):
    """What a request sends is no JSON object; its words say what it is instead."""


TITLES = {
    400: "The request can't be read",
    401: "Sign in first",
    403: "You may not do this",
    404: "Not found",
    405: "This address does not take that method",
    409: "Conflict with the current state",
    412: "It has changed since you read it",
    413: "The request is too large",
    422: "Some values are not right",
    429: "Too many requests",
    500: "Something broke on our side",
    503: "The database does not answer",
}


def problem(request: HttpRequest, status: int, detail: str = "", errors: list[dict[str, str]] | None = None) -> HttpResponse:
    body: dict[str, Any] = {"type": "about:blank", "title": TITLES.get(status, "The request failed"), "status": status}
    if detail:
        body["detail"] = detail
    if errors:
        body["errors"] = errors
    body["request_id"] = getattr(request, "request_id", "")
    response = JsonResponse(body, status=status, content_type="application/problem+json")
    if status == 401:
        response["WWW-Authenticate"] = "Bearer"
    return response


MOST_TOLD = 100  # faults of one body: a megabyte of unknown keys was answered with four of them


def _field_path(location: tuple[Any, ...]) -> str:
    """`("body", "payload", "shares", 0, "limit")` is `shares[0].limit` to whoever sent it. The second step is only our argument's name."""
    kept = location[2:] if location[:1] == ("body",) else location[1:]
    path = ""
    for step in kept:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else str(step)
    return path


def _said(row: dict[str, Any]) -> str:
    if row["type"] == "missing" and row["loc"][:1] == ("body",) and len(row["loc"]) == 2:
        return "The request has no body; a JSON object is wanted."
    if row["type"] == "extra_forbidden":
        return f"There is no key {row['loc'][-1]} here."
    return said(row)


def _messages(fault: ValidationError) -> Iterator[dict[str, str]]:
    if not hasattr(fault, "error_dict"):
        for message in fault.messages:
            yield {"path": "", "message": message}
        return
    for field, messages in fault.message_dict.items():
        for message in messages:
            yield {"path": "" if field == NON_FIELD_ERRORS else field, "message": message}


def _unexpected(request: HttpRequest, fault: Exception) -> HttpResponse:
    log.error("api_request_failed", path=request.path, method=request.method, exc_info=fault)
    return problem(request, 500, "No change was left half-done. Give the request id to your console's operator.")


def _throttled(request: HttpRequest, fault: Throttled) -> HttpResponse:
    response = problem(request, 429, "Wait a little, then try again.")
    if fault.wait:
        response["Retry-After"] = str(math.ceil(fault.wait))
    return response


def answer(request: HttpRequest, fault: Any) -> HttpResponse:
    """The one place where a fault becomes an answer."""
    match fault:
        case RequestError():
            errors = [{"path": _field_path(tuple(row["loc"])), "message": _said(row)} for row in fault.errors[:MOST_TOLD]]
            more = len(fault.errors) - len(errors)
            return problem(request, 422, "Nothing was changed." + (f" {more:,} more problems are not listed." if more else ""), errors)
        case TooMany():
            full = problem(request, 429, "Nothing was changed.", list(_messages(fault)))
            full["Retry-After"] = str(fault.wait_seconds)
            return full
        case ValidationError():
            return problem(request, 422, "Nothing was changed.", list(_messages(fault)))
        case RequestDataTooBig():
            most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE >> 20
            return problem(request, 413, f"A request takes at most {most} MiB. Send less at once; a batch can be sent in parts.")
        case TooManyFieldsSent():
            return problem(request, 400, "The address or the form has too many fields.")
        case DataError():
            log.warning("value_refused_by_the_database", path=request.path, exc_info=fault)
            return problem(request, 422, "A value is too large, or holds a character that no text has. Nothing was changed.")
        case PermissionDenied():
            return problem(request, 403, str(fault) or "It needs a role or a token scope that you don't have here.")
        case Missing():
            return problem(request, 404, str(fault))
        case Http404() | ObjectDoesNotExist():
            return problem(request, 404, "It may have been removed, or it belongs to a team that you can't see.")
        case Stale():
            stale = problem(request, 412, str(fault))
            stale["ETag"] = f'"{fault.revision}"'
            return stale
        case Conflict():
            return problem(request, 409, str(fault) or "Reload it and try again. Nothing was changed.")
        case OperationalError() | InterfaceError():
            log.error("database_does_not_answer", path=request.path, exc_info=fault)
            away = problem(request, 503, "Nothing was changed. Try again in a few seconds; a request with an idempotency key may be repeated.")
            away["Retry-After"] = str(RETRY_SECONDS)
            return away
        case Throttled():
            return _throttled(request, fault)
        case AuthenticationError():
            told = str(fault) if str(fault) != "Unauthorized" else "Send a service token as “Authorization: Bearer …”, or sign in to the console."
            return problem(request, 401, told)
        case HttpError():
            # Of a body that can't be read the framework says only that.
            return problem(request, fault.status_code, str(fault.__cause__ if isinstance(fault.__cause__, UnreadableBody) else fault))
        case _:
            return _unexpected(request, fault)


def problems_install(api: NinjaAPI) -> None:
    for kind in (Exception, Http404, HttpError, RequestError):
        api.add_exception_handler(kind, answer)


def _asked_for_heads(request: HttpRequest) -> bool:
    return request.method == "HEAD" and request.path.startswith("/api/")


async def _nothing() -> AsyncIterator[bytes]:
    empty: tuple[bytes, ...] = ()
    for part in empty:
        yield part


def _head_of(answer: HttpResponseBase) -> HttpResponseBase:
    """The same without its body, and still with its length, where that is known; a stream is not begun."""
    if isinstance(answer, StreamingHttpResponse):
        answer.streaming_content = _nothing() if answer.is_async else ()
    elif isinstance(answer, HttpResponse):
        answer["Content-Length"] = str(len(answer.content))
        answer.content = b""
    return answer


@sync_and_async_middleware
def head_middleware(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """What can be read with GET can be asked for its head: operations of the API state GET alone."""
    if iscoroutinefunction(get_response):

        async def later(request: HttpRequest) -> HttpResponseBase:
            if not _asked_for_heads(request):
                answer: HttpResponseBase = await get_response(request)
                return answer
            request.method = "GET"
            return _head_of(await get_response(request))

        return later

    def plain(request: HttpRequest) -> HttpResponseBase:
        if not _asked_for_heads(request):
            answer: HttpResponseBase = get_response(request)
            return answer
        request.method = "GET"
        return _head_of(get_response(request))

    return plain


@sync_and_async_middleware
def problem_middleware(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """A method that an operation does not take is refused before any operation runs, so its answer gets the common form here."""

    def formed(request: HttpRequest, answer: HttpResponse) -> HttpResponse:
        if answer.status_code != 405 or not request.path.startswith("/api/"):
            return answer
        told = problem(request, 405, f"It takes {answer.get('Allow', 'nothing')}.")
        told["Allow"] = answer.get("Allow", "")
        return told

    if iscoroutinefunction(get_response):

        async def later(request: HttpRequest) -> HttpResponse:
            return formed(request, await get_response(request))

        return later

    def plain(request: HttpRequest) -> HttpResponse:
        return formed(request, get_response(request))

    return plain
