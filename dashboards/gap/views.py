"""The page of the gap, and its chart."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.dateparse import parse_datetime
from django.views.decorators.http import require_safe

from dashboards.fingerprints.told import ahead_told
from dashboards.gap.causes import Cause
from dashboards.gap.figures import CAUSES, DIMENSIONS, HOURS_A_MONTH, WEEK, Dimension, Row, gap_by, gap_report, gap_weeks, sees_costs
from dashboards.gap.rows import GAP_GPUS, filters_asked, gap_behind, gap_days, gpus_behind, rows_presented
from dashboards.gap.store import gap_course, span_for
from dashboards.marks import fleet_marks
from dashboards.presenters import tenths_told
from dashboards.selectors import fleet_size
from dashboards.telemetry.spans import QUARTER, span_begin
from dashboards.weak import weak_told
from gpufleet.core.charts import Chart, Series, chart_response, over_time
from gpufleet.core.live.feed import feed_revision
from gpufleet.core.ranges import Range, range_of
from gpufleet.core.rounding import rounded
from gpufleet.core.times import now
from gpufleet.web import Access, Can, access_of, requires

KEPT = timedelta(days=400)  # hours of the gap are
LONGEST_NAME = 200
LOST = tuple(cause.value for cause in Cause if cause != Cause.COMPUTING)


@require_safe
@requires(Can.SEE)
def gap_page(request: HttpRequest) -> HttpResponse:
    access, moment = access_of(request), now()
    version = feed_revision()
    types = fleet_size()[2]
    gpu_type = asked if (asked := request.GET.get("type", "")) in types else ""
    dimension: Dimension = next((one for one in DIMENSIONS if one == request.GET.get("by")), "team")
    chosen = range_of(request.GET)
    weeks = gap_weeks(now=moment)
    report = gap_report(access, now=moment, weeks=weeks, gpu_type=gpu_type)
    by = gap_by(access, dimension, weeks=weeks, gpu_type=gpu_type, now=moment)
    rows = [_by_row(row, dimension, gpu_type, weeks.until) for row in by]
    seen = [number for number, _ in enumerate(Cause) if any(row["cells"][number]["told"] for row in rows)]
    context = {
        "report": report,
        "told": CAUSES,
        "causes": [_cause(row, gpu_type, report.until) for row in report.causes] if report else [],
        "lost": _totals(report.lost, LOST, gpu_type, report.until) if report else None,
        "whole": _totals(report.whole, (), gpu_type, report.until) if report else None,
        # Causes that no row has are left out here; the table of causes has all.
        "rows": [{**row, "cells": [row["cells"][number] for number in seen]} for row in rows],
        "heads": [CAUSES[list(Cause)[number]].label for number in seen],
        "dimension": dimension,
        "dimensions": DIMENSIONS,
        "types": types,
        "gpu_type": gpu_type,
        "range": chosen,
        "chart": gap_chart(access, chosen, gpu_type, moment),
        "ahead": ahead_told(now=moment, gpu_type=gpu_type),
        "sees_costs": sees_costs(access),
        "weak": weak_told(),
        "version": version,
    }
    return render(request, "dashboards/gap.html", context)


@require_safe
@requires(Can.SEE)
def gap_history(request: HttpRequest) -> HttpResponseBase:
    """The chart for another range or type, or a minute later."""
    answer = chart_response(request, gap_chart(access_of(request), range_of(request.GET), request.GET.get("type", ""), now()), name="gap")
    answer["Cache-Control"] = "no-store"
    return answer


@require_safe
@requires(Can.SEE)
def gap_ahead(request: HttpRequest) -> HttpResponseBase:
    """The chart of the load to come, a minute later. Sums over the fleet tell of no single team."""
    answer = chart_response(request, ahead_told(now=now(), gpu_type=request.GET.get("type", "")).chart, name="load-ahead")
    answer["Cache-Control"] = "no-store"
    return answer


def gap_chart(access: Access, chosen: Range, gpu_type: str, moment: datetime) -> Chart:
    """All GPUs on top of each other, by cause."""
    start = chosen.begin(moment)
    course = gap_course(start, start + chosen.length, step=chosen.step, span=span_for(chosen.step), gpu_type=gpu_type)
    series = [
        Series(
            CAUSES[cause].label,
            [None if step.causes is None else round(step.causes[cause] / 1000, 2) for step in course],
            CAUSES[cause].colour,
            "area",
        )
        for cause in Cause
    ]
    marks, at = fleet_marks(access, since=start, gpu_type=gpu_type), [step.at for step in course]
    return over_time(label=f"All GPUs by what they do, last {chosen.text}", unit="GPUs", at=at, series=series, stacked=True, marks=marks)


@require_safe
@requires(Can.SEE)
def gap_gpus(request: HttpRequest) -> HttpResponseBase:
    """The GPUs behind a figure of the newest snapshot."""
    access = access_of(request)
    behind = gap_behind(access, filters_asked(request.GET), now=now())
    context = {"heading": "GPUs of the gap", "behind": behind, "sees_costs": sees_costs(access), "months": HOURS_A_MONTH}
    context["month_micros"] = None if behind.hour_micros is None else behind.hour_micros * HOURS_A_MONTH
    presented = partial(rows_presented, access, behind)
    answer = GAP_GPUS.respond(request, gpus_behind(behind), "dashboards/gap_gpus.html", context, presented=presented)
    if isinstance(answer, HttpResponse) and answer.has_header("HX-Push-Url"):
        # The list alone is exchanged; what it adds up to stands outside of it and comes along.
        answer.write(render_to_string("dashboards/_gap_counted.html", context | {"apart": True}, request))
    return answer


@require_safe
@requires(Can.SEE)
def gap_week(request: HttpRequest) -> HttpResponse:
    """The days behind a figure of a week."""
    causes = [cause for cause in Cause if cause.value in request.GET.getlist("cause")] or list(Cause)
    wanted = {dimension: name for dimension in DIMENSIONS if (name := request.GET.get(dimension, "")[:LONGEST_NAME])}
    days, week = gap_days(access_of(request), until=_until(request.GET.get("until", "")), causes=causes, wanted=wanted)
    told = {len(Cause): ["All GPUs"], len(LOST): ["GPUs not computing"]}.get(len(causes), [CAUSES[cause].label for cause in causes])
    context = {"days": days, "week": week, "told": ", ".join(told), "of": list(wanted.values())}
    return render(request, "dashboards/gap_week.html", context)


def _until(written: str) -> datetime:
    """The end of a week in an address, else of this week."""
    moment = now()
    try:
        found = parse_datetime(written)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None or not moment - KEPT <= found <= moment:
        found = moment
    return span_begin(found, QUARTER)


def _cause(row: Row, gpu_type: str, until: datetime) -> Mapping[str, Any]:
    return {"key": row.key, **_totals(row, (row.key,), gpu_type, until), "label": CAUSES[Cause(row.key)].label, "told": CAUSES[Cause(row.key)]}


def _totals(row: Row, causes: Sequence[str], gpu_type: str, until: datetime, **of: str) -> dict[str, Any]:
    chosen = {"type": gpu_type} | of
    return {
        "gpus": tenths_told(row.tenths),
        "hour": row.hour_micros,
        "month": row.month_micros,
        "this_week": _gpus(row.this_week),
        "last_week": _gpus(row.last_week),
        "change": _change(row.change),
        "rows": _link("gap-gpus", cause=causes, **chosen),
        "this_week_rows": _link("gap-week", cause=causes, until=until.isoformat(), **chosen),
        "last_week_rows": _link("gap-week", cause=causes, until=(until - WEEK).isoformat(), **chosen),
    }


def _link(name: str, **values: Any) -> str:
    """The address of the rows behind a figure."""
    told = urlencode({key: value for key, value in values.items() if value}, doseq=True)
    return reverse(name) + (f"?{told}" if told else "")


def _gpus(milli: int | None) -> str:
    return "–" if milli is None else tenths_told(rounded([milli], 100)[0])


def _change(milli: int | None) -> str:
    if milli is None:
        return "–"
    told = _gpus(abs(milli))
    return told if told == "0" else f"{'+' if milli > 0 else '−'}{told}"


def _by_row(row: Row, dimension: str, gpu_type: str, until: datetime) -> Mapping[str, Any]:
    assert row.causes is not None
    chosen = {"type": gpu_type, dimension: row.key}
    cells = [
        {"head": CAUSES[cause].label, "told": tenths_told(cell) if cell else "", "rows": _link("gap-gpus", cause=cause, **chosen)}
        for cause, cell in zip(Cause, _within(row), strict=True)
    ]
    lost = _totals(row, LOST, gpu_type, until, **{dimension: row.key})
    return {"key": row.key, "cells": cells, "lost": lost, "gpus": tenths_told(row.tenths), "rows": _link("gap-gpus", **chosen)}


def _within(row: Row) -> list[int]:
    """The row's causes in tenths, which add up to the row as printed."""
    assert row.causes is not None
    parts = [row.causes[cause] for cause in Cause]
    found = rounded(parts, 100)
    # The row itself may have been rounded the other way for the sake of its column.
    step = row.tenths - sum(found)
    for place in sorted(range(len(parts)), key=lambda place: -parts[place]):
        if not step:
            break
        found[place] += step
        step = 0
    return found
