"""The socket of a live page. It checks who asks, remembers what the page follows, and passes on what the hub says.

From the page: `{"subscribe": topic, "since": revision}`, `{"unsubscribe": topic}`, `{"hidden": true}` (send nothing until it subscribes again).
To the page: see `hub`, and `{"beat": milliseconds}`, `{"topic", "joined"}`, `{"topic", "refused"}`, `{"topic", "resync"}`, `{"resync"}`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import orjson
import structlog
from channels.generic.websocket import AsyncWebsocketConsumer
from django.db import DatabaseError

from gpufleet.core.live.hub import Hub, Listener, encode, hub_of_this_process
from gpufleet.core.live.topics import Viewer, topic_named, topics_all

NOT_SIGNED_IN = 4401
NOT_ALLOWED = 4403
UNREADABLE = 1007
TOO_BIG = 1009
TRY_AGAIN = 1013
MESSAGE_LIMIT = 4096
ACCESS_SECONDS = 30.0

log = structlog.get_logger(__name__)


class LiveConsumer(AsyncWebsocketConsumer):
    """One socket. `viewer_of(scope)` says who looks: None means that nobody is signed in (any more)."""

    # The hub listens to the channel layer for all sockets of the process, so a socket takes no channel of its own.
    channel_layer_alias = "none"

    def __init__(self, *, viewer_of: Callable[[Any], Awaitable[Viewer | None]]) -> None:
        super().__init__()
        self.viewer_of = viewer_of
        self.viewer: Viewer | None = None
        self.hub: Hub | None = None
        self.listener = Listener()
        self.tasks: list[asyncio.Task[None]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._let_go()

    async def connect(self) -> None:
        # Accepted before it is closed: a browser shows the code of a close, but not why a handshake was turned down.
        await self.accept()
        if not await self._admitted():
            return
        self.hub = hub_of_this_process()
        await self.hub.attach(self.listener)
        self.tasks = [asyncio.create_task(self._pass_on()), asyncio.create_task(self._keep_checking())]

    async def disconnect(self, code: int) -> None:
        self._let_go()

    def _let_go(self) -> None:
        if self.hub:
            self.hub.detach(self.listener)
            self.hub = None
        for task in self.tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self.tasks = []

    async def _end(self, code: int) -> None:
        self._let_go()
        await self.close(code)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if self.hub is None:
            return
        if text_data is None or len(text_data) > MESSAGE_LIMIT:
            await self._end(TOO_BIG if text_data else UNREADABLE)
            return
        try:
            message = orjson.loads(text_data)
        except orjson.JSONDecodeError:
            message = None
        match message:
            case {"subscribe": str(topic), "since": int(since)}:
                self._subscribe(self.hub, topic, since)
            case {"unsubscribe": str(topic)}:
                self.hub.leave(self.listener, topic)
            case {"hidden": True}:
                self.hub.hide(self.listener)
            case _:
                await self._end(UNREADABLE)

    def _subscribe(self, hub: Hub, name: str, since: int) -> None:
        refused = self._refusal(name)
        if refused:
            self.listener.offer(encode({"topic": name, "refused": refused}))
        else:
            hub.join(self.listener, name, since)

    def _refusal(self, name: str) -> str:
        topic = topic_named(name)
        if topic is None:
            return "There is no such topic."
        return "" if self.viewer and topic.open_to(self.viewer) else "Your roles don't allow it."

    async def _admitted(self) -> bool:
        """Ask again who this is. Ends the socket when the session is over, nothing is left that this person may follow, or unknown."""
        try:
            self.viewer = await self.viewer_of(self.scope)
        except DatabaseError:
            # A socket that can't be checked is not left open; its page comes back after a moment and is asked anew.
            log.exception("live_socket_could_not_be_checked")
            await self._end(TRY_AGAIN)
            return False
        if self.viewer is None:
            await self._end(NOT_SIGNED_IN)
        elif not any(topic.open_to(self.viewer) for topic in topics_all()):
            await self._end(NOT_ALLOWED)
        else:
            return True
        return False

    async def _keep_checking(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.listener.check_access.wait(), ACCESS_SECONDS)
            self.listener.check_access.clear()
            if not await self._admitted() or self.hub is None:
                return
            for name in sorted(self.listener.topics):
                refused = self._refusal(name)
                if refused:
                    self.hub.leave(self.listener, name)
                    self.listener.offer(encode({"topic": name, "refused": refused}))

    async def _pass_on(self) -> None:
        # The server raises an OSError when the page has gone; the disconnect that follows ends this task.
        with suppress(OSError):
            while True:
                await self.send(text_data=await self.listener.outbox.get())
