"""A Kubernetes of four nodes with a back-end on it. Each test runs against the double of the API server, and against the real one where its programs
are there (TEST_KUBERNETES_BIN)."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from gpufleet.core.times import now
from scheduler.backends.base import RunState, SeenRun, WorkerSeat
from scheduler.backends.kubernetes.backend import KubernetesBackend
from scheduler.backends.kubernetes.client import KubernetesClient
from scheduler.backends.kubernetes.config import Account, Endpoint
from scheduler.backends.kubernetes.pods import pod_name
from scheduler.backends.kubernetes.values import Settings
from tests import builders
from tests.kubernetes.double import Double
from tests.kubernetes.nodes import Nodes
from tests.kubernetes.real import CONSOLE, Kubernetes, folder
from tests.scheduler.backends.scenes import start_order
from tests.servers import wait_until

NODES = ("gpu001", "gpu002", "gpu003", "gpu004")
REGION, ZONE, RACK, CLIQUE = LABELS = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone", "example.org/rack", "nvidia.com/gpu.clique")


class Api:
    """An API server with four nodes: `client` is the console's, `admin` may do anything. `double` is None of the real one."""

    def __init__(self, double: Double | None, real: Kubernetes | None) -> None:
        self.double, self.real = double, real
        if double is not None:
            self.client = KubernetesClient(Endpoint(double.url, None, "", Account()))
            self.admin = KubernetesClient(Endpoint(double.url, None, "", Account()))
        elif real is not None:
            self.client, self.admin = real.client(CONSOLE), real.admin
        self.nodes = Nodes(self.admin, NODES)
        if double is not None:
            double.logs = self.nodes.log

    def kubeconfig(self) -> str:
        if self.real is not None:
            return self.real.kubeconfig(CONSOLE)
        assert self.double is not None
        return (
            "apiVersion: v1\nkind: Config\ncurrent-context: test\n"
            f"clusters: [{{name: test, cluster: {{server: '{self.double.url}'}}}}]\n"
            "users: [{name: test, user: {}}]\n"
            "contexts: [{name: test, context: {cluster: test, user: test, namespace: gpufleet}}]\n"
        )

    def kubeconfig_in(self, folder: Path) -> str:
        """The path of a kubeconfig with the context `test`."""
        place = folder / "kubeconfig"
        if self.real is not None:
            (folder / "apiserver.crt").write_bytes((self.real.dir / "apiserver.crt").read_bytes())
        place.write_text(self.kubeconfig())
        return str(place)

    def volume(self, claim: str, folder: Path) -> None:
        """A claim that is bound, whose files lie in that folder."""
        self.nodes.volumes[claim] = folder
        spec = {"accessModes": ["ReadWriteMany"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}, "volumeName": claim}
        meta = {"name": claim, "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
        body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec}
        made = self.admin.create("/api/v1/namespaces/gpufleet/persistentvolumeclaims", body)
        if self.real is not None:
            whose = {"kind": "PersistentVolumeClaim", "namespace": "gpufleet", "name": claim, "uid": made["metadata"]["uid"]}
            spec = {"accessModes": ["ReadWriteMany"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": str(folder)}, "claimRef": whose}
            volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": claim}, "spec": {**spec, "storageClassName": ""}}
            self.admin.create("/api/v1/persistentvolumes", volume)
            self.admin.patch(f"/api/v1/persistentvolumes/{claim}/status", {"status": {"phase": "Bound"}})
        self.admin.patch(f"/api/v1/namespaces/gpufleet/persistentvolumeclaims/{claim}/status", {"status": {"phase": "Bound"}})

    def pods(self) -> list[dict[str, Any]]:
        return self.admin.every("/api/v1/namespaces/gpufleet/pods")[0]

    def label(self, label: str, **values: str | None) -> None:
        """Give nodes a label, or take it away."""
        for name, value in values.items():
            self.admin.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {label: value}}})

    def clear(self) -> None:
        for pod in self.pods():
            self.admin.delete(f"/api/v1/namespaces/gpufleet/pods/{pod['metadata']['name']}", grace=0)

    def stop(self) -> None:
        self.nodes.stop()
        if self.double is not None:
            self.double.stop()
        if self.real is not None:
            self.real.stop()


