"""Looks at runs on Slurm: what became of each, and what is due by itself."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from django.db import Error

from scheduler.backends.base import (
    BackendError,
    BackendSilent,
    Refusal,
    RunState,
    SeenCheckpoint,
    SeenRun,
    SeenSteps,
    SeenWorker,
    WorkerSeat,
)
from scheduler.backends.local import LAST_LOOK, LOOK_SECONDS
from scheduler.backends.local_runs import MOST_KILLED, has_saved, re_forms
from scheduler.backends.slurm import shared
from scheduler.backends.slurm.asking import NOT_YET, Answer
from scheduler.backends.slurm.client import SlurmClient
from scheduler.backends.slurm.errors import SlurmSilent
from scheduler.backends.slurm.gres import Gres
from scheduler.backends.slurm.outcomes import (
    GIVEN_UP,
    SIGKILLED,
    UNTOLD,
    WHOLE_SECONDS,
    began,
    completed_at,
    left_at,
    left_since,
    never_starts,
    not_started,
    outcome,
    ran_out_of_time,
    refusals_of,
)
from scheduler.backends.slurm.replacing import Replacing, never_served
from scheduler.backends.slurm.runs import Numbered, Run, part_set, to_go_on
from scheduler.backends.slurm.values import KnownGpus, SlurmJob, SlurmNode, name_of, named
from scheduler.models import OutsideJob, SlurmRun

log = logging.getLogger(__name__)
T = TypeVar("T")
LATEST = timedelta(seconds=120)  # so long a submission whose answer was lost may take to appear
GPUS_A_LOOK = 300  # so many jobs at most are asked for theirs: after a restart all that run are new
# So long a controller that has forgotten a job may need until it has ended what still runs of it.
FORGOTTEN_FOR = timedelta(seconds=20)
RELEASED_EACH = 10.0  # seconds at least between two times that a look tries to release what Slurm kept
ACCOUNTS_EACH = 8.0  # seconds at least between two questions to Slurm's accounts for one job
ACCOUNTS_A_LOOK = 200
BOOT_EACH = 15.0  # seconds at least between two questions for when the controller was started
SWEPT_FOR = timedelta(minutes=10)  # since then jobs are looked at that were completed before it without its knowledge
AGREED = timedelta(seconds=20)  # by then the console knows which nodes Slurm has drained or given to others, so that it plans without them
APART = timedelta(seconds=120)  # so far apart Slurm may begin the parts of a gang: its backfill tries each 30 s, as it is shipped
# When a part ended, its code, why, whether hardware is to blame, whether it is only a victim, and whether its time was over.
Wrong = tuple[datetime, int | None, str, bool, bool, bool]


class Looking(Replacing):
    """What the scheduler is told."""

    def observe(self, *, now: datetime) -> tuple[SeenRun, ...]:
        shared.must_answer(self._top)
        with self.together():
            jobs = self._with_gpus(self._jobs())
        self._ask_for_boot()
        self._answers.sweep()
        uid = self._uid
        by_id = Numbered({job.id: job for job in jobs}, self.settings.tag, uid)
        rows = SlurmRun.objects.filter(cluster_id=self.cluster, forgotten_at__isnull=True).order_by("attempt_key")
        runs = [self._of_row(row) for row in rows]
        users = {run.key: {uid, *run.uids} for run in runs}
        ours: dict[tuple[str, int], list[SlurmJob]] = {}
        for job in sorted(jobs, key=lambda job: job.id):
            key, number = self._mark(job)
            if key and not job.ended and job.uid in users.get(key, (uid,)):
                ours.setdefault((key, number), []).append(job)
        by_id = replace(by_id, accounted=self._accounts(runs, by_id))
        self._ports = {(run.parts[0]["seats"][0]["node"], run.port): run.key for run in runs if run.parts and run.port}
        self._were_apart, self._apart = self._apart, {}
        found: list[SeenRun] = []
        held: dict[str, list[int]] = {}
        began = monotonic()
        self._looker.glance([Path(run.checkpoints) for run in runs if run.checkpoints], wait=LOOK_SECONDS / 2)
        self._waits_left = LOOK_SECONDS - (monotonic() - began)
        others = [job for job in jobs if job.running and not self._is_ours(job)]
        around = Around(self.client, self.cluster, others, {number for run in runs for number in run.ids})
        for run in runs:
            try:
                seen = self._seen(run, by_id, ours, around, now)
                if seen is None:
                    continue
                held[run.key] = self._see_to(run, seen, by_id, ours, now)
            except BackendSilent:
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
        self._release_again({key: ids for key, ids in held.items() if ids})
        self._end_doubles(runs, ours)
        # Nothing here accounts for some: the console was set back to an older state, or ended them and was killed meanwhile.
        unknown = sorted({key for key, _ in ours} - {run.key for run in runs})
        over = SlurmRun.objects.filter(attempt_key__among=unknown, forgotten_at__isnull=False).values_list("attempt_key", flat=True)
        forgotten = set(over) if unknown else set()
        found += [SeenRun(key, 0, RunState.RUNNING, ()) for key in unknown if key not in forgotten]
        self._cancel_again([job.id for (key, _), group in ours.items() if key in forgotten for job in group])
        return tuple(sorted(found, key=lambda run: run.key))

    def _with_gpus(self, jobs: Sequence[SlurmJob]) -> list[SlurmJob]:
        """Those of our own jobs that run."""
        ours = [job for job in jobs if job.running and self._is_ours(job)]
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
        around: "Around",
        now: datetime,
    ) -> SeenRun | None:
        """None: it has ended, and its last checkpoints are still being looked at."""
        if run.never_begun:
            at = datetime.fromisoformat(run.at)
            return SeenRun(run.key, run.sequence, RunState.ENDED, (), ended_at=at, exit_code=143, why="Cancelled before it was started.")
        looks = self._looks_at_parts(run, by_id, ours, now)
        has_begun = any(look == RunState.RUNNING for _, _, look in looks)
        found = Gathered(goes_on=run.in_place and has_begun)
        for part, job, look in looks:
            why = "" if look == RunState.ENDED else self._stuck(run, part, job, around, now)
            if look == RunState.STARTING and not why:
                why = self._left_behind(run, part, job, around, now, has_begun=has_begun)
            self._gather_part(found, run, part, job, look, why, around, now)
        if run.in_place and not (run.stopping or run.killed) and len(found.wrong) < len(looks):
            found.pass_over_victims()
        state = found.state_of(run)
        checkpoints, fresh = self._checkpoints(run, last=state == RunState.ENDED)
        # Since when a forgotten part is over nobody knows, so that a wait for it would never end.
        if state == RunState.ENDED and not fresh and not found.forgotten and now - max(found.ends) < LAST_LOOK:
            return None
        steps = self._looker.steps(Path(run.checkpoints)) if run.checkpoints and state != RunState.ENDED else ()
        return found.told(run, state, checkpoints, steps)

    def _looks_at_parts(
        self, run: Run, by_id: Numbered, ours: Mapping[tuple[str, int], Sequence[SlurmJob]], now: datetime
    ) -> list[tuple[dict[str, Any], SlurmJob | None, RunState]]:
        """Each part with its job in Slurm. Of a run that is resized in place those who were asked to leave and have are missed by nobody."""
        looks = []
        for part in run.parts:
            job = by_id.of(run.key, part)
            if job is None and not part.get("id") and (same := ours.get((run.key, part["number"]))):
                job = same[0]
            look = self._part_state(run, part, job, now)
            if job is not None and self._may_be_forgotten(run, job, now) and (done := completed_at(run, part, job, now)) is not None:
                # What Slurm still has of it is cancelled, and where its start is later, that is another one.
                part["stuck"], look = not job.ended, RunState.ENDED
                started = job.started_at if job.started_at is not None and job.started_at <= done else None
                job = replace(job, state="COMPLETED", exit_code=0, started_at=started, ended_at=done)
            looks.append((part, job, look))
        return [(part, job, look) for part, job, look in looks if not part.get("leaving") or look != RunState.ENDED] or looks

    def _gather_part(
        self,
        found: "Gathered",
        run: Run,
        part: dict[str, Any],
        job: SlurmJob | None,
        look: RunState,
        why: str,
        around: "Around",
        now: datetime,
    ) -> None:
        code, lost = None, False
        if found.goes_on and look == RunState.STARTING and why:
            part["stuck"] = True  # lost: it is cancelled in this look, as its GPUs are free from now on, and another joins in its place
            found.workers += self._workers(run, part, job, RunState.ENDED, None, now)
            return
        found.states.append(look)
        if look == RunState.ENDED:
            code, lost = found.end(run, part, job, refusals_of(part, job, lambda: around.nodes), partial(around.was_given_before, run), now)
        elif why:
            found.wrong.append((now, None, why, True, True, False))
        if job is not None and job.started_at is not None and job.started_at > now + WHOLE_SECONDS and not part.get("ahead"):
            # Slurm's clock is: what is charged does not begin with the start that it tells.
            self._note(run, part_set(part, ahead=True))
        found.start(run, part, job, look, code, lost=lost)
        found.workers += self._workers(run, part, job, look, code, now)

    def _checkpoints(self, run: Run, *, last: bool) -> tuple[tuple[SeenCheckpoint, ...], bool]:
        """The newest checkpoints, and whether they are as they are now. All runs of a look wait for file systems no longer than one may."""
        if not run.checkpoints:
            return (), True
        began = monotonic()
        found, fresh = self._looker.seen(Path(run.checkpoints), wait=max(0.0, self._waits_left), last=last)
        self._waits_left -= monotonic() - began
        return tuple(SeenCheckpoint(one.step, one.location, one.shards_expected, one.shards, one.at) for one in found), fresh

    def _accounts(self, runs: Sequence[Run], by_id: Numbered) -> Mapping[tuple[str, int], SlurmJob]:
        """What Slurm's accounts say of jobs that its controller has forgotten, where there are any: one question for all, and not in each look."""
        missing = {(name_of(run.key), part["id"]) for run in runs for part in run.parts if part.get("id") and by_id.of(run.key, part) is None}
        self._accounted = {place: job for place, job in self._accounted.items() if place in missing}
        self._asked_for = {place: at for place, at in self._asked_for.items() if place in missing}
        moment = monotonic()
        due = sorted(missing - {place for place, at in self._asked_for.items() if place in self._accounted or moment - at < ACCOUNTS_EACH})
        if self.client.keeps_accounts and due:
            due = due[:ACCOUNTS_A_LOOK]
            try:
                told = self.client.accounted([number for _, number in due], (name for name, _ in due))
                self._accounted |= {place: job for job in told if (place := (job.name, job.id)) in missing}
            except BackendError as fault:  # the controller answers, and what it has forgotten leaves an exit code
                log.warning("what has become of %d jobs that Slurm has forgotten is not known: %s", len(due), fault)
            self._asked_for |= dict.fromkeys(due, monotonic())
        return self._accounted

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
            self._note(run, part_set(part, missing=now.isoformat()))
        return now - datetime.fromisoformat(part["missing"]) >= FORGOTTEN_FOR

    def _part_state(self, run: Run, part: dict[str, Any], job: SlurmJob | None, now: datetime) -> RunState:
        if job is not None and part.get("missing"):
            self._note(run, part_set(part, missing=None))
        if job is None:
            if part.get("id"):
                return RunState.ENDED if self._is_over(run, part, now) else RunState.STARTING
            return RunState.ENDED if run.killed and now - datetime.fromisoformat(part.get("at") or run.at) > LATEST else RunState.STARTING
        if job.ended:
            return RunState.ENDED
        return RunState.RUNNING if job.running else RunState.STARTING

    def _stuck(self, run: Run, part: Mapping[str, Any], job: SlurmJob | None, around: "Around", now: datetime) -> str:
        """Why Slurm will not start a part that it has released: it waits for a node that Slurm has drained or lost, or for what no time brings."""
        since = datetime.fromisoformat(part.get("at") or run.at)
        if job is None or job.held or job.state != "PENDING" or run.stopping or run.killed or now - since < AGREED:
            return ""
        if never_starts(job):
            return not_started(job)
        known = self._of_nodes(run, lambda: around.nodes) or {}
        for name in part["nodes"]:
            node = known.get(name)
            word = next((state for state in node.states if state.startswith(("DRAIN", "DOWN", "FAIL"))), "") if node is not None else ""
            if node is not None and word:
                return f"Slurm did not start job {job.id}: {name} is {word.lower()}{f' ({node.reason})' if node.reason else ''}."
        return ""

    def _left_behind(self, run: Run, part: Mapping[str, Any], job: SlurmJob | None, around: "Around", now: datetime, *, has_begun: bool) -> str:
        """Why a part is not waited for any more: a job outside has its node, or it waits for longer than Slurm takes to begin all of a gang.
        `has_begun`: whether another part has."""
        if job is None or job.held or run.stopping or run.killed:
            return ""
        is_shared = job.state == "PENDING" and any(name in around.outside for name in part["nodes"])
        if not has_begun and not is_shared:
            return ""
        place = (run.key, part["number"], has_begun)
        since, gpus = self._apart[place] = self._were_apart.get(place, (now, {}))
        taken = self._of_nodes(run, partial(around.taken, part, gpus)) if is_shared and now - since >= AGREED else None
        if taken is None and not (has_begun and now - since >= APART):
            return ""
        where = f"{taken[0]}, where job {taken[1]} outside gpufleet runs" if taken else f"{', '.join(part['nodes'])}: {job.reason}"
        if has_begun:
            return f"Slurm began a part of the gang and not job {job.id} on {where}. No program was started."
        return f"Slurm did not start job {job.id} on {where}."

    def _of_nodes(self, run: Run, call: Callable[[], T | None]) -> T | None:
        """What nodes say is not needed to see a run."""
        try:
            return call()
        except SlurmSilent:
            raise
        except BackendError as fault:
            log.warning("%s: %s", run.key, fault)
            return None

    def _workers(self, run: Run, part: Mapping[str, Any], job: SlurmJob | None, state: RunState, code: int | None, now: datetime) -> list[SeenWorker]:
        taken: dict[str, int] = {}
        found = []
        answers: Mapping[str, Answer] = {}
        if job is not None and state == RunState.RUNNING and part.get("probed"):
            answers = self._answers.of(run, part, now, lambda silent: self._note(run, part_set(part, deaf=silent or None)))
            if part.get("on_trial") and answers and all(answer.ready for answer in answers.values()):
                self._note(run, part_set(part, on_trial=None))
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
            worker = SeenWorker(seat, state, code, parts, began=part.get("began", 0))
            if part.get("again") and state == RunState.RUNNING:
                worker = replace(worker, state=RunState.STARTING)  # it leaves, or is about to be begun anew
            elif job is not None and part.get("probed") and state == RunState.RUNNING:
                worker = _as_answered(worker, answers, job)
            found.append(worker)
        return found

    def _release_again(self, held: Mapping[str, Sequence[int]]) -> None:
        """A controller that came back with an older state holds jobs that it had released. What an order is still to begin is held, too: that order
        releases it, if it is to begin by then. What Slurm does not release, as an administrator holds it, is tried now and then."""
        moment = monotonic()
        self._kept_held = {one: at for one, at in self._kept_held.items() if moment - at < RELEASED_EACH}
        due = {key: fresh for key, ids in held.items() if (fresh := [one for one in ids if one not in self._kept_held])}
        again = to_go_on(self.cluster, due) if due else ()
        ids = [number for key in sorted(again) for number in due[key]]
        if not ids:
            return
        try:
            self.client.release(ids)
        except SlurmSilent:
            raise
        except BackendError as fault:
            self._kept_held |= dict.fromkeys(ids, moment)
            log.warning("what Slurm holds again could not be released: %s", fault)

    def _see_to(self, run: Run, seen: SeenRun, by_id: Numbered, ours: Mapping[tuple[str, int], Sequence[SlurmJob]], now: datetime) -> list[int]:
        """What is due by itself: a gang that lost a member ends, a run asked to leave is asked more clearly. Returns its jobs that are held though
        all of them are written down."""
        self._cancel_again([part["id"] for part in run.parts if part.pop("stuck", False) and part.get("id")], named(run.key))
        if seen.state == RunState.ENDED or run.never_begun:
            return []
        there = {job.id: job for part in run.parts if (job := by_id.of(run.key, part)) is not None and not job.ended}
        alive = list(there)
        if run.killed:
            lost = [job.id for part in run.parts if not part.get("id") for job in ours.get((run.key, part["number"]), ())]
            self._cancel_again([*alive, *lost], named(run.key))
            return []
        if run.stopping:
            self._withdraw_replacing(run)
            if run.by_itself:
                self._cancel_again(alive, named(run.key))
            elif run.term_at and is_time(seen, run.stopping, run.term_at, now):
                pending = [number for number in alive if not there[number].running]
                if pending and not run.in_place:
                    pending = alive  # the others wait for these, and their programs have not begun
                self._cancel(pending, named(run.key))
                self._send(run, "TERM", [number for number in alive if number not in pending])
                self._note(run, term_sent)
            return []
        if seen.why:
            self._note(run, ends(now, seen.why if seen.node_lost else ""))
            self._cancel_again(alive, named(run.key))
            return []
        self._see_leavers_off(run, seen, by_id, now)
        self._kill_the_old(run, now)
        return [number for number in alive if there[number].held] if all(part.get("id") for part in run.parts) else []

    def _see_leavers_off(self, run: Run, seen: SeenRun, by_id: Numbered, now: datetime) -> None:
        """Workers that a run shrinks by: told to go when the run has saved its work or half of their grace is over, cancelled after all of it."""
        for part in [part for part in run.parts if part.get("leaving")]:
            job = by_id.of(run.key, part)
            if job is None or job.ended:
                if len(run.parts) > 1:
                    self._note(run, without(part))
            elif not job.running or now >= datetime.fromisoformat(part["leaving"]) + timedelta(seconds=run.grace):
                self._cancel_again([job.id], named(run.key))
            elif part["term_at"] and is_time(seen, part["leaving"], part["term_at"], now):
                self._send(run, "TERM", [job.id])
                self._note(run, part_set(part, term_at=""))

    def _end_doubles(self, runs: Sequence[Run], ours: Mapping[tuple[str, int], Sequence[SlurmJob]]) -> None:
        """A submission whose answer was lost and that came to be after all, beside the one that was made instead. It was never released."""
        kept = {(run.key, part["number"]): part.get("id") for run in runs for part in run.parts}
        resized, doubles = {run.key for run in runs if run.in_place}, []
        for place, jobs in ours.items():
            number = kept.get(place)
            if number:
                doubles += [job.id for job in jobs if job.id != number]
            elif place not in kept and place[0] in resized:  # a worker that was lost, and whose place another took
                doubles += [job.id for job in jobs]
        self._cancel_again(doubles)


