"""A run as it is kept between two looks."""

from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from scheduler.backends.base import StartOrder, WorkerSeat
from scheduler.backends.kubernetes.pods import pod_name, ranks_in_order, saves


@dataclass(slots=True)
class Run:
    """What is kept of a run between two looks."""

    key: str
    sequence: int
    at: str
    workers: list[dict[str, Any]] = field(default_factory=list)  # where each sits, its pod, and how that ended
    grace: int = 30
    saves: bool = False
    probed: bool = False  # Kubernetes asks its workers whether they can serve
    secrets: list[str] = field(default_factory=list)  # names of those that it was given, and for which queue
    team: str = ""
    released: str = ""  # since when all its pods are there and may start
    checkpoints: str = ""  # folder, as the console sees it
    stopping: str = ""
    killed: bool = False
    by_itself: bool = False  # it lost a member: what is left of it is ended
    withdrawn: str = ""  # why a worker that never began was not waited for any more
    withdrawn_lost: bool = False  # and whether Kubernetes is to blame for that

    @property
    def never_begun(self) -> bool:
        return not self.workers

    @property
    def is_ending(self) -> bool:
        return bool(self.stopping) or self.killed

    def worker(self, pod: str) -> dict[str, Any] | None:
        return next((one for one in self.workers if one["pod"] == pod), None)


KEPT = frozenset(one.name for one in fields(Run)) - {"key", "sequence"}


def run_of(order: StartOrder, tag: str, *, now: datetime, checkpoints: str) -> Run:
    run = Run(order.key, order.sequence, now.isoformat(), grace=order.grace_seconds, saves=saves(order), checkpoints=checkpoints)
    run.probed = bool(order.launch.get("ready"))
    run.secrets, run.team = sorted({str(name) for name in (order.launch.get("secrets") or {}).values()}), order.team
    run.workers = [
        {
            "role": seat.role,
            "index": seat.index,
            "node": seat.node,
            "gpus": list(seat.gpus),
            "gpu_milli": seat.gpu_milli,
            "mig": list(seat.mig),
            "pod": pod_name(tag, order.key, (seat.role, seat.index)),
        }
        for seat in ranks_in_order(order)
    ]
    return run


def state_of(run: Run) -> dict[str, Any]:
    return {name: getattr(run, name) for name in sorted(KEPT)}


def seat_of(worker: dict[str, Any]) -> WorkerSeat:
    return WorkerSeat(
        worker["role"],
        worker["index"],
        worker["node"],
        tuple(worker["gpus"]),
        gpu_milli=worker["gpu_milli"],
        mig=tuple(worker["mig"]),
    )
