"""A run as it is kept between two looks."""

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from scheduler.backends.base import StartOrder, WorkerSeat
from scheduler.backends.kubernetes.outcomes import End
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
    in_place: bool = False  # it is resized in place, and goes on without a worker that was lost
    reformed: str = ""  # when one was last replaced or asked to leave
    earlier: list[dict[str, Any]] = field(default_factory=list)  # of workers that have left it, or were replaced: role, index and pod
    joined: list[int] = field(default_factory=list)  # numbers of the orders by which workers joined: each has a Secret of its own
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

    @property
    def is_changing(self) -> bool:
        """Whether something of it is about to end."""
        return self.is_ending or any(one.get("leaving") or one.get("again") for one in self.workers)

    def worker(self, pod: str) -> dict[str, Any] | None:
        return next((one for one in self.workers if one["pod"] == pod), None)

    def named(self, role: str, index: int) -> dict[str, Any] | None:
        return next((one for one in self.workers if (one["role"], one["index"]) == (role, index)), None)

    def pods_of(self, role: str, index: int) -> list[str]:
        """All that stood in a place, the newest last."""
        return [one["pod"] for one in (*self.earlier, *self.workers) if (one["role"], one["index"]) == (role, index)]

    def without(self, worker: dict[str, Any]) -> None:
        """One that has left, or in whose place another begins."""
        self.workers.remove(worker)
        self.leaves_pod(worker)

    def joins_by(self, number: int, pods: Iterable[str]) -> None:
        """These workers get the Secret of that order."""
        self.joined = sorted({*self.joined, number})
        for worker in self.workers:
            if worker["pod"] in pods:
                worker["joined"] = number

    def has_joined(self, pods: Iterable[str], now: datetime, end: End | None) -> None:
        """The pods of these workers are made; or they never will be, and the workers are lost."""
        for worker in self.workers:
            if worker["pod"] in pods and worker.pop("joining", None):
                worker["at"] = now.isoformat()
                worker.update({} if end is None else {"end": end.document()})

    def uses(self, number: int) -> bool:
        return any(worker.get("joined") == number for worker in self.workers)

    def forget_earlier(self, pods: Container[str], numbers: Container[int]) -> None:
        self.earlier = [one for one in self.earlier if one["pod"] not in pods]
        self.joined = [number for number in self.joined if number not in numbers or self.uses(number)]

    def leaves_pod(self, worker: dict[str, Any]) -> None:
        self.earlier.append({name: worker[name] for name in ("role", "index", "pod")})


KEPT = frozenset(one.name for one in fields(Run)) - {"key", "sequence"}


def run_of(order: StartOrder, tag: str, *, now: datetime, checkpoints: str) -> Run:
    run = Run(order.key, order.sequence, now.isoformat(), grace=order.grace_seconds, saves=saves(order), checkpoints=checkpoints)
    run.probed, run.in_place = bool(order.launch.get("ready")), bool(order.launch.get("in_place"))
    run.secrets, run.team = sorted({str(name) for name in (order.launch.get("secrets") or {}).values()}), order.team
    run.workers = [worker_of(seat, pod_name(tag, order.key, (seat.role, seat.index))) for seat in ranks_in_order(order)]
    return run


def worker_of(seat: WorkerSeat, pod: str) -> dict[str, Any]:
    """A worker as its run keeps it. What else is kept of it:

    `end`: how it ended. `at`: when it joined a run that went on, by which order (`joined`), and `joining` until its pod is made. `leaving`: when it
    was asked to leave. `again`: the order by which it is to begin anew in its place, and `again_at`; `began`: by which it has, and then `on_trial`,
    and `was_ready` once it could serve. `lost`: how often before somebody was lost in its place. `given_up`: nobody begins in its place.
    """
    return {
        "role": seat.role,
        "index": seat.index,
        "node": seat.node,
        "gpus": list(seat.gpus),
        "gpu_milli": seat.gpu_milli,
        "mig": list(seat.mig),
        "pod": pod,
    }


def with_end(pod: str, end: End) -> Callable[[Run], None]:
    """A change of a run: how one of its workers ended."""
    return with_facts(pod, end=end.document())


def with_facts(pod: str, **facts: Any) -> Callable[[Run], None]:
    def change(run: Run) -> None:
        worker = run.worker(pod)
        if worker is not None:
            worker.update(facts)

    return change


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
