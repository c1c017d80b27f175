"""Channel layers: that of the one-process console, and Redis' with a way to it for those who are in no event loop."""

import asyncio
from typing import Any

from channels.layers import InMemoryChannelLayer
from channels_redis.pubsub import RedisPubSubChannelLayer

from gpufleet.core.kept_redis import kept_redis

LOOKS_AGAIN_S = 0.5


class SharedChannelLayer(RedisPubSubChannelLayer):
    """Channels' layer on Redis. It keeps its connections with an event loop, and a request's thread has none of its own."""

    def group_send_now(self, group: str, message: dict[str, Any]) -> None:
        """As `group_send`, from a thread without a loop."""
        client = kept_redis()
        assert client is not None, "this layer is only used where there is a Redis"
        client.publish(f"{self._kwargs.get('prefix', 'asgi')}__group__{group}", self.serialize(message))


class LocalChannelLayer(InMemoryChannelLayer):
    """Channels' in-memory layer, made safe for senders in other threads.

    Putting into an asyncio queue from another thread does not wake the loop that waits on it, so every call hops to the loop on which the first
    channel was opened. Call sites stay as they are with Redis.
    """

    home: asyncio.AbstractEventLoop | None = None

    @property
    def is_listened_to(self) -> bool:
        """False in a process that never opened a channel: a command, or a storm."""
        return self.home is not None

    async def new_channel(self, prefix: str = "specific.") -> str:
        running = asyncio.get_running_loop()
        if self.home is None or self.home.is_closed():
            self.home = running
        return await super().new_channel(prefix)

    async def _on_home_loop(self, call: Any, *arguments: Any) -> None:
        home = self.home
        if home is None or home.is_closed() or home is asyncio.get_running_loop():
            await call(*arguments)
            return
        sent = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(*arguments), home))
        # A loop that has stopped takes nothing up any more: who listened is gone, and the sender must not wait for it.
        while not sent.done() and home.is_running():
            await asyncio.wait([sent], timeout=LOOKS_AGAIN_S)
        if sent.done():
            sent.result()
        else:
            sent.cancel()

    async def send(self, channel: str, message: dict[str, Any]) -> None:
        await self._on_home_loop(super().send, channel, message)

    async def group_send(self, group: str, message: dict[str, Any]) -> None:
        await self._on_home_loop(super().group_send, group, message)
