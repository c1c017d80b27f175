"""Where API servers are and who asks them: contexts of the kubeconfig that the machine's administrator offers, or the account of a console in a pod.

What a file names is read again for each connection and when the server no longer knows who asks, so that what is renewed there holds.
"""

import base64
import json
import os
import ssl
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import yaml

from scheduler.backends.kubernetes.errors import KubernetesDenied
from scheduler.backends.kubernetes.values import IN_CLUSTER, moment_of

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_FOR = 60.0  # seconds that a token from a file is used without a look at the file
PLUGIN_SECONDS = 10.0
EXPIRES_BEFORE = timedelta(seconds=30)


@dataclass(slots=True)
class Endpoint:
    """One API server as one context reaches it."""

    url: str
    tls: ssl.SSLContext | None
    server_name: str  # that its certificate is to have; empty: that of the URL
    account: "Account"
    namespace: str = ""

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""


class Account:
    """Who asks: headers of a request. A certificate is part of the connection."""

    def __init__(self, *, token: str = "", file: Path | None = None, basic: str = "", plugin: "Plugin | None" = None) -> None:
        self._token, self._file, self._basic, self._plugin = token, file, basic, plugin
        self._read = -TOKEN_FOR

    def headers(self) -> dict[str, str]:
        if self._file is not None and monotonic() - self._read >= TOKEN_FOR:
            try:
                self._token = self._file.read_text().strip()
            except OSError as fault:
                raise KubernetesDenied(f"The token for Kubernetes cannot be read: {fault}") from fault
            self._read = monotonic()
        token = self._plugin.token() if self._plugin is not None else self._token
        if token:
            return {"Authorization": f"Bearer {token}"}
        return {"Authorization": f"Basic {self._basic}"} if self._basic else {}

    def renew(self) -> None:
        """The server did not accept them."""
        self._read = monotonic() - TOKEN_FOR
        if self._plugin is not None:
            self._plugin.drop()


class Plugin:
    """A program that the kubeconfig names for credentials (`exec`), as clouds have one."""

    def __init__(self, stated: Mapping[str, Any], folder: Path) -> None:
        command = str(stated.get("command") or "")
        self.argv = [str(folder / command) if "/" in command and not command.startswith("/") else command, *map(str, stated.get("args") or ())]
        self.version = str(stated.get("apiVersion") or "client.authentication.k8s.io/v1")
        self.env = {str(one.get("name")): str(one.get("value")) for one in stated.get("env") or () if isinstance(one, dict)}
        self._given: dict[str, Any] = {}
        self._until: datetime | None = None

    def given(self) -> dict[str, Any]:
        now = datetime.now(UTC)
        if self._given and (self._until is None or now < self._until - EXPIRES_BEFORE):
            return self._given
        info = json.dumps({"apiVersion": self.version, "kind": "ExecCredential", "spec": {"interactive": False}})
        env = {name: value for name, value in os.environ.items() if not name.startswith("GPUFLEET_")}
        try:
            done = subprocess.run(
                self.argv,
                env={**env, **self.env, "KUBERNETES_EXEC_INFO": info},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PLUGIN_SECONDS,
                check=False,
            )
            found = json.loads(done.stdout).get("status") if done.returncode == 0 else None
        except (OSError, ValueError, AttributeError, subprocess.TimeoutExpired) as fault:
            raise KubernetesDenied(f"{self.argv[0]} gives no credentials for Kubernetes: {fault}") from fault
        if not isinstance(found, dict):
            said = done.stderr.decode(errors="replace").strip()[-200:]
            raise KubernetesDenied(f"{self.argv[0]} gives no credentials for Kubernetes: {said or f'it exited with {done.returncode}'}")
        self._given, self._until = found, moment_of(found.get("expirationTimestamp"))
        return found

    def token(self) -> str:
        return str(self.given().get("token") or "")

    def drop(self) -> None:
        self._given = {}


def contexts_of(kubeconfig: str) -> tuple[str, ...]:
    """Contexts that this machine offers. A file that cannot be read offers none; `endpoint_of` says why."""
    found: list[str] = []
    with suppress(KubernetesDenied):
        found = [str(one.get("name")) for one in _named_list(_document(kubeconfig), "contexts")] if kubeconfig else []
    return (*found, *((IN_CLUSTER,) if (ACCOUNT / "token").exists() else ()))


