"""The Slurm back-end against a real Slurm: real controller, real nodes, real processes; only the GPUs are links to /dev/null."""

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any

import pytest

from gpufleet.core.times import now
from scheduler.backends import manifests
from scheduler.backends.base import BackendError, BackendRefused, NotFound, RunState, SeenRun, Signal, WorkerSeat
from scheduler.backends.slurm import client, logs
from scheduler.backends.slurm.backend import SlurmBackend
from scheduler.backends.slurm.client import ENDED, Settings, SlurmClient, SlurmJob, SlurmSilent, _job, hostlist, indices
from scheduler.backends.slurm.looking import AGREED, FORGOTTEN_FOR
from scheduler.backends.slurm.outcomes import outcome
from scheduler.backends.slurm.runs import Run
from scheduler.models import SlurmRun
from tests import builders
from tests.scheduler.backends.scenes import start_order
from tests.servers import accepts, free_port, required, wait_until
from tests.slurm import PATH, Slurm, missing

pytestmark = [pytest.mark.django_db, pytest.mark.slurm]


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    if package := missing():
        required("slurm", f"Slurm is not installed (Debian package {package}).")
    server = Slurm(nodes=4, gpus=8)
    yield server
    server.stop()


class Site:
    def __init__(self, slurm: Slurm, **client: Any) -> None:
        shared = slurm.dir / "shared"
        shared.mkdir(exist_ok=True)
        user = "nobody" if os.getuid() == 0 else ""
        self.slurm = slurm
        self.cluster = builders.cluster("hpc", backend="slurm")
        self.settings = Settings(conf=str(slurm.conf), user=user, folder=str(shared), tag=os.urandom(4).hex())
        self.client = SlurmClient(self.settings)
        self.restart()

    def restart(self) -> None:
        """A console that remembers nothing but its database."""
        self.backend = SlurmBackend(self.cluster.pk, self.settings, client=self.client)

    def start(self, key: str = "j-1.1", *, on: Sequence[WorkerSeat], **fields: Any) -> None:
        self.backend.start(replace(start_order(key), workers=tuple(on), **fields), now=now())

    def seen(self, key: str = "j-1.1", later: timedelta = timedelta()) -> SeenRun:
        return next(run for run in self.backend.observe(now=now() + later) if run.key == key)

    def missed(self) -> SeenRun:
        """The run when Slurm has not known it for long enough."""
        assert self.seen().state == RunState.STARTING, "it may still run on its node"
        return self.seen(later=FORGOTTEN_FOR)

    def until(self, state: RunState, key: str = "j-1.1") -> SeenRun:
        return wait_until(lambda: (run := self.seen(key)).state == state and run, seconds=60, what=f"{key} to be {state}: {self.mine()}")

    def log(self, index: int = 0, key: str = "j-1.1") -> str:
        return self.backend.logs(key=key, role="worker", index=index, offset=0, limit=1 << 16).text

    def mine(self) -> list[str]:
        return [f"{job.id} {job.state} {job.comment} {job.reason}" for job in self.client.jobs() if self.settings.tag in job.comment]

    def clear(self) -> None:
        self.client.cancel([job.id for job in self.client.jobs() if self.settings.tag in job.comment and not job.ended])
        wait_until(lambda: len(self.slurm.idle()) == len(self.slurm.names), seconds=30, what="all nodes to be idle")


@pytest.fixture
def site(slurm) -> Iterator[Site]:
    site = Site(slurm)
    yield site
    site.clear()


def seat(index: int, node: str, gpus: int) -> WorkerSeat:
    return WorkerSeat("worker", index, node, tuple(range(gpus)))


def shell(text: str, **more: Any) -> dict[str, Any]:
    return {"shell": text, **more}


STAYS = "trap '' TERM; sleep 300"  # until it is killed, so that it leaves no exit code
UNKNOWN = 4_000_000  # a number that no job has
ROLES = {"roles": [{"name": "worker", "min": 1, "gpus": 4, "cpus": 1.5}]}


