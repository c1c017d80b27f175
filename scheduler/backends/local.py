"""The local back-end: real processes on the machine that the console runs on.

Its memory is a folder of files, so that a console that was killed finds what runs and goes on with it; every process has a supervisor that does not
depend on the console (`supervisor.py`). `Job.launch` says what to start:

    command   list of arguments, or
    shell     one string for /bin/sh, where the job asks for a shell in so many words
    per       "worker" (one process a worker, the default) or "gpu" (one for each of its GPUs)
    env       variables by name
    secrets   variables by name of a secret that the operator keeps
    workdir   where to start; an absolute path
"""

import contextlib
import errno
import fcntl
import grp
import json
import logging
import os
import pwd
import random
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from scheduler.backends import supervisor
from scheduler.backends.base import (
    BackendError,
    BackendRefused,
    Facts,
    LogPart,
    NotFound,
    OldCheckpoint,
    Reach,
    RunState,
    SeenCheckpoint,
    SeenRun,
    SeenWorker,
    Signal,
    StartOrder,
    WorkerSeat,
    whole_characters,
)
from scheduler.backends.manifests import FOLDER, Looker
from scheduler.backends.old_checkpoints import Deleter

log = logging.getLogger(__name__)
LOCAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# A cgroup takes no less than a millisecond of processor time in each of its periods of 100.
LEAST_CPU_MICROS = 1000
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
ROLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
# Where ranks meet: below the ports that the kernel gives to outgoing connections, of which one may begin before rank 0 listens.
PORTS = range(10_240, 20_000)
MARK = "GPUFLEET_RUN_DIR"  # in the environment of all that a worker starts; a folder, so that two consoles on one machine never mean the same
# A supervisor that has not written its state so long after it was started never will.
COME_UP = timedelta(seconds=20)
SPAWN_SECONDS = 10
# So long one look at all runs waits for the file systems of their checkpoints, and the end of a run for its last ones.
LOOK_SECONDS = 1.0
LAST_LOOK = timedelta(seconds=20)
FACTS = Facts(resizes_in_place=False, resizes_stated=True, creates_mig=False, runs_mps=False, runs_images=False, latency_ms=500)
# A worker that somebody kills so often in one run is no victim of the machine: then it has failed, as any other that ends so.
MOST_KILLED = 3
# A worker that fails so soon after another was lost could not go on without it: the loss is to blame, and not the job.
REFORMS = timedelta(seconds=120)
# Each look goes through the folders, so there are never more than so many of runs that are over; and so many are deleted at once.
MOST_KEPT = 2_000
DELETED_A_CALL = 200


@dataclass(frozen=True, slots=True)
class Rules:
    """Who local jobs run as, and what they may use. `allowed` says why nothing may run, or nothing."""

    user: str = ""
    same_user: bool = False
    secrets: Callable[[str, str], str | None] = lambda _name, _team: None  # by name and the path of the job's queue
    allowed: Callable[[], str] = lambda: ""
    report_url: str = ""
    checkpoints: Path | None = None  # instead of a folder beside the runs
    log_segment: int = 4 * 1024 * 1024
    log_segments: int = 8
    uids: tuple[int, int] | None = None  # the first and the last of those that jobs get, one each
    cgroup: Path | None = None  # of version 2, in which each worker gets one of its own; None: what a job asks for of the host binds only the plan
    kept_bytes: int = 4 * 1024**3  # of the folders of runs that are over


@dataclass(frozen=True, slots=True)
class Account:
    """The user that processes run as; `uid` None: the console's own."""

    name: str
    home: str
    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] = ()
    alone: bool = False  # nobody but one job has this uid


@dataclass(slots=True)
class Run:
    """What is known of a run besides its workers' own files."""

    key: str
    sequence: int
    at: str
    workers: list[dict[str, Any]] = field(default_factory=list)
    checkpoints: str = ""
    stopping: str = ""  # since when it has been asked to leave
    term_at: str = ""  # and when it is told so more clearly
    killed: bool = False
    uid: int | None = None  # that nobody but this job has

    @property
    def never_begun(self) -> bool:
        return not self.workers

    @property
    def in_place(self) -> bool:
        """Whether it is resized in place, and goes on without a worker that was lost."""
        return any(worker.get("in_place") for worker in self.workers)


@dataclass(frozen=True, slots=True)
class Program:
    """What the workers of a run start."""

    argv: list[str]
    secrets: dict[str, str]
    account: Account
    cwd: str
    env: dict[str, str]


