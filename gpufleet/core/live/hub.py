"""One hub per process sends the feed to its sockets: every change is read once, loaded once and encoded once, however many pages look.

A message holds all that changed in a topic between two revisions, `from` and `v`, as values at least as new as `v`. A page at revision `mine`
applies it if `from <= mine < v`, ignores it if `v <= mine`, and has missed something if `mine < from`. Nothing is replayed: a page that is behind
takes a snapshot.
"""

import asyncio
import time
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson
import structlog
from channels.db import DatabaseSyncToAsync
from channels.layers import get_channel_layer
from django.db import DatabaseError, connections

from gpufleet.core.live.feed import FEED_GROUP
from gpufleet.core.live.reader import News, feed_news, feed_positions
from gpufleet.core.live.topics import topic_named, topics_touched_by
from gpufleet.core.times import millis, now

# Hints of other processes of an embedded console do not reach this one, and its pages are to show a write within a second all the same.
POLL_SECONDS = 0.4
BEAT_SECONDS = 1.0  # a page whose socket is dead says so within two seconds
BACKLOG = 8
ROLES_TOPIC = "roles"
# Channels forgets a group's member after a day.
REJOIN_SECONDS = 3600.0
RETRY_SECONDS = 2.0

log = structlog.get_logger(__name__)
Result = TypeVar("Result")


def encode(message: Any) -> str:
    return orjson.dumps(message).decode()


RESYNC = encode({"resync": True})


class Listener:
    """One socket's side of the hub: what its page follows, and the short queue of what is still to be sent."""

    def __init__(self, backlog: int = BACKLOG) -> None:
        self.outbox: asyncio.Queue[str] = asyncio.Queue(maxsize=backlog)
        self.topics: set[str] = set()
        self.hidden = False
        self.check_access = asyncio.Event()

    def wants(self, topic: str) -> bool:
        return topic in self.topics and not self.hidden

    def offer(self, message: str) -> None:
        """Queue a message. A page that can't keep up loses its backlog and is told to take a snapshot."""
        try:
            self.outbox.put_nowait(message)
        except asyncio.QueueFull:
            self.start_over()

    def start_over(self) -> None:
        self.clear()
        if not self.hidden:
            self.outbox.put_nowait(RESYNC)

    def clear(self) -> None:
        while not self.outbox.empty():
            self.outbox.get_nowait()

    def beat(self, message: str) -> None:
        if not self.hidden and not self.outbox.full():
            self.outbox.put_nowait(message)


@dataclass(slots=True)
class Pending:
    """What changed in a topic and has not been sent yet."""

    newest: int
    ids: dict[int, None] = field(default_factory=dict)


