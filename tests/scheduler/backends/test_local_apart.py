"""What keeps local jobs from root, from the console and from each other: users, PID namespaces, folders, and that nothing outlives its job."""

import json
import os
import pwd
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from scheduler.backends import local_accounts, supervisor
from scheduler.backends.base import BackendError, BackendRefused, RunState, SeenRun, StartOrder
from scheduler.backends.local import LocalBackend
from scheduler.backends.local_accounts import Rules, namespaces_missing
from scheduler.backends.supervising import processes
from tests.scheduler.backends.scenes import open_folder, seat, start_order
from tests.servers import wait_until

root_only = pytest.mark.skipif(os.getuid() != 0, reason="only root can start processes as other users")
namespaces = pytest.mark.skipif(bool(namespaces_missing()), reason=f"no PID namespaces here: {namespaces_missing()}")
UIDS = (730_000, 730_099)
SYSTEM_PYTHON = next((path for path in ("/usr/bin/python3", "/usr/local/bin/python3") if Path(path).exists()), sys.executable)


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
def shared() -> Iterator[Path]:
    with open_folder() as place:
        yield place


@pytest.fixture
def backend(tmp_path: Path, shared: Path) -> Iterator[LocalBackend]:
    yield from kept(LocalBackend(tmp_path / "local", Rules(uids=UIDS, checkpoints=shared, secrets=lambda name, team: f"{team}'s {name}")))


def kept(backend: LocalBackend) -> Iterator[LocalBackend]:
    """Whatever becomes of the test, nothing of its runs stays behind."""
    yield backend
    for path in backend.folder.glob("runs/*/run.json"):
        backend.stop(key=path.parent.name, sequence=1 << 20, force=True, now=now())


def order(body: str = "", *, key: str = "j-1.1", team: str = "lab/red", launch: dict[str, Any] | None = None, **fields: Any) -> StartOrder:
    command = [SYSTEM_PYTHON, "-u", "-c", textwrap.dedent(body)]
    return replace(start_order(key), workers=(seat(0, "here"),), launch={"command": command} | (launch or {}), team=team, **fields)


def look(backend: LocalBackend, key: str) -> SeenRun | None:
    return next((run for run in backend.observe(now=now()) if run.key == key), None)


def ended(backend: LocalBackend, key: str = "j-1.1") -> SeenRun:
    def over() -> bool:
        run = look(backend, key)
        return run is not None and run.state == RunState.ENDED

    wait_until(over, seconds=30, what=f"{key} has ended")
    run = look(backend, key)
    assert run is not None
    return run


def log(backend: LocalBackend, key: str = "j-1.1") -> str:
    spot = backend.folder / "runs" / key
    return backend.logs(key=key, role="worker", index=0, offset=0, limit=1 << 20).text if any(spot.glob("worker-0/log.*")) else ""


def says(backend: LocalBackend, words: str, key: str = "j-1.1") -> None:
    wait_until(lambda: words in log(backend, key), seconds=30, what=f"{key} says {words}")


def alive(mark: str) -> list[int]:
    """Processes of the whole machine with this in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if mark.encode() in words and processes.started_ticks(int(entry.name)) is not None:
                found.append(int(entry.name))
    return found


# Leaves its session, its group and its parent, and clears its environment: nothing but its ancestors tells whose it is.
ESCAPES = """
    import os, sys, time
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)", {mark!r}], {{}})
        os._exit(0)
    os.wait()
    print("escaped")
    {then}
