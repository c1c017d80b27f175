"""Deleting the files of a checkpoint that nobody resumes from any more, and the folders of runs that are over long since.

Its folder belongs to a job, which may have put anything there, and the console may be root. So every folder is opened relative to the one above it,
no link is followed, and only regular files go that a manifest beside them names and that belong to the job's user. What else lies there stays.

The shards go first and the manifests that name them last: what is cut off in between is gone on with.
"""

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

from scheduler.backends.base import BackendError, FolderSilent, OldCheckpoint
from scheduler.backends.hostile_files import FOLDER
from scheduler.backends.manifests import STEP, manifests_of

PATIENCE = 10.0  # seconds for one checkpoint; a file system that needs longer is asked again the next time
NOT_THERE = frozenset({errno.ENOENT, errno.ELOOP, errno.ENOTDIR})  # gone, or something else in its place


@dataclass(slots=True)
class Call:
    """The last deletion of a folder. It may take longer than anybody waited for it."""

    old: OldCheckpoint | str
    answer: Future[int]
    thread: Thread


class Deleter:
    """Deletes from threads, one at a time in each folder, so that nobody waits for long for a file system that hangs, and no other folder does."""

    def __init__(self) -> None:
        self._late: dict[Path, Call] = {}

    def delete(self, root: Path, old: OldCheckpoint, *, given_up: Path | None = None) -> int:
        """Bytes that became free, also by a call for it that took too long. Where the folder `given_up` is gone, nothing is left to delete."""
        return self._in_turn(root, old, given_up)

    def delete_run(self, root: Path, name: str, *, given_up: Path | None = None) -> None:
        """The folder of a run, of that name in `root`, with all that is in it."""
        self._in_turn(root, name, given_up)

    def _in_turn(self, root: Path, old: OldCheckpoint | str, given_up: Path | None) -> int:
        late = self._late.get(root)
        if late is not None and late.thread.is_alive():
            raise FolderSilent(f"{root} does not answer: an earlier deletion has not come back.", root)
        self._late.pop(root, None)
        before = late.answer.result() if late is not None and late.old == old and late.answer.exception() is None else 0
        return before + self._delete(root, old, given_up)

    def _delete(self, root: Path, old: OldCheckpoint | str, given_up: Path | None) -> int:
        answer: Future[int] = Future()
        thread = Thread(target=_answer, args=(answer, root, old, given_up), name="old-checkpoints", daemon=True)
        thread.start()
        try:
            return answer.result(PATIENCE)
        except TimeoutError:
            self._late[root] = Call(old, answer, thread)
            raise FolderSilent(f"{root} does not answer: deleting {_place_of(root, old)} takes longer than {PATIENCE:g} s.", root) from None


def _place_of(root: Path, old: OldCheckpoint | str) -> str:
    return str(root / old) if isinstance(old, str) else old.location


def _answer(answer: Future[int], root: Path, old: OldCheckpoint | str, given_up: Path | None) -> None:
    try:
        if given_up is not None and _is_gone(given_up):
            answer.set_result(0)
        elif isinstance(old, str):
            run_delete(root, old)
            answer.set_result(0)
        else:
            answer.set_result(checkpoint_delete(root, old))
    except OSError as fault:
        answer.set_exception(BackendError(f"{_place_of(root, old)} can't be deleted: {fault.strerror or fault} ({fault.filename or root})"))
    except Exception as fault:
        answer.set_exception(fault)


def _is_gone(folder: Path) -> bool:
    """One that can't be looked at may come back."""
    try:
        folder.lstat()
    except FileNotFoundError:
        return True
    return False


def run_delete(root: Path, name: str) -> None:
    """No link is followed: each folder is opened relative to the one above it. `root` has to be there: without it nobody knows what is gone."""
    if name != Path(name).name:
        return
    top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(FileNotFoundError):
            shutil.rmtree(name, dir_fd=top)
    finally:
        os.close(top)


def checkpoint_delete(root: Path, old: OldCheckpoint) -> int:
    """Bytes that became free. `root` holds a folder for each job, and in that one for each attempt; what lies elsewhere is not ours to delete."""
    name = Path(old.location).name
    step = STEP.fullmatch(name)
    if step is None or int(step[1]) != old.step or old.location != str(root / old.job / str(old.attempt) / name):
        return 0
    with ExitStack() as opened:
        top = _kept_open(opened, os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))  # without it nobody knows what is gone
        try:
            job = _kept_open(opened, os.open(old.job, FOLDER, dir_fd=top))
            attempt = _kept_open(opened, os.open(str(old.attempt), FOLDER, dir_fd=job))
            folder = _kept_open(opened, os.open(name, FOLDER, dir_fd=attempt))
        except OSError as fault:
            if fault.errno in NOT_THERE:
                return 0
            raise
        freed = _files_delete(folder, owner=os.fstat(attempt).st_uid)
        _folder_delete(name, attempt)
    return freed


def _kept_open(opened: ExitStack, descriptor: int) -> int:
    opened.callback(os.close, descriptor)
    return descriptor


def _files_delete(folder: int, *, owner: int) -> int:
    manifests = {name: document for name, document, _ in manifests_of(folder, every=True) if _is_manifest(document)}
    shards = {name for document in manifests.values() for name in _named(document)}
    return sum(_file_delete(folder, name, owner) for name in (*sorted(shards - manifests.keys()), *manifests))


def _is_manifest(document: dict[str, Any]) -> bool:
    """And no other JSON file of the job's, such as its configuration."""
    shards = document.get("shards")
    return isinstance(shards, int) and not isinstance(shards, bool) and shards >= 1 and isinstance(document.get("files"), list)


def _named(document: dict[str, Any]) -> Iterator[str]:
    """Files beside the manifest, and none elsewhere."""
    for one in document["files"]:
        name = one.get("file") if isinstance(one, dict) else None
        if isinstance(name, str) and name == Path(name).name:
            yield name


def _file_delete(folder: int, name: str, owner: int) -> int:
    try:
        look = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISREG(look.st_mode) or look.st_uid != owner:
            return 0
        os.unlink(name, dir_fd=folder)
    except (FileNotFoundError, ValueError):  # no name of a file
        return 0
    except OSError as fault:
        if fault.errno == errno.ENAMETOOLONG:
            return 0
        raise
    return look.st_blocks * 512 if look.st_nlink == 1 else 0


def _folder_delete(name: str, parent: int) -> None:
    """Unless something else is left in it."""
    try:
        os.rmdir(name, dir_fd=parent)
    except OSError as fault:
        if fault.errno not in {errno.ENOTEMPTY, errno.EEXIST, *NOT_THERE}:
            raise
