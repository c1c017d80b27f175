"""The Slurm back-end against a real Slurm: real controller, real nodes, real processes; only the GPUs are links to /dev/null."""

import json
import shlex
import shutil
import threading
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpufleet.core.times import now
from scheduler.backends import manifests
from scheduler.backends.base import BackendRefused, NotFound, RunState, Signal
from scheduler.backends.slurm import client, logs
from scheduler.backends.slurm import site as site_of_slurm
from scheduler.backends.slurm.errors import SlurmSilent
from scheduler.backends.slurm.printed import allocated, hostlist, indices
from scheduler.backends.slurm.rest import job_of
from scheduler.backends.slurm.values import ENDED, SlurmJob
from scheduler.models import SlurmRun
from tests.scheduler.backends.slurm_site import ROLES, STAYS, UNKNOWN, seat, shell
from tests.servers import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.slurm]


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


def test_a_gang_whose_path_has_nothing_in_it_runs_and_ends_with_its_code(site):
    text = "echo ran; if [ $RANK = 1 ]; then exit 5; fi; exec /bin/sleep 300"
    site.start(on=[seat(0, "gpu001", 1), seat(1, "gpu002", 1)], launch=shell(text, env={"PATH": "/none"}))

    run = site.until(RunState.ENDED)

    assert (run.exit_code, site.log(1)) == (5, "ran\n")
    folder = Path(SlurmRun.objects.get().state["folder"])
    assert (folder / "worker-1.0.exit").read_text().split()[0] == "5"


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
    assert [worker.state for worker in site.until(RunState.RUNNING).workers] == [RunState.RUNNING] * 2


@pytest.mark.parametrize(("workers", "per"), [(1, "worker"), (2, "worker"), (2, "gpu")])
def test_the_ranks_below_a_launcher_save_and_the_launcher_does_not_die_of_it(site, workers, per):
    """As torchrun: it knows nothing of USR1, and its ranks are in sessions of their own."""
    rank = "trap 'echo saved' USR1; echo up; while [ ! -e $GPUFLEET_CHECKPOINT_DIR/go ]; do /bin/sleep 0.1; done"
    launch = {**shell(f"setsid --wait /bin/bash -c {shlex.quote(rank)}; echo $? is its code"), "per": per}
    seats = [seat(index, f"gpu00{index + 1}", 2) for index in range(workers)]
    site.start(on=seats, launch=launch, spec={**ROLES, "checkpoint": {"interval_s": 60}})
    site.until(RunState.RUNNING)
    ranks = 2 if per == "gpu" else 1

    def said(text: str) -> bool:
        return all(site.log(index).count(text) == ranks for index in range(workers))

    wait_until(lambda: said("up\n"), what="all to be up")
    site.backend.signal(key="j-1.1", sequence=2, signal=Signal.CHECKPOINT, now=now())
    wait_until(lambda: said("saved\n"), what="all to save")
    (Path(SlurmRun.objects.get().state["checkpoints"]) / "go").touch()

    assert site.until(RunState.ENDED).exit_code == 0
    assert said("0 is its code\n")


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
    # What Slurm has heard of is still ending when the order comes again.
    site.start(on=[seat(0, "gpu001", 8)], launch=shell("trap '' TERM; sleep 300" if hears else "sleep 300"))
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


@pytest.mark.soak
def test_what_is_killed_is_cancelled_with_one_command_and_again_only_after_a_while(site, monkeypatch):
    """Three jobs that ignore what asks them to leave, and one whose number was lost; Slurm gives them the time to end."""
    site.start(on=[seat(index, f"gpu00{index + 1}", index + 1) for index in range(3)], launch=shell(STAYS))
    site.until(RunState.RUNNING)
    row = SlurmRun.objects.get()
    ids = sorted(part["id"] for part in row.state["parts"])
    lost, row.state["parts"][2]["id"] = row.state["parts"][2]["id"], None
    row.save()
    commands: list[tuple[str, ...]] = []

    def hears_nothing(*words: str, **more: Any) -> str:
        commands.append(words)
        return "" if words[0] == "scancel" else run(*words, **more)

    run = site.client.run
    with monkeypatch.context() as deaf:
        deaf.setattr(site.client, "run", hears_nothing)
        site.backend.stop(key="j-1.1", sequence=5, force=True, now=now())
        looks = len(commands)
        for _ in range(3):
            site.seen()
        assert [sorted(map(int, words[2:])) for words in commands if words[0] == "scancel"] == [ids]
        assert [words[0] for words in commands[looks:]].count("squeue") == 3, "one for each look"
        deaf.setattr(site_of_slurm, "CANCELLED_EACH", 0.0)
        site.seen()
        assert [sorted(map(int, words[2:])) for words in commands if words[0] == "scancel"] == [ids, ids]
    assert lost in ids
    wait_until(lambda: site.seen() and all("CANCELLED" in line for line in site.mine()), seconds=60, what="all to be cancelled")


def test_one_of_many_that_has_ended_keeps_no_other_from_being_cancelled(site):
    held = ["--hold", "--job-name=gpufleet-x", "--nodes=1", "--output=/dev/null", "--chdir=/", *site.as_account()]
    first, second = (site.client.submit(held, "#!/bin/sh\nsleep 300\n") for _ in range(2))
    site.client.cancel([first])

    site.client.cancel([UNKNOWN, first, second], "--name=gpufleet-x")

    assert {job.id: job.state for job in site.client.jobs()}[second] == "CANCELLED"


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
        plain = settled(map(job_of, json.loads(site.client.run("squeue", "--json", "--all"))["jobs"]))
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


@pytest.mark.soak
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
    assert indices("shard:3(IDX:2)") == (2,)
    assert indices("gpu:h100:1(IDX:3),shard:h100:5(0/4,4/4,1/4,0/4)") == (1, 2, 3), "as newer versions of Slurm write shares"
    assert [allocated(f"cpu=2,node=2,{held}")["gpu_count"] for held in ("gres/gpu=8", "gres/shard=3", "gres/gpu=2,gres/mps=60", "billing=2")] == [
        8, 2, 4, 0,
    ]  # fmt: skip
