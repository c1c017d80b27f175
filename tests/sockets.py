"""Sockets of live pages without a browser. Channels' own gives up after a second, which a busy machine takes for less than an answer."""

import json
import time
from typing import Any

from channels.testing import WebsocketCommunicator

PATIENCE = 30.0


class Socket(WebsocketCommunicator):
    """Waits for what comes, however long that takes."""

    async def receive_output(self, timeout: float = PATIENCE) -> dict[str, Any]:
        return await super().receive_output(max(timeout, PATIENCE))

    async def wait(self, timeout: float = PATIENCE) -> None:
        await super().wait(max(timeout, PATIENCE))

    async def receives_only_beats(self, seconds: float) -> bool:
        """Whether nothing else comes in this time; a heartbeat may fall into it."""
        until = time.monotonic() + seconds
        while not await self.receive_nothing(max(0.0, until - time.monotonic())):
            if "beat" not in json.loads((await self.receive_output()).get("text", "{}")):
                return False
        return True
