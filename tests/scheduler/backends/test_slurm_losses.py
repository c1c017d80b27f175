"""What Slurm, its nodes or its controller did to a run is told as lost, and what the job did as its own."""

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpufleet.core.times import now
from scheduler.backends.base import BackendError, NotFound, RunState, Signal
from scheduler.backends.slurm import looking
from scheduler.backends.slurm.errors import SlurmSilent
from scheduler.backends.slurm.looking import AGREED
from scheduler.backends.slurm.outcomes import completed_at, outcome
from scheduler.backends.slurm.runs import Run, state_of
from scheduler.backends.slurm.site import jobs_of_others
from scheduler.backends.slurm.values import SlurmJob
from scheduler.models import SlurmRun
from tests.scheduler.backends.slurm_site import STAYS, UNKNOWN, seat, shell
from tests.servers import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.slurm]


def test_the_end_of_a_job_that_slurm_forgot_is_known(site):
    """Longer ago than MinJobAge, or a controller that lost its state: a process alone leaves its exit code behind as those of a gang do."""
    for index, code in enumerate((0, 5), 1):
        site.start(f"j-{index}.1", on=[seat(0, "gpu001", index)], launch=shell(f"exit {code}", env={"PATH": "/none"}))
    wait_until(lambda: [line for line in site.mine() if "RUNNING" in line or "PENDING" in line] == [], what="both to end")
    site.slurm.end("slurmctld")
    site.slurm.start_controller("-c")
    wait_until(lambda: site.slurm.idle() == set(site.slurm.names), what="the nodes to be back")
    assert site.mine() == []

    later = now() + timedelta(minutes=1)
    runs = site.backend.observe(now=later)
    assert [(run.exit_code, run.node_lost) for run in runs] == [(0, False), (5, False)]
    assert all(run.ended_at is not None and run.ended_at < later - timedelta(seconds=30) for run in runs), "when they left their codes"
    assert all(run.started_at is not None and run.started_at <= run.ended_at for run in runs), "and when they began"


def test_what_runs_and_ends_while_a_look_reads_is_not_taken_for_forgotten_and_not_cancelled(site, monkeypatch):
    jobs, release, cancel = site.client.jobs, site.client.release, site.client.cancel
    held: list[int] = []
    cancelled: list[int] = []

    def read_slowly() -> list[SlurmJob]:
        found = jobs()
        release(held)
        wait_until(lambda: all(job.ended for job in jobs() if job.id in held), what="it to end")
        return found

    monkeypatch.setattr(site.client, "release", held.extend)
    monkeypatch.setattr(site.client, "cancel", lambda ids, *flags: cancelled.extend(ids) or cancel(ids, *flags))
    site.start(on=[seat(0, "gpu001", 1)], launch=shell("true"))
    monkeypatch.setattr(site.client, "jobs", read_slowly)
    run = site.seen()
    monkeypatch.setattr(site.client, "jobs", jobs)

    assert (run.state, cancelled) == (RunState.STARTING, [])
    assert site.until(RunState.ENDED).exit_code == 0


@pytest.mark.parametrize(("code", "missing", "lost"), [(137, True, True), (137, False, False), (3, True, False)])
def test_what_its_node_ends_because_slurm_forgot_it_is_lost(tmp_path, code, missing, lost):
    """Whether the script still leaves the code of its killed process then is a matter of chance."""
    run = Run("j-1.1", 1, now().isoformat(), folder=str(tmp_path))
    part = {"number": 0, "id": 7, "nodes": ["gpu001"], "seats": [{"role": "worker", "index": 0}]} | (
        {"missing": now().isoformat()} if missing else {}
    )
    (tmp_path / "worker-0.0.exit").write_text(f"{code} 1800000000\n")

    told = outcome(run, part, None)

    assert (told[0], told[2]) == ((None, True) if lost else (code, False))