class LocalBackend:
    def __init__(self, folder: Path, rules: Rules) -> None:
        self.folder, self.rules = folder, rules
        self._looker, self._deleter = Looker(), Deleter()
        self._waits_left = 0.0

    @property
    def facts(self) -> Facts:
        return FACTS

    def together(self, keys: Sequence[str] = ()) -> AbstractContextManager[None]:
        return nullcontext()

    # Being told

    def announce(self, orders: Sequence[StartOrder], *, now: datetime) -> None:
        """Each process is started by itself."""

    @contextmanager
    def _run(self, key: str) -> Iterator[Path]:
        """The folder of a run, held against any other process that is told about it."""
        if not KEY.fullmatch(key):
            raise BackendRefused(f"{key!r} is not the name of a run.")
        place = self.folder / "runs" / key
        try:
            place.mkdir(parents=True, exist_ok=True, mode=0o750)
            with (place / "held").open("a") as held:
                fcntl.flock(held, fcntl.LOCK_EX)
                yield place
        except (OSError, ValueError, subprocess.TimeoutExpired) as fault:
            # A full disk, a folder that may not be written to, a file that somebody has changed: perhaps better next time.
            raise BackendError(f"The files of {key} can't be used: {fault}") from fault

    def start(self, order: StartOrder, *, now: datetime) -> None:
        program = self._program(order)
        account = program.account
        with self._run(order.key) as place:
            run = _read(place)
            if run is not None and (run.never_begun or run.sequence > order.sequence):
                return
            try:
                checkpoints = self._checkpoint_folder(order, account)
            except BackendRefused:
                if run is None:
                    shutil.rmtree(place, ignore_errors=True)
                raise
            if run is None:
                # The port is chosen once: who is started after a kill in between must meet the others.
                port = _free_port()
                run = Run(order.key, order.sequence, now.isoformat(), [], str(checkpoints), uid=account.uid if account.alone else None)
                run.workers = [_worker_of(order, seat, port) for seat in order.workers]
                _write(place, run)
            # It may have grown since it was written down: those who join are told by the resize.
            here = {(worker["role"], worker["index"]) for worker in run.workers}
            self._begin(place, run, order, [seat for seat in order.workers if (seat.role, seat.index) in here], program)

    def _program(self, order: StartOrder) -> Program:
        argv, secrets, account = _argv(order.launch), self._secrets(order), self._account(order)
        return Program(argv, secrets, account, _workdir(order.launch, account), _environment(order.launch, account))

    def _begin(self, place: Path, run: Run, order: StartOrder, seats: Sequence[WorkerSeat], program: Program) -> None:
        """Start those of these workers that were not."""
        ranks = _ranks(order, int(run.workers[0]["port"]))
        for seat in seats:
            spot = _worker_folder(place, seat.role, seat.index)
            if (spot / "state.json").exists():
                continue
            spot.mkdir(exist_ok=True, mode=0o750)
            about = self._about(order, seat, Path(run.checkpoints))
            self._spawn(spot, program, about, ranks[seat.role, seat.index], self._limits(order, seat))

    def _limits(self, order: StartOrder, seat: WorkerSeat) -> dict[str, Any] | None:
        """The cgroup of a worker that says how much of the host it needs."""
        if self.rules.cgroup is None:
            return None
        role: dict[str, Any] = next((one for one in order.spec.get("roles") or () if one.get("name", "worker") == seat.role), {})
        files = {}
        if role.get("host_memory_gb"):
            files["memory.max"] = str(int(role["host_memory_gb"] * 1024**3))
        if role.get("cpus"):
            files["cpu.max"] = f"{max(LEAST_CPU_MICROS, round(role['cpus'] * 100_000))} 100000"
        return {"folder": str(self.rules.cgroup / f"{order.key}.{seat.role}-{seat.index}"), "files": files} if files else None

    def _about(self, order: StartOrder, seat: WorkerSeat, checkpoints: Path) -> dict[str, str]:
        found = {
            "GPUFLEET_JOB": order.job,
            "GPUFLEET_ATTEMPT": str(order.attempt),
            "GPUFLEET_ROLE": seat.role,
            "GPUFLEET_TOKEN": order.token,
            "GPUFLEET_CHECKPOINT_DIR": str(checkpoints),
            "GPUFLEET_RESUME_FROM": order.resume_from,
            "GPUFLEET_RESUME_STEP": str(order.resume_step),
            "GPUFLEET_GRACE_SECONDS": str(order.grace_seconds),
        }
        found |= order.service
        if self.rules.report_url:
            found["GPUFLEET_REPORT_URL"] = self.rules.report_url
        return found

    def _spawn(
        self,
        spot: Path,
        program: Program,
        about: dict[str, str],
        ranks: list[dict[str, str]],
        limits: dict[str, Any] | None,
    ) -> None:
        account = program.account
        document = {
            "folder": str(spot),
            "argv": program.argv,
            "cwd": program.cwd,
            "env": {**program.env, **about, MARK: str(spot)},
            "secrets": program.secrets,
            "ranks": ranks,
            "mark": f"{MARK}={spot}",
            "uid": account.uid,
            "gid": account.gid,
            "groups": list(account.groups),
            "apart": account.uid is not None and not namespaces_missing(),
            "log_segment": self.rules.log_segment,
            "log_segments": self.rules.log_segments,
            "limits": limits,
        }
        # Nothing of the console's own environment: its keys are none of the job's business.
        done = subprocess.run(
            [sys.executable, "-I", "-S", supervisor.__file__],
            input=json.dumps(document).encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={"PATH": LOCAL_PATH, "LANG": "C.UTF-8"},
            cwd="/",
            start_new_session=True,
            timeout=SPAWN_SECONDS,
            check=False,
        )
        if done.returncode:
            raise BackendError(f"The supervisor could not be started: {done.stderr.decode(errors='replace')[-200:].strip()}")

    def resize(
        self,
        *,
        key: str,
        sequence: int,
        add: Sequence[WorkerSeat],
        leave: Sequence[tuple[str, int]],
        now: datetime,
        order: StartOrder | None = None,
    ) -> None:
        program = self._program(order) if add and order is not None else None
        with self._told(key, sequence) as (place, run):
            if run is None:
                raise NotFound(f"No run {key}.")
            if run.never_begun or run.stopping or run.killed:
                return
            if not run.in_place:
                raise BackendRefused("The job does not state that it can be resized in place (launch.in_place). It is stopped and restarted.")
            self._ask_some_to_leave(place, run, set(leave), now)
            if order is not None and program is not None:
                self._join(place, run, order, add, program, now)

    def _ask_some_to_leave(self, place: Path, run: Run, leave: set[tuple[str, int]], now: datetime) -> None:
        """All of the run save their work first, so that nothing is lost with those who go. `_see_to` does the rest."""
        going = [worker for worker in run.workers if (worker["role"], worker["index"]) in leave and not worker.get("leaving")]
        if not going:
            return
        saves = self._send(place, run, _USR1)
        for worker in going:
            term_at = now + timedelta(seconds=int(worker["grace"]) / 2 if saves else 0)
            worker.update(leaving=now.isoformat(), term_at=term_at.isoformat())
        _write(place, run)

    def _join(self, place: Path, run: Run, order: StartOrder, add: Sequence[WorkerSeat], program: Program, now: datetime) -> None:
        """Start further workers, some perhaps in the place of one that has ended. One that has not is waited for."""
        port = int(run.workers[0]["port"])
        held = {(seat.role, seat.index) for seat in order.workers}
        ended = {id(worker) for worker in run.workers if self._worker(place, run, worker, now).state == RunState.ENDED}
        # Those of which nobody hears any more: they were lost, and that is written down.
        run.workers = [worker for worker in run.workers if id(worker) not in ended or (worker["role"], worker["index"]) in held]
        for seat in add:
            before = next((worker for worker in run.workers if (worker["role"], worker["index"]) == (seat.role, seat.index)), None)
            if before is not None and id(before) not in ended:
                if not before.get("leaving") and _seat(before) == seat:
                    continue  # told once already
                if not before.get("leaving"):
                    self._send(place, run, _KILL, [before])  # its node is given up
                raise BackendError(f"{seat.role.capitalize()} {seat.index} of {run.key} has not ended yet.")
            lost = 0
            if before is not None:
                lost = 0 if before.get("leaving") else before.get("lost", 0) + 1
                run.workers.remove(before)
            with contextlib.suppress(FileNotFoundError):
                spot = _worker_folder(place, seat.role, seat.index)
                (spot / "state.json").replace(spot / "earlier.json")
            run.workers.append(_worker_of(order, seat, port) | {"at": now.isoformat(), "lost": lost})
        run.workers.sort(key=lambda worker: (worker["role"], worker["index"]))
        _write(place, run)
        self._begin(place, run, order, add, program)

    def repartition(self, *, node: str, gpu: int, instances: Sequence[tuple[str, int]], sequence: int, now: datetime) -> None:
        raise BackendRefused("The local back-end does not split GPUs. Split them with nvidia-smi, then discover the machine again.")

    def signal(self, *, key: str, sequence: int, signal: Signal, now: datetime) -> None:
        with self._told(key, sequence) as (place, run):
            if run is None:
                raise NotFound(f"No run {key}.")
            if signal == Signal.TERMINATE:
                self._ask_to_leave(place, run, now)
            else:
                self._send(place, run, _USR1)

    def stop(self, *, key: str, sequence: int, force: bool, now: datetime) -> None:
        with self._told(key, sequence) as (place, run):
            if run is None:
                _write(place, Run(key, sequence, now.isoformat()))
            elif force:
                run.killed = True
                self._send(place, run, _KILL)
            else:
                self._ask_to_leave(place, run, now)

    @contextmanager
    def _told(self, key: str, sequence: int) -> Iterator[tuple[Path, Run | None]]:
        """A run that is told something newer than before; for what is older nothing is done."""
        with self._run(key) as place:
            run = _read(place)
            if run is not None and run.sequence >= sequence:
                # Entered all the same, with nobody there to be told.
                yield place, Run(key, run.sequence, run.at)
                return
            try:
                yield place, run
            except NotFound:
                shutil.rmtree(place, ignore_errors=True)
                raise
            if run is not None:
                run.sequence = sequence
                _write(place, run)

    def _ask_to_leave(self, place: Path, run: Run, now: datetime) -> None:
        """USR1 at once, so that it saves its work; TERM when it has, or half of its grace is over. Who knows nothing of USR1 is told TERM at once."""
        if run.stopping:
            return
        grace = min((int(worker["grace"]) for worker in run.workers), default=0)
        saves = self._send(place, run, _USR1)
        run.stopping, run.term_at = now.isoformat(), (now + timedelta(seconds=grace / 2 if saves else 0)).isoformat()

    def _send(self, place: Path, run: Run, number: int, workers: Sequence[Mapping[str, Any]] | None = None) -> int:
        """USR1 goes to ranks that have said that they know it; others would die of it. TERM and KILL go to all that they have started as well.

        `workers`: those of the run alone. Returns how many processes were sent it.
        """
        sent = 0
        for worker in run.workers if workers is None else workers:
            spot = _worker_folder(place, worker["role"], worker["index"])
            state = _state(spot)
            for process in state.get("processes", ()):
                if supervisor.started_ticks(process["pid"]) != process["ticks"]:
                    continue
                if number == _USR1 and not supervisor.catches(process["pid"], number):
                    continue
                with contextlib.suppress(ProcessLookupError):
                    (os.kill if number == _USR1 else os.killpg)(process["pid"], number)
                    sent += 1
            if number == _KILL:
                supervisor.end_marked(f"{MARK}={spot}")
        if number == _KILL and run.uid is not None and workers is None:
            supervisor.end_user(run.uid)
        return sent

    def forget(self, *, keys: Sequence[str], now: datetime) -> None:
        """Nothing is told of it any more. Its logs stay, where the console still finds them."""
        for key in keys:
            with self._run(key) as place:
                run = _read(place)
                if run is None:
                    shutil.rmtree(place, ignore_errors=True)
                elif self._is_over(place, run, now):
                    with contextlib.suppress(FileNotFoundError):
                        (place / "run.json").replace(place / "forgotten.json")
                        self._looker.drop(Path(run.checkpoints))

    def tidy(self) -> int:
        """Delete the folders of forgotten runs, the oldest first, until the rest is within bounds. Their checkpoints lie elsewhere and stay."""
        over = []
        for path in self.folder.glob("runs/*/forgotten.json"):
            with contextlib.suppress(FileNotFoundError):
                over.append((path.stat().st_mtime, path.parent.name, _bytes_in(path.parent)))
        over.sort()
        size, gone = sum(one for _, _, one in over), 0
        for place, (_, key, mine) in enumerate(over[:DELETED_A_CALL]):
            if size <= self.rules.kept_bytes and len(over) - place <= MOST_KEPT:
                break
            with self._run(key) as folder:
                if (folder / "run.json").exists():
                    continue
                shutil.rmtree(folder)
            size -= mine
            gone += 1
        return gone

    def delete_checkpoint(self, old: OldCheckpoint) -> int:
        return self._deleter.delete(self._checkpoint_root(), old)

    # Being asked

    def observe(self, *, now: datetime) -> tuple[SeenRun, ...]:
        found = []
        self._waits_left = LOOK_SECONDS
        for place in sorted(self.folder.glob("runs/*/run.json")):
            try:
                with self._run(place.parent.name) as folder:
                    run = _read(folder)
                    if run is not None and (seen := self._seen(folder, run, now)) is not None:
                        self._see_to(folder, run, seen, now)
                        found.append(seen)
            except BackendError as fault:
                # The others are no worse for it. A run that is missed for long enough is given up.
                log.warning("%s", fault)
            except Exception:
                log.exception("The run %s could not be looked at", place.parent.name)
        return tuple(found)

    def _checkpoints(self, run: Run, *, last: bool) -> tuple[tuple[SeenCheckpoint, ...], bool]:
        """The newest checkpoints, and whether they are as they are now. All runs of a look wait for file systems no longer than one may."""
        began = time.monotonic()
        found, fresh = self._looker.seen(Path(run.checkpoints), wait=max(0.0, self._waits_left), last=last)
        self._waits_left -= time.monotonic() - began
        return tuple(SeenCheckpoint(one.step, one.location, one.shards_expected, one.shards, one.at) for one in found), fresh

    def news(self, *, now: datetime) -> tuple[SeenRun, ...]:
        """All: a machine has few runs, and their processes tell nobody when they end."""
        return self.observe(now=now)

    def next_event_at(self, *, now: datetime) -> datetime | None:
        return now + timedelta(seconds=1) if any(self.folder.glob("runs/*/run.json")) else None

    def _seen(self, place: Path, run: Run, now: datetime) -> SeenRun | None:
        """None: it has ended, and its last checkpoints are still being looked at."""
        if run.never_begun:
            at = datetime.fromisoformat(run.at)
            return SeenRun(run.key, run.sequence, RunState.ENDED, (), ended_at=at, exit_code=143, why="Ended before it was begun.")
        workers = [(worker, self._worker(place, run, worker, now)) for worker in run.workers]
        if run.in_place:  # those who were asked to leave and have are missed by nobody
            workers = [(worker, look) for worker, look in workers if not worker.get("leaving") or look.state != RunState.ENDED] or workers
        states = {look.state for _, look in workers}
        if states == {RunState.ENDED}:
            state = RunState.ENDED
        elif run.stopping or run.killed:
            state = RunState.STOPPING
        else:
            state = RunState.STARTING if RunState.STARTING in states else RunState.RUNNING
        # The first that went wrong says why; the others were ended because of it.
        wrong = [look for _, look in workers if look.state == RunState.ENDED and look.exit_code != 0]
        staying = workers
        if run.in_place and state != RunState.ENDED:
            wrong = [look for look in wrong if not look.lost]  # those who stay go on without one that was lost, and another joins them
            staying = [(worker, look) for worker, look in workers if look.state != RunState.ENDED]
        elif run.in_place and not (run.stopping or run.killed) and len(wrong) < len(workers) and all(look.lost for look in wrong):
            wrong = []  # the others have completed it without
        bad = min(wrong, key=lambda look: look.ended or now, default=None)
        starts = [look.started for _, look in staying if look.started is not None]
        ends = [look.ended for _, look in workers if look.ended is not None]
        checkpoints, fresh = self._checkpoints(run, last=state == RunState.ENDED)
        if state == RunState.ENDED and not fresh and now - max(ends, default=now) < LAST_LOOK:
            return None
        return SeenRun(
            key=run.key,
            sequence=run.sequence,
            state=state,
            workers=tuple(SeenWorker(_seat(worker), look.state if run.in_place else state, look.exit_code) for worker, look in workers),
            started_at=max(starts) if len(starts) == len(staying) else None,
            ended_at=max(ends, default=now) if state == RunState.ENDED else None,
            exit_code=None if state != RunState.ENDED else bad.exit_code if bad is not None else 0,
            why="" if bad is None else bad.why,
            node_lost=bad is not None and (bad.exit_code is None or (run.in_place and state == RunState.ENDED and _for_a_loss(run, bad, wrong))),
            checkpoints=checkpoints,
            steps=() if state == RunState.ENDED else self._looker.steps(Path(run.checkpoints)),
        )

    def _is_over(self, place: Path, run: Run, now: datetime) -> bool:
        return all(self._worker(place, run, worker, now).state == RunState.ENDED for worker in run.workers)

    def _worker(self, place: Path, run: Run, worker: Mapping[str, Any], now: datetime) -> "Look":
        name = f"{worker['role']} {worker['index']}"
        state = _state(_worker_folder(place, worker["role"], worker["index"]))
        started, ended = _moment(state.get("started_at")), _moment(state.get("ended_at"))
        if state.get("state") == "ended":
            code, why = state["exit_code"], state["why"]
            lost = why == f"ended by {signal.SIGKILL.name}" and worker.get("lost", 0) < MOST_KILLED - 1
            return Look(RunState.ENDED, code, f"{name.capitalize()}: {why}." if why else "", started, ended, lost)
        alive = [one for one in state.get("processes", ()) if supervisor.started_ticks(one["pid"]) == one["ticks"]]
        if alive:
            return Look(RunState.RUNNING if started is not None else RunState.STARTING, None, "", started, None)
        keeper = state.get("supervisor")
        if keeper and supervisor.started_ticks(keeper["pid"]) == keeper["ticks"]:
            return Look(RunState.RUNNING if started is not None else RunState.STARTING, None, "", started, None)
        if not keeper and now - datetime.fromisoformat(worker.get("at") or run.at) < COME_UP:
            return Look(RunState.STARTING, None, "", None, None)
        return Look(
            RunState.ENDED,
            None,
            f"{name.capitalize()} and its supervisor are gone without a word; perhaps the machine was restarted.",
            started,
            now,
            lost=True,
        )

    def _see_to(self, place: Path, run: Run, seen: SeenRun, now: datetime) -> None:
        """What is due by itself: a gang that lost a member is ended, and who was asked to leave is told more clearly."""
        if seen.state == RunState.ENDED:
            return
        if run.killed:
            self._send(place, run, _KILL)  # again: it may have been about to start when it was killed
            return
        if seen.why and not run.stopping:
            run.stopping, run.term_at = now.isoformat(), now.isoformat()
            _write(place, run)
        if not run.stopping:
            self._see_leavers_off(place, run, seen, now)
        if not run.term_at:
            return
        if _has_saved(seen, run.stopping) or now >= datetime.fromisoformat(run.term_at):
            run.term_at = ""
            _write(place, run)
            self._send(place, run, _TERM)

    def _see_leavers_off(self, place: Path, run: Run, seen: SeenRun, now: datetime) -> None:
        """Workers that a run shrinks by: told to go when the run has saved its work or half of their grace is over, killed after all of it."""
        for worker in [worker for worker in run.workers if worker.get("leaving")]:
            if self._worker(place, run, worker, now).state == RunState.ENDED:
                if len(run.workers) > 1:
                    run.workers.remove(worker)
                    _write(place, run)
            elif now >= datetime.fromisoformat(worker["leaving"]) + timedelta(seconds=int(worker["grace"])):
                self._send(place, run, _KILL, [worker])
            elif worker["term_at"] and (_has_saved(seen, worker["leaving"]) or now >= datetime.fromisoformat(worker["term_at"])):
                worker["term_at"] = ""
                _write(place, run)
                self._send(place, run, _TERM, [worker])

    def reach(self, *, key: str) -> Reach | None:
        """Jobs share the network of the machine; a shell inside one is its operator's alone."""
        known = bool(KEY.fullmatch(key)) and (self.folder / "runs" / key / "run.json").is_file()
        return Reach(socket.gethostname()) if known else None

    def logs(self, *, key: str, role: str, index: int, offset: int, limit: int) -> LogPart:
        if not KEY.fullmatch(key) or not ROLE.fullmatch(role):
            raise NotFound(f"No log of {role} {index} of {key}.")
        spot = _worker_folder(self.folder / "runs" / key, role, index)
        try:
            return self._log_part(spot, offset, limit)
        except FileNotFoundError:
            raise NotFound(f"No log of {role} {index} of {key}.") from None
        except (OSError, ValueError) as fault:
            raise BackendError(f"The log of {role} {index} of {key} can't be read: {fault}") from fault

    def _log_part(self, spot: Path, offset: int, limit: int) -> LogPart:
        segments = sorted(spot.glob("log.*"))
        if not segments:
            raise FileNotFoundError(spot)
        begins = [int(path.suffix[1:]) for path in segments]
        if offset < 0:
            offset += begins[-1] + segments[-1].stat().st_size
        offset = max(offset, begins[0])  # what is older has been given up
        number = max(place for place, begin in enumerate(begins) if begin <= offset)
        data = b""
        for path, begin in list(zip(segments, begins, strict=True))[number:]:
            if data and begin > offset + len(data):
                break  # the one before was given up meanwhile
            offset = max(offset, begin) if not data else offset
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                file.seek(offset + len(data) - begin)
                data += file.read(limit - len(data))
            if len(data) >= limit:
                break
        ended = _state(spot).get("state") == "ended" and len(data) < limit
        return LogPart(offset, whole_characters(data) if len(data) >= limit else data, ended)

    # What a job may use

    def _account(self, order: StartOrder) -> Account:
        """Whom the job's processes run as. Refused where that would not keep it from others' work."""
        if why := self.rules.allowed():
            raise BackendRefused(why)
        own = pwd.getpwuid(os.getuid())
        if self.rules.uids is not None and not self.rules.same_user:
            account = self._account_of_range(order)
        else:
            account = self._account_named(own)
        if account.uid is not None and (why := self.not_apart()):
            self._only_team(order.team, why)
        return account

    def _account_named(self, own: pwd.struct_passwd) -> Account:
        if not self.rules.user:
            if self.rules.same_user:
                return Account(own.pw_name, own.pw_dir)
            raise BackendRefused("Local jobs need users of their own: set GPUFLEET_LOCAL_UIDS, or GPUFLEET_LOCAL_USER for one team.")
        found = self._user()
        if found.pw_uid == own.pw_uid:
            if self.rules.same_user:
                return Account(own.pw_name, own.pw_dir)
            raise BackendRefused(f"{self.rules.user} is the console's own user: a job could read its database and its keys.")
        if found.pw_uid == 0:
            raise BackendRefused("Local jobs never run as root.")
        if os.getuid() != 0:
            raise BackendRefused(f"Only a console that runs as root can start jobs as {self.rules.user}.")
        return Account(found.pw_name, found.pw_dir, found.pw_uid, found.pw_gid, _groups_of(found))

    def _user(self) -> pwd.struct_passwd:
        try:
            return pwd.getpwnam(self.rules.user)
        except KeyError:
            raise BackendRefused(f"There is no user {self.rules.user} on this machine (GPUFLEET_LOCAL_USER).") from None

    def _account_of_range(self, order: StartOrder) -> Account:
        if os.getuid() != 0:
            raise BackendRefused("Only a console that runs as root can start jobs as users of GPUFLEET_LOCAL_UIDS.")
        groups: tuple[int, ...] = ()
        if self.rules.user:
            named = self._user()
            if named.pw_uid == 0:
                raise BackendRefused("Local jobs never run as root.")
            groups = _groups_of(named)
        uid = self._uid_of(order.job)
        if why := _taken(uid):
            raise BackendRefused(f"{why}; GPUFLEET_LOCAL_UIDS must be a range that nothing else uses.")
        home = str(self._checkpoint_root() / order.job / "home")
        return Account(f"gpufleet-{uid}", home, uid, uid, groups, alone=True)

    def _uid_of(self, job: str) -> int:
        """The uid of a job, the same for all of its attempts. It goes to another job when nothing of this one is left on the machine."""
        assert self.rules.uids is not None
        low, high = self.rules.uids
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        with (self.folder / "uids.lock").open("a") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            path = self.folder / "uids.json"
            known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"last": low - 1, "jobs": {}}
            jobs: dict[str, int] = known["jobs"]
            if low <= jobs.get(job, -1) <= high:
                return jobs[job]
            taken = set(jobs.values())
            if len(taken) >= high - low + 1:
                jobs = {name: uid for name, uid in jobs.items() if self._is_on_disk(name)}
                taken = set(jobs.values())
            last = known["last"] if low <= known["last"] <= high else low - 1
            uid = next((one for one in (*range(last + 1, high + 1), *range(low, last + 1)) if one not in taken), None)
            if uid is None:
                raise BackendError("Every uid of GPUFLEET_LOCAL_UIDS belongs to a job whose checkpoints are kept. Delete some, or widen the range.")
            jobs[job] = uid
            supervisor.write_whole(path, {"last": uid, "jobs": jobs})
            return uid

    def _is_on_disk(self, job: str) -> bool:
        return os.path.lexists(self._checkpoint_root() / job) or any(self.folder.glob(f"runs/{job}.*"))

    def not_apart(self) -> str:
        """Why jobs that run as other users than the console are not kept from each other; empty: they are."""
        if self.rules.uids is None:
            return f"all local jobs run as {self.rules.user or 'one user'} (GPUFLEET_LOCAL_UIDS gives each a user of its own)"
        if (why := namespaces_missing()) and not proc_hides_others():
            return f"every process of this machine is visible to all jobs: there are no PID namespaces ({why}), and /proc has no hidepid"
        return ""

    def _only_team(self, team: str, why: str) -> None:
        """Where jobs cannot be kept apart, only those of one team run: of the first that comes."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        path = self.folder / "only-team.json"
        if not path.exists():
            supervisor.write_whole(path, team)
        first = json.loads(path.read_text())
        if first != team:
            raise BackendRefused(f"This machine runs jobs of {first or 'one team'} only, as {why}.")

    def _secrets(self, order: StartOrder) -> dict[str, str]:
        found = {}
        for variable, name in (order.launch.get("secrets") or {}).items():
            value = self.rules.secrets(str(name), order.team)
            if not NAME.fullmatch(variable):
                raise BackendRefused(f"{variable!r} is not a name of a variable.")
            if value is None:
                raise BackendRefused(f"There is no secret {str(name)!r} for {order.team or 'this job'}.")
            if "\0" in value:
                raise BackendRefused(f"The secret {str(name)!r} holds a character that no variable can hold.")
            found[variable] = value
        return found

    def _checkpoint_root(self) -> Path:
        return self.rules.checkpoints or self.folder / "checkpoints"

    def _checkpoint_folder(self, order: StartOrder, account: Account) -> Path:
        """Where the attempt saves its work. The job owns this folder and nothing above it.

        Everything goes by descriptors that follow no link, and what is there already is only taken if it is ours or the job's.
        """
        if not KEY.fullmatch(order.job):
            raise BackendRefused(f"{order.job!r} is not a name of a job.")
        root = self._checkpoint_root()
        try:
            root.mkdir(parents=True, exist_ok=True, mode=0o750 if account.uid is None else 0o751)
            self._can_be_entered(root, account)
            top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            with _closing(top):
                job = _own_folder(top, order.job, account, ours=True)
                with _closing(job):
                    for name in (str(order.attempt), *(["home"] if account.alone else [])):
                        os.close(_own_folder(job, name, account, ours=False))
        except OSError as fault:
            raise BackendError(f"The checkpoint folder of {order.job} cannot be made: {fault}") from fault
        return root / order.job / str(order.attempt)

    def _can_be_entered(self, root: Path, account: Account) -> None:
        if account.uid is None:
            return
        look = root.stat()
        if account.alone and look.st_mode & 0o022 and not look.st_mode & stat.S_ISVTX:
            raise BackendRefused(f"Others may write to {root}, where all jobs save their work: take that right away.")
        mine = {account.gid, *account.groups}
        for path in (root.resolve(), *root.resolve().parents):
            look = path.stat()
            bit = 0o100 if look.st_uid == account.uid else 0o010 if look.st_gid in mine else 0o001
            if not look.st_mode & bit:
                raise BackendRefused(f"Jobs of another user cannot enter {path}: name another folder in GPUFLEET_LOCAL_CHECKPOINTS.")


@contextmanager
def _closing(descriptor: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(descriptor)


def _own_folder(parent: int, name: str, account: Account, *, ours: bool) -> int:
    """A folder that is there or is made, open. `ours`: it stays the console's, and the job may only pass through."""
    made = False
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o750, dir_fd=parent)
        made = True
    try:
        found = os.open(name, FOLDER, dir_fd=parent)
    except OSError as fault:
        if fault.errno in (errno.ELOOP, errno.ENOTDIR):
            raise BackendRefused(f"The checkpoint folder {name} is not a folder: something else has been put there.") from None
        raise
    try:
        owner = os.fstat(found).st_uid
        if not made and owner not in {os.getuid(), account.uid}:
            raise BackendRefused(f"The checkpoint folder {name} belongs to another user ({owner}).")
        if account.uid is not None and account.gid is not None:
            # Earlier versions gave the parent to the job as well: it is taken back.
            os.fchown(found, os.getuid() if ours else account.uid, account.gid)
            os.fchmod(found, 0o750)
    except BaseException:
        os.close(found)
        raise
    return found


