"""Local workers are pinned to processors: chosen, carried out, verified before anything of them begins, and given back."""

import errno
import fcntl
import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from scheduler.backends import local_pins
from scheduler.backends.base import BackendError, BackendRefused, RunState, StartOrder
from scheduler.backends.local import LocalBackend
from scheduler.backends.local_accounts import Rules
from scheduler.backends.local_pins import Pin, Pins, topology_of
from scheduler.backends.processors import Processor
from scheduler.backends.supervising.cpulists import list_of
from scheduler.backends.supervising.fence import Fence, Unpinned, affinity
from scheduler.backends.supervising.files import write_whole
from scheduler.backends.supervising.worker import Worker
from tests.scheduler.backends.local_machine import ended, log, look, now, order, running
from tests.servers import wait_until

SLEEP = "import time; print('here', flush=True); time.sleep(60)"
HERE = affinity()


class Files:
    """Plain files in the place of the kernel's: what would be written to it. Nothing in them is enforced, and nothing is populated."""

    def __init__(self, top: Path, processors: str) -> None:
        self.top, self.why = top, ""
        for place in (top, top / "services", top / "others"):
            self.cgroup(place, **{"cpuset.cpus.effective": processors})

    def cgroup(self, place: Path, **files: str) -> Path:
        place.mkdir(parents=True, exist_ok=True)
        plain = {"cgroup.controllers": "cpuset cpu memory", "cgroup.procs": "", "cgroup.subtree_control": "", "cgroup.events": "populated 0\n"}
        for name, value in (plain | {"cpuset.cpus": "", "cpuset.cpus.effective": ""} | files).items():
            (place / name).write_text(value)
        return place

    def shared(self, kind: str = "others") -> str:
        return (self.top / kind / "cpuset.cpus").read_text()


@pytest.fixture
def files(folder: Path) -> Files:
    return Files(folder / "cgroup", "0-7")


def rules(files: Files, **more: Any) -> Rules:
    return Rules(same_user=True, cgroup=files.top, pin=True, **more)


@pytest.fixture
def pins(folder: Path, files: Files) -> Pins:
    """Eight processors, each a core of its own."""
    return Pins(folder, rules(files), system=folder / "nothing")


def stating(cpus: float | None, *, key: str = "j-1.1", workers: int = 1, serves: bool = False) -> StartOrder:
    role: dict[str, Any] = {"name": "worker", "min": workers, "gpus": 1} | ({"cpus": cpus} if cpus else {})
    return order(SLEEP, key=key, workers=workers, spec={"roles": [role]}, serves=serves)


def begun(pins: Pins, stated: StartOrder) -> list[Pin | None]:
    """Its workers as a run that is about to come up."""
    place = pins.folder / "runs" / stated.key
    place.mkdir(parents=True, exist_ok=True)
    workers = [{"role": one.role, "index": one.index, "node": one.node, "grace": 1, "port": 1} for one in stated.workers]
    run = {"key": stated.key, "sequence": 1, "at": now().isoformat(), "workers": workers}
    pins.decide(place, stated, stated.workers, now(), keep=partial(write_whole, place / "run.json", run))
    return [Pin.read(place / f"worker-{one.index}") for one in stated.workers]


def owned(pins: Pins, stated: StartOrder) -> list[set[int]]:
    return [set(pin.owned) for pin in begun(pins, stated) if pin is not None]


def over(pins: Pins, key: str) -> None:
    for spot in (pins.folder / "runs" / key).glob("worker-*"):
        (spot / "state.json").write_text(json.dumps({"state": "ended", "exit_code": 0, "why": "", "processes": []}))


# What is chosen


def test_workers_own_whole_processors_and_the_rest_is_shared(pins, files):
    assert owned(pins, stating(1.5)) == [{1, 2}]
    assert owned(pins, stating(2, key="j-2.1", workers=2)) == [{3, 4}, {5, 6}]
    assert files.shared() == "0,7"
    assert begun(pins, stating(None, key="j-3.1")) == [Pin(kind="others")]
    assert files.shared() == "0,7"