def test_a_process_runs_on_its_node_with_its_gpus_and_ends_with_its_code(site):
    site.start(on=[seat(0, "gpu003", 4)], launch=shell('echo "$SLURMD_NODENAME $CUDA_VISIBLE_DEVICES $RANK/$WORLD_SIZE"; exit 3'))

    run = site.until(RunState.ENDED)

    assert site.log() == "gpu003 0,1,2,3 0/1\n"
    assert run.exit_code == 3
    assert "exit code 3" in run.why
    assert not run.node_lost


def test_a_gang_over_two_nodes_has_the_ranks_of_torchrun(site):
    text = 'echo "$SLURMD_NODENAME rank $RANK local $LOCAL_RANK of $WORLD_SIZE at $MASTER_ADDR $CUDA_VISIBLE_DEVICES"'
    site.start(on=[seat(0, "gpu001", 2), seat(1, "gpu004", 2)], launch=shell(text, per="gpu"))

    run = site.until(RunState.ENDED)

    assert run.exit_code == 0, run.why
    assert sorted(site.log(0).splitlines()) == [f"{rank}: gpu001 rank {rank} local {rank} of 4 at 127.0.0.1 0,1" for rank in (0, 1)]
    assert sorted(site.log(1).splitlines()) == [f"{rank - 2}: gpu004 rank {rank} local {rank - 2} of 4 at 127.0.0.1 0,1" for rank in (2, 3)]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_has_all_its_variables_and_its_log_to_itself(site, workers):
    """Also those whose names a script would choose for its own."""
    env = dict.fromkeys(("name", "node", "code", "said", "folder", "first", "pid", "pids", "task", "program", "keeper"), "mine")
    text = f"""echo "{" ".join(f"${one}" for one in env)}"; [ $RANK = 0 ] || sleep 300; kill -KILL $$"""
    site.start(on=[seat(index, f"gpu00{index + 1}", 1) for index in range(workers)], launch=shell(text, env=env))

    run = site.until(RunState.ENDED)

    assert site.log(0) == " ".join(env.values()) + "\n"
    assert run.exit_code == 137


def test_workers_of_one_node_get_gpus_of_their_own_and_nodes_that_differ_a_job_each(site):
    seats = (seat(0, "gpu001", 2), seat(1, "gpu001", 3), seat(2, "gpu002", 8))
    site.start(on=seats, launch=shell("echo $CUDA_VISIBLE_DEVICES; sleep 60"))

    run = site.until(RunState.RUNNING)
    wait_until(lambda: site.log(0) and site.log(1) and site.log(2), what="the three workers to write")

    shown = [set(site.log(index).strip().split(",")) for index in range(3)]
    assert [len(one) for one in shown] == [2, 3, 8]
    assert not shown[0] & shown[1]
    assert len([line for line in site.mine() if "RUNNING" in line]) == 2
    assert {worker.seat.index: len(worker.seat.gpus) for worker in run.workers} == {0: 2, 1: 3, 2: 8}


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


def test_a_gang_whose_path_has_nothing_in_it_runs_and_ends_with_its_code(site):
    text = "echo ran; if [ $RANK = 1 ]; then exit 5; fi; exec /bin/sleep 300"
    site.start(on=[seat(0, "gpu001", 1), seat(1, "gpu002", 1)], launch=shell(text, env={"PATH": "/none"}))

    run = site.until(RunState.ENDED)

    assert (run.exit_code, site.log(1)) == (5, "ran\n")
    folder = Path(SlurmRun.objects.get().state["folder"])
    assert (folder / "worker-1.0.exit").read_text().split()[0] == "5"


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


def test_a_worker_that_fails_ends_its_gang(site):
    text = 'if [ "$RANK" = 1 ]; then exit 9; fi; sleep 300'
    site.start(on=[seat(0, "gpu001", 1), seat(1, "gpu002", 1)], launch=shell(text))

    run = site.until(RunState.ENDED)

    assert run.exit_code == 9