@pytest.mark.parametrize(
    ("left", "state", "code", "again", "lost"),
    [
        ("", "FAILED", 3, False, True),
        ("", "FAILED", 126, False, False),
        ("", "COMPLETED", 0, False, True),
        ("143", "COMPLETED", 0, False, True),
        ("3", "FAILED", 3, True, False),
        ("137", "FAILED", 137, False, False),
        ("137", "FAILED", 137, True, True),
        ("143", "FAILED", 143, True, True),
        ("", "OUT_OF_MEMORY", 137, True, False),
    ],
)
def test_an_end_is_the_jobs_own_where_its_script_says_so(tmp_path, left, state, code, again, lost):
    """Its script leaves a code whatever its program does. One that was killed leaves none, and of one whose number another job had before Slurm may
    have ended the programs for that: `again`. Or its node has begun one late that Slurm took for completed, and ended it at once."""
    run = Run("j-2.1", 1, now().isoformat(), folder=str(tmp_path))
    part = {"number": 0, "id": 7, "nodes": ["gpu001"], "seats": [{"role": "worker", "index": 0}], "single": True}
    (tmp_path / "worker-0.log").touch()
    if left:
        (tmp_path / "worker-0.0.exit").write_text(f"{left} 1800000000\n")
    job = SlurmJob(7, state, "", "", ("gpu001",), {}, code, False, "", now() - timedelta(minutes=1), now())

    told = outcome(run, part, job, lambda number: again and number == 7)

    assert (told[0], told[2]) == ((None, True) if lost else (code, False)), told
    assert outcome(replace(run, killed=True), part, job, lambda _: again)[2] is (lost and state == "COMPLETED"), "what we ended was ended by us"


@pytest.mark.parametrize(
    ("left", "lost"), [(["0", "0"], False), (["0", None], True), (["0", "143"], True), (["0", ""], False)], ids=["both", "one", "killed", "disk full"]
)
def test_a_gang_has_completed_only_where_each_of_its_workers_has(tmp_path, left, lost):
    """What Slurm calls so may be the end of the job that had its number before, and an earlier start may have left codes."""
    run = Run("j-2.1", 1, now().isoformat(), folder=str(tmp_path))
    part = {"number": 0, "id": 7, "nodes": ["gpu001", "gpu002"], "seats": [{"role": "worker", "index": index} for index in (0, 1)]}
    for index, code in enumerate(left):
        (tmp_path / f"worker-{index}.log").touch()
        if code is not None:
            (tmp_path / f"worker-{index}.0.exit").write_text(f"{code} 1800000000\n" if code else "")
    job = SlurmJob(7, "COMPLETED", "", "", ("gpu001", "gpu002"), {}, 0, False, "", now() - timedelta(minutes=1), now())

    code, why, is_lost = outcome(run, part, job)

    assert (code, is_lost, why.endswith("which had not ended on gpu001, gpu002.")) == (None if lost else 0, lost, lost)


@pytest.mark.parametrize(
    ("began", "ran", "code", "lost"),
    [(-2, 0, 143, True), (-2, 1, 137, True), (0, 0, 143, False), (-1, 0, 143, False), (-2, 30, 143, False), (-2, 0, 3, False)],
    ids=["refused", "killed", "cancelled at its start", "on a node a second behind", "cancelled later", "ended by itself"],
)
def test_a_second_start_that_its_node_refuses_ends_a_run_that_is_lost(tmp_path, began, ran, code, lost):
    """A controller that was killed forgets that it started a job, and starts it again while it runs: the node launches no second copy and has all
    of it cancelled. By what the script left it had begun before Slurm says so; who cancels a job that has run for a while meant it."""
    run = Run("j-2.1", 1, now().isoformat(), folder=str(tmp_path))
    part = {"number": 0, "id": 7, "nodes": ["gpu001"], "seats": [{"role": "worker", "index": 0}], "single": True}
    started = now().replace(microsecond=0) - timedelta(minutes=1)
    (tmp_path / "worker-0.log").touch()
    (tmp_path / "worker-0.0.exit").write_text(f"{code} {int(started.timestamp()) + began}\n")
    job = SlurmJob(7, "CANCELLED", "", "", ("gpu001",), {}, code, False, "", started, started + timedelta(seconds=ran))

    told = outcome(run, part, job)

    assert (told[0], told[2]) == ((None, True) if lost else (code, False)), told
    assert outcome(replace(run, killed=True), part, job)[2] is False, "what we ended was ended by us"