def test_told_twice_it_chooses_the_same(pins):
    first = owned(pins, stating(3))
    owned(pins, stating(2, key="j-2.1"))

    assert owned(Pins(pins.folder, pins.rules, system=pins.system), stating(3)) == first


def test_a_gang_that_finds_too_few_takes_none_and_is_told_again(pins, files):
    owned(pins, stating(4))
    with pytest.raises(BackendError, match=r"j-2.1 needs 2 processors of its own, and 1 can be had now. It starts when others"):
        begun(pins, stating(2, key="j-2.1", workers=2))
    assert not (pins.folder / "runs/j-2.1/run.json").exists()
    assert files.shared() == "0,5-7"

    over(pins, "j-1.1")
    pins.settle(now())
    assert files.shared() == "0-7"
    assert owned(pins, stating(2, key="j-2.1", workers=2)) == [{1, 2}, {3, 4}]


def test_what_no_machine_with_so_many_can_give_is_refused(pins):
    with pytest.raises(BackendRefused, match=r"needs 8 processors of its own. Workers of this machine can own 7; one stays shared"):
        begun(pins, stating(8))


def test_services_share_no_processor_with_other_work(pins, files):
    assert begun(pins, stating(None)) == [Pin(kind="others")]
    assert files.shared() == "0-7"
    assert begun(pins, stating(None, key="j-2.1", serves=True)) == [Pin(kind="services")]
    assert (files.shared("services"), files.shared("others")) == ("0-3", "4-7")

    with pytest.raises(BackendError, match="7 processors of its own, and 6 can be had now"):
        begun(pins, stating(7, key="j-3.1"))
    assert owned(pins, stating(6, key="j-3.1")) == [{1, 2, 3, 4, 5, 6}]
    assert (files.shared("services"), files.shared("others")) == ("0", "7")


def test_a_worker_that_states_nothing_waits_where_only_one_processor_is_left_and_a_service_has_it(pins):
    begun(pins, stating(None, serves=True))
    owned(pins, stating(7, key="j-2.1"))

    with pytest.raises(BackendError, match="services share none with other work"):
        begun(pins, stating(None, key="j-3.1"))


def test_a_worker_that_never_came_up_gives_back_what_it_owned(pins, files):
    owned(pins, stating(4))
    pins.settle(now() + timedelta(seconds=19))
    assert files.shared() == "0,5-7"

    pins.settle(now() + timedelta(seconds=30))
    assert files.shared() == "0-7"


def test_a_worker_that_is_replaced_finds_its_processors_again(pins, files):
    owned(pins, stating(4))
    over(pins, "j-1.1")
    path = pins.folder / "runs/j-1.1/run.json"
    run = json.loads(path.read_text())
    run["workers"][0] |= {"again": 3, "again_at": now().isoformat()}
    path.write_text(json.dumps(run))
    pins.settle(now())

    assert files.shared() == "0,5-7"


def test_what_something_else_runs_on_in_the_folder_is_given_to_nobody(pins, files):
    files.cgroup(files.top / "x-1.1.worker-0", **{"cgroup.events": "populated 1\n", "cpuset.cpus": "1-3"})

    assert owned(pins, stating(2)) == [{4, 5}]


def test_what_the_kernel_cannot_end_delays_nobody_and_is_said_once(pins, files, monkeypatch, caplog):
    """It keeps its processors until a later look finds its cgroup empty."""
    monkeypatch.setattr(local_pins, "GONE_SECONDS", 0.05)
    owned(pins, stating(2))
    over(pins, "j-1.1")
    left = files.cgroup(files.top / "j-1.1.worker-0", **{"cgroup.events": "populated 1\n", "cpuset.cpus": "1-2", "cgroup.kill": ""})
    began = monotonic()
    for _ in range(3):
        pins.settle(now())
    assert monotonic() - began < 0.05 * 3
    assert ((left / "cgroup.kill").read_text(), files.shared(), caplog.records) == ("1", "0,3-7", [])
    assert owned(pins, stating(2, key="j-2.1")) == [{3, 4}]

    wait_until(lambda: pins.settle(now()) or caplog.records, seconds=5, what="it is said")
    for _ in range(3):
        pins.settle(now())
    assert [one.getMessage() for one in caplog.records] == ["something of j-1.1.worker-0 cannot be ended, and keeps its processors"]

    (left / "cgroup.events").write_text("populated 0\n")
    pins.settle(now())
    assert files.shared() == "0-2,5-7"


