"""Looks at runs on Kubernetes: what became of each, and what is due by itself."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Any

from django.db import Error

from scheduler.backends.base import BackendError, BackendSilent, Refusal, RunState, SeenCheckpoint, SeenRun, SeenSteps, SeenWorker
from scheduler.backends.kubernetes.errors import KubernetesFailed
from scheduler.backends.kubernetes.orders import Orders
from scheduler.backends.kubernetes.outcomes import End, end_of, gone, silent, stuck, waits_for
from scheduler.backends.kubernetes.runs import Run, seat_of, with_end, with_facts
from scheduler.backends.kubernetes.values import Pod, pod_of
from scheduler.backends.local import LAST_LOOK, LOOK_SECONDS
from scheduler.backends.local_accounts import KEY
from scheduler.backends.local_runs import MOST_KILLED, REFORMS, re_forms
from scheduler.backends.slurm import shared
from scheduler.models import KubernetesRun

log = logging.getLogger(__name__)
KILLED_AGAIN = timedelta(seconds=10)
LATE = timedelta(seconds=20)  # so long a pod may be deleted without a word of its node, before that is asked for
TIMED_EACH = timedelta(seconds=5)  # a run of which something is due by itself is looked at again


@dataclass(slots=True)
class Gathered:
    """What the looks at the workers of a run come to."""

    workers: list[SeenWorker] = field(default_factory=list)
    states: list[RunState] = field(default_factory=list)
    starts: list[datetime] = field(default_factory=list)
    ends: list[datetime] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    begins: list[datetime] = field(default_factory=list)  # of those that have ended
    wrong: list[tuple[datetime, End]] = field(default_factory=list)
    lost: list[tuple[datetime, End]] = field(default_factory=list)  # whom the others go on without
    untold: bool = False  # of one nobody knows when it ended

    def ends_with(self, end: End, now: datetime) -> None:
        self.untold = self.untold or end.at is None
        self.ends.append(end.at or now)


class Looking(Orders):
    """What the scheduler is told."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._again: dict[str, datetime] = {}  # runs that are looked at again then, though nothing is heard of them
        self._killed: dict[str, datetime] = {}  # runs, when they were last ended by force
        self._waits_left = 0.0
        self._waits_for: dict[str, str] = {}  # runs that have not begun, and what kept them from that when they were last looked at

    def observe(self, *, now: datetime) -> tuple[SeenRun, ...]:
        if self._top is not None:
            shared.must_answer(self._top)
        pods = self.pods.listed()
        rows = list(KubernetesRun.objects.filter(cluster_id=self.cluster, forgotten_at__isnull=True).order_by("attempt_key"))
        self._again = {}
        found = self._look(rows, pods, now)
        known = {row.attempt_key for row in rows}
        unknown = sorted(
            key for key, there in pods.items() if key not in known and any(_goes_on(pod) for pod in there.values()) and KEY.fullmatch(key)
        )
        over = set(KubernetesRun.objects.filter(attempt_key__in=unknown, forgotten_at__isnull=False).values_list("attempt_key", flat=True))
        for key in over:
            self._kill_again(key, pods[key].values(), now)
        found += [SeenRun(key, 0, RunState.RUNNING, ()) for key in unknown if key not in over]
        return tuple(sorted(found, key=lambda run: run.key))

    def news(self, *, now: datetime) -> tuple[SeenRun, ...]:
        if not KubernetesRun.objects.filter(cluster_id=self.cluster, forgotten_at__isnull=True).exists():
            return ()
        if not self.pods.is_followed:
            return self.observe(now=now)
        keys = self.pods.changed() | {key for key, at in self._again.items() if at <= now}
        if not keys:
            return ()
        rows = KubernetesRun.objects.filter(cluster_id=self.cluster, forgotten_at__isnull=True, attempt_key__in=sorted(keys))
        try:
            found = self._look(list(rows.order_by("attempt_key")), {key: self.pods.of(key) for key in keys}, now)
        except BaseException:
            self._again |= dict.fromkeys(keys, now)
            raise
        return tuple(found)

    def next_event_at(self, *, now: datetime) -> datetime | None:
        return now + timedelta(seconds=1) if KubernetesRun.objects.filter(cluster_id=self.cluster, forgotten_at__isnull=True).exists() else None

    def _drop(self, keys: list[str]) -> None:
        if self._pods is not None:
            self._pods.drop(keys)
        for key in keys:
            for known in (self._again, self._killed, self._waits_for):
                known.pop(key, None)

    def _look(self, rows: Sequence[KubernetesRun], pods: Mapping[str, Mapping[str, Pod]], now: datetime) -> list[SeenRun]:
        runs = [self._of_row(row) for row in rows]
        began = monotonic()
        self._looker.glance([Path(run.checkpoints) for run in runs if run.checkpoints], wait=LOOK_SECONDS / 2)
        self._waits_left = LOOK_SECONDS - (monotonic() - began)
        found = []
        for run in runs:
            there = {**self.pods.left(run.key), **pods.get(run.key, {})}
            self._again.pop(run.key, None)
            try:
                seen = self._seen(run, there, now)
                if seen is None:
                    self._again[run.key] = now
                    continue
                self._see_to(run, seen, there, now)
            except BackendSilent:
                raise
            except BackendError as fault:
                log.warning("%s: %s", run.key, fault)
                self._again[run.key] = now + TIMED_EACH
                continue
            except Error:
                raise
            except Exception:  # what is wrong with one run hides no other
                log.exception("%s could not be looked at", run.key)
                continue
            if seen.state == RunState.ENDED:
                self._again[run.key] = now  # told until it is forgotten
            elif run.is_changing or seen.state == RunState.STARTING or run.checkpoints or any(pod.deleting_since for pod in there.values()):
                self._again[run.key] = now + (timedelta(seconds=1) if run.checkpoints else TIMED_EACH)
            found.append(seen)
        return found

    def _seen(self, run: Run, pods: Mapping[str, Pod], now: datetime) -> SeenRun | None:
        """None: it has ended, and its last checkpoints are still being looked at."""
        if run.never_begun:
            at = datetime.fromisoformat(run.at)
            return SeenRun(run.key, run.sequence, RunState.ENDED, (), ended_at=at, exit_code=143, why="Cancelled before it was started.")
        found = Gathered()
        for worker in run.workers:
            self._gather(found, run, worker, pods.get(worker["pod"]), now)
        state = _state_of(run, found.states)
        if state == RunState.ENDED and (run.is_ending or len(found.lost) == len(found.workers)):
            found.wrong += found.lost  # else the others have completed it without them
            for _, end in found.lost:
                found.ends_with(end, now)
        checkpoints, fresh = self._checkpoints(run, last=state == RunState.ENDED)
        ends = [min(at, now) for at in found.ends]
        if state == RunState.ENDED and not fresh and not found.untold and ends and now - max(ends) < LAST_LOOK:
            return None
        steps = self._looker.steps(Path(run.checkpoints)) if run.checkpoints and state != RunState.ENDED else ()
        told = _told(run, state, found, checkpoints, steps, now)
        is_without = told.state == RunState.ENDED and told.started_at is None
        return replace(told, waited_for=self._waits_for.get(run.key, "")) if is_without else told

    def _gather(self, found: Gathered, run: Run, worker: dict[str, Any], pod: Pod | None, now: datetime) -> None:
        name = f"{worker['role'].capitalize()} {worker['index']}"
        if pod is None and run.released and not (run.is_ending or any(worker.get(known) for known in ("end", "joining", "leaving", "again"))):
            pod = self._pod_now(worker["pod"])  # the watch may not have told of it yet
        if pod is None and run.is_ending and worker.get("joining"):
            return  # it never came to be there, and will not
        end = self._end(run, worker, name, pod, now)
        began = int(worker.get("began") or 0)
        if end is not None and worker.get("again") and not worker.get("leaving") and not run.is_ending:
            found.states.append(RunState.STARTING)  # another is about to begin in its place: nobody misses it
            found.workers.append(SeenWorker(seat_of(worker), RunState.STARTING, began=began))
            return
        if end is not None:
            is_lost = run.in_place and end.code != 0 and not worker.get("leaving") and _is_lost(worker, end)
            found.begins += [] if end.started is None else [min(end.started, now)]
            if not is_lost:
                found.ends_with(end, now)
            if worker.get("leaving"):
                return  # nor one that has left
            found.states.append(RunState.ENDED)
            found.refusals += end.refused_by(worker["node"])
            if end.code != 0:
                # One of which nobody knows when it ended was there before those that are ended because of it.
                (found.lost if is_lost else found.wrong).append((end.at or datetime.fromisoformat(run.at), end))
            found.workers.append(SeenWorker(seat_of(worker), RunState.ENDED, end.code, began=began))
            return
        is_up = pod is not None and pod.phase == "Running" and pod.started_at is not None
        found.states.append(RunState.RUNNING if is_up else RunState.STARTING)
        if pod is not None and is_up and pod.started_at is not None:
            found.starts.append(min(pod.started_at, now))
        elif pod is not None and run.released and not run.is_ending:
            if said := waits_for(pod):
                self._waits_for[run.key] = f"Kubernetes did not start {name} on {worker['node']}: {said}"
            waits = stuck(pod, name, worker["node"], datetime.fromisoformat(worker.get("at") or run.released), now)
            if waits is not None and worker.get("at"):
                self._kill([pod])
                self._note(run, with_end(worker["pod"], replace(waits, lost=True, at=now)))  # the others go on without one that can't join
            elif waits is not None:
                found.wrong.append((now, waits))
        ready = pod.ready if pod is not None and is_up and run.probed else None
        if ready and worker.get("on_trial") and not worker.get("was_ready"):
            self._note(run, with_facts(worker["pod"], was_ready=True))
        found.workers.append(
            SeenWorker(
                seat_of(worker),
                found.states[-1],
                ready=ready,
                ready_since=pod.ready_at if pod is not None and ready else None,
                ready_why="Kubernetes' readiness probe fails." if ready is False else "",
                began=began,
            )
        )

    def _end(self, run: Run, worker: dict[str, Any], name: str, pod: Pod | None, now: datetime) -> End | None:
        """How a worker ended, written down when it is seen first: Kubernetes may forget it."""
        if worker.get("end"):
            return End.read(worker["end"])
        end, asked = None, run.is_ending or bool(worker.get("leaving") or worker.get("again"))
        if pod is None:
            if (run.released or run.killed) and not worker.get("joining"):
                end = End(None, asked=True) if asked else gone(worker["pod"])
        elif pod.is_over:
            end = end_of(pod, name, worker["node"], is_ending=asked)
        elif pod.deleting_since is not None and now - pod.deleting_since >= LATE and not self._answers(worker["node"]):
            end = silent(worker, asked=asked)
        if end is not None:
            self._note(run, with_end(worker["pod"], end))
        return end

    def _checkpoints(self, run: Run, *, last: bool) -> tuple[tuple[SeenCheckpoint, ...], bool]:
        """The newest checkpoints, and whether they are as they are now. All runs of a look wait for file systems no longer than one may."""
        if not run.checkpoints:
            return (), True
        began = monotonic()
        found, fresh = self._looker.seen(Path(run.checkpoints), wait=max(0.0, self._waits_left), last=last)
        self._waits_left -= monotonic() - began
        return tuple(SeenCheckpoint(one.step, one.location, one.shards_expected, one.shards, one.at) for one in found), fresh

    def _see_to(self, run: Run, seen: SeenRun, pods: Mapping[str, Pod], now: datetime) -> None:
        """What is due by itself: a gang that lost a member ends, and who stays past the grace is killed."""
        if seen.state == RunState.ENDED or run.never_begun:
            return
        if run.killed:
            self._kill_again(run.key, pods.values(), now)
            return
        if run.stopping:
            self._ask_pods_to_leave(pods)
            if run.by_itself and now >= datetime.fromisoformat(run.stopping) + timedelta(seconds=run.grace):
                self._kill_again(run.key, pods.values(), now)
            return
        if seen.why:
            self._note(run, _ends(now, seen))
            self._ask_pods_to_leave(pods)
            return
        self._see_leavers_off(run, pods, now)
        self._end_strays(run, pods)

    def _pod_now(self, name: str) -> Pod | None:
        try:
            return pod_of(self.client.get(self._path("pods", name)))
        except KubernetesFailed as fault:
            if not fault.is_missing:
                raise
            return None

    def _end_strays(self, run: Run, pods: Mapping[str, Pod]) -> None:
        """Pods of workers that have been given up. One that has just joined is written down before its pod is there, so that is asked for again."""
        if not run.in_place or not _strays(run, pods):
            return
        row = KubernetesRun.objects.filter(attempt_key=run.key).first()
        if row is not None:
            self._kill(_strays(self._of_row(row), pods))

    def _see_leavers_off(self, run: Run, pods: Mapping[str, Pod], now: datetime) -> None:
        """Workers that a run shrinks by, and those in whose place others are to begin: asked again, and killed after their grace."""
        for worker in [one for one in run.workers if one.get("leaving") or one.get("again")]:
            if worker.get("end"):
                if worker.get("leaving") and len(run.workers) > 1:
                    self._note(run, _without(worker["pod"]))
                continue
            pod = pods.get(worker["pod"])
            if pod is None:
                continue
            if now >= datetime.fromisoformat(worker.get("leaving") or worker["again_at"]) + timedelta(seconds=run.grace):
                self._kill([pod])
            else:
                self._ask_pods_to_leave({pod.name: pod})

    def _kill_again(self, key: str, pods: Iterable[Pod], now: datetime) -> None:
        if now - self._killed.get(key, now - KILLED_AGAIN) >= KILLED_AGAIN:
            self._killed[key] = now
            self._kill([pod for pod in pods if pod.uid])


