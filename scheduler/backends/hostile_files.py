"""Files in folders that belong to a job, which writes there what it likes, and the console reads them as another user, perhaps as root.

So folders are opened as descriptors, links are never followed, only regular files are read, and names, bytes and nesting are bounded.
"""

import errno
import os
import re
import stat
from itertools import islice

MOST_NAMES = 100_000  # in one folder
DEEPEST = 16
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def all_names_in(folder: int) -> list[str]:
    """Sorted names of a folder. OSError where it can't be read, or there are more than anybody needs."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in islice(entries, MOST_NAMES + 1)]
    if len(names) > MOST_NAMES:
        raise OSError(errno.EFBIG, f"More than {MOST_NAMES:,} files in a folder")
    return sorted(names)


def names_in(folder: int) -> list[str]:
    """The same; none where they can't be read."""
    try:
        return all_names_in(folder)
    except OSError:
        return []


def file_read(folder: int, name: str, *, most: int) -> tuple[bytes, float]:
    """What a regular file of bounded size holds, and when it was written. Nothing of anything else: a link, a pipe, a device."""
    # Looked at before it is opened, as opening a device may do something; and again after, as it may have been replaced.
    if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        return b"", 0.0
    descriptor = os.open(name, FILE, dir_fd=folder)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        look = os.fstat(descriptor)
        if not stat.S_ISREG(look.st_mode) or look.st_size > most:
            return b"", 0.0
        text = file.read(most + 1) or b""
    return (text, look.st_mtime) if len(text) <= most else (b"", 0.0)


def regular_file(folder: int, name: str, *, most: int) -> tuple[bytes, float]:
    """The same; nothing where it can't be read."""
    try:
        return file_read(folder, name, most=most)
    except OSError:
        return b"", 0.0


BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)


def is_shallow(text: bytes) -> bool:
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