def test_a_worker_finds_its_processors_again_though_something_of_it_is_left(pins, files):
    owned(pins, stating(2))
    over(pins, "j-1.1")
    files.cgroup(files.top / "j-1.1.worker-0", **{"cgroup.events": "populated 1\n", "cpuset.cpus": "1-2"})

    assert owned(pins, stating(2)) == [{1, 2}]


@pytest.mark.parametrize("name", ["run.json", "worker-0/state.json", "worker-0/processors.json"])
def test_workers_of_a_run_that_cannot_be_read_are_left_alone_and_keep_their_processors(pins, files, name):
    owned(pins, stating(2))
    begun(pins, stating(None, key="j-2.1", serves=True))
    alive = [
        files.cgroup(files.top / spot, **{"cgroup.events": "populated 1\n", "cgroup.kill": "", "cpuset.cpus": processors})
        for spot, processors in (("j-1.1.worker-0", "1-2"), ("services/j-2.1.worker-0", ""))
    ]
    for key in ("j-1.1", "j-2.1"):
        (pins.folder / "runs" / key / name).write_text('{"key')
    pins.settle(now())

    assert [(one / "cgroup.kill").read_text() for one in alive] == ["", ""]
    assert files.shared() == "0,3-7"
    assert owned(pins, stating(2, key="j-3.1")) == [{3, 4}]
    begun(pins, stating(None, key="j-4.1"))
    assert (files.shared("services"), files.shared()) == ("0,5", "6-7")
    for key in ("j-1.1", "j-2.1"):
        (pins.folder / "runs" / key / name).unlink()


# What it lies in


def test_the_folder_is_made_again_after_a_boot(pins, files):
    top = files.cgroup(pins.folder / "unit") / "workers"
    files.cgroup(top, **{"cpuset.cpus.effective": "0-7"})
    again = Pins(pins.folder, replace(pins.rules, cgroup=top), system=pins.system)
    for place in top.iterdir():
        place.unlink()
    top.rmdir()
    again.settle(now())

    assert top.is_dir()


def test_where_no_cgroup_is_no_folder_is_made(pins, caplog):
    top = pins.folder / "elsewhere/workers"
    nowhere = Pins(pins.folder, replace(pins.rules, cgroup=top, same_user=False), system=pins.system)
    words = f"{top} does not exist, and {top.parent} is not a cgroup (GPUFLEET_LOCAL_CGROUP)."

    assert (nowhere.missing(), nowhere.unvouched(now())) == (words, words)
    assert not top.parent.exists()


def test_controllers_of_memory_and_time_are_enabled_too(pins, files):
    """So that a worker that states only memory, and shares processors, gets its limit."""
    begun(pins, stating(None))
    assert [(place / "cgroup.subtree_control").read_text() for place in (files.top, files.top / "others")] == ["+cpuset +cpu +memory"] * 2

    for place in (files.top, files.top / "others"):
        (place / "cgroup.controllers").write_text("cpuset pids\n")
        (place / "cgroup.subtree_control").write_text("")
    begun(pins, stating(None, key="j-2.1"))
    assert [(place / "cgroup.subtree_control").read_text() for place in (files.top, files.top / "others")] == ["+cpuset"] * 2


@pytest.mark.parametrize(("code", "then"), [(errno.EINVAL, [["cpuset"], ["cpu"], ["memory"]]), (errno.EBUSY, [])])
def test_a_controller_that_cannot_be_enabled_keeps_no_other_back(pins, files, monkeypatch, code, then):
    """In a folder that holds processes none is: cpuset alone could be, and then its cgroups could hold none."""
    tried = []

    def enable(_control: Path, controllers: list[str]) -> None:
        tried.append(controllers)
        if "cpu" in controllers:
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(local_pins, "_enable", enable)
    with suppress(OSError):
        local_pins._allow(files.top)
    assert tried == [["cpuset", "cpu", "memory"], *then]


