"""PID namespaces: processes that see only each other, and that end as one."""

import ctypes
import os
import signal
from pathlib import Path
from typing import Any, NoReturn

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38
CLONE_NEWNS, CLONE_NEWPID = 0x0002_0000, 0x2000_0000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x8, 0x4000, 0x4_0000


def system(name: str, *arguments: Any) -> None:
    """A call of the C library that Python has no name for."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


def own_proc() -> None:
    """Show this process, and what it starts, only the processes of its own PID namespace."""
    system("unshare", CLONE_NEWNS)
    system("mount", b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None)
    system("mount", b"proc", b"/proc", b"proc", ctypes.c_ulong(MS_NOSUID | MS_NODEV | MS_NOEXEC), None)


def first_process() -> int:
    """Begin a PID namespace, in which all later children of this process are. Returns its first process, with which all the others end."""
    system("unshare", CLONE_NEWPID)
    pid = os.fork()
    if pid == 0:
        _be_first()
    return pid


def _be_first() -> NoReturn:
    try:
        system("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
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
