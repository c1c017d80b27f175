"""Two clusters at once, Slurm and this machine: one goes dark, and the other does not notice."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.core.times import now
from scheduler.backends.base import RunState
from scheduler.backends.local import LocalBackend, Rules
from scheduler.backends.registry import Backends
from scheduler.models import HOLDING, Attempt, Cluster, Job, JobState, Placement
from scheduler.services.loop.tick import Memory
from tests import builders
from tests.invariants import fleet_faults
from tests.scheduler.backends.test_slurm import slurm  # noqa: F401 - a fixture
from tests.scheduler.backends.test_slurm_end_to_end import Console, console, job_on  # noqa: F401 - a fixture
from tests.servers import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.slurm]


@pytest.fixture
def both(console: Console, tmp_path: Path) -> Iterator[Console]:  # noqa: F811
    here = builders.cluster("here", backend="local")
    builders.node("machine", of=here, gpus=2)
    local = LocalBackend(tmp_path, Rules(same_user=True))
    console.client.seconds = 1  # a controller that is away costs each tick no more
    console.backends, console.memory = Backends({console.cluster: console.slurm_backend, here.pk: local}), Memory()
    yield console
    for run in local.observe(now=now()):
        local.stop(key=run.key, sequence=1 << 20, force=True, now=now())


def test_a_cluster_that_goes_dark_leaves_the_other_alone(both):
    up = both.slurm.dir / "shared/up"
    up.unlink(missing_ok=True)
    up.parent.chmod(0o777)
    there = job_on(f"echo up > {up}; sleep 300", gpus=8, name="there")
    both.until(there, JobState.RUNNING)
    wait_until(up.exists, what="its process to be up")
    assert set(Placement.objects.filter(attempt__job=there).values_list("node__cluster__name", flat=True)) == {"hpc"}

    both.slurm.saved(there.public_id)
    both.slurm.end("slurmctld", signal.SIGKILL)
    try:
        wait_until(lambda: both.tick() or Cluster.objects.get(name="hpc").silent_since, seconds=60, what="its silence to be noticed")
        here, more = job_on("exit 0", gpus=2, name="here"), job_on("exit 0", gpus=8, name="more")
        both.until(here, JobState.COMPLETED)
        both.tick()

        assert set(Placement.objects.filter(attempt__job=here).values_list("node__cluster__name", flat=True)) == {"here"}
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
