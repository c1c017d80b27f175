"""The Slurm back-end: runs are jobs of a Slurm cluster, one for each group of nodes that hold the same (`script.Part`).

A submission is held until its number is written down, and found again by its comment when the answer was lost, so that nothing is started twice:
what is not written down is never released. Slurm never requeues a job by itself. Jobs without this console's tag are not touched.
"""

import logging
import os
import pwd
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Any

from django.db import Error, IntegrityError, transaction

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
from scheduler.backends.local import LAST_LOOK, LOOK_SECONDS
from scheduler.backends.local_accounts import KEY
from scheduler.backends.local_runs import MOST_KILLED, REFORMS, ROLE
from scheduler.backends.manifests import Looker
from scheduler.backends.old_checkpoints import Deleter
from scheduler.backends.slurm.client import KnownGpus, Settings, SlurmClient, SlurmJob, SlurmNode, SlurmSilent, mark_of
from scheduler.backends.slurm.gres import Gres
from scheduler.backends.slurm.outcomes import (
    GIVEN_UP,
    began,
    completed_at,
    forget_code,
    kept_on_node,
    left_at,
    left_since,
    log_name,
    opened,
    outcome,
    refusals_of,
)
from scheduler.backends.slurm.runs import Numbered, Run, name_of, named, state_of
from scheduler.backends.slurm.script import GATHER, Part, Places, is_single, keeps_logs_on_its_node, parts_of, saves, script_of
from scheduler.models import SlurmRun

log = logging.getLogger(__name__)
FACTS = Facts(pins_gpus=False, resizes_in_place=False, resizes_stated=True, creates_mig=False, runs_images=False, latency_ms=1500)
NODES_FOR = 60.0  # seconds that addresses of nodes are remembered
LATEST = timedelta(seconds=120)  # so long a submission whose answer was lost may take to appear
SUBMITTERS = 4  # at once: Slurm's own limits of a site are far above, and its controller takes them one by one
STARTS_A_STEP = 48  # are submitted, written down and released together: Slurm has something to do by then
ROWS_A_CALL = 100
GPUS_A_LOOK = 300  # so many jobs at most are asked for theirs: after a restart all that run are new
GATHERED_EACH = 5.0  # seconds at least between two looks at logs on a node: each is a step of the job, of which it has 40 000
KEPT = 2_000  # runs that are over, for their logs
NUMBERS = 10_000  # of parts that one resize may add: none is ever that of an earlier one
SIGKILLED = 128 + signal.SIGKILL
# So long a controller that has forgotten a job may need until it has ended what still runs of it.
FORGOTTEN_FOR = timedelta(seconds=20)
BOOT_EACH = 15.0  # seconds at least between two questions for when the controller was started
SWEPT_FOR = timedelta(minutes=10)  # since then jobs are looked at that were completed before it without its knowledge
WHOLE_SECONDS = timedelta(seconds=1)  # in which Slurm tells times
AGREED = timedelta(seconds=20)  # by then the console knows which nodes Slurm has drained, so that it plans with others
Submission = tuple[list[str], str]
Early = tuple[list[int], Future[None]]  # jobs that are being released while others are submitted
Wrong = tuple[datetime, int | None, str, bool, bool]  # when a part ended, its code, why, whether hardware is to blame, whether it is only a victim


