"""The page of the gap, and its chart."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboards.gap.causes import Cause
from dashboards.gap.figures import CAUSES, DIMENSIONS, Row, gap_by, gap_report, sees_costs
from dashboards.gap.store import gap_course, span_for
from dashboards.presenters import tenths_told
from dashboards.selectors import fleet_size
from dashboards.weak import weak_clusters
from gpufleet.core.charts import Chart, Series, chart_response, over_time
from gpufleet.core.live.feed import feed_revision
from gpufleet.core.ranges import Range, range_of
from gpufleet.core.rounding import rounded
from gpufleet.core.times import now
from gpufleet.web import Can, access_of, requires


@require_safe
@requires(Can.SEE)
def gap_page(request: HttpRequest) -> HttpResponse:
    access, moment = access_of(request), now()
    version = feed_revision()
    types = fleet_size()[2]
    gpu_type = asked if (asked := request.GET.get("type", "")) in types else ""
    dimension = asked if (asked := request.GET.get("by", "")) in DIMENSIONS else "team"
    chosen = range_of(request.GET)
    report = gap_report(access, now=moment, gpu_type=gpu_type)
    rows = gap_by(access, dimension, gpu_type=gpu_type, now=moment)  # type: ignore[arg-type]
    context = {
        "report": report,
        "told": CAUSES,
        "causes": [_cause(row) for row in report.causes] if report else [],
        "lost": _totals(report.lost) if report else None,
        "whole": _totals(report.whole) if report else None,
        "rows": [_by_row(row) for row in rows],
        "heads": [CAUSES[cause].label for cause in Cause],
        "dimension": dimension,
        "dimensions": DIMENSIONS,
        "types": types,
        "gpu_type": gpu_type,
        "range": chosen,
        "chart": gap_chart(chosen, gpu_type, moment),
        "sees_costs": sees_costs(access),
        "weak": list(weak_clusters().values()),
        "version": version,
    }
    return render(request, "dashboards/gap.html", context)


@require_safe
@requires(Can.SEE)
def gap_history(request: HttpRequest) -> HttpResponseBase:
    """The chart for another range or type, or a minute later."""
    answer = chart_response(request, gap_chart(range_of(request.GET), request.GET.get("type", ""), now()), name="gap")
    answer["Cache-Control"] = "no-store"
    return answer


def gap_chart(chosen: Range, gpu_type: str, moment: datetime) -> Chart:
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
    return over_time(label=f"All GPUs by what they do, last {chosen.text}", unit="GPUs", at=[step.at for step in course], series=series, stacked=True)


def _cause(row: Row) -> Mapping[str, Any]:
    return {"key": row.key, **_totals(row), "label": CAUSES[Cause(row.key)].label, "told": CAUSES[Cause(row.key)]}


def _totals(row: Row) -> dict[str, Any]:
    return {
        "gpus": tenths_told(row.tenths),
        "hour": row.hour_micros,
        "month": row.month_micros,
        "this_week": _gpus(row.this_week),
        "last_week": _gpus(row.last_week),
        "change": _change(row.change),
    }


def _gpus(milli: int | None) -> str:
    return "–" if milli is None else tenths_told(rounded([milli], 100)[0])


def _change(milli: int | None) -> str:
    if milli is None:
        return "–"
    told = _gpus(abs(milli))
    return told if told == "0" else f"{'+' if milli > 0 else '−'}{told}"


def _by_row(row: Row) -> Mapping[str, Any]:
    assert row.causes is not None
    cells: Sequence[int] = _within(row)
    return {"key": row.key, "gpus": tenths_told(row.tenths), "cells": [tenths_told(cell) if cell else "" for cell in cells], "hour": row.hour_micros}


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
