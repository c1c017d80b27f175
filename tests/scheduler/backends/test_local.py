"""Local runs are real processes: what they are given, what they are told, and that they outlive whoever started them."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from scheduler.backends import supervisor
from scheduler.backends.base import BackendError, BackendRefused, NotFound, RunState, SeenRun, Signal, StartOrder, WorkerSeat
from scheduler.backends.local import LocalBackend
from scheduler.backends.local_accounts import Rules
from scheduler.backends.local_launch import visible_devices
from tests.scheduler.backends.scenes import open_folder, start_order
from tests.servers import PROJECT, wait_until

PYTHON = sys.executable


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for path in tmp_path.glob("runs/*/*/state.json"):
        for process in json.loads(path.read_text())["processes"]:
            if supervisor.started_ticks(process["pid"]) == process["ticks"]:
                with suppress(ProcessLookupError):
                    os.killpg(process["pid"], signal.SIGKILL)


@pytest.fixture
def shared() -> Iterator[Path]:
    with open_folder() as place:
        yield place


@pytest.fixture
def backend(folder: Path) -> LocalBackend:
    return LocalBackend(folder, Rules(same_user=True, secrets=lambda name, _team: {"wandb": "s3cr3t-value"}.get(name)))


def script(body: str) -> list[str]:
    return [PYTHON, "-u", "-c", textwrap.dedent(body)]


def order(body: str = "", *, key: str = "j-1.1", workers: int = 1, gpus: int = 1, launch: dict[str, Any] | None = None, **fields: Any) -> StartOrder:
    seats = tuple(
        WorkerSeat("worker", index, "here", tuple(range(gpus)), tuple(f"GPU-{index}-{gpu}" for gpu in range(gpus))) for index in range(workers)
    )
    start = {"command": script(body)} if body else {}
    return replace(start_order(key), workers=seats, launch=start | (launch or {}), **fields)


def look(backend: LocalBackend, key: str = "j-1.1", *, at: datetime | None = None) -> SeenRun:
    return next(run for run in backend.observe(now=at or now()) if run.key == key)


def ended(backend: LocalBackend, key: str = "j-1.1") -> SeenRun:
    wait_until(lambda: look(backend, key).state == RunState.ENDED, seconds=20, what=f"{key} has ended")
    return look(backend, key)


def log(backend: LocalBackend, index: int = 0, key: str = "j-1.1") -> str:
    return backend.logs(key=key, role="worker", index=index, offset=0, limit=1 << 20).text


def running(backend: LocalBackend, words: str, key: str = "j-1.1", *, index: int = 0) -> None:
    """Wait until one has said something."""

    def said() -> bool:
        try:
            return words in log(backend, index, key)
        except NotFound:
            return False

    wait_until(said, seconds=20, what=f"{key} says {words}")


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


STAYS = """
    import os, signal, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN if sys.argv[1:] else lambda *_: sys.exit(0))
    print("up as", os.getpid(), "of", os.environ["WORLD_SIZE"], "from", os.environ["GPUFLEET_RESUME_FROM"], flush=True)
    while not os.path.exists(os.path.join(os.environ["GPUFLEET_CHECKPOINT_DIR"], "fail-" + os.environ["RANK"])):
        time.sleep(0.02)
    sys.exit(3)
