"""How people get at a run on Slurm: its logs, also those that lie on a node, and a shell."""

import os
from pathlib import Path
from time import monotonic
from typing import Any

from scheduler.backends.base import (
    BackendError,
    LogPart,
    NotFound,
    Reach,
    whole_characters,
)
from scheduler.backends.local_runs import ROLE
from scheduler.backends.slurm.outcomes import asked_of, kept_on_node, opened
from scheduler.backends.slurm.runs import Run
from scheduler.backends.slurm.script import GATHER
from scheduler.backends.slurm.site import Site
from scheduler.models import SlurmRun

GATHERED_EACH = 5.0  # seconds at least between two looks at logs on a node: each is a step of the job, of which it has 40 000


class Logs(Site):
    """What people ask for."""

    def reach(self, *, key: str) -> Reach | None:
        row = SlurmRun.objects.filter(cluster_id=self.cluster, attempt_key=key, forgotten_at__isnull=True).first()
        run = None if row is None else self._of_row(row)
        if run is None or run.never_begun or not run.parts[0].get("id"):
            return None
        first = run.parts[0]
        with self.together():
            by_id = self._numbered()
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

        def read() -> tuple[int, int, bytes]:
            with opened(Path(run.folder), f"{role}-{index}.log") as descriptor:
                size = os.fstat(descriptor).st_size
                end = size + len(left)
                begin = max(0, end + offset) if offset < 0 else min(offset, end)
                return size, begin, os.pread(descriptor, limit, begin)

        try:
            size, begin, data = asked_of(run, read)
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


def _part_with(run: Run, role: str, index: int) -> dict[str, Any] | None:
    return next((part for part in run.parts if any((seat["role"], seat["index"]) == (role, index) for seat in part["seats"])), None)