"""


def escapes(mark: str, *, then: str = "") -> str:
    return textwrap.dedent(ESCAPES).format(mark=mark, then=then)


@pytest.fixture(params=["same user", pytest.param("own user", marks=root_only)])
def either(request: pytest.FixtureRequest, tmp_path: Path, shared: Path) -> Iterator[LocalBackend]:
    """With a subreaper alone, and with whatever this machine has besides."""
    own = Rules(same_user=True) if request.param == "same user" else Rules(uids=UIDS, checkpoints=shared)
    yield from kept(LocalBackend(tmp_path / "local", own))


def test_what_escaped_ends_with_the_job_that_ends_by_itself(either: LocalBackend, tmp_path: Path) -> None:
    mark = str(tmp_path / "escaped")
    either.start(order(escapes(mark, then="time.sleep(0.3)")), now=now())
    assert ended(either).exit_code == 0
    assert "escaped" in log(either)
    assert alive(mark) == []


def test_what_escaped_ends_with_the_job_that_is_cancelled(either: LocalBackend, tmp_path: Path) -> None:
    mark = str(tmp_path / "escaped")
    either.start(order(escapes(mark, then="time.sleep(600)")), now=now())
    says(either, "escaped")
    wait_until(lambda: alive(mark) != [], seconds=20, what="it has escaped")

    either.stop(key="j-1.1", sequence=2, force=True, now=now())
    ended(either)
    assert alive(mark) == []


def test_what_escaped_ends_without_namespaces_too(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.getuid() != 0:
        pytest.skip("a console that is not root has no namespaces anyway")
    monkeypatch.setattr(local_accounts, "namespaces_missing", lambda: "none here")
    for backend in kept(LocalBackend(tmp_path / "local", Rules(uids=UIDS, checkpoints=shared))):
        mark = str(tmp_path / "escaped")
        backend.start(order(escapes(mark)), now=now())
        assert ended(backend).exit_code == 0
        assert alive(mark) == []


@root_only
def test_a_planted_link_makes_nobody_the_owner_of_its_target(backend: LocalBackend, tmp_path: Path) -> None:
    target = tmp_path / "of-root"
    target.mkdir(mode=0o700)
    body = f"""
        import os
        try:
            os.symlink({str(target)!r}, os.path.join(os.environ["GPUFLEET_CHECKPOINT_DIR"], "..", "2"))
            print("planted")
        except OSError as fault:
            print("not planted", fault.errno)
    """
    backend.start(order(body), now=now())
    ended(backend)
    assert log(backend).startswith("not planted")
    backend.start(order("print('second')", key="j-1.2"), now=now())
    ended(backend, "j-1.2")

    assert target.stat().st_uid == 0


@root_only
def test_a_link_that_an_earlier_version_let_a_job_plant_is_refused(backend: LocalBackend, shared: Path, tmp_path: Path) -> None:
    target = tmp_path / "of-root"
    target.mkdir(mode=0o700)
    uid = backend.accounts.uid_of("j-1")
    job = shared / "j-1"
    job.mkdir()
    os.chown(job, uid, uid)
    (job / "2").symlink_to(target)
    (shared / "j-2").symlink_to(target)
    (shared / "j-3").mkdir()
    os.chown(shared / "j-3", 12_345, 12_345)

    for key, words in (("j-1.2", "not a folder"), ("j-2.1", "not a folder"), ("j-3.1", "another user")):
        with pytest.raises(BackendRefused, match=words):
            backend.start(order("print('never')", key=key), now=now())
        assert not (backend.folder / "runs" / key).exists()
    assert target.stat().st_uid == 0
    assert job.stat().st_uid == 0, "and the parent was taken back"


HOSTILE = """
    import os, glob, signal
    seen = 0
    for path in glob.glob("/proc/[0-9]*"):
        pid = int(path.rpartition("/")[2])
        for part in ("environ", "cmdline", "mem", "maps"):
            try:
                with open(f"{path}/{part}", "rb") as file:
                    said = file.read(100_000)
            except OSError:
                continue
            if b"red" b"'s" in said or b"THE-RED" b"-ONE" in said:
                print("READ", path, part)
        seen += pid not in (os.getpid(), 1)
        if pid != os.getpid():
            try:
                os.kill(pid, signal.SIGKILL)
                print("ENDED", pid)
            except PermissionError:
                pass
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass
    print("sees", seen)