def _groups_of(user: pwd.struct_passwd) -> tuple[int, ...]:
    groups = tuple(os.getgrouplist(user.pw_name, user.pw_gid))
    if 0 in groups:
        raise BackendRefused(f"{user.pw_name} is in the group of root; local jobs never are (GPUFLEET_LOCAL_USER).")
    return groups


def _taken(uid: int) -> str:
    """What else a uid of the range belongs to: a user or group of the machine, or a range for somebody's containers."""
    with contextlib.suppress(KeyError):
        return f"The uid {uid} is that of {pwd.getpwuid(uid).pw_name}"
    with contextlib.suppress(KeyError):
        return f"The gid {uid} is that of the group {grp.getgrgid(uid).gr_name}"
    for path in (Path("/etc/subuid"), Path("/etc/subgid")):
        with contextlib.suppress(OSError):
            for line in path.read_text(errors="replace").splitlines():
                name, _, rest = line.partition(":")
                first, _, count = rest.partition(":")
                if first.isdigit() and count.isdigit() and int(first) <= uid < int(first) + int(count):
                    return f"The uid {uid} is one that {path} gives to {name}"
    return ""


@cache
def namespaces_missing() -> str:
    """Why this machine has no PID namespaces for jobs; empty: it has."""
    if os.getuid() != 0:
        return "the console does not run as root"
    asked = subprocess.run(
        [sys.executable, "-I", "-S", supervisor.__file__, "probe"],
        capture_output=True,
        text=True,
        env={"PATH": LOCAL_PATH, "LANG": "C.UTF-8"},
        timeout=SPAWN_SECONDS,
        check=False,
    )
    return asked.stdout.strip() if asked.returncode == 0 else asked.stderr.strip()[-200:] or "the kernel refused"