@pytest.mark.parametrize(
    ("state", "ran", "code", "left", "completed"),
    [
        ("CANCELLED", 0, 0, 0.4, True),
        ("CANCELLED", 2, 0, 0.9, True),
        ("CANCELLED", 0, 0, 1.4, False),
        ("CANCELLED", 60, 0, 0.4, False),
        ("CANCELLED", 0, 143, 0.4, False),
        ("NODE_FAIL", 60, 0, 0.4, False),
    ],
    ids=["at its start", "soon after it", "a second later", "by somebody", "by a signal", "its node failed"],
)
def test_what_left_exit_code_0_in_the_second_in_which_slurm_cancelled_it_at_its_start_is_completed(tmp_path, state, ran, code, left, completed):
    """Slurm tells whole seconds. What it ends later may have been asked to leave in that second, and have left 0."""
    run = Run("j-2.1", 1, now().isoformat(), folder=str(tmp_path))
    part = {"number": 0, "id": 7, "nodes": ["gpu001"], "seats": [{"role": "worker", "index": 0}], "single": True}
    started = now().replace(microsecond=0) - timedelta(minutes=5)
    ended = started + timedelta(seconds=ran)
    (tmp_path / "worker-0.log").touch()
    file = tmp_path / "worker-0.0.exit"
    file.write_text(f"0 {int(started.timestamp())}\n")
    os.utime(file, (ended.timestamp() + left,) * 2)
    job = SlurmJob(7, state, "", "", ("gpu001",), {}, code, False, "", started, ended)

    assert (completed_at(run, part, job, now()) == ended + timedelta(seconds=left)) is completed
    assert completed_at(replace(run, stopping=now().isoformat()), part, job, now()) is None, "what we ended was ended by us"


def test_what_slurm_ends_for_the_job_that_had_its_number_before_is_lost_and_what_ends_itself_is_not(site):
    """Its controller lost its state, and gave a number again under which an older job still ran somewhere."""
    for key, before in (("j-1.1", False), ("j-2.1", True)):
        site.start(key, on=[seat(0, "gpu001", 1), seat(1, "gpu002", 1)], launch=shell("echo up; sleep 300"))
        site.until(RunState.RUNNING, key)
        wait_until(lambda key=key: "up" in site.log(0, key) and "up" in site.log(1, key), what=f"{key} to be up")
        (part,) = SlurmRun.objects.get(attempt_key=key).state["parts"]
        if before:
            SlurmRun.objects.create(cluster=site.cluster, attempt_key="j-0.1", state={"parts": [{"id": part["id"]}]}, forgotten_at=now())
        site.slurm.sh("scancel", "--signal=KILL", f"{part['id']}.0")

        run = site.until(RunState.ENDED, key)

        assert (run.exit_code, run.node_lost) == ((None, True) if before else (137, False)), run.why


def test_what_somebody_kills_with_its_script_is_lost(site):
    site.start(on=[seat(0, "gpu001", 1)], launch=shell("echo $PPID; sleep 300"))
    wait_until(lambda: site.log().strip().isdigit(), what="it to be up")
    script = int(site.log())
    while (parent := int(Path(f"/proc/{script}/stat").read_text().rpartition(")")[2].split()[1])) and b"slurmstepd" not in _name_of(parent):
        script = parent
    for pid in (script, *map(int, _children(script))):  # those above first: none is left that says how the one below ended
        os.kill(pid, 9)

    run = site.until(RunState.ENDED)

    assert (run.exit_code, run.node_lost) == (None, True), run.why
    assert "did not end by itself" in run.why


def _name_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/comm").read_bytes()


def _children(pid: int) -> list[str]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [*found, *(one for child in found for one in _children(int(child)))]


