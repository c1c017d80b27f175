"""The local back-end: real processes on the machine that the console runs on.

Its memory is a folder of files, so that a console that was killed finds what runs and goes on with it; every process has a supervisor that does not
depend on the console (`supervisor.py`).
"""

import contextlib
import fcntl
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from scheduler.backends import local_accounts, supervisor
from scheduler.backends.base import (
    BackendError,
    BackendRefused,
    Facts,
    LogPart,
    NotFound,
    OldCheckpoint,
    Reach,
    Refusal,
    RunState,
    SeenCheckpoint,
    SeenRun,
    SeenWorker,
    Signal,
    StartOrder,
    WorkerSeat,
)
from scheduler.backends.local_accounts import KEY, LOCAL_PATH, SPAWN_SECONDS, Accounts, Rules
from scheduler.backends.local_launch import (
    Program,
    about_of,
    argv_of,
    environment_of,
    free_port,
    limits_of,
    probe_of,
    ranks_of,
    secrets_of,
    workdir_of,
)
from scheduler.backends.local_pins import Pins
from scheduler.backends.local_runs import (
    KILL,
    ROLE,
    TERM,
    USR1,
    Run,
    begins_again,
    bytes_in,
    has_saved,
    is_for_a_loss,
    is_over,
    log_part,
    look_at,
    read,
    seat_of,
    state_in,
    worker_folder,
    worker_of,
    write,
)
from scheduler.backends.manifests import Looker
from scheduler.backends.old_checkpoints import Deleter
from scheduler.backends.supervising import processes

log = logging.getLogger(__name__)
MARK = "GPUFLEET_RUN_DIR"  # in the environment of all that a worker starts; a folder, so that two consoles on one machine never mean the same
# So long one look at all runs waits for the file systems of their checkpoints, and the end of a run for its last ones.
LOOK_SECONDS = 1.0
LAST_LOOK = timedelta(seconds=20)
REFUSED_LATELY = timedelta(seconds=60)  # so long the refusal of a worker is told of a run that goes on without it
FACTS = Facts(resizes_in_place=False, resizes_stated=True, creates_mig=False, runs_mps=False, runs_images=False, latency_ms=500)
# Each look goes through the folders, so there are never more than so many of runs that are over; and so many are deleted at once.
MOST_KEPT = 2_000
DELETED_A_CALL = 200