def proc_hides_others() -> bool:
    """Whether /proc shows each user only their own processes."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        if (place, kind) == ("/proc", "proc"):
            return any(one.startswith("hidepid=") and one not in ("hidepid=0", "hidepid=off") for one in options.split(","))
    return False


_USR1, _TERM, _KILL = int(signal.SIGUSR1), int(signal.SIGTERM), int(signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Look:
    """A worker as its files and the machine's processes show it."""

    state: RunState
    exit_code: int | None
    why: str
    started: datetime | None
    ended: datetime | None
    lost: bool = False  # by no doing of its own


def _for_a_loss(run: Run, bad: Look, wrong: Sequence[Look]) -> bool:
    """Whether those who stayed failed only because they could not re-form without one that was lost."""
    if bad.lost:
        return not all(look.lost for look in wrong)
    joined = [datetime.fromisoformat(worker["at"]) for worker in run.workers if worker.get("lost")]
    return bad.exit_code != 128 + _KILL and bad.ended is not None and any(abs(bad.ended - at) <= REFORMS for at in joined)


def _has_saved(seen: SeenRun, since: str) -> bool:
    asked = datetime.fromisoformat(since)
    return any(len(one.shards) == one.shards_expected and one.at >= asked for one in seen.checkpoints)


def _worker_of(order: StartOrder, seat: WorkerSeat, port: int) -> dict[str, Any]:
    """A worker as its run keeps it."""
    stated = {"in_place": True} if order.launch.get("in_place") else {}
    return asdict(seat) | {"port": port, "grace": order.grace_seconds} | stated