class SlurmBackend:
    def __init__(
        self,
        cluster: int,
        settings: Settings,
        *,
        client: SlurmClient | None = None,
        secrets: Callable[[str, str], str | None] = lambda _name, _team: None,  # by name and the path of the job's queue
        report_url: str = "",
    ) -> None:
        self.cluster, self.settings = cluster, settings
        self.client = client or SlurmClient(settings)
        self.secrets, self.report_url = secrets, report_url
        self._held = threading.local()
        self._nodes: tuple[float, dict[str, SlurmNode]] = (0.0, {})
        self._gpus: KnownGpus = {}
        self._looker, self._deleter = Looker(), Deleter()
        self._waits_left = 0.0
        self._boot: tuple[float, datetime | None] = (-BOOT_EACH, None)
        self._sweeps = False  # in this look
        self._gathered: dict[str, float] = {}  # runs whose logs were fetched from their nodes a moment ago

    @property
    def facts(self) -> Facts:
        return FACTS

    @contextmanager
    def together(self, keys: Sequence[str] = ()) -> Iterator[None]:
        """One look at Slurm's queue serves all orders of the block, and what was submitted in it is released by its end, many with one call."""
        if getattr(self._held, "release", None) is not None:
            yield
            return
        self._held.release, self._held.jobs, self._held.silent, self._held.announced = [], None, None, {}
        try:
            yield
            if self._held.release:
                self.client.release(self._held.release)
        finally:
            self._held.release = self._held.jobs = self._held.silent = self._held.announced = None

    # Orders

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
            except SlurmSilent as fault:
                self._held.silent = fault  # nothing is submitted yet, and each `start` of the block says so without asking again
                return
            except BackendError:
                continue  # `start` meets it again, and says so of this run alone
            except Error:
                raise
            except Exception:
                log.exception("%s could not be prepared with the others", order.key)
        if len(fresh) < 2:
            return
        rows = [SlurmRun(cluster_id=self.cluster, attempt_key=run.key, sequence=run.sequence, state=state_of(run)) for run, _ in fresh]
        try:
            with transaction.atomic():
                SlurmRun.objects.bulk_create(rows)
        except IntegrityError:
            return  # somebody told us of one of them meanwhile
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
            run, fresh = self._begun(order, parts, now)
            if run is None:
                return
            places = self._places(order, run)
            known = {} if fresh else self._submitted(order.key)
            by_id = Numbered({} if fresh else {job.id: job for job in self._jobs()}, self.settings.tag)
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
        with transaction.atomic():
            run = self._read(order.key)
            if run is not None and run.in_place and run.sequence == order.sequence:
                here = {(seat.role, seat.index) for seat in order.workers}
                run.parts = [part for part in run.parts if seat_of(part) in here]  # others were lost before it was all told
                self._keep(run)
            if run is not None:
                return (None if run.never_begun or run.stopping or run.killed or run.sequence > order.sequence else run), False
            run = self._new(order, parts, now)
            self._keep(run)
            return run, True

    def _new(self, order: StartOrder, parts: Sequence[Part], now: datetime) -> Run:
        run = Run(order.key, order.sequence, now.isoformat(), grace=order.grace_seconds, saves=saves(order))
        run.parts = [part_of(order, part) for part in parts]
        run.single = len(parts) == 1 and is_single(order, parts[0])
        run.folder, run.checkpoints = (str(path) for path in self._folders(order))
        return run

    def _submitted(self, key: str) -> dict[int, int]:
        """Slurm jobs of a run by number of their part, the first of each: a second one was submitted when an answer was lost."""
        found: dict[int, int] = {}
        for job in sorted(self._jobs(), key=lambda job: job.id):
            whose, number = self._mark(job)
            if whose == key and not job.ended:
                found.setdefault(number, job.id)
        return found

    def _submit(self, order: StartOrder, part: Part, places: Places) -> int:
        if self._held.silent:
            raise BackendError(str(self._held.silent))
        try:
            return self.client.submit(*self._submission(order, part, places))
        except SlurmSilent as fault:
            self._held.silent = fault
            raise

    def _submission(self, order: StartOrder, part: Part, places: Places) -> Submission:
        """Arguments of `sbatch`, and the script."""
        secrets = self._secret_values(order)
        script = script_of(order, part, places=places, master=self._address(order.workers[0].node), secrets=secrets)
        single, first = is_single(order, part), part.seats[0]
        own_log = single and not keeps_logs_on_its_node(order, places.node_logs)
        log_file = f"{places.run}/{log_name(single=own_log, seat=f'{first.role}-{first.index}', part=part.number)}"
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
            f"--time={-(-order.limit_seconds // 60) + 1 + -(-order.grace_seconds // 60) if order.limit_seconds else 'UNLIMITED'}",
        ]
        if part.gres:
            arguments.append(f"--gres={part.gres}")
        if part.memory_mib:
            arguments.append(f"--mem={part.memory_mib}")
        arguments += [f"--{name}={value}" for name in ("partition", "account") if (value := getattr(self.settings, name))]
        if os.getuid() == 0 and self.settings.user:
            # Its group too: of a job that is submitted by root it would be root's.
            account = self._account()
            arguments += [f"--uid={account.pw_uid}", f"--gid={account.pw_gid}"]
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
                if kept.get("id") or kept.get("leaving") or seat is None:
                    continue
                known = self._submitted(key) if known is None else known
                part = parts_of(replace(order, workers=(seat,)), self._gres, first=kept["number"])[0]
                kept["id"] = known.get(part.number) or self._submit(order, part, self._places(order, run))
                if key not in self._keep_numbers([run]):
                    return
                self._held.release.append(kept["id"])

    def _resized(
        self, key: str, sequence: int, add: Sequence[WorkerSeat], leave: set[tuple[str, int]], order: StartOrder | None, now: datetime
    ) -> Run | None:
        """The run as it is to be, written down before Slurm hears of those who join; None where there is nothing to do (any more)."""
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
                self._join(run, add, order, sequence, now)
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

    def _are_asked(self, key: str) -> None:
        with transaction.atomic():
            run = self._read(key)
            if run is not None:
                for part in run.parts:
                    part.pop("to_save", None)
                self._keep(run)

    def _join(self, run: Run, add: Sequence[WorkerSeat], order: StartOrder, sequence: int, now: datetime) -> None:
        """Write down who joins. What stands elsewhere than the scheduler says was lost, and is cancelled: its node may be cut off and not dead."""
        nodes = {(seat.role, seat.index): seat.node for seat in order.workers}
        there = {seat_of(part) for part in run.parts if nodes.get(seat_of(part)) == part["nodes"][0] and self._stands(run, part)}
        add = [seat for seat in add if (seat.role, seat.index) not in there]  # a start that was told late may have begun some
        joining = {(seat.role, seat.index) for seat in add}
        if any(part.get("leaving") and seat_of(part) in joining for part in run.parts):
            raise BackendError(f"A worker of {run.key} that is to come back has not ended yet.")
        gone = [part for part in run.parts if not part.get("leaving")]
        gone = [part for part in gone if seat_of(part) in joining or nodes.get(seat_of(part)) != part["nodes"][0]]
        self._cancel([part["id"] for part in gone if part.get("id")], named(run.key))
        lost = {seat_of(part): part.get("lost", 0) + 1 for part in gone}
        run.parts = [part for part in run.parts if part not in gone]
        for place, seat in enumerate(sorted(add, key=lambda seat: (seat.role, seat.index))):
            name = (seat.role, seat.index)
            part = parts_of(replace(order, workers=(seat,)), self._gres, first=sequence * NUMBERS + place)[0]
            run.parts.append(part_of(order, part) | {"at": now.isoformat(), "lost": lost.get(name, 0)})
            forget_code(run, name)
        run.parts.sort(key=seat_of)

    def _stands(self, run: Run, part: Mapping[str, Any]) -> bool:
        if part.get("leaving") or not part.get("id"):
            return not part.get("leaving")
        job = Numbered({job.id: job for job in self._jobs()}, self.settings.tag).of(run.key, part)
        return job is not None and not job.ended

    def repartition(self, *, node: str, gpu: int, instances: Sequence[tuple[str, int]], sequence: int, now: datetime) -> None:
        raise BackendRefused("The Slurm back-end does not repartition GPUs. Change gres.conf on the node, then import the cluster again.")

    def signal(self, *, key: str, sequence: int, signal: Signal, now: datetime) -> None:
        if not self._tell(key, sequence, lambda run: self._is_to_leave(run, now) if signal == Signal.TERMINATE else None, self._ask_to_save):
            raise NotFound(f"No run {key}.")

    def stop(self, *, key: str, sequence: int, force: bool, now: datetime) -> None:
        def change(run: Run) -> None:
            if force:
                run.killed = True
            else:
                self._is_to_leave(run, now)

        def send(run: Run) -> None:
            if force:
                self._cancel(self._all_ids(run), named(key))
            else:
                self._ask_to_save(run)

        if self._tell(key, sequence, change, send):
            return
        with transaction.atomic():  # Slurm was never told of it, as far as is known: a late start is to do nothing
            if self._read(key) is None:
                self._cancel(list(self._submitted_now(key).values()))
                self._keep(Run(key, sequence, now.isoformat()))

    def _tell(self, key: str, sequence: int, change: Callable[[Run], None], send: Callable[[Run], None]) -> bool:
        """A newer order for a run. What it changes is committed before Slurm hears of it, so that nothing was done of which nobody knows; and that it
        was carried out is written down behind that, so that it is sent again where Slurm did not hear it. False: there is no such run."""
        with transaction.atomic():
            run = self._read(key)
            if run is None or run.sequence >= sequence:
                return run is not None
            change(run)
            self._keep(run)
        send(run)
        with transaction.atomic():
            run = self._read(key)
            if run is not None and run.sequence < sequence:
                run.sequence = sequence
                self._keep(run)
        return True

    def _all_ids(self, run: Run) -> list[int]:
        """Those written down, and those whose number was lost on its way."""
        unknown = any(not part.get("id") for part in run.parts)
        return sorted({*run.ids, *(self._submitted_now(run.key).values() if unknown else ())})

    def _submitted_now(self, key: str) -> dict[int, int]:
        with self.together():
            return self._submitted(key)

    @staticmethod
    def _is_to_leave(run: Run, now: datetime) -> None:
        """USR1 at once where it saves its work on that; TERM when it has, or half of its grace is over."""
        if not run.stopping:
            run.stopping, run.term_at = now.isoformat(), (now + timedelta(seconds=run.grace / 2 if run.saves else 0)).isoformat()

    def _ask_to_save(self, run: Run) -> None:
        """Those that run: scancel waits for seconds on one that does not yet, and that has nothing to save."""
        if run.saves:
            with self.together():
                by_id = Numbered({job.id: job for job in self._jobs()}, self.settings.tag)
            self._send(run, "USR1", [job.id for part in run.parts if (job := by_id.of(run.key, part)) is not None and job.running])

    def _send(self, run: Run, name: str, ids: Sequence[int]) -> None:
        alone = {part["id"] for part in run.parts if part.get("single", run.single)}
        for flags in (["--batch"], []):
            self._cancel([one for one in ids if (one in alone) is bool(flags)], named(run.key), f"--signal={name}", *flags)

    def _cancel(self, ids: Sequence[int], *flags: str) -> None:
        """Of a controller that is silent the orders of a block wait once, not each of them."""
        silent = getattr(self._held, "silent", None)
        if silent is not None:
            raise SlurmSilent(str(silent))
        try:
            self.client.cancel(ids, *flags)
        except SlurmSilent as fault:
            self._held.silent = fault if getattr(self._held, "release", None) is not None else None
            raise

    def forget(self, *, keys: Sequence[str], now: datetime) -> None:
        rows = SlurmRun.objects.filter(cluster_id=self.cluster, attempt_key__in=list(keys), forgotten_at__isnull=True)
        folders = [run.checkpoints for run in map(self._of_row, rows) if run.checkpoints]
        rows.update(forgotten_at=now)
        for folder in folders:
            self._looker.drop(Path(folder))

    def tidy(self) -> int:
        over = SlurmRun.objects.filter(cluster_id=self.cluster, forgotten_at__isnull=False).order_by("-forgotten_at", "-pk")
        old = list(over.values_list("pk", flat=True)[KEPT:])
        return SlurmRun.objects.filter(pk__in=old).delete()[0] if old else 0

    def delete_checkpoint(self, old: OldCheckpoint) -> int:
        return self._deleter.delete(self._top / "checkpoints", old)

    # Looking

    def observe(self, *, now: datetime) -> tuple[SeenRun, ...]:
        with self.together():
            jobs = self._with_gpus(self._jobs())
        self._ask_for_boot()
        by_id = Numbered({job.id: job for job in jobs}, self.settings.tag)
        ours: dict[tuple[str, int], list[SlurmJob]] = {}
        for job in sorted(jobs, key=lambda job: job.id):
            key, number = self._mark(job)
            if key and not job.ended:
                ours.setdefault((key, number), []).append(job)
        rows = SlurmRun.objects.filter(cluster_id=self.cluster, forgotten_at__isnull=True).order_by("attempt_key")
        runs = [self._of_row(row) for row in rows]
        found: list[SeenRun] = []
        began = monotonic()
        self._looker.glance([Path(run.checkpoints) for run in runs if run.checkpoints], wait=LOOK_SECONDS / 2)
        self._waits_left = LOOK_SECONDS - (monotonic() - began)
        nodes = cache(lambda: {node.name: node for node in self.client.nodes()})
        for run in runs:
            try:
                seen = self._seen(run, by_id, ours, nodes, now)
                if seen is None:
                    continue
                self._see_to(run, seen, by_id, now)
            except SlurmSilent:
                raise
            except BackendError as fault:
                log.warning("%s: %s", run.key, fault)
                continue
            except Error:
                raise
            except Exception:  # what is wrong with one run hides no other
                log.exception("%s could not be looked at", run.key)
                continue
            found.append(seen)
        self._end_doubles(runs, ours)
        known = {run.key for run in runs}
        for key in sorted({key for key, _ in ours} - known):
            # Nothing here accounts for it: the console was set back to an older state, or ended it and was killed meanwhile.
            if not SlurmRun.objects.filter(attempt_key=key, forgotten_at__isnull=False).exists():
                found.append(SeenRun(key, 0, RunState.RUNNING, ()))
            else:
                self.client.cancel([job.id for (whose, _), group in ours.items() if whose == key for job in group])
        return tuple(sorted(found, key=lambda run: run.key))

    def _with_gpus(self, jobs: Sequence[SlurmJob]) -> list[SlurmJob]:
        """Those of our own jobs that run."""
        ours = [job for job in jobs if job.running and (self._mark(job)[0] or job.name.startswith(name_of("")))]
        told = {job.id: job for job in self.client.with_known_gpus(ours, self._gpus, most=GPUS_A_LOOK)}
        return [told.get(job.id, job) for job in jobs]

    def news(self, *, now: datetime) -> tuple[SeenRun, ...]:
        """All of it: one question to the controller, whatever it is about."""
        return self.observe(now=now) if SlurmRun.objects.filter(cluster_id=self.cluster, forgotten_at__isnull=True).exists() else ()

    def next_event_at(self, *, now: datetime) -> datetime | None:
        return now + timedelta(seconds=1) if SlurmRun.objects.filter(cluster_id=self.cluster, forgotten_at__isnull=True).exists() else None

    def _seen(
        self,
        run: Run,
        by_id: Numbered,
        ours: Mapping[tuple[str, int], Sequence[SlurmJob]],
        nodes: Callable[[], Mapping[str, SlurmNode]],
        now: datetime,
    ) -> SeenRun | None:
        """None: it has ended, and its last checkpoints are still being looked at."""
        at = datetime.fromisoformat(run.at)
        if run.never_begun:
            return SeenRun(run.key, run.sequence, RunState.ENDED, (), ended_at=at, exit_code=143, why="Cancelled before it was started.")
        workers: list[SeenWorker] = []
        states, starts, ends, refusals = [], [], [], []
        wrong: list[Wrong] = []
        forgotten, starts_are_slurms = False, True
        looks = []
        for part in run.parts:
            job = by_id.of(run.key, part)
            if job is None and not part.get("id") and (found := ours.get((run.key, part["number"]))):
                job = found[0]
            look = self._part_state(run, part, job, now)
            if job is not None and self._may_be_forgotten(run, job, now) and (done := completed_at(run, part, job, now)) is not None:
                # What Slurm still has of it is cancelled, and where its start is later, that is another one.
                part["stuck"], look = not job.ended, RunState.ENDED
                started = job.started_at if job.started_at is not None and job.started_at <= done else None
                job = replace(job, state="COMPLETED", exit_code=0, started_at=started, ended_at=done)
            looks.append((part, job, look))
        # Of a run that is resized in place those who were asked to leave and have are missed by nobody.
        looks = [(part, job, look) for part, job, look in looks if not part.get("leaving") or look != RunState.ENDED] or looks
        goes_on = run.in_place and any(look == RunState.RUNNING for _, _, look in looks)
        for part, job, look in looks:
            code = None
            if goes_on and look == RunState.STARTING and self._stuck(run, part, job, nodes, now):
                look = RunState.ENDED  # lost: it is cancelled in this look, as its GPUs are free from now on, and another joins in its place
                part["stuck"] = True
                workers += self._workers(run, part, job, look, None)
                continue
            states.append(look)
            lost = False
            if look == RunState.ENDED:
                forgotten = forgotten or job is None or job.ended_at is None
                ends.append(job.ended_at if job is not None and job.ended_at is not None else left_at(run, part) or now)
                refused = refusals_of(part, job, nodes)
                refusals += refused
                code, why, lost = (None, refused[0].told, True) if refused else outcome(run, part, job)
                if code != 0:
                    cancelled = job is not None and job.state == "CANCELLED" and not run.stopping and not run.killed
                    victim = is_victim(part, code, lost=lost, cancelled=cancelled)
                    # One that Slurm has forgotten ended before those that were cancelled because of it, of which Slurm says the second.
                    wrong.append((ends[-1] if job is not None else at - timedelta(seconds=1), code, why, lost, victim))
                lost = lost and (job is None or bool(refused) or not began(run, part, job))
            elif why := self._stuck(run, part, job, nodes, now):
                wrong.append((now, None, why, True, True))
            if job is not None and job.started_at is not None and job.started_at > now + WHOLE_SECONDS and not part.get("ahead"):
                part["ahead"] = True  # Slurm's clock is: what is charged does not begin with the start that it tells
                self._keep(run)
            started = job.started_at if job is not None else None
            if started is None and look == RunState.ENDED and code is not None:
                started, starts_are_slurms = left_since(run, part), False
            if started is not None and not lost and not (goes_on and look == RunState.ENDED):
                starts.append(started)
            workers += self._workers(run, part, job, look, code)
        if states and set(states) == {RunState.ENDED}:
            state = RunState.ENDED
        elif run.stopping or run.killed:
            state = RunState.STOPPING
        else:
            state = RunState.STARTING if RunState.STARTING in states else RunState.RUNNING
        if run.in_place and not (run.stopping or run.killed) and len(wrong) < len(looks):
            # The others go on without one that was lost, and another joins them; or they have completed it without.
            wrong = [one for one in wrong if not one[4]] if goes_on or all(one[4] for one in wrong) else wrong
        bad = min(wrong, key=lambda one: one[0], default=None)
        checkpoints, fresh = self._checkpoints(run, last=state == RunState.ENDED)
        # Since when a forgotten part is over nobody knows, so that a wait for it would never end.
        if state == RunState.ENDED and not fresh and not forgotten and now - max(ends) < LAST_LOOK:
            return None
        return SeenRun(
            key=run.key,
            sequence=run.sequence,
            state=state,
            workers=tuple(workers),
            started_at=max(starts) if len(starts) == sum(not (goes_on and state == RunState.ENDED) for state in states) else None,
            ended_at=max(ends) if state == RunState.ENDED else None,
            exit_code=None if state != RunState.ENDED else bad[1] if bad is not None else 0,
            why="" if bad is None else bad[2],
            is_one_start=starts_are_slurms and not run.in_place and not any(part.get("ahead") for part in run.parts),
            node_lost=bad is not None and (bad[3] or (run.in_place and state == RunState.ENDED and is_for_a_loss(run, bad, wrong))),
            refusals=tuple(refusals),
            checkpoints=checkpoints,
            steps=self._looker.steps(Path(run.checkpoints)) if run.checkpoints and state != RunState.ENDED else (),
        )

    def _checkpoints(self, run: Run, *, last: bool) -> tuple[tuple[SeenCheckpoint, ...], bool]:
        """The newest checkpoints, and whether they are as they are now. All runs of a look wait for file systems no longer than one may."""
        if not run.checkpoints:
            return (), True
        began = monotonic()
        found, fresh = self._looker.seen(Path(run.checkpoints), wait=max(0.0, self._waits_left), last=last)
        self._waits_left -= monotonic() - began
        return tuple(SeenCheckpoint(one.step, one.location, one.shards_expected, one.shards, one.at) for one in found), fresh

    def _ask_for_boot(self) -> None:
        moment = monotonic()
        self._sweeps = moment - self._boot[0] >= BOOT_EACH
        if self._sweeps:
            try:
                self._boot = (moment, self.client.booted_at())
            except BackendError as fault:
                self._boot = (moment, self._boot[1])
                log.warning("when Slurm's controller was started is not known: %s", fault)

    def _may_be_forgotten(self, run: Run, job: SlurmJob, now: datetime) -> bool:
        """Whether it is worth while to read what a part has left, as it may have ended before its controller was killed: files of all jobs are not
        read in each look."""
        if job.state in ("PENDING", "COMPLETED") or job.state in GIVEN_UP:  # started again, a script that has ended already does nothing
            return True
        _, booted = self._boot
        return self._sweeps and booted is not None and datetime.fromisoformat(run.at) < booted + WHOLE_SECONDS and now - booted < SWEPT_FOR

    def _is_over(self, run: Run, part: dict[str, Any], now: datetime) -> bool:
        """Of a part that Slurm does not know any more: it ended too long ago, or its controller has lost it. Then it runs on until its node tells of
        it and is told to end it, and may end by itself until then."""
        if run.killed or left_at(run, part) is not None:
            return True
        if "missing" not in part:
            part["missing"] = now.isoformat()
            self._keep(run)
        return now - datetime.fromisoformat(part["missing"]) >= FORGOTTEN_FOR

    def _part_state(self, run: Run, part: dict[str, Any], job: SlurmJob | None, now: datetime) -> RunState:
        if job is not None and part.pop("missing", None):
            self._keep(run)
        if job is None:
            if part.get("id"):
                return RunState.ENDED if self._is_over(run, part, now) else RunState.STARTING
            return RunState.ENDED if run.killed and now - datetime.fromisoformat(part.get("at") or run.at) > LATEST else RunState.STARTING
        if job.ended:
            return RunState.ENDED
        return RunState.RUNNING if job.running else RunState.STARTING

    def _stuck(self, run: Run, part: Mapping[str, Any], job: SlurmJob | None, nodes: Callable[[], Mapping[str, SlurmNode]], now: datetime) -> str:
        """Why Slurm will not start a part that it has released: it waits for a node that Slurm has drained or lost."""
        since = datetime.fromisoformat(part.get("at") or run.at)
        if job is None or job.held or job.state != "PENDING" or run.stopping or run.killed or now - since < AGREED:
            return ""
        for name in part["nodes"]:
            try:
                node = nodes().get(name)
            except SlurmSilent:
                raise
            except BackendError as fault:  # what nodes say is not needed to see the run
                log.warning("%s: %s", run.key, fault)
                return ""
            word = next((state for state in node.states if state.startswith(("DRAIN", "DOWN", "FAIL"))), "") if node is not None else ""
            if node is not None and word:
                return f"Slurm did not start job {job.id}: {name} is {word.lower()}{f' ({node.reason})' if node.reason else ''}."
        return ""

    def _workers(self, run: Run, part: Mapping[str, Any], job: SlurmJob | None, state: RunState, code: int | None) -> list[SeenWorker]:
        taken: dict[str, int] = {}
        found = []
        for kept in part["seats"]:
            node, count = kept["node"], len(kept["gpus"])
            gpus: tuple[int, ...] = tuple(kept["gpus"])
            parts: tuple[tuple[str, int], ...] = ()
            if job is not None and (shown := job.gpus.get(node)):
                first = taken.get(node, 0)
                if part.get("types"):
                    parts = _own_parts(Gres(tuple(map(tuple, part["types"]))).named(shown), kept, taken)
                elif len(shown) >= first + count:
                    gpus = tuple(shown[first : first + count])
                taken[node] = first + count
            seat = WorkerSeat(kept["role"], kept["index"], node, gpus, gpu_milli=kept.get("gpu_milli", 1000), mig=tuple(kept.get("mig") or ()))
            found.append(SeenWorker(seat, state, code, parts))
        return found

    def _see_to(self, run: Run, seen: SeenRun, by_id: Numbered, now: datetime) -> None:
        """What is due by itself: a held job is released, a gang that lost a member ends, a run asked to leave is asked more clearly."""
        self.client.cancel([part["id"] for part in run.parts if part.pop("stuck", False) and part.get("id")], named(run.key))
        if seen.state == RunState.ENDED or run.never_begun:
            return
        there = {job.id: job for part in run.parts if (job := by_id.of(run.key, part)) is not None and not job.ended}
        alive = list(there)
        if run.killed:
            self.client.cancel(self._all_ids(run), named(run.key))
            return
        if run.stopping:
            if run.term_at and is_time(seen, run.stopping, run.term_at, now):
                pending = [number for number in alive if not there[number].running]
                self.client.cancel(pending)
                self._send(run, "TERM", [number for number in alive if number not in pending])
                run.term_at = ""
                self._keep(run)
            return
        if seen.why:
            run.stopping = now.isoformat()
            if seen.node_lost:
                run.withdrawn = seen.why
            self._keep(run)
            self.client.cancel(alive)
            return
        self._see_leavers_off(run, seen, by_id, now)
        if all(part.get("id") for part in run.parts):
            held = [number for number in alive if there[number].held]
            if held:
                self.client.release(held)

    def _see_leavers_off(self, run: Run, seen: SeenRun, by_id: Numbered, now: datetime) -> None:
        """Workers that a run shrinks by: told to go when the run has saved its work or half of their grace is over, cancelled after all of it."""
        for part in [part for part in run.parts if part.get("leaving")]:
            job = by_id.of(run.key, part)
            if job is None or job.ended:
                if len(run.parts) > 1:
                    run.parts.remove(part)
                    self._keep(run)
            elif not job.running or now >= datetime.fromisoformat(part["leaving"]) + timedelta(seconds=run.grace):
                self._cancel([job.id], named(run.key))
            elif part["term_at"] and is_time(seen, part["leaving"], part["term_at"], now):
                self._send(run, "TERM", [job.id])
                part["term_at"] = ""
                self._keep(run)

    def _end_doubles(self, runs: Sequence[Run], ours: Mapping[tuple[str, int], Sequence[SlurmJob]]) -> None:
        """A submission whose answer was lost and that came to be after all, beside the one that was made instead. It was never released."""
        kept = {(run.key, part["number"]): part.get("id") for run in runs for part in run.parts}
        resized = {run.key for run in runs if run.in_place}
        for place, jobs in ours.items():
            number = kept.get(place)
            if number:
                self.client.cancel([job.id for job in jobs if job.id != number])
            elif place not in kept and place[0] in resized:  # a worker that was lost, and whose place another took
                self.client.cancel([job.id for job in jobs])

    def reach(self, *, key: str) -> Reach | None:
        row = SlurmRun.objects.filter(cluster_id=self.cluster, attempt_key=key, forgotten_at__isnull=True).first()
        run = None if row is None else self._of_row(row)
        if run is None or run.never_begun or not run.parts[0].get("id"):
            return None
        first = run.parts[0]
        with self.together():
            by_id = Numbered({job.id: job for job in self._jobs()}, self.settings.tag)
        if by_id.of(key, first) is None:
            raise NotFound(f"Slurm no longer knows job {first['id']} as this run.")
        return Reach(self._address(first["seats"][0]["node"]), f"srun --jobid={first['id']} --overlap --pty bash -i", self._account().pw_name)

    def logs(self, *, key: str, role: str, index: int, offset: int, limit: int) -> LogPart:
        row = SlurmRun.objects.filter(cluster_id=self.cluster, attempt_key=key).first()
        if row is None or not ROLE.fullmatch(role):
            raise NotFound(f"No log of {role} {index} of {key}.")
        run = self._of_row(row)
        fault = None if row.forgotten_at is not None else self._gather(run, role, index)
        left = b"" if row.forgotten_at is None else self._left_on_node(run, role, index)
        try:
            with opened(Path(run.folder), f"{role}-{index}.log") as descriptor:
                size = os.fstat(descriptor).st_size
                end = size + len(left)
                begin = max(0, end + offset) if offset < 0 else min(offset, end)
                data = os.pread(descriptor, limit, begin)
        except FileNotFoundError:
            size, data = 0, b""
            begin = max(0, len(left) + offset) if offset < 0 else min(offset, len(left))
            if not left and row.forgotten_at is not None:
                raise NotFound(f"No log of {role} {index} of {key}.") from None
        except OSError as unread:
            raise BackendError(f"The log of {role} {index} of {key} cannot be read: {unread}") from unread
        if len(data) < limit:
            data += left[max(0, begin - size) :][: limit - len(data)]
        if fault is not None and not data:
            raise fault
        ended = row.forgotten_at is not None and len(data) < limit
        return LogPart(begin, whole_characters(data) if len(data) >= limit else data, ended)

    def _gather(self, run: Run, role: str, index: int) -> BackendError | None:
        """Fetch what a worker has written on its node since. Returns what went wrong: what was fetched before is still there."""
        part = _part_with(run, role, index)
        if part is None or not part.get("id") or (where := kept_on_node(run, part)) is None:
            return None
        name, moment = f"{run.key} {part['number']}", monotonic()
        if moment - self._gathered.get(name, -GATHERED_EACH) < GATHERED_EACH:
            return None
        self._gathered = {one: at for one, at in self._gathered.items() if moment - at < GATHERED_EACH} | {name: moment}
        node, folder = where
        try:
            self.client.on_node(part["id"], node, "/bin/bash", "-c", GATHER, "gpufleet", folder, run.folder, account=self._account())
        except BackendError as fault:
            return fault
        return None

    @staticmethod
    def _left_on_node(run: Run, role: str, index: int) -> bytes:
        """What is said at the end of a log that was not all copied before its job was killed."""
        part = _part_with(run, role, index)
        where = kept_on_node(run, part) if part is not None else None
        if where is None:
            return b""
        return f"gpufleet: the job was killed before all of its log was copied. What is missing is on {where[0]} in {where[1]}.\n".encode()

    # Its memory

    def _jobs(self) -> list[SlurmJob]:
        if self._held.jobs is None:
            if self._held.silent:
                raise SlurmSilent(str(self._held.silent))
            try:
                self._held.jobs = self.client.jobs()
            except SlurmSilent as fault:
                self._held.silent = fault
                raise
        found: list[SlurmJob] = self._held.jobs
        return found

    def _mark(self, job: SlurmJob) -> tuple[str, int]:
        return mark_of(job.comment, self.settings.tag)

    def _read(self, key: str) -> Run | None:
        row = SlurmRun.objects.select_for_update().filter(attempt_key=key).first()
        return None if row is None else self._of_row(row)

    @staticmethod
    def _of_row(row: SlurmRun) -> Run:
        return Run(key=row.attempt_key, sequence=row.sequence, **row.state)

    def _keep(self, run: Run) -> None:
        defaults = {"cluster_id": self.cluster, "sequence": run.sequence, "state": state_of(run)}
        SlurmRun.objects.update_or_create(attempt_key=run.key, defaults=defaults)

    # Files and people

    def _account(self) -> pwd.struct_passwd:
        if not self.settings.user:
            own = pwd.getpwuid(os.getuid())
            if own.pw_uid == 0:
                raise BackendRefused("Jobs would run as root: name a user for the jobs of this cluster.")
            return own
        try:
            found = pwd.getpwnam(self.settings.user)
        except KeyError:
            raise BackendRefused(f"There is no user {self.settings.user} on the console's machine.") from None
        if found.pw_uid == 0:
            raise BackendRefused("Jobs on Slurm never run as root.")
        if os.getuid() not in (0, found.pw_uid):
            raise BackendRefused(f"Only a console that runs as root can submit jobs of {self.settings.user}.")
        return found

    @property
    def _top(self) -> Path:
        return Path(self.settings.folder) / f"gpufleet-{self.settings.tag}"

    def _folders(self, order: StartOrder) -> tuple[Path, Path]:
        """Made by the console in folders that no job can write to, so that none can put a link in the way."""
        account, top = self._account(), self._top
        made = []
        try:
            for path in (top / "runs" / order.key, top / "checkpoints" / order.job / str(order.attempt)):
                for parent in reversed(path.relative_to(top).parents):
                    if not (top / parent).exists():
                        (top / parent).mkdir(parents=True, exist_ok=True)
                        (top / parent).chmod(0o755)  # whatever the umask: the job's user passes through
                path.mkdir(mode=0o750, exist_ok=True)
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    if os.getuid() == 0:
                        os.fchown(descriptor, account.pw_uid, account.pw_gid)
                finally:
                    os.close(descriptor)
                made.append(path)
        except OSError as fault:
            raise BackendError(f"The shared folder {self.settings.folder} cannot be used: {fault}") from fault
        return made[0], made[1]

    def _places(self, order: StartOrder, run: Run) -> Places:
        account = self._account()
        return Places(run.folder, run.checkpoints, account.pw_name, account.pw_dir, self.report_url, self.settings.node_logs)

    def _secret_values(self, order: StartOrder) -> dict[str, str]:
        found = {}
        for variable, name in (order.launch.get("secrets") or {}).items():
            value = self.secrets(str(name), order.team)
            if value is None:
                raise BackendRefused(f"There is no secret {str(name)!r} for {order.team or 'this job'}.")
            found[str(variable)] = value
        return found

    def _address(self, node: str) -> str:
        """Where the first rank is reached: the name of a node need not resolve."""
        return self._node(node).address or node

    def _gres(self, node: str) -> str:
        return self._node(node).gres

    def _node(self, node: str) -> SlurmNode:
        read, known = self._nodes
        if node not in known or monotonic() - read > NODES_FOR:
            if silent := getattr(self._held, "silent", None):
                raise BackendError(str(silent))
            known = {one.name: one for one in self.client.nodes()}
            self._nodes = (monotonic(), known)
        if node not in known:
            raise BackendRefused(f"Slurm knows no node {node}.")
        return known[node]


