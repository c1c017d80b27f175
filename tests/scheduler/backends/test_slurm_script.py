"""What Slurm is asked for, and what a script does by itself, as far as no Slurm is needed to see it."""

import grp
import os
import pwd
import shlex
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from scheduler.backends.base import StartOrder, WorkerSeat
from scheduler.backends.slurm.client import as_account
from scheduler.backends.slurm.script import TELL_ALL, Places, parts_of, script_of
from scheduler.backends.slurm.values import SlurmNode
from scheduler.hardware.slurm import KnownType, document_of
from tests.scheduler.backends.scenes import start_order
from tests.servers import wait_until


@pytest.mark.parametrize(("cpus", "asked"), [(7.5, 56), (8, 64), (0.5, 8), (None, 8)])
def test_workers_get_no_more_processors_than_they_were_placed_on(cpus: float | None, asked: int) -> None:
    """Eight workers of 7.5 were placed on 60; 64 would never start. Each has one at least, as Slurm starts no task without."""
    seats = tuple(WorkerSeat("worker", number, "gpu001", (number,)) for number in range(8))
    spec = {"roles": [{"name": "worker", "min": 8, "gpus": 1} | ({"cpus": cpus} if cpus else {})]}

    (part,) = parts_of(StartOrder("k", 1, "j-1", 1, seats, {"shell": "true"}, spec, ""))

    assert (part.cpus, part.nodes, len(part.seats)) == (asked, ("gpu001",), 8)


def test_an_import_takes_back_labels_that_slurm_no_longer_gives_and_leaves_those_of_others() -> None:
    """Also the last one: a job that shares by MPS would be placed where Slurm has no more gres/mps, and fail."""
    nodes = [SlurmNode(name, "", ("IDLE",), "", 8, 1024, "gpu:h100:8", features) for name, features in (("gpu001", ()), ("gpu002", ("fast",)))]
    labels = {"gpu001": {"slurm/mps": "true", "rack": "a1"}, "gpu002": {"slow": "true"}}

    text = document_of(nodes, "", cluster="hpc", types={"h100": KnownType("H100")}, new_cluster=False, labels=labels).text

    assert [node["labels"] for node in yaml.safe_load(text)["nodes"]] == [{"rack": "a1"}, {"fast": "true"}]


def test_a_job_is_submitted_as_its_account_by_name_and_by_number_where_its_group_has_none() -> None:
    """A number that is looked up as a name costs a question to each directory of users."""
    account = pwd.getpwuid(0)
    group = grp.getgrgid(account.pw_gid).gr_name
    unnamed = next(number for number in range(50_000, 60_000) if number not in {one.gr_gid for one in grp.getgrall()})

    assert as_account(account) == [f"--uid={account.pw_name}", f"--gid={group}"]
    assert as_account(pwd.struct_passwd((*account[:3], unnamed, *account[4:]))) == [f"--uid={account.pw_name}", f"--gid={unnamed}"]


class Script:
    """The script of a job of one process, as slurmstepd starts it: its output is the log."""

    def __init__(self, folder: Path, shell: str) -> None:
        self._begin(start_order(workers=1, launch={"shell": shell}), 0, folder)

    def _begin(self, order: StartOrder, number: int, folder: Path) -> None:
        part, places = parts_of(order)[number], Places(str(folder), str(folder), "nobody", str(folder))
        script, self.exit, self.log = folder / f"script-{number}", folder / f"worker-{number}.{number}.exit", folder / f"worker-{number}.log"
        script.write_text(script_of(order, part, places=places, master="n0", secrets={}))
        with self.log.open("w") as log:
            env = {"PATH": os.defpath, "SLURM_JOB_ID": str(7 + number)}
            self.program = subprocess.Popen(["/bin/bash", script], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)

    def is_up(self) -> bool:
        return "up\n" in self.log.read_text()

    def codes(self) -> tuple[int, str]:
        """Its own, and the one that it has kept."""
        code = self.program.wait(60)
        return code, self.exit.read_text().split()[0]


