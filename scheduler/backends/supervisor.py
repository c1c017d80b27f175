"""Stays with the processes of one worker of a local run, whatever becomes of the console that started it.

A program of its own: standard library only, and nothing of gpufleet. It is told what to start on its standard input, so that secrets are in no file
and in no process list. Its folder is its memory, and what the console knows of the worker:

    lock          held while it lives
    state.json    what it is: its processes with their start times (a process id alone may be another's by now), and how they ended
    log.<offset>  what the processes write, in segments that are named for where they begin; the oldest go

Each rank is a process group of its own. When the first of a worker's ranks fails, the others are ended. When the last has ended, nothing that they
started is left: the supervisor adopts every orphan below it (a subreaper), and the ranks of another user live in a PID namespace that ends as one.
"""

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

TERM_SECONDS = 10.0
# So long the end of a worker's last processes is waited for; what the kernel cannot end by then (a device that does not answer) is left to it.
END_SECONDS = 20.0
LONGEST_LINE = 64 * 1024
REDACTED = b"[secret]"
# Shorter secrets would blacken ordinary words; so would short lines of long ones.
SHORTEST_SECRET = 4
SHORTEST_LINE = 8

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38
CLONE_NEWNS, CLONE_NEWPID = 0x0002_0000, 0x2000_0000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x8, 0x4000, 0x4_0000


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


# What bash catches by itself where a script has a trap on its exit: all that would end it, to end then. Programs do not catch these two.
OF_A_SHELL = 1 << (signal.SIGSYS - 1) | 1 << (signal.SIGVTALRM - 1)


def caught(pid: int) -> int:
    """The signals that a process has said what it does on, as a mask. By another it would be ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt:")), 0)


def topmost_catching(pid: int, number: int) -> list[int]:
    """The process itself if it has said what it does on a signal, else the first below it that have: as the ranks below a torchrun, which has not.

    A shell that catches it together with all others comes after those below it: it may only tidy up, and end.
    """
    below: dict[int, list[int]] = {}

    def found(one: int) -> list[int]:
        mask = caught(one)
        knows = bool(mask >> (number - 1) & 1)
        if knows and not mask & OF_A_SHELL:
            return [one]
        if not below:
            below.update(children())
        told = [each for child in below.pop(one, ()) for each in found(child)]
        return told or [one] * knows

    return found(pid)


def children() -> dict[int, list[int]]:
    """All processes, by the one that is above them."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                below.setdefault(int(fields[1]), []).append(int(entry.name))
    return below


def end_user(uid: int) -> None:
    """Kill every process of a user that one job has for itself."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == uid:
                    os.kill(int(entry.name), signal.SIGKILL)


def descendants(top: int) -> list[int]:
    """All processes below one."""
    below = children()
    found, open_ones = [], [top]
    while open_ones:
        own = below.pop(open_ones.pop(), [])
        found += own
        open_ones += own
    return found


def _system(name: str, *arguments: Any) -> None:
    """A call of the C library that Python has no name for."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


def own_proc() -> None:
    """Show this process, and what it starts, only the processes of its own PID namespace."""
    _system("unshare", CLONE_NEWNS)
    _system("mount", b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None)
    _system("mount", b"proc", b"/proc", b"proc", ctypes.c_ulong(MS_NOSUID | MS_NODEV | MS_NOEXEC), None)


def first_process() -> int:
    """Begin a PID namespace, in which all later children of this process are. Returns its first process, with which all the others end."""
    _system("unshare", CLONE_NEWPID)
    pid = os.fork()
    if pid == 0:
        _be_first()
    return pid