"""


def in_place(backend: LocalBackend, *arguments: str, workers: int = 2, grace: int = 30) -> StartOrder:
    """A run that states that it can be resized in place, with all its workers up."""
    told = order("", workers=workers, grace_seconds=grace, launch={"command": script(STAYS) + list(arguments), "in_place": True})
    backend.start(told, now=now())
    for index in range(workers):
        running(backend, "up as", index=index)
    return told


def pids(backend: LocalBackend) -> dict[int, int]:
    states = {path.parent.name: json.loads(path.read_text()) for path in backend.folder.glob("runs/j-1.1/*/state.json")}
    return {int(name.rpartition("-")[2]): state["processes"][0]["pid"] for name, state in states.items() if state["state"] == "running"}


def resized(backend: LocalBackend, told: StartOrder, sequence: int, *, to: int, add: Sequence[int] = (), leave: Sequence[int] = ()) -> None:
    whole = replace(told, workers=order("", workers=to).workers, resume_from="/saved")
    joining = [seat for seat in whole.workers if seat.index in add]
    backend.resize(key="j-1.1", sequence=sequence, add=joining, leave=[("worker", index) for index in leave], now=now(), order=whole)


def test_workers_join_and_leave_a_run_whose_others_stay_however_often_it_is_told(backend: LocalBackend) -> None:
    told = in_place(backend)
    first = pids(backend)
    for _ in range(2):
        resized(backend, told, 2, to=3, add=[2])
    running(backend, "of 3 from /saved", index=2)
    grown = pids(backend)
    assert {index: grown[index] for index in first} == first
    resized(backend, told, 3, to=2, leave=[2])
    resized(backend, told, 2, to=3, add=[2])  # late
    wait_until(lambda: look(backend) and pids(backend) == first, seconds=20, what="worker 2 to leave")
    left = look(backend)
    resized(backend, told, 4, to=3, add=[2])
    wait_until(lambda: log(backend, 2).count("up as") == 2, seconds=20, what="it to come back, with its log behind the earlier one's")

    assert (left.state, left.why, [worker.seat.index for worker in left.workers]) == (RunState.RUNNING, "", [0, 1])
    assert look(backend).sequence == 4


def test_a_run_that_grew_while_its_start_was_told_again_begins_each_worker_once(backend: LocalBackend) -> None:
    told = in_place(backend)
    split = replace(order("", workers=3).workers[2], mig=("1g.10gb",), sharing="mps")
    whole = replace(told, workers=(*told.workers, split))
    backend.start(whole, now=now())
    assert sorted(pids(backend)) == [0, 1], "the resize tells of worker 2"
    for sequence in (2, 3):
        backend.resize(key="j-1.1", sequence=sequence, add=[split], leave=[], now=now(), order=whole)

    running(backend, "up as", index=2)
    assert len(pids(backend)) == 3
    assert log(backend, 2).count("up as") == 1


def test_a_worker_that_does_not_leave_is_killed_after_its_grace_and_the_others_are_not(backend: LocalBackend) -> None:
    told = in_place(backend, "stubborn", grace=1)
    first = pids(backend)
    resized(backend, told, 2, to=1, leave=[1])

    wait_until(lambda: look(backend) and 1 not in pids(backend), seconds=20, what="worker 1 to be killed")

    assert pids(backend) == {0: first[0]}
    assert look(backend).state == RunState.RUNNING


def test_a_killed_worker_is_replaced_until_it_is_killed_for_the_third_time_and_one_that_fails_ends_its_gang(backend: LocalBackend) -> None:
    told = in_place(backend)
    for sequence in (2, 3):
        os.kill(pids(backend)[1], signal.SIGKILL)
        wait_until(lambda: look(backend).workers[1].state == RunState.ENDED, seconds=20, what="the loss to be seen")
        assert (look(backend).why, look(backend).workers[0].state) == ("", RunState.RUNNING)
        resized(backend, told, sequence, to=2, add=[1])
        wait_until(lambda: 1 in pids(backend), seconds=20, what="another to join")
    os.kill(pids(backend)[1], signal.SIGKILL)
    run = ended(backend)
    assert (run.exit_code, run.why) == (137, "Worker 1: ended by SIGKILL.")

    other = replace(told, key="j-2.1", job="j-2")
    backend.start(other, now=now())
    running(backend, "up as", "j-2.1", index=1)
    (backend.folder / "checkpoints/j-2/1/fail-1").touch()
    failed = ended(backend, "j-2.1")
    assert (failed.exit_code, failed.why, failed.node_lost) == (3, "Worker 1: exit code 3.", False)


def test_those_who_cannot_go_on_without_one_that_was_lost_are_not_to_blame(backend: LocalBackend) -> None:
    told = in_place(backend)
    os.kill(pids(backend)[1], signal.SIGKILL)
    wait_until(lambda: look(backend).workers[1].state == RunState.ENDED, seconds=20, what="the loss to be seen")
    resized(backend, told, 2, to=2, add=[1])
    (backend.folder / "checkpoints/j-1/1/fail-0").touch()

    run = ended(backend)

    assert (run.exit_code, run.why, run.node_lost) == (3, "Worker 0: exit code 3.", True)


def test_those_who_cannot_go_on_without_one_that_had_to_leave_are_not_to_blame(backend: LocalBackend) -> None:
    """As where the first worker of a torchrun leaves with the list of all others: its node is down, or the gang shrinks."""
    told = in_place(backend, grace=2)
    backend.resize(key="j-1.1", sequence=2, add=[], leave=[("worker", 1)], now=now(), order=told)
    wait_until(lambda: len(look(backend).workers) == 1, seconds=20, what="it to leave")
    (backend.folder / "checkpoints/j-1/1/fail-0").touch()

    run = ended(backend)

    assert (run.exit_code, run.why, run.node_lost) == (3, "Worker 0: exit code 3.", True)


SAVES = """
    import json, os, signal, sys, time
    place = os.path.join(os.environ["GPUFLEET_CHECKPOINT_DIR"], "step-7")
    def save(*_):
        os.makedirs(place, exist_ok=True)
        rank = os.environ["RANK"]
        open(f"{place}/shard-{rank}", "w").write("x" * 10)
        fresh = f"{place}/.{rank}"
        files = [{"shard": int(rank), "file": f"shard-{rank}", "bytes": 10}]
        open(fresh, "w").write(json.dumps({"shards": int(os.environ["WORLD_SIZE"]), "files": files}))
        os.rename(fresh, f"{place}/{rank}.json")
        print("saved")
    signal.signal(signal.SIGUSR1, save)
    print("up")
    while True:
        time.sleep(0.05)
