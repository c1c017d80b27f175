"""Stays with the processes of one worker of a local run, whatever becomes of the console that started it.

A program of its own: standard library only, and nothing of gpufleet. It is told what to start on its standard input, so that secrets are in no file
and in no process list. Its folder is its memory, and what the console knows of the worker:

    lock          held while it lives
    state.json    what it is: its processes with their start times (a process id alone may be another's by now), and how they ended
    log.<offset>  what the processes write, in segments that are named for where they begin; the oldest go

Each rank is a process group of its own. When the first of a worker's ranks fails the others are ended, and when the last has ended nothing is left of
what they started, also not what has made itself independent: it is known by its environment.
"""

import contextlib
import errno
import fcntl
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

TERM_SECONDS = 10.0
LONGEST_LINE = 64 * 1024
REDACTED = b"[secret]"


def started_ticks(pid: int) -> int | None:
    """When a process began, as the kernel counts it; with the id it names the process for good. None: there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])


def end_marked(mark: str) -> None:
    """Kill every process whose environment bears the mark of this worker."""
    wanted = mark.encode() + b"\0"
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes() + b"\0":
                    os.kill(int(entry.name), signal.SIGKILL)


def catches(pid: int, number: int) -> bool:
    """Whether a process has said what it does on a signal. One that has not (yet) would die of it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    mask = next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt:")), 0)
    return bool(mask >> (number - 1) & 1)


