"""Adding traces to the what-if lab, removing them, and reading one again (UI-10)."""

import logging
import zlib
from collections.abc import Sequence
from datetime import datetime
from threading import Lock
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from gpufleet.core.audit import audit_record
from gpufleet.core.faults import Conflict
from gpufleet.core.ids import public_id
from quotas.permissions import Access
from scheduler.engine.model.values import Scenario, Settings
from scheduler.models import Trace
from scheduler.scenarios.reading import load
from scheduler.services.forecasts.what_ifs import must_ask
from scheduler.traces.rows import File, Shape
from scheduler.whatifs.traces import KINDS, TraceRead, TraceRefused, trace_read
from scheduler.whatifs.wanted import NodesThere, nodes_there

log = logging.getLogger(__name__)
MOST_TRACES = 50
LONGEST_NAME = 80
# A large one keeps a processor busy for ten seconds and more: a process of the console reads one at a time.
_reading = Lock()


def trace_add(
    *, access: Access, title: str, kind: str, files: Sequence[File], shapes: Sequence[Shape] = (), limit: int | None = None, now: datetime
) -> Trace:
    """Keep the first `limit` jobs of a trace. Raises ValidationError with what is wrong at `title`, `kind`, `files`, `nodes` and `limit`."""
    must_ask(access)
    if not title.strip():
        raise ValidationError({"title": ["Title is required."]})
    if kind not in KINDS:
        raise ValidationError({"kind": [f"Choose one of {', '.join(KINDS)}."]})
    files = [File(file.name[:LONGEST_NAME], file.text.removeprefix("\ufeff")) for file in files]
    found = _read(kind, files, shapes, limit)
    with transaction.atomic():
        room_for_one()
        made = Trace.objects.create(
            public_id=public_id("tr"),
            title=title.strip()[:LONGEST_NAME],
            kind=kind,
            files=[file.name for file in files],
            created_at=now,
            created_by=access.actor.user,
            **read_columns(found),
        )
        facts = {"title": made.title, "kind": kind, "files": made.files, "jobs": made.jobs, "gpus": made.gpus}
        audit_record(actor=access.actor, action="trace.add", kind="trace", object_id=made.public_id, after=facts)
    return made


def room_for_one() -> None:
    if Trace.objects.count() >= MOST_TRACES:
        raise Conflict(f"There are {MOST_TRACES} traces already. Remove one first.")


def read_columns(found: TraceRead) -> dict[str, Any]:
    """What a trace keeps of what was read."""
    scenario = found.scenario
    return {
        "document": zlib.compress(found.document),
        "fleet": zlib.compress(found.fleet),
        "jobs": len(scenario.jobs),
        "queues": sorted({job.quota for job in scenario.jobs}),
        "nodes": len(scenario.nodes),
        "gpus": sum(node.gpus for node in scenario.nodes),
        "hours": found.hours,
        "left_out": [list(one) for one in found.left_out],
    }


def _read(kind: str, files: Sequence[File], shapes: Sequence[Shape], limit: int | None) -> TraceRead:
    if not _reading.acquire(blocking=False):
        raise Conflict("Another trace is being read just now. Add this one in a moment.")
    try:
        return trace_read(kind, files, shapes, limit)
    except TraceRefused as refused:
        raise ValidationError(refused.faults) from refused
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as fault:  # a file of another kind than the reader foresees
        log.exception("files could not be read as a trace of %s", kind)
        raise ValidationError({"files": [f"The files cannot be read as a trace of {KINDS[kind]} ({type(fault).__name__})."]}) from fault
    finally:
        _reading.release()


def trace_remove(*, access: Access, trace: Trace) -> None:
    """What-ifs of it keep their results."""
    must_ask(access)
    with transaction.atomic():
        before = {"title": trace.title, "kind": trace.kind, "files": trace.files, "jobs": trace.jobs, "gpus": trace.gpus}
        if Trace.objects.filter(pk=trace.pk).delete()[0]:
            audit_record(actor=access.actor, action="trace.remove", kind="trace", object_id=trace.public_id, before=before)


def trace_scenario(trace: Trace) -> Scenario:
    return load(zlib.decompress(trace.document))


def trace_present(trace: Trace) -> tuple[Settings, list[NodesThere]]:
    """What a what-if on the trace's own fleet changes, as it is there."""
    scenario = load(zlib.decompress(trace.fleet))
    return scenario.settings, nodes_there(scenario.nodes)
