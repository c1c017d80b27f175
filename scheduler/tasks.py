"""What beat and the services ask of the scheduler. A late or doubled call is harmless: the lease lets one through, and that one looks."""

import logging
import os
import random
import socket
import threading
import time
from datetime import timedelta

from celery import shared_task
from django.conf import settings

from gpufleet.core.times import now
from quotas.services.changes import changes_turn
from quotas.services.cost_exports import exports_sweep
from scheduler.backends.base import Backend, BackendError
from scheduler.loop.measures import CONFLICTS, DECISIONS, PHASE, PLANS, TICK
from scheduler.selectors.windows import capacity_now
from scheduler.services.budgets import budgets_step
from scheduler.services.cost_mails import cost_mails_turn
from scheduler.services.costs import costs_step
from scheduler.services.forecasts.forecasting import ForecastMemory, forecast_run
from scheduler.services.forecasts.own_traces import own_trace_write
from scheduler.services.forecasts.replays import replay_run
from scheduler.services.forecasts.sweeps import sweep_run
from scheduler.services.hardware.kubernetes_nodes import kubernetes_nodes_reconcile
from scheduler.services.hardware.local_pins import local_nodes_verify
from scheduler.services.hardware.planned_health import planned_health_begin
from scheduler.services.hardware.slurm_imports import imports_turn
from scheduler.services.hardware.slurm_nodes import slurm_nodes_reconcile
from scheduler.services.jobs.old_checkpoints import old_checkpoints_delete
from scheduler.services.jobs.planned_changes import planned_changes_begin
from scheduler.services.loop.lease import tick_call
from scheduler.services.loop.measuring import measures_write, tally, tick_finished
from scheduler.services.loop.overrun import overrun_turn
from scheduler.services.loop.pace import Pace
from scheduler.services.loop.plans import plans_forget
from scheduler.services.loop.tick import Memory, TickResult, collect_meanwhile, collect_seldom, tick_run
from scheduler.services.notify.delivering import deliveries_turn
from scheduler.services.notify.outbox import outbox_turns
from scheduler.services.notify.sending import sendings_turn
from scheduler.services.schedules.schedules import schedules_turn

# Beat calls every second, so a call goes on for about so long while things are known to happen.
A_CALL = timedelta(seconds=0.9)
LONGEST_CALL = timedelta(seconds=5)
SHORTEST_PAUSE = timedelta(milliseconds=5)
COUNTS_WRITTEN_EVERY = 10.0

log = logging.getLogger(__name__)
_guard = threading.Lock()
_called = threading.Event()
_memory = Memory()
_pace = Pace()
_forecast_guard = threading.Lock()
_forecasts = ForecastMemory.empty()
_tell_guard = threading.Lock()
_chance = random.SystemRandom()


def holder() -> str:
    """Who we are in the lease's row: another one in each thread, so that none takes its neighbour for itself."""
    return f"{socket.gethostname()}:{os.getpid()}:{threading.get_ident() % 100_000}"


@shared_task
def tick() -> int:
    """Look, and look again as long as something asks for it or is due within this second. Returns how many ticks that were."""
    _called.set()
    ticks = 0
    # Another thread of this process may be at it: it sees that it was called, and looks again before it ends.
    while _called.is_set() and _guard.acquire(blocking=False):
        try:
            ticks += _ticks()
        finally:
            _guard.release()
    return ticks


class _Written:
    """When this process last wrote down what it had counted."""

    at = -COUNTS_WRITTEN_EVERY


def _count(result: TickResult, seconds: float) -> None:
    tally.time(TICK, seconds=seconds)
    for name, taken in result.phases.items():
        tally.time(PHASE, name, seconds=taken / 1000)
    if result.planned:
        tally.count(PLANS, "failed" if result.fault else "carried_out" if result.decided or result.dropped else "nothing")
        tally.count(DECISIONS, n=result.decided)
        tally.count(CONFLICTS, n=result.dropped)
    if time.monotonic() - _Written.at >= COUNTS_WRITTEN_EVERY:
        measures_write()
        tick_finished(now=now())
        _Written.at = time.monotonic()


