"""A gang of unequal nodes is several jobs of Slurm, which begins each by itself: no program of it is started before all have begun."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpufleet.core.times import now
from scheduler.backends.base import RunState, SeenRun, Signal
from scheduler.backends.slurm import looking
from scheduler.backends.slurm.looking import AGREED, APART
from scheduler.models import Attempt, Job, JobState, Placement, SlurmCluster, SlurmRun
from scheduler.services.hardware.slurm_nodes import slurm_nodes_reconcile
from tests.invariants import fleet_faults
from tests.scheduler.backends.scenes import start_order
from tests.scheduler.backends.slurm_site import Site, seat, shell
from tests.scheduler.backends.test_slurm_end_to_end import console, job_on  # noqa: F401 - a fixture
from tests.servers import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.slurm]
UNEQUAL = [seat(0, "gpu001", 8), seat(1, "gpu002", 4)]


def outside(site: Any, node: str, gpus: int = 8) -> int:
    """A job that Slurm runs beside the console's, of which that knows nothing yet."""
    what = [f"--nodelist={node}", f"--gres=gpu:{gpus}", "--job-name=theirs", "--output=/dev/null", "--chdir=/"]
    number = site.client.submit(what, "#!/bin/sh\nsleep 300\n")
    wait_until(lambda: any(job.id == number and job.running for job in site.client.jobs()), what="a job outside to run")
    return number


def a_part_runs(site: Site) -> None:
    wait_until(lambda: any("RUNNING" in line for line in site.mine()), what="a part of the gang to begin")
    wait_until(lambda: list(Path(SlurmRun.objects.get().state["folder"]).glob("*.log")), what="its script to begin")


def withdrawn(site: Site) -> tuple[SeenRun, SeenRun]:
    """What is told of a run that a job outside keeps from its node when that has lasted for long enough, and in the end."""
    assert (site.seen().state, site.seen().why) == (RunState.STARTING, "")
    assert site.seen(later=AGREED - timedelta(seconds=1)).why == ""
    told = site.seen(later=AGREED + timedelta(seconds=1))
    return told, site.until(RunState.ENDED)


def test_a_gang_of_which_a_job_outside_keeps_a_part_from_its_node_starts_no_program_and_is_given_up(site):
    theirs = outside(site, "gpu002")
    try:
        site.start(on=UNEQUAL, launch=shell("echo ran; sleep 300"))
        a_part_runs(site)
        told, run = withdrawn(site)
    finally:
        site.client.cancel([theirs])

    assert f"on gpu002, where job {theirs} outside gpufleet runs. No program was started." in told.why
    assert (run.exit_code, run.node_lost, run.started_at) == (None, True, None)
    assert run.why == told.why
    assert "ran" not in site.log(0)


def test_it_begins_together_when_that_job_ends_in_time(site):
    theirs = outside(site, "gpu002")
    site.start(on=UNEQUAL, launch=shell("date +%s.%N; sleep 300"))
    a_part_runs(site)
    site.client.cancel([theirs])

    site.until(RunState.RUNNING)

    began = wait_until(lambda: site.log(0) and site.log(1) and [float(site.log(index)) for index in (0, 1)], what="both programs to begin")
    last = max(job.started_at for job in site.client.jobs() if site.settings.tag in job.comment)
    assert min(began) >= last.timestamp(), "Slurm tells whole seconds, so that it is never told too late"
    assert abs(began[0] - began[1]) < 5


def test_one_that_waits_for_its_other_part_saves_nothing_and_is_gone_at_once(site):
    """Its programs have not begun: it has nothing to save, and is not asked to leave in its grace."""
    theirs = outside(site, "gpu002")
    spec = {**start_order("j-1.1").spec, "checkpoint": {"interval_s": 60}}
    try:
        site.start(on=UNEQUAL, launch=shell("echo ran; sleep 300"), spec=spec, grace_seconds=2)
        a_part_runs(site)
        site.backend.signal(key="j-1.1", sequence=2, signal=Signal.CHECKPOINT, now=now())
        assert site.seen().state == RunState.STARTING
        site.backend.signal(key="j-1.1", sequence=3, signal=Signal.TERMINATE, now=now())
        site.until(RunState.ENDED)
    finally:
        site.client.cancel([theirs])
    assert "ran" not in site.log(0)


