"""Fixtures of the tests of back-ends."""

from tests.scheduler.backends.kubernetes_site import k8s, k8s_api, offered  # noqa: F401
from tests.scheduler.backends.local_machine import backend, folder, shared  # noqa: F401
from tests.scheduler.backends.slurm_site import other_rest, rest, site, slurm  # noqa: F401
