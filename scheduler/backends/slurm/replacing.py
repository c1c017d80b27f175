"""Workers of a service on Slurm that start anew in their place: within the Slurm job that each of them is, so that its GPUs stay its own.

The console leaves what the new one is to run with in the folder of the run (`script.again_of`) and asks the old one to leave. The batch script starts
the next step when that has ended, and says so.
"""

import os
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.db import transaction

from scheduler.backends.base import BackendError, BackendRefused, NotFound, StartOrder
from scheduler.backends.local_runs import MOST_KILLED, REFORMS
from scheduler.backends.slurm.outcomes import asked_of, text_of
from scheduler.backends.slurm.runs import Run, part_set, seat_of
from scheduler.backends.slurm.script import again_of
from scheduler.backends.slurm.site import Site
from scheduler.backends.slurm.values import named


class Replacing(Site):
    """Workers that are asked to leave, and whose places are taken again by themselves."""

    def replace(self, *, key: str, sequence: int, workers: Sequence[tuple[str, int]], now: datetime, order: StartOrder) -> None:
        """Told again and again until all of them have begun. `_see_to` kills those that do not leave within their grace."""
        with self.together():
            run = self._read_now(key)
            if run is None:
                raise NotFound(f"No run {key}.")
            if run.never_begun or run.stopping or run.killed or run.sequence >= sequence:
                return
            mine = [part for part in run.parts if seat_of(part) in set(workers) and not part.get("leaving")]
            if not run.in_place or not all(part.get("replaced") for part in mine):
                raise BackendRefused("It began as a job that is not resized in place (launch.in_place), or under an older gpufleet. Restart it.")
            for part, text in self._untold(run, order, mine, sequence):
                if part.get("again") != sequence:
                    self._note(run, part_set(part, again=sequence, again_at=now.isoformat(), again_step=_step_of(run, part)))
                self._leave(run, part, text)
                self._signal_the_old(run, part, "TERM")
                self._note(run, part_set(part, again_told=sequence))
            waits = self._settled(run, mine, sequence, now)
        if waits:
            raise BackendError(f"{waits[0].capitalize()} of {key} has not ended yet.")

    def _read_now(self, key: str) -> Run | None:
        row = self.rows.objects.filter(attempt_key=key).first()
        return None if row is None else self._of_row(row)

    def _untold(self, run: Run, order: StartOrder, parts: Sequence[dict[str, Any]], sequence: int) -> list[tuple[dict[str, Any], str]]:
        """Those that are not asked to leave yet, each with what the next one is to run with. Raises `BackendRefused` before one of them is asked."""
        fresh = [part for part in parts if part.get("id") and sequence not in (part.get("again_told"), part.get("began"))]
        if not fresh:
            return []
        values, seats = self._secret_values(order), {(seat.role, seat.index): seat for seat in order.workers}
        places, master = self._places(order, run), self._address(order.workers[0].node)
        known = [(part, seats[seat_of(part)]) for part in fresh if seat_of(part) in seats and _step_of(run, part) is not None]
        return [(part, again_of(order, seat, sequence, places=places, master=master, secrets=values)) for part, seat in known]

    def _leave(self, run: Run, part: Mapping[str, Any], text: str) -> None:
        """In a folder that the job can write to: never through a link, whole, and for its user alone, as secrets are in it."""
        account, name = self._account(), _again_name(part)

        def write() -> None:
            folder = os.open(run.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fresh = f".{name}.{secrets.token_hex(8)}"
                descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
                with os.fdopen(descriptor, "w") as file:
                    file.write(text)
                    if os.getuid() == 0:
                        os.fchown(descriptor, account.pw_uid, account.pw_gid)
                os.rename(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
            finally:
                os.close(folder)

        try:
            asked_of(run, write)
        except OSError as fault:
            raise BackendError(f"The folder of {run.key} cannot be written to: {fault}") from fault

    def _settled(self, run: Run, parts: Sequence[dict[str, Any]], sequence: int, now: datetime) -> list[str]:
        """Notes which of them have begun anew. Returns those that have not. One that has ended in Slurm is lost, and its place is the scheduler's."""
        by_id, waits = self._numbered(), []
        for part in parts:
            job = by_id.of(run.key, part)
            if job is None or job.ended:
                self._note(run, part_set(part, again=None, again_at=None))
            elif has_begun_anew(run, part, sequence):
                if part.get("began") != sequence:
                    self._note(run, part_set(part, again=None, again_at=None, began=sequence, began_at=now.isoformat(), on_trial=True, deaf=None))
            else:
                waits.append(f"{seat_of(part)[0]} {seat_of(part)[1]}")
        if not waits:
            with transaction.atomic():
                kept = self._read(run.key)
                if kept is not None and kept.sequence < sequence:
                    kept.sequence = sequence
                    self._keep(kept)
        return waits

    def _withdraw_replacing(self, run: Run) -> None:
        """What is to end starts nothing anew."""

        def remove() -> None:
            for part in run.parts:
                if part.get("again"):
                    (Path(run.folder) / _again_name(part)).unlink(missing_ok=True)

        if any(part.get("again") for part in run.parts):
            try:
                asked_of(run, remove)
            except OSError as fault:
                raise BackendError(f"The folder of {run.key} cannot be written to: {fault}") from fault

    def _kill_the_old(self, run: Run, now: datetime) -> None:
        for part in run.parts:
            if not part.get("again") or now < datetime.fromisoformat(part["again_at"]) + timedelta(seconds=run.grace):
                continue
            if part.get("again_told") == part["again"] and not has_begun_anew(run, part, part["again"]):
                self._signal_the_old(run, part, "KILL")

    def _signal_the_old(self, run: Run, part: Mapping[str, Any], name: str) -> None:
        """The step that was to leave, and never the one that follows it."""
        with self._waits_once():
            self.client.cancel([f"{part['id']}.{part['again_step']}"], named(run.key), f"--signal={name}")


def _again_name(part: Mapping[str, Any]) -> str:
    return f"again-{part['seats'][0]['role']}-{part['seats'][0]['index']}.{part['number']}"


def _step_of(run: Run, part: Mapping[str, Any]) -> int | None:
    """The number of a worker's step, as that has said."""
    role, index = seat_of(part)
    try:
        said = asked_of(run, lambda: text_of(Path(run.folder), f"step-{role}-{index}.{part['number']}")).strip()
    except OSError:
        return None
    return int(said) if said.isascii() and said.isdigit() else None


def has_begun_anew(run: Run, part: Mapping[str, Any], sequence: int) -> bool:
    """As its script says."""
    role, index = seat_of(part)
    try:
        return asked_of(run, lambda: text_of(Path(run.folder), f"began-{role}-{index}.{part['number']}")).strip() == str(sequence)
    except OSError:
        return False


def never_served(part: Mapping[str, Any], code: int | None, ended: datetime) -> bool:
    """Whether a worker that was begun in the place of another could not take it: the others serve on, and it is begun again as one that was lost."""
    if code == 0 or not part.get("on_trial") or part.get("lost", 0) >= MOST_KILLED - 1:
        return False
    return bool(part.get("probed")) or ended - datetime.fromisoformat(part["began_at"]) <= REFORMS
