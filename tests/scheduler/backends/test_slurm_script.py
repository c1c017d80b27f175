"""What Slurm is asked for, as far as no Slurm is needed to see it."""

import pytest

from scheduler.backends.base import StartOrder, WorkerSeat
from scheduler.backends.slurm.script import parts_of


@pytest.mark.parametrize(("cpus", "asked"), [(7.5, 56), (8, 64), (0.5, 8), (None, 8)])
def test_workers_get_no_more_processors_than_they_were_placed_on(cpus: float | None, asked: int) -> None:
    """Eight workers of 7.5 were placed on 60; 64 would never start. Each has one at least, as Slurm starts no task without."""
    seats = tuple(WorkerSeat("worker", number, "gpu001", (number,)) for number in range(8))
    spec = {"roles": [{"name": "worker", "min": 8, "gpus": 1} | ({"cpus": cpus} if cpus else {})]}

    (part,) = parts_of(StartOrder("k", 1, "j-1", 1, seats, {"shell": "true"}, spec, ""))

    assert (part.cpus, part.nodes, len(part.seats)) == (asked, ("gpu001",), 8)
