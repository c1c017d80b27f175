"""Nodes for tests: a kubelet that runs the programs of pods as processes of this machine, without containers, and tells Kubernetes how they do.

It honours what the back-end relies on: the grace of a deletion, a deadline, `preStop`, exit codes, and logs with times. Of an image it only sees
whether its name begins with `missing`.
"""

import base64
import os
import signal
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.parse import parse_qs, urlsplit

from scheduler.backends.base import BackendError
from scheduler.backends.kubernetes.client import KubernetesClient
from tests.kubernetes.double import stamp

TURN = 0.05


class Process:
    """The program of one pod."""

    def __init__(self, pod: dict[str, Any], env: dict[str, str], folder: Path) -> None:
        self.container = pod["spec"]["containers"][0]
        self.folder = folder
        self.lines: list[tuple[str, bytes]] = []
        self.started = stamp()
        self.leaving: float | None = None  # until when it may
        self.why = ""
        self.popen = subprocess.Popen(
            [dollars(word) for word in self.container["command"]],
            env={"PATH": os.environ["PATH"], **env},
            cwd=self.container.get("workingDir") or folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.env = env
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self.lines.append((datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") + "000Z", line))

    @property
    def code(self) -> int | None:
        code = self.popen.poll()
        return None if code is None else 128 - code if code < 0 else code

    def ask_to_leave(self, grace: float) -> None:
        if self.leaving is None:
            threading.Thread(target=self._leave, args=(grace,), daemon=True).start()
            self.leaving = monotonic() + grace
        self.leaving = min(self.leaving, monotonic() + grace)

    def _leave(self, grace: float) -> None:
        hook = self.container.get("lifecycle", {}).get("preStop")
        if hook:
            # In a pod its program has the number 1.
            command = [word.replace("gf_tell 1;", f"gf_tell {self.popen.pid};") for word in hook["exec"]["command"]]
            before = subprocess.Popen(command, env={"PATH": os.environ["PATH"], **self.env}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            until = monotonic() + grace
            while before.poll() is None and self.code is None and monotonic() < until:
                sleep(TURN)
            before.kill()
            before.wait()
        self.send(signal.SIGTERM, alone=True)

    def send(self, number: int, *, alone: bool = False) -> None:
        with suppress(ProcessLookupError):
            (os.kill if alone else os.killpg)(self.popen.pid, number)

    def is_ready(self) -> bool:
        probe = self.container.get("readinessProbe")
        if probe is None:
            return True
        command = probe["exec"]["command"]
        return subprocess.run(command, env={"PATH": os.environ["PATH"], **self.env}, cwd=self.folder, capture_output=True).returncode == 0


class Nodes:
    """Nodes of a cluster, and who runs pods on them. `dead`: those that do not answer any more."""

    def __init__(self, client: KubernetesClient, names: Sequence[str], *, gpus: int = 8, cpus: int = 16, **labels: str) -> None:
        self.client, self.names, self.gpus = client, list(names), gpus
        self.dead: set[str] = set()
        self.refusing: dict[str, str] = {}  # nodes whose kubelet admits no pod, and its reason
        self.processes: dict[str, Process] = {}  # by uid
        self.volumes: dict[str, Path] = {}  # folders by claim
        self._folder = tempfile.TemporaryDirectory(prefix="gpufleet-nodes-")
        self._over = threading.Event()
        self._server = self._served()
        port = self._server.server_address[1]
        for name in names:
            amounts = {"cpu": str(cpus), "memory": "256Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
            told = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": str(gpus), "nvidia.com/gpu.memory": "81559", **labels}
            meta = {"name": name, "labels": told}
            client.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {}})
            status = {
                "capacity": amounts,
                "allocatable": amounts,
                "conditions": [
                    {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": stamp(), "lastHeartbeatTime": stamp()}
                ],
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
                "nodeInfo": {"kubeletVersion": "v1.36.2"},
            }
            client.patch(f"/api/v1/nodes/{name}/status", {"status": status})
            taints = client.get(f"/api/v1/nodes/{name}").get("spec", {}).get("taints") or []
            kept = [one for one in taints if not one["key"].startswith("node.kubernetes.io/not-ready")]
            if kept != taints:
                client.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": kept}})
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(5)
        for process in self.processes.values():
            process.send(signal.SIGKILL)
        self._server.shutdown()
        self._server.server_close()
        self._folder.cleanup()

    def process_of(self, pod: str) -> Process:
        uid = self.client.get(f"/api/v1/namespaces/gpufleet/pods/{pod}")["metadata"]["uid"]
        return self.processes[uid]

    def log(self, pod: str, query: dict[str, list[str]]) -> bytes | None:
        """What Kubernetes says of a pod's log; None: its container has not started."""
        uid = next((one["metadata"]["uid"] for one in self._pods() if one["metadata"]["name"] == pod), "")
        process = self.processes.get(uid)
        if process is None:
            return None
        since = query.get("sinceTime", [""])[0]
        lines = [(at, line) for at, line in list(process.lines) if at[:19] >= since[:19]]
        stamped = query.get("timestamps") == ["true"]
        text = b"".join((f"{at} ".encode() if stamped else b"") + line for at, line in lines)
        return text[: int(query.get("limitBytes", ["1000000000"])[0])]

    def _pods(self) -> list[dict[str, Any]]:
        return [pod for pod in self.client.every("/api/v1/pods")[0] if pod["spec"].get("nodeName") in self.names]

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                pods = self._pods()
            except BackendError:
                sleep(0.2)
                continue
            for pod in pods:
                if pod["spec"]["nodeName"] not in self.dead:
                    try:
                        self._see_to(pod)
                    except BackendError:
                        continue
            for uid in self.processes.keys() - {pod["metadata"]["uid"] for pod in pods}:
                self.processes[uid].send(signal.SIGKILL)
            sleep(TURN)

    def _see_to(self, pod: dict[str, Any]) -> None:
        meta, status = pod["metadata"], pod.get("status", {})
        process = self.processes.get(meta["uid"])
        if status.get("phase") in ("Succeeded", "Failed"):
            if meta.get("deletionTimestamp"):
                self._remove(pod)
            return
        if process is None:
            if meta.get("deletionTimestamp"):
                self._remove(pod)
            elif fault := self.refusing.get(pod["spec"]["nodeName"]):
                self._tell(pod, {"phase": "Failed", "reason": fault, "message": "Allocate failed due to no healthy devices present"})
            elif pod["spec"]["containers"][0]["image"].startswith("missing"):
                waiting = {"reason": "ImagePullBackOff", "message": f"Back-off pulling image {pod['spec']['containers'][0]['image']}"}
                self._tell(pod, {"containerStatuses": [self._container(pod, {"waiting": waiting})]})
            else:
                self._begin(pod)
            return
        if (code := process.code) is not None:
            process.reader.join(1)
            self._end(pod, process, code)
            return
        grace = pod["spec"].get("terminationGracePeriodSeconds", 30)
        if meta.get("deletionTimestamp"):
            process.ask_to_leave(meta.get("deletionGracePeriodSeconds", grace))
        elif pod["spec"].get("activeDeadlineSeconds") is not None:
            process.why = "DeadlineExceeded"
            process.ask_to_leave(grace)
        if process.leaving is not None and monotonic() >= process.leaving:
            process.send(signal.SIGKILL)
        ready = "True" if process.is_ready() else "False"
        if not any(one["type"] == "Ready" and one["status"] == ready for one in status.get("conditions", ())):
            others = [one for one in status.get("conditions", ()) if one["type"] != "Ready"]
            self._tell(pod, {"conditions": [*others, {"type": "Ready", "status": ready, "lastTransitionTime": stamp()}]})

    def _begin(self, pod: dict[str, Any]) -> None:
        env = {}
        for one in pod["spec"]["containers"][0].get("env", ()):
            ref = one.get("valueFrom", {}).get("secretKeyRef")
            env[one["name"]] = dollars(one.get("value", "")) if ref is None else self._secret(pod, ref)
        folder = Path(self._folder.name, pod["metadata"]["uid"])
        folder.mkdir()
        claims = {one["name"]: one["persistentVolumeClaim"]["claimName"] for one in pod["spec"].get("volumes", ()) if "persistentVolumeClaim" in one}
        for mount in pod["spec"]["containers"][0].get("volumeMounts", ()):
            if mount["name"] in claims:  # a program of this machine sees the volume where the claim's folder is, and not where a container would
                place = f"{self.volumes[claims[mount['name']]]}/{mount.get('subPath', '')}"
                env = {name: value.replace(mount["mountPath"], place) if name.startswith("GPUFLEET_") else value for name, value in env.items()}
        try:
            process = Process(pod, env, folder)
        except OSError as fault:
            ended = {"exitCode": 128, "reason": "StartError", "message": str(fault), "startedAt": "1970-01-01T00:00:00Z", "finishedAt": stamp()}
            self._tell(pod, {"phase": "Failed", "containerStatuses": [self._container(pod, {"terminated": ended})]})
            return
        self.processes[pod["metadata"]["uid"]] = process
        state = {"running": {"startedAt": process.started}}
        self._tell(pod, {"phase": "Running", "startTime": process.started, "containerStatuses": [self._container(pod, state)]})

    def _secret(self, pod: dict[str, Any], ref: dict[str, str]) -> str:
        found = self.client.get(f"/api/v1/namespaces/{pod['metadata']['namespace']}/secrets/{ref['name']}")
        data = found.get("data") or {}
        return base64.b64decode(data[ref["key"]]).decode() if ref["key"] in data else found["stringData"][ref["key"]]

    def _end(self, pod: dict[str, Any], process: Process, code: int) -> None:
        ended = {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "startedAt": process.started, "finishedAt": stamp()}
        status: dict[str, Any] = {"phase": "Succeeded" if code == 0 else "Failed", "containerStatuses": [self._container(pod, {"terminated": ended})]}
        if process.why:
            status |= {"phase": "Failed", "reason": process.why, "message": "Pod was active on the node longer than the specified deadline"}
        self._tell(pod, status)

    @staticmethod
    def _container(pod: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
        image = pod["spec"]["containers"][0]["image"]
        kept = {"name": "worker", "image": image, "imageID": "", "restartCount": 0, "ready": "running" in state, "lastState": {}}
        return {**kept, "state": {"waiting": None, "running": None, "terminated": None, **state}}

    def _tell(self, pod: dict[str, Any], status: dict[str, Any]) -> None:
        meta = pod["metadata"]
        self.client.patch(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status", {"metadata": {"uid": meta["uid"]}, "status": status})

    def _remove(self, pod: dict[str, Any]) -> None:
        meta = pod["metadata"]
        self.client.delete(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}", grace=0, uid=meta["uid"])

    def _served(self) -> ThreadingHTTPServer:
        """Where the real API server asks for logs."""
        nodes = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                return None

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                words = parts.path.strip("/").split("/")
                said = nodes.log(words[2], parse_qs(parts.query)) if words[0] == "containerLogs" else None
                self.send_response(200 if said is not None else 404)
                self.send_header("Content-Length", str(len(said or b"")))
                self.end_headers()
                self.wfile.write(said or b"")

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.NamedTemporaryFile() as file:
            file.write(certificate())
            file.flush()
            context.load_cert_chain(file.name)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return server


def certificate(name: str = "127.0.0.1") -> bytes:
    """One that nobody vouches for, and its key."""
    from ipaddress import ip_address

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key()).serial_number(x509.random_serial_number())
    )
    built = built.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=2))
    built = built.add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(name))]), critical=False)
    pem = built.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return pem + key.private_bytes(*form)


def dollars(text: str) -> str:
    return text.replace("$$", "$")