def test_the_first_task_of_a_worker_that_fails_says_its_code_and_its_last_line(site):
    """Not that of the one which srun ends because of it, and though a process that it leaves behind keeps its output open."""
    text = 'if [ "$LOCAL_RANK" = 0 ]; then exec sleep 300; fi; sleep 300 & echo last; exit 5'
    site.start(on=[seat(0, "gpu001", 2)], launch=shell(text, per="gpu"))

    run = site.until(RunState.ENDED)

    assert run.exit_code == 5
    assert site.log().startswith("1: last\n")
    assert "exit code 5" in run.why


def test_what_a_start_left_that_slurm_has_forgotten_says_nothing_of_the_next(site, monkeypatch):
    """A controller that forgot the start ends its workers and starts the same job again."""
    release = site.client.release

    def after_one_start(ids: Sequence[int]) -> None:
        folder = Path(SlurmRun.objects.get().state["folder"])
        for name in [*(f"{kind}.{one}" for kind in ("first", "lost", "worker-0.failed") for one in ids), "worker-0.0.exit"]:
            (folder / name).write_text("137\n")
            (folder / name).chmod(0o666)
        release(ids)

    monkeypatch.setattr(site.client, "release", after_one_start)
    site.start(on=[seat(0, "gpu001", 1), seat(1, "gpu002", 1)], launch=shell("true"))

    run = site.until(RunState.ENDED)

    assert (run.exit_code, run.why, run.node_lost) == (0, "", False)


def test_a_number_that_slurm_gave_to_another_job_is_not_taken_for_ones_own(site):
    """A controller that is killed forgets its last jobs, and gives their numbers again."""
    for key in ("j-1.1", "j-2.1"):
        site.start(key, on=[seat(0, "gpu001", 1)], launch=shell(STAYS))
        site.until(RunState.RUNNING, key)
    first, second = (SlurmRun.objects.get(attempt_key=key) for key in ("j-1.1", "j-2.1"))
    own, first.state["parts"][0]["id"] = first.state["parts"][0]["id"], second.state["parts"][0]["id"]
    first.save()
    site.slurm.sh("scancel", own)

    missed = site.missed()
    assert (missed.state, missed.node_lost) == (RunState.ENDED, True)
    site.backend.stop(key="j-1.1", sequence=9, force=True, now=now())
    site.backend.signal(key="j-1.1", sequence=10, signal=Signal.TERMINATE, now=now())
    site.backend.observe(now=now())

    assert site.seen("j-2.1").state == RunState.RUNNING
    assert [line.split()[1] for line in site.mine() if "j-2.1" in line] == ["RUNNING"]
    with pytest.raises(NotFound, match="no longer knows"):
        site.backend.reach(key="j-1.1")

    theirs = site.client.submit(["--hold", "--nodes=1", "--output=/dev/null", "--chdir=/"], "#!/bin/sh\nsleep 300\n")
    site.start("j-3.1", on=[seat(0, "gpu001", 1)], launch=shell("sleep 300"))
    told_again = SlurmRun.objects.get(attempt_key="j-3.1")
    told_again.state["parts"][0]["id"] = theirs
    told_again.save()
    site.start("j-3.1", on=[seat(0, "gpu001", 1)], launch=shell("sleep 300"))
    try:
        assert next(job for job in site.client.jobs() if job.id == theirs).held
    finally:
        site.client.cancel([theirs])


def test_a_job_whose_comment_the_site_rewrote_is_known_by_its_name(site):
    site.start(on=[seat(0, "gpu001", 1)], launch=shell("sleep 300"))
    site.until(RunState.RUNNING)
    (mine,) = (job.id for job in site.client.jobs() if site.settings.tag in job.comment)
    site.slurm.sh("scontrol", "update", f"JobId={mine}", "Comment=billed to physics")
    try:
        assert site.seen().state == RunState.RUNNING
        assert str(mine) in site.backend.reach(key="j-1.1").shell
        # Of another console's job of that name its comment says so.
        site.slurm.sh("scontrol", "update", f"JobId={mine}", "Comment=gpufleet other j-1.1 0 1 x")
        assert site.missed().state == RunState.ENDED
    finally:
        site.client.cancel([mine])


