"""Files that only the console's own user may read."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

OTHERS = stat.S_IRWXG | stat.S_IRWXO


def folder_made_private(folder: Path) -> None:
    """The data folder for its owner alone, and so are the database and the key in it. What belongs to somebody else is left as it is."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for path in (folder, *folder.glob("*.sqlite3*"), folder / "secret_key"):
        try:
            found = path.lstat()
        except FileNotFoundError:
            continue
        if found.st_uid == os.getuid() and not stat.S_ISLNK(found.st_mode) and found.st_mode & OTHERS:
            path.chmod(stat.S_IMODE(found.st_mode) & ~OTHERS)


def readable_by_others(folder: Path) -> Iterator[tuple[Path, str]]:
    """The folder, and the files in it that hold secrets, where others than their owner have rights; with their modes.

    Into a private folder nobody else gets, so the modes of its files do not matter.
    """
    if not folder.exists() or not folder.stat().st_mode & OTHERS:
        return
    for path in (folder, *sorted(folder.glob("*.sqlite3*")), folder / "secret_key"):
        try:
            mode = path.stat().st_mode
        except OSError:
            continue
        if mode & OTHERS:
            yield path, f"{stat.S_IMODE(mode):04o}"
