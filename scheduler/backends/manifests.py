"""Checkpoints as ranks leave them in `GPUFLEET_CHECKPOINT_DIR`: a folder a step, `step-<number>`, with manifests beside the shards.

A manifest is a JSON file that is written last, by renaming it into place. Either each rank writes one for its shard, or one rank writes one for all:

    {"shards": 2, "files": [{"shard": 0, "file": "shard-0.bin", "bytes": 1048576}]}

A shard is there when a manifest names it, and its file has the size that the manifest says, and the digest (`sha256`) where it says one.

A job writes what it likes here: it is read as `hostile_files` says. A file system that does not answer holds up a thread, not the caller.
"""

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from scheduler.backends.base import SeenSteps
from scheduler.backends.hostile_files import FILE, FOLDER, all_names_in, file_read, is_shallow, names_in, regular_file
from scheduler.backends.stepfiles import steps_in

STEP = re.compile(r"step-([0-9]{1,18})")
NEWEST = 3  # an older step was looked at when it was new
LARGEST_MANIFEST = 4 * 1024 * 1024
LARGEST_LOOK = 2 * LARGEST_MANIFEST  # all manifests of a step together
MOST_SHARDS = 100_000
# A folder is looked at for at most this part of the time, so that large manifests cost their job patience and the console nothing.
MOST_OF_THE_TIME = 0.1
# What is read for digests is not counted in that: a large checkpoint is read once, and only so long is waited after it.
REST_AFTER_DIGESTS = 30.0
# A look that takes longer is logged, once.
LONG_LOOK = 60.0
LONGEST_DIGEST = 600.0  # of one file; one that takes longer is never there
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    step: int
    location: str
    shards_expected: int
    shards: tuple[int, ...]
    at: datetime  # when its newest manifest was written


class Digests(dict[tuple[int, int, int], str]):
    """Of files by inode, size and time of the last change: each is read once."""

    seconds = 0.0  # that reading them took in the newest look


def checkpoints_in(folder: Path, known: Digests | None = None) -> list[Found]:
    """The newest steps, from old to new. What cannot be read or makes no sense is not there: it is still being written, or its writer is wrong.

    `known` holds digests of an earlier look, and is left with those of this one.
    """
    now = Digests() if known is None else known
    before = Digests(now)
    now.clear()
    now.seconds = 0.0
    try:
        top = os.open(folder, FOLDER)
    except OSError:
        return []
    try:
        steps: dict[int, str] = {}
        for name in names_in(top):
            if match := STEP.fullmatch(name):
                steps.setdefault(int(match[1]), name)
        found = [_checkpoint(top, step, steps[step], folder, before, now) for step in sorted(steps)[-NEWEST:]]
    finally:
        os.close(top)
    return [one for one in found if one is not None]


