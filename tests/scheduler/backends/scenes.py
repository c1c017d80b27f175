"""Orders for back-ends with defaults, so that what a test mentions is what it is about."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scheduler.backends.base import StartOrder, WorkerSeat
from tests.builders import NOON


def at(seconds: float) -> Any:
    return NOON + timedelta(seconds=seconds)


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that other users can enter. Not below that of pytest, which each session closes to them anew."""
    with TemporaryDirectory(prefix="gpufleet-") as name:
        place = Path(name)
        place.chmod(0o711)
        yield place


def seat(index: int = 0, node: str = "n1", *, gpus: tuple[int, ...] = (0,), role: str = "worker") -> WorkerSeat:
    return WorkerSeat(role, index, node, gpus)


def start_order(key: str = "j-1.1", *, sequence: int = 1, workers: int = 2, **fields: Any) -> StartOrder:
    job, _, number = key.rpartition(".")
    defaults: dict[str, Any] = {
        "key": key,
        "sequence": sequence,
        "job": job,
        "attempt": int(number),
        "workers": tuple(seat(index, f"n{index}") for index in range(workers)),
        "launch": {"simulated": {"load_s": 5}},
        "spec": {"roles": [{"min": workers, "gpus": 1}], "work_s": 100, "checkpoint": {"interval_s": 10, "save_s": 2, "restore_s": 3}},
        "token": "t",
    }
    return StartOrder(**(defaults | fields))
