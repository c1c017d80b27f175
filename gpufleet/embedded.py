"""The whole console in one process: web server in the main thread, one Celery worker and beat beside it (docs/adr/0001).

Same code as production, other settings: the broker is memory, the channel layer is local, the database is a file. When a part dies the process
ends with a failure, so that whoever supervises it starts it again.
"""

import errno
import fcntl
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import uvicorn
from celery import Celery, beat, signals
from celery.exceptions import SecurityWarning

from gpufleet import broker
from gpufleet.core.stopping import stopping

QUEUES = ("scheduler", "default")
WORKER_THREADS = 4
PARTS_START_SECONDS = 60
GRACE_SECONDS = 3
# How long a thread that computes keeps the interpreter while others wait for it. A request changes threads several times, and with Python's 5 ms each
# of these costs as much while a plan is made: twice the time of a page.
SWITCH_SECONDS = 0.0005
WORKER, BEAT = "The Celery worker", "Celery beat"


class CannotStart(Exception):
    """Why the console can't run here, in words for the operator."""


def listen(host: str, port: int) -> socket.socket:
    """The console's socket, taken before anything else starts: a port in use must not cost a migration."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except socket.gaierror as error:
        raise CannotStart(f"There is no address {host!r} on this machine: {error.strerror}.") from None
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        if isinstance(error, PermissionError):
            raise CannotStart(f"This user may not open port {port}. Choose one above 1023: make run PORT=8000, or gpufleet up --port 8000.") from None
        if error.errno == errno.EADDRINUSE:
            raise CannotStart(
                f"Port {port} on {host} is taken by another program. Choose another: make run PORT={port + 1}, or gpufleet up --port {port + 1}."
            ) from None
        raise CannotStart(f"Can't listen on {host}:{port}: {error.strerror}.") from None
    return listener


@contextmanager
def only_console(folder: Path) -> Iterator[None]:
    """Hold the data folder while we run. The kernel lets go of it when we are killed."""
    path = folder / "console.lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = path.open("a+")
    except OSError as error:
        raise CannotStart(f"The data folder {folder} can't be written to: {error.strerror}. Name another: gpufleet up --data-dir PATH.") from None
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            raise CannotStart(
                f"Another console (process {handle.read().strip() or 'unknown'}) runs on the data folder {folder}. "
                "Stop it, or name another folder: gpufleet up --data-dir PATH."
            ) from None
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        yield


class Parts:
    """The worker and beat threads. `failed` names the first that ended on its own."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.failed: str | None = None
        self.on_failure: Callable[[], None] = lambda: None
        self._stopping = threading.Event()
        self._ready = threading.Event()
        # Celery warns root of messages that come from elsewhere; over a broker in our own memory none do.
        warnings.simplefilter("ignore", SecurityWarning)
        # One worker only: a second one in the same process takes the first one's queues away, silently.
        self._worker = app.Worker(
            pool="threads",
            concurrency=WORKER_THREADS,
            queues=QUEUES,
            hostname="embedded@localhost",
            without_heartbeat=True,
            without_mingle=True,
            without_gossip=True,
            quiet=True,
            loglevel="WARNING",
        )
        self._beat = beat.Service(app, max_interval=1, scheduler_cls=app.conf.beat_scheduler)
        self._threads = [self._thread(WORKER, self._worker.start), self._thread(BEAT, self._beat.start)]

    def _thread(self, name: str, work: Callable[[], Any]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            finally:
                if not self._stopping.is_set():
                    self.failed = self.failed or name
                    self._ready.set()
                    self.on_failure()

        return threading.Thread(target=run, name=name, daemon=True)

    def start(self) -> None:
        def ready(**_: Any) -> None:
            self._ready.set()

        signals.worker_ready.connect(ready)
        worker, clock = self._threads
        worker.start()
        if not self._ready.wait(PARTS_START_SECONDS) or self.failed:
            raise CannotStart(f"{self.failed or WORKER} did not start; the log above says why.")
        signals.worker_ready.disconnect(ready)
        clock.start()

    def stop(self) -> None:
        self._stopping.set()
        self._beat.stop(wait=False)
        stopping.send(type(self))
        self._worker.stop()
        broker.wake()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(GRACE_SECONDS)


class _Server(uvicorn.Server):
    """uvicorn that says when it answers."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._announce()


def serve(app: Celery, listener: socket.socket, announce: Callable[[], None]) -> int:
    """Run until a signal or a failure. Returns the exit status: 0 after Ctrl-C or SIGTERM, 1 when a part died."""
    config = uvicorn.Config(
        "gpufleet.asgi:application",
        lifespan="off",
        log_config=None,
        access_log=False,
        ws_per_message_deflate=False,  # compressing each frame for each client costs 40 times the broadcast
        timeout_graceful_shutdown=GRACE_SECONDS,
        proxy_headers=False,
    )
    sys.setswitchinterval(SWITCH_SECONDS)
    server = _Server(config, announce)
    parts = Parts(app)

    def give_up() -> None:
        server.should_exit = True

    def leave(*_: Any) -> NoReturn:
        raise SystemExit(0)

    parts.on_failure = give_up
    # uvicorn hands the signal on once it has stopped; unanswered, SIGTERM would end us before the worker has.
    signal.signal(signal.SIGTERM, leave)
    try:
        parts.start()
        server.run(sockets=[listener])
    except (SystemExit, KeyboardInterrupt):
        if not server.started:
            return 1 if parts.failed else 0
    finally:
        parts.stop()
        listener.close()
    if parts.failed:
        print(f"{parts.failed} ended unexpectedly, so the console stops. The log above says why.", file=sys.stderr)
        return 1
    return 0 if server.started else 1