class LocalBackend:
    def __init__(self, folder: Path, rules: Rules) -> None:
        self.folder, self.rules, self.accounts, self.pins = folder, rules, Accounts(folder, rules), Pins(folder, rules)
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
            run = read(place)
            if run is not None and (run.never_begun or run.sequence > order.sequence):
                return
            try:
                checkpoints = self.accounts.checkpoint_folder(order, account)
            except BackendRefused:
                if run is None:
                    shutil.rmtree(place, ignore_errors=True)
                raise
            if run is None:
                # The port is chosen once: who is started after a kill in between must meet the others.
                port = free_port()
                run = Run(order.key, order.sequence, now.isoformat(), [], str(checkpoints), uid=account.uid if account.alone else None)
                run.workers = [worker_of(order, seat, port) for seat in order.workers]
                try:
                    self.pins.decide(place, order, order.workers, now, keep=partial(write, place, run))
                except BackendError:
                    shutil.rmtree(place, ignore_errors=True)
                    raise
            # It may have grown since it was written down: those who join are told by the resize.
            here = {(worker["role"], worker["index"]) for worker in run.workers}
            self._begin(place, run, order, [seat for seat in order.workers if (seat.role, seat.index) in here], program, now)

    def _program(self, order: StartOrder) -> Program:
        argv, secrets, account = argv_of(order.launch), secrets_of(order, self.rules.secrets), self.accounts.account(order)
        return Program(argv, secrets, account, workdir_of(order.launch, account), environment_of(order.launch, account))

    def _begin(self, place: Path, run: Run, order: StartOrder, seats: Sequence[WorkerSeat], program: Program, now: datetime) -> None:
        """Start those of these workers that were not."""
        ranks = ranks_of(order, int(run.workers[0]["port"]))
        seats = [seat for seat in seats if not (worker_folder(place, seat.role, seat.index) / "state.json").exists()]
        self.pins.decide(place, order, seats, now)
        for seat in seats:
            spot = worker_folder(place, seat.role, seat.index)
            spot.mkdir(exist_ok=True, mode=0o750)
            about = about_of(order, seat, Path(run.checkpoints), self.rules.report_url)
            mine = next((one for one in run.workers if (one["role"], one["index"]) == (seat.role, seat.index)), {})
            ready = probe_of(order.launch, port := int(mine.get("ready_port") or 0))
            about |= {"GPUFLEET_READY_PORT": str(port)} if port else {}
            self._spawn(spot, program, about, ranks[seat.role, seat.index], limits_of(order, seat, *self.pins.told(spot)), ready)

    def _spawn(
        self,
        spot: Path,
        program: Program,
        about: dict[str, str],
        ranks: list[dict[str, str]],
        limits: dict[str, Any] | None,
        ready: dict[str, Any] | None,
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
            "apart": account.uid is not None and not local_accounts.namespaces_missing(),
            "log_segment": self.rules.log_segment,
            "log_segments": self.rules.log_segments,
            "limits": limits,
            "ready": ready,
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
        saves = self._send(place, run, USR1)
        for worker in going:
            term_at = now + timedelta(seconds=int(worker["grace"]) / 2 if saves else 0)
            worker.update(leaving=now.isoformat(), term_at=term_at.isoformat())
        run.reformed = now.isoformat()
        write(place, run)

    def _join(self, place: Path, run: Run, order: StartOrder, add: Sequence[WorkerSeat], program: Program, now: datetime) -> None:
        """Start further workers, some perhaps in the place of one that has ended. One that has not is waited for."""
        port = int(run.workers[0]["port"])
        held = {(seat.role, seat.index) for seat in order.workers}
        ended = {id(worker) for worker in run.workers if look_at(place, run, worker, now).state == RunState.ENDED}
        # Those of which nobody hears any more: they were lost, and that is written down.
        run.workers = [worker for worker in run.workers if id(worker) not in ended or (worker["role"], worker["index"]) in held]
        for seat in add:
            before = next((worker for worker in run.workers if (worker["role"], worker["index"]) == (seat.role, seat.index)), None)
            if before is not None and id(before) not in ended:
                if not before.get("leaving") and seat_of(before) == seat:
                    continue  # told once already
                if not before.get("leaving"):
                    self._send(place, run, KILL, [before])  # its node is given up
                raise BackendError(f"{seat.role.capitalize()} {seat.index} of {run.key} has not ended yet.")
            lost = 0
            if before is not None:
                lost = 0 if before.get("leaving") else before.get("lost", 0) + 1
                run.reformed = now.isoformat()
                run.workers.remove(before)
            with contextlib.suppress(FileNotFoundError):
                spot = worker_folder(place, seat.role, seat.index)
                (spot / "state.json").replace(spot / "earlier.json")
            trial = {"on_trial": True} if lost and before is not None and before.get("on_trial") else {}
            run.workers.append(worker_of(order, seat, port) | {"at": now.isoformat(), "lost": lost} | trial)
        run.workers.sort(key=lambda worker: (worker["role"], worker["index"]))
        fresh = [seat for seat in add if not (worker_folder(place, seat.role, seat.index) / "state.json").exists()]
        self.pins.decide(place, order, fresh, now, keep=partial(write, place, run))
        self._begin(place, run, order, add, program, now)

    def replace(self, *, key: str, sequence: int, workers: Sequence[tuple[str, int]], now: datetime, order: StartOrder) -> None:
        """`_see_to` kills those that do not leave within their grace."""
        with self._told(key, sequence) as (place, run):
            if run is None:
                raise NotFound(f"No run {key}.")
            if run.never_begun or run.stopping or run.killed:
                return
            if not run.in_place:
                raise BackendRefused("The job does not state that it can be resized in place (launch.in_place). Restart it.")
            mine = [worker for worker in run.workers if (worker["role"], worker["index"]) in set(workers) and not worker.get("leaving")]
            try:
                program = self._program(order)
            except BackendRefused:
                self._give_replacing_up(place, run, mine, sequence)
                raise
            if fresh := [worker for worker in mine if sequence not in (worker.get("again"), worker.get("began"))]:
                for worker in fresh:
                    worker.update(again=sequence, again_at=now.isoformat())
                write(place, run)
                self._send(place, run, TERM, fresh)
            for worker in mine:
                if worker.get("again") == sequence and look_at(place, run, worker, now).state == RunState.ENDED:
                    spot = worker_folder(place, worker["role"], worker["index"])
                    with contextlib.suppress(FileNotFoundError):
                        (spot / "state.json").replace(spot / "earlier.json")
                    worker.update(began=sequence, at=now.isoformat(), on_trial=True)
                    del worker["again"], worker["again_at"]
                    write(place, run)
            anew = {(worker["role"], worker["index"]) for worker in mine if worker.get("began") == sequence}
            self._begin(place, run, order, [seat for seat in order.workers if (seat.role, seat.index) in anew], program, now)
            if waits := [worker for worker in mine if "again" in worker]:
                raise BackendError(f"{waits[0]['role'].capitalize()} {waits[0]['index']} of {run.key} has not ended yet.")

    def _give_replacing_up(self, place: Path, run: Run, workers: Sequence[dict[str, Any]], sequence: int) -> None:
        """Who has been asked to leave is lost then, as nobody is begun in the place."""
        for worker in workers:
            if worker.pop("again", None) is not None:
                del worker["again_at"]
                worker["given_up"] = True
        run.sequence = sequence  # or what is missed then would be taken for older than the order
        write(place, run)

    def limit(self, *, key: str, sequence: int, seconds: int | None, now: datetime) -> None:
        """It ends no run because of its limit."""
        with self._told(key, sequence) as (_, run):
            if run is None:
                raise NotFound(f"No run {key}.")

    def repartition(self, *, node: str, gpu: int, instances: Sequence[tuple[str, int]], sequence: int, now: datetime) -> None:
        raise BackendRefused("The local back-end does not split GPUs. Split them with nvidia-smi, then discover the machine again.")

    def signal(self, *, key: str, sequence: int, signal: Signal, now: datetime) -> None:
        with self._told(key, sequence) as (place, run):
            if run is None:
                raise NotFound(f"No run {key}.")
            if signal == Signal.TERMINATE:
                self._ask_to_leave(place, run, now)
            else:
                self._send(place, run, USR1)

    def stop(self, *, key: str, sequence: int, force: bool, now: datetime) -> None:
        with self._told(key, sequence) as (place, run):
            if run is None:
                write(place, Run(key, sequence, now.isoformat()))
            elif force:
                run.killed = True
                self._send(place, run, KILL)
            else:
                self._ask_to_leave(place, run, now)

    @contextmanager
    def _told(self, key: str, sequence: int) -> Iterator[tuple[Path, Run | None]]:
        """A run that is told something newer than before; for what is older nothing is done."""
        with self._run(key) as place:
            run = read(place)
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
                write(place, run)

    def _ask_to_leave(self, place: Path, run: Run, now: datetime) -> None:
        """USR1 at once, so that it saves its work; TERM when it has, or half of its grace is over. Who knows nothing of USR1 is told TERM at once."""
        if run.stopping:
            return
        grace = min((int(worker["grace"]) for worker in run.workers), default=0)
        saves = self._send(place, run, USR1)
        run.stopping, run.term_at = now.isoformat(), (now + timedelta(seconds=grace / 2 if saves else 0)).isoformat()

    def _send(self, place: Path, run: Run, number: int, workers: Sequence[Mapping[str, Any]] | None = None) -> int:
        """USR1 goes to those who have said that they know it; others would die of it. TERM and KILL go to all that the ranks have started as well.

        `workers`: those of the run alone. Returns how many processes were sent it.
        """
        sent = 0
        for worker in run.workers if workers is None else workers:
            spot = worker_folder(place, worker["role"], worker["index"])
            state = state_in(spot)
            for process in state.get("processes", ()):
                if processes.started_ticks(process["pid"]) != process["ticks"]:
                    continue
                if number != USR1:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process["pid"], number)
                        sent += 1
                    continue
                for pid in processes.topmost_catching(process["pid"], number):
                    with contextlib.suppress(ProcessLookupError, PermissionError):  # one below may be another user's: sudo
                        os.kill(pid, number)
                        sent += 1
            if number == KILL:
                processes.end_marked(f"{MARK}={spot}")
        if number == KILL and run.uid is not None and workers is None:
            processes.end_user(run.uid)
        return sent

    def forget(self, *, keys: Sequence[str], now: datetime) -> None:
        """Nothing is told of it any more. Its logs stay, where the console still finds them."""
        for key in keys:
            with self._run(key) as place:
                run = read(place)
                if run is None:
                    shutil.rmtree(place, ignore_errors=True)
                elif is_over(place, run, now):
                    with contextlib.suppress(FileNotFoundError):
                        (place / "run.json").replace(place / "forgotten.json")
                        self._looker.drop(Path(run.checkpoints))

    def give_up(self, *, keys: Sequence[str], now: datetime) -> None:
        """Nothing waits to begin: what still runs is ended as a stray."""

    def tidy(self) -> int:
        """Delete the folders of forgotten runs, the oldest first, until the rest is within bounds. Their checkpoints lie elsewhere and stay."""
        over = []
        for path in self.folder.glob("runs/*/forgotten.json"):
            with contextlib.suppress(FileNotFoundError):
                over.append((path.stat().st_mtime, path.parent.name, bytes_in(path.parent)))
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
        return self._deleter.delete(self.accounts.checkpoint_root(), old)

    # Being asked

    def probe(self) -> None:
        """It is this machine."""

    def observe(self, *, now: datetime) -> tuple[SeenRun, ...]:
        found = []
        self._waits_left = LOOK_SECONDS
        for place in sorted(self.folder.glob("runs/*/run.json")):
            try:
                with self._run(place.parent.name) as folder:
                    run = read(folder)
                    if run is not None and (seen := self._seen(folder, run, now)) is not None:
                        self._see_to(folder, run, seen, now)
                        found.append(seen)
            except BackendError as fault:
                # The others are no worse for it. A run that is missed for long enough is given up.
                log.warning("%s", fault)
            except Exception:
                log.exception("The run %s could not be looked at", place.parent.name)
        self.pins.settle(now)
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
        workers = [(worker, look_at(place, run, worker, now)) for worker in run.workers]
        if not (run.stopping or run.killed):  # one that is being replaced is missed by nobody
            workers = [(worker, begins_again(look) if "again" in worker and not worker.get("leaving") else look) for worker, look in workers]
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
            workers=tuple(
                SeenWorker(
                    seat_of(worker),
                    look.state if run.in_place else state,
                    look.exit_code,
                    ready=look.ready,
                    ready_since=look.ready_since,
                    ready_why=look.ready_why,
                    began=int(worker.get("began") or 0),
                )
                for worker, look in workers
            ),
            started_at=max(starts) if len(starts) == len(staying) else None,
            ended_at=max(ends, default=now) if state == RunState.ENDED else None,
            exit_code=None if state != RunState.ENDED else bad.exit_code if bad is not None else 0,
            why="" if bad is None else bad.why,
            node_lost=bad is not None and (bad.exit_code is None or (run.in_place and state == RunState.ENDED and is_for_a_loss(run, bad, wrong))),
            refusals=tuple(
                Refusal(worker["node"], *look.refused)
                for worker, look in workers
                if look.refused and (state == RunState.ENDED or now - (look.ended or now) < REFUSED_LATELY)
            ),
            checkpoints=checkpoints,
            steps=() if state == RunState.ENDED else self._looker.steps(Path(run.checkpoints)),
        )

    def _see_to(self, place: Path, run: Run, seen: SeenRun, now: datetime) -> None:
        """What is due by itself: a gang that lost a member is ended, and who was asked to leave is told more clearly."""
        if seen.state == RunState.ENDED:
            return
        if run.killed:
            self._send(place, run, KILL)  # again: it may have been about to start when it was killed
            return
        if seen.why and not run.stopping:
            run.stopping, run.term_at = now.isoformat(), now.isoformat()
            write(place, run)
        if not run.stopping:
            self._see_leavers_off(place, run, seen, now)
            for worker in run.workers:
                if "again" in worker and now >= datetime.fromisoformat(worker["again_at"]) + timedelta(seconds=int(worker["grace"])):
                    self._send(place, run, KILL, [worker])
        if not run.term_at:
            return
        if has_saved(seen, run.stopping) or now >= datetime.fromisoformat(run.term_at):
            run.term_at = ""
            write(place, run)
            self._send(place, run, TERM)

    def _see_leavers_off(self, place: Path, run: Run, seen: SeenRun, now: datetime) -> None:
        """Workers that a run shrinks by: told to go when the run has saved its work or half of their grace is over, killed after all of it."""
        for worker in [worker for worker in run.workers if worker.get("leaving")]:
            if look_at(place, run, worker, now).state == RunState.ENDED:
                if len(run.workers) > 1:
                    run.workers.remove(worker)
                    write(place, run)
            elif now >= datetime.fromisoformat(worker["leaving"]) + timedelta(seconds=int(worker["grace"])):
                self._send(place, run, KILL, [worker])
            elif worker["term_at"] and (has_saved(seen, worker["leaving"]) or now >= datetime.fromisoformat(worker["term_at"])):
                worker["term_at"] = ""
                write(place, run)
                self._send(place, run, TERM, [worker])

    def reach(self, *, key: str) -> Reach | None:
        """Jobs share the network of the machine; a shell inside one is its operator's alone."""
        known = bool(KEY.fullmatch(key)) and (self.folder / "runs" / key / "run.json").is_file()
        return Reach(socket.gethostname()) if known else None

    def logs(self, *, key: str, role: str, index: int, offset: int, limit: int) -> LogPart:
        if not KEY.fullmatch(key) or not ROLE.fullmatch(role):
            raise NotFound(f"No log of {role} {index} of {key}.")
        spot = worker_folder(self.folder / "runs" / key, role, index)
        try:
            return log_part(spot, offset, limit)
        except FileNotFoundError:
            raise NotFound(f"No log of {role} {index} of {key}.") from None
        except (OSError, ValueError) as fault:
            raise BackendError(f"The log of {role} {index} of {key} can't be read: {fault}") from fault
