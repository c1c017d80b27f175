"""Limits on what a worker takes of its host, and the processors that it is pinned to."""

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scheduler.backends.supervising.cpulists import list_of, read_list

ANY = range(4096)  # of these the kernel leaves a process those of its cgroup
TRIAL = "gpufleet-try-"
TRIES, PAUSE = 20, 0.05  # the processors that workers share may change while they are read


class Unpinned(Exception):
    """A worker would not have the processors that were ordered. Nothing of it may start."""


class Fence:
    """A cgroup (v2) of its own for all that a worker starts, with what it asked for of the host as limits. `missing` says why there is none.

    `pin` says which processors it has, and is never left out: `unpinned` says why it cannot be carried out.
    """

    def __init__(self, wanted: dict[str, Any] | None) -> None:
        self.missing = self.processors = ""
        self.folder = Path(wanted["folder"]) if wanted else None
        self.pin: dict[str, str] | None = wanted.get("pin") if wanted else None
        self.unpinned = self.pin.get("fault", "") if self.pin else ""
        if self.folder is None or self.unpinned:
            return
        try:
            self._make(self.folder)
        except OSError as fault:
            self.missing = _told(fault, self.folder)
            self.unpinned = self.missing if self.pin is not None else ""
            self._remove()
            return
        try:
            self._limit(self.folder, wanted["files"] if wanted else {})
        except OSError as fault:
            self.missing = _told(fault, self.folder)
            if self.pin is None:
                self._remove()

    def _make(self, folder: Path) -> None:
        for controller in ("memory", "cpu"):
            with contextlib.suppress(OSError):  # done already, or not ours to do: then the files are there, or what follows says that they are not
                (folder.parent / "cgroup.subtree_control").write_text(f"+{controller}")
        folder.mkdir(exist_ok=True)
        _write(folder, "cgroup.procs", "")
        if self.pin is not None and "cpus" in self.pin:
            _write(folder, "cpuset.cpus", self.pin["cpus"])

    def _limit(self, folder: Path, files: dict[str, str]) -> None:
        for name, value in files.items():
            _write(folder, name, value)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """What is started here begins inside, so it can't have started anything outside before."""
        if self.unpinned:
            raise Unpinned(self.unpinned)
        if self.folder is None:
            yield
            return
        home = self._home(self.folder)
        try:
            self._enter_pinned(self.folder)
            yield
        finally:
            with contextlib.suppress(OSError):  # where that is not allowed we stay inside: we need next to nothing
                self._enter(home)

    def verify(self) -> None:
        """Whether this process, which is inside, has the ordered processors and no others. Raises `Unpinned`."""
        if self.pin is None or self.folder is None:
            return
        for _ in range(TRIES):
            try:
                ordered = read_list(self.pin["cpus"] if "cpus" in self.pin else (Path(self.pin["pool"]) / "cpuset.cpus").read_text())
                effective = read_list((self.folder / "cpuset.cpus.effective").read_text())
                allowed = affinity()
            except (OSError, ValueError) as fault:
                raise Unpinned(_told(fault, self.folder) if isinstance(fault, OSError) else str(fault)) from fault
            if ordered and ordered == effective == allowed:
                self.processors = list_of(ordered)
                return
            time.sleep(PAUSE)
        had = f"its cgroup has {list_of(effective) or 'none'}, its process {list_of(allowed) or 'none'}"
        raise Unpinned(f"Processors {list_of(ordered) or 'of its own'} were ordered; {had}.")

    @property
    def told(self) -> str:
        """What the log of a pinned worker begins with."""
        own = self.pin is not None and "cpus" in self.pin
        return f"processors {self.processors}, {'its own' if own else 'shared with other workers'}" if self.processors else ""

    def _enter_pinned(self, folder: Path) -> None:
        try:
            self._enter(folder)
            if self.pin is not None:
                os.sched_setaffinity(0, ANY)  # a console that is bound to some processors itself passes that on
        except OSError as fault:
            if self.pin is None:
                raise
            raise Unpinned(_told(fault, folder)) from fault

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
            kill(self.folder)
            self._remove()

    def _remove(self) -> None:
        if self.folder is not None:
            remove(self.folder)
        self.folder = None


def kill(folder: Path) -> None:
    """End all that is in a cgroup."""
    with contextlib.suppress(OSError), (folder / "cgroup.kill").open("r+") as file:
        file.write("1")


def remove(folder: Path) -> None:
    """Gone once all in it have; what the kernel has not taken down yet it will, and an empty cgroup costs nothing."""
    for _ in range(20):
        with contextlib.suppress(OSError):
            folder.rmdir()
        if not folder.exists() or not (folder / "cgroup.procs").exists():
            break
        time.sleep(0.05)


def affinity(pid: str = "self") -> frozenset[int]:
    """The processors that a process may run on, as the kernel tells."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return read_list(next((line.partition(":")[2] for line in lines if line.startswith("Cpus_allowed_list:")), ""))


def tried(order: dict[str, Any]) -> str:
    """Why a process cannot be kept to one processor of this machine; empty: it can. `folder` is the one of the workers' cgroups, `processors` two of
    the machine, `user` the id, group and groups of a job's."""
    folder, (mine, other) = Path(order["folder"]), order["processors"]
    fence = Fence({"folder": str(folder / f"{TRIAL}{os.getpid()}"), "files": {}, "pin": {"cpus": str(mine)}})
    fault = ""
    try:
        with fence.inside():
            fence.verify()
            try:
                os.sched_setaffinity(0, {other})
            except OSError as refused:
                fault = "" if refused.errno == errno.EINVAL else _told(refused, folder)
            else:
                fault = f"A process that was pinned to processor {mine} moved to processor {other}."
    except Unpinned as unpinned:
        fault = str(unpinned)
    except OSError as refused:
        fault = _told(refused, folder)
    finally:
        fence.end()
    return fault or (_left_by(order["user"], folder) if "user" in order else "")


def _left_by(user: list[Any], folder: Path) -> str:
    """Whether the user of a job could move a process out of its cgroup."""
    uid, gid, groups = user
    try:
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        with (folder / "cgroup.procs").open("r+"):
            return f"Jobs can write to {folder}, and so leave their cgroups."
    except OSError as refused:
        return "" if refused.errno in (errno.EACCES, errno.EPERM) else _told(refused, folder)


def _write(folder: Path, name: str, value: str) -> None:
    with (folder / name).open("r+") as file:  # never made: in a folder that is no cgroup a file would limit nothing
        file.write(value)


def _told(fault: OSError, folder: Path) -> str:
    return f"{fault.filename or folder}: {fault.strerror or fault}"
