"""The same over slurmrestd."""

import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseRequestHandler, ThreadingTCPServer

import pytest

from gpufleet.core.times import now
from scheduler.backends.base import BackendError, RunState
from scheduler.backends.slurm.backend import SlurmBackend
from scheduler.backends.slurm.client import SlurmClient, SlurmSilent
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
        threading.Thread(target=server.serve_forever, daemon=True).start()
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
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(SlurmSilent, match="does not answer"):
            SlurmClient(replace(site.settings, rest_url=f"http://127.0.0.1:{server.server_address[1]}")).jobs()
        server.shutdown()