@pytest.fixture(scope="module", params=["double", "real"])
def k8s_api(request: pytest.FixtureRequest) -> Iterator[Api]:
    if request.param == "double":
        there = Api(Double(), None)
    else:
        named = folder()
        if named is None:
            pytest.skip("TEST_KUBERNETES_BIN names no folder with Kubernetes' own programs.")
        there = Api(None, Kubernetes(named))
    yield there
    there.stop()


class Site:
    def __init__(self, api: Api, **settings: Any) -> None:
        self.api = api
        self.cluster = builders.cluster("k8s", backend="kubernetes")
        self.settings = replace(Settings(context="test", namespace="gpufleet", image="registry/any:1", tag=os.urandom(4).hex()), **settings)
        self.folder = tempfile.TemporaryDirectory(prefix="gpufleet-")
        self.restart()

    def restart(self) -> None:
        """A console that remembers nothing but its database."""
        self.backend = KubernetesBackend(self.cluster.pk, self.settings, client=self.api.client, logs=Path(self.folder.name, "logs"))

    def start(self, key: str = "j-1.1", *, on: Sequence[WorkerSeat], **fields: Any) -> None:
        job, _, attempt = key.rpartition(".")
        order = replace(start_order(key), **{"job": job, "attempt": int(attempt), "grace_seconds": 5, "workers": tuple(on), **fields})
        self.backend.start(order, now=now())

    def seen(self, key: str = "j-1.1", later: timedelta = timedelta()) -> SeenRun:
        return next(run for run in self.backend.observe(now=now() + later) if run.key == key)

    def until(self, state: RunState, key: str = "j-1.1", seconds: float = 30) -> SeenRun:
        def there() -> SeenRun | None:
            return next((run for run in self.backend.news(now=now()) if run.key == key and run.state == state), None)

        return wait_until(there, seconds=seconds, what=f"{key} to be {state}: {self.mine()}")

    def pod(self, index: int = 0, key: str = "j-1.1") -> str:
        return pod_name(self.settings.tag, key, ("worker", index))

    def log(self, index: int = 0, key: str = "j-1.1") -> str:
        return self.backend.logs(key=key, role="worker", index=index, offset=0, limit=1 << 16).text

    def mine(self) -> list[str]:
        told = [(pod["metadata"], pod.get("status", {})) for pod in self.api.pods()]
        return [f"{meta['name']} {status.get('phase')} {status.get('reason', '')}" for meta, status in told if self.settings.tag in meta["name"]]


@pytest.fixture
def offered(k8s_api: Api, settings: Any, tmp_path: Path) -> Iterator[Api]:
    """The machine offers one context, and the fixture takes back what tests leave in Kubernetes."""
    settings.KUBECONFIG = k8s_api.kubeconfig_in(tmp_path)
    settings.DATA_DIR = tmp_path
    yield k8s_api
    for name in NODES:
        product = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
        labels = product | dict.fromkeys(LABELS)
        k8s_api.admin.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": labels}, "spec": {"unschedulable": None}})
    k8s_api.clear()


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("inventory", *arguments, stdout=out)
    return out.getvalue()


def connect(*more: str) -> str:
    return run("connect-kubernetes", "--cluster", "k8s", "--namespace", "gpufleet", "--image", "registry/any:1", *more)


@pytest.fixture
def k8s(k8s_api: Api, db: None) -> Iterator[Site]:
    there = Site(k8s_api)
    yield there
    there.backend.pods.stop()
    k8s_api.clear()
    k8s_api.nodes.dead.clear()
    k8s_api.nodes.refusing.clear()


def seat(index: int, node: str, gpus: int = 1) -> WorkerSeat:
    return WorkerSeat("worker", index, node, tuple(range(gpus)))


def shell(text: str, **more: Any) -> dict[str, Any]:
    return {"shell": text, **more}
