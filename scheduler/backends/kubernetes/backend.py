"""The Kubernetes back-end: runs are pods of a Kubernetes cluster, one for each worker.

The pods of a gang wait behind a gate until all are there, so that whoever is killed in between leaves nothing that runs. Their names follow from the
run, so that being told twice makes nothing twice. Pods without this console's label are not touched.
"""

from scheduler.backends.base import Facts
from scheduler.backends.kubernetes.logs import Logs

FACTS = Facts(
    pins_gpus=False,
    resizes_in_place=False,
    resizes_stated=True,
    creates_mig=False,
    runs_mps=False,
    runs_timeslices=False,
    latency_ms=2500,
)


class KubernetesBackend(Logs):
    """Runs as pods of one Kubernetes cluster."""

    @property
    def facts(self) -> Facts:
        return FACTS