def rewritten(site: Any, *ids: int) -> None:
    """As a plugin of a site does before the submission is answered."""
    for one in ids:
        site.slurm.sh("scontrol", "update", f"JobId={one}", "Comment=billed to physics")


def test_a_lost_submission_is_found_where_the_site_rewrites_comments(site, monkeypatch):
    """Each part by the file of its output, and of a stop that comes first all; never a job of that name that is another console's."""
    submit, lost = site.client.submit, []

    def submit_and_lose(arguments: Sequence[str], script: str) -> int:
        lost.append(submit(arguments, script))
        rewritten(site, lost[-1])
        raise BackendError("the answer was lost")

    other = ["--hold", "--job-name=gpufleet-j-1.1", "--comment=billed", "--output=/dev/null", "--chdir=/", *site.as_account()]
    theirs = submit(other, "#!/bin/sh\nsleep 300\n")
    seats = [seat(0, "gpu001", 1), seat(1, "gpu002", 2)]
    try:
        with monkeypatch.context() as losing:
            losing.setattr(site.client, "submit", submit_and_lose)
            for _ in seats:
                with pytest.raises(BackendError):
                    site.start(on=seats, launch=shell("sleep 300"))
        site.start(on=seats, launch=shell("sleep 300"))

        assert [part["id"] for part in SlurmRun.objects.get().state["parts"]] == lost
        site.until(RunState.RUNNING)
        SlurmRun.objects.all().delete()
        site.backend.stop(key="j-1.1", sequence=5, force=True, now=now())
        states = {job.id: job.state for job in site.client.jobs()}
        assert {states[one] for one in lost} <= {"CANCELLED", "COMPLETING"}
        assert states[theirs] == "PENDING"
    finally:
        site.client.cancel([theirs, *lost])


def test_our_own_jobs_are_no_jobs_outside_where_the_site_rewrites_comments(site):
    site.start(on=[seat(0, "gpu001", 1)], launch=shell("sleep 300"))
    site.until(RunState.RUNNING)
    (own,) = SlurmRun.objects.get().state["parts"]
    rewritten(site, own["id"])
    try:
        others = jobs_of_others(site.cluster.pk, site.settings, site.client.jobs(), now=now())
        assert own["id"] not in {job.id for job in others}
    finally:
        site.client.cancel([own["id"]])


NO_ALLOCATION = "srun: error: Unable to confirm allocation for job 3: Invalid job id specified"


NOT_LAUNCHED = "srun: error: Task launch for StepId=2.0 failed on node gpu002: Zero Bytes were transmitted or received"


NO_STEP = "srun: error: Unable to create step for job 34: Invalid generic resource (gres) specification"