def _argv(launch: Mapping[str, Any]) -> list[str]:
    if launch.get("image"):
        raise BackendRefused("The local back-end starts processes of this machine and runs no images; the job names one.")
    shell, command = launch.get("shell"), launch.get("command")
    if shell:
        return ["/bin/sh", "-c", str(shell)]
    if not isinstance(command, list) or not command or not all(isinstance(part, str) and "\0" not in part for part in command):
        raise BackendRefused("The job says no command: launch.command is a list of arguments.")
    return list(command)


def _workdir(launch: Mapping[str, Any], account: Account) -> str:
    wanted = str(launch.get("workdir") or "")
    if wanted and not wanted.startswith("/"):
        raise BackendRefused(f"The working directory {wanted} is not an absolute path.")
    return wanted or (account.home if account.alone or Path(account.home).is_dir() else "/")


def _environment(launch: Mapping[str, Any], account: Account) -> dict[str, str]:
    given = {str(name): str(value) for name, value in (launch.get("env") or {}).items()}
    for name in given:
        if not NAME.fullmatch(name):
            raise BackendRefused(f"{name!r} is not a name of a variable.")
        if "\0" in given[name]:
            raise BackendRefused(f"The variable {name} holds a character that no variable can hold.")
    return {"PATH": LOCAL_PATH, "HOME": account.home, "USER": account.name, "LOGNAME": account.name, "LANG": "C.UTF-8", **given}