def test_a_job_that_saves_is_signalled_then_asked_to_leave(site):
    steps = """echo '{"ranks": 1, "seconds": {"0": 1.5}}' > "$GPUFLEET_CHECKPOINT_DIR/steps.json"; """
    text = f"{steps}trap 'echo saving' USR1; trap 'echo leaving; exit 0' TERM; echo up; while :; do sleep 0.1; done"
    site.start(on=[seat(0, "gpu001", 1)], launch=shell(text), spec={**ROLES, "checkpoint": {"interval_s": 60}}, grace_seconds=2)
    site.until(RunState.RUNNING)
    wait_until(lambda: "up" in site.log(), what="it to be up")
    wait_until(lambda: [one.seconds for one in site.until(RunState.RUNNING).steps] == [((0, 1.5),)], what="its steps to be read")

    site.backend.signal(key="j-1.1", sequence=2, signal=Signal.CHECKPOINT, now=now())
    wait_until(lambda: "saving" in site.log(), what="it to save")
    site.backend.signal(key="j-1.1", sequence=3, signal=Signal.TERMINATE, now=now())
    run = site.until(RunState.ENDED)

    assert run.exit_code == 0
    assert "leaving" in site.log()


def test_single_processes_on_unequal_nodes_are_each_signalled(site):
    text = "trap 'echo saved' USR1; echo up; for i in $(seq 600); do sleep 0.1; done"
    site.start(on=[seat(0, "gpu001", 1), seat(1, "gpu002", 2)], launch=shell(text), spec={"checkpoint": {"interval_s": 60}})
    site.until(RunState.RUNNING)
    wait_until(lambda: all("up" in site.log(index) for index in (0, 1)), what="both to be up")
    site.backend.signal(key="j-1.1", sequence=2, signal=Signal.CHECKPOINT, now=now())

    wait_until(lambda: all("saved" in site.log(index) for index in (0, 1)), what="both to save")


def test_a_folder_that_does_not_answer_holds_up_no_look_and_its_run_waits_for_its_last_checkpoints(site, monkeypatch):
    real, answers = manifests.checkpoints_in, threading.Event()

    def hangs(*asked: Any) -> Any:
        assert answers.wait(60)
        return real(*asked)

    monkeypatch.setattr(manifests, "checkpoints_in", hangs)
    site.start(on=[seat(0, "gpu001", 1)], launch=shell('echo > "$GPUFLEET_CHECKPOINT_DIR/part"'), spec=ROLES)
    try:
        wait_until(lambda: any(job.ended for job in site.client.jobs() if site.settings.tag in job.comment), seconds=60, what="it to end")
        (end,) = [job.ended_at for job in site.client.jobs() if site.settings.tag in job.comment]
        assert [run.key for run in site.backend.observe(now=end + timedelta(seconds=1))] == []
        row = SlurmRun.objects.get()
        row.state["parts"][0]["id"] = UNKNOWN  # of a run that Slurm has forgotten nobody knows since when to wait
        row.save()
        assert (site.seen().state, site.seen().exit_code) == (RunState.ENDED, 0)
    finally:
        answers.set()


def test_force_ends_at_once_and_a_late_start_does_nothing(site):
    site.start(on=[seat(0, "gpu001", 8)], launch=shell("trap '' TERM; sleep 300"))
    site.until(RunState.RUNNING)

    site.backend.stop(key="j-1.1", sequence=5, force=True, now=now())
    site.until(RunState.ENDED)
    site.start(on=[seat(0, "gpu001", 8)], launch=shell("sleep 300"))

    assert [line for line in site.mine() if "PENDING" in line or "RUNNING" in line] == []


@pytest.mark.parametrize("hears", [False, True])
def test_a_stop_that_is_cut_off_is_known_and_carried_out_once(site, monkeypatch, hears):
    """The console dies before or after Slurm hears of it: the run is written down as stopped already, and a look or the order again ends it."""
    site.start(on=[seat(0, "gpu001", 8)], launch=shell("trap '' TERM; sleep 300"))
    site.until(RunState.RUNNING)
    cancel = site.client.cancel

    def cut_off(*told):
        if hears:
            cancel(*told)
        raise SystemExit

    monkeypatch.setattr(site.client, "cancel", cut_off)
    with pytest.raises(SystemExit):
        site.backend.stop(key="j-1.1", sequence=5, force=True, now=now())
    monkeypatch.undo()
    assert SlurmRun.objects.get().state["killed"]
    assert SlurmRun.objects.get().sequence < 5, "the order is sent again"
    site.restart()
    if hears:
        site.backend.stop(key="j-1.1", sequence=5, force=True, now=now())

    site.until(RunState.ENDED)


