"""Orders for runs on Slurm: what is to begin is submitted held, written down and released; what runs is resized, signalled and ended."""

import logging
import os
import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Any

from django.db import Error, transaction

from scheduler.backends.base import (
    BackendError,
    BackendRefused,
    BackendSilent,
    FolderSilent,
    NotFound,
    OldCheckpoint,
    Signal,
    StartOrder,
    WorkerSeat,
)
from scheduler.backends.local_accounts import KEY
from scheduler.backends.slurm.client import as_account
from scheduler.backends.slurm.errors import SlurmSilent
from scheduler.backends.slurm.replacing import Replacing
from scheduler.backends.slurm.runs import Numbered, Run, log_name, part_of, seat_of, state_of
from scheduler.backends.slurm.script import NUMBERS, Part, Places, has_own_log, is_single, parts_of, saves, script_of
from scheduler.backends.slurm.site import minutes_of, time_argument
from scheduler.backends.slurm.values import name_of, named
from scheduler.models import SlurmRun

log = logging.getLogger(__name__)
SUBMITTERS = 4  # at once: Slurm's own limits of a site are far above, and its controller takes them one by one
STARTS_A_STEP = 48  # are submitted, written down and released together: Slurm has something to do by then
ROWS_A_CALL = 100
KEPT = 2_000  # runs that are over, for their logs
TIDIED_A_CALL, TIDIED_FOR = 5_000, 60.0  # runs, and seconds
Submission = tuple[list[str], str]
Early = tuple[list[int], Future[None]]  # jobs that are being released while others are submitted


