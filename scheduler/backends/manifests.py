"""Checkpoints as ranks leave them in `GPUFLEET_CHECKPOINT_DIR`: a folder a step, `step-<number>`, with manifests beside the shards.

A manifest is a JSON file that is written last, by renaming it into place. Either each rank writes one for its shard, or one rank writes one for all:

    {"shards": 2, "files": [{"shard": 0, "file": "shard-0.bin", "bytes": 1048576}]}

A shard is there when a manifest names it, and its file has the size that the manifest says.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

STEP = re.compile(r"step-(\d{1,18})")
NEWEST = 3  # an older step was looked at when it was new
LARGEST_MANIFEST = 4 * 1024 * 1024
MOST_SHARDS = 100_000


@dataclass(frozen=True, slots=True)
class Found:
    step: int
    location: str
    shards_expected: int
    shards: tuple[int, ...]
    at: datetime  # when its newest manifest was written


def checkpoints_in(folder: Path) -> list[Found]:
    """The newest steps, from old to new. What cannot be read or makes no sense is not there: who wrote it is still writing, or has to look again."""
    try:
        steps = sorted((int(match[1]), path) for path in folder.iterdir() if (match := STEP.fullmatch(path.name)) and path.is_dir())
    except OSError:
        return []
    return [found for step, path in steps[-NEWEST:] if (found := _checkpoint(step, path)) is not None]


def _checkpoint(step: int, folder: Path) -> Found | None:
    expected, present, newest = 0, set(), 0.0
    for document, written in _manifests(folder):
        shards = document.get("shards")
        if not isinstance(shards, int) or not 1 <= shards <= MOST_SHARDS or expected not in (0, shards):
            return None  # two manifests contradict each other
        expected, newest = shards, max(newest, written)
        files = document.get("files")
        present |= {one["shard"] for one in files if _is_there(folder, one, shards)} if isinstance(files, list) else set()
    if not expected:
        return None
    at = datetime.fromtimestamp(newest, UTC)
    return Found(step, str(folder), expected, tuple(sorted(present)), at.replace(microsecond=at.microsecond // 1000 * 1000))


def _manifests(folder: Path) -> Iterator[tuple[dict[str, Any], float]]:
    try:
        paths = sorted(folder.glob("*.json"))
    except OSError:
        return
    for path in paths:
        try:
            look = path.stat()
            if look.st_size > LARGEST_MANIFEST:
                continue
            document = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if isinstance(document, dict):
            yield document, look.st_mtime


def _is_there(folder: Path, one: Any, shards: int) -> bool:
    if not isinstance(one, dict) or not isinstance(one.get("shard"), int) or not 0 <= one["shard"] < shards:
        return False
    name = one.get("file")
    if not isinstance(name, str) or name != Path(name).name:
        return False  # beside its manifest, and nowhere else
    try:
        return (folder / name).is_file() and (folder / name).stat().st_size == one.get("bytes")
    except OSError:
        return False
