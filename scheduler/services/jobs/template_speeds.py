"""Speeds of templates by GPU type: stated by people, or adopted from what completed runs measured."""

from collections.abc import Mapping
from datetime import datetime

from django.core.exceptions import PermissionDenied, ValidationError
from django.db import IntegrityError, transaction

from gpufleet.core.audit import audit_record
from gpufleet.core.faults import Conflict, text_faults
from quotas.models import QuotaNode
from quotas.permissions import Access
from scheduler.jobs.template_rules import Template
from scheduler.jobs.template_speeds import normalised, speeds_faults
from scheduler.models import GpuType, TemplateSpeeds
from scheduler.selectors.template_speeds import may_state_speeds, speeds_of, stated_all

REASON_LENGTH = 280
BY_DESCRIPTION = "The description of the template states throughput, which counts; change it there."


def speeds_state(
    *, access: Access, template: Template, speeds: Mapping[str, float], seen: int = 0, reason: str = "", now: datetime
) -> TemplateSpeeds:
    """What jobs of the template are given from now on; nothing stated takes all back. `seen` is the number that was looked at, as with templates."""
    _must(access, template, reason)
    faults = speeds_faults(speeds, set(GpuType.objects.values_list("name", flat=True)))
    if faults:
        raise ValidationError({f"speeds.{name}" if name else "speeds": said for name, said in faults.items()})
    return _write(access, template, normalised(speeds), {}, seen, reason, now)


def speeds_adopt(*, access: Access, template: Template, seen: int = 0, reason: str = "", now: datetime) -> TemplateSpeeds:
    """What completed runs measured is stated, of all types with runs enough; the others keep their relation to them."""
    _must(access, template, reason)
    (row,) = speeds_of(access, [template], now=now)
    if not row.adoptable:
        raise ValidationError({"speeds": ["Not enough is measured: 3 completed runs on each of two GPU types are needed."]})
    return _write(access, template, row.adoptable, row.adopted_runs, seen, reason, now)


def _must(access: Access, template: Template, reason: str) -> None:
    if not may_state_speeds(access, template):
        raise PermissionDenied
    if faults := text_faults(reason, REASON_LENGTH):
        raise ValidationError(faults)
    if template.body.get("throughput") is not None:
        raise ValidationError({"speeds": [BY_DESCRIPTION]})


def _write(
    access: Access, template: Template, speeds: Mapping[str, float], runs: Mapping[str, int], seen: int, reason: str, now: datetime
) -> TemplateSpeeds:
    last = next(iter(stated_all(template)), None)
    number = last.number if last else 0
    if number != seen:
        raise Conflict(f"The speeds were changed since: they are number {number} now." if number else "No speeds are stated yet.")
    row = TemplateSpeeds(
        template=template.key, number=seen + 1, speeds=dict(speeds), runs=dict(runs), at=now, author_name=access.actor.name, reason=reason.strip()
    )
    with transaction.atomic():
        try:
            with transaction.atomic():
                row.save(force_insert=True)
        except IntegrityError:
            raise Conflict(f"The speeds were changed since: they are number {seen + 1} now.") from None
        audit_record(
            actor=access.actor,
            action="template.speeds",
            kind="template",
            object_id=template.key,
            quota=QuotaNode.objects.filter(path=template.quota).first() if template.quota else None,
            before={"number": last.number, "speeds": last.speeds, "runs": last.runs} if last else None,
            after={"number": row.number, "speeds": row.speeds, "runs": row.runs},
            reason=row.reason,
        )
    return row
