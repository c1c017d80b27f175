"""Secrets that operators keep for jobs. Each belongs to a node of the quota tree, and only jobs at or below that node may name it.

In `GPUFLEET_SECRETS_DIR` a folder stands for a node: `lab/vision/hub` is the secret `hub` of lab/vision and of all queues below it. A file at the top
belongs to nobody, unless it lies in the folder of a node: the folder of the top node is for everybody. `GPUFLEET_SECRETS_ENV` names variables of the
console's own environment, each with its node: `lab/vision:HUB`.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from django.conf import settings

SECRET = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
NODE = re.compile(r"[a-z0-9_-]{1,60}(/[a-z0-9_-]{1,60})*")


def secrets_kept() -> bool:
    """Whether this console keeps secrets at all; where it does not, nothing is known of those that another one keeps."""
    chosen = settings.LOCAL
    return bool(chosen["SECRETS_DIR"] or chosen["SECRETS_ENV"])


def secret_exists(name: str, *, team: str) -> bool:
    return _place(name, team) is not None


def secret_value(name: str, *, team: str) -> str | None:
    """The value for a job of a queue: the one of the nearest node where there are several. None: it may not have one of that name."""
    place = _place(name, team)
    if isinstance(place, Path):
        return place.read_text().rstrip("\n")
    return os.environ.get(place) if place is not None else None


def _place(name: str, team: str) -> Path | str | None:
    if not SECRET.fullmatch(name) or not NODE.fullmatch(team):
        return None
    chosen = settings.LOCAL
    for node in _upwards(team):
        # A folder `hub` below a node is a node itself, never a secret.
        if chosen["SECRETS_DIR"] and (path := Path(chosen["SECRETS_DIR"]) / node / name).is_file():
            return path
        if f"{node}:{name}" in chosen["SECRETS_ENV"] and name in os.environ:
            return name
    return None


def _upwards(team: str) -> Iterator[str]:
    while team:
        yield team
        team = team.rpartition("/")[0]