def write_whole(path: Path, document: Any) -> None:
    """All of it or nothing, whenever the machine stops."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with fresh.open("w") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


class Log:
    """Segments of a bounded size; only so many are kept. Secrets are blackened line by line."""

    def __init__(self, folder: Path, *, segment: int, segments: int, secrets: list[bytes]) -> None:
        self.folder, self.segment, self.segments = folder, segment, segments
        self.secrets = sorted((one for one in secrets if len(one) >= 4), key=len, reverse=True)
        self.offset = self.begun = 0
        self.file = self._open()
        self.rest: dict[int, bytes] = {}

    def _open(self) -> BinaryIO:
        return (self.folder / f"log.{self.offset:015}").open("ab", buffering=0)

    def feed(self, source: int, data: bytes, prefix: bytes) -> None:
        """Take in what a process wrote; whole lines are written on."""
        held = self.rest.pop(source, b"") + data
        *lines, rest = held.split(b"\n")
        if len(rest) > LONGEST_LINE:
            lines, rest = [*lines, rest], b""
        if lines:
            self.write(b"".join(prefix + line + b"\n" for line in lines))
        if rest:
            self.rest[source] = rest

    def drain(self, source: int, prefix: bytes) -> None:
        if rest := self.rest.pop(source, b""):
            self.write(prefix + rest + b"\n")

    def write(self, data: bytes) -> None:
        for secret in self.secrets:
            data = data.replace(secret, REDACTED)
        with contextlib.suppress(OSError):
            # A full disk must not stop the work: what can't be written is missing from the log.
            while data:
                written = self.file.write(data[: self.begun + self.segment - self.offset])
                data, self.offset = data[written:], self.offset + written
                if self.offset - self.begun >= self.segment:
                    self._turn_over()

    def _turn_over(self) -> None:
        self.file.close()
        self.begun = self.offset
        self.file = self._open()
        for old in sorted(self.folder.glob("log.*"))[: -self.segments]:
            old.unlink(missing_ok=True)


class Fence:
    """A cgroup (v2) of its own for all that a worker starts, with what it asked for of the host as limits. `missing` says why there is none."""

    def __init__(self, wanted: dict[str, Any] | None) -> None:
        self.missing = ""
        self.folder = Path(wanted["folder"]) if wanted else None
        if self.folder is not None:
            try:
                self._set_up(self.folder, wanted["files"] if wanted else {})
            except OSError as fault:
                self.missing = f"{fault.filename or self.folder}: {fault.strerror or fault}"
                self._remove()

    def _set_up(self, folder: Path, files: dict[str, str]) -> None:
        with contextlib.suppress(OSError):  # done already, or not ours to do: then the files are there, or what follows says that they are not
            (folder.parent / "cgroup.subtree_control").write_text("+memory +cpu")
        folder.mkdir(exist_ok=True)
        for name, value in ({"cgroup.procs": ""} | files).items():
            with (folder / name).open("r+") as file:  # never made: in a folder that is no cgroup a file would limit nothing
                file.write(value)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """What is started here begins inside, so it can't have started anything outside before."""
        if self.folder is None:
            yield
            return
        home = self._home(self.folder)
        self._enter(self.folder)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # where that is not allowed we stay inside: we need next to nothing
                self._enter(home)

    def _enter(self, folder: Path) -> None:
        with (folder / "cgroup.procs").open("r+") as file:
            file.write(str(os.getpid()))

    def _home(self, folder: Path) -> Path:
        top = folder
        while (top.parent / "cgroup.procs").exists():
            top = top.parent
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        return top / next((line[3:].strip("/") for line in lines if line.startswith("0::")), "")

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel ended something of it for using more memory than it may."""
        try:
            lines = (self.folder / "memory.events").read_text().splitlines() if self.folder is not None else []
        except OSError:
            return False
        return any(int(line.split()[1]) > 0 for line in lines if line.startswith("oom_kill "))

    def end(self) -> None:
        if self.folder is not None:
            with contextlib.suppress(OSError), (self.folder / "cgroup.kill").open("r+") as file:
                file.write("1")
            self._remove()

    def _remove(self) -> None:
        """Gone once all in it have; what the kernel has not taken down yet it will, and an empty cgroup costs nothing."""
        if self.folder is not None:
            for _ in range(20):
                with contextlib.suppress(OSError):
                    self.folder.rmdir()
                if not self.folder.exists() or not (self.folder / "cgroup.procs").exists():
                    break
                time.sleep(0.05)
        self.folder = None


class Worker:
    def __init__(self, folder: Path, order: dict[str, Any]) -> None:
        self.folder, self.order = folder, order
        self.log = Log(
            folder, segment=order["log_segment"], segments=order["log_segments"], secrets=[text.encode() for text in order["secrets"].values()]
        )
        self.children: list[subprocess.Popen[bytes]] = []
        self.state: dict[str, Any] = {
            "supervisor": {"pid": os.getpid(), "ticks": started_ticks(os.getpid())},
            "state": "starting",
            "processes": [],
            "exit_code": None,
            "why": "",
            "started_at": None,
            "ended_at": None,
        }
        self.ending_since: float | None = None
        self.fence = Fence(order.get("limits"))

    def keep(self) -> None:
        write_whole(self.folder / "state.json", self.state)

    def run(self) -> None:
        self.keep()
        if self.fence.missing:
            self.log.write(f"gpufleet: no limits on memory and processors ({self.fence.missing})\n".encode())
        try:
            with self.fence.inside():
                for rank in self.order["ranks"]:
                    self._start(rank)
        except OSError as fault:
            self._kill(signal.SIGKILL)
            words = f"{self.order['argv'][0]}: {os.strerror(fault.errno or errno.EIO)}"
            self.log.write(words.encode() + b"\n")
            self._over(127 if fault.errno == errno.ENOENT else 126, words)
            return
        self.state |= {"state": "running", "started_at": time.time()}
        self.keep()
        self._watch()

    def _start(self, rank: dict[str, str]) -> None:
        order = self.order
        child = subprocess.Popen(
            order["argv"],
            cwd=order["cwd"],
            env={**order["env"], **order["secrets"], **rank},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
            **({"user": order["uid"], "group": order["gid"], "extra_groups": order["groups"]} if order["uid"] is not None else {}),
            umask=0o027,
        )
        self.children.append(child)
        self.state["processes"].append({"pid": child.pid, "ticks": started_ticks(child.pid)})
        # At once: a console that looks now must be able to find and end it.
        self.keep()

    def _watch(self) -> None:
        """Carry what is written to the log until the last of them has ended."""
        with selectors.DefaultSelector() as selector:
            for number, child in enumerate(self.children):
                assert child.stdout is not None
                os.set_blocking(child.stdout.fileno(), False)
                prefix = f"[{number}] ".encode() if len(self.children) > 1 else b""
                selector.register(child.stdout, selectors.EVENT_READ, prefix)
            while any(child.poll() is None for child in self.children):
                for key, _ in selector.select(timeout=0.2):
                    self._carry(selector, key)
                self._end_the_others()
            self._kill(signal.SIGKILL)
            end_marked(self.order["mark"])
            deadline = time.monotonic() + 1.0
            while selector.get_map() and time.monotonic() < deadline:
                for key, _ in selector.select(timeout=0.1):
                    self._carry(selector, key)
            for key in list(selector.get_map().values()):
                self.log.drain(key.fd, key.data)
        self._over(*self._outcome())

    def _carry(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        try:
            data = os.read(key.fd, 65_536)
        except BlockingIOError:
            return
        if data:
            self.log.feed(key.fd, data, key.data)
        else:
            self.log.drain(key.fd, key.data)
            selector.unregister(key.fileobj)

    def _end_the_others(self) -> None:
        """A gang without one of its members has nothing to wait for."""
        if all(child.poll() in (None, 0) for child in self.children):
            return
        if self.ending_since is None:
            self.ending_since = time.monotonic()
            self._kill(signal.SIGTERM)
        elif time.monotonic() - self.ending_since > TERM_SECONDS:
            self._kill(signal.SIGKILL)

    def _kill(self, number: signal.Signals) -> None:
        for child in self.children:
            # The group outlives its first process while others are in it; its id is no other's until then.
            if child.returncode is None or number == signal.SIGKILL:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, number)

    def _outcome(self) -> tuple[int, str]:
        codes = [child.wait() for child in self.children]
        bad = next((code for code in codes if code), 0)
        if bad >= 0:
            return bad, "" if bad == 0 else f"exit code {bad}"
        if bad == -signal.SIGKILL and self.fence.ran_out_of_memory():
            return 128 - bad, "ended by the kernel: it used more memory of the host than it asked for"
        name = signal.Signals(-bad).name if -bad in {one.value for one in signal.Signals} else f"signal {-bad}"
        return 128 - bad, f"ended by {name}"

    def _over(self, code: int, why: str) -> None:
        self.fence.end()
        self.state |= {"state": "ended", "exit_code": code, "why": why, "ended_at": time.time()}
        self.keep()


def main() -> None:
    order = json.load(sys.stdin)
    folder = Path(order["folder"])
    if os.fork():
        os._exit(0)  # whoever started us has nobody to wait for, and we have no parent to die with
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    if (folder / "state.json").exists():
        return  # it has been started already; a worker is started once
    # A console that is stopped from a terminal takes nobody with it. Handlers, as what is ignored would be ignored by the ranks as well.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    Worker(folder, order).run()


if __name__ == "__main__":
    main()
