"""How the console reaches an API server: kubeconfigs, credentials, certificates, and what it makes of silence and refusals."""

import json
import ssl
import stat
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from scheduler.backends.kubernetes import config, watching
from scheduler.backends.kubernetes.client import KubernetesClient
from scheduler.backends.kubernetes.config import Account, Endpoint, contexts_of, endpoint_of
from scheduler.backends.kubernetes.errors import KubernetesDenied, KubernetesFailed, KubernetesSilent
from scheduler.backends.kubernetes.logs import new_lines
from scheduler.backends.kubernetes.pods import plain, run_name
from scheduler.backends.kubernetes.values import held_by, quantity
from scheduler.backends.kubernetes.watching import Pods
from tests.kubernetes.double import Double
from tests.kubernetes.nodes import certificate
from tests.servers import free_port, wait_until

PATH = "/api/v1/namespaces/gpufleet/pods"


@pytest.fixture
def double():
    there = Double()
    yield there
    there.stop()


def client_to(url: str, **account) -> KubernetesClient:
    return KubernetesClient(Endpoint(url, None, "", Account(**account)), seconds=1)


def kubeconfig(folder: Path, server: str, user: str = "{}", cluster: str = "") -> str:
    place = folder / "kubeconfig"
    place.write_text(
        f"clusters: [{{name: c, cluster: {{server: '{server}'{cluster}}}}}]\n"
        f"users: [{{name: u, user: {user}}}]\n"
        "contexts: [{name: test, context: {cluster: c, user: u, namespace: here}}, {name: other, context: {cluster: none}}]\n"
    )
    return str(place)


def pod(name: str, key: str = "j-1.1") -> dict:
    labels = {"gpufleet/console": "me", "gpufleet/run": key}
    spec = {"containers": [{"name": "worker", "image": "any"}], "schedulingGates": [{"name": "gpufleet/gang"}]}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


def test_contexts_are_those_of_the_file(tmp_path, double):
    path = kubeconfig(tmp_path, double.url)

    assert contexts_of(path) == ("test", "other")
    assert contexts_of(str(tmp_path / "none")) == ()
    assert endpoint_of(path, "test").namespace == "here"
    for context, words in (("gone", "has no context gone"), ("other", "has no cluster none")):
        with pytest.raises(KubernetesDenied, match=words):
            endpoint_of(path, context)


def test_a_token_in_a_file_is_read_again_when_it_is_not_accepted_any_more(tmp_path, double):
    (tmp_path / "token").write_text("first\n")
    double.token = "first"
    client = KubernetesClient(endpoint_of(kubeconfig(tmp_path, double.url, "{tokenFile: token}"), "test"))
    assert client.get(PATH)["items"] == []

    double.token = "second"
    (tmp_path / "token").write_text("second\n")
    assert client.get(PATH)["items"] == []

    double.token = "third"
    with pytest.raises(KubernetesDenied, match="401"):
        client.get(PATH)


def test_a_program_gives_credentials_until_they_expire(tmp_path, double):
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    told = json.dumps({"kind": "ExecCredential", "status": {"token": "from-program", "expirationTimestamp": later}})
    program = tmp_path / "login"
    program.write_text(f'#!/bin/sh\necho >> {tmp_path}/asked\n[ "$1" = for ] && [ "$KUBERNETES_EXEC_INFO" ] || exit 1\necho \'{told}\'\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    double.token = "from-program"
    client = KubernetesClient(endpoint_of(kubeconfig(tmp_path, double.url, "{exec: {command: ./login, args: [for]}}"), "test"))

    for _ in range(3):
        client.get(PATH)

    assert (tmp_path / "asked").read_text() == "\n"
    failing = endpoint_of(kubeconfig(tmp_path, double.url, "{exec: {command: ./login, args: [against]}}"), "test")
    with pytest.raises(KubernetesDenied, match="gives no credentials"):
        KubernetesClient(failing).get(PATH)


def test_in_a_pod_its_service_account_is_used(tmp_path, monkeypatch, double):
    for name, text in (("token", "of-the-pod"), ("namespace", "console"), ("ca.crt", certificate().decode().partition("-----BEGIN PRIVATE")[0])):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(config, "ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")

    assert contexts_of("") == ("in-cluster",)
    endpoint = endpoint_of("", "in-cluster")
    assert (endpoint.url, endpoint.namespace) == ("https://10.0.0.1:443", "console")
    assert endpoint.account.headers() == {"Authorization": "Bearer of-the-pod"}


def test_a_certificate_is_held_against_the_one_that_the_file_names(tmp_path):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_):
            return None

    pem = certificate()
    (tmp_path / "pair.pem").write_bytes(pem)
    (tmp_path / "ca.crt").write_bytes(pem.partition(b"-----BEGIN PRIVATE")[0])
    (tmp_path / "other.crt").write_bytes(certificate().partition(b"-----BEGIN PRIVATE")[0])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pair.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"https://127.0.0.1:{server.server_address[1]}"
    user = "{client-certificate: pair.pem, client-key: pair.pem}"
    try:
        good = endpoint_of(kubeconfig(tmp_path, url, user, ", certificate-authority: ca.crt"), "test")
        assert KubernetesClient(good).get("/version") == {}
        for bad in (", certificate-authority: other.crt", ""):
            with pytest.raises(KubernetesDenied, match="certificate"):
                KubernetesClient(endpoint_of(kubeconfig(tmp_path, url, "{}", bad), "test")).get("/version")
        careless = endpoint_of(kubeconfig(tmp_path, url, "{}", ", insecure-skip-tls-verify: true"), "test")
        assert KubernetesClient(careless).get("/version") == {}
    finally:
        server.shutdown()
        server.server_close()


