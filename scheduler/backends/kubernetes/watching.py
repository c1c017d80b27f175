"""What Kubernetes has of this console's pods, followed by a watch in a thread, so that a look each second asks for nothing."""

import logging
import threading
import weakref
from collections.abc import Mapping
from time import monotonic
from typing import Any

from scheduler.backends.base import BackendError
from scheduler.backends.kubernetes.client import KubernetesClient
from scheduler.backends.kubernetes.errors import KubernetesFailed, KubernetesSilent
from scheduler.backends.kubernetes.values import Pod, pod_of

log = logging.getLogger(__name__)
ASKED_EACH = 5.0  # seconds after which a server of which nothing was heard is asked whether it is there
ASKED_FOR = 2.0
AGAIN_AFTER = 1.0


class Pods:
    """Pods of one namespace by name, as they were last heard of. Threads may share it."""

    def __init__(self, client: KubernetesClient, path: str, selector: str) -> None:
        self.client, self.path, self.selector = client, path, selector
        self._lock = threading.Lock()
        self._pods: dict[str, Pod] = {}
        self._of_run: dict[str, set[str]] = {}
        self._left: dict[str, dict[str, Pod]] = {}
        self._changed: set[str] = set()
        self._version = ""
        self._fault: BackendError | None = None
        self._heard = 0.0
        self._thread: threading.Thread | None = None
        self._over = threading.Event()  # of the watch that counts

    def listed(self) -> dict[str, dict[str, Pod]]:
        """All of them by run and name, asked for now. The watch goes on from there."""
        items, version = self.client.every(self.path, {"labelSelector": self.selector})
        pods = {pod.name: pod for pod in map(pod_of, items)}
        with self._lock:
            self._pods, self._version, self._fault, self._heard = pods, version, None, monotonic()
            self._of_run = {}
            for pod in pods.values():
                self._of_run.setdefault(pod.key, set()).add(pod.name)
            self._changed = set()
            self._over.set()  # a watch that is ahead of this list would never tell again what it has told
            self._over = threading.Event()
            self._thread = threading.Thread(target=_watch, args=(weakref.ref(self), self._over), name="kubernetes-watch", daemon=True)
            self._thread.start()
        return self.by_run()

    def by_run(self) -> dict[str, dict[str, Pod]]:
        with self._lock:
            return {key: {name: self._pods[name] for name in names} for key, names in self._of_run.items()}

    def of(self, key: str) -> dict[str, Pod]:
        with self._lock:
            return {name: self._pods[name] for name in self._of_run.get(key, ())}

    def changed(self) -> set[str]:
        """Runs of which something was heard since this was last asked. Raises what went wrong with the watch."""
        if self._thread is None or not self._thread.is_alive():
            raise KubernetesSilent("The watch of Kubernetes is not there.")
        with self._lock:
            if self._fault is not None:
                raise self._fault
            found, self._changed = self._changed, set()
            silent_for = monotonic() - self._heard
        if silent_for >= ASKED_EACH:
            try:
                self.client.get("/version", seconds=ASKED_FOR)
            except BackendError:
                with self._lock:
                    self._changed |= found
                raise
            self._heard = monotonic()
        return found

    @property
    def is_followed(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def take(self, kind: str, told: Mapping[str, Any], over: threading.Event) -> None:
        """An event of the watch that ends with `over`."""
        pod = pod_of(told)
        with self._lock:
            if over is not self._over:
                return
            self._version, self._heard, self._fault = pod.version or self._version, monotonic(), None
            if kind == "BOOKMARK" or not pod.name:
                return
            self._changed.add(pod.key)
            if kind == "DELETED":
                self._pods.pop(pod.name, None)
                self._of_run.get(pod.key, set()).discard(pod.name)
                if pod.is_over or pod.exit_code is not None:
                    # Its end, which is told no other time: kept until the run is looked at.
                    self._left.setdefault(pod.key, {})[pod.name] = pod
            else:
                self._pods[pod.name] = pod
                self._of_run.setdefault(pod.key, set()).add(pod.name)

    def left(self, key: str) -> dict[str, Pod]:
        """Pods of a run that were deleted after they had ended, as they were last."""
        with self._lock:
            return dict(self._left.get(key, {}))

    def drop(self, keys: list[str]) -> None:
        with self._lock:
            for key in keys:
                self._left.pop(key, None)

    def broke(self, fault: BackendError) -> None:
        """The watch ended. It is begun anew by a list, from this thread where it can: whoever looks meanwhile is told."""
        if not (isinstance(fault, KubernetesFailed) and fault.is_expired):
            log.warning("the watch of %s broke: %s", self.path, fault)
        before = set(self.by_run())
        try:
            self.listed()
        except BackendError as told:
            with self._lock:
                self._fault = told
        else:
            with self._lock:
                self._changed |= before | set(self._of_run)

    def stop(self) -> None:
        self._over.set()


def _watch(pods: "weakref.ref[Pods]", over: threading.Event) -> None:
    """Until nobody has the pods any more."""
    while not over.is_set():
        there = pods()
        if there is None:
            return
        client, path, selector, version = there.client, there.path, there.selector, there._version
        del there
        fault: BackendError | None = None
        try:
            for kind, told in client.watch(path, {"labelSelector": selector}, version):
                there = pods()
                if there is None or over.is_set():
                    return
                there.take(kind, told, over)
                del there
        except BackendError as broken:
            fault = broken
        except Exception as broken:
            log.exception("the watch of %s broke", path)
            fault = BackendError(f"The watch of Kubernetes broke: {broken!r}")
        if fault is None:
            continue  # it ends each few minutes by itself
        there = pods()
        if there is None:
            return
        if not over.wait(AGAIN_AFTER):
            there.broke(fault)
        del there
