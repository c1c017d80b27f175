"""Which processors of this machine each local worker has: chosen under a lock, written down in the worker's folder, and read back from what runs.

The cgroups of workers that own processors lie in the folder of the settings. Those of all others lie in one of two cgroups there, for services and
for other work, which have what nobody owns. The supervisor of a worker carries the choice out, and starts nothing where that fails (`fence.py`).
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import ceil, inf
from pathlib import Path
from typing import Any

from scheduler.backends import supervisor
from scheduler.backends.base import BackendError, BackendRefused, RunState, StartOrder, WorkerSeat
from scheduler.backends.local_accounts import LOCAL_PATH, SPAWN_SECONDS, Account, Rules
from scheduler.backends.local_runs import Run, look_at, read, state_in, worker_folder
from scheduler.backends.processors import OTHERS, SERVICES, Processor, Topology, chosen, pools
from scheduler.backends.supervising.cpulists import list_of, read_list
from scheduler.backends.supervising.fence import TRIAL, kill
from scheduler.backends.supervising.files import write_whole
from scheduler.jobs.stored import role_named

log = logging.getLogger(__name__)
SYSTEM = Path("/sys/devices/system")
RECORD = "processors.json"
KINDS = (SERVICES, OTHERS)
CONTROLLERS = ("cpuset", "cpu", "memory")
GONE_SECONDS = 2.0  # what is left of a worker for longer cannot be ended


class CannotPin(Exception):
    """This machine cannot keep workers to their processors."""


@dataclass(frozen=True, slots=True)
class Pin:
    """The processors of a worker that owns some, or the kind of work that it shares the rest with. `fault`: why it can have neither."""

    owned: frozenset[int] = frozenset()
    kind: str = ""
    fault: str = ""

    @classmethod
    def read(cls, spot: Path) -> "Pin | None":
        """As it was written down for a worker; None: it was started without."""
        try:
            found = json.loads((spot / RECORD).read_text())
            return cls(read_list(found["owned"]), found["kind"], found["fault"])
        except FileNotFoundError:
            return None

    def write(self, spot: Path) -> None:
        spot.mkdir(exist_ok=True, mode=0o750)
        write_whole(spot / RECORD, {"owned": list_of(self.owned), "kind": self.kind, "fault": self.fault})

    def folder(self, top: Path) -> Path:
        """What the cgroup of the worker lies in."""
        return top if self.owned or not self.kind else top / self.kind

    def told(self, top: Path) -> dict[str, str]:
        """What its supervisor is told."""
        if self.fault:
            return {"fault": self.fault}
        return {"cpus": list_of(self.owned)} if self.owned else {"pool": str(top / self.kind)}


@dataclass(slots=True)
class Held:
    """Of the workers that run: their pins by the name of their cgroup, and what else is taken."""

    pins: dict[str, Pin] = field(default_factory=dict)
    unpinned: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)  # runs whose files cannot be read
    left: dict[str, frozenset[int]] = field(default_factory=dict)  # processors of cgroups in which something runs that is no worker of ours

    @property
    def owned(self) -> frozenset[int]:
        return self.owned_beside("")

    def owned_beside(self, name: str) -> frozenset[int]:
        """What a worker cannot have, of which something may be left in its cgroup."""
        return frozenset().union(*(pin.owned for pin in self.pins.values()), *(left for one, left in self.left.items() if one != name))

    @property
    def kinds(self) -> set[str]:
        return {pin.kind for pin in self.pins.values() if pin.kind}


class Pins:
    """The pins of the back-end in a folder."""

    def __init__(self, folder: Path, rules: Rules, *, system: Path = SYSTEM) -> None:
        self.folder, self.rules, self.system = folder, rules, system
        self.top = rules.cgroup if rules.pin else None
        self._said = ""
        self._ending: dict[str, float] = {}  # cgroups that were told to end, and until when that is not worth a word

    def decide(self, place: Path, order: StartOrder, seats: Sequence[WorkerSeat], now: datetime, *, keep: Callable[[], None] = lambda: None) -> None:
        """Choose the processors of workers that are to begin, and take them from those who share. All of them, or a BackendError and none. `keep`
        makes them workers of a run, before anybody else chooses.

        Told twice, it chooses the same again unless another worker has them by now. Where the machine cannot do it, that is written down instead.
        """
        if self.top is None or not seats:
            keep()
            return
        spots = {_name(order.key, seat.role, seat.index): worker_folder(place, seat.role, seat.index) for seat in seats}
        try:
            with _locked(self.top):
                pins = self._chosen(order, seats, spots, self._held(now, without=spots))
                for name, pin in pins.items():
                    pin.write(spots[name])
                keep()
        except (OSError, CannotPin, ValueError) as fault:
            log.warning("the processors of %s could not be chosen: %s", order.key, fault)
            for spot in spots.values():
                Pin(fault=f"{fault}"[:300]).write(spot)
            keep()

    def _chosen(self, order: StartOrder, seats: Sequence[WorkerSeat], spots: Mapping[str, Path], held: Held) -> dict[str, Pin]:
        topology, kind = self._topology(), SERVICES if order.serves else OTHERS
        owned, kinds = set(held.owned), set(held.kinds)
        given: set[int] = set()
        wanted = {(seat.role, seat.index): ceil(role_named(order.spec, seat.role).get("cpus") or 0) for seat in seats}
        if sum(wanted.values()) > topology.most:
            raise BackendRefused(
                f"{order.key} needs {_counted(sum(wanted.values()))} of its own. Workers of this machine can own {topology.most}; one stays shared."
            )
        kinds |= {kind} if 0 in wanted.values() else set()
        found: dict[str, Pin] = {}
        for seat in sorted(seats, key=lambda seat: (seat.role, seat.index)):
            name, count = _name(order.key, seat.role, seat.index), wanted[seat.role, seat.index]
            if not count:
                found[name] = Pin(kind=kind)
                continue
            mine = self._again(spots[name], count, topology, held.owned_beside(name) | given)
            if mine is None:
                mine = chosen(topology, owned, count, near=self.rules.numa(seat.gpu_uuids), spared=max(0, len(kinds) - 1))
            if mine is None:
                free = max(0, len(topology.numbers - topology.kept - owned) - max(0, len(kinds) - 1))
                raise BackendError(f"{order.key} needs {_counted(count)} of its own, and {free} can be had now. It starts when others have ended.")
            found[name] = Pin(mine)
            owned |= mine
            given |= mine
        shares = pools(topology, owned, kinds)
        if any(not shares[one] for one in kinds):
            raise BackendError(f"{order.key} states no processors, and services share none with other work. It starts when others have ended.")
        self._share(shares)
        return found

    def _again(self, spot: Path, count: int, topology: Topology, owned: Collection[int]) -> frozenset[int] | None:
        before = Pin.read(spot)
        if before is None or len(before.owned) != count or before.owned & set(owned) or not before.owned <= topology.numbers - topology.kept:
            return None
        return before.owned

    def told(self, spot: Path) -> tuple[Path | None, dict[str, str] | None]:
        """What the cgroup of a worker lies in, and what its supervisor is told of its processors."""
        pin = Pin.read(spot) if self.top is not None else None
        return (self.rules.cgroup, None) if pin is None or self.top is None else (pin.folder(self.top), pin.told(self.top))

    def settle(self, now: datetime) -> None:
        """Give back what ended workers owned, and end what is left of them."""
        if self.top is None:
            return
        try:
            with _locked(self.top):
                held = self._held(now)
                self._share(pools(self._topology(), held.owned, held.kinds))
            self._said = ""
        except (OSError, CannotPin, ValueError) as fault:
            if str(fault) != self._said:  # each second it is the same
                log.warning("the processors of this machine could not be looked at: %s", fault)
            self._said = str(fault)

    # What is there

    def _held(self, now: datetime, without: Collection[str] = ()) -> Held:
        held, over = Held(), set(without)
        for path in sorted(self.folder.glob("runs/*/run.json")):
            try:
                if (run := read(path.parent)) is not None:
                    self._look(held, over, path.parent, run, now, without)
            except (OSError, ValueError, KeyError, TypeError):  # the others are no worse for it
                held.unread.append(path.parent.name)
        self._look_further(held, over)
        return held

    def _look(self, held: Held, over: set[str], place: Path, run: Run, now: datetime, without: Collection[str]) -> None:
        for worker in run.workers:
            name, spot = _name(run.key, worker["role"], worker["index"]), worker_folder(place, worker["role"], worker["index"])
            if name in without:
                continue
            is_replaced = "again" in worker and not worker.get("leaving")  # its processors wait for it
            if look_at(place, run, worker, now).state == RunState.ENDED and not is_replaced:
                over.add(name)
            elif (pin := Pin.read(spot)) is not None:
                held.pins[name] = pin
            elif state_in(spot):
                held.unpinned.append(name)

    def _look_further(self, held: Held, over: Collection[str]) -> None:
        """At the cgroups of none of these workers. What our own ended workers have left there is ended. Workers of runs that cannot be read stay as
        they are, and keep what the kernel says that they have."""
        assert self.top is not None
        for place in sorted(one for one in (*self.top.iterdir(), *(child for kind in KINDS for child in _children(self.top / kind))) if one.is_dir()):
            name, is_own = place.name, place.parent == self.top
            if name in KINDS or name in held.pins or name in held.unpinned or name.startswith(TRIAL):
                continue
            if any(name.startswith(f"{key}.") for key in held.unread):
                held.pins[name] = Pin(_processors(place)) if is_own else Pin(kind=place.parent.name)
                continue
            if name in over or self._is_ours(name):
                self._end(place)
            if is_own and _populated(place):
                held.left[name] = _processors(place)

    def _end(self, place: Path) -> None:
        """Kill what is in a cgroup, and remove it at the look that finds it empty."""
        if not _populated(place):
            self._ending.pop(place.name, None)
            with contextlib.suppress(OSError):  # a later look removes it
                place.rmdir()
            return
        kill(place)
        if time.monotonic() > self._ending.setdefault(place.name, time.monotonic() + GONE_SECONDS):
            self._ending[place.name] = inf
            log.warning("something of %s cannot be ended, and keeps its processors", place.name)

    def _is_ours(self, name: str) -> bool:
        """Whether a cgroup is of a run that has a folder here, forgotten or not."""
        parts = name.split(".")
        return any((self.folder / "runs" / ".".join(parts[:count])).is_dir() for count in range(1, len(parts)))

    def _topology(self) -> Topology:
        """The processors of the cgroup of all workers."""
        assert self.top is not None
        _make(self.top)
        if "cpuset" not in _controllers(self.top):
            above = self.top.parent
            todo = f"Write +cpuset to {above}/cgroup.subtree_control, or delegate cpuset in the unit."
            try:
                _allow(above)
            except OSError as fault:
                if fault.errno == errno.EBUSY:
                    todo = f"{above} holds processes, so that its cgroups cannot have controllers. Under systemd state DelegateSubgroup in the unit."
            if "cpuset" not in _controllers(self.top):
                raise CannotPin(f"{self.top} has no controller cpuset. {todo}")
        numbers = read_list((self.top / "cpuset.cpus.effective").read_text())
        if len(numbers) < 2:
            raise CannotPin(f"{self.top} has {_counted(len(numbers))}; two are needed.")
        return topology_of(self.system, numbers)

    def _share(self, shares: Mapping[str, frozenset[int]]) -> None:
        """Let those who own nothing have these. Written only where it changes: each write moves threads."""
        assert self.top is not None
        _allow(self.top)
        for kind, processors in sorted(shares.items()):
            pool = self.top / kind
            pool.mkdir(exist_ok=True)
            _allow(pool)
            wanted = list_of(processors)
            if wanted and (pool / "cpuset.cpus").read_text().strip() != wanted:
                with (pool / "cpuset.cpus").open("r+") as file:
                    file.truncate()
                    file.write(wanted)

    # Whether it holds

    def capacity(self) -> int | None:
        """How many processors workers can own; None where they own none, or nothing is known."""
        try:
            return self._topology().most if self.top is not None else None
        except (OSError, CannotPin, ValueError):
            return None

    def missing(self, account: Account | None = None) -> str:
        """Why no worker can be pinned on this machine; empty: one was just pinned on trial, and could not leave its processor, nor its cgroup as the
        user of a job."""
        if self.top is None:
            return "Processors are not pinned (GPUFLEET_LOCAL_PIN)."
        try:
            with _locked(self.top):
                numbers = sorted(self._topology().numbers)
                _allow(self.top)
            order: dict[str, Any] = {"folder": str(self.top), "processors": [numbers[-1], numbers[0]]}
            if account is not None and account.uid is not None:
                order["user"] = [account.uid, account.gid, account.groups]
            done = subprocess.run(
                [sys.executable, "-I", "-S", supervisor.__file__, "pin"],
                input=json.dumps(order),
                capture_output=True,
                text=True,
                env={"PATH": LOCAL_PATH, "LANG": "C.UTF-8"},
                timeout=SPAWN_SECONDS,
                check=False,
            )
        except (OSError, CannotPin, ValueError, subprocess.TimeoutExpired) as fault:
            return str(fault)
        return done.stdout.strip() if not done.returncode else done.stderr.strip()[-200:] or "The trial ended without a word."

    def unvouched(self, now: datetime) -> str:
        """Why the pins of the workers that run are no boundary, though this machine can pin; empty: they are one."""
        assert self.top is not None
        if self.rules.same_user:
            return "Jobs run as the console's own user, and can leave their processors (GPUFLEET_LOCAL_SAME_USER)."
        try:
            with _locked(self.top):  # nothing is given back meanwhile
                return self._strayed(self._held(now))
        except (OSError, CannotPin, ValueError) as fault:
            return str(fault)

    def _strayed(self, held: Held) -> str:
        assert self.top is not None
        if held.unpinned:
            return f"{held.unpinned[0]} was started before processors were pinned."
        for name, pin in sorted(held.pins.items()):
            place = pin.folder(self.top) / name
            with contextlib.suppress(OSError):  # about to begin, or to end
                if not _populated(place):
                    continue
                had = read_list((place / "cpuset.cpus.effective").read_text())
                if (pin.owned and had != pin.owned) or (pin.kind and had & held.owned):
                    return f"{name} has processors {list_of(had) or 'none'}, which are not its own."
        return ""


def topology_of(system: Path, numbers: Collection[int]) -> Topology:
    """These processors with their cores and NUMA nodes, as the kernel tells them. What it does not tell is a core of its own, on node 0."""
    numa: dict[int, int] = {}
    for node in sorted(system.glob("node/node[0-9]*")):
        with contextlib.suppress(OSError, ValueError):
            numa |= dict.fromkeys(read_list((node / "cpulist").read_text()), int(node.name[4:]))
    found = []
    for number in sorted(numbers):
        core = number
        for name in ("core_cpus_list", "thread_siblings_list"):
            with contextlib.suppress(OSError, ValueError):
                core = min(read_list((system / f"cpu/cpu{number}/topology/{name}").read_text()), default=number)
                break
        found.append(Processor(number, core, numa.get(number, 0)))
    return Topology(tuple(found))


def _counted(processors: int) -> str:
    return "1 processor" if processors == 1 else f"{processors} processors"


def _name(key: str, role: str, index: int) -> str:
    return f"{key}.{role}-{index}"


@contextlib.contextmanager
def _locked(top: Path) -> Iterator[None]:
    """Held against other processes of this console, and against other consoles that use the same cgroup."""
    _make(top)
    held = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _make(top: Path) -> None:
    """The folder of cgroups, which is gone after each boot."""
    if top.is_dir():
        return
    if not (top.parent / "cgroup.controllers").exists():
        raise CannotPin(f"{top} does not exist, and {top.parent} is not a cgroup (GPUFLEET_LOCAL_CGROUP).")
    top.mkdir(exist_ok=True)


def _controllers(folder: Path) -> list[str]:
    return (folder / "cgroup.controllers").read_text().split()


def _allow(folder: Path) -> None:
    """Let the cgroups in it have processors of their own, and limits on time and memory where that can be."""
    control, there = folder / "cgroup.subtree_control", _controllers(folder)
    has = control.read_text().split()
    wanted = [one for one in CONTROLLERS if one not in has and (one in there or one == "cpuset")]
    if not wanted:
        return
    try:
        _enable(control, wanted)
    except OSError as fault:
        # A folder that holds processes takes cpuset alone, and then its cgroups can hold none.
        if "cpuset" in wanted and fault.errno == errno.EBUSY:
            raise
        for one in wanted:
            with contextlib.suppress(*(() if one == "cpuset" else (OSError,))):
                _enable(control, [one])


def _enable(control: Path, controllers: Sequence[str]) -> None:
    try:
        with control.open("r+") as file:
            file.write(" ".join(f"+{one}" for one in controllers))
    except OSError as fault:
        raise OSError(fault.errno, fault.strerror, str(control)) from fault


def _processors(folder: Path) -> frozenset[int]:
    """What a cgroup says that it has; none where it says nothing."""
    with contextlib.suppress(OSError, ValueError):
        return read_list((folder / "cpuset.cpus").read_text())
    return frozenset()


def _children(folder: Path) -> Iterator[Path]:
    with contextlib.suppress(FileNotFoundError):
        yield from folder.iterdir()


def _populated(folder: Path) -> bool:
    try:
        return "populated 1" in (folder / "cgroup.events").read_text()
    except FileNotFoundError:
        return False