class Around:
    """What else there is in Slurm in one look, and has been. Each is found at most once."""

    def __init__(self, client: SlurmClient, cluster: int, others: Sequence[SlurmJob], numbers: Collection[int]) -> None:
        """`others`: jobs outside gpufleet that run. `numbers`: of the jobs that are looked at."""
        self.client, self.cluster, self.others, self.numbers = client, cluster, others, numbers

    @cached_property
    def nodes(self) -> Mapping[str, SlurmNode]:
        return {node.name: node for node in self.client.nodes()}

    @cached_property
    def outside(self) -> Mapping[str, Sequence[SlurmJob]]:
        """Jobs outside gpufleet that run, by node."""
        found: dict[str, list[SlurmJob]] = {}
        for job in self.others:
            for name in job.nodes:
                found.setdefault(name, []).append(job)
        return found

    def taken(self, part: Mapping[str, Any], known: KnownGpus) -> tuple[str, int] | None:
        """A node on which jobs outside hold so much that the part has no room, and one of them. `known`: of earlier looks at that part."""
        beside = {job.id: job for name in part["nodes"] for job in self.outside.get(name, ())}
        told = self.client.with_known_gpus(list(beside.values()), known, most=len(beside))
        for name in part["nodes"]:
            others, node = [job for job in told if name in job.nodes], self.nodes.get(name)
            if others and node is not None and not _has_room(node, others, part):
                return name, max(others, key=lambda job: (_gpus_on(name, job), job.cpus, -job.id)).id
        return None

    def was_given_before(self, run: Run, number: int) -> bool:
        """Whether Slurm gave the number of one of a run's jobs to another before. What still runs of that may be ended any time, and the newer one
        with it, as its nodes know jobs by number."""
        return number in self._had_outside or not self._had.get(number, set()) <= {run.key}

    @cached_property
    def _had(self) -> Mapping[int, set[str]]:
        """Runs that have or had jobs of these numbers."""
        found: dict[int, set[str]] = {}
        for key, state in SlurmRun.objects.filter(cluster_id=self.cluster).values_list("attempt_key", "state").iterator():
            for part in state.get("parts", ()):
                if part.get("id") in self.numbers:
                    found.setdefault(part["id"], set()).add(key)
        return found

    @cached_property
    def _had_outside(self) -> set[int]:
        return set(OutsideJob.objects.filter(cluster_id=self.cluster, number__among=list(self.numbers)).values_list("number", flat=True))