def _ranks(order: StartOrder, port: int) -> dict[tuple[str, int], list[dict[str, str]]]:
    """The variables of every rank, as torchrun sets them: workers are nodes to it, and a worker's processes share its GPUs."""
    per_gpu = order.launch.get("per", "worker") == "gpu"
    seats = sorted(order.workers, key=lambda seat: (seat.role, seat.index))
    counts = [max(1, len(seat.mig_uuids or seat.gpus)) if per_gpu else 1 for seat in seats]
    world, first = sum(counts), 0
    found = {}
    for place, (seat, count) in enumerate(zip(seats, counts, strict=True)):
        found[seat.role, seat.index] = [
            {
                "RANK": str(first + local),
                "LOCAL_RANK": str(local),
                "WORLD_SIZE": str(world),
                "LOCAL_WORLD_SIZE": str(count),
                "GROUP_RANK": str(place),
                "NODE_RANK": str(place),
                "GROUP_WORLD_SIZE": str(len(seats)),
                "ROLE_RANK": str(first + local),
                "ROLE_WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "TORCHELASTIC_RUN_ID": order.key,
                "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                "CUDA_VISIBLE_DEVICES": visible_devices(seat),
            }
            for local in range(count)
        ]
        first += count
    return found


def visible_devices(seat: WorkerSeat) -> str:
    """By UUID, which names the same device whatever order the driver counts in. None at all for a worker without GPUs."""
    if seat.mig_uuids:
        return ",".join(seat.mig_uuids)
    if len(seat.gpu_uuids) == len(seat.gpus):
        return ",".join(seat.gpu_uuids)
    return ",".join(str(index) for index in seat.gpus)


