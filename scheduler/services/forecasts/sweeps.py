"""Sweeps of the lab (SIM-4): asked for, played in processes of their own beside the console, and ended."""

import json
import os
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import datetime
from statistics import fmean
from typing import Any

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from gpufleet.core.audit import audit_record
from gpufleet.core.faults import Conflict
from gpufleet.core.ids import public_id
from gpufleet.core.live.feed import feed_publish
from gpufleet.core.templatetags.shell import plural
from quotas.permissions import Access
from scheduler.engine.model.values import Scenario
from scheduler.models import GOING_ON, LOST, LOST_AFTER, ReplayState, Sweep, Trace
from scheduler.scenarios.reading import load
from scheduler.services.forecasts.plays import Program
from scheduler.services.forecasts.what_ifs import must_ask
from scheduler.simulation.paced import longest_step
from scheduler.simulation.workload import works_drawn
from scheduler.sweeps.asking import Asked, arrivals_fault, asked_faults
from scheduler.sweeps.points import Point, SweepError, interval_of

MOST_PROGRAMS = 4
HOUR = 3_600_000
ONE_MOMENT = "All jobs of the trace come at the same time: a sweep needs an arrival rate."
STILL = "Another sweep is being simulated. Wait for it or cancel it."
NOTHING_IN_TIME = "There was no time for the first simulation. Give it more time, or choose a shorter trace or fewer hours."


def sweep_ask(*, access: Access, trace: Trace, asked: Asked, now: datetime, begin: Callable[[int], Any]) -> Sweep:
    """`begin` is given the key after the commit. One at a time is played."""
    must_ask(access)
    faults = asked_faults(asked)
    if trace.jobs < 2:
        faults["trace"] = [ONE_MOMENT]
    if faults:
        raise ValidationError(faults)
    try:
        with transaction.atomic():
            for state, after in LOST_AFTER.items():
                lost = Sweep.objects.filter(state=state, seen_at__lt=now - after)
                lost.update(state=ReplayState.FAILED, ended_at=now, fault=LOST[state])
            facts = asdict(asked)
            axis = facts.pop("axis")
            made = Sweep.objects.create(
                public_id=public_id("sw"),
                trace=trace,
                trace_title=trace.title,
                axis=axis,
                asked=facts,
                asked_by=access.actor.user,
                asked_at=now,
                seen_at=now,
            )
            noted = {"trace": trace.public_id, "axis": axis, **facts}
            audit_record(actor=access.actor, action="sweep.start", kind="sweep", object_id=made.public_id, after=noted)
            _tell(made)
            transaction.on_commit(lambda: begin(made.pk))
    except IntegrityError:
        raise Conflict(STILL) from None
    return made


def sweep_cancel(*, access: Access, found: Sweep, now: datetime) -> bool:
    """Whether it was going on. Its processes end within a second; what was played is kept."""
    must_ask(access)
    with transaction.atomic():
        ended = Sweep.objects.filter(pk=found.pk, state__in=GOING_ON).update(state=ReplayState.CANCELLED, ended_at=now)
        if ended:
            audit_record(actor=access.actor, action="sweep.cancel", kind="sweep", object_id=found.public_id)
            _tell(found)
    return bool(ended)


def asked_of(found: Sweep) -> Asked:
    stored = found.asked
    of = {name: stored[name] for name in ("seeds", "hours", "minutes", "exact")}
    return Asked("nodes" if found.axis == "nodes" else "load", tuple(stored["values"]), tuple(stored["policies"]), **of)


def results_of(found: Sweep) -> dict[Point, Mapping[str, Any]]:
    """In the order of seeds and values, whichever was played first."""
    played = {(policy, value, seed): result for policy, value, seed, result in found.results}
    points = sorted(asked_of(found).points, key=lambda point: (point.seed, point.value))
    return {point: played[key] for point in points if (key := (point.policy, point.value, point.seed)) in played}


def sweep_run(*, key: int, clock: Callable[[], datetime]) -> str | None:
    """Play what was asked for; a doubled call finds that it is taken. Returns the state in which it ended."""
    if not Sweep.objects.filter(pk=key, state=ReplayState.WAITING).update(state=ReplayState.PLAYING, seen_at=clock()):
        return None
    sweep = Sweep.objects.select_related("trace").get(pk=key)
    try:
        return _run(sweep, clock)
    except Exception as fault:
        _end(sweep, ReplayState.FAILED, clock(), fault=f"Internal error ({type(fault).__name__}). The log has the details.")
        raise