@pytest.mark.parametrize(("said", "code"), [(NO_ALLOCATION, 1), (NOT_LAUNCHED, 141), (NO_STEP, 1)])
def test_an_exit_code_of_srun_itself_is_not_the_jobs(site, monkeypatch, said, code):
    """Of a killed controller or node daemon srun ends with these words, and no program has failed."""
    programs = site.slurm.dir / "shared/programs"
    programs.mkdir(exist_ok=True)
    (programs / "srun").write_text(f"#!/bin/sh\n[ $GROUP_RANK = 0 ] && sleep 300\necho '{said}' >&2\nexit {code}\n")
    (programs / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    site.start(on=[seat(0, "gpu001", 1), seat(1, "gpu002", 1)], launch=shell("sleep 300"))

    site.until(RunState.RUNNING)
    (mine,) = (job for job in site.client.jobs() if site.settings.tag in job.comment)
    wait_until(lambda: (Path(SlurmRun.objects.get().state["folder"]) / f"lost.{mine.id}").exists(), what="srun to fail")
    site.client.cancel([mine.id], "--signal=KILL", "--full")
    run = site.until(RunState.ENDED)
    assert (run.exit_code, run.node_lost) == (None, True)
    assert "could not start worker-1" in run.why

    row = SlurmRun.objects.get()
    row.state["parts"][0]["id"] = UNKNOWN  # the controller has forgotten it
    row.save()
    missed = site.missed()
    assert (missed.exit_code, missed.node_lost) == (None, True)


@pytest.mark.soak
def test_what_was_cancelled_because_slurm_forgot_another_part_is_not_why_a_gang_ended(site):
    site.start(on=[seat(0, "gpu001", 2), seat(1, "gpu002", 3)], launch=shell(STAYS))
    site.until(RunState.RUNNING)
    row = SlurmRun.objects.get()
    forgotten, row.state["parts"][0]["id"] = row.state["parts"][0]["id"], UNKNOWN
    row.save()
    site.slurm.sh("scancel", "--full", "--signal=KILL", forgotten)  # its script too, so that it leaves no exit code

    run = site.until(RunState.ENDED)

    assert (run.exit_code, run.node_lost) == (None, True)
    # Which of both it says depends on whether what was killed could still leave an exit code.
    assert run.why.startswith(("Slurm no longer knows job 4000000", "Slurm forgot job 4000000"))


def test_a_job_that_slurm_cancels_before_it_runs_is_lost_and_one_that_somebody_cancels_is_not(site, monkeypatch):
    """slurmd takes no job whose number it still runs; Slurm cancels that one, and drains the node. Where the other ends first, its end is taken for
    that of the one that waits."""
    site.start(on=[seat(0, "gpu001", 1)], launch=shell("echo up; sleep 300"))
    site.until(RunState.RUNNING)
    wait_until(lambda: "up" in site.log(), what="it to be up")
    (job,) = (job for job in site.client.jobs() if site.settings.tag in job.comment)
    at_once = replace(job, state="CANCELLED", exit_code=0, ended_at=job.started_at)
    late = replace(at_once, ended_at=job.started_at + timedelta(seconds=10))

    def told(job: SlurmJob) -> tuple[Any, ...]:
        monkeypatch.setattr(site.client, "jobs", lambda: [job])
        run = site.seen()
        return run.state, run.exit_code, run.node_lost

    lost = (RunState.ENDED, None, True)
    assert [told(at_once), told(replace(at_once, nodes=())), told(late)] == [lost, lost, (RunState.ENDED, 1, False)]
    log = Path(SlurmRun.objects.get().state["folder"]) / "worker-0.log"
    log.rename(log.with_suffix(".away"))
    assert told(late) == lost, "no node has begun with it"
    assert site.seen().started_at is None
    log.with_suffix(".away").rename(log)
    monkeypatch.undo()
    site.slurm.sh("scancel", job.id)
    assert not site.until(RunState.ENDED).node_lost


def test_a_run_on_a_node_that_slurm_drained_ends_unstarted_and_says_why(site):
    site.slurm.sh("scontrol", "update", "nodename=gpu002", "state=drain", "reason=bad cable")
    try:
        site.start(on=[seat(0, "gpu002", 8), seat(1, "gpu003", 4)], launch=shell("sleep 300"))
        assert site.seen().state == RunState.STARTING
        row = SlurmRun.objects.get()
        row.state["at"] = (now() - AGREED).isoformat()
        row.save()
        run = site.until(RunState.ENDED)
    finally:
        site.slurm.sh("scontrol", "update", "nodename=gpu002", "state=resume", check=False)

    assert (run.exit_code, run.node_lost) == (None, True)
    assert run.why.endswith("gpu002 is drain (bad cable).")
    assert {line.split()[1] for line in site.mine()} == {"CANCELLED"}


def test_a_node_that_goes_down_is_the_hardwares_fault(site):
    site.start(on=[seat(0, "gpu002", 8)], launch=shell("echo up; sleep 300"))
    site.until(RunState.RUNNING)
    wait_until(lambda: "up" in site.log(), what="it to be up")

    site.slurm.sh("scontrol", "update", "nodename=gpu002", "state=down", "reason=xid79")
    try:
        run = site.until(RunState.ENDED)
    finally:
        site.slurm.sh("scontrol", "update", "nodename=gpu002", "state=resume", check=False)

    assert run.node_lost
    assert run.started_at is not None
    assert "gpu002" in run.why


def test_a_controller_that_is_away_is_told_in_time_and_nothing_is_lost(site, monkeypatch):
    site.start(on=[seat(0, "gpu001", 1)], launch=shell("echo up; sleep 300"))
    site.until(RunState.RUNNING)

    site.slurm.end("slurmctld")
    try:
        site.client.seconds = 1
        with pytest.raises(SlurmSilent):
            site.backend.observe(now=now())
        with pytest.raises(SlurmSilent):
            site.start("j-2.1", on=[seat(0, "gpu004", 1)], launch=shell("sleep 300"))
        asked, run = [], site.client.run
        monkeypatch.setattr(site.client, "run", lambda *words, **more: asked.append(words[0]) or run(*words, **more))
        with site.backend.together():
            for sequence, force in ((5, True), (6, False), (7, True)):
                with pytest.raises(SlurmSilent):
                    site.backend.stop(key="j-1.1", sequence=sequence, force=force, now=now())
        assert asked == ["scancel"], "many stops wait for it once"
        monkeypatch.undo()
    finally:
        site.slurm.start_controller()
        site.client.seconds = 5
    wait_until(lambda: "UP" in site.slurm.sh("scontrol", "ping", check=False), what="the controller to be back")

    site.until(RunState.ENDED)  # it is known that it was to be stopped
    site.start("j-2.1", on=[seat(0, "gpu004", 1)], launch=shell("sleep 300"))
    site.until(RunState.RUNNING, "j-2.1")
    assert len([line for line in site.mine() if "j-2.1" in line]) == 1


@pytest.mark.parametrize("newer", [False, True])
def test_a_look_that_was_paused_writes_over_nothing_of_another_leader(site, monkeypatch, newer):
    """It wakes up between reading the row and writing down that Slurm no longer knows a part: another has killed the run, or replaced a worker."""
    site.start(on=[seat(0, "gpu001", 1), seat(1, "gpu002", 2)], launch=shell("sleep 300"))
    site.until(RunState.RUNNING)
    row = SlurmRun.objects.get()
    row.state["parts"][0]["id"] = UNKNOWN
    row.save()

    def other_leader(*_: Any) -> None:
        theirs = SlurmRun.objects.get()
        theirs.state["killed"] = True
        if newer:
            theirs.sequence = 7
            theirs.state["parts"][0] |= {"id": UNKNOWN + 1, "number": 3000}
        theirs.save()

    monkeypatch.setattr(looking, "left_at", other_leader)
    assert site.seen().state == RunState.STARTING

    row = SlurmRun.objects.get()
    assert row.state["killed"]
    assert row.sequence == (7 if newer else 1)
    assert row.state["parts"][0]["id"] == (UNKNOWN + 1 if newer else UNKNOWN)
    assert ("missing" in row.state["parts"][0]) is not newer
    monkeypatch.undo()
    for part in row.state["parts"]:
        site.client.cancel([part["id"]])


def test_a_start_that_another_leader_was_first_with_is_left_to_be_told_again(site, monkeypatch):
    new = site.backend._new

    def begun_by_another(*told: Any) -> Run:
        run = new(*told)
        SlurmRun.objects.create(cluster=site.cluster, attempt_key=run.key, sequence=9, state=state_of(Run(run.key, 9, now().isoformat())))
        return run

    with monkeypatch.context() as paused:
        paused.setattr(site.backend, "_new", begun_by_another)
        paused.setattr(site.backend, "_read", lambda key: None)
        with pytest.raises(BackendError, match="another scheduler"):
            site.start(on=[seat(0, "gpu001", 1)], launch=shell("exit 0"))
    assert SlurmRun.objects.get().state["parts"] == []
    assert site.mine() == []
