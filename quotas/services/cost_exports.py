"""Files of a month or of another period that take long: asked for, written by a worker, downloaded by who asked until they expire.

A file is in the data folder, for the console's own user alone. Its link is signed and expires with it; at each download the caller's present rights
have to cover all that is in the file.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.signing import Signer
from django.db import transaction
from django.db.models import QuerySet
from django.http import Http404
from django.utils.crypto import constant_time_compare

from gpufleet.core.audit import SYSTEM, audit_record
from gpufleet.core.faults import Conflict, Missing
from gpufleet.core.ids import public_id
from gpufleet.core.live.feed import feed_publish
from quotas.chargeback.exports import FORMATS
from quotas.chargeback.files import File, file_name, file_of, months_for
from quotas.chargeback.periods import Period
from quotas.chargeback.report import lines_seen
from quotas.models import EXPORTING, ChargeMonth, CostExport, ExportState
from quotas.permissions import Access, Can, Grant

DIRECT_LINES = 20_000  # up to so many lines a file is written while its reader waits
MOST_AT_ONCE = 5
LOST_AFTER = timedelta(minutes=10)  # what has not gone on for so long was lost with its worker
TOLD_EVERY = 1.0
TRIES = 3
FAULT_LENGTH = 300
_PIECE = 1 << 16


class Gone(Exception):
    """The export was given up while it was written."""


def exports_folder() -> Path:
    return Path(settings.DATA_DIR) / "exports"


def period_of(export: CostExport) -> Period:
    return Period(export.first, export.last)


def path_of(export: CostExport) -> Path:
    return exports_folder() / export.public_id


# Asking


def export_ask(
    *, access: Access, period: Period, kind: str, by: str = "team", users: bool = False, now: datetime, begin: Callable[[int], Any]
) -> CostExport:
    """`begin` is given the key after the commit. What the file will hold is what the caller may see now."""
    months_for(access, period, kind, by)
    with transaction.atomic():
        if exports_listed(access).filter(state__in=EXPORTING).count() >= MOST_AT_ONCE:
            raise Conflict(f"{MOST_AT_ONCE} exports of yours are being written. Wait until one of them is ready.")
        made = CostExport.objects.create(
            public_id=public_id("ce"),
            first=period.first,
            last=period.last,
            format=kind,
            by=by,
            users=users,
            scope=list(access.paths(Can.SEE_COSTS)),
            asked_by=access.actor.user,
            asked_name=access.actor.name,
            asked_at=now,
            seen_at=now,
        )
        facts = {"period": str(period), "format": kind, "users": users, "subtrees": made.scope}
        audit_record(actor=access.actor, action="cost_export.ask", kind="cost_export", object_id=made.public_id, after=facts)
        _tell(made)
        transaction.on_commit(lambda: begin(made.pk))
    return made


def exports_listed(access: Access) -> QuerySet[CostExport]:
    """The caller's own, the newest first."""
    access.must_somewhere(Can.SEE_COSTS)
    own = CostExport.objects.filter(asked_by=access.actor.user) if access.actor.user else CostExport.objects.none()
    return own.order_by("-id")


def export_for(access: Access, given: str) -> CostExport:
    found = exports_listed(access).filter(public_id=given).first()
    if found is None:
        raise Http404(f"There is no export {given}.")
    return found


def is_ready(export: CostExport, now: datetime) -> bool:
    return export.state == ExportState.DONE and export.expires_at is not None and now < export.expires_at


def _tell(export: CostExport) -> None:
    feed_publish(changes={"cost_exports": [{"id": export.pk}]})


# Downloading


def key_of(export: CostExport) -> str:
    """What a link to the file is signed with."""
    assert export.expires_at is not None
    return Signer(salt="cost-export").signature(f"{export.public_id}:{export.expires_at.isoformat()}")


def export_file(access: Access, given: str, key: str, *, now: datetime) -> File:
    export = export_for(access, given)
    if export.state == ExportState.EXPIRED or (export.expires_at is not None and export.expires_at <= now):
        raise Missing(f"The file of {given} has expired. Export the costs again.")
    if export.state != ExportState.DONE:
        raise Missing(f"The file of {given} is not ready: its state is {export.state}.")
    if not constant_time_compare(key, key_of(export)):
        raise Missing(f"This link to {given} is not valid. Copy it whole, or open the list of exports.")
    for path in export.scope:
        if not access.can(Can.SEE_COSTS, path):
            raise access.refusal(Can.SEE_COSTS, path=path, otherwise="The file holds costs that you can no longer see.")
    try:
        file = path_of(export).open("rb")
    except FileNotFoundError:
        raise Missing(f"The file of {given} is gone. Export the costs again.") from None

    def pieces() -> Any:
        with file:
            while piece := file.read(_PIECE):
                yield piece

    content_type, _ = FORMATS.get(export.format, FORMATS["csv"])
    return File(file_name(period_of(export), export.format), content_type, pieces())


