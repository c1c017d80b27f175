"""Processes of this machine, as the kernel tells of them."""

import contextlib
import os
import signal
from pathlib import Path


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