def test_a_submission_whose_answer_was_lost_is_found_again_and_never_doubled(site, monkeypatch):
    """The console dies between Slurm's taking the job and writing its number down."""
    lost = []
    submit = site.client.submit

    def submit_then_die(arguments, script):
        lost.append(submit(arguments, script))
        raise SlurmSilent("the answer was lost")

    monkeypatch.setattr(site.client, "submit", submit_then_die)
    with pytest.raises(SlurmSilent):
        site.start(on=[seat(0, "gpu001", 1)], launch=shell("sleep 300"))
    monkeypatch.undo()
    site.restart()

    site.start(on=[seat(0, "gpu001", 1)], launch=shell("sleep 300"))
    site.until(RunState.RUNNING)

    assert [job.id for job in site.client.jobs() if site.settings.tag in job.comment] == lost


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


def test_what_a_worker_leaves_that_was_given_up_says_nothing_of_the_one_in_its_place(site, monkeypatch):
    """It may end, and well, when the other is submitted already and waits."""
    told = replace(start_order("j-1.1"), launch=shell("trap 'exit 0' TERM; while :; do sleep 0.1; done", in_place=True), spec={})
    first, second, elsewhere = seat(0, "gpu001", 4), seat(1, "gpu002", 4), seat(1, "gpu004", 4)
    site.backend.start(replace(told, workers=(first, second)), now=now())
    site.until(RunState.RUNNING)
    folder = Path(SlurmRun.objects.get().state["folder"])
    with monkeypatch.context() as held:
        held.setattr(site.client, "release", lambda ids: None)
        site.backend.resize(key="j-1.1", sequence=2, add=[elsewhere], leave=[], now=now(), order=replace(told, workers=(first, elsewhere)))
        wait_until(lambda: list(folder.glob("worker-1*.exit")), what="the worker that was given up to leave its code")

        assert [worker.state for worker in site.seen().workers] == [RunState.RUNNING, RunState.STARTING]
    site.until(RunState.RUNNING)
    assert [(worker.seat.node, worker.state) for worker in site.seen().workers] == [("gpu001", RunState.RUNNING), ("gpu004", RunState.RUNNING)]


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


def test_of_starts_that_are_told_together_each_begins_once_whatever_befalls_another(site, monkeypatch):
    """One can never run, and of one the answer is lost: those are told, the others run, and being told again doubles none."""
    orders = [replace(start_order(f"j-{number}.1"), workers=(seat(0, "gpu001", 1),), launch=shell("sleep 300")) for number in range(1, 6)]
    orders[1] = replace(orders[1], launch={})
    submit = site.client.submit

    def submit_and_lose_one(arguments, script):
        number = submit(arguments, script)
        if "--job-name=gpufleet-j-4.1" in arguments:
            raise SlurmSilent("the answer was lost")
        return number

    def tell() -> list[str]:
        faults = []
        with site.backend.together():
            site.backend.announce(orders, now=now())
            for order in orders:
                try:
                    site.backend.start(order, now=now())
                except BackendError as fault:
                    faults.append(f"{order.key} {type(fault).__name__}")
        return faults

    monkeypatch.setattr(site.client, "submit", submit_and_lose_one)
    first = tell()
    monkeypatch.undo()
    site.restart()
    again = tell()

    assert "j-4.1 SlurmSilent" in first
    assert "j-2.1" in " ".join(first)
    assert again == ["j-2.1 BackendRefused"]
    for key in ("j-1.1", "j-3.1", "j-4.1", "j-5.1"):
        site.until(RunState.RUNNING, key)
    assert sorted(job.comment.split()[2] for job in site.client.jobs() if site.settings.tag in job.comment and not job.ended) == [
        "j-1.1", "j-3.1", "j-4.1", "j-5.1",
    ]  # fmt: skip