def _ticks() -> int:
    from scheduler.backends.registry import backends_all

    collect_seldom()
    began, ticks = now(), 0
    while True:
        if pause := _pace.pause(now=time.monotonic()):
            time.sleep(pause)  # whoever calls meanwhile has the look that comes then
        started = time.monotonic()
        _called.clear()
        result = tick_run(holder=holder(), now=now(), backends=backends_all(), memory=_memory, clock=now)
        ticks += 1
        if not result.led:
            return ticks
        if result.planned:
            _pace.planned(began=started, wishes=result.wishes)
        _count(result, time.monotonic() - started)
        moment = now()
        if moment >= began + LONGEST_CALL:
            tick_call()  # under load there is always more to do; the worker may end or do something else in between
            return ticks
        if result.again:
            continue
        collect_meanwhile()
        if result.next_at is None or moment >= began + A_CALL or result.next_at >= began + A_CALL:
            return ticks
        _called.wait(max(result.next_at - moment, SHORTEST_PAUSE).total_seconds())


@shared_task
def forecast() -> int | None:
    """Tell waiting jobs when they may expect to start."""
    if not _forecast_guard.acquire(blocking=False):
        return None
    try:
        return forecast_run(holder=holder(), now=now(), memory=_forecasts, beside=not settings.PRODUCTION)
    finally:
        _forecast_guard.release()


@shared_task
def overrun_learn() -> bool:
    """Learn from jobs that have ended how run times compare with estimates."""
    return overrun_turn(now=now())


@shared_task
def backends_tidy() -> int:
    from scheduler.backends.registry import backends_all

    backends = backends_all()
    return sum(_tidied(cluster, backend) for cluster, backend in backends.items()) + old_checkpoints_delete(backends=backends, now=now())


def _tidied(cluster: int, backend: Backend) -> int:
    """What is wrong with one keeps neither the others nor the checkpoints from their turn."""
    try:
        return backend.tidy()
    except (BackendError, OSError) as fault:
        log.warning("the back-end of cluster %d was not tidied: %s", cluster, fault)
        return 0


@shared_task
def planned_health() -> int:
    return planned_health_begin(now=now())


@shared_task
def planned_changes() -> int:
    return planned_changes_begin(now=now())


@shared_task
def slurm_nodes() -> int:
    """Let Slurm and the inventory agree on the health of nodes."""
    return slurm_nodes_reconcile(now=now())


@shared_task
def local_nodes() -> int:
    """Try whether this machine still pins jobs to their processors."""
    return local_nodes_verify(now=now())


@shared_task
def kubernetes_nodes() -> int:
    """Take over what Kubernetes says of nodes, and follow pods there that are not ours."""
    return kubernetes_nodes_reconcile(now=now())


@shared_task
def slurm_imports() -> int:
    """Import the Slurm clusters that are due by themselves."""
    return imports_turn(now=now())


@shared_task
def plans_prune() -> int:
    return plans_forget(now=now())


@shared_task
def schedules() -> int:
    """Submit the jobs that are due again."""
    return schedules_turn(now=now())


@shared_task
def costs() -> int:
    """Rate what was used since, in months that are open, send the costs of months that are due by e-mail, and drop files that have expired."""
    done = costs_step(now=now())
    exports_sweep(now=now())
    cost_mails_turn(now=now(), rng=random.Random())  # noqa: S311 - pauses between tries
    return done


@shared_task
def budgets() -> int:
    """Count what budgets have used, and act on those that warn or stop."""
    return budgets_step(now=now())


@shared_task
def quota_changes() -> int:
    """Apply the changes of the quota tree whose time has come."""
    return changes_turn(capacity=lambda: capacity_now().by_type, now=now())


@shared_task
def quota_replay(key: int) -> str | None:
    """Play the last days under a drafted tree."""
    return replay_run(key=key, clock=now)


@shared_task
def own_trace(key: int) -> str | None:
    """Write a trace of the last days."""
    return own_trace_write(key=key, clock=now)


@shared_task
def sweep(key: int) -> str | None:
    """Play a trace at several arrival rates or fleet sizes."""
    return sweep_run(key=key, clock=now)


@shared_task
def tell() -> int:
    """Make what happened into messages, and send those that are due. One call of a process at a time; another process takes other messages.

    What is wrong with one of the three parts keeps neither of the others from its turn.
    """
    if not _tell_guard.acquire(blocking=False):
        return 0
    tried = 0
    try:
        try:
            outbox_turns(clock=now)
        except Exception:
            log.exception("What happened could not be made into messages. It is kept, and tried again.")
        try:
            tried += sendings_turn(clock=now, rng=_chance)
        except Exception:
            log.exception("Notices could not be sent by e-mail or handed over to people's webhooks. They are kept, and tried again.")
        try:
            tried += deliveries_turn(clock=now, rng=_chance)
        except Exception:
            log.exception("Messages could not be sent to webhooks. They are kept, and tried again.")
        if tried:
            measures_write()
        return tried
    finally:
        _tell_guard.release()