def _goes_on(pod: Pod) -> bool:
    return not pod.is_over and pod.deleting_since is None


def _strays(run: Run, pods: Mapping[str, Pod]) -> list[Pod]:
    """Pods that are to belong to no worker any more."""
    names = {worker["pod"] for worker in run.workers if not worker.get("end")}
    return [pod for pod in pods.values() if _goes_on(pod) and pod.name not in names]


def _state_of(run: Run, states: Sequence[RunState]) -> RunState:
    if set(states) <= {RunState.ENDED}:
        return RunState.ENDED
    if run.is_ending:
        return RunState.STOPPING
    return RunState.STARTING if RunState.STARTING in states else RunState.RUNNING


def _without(pod: str) -> Any:
    def change(run: Run) -> None:
        worker = run.worker(pod)
        if worker is not None:
            run.without(worker)

    return change


def _is_lost(worker: Mapping[str, Any], end: End) -> bool:
    """Whether the others of a run that is resized in place go on without a worker, and another takes its place."""
    if end.lost or worker.get("given_up"):
        return True
    is_new = bool(worker.get("on_trial")) and not worker.get("was_ready")
    served_not = is_new and (end.started is None or end.at is None or end.at - end.started <= REFORMS)
    return (end.killed or served_not) and int(worker.get("lost", 0)) < MOST_KILLED - 1