def _own_parts(shown: Sequence[tuple[str, int]], kept: Mapping[str, Any], taken: dict[str, int]) -> tuple[tuple[str, int], ...]:
    """Of what a job has on a node what one of its workers has: of each kind the next. Nothing where Slurm shows too little."""
    found = []
    for profile in kept.get("mig") or [""] * len(kept["gpus"]):
        own = [one for one in shown if one[0] == profile]
        place = taken.get(key := f"{kept['node']} {profile}", 0)
        if place < len(own):
            found.append(own[place])
        taken[key] = place + 1
    return tuple(found) if len(found) == len(kept["gpus"]) else ()


def _part_with(run: Run, role: str, index: int) -> dict[str, Any] | None:
    return next((part for part in run.parts if any((seat["role"], seat["index"]) == (role, index) for seat in part["seats"])), None)


def part_of(order: StartOrder, part: Part) -> dict[str, Any]:
    """A part as its run keeps it."""
    stated = {"in_place": True} if order.launch.get("in_place") else {}
    return asdict(part) | {"id": None, "single": is_single(order, part)} | stated


def seat_of(part: Mapping[str, Any]) -> tuple[str, int]:
    """The worker of a part that is a worker."""
    return part["seats"][0]["role"], part["seats"][0]["index"]


def is_victim(part: Mapping[str, Any], code: int | None, *, lost: bool, cancelled: bool) -> bool:
    """Whether a worker of a run that is resized in place ended by no doing of its own. `cancelled`: by somebody in Slurm."""
    return lost or code is None or ((cancelled or code == SIGKILLED) and part.get("lost", 0) < MOST_KILLED - 1)


def is_for_a_loss(run: Run, bad: Wrong, wrong: Sequence[Wrong]) -> bool:
    """Whether those who stayed failed only because they could not re-form without one that was lost."""
    at, code, _, _, is_lost = bad
    if is_lost:
        return not all(one[4] for one in wrong)
    joined = [datetime.fromisoformat(part["at"]) for part in run.parts if part.get("lost")]
    return code != SIGKILLED and any(abs(at - moment) <= REFORMS for moment in joined)


def is_time(seen: SeenRun, asked: str, term_at: str, now: datetime) -> bool:
    """Whether a run has saved its work since it was asked to, or has had the time for it."""
    since = datetime.fromisoformat(asked)
    saved = any(len(one.shards) == one.shards_expected and one.at >= since for one in seen.checkpoints)
    return saved or now >= datetime.fromisoformat(term_at)


__all__ = ["FACTS", "SlurmBackend"]
