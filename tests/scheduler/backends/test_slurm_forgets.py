"""Slurm's controller is killed before it has saved what it did last, and comes back with an older state: what happened is still told, charged and run
once."""

import os
import shutil
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpufleet.core.models import AuditEntry
from gpufleet.core.times import now
from quotas.models import CHARGED, LedgerEntry
from scheduler.backends.slurm import looking
from scheduler.backends.slurm import outcomes as outcomes_of_slurm
from scheduler.models import Attempt, Job, JobState, SlurmRun
from tests.invariants import fleet_faults
from tests.scheduler.backends.test_slurm_end_to_end import Console, console, job_on  # noqa: F401 - a fixture
from tests.servers import required, wait_until
from tests.slurm import Slurm, missing

pytestmark = [pytest.mark.django_db, pytest.mark.slurm, pytest.mark.soak]


@pytest.fixture(scope="module")
def completed(tmp_path_factory: Any) -> Path:
    return tmp_path_factory.mktemp("accounts") / "completed"


@pytest.fixture(scope="module")
def slurm(completed: Path) -> Iterator[Slurm]:
    if package := missing():
        required("slurm", f"Slurm is not installed (Debian package {package}).")
    server = Slurm(nodes=2, gpus=8, more=f"JobCompType=jobcomp/filetxt\nJobCompLoc={completed}\nSlurmdTimeout=60\n")
    yield server
    server.stop()


class Past:
    """The state of a controller at one moment, with which it comes back."""

    def __init__(self, slurm: Slurm) -> None:
        self.slurm, self.kept = slurm, slurm.dir / "kept"
        shutil.rmtree(self.kept, ignore_errors=True)
        shutil.copytree(slurm.dir / "state", self.kept)

    def comes_back(self) -> None:
        self.goes()
        self.returns()

    def goes(self) -> None:
        self.slurm.end("slurmctld", signal.SIGKILL)

    def returns(self) -> None:
        shutil.rmtree(self.slurm.dir / "state")
        shutil.copytree(self.kept, self.slurm.dir / "state")
        self.slurm.start_controller()
        wait_until(lambda: "UP" in self.slurm.sh("scontrol", "ping", check=False), what="the controller to be back")


def before_release(console: Console, monkeypatch: pytest.MonkeyPatch, key: str) -> dict[str, Past]:  # noqa: F811
    """The state as it is when the job is submitted and not yet released."""
    found: dict[str, Past] = {}
    release = console.client.release

    def first(ids: Any) -> None:
        if ids and key not in found:
            console.slurm.saved(key)
            found[key] = Past(console.slurm)
        release(ids)

    monkeypatch.setattr(console.client, "release", first)
    return found


def charged(job: Job) -> float:
    """Seconds of its first worker."""
    return sum((entry.until - entry.since).total_seconds() for entry in LedgerEntry.objects.filter(CHARGED, job=job.public_id, worker=0))


def accounted(console: Console, completed: Path, job: Job) -> list[int]:  # noqa: F811
    """Seconds of each end that Slurm has written down, in their order."""
    own = {str(part["id"]) for run in SlurmRun.objects.filter(attempt_key__startswith=f"{job.public_id}.") for part in run.state["parts"]}
    lines = console.slurm.sh("sacct", "-c", "-f", completed, "-n", "-P", "-o", "JobID,ElapsedRaw", check=False).splitlines()
    return [int(seconds) for number, seconds in (line.split("|") for line in lines) if number in own]


def given_to_others(console: Console) -> None:  # noqa: F811
    """The number that comes next. Else a run that begins under it may be ended by what a node still tells of the one that had it before."""
    number = console.slurm.sh("sbatch", "--parsable", "--hold", "--chdir=/", "--output=/dev/null", "--wrap=true")
    console.slurm.sh("scancel", number)


def outcomes(job: Job) -> list[tuple[str, int | None]]:
    return list(Attempt.objects.filter(job=job).order_by("number").values_list("outcome", "exit_code"))