def _free_port() -> int:
    """One that nobody listens on now. Whoever takes it in between makes the rendezvous fail, which is told like every failure."""
    for port in random.SystemRandom().sample(PORTS, 100):
        with socket.socket() as asked, contextlib.suppress(OSError):
            asked.bind(("127.0.0.1", port))
            return port
    raise BackendError("No port is free for the ranks to meet at.")


def _worker_folder(place: Path, role: str, index: int) -> Path:
    if not ROLE.fullmatch(role):
        raise BackendRefused(f"{role!r} cannot be used as a folder name for a role.")
    return place / f"{role}-{index}"


def _bytes_in(place: Path) -> int:
    """What a folder takes up on its disk."""
    found = 0
    for path in place.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            found += path.lstat().st_blocks * 512
    return found


def _read(place: Path) -> Run | None:
    try:
        return Run(**json.loads((place / "run.json").read_text()))
    except FileNotFoundError:
        return None
    except TypeError as fault:
        raise ValueError(f"run.json is not one of this program: {fault}") from fault


def _write(place: Path, run: Run) -> None:
    supervisor.write_whole(place / "run.json", asdict(run))


def _state(spot: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((spot / "state.json").read_text())
    except FileNotFoundError:
        return {}
    return found


def _seat(worker: Mapping[str, Any]) -> WorkerSeat:
    return WorkerSeat(
        worker["role"],
        worker["index"],
        worker["node"],
        tuple(worker["gpus"]),
        tuple(worker["gpu_uuids"]),
        tuple(worker["mig_uuids"]),
        worker["gpu_milli"],
        tuple(worker.get("mig") or ()),
        worker.get("sharing") or "",
    )


def _moment(seconds: float | None) -> datetime | None:
    if seconds is None:
        return None
    found = datetime.fromtimestamp(seconds, UTC)
    return found.replace(microsecond=found.microsecond // 1000 * 1000)
