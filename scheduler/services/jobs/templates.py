"""Templates of subtrees, and drafts."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.core.exceptions import PermissionDenied, ValidationError
from django.core.validators import validate_slug
from django.db import transaction

from gpufleet.core.audit import audit_record
from gpufleet.core.faults import Conflict
from gpufleet.core.ids import public_id
from quotas.models import QuotaNode
from quotas.permissions import Access
from scheduler.jobs.fields import field_at, steps_of, value_at
from scheduler.jobs.reading import Faults, read_description
from scheduler.jobs.storable import unstorable
from scheduler.jobs.template_rules import SHIPPED_BY_REF
from scheduler.models import JobDraft, JobTemplate, JobTemplateVersion
from scheduler.selectors.templates import may_edit_templates
from scheduler.services.jobs.steering import reason_given

DRAFTS_KEPT = 20
DRAFT_LENGTH = 200_000
LIMIT_KEYS = {"least", "most", "one_of"}


def template_save(
    *,
    access: Access,
    node: QuotaNode,
    name: str,
    title: str,
    about: str = "",
    body: Any,
    locked: Sequence[str] = (),
    limits: Mapping[str, Any] | None = None,
    seen: int = 0,
    reason: str = "",
    now: datetime,
) -> JobTemplateVersion:
    """A new template, or the next version of one. `seen` is the version that was looked at: a newer one is not overwritten."""
    if not may_edit_templates(access, node.path):
        raise PermissionDenied
    limits = limits or {}
    faults = _faults(name, title, about, body, locked, limits, reason)
    if faults:
        raise ValidationError(faults)
    with transaction.atomic():
        template, fresh = JobTemplate.objects.select_for_update().get_or_create(
            node=node, name=name, archived_at=None, defaults={"public_id": public_id("t")}
        )
        last = template.versions.order_by("-number").first()
        if (last.number if last else 0) != seen:
            raise Conflict(f"There is version {last.number} of {name} already." if last else f"There is no version {seen} of {name}.")
        version = JobTemplateVersion.objects.create(
            template=template,
            number=seen + 1,
            title=title.strip(),
            about=about.strip(),
            body=body,
            locked=list(locked),
            limits=dict(limits),
            at=now,
            author_name=access.actor.name,
            reason=reason,
        )
        before = {"version": last.number, "title": last.title, "body": last.body, "locked": last.locked, "limits": last.limits} if last else None
        after = {"version": version.number, "title": version.title, "body": body, "locked": list(locked), "limits": dict(limits)}
        audit_record(
            actor=access.actor,
            action="template.create" if fresh else "template.update",
            kind="template",
            object_id=template.public_id,
            quota=node,
            before=before,
            after=after,
            reason=reason,
        )
    return version


def template_archive(*, access: Access, template: JobTemplate, reason: str, now: datetime) -> None:
    """The template is retired. Existing jobs are unaffected."""
    if not may_edit_templates(access, template.node.path):
        raise PermissionDenied
    cause = reason_given(reason, "")
    with transaction.atomic():
        if not JobTemplate.objects.filter(pk=template.pk, archived_at__isnull=True).update(archived_at=now):
            raise Conflict(f"{template.name} is archived already.")
        audit_record(actor=access.actor, action="template.archive", kind="template", object_id=template.public_id, quota=template.node, reason=cause)


def _faults(name: str, title: str, about: str, body: Any, locked: Sequence[str], limits: Mapping[str, Any], reason: str) -> Faults:
    found: Faults = {}
    try:
        validate_slug(name)
    except ValidationError:
        found["name"] = ["Letters, digits, - and _ are wanted."]
    if len(name) > 60 or name in SHIPPED_BY_REF:
        found["name"] = ["At most 60 characters." if len(name) > 60 else "A shipped template has this name."]
    if not title.strip() or len(title) > 120:
        found["title"] = ["It needs a title of at most 120 characters."]
    if len(about) > 300:
        found["about"] = ["At most 300 characters."]
    if len(reason) > 280:
        found["reason"] = ["At most 280 characters."]
    if not isinstance(body, Mapping):
        return found | {"body": ["Keys with values are wanted, as in the description of a job."]}
    if wrong := unstorable(body):
        return found | {f"body.{path}": messages for path, messages in wrong.items()}
    read = read_description({"name": "job", "quota": "none", **body} | ({} if "roles" in body or "gpus" in body else {"gpus": 1}))
    found |= {f"body.{path}": messages for path, messages in read.faults.items()}
    if "template" in body:
        found["body.template"] = ["A template names no other one."]
    for path in locked:
        if field_at(path) is None:
            found[f"locked.{path}"] = [f"{path} is not a key of a job description."]
        elif value_at(body, steps_of(path)) is None:
            found[f"locked.{path}"] = [f"The template has no value for {path}; a locked field needs one."]
    for path, limit in limits.items():
        if field_at(path) is None:
            found[f"limits.{path}"] = [f"{path} is not a key of a job description."]
        elif not isinstance(limit, Mapping) or not limit or not limit.keys() <= LIMIT_KEYS:
            found[f"limits.{path}"] = ["least, most or one_of are wanted."]
        elif any(not isinstance(limit[key], int | float) for key in ("least", "most") if key in limit) or not isinstance(
            limit.get("one_of", []), list
        ):
            found[f"limits.{path}"] = ["least and most are numbers, one_of is a list."]
    return found


def draft_save(*, access: Access, public: str, name: str, text: str, repeat: Mapping[str, str] | None = None, now: datetime) -> JobDraft:
    """Keep what somebody types, and when it is to recur: under its id, or anew where there is none of it. The oldest beyond twenty go."""
    user = access.actor.user
    if user is None:
        raise PermissionDenied
    typed = [text, name, *(repeat or {}).values()]
    if sum(map(len, typed)) > DRAFT_LENGTH or any("\0" in one for one in typed):
        raise ValidationError({"yaml": [f"A draft has at most {DRAFT_LENGTH:,} characters."]})
    with transaction.atomic():
        draft = JobDraft.objects.filter(user=user, public_id=public).first() or JobDraft(user=user, public_id=public_id("d"))
        draft.name, draft.text, draft.repeat, draft.saved_at = name[:120], text, dict(repeat or {}), now
        draft.save()
        kept = JobDraft.objects.filter(user=user).order_by("-saved_at", "-id").values_list("id", flat=True)[:DRAFTS_KEPT]
        JobDraft.objects.filter(user=user).exclude(id__in=list(kept)).delete()
    return draft


def draft_delete(*, access: Access, public: str) -> bool:
    return bool(access.actor.user and JobDraft.objects.filter(user=access.actor.user, public_id=public).delete()[0])
