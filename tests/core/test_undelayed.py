"""An answer's second part is not held back until its first is acknowledged, however the server's socket was opened."""

import asyncio
import http.client
import socket
import threading
from typing import Any

import uvicorn
from asgiref.testing import ApplicationCommunicator

from gpufleet.core.undelayed import Undelayed
from tests.servers import wait_until


async def tells_its_connection(scope: Any, receive: Any, send: Any) -> None:
    """Whether what is sent over the connection of this request leaves at once."""
    connection = send.__self__.transport.get_extra_info("socket")
    body = b"at once" if connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) else b"held back"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", str(len(body)).encode())]})
    await send({"type": "http.response.body", "body": body})


def test_an_answer_leaves_at_once_also_by_the_socket_that_several_processes_share() -> None:
    config = uvicorn.Config(Undelayed(tells_its_connection), host="127.0.0.1", port=0, lifespan="off", log_config=None)
    listener = config.bind_socket()  # as `--workers 2` does
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started, what="the server to start")
        client = http.client.HTTPConnection("127.0.0.1", listener.getsockname()[1], timeout=20)
        client.request("GET", "/")
        assert client.getresponse().read() == b"at once"
        client.close()
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()


async def test_who_is_no_server_is_answered_as_well() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})

    caller = ApplicationCommunicator(Undelayed(app), {"type": "http"})
    assert (await caller.receive_output(10))["status"] == 204