# Writing


def export_write(*, key: int, clock: Callable[[], datetime]) -> str | None:
    """Returns the state that it ended with; None where somebody else writes it."""
    moment = clock()
    if not CostExport.objects.filter(pk=key, state=ExportState.WAITING).update(state=ExportState.WRITING, seen_at=moment):
        return None
    export = CostExport.objects.get(pk=key)
    access = Access(SYSTEM, tuple(Grant(path, frozenset({Can.SEE_COSTS})) for path in export.scope))
    try:
        written = _write(export, access, clock)
    except Gone:
        _part(export).unlink(missing_ok=True)
        return None
    except BaseException as error:
        _end(export, clock(), state=ExportState.FAILED, fault=f"{type(error).__name__}: {error}"[:FAULT_LENGTH])
        _part(export).unlink(missing_ok=True)
        raise
    moment = clock()
    expires = moment + timedelta(hours=settings.EXPORT_HOURS)
    _end(export, moment, state=ExportState.DONE, expires_at=expires, **written)
    return ExportState.DONE


def _end(export: CostExport, moment: datetime, **facts: Any) -> None:
    with transaction.atomic():
        CostExport.objects.filter(pk=export.pk, state=ExportState.WRITING).update(ended_at=moment, seen_at=moment, **facts)
        _tell(export)


def _part(export: CostExport) -> Path:
    return exports_folder() / f"{export.public_id}.part"


def _write(export: CostExport, access: Access, clock: Callable[[], datetime]) -> dict[str, int]:
    """What its file holds. An estimate that is rated anew while it is written is written again, so that all its lines are of one time."""
    exports_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    period, part = period_of(export), _part(export)
    for tried in range(1, TRIES + 1):
        before = _rated_to(period)
        lines = lines_seen(access, period).count()
        CostExport.objects.filter(pk=export.pk).update(of_lines=lines)
        file = file_of(access, period, export.format, by=export.by, users=export.users, now=clock(), told=_Told(export, clock))
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            for piece in file.pieces:
                out.write(piece)
            size = out.tell()
        if tried == TRIES or _rated_to(period) == before:
            break
    part.replace(path_of(export))
    return {"size": size, "lines": lines}


def _rated_to(period: Period) -> Any:
    return list(ChargeMonth.objects.filter(first__in=period.months).order_by("first").values_list("first", "rated_to", "closed_at"))


class _Told:
    """Writes down every second how many lines are written, and ends the writing when the export was given up meanwhile."""

    def __init__(self, export: CostExport, clock: Callable[[], datetime]) -> None:
        self.export, self.clock = export, clock
        self.at = time.monotonic()

    def __call__(self, lines: int) -> None:
        if time.monotonic() - self.at < TOLD_EVERY:
            return
        self.at = time.monotonic()
        with transaction.atomic():
            if not CostExport.objects.filter(pk=self.export.pk, state=ExportState.WRITING).update(lines=lines, seen_at=self.clock()):
                raise Gone
            _tell(self.export)


# Sweeping


def exports_sweep(*, now: datetime) -> int:
    """Files that have expired go, and those that no export knows; exports that were lost with their worker are told as failed."""
    lost = CostExport.objects.filter(state__in=EXPORTING, seen_at__lt=now - LOST_AFTER)
    lost.update(state=ExportState.FAILED, ended_at=now, fault=f"It did not go on for {LOST_AFTER // timedelta(minutes=1)} minutes.")
    CostExport.objects.filter(state=ExportState.DONE, expires_at__lte=now).update(state=ExportState.EXPIRED)
    gone = 0
    with suppress(FileNotFoundError):
        names = sorted(entry.name for entry in exports_folder().iterdir())
        known = CostExport.objects.filter(public_id__in=[name.removesuffix(".part") for name in names])
        kept = {
            name if state == ExportState.DONE else f"{name}.part"
            for name, state in known.filter(state__in=(ExportState.DONE, ExportState.WRITING)).values_list("public_id", "state")
        }
        for name in names:
            if name not in kept:
                (exports_folder() / name).unlink(missing_ok=True)
                gone += 1
    return gone