def test_a_run_that_slurm_starts_again_is_charged_since_the_start_that_held(console, completed, monkeypatch):  # noqa: F811
    """It waited when the state was saved, and ran when its controller was killed."""
    gate = console.slurm.dir / "shared/again"
    job = job_on(f"until [ -e {gate} ]; do sleep 0.1; done", gpus=2)
    past = before_release(console, monkeypatch, f"{job.public_id}.1")
    console.until(job, JobState.RUNNING)
    first = Attempt.objects.get(job=job).running_at
    wait_until(lambda: now() - first > timedelta(seconds=4), what="it to have run for longer than may be told otherwise")
    past[f"{job.public_id}.1"].comes_back()

    wait_until(lambda: console.tick() or Attempt.objects.get(job=job).running_at != first, seconds=120, what="the second start to be known")
    gate.touch()
    console.until(job, JobState.COMPLETED)

    assert outcomes(job) == [("completed", 0)]
    (seconds,) = wait_until(lambda: accounted(console, completed, job), what="its end to be in Slurm's accounts")
    assert abs(charged(job) - seconds) <= 1
    (entry,) = AuditEntry.objects.filter(action="usage.correct", object_id=job.public_id)
    assert entry.before == {"start of attempt 1": f"{first:%Y-%m-%d %H:%M:%S}"}
    assert not fleet_faults()


@pytest.mark.parametrize("again", [False, True], ids=["waits, and nobody saw it run", "was started again"])
def test_what_was_completed_is_not_run_again(console, completed, monkeypatch, again):  # noqa: F811
    gate = console.slurm.dir / f"shared/completed-{again}"
    job = job_on(f"echo ran; until [ -e {gate} ]; do sleep 0.1; done; sleep 2", gpus=2)
    key = f"{job.public_id}.1"
    past = before_release(console, monkeypatch, key)
    if again:
        console.until(job, JobState.RUNNING)
    else:
        wait_until(lambda: key in past or console.tick(), what="it to be released")
        wait_until(lambda: any(one.running for one in console.client.jobs()), what="it to run in Slurm")
    gate.touch()  # and nobody looks from here on
    seconds, *_ = wait_until(lambda: accounted(console, completed, job), what="its end to be in Slurm's accounts")
    wait_until(lambda: console.alive() == [], what="Slurm to have ended it")
    past[key].comes_back()
    if again:
        (number,) = (one.id for one in console.client.jobs() if one.held)
        console.slurm.sh("scontrol", "release", number)
        wait_until(lambda: console.alive() == [], seconds=60, what="its second run to end")

    console.until(job, JobState.COMPLETED)

    assert outcomes(job) == [("completed", 0)]
    assert console.slurm_backend.logs(key=key, role="worker", index=0, offset=0, limit=99).text == "ran\n"
    assert charged(job) <= seconds + 1
    assert charged(job) >= seconds - 1 if again else charged(job) > 0, "of one that nobody saw run its script says when it began"
    wait_until(lambda: console.alive() == [], what="what Slurm still had of it to be gone")
    assert not fleet_faults()


def test_what_was_completed_and_runs_on_in_slurm_alone_is_ended(console, completed, monkeypatch):  # noqa: F811
    monkeypatch.setattr(outcomes_of_slurm, "TOLD_WITHIN", timedelta(seconds=3))
    monkeypatch.setattr(looking, "BOOT_EACH", 1.0)
    gate = console.slurm.dir / "shared/runs-on"
    job = job_on(f"until [ -e {gate} ]; do sleep 0.1; done", gpus=2)
    console.until(job, JobState.RUNNING)
    console.slurm.saved(f"{job.public_id}.1")
    past = Past(console.slurm)
    gate.touch()
    seconds, *_ = wait_until(lambda: accounted(console, completed, job), what="its end to be in Slurm's accounts")
    past.comes_back()

    console.until(job, JobState.COMPLETED)

    assert outcomes(job) == [("completed", 0)]
    assert abs(charged(job) - seconds) <= 1
    wait_until(lambda: console.alive() == [], what="what Slurm still had of it to be gone")
    assert not fleet_faults()