def test_a_part_that_waits_for_something_else_is_waited_for_longer(site):
    """As its backfill looks only now and then."""
    site.slurm.sh("scontrol", "create", "reservation", "ReservationName=kept", "StartTime=now", "Duration=10", "Nodes=gpu002", "Users=root")
    try:
        site.start(on=UNEQUAL, launch=shell("echo ran; sleep 300"))
        a_part_runs(site)
        assert site.seen().why == ""
        assert site.seen(later=APART - timedelta(seconds=1)).why == ""
        assert "on gpu002: " in site.seen(later=APART + timedelta(seconds=1)).why
        site.until(RunState.ENDED)
    finally:
        site.slurm.sh("scontrol", "delete", "ReservationName=kept")


def test_a_worker_of_a_run_resized_in_place_that_a_job_outside_keeps_away_is_lost(site):
    theirs = outside(site, "gpu002")
    told = replace(start_order("j-1.1"), launch=shell("echo ran; sleep 300", in_place=True), spec={})
    try:
        site.backend.start(replace(told, workers=tuple(UNEQUAL)), now=now())
        wait_until(lambda: site.log(0) == "ran\n", what="the other to run")
        site.seen()
        states = {worker.seat.index: worker.state for worker in site.seen(later=AGREED + timedelta(seconds=1)).workers}
        assert states == {0: RunState.RUNNING, 1: RunState.ENDED}
    finally:
        site.client.cancel([theirs])


def test_a_job_on_one_node_that_a_job_outside_has_taken_is_given_up_as_soon_as_a_gang(site):
    theirs = outside(site, "gpu002")
    try:
        site.start(on=[seat(0, "gpu002", 4)], launch=shell("echo ran; sleep 300"))
        told, run = withdrawn(site)
    finally:
        site.client.cancel([theirs])

    assert f"on gpu002, where job {theirs} outside gpufleet runs." in told.why
    assert (run.exit_code, run.node_lost, run.started_at, run.why) == (None, True, None, told.why)


def test_a_job_that_has_room_beside_a_job_outside_is_waited_for(site):
    """Slurm itself has a reason not to begin it yet, as its backfill that looks only now and then."""
    theirs = outside(site, "gpu002", gpus=4)
    site.slurm.sh(
        "scontrol", "create", "reservation", "ReservationName=kept", "StartTime=now", "Duration=10", "Nodes=gpu002", "Users=root", "Flags=IGNORE_JOBS"
    )
    try:
        site.start(on=[seat(0, "gpu002", 4)], launch=shell("sleep 300"))
        assert site.seen().why == ""
        assert site.seen(later=APART + timedelta(seconds=1)).why == ""
    finally:
        site.slurm.sh("scontrol", "delete", "ReservationName=kept")
        site.client.cancel([theirs])
    site.until(RunState.RUNNING)


def test_whose_a_job_is_that_runs_beside_is_found_once_in_a_look(site, monkeypatch):
    """Not once for each part that waits."""
    theirs = [outside(site, node) for node in ("gpu002", "gpu003")]
    try:
        site.start(on=[*UNEQUAL, seat(2, "gpu003", 2)], launch=shell("sleep 300"))
        a_part_runs(site)
        asked: list[int] = []
        is_ours = site.backend._is_ours
        monkeypatch.setattr(site.backend, "_is_ours", lambda job: asked.append(job.id) or is_ours(job))
        site.seen()
        with_one = asked.count(theirs[0])
    finally:
        site.client.cancel(theirs)
    assert with_one == 2, "for its GPUs, and for what it keeps from others"


@pytest.mark.soak
def test_the_job_is_planned_again_without_the_node_that_was_taken(console, monkeypatch):  # noqa: F811
    monkeypatch.setattr(looking, "AGREED", timedelta(seconds=1))
    values = {name: getattr(console.settings, name) for name in ("conf", "user", "folder", "tag")}
    SlurmCluster.objects.create(cluster_id=console.cluster, changed_at=now(), **values)
    theirs = outside(console, "gpu001")
    try:
        job = job_on("sleep 300", workers=2, gpus=8)
        roles = [{"name": "head", "min": 1, "gpus": 4, "cpus": 2}, {"name": "worker", "min": 1, "gpus": 8, "cpus": 2}]
        Job.objects.filter(pk=job.pk).update(spec={"roles": roles}, gpus_milli=12_000)
        wait_until(lambda: console.tick() or Attempt.objects.filter(job=job, outcome="lost").exists(), seconds=60, what="its first start to be lost")
        slurm_nodes_reconcile(now=now())
        console.until(job, JobState.RUNNING)
        nodes = set(Placement.objects.filter(job=job, until__isnull=True).values_list("node__name", flat=True))
        assert "gpu001" not in nodes
        assert fleet_faults() == []
    finally:
        console.client.cancel([theirs])
