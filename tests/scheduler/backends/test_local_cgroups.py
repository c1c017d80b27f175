"""What a local worker asks for of the host is its limit."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from scheduler.backends.base import RunState
from scheduler.backends.local import LocalBackend
from scheduler.backends.local_accounts import Rules
from scheduler.backends.supervising.fence import Fence
from tests.scheduler.backends.local_machine import PYTHON, look, now, order
from tests.servers import wait_until

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
    fence = Fence({"folder": str(place), "files": {}})
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
