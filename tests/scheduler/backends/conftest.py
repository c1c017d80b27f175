"""Fixtures of the tests of back-ends."""

from tests.scheduler.backends.slurm_site import rest, site, slurm  # noqa: F401