def _is_for_a_loss(run: Run, bad: tuple[datetime, End], *, is_over: bool) -> bool:
    """Whether those who stayed failed only because they could not re-form without one that was lost, or had to leave."""
    return run.in_place and is_over and not bad[1].killed and re_forms(run.reformed, bad[0])


def _ends(now: datetime, seen: SeenRun) -> Any:
    """A gang that lost a member. Where none has ended that says why, that is kept with the run."""

    def change(run: Run) -> None:
        run.stopping, run.by_itself = now.isoformat(), True
        if all(not worker.get("end") or worker["end"]["code"] == 0 for worker in run.workers):
            run.withdrawn, run.withdrawn_lost = seen.why, seen.node_lost

    return change


def _still_there(worker: SeenWorker) -> SeenWorker:
    """No gang goes on without one that has failed or was lost: until all have ended it is not told as missing, or the gang would be repaired."""
    return replace(worker, state=RunState.STOPPING) if worker.state == RunState.ENDED and worker.exit_code != 0 else worker


def _told(
    run: Run, state: RunState, found: Gathered, checkpoints: tuple[SeenCheckpoint, ...], steps: tuple[SeenSteps, ...], now: datetime
) -> SeenRun:
    bad = min(found.wrong, key=lambda one: (one[1].asked, one[0]), default=None)  # Kubernetes tells whole seconds
    is_over = state == RunState.ENDED
    if run.in_place and not is_over:  # those who are there count
        starts, counted = found.starts, len(found.states) - found.states.count(RunState.ENDED)
    else:
        starts, counted = found.starts + found.begins, sum(not worker.get("joining") for worker in run.workers)
    started = max(starts) if starts and len(starts) == counted else None
    ended = max([*found.ends, *starts]) if is_over else None
    code = None if not is_over else bad[1].code if bad is not None else 0
    why, lost = ("", False) if bad is None else (bad[1].why, bad[1].lost or _is_for_a_loss(run, bad, is_over=is_over))
    if is_over and run.withdrawn:
        code, why, lost = None, run.withdrawn, run.withdrawn_lost
    return SeenRun(
        key=run.key,
        sequence=run.sequence,
        state=state,
        workers=tuple(found.workers if is_over or run.in_place else map(_still_there, found.workers)),
        started_at=started,
        ended_at=min(ended, now) if ended is not None else None,
        exit_code=code,
        why=why,
        node_lost=lost,
        end_is_told=is_over and not found.untold,
        refusals=tuple(found.refusals),
        checkpoints=checkpoints,
        steps=steps,
    )