def endpoint_of(kubeconfig: str, context: str) -> Endpoint:
    """Raises `KubernetesDenied` for what is not there or cannot be read."""
    if context == IN_CLUSTER:
        return _in_cluster()
    if not kubeconfig:
        raise KubernetesDenied("This machine offers no contexts of Kubernetes: GPUFLEET_KUBECONFIG is not set.")
    document, folder = _document(kubeconfig), Path(kubeconfig).resolve().parent
    chosen = _one(document, "contexts", "context", context, kubeconfig)
    cluster = _one(document, "clusters", "cluster", str(chosen.get("cluster") or ""), kubeconfig)
    user = _one(document, "users", "user", str(chosen["user"]), kubeconfig) if chosen.get("user") else {}
    url = str(cluster.get("server") or "")
    if urlsplit(url).scheme not in ("https", "http") or not urlsplit(url).hostname:
        raise KubernetesDenied(f"The context {context} of {kubeconfig} names no server.")
    plugin = Plugin(user["exec"], folder) if isinstance(user.get("exec"), dict) else None
    try:
        tls = _tls(cluster, user, plugin, folder) if url.startswith("https:") else None
    except (OSError, ValueError) as fault:
        raise KubernetesDenied(f"Certificates of the context {context} cannot be read: {fault}") from fault
    basic = f"{user['username']}:{user.get('password') or ''}" if user.get("username") else ""
    account = Account(
        token=str(user.get("token") or ""),
        file=folder / str(user["tokenFile"]) if user.get("tokenFile") else None,
        basic=base64.b64encode(basic.encode()).decode() if basic else "",
        plugin=plugin,
    )
    return Endpoint(url.rstrip("/"), tls, str(cluster.get("tls-server-name") or ""), account, str(chosen.get("namespace") or ""))


def _in_cluster() -> Endpoint:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (ACCOUNT / "token").exists():
        raise KubernetesDenied("The console does not run in a pod that has a service account.")
    try:
        tls = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
        namespace = (ACCOUNT / "namespace").read_text().strip()
    except OSError as fault:
        raise KubernetesDenied(f"The service account of the console's pod cannot be read: {fault}") from fault
    return Endpoint(f"https://{f'[{host}]' if ':' in host else host}:{port}", tls, "", Account(file=ACCOUNT / "token"), namespace)


def _document(kubeconfig: str) -> dict[str, Any]:
    try:
        found = yaml.safe_load(Path(kubeconfig).read_text())
    except (OSError, ValueError, yaml.YAMLError) as fault:
        raise KubernetesDenied(f"{kubeconfig} cannot be read: {getattr(fault, 'strerror', None) or 'it is not YAML'}.") from fault
    if not isinstance(found, dict):
        raise KubernetesDenied(f"{kubeconfig} is not a kubeconfig.")
    return found


def _named_list(document: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    found = document.get(kind)
    return [one for one in found if isinstance(one, dict) and one.get("name")] if isinstance(found, list) else []


def _one(document: Mapping[str, Any], kind: str, part: str, name: str, kubeconfig: str) -> dict[str, Any]:
    found = next((one.get(part) for one in _named_list(document, kind) if one["name"] == name), None)
    if not isinstance(found, dict):
        raise KubernetesDenied(f"{kubeconfig} has no {part} {name}.")
    return found


def _tls(cluster: Mapping[str, Any], user: Mapping[str, Any], plugin: Plugin | None, folder: Path) -> ssl.SSLContext:
    data, file = cluster.get("certificate-authority-data"), cluster.get("certificate-authority")
    if data:
        found = ssl.create_default_context(cadata=base64.b64decode(str(data)).decode())
    else:
        found = ssl.create_default_context(cafile=str(folder / str(file)) if file else None)
    if cluster.get("insecure-skip-tls-verify"):
        found.check_hostname = False
        found.verify_mode = ssl.CERT_NONE
    certificate, key = _pem(user, "client-certificate", folder), _pem(user, "client-key", folder)
    if plugin is not None and not certificate:
        given = plugin.given()
        certificate, key = str(given.get("clientCertificateData") or "").encode(), str(given.get("clientKeyData") or "").encode()
    if certificate and key:
        with tempfile.NamedTemporaryFile(prefix="gpufleet-") as both:  # Python reads certificates from files alone; nobody else may read this one
            both.write(certificate + b"\n" + key)
            both.flush()
            found.load_cert_chain(both.name)
    return found


def _pem(user: Mapping[str, Any], name: str, folder: Path) -> bytes:
    if user.get(f"{name}-data"):
        return base64.b64decode(str(user[f"{name}-data"]))
    return (folder / str(user[name])).read_bytes() if user.get(name) else b""
