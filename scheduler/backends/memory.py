"""The simulated back-end's memory in the database. Its rows belong to it alone: nothing else reads or writes them."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Q, QuerySet

from gpufleet.core.bulk import rows_fetch
from gpufleet.core.prepared import Prepared
from gpufleet.core.times import millis
from scheduler.backends.simulated import LOGS_KEPT, Mark, moment_of
from scheduler.models import SimulatedRun
from scheduler.simulation.progress import Life, Phase

BATCH = 500
# What has ended is due until it is forgotten. A row that is neither due nor going on is only there for its log.
OVER = Q(due_at__isnull=True, ended_at__isnull=False)
REMEMBERED = Q(due_at__isnull=False) | Q(ended_at__isnull=True)


def _locked(cluster: Any, **which: Any) -> QuerySet[Any, tuple[int, str, Any]]:
    runs = SimulatedRun.objects.select_for_update().filter(REMEMBERED, cluster_id=cluster, **which)
    return runs.order_by("attempt_key").values_list("pk", "attempt_key", "state")


KNOWN = Prepared(lambda cluster, keys: _locked(cluster, attempt_key__among=keys))
DUE = Prepared(lambda cluster, at: _locked(cluster, due_at__lte=at))
GOING_ON = Prepared(lambda cluster: _locked(cluster, ended_at__isnull=True))
NEXT = Prepared[datetime | None](
    lambda cluster: SimulatedRun.objects.filter(cluster_id=cluster, due_at__isnull=False).order_by("due_at").values_list("due_at", flat=True)[:1]
)


def _row(cluster_id: int, life: Life, due: int | None) -> SimulatedRun:
    return SimulatedRun(
        cluster_id=cluster_id,
        attempt_key=life.key,
        sequence=life.sequence,
        state=life.document(),
        due_at=None if due is None else moment_of(due),
        ended_at=None if life.ended_at is None else moment_of(life.ended_at),
    )


def lives_adopt(*, cluster_id: int, lives: Sequence[Life]) -> None:
    """Take over runs that began elsewhere, as they stand."""
    dues = ((life, life.ended_at if life.phase == Phase.ENDED else life.next_at) for life in lives)
    SimulatedRun.objects.bulk_create([_row(cluster_id, life, due) for life, due in dues], batch_size=BATCH)


class Glance:
    """Looks at the lives of one cluster again and again, for those who draw them. Only what has changed is read anew; nothing is held or written."""

    def __init__(self, cluster_id: int) -> None:
        self.cluster_id = cluster_id
        self._known: dict[str, tuple[tuple[object, ...], Life]] = {}

    def lives(self) -> list[Life]:
        rows = SimulatedRun.objects.filter(REMEMBERED, cluster_id=self.cluster_id).order_by("attempt_key")
        marks = {key: (sequence, due, ended) for key, sequence, due, ended in rows.values_list("attempt_key", "sequence", "due_at", "ended_at")}
        stale = [key for key, mark in marks.items() if key not in self._known or self._known[key][0] != mark]
        fresh = {}
        for first in range(0, len(stale), BATCH):
            part = SimulatedRun.objects.filter(attempt_key__in=stale[first : first + BATCH])
            fresh.update({key: Life.read(state) for key, state in part.values_list("attempt_key", "state")})
        found: dict[str, tuple[tuple[object, ...], Life]] = {}
        for key, mark in marks.items():
            if key in fresh:
                found[key] = (mark, fresh[key])
            elif key in self._known:
                found[key] = self._known[key]
        self._known = found
        return [life for _, life in found.values()]


class DatabaseStore:
    """The lives of one cluster."""

    def __init__(self, cluster_id: int) -> None:
        self.cluster_id = cluster_id

    def turn(self) -> "DatabaseTurn":
        return DatabaseTurn(self.cluster_id)

    def next_due(self) -> int | None:
        due = NEXT.first(self.cluster_id)
        return None if due is None else millis(due)


class DatabaseTurn:
    """One transaction. Rows are locked when they are read, and written together at the end."""

    def __init__(self, cluster_id: int) -> None:
        self.cluster_id = cluster_id
        self.atomic = transaction.atomic()
        self.rows: dict[str, int] = {}
        self.lives: dict[str, Life | None] = {}
        self.changed: dict[str, int | None] = {}
        self.over: dict[str, Life] = {}  # removed in this turn

    def __enter__(self) -> "DatabaseTurn":
        self.atomic.__enter__()
        return self

    def __exit__(self, *fault: object) -> None:
        try:
            if fault[0] is None:
                self._write()
        except BaseException as error:
            self.atomic.__exit__(type(error), error, error.__traceback__)
            raise
        self.atomic.__exit__(*fault)  # type: ignore[arg-type]

    def _read(self, rows: Iterable[tuple[int, str, Any]]) -> list[Life]:
        lives = []
        for pk, key, state in rows:
            if key not in self.lives:
                self.rows[key], self.lives[key] = pk, Life.read(state)
            if (life := self.lives[key]) is not None:
                lives.append(life)
        return lives

    def fetch(self, keys: Sequence[str]) -> None:
        unknown = [key for key in keys if key not in self.lives]
        for first in range(0, len(unknown), BATCH):  # the first look reads all there is: the database is not to take that for a pause
            part = unknown[first : first + BATCH]
            self._read(KNOWN(self.cluster_id, part))
            for key in part:
                self.lives.setdefault(key, None)

    def get(self, key: str) -> Life | None:
        self.fetch([key])
        return self.lives[key]

    def marks(self) -> dict[str, Mark]:
        rows = SimulatedRun.objects.filter(REMEMBERED, cluster_id=self.cluster_id).order_by()
        return {row[0]: row for row in rows_fetch(rows.values_list("attempt_key", "sequence", "due_at", "ended_at"))}

    def due(self, now: int) -> Sequence[Life]:
        return self._read(DUE(self.cluster_id, moment_of(now)))

    def on_node(self, node: str) -> Sequence[Life]:
        lives = self._read(GOING_ON(self.cluster_id))
        return [life for life in lives if life.phase != Phase.ENDED and any(member.node == node for member in life.members)]

    def put(self, life: Life, due: int | None) -> None:
        self.lives[life.key], self.changed[life.key] = life, due

    def remove(self, keys: Sequence[str]) -> None:
        for key in keys:
            if (life := self.lives.get(key)) is not None:
                self.over[key] = life
            self.lives[key] = None

    def past(self, key: str) -> Life | None:
        row = SimulatedRun.objects.filter(OVER, cluster_id=self.cluster_id, attempt_key=key).values_list("state", flat=True).first()
        return None if row is None else Life.read(row)

    def _write(self) -> None:
        rows, told = [], []
        for key, due in sorted(self.changed.items()):
            life = self.lives[key]
            if life is not None:
                rows.append(_row(self.cluster_id, life, due))
        for key, life in sorted(self.over.items()):
            if key in self.changed and self.lives[key] is None:
                rows.append(_row(self.cluster_id, life, None))
            elif key not in self.changed:
                told.append(self.rows[key])
        # One statement for those that are new and those that are known; the key is the attempt's.
        SimulatedRun.objects.bulk_create(
            rows,
            batch_size=BATCH,
            update_conflicts=True,
            unique_fields=["attempt_key"],
            update_fields=["sequence", "state", "due_at", "ended_at"],
        )
        if self.over:
            over = SimulatedRun.objects.filter(OVER, cluster_id=self.cluster_id)
            SimulatedRun.objects.filter(pk__among=told).update(due_at=None)
            oldest = [*over.order_by("-ended_at", "-pk").values_list("pk", flat=True)[LOGS_KEPT:]]
            if oldest:
                SimulatedRun.objects.filter(pk__among=oldest).delete()
