"""A Kubernetes cluster as the back-end sees it: its pods, what is remembered of runs, and the files of jobs."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, local
from time import monotonic
from typing import TypeVar

from scheduler.backends.base import BackendError, StartOrder
from scheduler.backends.kubernetes.client import KubernetesClient, named
from scheduler.backends.kubernetes.config import endpoint_of
from scheduler.backends.kubernetes.errors import KubernetesFailed
from scheduler.backends.kubernetes.pods import sub_path
from scheduler.backends.kubernetes.runs import KEPT, Run, state_of
from scheduler.backends.kubernetes.values import CONSOLE, Pod, Settings, node_of, pod_of
from scheduler.backends.kubernetes.watching import Pods
from scheduler.backends.manifests import Looker
from scheduler.backends.old_checkpoints import Deleter
from scheduler.backends.recorded_runs import RecordedRuns
from scheduler.backends.slurm import shared
from scheduler.models import KubernetesRun

T = TypeVar("T")
PROBE_SECONDS = 1.0
AT_ONCE = 8  # calls
NODES_FOR = 20.0  # seconds that what is known of such a node is used


class Site(RecordedRuns[Run]):
    """What orders and looks have in common."""

    rows, run_type, kept, _state_of = KubernetesRun, Run, KEPT, staticmethod(state_of)

    def __init__(
        self,
        cluster: int,
        settings: Settings,
        *,
        kubeconfig: str = "",
        client: KubernetesClient | None = None,
        secrets: Callable[[str, str], str | None] = lambda _name, _team: None,  # by name and the path of the job's queue
        report_url: str = "",
        logs: Path | None = None,  # where logs are kept that somebody has asked for
    ) -> None:
        self.cluster, self.settings, self.kubeconfig = cluster, settings, kubeconfig
        self.secrets, self.report_url, self.log_folder = secrets, report_url, logs
        self._client, self._lock = client, Lock()
        self._pods: Pods | None = None
        self._looker, self._deleter = Looker(), Deleter()
        self._block = local()
        self._nodes: dict[str, tuple[float, bool]] = {}  # nodes of pods that do not go, and whether they answer

    @property
    def client(self) -> KubernetesClient:
        """Made when it is first needed: the file that says where the server is may be wrong, or not be there yet."""
        with self._lock:
            if self._client is None:
                self._client = KubernetesClient(endpoint_of(self.kubeconfig, self.settings.context))
            return self._client

    @property
    def pods(self) -> Pods:
        client = self.client
        with self._lock:
            if self._pods is None:
                self._pods = Pods(client, self._path("pods"), self._selector())
            return self._pods

    def probe(self) -> None:
        if self._top is not None:
            shared.must_answer(self._top)
        self.client.get("/version", seconds=PROBE_SECONDS)

    @contextmanager
    def together(self, keys: Sequence[str] = ()) -> Iterator[None]:
        """What was announced in the block is known until its end."""
        self._block.announced = {}
        try:
            yield
        finally:
            self._block.announced = {}

    def _answers(self, node: str) -> bool:
        """Whether a node whose pods do not go tells Kubernetes that it is there."""
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

    def _path(self, kind: str, name: str = "", part: str = "") -> str:
        return named(self.settings.namespace, kind, name, part)

    def _selector(self, more: str = "") -> str:
        return f"{CONSOLE}={self.settings.tag}{f',{more}' if more else ''}"

    def _pods_now(self, more: str) -> dict[str, Pod]:
        items, _ = self.client.every(self._path("pods"), {"labelSelector": self._selector(more)})
        return {pod.name: pod for pod in map(pod_of, items)}

    @staticmethod
    def _each(call: Callable[[T], object], over: Sequence[T]) -> None:
        """Several at a time. Raises the first fault once all have been tried."""
        if len(over) < 3:
            faults = [fault for one in over if (fault := fault_of(call, one)) is not None]
        else:
            with ThreadPoolExecutor(min(AT_ONCE, len(over))) as pool:
                faults = [fault for fault in pool.map(lambda one: fault_of(call, one), over) if fault is not None]
        if faults:
            raise faults[0]

    @property
    def _top(self) -> Path | None:
        """What is this console's in the volume for checkpoints; None: the console does not see it."""
        return shared.top_in(self.settings.folder, self.settings.tag) if self.settings.folder and self.settings.claim else None

    def _folder_of(self, job: str, attempt: int) -> str:
        """Where an attempt saves its work, as the console sees it; empty: it does not."""
        top = self._top
        return str(top / "checkpoints" / job / str(attempt)) if top is not None else ""

    def _seen_by_pods(self, order: StartOrder) -> str:
        """The checkpoint to go on from, as pods see it. One that lies elsewhere is told as it is."""
        top = self._top
        if top is None:
            return order.resume_from
        own = f"{top / 'checkpoints' / order.job}/"
        if not order.resume_from.startswith(own):
            return order.resume_from
        return f"{self.settings.mount.rstrip('/')}/{order.resume_from.removeprefix(own)}"

    def _make_folder(self, order: StartOrder) -> str:
        top = self._top
        if top is None:
            return ""
        try:
            shared.asked(top, lambda: folder_made(top, order.job, order.attempt, self.settings.uid))
        except OSError as fault:
            raise BackendError(f"The folder for checkpoints {self.settings.folder} cannot be used: {fault}") from fault
        return self._folder_of(order.job, order.attempt)


def fault_of(call: Callable[[T], object], one: T) -> BackendError | None:
    try:
        call(one)
    except BackendError as fault:
        return fault
    return None


def folder_made(top: Path, job: str, attempt: int, uid: int | None) -> None:
    """The folder of an attempt, in folders that no pod but those of its job can see (`sub_path`). It belongs to whom pods run as, where the console
    may say so."""
    parent = top / sub_path("", job).partition("/")[2]
    for folder in (*reversed(parent.parents), parent):
        if not folder.exists():
            folder.mkdir(exist_ok=True)
            folder.chmod(0o755)  # whatever the umask: the pod's user passes through
    own = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        try:
            os.mkdir(str(attempt), mode=0o750, dir_fd=own)
        except FileExistsError:
            return
        made = os.open(str(attempt), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=own)
        try:
            if uid is not None and os.getuid() == 0:
                os.fchown(made, uid, uid)
                os.fchmod(made, 0o750)
            elif uid != os.getuid():
                os.fchmod(made, 0o777)
        finally:
            os.close(made)
    finally:
        os.close(own)
