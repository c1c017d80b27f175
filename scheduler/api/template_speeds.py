"""Speeds of templates by GPU type over HTTP. Registered before the templates, whose address takes any path."""

from datetime import datetime
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from ninja import Query, Router, Schema
from pydantic import Field

from gpufleet.core.taken import Taken
from gpufleet.core.times import now
from gpufleet.web import Can, access_of
from quotas.permissions import Access
from scheduler.api.lists import answered
from scheduler.api.templates import TemplatesQuery
from scheduler.jobs.template_rules import Template
from scheduler.models import TemplateSpeeds
from scheduler.selectors.template_speeds import SpeedsOf, speeds_of, stated_all
from scheduler.selectors.templates import template_named, templates_page
from scheduler.services.jobs.template_speeds import speeds_adopt, speeds_state

router = Router(tags=["Templates"])


class SpeedOut(Schema):
    """One GPU type. `measured` stands beside what is stated: on `anchor` of the row both are equal."""

    gpu_type: str
    stated: float | None = Field(description="Null counts as 1; 0 is never used.")
    measured: float | None
    low: float | None = Field(description="The middle half of the runs begins here.")
    high: float | None
    runs: int
    enough: bool = Field(description="Whether there are runs enough to adopt it.")
    differs: bool = Field(description="Whether what is measured contradicts what is stated.")


class SpeedsOut(Schema):
    ref: str
    title: str
    number: int = Field(description="Of what is stated; 0: nothing ever was. It goes into `seen`.")
    source: str | None = Field(description="`stated`, `adopted` (measured), or `description` (the template's own throughput); null for nothing.")
    by: str | None
    at: datetime | None
    reason: str
    speeds: list[SpeedOut]
    anchor: str | None
    runs: int = Field(description="Completed runs that count; those without one alike on another type are not compared.")
    adoptable: dict[str, float] = Field(description="What would be stated if the measured speeds were adopted; empty where too little is measured.")
    may_edit: bool


class MatrixOut(Schema):
    """`next` goes into `after`; null where there is nothing more."""

    items: list[SpeedsOut]
    next: str | None


class StatedOut(Schema):
    number: int
    at: datetime
    by: str
    reason: str
    speeds: dict[str, float]
    runs: dict[str, int] = Field(description="On how many runs each measured speed rests; empty where a person stated them.")


class SpeedsDetailOut(SpeedsOut):
    history: list[StatedOut]


class SpeedsIn(Taken):
    """`speeds` in any scale: the fastest becomes 1. None at all take back what is stated. `adopt` states what was measured instead."""

    ref: str = Field(max_length=700)
    speeds: dict[str, float] = Field(default_factory=dict, max_length=50)
    adopt: bool = False
    seen: int = Field(0, ge=0)
    reason: str = Field("", max_length=280)


@router.get("/templates/throughput", response=MatrixOut, url_name="throughputs", summary="Speeds of templates by GPU type")
def throughputs(request: HttpRequest, asked: Query[TemplatesQuery]) -> HttpResponse:
    """In the order of the templates. Measured from completed runs that the caller may see."""
    access = access_of(request)
    access.must_somewhere(Can.SEE)
    rows, following = templates_page(access, size=asked.size, after=asked.after)
    return answered({"items": [_facts(one) for one in speeds_of(access, rows, now=now())], "next": following or None})


@router.put("/templates/throughput", response=SpeedsDetailOut, url_name="throughput_put", summary="State speeds of a template")
def throughput_put(request: HttpRequest, body: SpeedsIn) -> HttpResponse:
    """409 if they were changed since `seen`. Jobs submitted from then on are given them."""
    access = access_of(request)
    access.must_somewhere(Can.SEE)
    found = _named(access, body.ref)
    if body.adopt:
        speeds_adopt(access=access, template=found, seen=body.seen, reason=body.reason, now=now())
    else:
        speeds_state(access=access, template=found, speeds=body.speeds, seen=body.seen, reason=body.reason, now=now())
    return answered(_detail(access, found))


@router.get("/templates/throughput/{path:ref}", response=SpeedsDetailOut, url_name="throughput", summary="Speeds of a template with their history")
def throughput(request: HttpRequest, ref: str) -> HttpResponse:
    access = access_of(request)
    access.must_somewhere(Can.SEE)
    return answered(_detail(access, _named(access, ref)))


def _named(access: Access, ref: str) -> Template:
    found = template_named(access, ref.partition("@")[0])
    if found is None:
        raise Http404
    return found


def _detail(access: Access, found: Template) -> dict[str, Any]:
    (one,) = speeds_of(access, [found], now=now())
    return _facts(one) | {"history": [_stated(row) for row in stated_all(found)]}


def _stated(row: TemplateSpeeds) -> dict[str, Any]:
    return {"number": row.number, "at": row.at, "by": row.author_name, "reason": row.reason, "speeds": row.speeds, "runs": row.runs}


def _facts(one: SpeedsOf) -> dict[str, Any]:
    row = None if one.by_description else one.row
    counts = row is not None and bool(row.speeds)
    source = "description" if one.by_description else ("adopted" if row is not None and row.runs else "stated") if counts else None
    return {
        "ref": one.template.ref,
        "title": one.template.title,
        "number": one.number,
        "source": source,
        "by": row.author_name if row else None,
        "at": row.at if row else None,
        "reason": row.reason if row else "",
        "speeds": [_speed(one, name) for name in sorted({*one.stated, *one.measured})],
        "anchor": one.anchor or None,
        "runs": one.counted,
        "adoptable": dict(one.adoptable),
        "may_edit": one.may_edit,
    }


def _speed(one: SpeedsOf, name: str) -> dict[str, Any]:
    measured = one.measured.get(name)
    return {
        "gpu_type": name,
        "stated": one.stated.get(name),
        "measured": round(measured.speed, 6) if measured else None,
        "low": round(measured.low, 6) if measured else None,
        "high": round(measured.high, 6) if measured else None,
        "runs": measured.runs if measured else 0,
        "enough": bool(measured and measured.is_enough),
        "differs": name in one.differing,
    }
