"""Who may decide, and what asks for a decision (docs/adr/0006).

One row a kind of work. Taking it raises its epoch, and every write of a decision is only committed while that epoch still holds: whoever was paused
and wakes up to a newer one is fenced off. The clock is an argument, so two machines may disagree about the time by less than the lease lasts; a clock
that is further off costs a plan, never a wrong write.

Locks are taken in one order everywhere: the ledger, jobs, nodes, the live feed, and last the lease's row. So a service tells the pages first, and
asks for a plan as the last thing in its transaction.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from celery import current_app
from django.db import DEFAULT_DB_ALIAS, OperationalError, connection, connections, transaction

from gpufleet.core.prepared import Prepared, PreparedUpdate, is_sent_ahead, prepared_cursor
from gpufleet.core.times import whole_millis
from scheduler.models import Lease as LeaseRow

HELD = Prepared(lambda name, epoch: LeaseRow.objects.select_for_update().filter(name=name, epoch=epoch).values_list("pk", flat=True))
TAKEN = Prepared[LeaseRow](lambda name, epoch: LeaseRow.objects.filter(name=name, epoch=epoch))
DONE = PreparedUpdate(
    lambda name, epoch, wanted, wake: (
        LeaseRow.objects.filter(name=name, epoch=epoch, done__lte=wanted),
        {"done": wanted, "next_wake_at": wake},
    )
)
RELEASE = PreparedUpdate(lambda name, epoch, at: (LeaseRow.objects.filter(name=name, epoch=epoch), {"expires_at": at}))
WISHES: Prepared[tuple[int, int, datetime | None]] = Prepared(
    lambda name: LeaseRow.objects.filter(name=name).values_list("wanted", "done", "paused_at")
)
TICK = "tick"
FORECAST = "forecast"
# A holder that is killed is replaced after so long; one that is at it for longer renews it meanwhile.
LEASE_SECONDS = 3.0
RENEW_SECONDS = 1.0
# Who is still at it after so long hangs, and another one may try.
MOST_RENEWALS = 60
# Who is stopped inside a transaction keeps its rows, and everybody else who wants them, waiting for so long; then the database ends his session.
STOPPED_SECONDS = 5
# A lease that ends further ahead than this was taken by a clock that has been set back since.
SET_BACK = timedelta(minutes=10)
TICK_TASK = "scheduler.tasks.tick"
HINT_EXPIRES_SECONDS = 5
log = logging.getLogger(__name__)


class Fenced(Exception):
    """Somebody newer holds the lease. Nothing of ours may be written."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to decide, as it was when it was taken. `wanted` is what a plan made now will have seen."""

    name: str
    holder: str
    epoch: int
    wanted: int
    done: int
    next_wake_at: datetime | None
    paused: bool

    def still_ours_or_raise(self) -> None:
        """In the transaction that writes: holds the row until its end, so nobody can take over before we have committed."""
        assert connection.in_atomic_block, "a fence only holds inside the transaction it protects"
        if not HELD(self.name, self.epoch):
            raise Fenced(f"The lease {self.name} was taken over from {self.holder}.")


def lease_take(*, name: str, holder: str, now: datetime, ttl: float = LEASE_SECONDS) -> Lease | None:
    """The lease, if nobody holds it: never taken, given back, run out, or left behind by this same holder. None otherwise."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE scheduler_lease SET holder = %s, epoch = epoch + 1, expires_at = %s"
            " WHERE name = %s AND (expires_at IS NULL OR expires_at <= %s OR expires_at > %s OR holder = %s)"
            " RETURNING epoch",
            [holder, _stored(now + timedelta(seconds=ttl)), name, _stored(now), _stored(now + SET_BACK), holder],
        )
        taken = cursor.fetchone()
    if taken is None:
        # Held by somebody, or taken for the first time ever.
        made = LeaseRow.objects.filter(name=name).exists() or not LeaseRow.objects.bulk_create([LeaseRow(name=name)], ignore_conflicts=True)
        return None if made else lease_take(name=name, holder=holder, now=now, ttl=ttl)
    row = TAKEN.first(name, taken[0])
    if row is None:
        return None  # taken over between the two statements
    return Lease(name, holder, row.epoch, row.wanted, row.done, row.next_wake_at, row.paused_at is not None)


def lease_renew(*, lease: Lease, now: datetime, ttl: float = LEASE_SECONDS) -> bool:
    """Hold it for longer. False: it is somebody else's by now."""
    return bool(LeaseRow.objects.filter(name=lease.name, epoch=lease.epoch).update(expires_at=now + timedelta(seconds=ttl)))


