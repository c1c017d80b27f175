"""Kubernetes itself: etcd, its API server and its scheduler, from the folder that TEST_KUBERNETES_BIN names. There are two accounts: `console`, which
has the role of the manual, and `admin`, which may do anything."""

import os
import re
import shutil
import ssl
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import yaml

from scheduler.backends.base import BackendError
from scheduler.backends.kubernetes.client import KubernetesClient
from scheduler.backends.kubernetes.config import Account, Endpoint
from tests.servers import PROJECT, free_port, wait_until

NEEDED = ("etcd", "kube-apiserver", "kube-scheduler")
CONSOLE, ADMIN = "console-token", "admin-token"


def folder() -> Path | None:
    """Where the programs are; None: they are not named."""
    named = os.environ.get("TEST_KUBERNETES_BIN", "")
    return Path(named) if named else None


class Kubernetes:
    def __init__(self, bin_folder: Path) -> None:
        self.bin = bin_folder
        self.dir = Path(tempfile.mkdtemp(prefix="gpufleet-kubernetes-"))
        self.running: list[subprocess.Popen[bytes]] = []
        self.etcd, self.port = f"http://127.0.0.1:{free_port()}", free_port()
        peers = f"http://127.0.0.1:{free_port()}"
        (self.dir / "tokens.csv").write_text(f'{ADMIN},admin,1,"system:masters"\n{CONSOLE},console,2\n')
        key = self.dir / "accounts.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        self.run("etcd", str(self.dir / "etcd"), self.etcd, peers)
        self.serve()
        self.admin = self.client(ADMIN)
        wait_until(self.is_ready, seconds=90, what="kube-apiserver to be ready")
        kubeconfig = self.dir / "admin.kubeconfig"
        kubeconfig.write_text(self.kubeconfig(ADMIN))
        self.run("kube-scheduler", f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--secure-port=0")
        self.namespace("gpufleet")
        self.grant()

    def serve(self) -> None:
        self.server = self.run(
            "kube-apiserver",
            f"--etcd-servers={self.etcd}",
            f"--secure-port={self.port}",
            "--bind-address=127.0.0.1",
            "--external-hostname=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--cert-dir={self.dir}",
            f"--token-auth-file={self.dir}/tokens.csv",
            "--authorization-mode=RBAC",
            f"--service-account-key-file={self.dir}/accounts.key",
            f"--service-account-signing-key-file={self.dir}/accounts.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.0.0.0/16",
            "--enable-priority-and-fairness=false",
        )

    def run(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.dir / f"{name}.log").open("ab") as log:
            started = subprocess.Popen([self.bin / name, *arguments], stdout=log, stderr=log, cwd=self.dir)
        self.running.append(started)
        return started

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def is_ready(self) -> bool:
        try:
            return self.admin.text("/readyz", {}) == b"ok"
        except BackendError:
            return False

    def client(self, token: str, **options: Any) -> KubernetesClient:
        wait_until((self.dir / "apiserver.crt").exists, seconds=60, what="the certificate of kube-apiserver")
        context = ssl.create_default_context(cafile=str(self.dir / "apiserver.crt"))
        return KubernetesClient(Endpoint(self.url, context, "", Account(token=token)), **options)

    def kubeconfig(self, token: str) -> str:
        return (
            "apiVersion: v1\nkind: Config\ncurrent-context: test\n"
            f"clusters: [{{name: test, cluster: {{server: '{self.url}', certificate-authority: apiserver.crt}}}}]\n"
            f"users: [{{name: test, user: {{token: {token}}}}}]\n"
            "contexts: [{name: test, context: {cluster: test, user: test, namespace: gpufleet}}]\n"
        )

    def namespace(self, name: str) -> None:
        self.admin.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        self.admin.create(f"/api/v1/namespaces/{name}/serviceaccounts", account)

    def grant(self) -> None:
        """The console's account the roles of the manual."""
        page = (PROJECT / "docs/operate/kubernetes.md").read_text()
        (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
        for one in yaml.safe_load_all(text):
            meta = one["metadata"]
            where = f"/namespaces/{meta['namespace']}" if "namespace" in meta else ""
            self.admin.create(f"/apis/{one['apiVersion']}{where}/{one['kind'].lower()}s", one)

    def stop(self) -> None:
        for process in reversed(self.running):
            process.kill()
            process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)
