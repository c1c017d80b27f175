"""Checkpoints as ranks leave them in `GPUFLEET_CHECKPOINT_DIR`: a folder a step, `step-<number>`, with manifests beside the shards.

A manifest is a JSON file that is written last, by renaming it into place. Either each rank writes one for its shard, or one rank writes one for all:

    {"shards": 2, "files": [{"shard": 0, "file": "shard-0.bin", "bytes": 1048576}]}

A shard is there when a manifest names it, and its file has the size that the manifest says.

A job writes what it likes here, and the console reads it as another user, perhaps as root. So folders are opened as descriptors, links are never
followed, only regular files are read, and names, bytes and nesting are bounded. A file system that does not answer holds up a thread, not the caller.
"""

import contextlib
import json
import logging
import os
import re
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

STEP = re.compile(r"step-([0-9]{1,18})")
NEWEST = 3  # an older step was looked at when it was new
LARGEST_MANIFEST = 4 * 1024 * 1024
LARGEST_LOOK = 2 * LARGEST_MANIFEST  # all manifests of a step together
MOST_SHARDS = 100_000
MOST_NAMES = 100_000  # in one folder
DEEPEST = 16
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
# A folder is looked at for at most this part of the time, so that large manifests cost their job patience and the console nothing.
MOST_OF_THE_TIME = 0.1
# A look that takes longer is logged, once.
LONG_LOOK = 60.0
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    step: int
    location: str
    shards_expected: int
    shards: tuple[int, ...]
    at: datetime  # when its newest manifest was written


def checkpoints_in(folder: Path) -> list[Found]:
    """The newest steps, from old to new. What cannot be read or makes no sense is not there: it is still being written, or its writer is wrong."""
    try:
        top = os.open(folder, FOLDER)
    except OSError:
        return []
    try:
        steps: dict[int, str] = {}
        for name in _names(top):
            if match := STEP.fullmatch(name):
                steps.setdefault(int(match[1]), name)
        found = [_checkpoint(top, step, steps[step], folder) for step in sorted(steps)[-NEWEST:]]
    finally:
        os.close(top)
    return [one for one in found if one is not None]


def _names(folder: int) -> list[str]:
    """Sorted names of a folder; none where there are more than anybody needs."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, MOST_NAMES + 1)]
    except OSError:
        return []
    return sorted(names) if len(names) <= MOST_NAMES else []


def _checkpoint(top: int, step: int, name: str, parent: Path) -> Found | None:
    try:
        folder = os.open(name, FOLDER, dir_fd=top)
    except OSError:
        return None  # no folder, or a link
    try:
        expected, present, newest = 0, set(), 0.0
        for document, written in _manifests(folder):
            shards = document.get("shards")
            if not isinstance(shards, int) or isinstance(shards, bool) or not 1 <= shards <= MOST_SHARDS or expected not in (0, shards):
                return None  # two manifests contradict each other
            expected, newest = shards, max(newest, written)
            files = document.get("files")
            present |= {one["shard"] for one in files if _is_there(folder, one, shards)} if isinstance(files, list) else set()
    finally:
        os.close(folder)
    if not expected:
        return None
    try:
        at = datetime.fromtimestamp(newest, UTC)
    except (ValueError, OverflowError, OSError):
        return None  # a file may bear any time
    return Found(step, str(parent / name), expected, tuple(sorted(present)), at.replace(microsecond=at.microsecond // 1000 * 1000))


def _manifests(folder: int) -> Iterator[tuple[dict[str, Any], float]]:
    left = LARGEST_LOOK
    for name in _names(folder):
        if not name.endswith(".json"):
            continue
        text, written = _regular_file(folder, name)
        left -= len(text)
        if left < 0:
            return
        try:
            document = json.loads(text) if _is_shallow(text) else None
        except (ValueError, RecursionError):
            continue
        if isinstance(document, dict):
            yield document, written


def _regular_file(folder: int, name: str) -> tuple[bytes, float]:
    """What a regular file of bounded size holds, and when it was written. Nothing of anything else: a link, a pipe, a device."""
    try:
        # Looked at before it is opened, as opening a device may do something; and again after, as it may have been replaced.
        if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            return b"", 0.0
        descriptor = os.open(name, FILE, dir_fd=folder)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            look = os.fstat(descriptor)
            if not stat.S_ISREG(look.st_mode) or look.st_size > LARGEST_MANIFEST:
                return b"", 0.0
            text = file.read(LARGEST_MANIFEST + 1) or b""
    except OSError:
        return b"", 0.0
    return (text, look.st_mtime) if len(text) <= LARGEST_MANIFEST else (b"", 0.0)


BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)


def _is_shallow(text: bytes) -> bool:
    """Whether nothing in it is nested deeper than any manifest."""
    if text.count(b"[") + text.count(b"{") <= DEEPEST:
        return True
    depth = 0
    for match in BRACKETS.finditer(text):
        first = match[0][:1]
        depth += first in (b"[", b"{")
        depth -= first in (b"]", b"}")
        if depth > DEEPEST:
            return False
    return True


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


@dataclass(slots=True)
class _Look:
    """The newest look at one folder, and the one that is under way."""

    found: list[Found] = field(default_factory=list)
    over: threading.Event | None = None
    since: float = 0.0
    not_before: float = 0.0
    logged: bool = False


class Looker:
    """Looks at folders of checkpoints from threads, one a folder at most, so that nobody waits longer than wanted for a file system that hangs."""

    def __init__(self) -> None:
        self._looks: dict[Path, _Look] = {}

    def seen(self, folder: Path, *, wait: float, last: bool = False) -> tuple[list[Found], bool]:
        """What lies there. False: as it was at an earlier look, as the newest one takes longer than `wait`. `last`: its run has ended."""
        look = self._looks.setdefault(folder, _Look())
        if look.over is None and not last and time.monotonic() < look.not_before:
            return look.found, True
        if look.over is None:
            look.over, look.since, look.logged = threading.Event(), time.monotonic(), False
            threading.Thread(target=self._look, args=(folder, look, look.over), name="checkpoints", daemon=True).start()
        if not look.over.wait(wait):
            if not look.logged and time.monotonic() - look.since > LONG_LOOK:
                look.logged = True
                log.warning("%s does not answer for %d s: checkpoints there are not seen", folder, LONG_LOOK)
            return look.found, False
        look.over = None
        return look.found, True

    def _look(self, folder: Path, look: _Look, over: threading.Event) -> None:
        try:
            with contextlib.suppress(FileNotFoundError):
                look.found = checkpoints_in(folder)
        except Exception:
            log.exception("The checkpoints in %s could not be looked at", folder)
            look.found = []
        finally:
            ended = time.monotonic()
            look.not_before = ended + (ended - look.since) * (1 / MOST_OF_THE_TIME - 1)
            over.set()

    def drop(self, folder: Path) -> None:
        self._looks.pop(folder, None)
