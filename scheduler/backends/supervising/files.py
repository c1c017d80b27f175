"""Files that are there as a whole, or as they were before."""

import json
import os
from pathlib import Path
from typing import Any


def write_whole(path: Path, document: Any) -> None:
    """All of it or nothing, whenever the machine stops."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with fresh.open("w") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
