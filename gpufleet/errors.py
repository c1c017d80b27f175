"""Error pages: what happened, what to do, and the id under which the log has it. Never a stack trace."""

import sys
from typing import Any

import structlog
from django.db import DataError, InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils.deprecation import MiddlewareMixin

from gpufleet.core.faults import RETRY_SECONDS
from gpufleet.navigation import access_of

log = structlog.get_logger(__name__)


class UnstorableMiddleware(MiddlewareMixin):
    """A value that the database can't hold or compare, such as PostgreSQL's texts the character NUL, is the caller's mistake and not ours."""

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if isinstance(exception, OperationalError | InterfaceError):
            log.error("database_does_not_answer", path=request.path, exc_info=exception)
            return unavailable(request)
        if not isinstance(exception, DataError):
            return None
        log.warning("value_refused_by_the_database", path=request.path, exc_info=exception)
        return bad_request(request)


def _answer(request: HttpRequest, status: int, title: str, advice: str, **shown: Any) -> HttpResponse:
    request_id = getattr(request, "request_id", "")
    if request.path.startswith("/api/") or "application/json" in request.headers.get("Accept", ""):
        problem = {"type": "about:blank", "title": title, "status": status, "detail": advice, "request_id": request_id}
        return JsonResponse(problem, status=status, content_type="application/problem+json")
    facts = {"status": status, "title": title, "advice": advice, "request_id": request_id, "bare": _is_bare(request, status), **shown}
    return render(request, "error.html", facts, status=status)


def _is_bare(request: HttpRequest, status: int) -> bool:
    """Whether the page stands without the shell: for strangers, and where the shell itself may be what is broken."""
    return status >= 500 or not (hasattr(request, "user") and request.user.is_authenticated)


def bad_request(request: HttpRequest, exception: Any = None) -> HttpResponse:
    return _answer(request, 400, "That request can't be read", "Go back and try again. If you typed the address, check it.")


def forbidden(request: HttpRequest, exception: Any = None) -> HttpResponse:
    if hasattr(request, "user") and request.user.is_authenticated and not access_of(request).grants:
        return _answer(request, 403, "You have no role yet", "A team lead or an operator grants you one.", roleless=True)
    return _answer(request, 403, "You may not do this", "It needs a role that you don't have here. Your admin can grant it on the quota tree.")


def not_found(request: HttpRequest, exception: Any = None) -> HttpResponse:
    return _answer(request, 404, "There is nothing here", "It may have been removed, or it belongs to a team that you can't see.")


def unavailable(request: HttpRequest) -> HttpResponse:
    advice = "Nothing was changed. Try again in a few seconds; running jobs go on meanwhile."
    answer = _answer(request, 503, "The database does not answer", advice)
    answer["Retry-After"] = str(RETRY_SECONDS)
    return answer


def server_error(request: HttpRequest) -> HttpResponse:
    """What no view answered. Middleware asks the database as well, so this may be its absence."""
    if isinstance(sys.exception(), OperationalError | InterfaceError):
        return unavailable(request)
    return _answer(request, 500, "Something broke on our side", "No change was left half-done. Give the id below to your console's operator.")


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    return _answer(
        request, 403, "This form is too old", "Open the page again and send it once more: its protection against forged requests had expired."
    )


def too_many_requests(request: HttpRequest, exception: Any = None) -> HttpResponse:
    return _answer(request, 429, "Too many tries", "Wait a few minutes, then try again.")


def deactivated(request: HttpRequest) -> HttpResponse:
    return _answer(request, 403, "This account is deactivated", "Ask the people who run this console to activate it again.")


def sign_on_failed(request: HttpRequest) -> HttpResponse:
    return _answer(
        request, 401, "Signing in did not work", "Single sign-on was cancelled, or the provider did not confirm who you are. Go back and try again."
    )