def test_what_is_submitted_may_run_while_the_rest_is_submitted_and_a_failed_release_is_made_good(site, monkeypatch):
    orders = [replace(start_order(f"j-{number}.1"), workers=(seat(0, "gpu001", 1),), launch=shell("sleep 300")) for number in (1, 2, 3)]
    submitted: list[int] = []
    releases: list[Sequence[int]] = []
    began, submit, release = threading.Event(), site.client.submit, site.client.release

    def submitting(arguments: Sequence[str], script: str) -> int:
        if len(submitted) == 2:
            assert began.wait(60), "the first one is released only when all are submitted"
        submitted.append(submit(arguments, script))
        return submitted[-1]

    def releasing(ids: Sequence[int]) -> None:
        releases.append(ids)
        began.set()
        if len(releases) == 1:
            raise BackendError("not now")
        release(ids)

    monkeypatch.setattr("scheduler.backends.slurm.orders.STARTS_A_STEP", 1)
    monkeypatch.setattr(site.client, "submit", submitting)
    monkeypatch.setattr(site.client, "release", releasing)
    with site.backend.together():
        site.backend.announce(orders, now=now())
        for order in orders:
            site.backend.start(order, now=now())

    assert releases == [submitted[:1], submitted[:2], submitted[2:]], "what failed is released with the next"
    for order in orders:
        site.until(RunState.RUNNING, order.key)


def test_what_another_leader_wrote_while_starts_were_submitted_together_stays(site, monkeypatch):
    """Of three, one was stopped meanwhile, and one was submitted by the other leader too."""
    orders = [replace(start_order(f"j-{number}.1"), workers=(seat(0, "gpu001", 1),), launch=shell("sleep 300")) for number in (1, 2, 3)]
    submit = site.client.submit
    theirs = {}

    def other_leader(pool, runs):
        """All are submitted, and nothing of it is written down yet."""
        faults = submit_all(pool, runs)
        stopped, doubled = (SlurmRun.objects.get(attempt_key=key) for key in ("j-1.1", "j-2.1"))
        stopped.sequence, stopped.state["stopping"], stopped.state["term_at"] = 7, now().isoformat(), now().isoformat()
        (mine,) = (job for job in site.client.jobs() if "j-2.1" in job.comment and site.settings.tag in job.comment)
        arguments = ["--hold", f"--comment={mine.comment}", "--job-name=gpufleet-j-2.1", "--nodes=1", "--output=/dev/null", "--chdir=/"]
        doubled.state["parts"][0]["id"] = theirs["j-2.1"] = submit(arguments, "#!/bin/sh\nsleep 300\n")
        stopped.save()
        doubled.save()
        return faults

    submit_all = site.backend._submit_all
    monkeypatch.setattr(site.backend, "_submit_all", other_leader)
    with site.backend.together():
        site.backend.announce(orders, now=now())
        for order in orders:
            site.backend.start(order, now=now())

    kept = {row.attempt_key: row for row in SlurmRun.objects.all()}
    assert (kept["j-1.1"].sequence, bool(kept["j-1.1"].state["stopping"])) == (7, True)
    assert kept["j-2.1"].state["parts"][0]["id"] == theirs["j-2.1"]
    site.until(RunState.RUNNING, "j-2.1")
    site.until(RunState.RUNNING, "j-3.1")
    site.until(RunState.ENDED, "j-1.1")
    states = {job.id: (job.comment.split()[2], job.state) for job in site.client.jobs() if site.settings.tag in job.comment}
    assert states.pop(theirs["j-2.1"]) == ("j-2.1", "RUNNING")
    assert sorted(states.values()) == [("j-1.1", "CANCELLED"), ("j-2.1", "CANCELLED"), ("j-3.1", "RUNNING")]


def test_one_start_that_fails_in_a_way_nobody_thought_of_is_told_alone_and_silence_costs_one_wait(site, monkeypatch):
    orders = [replace(start_order(f"j-{number}.1"), workers=(seat(0, "gpu001", 1),), launch=shell("true")) for number in (1, 2, 3)]
    orders[1] = replace(orders[1], launch={"shell": "true", "env": 7})
    with site.backend.together():
        site.backend.announce(orders, now=now())
        assert [order.key for order in orders if order.key in site.backend._held.announced] == ["j-1.1", "j-3.1"]

    asked = []

    def silent(*_arguments):
        asked.append(1)
        raise SlurmSilent("nobody answers")

    site.restart()
    monkeypatch.setattr(site.client, "nodes", silent)
    with site.backend.together():
        later = [replace(order, key=f"j-9.{number}", launch=shell("true")) for number, order in enumerate(orders)]
        site.backend.announce(later, now=now())
        for order in later:
            with pytest.raises(BackendError, match="nobody answers"):
                site.backend.start(order, now=now())
    assert asked == [1]


