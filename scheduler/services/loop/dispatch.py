"""Tells back-ends what was decided: after the commit, in the order of decision within an attempt, again and again until it is acknowledged.

Killed anywhere here, some orders are told twice and none is lost; a back-end does nothing twice.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from time import perf_counter
from typing import Any

from django.db import Error, InterfaceError, OperationalError, transaction

from gpufleet.core.live.news import News
from gpufleet.core.prepared import Prepared, PreparedUpdate
from gpufleet.core.spans import span
from scheduler.backends.base import (
    Backend,
    BackendError,
    BackendRefused,
    NotFound,
    Signal,
    StartOrder,
    WorkerSeat,
    attempt_key,
)
from scheduler.backends.registry import Backends, Silence
from scheduler.loop.measures import CALL, CALL_FAULTS, ORDER
from scheduler.models import Attempt, JobClass, JobState, Order, OrderKind, Placement
from scheduler.services.hardware.geometry import split_refused, splits_confirm
from scheduler.services.jobs.checkpoints import checkpoint_newest
from scheduler.services.jobs.replacing import replacement_refused
from scheduler.services.jobs.tokens import access_token, attempt_token, token_digest
from scheduler.services.loop.lease import lease_want
from scheduler.services.loop.measuring import tally
from scheduler.services.loop.retries import spread
from scheduler.services.loop.runs import Ended, Stop, attempts_ended, attempts_stop, grace_of
from scheduler.services.loop.steps import Steps, jobs_locked
from scheduler.services.loop.usage import usage_moment

log = logging.getLogger(__name__)

MOST = 400  # orders in one call; the rest has its turn in the next
FAULT_LENGTH = 300
LONGEST_PAUSE_SECONDS, SOON_SECONDS = 60.0, 5.0  # between two tries of an order
TOLD_WHOLE = (OrderKind.START, OrderKind.RESIZE, OrderKind.REPLACE)  # with all that a worker is to know

UNDONE = Order.objects.filter(done_at__isnull=True)
DUE = Prepared[Order](lambda now: UNDONE.filter(due_at__lte=now).order_by("due_at", "id")[:MOST])
SENT = PreparedUpdate(lambda keys, at: (Order.objects.filter(pk__among=keys), {"done_at": at, "fault": ""}))
OVERTAKEN = PreparedUpdate(lambda keys, at: (UNDONE.filter(pk__among=keys), {"done_at": at, "fault": "Overtaken: the run was to end."}))
# What a job is needs reading only where it begins: `STARTING`.
WAITING = Prepared[Order](
    lambda attempts: (
        UNDONE.filter(attempt__among=attempts)
        .select_related("attempt__job")
        .order_by("sequence")
        .defer("attempt__job__spec", "attempt__job__launch", "attempt__job__labels")
    )
)
STARTING = Prepared[Attempt](lambda attempts: Attempt.objects.filter(pk__among=attempts).select_related("job__owner", "job__quota", "resumed_from"))
SET_TOKEN = PreparedUpdate(lambda attempt, digest: (Attempt.objects.filter(pk=attempt, ended_at__isnull=True), {"token_digest": digest}))
SEATS: Prepared[tuple[Any, ...]] = Prepared(
    lambda attempts: (
        Placement.objects.filter(attempt__among=attempts, until__isnull=True, leaving_since__isnull=True)
        .order_by("attempt_id", "role", "worker", "gpu__index", "id")
        .values_list(
            "attempt_id", "node__cluster_id", "role", "worker", "node__name", "gpu__index", "gpu__uuid", "mig__uuid", "gpu_milli", "mig__profile"
        )
    )
)


@dataclass(frozen=True, slots=True)
class Dispatched:
    sent: int = 0
    put_off: int = 0  # the back-end failed; tried again
    refused: int = 0  # the back-end will never do it
    more: bool = False  # more are due than one call sends


def orders_dispatch(*, backends: Mapping[int, Backend], now: datetime, clock: Callable[[], datetime] | None = None) -> Dispatched:
    """Send every order that is due and whose turn it is. `clock` tells when each back-end had taken its own; without one that is `now`."""
    due = DUE(now)
    if not due:
        return Dispatched()
    ready = _whose_turn_it_is(due, now)
    starts = {order.attempt_id for order in ready if order.kind in TOLD_WHOLE}
    orders = _StartOrders([key for key in starts if key is not None])
    sent: dict[datetime, list[int]] = defaultdict(list)
    failed: list[tuple[Order, str]] = []
    refused: list[tuple[Order, str]] = []
    for cluster, group in _by_cluster(ready).items():
        backend = backends.get(cluster)
        if backend is None:
            failed += [(order, "This console has no such back-end.") for order in group]
            continue
        silence = _silence_of(backends, cluster)
        if silence is not None:
            failed += [(order, silence.hangs) for order in group if not _is_told_in(silence, order)]
            group = [order for order in group if _is_told_in(silence, order)]
            if not group:
                continue
        with span("orders", cluster=cluster, orders=len(group)):
            done, not_now, never = _send_all(backend, group, orders, now)
        if silence is not None and not_now and isinstance(backends, Backends):
            backends.silent[cluster] = silence._replace(is_folder=False)  # until it is probed again: its controller may not answer either
        taken_at = clock() if clock is not None else now
        sent[taken_at] += done
        failed += not_now
        refused += never
        sent_now = set(done)
        for order in group:
            if order.pk in sent_now:
                tally.time(ORDER, cluster, order.kind, seconds=(taken_at - order.due_at).total_seconds())
        for order, _ in (*not_now, *never):
            tally.count(CALL_FAULTS, cluster, order.kind)
    with transaction.atomic():
        for at, keys in sent.items():
            SENT(keys, at)
        for order, fault in failed:
            _put_off(order, fault, now)
    for order, fault in refused:
        _give_up(order, fault, now)
    if repartitioned := [order.pk for order in ready if order.kind == OrderKind.REPARTITION]:
        splits_confirm(orders=[key for keys in sent.values() for key in keys if key in repartitioned], now=now)
    return Dispatched(sum(map(len, sent.values())), len(failed), len(refused), more=len(due) == MOST)


def _whose_turn_it_is(due: Sequence[Order], now: datetime) -> list[Order]:
    """Of each attempt the oldest order that still matters. Being told to end makes all that was to be told before pointless."""
    attempts = {order.attempt_id for order in due if order.attempt_id is not None}
    by_run: dict[tuple[int, int], list[Order]] = defaultdict(list)
    for order in WAITING(attempts):
        by_run[order.attempt_id or 0, order.cluster_id].append(order)
    ready = [order for order in due if order.attempt_id is None]
    pointless: list[int] = []
    for orders in by_run.values():
        ends = [order for order in orders if _ends(order)]
        attempt = orders[0].attempt
        assert attempt is not None
        if attempt.ended_at is not None:
            pointless += [order.pk for order in orders if order.kind != OrderKind.STOP]
            orders = [order for order in orders if order.kind == OrderKind.STOP]
        elif ends and orders[0] is not ends[-1]:
            # Between being asked and being killed lies its grace, so the last one only overtakes the others when it is due.
            last = next((order for order in reversed(ends) if order.due_at <= now), ends[0])
            pointless += [order.pk for order in orders if order.sequence < last.sequence]
            orders = [order for order in orders if order.sequence >= last.sequence]
        if orders and orders[0].due_at <= now:
            ready.append(orders[0])
    OVERTAKEN(pointless, now)
    ready.sort(key=lambda order: (order.due_at, order.pk))
    return ready


def _ends(order: Order) -> bool:
    return order.kind == OrderKind.STOP or (order.kind == OrderKind.SIGNAL and order.payload.get("signal") == Signal.TERMINATE)


def _silence_of(backends: Mapping[int, Backend], cluster: int) -> Silence | None:
    """Each order would wait for a back-end that did not answer a moment ago, and all other clusters with it."""
    silence = backends.silent.get(cluster) if isinstance(backends, Backends) else None
    return silence if silence is not None and silence.hangs else None


def _is_told_in(silence: Silence, order: Order) -> bool:
    """Where only a folder hangs, what ends a run by force is told: it frees GPUs and needs no folder."""
    return silence.is_folder and order.kind == OrderKind.STOP and bool(order.payload.get("force"))


def _by_cluster(orders: Iterable[Order]) -> dict[int, list[Order]]:
    groups: dict[int, list[Order]] = defaultdict(list)
    for order in orders:
        groups[order.cluster_id].append(order)
    return groups


Outcome = tuple[list[int], list[tuple[Order, str]], list[tuple[Order, str]]]


def _send_all(backend: Backend, group: Sequence[Order], orders: "_StartOrders", now: datetime) -> Outcome:
    sent: list[int] = []
    failed: list[tuple[Order, str]] = []
    refused: list[tuple[Order, str]] = []
    keys = [_key(order.attempt) for order in group if order.attempt is not None]
    try:
        with backend.together(keys):
            shares = _announce(backend, group, orders, now)
            for order in group:
                try:
                    with tally.timing(CALL, order.cluster_id, order.kind, before=shares.get(order.pk, 0.0)):
                        _send(backend, order, orders, now)
                except BackendRefused as fault:
                    refused.append((order, str(fault)))
                except BackendError as fault:
                    failed.append((order, str(fault)))
                except Error:
                    raise  # the back-end keeps its memory in the database, and this transaction is spoilt
                except Exception as fault:
                    log.exception("order %s could not be sent", order)
                    failed.append((order, f"The back-end failed: {fault!r}"))
                else:
                    sent.append(order.pk)
    except (OperationalError, InterfaceError):
        raise  # the database is away: nothing is known of the orders
    except Exception as fault:
        if not isinstance(fault, BackendError):
            log.exception("the orders of a back-end could not be sent")
        return [], [(order, str(fault)) for order in group], []
    return sent, failed, refused


def _announce(backend: Backend, group: Sequence[Order], orders: "_StartOrders", now: datetime) -> dict[int, float]:
    """Returns how many seconds of it fall to each start. Whatever is wrong with one start is met again when it is sent, and put down to it alone."""
    told: dict[int, StartOrder] = {}
    for order in group:
        if order.kind != OrderKind.START or order.attempt is None:
            continue
        try:
            start = orders.of(order.attempt, order.sequence, order.cluster_id)
        except Error:
            raise
        except Exception as fault:
            log.warning("order %s could not be read with the others: %r", order, fault)
            continue
        if start is not None:
            told[order.pk] = start
    began = perf_counter()
    try:
        backend.announce(list(told.values()), now=now)
    except Error:
        raise
    except Exception:
        log.exception("the starts of a back-end could not be announced together")
    return dict.fromkeys(told, (perf_counter() - began) / max(1, len(told)))


def _send(backend: Backend, order: Order, orders: "_StartOrders", now: datetime) -> None:
    payload, sequence = order.payload, order.sequence
    if order.kind == OrderKind.REPARTITION:
        instances = [(str(profile), int(start)) for profile, start in payload["instances"]]
        backend.repartition(node=payload["node"], gpu=payload["gpu"], instances=instances, sequence=sequence, now=now)
        return
    attempt = order.attempt
    assert attempt is not None
    key = _key(attempt)
    match order.kind:
        case OrderKind.START:
            start = orders.of(attempt, sequence, order.cluster_id)
            if start is not None:
                backend.start(start, now=now)
        case OrderKind.RESIZE:
            add = {(str(role), int(index)) for role, index in payload.get("add", ())}
            leave = [(str(role), int(index)) for role, index in payload.get("leave", ())]
            whole = orders.of(attempt, sequence, order.cluster_id)
            seats = [seat for seat in (whole.workers if whole is not None else ()) if (seat.role, seat.index) in add]
            # Who joins goes on from what the run has saved by now.
            newest = checkpoint_newest(job=attempt.job_id) if whole is not None and seats else None
            if whole is not None and newest is not None:
                whole = replace(whole, resume_from=newest.location, resume_step=newest.step)
            backend.resize(key=key, sequence=sequence, add=seats, leave=leave, now=now, order=whole)
        case OrderKind.REPLACE:
            whole = orders.of(attempt, sequence, order.cluster_id)
            workers = [(str(role), int(index)) for role, index in payload["workers"]]
            if whole is not None:
                backend.replace(key=key, sequence=sequence, workers=workers, now=now, order=whole)
        case OrderKind.SIGNAL:
            _signal(backend, key, sequence, Signal(payload["signal"]), now)
        case OrderKind.STOP:
            backend.stop(key=key, sequence=sequence, force=bool(payload.get("force")), now=now)
        case OrderKind.LIMIT:
            with suppress(NotFound):  # it never came to be there, or is lost: then nothing is ended too early
                backend.limit(key=key, sequence=sequence, seconds=payload["seconds"], now=now)
        case _:
            raise BackendRefused(f"There is no order {order.kind}.")


def _signal(backend: Backend, key: str, sequence: int, signal: Signal, now: datetime) -> None:
    try:
        backend.signal(key=key, sequence=sequence, signal=signal, now=now)
    except NotFound:
        # It never came to be there. Whoever asks it to save has nothing to wait for; whoever asks it to leave wants it kept away.
        if signal == Signal.TERMINATE:
            backend.stop(key=key, sequence=sequence, force=True, now=now)


def seats_of(attempts: Sequence[int]) -> dict[tuple[int, int], list[WorkerSeat]]:
    """Where workers sit, by attempt and cluster, in the order of roles and ranks, without those that are leaving."""
    found: dict[tuple[int, int], dict[tuple[str, int, str], list[tuple[int | None, str, str, int, str]]]] = defaultdict(dict)
    for attempt, cluster, role, worker, node, index, uuid, mig, milli, profile in SEATS(attempts):
        found[attempt, cluster].setdefault((role, worker, node), []).append((index, uuid or "", mig or "", milli, profile or ""))
    return {
        place: [
            WorkerSeat(
                role=role,
                index=worker,
                node=node,
                gpus=tuple(index for index, *_ in parts if index is not None),
                gpu_uuids=tuple(uuid for _, uuid, *_ in parts if uuid),
                mig_uuids=tuple(mig for _, _, mig, _, _ in parts if mig),
                gpu_milli=parts[0][3],
                mig=tuple(profile for *_, profile in parts if profile),
            )
            for (role, worker, node), parts in workers.items()
        ]
        for place, workers in found.items()
    }


class _StartOrders:
    """What the runs that are to begin, or change their size, are to know, read together."""

    def __init__(self, attempts: Sequence[int]) -> None:
        self._attempts = {attempt.pk: attempt for attempt in STARTING(attempts)}
        self._seats = seats_of(attempts)
        fresh = []
        for attempt in self._attempts.values():
            digest = token_digest(attempt_token(_key(attempt)))
            if attempt.token_digest != digest and attempt.ended_at is None:
                attempt.token_digest = digest
                fresh.append(attempt)
        for attempt in fresh:
            # Before the back-end is told: a rank may report before this call has come back.
            SET_TOKEN(attempt.pk, attempt.token_digest)

    def of(self, attempt: Attempt, sequence: int, cluster: int) -> StartOrder | None:
        """None: it holds nothing any more, so there is nothing to begin."""
        seats = self._seats.get((attempt.pk, cluster))
        known = self._attempts.get(attempt.pk)
        if not seats or known is None:
            return None
        job, resumed = known.job, known.resumed_from
        return StartOrder(
            key=_key(known),
            sequence=sequence,
            job=job.public_id,
            attempt=known.number,
            workers=tuple(seats),
            launch=job.launch,
            spec=job.spec,
            token=attempt_token(_key(known)),
            owner=job.owner.username if job.owner else "",
            team=job.quota.path,
            resume_from=resumed.location if resumed else "",
            resume_step=resumed.step if resumed else 0,
            grace_seconds=int(grace_of(job)),
            limit_seconds=job.limit_seconds,
            serves=job.job_class == JobClass.INFERENCE,
            access_token=access_token(_key(known)) if job.launch.get("port") else "",
        )


def _key(attempt: Attempt) -> str:
    return attempt_key(job=attempt.job.public_id, attempt=attempt.number)


def _put_off(order: Order, fault: str, now: datetime) -> None:
    """Later and later, up to a minute, give or take a fifth. What ends a run is tried each few seconds: somebody waits for its GPUs. So is what
    replaces a worker."""
    longest = SOON_SECONDS if _ends(order) or order.kind == OrderKind.REPLACE else LONGEST_PAUSE_SECONDS
    pause = spread(min(2.0 ** min(order.tries, 10), longest), f"{order.pk}:{order.tries}")
    changed = Order.objects.filter(pk=order.pk, done_at__isnull=True)
    changed.update(tries=order.tries + 1, due_at=now + pause, fault=fault[:FAULT_LENGTH])
    log.warning("order %s is put off by %s s: %s", order, pause.total_seconds(), fault)


def _note(attempt: Attempt, fault: str, now: datetime) -> None:
    steps, news = Steps(now=now), News()
    steps.note(jobs_locked([attempt.job_id])[attempt.job_id], fault, attempt=attempt)
    steps.write(news)
    news.publish()


def _give_up(order: Order, fault: str, now: datetime) -> None:
    """The back-end will never do it: a job that could not begin has failed, with the back-end's own words. One that was to be resized restarts. Where
    it keeps a time limit of its own, the job says so.

    The order and what follows from it are one change: an order that is done is never looked at again.
    """
    log.warning("order %s is refused: %s", order, fault)
    attempt = order.attempt
    with transaction.atomic():
        usage_moment(now=now)
        Order.objects.filter(pk=order.pk, done_at__isnull=True).update(done_at=now, tries=order.tries + 1, fault=fault[:FAULT_LENGTH])
        if order.kind == OrderKind.REPARTITION:
            split_refused(order=order, fault=fault, now=now)
        if order.kind == OrderKind.LIMIT and attempt is not None:
            _note(attempt, fault, now)
        if order.kind == OrderKind.REPLACE and attempt is not None:
            replacement_refused(job=attempt.job_id, fault=fault, now=now)
        if order.kind == OrderKind.RESIZE and attempt is not None:
            attempts_stop(stops=[Stop(attempt.job_id, JobState.QUEUED, "lost", fault)], now=now)
        if order.kind == OrderKind.START and attempt is not None:
            stop = Stop(attempt.job_id, JobState.FAILED, "failed", fault, grace_seconds=0)
            news = News()
            attempts_stop(stops=[stop], now=now, news=news, want=False)
            attempts_ended(ends=[Ended(attempt.pk, None, fault)], now=now, news=news, want=False)
            news.publish()
            lease_want()