def test_a_folder_without_the_controller_gets_it_from_its_parent_or_says_what_holds_processes(pins, files, monkeypatch):
    files.cgroup(pins.folder)
    (files.top / "cgroup.controllers").write_text("cpu\n")
    assert "has no controller cpuset. Write +cpuset to" in pins.missing()
    assert (pins.folder / "cgroup.subtree_control").read_text() == "+cpuset +cpu +memory"

    def busy(_folder: Path) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(local_pins, "_allow", busy)
    assert f"{pins.folder} holds processes, so that its cgroups cannot have controllers. Under systemd state DelegateSubgroup" in pins.missing()


def test_the_node_of_the_gpus_is_preferred(folder, files):
    system = folder / "system"
    for node, numbers in ((0, "0-3"), (1, "4-7")):
        (system / f"node/node{node}").mkdir(parents=True)
        (system / f"node/node{node}/cpulist").write_text(numbers)
    for number in range(8):
        (system / f"cpu/cpu{number}/topology").mkdir(parents=True)
        first = number // 2 * 2
        (system / f"cpu/cpu{number}/topology/thread_siblings_list").write_text(f"{first}-{first + 1}\n")
    near = Pins(folder, rules(files, numa={("GPU-0-0",): 1}.get), system=system)

    assert topology_of(system, {4, 5}).processors == (Processor(4, 4, 1), Processor(5, 4, 1))
    assert owned(near, stating(2)) == [{4, 5}]


# What is carried out


@pytest.fixture
def backend(folder: Path) -> LocalBackend:
    """A machine with the processors that this process may use, and nothing that enforces anything."""
    return LocalBackend(folder, rules(Files(folder / "cgroup", list_of(HERE))))


def of(backend: LocalBackend) -> Files:
    files = Files.__new__(Files)
    assert backend.rules.cgroup is not None
    files.top = backend.rules.cgroup
    return files


@pytest.mark.parametrize("body", ["print('here')", SLEEP])
def test_a_worker_on_the_ordered_processors_starts_and_its_log_says_which(backend, body):
    place = of(backend).cgroup(backend.rules.cgroup / "others/j-1.1.worker-0", **{"cpuset.cpus.effective": list_of(HERE)})
    backend.start(order(body), now=now())
    running(backend, "here")

    assert log(backend).splitlines() == [f"gpufleet: processors {list_of(HERE)}, shared with other workers", "here"]
    backend.stop(key="j-1.1", sequence=2, force=True, now=now())
    assert ended(backend).refusals == ()
    assert place.exists()


@pytest.mark.skipif(len(HERE) < 2, reason="there is only one processor")
def test_a_worker_that_would_run_elsewhere_never_begins_and_its_node_refuses_it(backend, folder):
    """The files say that it is pinned, and its process is not."""
    of(backend).cgroup(backend.rules.cgroup / "j-1.1.worker-0", **{"cpuset.cpus.effective": list_of(HERE), "cpu.max": ""})
    backend.start(replace(stating(1), launch=order(f"open({str(folder / 'begun')!r}, 'w')").launch), now=now())
    run = ended(backend)

    pin = Pin.read(folder / "runs/j-1.1/worker-0")
    assert pin is not None
    words = f"Processors {list_of(pin.owned)} were ordered; its cgroup has {list_of(HERE)}, its process {list_of(HERE)}."
    assert [(one.node, one.code, one.words) for one in run.refusals] == [("here", "cores", words)]
    assert (run.why, run.node_lost, run.exit_code) == (f"here refused it (cores): {words}", True, None)
    assert log(backend) == f"gpufleet: not started: {words}\n"
    assert not (folder / "begun").exists()