class Orders(Replacing):
    """What the scheduler tells."""

    def announce(self, orders: Sequence[StartOrder], *, now: datetime) -> None:
        """Runs of which Slurm has never heard are written down together, submitted several at a time, and their numbers written down together.

        Whatever is not clear here is left to `start`: what was told before, and what can never be.
        """
        told = set(SlurmRun.objects.filter(attempt_key__in=[order.key for order in orders]).values_list("attempt_key", flat=True))
        fresh: list[tuple[Run, list[Submission]]] = []
        for order in orders:
            if order.key in told or not KEY.fullmatch(order.key):
                continue
            try:
                parts = parts_of(order, self._gres)
                run = self._new(order, parts, now)
                places = self._places(order, run)
                fresh.append((run, [self._submission(order, part, places) for part in parts]))
            except BackendSilent as fault:
                # Nothing is submitted yet, and each `start` of the block says so without asking again: of a folder, as a call there is under way.
                self._held.silent = None if isinstance(fault, FolderSilent) else fault
                return
            except BackendError:
                continue  # `start` meets it again, and says so of this run alone
            except Error:
                raise
            except Exception:
                log.exception("%s could not be prepared with the others", order.key)
        if len(fresh) < 2:
            return
        if not self._add_all([run for run, _ in fresh]):
            return
        with ThreadPoolExecutor(SUBMITTERS + 1) as pool:
            early: Early | None = None
            for first in range(0, len(fresh), STARTS_A_STEP):
                some = fresh[first : first + STARTS_A_STEP]
                faults = self._submit_all(pool, some)
                to_begin = self._keep_numbers([run for run, _ in some])
                self._released(early)
                for run, _ in some:
                    self._held.announced[run.key] = faults.get(run.key)
                    if run.key not in faults and run.key in to_begin:
                        self._held.release += run.ids
                early = self._release_early(pool)
            self._released(early)

    def _release_early(self, pool: ThreadPoolExecutor) -> "Early | None":
        """Slurm starts these while others are being submitted."""
        ids = list(self._held.release)
        return None if self._held.silent or not ids else (ids, pool.submit(self.client.release, ids))

    def _released(self, early: "Early | None") -> None:
        """What failed is tried, and told, at the end of the block."""
        if early is None:
            return
        ids, call = early
        try:
            call.result()
            self._held.release = [one for one in self._held.release if one not in set(ids)]
        except SlurmSilent as fault:
            self._held.silent = fault
        except BackendError as fault:
            log.warning("what was submitted could not be released yet: %s", fault)

    def _keep_numbers(self, runs: Sequence[Run]) -> set[str]:
        """Write down what was submitted, beside whatever another leader has written meanwhile. Returns which of the runs are still to begin.

        A submission whose place has another's number is a double: it stays held until `observe` cancels it.
        """
        to_begin = set()
        with transaction.atomic():
            rows = {
                row.attempt_key: row for row in SlurmRun.objects.select_for_update().filter(attempt_key__in=[run.key for run in runs]).order_by("pk")
            }
            for run in runs:
                if (row := rows.get(run.key)) is None:
                    continue  # forgotten meanwhile
                kept = self._of_row(row)
                made = {part["number"]: part.get("id") for part in run.parts}
                for part in kept.parts:
                    part["id"] = part.get("id") or made.get(part["number"])
                row.state = state_of(kept)
                if kept.ids == run.ids and not kept.stopping and not kept.killed:
                    to_begin.add(run.key)
            SlurmRun.objects.bulk_update(rows.values(), ["state"], batch_size=ROWS_A_CALL)
        return to_begin

    def _submit_all(self, pool: ThreadPoolExecutor, fresh: Sequence[tuple[Run, Sequence["Submission"]]]) -> dict[str, BackendError]:
        """Submit and note the numbers. Returns what went wrong, by run. Nothing more is submitted to a controller that does not answer."""
        silent = threading.Event()
        if self._held.silent:
            silent.set()

        def submit(submission: Submission) -> int | BackendError:
            if silent.is_set():
                return SlurmSilent("Slurm's controller does not answer.")
            try:
                return self.client.submit(*submission)
            except SlurmSilent as fault:
                silent.set()
                return fault
            except BackendError as fault:
                return fault

        faults: dict[str, BackendError] = {}
        numbers = pool.map(submit, [submission for _, submissions in fresh for submission in submissions])
        for run, _ in fresh:
            for part, number in zip(run.parts, numbers, strict=False):
                if isinstance(number, BackendError):
                    faults[run.key] = number
                    if isinstance(number, SlurmSilent):
                        self._held.silent = number
                else:
                    part["id"] = number
        return faults

    def start(self, order: StartOrder, *, now: datetime) -> None:
        if not KEY.fullmatch(order.key):
            raise BackendRefused(f"{order.key!r} is not a name of a run.")
        with self.together():
            if order.key in self._held.announced:
                if fault := self._held.announced[order.key]:
                    raise fault
                return
            parts = parts_of(order, self._gres)
            if fault := self._too_long(order.limit_seconds):
                raise BackendRefused(fault)
            run, fresh = self._begun(order, parts, now)
            if run is None:
                return
            places = self._places(order, run)
            known = {} if fresh else self._submitted(order.key, run)
            by_id = Numbered({}, self.settings.tag, None) if fresh else self._numbered()
            due = []
            if run.in_place:  # it may have grown since it was written down: those who join are told by the resize
                by_seat = {(part.seats[0].role, part.seats[0].index): part for part in parts}
                parts = [by_seat[seat_of(kept)] for kept in run.parts]
            for part, kept in zip(parts, run.parts, strict=True):
                if kept.get("id"):
                    if (job := by_id.of(run.key, kept)) is not None and not job.ended:
                        due.append(job.id)
                else:
                    kept["id"] = known.get(kept["number"]) or self._submit(order, replace(part, number=kept["number"]), places)
                    due.append(kept["id"])
                    if run.key not in self._keep_numbers([run]):
                        return
            self._held.release += due

    def _begun(self, order: StartOrder, parts: Sequence[Part], now: datetime) -> tuple[Run | None, bool]:
        """The run as it is written down before Slurm hears of it; None where it is not to begin (any more). And whether it is new."""
        # Its folders are made before the transaction: they may be waited for.
        new = None if SlurmRun.objects.filter(attempt_key=order.key).exists() else self._new(order, parts, now)
        with transaction.atomic():
            run = self._read(order.key)
            if run is not None and run.in_place and run.sequence == order.sequence:
                here = {(seat.role, seat.index) for seat in order.workers}
                run.parts = [part for part in run.parts if seat_of(part) in here]  # others were lost before it was all told
                self._keep(run)
            if run is not None:
                return (None if run.never_begun or run.stopping or run.killed or run.sequence > order.sequence else run), False
            if new is None:
                raise BackendError(f"{order.key} was forgotten a moment ago.")
            self._add(new)
            return new, True

    def _new(self, order: StartOrder, parts: Sequence[Part], now: datetime) -> Run:
        run = Run(order.key, order.sequence, now.isoformat(), grace=order.grace_seconds, saves=saves(order))
        uid = self._account().pw_uid
        run.parts = [part_of(order, part, uid=uid) for part in parts]
        run.single = len(parts) == 1 and is_single(order, parts[0])
        run.port = self._port(order.key, order.workers[0].node)
        run.folder, run.checkpoints = (str(path) for path in self._folders(order))
        return run

    def _submit(self, order: StartOrder, part: Part, places: Places) -> int:
        submission = self._submission(order, part, places)
        with self._waits_once():
            return self.client.submit(*submission)

    def _submission(self, order: StartOrder, part: Part, places: Places) -> Submission:
        """Arguments of `sbatch`, and the script."""
        if fault := self._too_long(order.limit_seconds):
            raise BackendRefused(fault)
        secrets = self._secret_values(order)
        script = script_of(order, part, places=places, master=self._address(order.workers[0].node), secrets=secrets)
        single, first = is_single(order, part), part.seats[0]
        own_log = has_own_log(order, part, places.node_logs)
        log_file = f"{places.run}/{log_name(own=own_log, seat=f'{first.role}-{first.index}', part=part.number)}"
        arguments = [
            "--hold",
            "--no-requeue",
            f"--job-name={name_of(order.key)}",
            f"--comment=gpufleet {self.settings.tag} {order.key} {part.number} {order.sequence} {part.promise}",
            f"--nodes={len(part.nodes)}",
            f"--nodelist={','.join(part.nodes)}",
            f"--ntasks-per-node={1 if single else max(1, part.cpus)}",
            f"--cpus-per-task={part.cpus if single else 1}",
            f"--chdir={places.run}",
            f"--output={log_file}",
            "--open-mode=append",
            time_argument(self._minutes(order.limit_seconds, order.grace_seconds)),
        ]
        if part.gres:
            arguments.append(f"--gres={part.gres}")
        if part.memory_mib:
            arguments.append(f"--mem={part.memory_mib}")
        arguments += [f"--{name}={value}" for name in ("partition", "account") if (value := getattr(self.settings, name))]
        if os.getuid() == 0 and self.settings.user:
            arguments += as_account(self._account())
        return arguments, script

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
        """Of a run each of whose workers is a Slurm job of its own: further ones are submitted, and those that go are signalled."""
        with self.together():
            run = self._resized(key, sequence, add, set(leave), order, now)
            if run is not None and any(part.get("to_save") for part in run.parts):
                self._ask_to_save(run)
                self._are_asked(key)
            if run is None or order is None:
                return
            seats = {(seat.role, seat.index): seat for seat in order.workers}
            known = None
            for kept in run.parts:
                seat = seats.get(seat_of(kept))
                if kept.get("id") and kept["number"] // NUMBERS == sequence and self._is_held(key, kept):
                    self._held.release.append(kept["id"])  # it was submitted when this was told before
                if kept.get("id") or kept.get("leaving") or seat is None:
                    continue
                known = self._submitted(key, run) if known is None else known
                part = parts_of(replace(order, workers=(seat,)), self._gres, first=kept["number"])[0]
                kept["id"] = known.get(part.number) or self._submit(order, part, self._places(order, run))
                if key not in self._keep_numbers([run]):
                    return
                self._held.release.append(kept["id"])

    def _is_held(self, key: str, part: Mapping[str, Any]) -> bool:
        job = self._numbered().of(key, part)
        return job is not None and job.held

    def _resized(
        self, key: str, sequence: int, add: Sequence[WorkerSeat], leave: set[tuple[str, int]], order: StartOrder | None, now: datetime
    ) -> Run | None:
        """The run as it is to be, written down before Slurm hears of those who join; None where there is nothing to do (any more)."""
        cancelled = self._cancel_the_lost(key, sequence, add, leave, order, now)
        gres = {} if order is None else {seat.node: self._gres(seat.node) for seat in add}
        with transaction.atomic():
            run = self._read(key)
            if run is None:
                raise NotFound(f"No run {key}.")
            if run.never_begun or run.stopping or run.killed or run.sequence > sequence:
                return None
            if not run.in_place:
                raise BackendRefused("The job does not state that it can be resized in place (launch.in_place). It is stopped and restarted.")
            if run.sequence == sequence:
                return run
            self._ask_some_to_leave(run, leave, now)
            if order is not None:
                self._join(run, add, order, sequence, now, gres, cancelled)
            run.sequence = sequence
            self._keep(run)
            return run

    def _ask_some_to_leave(self, run: Run, leave: set[tuple[str, int]], now: datetime) -> None:
        """All of the run save their work first, so that nothing is lost with those who go. They are asked when this is written down (`to_save`), and
        again where that is cut off; `_see_to` does the rest."""
        for part in run.parts:
            if seat_of(part) in leave and not part.get("leaving"):
                part.update(leaving=now.isoformat(), term_at=(now + timedelta(seconds=run.grace / 2 if run.saves else 0)).isoformat())
                part.update({"to_save": True} if run.saves else {})
                run.reformed = now.isoformat()

    def _are_asked(self, key: str) -> None:
        with transaction.atomic():
            run = self._read(key)
            if run is not None:
                for part in run.parts:
                    part.pop("to_save", None)
                self._keep(run)

    def _cancel_the_lost(
        self, key: str, sequence: int, add: Sequence[WorkerSeat], leave: set[tuple[str, int]], order: StartOrder | None, now: datetime
    ) -> set[int]:
        """What stands elsewhere than the scheduler says was lost, and is cancelled: its node may be cut off and not dead. Slurm hears of that
        before it is written down, and outside the transaction. Returns the numbers."""
        row = SlurmRun.objects.filter(attempt_key=key).first() if order is not None else None
        if order is None or row is None:
            return set()
        run = self._of_row(row)
        if run.never_begun or run.stopping or run.killed or run.sequence >= sequence or not run.in_place:
            return set()
        self._ask_some_to_leave(run, leave, now)
        _, gone = self._who_joins(run, add, order)
        ids = [part["id"] for part in gone if part.get("id")]
        self._cancel(ids, named(key))
        return set(ids)

    def _who_joins(self, run: Run, add: Sequence[WorkerSeat], order: StartOrder) -> tuple[list[WorkerSeat], list[dict[str, Any]]]:
        """Those who do not stand already, and the parts that are lost."""
        nodes = {(seat.role, seat.index): seat.node for seat in order.workers}
        there = {seat_of(part) for part in run.parts if nodes.get(seat_of(part)) == part["nodes"][0] and self._stands(run, part)}
        add = [seat for seat in add if (seat.role, seat.index) not in there]  # a start that was told late may have begun some
        joining = {(seat.role, seat.index) for seat in add}
        if any(part.get("leaving") and seat_of(part) in joining for part in run.parts):
            raise BackendError(f"A worker of {run.key} that is to come back has not ended yet.")
        gone = [part for part in run.parts if not part.get("leaving")]
        return add, [part for part in gone if seat_of(part) in joining or nodes.get(seat_of(part)) != part["nodes"][0]]

    def _join(
        self,
        run: Run,
        add: Sequence[WorkerSeat],
        order: StartOrder,
        sequence: int,
        now: datetime,
        gres: Mapping[str, str],
        cancelled: Collection[int],
    ) -> None:
        """Write down who joins in whose place."""
        add, gone = self._who_joins(run, add, order)
        if any(part.get("id") and part["id"] not in cancelled for part in gone):
            raise BackendError(f"{run.key} has changed meanwhile.")
        uid, lost = self._account().pw_uid, {seat_of(part): part.get("lost", 0) + 1 for part in gone}
        trials = {seat_of(part) for part in gone if part.get("on_trial")}
        run.parts = [part for part in run.parts if part not in gone]
        run.reformed = now.isoformat() if gone else run.reformed
        for place, seat in enumerate(sorted(add, key=lambda seat: (seat.role, seat.index))):
            name = (seat.role, seat.index)
            part = parts_of(replace(order, workers=(seat,)), gres.__getitem__, first=sequence * NUMBERS + place)[0]
            trial = {"on_trial": True, "began_at": now.isoformat()} if name in trials else {}
            run.parts.append(part_of(order, part, uid=uid) | {"at": now.isoformat(), "lost": lost.get(name, 0)} | trial)
        run.parts.sort(key=seat_of)

    def _stands(self, run: Run, part: Mapping[str, Any]) -> bool:
        if part.get("leaving") or not part.get("id"):
            return not part.get("leaving")
        job = self._numbered().of(run.key, part)
        return job is not None and not job.ended

    def limit(self, *, key: str, sequence: int, seconds: int | None, now: datetime) -> None:
        """Slurm ends a run later than the console, if the console does not. Workers that join later are submitted with the limit of then."""
        faults = []

        def send(run: Run) -> None:
            try:
                self._set_limits(run, seconds, now)
            except BackendRefused as fault:
                faults.append(str(fault))

        if not self._order(key, sequence, lambda run: None, send):
            raise NotFound(f"No run {key}.")
        if fault := self._too_long(seconds) or next(iter(faults), ""):
            raise BackendRefused(fault)

    def _set_limits(self, run: Run, seconds: int | None, now: datetime) -> None:
        """Never so short that Slurm ends at once what the console is about to ask to leave."""
        if run.stopping or run.killed:
            return
        with self.together():
            by_id = self._numbered()
        by_minutes: dict[int | None, list[int]] = {}
        for part in run.parts:
            job = by_id.of(run.key, part)
            if job is None or job.ended:
                continue
            minutes = self._minutes(seconds, run.grace)
            if minutes is not None and job.started_at is not None:
                minutes = max(minutes, minutes_of((now - job.started_at).total_seconds()) + 1 + minutes_of(run.grace))
            by_minutes.setdefault(minutes, []).append(job.id)
        faults: list[BackendRefused] = []
        for minutes, ids in by_minutes.items():
            try:
                with self._waits_once():
                    self.client.set_time_limit(ids, minutes)
            except BackendRefused as fault:
                faults.append(fault)
        if faults:
            raise faults[0]

    def repartition(self, *, node: str, gpu: int, instances: Sequence[tuple[str, int]], sequence: int, now: datetime) -> None:
        raise BackendRefused("The Slurm back-end does not repartition GPUs. Change gres.conf on the node, then import the cluster again.")

    def signal(self, *, key: str, sequence: int, signal: Signal, now: datetime) -> None:
        if not self._order(key, sequence, lambda run: self._is_to_leave(run, now) if signal == Signal.TERMINATE else None, self._ask_to_save):
            raise NotFound(f"No run {key}.")

    def _ask_to_leave(self, run: Run) -> None:
        self._withdraw_replacing(run)
        self._ask_to_save(run)

    def _end_all(self, run: Run) -> None:
        self._cancel(self._all_ids(run), named(run.key))

    def _end_unknown(self, key: str) -> None:
        self._cancel(list(self._submitted_now(key).values()), named(key))

    def _is_to_leave(self, run: Run, now: datetime) -> None:
        """USR1 at once where it saves its work on that; TERM when it has, or half of its grace is over."""
        if not run.stopping:
            run.stopping, run.term_at = now.isoformat(), (now + timedelta(seconds=run.grace / 2 if run.saves else 0)).isoformat()

    def forget(self, *, keys: Sequence[str], now: datetime) -> None:
        rows = SlurmRun.objects.filter(cluster_id=self.cluster, attempt_key__in=list(keys), forgotten_at__isnull=True)
        folders = [run.checkpoints for run in map(self._of_row, rows) if run.checkpoints]
        rows.update(forgotten_at=now)
        for folder in folders:
            self._looker.drop(Path(folder))

    def tidy(self) -> int:
        """With the folders of these runs, logs included. Of one whose folder can't be deleted the row stays, and it is tried again the next time."""
        over = SlurmRun.objects.filter(cluster_id=self.cluster, forgotten_at__isnull=False)
        spare = max(0, over.count() - KEPT)
        until, done, silent = monotonic() + TIDIED_FOR, 0, set()
        for row in over.order_by("forgotten_at", "pk")[: min(spare, TIDIED_A_CALL)]:
            root, former = self._root_of(Path(row.state.get("folder") or ""), row.attempt_key)
            if monotonic() > until:
                break
            if root in silent:
                continue
            try:
                if root is not None:
                    self._deleter.delete_run(root, row.attempt_key, given_up=former)
            except BackendError as fault:
                log.warning("the folder of %s stays for now: %s", row.attempt_key, fault)
                if isinstance(fault, FolderSilent):
                    silent.add(root)
                continue
            done += row.delete()[0]
        return done

    def _root_of(self, folder: Path, key: str) -> tuple[Path | None, Path | None]:
        """Where the folder of a run lies, if it is the one that such a run is given, and the shared folder of before that this is in."""
        former = self._former_of(folder)
        root = (self._top if former is None else self._top_in(former)) / "runs"
        return root if folder == root / key else None, None if former is None else Path(former)

    def _former_of(self, place: Path) -> str | None:
        return next((folder for folder in self.settings.former if place.is_relative_to(self._top_in(folder))), None)

    def delete_checkpoint(self, old: OldCheckpoint) -> int:
        """Also in a shared folder of before. One that is gone altogether was given up, and its files with it."""
        former = self._former_of(Path(old.location))
        if former is None:
            return self._deleter.delete(self._top / "checkpoints", old)
        return self._deleter.delete(self._top_in(former) / "checkpoints", old, given_up=Path(former))
