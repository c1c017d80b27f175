"""Answers that leave at once. A web server writes an answer in two parts, and TCP holds the second back until the first is acknowledged."""

import socket
from typing import Any


class Undelayed:
    """The application, with every connection told not to hold anything back (`TCP_NODELAY`).

    Python's event loop says so to connections that it knows to be TCP. Those of a socket that uvicorn has opened for several processes do not say
    what they are, so each answer but the first of a connection took 40 ms longer than it needed: as long as a client may put its word off.
    """

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        connection = _connection(send)
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await self.app(scope, receive, send)


def _connection(send: Any) -> Any:
    """What the server sends by; None where it is no part of a uvicorn request, as in tests."""
    transport = getattr(getattr(send, "__self__", None), "transport", None)
    return transport.get_extra_info("socket") if transport is not None else None