def test_a_folder_without_the_controller_refuses_every_worker(backend):
    (backend.rules.cgroup / "cgroup.controllers").write_text("cpu memory\n")
    backend.start(order("print('here')"), now=now())
    run = ended(backend)

    assert run.refusals[0].words.startswith(f"{backend.rules.cgroup} has no controller cpuset. Write +cpuset to ")
    assert "here\n" not in log(backend)


def test_a_cgroup_that_cannot_be_made_refuses_the_worker(backend):
    backend.start(order("print('here')"), now=now())
    run = ended(backend)

    assert (run.refusals[0].code, "cgroup.procs: No such file" in run.refusals[0].words, run.node_lost) == ("cores", True, True)


def test_workers_that_cannot_have_their_processors_yet_are_no_run(backend):
    of(backend).cgroup(backend.rules.cgroup / "x-1.1.worker-0", **{"cgroup.events": "populated 1\n", "cpuset.cpus": list_of(HERE)})
    with pytest.raises(BackendError, match="1 processor of its own, and 0 can be had now"):
        backend.start(stating(1), now=now())

    assert backend.observe(now=now()) == ()
    assert not (backend.folder / "runs/j-1.1").exists()


def test_a_fence_without_limits_on_memory_still_pins(folder):
    files = Files(folder / "cgroup", "0-7")
    place = files.cgroup(files.top / "one", **{"cpuset.cpus.effective": list_of(HERE)})
    fence = Fence({"folder": str(place), "files": {"memory.max": "1"}, "pin": {"cpus": list_of(HERE)}})

    assert (fence.unpinned, "memory.max" in fence.missing) == ("", True)
    fence.verify()
    assert fence.told == f"processors {list_of(HERE)}, its own"
    (place / "cpuset.cpus.effective").write_text("")
    with pytest.raises(Unpinned, match="its cgroup has none"):
        fence.verify()


def keeper(folder: Path, command: list[str], effective: str) -> Worker:
    """The supervisor of a worker that is asked by a command, in a cgroup of plain files."""
    place = Files(folder / "cgroup", "0-7").cgroup(folder / "cgroup/one", **{"cpuset.cpus.effective": effective})
    told: dict[str, Any] = {"uid": None, "cwd": str(folder), "env": {"PATH": os.environ["PATH"]}, "secrets": {}, "ranks": [{}]}
    limits = {"folder": str(place), "files": {}, "pin": {"cpus": list_of(HERE)}}
    ready = {"command": command, "period_s": 1, "timeout_s": 60, "failures": 1}
    return Worker(folder, told | {"log_segment": 4096, "log_segments": 2, "limits": limits, "ready": ready})


def asked(worker: Worker) -> str:
    """What it says of one answer."""
    assert worker.probe is not None
    worker.probe.why = "nothing yet"
    wait_until(worker.probe.turn, seconds=20, what="it was asked")
    return worker.probe.why


def test_a_ready_command_stays_in_the_cgroup_of_its_worker(folder, monkeypatch):
    """The files show by whom they are written to: a command that left would write to the cgroup of the console."""
    entered = folder / "entered"
    monkeypatch.setattr(Fence, "_enter", lambda _self, place: entered.open("a").write(f"{os.getpid()} {place.name}\n") and None)
    assert asked(keeper(folder, ["true"], list_of(HERE))) == ""

    lines = [line.split() for line in entered.read_text().splitlines()]
    assert [int(pid) for pid, _ in lines] == [os.getpid()] * 2
    assert lines[0][1] == "one" != lines[1][1]


def test_a_ready_command_that_would_run_elsewhere_never_begins(folder):
    why = asked(keeper(folder, ["touch", str(folder / "begun")], "4094"))

    assert why == f"It could not be asked: Processors {list_of(HERE)} were ordered; its cgroup has 4094, its process {list_of(HERE)}."
    assert not (folder / "begun").exists()


