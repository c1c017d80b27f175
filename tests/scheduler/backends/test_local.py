"""Local runs are real processes: what they are given, what they are told, and that they outlive whoever started them."""

import json
import os
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest

from scheduler.backends.base import BackendRefused, WorkerSeat
from scheduler.backends.local import LocalBackend
from scheduler.backends.local_accounts import Rules
from scheduler.backends.local_launch import visible_devices
from tests.scheduler.backends.local_machine import ended, log, now, order, running


def test_two_workers_meet_as_torchrun_s_ranks_do(backend: LocalBackend) -> None:
    body = """
        import os, socket
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        if rank == 0:
            listener = socket.create_server(place)
            print("met", listener.accept()[0].recv(10).decode(), "of", world)
        else:
            while True:
                try:
                    socket.create_connection(place).send(str(rank).encode())
                    break
                except ConnectionRefusedError:
                    import time
                    time.sleep(0.05)
        print(os.environ["CUDA_VISIBLE_DEVICES"], os.environ["LOCAL_RANK"], os.environ["NODE_RANK"])
    """
    backend.start(order(body, workers=2, gpus=2), now=now())
    run = ended(backend)

    assert (run.exit_code, run.why) == (0, "")
    assert run.started_at is not None
    assert run.ended_at is not None
    assert run.started_at <= run.ended_at
    assert log(backend, 0) == "met 1 of 2\nGPU-0-0,GPU-0-1 0 0\n"
    assert log(backend, 1) == "GPU-1-0,GPU-1-1 0 1\n"


def test_a_worker_may_be_a_process_for_each_of_its_gpus(backend: LocalBackend) -> None:
    body = "import os; print(*(os.environ[name] for name in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE')))"
    backend.start(order(body, workers=2, gpus=3, launch={"per": "gpu"}), now=now())
    ended(backend)

    assert sorted(log(backend, 1).splitlines()) == ["[0] 3 0 6 3", "[1] 4 1 6 3", "[2] 5 2 6 3"]


def test_it_sees_nothing_of_the_console_and_what_it_was_promised(backend: LocalBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUFLEET_SECRET_KEY", "of the console")
    launch = {"env": {"LR": "0.1"}, "workdir": "/usr"}
    body = "import os, json; print(os.getcwd()); print(json.dumps(dict(os.environ)))"
    backend.start(order(body, launch=launch, resume_from="/ckpt/9", resume_step=9, token="tok"), now=now())
    ended(backend)
    where, environment = log(backend).splitlines()
    found = json.loads(environment)

    assert where == "/usr"
    assert "GPUFLEET_SECRET_KEY" not in found
    assert {"LR": "0.1", "GPUFLEET_JOB": "j-1", "GPUFLEET_ATTEMPT": "1", "GPUFLEET_TOKEN": "tok"}.items() <= found.items()
    assert {"GPUFLEET_RESUME_FROM": "/ckpt/9", "GPUFLEET_RESUME_STEP": "9"}.items() <= found.items()
    assert Path(found["GPUFLEET_CHECKPOINT_DIR"]).is_dir()


def test_arguments_are_no_shell_unless_the_job_asks_for_one(backend: LocalBackend) -> None:
    backend.start(order(launch={"command": ["/bin/echo", "$HOME; ls *", "`id`"]}), now=now())
    backend.start(order(key="j-2.1", launch={"shell": "echo one | tr o 0"}), now=now())
    ended(backend)
    ended(backend, "j-2.1")

    assert log(backend) == "$HOME; ls * `id`\n"
    assert log(backend, key="j-2.1") == "0ne\n"


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        ({}, "no command"),
        ({"command": "rm -rf /"}, "list of arguments"),
        ({"command": ["true"], "workdir": "here"}, "absolute"),
        ({"command": ["true"], "image": "python:3.12"}, "runs no images"),
        ({"command": ["true"], "env": {"A=B": "1"}}, "name of a variable"),
        ({"command": ["true"], "secrets": {"TOKEN": "nope"}}, "no secret 'nope'"),
    ],
)
def test_what_can_never_run_is_refused_in_words(backend: LocalBackend, launch: dict[str, Any], words: str) -> None:
    with pytest.raises(BackendRefused, match=words):
        backend.start(order(launch=launch), now=now())
    assert backend.observe(now=now()) == ()


def test_a_program_that_does_not_exist_ends_with_the_shell_s_number_for_it(backend: LocalBackend) -> None:
    backend.start(order(launch={"command": ["/no/such/program"]}), now=now())
    run = ended(backend)

    assert run.exit_code == 127
    assert "/no/such/program" in run.why