"""


def test_asked_to_save_it_saves_and_goes_on(backend: LocalBackend) -> None:
    backend.start(order(SAVES, workers=2), now=now())
    for index in (0, 1):
        running(backend, "up", index=index)
    backend.signal(key="j-1.1", sequence=2, signal=Signal.CHECKPOINT, now=now())
    for index in (0, 1):
        running(backend, "saved", index=index)

    (found,) = look(backend).checkpoints
    assert (found.step, found.shards_expected, found.shards) == (7, 2, (0, 1))
    assert look(backend).state == RunState.RUNNING


def test_asked_to_leave_it_saves_first_and_goes_as_soon_as_it_has(backend: LocalBackend) -> None:
    backend.start(order(SAVES, workers=2, grace_seconds=600), now=now())
    for index in (0, 1):
        running(backend, "up", index=index)
    backend.signal(key="j-1.1", sequence=2, signal=Signal.TERMINATE, now=now())
    run = ended(backend)

    assert run.checkpoints[0].shards == (0, 1)
    assert run.exit_code == 128 + signal.SIGTERM


def test_the_ranks_below_a_launcher_are_asked_to_save_and_not_the_launcher(backend: LocalBackend) -> None:
    """As torchrun: it knows nothing of USR1, and its ranks are in sessions of their own."""
    command = f"[sys.executable, '-u', '-c', {textwrap.dedent(SAVES)!r}]"
    launcher = f"import subprocess, sys; raise SystemExit(subprocess.run({command}, start_new_session=True).returncode)"
    backend.start(order(launcher, workers=2), now=now())
    for index in (0, 1):
        running(backend, "up", index=index)
    backend.signal(key="j-1.1", sequence=2, signal=Signal.CHECKPOINT, now=now())
    for index in (0, 1):
        running(backend, "saved", index=index)

    assert look(backend).state == RunState.RUNNING


def test_one_below_a_launcher_that_is_another_user_s_is_asked_to_leave_all_the_same(backend: LocalBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """As sudo, which knows USR1 and is root's: a console that is not may not signal it."""
    kill = os.kill

    def refuses(pid: int, number: int) -> None:
        if number == signal.SIGUSR1:
            raise PermissionError
        kill(pid, number)

    command = f"[sys.executable, '-u', '-c', {textwrap.dedent(SAVES)!r}]"
    backend.start(order(f"import subprocess, sys; subprocess.run({command})", grace_seconds=600), now=now())
    running(backend, "up")
    monkeypatch.setattr(os, "kill", refuses)
    backend.signal(key="j-1.1", sequence=2, signal=Signal.TERMINATE, now=now())

    assert ended(backend).exit_code == 128 + signal.SIGTERM


def test_who_knows_nothing_of_usr1_is_not_killed_by_it(backend: LocalBackend) -> None:
    backend.start(order("import time; print('up'); time.sleep(60)"), now=now())
    running(backend, "up")
    backend.signal(key="j-1.1", sequence=2, signal=Signal.CHECKPOINT, now=now())
    time.sleep(0.3)
    assert look(backend).state == RunState.RUNNING

    backend.signal(key="j-1.1", sequence=3, signal=Signal.TERMINATE, now=now())
    assert ended(backend).why == "Worker 0: ended by SIGTERM."


