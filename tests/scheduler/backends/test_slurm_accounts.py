"""What the ledger says of a job on Slurm, and what Slurm's own accounting says: `sacct`, over the completions that the controller writes down."""

import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpufleet.core.times import now
from quotas.models import CHARGED, LedgerEntry
from scheduler.models import Attempt, JobState, Placement
from scheduler.services.loop.runs import Stop, attempts_stop
from tests.invariants import fleet_faults
from tests.scheduler.backends.test_slurm_end_to_end import Console, console, job_on  # noqa: F401 - a fixture
from tests.servers import required, wait_until
from tests.slurm import Slurm, missing

pytestmark = [pytest.mark.django_db, pytest.mark.slurm]
WITHIN_S = 1.0
AWAY_S = 5.0  # longer than those that end by themselves run, by more than that


@pytest.fixture(scope="module")
def completed(tmp_path_factory: Any) -> Path:
    return tmp_path_factory.mktemp("accounts") / "completed"


@pytest.fixture(scope="module")
def slurm(completed: Path) -> Iterator[Slurm]:
    if package := missing():
        required("slurm", f"Slurm is not installed (Debian package {package}).")
    server = Slurm(nodes=4, gpus=8, more=f"JobCompType=jobcomp/filetxt\nJobCompLoc={completed}\n")
    yield server
    server.stop()


def lines_of(console: Console, completed: Path) -> list[str]:  # noqa: F811
    if not completed.exists():
        return []
    return console.slurm.sh("sacct", "-c", "-f", completed, "-n", "-P", "-o", "JobName,ElapsedRaw").splitlines()


def accounts(console: Console, completed: Path, earlier: int) -> dict[str, int]:  # noqa: F811
    """Elapsed seconds by the run's key, behind so many lines of earlier tests. A run that Slurm had twice is a fault."""
    rows = [line.split("|") for line in lines_of(console, completed)[earlier:]]
    assert len({name for name, _ in rows}) == len(rows), rows
    return {name.removeprefix("gpufleet-"): int(seconds) for name, seconds in rows}


def test_the_ledger_agrees_with_sacct_on_each_attempt(console, completed):  # noqa: F811
    """One that completes, one that fails, a gang, whose ends nobody sees, one that nobody saw run, one that is preempted and comes back, one that is
    cancelled."""
    earlier = len(lines_of(console, completed))
    jobs = [job_on("sleep 3", gpus=4, name="completes"), job_on("sleep 1; exit 3", gpus=4, name="fails")]
    gang = job_on("sleep 2", workers=2, name="gang")
    low = job_on("trap 'exit 1' TERM; while :; do sleep 0.1; done", workers=1, spec={"grace_s": 2}, name="low")
    for job in (*jobs, gang, low):
        console.until(job, JobState.RUNNING, JobState.COMPLETED, JobState.FAILED)
    unseen = job_on("sleep 1; exit 4", gpus=4, name="unseen")
    console.until(unseen, JobState.STARTING)
    time.sleep(AWAY_S)  # nobody looks while they end
    high = job_on("sleep 1", workers=4, job_class="interactive", name="high")
    for job in (*jobs, gang, unseen, high):
        console.until(job, JobState.COMPLETED, JobState.FAILED)
    console.until(low, JobState.RUNNING)
    attempts_stop(stops=[Stop(low.pk, JobState.CANCELLED, "cancelled", "Enough.", grace_seconds=1)], now=now())
    console.until(low, JobState.CANCELLED)

    agree(console, completed, earlier, at_least=7)


def test_a_run_that_its_node_lost_while_nobody_looked_is_charged_until_slurm_ended_it(console, completed):  # noqa: F811
    earlier = len(lines_of(console, completed))
    job = job_on("sleep 300", gpus=4, name="lost")
    console.until(job, JobState.RUNNING)
    name = Placement.objects.get(job=job, until__isnull=True, gpu__index=0).node.name
    console.slurm.sh("scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=gone")
    time.sleep(AWAY_S)
    try:
        first = Attempt.objects.filter(job=job, outcome="lost")
        wait_until(lambda: console.tick() or first.exists(), what="its loss to be known")
    finally:
        console.slurm.sh("scontrol", "update", f"NodeName={name}", "State=RESUME", check=False)
    assert "node fail" in first.get().cause
    agree(console, completed, earlier, at_least=1, keys={f"{job.public_id}.1"})


def agree(console: Console, completed: Path, earlier: int, *, at_least: int, keys: Collection[str] = ()) -> None:  # noqa: F811
    """The ledger with sacct, on each attempt that is charged."""
    held: dict[str, float] = defaultdict(float)
    for entry in LedgerEntry.objects.filter(CHARGED, worker=0):
        held[f"{entry.job}.{entry.attempt_number}"] += (entry.until - entry.since).total_seconds()
    held = {key: seconds for key, seconds in held.items() if key in (keys or held)}
    told = wait_until(lambda: len(found := accounts(console, completed, earlier)) >= len(held) and found, what="every end to be in Slurm's accounts")

    assert len(held) >= at_least
    assert keys or set(told) == set(held)
    assert {key: (told[key], seconds) for key, seconds in held.items() if abs(seconds - told[key]) > WITHIN_S} == {}, "Slurm counts whole seconds"
    assert not fleet_faults()