def _be_first() -> NoReturn:
    try:
        _system("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.closerange(0, 1024)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries the orphans that come to it
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        while True:
            signal.pause()
    finally:
        os._exit(1)


def probe() -> str:
    """Why jobs cannot have a PID namespace and a /proc of their own on this machine; empty: they can."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        fault = ""
        try:
            first = first_process()
            second = os.fork()
            if second == 0:
                own_proc()
                os._exit(0 if Path("/proc/self").exists() and os.getpid() == 2 else 1)
            if os.waitpid(second, 0)[1]:
                fault = "a /proc of its own could not be mounted"
            os.kill(first, signal.SIGKILL)
        except OSError as refused:
            fault = f"{refused.filename}: {refused.strerror}"
        os.write(write, fault.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        said = answer.read().decode()
    return said if os.waitpid(child, 0)[1] == 0 else said or "the kernel refused"


class Redactor:
    """Replaces secrets in a stream, wherever it is cut. What may be the beginning of a secret is held back until it is known not to be.

    A secret of several lines is known as a whole, as it looks with its line ends escaped, and by each of its lines that is long enough.
    """

    def __init__(self, secrets: list[bytes]) -> None:
        forms: set[bytes] = set()
        for secret in secrets:
            forms |= {
                secret,
                secret.replace(b"\n", b"\r\n"),
                secret.replace(b"\n", b"\\n"),
                json.dumps(secret.decode(errors="replace"))[1:-1].encode(),
            }
            if b"\n" in secret:
                forms |= {line.strip() for line in secret.split(b"\n") if len(line.strip()) >= SHORTEST_LINE}
        self.forms = sorted((one for one in forms if len(one) >= SHORTEST_SECRET), key=lambda one: (-len(one), one))
        self.pattern = re.compile(b"|".join(map(re.escape, self.forms))) if self.forms else None
        self.heads = re.compile(b"(?=%s)" % b"|".join(re.escape(form[:SHORTEST_SECRET]) for form in self.forms))
        self.longest = max(map(len, self.forms), default=0)

    def pass_on(self, data: bytes, *, last: bool = False) -> tuple[bytes, bytes]:
        """What may be shown of it, and what is held back."""
        if self.pattern is None:
            return data, b""
        shown: list[bytes] = []
        begin = 0
        for match in self.pattern.finditer(data):
            if not last and self._may_go_on(data, match.start()):
                return b"".join([*shown, data[begin : match.start()]]), data[match.start() :]
            shown += [data[begin : match.start()], REDACTED]
            begin = match.end()
        end = len(data)
        if not last:
            early = [match.start() for match in self.heads.finditer(data, max(begin, end - self.longest + 1))]
            late = range(max(begin, end - SHORTEST_SECRET + 1), end)
            end = next((place for place in (*early, *late) if self._may_go_on(data, place)), end)
        return b"".join([*shown, data[begin:end]]), data[end:]

    def _may_go_on(self, data: bytes, place: int) -> bool:
        """Whether all from here on is the beginning of something longer."""
        length = len(data) - place
        rest = data[place:] if length < self.longest else b""
        return bool(rest) and any(len(form) > length and form.startswith(rest) for form in self.forms)


def write_whole(path: Path, document: Any) -> None:
    """All of it or nothing, whenever the machine stops."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with fresh.open("w") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


class Log:
    """Segments of a bounded size; only so many are kept. Secrets are blackened before anything is written."""

    def __init__(self, folder: Path, *, segment: int, segments: int, secrets: list[bytes]) -> None:
        self.folder, self.segment, self.segments = folder, segment, segments
        self.redactor = Redactor(secrets)
        # Behind what an earlier worker of that name has written.
        self.offset = self.begun = max((int(path.suffix[1:]) + path.stat().st_size for path in folder.glob("log.*")), default=0)
        self.file = self._open()
        self.held: dict[int, bytes] = {}  # what may be the beginning of a secret
        self.rest: dict[int, bytes] = {}  # lines that have not ended

    def _open(self) -> BinaryIO:
        return (self.folder / f"log.{self.offset:015}").open("ab", buffering=0)

    def feed(self, source: int, data: bytes, prefix: bytes) -> None:
        """Take in what a process wrote; whole lines are written on."""
        shown, self.held[source] = self.redactor.pass_on(self.held.pop(source, b"") + data)
        *lines, rest = (self.rest.pop(source, b"") + shown).split(b"\n")
        if len(rest) > LONGEST_LINE:
            lines, rest = [*lines, rest], b""
        if lines:
            self.write(b"".join(prefix + line + b"\n" for line in lines))
        if rest:
            self.rest[source] = rest

    def drain(self, source: int, prefix: bytes) -> None:
        shown, _ = self.redactor.pass_on(self.held.pop(source, b""), last=True)
        if rest := self.rest.pop(source, b"") + shown:
            *lines, end = rest.split(b"\n")
            self.write(b"".join(prefix + line + b"\n" for line in [*lines, *([end] if end else [])]))

    def write(self, data: bytes) -> None:
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
            except OSError as fault:
                return self._answered(f"It could not be asked: {fault.strerror or fault}.")
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
        self.first: int | None = None  # process of the ranks' PID namespace
        self.probe = Probe(order["ready"], self._ask) if order.get("ready") else None

    def keep(self) -> None:
        write_whole(self.folder / "state.json", self.state)

    def run(self) -> None:
        self.keep()
        if self.fence.missing:
            self.log.write(f"gpufleet: no limits on memory and processors ({self.fence.missing})\n".encode())
        try:
            _system("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            if self.order.get("apart"):
                self.first = first_process()
            with self.fence.inside():
                for rank in self.order["ranks"]:
                    self._start(rank)
        except (OSError, ValueError, subprocess.SubprocessError) as fault:
            self._kill(signal.SIGKILL)
            number = fault.errno if isinstance(fault, OSError) else None
            what = fault.filename if isinstance(fault, OSError) and isinstance(fault.filename, str) else self.order["argv"][0]
            words = f"{what}: {os.strerror(number) if number else fault}"
            self.log.write(words.encode(errors="replace") + b"\n")
            self._end_all()
            self._over(127 if number == errno.ENOENT else 126, words)
            return
        self.state |= {"state": "running", "started_at": time.time()}
        if self.probe is not None:
            self.probe.since = self.state["started_at"]
            self._tell_ready()
        self.keep()
        self._watch()

    def _tell_ready(self) -> None:
        assert self.probe is not None
        self.state |= {"ready": self.probe.ready, "ready_since": self.probe.since, "ready_why": self.probe.why}
        self.state["was_ready"] = self.probe.ready or self.state.get("was_ready", False)

    def _ask(self) -> tuple[int, int]:
        """A process that asks once, as the worker's user, where it is a command in its folder and with its environment."""
        order, stated = self.order, self.order["ready"]
        read, write = os.pipe()
        try:
            with self.fence.inside():
                child = os.fork()
            if child == 0:
                self._asking(order, stated, write)
        except OSError:
            os.close(read)
            raise
        finally:
            os.close(write)
        os.set_blocking(read, False)
        return child, read

    def _asking(self, order: dict[str, Any], stated: dict[str, Any], told: int) -> NoReturn:
        code = 126
        try:
            os.setpgid(0, 0)
            self._become(None)
            if "command" in stated:
                os.umask(0o027)
                argv = stated["command"]
                os.execvpe(argv[0], argv, {**order["env"], **order["secrets"], **order["ranks"][0]})  # noqa: S606 - a list of arguments, as the ranks' own
            why = answer_of(stated, stated["timeout_s"])
            os.write(told, why.encode(errors="replace"))
            code = 1 if why else 0
        except OSError as fault:
            os.write(told, f"It could not be asked: {fault.strerror}.".encode(errors="replace"))
        finally:
            os._exit(code)

    def _start(self, rank: dict[str, str]) -> None:
        order = self.order
        read, write = os.pipe()
        try:
            child = subprocess.Popen(  # with one thread only, code may run between fork and exec
                order["argv"],
                env={**order["env"], **order["secrets"], **rank},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                process_group=0,
                umask=0o027,
                preexec_fn=lambda: self._become(write),
            )
        except subprocess.SubprocessError as fault:
            os.set_blocking(read, False)
            with contextlib.suppress(BlockingIOError):
                number, _, what = os.read(read, 4096).decode(errors="replace").partition(" ")
                raise OSError(int(number), os.strerror(int(number)), what) from fault
            raise
        finally:
            os.close(read)
            os.close(write)
        self.children.append(child)
        self.state["processes"].append({"pid": child.pid, "ticks": started_ticks(child.pid)})
        # At once: a console that looks now must be able to find and end it.
        self.keep()

    def _become(self, told: int | None) -> None:
        """In the child: see only the job's processes, become its user for good, and only then enter the folder where it works."""
        order, what = self.order, ""
        try:
            if self.first is not None:
                own_proc()
            if order["uid"] is not None:
                what = "becoming the job's user"
                os.setgroups(order["groups"])
                os.setresgid(order["gid"], order["gid"], order["gid"])
                os.setresuid(order["uid"], order["uid"], order["uid"])
                _system("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            what = order["cwd"]
            os.chdir(what)
        except OSError as fault:
            if told is not None:
                os.write(told, f"{fault.errno} {what or fault.filename}".encode(errors="replace"))
            raise

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
                if self.probe is not None and self.probe.turn():
                    self._tell_ready()
                    self.keep()
            if self.probe is not None:
                self.probe.end()
            self._kill(signal.SIGKILL)
            self._end_all()
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

    def _end_all(self) -> None:
        """End everything below us, also what has left its session and cleared its environment."""
        deadline = time.monotonic() + END_SECONDS
        for child in self.children:
            # Before anything below buries it: how it ended is told by it alone.
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=max(0.0, deadline - time.monotonic()))
        while time.monotonic() < deadline:
            for pid in descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            time.sleep(0.01)

    def _outcome(self) -> tuple[int, str]:
        codes = [child.wait() for child in self.children]
        bad = next((code for code in codes if code), 0)
        if bad >= 0:
            return bad, "" if bad == 0 else f"exit code {bad}"
        if bad == -signal.SIGKILL and self.fence.ran_out_of_memory():
            return 128 - bad, "killed by the kernel: it used more host memory than requested"
        name = signal.Signals(-bad).name if -bad in {one.value for one in signal.Signals} else f"signal {-bad}"
        return 128 - bad, f"ended by {name}"

    def _over(self, code: int, why: str) -> None:
        self.fence.end()
        self.state |= {"state": "ended", "exit_code": code, "why": why, "ended_at": time.time()}
        self.keep()


def main() -> None:
    if sys.argv[1:] == ["probe"]:
        sys.stdout.write(probe())
        return
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
