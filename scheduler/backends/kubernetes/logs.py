"""How people get at a run on Kubernetes: its logs, and a shell.

Kubernetes tells a log from its beginning or from a second on, and of what a node has rotated away only the newest file. So what is asked for is
copied: each call fetches what is new since the last line that is here, and offsets count in the copy.
"""

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scheduler.backends.base import BackendError, LogPart, NotFound, Reach, whole_characters
from scheduler.backends.kubernetes.errors import KubernetesFailed
from scheduler.backends.kubernetes.looking import Looking
from scheduler.backends.kubernetes.runs import Run
from scheduler.backends.kubernetes.values import CONTAINER
from scheduler.backends.local_accounts import KEY
from scheduler.backends.local_runs import ROLE
from scheduler.backends.supervising.logs import Redactor
from scheduler.models import KubernetesRun

FETCHED = 16 * 1024**2  # bytes at most by one call
LINE = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)) ?")


class Logs(Looking):
    """What people ask for."""

    def reach(self, *, key: str) -> Reach | None:
        row = KubernetesRun.objects.filter(cluster_id=self.cluster, attempt_key=key, forgotten_at__isnull=True).first()
        run = None if row is None else self._of_row(row)
        if run is None or run.never_begun:
            return None
        first = next((one for one in run.workers if not one.get("end") and not one.get("leaving")), run.workers[0])
        into = f"--namespace={self.settings.namespace} {first['pod']}"
        return Reach(first["node"], f"kubectl exec -it {into} -- /bin/sh", forward=f"kubectl port-forward {into}")

    def logs(self, *, key: str, role: str, index: int, offset: int, limit: int) -> LogPart:
        row = KubernetesRun.objects.filter(cluster_id=self.cluster, attempt_key=key).first() if KEY.fullmatch(key) else None
        run = None if row is None else self._of_row(row)
        worker = run.named(role, index) if run is not None else None
        pods = run.pods_of(role, index) if run is not None else []
        if row is None or not pods or not ROLE.fullmatch(role) or self.log_folder is None:
            raise NotFound(f"No log of {role} {index} of {key}.")
        assert run is not None
        is_over = row.forgotten_at is not None or worker is None or bool(worker.get("end"))
        with self._copy(key, f"{role}-{index}") as (descriptor, last):
            for pod in _from_the_last(pods, last):
                fault = self._fetch(run, pod, descriptor, last)
            size = os.fstat(descriptor).st_size
            begin = max(0, size + offset) if offset < 0 else min(offset, size)
            data = os.pread(descriptor, limit, begin)
        if fault is not None and not data:
            raise fault
        return LogPart(begin, whole_characters(data) if len(data) >= limit else data, is_over and len(data) < limit)

    @contextmanager
    def _copy(self, key: str, name: str) -> Iterator[tuple[int, Path]]:
        """The copy of a log, which nobody else changes meanwhile, and the file that holds the time of its last line, and whose it is."""
        assert self.log_folder is not None
        folder = self.log_folder / key
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / f"{name}.log", os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor, folder / f"{name}.last"
        finally:
            os.close(descriptor)

    def _fetch(self, run: Run, pod: str, descriptor: int, last: Path) -> BackendError | None:
        """Append what is new, without the secrets of the job. Returns what went wrong: what was fetched before is still there."""
        since = next(iter(last.read_bytes().split()), b"") if last.exists() else b""
        query: dict[str, object] = {"container": CONTAINER, "timestamps": "true", "limitBytes": FETCHED}
        if since:
            query["sinceTime"] = since.decode()
        try:
            text = self.client.text(self._path("pods", pod, "log"), query)
        except KubernetesFailed as fault:
            if fault.code == 400:  # its container has not started yet
                return None
            if fault.is_missing:
                return NotFound(f"Kubernetes no longer has the pod {pod}, and its log is gone.")
            return fault
        except BackendError as fault:
            return fault
        fresh, newest = new_lines(text, since)
        if fresh:
            values = [value.encode() for name in run.secrets if (value := self.secrets(name, run.team))]
            os.write(descriptor, Redactor(values).pass_on(fresh, last=True)[0])
            last.write_bytes(newest + b" " + pod.encode())
        return None

    def _delete_logs(self, key: str) -> None:
        if self.log_folder is not None and KEY.fullmatch(key):
            shutil.rmtree(self.log_folder / key, ignore_errors=True)


def _from_the_last(pods: list[str], last: Path) -> list[str]:
    """Those that may have written something that is not in the copy: the one whose line is the last in it, and those after it."""
    known = last.read_text().split()[1:] if last.exists() else []
    return pods[pods.index(known[0]) :] if known and known[0] in pods else pods


def new_lines(text: bytes, since: bytes) -> tuple[bytes, bytes]:
    """The lines behind that moment, without their times, and the time of the last one. A last line that is not whole yet is left for the next time,
    and so are lines of its moment."""
    found, newest = [], since
    mark = moment_key(since) if since else ()
    for line in text.splitlines(keepends=True):
        stamp = LINE.match(line)
        if stamp is None or not line.endswith(b"\n"):
            continue
        if mark and moment_key(stamp[1]) <= mark:
            continue
        found.append(line[stamp.end() :])
        newest = stamp[1]
    return b"".join(found), newest


def moment_key(stamp: bytes) -> tuple[bytes, bytes]:
    """Times of one node sort by it: whole seconds, and what is behind them, of which zeros at the end are left out."""
    whole, _, rest = stamp.partition(b".")
    fraction = re.match(rb"\d*", rest)
    return whole[:19], (fraction[0] if fraction else b"").ljust(9, b"0")
