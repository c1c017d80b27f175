"""Fixtures of the tests of back-ends."""

from tests.scheduler.backends.local_machine import backend, folder, shared  # noqa: F401
from tests.scheduler.backends.slurm_site import other_rest, rest, site, slurm  # noqa: F401
