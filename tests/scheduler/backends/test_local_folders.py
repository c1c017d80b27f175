"""Logs and folders of local runs are bounded, and stay as long as they are wanted."""

import os
import time
from pathlib import Path

import pytest

from scheduler.backends.base import NotFound, RunState
from scheduler.backends.local import LocalBackend
from scheduler.backends.local_accounts import Rules
from tests.scheduler.backends.local_machine import ended, log, look, now, order
from tests.servers import wait_until


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