def _gpus_on(node: str, job: SlurmJob) -> int:
    return len(job.gpus[node]) if node in job.gpus else -(-job.gpu_count // len(job.nodes))


def _has_room(node: SlurmNode, others: Sequence[SlurmJob], part: Mapping[str, Any]) -> bool:
    """Beside these jobs. Slurm tells which processors and memory one holds on all its nodes together: that is taken to be alike on each."""
    gpus = max(part["gpus"], 1 if part.get("gres") else 0)  # a share is of one
    cpus = sum(-(-job.cpus // len(job.nodes)) for job in others)
    memory = sum(-(-job.memory_mib // len(job.nodes)) for job in others)
    return (
        sum(_gpus_on(node.name, job) for job in others) + gpus <= sum(count for _, count in Gres.read(node.gres).types)
        and cpus + part["cpus"] <= node.cpus
        and (not part["memory_mib"] or memory + part["memory_mib"] <= node.memory_mib)
    )


@dataclass(slots=True)
class Gathered:
    """What the looks at the parts of a run come to."""

    goes_on: bool  # it is resized in place, and some part of it runs
    workers: list[SeenWorker] = field(default_factory=list)
    states: list[RunState] = field(default_factory=list)
    starts: list[datetime] = field(default_factory=list)
    ends: list[datetime] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    wrong: list[Wrong] = field(default_factory=list)
    waited_for: str = ""  # of a part that was cancelled before Slurm started it
    forgotten: bool = False  # when one of its parts ended nobody knows
    starts_are_slurms: bool = True

    def end(
        self,
        run: Run,
        part: Mapping[str, Any],
        job: SlurmJob | None,
        refused: Sequence[Refusal],
        given_again: Callable[[int], bool],
        now: datetime,
    ) -> tuple[int | None, bool]:
        """Its exit code, and whether it was lost before it began."""
        known = job.ended_at if job is not None else None
        self.forgotten = self.forgotten or known is None
        self.ends.append(known or left_at(run, part) or now)
        self.refusals += refused
        code, why, lost = (None, refused[0].told, True) if refused else outcome(run, part, job, given_again)
        if job is not None and job.state == "CANCELLED" and not job.nodes and job.reason not in UNTOLD:
            self.waited_for = self.waited_for or not_started(job)
        if code != 0:
            cancelled = job is not None and job.state == "CANCELLED" and not run.stopping and not run.killed
            victim = is_victim(part, code, lost=lost, cancelled=cancelled) or never_served(part, code, self.ends[-1])
            # One that Slurm has forgotten ended before those that were cancelled because of it, of which Slurm says the second.
            at = self.ends[-1] if job is not None else datetime.fromisoformat(run.at) - timedelta(seconds=1)
            if run.by_itself and job is not None and job.state == "CANCELLED":
                at += WHOLE_SECONDS  # because of another that may have ended in the same second
            self.wrong.append((at, code, why, lost, victim, ran_out_of_time(job)))
        return code, lost and (job is None or bool(refused) or not began(run, part, job))

    def start(self, run: Run, part: Mapping[str, Any], job: SlurmJob | None, look: RunState, code: int | None, *, lost: bool) -> None:
        started = job.started_at if job is not None else None
        if started is None and look == RunState.ENDED and code is not None:
            started, self.starts_are_slurms = left_since(run, part), False
        if started is not None and not lost and not (self.goes_on and look == RunState.ENDED):
            self.starts.append(started)

    def pass_over_victims(self) -> None:
        """The others go on without one that was lost, and another joins them; or they have completed it without."""
        if self.goes_on or all(one[4] for one in self.wrong):
            self.wrong = [one for one in self.wrong if not one[4]]

    def state_of(self, run: Run) -> RunState:
        if self.states and set(self.states) == {RunState.ENDED}:
            return RunState.ENDED
        if run.stopping or run.killed:
            return RunState.STOPPING
        return RunState.STARTING if RunState.STARTING in self.states else RunState.RUNNING

    def told(self, run: Run, state: RunState, checkpoints: tuple[SeenCheckpoint, ...], steps: tuple[SeenSteps, ...]) -> SeenRun:
        bad = min(self.wrong, key=lambda one: one[0], default=None)
        is_over = state == RunState.ENDED
        up = sum(not (self.goes_on and one == RunState.ENDED) for one in self.states)
        return SeenRun(
            key=run.key,
            sequence=run.sequence,
            state=state,
            workers=tuple(self.workers),
            started_at=max(self.starts) if len(self.starts) == up else None,
            ended_at=max(self.ends) if is_over else None,
            exit_code=None if not is_over else bad[1] if bad is not None else 0,
            why="" if bad is None else bad[2],
            limit_over=is_over and bad is not None and bad[5],
            waited_for=self.waited_for if is_over else "",
            is_one_start=self.starts_are_slurms and not run.in_place and not any(part.get("ahead") for part in run.parts),
            end_is_told=is_over and not self.forgotten,
            node_lost=bad is not None and (bad[3] or (run.in_place and is_over and is_for_a_loss(run, bad, self.wrong))),
            refusals=tuple(self.refusals),
            checkpoints=checkpoints,
            steps=steps,
        )


def term_sent(run: Run) -> None:
    run.term_at = ""


def ends(now: datetime, withdrawn: str) -> Callable[[Run], None]:
    """A gang that lost a member. `withdrawn`: why, where hardware is to blame."""

    def change(run: Run) -> None:
        run.stopping, run.by_itself, run.withdrawn = now.isoformat(), True, withdrawn or run.withdrawn

    return change


def without(part: Mapping[str, Any]) -> Callable[[Run], None]:
    """One that has left."""
    number, told = part["number"], part.get("id")

    def change(run: Run) -> None:
        run.parts = [one for one in run.parts if (one["number"], one.get("id")) != (number, told)]

    return change


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


def _as_answered(worker: SeenWorker, answers: Mapping[str, Answer], job: SlurmJob) -> SeenWorker:
    """A node's clock may be behind: nothing that its prober tells was before the start."""
    answer = answers.get(f"{worker.seat.role}-{worker.seat.index}") or Answer(False, None, NOT_YET)
    since = max((one for one in (answer.since, job.started_at) if one is not None), default=None)
    return replace(worker, ready=answer.ready, ready_since=since, ready_why=answer.why)


def is_victim(part: Mapping[str, Any], code: int | None, *, lost: bool, cancelled: bool) -> bool:
    """Whether a worker of a run that is resized in place ended by no doing of its own. `cancelled`: by somebody in Slurm."""
    return lost or code is None or ((cancelled or code == SIGKILLED) and part.get("lost", 0) < MOST_KILLED - 1)


def is_for_a_loss(run: Run, bad: Wrong, wrong: Sequence[Wrong]) -> bool:
    """Whether those who stayed failed only because they could not re-form without one that was lost, or had to leave."""
    at, code, _, _, is_lost, _ = bad
    if is_lost:
        return not all(one[4] for one in wrong)
    return code != SIGKILLED and re_forms(run.reformed, at)


def is_time(seen: SeenRun, asked: str, term_at: str, now: datetime) -> bool:
    """Whether a run has saved its work since it was asked to, or has had the time for it."""
    return has_saved(seen, asked) or now >= datetime.fromisoformat(term_at)
