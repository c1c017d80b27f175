"""Whether a database file is as long as it says, seen before SQLite opens it: what it then finds missing it may take for empty."""

from pathlib import Path

MAGIC = b"SQLite format 3\0"


def why_damaged(path: Path) -> str:
    """Empty for a file that is whole, empty or not there."""
    try:
        with path.open("rb") as file:
            head = file.read(100)
    except FileNotFoundError:
        return ""
    if not head:
        return ""
    if not head.startswith(MAGIC) or len(head) < 100:
        return "it is not a SQLite database"
    page = int.from_bytes(head[16:18], "big")
    page = 65_536 if page == 1 else page
    pages, size = int.from_bytes(head[28:32], "big"), path.stat().st_size
    # The count is only valid where the file was last written by a program that keeps it.
    if head[24:28] == head[92:96] and size < page * pages:
        return f"it has {size:,} of {page * pages:,} bytes"
    return ""