@pytest.mark.parametrize(("shell", "code", "log"), [("exit 3", 3, ""), ("echo up; kill -KILL $$", 137, "up\n"), ("kill -SEGV $$", 139, "")])
def test_a_script_keeps_the_exit_code_and_adds_no_word_to_the_log(tmp_path: Path, shell: str, code: int, log: str) -> None:
    script = Script(tmp_path, shell)

    assert script.codes() == (code, str(code))
    assert script.log.read_text() == log


def test_a_process_has_no_file_open_and_no_signal_ignored_that_are_the_scripts(tmp_path: Path) -> None:
    script = Script(tmp_path, "echo /proc/$$/fd/*; grep SigIgn /proc/$$/status")
    script.codes()

    files, ignored = script.log.read_text().splitlines()
    assert {Path(file).name for file in files.split()} - {"3"} == {"0", "1", "2"}  # the third is that of the look
    own = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("SigIgn"))
    assert int(ignored.split()[1], 16) & ~int(own.split()[1], 16) == 0, "but for what the tests were started with, as by nohup"


def test_a_signal_reaches_the_process_alone_and_its_own_code_is_kept(tmp_path: Path) -> None:
    script = Script(tmp_path, "trap 'echo saved' USR1; trap 'echo leaving; exit 7' TERM; echo up; while :; do sleep 0.05; done")
    for sent, said in ((signal.SIGUSR1, "saved\n"), (signal.SIGTERM, "leaving\n")):
        wait_until(script.is_up, what="it to be up")
        script.program.send_signal(sent)
        wait_until(lambda said=said: said in script.log.read_text(), what=said)

    assert script.codes() == (7, "7")
    assert script.log.read_text() == "up\nsaved\nleaving\n"


RANK = "trap 'echo saved; exit 4' USR1; echo up; while :; do sleep 0.05; done"
BELOW = f"trap 'echo tidy' EXIT; /bin/bash -c {shlex.quote(RANK)}; exit $?"
ALONE = "trap 'echo saved; done=1' USR1; trap 'echo tidy' EXIT; echo up; until [ \"$done\" ]; do sleep 0.05; done"


@pytest.mark.parametrize(
    ("shell", "code"),
    [(BELOW, 4), (f"trap 'echo saved too' USR1; {BELOW}", 4), (ALONE, 0)],
    ids=["one below saves", "one below saves, and so would the shell", "the shell saves"],
)
def test_a_shell_that_tidies_up_at_its_exit_saves_only_where_none_below_it_does(tmp_path: Path, shell: str, code: int) -> None:
    """For a trap on its exit bash catches all signals that would end it, USR1 as well, and no one sees which of them it was told to."""
    script = Script(tmp_path, f"exec /bin/bash -c {shlex.quote(shell)}")
    wait_until(script.is_up, what="it to be up")
    script.program.send_signal(signal.SIGUSR1)

    assert script.codes() == (code, str(code))
    assert script.log.read_text() == "up\nsaved\ntidy\n"


def test_no_number_of_signals_hides_the_exit_code(tmp_path: Path) -> None:
    """A shell that signals interrupt while it waits may never tell how its process ended."""
    for turn in range(10):
        (folder := tmp_path / str(turn)).mkdir()
        script = Script(folder, f"trap '' USR1; echo up; sleep 0.0{turn}; exit 5")
        wait_until(script.is_up, what="it to be up")
        while script.program.poll() is None:
            script.program.send_signal(signal.SIGUSR1)
            time.sleep(0.0003)

        assert script.codes() == (5, "5")


def test_a_script_that_slurm_starts_again_runs_nothing_where_it_has_completed(tmp_path: Path) -> None:
    assert Script(tmp_path, "echo up").codes() == (0, "0")
    again = Script(tmp_path, "echo up; exit 4")

    assert again.codes() == (0, "0")
    assert not again.is_up()


class Part(Script):
    """One of the two parts of a gang of unequal nodes, with another command in each of its starts."""

    def __init__(self, folder: Path, number: int, shell: str) -> None:
        seats = WorkerSeat("worker", 0, "n0", tuple(range(8))), WorkerSeat("worker", 1, "n1", tuple(range(4)))
        self._begin(replace(start_order(), workers=seats, launch={"shell": shell}), number, folder)


