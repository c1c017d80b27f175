"""Where the live feed meets people: who is behind a socket, and the snapshot that a page starts from."""

import zlib
from collections.abc import Mapping
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

import orjson
from channels.db import database_sync_to_async
from channels.routing import URLRouter
from channels.security.websocket import WebsocketDenier
from channels.sessions import CookieMiddleware
from django.conf import settings
from django.contrib.auth import get_user
from django.http import Http404, HttpRequest, HttpResponse
from django.http.request import validate_host
from django.urls import path
from django.utils.cache import patch_vary_headers
from django.views.decorators.http import require_GET

from gpufleet.core.live.consumer import LiveConsumer
from gpufleet.core.live.feed import feed_revision
from gpufleet.core.live.topics import topic_named
from gpufleet.web import Access, access_of, requires
from quotas.permissions import Can, access_for_user

# Below this a packed answer saves nothing that anybody could notice.
_WORTH_PACKING_BYTES = 4096


@database_sync_to_async
def viewer_of(scope: Any) -> Access | None:
    """Who is behind a socket, read anew each time: a session that ended or a person who was switched off is nobody."""
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(scope["cookies"].get(settings.SESSION_COOKIE_NAME))
    user = get_user(request)
    if not user.is_authenticated or not user.is_active:
        return None
    return access_for_user(user, via="socket")


@require_GET
@requires()
def snapshot(request: HttpRequest, topic: str) -> HttpResponse:
    """All of a topic at a revision. The revision is read before the data, so the data may be newer, never older."""
    known = topic_named(topic)
    if known is None:
        raise Http404
    access = access_of(request)
    access.must_somewhere(Can(known.capability))
    version = feed_revision()
    return packed(request, {"topic": topic, "version": version, **known.snapshot(access, request.GET.dict())})


def packed(request: HttpRequest, answer: Mapping[str, Any]) -> HttpResponse:
    """JSON, gzipped where the caller takes it. It may echo nothing of the request, so that its length gives no secret away."""
    body = orjson.dumps(answer, option=orjson.OPT_NON_STR_KEYS)
    response = HttpResponse(content_type="application/json", headers={"Cache-Control": "no-store"})
    patch_vary_headers(response, ["Accept-Encoding", "Cookie"])
    if len(body) > _WORTH_PACKING_BYTES and "gzip" in request.headers.get("Accept-Encoding", ""):
        packer = zlib.compressobj(level=1, wbits=31)
        body = packer.compress(body) + packer.flush()
        response["Content-Encoding"] = "gzip"
    response.content = body
    return response


urlpatterns = [path("live/<slug:topic>/snapshot", snapshot, name="live-snapshot")]


class SameOrigin:
    """Sockets for pages of this console alone: scheme, host and port of the page are those under which the console was asked.

    Of a page on another port of the same host, a browser sends the console's cookies along.
    """

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        if _is_own(scope):
            return await self.app(scope, receive, send)
        return await WebsocketDenier()(scope, receive, send)


def _is_own(scope: Any) -> bool:
    headers = {name: value.decode("latin-1") for name, value in scope.get("headers", ())}
    origin, host = headers.get(b"origin", ""), headers.get(b"host", "")
    if origin.rstrip("/") in settings.CSRF_TRUSTED_ORIGINS:
        return True
    schemes = {"https"} if settings.SESSION_COOKIE_SECURE else {"http", "https"} if settings.SECURE_PROXY_SSL_HEADER else {"http"}
    bare = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and not host.endswith("]") else host
    return validate_host(bare, settings.ALLOWED_HOSTS) and any(_spelled(origin) == _spelled(f"{scheme}://{host}") for scheme in schemes)


def _spelled(address: str) -> tuple[str, str, int | None] | None:
    """Scheme, host and port, with the port that a scheme has by itself."""
    try:
        parts = urlsplit(address)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return None
    return (parts.scheme, (parts.hostname or "").lower(), port) if parts.hostname else None


websockets = SameOrigin(CookieMiddleware(URLRouter([path("ws/live/", LiveConsumer.as_asgi(viewer_of=viewer_of))])))