def test_what_slurm_does_not_know_any_more_is_not_begun_elsewhere_while_it_still_runs(console, monkeypatch):  # noqa: F811
    console.slurm.end("slurmctld")  # it saves its state
    past, gate = Past(console.slurm), console.slurm.dir / "shared/unknown"
    past.comes_back()
    alone = f"exec 8>>{console.slurm.dir}/shared/lock; flock -n 8 || exit 9; until [ -e {gate} ]; do sleep 0.1; done"
    (console.slurm.dir / "shared/lock").touch(mode=0o666)
    (console.slurm.dir / "shared/lock").chmod(0o666)
    job = job_on(alone, gpus=2)
    console.until(job, JobState.RUNNING)
    past.comes_back()
    given_to_others(console)

    wait_until(lambda: console.tick() or Attempt.objects.filter(job=job).count() == 2, seconds=120, what="its second attempt")
    gate.touch()
    console.until(job, JobState.COMPLETED, JobState.FAILED)

    assert outcomes(job) == [("lost", None), ("completed", 0)]
    assert not fleet_faults()


def test_the_end_of_the_run_that_had_its_number_before_is_not_taken_for_its_own(console):  # noqa: F811
    """A run ends while the controller is away, which comes back without it and gives its number to the next on that node. The node tells of the end
    by that number when Slurm has started the next and the node has not. What Slurm says of the next bears its own comment."""
    console.slurm.end("slurmctld")  # it saves its state
    past, gate = Past(console.slurm), console.slurm.dir / "shared/before"
    past.comes_back()
    first = job_on(f"until [ -e {gate} ]; do sleep 0.1; done", name="first")
    console.until(first, JobState.RUNNING)
    run = SlurmRun.objects.get(attempt_key=f"{first.public_id}.1").state
    node = run["parts"][0]["nodes"][0]
    past.goes()
    gate.touch()
    log = console.slurm.dir / f"log/slurmd.{node}.log"
    wait_until(
        lambda: "Retrying job complete RPC" in log.read_text(), seconds=60, what="its node to tell of its end, and to wait before the next time"
    )
    past.returns()
    wait_until(lambda: len(console.slurm.idle()) == 2, what="both nodes to be idle")
    console.until(first, JobState.COMPLETED)

    daemon = int((console.slurm.dir / f"run/slurmd.{node}.pid").read_text())
    os.kill(daemon, signal.SIGSTOP)
    try:
        second = job_on("echo ran", name="second")
        (own,) = wait_until(lambda: console.tick() or SlurmRun.objects.filter(attempt_key=f"{second.public_id}.1"), what="the next to be submitted")
        wait_until(lambda: own.refresh_from_db() or own.state["parts"][0]["id"], what="its number to be written down")
        assert own.state["parts"][0]["id"] == run["parts"][0]["id"]
        wait_until(
            lambda: any(one.state == "COMPLETING" for one in console.client.jobs()), what="Slurm to take the end of the first for that of the next"
        )
    finally:
        os.kill(daemon, signal.SIGCONT)

    def over() -> bool:
        """Slurm drains a node that meets a number twice (“Duplicate jobid”) where it is quick enough, and an operator lets it go on."""
        console.slurm.sh("scontrol", "update", f"nodename={node}", "state=resume", check=False)
        console.tick()
        return Job.objects.get(pk=second.pk).state == JobState.COMPLETED

    wait_until(over, seconds=60, what="the next to be completed")

    assert outcomes(first) == [("completed", 0)]
    assert outcomes(second) == [("lost", None), ("completed", 0)]
    assert console.slurm_backend.logs(key=f"{second.public_id}.2", role="worker", index=0, offset=0, limit=99).text == "ran\n"
    assert not fleet_faults()
