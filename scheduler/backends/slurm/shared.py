"""The shared folder of a cluster, which may lie on a server that does not answer: a file system on a network then holds up whoever asks it."""

import os
import pwd
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TypeVar

from scheduler.backends.base import FolderSilent
from scheduler.backends.patience import Late, Patient

T = TypeVar("T")
WAIT = 2.0  # seconds for one file, or for the folders of one run
_patient: dict[Path, Patient] = {}
_former: set[Path] = set()
_lock = Lock()


def top_in(folder: str, tag: str) -> Path:
    """What is this console's in a shared folder."""
    return Path(folder) / f"gpufleet-{tag}"


def told_apart(top: Path, former: Sequence[Path]) -> None:
    """Which shared folder a cluster uses, and which it used before: of these one may hang, and its cluster goes on."""
    with _lock:
        _former.difference_update([top])
        _former.update(former)


def is_former(top: Path) -> bool:
    return top in _former


def asked(top: Path, call: Callable[[], T]) -> T:
    """What a call comes to that reads or writes below a shared folder. `FolderSilent` where that takes too long, and until it has come back."""
    with _lock:
        patient = _patient.setdefault(top, Patient("shared-folder"))
    try:
        return patient.call(call, wait=WAIT)
    except Late:
        raise FolderSilent(f"The shared folder {top} does not answer.", top) from None


def must_answer(top: Path) -> None:
    """`FolderSilent` where a call has not come back from it, and another does not come back either. That is made now and then (`patience`): what was
    mounted anew answers, and the call of before never comes back."""
    if top in _patient and _patient[top].is_late:
        look_at(top)


def look_at(top: Path) -> None:
    """`FolderSilent` where it hangs. Of a folder on a network its server is asked."""

    def look() -> None:
        with suppress(OSError):
            os.statvfs(top)

    asked(top, look)


def folders_made(top: Path, names: Sequence[Path], account: pwd.struct_passwd) -> None:
    """Made by the console in folders that no job can write to, so that none can put a link in the way."""
    for name in names:
        for parent in reversed(name.parents):
            if not (top / parent).exists():
                (top / parent).mkdir(parents=True, exist_ok=True)
                (top / parent).chmod(0o755)  # whatever the umask: the job's user passes through
        (top / name).mkdir(mode=0o750, exist_ok=True)
        descriptor = os.open(top / name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.getuid() == 0:
                os.fchown(descriptor, account.pw_uid, account.pw_gid)
        finally:
            os.close(descriptor)