def test_a_stubborn_one_and_all_that_it_started_is_killed(backend: LocalBackend, folder: Path) -> None:
    body = """
        import signal, subprocess, sys, time
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, lambda *_: print("no"))
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        print("up", child.pid)
        while True:
            time.sleep(1)
    """
    backend.start(order(body, grace_seconds=0), now=now())
    running(backend, "up")
    child = int(log(backend).split()[1])
    backend.signal(key="j-1.1", sequence=2, signal=Signal.TERMINATE, now=now())
    look(backend)
    running(backend, "no")
    assert look(backend).state == RunState.STOPPING

    backend.stop(key="j-1.1", sequence=3, force=True, now=now())
    assert ended(backend).exit_code == 128 + signal.SIGKILL
    wait_until(lambda: supervisor.started_ticks(child) is None, seconds=10, what="the child that had made itself independent is gone")


def test_two_consoles_on_one_machine_do_not_end_each_other_s_runs(backend: LocalBackend, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = LocalBackend(tmp_path_factory.mktemp("other"), backend.rules)
    for one in (backend, other):
        one.start(order("import time; print('up'); time.sleep(60)"), now=now())
        running(one, "up")
    other.stop(key="j-1.1", sequence=2, force=True, now=now())
    ended(other)

    assert look(backend).state == RunState.RUNNING


def test_what_is_left_behind_by_a_rank_that_ended_is_ended_too(backend: LocalBackend) -> None:
    body = """
        import subprocess, sys
        print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True).pid)
    """
    backend.start(order(body), now=now())
    assert ended(backend).exit_code == 0
    assert supervisor.started_ticks(int(log(backend))) is None


def test_an_older_order_and_an_unknown_run(backend: LocalBackend) -> None:
    backend.start(order("import time; print('up'); time.sleep(60)", sequence=5), now=now())
    running(backend, "up")
    backend.stop(key="j-1.1", sequence=4, force=True, now=now())
    assert look(backend).state == RunState.RUNNING

    backend.limit(key="j-1.1", sequence=6, seconds=60, now=now())
    assert (look(backend).state, look(backend).sequence) == (RunState.RUNNING, 6)
    for tell in (partial(backend.signal, signal=Signal.TERMINATE), partial(backend.limit, seconds=60)):
        with pytest.raises(NotFound):
            tell(key="j-8.1", sequence=1, now=now())
    backend.stop(key="j-9.1", sequence=2, force=False, now=now())
    backend.start(order("print('never')", key="j-9.1"), now=now())
    assert look(backend, "j-9.1").state == RunState.ENDED
    backend.forget(keys=["j-1.1", "j-9.1"], now=now())
    assert [run.key for run in backend.observe(now=now())] == ["j-1.1"]


def test_logs_turn_over_and_are_read_on_by_their_offset(folder: Path) -> None:
    backend = LocalBackend(folder, Rules(same_user=True, log_segment=2_000, log_segments=3))
    backend.start(order("for number in range(2000): print(f'line {number:05}')"), now=now())
    ended(backend)

    whole, offset, ends = "", 0, False
    while not ends:
        part = backend.logs(key="j-1.1", role="worker", index=0, offset=offset, limit=777)
        whole, offset, ends = whole + part.text, part.next_offset, part.ended
    lines = whole.splitlines()
    assert offset == 2000 * 11
    assert lines[-1] == "line 01999"
    assert 300 < len(lines) < 800, "three segments at most"
    assert sum(path.stat().st_size for path in folder.glob("runs/*/*/log.*")) < 10_000


def test_the_log_stays_when_its_run_is_forgotten(backend: LocalBackend) -> None:
    backend.start(order("print('hello')"), now=now())
    ended(backend)
    backend.forget(keys=["j-1.1"], now=now())

    assert backend.observe(now=now()) == ()
    assert log(backend) == "hello\n"
    with pytest.raises(NotFound):
        backend.logs(key="../../etc", role="worker", index=0, offset=0, limit=10)


CONSOLE = """
import json, sys, time
from datetime import UTC, datetime
from pathlib import Path
from scheduler.backends.base import StartOrder, WorkerSeat
from scheduler.backends.local import LocalBackend
from scheduler.backends.local_accounts import Rules
import django
django.setup()
from tests.scheduler.backends.test_local import order
LocalBackend(Path(sys.argv[1]), Rules(same_user=True)).start(order(sys.argv[2]), now=datetime.now(UTC))
print("started", flush=True)
time.sleep(600)
"""


def test_a_run_outlives_the_console_and_is_found_by_the_next_one(backend: LocalBackend, folder: Path) -> None:
    body = "import time; print('up'); time.sleep(1.5); print('still here'); raise SystemExit(5)"
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    console = subprocess.Popen(
        [PYTHON, "-c", CONSOLE, str(folder), body], stdout=subprocess.PIPE, cwd=PROJECT, env=environment, start_new_session=True
    )
    assert console.stdout is not None
    assert console.stdout.readline() == b"started\n"
    running(backend, "up")
    # Ended as hard as can be, with every process of its own session.
    os.killpg(console.pid, signal.SIGKILL)
    console.wait()

    run = ended(backend)

    assert log(backend) == "up\nstill here\n"
    assert (run.exit_code, run.node_lost) == (5, False)


def test_a_machine_that_was_restarted_has_lost_its_runs(backend: LocalBackend, folder: Path) -> None:
    backend.start(order("import time; print('up'); time.sleep(600)"), now=now())
    running(backend, "up")
    state = json.loads(next(folder.glob("runs/*/*/state.json")).read_text())
    os.kill(state["supervisor"]["pid"], signal.SIGKILL)
    os.killpg(state["processes"][0]["pid"], signal.SIGKILL)
    run = ended(backend)

    assert (run.exit_code, run.node_lost) == (None, True)
    assert "without a word" in run.why


def test_a_file_that_somebody_has_spoilt_is_no_harm_to_the_others(backend: LocalBackend, folder: Path) -> None:
    for number in (1, 2, 3):
        backend.start(order("import time; print('up'); time.sleep(60)", key=f"j-{number}.1"), now=now())
    (folder / "runs" / "j-1.1" / "run.json").write_text("{")
    (folder / "runs" / "j-2.1" / "run.json").write_text('{"other": 1}')

    assert [run.key for run in backend.observe(now=now())] == ["j-3.1"]
    with pytest.raises(BackendError, match=r"j-1\.1"):
        backend.stop(key="j-1.1", sequence=9, force=True, now=now())


def test_a_supervisor_that_never_came_up_is_missed_after_a_while(backend: LocalBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalBackend, "_spawn", lambda *_: None)
    backend.start(order("print('never')"), now=now())

    assert look(backend).state == RunState.STARTING
    assert look(backend, at=now() + timedelta(minutes=1)).state == RunState.ENDED


def test_whose_process_id_another_has_now_is_not_taken_for_it(backend: LocalBackend, folder: Path) -> None:
    backend.start(order("import time; print('up'); time.sleep(600)"), now=now())
    running(backend, "up")
    path = next(folder.glob("runs/*/*/state.json"))
    state = json.loads(path.read_text())
    os.kill(state["supervisor"]["pid"], signal.SIGKILL)
    os.killpg(state["processes"][0]["pid"], signal.SIGKILL)
    bystander = subprocess.Popen(["/bin/sleep", "60"])
    path.write_text(json.dumps(state | {"supervisor": {"pid": bystander.pid, "ticks": 1}, "processes": [{"pid": bystander.pid, "ticks": 1}]}))

    assert look(backend).state == RunState.ENDED
    backend.stop(key="j-1.1", sequence=9, force=True, now=now())
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


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


def over(backend: LocalBackend, *keys: str) -> None:
    """Runs that wrote 100 kB, have ended and are forgotten, one after the other."""
    for place, key in enumerate(keys):
        backend.start(order("print('x' * 100_000)", key=key), now=now())
        wait_until(lambda key=key: look(backend, key).state == RunState.ENDED, seconds=20, what=f"{key} has ended")
        backend.forget(keys=[key], now=now())
        forgotten = backend.folder / "runs" / key / "forgotten.json"
        os.utime(forgotten, (time.time() - 1000 + place, time.time() - 1000 + place))


def test_the_folders_of_runs_that_are_over_are_bounded_and_the_oldest_go_first(folder: Path) -> None:
    backend = LocalBackend(folder, Rules(same_user=True, kept_bytes=300_000))
    over(backend, "j-3.1", "j-1.1", "j-2.1")
    backend.start(order("import time; print('x' * 400_000); time.sleep(60)", key="j-0.1"), now=now())
    checkpoint = folder / "checkpoints" / "job" / "kept"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_text("x" * 500_000)

    assert backend.tidy() == 1
    assert sorted(path.name for path in (folder / "runs").iterdir()) == ["j-0.1", "j-1.1", "j-2.1"]
    assert backend.tidy() == 0, "what is left is within bounds; what runs does not count"
    with pytest.raises(NotFound):
        backend.logs(key="j-3.1", role="worker", index=0, offset=0, limit=10)
    assert backend.logs(key="j-2.1", role="worker", index=0, offset=0, limit=10).text == "x" * 10
    assert checkpoint.exists()
    assert look(backend, "j-0.1").state != RunState.ENDED


def test_there_are_never_more_folders_than_a_look_can_go_through(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.backends.local.MOST_KEPT", 1)
    backend = LocalBackend(folder, Rules(same_user=True))
    over(backend, "j-1.1", "j-2.1")

    assert backend.tidy() == 1
    assert [path.name for path in (folder / "runs").iterdir()] == ["j-2.1"]


def test_a_run_that_is_not_forgotten_is_never_tidied_away(folder: Path) -> None:
    backend = LocalBackend(folder, Rules(same_user=True, kept_bytes=1))
    backend.start(order("print('x' * 100_000)"), now=now())
    wait_until(lambda: look(backend).state == RunState.ENDED, seconds=20, what="it has ended")

    assert backend.tidy() == 0
    assert look(backend).exit_code == 0


SPEC = {"roles": [{"name": "worker", "min": 1, "gpus": 1, "cpus": 1.5, "host_memory_gb": 1.5}]}


def log_of(backend: LocalBackend) -> str:
    return backend.logs(key="j-1.1", role="worker", index=0, offset=0, limit=10_000).text


def test_what_a_worker_asks_for_of_the_host_is_its_limit(folder: Path) -> None:
    """Plain files in the place of the kernel's: what would be written to it."""
    place = folder / "cgroup" / "j-1.1.worker-0"
    place.mkdir(parents=True)
    for name in ("cgroup.procs", "memory.max", "cpu.max", "memory.events"):
        (place / name).write_text("")
    (place / "memory.events").write_text("oom 1\noom_kill 1\n")
    backend = LocalBackend(folder, Rules(same_user=True, cgroup=folder / "cgroup"))
    backend.start(order("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", spec=SPEC), now=now())
    wait_until(lambda: look(backend).state == RunState.ENDED, seconds=20, what="it has ended")

    assert ((place / "memory.max").read_text(), (place / "cpu.max").read_text()) == (str(1536 * 1024**2), "150000 100000")
    assert look(backend).why == "Worker 0: killed by the kernel: it used more host memory than requested."
    assert log_of(backend) == ""


def test_without_a_cgroup_it_runs_all_the_same_and_says_so(folder: Path) -> None:
    backend = LocalBackend(folder, Rules(same_user=True, cgroup=folder))
    backend.start(order("print('here')", spec=SPEC), now=now())
    wait_until(lambda: look(backend).state == RunState.ENDED, seconds=20, what="it has ended")

    first, second = log_of(backend).splitlines()
    assert first.startswith("gpufleet: no limits on memory and processors (")
    assert (second, look(backend).exit_code) == ("here", 0)
    assert not (folder / "j-1.1.worker-0").exists()


def writable_cgroup() -> Path | None:
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    found = next((Path(place) for _, place, kind, *_ in mounts if kind == "cgroup2"), None)
    return found if found is not None and os.access(found / "cgroup.procs", os.W_OK) else None


@pytest.mark.skipif(writable_cgroup() is None, reason="there is no cgroup v2 that we may write to")
def test_what_is_started_inside_is_in_the_cgroup_and_ends_with_it() -> None:
    top = writable_cgroup()
    assert top is not None
    place = top / f"gpufleet-test-{os.getpid()}"
    before = Path("/proc/self/cgroup").read_text()
    fence = supervisor.Fence({"folder": str(place), "files": {}})
    assert fence.missing == ""
    with fence.inside():
        child = subprocess.Popen([PYTHON, "-c", "import os, time; os.fork(); time.sleep(60)"], start_new_session=True)
    try:
        assert f"0::/{place.name}" in Path(f"/proc/{child.pid}/cgroup").read_text().replace("//", "/")
        assert Path("/proc/self/cgroup").read_text() == before
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    fence.end()
    assert not place.exists()
