"""Static files whose URL carries a hash of their content, so that browsers keep them for ever. No collectstatic step: see docs/adr/0003."""

import asyncio
import gzip
import hashlib
import mimetypes
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.staticfiles import finders
from django.contrib.staticfiles.storage import StaticFilesStorage
from django.core.exceptions import SuspiciousFileOperation

_DIGEST_LENGTH = 12
LARGE = "vendor/plotly/plotly.min.js"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


@lru_cache(maxsize=512)
def _digest(path: str, changed_ns: int) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:_DIGEST_LENGTH]


def hashed_name(name: str) -> str:
    """`js/live.js` -> `js/live.3f2a….js`."""
    path = _path_of(name)
    if path is None:
        raise FileNotFoundError(f"There is no static file {name!r}.")
    stem, dot, ending = name.rpartition(".")
    return f"{stem}.{_digest(str(path), path.stat().st_mtime_ns)}{dot}{ending}"


def plain_name(hashed: str) -> tuple[str, str]:
    """The reverse: the file's own name and the digest that was asked for ('' where the URL has none)."""
    stem, dot, ending = hashed.rpartition(".")
    head, inner, digest = stem.rpartition(".")
    if inner and len(digest) == _DIGEST_LENGTH and all(letter in "0123456789abcdef" for letter in digest):
        return f"{head}{dot}{ending}", digest
    return hashed, ""


class HashedStorage(StaticFilesStorage):
    def url(self, name: str | None) -> str:
        return super().url(hashed_name(name or ""))


# What browsers are told a file is. The system's own table differs between machines, and a wrong type stops a script under nosniff.
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".map": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
_ALREADY_SMALL = (".png", ".woff2")
_WORTH_PACKING = 512
_FOR_EVER = "public, max-age=31536000, immutable"
_ASK_EACH_TIME = "no-cache"
# Browsers and robots ask for these at the root, whatever the pages link to.
_AT_ROOT = {"/favicon.ico": "favicon.svg", "/robots.txt": "robots.txt"}


@dataclass(frozen=True, slots=True)
class Asset:
    """One version of one file, ready to send."""

    content_type: str
    digest: str
    plain: bytes
    packed: bytes | None


def _path_of(name: str) -> Path | None:
    """The file that the finders know under this name. They refuse what climbs out of their folders."""
    try:
        found = finders.find(name)
    except (SuspiciousFileOperation, ValueError):
        return None
    path = Path(found) if isinstance(found, str) else None
    return path if path and path.is_file() else None


class _Shelf:
    """Every file that was asked for, packed once and kept in memory. Used from worker threads."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[int, Asset]] = {}
        self._one_at_a_time = threading.Lock()

    def at_hand(self, name: str, digest: str) -> Asset | None:
        """The asset if it is kept in exactly this version: no disk is touched."""
        kept = self._kept.get(name)
        return kept[1] if kept and digest and kept[1].digest == digest else None

    def fetch(self, name: str) -> Asset | None:
        """The newest version, read and packed when it is new or has changed."""
        path = _path_of(name)
        if path is None:
            return None
        changed = path.stat().st_mtime_ns
        kept = self._kept.get(name)
        if kept and kept[0] == changed:
            return kept[1]
        # One at a time: a hundred browsers that ask for the same five megabytes must not pack them a hundred times.
        with self._one_at_a_time:
            kept = self._kept.get(name)
            if not kept or kept[0] != changed:
                kept = self._kept[name] = (changed, _read(path))
            return kept[1]


def _read(path: Path) -> Asset:
    plain = path.read_bytes()
    packed = None
    if path.suffix not in _ALREADY_SMALL and len(plain) >= _WORTH_PACKING:
        packed = gzip.compress(plain, compresslevel=9, mtime=0)
        if len(packed) >= len(plain):
            packed = None
    content_type = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return Asset(content_type, hashlib.sha256(plain).hexdigest()[:_DIGEST_LENGTH], plain, packed)


class StaticServer:
    """Answers for static files from memory and passes everything else on.

    Reading and packing happen in a thread, so that the first visitor of a large file does not hold up everybody's live updates.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._shelf = _Shelf()
        self._large: asyncio.Task[Asset | None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or not (path.startswith(settings.STATIC_URL) or path in _AT_ROOT):
            if self._large is None:
                # The first page, mostly the one to sign in, is the sign that the charts' script will be wanted; packing it takes a moment.
                self._large = asyncio.create_task(asyncio.to_thread(self._shelf.fetch, LARGE))
            await self._app(scope, receive, send)
            return
        if scope["method"] not in ("GET", "HEAD"):
            await _answer(scope, send, 405, {"allow": "GET, HEAD"})
            return
        name, digest = (_AT_ROOT[path], "") if path in _AT_ROOT else plain_name(path.removeprefix(settings.STATIC_URL))
        asset = self._shelf.at_hand(name, digest) or await asyncio.to_thread(self._shelf.fetch, name)
        if asset is None:
            await _answer(scope, send, 404, {"content-type": "text/plain; charset=utf-8"}, b"There is no such file.")
            return
        # A page from before an update may still ask for the old version. It gets the new one, which no cache may keep under the old name.
        await self._send(scope, send, asset, _FOR_EVER if digest == asset.digest else _ASK_EACH_TIME)

    async def _send(self, scope: Scope, send: Send, asset: Asset, caching: str) -> None:
        asked = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        packed = asset.packed is not None and _accepts_gzip(asked.get("accept-encoding", ""))
        etag = f'"{asset.digest}{"-gz" if packed else ""}"'
        headers = {"cache-control": caching, "etag": etag}
        if asset.packed is not None:
            headers["vary"] = "Accept-Encoding"
        if _matches(asked.get("if-none-match", ""), etag):
            await _answer(scope, send, 304, headers)
            return
        headers["content-type"] = asset.content_type
        if packed:
            headers["content-encoding"] = "gzip"
        await _answer(scope, send, 200, headers, (asset.packed or b"") if packed else asset.plain)


def _accepts_gzip(header: str) -> bool:
    for part in header.split(","):
        coding, _, weight = part.partition(";")
        if coding.strip().lower() in ("gzip", "*"):
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _matches(header: str, etag: str) -> bool:
    return any(candidate.strip().removeprefix("W/") in (etag, "*") for candidate in header.split(","))


async def _answer(scope: Scope, send: Send, status: int, headers: dict[str, str], body: bytes = b"") -> None:
    sent = headers | {"x-content-type-options": "nosniff", "cross-origin-resource-policy": "same-origin"}
    if status != 304:
        sent["content-length"] = str(len(body))
    raw = [(key.encode("latin-1"), value.encode("latin-1")) for key, value in sent.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
