"""Local runs are asked to save and to leave, and nothing of them is left behind."""

import os
import shlex
import signal
import sys
import textwrap
import time
from functools import partial
from pathlib import Path

import pytest

from scheduler.backends.base import NotFound, RunState, Signal
from scheduler.backends.local import LocalBackend
from scheduler.backends.supervising import processes
from tests.scheduler.backends.local_machine import ended, log, look, now, order, running
from tests.servers import wait_until

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


def both_save(backend: LocalBackend, program: str) -> None:
    """Two workers that are asked to, once they are up."""
    backend.start(order(program, workers=2), now=now())
    for index in (0, 1):
        running(backend, "up", index=index)
    backend.signal(key="j-1.1", sequence=2, signal=Signal.CHECKPOINT, now=now())
    for index in (0, 1):
        running(backend, "saved", index=index)


def test_asked_to_save_it_saves_and_goes_on(backend: LocalBackend) -> None:
    both_save(backend, SAVES)

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


def test_it_has_saved_also_where_files_bear_whole_seconds(backend: LocalBackend) -> None:
    """Its manifests look older than the request. One that is saved within a millisecond does on any file system."""
    whole = '        os.utime(f"{place}/{rank}.json", (int(time.time()),) * 2)\n        print("saved")'
    backend.start(order(SAVES.replace('        print("saved")', whole), grace_seconds=600), now=now())
    running(backend, "up")
    wait_until(lambda: 0.3 < time.time() % 1 < 0.7, what="the middle of a second")
    asked = now()
    backend.signal(key="j-1.1", sequence=2, signal=Signal.TERMINATE, now=asked)

    (found,) = ended(backend).checkpoints
    assert found.at < asked


def test_the_ranks_below_a_launcher_are_asked_to_save_and_not_the_launcher(backend: LocalBackend) -> None:
    """As torchrun: it knows nothing of USR1, and its ranks are in sessions of their own."""
    command = f"[sys.executable, '-u', '-c', {textwrap.dedent(SAVES)!r}]"
    launcher = f"import subprocess, sys; raise SystemExit(subprocess.run({command}, start_new_session=True).returncode)"
    both_save(backend, launcher)

    assert look(backend).state == RunState.RUNNING


def test_a_shell_that_tidies_up_at_its_exit_is_not_asked_where_one_below_it_saves(backend: LocalBackend) -> None:
    rank = f"{shlex.quote(sys.executable)} -u -c {shlex.quote(textwrap.dedent(SAVES))}"
    backend.start(order("", launch={"command": ["/bin/bash", "-c", f"trap 'echo tidy' EXIT; {rank}; exit $?"]}), now=now())
    running(backend, "up")
    backend.signal(key="j-1.1", sequence=2, signal=Signal.CHECKPOINT, now=now())
    running(backend, "saved")

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
    wait_until(lambda: processes.started_ticks(child) is None, seconds=10, what="the child that had made itself independent is gone")


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
    assert processes.started_ticks(int(log(backend))) is None


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
