"""Runs on a real Slurm that are resized in place: workers who join, leave, are given up or replaced."""

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from gpufleet.core.times import now
from scheduler.backends.base import BackendError, RunState, Signal, WorkerSeat
from scheduler.backends.slurm.client import SlurmClient
from scheduler.backends.slurm.errors import SlurmSilent
from scheduler.backends.slurm.looking import AGREED
from scheduler.backends.slurm.outcomes import began, outcome
from scheduler.models import SlurmRun
from tests.scheduler.backends.scenes import start_order
from tests.scheduler.backends.slurm_site import UNKNOWN, seat, shell
from tests.servers import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.slurm]


def test_a_worker_joins_once_leaves_alone_and_is_cancelled_where_it_was_given_up(site, monkeypatch):
    told = replace(start_order("j-1.1"), launch=shell("trap 'exit 0' TERM; while :; do sleep 0.1; done", in_place=True), spec={})
    first, second, third = (seat(index, f"gpu00{index + 1}", 4) for index in range(3))
    elsewhere = seat(1, "gpu004", 4)

    def resized(sequence: int, workers: Sequence[WorkerSeat], *, add: Sequence[WorkerSeat] = (), leave: Sequence[int] = ()) -> None:
        names = [("worker", index) for index in leave]
        order = replace(told, workers=tuple(workers))
        site.backend.resize(key="j-1.1", sequence=sequence, add=add, leave=names, now=now(), order=order)

    def jobs() -> dict[str, int]:
        return {job.nodes[0]: job.id for job in site.client.jobs() if site.settings.tag in job.comment and not job.ended and job.nodes}

    site.backend.start(replace(told, workers=(first, second)), now=now())
    site.until(RunState.RUNNING)
    begun = jobs()
    submit = SlurmClient.submit

    def lost(self: SlurmClient, *submission: Any) -> int:
        submit(self, *submission)
        raise SlurmSilent("The answer was lost.")

    with monkeypatch.context() as patched:
        patched.setattr(SlurmClient, "submit", lost)
        with pytest.raises(BackendError):
            resized(2, (first, second, third), add=[third])
    for _ in range(2):
        site.restart()
        resized(2, (first, second, third), add=[third])
    wait_until(lambda: len(jobs()) == 3 and site.seen().state == RunState.RUNNING, seconds=60, what="worker 2 to run")
    grown = jobs()
    assert begun.items() <= grown.items()
    assert [worker.state for worker in site.seen().workers] == [RunState.RUNNING] * 3

    resized(3, (first, second), leave=[2])
    resized(2, (first, second, third), add=[third])  # late
    wait_until(lambda: site.seen() and jobs() == begun, seconds=60, what="worker 2 alone to leave")
    assert [worker.seat.index for worker in site.seen().workers] == [0, 1]

    resized(4, (first, elsewhere), add=[elsewhere])
    wait_until(lambda: site.seen().state == RunState.RUNNING and set(jobs()) == {"gpu001", "gpu004"}, seconds=60, what="worker 1 to move")
    assert jobs()["gpu001"] == begun["gpu001"]
    assert [(worker.seat.node, worker.state) for worker in site.seen().workers] == [("gpu001", RunState.RUNNING), ("gpu004", RunState.RUNNING)]


def test_slurm_is_neither_asked_nor_told_within_a_transaction(site, monkeypatch):
    """Of a connection that is idle in one for 5 s the server gets rid, and a command may take as long."""
    outside, run, commands = len(connection.savepoint_ids), site.client.run, []

    def watched(*words: Any, **more: Any) -> str:
        commands.append((words[0], len(connection.savepoint_ids) - outside))
        return run(*words, **more)

    monkeypatch.setattr(site.client, "run", watched)
    told = replace(start_order("j-1.1"), launch=shell("sleep 300", in_place=True), spec={})
    first, second, elsewhere = seat(0, "gpu001", 4), seat(1, "gpu002", 4), seat(1, "gpu004", 4)
    site.backend.start(replace(told, workers=(first, second)), now=now())
    site.until(RunState.RUNNING)
    site.restart()
    site.backend.resize(key="j-1.1", sequence=2, add=[elsewhere], leave=[], now=now(), order=replace(told, workers=(first, elsewhere)))
    wait_until(lambda: site.seen().state == RunState.RUNNING, seconds=60, what="worker 1 to move")
    site.backend.stop(key="j-2.1", sequence=1, force=True, now=now())

    assert {"sbatch", "squeue", "scancel", "sinfo"} <= {name for name, _ in commands}
    assert [name for name, depth in commands if depth] == []