def test_a_double_that_came_late_is_cancelled_unstarted(site):
    site.start(on=[seat(0, "gpu001", 1)], launch=shell("sleep 300"))
    site.until(RunState.RUNNING)
    (mine,) = (job for job in site.client.jobs() if site.settings.tag in job.comment)
    late = site.client.submit(["--hold", f"--comment={mine.comment}", "--nodes=1", "--output=/dev/null", "--chdir=/"], "#!/bin/sh\nsleep 300\n")

    site.backend.observe(now=now())

    states = {job.id: job.state for job in site.client.jobs()}
    assert states[late] == "CANCELLED"
    assert states[mine.id] == "RUNNING"


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


def test_what_was_cancelled_because_slurm_forgot_another_part_is_not_why_a_gang_ended(site):
    site.start(on=[seat(0, "gpu001", 2), seat(1, "gpu002", 3)], launch=shell(STAYS))
    site.until(RunState.RUNNING)
    row = SlurmRun.objects.get()
    forgotten, row.state["parts"][0]["id"] = row.state["parts"][0]["id"], UNKNOWN
    row.save()
    site.slurm.sh("scancel", "--full", "--signal=KILL", forgotten)  # its script too, so that it leaves no exit code

    run = site.until(RunState.ENDED)

    assert (run.exit_code, run.node_lost) == (None, True)
    assert "no longer knows" in run.why


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
        site.client.seconds = 2
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


def test_jobs_of_others_are_not_touched(site):
    theirs = site.client.submit(["--nodes=1", "--gres=gpu:1", "--output=/dev/null", "--chdir=/"], "#!/bin/sh\nsleep 300\n")
    try:
        site.start(on=[seat(0, "gpu001", 1)], launch=shell("exit 0"))
        site.until(RunState.ENDED)
        site.backend.observe(now=now())

        assert next(job for job in site.client.jobs() if job.id == theirs).state in ("PENDING", "RUNNING")
    finally:
        site.client.cancel([theirs])


HOSTILE = "$(touch {mark}) `touch {mark}` '; touch {mark}; ' \" \n#SBATCH --comment=owned\n#SBATCH --nodelist=gpu004\n"


def test_hostile_values_reach_no_shell_and_add_no_option(site):
    mark = site.slurm.dir / "shared" / "owned"
    mark.parent.chmod(0o777)
    hostile = HOSTILE.format(mark=mark)
    launch = {"command": ["/usr/bin/printf", "%s", hostile], "env": {"HOSTILE": hostile}}
    site.start(on=[seat(0, "gpu001", 1)], launch=launch, spec=ROLES, owner=hostile, resume_from=hostile)

    run = site.until(RunState.ENDED)

    assert run.exit_code == 0, run.why
    assert site.log() == hostile
    assert not mark.exists()
    assert all("owned" not in line for line in site.mine())


STRANGE = (
    "two\nlines\t| \x1f\x7f",
    "42|RUNNING|gpufleet",
    "x" * 600,
    "\u202eדליעָ 作业 \u2028 \U0001f4a5",
    "a UserId=root(0) JOB_GRES=gpu:8 Nodes=gpu[1-999999999] CPU_IDs=0 Mem=1 GRES=gpu:h100:8(IDX:0-7) MinCPUsNode=1",
    b"\xff\xfe".decode("utf-8", "surrogateescape"),
)


def test_what_others_call_their_jobs_is_read_as_they_wrote_it(site):
    site.start(on=[seat(0, "gpu001", 2)], launch=shell("sleep 300"))
    site.until(RunState.RUNNING)
    sbatch = ("sbatch", "--parsable", "--gres=gpu:1", "--nodelist=gpu002", "--chdir=/", "--output=/dev/null", "--wrap=sleep 300")
    theirs = [int(site.slurm.sh(*sbatch, f"--job-name={text}", f"--comment={text}")) for text in STRANGE]
    site.slurm.sh("scancel", "--hurry", str(theirs[1]))
    try:

        def settled(jobs: Iterable[SlurmJob]) -> dict[int, SlurmJob]:
            """Those of this test; what earlier ones left may change between two looks."""
            return {job.id: job for job in jobs if job.id in theirs or job.state == "RUNNING"}

        def read() -> dict[int, SlurmJob]:
            return settled(site.client.with_gpus(site.client.jobs()))

        for number in theirs:
            states = ENDED if number == theirs[1] else {"RUNNING"}  # what is still completing may change between two looks
            wait_until(lambda number=number, states=states: read()[number].state in states, seconds=30, what=f"{number} to be settled")
        # Slurm's own JSON, which costs more, is how they are told as they are.
        plain = settled(map(_job, json.loads(site.client.run("squeue", "--json", "--all"))["jobs"]))
        assert read() == plain
        assert [read()[number].comment for number in theirs[:-1]] == list(STRANGE[:-1])
        assert len({gpu for number in theirs for gpu in read()[number].gpus.get("gpu002", ())}) == len(STRANGE) - 1
        assert site.seen().state == RunState.RUNNING
    finally:
        site.client.cancel(theirs)