def test_a_secret_reaches_the_job_and_nothing_else(backend: LocalBackend, folder: Path) -> None:
    body = "import os, time; print('it is', os.environ['KEY']); time.sleep(60)"
    backend.start(order(body, launch={"secrets": {"KEY": "wandb"}}), now=now())
    running(backend, "it is")

    assert log(backend) == "it is [secret]\n"
    assert not [path for path in folder.rglob("*") if path.is_file() and b"s3cr3t-value" in path.read_bytes()]
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert "s3cr3t-value" not in listed
    assert "s3cr3t-value" not in repr(backend.observe(now=now()))


def test_started_twice_it_runs_once(backend: LocalBackend, folder: Path) -> None:
    body = f"open({str(folder / 'count')!r}, 'a').write('x'); print('up'); import time; time.sleep(60)"
    for _ in range(3):
        backend.start(order(body), now=now())
        LocalBackend(folder, backend.rules).start(order(body), now=now())
    running(backend, "up")

    assert (folder / "count").read_text() == "x"


def test_a_start_that_was_killed_half_way_is_taken_up_where_it_was(backend: LocalBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(Exception):
        pass

    real, calls = LocalBackend._spawn, []

    def once(self: LocalBackend, *rest: Any) -> None:
        if calls:
            raise Killed
        calls.append(1)
        real(self, *rest)

    body = "import os; print(os.environ['MASTER_PORT'])"
    monkeypatch.setattr(LocalBackend, "_spawn", once)
    with pytest.raises(Killed):
        backend.start(order(body, workers=2), now=now())
    monkeypatch.undo()
    backend.start(order(body, workers=2), now=now())
    assert ended(backend).exit_code == 0

    assert log(backend, 0) == log(backend, 1) != "", "the second meets the first at its port"
    assert int(log(backend, 0)) < int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]), "no outgoing connection is given it"


def test_a_gang_that_loses_a_member_is_ended_with_its_reason(backend: LocalBackend) -> None:
    body = """
        import os, sys, time
        print("up")
        if os.environ["RANK"] == "1":
            sys.exit(3)
        time.sleep(60)
    """
    backend.start(order(body, workers=2), now=now())
    run = ended(backend)

    assert run.exit_code == 3
    assert run.why == "Worker 1: exit code 3."


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (Rules(), "set GPUFLEET_LOCAL_UIDS"),
        (Rules(user="nobody-of-that-name"), "no user"),
        (Rules(user="root"), "console's own user|as root"),
        (Rules(same_user=True, allowed=lambda: "Local jobs are switched off."), "switched off"),
    ],
)
def test_jobs_run_as_somebody_else_or_not_at_all(folder: Path, rules: Rules, words: str) -> None:
    with pytest.raises(BackendRefused, match=words):
        LocalBackend(folder, rules).start(order("print('never')"), now=now())


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start processes as another user")
def test_a_job_of_another_user_is_that_user_and_reads_nothing_of_the_console_s(folder: Path, shared: Path) -> None:
    private = folder / "private"
    private.write_text("key")
    private.chmod(0o600)
    body = f"""
        import os
        print(os.getuid(), os.getgid())
        open(os.path.join(os.environ["GPUFLEET_CHECKPOINT_DIR"], "mine"), "w").write("x")
        try:
            open({str(private)!r})
        except PermissionError:
            print("not allowed")
        try:
            os.setuid(0)
        except PermissionError:
            print("no way back")
    """
    backend = LocalBackend(folder, Rules(user="nobody", checkpoints=shared))
    backend.start(order(launch={"command": ["/usr/bin/python3", "-c", textwrap.dedent(body)], "workdir": "/"}), now=now())
    run = ended(backend)

    assert run.exit_code == 0, log(backend)
    uid, gid = log(backend).split()[:2]
    assert int(uid) != 0 != int(gid)
    assert log(backend).splitlines()[1:] == ["not allowed", "no way back"]


def test_devices_are_named_by_what_names_them_for_good() -> None:
    assert visible_devices(WorkerSeat("w", 0, "n", (0,), ("GPU-1",), ("MIG-7",))) == "MIG-7"
    assert visible_devices(WorkerSeat("w", 0, "n", (1, 3), ("GPU-1", "GPU-3"))) == "GPU-1,GPU-3"
    assert visible_devices(WorkerSeat("w", 0, "n", (1, 3))) == "1,3"
    assert visible_devices(WorkerSeat("w", 0, "n")) == ""
