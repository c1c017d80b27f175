"""Runs on one machine: what the tests of the local back-end share."""

import json
import os
import signal
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from scheduler.backends.base import NotFound, RunState, SeenRun, StartOrder, WorkerSeat
from scheduler.backends.local import LocalBackend
from scheduler.backends.local_accounts import Rules
from scheduler.backends.supervising import processes
from tests.scheduler.backends.scenes import open_folder, start_order
from tests.servers import wait_until

PYTHON = sys.executable


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    until = time.monotonic() + 5
    # One that is just begun anew has written down no process yet: its supervisor is gone once all of them are.
    while _still_kept(tmp_path) and time.monotonic() < until:
        time.sleep(0.05)


def _still_kept(place: Path) -> bool:
    """Kill what workers run; whether a supervisor is still there."""
    supervised = False
    for path in place.glob("runs/*/*/state.json"):
        state = json.loads(path.read_text())
        for process in state["processes"]:
            if processes.started_ticks(process["pid"]) == process["ticks"]:
                with suppress(ProcessLookupError):
                    os.killpg(process["pid"], signal.SIGKILL)
        keeper = state.get("supervisor")
        supervised |= bool(keeper) and processes.started_ticks(keeper["pid"]) == keeper["ticks"]
    return supervised


@pytest.fixture
def shared() -> Iterator[Path]:
    with open_folder() as place:
        yield place


@pytest.fixture
def backend(folder: Path) -> LocalBackend:
    return LocalBackend(folder, Rules(same_user=True, secrets=lambda name, _team: {"wandb": "s3cr3t-value"}.get(name)))


def script(body: str) -> list[str]:
    return [PYTHON, "-u", "-c", textwrap.dedent(body)]


def order(body: str = "", *, key: str = "j-1.1", workers: int = 1, gpus: int = 1, launch: dict[str, Any] | None = None, **fields: Any) -> StartOrder:
    seats = tuple(
        WorkerSeat("worker", index, "here", tuple(range(gpus)), tuple(f"GPU-{index}-{gpu}" for gpu in range(gpus))) for index in range(workers)
    )
    start = {"command": script(body)} if body else {}
    return replace(start_order(key), workers=seats, launch=start | (launch or {}), **fields)


def look(backend: LocalBackend, key: str = "j-1.1", *, at: datetime | None = None) -> SeenRun:
    return next(run for run in backend.observe(now=at or now()) if run.key == key)


def ended(backend: LocalBackend, key: str = "j-1.1") -> SeenRun:
    wait_until(lambda: look(backend, key).state == RunState.ENDED, seconds=20, what=f"{key} has ended")
    return look(backend, key)


def log(backend: LocalBackend, index: int = 0, key: str = "j-1.1") -> str:
    return backend.logs(key=key, role="worker", index=index, offset=0, limit=1 << 20).text


def running(backend: LocalBackend, words: str, key: str = "j-1.1", *, index: int = 0) -> None:
    """Wait until one has said something."""

    def said() -> bool:
        try:
            return words in log(backend, index, key)
        except NotFound:
            return False

    wait_until(said, seconds=20, what=f"{key} says {words}")
