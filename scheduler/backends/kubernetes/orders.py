"""Orders for runs on Kubernetes: pods are made behind a gate and released together; what runs is asked to leave, and ended."""

import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

from django.db import transaction

from scheduler.backends.base import BackendError, BackendRefused, BackendSilent, NotFound, OldCheckpoint, Signal, StartOrder, WorkerSeat
from scheduler.backends.kubernetes.errors import KubernetesDenied, KubernetesFailed
from scheduler.backends.kubernetes.pods import Made, made_for, run_name
from scheduler.backends.kubernetes.runs import Run, run_of, state_of
from scheduler.backends.kubernetes.site import AT_ONCE, Site, fault_of
from scheduler.backends.kubernetes.values import CONSOLE, RUN, Pod
from scheduler.backends.local_accounts import KEY
from scheduler.models import KubernetesRun

log = logging.getLogger(__name__)
KEPT = 1_000  # runs that are over, whose pods stay for their logs
TIDIED_A_CALL = 500
STARTS_A_STEP, ROWS_A_CALL = 64, 100
AT_ONCE_S = 1  # the shortest grace: with none at all Kubernetes forgets a pod before its node has ended it


class Orders(Site):
    """What the scheduler tells."""

    def announce(self, orders: Sequence[StartOrder], *, now: datetime) -> None:
        """Runs of which nobody has heard are written down together, made several at a time, and released when that is written down, too.

        Whatever is not clear here is left to `start`: what was told before, and what can never be.
        """
        told = set(KubernetesRun.objects.filter(attempt_key__in=[order.key for order in orders]).values_list("attempt_key", flat=True))
        fresh: list[tuple[Run, Made]] = []
        for order in orders:
            if order.key in told or not KEY.fullmatch(order.key):
                continue
            try:
                made = self._made(order)
                fresh.append((run_of(order, self.settings.tag, now=now, checkpoints=self._make_folder(order)), made))
            except BackendSilent:
                return
            except BackendError:
                continue  # `start` meets it again, and says so of this run alone
        if len(fresh) < 2:
            return
        if not self._add_all([run for run, _ in fresh]):
            return
        for first in range(0, len(fresh), STARTS_A_STEP):
            self._make_some(fresh[first : first + STARTS_A_STEP], now)

    def _make_some(self, fresh: Sequence[tuple[Run, Made]], now: datetime) -> None:
        silent: list[BackendSilent] = []

        def make(one: tuple[Run, Made]) -> BackendError | None:
            if silent:
                return silent[0]
            try:
                for kind, body in (("secrets", one[1].secret), ("services", one[1].service)):
                    if body is not None:
                        self._make_one(kind, body)
                for pod in one[1].pods:
                    self._make_one("pods", pod)
            except BackendSilent as fault:
                silent.append(fault)
                return fault
            except BackendError as fault:
                return fault
            return None

        with ThreadPoolExecutor(AT_ONCE) as pool:
            faults = list(pool.map(make, fresh))
        self._block.announced |= {run.key: fault for (run, _), fault in zip(fresh, faults, strict=True) if fault is not None}
        made = [run for (run, _), fault in zip(fresh, faults, strict=True) if fault is None]
        to_go_on = self._are_to_go_on(made, now)
        gangs = [run for run in made if run.key in to_go_on and len(run.workers) > 1]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            released = list(pool.map(lambda run: fault_of(self._release, run), gangs))
        self._block.announced |= {run.key: None for run in made}
        self._block.announced |= {run.key: fault for run, fault in zip(gangs, released, strict=True) if fault is not None}

    def _are_to_go_on(self, runs: Sequence[Run], now: datetime) -> set[str]:
        """Those that nobody has asked to leave meanwhile: it is written down that their pods are there before they may start."""
        found = set()
        with transaction.atomic():
            rows = list(KubernetesRun.objects.select_for_update().filter(attempt_key__in=[run.key for run in runs]).order_by("pk"))
            for row in rows:
                kept = self._of_row(row)
                if not kept.is_ending:
                    kept.released = kept.released or now.isoformat()
                    row.state = state_of(kept)
                    found.add(kept.key)
            KubernetesRun.objects.bulk_update(rows, ["state"], batch_size=ROWS_A_CALL)
        return found

    def _made(self, order: StartOrder) -> Made:
        return made_for(order, self.settings, secret=self.secrets, report_url=self.report_url, resume_from=self._seen_by_pods(order))

    def start(self, order: StartOrder, *, now: datetime) -> None:
        if not KEY.fullmatch(order.key):
            raise BackendRefused(f"{order.key!r} is not a name of a run.")
        announced = getattr(self._block, "announced", {})
        if order.key in announced:
            if fault := announced[order.key]:
                raise fault
            return
        made = self._made(order)
        run = self._begun(order, now)
        if run is None:
            return
        if not run.released:
            self._make(made)
        if self._are_to_go_on([run], now):
            self._release(run)

    def _begun(self, order: StartOrder, now: datetime) -> Run | None:
        """The run as it is written down before Kubernetes hears of it; None where it is not to begin (any more)."""
        with transaction.atomic():
            run = self._read(order.key)
        if run is None:
            run = run_of(order, self.settings.tag, now=now, checkpoints=self._make_folder(order))
            self._add(run)
            return run
        return None if run.never_begun or run.is_ending or run.sequence > order.sequence else run

    def _make(self, made: Made) -> None:
        """All of it. What is there already was made when this was told before."""
        self._make_one("secrets", made.secret)
        if made.service is not None:
            self._make_one("services", made.service)
        self._each(lambda pod: self._make_one("pods", pod), made.pods)

    def _make_one(self, kind: str, body: Mapping[str, Any]) -> None:
        try:
            self.client.create(self._path(kind), body)
        except KubernetesDenied as fault:
            if fault.is_of_admission and not fault.is_of_quota:
                raise BackendRefused(str(fault)) from fault
            raise
        except KubernetesFailed as fault:
            if fault.is_taken:
                self._must_be_ours(kind, body)
            elif fault.code in (400, 422):
                raise BackendRefused(str(fault)) from fault
            else:
                raise

    def _must_be_ours(self, kind: str, body: Mapping[str, Any]) -> None:
        """What has a name that only this run would give it. Secrets are not read: their names have the console's tag, too."""
        if kind == "secrets":
            return
        name = body["metadata"]["name"]
        there = self.client.get(self._path(kind, name)).get("metadata") or {}
        labels = there.get("labels") or {}
        if any(labels.get(label) != body["metadata"]["labels"][label] for label in (CONSOLE, RUN)):
            raise BackendRefused(f"Kubernetes has a {kind[:-1]} {name} that is not of this run.")
        if there.get("deletionTimestamp"):
            raise BackendError(f"The {kind[:-1]} {name} of an earlier start is still being deleted.")

    def _release(self, run: Run) -> None:
        if len(run.workers) > 1:
            gated = [pod for pod in self._pods_now(f"{RUN}={run.key}").values() if pod.gated]
            self._each(self._open_gate, gated)

    def _open_gate(self, pod: Pod) -> None:
        try:
            self.client.patch(self._path("pods", pod.name), {"metadata": {"uid": pod.uid}, "spec": {"schedulingGates": None}})
        except KubernetesFailed as fault:
            if not fault.is_missing:
                raise

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
        raise BackendRefused("The Kubernetes back-end resizes no gang in place. It is stopped and restarted.")

    def replace(self, *, key: str, sequence: int, workers: Sequence[tuple[str, int]], now: datetime, order: StartOrder) -> None:
        raise BackendRefused("The Kubernetes back-end replaces no single worker. Restart the job.")

    def repartition(self, *, node: str, gpu: int, instances: Sequence[tuple[str, int]], sequence: int, now: datetime) -> None:
        raise BackendRefused("The Kubernetes back-end does not repartition GPUs. Change the node's MIG layout, then import the cluster again.")

    def limit(self, *, key: str, sequence: int, seconds: int | None, now: datetime) -> None:
        """The scheduler alone ends what is past its limit."""
        if not self._order(key, sequence, lambda run: None, lambda run: None):
            raise NotFound(f"No run {key}.")

    def signal(self, *, key: str, sequence: int, signal: Signal, now: datetime) -> None:
        is_last = signal == Signal.TERMINATE
        if not self._order(
            key, sequence, lambda run: self._is_to_leave(run, now) if is_last else None, lambda run: self._ask_to_leave(run) if is_last else None
        ):
            raise NotFound(f"No run {key}.")

    def _is_to_leave(self, run: Run, now: datetime) -> None:
        run.stopping = run.stopping or now.isoformat()

    def _ask_to_leave(self, run: Run) -> None:
        self._ask_pods_to_leave(self._pods_now(f"{RUN}={run.key}"))

    def _end_all(self, run: Run) -> None:
        self._kill(list(self._pods_now(f"{RUN}={run.key}").values()))

    def _end_unknown(self, key: str) -> None:
        self._kill(list(self._pods_now(f"{RUN}={key}").values()) if KEY.fullmatch(key) else [])

    def _ask_pods_to_leave(self, pods: Mapping[str, Pod]) -> None:
        """A pod that runs is given a deadline that is over: its node sends TERM, waits for its grace, and keeps what it wrote and how it ended, which
        a deletion would not. What has not begun is deleted."""
        there = [pod for pod in pods.values() if not pod.is_over and pod.deleting_since is None]
        self._each(self._end_soon, [pod for pod in there if pod.phase == "Running" and not pod.has_deadline])
        self._kill([pod for pod in there if pod.phase != "Running"])

    def _end_soon(self, pod: Pod) -> None:
        try:
            self.client.patch(self._path("pods", pod.name), {"metadata": {"uid": pod.uid}, "spec": {"activeDeadlineSeconds": 1}})
        except KubernetesFailed as fault:
            if not fault.is_missing and fault.code != 409:
                raise

    def _kill(self, pods: Sequence[Pod]) -> None:
        alive = [pod for pod in pods if not pod.is_over]
        self._each(lambda pod: self.client.delete(self._path("pods", pod.name), grace=AT_ONCE_S, uid=pod.uid), alive)

    def forget(self, *, keys: Sequence[str], now: datetime) -> None:
        """Their Secrets and Services go. Their pods stay for a while, for their logs."""
        rows = list(KubernetesRun.objects.filter(cluster_id=self.cluster, attempt_key__in=list(keys), forgotten_at__isnull=True))
        KubernetesRun.objects.filter(pk__in=[row.pk for row in rows]).update(forgotten_at=now)
        for row in rows:
            if folder := row.state.get("checkpoints"):
                self._looker.drop(Path(folder))
        self._drop([row.attempt_key for row in rows])
        names = [(kind, run_name(self.settings.tag, row.attempt_key)) for row in rows if row.state.get("workers") for kind in self._kinds_of(row)]
        try:
            self._each(lambda one: self.client.delete(self._path(*one)), names)
        except BackendError as fault:
            log.warning("Secrets of runs that are over stay in Kubernetes for now: %s", fault)

    @staticmethod
    def _kinds_of(row: KubernetesRun) -> tuple[str, ...]:
        return ("secrets", "services") if len(row.state.get("workers", ())) > 1 else ("secrets",)

    @abstractmethod
    def _drop(self, keys: list[str]) -> None:
        """Forget what a look keeps of these runs."""

    def tidy(self) -> int:
        """With the pods of these runs, their logs, and what was left of their Secrets and Services."""
        over = KubernetesRun.objects.filter(cluster_id=self.cluster, forgotten_at__isnull=False)
        spare = max(0, over.count() - KEPT)
        done = 0
        for row in over.order_by("forgotten_at", "pk")[: min(spare, TIDIED_A_CALL)]:
            workers = row.state.get("workers", ())
            names = [("pods", worker["pod"]) for worker in workers]
            names += [(kind, run_name(self.settings.tag, row.attempt_key)) for kind in self._kinds_of(row) if workers]
            try:
                self._each(lambda one: self.client.delete(self._path(*one)), names)
            except BackendError as fault:
                log.warning("what is left of %s stays in Kubernetes for now: %s", row.attempt_key, fault)
                break
            self._delete_logs(row.attempt_key)
            done += row.delete()[0]
        return done

    @abstractmethod
    def _delete_logs(self, key: str) -> None: ...

    def delete_checkpoint(self, old: OldCheckpoint) -> int:
        """Also one that ranks told as they see it."""
        if (top := self._top) is None:
            return 0
        mount = f"{self.settings.mount.rstrip('/')}/"
        if old.location.startswith(mount):
            location = f"{top / 'checkpoints' / old.job}/{old.location.removeprefix(mount)}"
            old = OldCheckpoint(old.job, old.attempt, old.step, location)
        return self._deleter.delete(top / "checkpoints", old)
