"""What goes wrong between gpufleet and Slurm."""

from collections.abc import Sequence

from scheduler.backends.base import BackendError, BackendSilent


class SlurmSilent(BackendSilent):
    """The controller did not answer in time."""


class SlurmFailed(BackendError):
    """One of Slurm's commands said no. `lines`: what it printed, one of each job that it is about."""

    def __init__(self, words: str, lines: Sequence[str]) -> None:
        super().__init__(words)
        self.lines = lines


class SlurmDenied(BackendError):
    """Slurm does not know who asks: no credentials could be made, or it does not accept them."""
