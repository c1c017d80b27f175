"""Two clusters at once, Slurm and this machine, or two of Slurm: one goes dark, and the other does not notice."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpufleet.core.times import now
from scheduler.backends.base import Backend, RunState
from scheduler.backends.local import LocalBackend
from scheduler.backends.local_accounts import Rules
from scheduler.backends.registry import Backends
from scheduler.backends.slurm.backend import SlurmBackend
from scheduler.backends.slurm.client import SECONDS
from scheduler.models import HOLDING, Attempt, Cluster, Job, JobState, Placement
from scheduler.services.loop.tick import Memory
from tests import builders
from tests.invariants import fleet_faults
from tests.scheduler.backends.test_slurm_end_to_end import Console, console, job_on  # noqa: F401 - a fixture
from tests.servers import wait_until
from tests.slurm import Slurm

pytestmark = [pytest.mark.django_db, pytest.mark.slurm, pytest.mark.soak]


@pytest.fixture(scope="module")
def second_slurm() -> Iterator[Slurm]:
    server = Slurm(nodes=1, gpus=2)
    yield server
    server.stop()


@pytest.fixture(params=["local", "slurm"])
def both(console: Console, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Console]:  # noqa: F811
    here = builders.cluster("here", backend=request.param)
    builders.node("gpu001", of=here, gpus=2)  # the other cluster has a node of that name too
    other: Backend = LocalBackend(tmp_path, Rules(same_user=True))
    if request.param == "slurm":
        conf = request.getfixturevalue("second_slurm").conf
        (shared := conf.parent.parent / "shared").mkdir()
        other = SlurmBackend(here.pk, replace(console.settings, conf=str(conf), folder=str(shared)))
    console.client.seconds = 1  # a controller that is away costs each tick no more
    console.backends, console.memory = Backends({console.cluster: console.slurm_backend, here.pk: other}), Memory()
    yield console
    for run in other.observe(now=now()):
        other.stop(key=run.key, sequence=1 << 20, force=True, now=now())


@pytest.mark.parametrize("both", ["local"], indirect=True)
def test_a_controller_that_hangs_costs_the_other_cluster_little(both):
    """With the seconds of production. SIGSTOP: its port still takes connections, and nobody answers."""
    both.client.seconds = SECONDS
    there = job_on("sleep 300", gpus=8, name="there")
    both.until(there, JobState.RUNNING)
    pid = int((both.slurm.dir / "run/slurmctld.pid").read_text())
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: both.tick() or Cluster.objects.get(name="hpc").silent_since, seconds=60, what="its silence to be noticed")
        took = []
        for number in range(4):  # over more than one probe
            began = time.monotonic()
            both.until(job_on("sleep 4", gpus=1, name=f"here {number}"), JobState.RUNNING)
            took.append(time.monotonic() - began)
            wait_until(lambda: both.tick() or time.monotonic() > began + 4, what="a few seconds of ticks")  # noqa: B023 (called within the turn)
        assert max(took) < 3, took
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: both.tick() or Cluster.objects.get(name="hpc").silent_since is None, seconds=60, what="it to be back")
    assert Attempt.objects.filter(job=there, ended_at__isnull=True).count() == 1
    assert not fleet_faults()


def test_a_cluster_that_goes_dark_leaves_the_other_alone(both):
    up = both.slurm.dir / "shared/up"
    up.unlink(missing_ok=True)
    up.parent.chmod(0o777)
    there = job_on(f"echo up > {up}; sleep 300", gpus=8, name="there")
    both.until(there, JobState.RUNNING)
    wait_until(up.exists, what="its process to be up")
    assert set(Placement.objects.filter(attempt__job=there).values_list("node__cluster__name", flat=True)) == {"hpc"}

    stays = job_on("sleep 300", gpus=1, name="stays")
    both.until(stays, JobState.RUNNING)
    both.slurm.saved(there.public_id)
    both.slurm.end("slurmctld", signal.SIGKILL)
    try:
        wait_until(lambda: both.tick() or Cluster.objects.get(name="hpc").silent_since, seconds=60, what="its silence to be noticed")
        here, more = job_on("exit 0", name="here", gpus=1), job_on("exit 0", gpus=8, name="more")
        both.until(here, JobState.COMPLETED)
        both.tick()

        assert Attempt.objects.filter(job=stays).count() == 1
        for job in (stays, here):
            assert set(Placement.objects.filter(attempt__job=job).values_list("node__cluster__name", flat=True)) == {"here"}
        assert Job.objects.get(pk=stays.pk).state == JobState.RUNNING
        assert Job.objects.get(pk=there.pk).state in HOLDING
        assert Attempt.objects.filter(job=there, ended_at__isnull=True).count() == 1
        assert not Attempt.objects.filter(job=more).exists(), "nothing new is placed in the dark"
        assert not fleet_faults()
    finally:
        both.slurm.start_controller()
    wait_until(lambda: "UP" in both.slurm.sh("scontrol", "ping", check=False), what="the controller to be back")
    both.until(more, JobState.COMPLETED)
    assert Cluster.objects.get(name="hpc").silent_since is None
    (run,) = (one for one in both.slurm_backend.observe(now=now()) if one.key == f"{there.public_id}.1")
    assert run.state == RunState.RUNNING
    assert not fleet_faults()
