"""Pictures of numbers: charts that the browser draws, and small ones (sparklines, bullets) that come as SVG with the page."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django import template
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from gpufleet.core.charts import Chart, chart_document, figure_json
from gpufleet.core.ranges import RANGES, Range
from gpufleet.core.templatetags.shell import NOTHING, gpus, gpus_tenths, moment

register = template.Library()

WIDTH, HEIGHT = 120, 24


@register.inclusion_tag("_chart.html")
def chart(chart: Chart, source: str = "", size: str = "normal") -> dict[str, Any]:
    """`{% chart utilization source=url %}`; `source` answers the same chart for another range (`chart_response`). `size`: low, normal or high."""
    document = figure_json({key: value for key, value in chart_document(chart).items() if key not in ("table", "legend")})
    # As Django's json_script does: nothing in a text may end the element.
    safe = document.replace("<", "\\u003C").replace(">", "\\u003E").replace("&", "\\u0026")
    return {"chart": chart, "source": source, "size": size, "document": mark_safe(safe)}  # noqa: S308 - escaped in the line above


@register.inclusion_tag("_chart_ranges.html")
def chart_ranges(
    chosen: Range,
    keys: str = "",
    offered: Sequence[Range] | None = None,
    types: Sequence[str] = (),
    gpu_type: str = "",
    measures: Sequence[Any] = (),
    measure: Any = None,
    kept: Sequence[tuple[str, str]] = (),
) -> dict[str, Any]:
    """`{% chart_ranges range %}`: one picker for all charts of a page; `keys="24h 7d 30d"`, or `offered`, offers these alone.

    With `types` a GPU type can be chosen beside the range, with `measures` (each with `key` and `label`) what the charts show. `kept` is what else
    the address of the page says.
    """
    ranges = offered or [one for one in RANGES if not keys or one.key in keys.split()]
    chosen_beside = {"types": types, "gpu_type": gpu_type, "measures": measures, "measure": measure}
    return {"chosen": chosen, "ranges": ranges, "kept": kept, **chosen_beside}


@register.filter
def chart_cell(value: Any) -> str | SafeString:
    """A cell of a chart's table: moments as everywhere, numbers with at most one decimal, `–` where there is none."""
    if isinstance(value, datetime):
        return moment(value, "absolute")
    if value is None:
        return NOTHING
    if isinstance(value, int | float):
        return f"{value:,.1f}".removesuffix(".0")
    return str(value)


@register.simple_tag
def sparkline(values: Sequence[float | None], label: str, tone: str = "used", most: float | None = None) -> SafeString:
    """A line without axes, from 0 to `most` (the largest value). A gap in the values is a gap in the line."""
    known = [value for value in values if value is not None]
    if not known:
        return format_html('<span class="nothing" title="{}: no data">{}</span>', label, NOTHING)
    top = max(most or 0, *known) or 1
    step = WIDTH / max(1, len(values) - 1)
    runs: list[list[str]] = [[]]
    for number, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            runs[-1].append(f"{number * step:.1f},{(HEIGHT - 1) - value / top * (HEIGHT - 2):.1f}")
    # A lone reading is drawn as a dash, which a line of one point would not show.
    lines = format_html_join("", '<polyline points="{}"></polyline>', ((" ".join(run if len(run) > 1 else [run[0], run[0]]),) for run in runs if run))
    return format_html(
        '<svg class="spark spark-{}" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>',
        tone,
        WIDTH,
        HEIGHT,
        label,
        lines,
    )


@register.inclusion_tag("_sheet_spark.html")
def sheet_spark(chart: Chart) -> dict[str, Any]:
    """`{% sheet_spark chart %}`: what computes, of a chart that the page has, as a sparkline with the newest value and its time, as
    other figures on the page may be newer; only the sheet shows it."""
    place = next((number for number, column in enumerate(chart.columns) if column.colour == "used"), 1)
    values = [row[place] for row in chart.rows]
    newest, at = next(((row[place], row[0]) for row in reversed(chart.rows) if row[place] is not None), (None, None))
    told = NOTHING if newest is None else f"{chart_cell(newest)}{'%' if chart.unit == '%' else f' {chart.unit}'}"
    most = 100 if chart.unit == "%" else max((value for row in chart.rows for value in row[1:] if value is not None), default=None)
    return {"chart": chart, "name": chart.columns[place].name, "values": values, "most": most, "newest": told, "at": at if chart.over_time else None}


@register.simple_tag
def bullet(
    used: int, *, guaranteed: int | None = None, borrowed: int = 0, waiting: int = 0, limit: int | None = None, whole: int = 0, label: str = ""
) -> SafeString:
    """One bar of milli-GPU: used (of it borrowed), waiting behind it, a mark at the guarantee and one at the limit, on a ground of `whole`."""
    span = max(used + waiting, guaranteed or 0, limit or 0, whole, 1)

    def at(milli: int) -> str:
        return f"{milli * 1000 / span:.0f}"

    own = max(0, used - borrowed)
    parts = [("own", 0, own), ("borrowed", own, used - own), ("waiting", used, waiting)]
    rects = format_html_join(
        "", '<rect class="bullet-{}" x="{}" width="{}" y="6" height="12"></rect>', ((name, at(x), at(width)) for name, x, width in parts if width > 0)
    )
    marks = format_html_join(
        "",
        '<rect class="bullet-{}" x="{}" width="4" y="1" height="22"></rect>',
        ((name, f"{min(996, milli * 1000 / span):.0f}") for name, milli in (("guarantee", guaranteed), ("limit", limit)) if milli is not None),
    )
    told = [f"{gpus_tenths(used)} used"]
    told += [f"{gpus_tenths(borrowed)} borrowed"] if borrowed else []
    told += [f"{gpus(guaranteed)} guaranteed"] if guaranteed is not None else []
    told += [f"limit {gpus(limit)}"] if limit is not None else []
    told += [f"{gpus_tenths(waiting)} waiting"] if waiting else []
    text = f"{label}: {', '.join(told)}" if label else ", ".join(told)
    return format_html(
        '<svg class="bullet" viewBox="0 0 1000 24" preserveAspectRatio="none" role="img" aria-label="{}"><title>{}</title>'
        '<rect class="bullet-ground" width="1000" y="6" height="12"></rect>{}{}</svg>',
        text,
        text,
        rects,
        marks,
    )
