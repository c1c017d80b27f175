"""The way of a request from the web server's loop to a view and back."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from asgiref.sync import SyncToAsync
from asgiref.testing import ApplicationCommunicator
from django.db import DEFAULT_DB_ALIAS, connection, connections
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import override_settings
from django.urls import path as at

from gpufleet.handler import PagesHandler
from tests import builders
from tests.personas import Personas


async def answered(path: str, cookie: str = "", query: bytes = b"") -> tuple[int, dict[bytes, bytes], bytes]:
    headers = [(b"host", b"testserver"), (b"cookie", cookie.encode())]
    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": query, "headers": headers}
    talk = ApplicationCommunicator(PagesHandler(), {**scope, "server": ("testserver", 80), "http_version": "1.1", "scheme": "http"})
    await talk.send_input({"type": "http.request", "body": b""})
    begin = await talk.receive_output(30)
    body, more = b"", True
    while more:
        message = await talk.receive_output(30)
        body, more = body + message.get("body", b""), message.get("more_body", False)
    await talk.wait(30)
    return begin["status"], dict(begin["headers"]), body


@pytest.mark.django_db(transaction=True)
def test_a_request_goes_to_a_thread_once(personas: Personas, monkeypatch: pytest.MonkeyPatch) -> None:
    cookie = f"sessionid={personas.client('viewer').cookies['sessionid'].value}"
    changes: list[str] = []
    called = SyncToAsync.__call__

    async def counted(self: Any, *args: Any, **named: Any) -> Any:
        changes.append(getattr(self.func, "__qualname__", str(self.func)))
        return await called(self, *args, **named)

    asyncio.run(answered("/jobs/", cookie))
    monkeypatch.setattr(SyncToAsync, "__call__", counted)
    status, headers, body = asyncio.run(answered("/jobs/", cookie))

    assert status == 200
    assert b"</html>" in body
    assert b"X-Request-Id" in headers
    assert len(changes) == 1, changes


@pytest.mark.django_db(transaction=True)
def test_what_is_refused_is_told_and_what_is_streamed_arrives(personas: Personas) -> None:
    status, _, body = asyncio.run(answered("/api/v1/jobs"))
    assert (status, b'"status": 401' in body) == (401, True)
    cookie = f"sessionid={personas.client('viewer').cookies['sessionid'].value}"
    assert asyncio.run(answered("/nothing/of/it", cookie))[0] == 404
    builders.job("exported", on=personas.nodes["acme/research/nlp"])
    status, headers, body = asyncio.run(answered("/jobs/", cookie, b"format=csv"))
    assert (status, headers[b"Content-Type"][:8]) == (200, b"text/csv")
    assert b"exported" in body


SEEN: list[str] = []
WRAPPERS: list[Any] = []


def plain_page(request: HttpRequest) -> HttpResponse:
    connection.ensure_connection()
    WRAPPERS.append(connections[DEFAULT_DB_ALIAS])
    SEEN.append(threading.current_thread().name)
    return HttpResponse("plain")


def endless_page(request: HttpRequest) -> StreamingHttpResponse:
    async def parts() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"part"
                await asyncio.sleep(0)
        finally:
            SEEN.append("ended")

    connection.ensure_connection()
    answer = StreamingHttpResponse(parts())
    answer._resource_closers.append(lambda: SEEN.append("closed"))
    return answer


urlpatterns = [at("plain", plain_page), at("endless", endless_page)]


def scope_of(path: str) -> dict[str, Any]:
    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"", "headers": [(b"host", b"testserver")]}
    return {**scope, "server": ("testserver", 80), "http_version": "1.1", "scheme": "http"}


@pytest.mark.django_db(transaction=True)
@override_settings(ROOT_URLCONF="tests.gpufleet.test_handler", MIDDLEWARE=[])
def test_threads_are_kept_and_their_connections_given_back() -> None:
    SEEN.clear()
    WRAPPERS.clear()
    handler = PagesHandler()

    async def ask() -> bytes:
        talk = ApplicationCommunicator(handler, scope_of("/plain"))
        await talk.send_input({"type": "http.request", "body": b""})
        assert (await talk.receive_output(30))["status"] == 200
        body: bytes = (await talk.receive_output(30))["body"]
        await talk.wait(30)
        return body

    assert [asyncio.run(ask()) for _ in range(5)] == [b"plain"] * 5
    assert len(set(SEEN)) < 4
    assert SEEN[0].startswith("page")
    assert [wrapper.connection for wrapper in WRAPPERS] == [None] * 5


@pytest.mark.django_db(transaction=True)
@override_settings(ROOT_URLCONF="tests.gpufleet.test_handler", MIDDLEWARE=[])
def test_who_leaves_ends_what_is_streamed_to_him() -> None:
    SEEN.clear()

    async def leave() -> None:
        talk = ApplicationCommunicator(PagesHandler(), scope_of("/endless"))
        await talk.send_input({"type": "http.request", "body": b""})
        assert (await talk.receive_output(30))["status"] == 200
        assert (await talk.receive_output(30))["body"] == b"part"
        await talk.send_input({"type": "http.disconnect"})
        await talk.wait(30)

    asyncio.run(leave())
    assert SEEN == ["ended", "closed"]
