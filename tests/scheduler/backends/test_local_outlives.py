"""Local runs outlive the console, and what has become of their supervisors and files is noticed."""

import json
import os
import signal
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest

from scheduler.backends.base import BackendError, RunState
from scheduler.backends.local import LocalBackend
from tests.scheduler.backends.local_machine import PYTHON, ended, log, look, now, order, running
from tests.servers import PROJECT

CONSOLE = """
import json, sys, time
from datetime import UTC, datetime
from pathlib import Path
from scheduler.backends.base import StartOrder, WorkerSeat
from scheduler.backends.local import LocalBackend
from scheduler.backends.local_accounts import Rules
import django
django.setup()
from tests.scheduler.backends.local_machine import order
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
