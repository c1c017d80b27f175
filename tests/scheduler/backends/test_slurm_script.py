"""What Slurm is asked for, as far as no Slurm is needed to see it."""

import pytest
import yaml

from scheduler.backends.base import StartOrder, WorkerSeat
from scheduler.backends.slurm.client import SlurmNode
from scheduler.backends.slurm.script import parts_of
from scheduler.hardware.slurm import KnownType, document_of


@pytest.mark.parametrize(("cpus", "asked"), [(7.5, 56), (8, 64), (0.5, 8), (None, 8)])
def test_workers_get_no_more_processors_than_they_were_placed_on(cpus: float | None, asked: int) -> None:
    """Eight workers of 7.5 were placed on 60; 64 would never start. Each has one at least, as Slurm starts no task without."""
    seats = tuple(WorkerSeat("worker", number, "gpu001", (number,)) for number in range(8))
    spec = {"roles": [{"name": "worker", "min": 8, "gpus": 1} | ({"cpus": cpus} if cpus else {})]}

    (part,) = parts_of(StartOrder("k", 1, "j-1", 1, seats, {"shell": "true"}, spec, ""))

    assert (part.cpus, part.nodes, len(part.seats)) == (asked, ("gpu001",), 8)


def test_an_import_takes_back_labels_that_slurm_no_longer_gives_and_leaves_those_of_others() -> None:
    """Also the last one: a job that shares by MPS would be placed where Slurm has no more gres/mps, and fail."""
    nodes = [SlurmNode(name, "", ("IDLE",), "", 8, 1024, "gpu:h100:8", features) for name, features in (("gpu001", ()), ("gpu002", ("fast",)))]
    labels = {"gpu001": {"slurm/mps": "true", "rack": "a1"}, "gpu002": {"slow": "true"}}

    text = document_of(nodes, "", cluster="hpc", types={"h100": KnownType("H100")}, new_cluster=False, labels=labels)

    assert [node["labels"] for node in yaml.safe_load(text)["nodes"]] == [{"rack": "a1"}, {"fast": "true"}]