def test_a_worker_that_cannot_be_asked_in_its_cgroup_runs_on(folder):
    worker = keeper(folder, ["true"], list_of(HERE))
    before = set(os.listdir("/proc/self/fd"))
    (folder / "cgroup/one/cgroup.procs").unlink()

    assert asked(worker) == f"It could not be asked: {folder}/cgroup/one/cgroup.procs: No such file or directory."
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_trial_says_why_nothing_can_be_pinned(pins, files):
    assert "cgroup.procs: No such file" in pins.missing()
    (files.top / "cpuset.cpus.effective").write_text("3\n")
    assert pins.missing() == f"{files.top} has 1 processor; two are needed."
    (files.top / "cgroup.controllers").unlink()
    assert "cgroup.controllers" in pins.missing()
    assert Pins(pins.folder, replace(pins.rules, pin=False)).missing() == "Processors are not pinned (GPUFLEET_LOCAL_PIN)."


def test_a_machine_that_cannot_pin_any_more_is_said_once(pins, files, caplog):
    (files.top / "cgroup.controllers").write_text("cpu\n")
    for _ in range(3):
        pins.settle(now())
    assert [("has no controller cpuset" in one.getMessage()) for one in caplog.records] == [True]


def test_what_runs_unpinned_or_elsewhere_is_no_boundary(pins, files):
    own = Pins(pins.folder, replace(pins.rules, same_user=False), system=pins.system)
    assert "GPUFLEET_LOCAL_SAME_USER" in pins.unvouched(now())
    assert own.unvouched(now()) == ""

    owned(own, stating(2))
    place = files.cgroup(files.top / "j-1.1.worker-0", **{"cgroup.events": "populated 1\n", "cpuset.cpus.effective": "1-2"})
    assert own.unvouched(now()) == ""
    (place / "cpuset.cpus.effective").write_text("1-3")
    assert own.unvouched(now()) == "j-1.1.worker-0 has processors 1-3, which are not its own."

    spot = pins.folder / "runs/j-1.1/worker-0"
    (spot / "processors.json").unlink()
    (spot / "state.json").write_text(json.dumps({"state": "running", "processes": [{"pid": os.getpid(), "ticks": started(os.getpid())}]}))
    assert own.unvouched(now()) == "j-1.1.worker-0 was started before processors were pinned."


def test_processors_of_workers_are_compared_while_none_is_given_back(pins, files, monkeypatch):
    own, found = Pins(pins.folder, replace(pins.rules, same_user=False), system=pins.system), []
    owned(own, stating(2))

    def looked(_place: Path) -> bool:
        held = os.open(files.top, os.O_RDONLY)
        with suppress(BlockingIOError):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found.append("free")
        os.close(held)
        return True

    files.cgroup(files.top / "j-1.1.worker-0", **{"cpuset.cpus.effective": "1-2"})
    monkeypatch.setattr(local_pins, "_populated", looked)
    assert own.unvouched(now()) == ""
    assert found == []


