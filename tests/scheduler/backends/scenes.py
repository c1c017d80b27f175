"""Orders for back-ends with defaults, so that what a test mentions is what it is about."""

from datetime import timedelta
from typing import Any

from scheduler.backends.base import StartOrder, WorkerSeat
from tests.builders import NOON


def at(seconds: float) -> Any:
    return NOON + timedelta(seconds=seconds)


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
