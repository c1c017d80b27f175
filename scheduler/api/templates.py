"""Templates over HTTP."""

from datetime import datetime
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from ninja import Query, Router, Schema
from pydantic import Field

from gpufleet.core.taken import Storable, Taken
from gpufleet.core.times import now
from gpufleet.web import Can, access_of
from quotas.models import QuotaNode
from scheduler.api.lists import answered
from scheduler.jobs.fields import steps_of, value_at
from scheduler.jobs.template_rules import Template
from scheduler.selectors.templates import may_edit_templates, template_named, template_versions, templates_page
from scheduler.services.jobs.templates import template_archive, template_save

router = Router(tags=["Templates"])


class FieldOut(Schema):
    """`value` is what a locked field is kept at; `said` is for people: `8 to 64`."""

    path: str
    locked: bool
    value: Any = None
    least: float | None
    most: float | None
    one_of: list[Any] | None
    said: str


class TemplateOut(Schema):
    """`ref` is what a description names as its `template`. `quota` is null for a shipped one."""

    ref: str
    title: str
    about: str
    quota: str | None
    version: int
    body: dict[str, Any]
    locked: list[str]
    limits: dict[str, dict[str, Any]]
    fields: list[FieldOut] = Field(description="What may not be changed, or only within bounds, as the form says it at each field.")
    may_edit: bool


class TemplatesOut(Schema):
    """`next` goes into `after`; null where there is nothing more."""

    items: list[TemplateOut]
    next: str | None


class TemplatesQuery(Schema):
    size: int | None = Field(None, ge=1, le=1000, description="Rows of a page; left out: all at once.")
    after: str = Field("", max_length=2000, description="The `next` of the page before.")


class VersionOut(Schema):
    version: int
    at: datetime
    by: str
    reason: str
    title: str
    about: str
    body: dict[str, Any]
    locked: list[str]
    limits: dict[str, dict[str, Any]]


class TemplateDetailOut(TemplateOut):
    versions: list[VersionOut]


class TemplateIn(Storable, Schema):
    """`seen` is the version that was read; 0 for a new template. `body` is a description as far as it is given."""

    quota: str = Field(max_length=500)
    name: str = Field(max_length=100)
    title: str = Field(max_length=200, json_schema_extra={"minLength": 1, "maxLength": 120})
    about: str = Field("", max_length=400, json_schema_extra={"maxLength": 300})
    body: dict[str, Any]
    locked: list[str] = Field(default_factory=list, max_length=100)
    limits: dict[str, dict[str, Any]] = Field(default_factory=dict)
    seen: int = Field(0, ge=0)
    reason: str = Field("", max_length=280)


class ArchiveIn(Taken):
    ref: str = Field(max_length=700)
    reason: str = Field("", max_length=280)


@router.get("/templates", response=TemplatesOut, url_name="templates", summary="Templates")
def templates(request: HttpRequest, asked: Query[TemplatesQuery]) -> HttpResponse:
    """The shipped ones, and those of subtrees that the caller sees or submits to."""
    access = access_of(request)
    access.must_somewhere(Can.SEE)
    rows, following = templates_page(access, size=asked.size, after=asked.after)
    items = [_facts(one, bool(one.quota) and may_edit_templates(access, one.quota)) for one in rows]
    return answered({"items": items, "next": following or None})


@router.put("/templates", response=TemplateOut, url_name="template_save", summary="A new template, or the next version of one")
def template_put(request: HttpRequest, body: TemplateIn) -> HttpResponse:
    """409 if there is a newer version than `seen`."""
    access = access_of(request)
    access.must_somewhere(Can.SEE)
    node = get_object_or_404(QuotaNode.objects.filter(access.visible(Can.SEE), archived_at__isnull=True), path=body.quota)
    facts = body.dict()
    facts.pop("quota")
    version = template_save(access=access, node=node, now=now(), **facts)
    found = template_named(access, f"{node.path}:{version.template.name}")
    assert found is not None
    return answered(_facts(found, True))


@router.post("/templates/archive", response=TemplateOut, url_name="template_archive", summary="Retire a template")
def template_gone(request: HttpRequest, body: ArchiveIn) -> HttpResponse:
    access = access_of(request)
    access.must_somewhere(Can.SEE)
    found = template_named(access, body.ref)
    version = template_versions(access, body.ref)[0]
    template_archive(access=access, template=version.template, reason=body.reason, now=now())
    assert found is not None
    return answered(_facts(found, False))


@router.get("/templates/{path:ref}", response=TemplateDetailOut, url_name="template", summary="A template with its versions")
def template(request: HttpRequest, ref: str) -> HttpResponse:
    access = access_of(request)
    access.must_somewhere(Can.SEE)
    found = template_named(access, ref)
    if found is None:
        raise Http404
    versions = template_versions(access, found.ref) if found.quota else []
    told = [
        {"version": one.number, "at": one.at, "by": one.author_name, "reason": one.reason}
        | {"title": one.title, "about": one.about, "body": one.body, "locked": one.locked, "limits": one.limits}
        for one in versions
    ]
    return answered(_facts(found, bool(found.quota) and may_edit_templates(access, found.quota)) | {"versions": told})


def _facts(found: Template, may_edit: bool) -> dict[str, Any]:
    return {
        "ref": found.ref,
        "title": found.title,
        "about": found.about,
        "quota": found.quota or None,
        "version": found.version,
        "body": dict(found.body),
        "locked": list(found.locked),
        "limits": {path: dict(limit) for path, limit in found.limits.items()},
        "fields": _fields(found),
        "may_edit": may_edit,
    }


def _fields(found: Template) -> list[dict[str, Any]]:
    empty: dict[str, Any] = {"locked": False, "value": None, "least": None, "most": None, "one_of": None, "said": ""}
    locked = [empty | {"path": path, "locked": True, "value": value_at(found.body, steps_of(path)), "said": "locked"} for path in found.locked]
    return locked + [empty | {"path": path, **found.limits[path], "said": said} for path, said in found.bounds.items()]
