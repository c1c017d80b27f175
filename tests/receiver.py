"""A real HTTP receiver on loopback: it keeps what it is sent, and answers as it is told."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LOOPBACK = "127.0.0.0/8"


@dataclass
class Receiver:
    port: int
    calls: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    status: int = 200
    answer: bytes = b"thank you"
    headers: dict[str, str] = field(default_factory=dict)
    before: Callable[[], None] = lambda: None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hooks?team=nlp"

    @property
    def ids(self) -> list[str]:
        return [headers["Gpufleet-Delivery"] for headers, _ in self.calls]


@contextmanager
def receiving() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.calls.append((dict(self.headers), body))
            receiver.before()
            self.send_response(receiver.status)
            for name, value in receiver.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(receiver.answer)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """A sender that hangs up in the middle is what some tests are about."""

    server = Quiet(("127.0.0.1", 0), Handler)
    receiver = Receiver(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
