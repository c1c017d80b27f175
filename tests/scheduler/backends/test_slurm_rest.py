"""The same over slurmrestd."""

import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseRequestHandler, ThreadingTCPServer

import pytest

from gpufleet.core.times import now
from scheduler.backends.base import BackendError, RunState
from scheduler.backends.slurm.backend import SlurmBackend
from scheduler.backends.slurm.client import SlurmClient
from scheduler.backends.slurm.errors import SlurmSilent
from scheduler.backends.slurm.rest import Slurmrestd
from tests.scheduler.backends.slurm_site import seat, shell
from tests.servers import free_port

pytestmark = [pytest.mark.django_db, pytest.mark.slurm]


def test_slurmrestd_shows_the_same_as_the_commands(site, rest):
    site.start(on=[seat(0, "gpu002", 4)], launch=shell("sleep 300"))
    site.until(RunState.RUNNING)
    by_rest = SlurmClient(replace(site.settings, rest_url=rest))

    assert [(job.id, job.state, job.comment, job.gpus) for job in sorted(by_rest.jobs(), key=lambda job: job.id)] == [
        (job.id, job.state, job.comment, job.gpus) for job in sorted(site.client.with_gpus(site.client.jobs()), key=lambda job: job.id)
    ]
    site.slurm.sh("scontrol", "update", "NodeName=gpu004", "State=DRAIN", "Reason=fans | none\nname=x; $(touch /tmp/x)")
    try:
        nodes = site.client.nodes()
        assert by_rest.nodes() == nodes
    finally:
        site.slurm.sh("scontrol", "update", "NodeName=gpu004", "State=RESUME")
    assert [node.states for node in nodes] == [("IDLE",), ("MIXED",), ("IDLE",), ("IDLE", "DRAIN")]
    assert nodes[3].reason == "fans | none\nname=x; $(touch /tmp/x)"
    (run,) = SlurmBackend(site.cluster.pk, site.settings, client=by_rest).observe(now=now())
    assert run.state == RunState.RUNNING


def test_a_slurmrestd_that_is_away_is_told_as_silence(site):
    away = SlurmClient(replace(site.settings, rest_url=f"http://127.0.0.1:{free_port()}"))

    with pytest.raises(SlurmSilent, match="does not answer"):
        away.jobs()


def test_slurmrestd_without_the_version_that_is_read_is_not_guessed_at(site, other_rest):
    """Each version has a form of its own. Slurm's commands are used, and it is not asked in each look."""
    site.start(on=[seat(0, "gpu002", 4)], launch=shell("sleep 300"))
    site.until(RunState.RUNNING)
    client = SlurmClient(replace(site.settings, rest_url=other_rest))

    assert {job.id: job.state for job in client.jobs()} == {job.id: job.state for job in site.client.jobs()}
    assert client.rest_unspoken == f"slurmrestd at {other_rest} has v0.0.36, v0.0.37; gpufleet reads v0.0.38. Slurm's commands are used instead."
    assert client.nodes() == site.client.nodes()
    client.ping()
    (run,) = SlurmBackend(site.cluster.pk, client.settings, client=client).observe(now=now())
    assert (run.state, run.workers[0].seat.gpus) == (RunState.RUNNING, (0, 1, 2, 3)), "scontrol tells its GPUs, as squeue does not"


@pytest.mark.parametrize(("each", "is_read"), [(600, False), (0, True)])
def test_a_slurmrestd_that_loads_the_version_later_is_read_when_it_is_tried_again(monkeypatch, each, is_read):
    asked: list[str] = []
    versions = ["v0.0.40"]

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            if self.path != "/openapi.json" and self.path.split("/")[2] not in versions:
                self.send_error(404)
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"paths": {f"/slurm/{one}/jobs": {} for one in versions}, "jobs": []}).encode())

        def log_message(self, *_: object) -> None: ...

    monkeypatch.setattr("scheduler.backends.slurm.rest.REST_TRIED_EACH", each)
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        rest = Slurmrestd(f"http://127.0.0.1:{server.server_port}", command=lambda *_: "SLURM_JWT=token", seconds=5)
        assert rest.read("jobs") is None
        versions.append("v0.0.38")
        found = rest.read("jobs")
        server.shutdown()

    assert (found is not None, rest.is_read, bool(rest.unspoken)) == (is_read, is_read, not is_read)
    assert asked == ["/slurm/v0.0.38/jobs", "/openapi.json", *(["/slurm/v0.0.38/jobs"] if is_read else [])]


def test_what_has_no_jobs_and_says_of_no_version_is_no_slurmrestd(site, rest):
    class Another(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Another) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = SlurmClient(replace(site.settings, rest_url=f"http://127.0.0.1:{server.server_port}"))
        with pytest.raises(BackendError, match="slurmrestd answered 404 to jobs"):
            client.jobs()
        server.shutdown()
    assert client.rest_unspoken == ""


def test_the_token_follows_no_redirect(site, rest):
    reached: list[str] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            reached.append(self.path)
            self.send_response(302 if self.path.startswith("/slurm") else 200)
            self.send_header("Location", "/taken")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        moved = SlurmClient(replace(site.settings, rest_url=f"http://127.0.0.1:{server.server_port}"))
        with pytest.raises(BackendError, match="slurmrestd answered 302"):
            moved.jobs()
        server.shutdown()

    assert [path.partition("/v")[0] for path in reached] == ["/slurm"]


def test_what_speaks_no_http_is_told_as_silence(site, rest):
    class Mumbles(BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(b"220 mail.example ready\r\n")

    with ThreadingTCPServer(("127.0.0.1", 0), Mumbles) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        with pytest.raises(SlurmSilent, match="does not answer"):
            SlurmClient(replace(site.settings, rest_url=f"http://127.0.0.1:{server.server_address[1]}")).jobs()
        server.shutdown()