def started(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


# On the real kernel


def real_cgroup() -> Path | None:
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    found = next((Path(place) for _, place, kind, *_ in mounts if kind == "cgroup2"), None)
    if found is None or not os.access(found / "cgroup.procs", os.W_OK) or len(HERE) < 3:
        return None
    return found if "cpuset" in (found / "cgroup.controllers").read_text().split() else None


needs_kernel = pytest.mark.skipif(real_cgroup() is None, reason="no cgroup v2 with cpuset that we may write to, or under three processors")


def is_empty(place: Path) -> bool:
    return "populated 0" in (place / "cgroup.events").read_text()


@pytest.fixture
def real(folder: Path) -> Iterator[LocalBackend]:
    top = real_cgroup()
    assert top is not None
    with (top / "cgroup.subtree_control").open("r+") as control:
        control.write("+cpuset +cpu +memory")
    place = top / f"gpufleet-test-{os.getpid()}"
    place.mkdir()
    yield LocalBackend(folder, Rules(same_user=True, cgroup=place, pin=True))
    for below in sorted(place.rglob("cgroup.kill"), reverse=True):
        below.write_text("1")
    for below in sorted((one.parent for one in place.rglob("cgroup.procs")), key=lambda one: -len(one.parts)):
        wait_until(partial(is_empty, below), seconds=5, what="it is empty")
        below.rmdir()


ESCAPES = """
    import os, time
    print('has', sorted(os.sched_getaffinity(0)), flush=True)
    for one in range(os.cpu_count()):
        if one not in HAS(os):
            try:
                os.sched_setaffinity(0, {one})
                print('escaped to', one, flush=True)
            except OSError as fault:
                print('kept from', one, fault.errno, flush=True)
    print('done', flush=True)
    time.sleep(60)
""".replace("HAS(os)", "os.sched_getaffinity(0)")


@needs_kernel
def test_two_jobs_have_processors_of_their_own_and_cannot_leave_them(real):
    for key in ("j-1.1", "j-2.1"):
        real.start(replace(stating(1, key=key), launch=order(ESCAPES).launch), now=now())
        running(real, "done", key)
    real.start(replace(stating(None, key="j-3.1"), launch=order(ESCAPES).launch), now=now())
    running(real, "done", "j-3.1")

    had = {}
    for key in ("j-1.1", "j-2.1", "j-3.1"):
        said = log(real, key=key).splitlines()
        had[key] = set(json.loads(said[1].removeprefix("has ")))
        assert not any(line.startswith("escaped") for line in said)
        assert sum(line.startswith("kept from") for line in said) == (os.cpu_count() or 0) - len(had[key])
    assert (len(had["j-1.1"]), len(had["j-2.1"])) == (1, 1)
    assert not had["j-1.1"] & had["j-2.1"]
    assert had["j-3.1"] == HERE - had["j-1.1"] - had["j-2.1"]
    assert real.pins.missing() == ""

    # A console that begins anew reads from what runs who owns what, and gives back what was lost.
    other = LocalBackend(real.folder, real.rules)
    state = json.loads((real.folder / "runs/j-1.1/worker-0/state.json").read_text())
    os.kill(state["supervisor"]["pid"], signal.SIGKILL)
    for process in state["processes"]:
        with suppress(ProcessLookupError):
            os.kill(process["pid"], signal.SIGKILL)
    wait_until(lambda: look(other, "j-1.1").state == RunState.ENDED, seconds=20, what="it is lost")
    wait_until(lambda: is_given_back(other, "j-1.1.worker-0"), seconds=5, what="its processors are given back")
    assert affinity(str(pid_of(other, "j-3.1"))) == HERE - had["j-2.1"]
    other.stop(key="j-2.1", sequence=2, force=True, now=now())
    assert ended(other, "j-2.1").refusals == ()
    other.observe(now=now())
    assert affinity(str(pid_of(other, "j-3.1"))) == HERE


@needs_kernel
def test_what_a_lost_worker_has_left_is_ended_before_its_processors_are_given_away(real):
    body = """
        import os, time
        if pid := os.fork():
            print('child', pid, flush=True)
        else:
            os.setsid()
        time.sleep(60)
    """
    real.start(replace(stating(1), launch=order(body).launch), now=now())
    running(real, "child")
    child = int(log(real).split("child ")[1].split()[0])
    state = json.loads((real.folder / "runs/j-1.1/worker-0/state.json").read_text())
    for pid in (state["supervisor"]["pid"], state["processes"][0]["pid"]):
        os.kill(pid, signal.SIGKILL)
    assert Path(f"/proc/{child}").exists()

    wait_until(lambda: is_given_back(real, "j-1.1.worker-0"), seconds=5, what="its processors are given back")
    real.start(stating(len(HERE) - 1, key="j-2.1"), now=now())
    running(real, "here", "j-2.1")
    wait_until(lambda: not alive(child), seconds=5, what="what was left is gone")
    assert affinity(str(pid_of(real, "j-2.1"))) == HERE - {min(HERE)}


def is_given_back(backend: LocalBackend, name: str) -> bool:
    backend.observe(now=now())
    assert backend.rules.cgroup is not None
    return not (backend.rules.cgroup / name).exists()


def alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def pid_of(backend: LocalBackend, key: str) -> int:
    return int(json.loads((backend.folder / f"runs/{key}/worker-0/state.json").read_text())["processes"][0]["pid"])
