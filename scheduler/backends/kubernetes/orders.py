"""Orders for runs on Kubernetes: pods are made behind a gate and released together; what runs is asked to leave, and ended."""

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

from django.db import transaction

from scheduler.backends.base import BackendError, BackendRefused, BackendSilent, NotFound, OldCheckpoint, Signal, StartOrder, WorkerSeat
from scheduler.backends.kubernetes.errors import KubernetesDenied, KubernetesFailed
from scheduler.backends.kubernetes.outcomes import End, silent
from scheduler.backends.kubernetes.pods import Made, made_for, pod_name, run_name, secret_name
from scheduler.backends.kubernetes.runs import Run, run_of, state_of, with_end, worker_of
from scheduler.backends.kubernetes.site import AT_ONCE, Site, fault_of
from scheduler.backends.kubernetes.values import CONSOLE, RUN, Pod
from scheduler.backends.local_accounts import KEY
from scheduler.models import KubernetesRun

log = logging.getLogger(__name__)
KEPT = 1_000  # runs that are over, whose pods stay for their logs
KEPT_EARLIER = 20  # pods of workers that left a run which goes on
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

    def _made(self, order: StartOrder, joining: Mapping[tuple[str, int], str] | None = None) -> Made:
        seen = self._seen_by_pods(order)
        return made_for(order, self.settings, secret=self.secrets, report_url=self.report_url, resume_from=seen, joining=joining)

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
        """What is to be is written down before Kubernetes hears of it. Those who are to go are asked to leave, and `_see_to` sees them off."""
        in_the_way: list[dict[str, Any]] = []
        with transaction.atomic():
            run = self._going_on(key, sequence)
            if run is None:
                return
            if run.sequence < sequence:
                self._ask_some_to_leave(run, set(leave), now)
                in_the_way = self._join(run, add, order, sequence, now) if order is not None else []
                run.sequence = run.sequence if in_the_way else sequence
                self._keep(run)
        leaving = {worker["pod"] for worker in run.workers if worker.get("leaving")}
        lost = {worker["pod"] for worker in in_the_way if not worker.get("leaving")}
        if leaving or lost:
            there = self._pods_now(f"{RUN}={key}")
            self._ask_pods_to_leave({name: pod for name, pod in there.items() if name in leaving})
            self._kill([pod for name, pod in there.items() if name in lost])
        for worker in in_the_way:
            if not self._answers(worker["node"]):  # the loop has given it up
                self._note(run, with_end(worker["pod"], silent(worker, asked=bool(worker.get("leaving")))))
        if in_the_way:
            raise BackendError(f"{in_the_way[0]['role'].capitalize()} {in_the_way[0]['index']} of {key} has not ended yet.")
        if order is not None:
            self._begin_some(run, order, now)

    def _going_on(self, key: str, sequence: int) -> Run | None:
        """A run whose workers may come and go; None where it is about to end, or has carried out a newer order. In the caller's transaction."""
        run = self._read(key)
        if run is None:
            raise NotFound(f"No run {key}.")
        if run.never_begun or run.is_ending or run.sequence > sequence:
            return None
        if not run.in_place:
            raise BackendRefused("The job does not state that it can be resized in place (launch.in_place). It is stopped and restarted.")
        return run

    @staticmethod
    def _ask_some_to_leave(run: Run, leave: set[tuple[str, int]], now: datetime) -> None:
        for worker in run.workers:
            if (worker["role"], worker["index"]) in leave and not worker.get("leaving"):
                worker["leaving"] = run.reformed = now.isoformat()

    def _join(self, run: Run, add: Sequence[WorkerSeat], order: StartOrder, sequence: int, now: datetime) -> list[dict[str, Any]]:
        """Note further workers, some perhaps in the place of one that has ended. Returns those that have not: nobody joins while there are such."""
        there = [(seat, run.named(seat.role, seat.index)) for seat in add]
        fresh = [(seat, one) for seat, one in there if one is None or one.get("leaving") or one.get("end") or one["node"] != seat.node]
        if in_the_way := [before for _, before in fresh if before is not None and not before.get("end")]:
            return in_the_way
        held = {(seat.role, seat.index) for seat in order.workers}
        for gone in [one for one in run.workers if one.get("end") and (one["role"], one["index"]) not in held]:
            run.without(gone)  # nobody hears any more of those
        for seat, before in fresh:
            worker = worker_of(seat, pod_name(self.settings.tag, run.key, (seat.role, seat.index), sequence))
            worker["joining"] = True
            if before is not None:
                stayed = not before.get("leaving")
                worker["lost"] = before.get("lost", 0) + (not before["end"]["lost"]) if stayed else 0
                worker |= {"on_trial": True} if stayed and before.get("on_trial") else {}
                run.reformed = now.isoformat()
                run.without(before)
            run.workers.append(worker)
        run.workers.sort(key=lambda worker: (worker["role"], worker["index"]))
        return []

    def _begin_some(self, run: Run, order: StartOrder, now: datetime) -> None:
        """Make the pods of those who join, with the secrets of now. That they were made is written down then: until that, nobody misses them. Who is
        refused is lost. Of those who were there before, the newest pods stay, for their logs."""
        joining = {(worker["role"], worker["index"]): worker["pod"] for worker in run.workers if worker.get("joining")}
        refused: BackendError | None = None
        if joining:
            self._change(run.key, lambda kept: kept.joins_by(order.sequence, joining.values()))
            refused = fault_of(lambda named: self._make(self._made(order, named)), joining)
            if refused is not None and not isinstance(refused, BackendRefused):
                raise refused
            end = End(None, str(refused), lost=True, at=now) if refused is not None else None
            self._change(run.key, lambda kept: kept.has_joined(joining.values(), now, end))
        with transaction.atomic():
            fresh = self._read(run.key)
        if fresh is not None:
            self._drop_earlier(fresh)
        if refused is not None:
            raise refused

    def _drop_earlier(self, run: Run) -> None:
        pods, numbers = [one["pod"] for one in run.earlier[:-KEPT_EARLIER]], [number for number in run.joined if not run.uses(number)]
        self._each(lambda pod: self.client.delete(self._path("pods", pod)), pods)
        self._each(lambda number: self.client.delete(self._path("secrets", secret_name(self.settings.tag, run.key, number))), numbers)
        if pods or numbers:
            self._change(run.key, lambda kept: kept.forget_earlier(pods, numbers))

    def _change(self, key: str, change: Callable[[Run], None]) -> None:
        """Write down what has become of a run, whatever order it has carried out."""
        with transaction.atomic():
            kept = self._read(key)
            if kept is not None:
                change(kept)
                self._keep(kept)

    def replace(self, *, key: str, sequence: int, workers: Sequence[tuple[str, int]], now: datetime, order: StartOrder) -> None:
        """Each gets a pod of its own in its place, once the one before it has ended."""
        with transaction.atomic():
            run = self._going_on(key, sequence)
            if run is None:
                return
            mine = [worker for worker in run.workers if (worker["role"], worker["index"]) in set(workers) and not worker.get("leaving")]
            refused = fault_of(self._made, order)
            for worker in mine:
                if refused is not None and worker.pop("again", None) is not None:
                    worker["given_up"] = True  # it was asked to leave: it is lost, as nobody begins in its place
                elif refused is None and sequence not in (worker.get("again"), worker.get("began")):
                    worker.update(again=sequence, again_at=now.isoformat())
            run.sequence = run.sequence if refused is None else sequence
            self._keep(run)
        if refused is not None:
            raise refused
        pods = self._pods_now(f"{RUN}={key}")
        waiting = {worker["pod"] for worker in mine if worker.get("again") == sequence}
        self._ask_pods_to_leave({name: pod for name, pod in pods.items() if name in waiting})
        silent_nodes = {one["pod"] for one in mine if one["pod"] in waiting and one["pod"] in pods and not self._answers(one["node"])}
        self._kill([pods[name] for name in silent_nodes])
        over = {name for name in waiting if name not in pods or pods[name].is_over} | silent_nodes
        with transaction.atomic():
            run = self._going_on(key, sequence)
            if run is None:
                return
            held = {(seat.role, seat.index): seat.node for seat in order.workers}
            for worker in [one for one in run.workers if one["pod"] in over]:
                if held.get((worker["role"], worker["index"])) == worker["node"]:
                    self._begins_anew(run, worker, sequence)
                else:
                    run.without(worker)  # it has another place by now, or none: the order behind this one tells of it
            left = [worker for worker in run.workers if worker.get("again") == sequence]
            run.sequence = run.sequence if left else sequence
            self._keep(run)
        self._begin_some(run, order, now)
        if left:
            raise BackendError(f"{left[0]['role'].capitalize()} {left[0]['index']} of {key} has not ended yet.")

    def _begins_anew(self, run: Run, worker: dict[str, Any], sequence: int) -> None:
        run.leaves_pod(worker)
        for known in ("again", "again_at", "end", "was_ready", "at"):
            worker.pop(known, None)
        name = pod_name(self.settings.tag, run.key, (worker["role"], worker["index"]), sequence)
        worker.update(pod=name, began=sequence, on_trial=True, joining=True)

    def repartition(self, *, node: str, gpu: int, instances: Sequence[tuple[str, int]], sequence: int, now: datetime) -> None:
        raise BackendRefused("The Kubernetes back-end does not repartition GPUs. Change the node's MIG layout, then import the cluster again.")

    def limit(self, *, key: str, sequence: int, seconds: int | None, now: datetime) -> None:
        """The scheduler alone ends what is past its limit."""
        if not self._order(key, sequence, lambda run: None, lambda run: None):
            raise NotFound(f"No run {key}.")

    def signal(self, *, key: str, sequence: int, signal: Signal, now: datetime) -> None:
        """Nobody can be told to save and stay: that is written down as carried out, as nothing else would be for the run."""
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
        names = [name for row in rows for name in self._others_of(row)]
        try:
            self._each(lambda one: self.client.delete(self._path(*one)), names)
        except BackendError as fault:
            log.warning("Secrets of runs that are over stay in Kubernetes for now: %s", fault)

    def _others_of(self, row: KubernetesRun) -> list[tuple[str, str]]:
        """What there is of a run beside its pods."""
        workers, name = row.state.get("workers", ()), run_name(self.settings.tag, row.attempt_key)
        if not workers:
            return []
        secrets = [("secrets", secret_name(self.settings.tag, row.attempt_key, number)) for number in (0, *row.state.get("joined", ()))]
        return [*secrets, ("services", name)] if len(workers) > 1 or row.state.get("in_place") else secrets

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
            names = [("pods", one["pod"]) for one in (*workers, *row.state.get("earlier", ()))]
            names += self._others_of(row)
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
