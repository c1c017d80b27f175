"""What every request passes: an id that its log lines, audit entries and error page share; and pages that are packed."""

import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.middleware.gzip import GZipMiddleware


class RequestIdMiddleware:
    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponse | Awaitable[HttpResponse]:
        request_id = uuid.uuid4().hex
        request.request_id = request_id  # type: ignore[attr-defined]
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        if self.is_async:
            return self._answer_later(request, request_id)
        response: HttpResponse = self.get_response(request)
        response["X-Request-Id"] = request_id
        return response

    async def _answer_later(self, request: HttpRequest, request_id: str) -> HttpResponse:
        response: HttpResponse = await self.get_response(request)
        response["X-Request-Id"] = request_id
        return response


class PackedPagesMiddleware(GZipMiddleware):
    """Pages of HTML, gzipped: a page of 4,000 GPUs is a tenth of its size then.

    A page holds the CSRF token, which Django masks anew in every answer, and Django pads what it packs by a random length: comparing lengths tells
    nothing of it (BREACH). Streams are left alone, as packing would hold back lines of a log; files and JSON are packed where they are made.
    """

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        if response.streaming or not response.get("Content-Type", "").startswith("text/html"):
            return response
        return super().process_response(request, response)
