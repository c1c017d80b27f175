"""Runs as the console has written them down for a cluster that runs them, and orders for them: what an order changes is committed before the cluster
hears of it, so that nothing was done of which nobody knows."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from django.db import IntegrityError, transaction

from scheduler.backends.base import BackendError
from scheduler.models import KubernetesRun, SlurmRun


class Recorded(Protocol):
    """What every back-end keeps of a run between two looks, beside its own."""

    key: str
    sequence: int
    killed: bool


R = TypeVar("R", bound=Recorded)


class RecordedRuns(ABC, Generic[R]):
    """The runs of one cluster."""

    cluster: int
    rows: ClassVar[type[SlurmRun] | type[KubernetesRun]]
    run_type: ClassVar[Callable[..., Any]]  # of `Recorded`, from its key, the number of the last order and when it was told of
    kept: ClassVar[frozenset[str]]  # what is written down of it beside those two

    def _of_row(self, row: Any) -> R:
        """What a newer version has written down beside that is passed over."""
        run: R = self.run_type(key=row.attempt_key, sequence=row.sequence, **{name: row.state[name] for name in row.state if name in self.kept})
        return run

    @staticmethod
    @abstractmethod
    def _state_of(run: R) -> dict[str, Any]:
        """What is written down of a run."""

    def _new_row(self, run: R) -> Any:
        return self.rows(cluster_id=self.cluster, attempt_key=run.key, sequence=run.sequence, state=self._state_of(run))

    def _read(self, key: str) -> R | None:
        row = self.rows.objects.select_for_update().filter(attempt_key=key).first()
        return None if row is None else self._of_row(row)

    def _keep(self, run: R) -> None:
        self.rows.objects.filter(attempt_key=run.key).update(sequence=run.sequence, state=self._state_of(run))

    def _add(self, run: R) -> None:
        """One that is not there yet. `BackendError` where another leader was first."""
        try:
            with transaction.atomic():
                self._new_row(run).save(force_insert=True)
        except IntegrityError:
            raise BackendError(f"{run.key} was told by another scheduler a moment ago.") from None

    def _add_all(self, runs: Sequence[R]) -> bool:
        """All of them or, where somebody told us of one of them meanwhile, none."""
        try:
            with transaction.atomic():
                self.rows.objects.bulk_create([self._new_row(run) for run in runs])
        except IntegrityError:
            return False
        return True

    def _note(self, run: R, change: Callable[[R], None]) -> None:
        """Write down what a look found: on the row as it is now, so that nothing is lost that another leader has written since it was read, and
        nothing at all where that carried out a newer order. The look goes on with what it saw."""
        change(run)
        with transaction.atomic():
            kept = self._read(run.key)
            if kept is not None and kept.sequence == run.sequence:
                change(kept)
                self._keep(kept)

    def _order(self, key: str, sequence: int, change: Callable[[R], None], send: Callable[[R], None]) -> bool:
        """A newer order for a run. That it was carried out is written down last, so that it is sent again where the cluster did not hear it. False:
        there is no such run."""
        with transaction.atomic():
            run = self._read(key)
            if run is None or run.sequence >= sequence:
                return run is not None
            change(run)
            self._keep(run)
        send(run)
        with transaction.atomic():
            run = self._read(key)
            if run is not None and run.sequence < sequence:
                run.sequence = sequence
                self._keep(run)
        return True

    @abstractmethod
    def _is_to_leave(self, run: R, now: datetime) -> None:
        """Note that it is asked to leave, if it was not before."""

    @abstractmethod
    def _ask_to_leave(self, run: R) -> None: ...

    @abstractmethod
    def _end_all(self, run: R) -> None: ...

    @abstractmethod
    def _end_unknown(self, key: str) -> None:
        """End what the cluster has of a run of which nothing is written down."""

    def stop(self, *, key: str, sequence: int, force: bool, now: datetime) -> None:
        def change(run: R) -> None:
            if force:
                run.killed = True
            else:
                self._is_to_leave(run, now)

        send = self._end_all if force else self._ask_to_leave
        if self._order(key, sequence, change, send):
            return
        self._end_unknown(key)
        with transaction.atomic():  # the cluster was never told of it, as far as is known: a late start is to do nothing
            if is_unknown := self._read(key) is None:
                self._add(self.run_type(key, sequence, now.isoformat()))
        if not is_unknown:  # it was begun meanwhile
            self._order(key, sequence, change, send)

    def give_up(self, *, keys: Sequence[str], now: datetime) -> None:
        with transaction.atomic():
            rows = self.rows.objects.select_for_update().filter(cluster_id=self.cluster, attempt_key__in=list(keys), forgotten_at__isnull=True)
            for run in map(self._of_row, rows.order_by("pk")):
                run.killed = True
                self._keep(run)
