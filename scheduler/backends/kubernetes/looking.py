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
from scheduler.backends.kubernetes.outcomes import End, end_of, gone, stuck, waits_for
from scheduler.backends.kubernetes.runs import Run, seat_of
from scheduler.backends.kubernetes.values import Pod, node_of
from scheduler.backends.local import LAST_LOOK, LOOK_SECONDS
from scheduler.backends.local_accounts import KEY
from scheduler.backends.slurm import shared
from scheduler.models import KubernetesRun

log = logging.getLogger(__name__)
KILLED_AGAIN = timedelta(seconds=10)
LATE = timedelta(seconds=20)  # so long a pod may be deleted without a word of its node, before that is asked for
NODES_FOR = 20.0  # seconds that what is known of such a node is used
TIMED_EACH = timedelta(seconds=5)  # a run of which something is due by itself is looked at again


@dataclass(slots=True)
class Gathered:
    """What the looks at the workers of a run come to."""

    workers: list[SeenWorker] = field(default_factory=list)
    states: list[RunState] = field(default_factory=list)
    starts: list[datetime] = field(default_factory=list)
    ends: list[datetime] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    wrong: list[tuple[datetime, End]] = field(default_factory=list)
    untold: bool = False  # of one nobody knows when it ended


class Looking(Orders):
    """What the scheduler is told."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._again: dict[str, datetime] = {}  # runs that are looked at again then, though nothing is heard of them
        self._killed: dict[str, datetime] = {}  # runs, when they were last ended by force
        self._nodes: dict[str, tuple[float, bool]] = {}  # nodes of pods that do not go, and whether they answer
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
            elif run.is_ending or seen.state == RunState.STARTING or run.checkpoints or any(pod.deleting_since for pod in there.values()):
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
        end = self._end(run, worker, name, pod, now)
        if end is not None:
            found.states.append(RunState.ENDED)
            found.untold = found.untold or end.at is None
            found.ends.append(end.at or now)
            found.refusals += end.refused_by(worker["node"])
            if end.code != 0:
                # One of which nobody knows when it ended was there before those that are ended because of it.
                found.wrong.append((end.at or datetime.fromisoformat(run.at), end))
            if end.started is not None:
                found.starts.append(min(end.started, now))
            found.workers.append(SeenWorker(seat_of(worker), RunState.ENDED, end.code))
            return
        is_up = pod is not None and pod.phase == "Running" and pod.started_at is not None
        found.states.append(RunState.RUNNING if is_up else RunState.STARTING)
        if pod is not None and is_up and pod.started_at is not None:
            found.starts.append(min(pod.started_at, now))
        elif pod is not None and run.released and not run.is_ending:
            if said := waits_for(pod):
                self._waits_for[run.key] = f"Kubernetes did not start {name} on {worker['node']}: {said}"
            waits = stuck(pod, name, worker["node"], datetime.fromisoformat(run.released), now)
            if waits is not None:
                found.wrong.append((now, waits))
        ready = pod.ready if pod is not None and is_up and run.probed else None
        found.workers.append(
            SeenWorker(
                seat_of(worker),
                found.states[-1],
                ready=ready,
                ready_since=pod.ready_at if pod is not None and ready else None,
                ready_why="Kubernetes' readiness probe fails." if ready is False else "",
            )
        )

    def _end(self, run: Run, worker: dict[str, Any], name: str, pod: Pod | None, now: datetime) -> End | None:
        """How a worker ended, written down when it is seen first: Kubernetes may forget it."""
        if worker.get("end"):
            return End.read(worker["end"])
        end = None
        if pod is None:
            if run.released or run.killed:
                end = End(None, asked=True) if run.is_ending else gone(worker["pod"])
        elif pod.is_over:
            end = end_of(pod, name, worker["node"], is_ending=run.is_ending)
        elif pod.deleting_since is not None and now - pod.deleting_since >= LATE and not self._answers(worker["node"]):
            end = End(None, f"{worker['node']} does not answer Kubernetes; {name} was there.", lost=True, asked=run.is_ending)
        if end is not None:
            self._note(run, _with_end(worker["pod"], end))
        return end

    def _answers(self, node: str) -> bool:
        at, answers = self._nodes.get(node, (0.0, True))
        if monotonic() - at >= NODES_FOR:
            try:
                answers = node_of(self.client.get(f"/api/v1/nodes/{node}")).ready == "True"
            except KubernetesFailed as fault:
                if not fault.is_missing:
                    raise
                answers = False
            self._nodes[node] = (monotonic(), answers)
        return answers

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

    def _kill_again(self, key: str, pods: Iterable[Pod], now: datetime) -> None:
        if now - self._killed.get(key, now - KILLED_AGAIN) >= KILLED_AGAIN:
            self._killed[key] = now
            self._kill([pod for pod in pods if pod.uid])


def _goes_on(pod: Pod) -> bool:
    return not pod.is_over and pod.deleting_since is None


def _state_of(run: Run, states: Sequence[RunState]) -> RunState:
    if set(states) == {RunState.ENDED}:
        return RunState.ENDED
    if run.is_ending:
        return RunState.STOPPING
    return RunState.STARTING if RunState.STARTING in states else RunState.RUNNING


def _with_end(pod: str, end: End) -> Any:
    def change(run: Run) -> None:
        worker = run.worker(pod)
        if worker is not None:
            worker["end"] = end.document()

    return change


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
    started = max(found.starts) if len(found.starts) == len(run.workers) else None
    ended = max([*found.ends, *found.starts]) if is_over else None
    code = None if not is_over else bad[1].code if bad is not None else 0
    why, lost = ("", False) if bad is None else (bad[1].why, bad[1].lost)
    if is_over and run.withdrawn:
        code, why, lost = None, run.withdrawn, run.withdrawn_lost
    return SeenRun(
        key=run.key,
        sequence=run.sequence,
        state=state,
        workers=tuple(found.workers if is_over else map(_still_there, found.workers)),
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
