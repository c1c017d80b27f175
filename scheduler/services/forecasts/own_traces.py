"""Traces of this fleet's own past (SIM-2): asked for and written by a worker, or as a file while its reader waits where few jobs came.

Whoever may start a what-if keeps the past of the whole fleet, as a what-if of the last days replays it: figures are of the whole fleet, and
queues are told to readers who see them. A file names all of them, so that it is for those who see every subtree.
"""

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from gpufleet.core.audit import audit_record
from gpufleet.core.faults import Conflict
from gpufleet.core.ids import public_id
from gpufleet.core.live.feed import feed_publish
from quotas.permissions import Access, Can
from scheduler.models import BEING_WRITTEN, Trace, TraceState
from scheduler.services.forecasts.came import submitted_by
from scheduler.services.forecasts.history import history
from scheduler.services.forecasts.traces import read_columns, room_for_one
from scheduler.services.forecasts.what_ifs import must_ask
from scheduler.traces import MOST_OWN_DAYS
from scheduler.whatifs.traces import MOST_JOBS, OWN, TraceRefused, own_read

DIRECT_JOBS = 5_000  # up to so many a file is written while its reader waits
LONGEST_TITLE = 80
FAULT_LENGTH = 300


def own_trace_ask(*, access: Access, days: int, now: datetime, begin: Callable[[int], Any], title: str = "") -> Trace:
    """A trace of the last days, which a worker writes; `begin` is given its key after the commit. One at a time is written."""
    must_ask(access)
    came = _came(days, now)
    if not came:
        raise ValidationError({"days": [f"No job was submitted or ran in the last {_days(days)}."]})
    if came > MOST_JOBS:
        raise ValidationError({"days": [f"{came:,} jobs came in the last {_days(days)}; at most {MOST_JOBS:,} are kept. Choose fewer days."]})
    with transaction.atomic():
        room_for_one()
        if any(not one.is_lost(now) for one in Trace.objects.filter(state__in=BEING_WRITTEN).only("state", "created_at")):
            raise Conflict("Another trace of this fleet's past is being written. Wait until it is ready.")
        made = Trace.objects.create(
            public_id=public_id("tr"),
            title=(title.strip() or f"Last {_days(days)} before {now:%Y-%m-%d}")[:LONGEST_TITLE],
            kind=OWN,
            days=days,
            state=TraceState.WAITING,
            document=b"",
            fleet=b"",
            jobs=0,
            nodes=0,
            gpus=0,
            hours=0,
            created_at=now,
            created_by=access.actor.user,
        )
        facts = {"title": made.title, "kind": OWN, "days": days}
        audit_record(actor=access.actor, action="trace.add", kind="trace", object_id=made.public_id, after=facts)
        _tell(made)
        transaction.on_commit(lambda: begin(made.pk))
    return made


def own_past_file(*, access: Access, days: int, now: datetime) -> bytes:
    """A scenario of the last days. Raises Conflict where so many jobs came that a worker is to write it."""
    must_ask(access)
    access.must_everywhere(Can.SEE)
    if (came := _came(days, now)) > DIRECT_JOBS:
        how = "Add them as a trace, and download its file."
        raise Conflict(f"{came:,} jobs came in the last {_days(days)}; a file of more than {DIRECT_JOBS:,} takes long. {how}")
    return history(length=timedelta(days=days), now=now, left_out=Counter())


def own_trace_write(*, key: int, clock: Callable[[], datetime]) -> str | None:
    """Returns the state that it ended with; None where somebody else writes it or it was removed."""
    if not Trace.objects.filter(pk=key, state=TraceState.WAITING).update(state=TraceState.WRITING):
        return None
    trace = Trace.objects.filter(pk=key).first()
    if trace is None or trace.days is None:
        return None
    _tell(trace)
    left_out = Counter[str]()
    try:
        document = history(length=timedelta(days=trace.days), now=clock(), left_out=left_out)
        facts = read_columns(own_read(document, left_out))
    except TraceRefused as refused:
        return _end(trace, TraceState.FAILED, fault=str(refused)[:FAULT_LENGTH])
    except Exception as fault:
        _end(trace, TraceState.FAILED, fault=f"Internal error ({type(fault).__name__}). The log has the details.")
        raise
    return _end(trace, TraceState.DONE, **facts)


def _came(days: int, now: datetime) -> int:
    if not 0 < days <= MOST_OWN_DAYS:
        raise ValidationError({"days": [f"Enter 1 to {MOST_OWN_DAYS} days."]})
    return submitted_by(now, timedelta(days=days)).count()


def _days(count: int) -> str:
    return "day" if count == 1 else f"{count} days"


def _end(trace: Trace, state: TraceState, **facts: Any) -> str | None:
    with transaction.atomic():
        written = Trace.objects.filter(pk=trace.pk, state=TraceState.WRITING).update(state=state, **facts)
        _tell(trace)
    return state if written else None


def _tell(trace: Trace) -> None:
    feed_publish(changes={"traces": [{"id": trace.pk}]})
