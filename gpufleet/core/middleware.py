"""Gives every request an id that its log lines, its audit entries and its error page share."""

import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse


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