def test_no_redirect_is_followed_and_no_proxy_used(monkeypatch, double):
    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(302)
            self.send_header("Location", f"{double.url}/version")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    try:
        with pytest.raises(KubernetesFailed, match="302"):
            client_to(f"http://127.0.0.1:{server.server_address[1]}", token="secret").get("/version")
    finally:
        server.shutdown()
        server.server_close()
    assert double.calls == []


def test_a_server_that_is_silent_or_not_there_is_silent(double):
    with pytest.raises(KubernetesSilent, match="does not answer"):
        client_to(f"http://127.0.0.1:{free_port()}").get("/version")
    double.silent = True
    with pytest.raises(KubernetesSilent, match="does not answer"):
        client_to(double.url).get("/version")


def test_a_watch_goes_on_after_what_it_missed_is_forgotten(double, monkeypatch):
    monkeypatch.setattr(watching, "AGAIN_AFTER", 0.05)
    pods = Pods(client_to(double.url), PATH, "gpufleet/console=me")
    double.put("pods", pod("a"), "gpufleet")
    assert list(pods.listed()) == ["j-1.1"]

    double.put("pods", pod("b", "j-2.1"), "gpufleet")
    wait_until(lambda: "j-2.1" in pods.by_run(), what="what was added")
    assert "j-2.1" in pods.changed()
    double.forget_events()
    double.put("pods", pod("c", "j-3.1"), "gpufleet")
    wait_until(lambda: "j-3.1" in pods.by_run(), what="what was added after all was forgotten")
    double.remove(("pods", "gpufleet", "a"), 0, "")
    wait_until(lambda: not pods.of("j-1.1"), what="what was removed")
    pods.stop()


def test_a_list_of_pages_is_read_whole(double, monkeypatch):
    monkeypatch.setattr("scheduler.backends.kubernetes.client.PAGE", 3)
    for number in range(10):
        double.put("pods", pod(f"p-{number}"), "gpufleet")

    items, version = client_to(double.url).every(PATH, {"labelSelector": "gpufleet/console=me"})

    assert len(items) == 10
    assert version


def test_a_watch_that_nobody_needs_ends(double):
    pods = Pods(client_to(double.url), PATH, "gpufleet/console=me")
    pods.listed()
    thread = pods._thread
    del pods
    double.put("pods", pod("a"), "gpufleet")

    wait_until(lambda: not thread.is_alive(), what="its thread to end")


@pytest.mark.parametrize(
    ("text", "value"), [("8", 8), ("1500m", 1.5), ("2Gi", 2 * 1024**3), ("1e3", 1000), ("5k", 5000), (None, 0), ("none", 0), ("1.5", 1.5)]
)
def test_quantities(text, value):
    assert quantity(text) == value


def test_what_a_pod_holds_counts_instances_as_gpus():
    containers = [{"resources": {"limits": {"nvidia.com/mig-1g.10gb": "2"}, "requests": {"cpu": "500m"}}}, {"resources": {}}]

    assert held_by({"spec": {"containers": containers}}) == (2, 0.5, 0)


@pytest.mark.parametrize("text", ["worker", "Prefill", "a_b", "a.b", "UPPER", "x" * 40])
def test_names_are_plain_and_apart(text):
    assert plain(text) == plain(text).lower()
    assert not set(plain(text)) - set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert len({plain("a_b"), plain("a.b"), plain("a-b"), plain("A-b")}) == 4


def test_names_of_runs_fit_a_label():
    assert run_name("0123abcd", "j-17.2") == "gf-0123abcd-j-17-2"
    assert len(run_name("0123abcd", "x" * 40)) <= 63


def test_lines_of_a_log_are_taken_once():
    first = b"2026-01-01T00:00:01.5Z one\n2026-01-01T00:00:01.51Z two\n2026-01-01T00:00:02Z half"
    assert new_lines(first, b"") == (b"one\ntwo\n", b"2026-01-01T00:00:01.51Z")
    again = first + b" whole\n2026-01-01T00:00:03.000000001Z \n"
    assert new_lines(again, b"2026-01-01T00:00:01.51Z") == (b"half whole\n\n", b"2026-01-01T00:00:03.000000001Z")
