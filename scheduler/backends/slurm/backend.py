"""The Slurm back-end: runs are jobs of a Slurm cluster, one for each group of nodes that hold the same (`script.Part`).

A submission is held until its number is written down, and found again by its comment when the answer was lost, so that nothing is started twice:
what is not written down is never released. Slurm never requeues a job by itself. Jobs without this console's tag are not touched.
"""

from scheduler.backends.base import Facts
from scheduler.backends.slurm.logs import Logs
from scheduler.backends.slurm.looking import Looking
from scheduler.backends.slurm.orders import Orders

FACTS = Facts(
    pins_gpus=False,
    resizes_in_place=False,
    resizes_stated=True,
    creates_mig=False,
    runs_images=False,
    latency_ms=1500,
)


class SlurmBackend(Orders, Looking, Logs):
    """Runs as jobs of one Slurm cluster."""

    @property
    def facts(self) -> Facts:
        return FACTS