def test_gpus_that_could_not_be_read_are_asked_for_again_and_the_others_once(site, monkeypatch):
    """Of three calls for a job each, one answers, one says nothing of it, and one is not answered. Having none is an answer."""
    gpus = {f"j-{number}.1": int(number < 4) for number in (1, 2, 3, 4)}
    keys = sorted(gpus)
    for key in keys:
        site.start(key, on=[seat(0, "gpu001", gpus[key])], launch=shell("sleep 300"))
    for key in keys:
        site.until(RunState.RUNNING, key)
    site.restart()
    asked, run = [], site.client.run

    def partly(*words: str, **more: Any) -> str:
        if words[:2] != ("scontrol", "--details"):
            return run(*words, **more)
        asked.append(words)
        if len(asked) == 3:
            raise SlurmSilent("nobody answers")
        return "" if len(asked) == 2 else run(*words, **more)

    monkeypatch.setattr(client, "JOBS_A_CALL", 1)
    monkeypatch.setattr(site.client, "run", partly)
    looks = [site.backend.observe(now=now()) for _ in range(3)]

    assert [[run.key for run in look] for look in looks] == [keys, keys, keys]
    assert {run.workers[0].seat.gpus for run in looks[1]} == {(0,), (1,), (2,), ()}
    assert looks[2] == looks[1]
    assert len(asked) == 3 + 3


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        ({"shell": "true", "workdir": "relative"}, "not an absolute path"),
        ({"shell": "true", "env": {"A B": "1"}}, "not a name of a variable"),
        ({"shell": "true", "secrets": {"A": "none"}}, "no secret"),
        ({"shell": "true", "image": "x:1"}, "runs no images"),
        ({}, "no command"),
    ],
)
def test_what_can_never_run_is_refused_with_the_reason(site, launch, words):
    with pytest.raises(BackendRefused, match=words):
        site.start(on=[seat(0, "gpu001", 1)], launch=launch)


@pytest.mark.parametrize("workers", [1, 2])
def test_logs_on_the_nodes_are_fetched_when_asked_for_copied_at_the_end_and_what_is_left_is_told(site, monkeypatch, workers):
    monkeypatch.setattr(logs, "GATHERED_EACH", 0.0)
    local = site.slurm.dir / "local logs"
    local.mkdir(exist_ok=True)
    local.chmod(0o1777)
    site.settings = site.client.settings = replace(site.settings, node_logs=str(local))
    site.restart()
    seats = [seat(index, f"gpu00{index + 1}", 1) for index in range(workers)]
    text = "echo one; until [ -e $GPUFLEET_CHECKPOINT_DIR/go ]; do /bin/sleep 0.1; done; echo two; [ $RANK = 0 ] || exec /bin/sleep 300; exit 3"
    site.start(on=seats, launch=shell(text, env={"PATH": "/none"}))
    row = SlurmRun.objects.get()
    folder, go = Path(row.state["folder"]), Path(row.state["checkpoints"]) / "go"
    site.until(RunState.RUNNING)
    wait_until(lambda: len(list(local.glob("gpufleet-*/worker-*.log"))) == workers, what="all to write")
    assert not list(folder.glob("worker-*.log"))
    wait_until(lambda: [site.log(index) for index in range(workers)] == ["one\n"] * workers, what="it to be fetched")
    go.touch()
    assert site.until(RunState.ENDED).exit_code == 3
    assert site.log(0) == "one\ntwo\n"
    assert not list(folder.glob("local-*"))
    assert not list(local.iterdir())

    # Asked to leave, it says its last word; killed, it has a moment only, and what it wrote before that is copied or told.
    for key, text in (("j-2.1", "trap '' USR1; trap 'echo asked; exit 0' TERM; "), ("j-2.2", "")):
        site.start(key, on=seats, launch=shell(f"{text}echo one; while :; do sleep 0.1; done"))
        site.until(RunState.RUNNING, key)
        wait_until(lambda: site.log(0, key) == "one\n", what="it to write")  # noqa: B023 (called within the turn)
        if text:
            site.backend.signal(key=key, sequence=5, signal=Signal.TERMINATE, now=now())
        else:
            site.backend.stop(key=key, sequence=5, force=True, now=now())
        site.until(RunState.ENDED, key)
        site.backend.forget(keys=[key], now=now())
    assert "asked\n" in site.log(0, "j-2.1")
    assert site.log(0, "j-2.2").startswith("one\n")
    if list(Path(SlurmRun.objects.get(attempt_key="j-2.2").state["folder"]).glob("local-*")):
        assert "What is missing is on gpu001 in" in site.log(0, "j-2.2")

    shutil.rmtree(local)
    site.start("j-3.1", on=seats, launch=shell("echo one"))
    site.until(RunState.ENDED, "j-3.1")
    assert site.log(0, "j-3.1").endswith("this log is written to the shared folder.\none\n")