@contextmanager
def lease_kept(*, lease: Lease, clock: Callable[[], datetime]) -> Iterator[None]:
    """Renew it once a second from a thread with a connection of its own, as long as this lasts; whoever is killed or stopped does so no longer.

    To be left outside of any transaction, as a renewal may be waiting for the end of one.
    """
    over = threading.Event()
    keeper = threading.Thread(target=_keep, args=(lease, clock, over), name="lease", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        over.set()
        keeper.join()  # a renewal that came after the lease was given back would keep everybody out


def _keep(lease: Lease, clock: Callable[[], datetime], over: threading.Event) -> None:
    if over.wait(RENEW_SECONDS):
        return  # nearly always
    try:
        for _ in range(MOST_RENEWALS):
            if not _kept(lease, clock) or over.wait(RENEW_SECONDS):
                return
    finally:
        connection.close()
    log.error("%s is at it for %d s; another one may decide.", lease.holder, RENEW_SECONDS * MOST_RENEWALS)


def _kept(lease: Lease, clock: Callable[[], datetime]) -> bool:
    """Whether there is still something to keep."""
    # SQLite's writers queue for a transaction. Elsewhere the statement is better alone: who is stopped between it and a commit would
    # hold the row, and with it everybody else, until he goes on.
    queued = transaction.atomic() if connection.vendor == "sqlite" else nullcontext()
    try:
        with queued:
            return lease_renew(lease=lease, now=clock())
    except OperationalError as fault:
        log.warning("The lease %s could not be renewed: %s", lease.name, fault)
        return True


@contextmanager
def session_bounded() -> Iterator[None]:
    """PostgreSQL ends this session when nothing is asked inside a transaction for too long: who was stopped there holds nobody up for ever.

    On SQLite there is one process, and whoever stops that has stopped everybody.
    """
    if connection.vendor != "postgresql" or connection.in_atomic_block:
        yield
        return
    with connection.cursor() as cursor:
        cursor.execute("SET idle_in_transaction_session_timeout = %s", [f"{STOPPED_SECONDS}s"])
    try:
        yield
    finally:
        if connection.errors_occurred and connection.connection is not None and not connection.is_usable():
            connection.close()
        if connection.connection is not None:
            with connection.cursor() as cursor:
                cursor.execute("RESET idle_in_transaction_session_timeout")


def lease_lost(*, lease: Lease) -> bool:
    """Whether somebody newer holds it."""
    return not LeaseRow.objects.filter(name=lease.name, epoch=lease.epoch).exists()


def lease_done(*, lease: Lease, next_wake_at: datetime | None) -> None:
    """Note that a plan has seen every wish up to the lease's, in the transaction that writes the plan down."""
    if not DONE(lease.name, lease.epoch, lease.wanted, next_wake_at):
        lease.still_ours_or_raise()


def lease_release(*, lease: Lease, now: datetime) -> bool:
    """Give it back. True: somebody asked for a plan meanwhile, so the caller looks again at once. A lease that was lost is left alone."""
    RELEASE(lease.name, lease.epoch, now)
    row = WISHES.first(lease.name)
    return row is not None and row[0] > row[1] and row[2] is None


def lease_want(*, n: int = 1, name: str = TICK, hint: bool = True) -> None:
    """Ask for a plan, in the caller's transaction and as its last write. After the commit the first who asks also calls for it at once."""
    database = connections[DEFAULT_DB_ALIAS]
    cursor = prepared_cursor(database)
    cursor.execute(
        "INSERT INTO scheduler_lease (name, holder, epoch, wanted, done, paused_by, paused_reason) VALUES (%s, '', 0, %s, 0, '', '')"
        " ON CONFLICT (name) DO UPDATE SET wanted = scheduler_lease.wanted + excluded.wanted RETURNING wanted - done",
        [name, n],
    )

    def call_if_first() -> None:
        with cursor:
            (open_wishes,) = cursor.fetchone()
        if hint and open_wishes <= n:
            # Others' wishes that are still open have called already; should that call be lost, beat looks within a second.
            transaction.on_commit(tick_call, robust=True)

    if is_sent_ahead(database):
        transaction.on_commit(call_if_first, robust=True)  # by then the answer has come with those of all that was sent
    else:
        call_if_first()


def tree_seen(**_: Any) -> None:
    """The quota tree has changed: who may start and who is reclaimed is another one now."""
    lease_want()


def tick_call() -> None:
    """Ask a worker to look now. The wish itself is in the database, so a broker that is away costs at most a second."""
    try:
        current_app.send_task(TICK_TASK, queue="scheduler", expires=HINT_EXPIRES_SECONDS, retry=False, ignore_result=True)
    except Exception as error:  # whatever a broker's client raises
        log.warning("The scheduler could not be called, beat will do it: %s", error)


def _stored(moment: datetime) -> Any:
    """A moment as the database's own driver takes it in raw SQL."""
    return connection.ops.adapt_datetimefield_value(whole_millis(moment))


def lease_pause(*, name: str = TICK, by: str, reason: str, now: datetime) -> None:
    """No new decisions until somebody resumes. What runs goes on, ends and is accounted as ever."""
    LeaseRow.objects.bulk_create([LeaseRow(name=name)], ignore_conflicts=True)
    LeaseRow.objects.filter(name=name).update(paused_at=now, paused_by=by[:160], paused_reason=reason[:300])


def lease_resume(*, name: str = TICK) -> None:
    with transaction.atomic():
        LeaseRow.objects.filter(name=name).update(paused_at=None, paused_by="", paused_reason="")
        lease_want(name=name)
