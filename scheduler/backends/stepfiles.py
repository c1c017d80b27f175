"""Step times as ranks leave them in `GPUFLEET_CHECKPOINT_DIR`: `steps.json` of one rank for all, or `steps-<rank>.json` of each.

A file has what `POST /api/v1/steps` takes, and is renamed into place, anew every fifteen seconds or so:

    {"ranks": 64, "seconds": {"12": 1.31}, "flops": 6.1e17, "precision": "bf16"}

A job writes what it likes here. Files are opened as manifests are, are small, and what is not as it should be is not there.
"""

import json
import math
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scheduler.backends.base import SeenSteps
from scheduler.backends.hostile_files import FOLDER, is_shallow, names_in, regular_file

NAME = re.compile(r"steps(?:-[0-9]{1,5})?\.json")
LARGEST = 2 * 1024 * 1024  # 65,536 ranks with their seconds
LARGEST_ALL = 2 * LARGEST
MOST_FILES = 4096
MOST_RANKS = 65_536
MOST_FLOPS = 1e27


def steps_in(folder: Path) -> tuple[SeenSteps, ...]:
    """What the files of a folder say, in the order in which they were written."""
    try:
        top = os.open(folder, FOLDER)
    except OSError:
        return ()
    found, left = [], LARGEST_ALL
    try:
        for name in [name for name in names_in(top) if NAME.fullmatch(name)][:MOST_FILES]:
            text, written = regular_file(top, name, most=min(LARGEST, left))
            left -= len(text)
            one = _steps(text, written)
            if one is not None:
                found.append(one)
    finally:
        os.close(top)
    return tuple(sorted(found, key=lambda one: one.at))


def _steps(text: bytes, written: float) -> SeenSteps | None:
    try:
        document = json.loads(text) if is_shallow(text) else None
        at = datetime.fromtimestamp(written, UTC)
    except (ValueError, RecursionError, OverflowError, OSError):
        return None  # no JSON, or a file that bears an impossible time
    if not isinstance(document, dict):
        return None
    ranks, told = document.get("ranks"), document.get("seconds")
    if not isinstance(ranks, int) or isinstance(ranks, bool) or not 1 <= ranks <= MOST_RANKS or not isinstance(told, dict):
        return None
    seconds = {int(rank): value for rank, one in told.items() if re.fullmatch("[0-9]{1,5}", rank) and (value := _positive(one)) is not None}
    flops, precision = _positive(document.get("flops")), document.get("precision", "bf16")
    if flops is not None and (flops > MOST_FLOPS or not isinstance(precision, str) or not re.fullmatch("[a-z0-9]{1,8}", precision)):
        flops = None
    return SeenSteps(
        at=at.replace(microsecond=at.microsecond // 1000 * 1000),
        ranks=ranks,
        seconds=tuple(sorted((rank, value) for rank, value in seconds.items() if rank < ranks)),
        flops=flops,
        precision=precision if flops is not None else "bf16",
    )


def _positive(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and number > 0 else None