def test_a_run_that_was_begun_while_a_stop_of_it_found_nothing_in_slurm_is_ended(site, monkeypatch):
    look = site.client.jobs

    def begun_meanwhile() -> Any:
        found = look()
        monkeypatch.undo()
        site.start(on=[seat(0, "gpu001", 1)], launch=shell("sleep 300"))
        return found

    monkeypatch.setattr(site.client, "jobs", begun_meanwhile)
    site.backend.stop(key="j-1.1", sequence=4, force=True, now=now())

    site.until(RunState.ENDED)
    wait_until(lambda: all("CANCELLED" in line for line in site.mine()), what="it to be cancelled")


def test_what_a_worker_leaves_that_was_given_up_says_nothing_of_the_one_in_its_place(site, monkeypatch):
    """It may end, and well, when the other is submitted already and waits."""
    told = replace(start_order("j-1.1"), launch=shell("trap 'exit 0' TERM; while :; do sleep 0.1; done", in_place=True), spec={})
    first, second, elsewhere = seat(0, "gpu001", 4), seat(1, "gpu002", 4), seat(1, "gpu004", 4)
    site.backend.start(replace(told, workers=(first, second)), now=now())
    site.until(RunState.RUNNING)
    folder = Path(SlurmRun.objects.get().state["folder"])

    def move() -> None:
        site.backend.resize(key="j-1.1", sequence=2, add=[elsewhere], leave=[], now=now(), order=replace(told, workers=(first, elsewhere)))

    with monkeypatch.context() as held:
        held.setattr(site.client, "release", lambda ids: None)
        move()
        wait_until(lambda: list(folder.glob("worker-1*.exit")), what="the worker that was given up to leave its code")

        assert [worker.state for worker in site.seen().workers] == [RunState.RUNNING, RunState.STARTING]
    move()  # told again, as nobody has heard that it was released
    site.until(RunState.RUNNING)
    assert [(worker.seat.node, worker.state) for worker in site.seen().workers] == [("gpu001", RunState.RUNNING), ("gpu004", RunState.RUNNING)]


def test_a_worker_that_joins_has_not_begun_because_the_one_before_in_its_place_had(site):
    """Both write to the log of the worker."""
    told = replace(start_order("j-1.1"), launch=shell("echo $SLURMD_NODENAME; exec sleep 300", in_place=True), spec={})
    first, second, elsewhere = seat(0, "gpu001", 4), seat(1, "gpu002", 4), seat(1, "gpu004", 4)
    site.backend.start(replace(told, workers=(first, second)), now=now())
    site.until(RunState.RUNNING)
    wait_until(lambda: site.log(1) == "gpu002\n", what="the first in the place to write")
    site.slurm.sh("scontrol", "update", "nodename=gpu004", "state=drain", "reason=test")
    try:
        site.backend.resize(key="j-1.1", sequence=2, add=[elsewhere], leave=[], now=now(), order=replace(told, workers=(first, elsewhere)))
        run = site.backend._of_row(SlurmRun.objects.get())
        part = run.parts[1]
        [job] = [job for job in site.client.jobs() if job.id == part["id"]]
        assert job.state == "PENDING"
        code, why, lost = outcome(run, part, replace(job, state="COMPLETED", exit_code=0))
        assert (code, lost, "which had not begun" in why) == (None, True, True)
        assert not began(run, part, job)
    finally:
        site.slurm.sh("scontrol", "update", "nodename=gpu004", "state=resume")

    wait_until(lambda: site.log(1).endswith("\ngpu004\n"), seconds=60, what="the next in the place to write")
    assert began(run, part, job)