class Hub:
    """Follows the feed from where it stands when the first socket comes, until the last one has gone."""

    def __init__(self, forget: Callable[[], None] = lambda: None) -> None:
        self.listeners: set[Listener] = set()
        # Called once the hub ends, so that the next socket starts a new one.
        self._forget = forget
        self._revision = 0
        self._floor = 0
        self._positions: dict[str, int] = {}
        self._pending: dict[str, Pending] = {}
        self._sent_at: dict[str, float] = {}
        self._news = asyncio.Event()
        self._ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="live-hub")

    # What consumers call. All of it runs on the hub's event loop, so nothing changes in between.

    async def attach(self, listener: Listener) -> None:
        self.listeners.add(listener)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="live-hub")
        await self._ready.wait()

    def detach(self, listener: Listener) -> None:
        self.listeners.discard(listener)
        if not self.listeners and self._task is not None:
            self._forget()
            self._task.cancel()

    def join(self, listener: Listener, topic: str, since: int) -> None:
        """Follow a topic from revision `since` on. A page that is behind is told to take a snapshot; later changes reach it either way."""
        listener.topics.add(topic)
        listener.hidden = False
        position = self.position(topic)
        listener.offer(encode({"topic": topic, "joined": position} if since >= position else {"topic": topic, "resync": True}))

    def hide(self, listener: Listener) -> None:
        """Send nothing, not even what is queued, until the page joins a topic again."""
        listener.hidden = True
        listener.topics.clear()
        listener.clear()

    def leave(self, listener: Listener, topic: str) -> None:
        listener.topics.discard(topic)

    def position(self, topic: str) -> int:
        """The revision up to which every page of this topic has been told everything."""
        return self._positions.get(topic, self._floor)

    # The task.

    async def _run(self) -> None:
        parts: list[asyncio.Task[None]] = []
        try:
            await self._start()
            parts = [asyncio.create_task(part) for part in (self._listen(), self._beat(), self._follow())]
            await asyncio.gather(*parts)
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
            # The thread goes with the hub, and takes its database connection along.
            self._thread.submit(connections.close_all)
            self._thread.shutdown(wait=False)
            self._forget()

    async def _start(self) -> None:
        while True:
            try:
                positions = await self._in_thread(feed_positions)
            except DatabaseError:
                log.exception("live_hub_cannot_read_the_feed")
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._revision, self._floor = positions.newest, positions.floor
            for topic, revision in positions.topics.items():
                self._mark(topic, revision)
            self._ready.set()
            return

    async def _listen(self) -> None:
        """Turn hints from other processes into a wake-up. Without the channel layer the hub still looks for itself a few times a second."""
        while True:
            try:
                layer = get_channel_layer()
                channel = await layer.new_channel("livehub")
                await self._hear(layer, channel)
            except Exception:
                # Each layer's client has errors of its own. Whatever they are, hints only save waiting.
                log.exception("live_hub_lost_the_channel_layer")
                await asyncio.sleep(RETRY_SECONDS)

    async def _hear(self, layer: Any, channel: str) -> None:
        async def stay_joined() -> None:
            while True:
                await layer.group_add(FEED_GROUP, channel)
                await asyncio.sleep(REJOIN_SECONDS)

        async def wake() -> None:
            # Never with a timeout: cancelling a receive takes the Redis layer's subscription away.
            while True:
                await layer.receive(channel)
                self._news.set()

        tasks = [asyncio.create_task(stay_joined()), asyncio.create_task(wake())]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # A layer that is away has forgotten the member; what goes wrong here must not hide why we came.
            await asyncio.gather(layer.group_discard(FEED_GROUP, channel), return_exceptions=True)

    async def _beat(self) -> None:
        while True:
            message = encode({"beat": millis(now())})
            for listener in self.listeners:
                listener.beat(message)
            await asyncio.sleep(BEAT_SECONDS)

    async def _follow(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), self._patience())
            self._news.clear()
            try:
                self._take(await self._in_thread(lambda: feed_news(since=self._revision)))
            except DatabaseError:
                log.exception("live_hub_cannot_read_the_feed")
                await asyncio.sleep(RETRY_SECONDS)
                continue
            for topic in self._due():
                await self._send(topic)

    def _patience(self) -> float:
        """How long to wait for news: until the next safety look, or until a topic that waits for its window may be sent."""
        moment = time.monotonic()
        return max(0.0, min([POLL_SECONDS, *(self._may_be_sent_at(topic) - moment for topic in self._pending)]))

    def _may_be_sent_at(self, topic: str) -> float:
        known = topic_named(topic)
        return self._sent_at.get(topic, float("-inf")) + (known.window_seconds if known else 0.0)

    def _due(self) -> list[str]:
        moment = time.monotonic()
        return [topic for topic in self._pending if self._may_be_sent_at(topic) <= moment]

    def _take(self, news: News) -> None:
        if not news.complete:
            log.warning("live_hub_fell_behind", since=self._revision, newest=news.newest)
            self._revision = self._floor = news.newest
            self._positions.clear()
            self._pending.clear()
            for listener in self.listeners:
                listener.start_over()
            return
        self._revision = news.newest
        for changed, (newest, ids) in news.topics.items():
            if changed == ROLES_TOPIC:
                for listener in self.listeners:
                    listener.check_access.set()
            for topic in topics_touched_by(changed):
                pending = self._pending.setdefault(topic, Pending(newest))
                pending.newest = max(newest, pending.newest)
                if topic == changed:
                    pending.ids.update(dict.fromkeys(ids))

    def _mark(self, changed: str, revision: int) -> None:
        for topic in topics_touched_by(changed):
            self._positions[topic] = max(revision, self._positions.get(topic, 0))

    async def _send(self, name: str) -> None:
        pending = self._pending.pop(name)
        topic = topic_named(name)
        self._sent_at[name] = time.monotonic()
        if topic is None or not any(listener.wants(name) for listener in self.listeners):
            self._positions[name] = pending.newest
            return
        since = self.position(name)

        def load() -> str:
            return encode({"topic": name, "from": since, "v": pending.newest, "rows": topic.load(tuple(pending.ids))})

        try:
            message = await self._in_thread(load)
        except Exception:
            # Whatever broke in an app's loader, its pages fall back to the snapshot, and the other topics go on.
            log.exception("live_topic_failed", topic=name)
            message = encode({"topic": name, "resync": True})
        self._positions[name] = pending.newest
        for listener in self._wanting(name):
            listener.offer(message)

    def _wanting(self, topic: str) -> Iterable[Listener]:
        return [listener for listener in self.listeners if listener.wants(topic)]

    async def _in_thread(self, call: Callable[[], Result]) -> Result:
        return await DatabaseSyncToAsync(call, thread_sensitive=False, executor=self._thread)()


_hubs: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = weakref.WeakKeyDictionary()


def hub_of_this_process() -> Hub:
    """The hub of this event loop, of which a server process has one. A hub that has ended is not used again."""
    loop = asyncio.get_running_loop()
    hub = _hubs.get(loop)
    if hub is None:

        def forget() -> None:
            if _hubs.get(loop) is hub:
                del _hubs[loop]

        hub = _hubs[loop] = Hub(forget)
    return hub
