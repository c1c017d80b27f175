"""Whether a worker can serve: asked now and then, on its own machine."""

import contextlib
import os
import re
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from scheduler.backends.supervising.fence import Unpinned


def answer_of(asked: dict[str, Any], timeout: float) -> str:
    """Why a worker is not ready, in words that say nothing of what it starts; empty: it is. Only ever asks this machine."""
    way = "http" if "http" in asked else "tcp"
    port, path = int(asked[way]["port"]), str(asked[way].get("path", "/"))
    try:
        with _connected(port, timeout) as there:
            if way == "tcp":
                return ""
            there.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUser-Agent: gpufleet-ready\r\nConnection: close\r\n\r\n".encode("ascii"))
            line = b""
            while b"\n" not in line and len(line) < 4096 and (part := there.recv(4096)):
                line += part
    except (OSError, UnicodeError) as fault:
        words = fault.strerror if isinstance(fault, OSError) else None
        return f"Port {port}: {words or fault}."
    status = re.match(rb"HTTP/1\.[01] ([1-5][0-9][0-9])\b", line)
    if status is None:
        return f"Port {port} does not speak HTTP."
    return "" if 200 <= int(status[1]) < 400 else f"Port {port} answered {int(status[1])}."


def not_asked(fault: OSError | Unpinned) -> str:
    """Why a worker is not ready that could not be asked."""
    words = fault.strerror if isinstance(fault, OSError) else None
    return f"It could not be asked: {words or str(fault).rstrip('.')}."


def _connected(port: int, timeout: float) -> socket.socket:
    try:
        return socket.create_connection(("127.0.0.1", port), timeout)
    except ConnectionRefusedError:
        with contextlib.suppress(OSError):
            return socket.create_connection(("::1", port), timeout)
        raise


class Probe:
    """Asks a worker now and then whether it can serve, each time by a process that has no more rights than the worker. `ask` starts one, and returns
    it with what it tells."""

    def __init__(self, stated: dict[str, Any], ask: Callable[[], tuple[int, int]]) -> None:
        self.stated, self.ask = stated, ask
        self.ready, self.why, self.since = False, "", time.time()
        self.failed = 0
        self.due = time.monotonic()
        self.child: int | None = None
        self.told = -1
        self.overdue = False
        self.deadline = 0.0

    def turn(self) -> bool:
        """Ask if it is time, and take in an answer if there is one. Says whether that changes what is told of the worker."""
        now = time.monotonic()
        if self.child is None:
            if now < self.due:
                return False
            self.due, self.deadline, self.overdue = now + self.stated["period_s"], now + self.stated["timeout_s"], False
            try:
                self.child, self.told = self.ask()
            except (OSError, Unpinned) as fault:
                return self._answered(not_asked(fault))
            return False
        pid, status = os.waitpid(self.child, os.WNOHANG)
        if not pid:
            if now < self.deadline or self.overdue:
                return False
            self.overdue = True  # and no other begins before this one is gone
            self.end()
            return self._answered(f"No answer within {self.stated['timeout_s']} s.")
        said = self._said()
        self.child = None
        if self.overdue:
            return False
        code = os.waitstatus_to_exitcode(status)
        return self._answered("" if code == 0 else said or f"The command ended with exit code {code if code > 0 else 128 - code}.")

    def _said(self) -> str:
        try:
            return os.read(self.told, 4096).decode(errors="replace")
        except BlockingIOError:
            return ""
        finally:
            os.close(self.told)

    def _answered(self, why: str) -> bool:
        before = (self.ready, self.why)
        self.failed = self.failed + 1 if why else 0
        self.why = why[:200]
        ready = not why or (self.ready and self.failed < self.stated["failures"])
        if ready != self.ready:
            self.ready, self.since = ready, time.time()
        return (self.ready, self.why) != before

    def end(self) -> None:
        if self.child is not None:
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    kill(self.child, signal.SIGKILL)