"""


@root_only
@namespaces
def test_a_job_neither_sees_nor_ends_another_team_s_and_reads_none_of_its_secrets(backend: LocalBackend, shared: Path) -> None:
    body = """
        import os, time
        open(os.path.join(os.environ["GPUFLEET_CHECKPOINT_DIR"], "model"), "w").write(os.environ["KEY"])
        print("up", os.getuid())
        time.sleep(600)
    """
    victim = order(body, launch={"secrets": {"KEY": "key"}, "env": {"WHO": "THE-RED-ONE"}})
    backend.start(victim, now=now())
    says(backend, "up")
    model = shared / "j-1" / "1" / "model"
    wait_until(model.exists, seconds=10, what="it has saved")
    hostile = textwrap.dedent(HOSTILE) + textwrap.dedent(f"""
        for path in ({str(model)!r}, {str(backend.folder / "uids.json")!r}, {str(backend.folder / "runs" / "j-1.1" / "run.json")!r}):
            try:
                open(path).read()
                print("READ", path)
            except OSError:
                pass
        try:
            os.setuid(0)
            print("ROOT")
        except OSError:
            pass
        print("uid", os.getuid(), "groups", os.getgroups(), "home", os.path.expanduser("~"), "in", os.getcwd())
        open("mine", "w").write("x")
        print([line for line in open("/proc/self/status") if line.startswith("NoNewPrivs")])
    """)
    backend.start(order(hostile, key="j-2.1", team="lab/blue"), now=now())
    assert ended(backend, "j-2.1").exit_code == 0, log(backend, "j-2.1")

    told = log(backend, "j-2.1")
    home = shared / "j-2" / "home"
    assert told.splitlines() == ["sees 0", f"uid {UIDS[0] + 1} groups [] home {home} in {home}", "['NoNewPrivs:\\t1\\n']"]
    run = look(backend, "j-1.1")
    assert run is not None
    assert run.state == RunState.RUNNING
    assert not (backend.folder / "only-team.json").exists()


@root_only
def test_the_working_directory_is_entered_with_the_job_s_rights(backend: LocalBackend, tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    backend.start(order("import os; print(os.listdir('.'))", launch={"workdir": str(private)}), now=now())
    run = ended(backend)

    assert (run.exit_code, run.why) == (126, f"Worker 0: {private}: Permission denied.")


@root_only
def test_where_jobs_are_not_kept_apart_only_one_team_s_run(tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_accounts, "namespaces_missing", lambda: "the kernel refused")
    monkeypatch.setattr(local_accounts, "proc_hides_others", lambda: False)
    one_user = LocalBackend(tmp_path / "one", Rules(user="nobody", checkpoints=shared))
    no_namespaces = LocalBackend(tmp_path / "two", Rules(uids=UIDS, checkpoints=shared))
    for number, (backend, words) in enumerate(((one_user, "run as nobody"), (no_namespaces, "the kernel refused"))):
        for place in ("1", "2"):
            key = f"j-{number}{place}.1"
            backend.start(order("print('red')", key=key), now=now())
            assert ended(backend, key).exit_code == 0
        with pytest.raises(BackendRefused, match=f"lab/red only, as .*{words}"):
            backend.start(order("print('blue')", key="j-9.1", team="lab/blue"), now=now())

    monkeypatch.setattr(local_accounts, "proc_hides_others", lambda: True)
    no_namespaces.start(order("print('blue')", key="j-9.1", team="lab/blue"), now=now())
    assert ended(no_namespaces, "j-9.1").exit_code == 0


@root_only
def test_each_job_has_a_uid_for_itself_until_nothing_of_it_is_left(tmp_path: Path, shared: Path) -> None:
    backend = LocalBackend(tmp_path / "local", Rules(uids=(UIDS[0], UIDS[0] + 2), checkpoints=shared))
    for name in ("j-1", "j-2", "j-3"):
        (shared / name).mkdir()
    first = [backend.accounts.uid_of(name) for name in ("j-1", "j-2", "j-1", "j-3")]
    assert first == [UIDS[0], UIDS[0] + 1, UIDS[0], UIDS[0] + 2]
    with pytest.raises(BackendError, match="Delete some"):
        backend.accounts.uid_of("j-4")
    (shared / "j-2").rmdir()
    assert LocalBackend(tmp_path / "local", backend.rules).accounts.uid_of("j-4") == UIDS[0] + 1
    assert backend.accounts.uid_of("j-3") == UIDS[0] + 2


@root_only
def test_a_range_with_somebody_s_uid_is_refused(tmp_path: Path, shared: Path) -> None:
    somebody = pwd.getpwnam("nobody").pw_uid
    backend = LocalBackend(tmp_path / "local", Rules(uids=(somebody, somebody), checkpoints=shared))
    with pytest.raises(BackendRefused, match="nobody"):
        backend.start(order("print('never')"), now=now())


@root_only
def test_a_folder_that_jobs_cannot_enter_is_refused_in_words(tmp_path: Path, shared: Path) -> None:
    backend = LocalBackend(tmp_path / "local", Rules(uids=UIDS, checkpoints=shared))
    shared.chmod(0o700)
    with pytest.raises(BackendRefused, match="cannot enter"):
        backend.start(order("print('never')"), now=now())
    shared.chmod(0o777)
    with pytest.raises(BackendRefused, match="Others may write"):
        backend.start(order("print('never')"), now=now())


@root_only
def test_jobs_are_never_in_the_group_of_root(tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getgrouplist", lambda *_: [0, 5])
    backend = LocalBackend(tmp_path / "local", Rules(user="nobody", uids=UIDS, checkpoints=shared))
    with pytest.raises(BackendRefused, match="group of root"):
        backend.start(order("print('never')"), now=now())


def test_a_run_whose_look_fails_concerns_itself_alone(either: LocalBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2):
        either.start(order("import time; print('up'); time.sleep(600)", key=f"j-{number}.1"), now=now())
        says(either, "up", f"j-{number}.1")
    state = either.folder / "runs" / "j-1.1" / "worker-0" / "state.json"
    kept = state.read_text()
    state.write_text(json.dumps({"processes": [{}]}))
    assert [run.key for run in either.observe(now=now())] == ["j-2.1"]
    state.write_text(kept)


@pytest.mark.parametrize(("launch", "words"), [({"env": {"A": "x\0y"}}, "variable A"), ({"secrets": {"A": "x"}}, "secret 'x'")])
def test_what_no_process_can_be_given_is_refused(tmp_path: Path, launch: dict[str, Any], words: str) -> None:
    backend = LocalBackend(tmp_path, Rules(same_user=True, secrets=lambda *_: "a\0b"))
    with pytest.raises(BackendRefused, match=words):
        backend.start(order("print('never')", launch=launch), now=now())


def test_a_command_that_no_system_can_start_has_failed_and_not_vanished(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path, Rules(same_user=True))
    backend.start(order(launch={"command": ["x" * 10_000_000]}), now=now())
    run = ended(backend)
    assert (run.exit_code, run.node_lost) == (126, False)


@root_only
@namespaces
def test_a_fork_bomb_ends_with_its_job(backend: LocalBackend) -> None:
    """Each of its processes forks as soon as it is there, so none that is ended one by one is the last."""
    body = """
        import os, time
        print("up")
        for _ in range(5):
            os.fork()
        while True:
            if os.fork() == 0:
                continue
            time.sleep(0.02)
            os._exit(0)
    """
    backend.start(order(body), now=now())
    says(backend, "up")
    backend.stop(key="j-1.1", sequence=2, force=True, now=now())
    ended(backend)
    assert not [entry for entry in Path("/proc").iterdir() if entry.name.isdigit() and _uid(entry) == UIDS[0]]


def _uid(entry: Path) -> int:
    try:
        return entry.stat().st_uid
    except OSError:
        return -1


@root_only
@namespaces
def test_jobs_end_with_a_supervisor_that_is_killed(backend: LocalBackend) -> None:
    backend.start(order("import time; print('up'); time.sleep(600)"), now=now())
    says(backend, "up")
    state = json.loads((backend.folder / "runs" / "j-1.1" / "worker-0" / "state.json").read_text())
    os.kill(state["supervisor"]["pid"], 9)
    wait_until(lambda: processes.started_ticks(state["processes"][0]["pid"]) is None, seconds=20, what="it has ended, too")


def test_the_probe_says_why_or_nothing() -> None:
    done = subprocess.run([sys.executable, "-I", "-S", supervisor.__file__, "probe"], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0
    assert done.stderr == ""
