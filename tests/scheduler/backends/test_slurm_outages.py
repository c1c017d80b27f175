"""A console away for longer than Slurm remembers jobs, and a minute without Slurm's controller: each end is known, and nothing runs twice."""

import signal
import time
from collections.abc import Iterator

import pytest

from scheduler.models import HOLDING, Attempt, Cluster, Job, JobState
from tests.invariants import fleet_faults
from tests.scheduler.backends.test_slurm_end_to_end import Console, console, job_on  # noqa: F401 - a fixture
from tests.servers import required, wait_until
from tests.slurm import Slurm, missing

pytestmark = [pytest.mark.django_db, pytest.mark.slurm, pytest.mark.soak]
AWAY_S = 60
MIN_JOB_AGE_S = 2


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    if package := missing():
        required("slurm", f"Slurm is not installed (Debian package {package}).")
    server = Slurm(nodes=4, gpus=8, more=f"MinJobAge={MIN_JOB_AGE_S}\n")
    yield server
    server.stop()


def outcomes(*jobs: Job) -> list[tuple[str, int, str, int | None]]:
    """Each attempt of the jobs: name, number, outcome and exit code."""
    rows = Attempt.objects.filter(job__in=jobs).order_by("job_id", "number")
    return list(rows.values_list("job__name", "number", "outcome", "exit_code"))


def test_a_console_that_was_away_longer_than_slurm_remembers_runs_nothing_again(console: Console) -> None:  # noqa: F811
    gate = console.slurm.dir / "shared/gate"
    until_open = f"until [ -e {gate} ]; do sleep 0.1; done;"
    ends = [
        job_on(f"{until_open} exit 0", gpus=2, name="completes"),
        job_on(f"{until_open} exit 4", gpus=2, name="fails"),
        job_on(f"{until_open} exit 0", gpus=8, workers=2, name="gang"),
    ]
    stays = job_on("sleep 600", gpus=2, name="stays")
    for job in (*ends, stays):
        console.until(job, JobState.RUNNING)

    gate.touch()  # and nobody looks from here on
    wait_until(lambda: len(console.client.jobs()) == 1, seconds=180, what="Slurm to forget what has ended")
    console.restart()
    console.until(ends[0], JobState.COMPLETED, JobState.QUEUED)
    console.tick()

    assert outcomes(*ends, stays) == [
        ("completes", 1, "completed", 0),
        ("fails", 1, "failed", 4),
        ("gang", 1, "completed", 0),
        ("stays", 1, "", None),
    ]
    assert Job.objects.get(pk=stays.pk).state == JobState.RUNNING
    assert not fleet_faults()


def test_a_minute_without_slurms_controller_costs_no_run(console: Console) -> None:  # noqa: F811
    gate = console.slurm.dir / "shared/second-gate"
    until_open = f"until [ -e {gate} ]; do sleep 0.1; done;"
    ends = [job_on(f"{until_open} exit 0", gpus=2, name="completes"), job_on(f"{until_open} exit 0", gpus=8, workers=2, name="gang")]
    stays = job_on("sleep 600", gpus=2, name="stays")
    for job in (*ends, stays):
        console.until(job, JobState.RUNNING)
        console.slurm.saved(f"{job.public_id}.1")
    console.client.seconds = 1

    console.slurm.end("slurmctld", signal.SIGKILL)
    try:
        gate.touch()
        waits = job_on("exit 0", gpus=4, name="waits")
        back = time.monotonic() + AWAY_S
        wait_until(lambda: console.tick() or time.monotonic() > back, seconds=2 * AWAY_S, what="a minute of ticks")
        assert Cluster.objects.get().silent_since is not None
        assert {job.state for job in Job.objects.filter(pk__in=[*(job.pk for job in ends), stays.pk])} <= set(HOLDING)
        assert not Attempt.objects.filter(job=waits, running_at__isnull=False).exists()
        assert not fleet_faults()
    finally:
        console.slurm.start_controller()
    for job in (*ends, waits):
        console.until(job, JobState.COMPLETED, JobState.FAILED)

    assert outcomes(*ends, stays) == [("completes", 1, "completed", 0), ("gang", 1, "completed", 0), ("stays", 1, "", None)]
    assert outcomes(waits)[-1][2:] == ("completed", 0)
    assert Job.objects.get(pk=stays.pk).state == JobState.RUNNING
    assert not fleet_faults()
