"""Connecting to a running job: who may, what is told, and that the token is the one that the job itself has."""

import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied

from gpufleet.core.faults import Conflict
from gpufleet.core.models import AuditEntry
from gpufleet.core.times import now
from scheduler.backends.local import LocalBackend
from scheduler.backends.local_accounts import Rules
from scheduler.backends.registry import Backends
from scheduler.models import Cluster, Job, JobState, OrderKind
from scheduler.services.jobs.connecting import job_connect, job_connection
from scheduler.services.loop.dispatch import orders_dispatch
from scheduler.services.loop.observe import runs_observe
from tests import builders
from tests.personas import Personas
from tests.scheduler.backends.test_dispatch_and_observe import order
from tests.servers import wait_until

pytestmark = pytest.mark.django_db
SAYS = "import os, time; print(os.environ['GPUFLEET_PORT'], os.environ['GPUFLEET_ACCESS_TOKEN'], flush=True); time.sleep(60)"


@pytest.fixture
def notebook(personas: Personas, settings: Any, tmp_path: Path):
    """A real process on this machine, of the submitter."""
    settings.DATA_DIR = tmp_path
    cluster = builders.cluster()
    Cluster.objects.filter(pk=cluster.pk).update(backend="local")
    backends = Backends({cluster.pk: LocalBackend(tmp_path / "local", Rules(same_user=True))})
    job = builders.job(
        state=JobState.STARTING,
        on=personas.nodes["acme/research/nlp"],
        owner=personas.users["submitter"],
        launch={"command": [sys.executable, "-c", SAYS], "port": 8888},
    )
    attempt = builders.attempt(job, sequence=1, started_at=now())
    builders.placement(job, builders.gpu(builders.node("box", of=cluster, gpus=1)), attempt=attempt, since=now())
    order(attempt, OrderKind.START, sequence=1)

    def runs() -> bool:
        orders_dispatch(backends=backends, now=now())
        runs_observe(backends=backends, now=now())
        return Job.objects.get(pk=job.pk).state == JobState.RUNNING

    with pytest.raises(Conflict, match="is not running"):
        job_connection(access=personas.access("submitter"), job=job)
    wait_until(runs, seconds=20, what="it to run")
    job.refresh_from_db()
    yield job, backends[cluster.pk]
    backends[cluster.pk].stop(key=f"{job.public_id}.1", sequence=9, force=True, now=now())


def test_its_owner_is_told_the_port_and_the_token_that_the_job_has(notebook, personas: Personas, client):
    job, backend = notebook

    def said() -> str:
        return backend.logs(key=f"{job.public_id}.1", role="worker", index=0, offset=0, limit=1000).text

    wait_until(lambda: "\n" in said(), seconds=20, what="it to say what it has")
    port, token = said().split()
    before = job_connection(access=personas.access("submitter"), job=job)
    assert (before.token, before.url, AuditEntry.objects.filter(action="job.connect").count()) == ("", "", 0)
    found = job_connect(access=personas.access("submitter"), job=job)

    assert (str(found.port), found.token, found.url) == (port, token, f"http://127.0.0.1:8888/?token={token}")
    assert [step.line for step in found.steps] == [f"ssh -N -L 8888:127.0.0.1:8888 {found.host}"]
    assert AuditEntry.objects.get(action="job.connect").object_id == job.public_id

    page = personas.client("submitter").get(f"/jobs/{job.public_id}/connect/")
    assert token not in page.content.decode()
    assert token in personas.client("submitter").post(f"/jobs/{job.public_id}/connect/").content.decode()
    assert "Connect" in personas.client("submitter").get(f"/jobs/{job.public_id}/").content.decode()
    for other in ("viewer", "finance", "stranger"):
        with pytest.raises(PermissionDenied):
            job_connect(access=personas.access(other), job=job)
        assert personas.client(other).post(f"/jobs/{job.public_id}/connect/").status_code in (403, 404)