def _checkpoint(top: int, step: int, name: str, parent: Path, before: Digests, now: Digests) -> Found | None:
    try:
        folder = os.open(name, FOLDER, dir_fd=top)
    except OSError:
        return None  # no folder, or a link
    try:
        expected, present, newest = 0, set(), 0.0
        for _, document, written in manifests_of(folder):
            shards = document.get("shards")
            if not isinstance(shards, int) or isinstance(shards, bool) or not 1 <= shards <= MOST_SHARDS or expected not in (0, shards):
                return None  # two manifests contradict each other
            expected, newest = shards, max(newest, written)
            files = document.get("files")
            for one in files if isinstance(files, list) else ():
                if _is_there(folder, one, shards) and ("sha256" not in one or _is_same(folder, one, before, now)):
                    present.add(one["shard"])
    finally:
        os.close(folder)
    if not expected:
        return None
    try:
        at = datetime.fromtimestamp(newest, UTC)
    except (ValueError, OverflowError, OSError):
        return None  # a file may bear any time
    return Found(step, str(parent / name), expected, tuple(sorted(present)), at.replace(microsecond=at.microsecond // 1000 * 1000))


def manifests_of(folder: int, *, every: bool = False) -> Iterator[tuple[str, dict[str, Any], float]]:
    """The manifests of a step: the name of each, what it says, and when it was written. `every`: OSError where one of them can't be read."""
    left = LARGEST_LOOK
    names, read = (all_names_in, file_read) if every else (names_in, regular_file)
    for name in names(folder):
        if not name.endswith(".json"):
            continue
        text, written = read(folder, name, most=LARGEST_MANIFEST)
        left -= len(text)
        if left < 0 and every:
            raise OSError(errno.EFBIG, f"More than {LARGEST_LOOK:,} bytes of manifests")
        if left < 0:
            return
        try:
            document = json.loads(text) if is_shallow(text) else None
        except (ValueError, RecursionError):
            continue
        if isinstance(document, dict):
            yield name, document, written


def _is_there(folder: int, one: Any, shards: int) -> bool:
    if not isinstance(one, dict) or not isinstance(one.get("shard"), int) or not 0 <= one["shard"] < shards:
        return False
    name = one.get("file")
    if not isinstance(name, str) or name != Path(name).name:
        return False  # beside its manifest, and nowhere else
    try:
        look = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(look.st_mode) and look.st_size == one.get("bytes")


def _is_same(folder: int, one: dict[str, Any], before: Digests, now: Digests) -> bool:
    """Whether the file has the digest that its manifest says. It is read here, and again only when it has changed."""
    try:
        descriptor = os.open(one["file"], FILE, dir_fd=folder)
    except OSError:
        return False
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        look = os.fstat(descriptor)
        if not stat.S_ISREG(look.st_mode) or look.st_size != one["bytes"]:
            return False
        key = look.st_ino, look.st_size, look.st_mtime_ns
        if key not in before and key not in now:
            began = time.monotonic()
            try:
                now[key] = _digest(file)
            except OSError:
                return False
            finally:
                now.seconds += time.monotonic() - began
        now.setdefault(key, before.get(key, ""))
    return now[key] == one["sha256"]


def _digest(file: BinaryIO) -> str:
    """Empty where reading takes too long: a file with holes may claim any size."""
    digest, until = hashlib.sha256(), time.monotonic() + LONGEST_DIGEST
    while block := file.read(1 << 20):
        digest.update(block)
        if time.monotonic() > until:
            return ""
    return digest.hexdigest()


@dataclass(slots=True)
class _Look:
    """The newest look at one folder, and the one that is under way."""

    found: list[Found] = field(default_factory=list)
    steps: tuple[SeenSteps, ...] = ()
    digests: Digests = field(default_factory=Digests)
    over: threading.Event | None = None
    since: float = 0.0
    not_before: float = 0.0
    logged: bool = False
    last: bool = False  # the one under way began after the end of its run


def _glance(folders: Sequence[Path], empty: list[Path], over: threading.Event) -> None:
    try:
        for folder in folders:
            with contextlib.suppress(OSError):  # what is wrong with it is told by its own look
                descriptor = os.open(folder, FOLDER)
                try:
                    with os.scandir(descriptor) as entries:
                        if next(entries, None) is None:
                            empty.append(folder)
                finally:
                    os.close(descriptor)
    finally:
        over.set()


class Looker:
    """Looks at folders of checkpoints from threads, one a folder at most, so that nobody waits longer than wanted for a file system that hangs."""

    def __init__(self) -> None:
        self._looks: dict[Path, _Look] = {}
        self._glance: threading.Event | None = None
        self._empty: set[Path] = set()

    def glance(self, folders: Sequence[Path], *, wait: float) -> None:
        """See in one thread which of these folders are empty, as those of most jobs are; `seen` then says so of each once.

        A thread of its own costs a folder many times what looking into it does, and what all looks together may take is soon used up.
        """
        self._empty = set()
        if not folders or (self._glance is not None and not self._glance.is_set()):
            return  # the last glance has not come back: each folder is looked at by itself
        empty: list[Path] = []
        over = self._glance = threading.Event()
        threading.Thread(target=_glance, args=(folders, empty, over), name="checkpoints", daemon=True).start()
        over.wait(max(0.0, wait))
        self._empty = set(empty)  # also where not all of them were seen in time

    def seen(self, folder: Path, *, wait: float, last: bool = False) -> tuple[list[Found], bool]:
        """What lies there. False: as it was at an earlier look, as the newest one takes longer than `wait`. `last`: its run has ended."""
        look = self._looks.setdefault(folder, _Look())
        if folder in self._empty and look.over is None:
            self._empty.remove(folder)
            look.found, look.steps = [], ()
            return look.found, True
        if look.over is None and not last and time.monotonic() < look.not_before:
            return look.found, True
        if last and look.over is not None and not look.last:
            began = time.monotonic()
            if look.over.wait(wait):
                look.over = None  # it may have missed what was written last
            wait -= time.monotonic() - began
        if look.over is None:
            look.over, look.since, look.logged, look.last = threading.Event(), time.monotonic(), False, last
            threading.Thread(target=self._look, args=(folder, look, look.over), name="checkpoints", daemon=True).start()
        if not look.over.wait(max(0.0, wait)) or (last and not look.last):
            if not look.logged and time.monotonic() - look.since > LONG_LOOK:
                look.logged = True
                log.warning("%s does not answer for %d s: checkpoints there are not seen", folder, LONG_LOOK)
            return look.found, False
        look.over = None
        return look.found, True

    def _look(self, folder: Path, look: _Look, over: threading.Event) -> None:
        try:
            with contextlib.suppress(FileNotFoundError):
                look.found, look.steps = checkpoints_in(folder, look.digests), steps_in(folder)
        except Exception:
            log.exception("The checkpoints in %s could not be looked at", folder)
            look.found, look.steps = [], ()
        finally:
            ended = time.monotonic()
            digests = look.digests.seconds
            look.not_before = ended + (ended - look.since - digests) * (1 / MOST_OF_THE_TIME - 1) + min(digests, REST_AFTER_DIGESTS)
            over.set()

    def steps(self, folder: Path) -> tuple[SeenSteps, ...]:
        """What the newest look found of step times."""
        return self._looks[folder].steps if folder in self._looks else ()

    def drop(self, folder: Path) -> None:
        self._looks.pop(folder, None)
