"""Starts the processes of one worker, and stays with them to their end."""

import contextlib
import errno
import os
import selectors
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, NoReturn

from scheduler.backends.supervising.asking import Probe, answer_of, not_asked
from scheduler.backends.supervising.fence import Fence, Unpinned
from scheduler.backends.supervising.files import write_whole
from scheduler.backends.supervising.logs import Log
from scheduler.backends.supervising.namespaces import PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, first_process, own_proc, system
from scheduler.backends.supervising.processes import descendants, end_marked, started_ticks

TERM_SECONDS = 10.0
# So long the end of a worker's last processes is waited for; what the kernel cannot end by then (a device that does not answer) is left to it.
END_SECONDS = 20.0
UNPINNED = "unpinned"  # what a child says that is not on its processors


class Worker:
    """One worker: what it starts, what is carried to its log, and how it ends."""

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
            system("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            if self.order.get("apart"):
                self.first = first_process()
            with self.fence.inside():
                self.fence.verify()
                if self.fence.told:
                    self.log.write(f"gpufleet: {self.fence.told}\n".encode())
                for rank in self.order["ranks"]:
                    self._start(rank)
        except Unpinned as refused:
            self._refuse(str(refused))
            return
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

    def _refuse(self, words: str) -> None:
        """What was ordered is not so on this machine: nothing of the worker has begun, or what has is ended."""
        self._kill(signal.SIGKILL)
        self._end_all()
        self.log.write(f"gpufleet: not started: {words}\n".encode(errors="replace"))
        self.state["refused"] = {"code": "cores", "words": words}
        self._over(126, words)

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
                    self._asking(order, stated, write)  # and never leaves the cgroup
        except (OSError, Unpinned):
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
        except (OSError, Unpinned) as fault:
            os.write(told, not_asked(fault).encode(errors="replace"))
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
                if number == UNPINNED:
                    raise Unpinned(what) from fault
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
        """In the child: see only the job's processes, become its user for good, and only then enter the folder where it works. What it starts is
        on its processors, or never begins."""
        order, what = self.order, ""
        try:
            self.fence.verify()
            if self.first is not None:
                own_proc()
            if order["uid"] is not None:
                what = "becoming the job's user"
                os.setgroups(order["groups"])
                os.setresgid(order["gid"], order["gid"], order["gid"])
                os.setresuid(order["uid"], order["uid"], order["uid"])
                system("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            what = order["cwd"]
            os.chdir(what)
        except Unpinned as refused:
            if told is not None:
                os.write(told, f"{UNPINNED} {refused}".encode(errors="replace"))
            raise
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