def test_a_node_that_slurm_does_not_have_is_refused(site):
    with pytest.raises(BackendRefused, match="knows no node"):
        site.start(on=[seat(0, "gpu999", 1)], launch=shell("true"))


def test_a_log_is_never_read_through_a_link(site):
    site.start(on=[seat(0, "gpu001", 1)], launch=shell("true"))
    site.until(RunState.ENDED)
    folder = Path(SlurmRun.objects.get().state["folder"])
    (folder / "worker-0.log").unlink()
    (folder / "worker-0.log").symlink_to("/etc/shadow")

    with pytest.raises((NotFound, Exception), match="cannot be read"):
        site.log()


def test_names_and_indices_are_read_as_slurm_writes_them():
    assert hostlist("gpu[001-003,7],login,r[1-2]n[01-02]") == (
        "gpu001", "gpu002", "gpu003", "gpu7", "login", "r1n01", "r1n02", "r2n01", "r2n02",
    )  # fmt: skip
    assert hostlist("") == ()
    assert indices("gpu:h100:3(IDX:0-1,5)") == (0, 1, 5)
    assert indices("gpu:h100:0(IDX:N/A)") == ()


@pytest.fixture
def rest(slurm) -> Iterator[str]:
    if shutil.which("slurmrestd", path=PATH) is None or not slurm.has_jwt():
        required("slurm", "slurmrestd with JWT is not installed (Debian packages slurmrestd and slurm-wlm-jwt-plugin).")
    address = f"127.0.0.1:{free_port()}"
    env = {**slurm.env, "SLURM_JWT": "daemon", "SLURMRESTD_SECURITY": "disable_user_check"}
    command = ["slurmrestd", "-s", "openapi/v0.0.38", "-a", "rest_auth/jwt", address]
    with (slurm.dir / "log/slurmrestd.log").open("wb") as log:
        server = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    wait_until(lambda: accepts(int(address.rpartition(":")[2])), what="slurmrestd to listen")
    yield f"http://{address}"
    server.terminate()
    server.wait(10)


def test_slurmrestd_shows_the_same_as_the_commands(site, rest):
    site.start(on=[seat(0, "gpu002", 4)], launch=shell("sleep 300"))
    site.until(RunState.RUNNING)
    by_rest = SlurmClient(replace(site.settings, rest_url=rest))

    assert [(job.id, job.state, job.comment, job.gpus) for job in sorted(by_rest.jobs(), key=lambda job: job.id)] == [
        (job.id, job.state, job.comment, job.gpus) for job in sorted(site.client.with_gpus(site.client.jobs()), key=lambda job: job.id)
    ]
    assert [(node.name, node.gres, node.cpus) for node in by_rest.nodes()] == [(node.name, node.gres, node.cpus) for node in site.client.nodes()]
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