def test_a_worker_that_waits_for_a_drained_node_is_asked_for_nothing_and_given_up_and_one_that_somebody_cancels_ends_no_other(site):
    text = "trap 'echo saved' USR1; echo up; for i in $(seq 600); do sleep 0.1; done"
    told = replace(start_order("j-1.1"), launch=shell(text, in_place=True), spec={"checkpoint": {"interval_s": 60}})
    seats = [seat(index, f"gpu00{index + 1}", 4) for index in range(4)]
    site.slurm.sh("scontrol", "update", "nodename=gpu002", "state=drain", "reason=bad cable")
    try:
        site.backend.start(replace(told, workers=tuple(seats[:3])), now=now())
        ids = {part["seats"][0]["index"]: part["id"] for part in SlurmRun.objects.get().state["parts"]}
        wait_until(lambda: all("up" in site.log(index) for index in (0, 2)), what="the others to be up")
        # Slurm is never asked to signal what waits: scancel tries that for a minute and a half.
        site.backend.signal(key="j-1.1", sequence=2, signal=Signal.CHECKPOINT, now=now())
        wait_until(lambda: "saved" in site.log(0) and "saved" in site.log(2), what="those who run to save")

        # Told late that it starts, it grows meanwhile, and neither begins anything twice.
        site.restart()
        SlurmRun.objects.update(sequence=1)
        site.backend.start(replace(told, workers=tuple(seats)), now=now())
        site.backend.resize(key="j-1.1", sequence=3, add=[seats[2]], leave=[("worker", 0)], now=now(), order=replace(told, workers=tuple(seats[:3])))
        wait_until(lambda: site.log(0).count("saved") == 2, what="all to be asked before one leaves")
        parts = SlurmRun.objects.get().state["parts"]
        assert {part["seats"][0]["index"]: part["id"] for part in parts} == ids
        assert not any("to_save" in part for part in parts)

        row = SlurmRun.objects.get()
        for part in row.state["parts"]:
            part["at"] = (now() - AGREED).isoformat()
        row.save()
        states = {worker.seat.index: worker.state for worker in site.seen().workers}
        assert (states[1], states[2]) == (RunState.ENDED, RunState.RUNNING)
        job = next(job for job in site.client.jobs() if job.id == ids[1])
        assert job.state == "CANCELLED", "its GPUs are thought free from now on"
    finally:
        site.slurm.sh("scontrol", "update", "nodename=gpu002", "state=resume", check=False)

    site.backend.start(replace(told, key="j-2.1", workers=(seats[1], seats[3])), now=now())
    site.until(RunState.RUNNING, "j-2.1")
    site.client.cancel([SlurmRun.objects.get(attempt_key="j-2.1").state["parts"][1]["id"]])
    wait_until(lambda: RunState.ENDED in {worker.state for worker in site.seen("j-2.1").workers}, what="the cancelled one to end")
    assert site.seen("j-2.1").state == RunState.RUNNING


def test_a_worker_that_somebody_cancels_is_the_jobs_and_the_date_of_a_file_hides_no_run(site):
    site.start(on=[seat(0, "gpu001", 2), seat(1, "gpu002", 3)], launch=shell("trap 'exit 0' TERM; sleep 300 & wait"))
    site.until(RunState.RUNNING)
    wait_until(lambda: len(list(Path(SlurmRun.objects.get().state["folder"]).glob("*.log"))) == 2, what="both to begin")
    row = SlurmRun.objects.get()
    jobs = {job.id: job for job in site.client.jobs()}
    part = row.state["parts"][1]
    job = jobs[part["id"]]
    over = replace(job, state="CANCELLED", exit_code=0, ended_at=job.started_at + timedelta(hours=1))
    assert outcome(site.backend._of_row(row), part, over)[2] is False, "it ran"

    folder = Path(row.state["folder"])
    site.start("j-2.1", on=[seat(0, "gpu003", 1)], launch=shell("sleep 300"))
    site.until(RunState.RUNNING, "j-2.1")
    for index in range(2):
        (folder / f"worker-{index}.{index}.exit").write_text("0\n")
        os.utime(folder / f"worker-{index}.{index}.exit", (300_000_000_000, 300_000_000_000))
        row.state["parts"][index]["id"] = UNKNOWN + index
    row.save()
    try:
        assert [run.state for run in site.backend.observe(now=now())] == [RunState.ENDED, RunState.RUNNING]
    finally:
        site.client.cancel([number for number in jobs if jobs[number].comment.split(" ")[1:2] == [site.settings.tag]])