def test_no_part_of_a_gang_goes_on_before_all_have_begun(tmp_path: Path) -> None:
    first = Part(tmp_path, 0, f"[ -e {tmp_path}/gate ] || echo early; exit 3")
    wait_until((tmp_path / "begun-0").exists, what="it to have begun")
    (tmp_path / "gate").touch()
    second = Part(tmp_path, 1, "exit 4")

    assert (first.codes(), second.codes()) == ((3, "3"), (4, "4"))
    assert first.log.read_text() == ""


def test_a_part_of_a_gang_that_slurm_starts_again_waits_for_the_others_anew(tmp_path: Path) -> None:
    """Those of its first start have left their word, and run no more."""
    for part in [Part(tmp_path, number, "exit 3") for number in (0, 1)]:
        assert part.codes() == (3, "3")
    told = (tmp_path / "begun-0").read_text()

    first = Part(tmp_path, 0, f"[ -e {tmp_path}/gate ] || echo early; exit 5")
    wait_until(lambda: (tmp_path / "begun-0").read_text() not in ("", told), what="it to have begun")
    (tmp_path / "gate").touch()
    second = Part(tmp_path, 1, "exit 6")

    assert (first.codes(), second.codes()) == ((5, "5"), (6, "6"))
    assert first.log.read_text() == ""


def test_a_part_that_slurm_starts_again_while_the_others_run_on_ends_as_one_that_was_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves no exit code: they are of another start, and it can't join them."""
    monkeypatch.setattr("scheduler.backends.slurm.script.WAITS_AGAIN", 1)
    first, other = Part(tmp_path, 0, "exit 3"), Part(tmp_path, 1, f"echo up; until [ -e {tmp_path}/gate ]; do sleep 0.1; done")
    assert first.codes() == (3, "3")
    wait_until(other.is_up, what="the other to run: until then it begins with a part that is started again")

    again = Part(tmp_path, 0, "echo up")

    assert again.program.wait(60) == 1
    assert not list(tmp_path.glob("worker-0.*.exit"))
    assert again.log.read_text() == "gpufleet: Slurm started this part of the gang again alone.\n"
    (tmp_path / "gate").touch()
    assert other.codes() == (0, "0")


def test_a_worker_that_slurm_has_forgotten_ends_no_job_that_was_given_its_number(tmp_path: Path) -> None:
    """What ends those that do not leave comes later than the others' end, and the number may be another job's by then."""
    told = tmp_path / "told"
    said = "echo 'srun: error: Expired or invalid job 7' >&2; exit 1"
    for name, body in (("srun", said), ("scancel", f'echo "$@" >> {told}'), ("scontrol", ":")):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
    order = start_order(workers=2, launch={"shell": "true"})
    order = replace(order, workers=tuple(replace(seat, node="n0") for seat in order.workers))
    text = script_of(order, parts_of(order)[0], places=Places(str(tmp_path), str(tmp_path), "nobody", str(tmp_path)), master="n0", secrets={})
    assert text.count("/bin/sleep 10;") == 1
    env = {"PATH": f"{tmp_path}:{os.defpath}", "SLURM_JOB_ID": "7"}
    script = ["/bin/bash", "-c", text.replace("/bin/sleep 10;", "/bin/sleep 0.5;")]

    # All that it starts has the end of this pipe, also what outlives it.
    reads, writes = os.pipe()
    with os.fdopen(reads) as lives, subprocess.Popen(script, stdin=subprocess.DEVNULL, env=env, cwd=tmp_path, pass_fds=[writes]) as program:
        os.close(writes)
        program.wait(30)
        lives.read()

    assert program.returncode == 1
    assert told.read_text().splitlines() == [f"--name=gpufleet-{order.key} --signal=TERM 7"]


def test_a_script_that_is_signalled_while_it_starts_a_worker_waits_for_that_worker() -> None:
    """Its number is read from `$!` by the next command, and a signal may come in between."""
    told = "\n".join(TELL_ALL)
    script = f"gf_srun=/bin/true\n{told}\n/bin/sleep 0.1 & echo $!; kill -USR1 $$; echo $!; wait"

    started, waited = subprocess.run(["/bin/bash", "-c", script], capture_output=True, text=True, timeout=30, check=True).stdout.split()

    assert waited == started