def _run(sweep: Sweep, clock: Callable[[], datetime]) -> str:
    latest, asked = time.monotonic() + 60 * sweep.asked["minutes"], asked_of(sweep)
    if sweep.trace is None:
        return _end(sweep, ReplayState.FAILED, clock(), fault="The trace was removed.")
    document = zlib.decompress(sweep.trace.document)
    scenario = load(document)
    try:
        interval = interval_of(scenario, None, None if asked.hours is None else asked.hours * HOUR)
    except SweepError:
        return _end(sweep, ReplayState.FAILED, clock(), fault=ONE_MOMENT)
    if fault := arrivals_fault(scenario, asked, interval):
        return _end(sweep, ReplayState.FAILED, clock(), fault=fault)
    types = sorted({node.gpu_type for node in scenario.nodes if node.gpus})
    sweep.terms = {"gpu_types": types, "step": 0 if asked.exact else _step(scenario), **asdict(interval)}
    sweep.seen_at = clock()  # a large trace is read for seconds
    Sweep.objects.filter(pk=sweep.pk).update(terms=sweep.terms, seen_at=sweep.seen_at)
    shares = _shares(asked.points)
    died = 0
    with ExitStack() as stack:
        programs = [stack.enter_context(_program(share, sweep.terms, document)) for share in shares]
        while any(program.is_on for program in programs) and time.monotonic() < latest:
            before = len(sweep.results)
            for program, share in zip(programs, shares, strict=True):
                for message in program.messages():
                    point = share[message["point"]]
                    sweep.results.append([point.policy, point.value, point.seed, message["result"]])
            if not _save(sweep, clock(), more=len(sweep.results) > before):
                return str(ReplayState.CANCELLED)
        died = next((program.code for program in programs if not program.is_on and program.code), 0)
    if died or not sweep.results:
        return _end(sweep, ReplayState.FAILED, clock(), fault=_died(died, len(sweep.results)) if died else NOTHING_IN_TIME)
    return _end(sweep, ReplayState.DONE, clock())


def _died(code: int, played: int) -> str:
    how = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
    after = f" after {plural(played, 'simulation')}" if played else ""
    return f"A process of it {how}{after}. If memory was short, enter fewer hours or lower arrival rates."


def _shares(points: Sequence[Point]) -> list[Sequence[Point]]:
    """One a program: in each the easiest come first. A processor is left to the console."""
    count = max(1, min(MOST_PROGRAMS, (os.cpu_count() or 1) - 1, len(points)))
    return [points[number::count] for number in range(count)]


def _step(scenario: Scenario) -> int:
    drawn = works_drawn(scenario, 0)
    return longest_step(fmean(drawn[job.name] if job.work_ms is None else job.work_ms for job in scenario.jobs))


def _program(share: Sequence[Point], terms: Mapping[str, Any], document: bytes) -> Program:
    points = [[point.policy, point.axis, point.value, point.seed] for point in share]
    asked = {name: terms[name] for name in ("warm_up", "until", "step")} | {"parent": os.getpid(), "points": points}
    return Program("scheduler.services.forecasts.swept", text=json.dumps(asked).encode() + b"\n" + document)


def _save(sweep: Sweep, at: datetime, *, more: bool) -> bool:
    """Whether it goes on."""
    if not more and (at - sweep.seen_at).total_seconds() < 1:
        return True
    sweep.seen_at, facts = at, {"results": sweep.results, "played": len(sweep.results)} if more else {}
    if not Sweep.objects.filter(pk=sweep.pk, state=ReplayState.PLAYING).update(seen_at=at, **facts):
        return False
    if more:
        _tell(sweep)
    return True


def _end(sweep: Sweep, state: ReplayState, at: datetime, *, fault: str = "") -> str:
    """Unless it was cancelled meanwhile."""
    with transaction.atomic():
        ended = Sweep.objects.filter(pk=sweep.pk, state=ReplayState.PLAYING).update(state=state, ended_at=at, fault=fault)
        _tell(sweep)
    return str(state if ended else ReplayState.CANCELLED)


def _tell(sweep: Sweep) -> None:
    feed_publish(changes={"sweeps": [{"id": sweep.pk}]})
