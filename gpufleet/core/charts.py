"""Charts: figures made with plotly's Python API, drawn by static/js/charts.js, and readable as a table without scripts.

A page shows a chart with `{% chart chart source=url %}` (templatetags/charts.py). The view behind `source` returns `chart_response(request, chart)`:
the same chart for another range as JSON, or as CSV with `?format=csv`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import groupby
from operator import attrgetter
from types import ModuleType
from typing import Any, Literal

import numpy as np
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.template.loader import render_to_string

from gpufleet.core import csvfile

TABLE_ROWS = 48
# Whoever reads marks for a chart reads one more than that, which says that there are older ones.
MOST_MARKS = 1000
MARKS_LISTED = 200
# Marks closer than this part of the axis are one: six pixels of a chart that is 720 wide.
MARK_PLACES = 120
MARKS_NAMED = 3
# Of more their lines are faint, as they would hide what they are about.
MARKS_APART = 20
MARK_LENGTH = 80
BAND_PERCENT = 30  # of its colour

Value = float | int | None


@dataclass(frozen=True, slots=True)
class Series:
    """One line, area or set of bars. `colour` is the name of a colour in tokens.css; None in `values` is a gap, never a zero.

    `low` and the `high` that follows it are the edges in which 80% lie, drawn as a band.
    """

    name: str
    values: Sequence[Value]
    colour: str
    kind: Literal["line", "area", "bar", "low", "high"] = "line"
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """An event on the time axis: a node drained, a quota changed."""

    at: datetime
    text: str


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table: what is in it, and the colour of its series where it has one."""

    name: str
    colour: str = ""
    dashed: bool = False
    is_flat: bool = False  # an area of which nothing is seen, or an edge of a band


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure and the same numbers as a table. `label` is what a screen reader says; `rows` begin with a moment or a name."""

    label: str
    unit: str
    figure: dict[str, Any]
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    marks: tuple[Mark, ...] = ()  # the latest first
    keys: tuple[Column, ...] = ()  # what the legend tells beside the columns
    has_older_marks: bool = False  # than those that were read

    @property
    def is_empty(self) -> bool:
        return all(value is None for row in self.rows for value in row[1:])

    @property
    def over_time(self) -> bool:
        return bool(self.rows) and isinstance(self.rows[0][0], datetime)

    @property
    def legend(self) -> tuple[Column, ...]:
        seen = [column for column in self.columns if column.colour and not column.is_flat] if len(self.columns) > 2 else []
        return (*seen, *self.keys)

    @property
    def marks_listed(self) -> tuple[Mark, ...]:
        return self.marks[:MARKS_LISTED]

    @property
    def marks_left_out(self) -> int:
        """How many are marked, but not in the list."""
        return max(0, len(self.marks) - MARKS_LISTED)

    @property
    def table(self) -> list[tuple[Any, ...]]:
        """At most 48 rows, the newest first: over time each is the mean of the points that it covers."""
        if not self.over_time:
            return list(self.rows)
        stride = max(1, -(-len(self.rows) // TABLE_ROWS))
        parts = (self.rows[begin : begin + stride] for begin in range(0, len(self.rows), stride))
        return [(part[0][0], *(_mean(column) for column in zip(*(row[1:] for row in part), strict=True))) for part in parts][::-1]


def _mean(values: Iterable[Value]) -> Value:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


@cache
def _plotly() -> ModuleType:
    """Imported with the first chart: it takes half a second, which commands and workers without charts need not wait for."""
    import plotly.graph_objects as graph_objects
    import plotly.io

    plotly.io.templates.default = None
    return graph_objects


def _numbers(values: Sequence[Value]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([np.nan if value is None else value for value in values], dtype=float)


def _colour(name: str) -> str:
    return f"var(--{name})"


def over_time(
    *,
    label: str,
    unit: str,
    at: Sequence[datetime],
    series: Sequence[Series],
    stacked: bool = False,
    steps: bool = False,
    marks: Sequence[Mark] = (),
    most: Value = None,
) -> Chart:
    """Lines, or areas on top of each other, over time. Where no series has a value the ground is hatched as "no data".

    `steps`: each value holds until the next one, and nothing is in between.

    Of more than `MOST_MARKS` marks only the latest are told. Those that would touch on the axis are drawn as one.
    """
    found = sorted(marks, key=attrgetter("at", "text"), reverse=True)
    marks = found[:MOST_MARKS]
    groups = _grouped(marks[::-1], (max(at[-1], found[0].at) - at[0]) / MARK_PLACES) if marks and at else []
    go = _plotly()
    times = np.array([moment.astimezone(UTC).replace(tzinfo=None) for moment in at], dtype="datetime64[s]")
    figure = go.Figure(layout={"xaxis": {"type": "date"}, "yaxis": {"rangemode": "tozero", "ticksuffix": "%" if unit == "%" else ""}})
    if most is not None:
        figure.layout.yaxis.range = [0, float(most) * 1.04 or 1.0]
    known = _known(series)
    for one in series:
        colour = _colour(one.colour)
        filled = stacked and one.kind == "area"
        # What is stacked counts as zero where it is not known: before the first moment and after the last it would seem to rise, and to fall.
        shown = known if filled else slice(None)
        of_band = one.kind in ("low", "high")
        figure.add_trace(
            go.Scatter(
                x=times[shown],
                y=_numbers(one.values)[shown],
                name=_text(one.name),
                mode="lines",
                line={"color": colour, "width": 0 if filled or of_band else 2, "dash": "dot" if one.dashed else "solid"}
                | ({"shape": "hv"} if steps else {}),
                stackgroup="all" if filled else None,
                fill="tonexty" if one.kind == "high" else None if filled or one.kind != "area" else "tozeroy",
                fillcolor=_colour(f"{one.colour}, {BAND_PERCENT}%") if one.kind == "high" else colour if one.kind == "area" else None,
                hovertemplate=f"%{{y:,.3~f}}{'%' if unit == '%' else ' ' + unit}",
            )
        )
    gaps = _gaps(times, series)
    figure.update_layout(shapes=[*gaps, *(_line(group[0], is_faint=len(groups) > MARKS_APART) for group in groups)])
    if groups:
        figure.add_trace(_events(go, groups))
        # Plotly leaves room beside markers: the charts of a page would no longer share their axis.
        ends = (at[0], max(at[-1], found[0].at))
        figure.layout.xaxis.range = [moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds") for moment in ends]
        figure.update_layout(yaxis2={"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True})
    rows = tuple(zip(at, *(one.values for one in series), strict=True))
    columns = (Column("Time"), *(Column(one.name, one.colour, one.dashed, _is_unkeyed(one, stacked=stacked)) for one in series))
    bands = (Column("80% range", one.colour, dashed=True) for one in series if one.kind == "high")
    keys = (*bands, *([Column("No data", "gap")] if gaps else []))
    return Chart(label, unit, figure.to_plotly_json(), columns, rows, tuple(marks), keys, len(found) > MOST_MARKS)


def _is_unkeyed(one: Series, *, stacked: bool) -> bool:
    """Whether the legend has nothing of its own for a series."""
    return one.kind in ("low", "high") or (stacked and not any(one.values))


def _known(series: Sequence[Series]) -> slice:
    """From the first moment at which any series has a value up to the last."""
    numbers = [number for one in series for number, value in enumerate(one.values) if value is not None]
    return slice(min(numbers), max(numbers) + 1) if numbers else slice(0, 0)


def _gaps(times: np.ndarray[Any, Any], series: Sequence[Series]) -> list[dict[str, Any]]:
    """Runs of moments at which no series has a value."""
    dark = [all(one.values[number] is None for one in series) for number in range(len(times))]
    runs = (list(run) for is_dark, run in groupby(range(len(times)), key=dark.__getitem__) if is_dark)
    return [
        {
            "type": "rect",
            "xref": "x",
            "yref": "paper",
            "x0": str(times[max(0, run[0] - 1)]),
            "x1": str(times[min(len(times) - 1, run[-1] + 1)]),
            "y0": 0,
            "y1": 1,
            "line": {"width": 0},
            "fillcolor": _colour("hatch"),
            "opacity": 0.25,
            "layer": "below",
        }
        for run in runs
    ]


def _grouped(marks: Sequence[Mark], room: timedelta) -> list[list[Mark]]:
    """The marks, given by time, with those together that lie within `room` of the first of them."""
    groups: list[list[Mark]] = []
    for mark in marks:
        if groups and mark.at - groups[-1][0].at <= room:
            groups[-1].append(mark)
        else:
            groups.append([mark])
    return groups


def _events(go: ModuleType, groups: Sequence[Sequence[Mark]]) -> Any:
    """A small triangle on top of each line, a larger one where it stands for several events; their texts are shown with the values of that moment."""
    return go.Scatter(
        x=np.array([group[0].at.astimezone(UTC).replace(tzinfo=None) for group in groups], dtype="datetime64[s]"),
        y=np.ones(len(groups)),
        yaxis="y2",
        name="Event",
        mode="markers",
        marker={"symbol": "triangle-down", "size": [9 if len(group) == 1 else 13 for group in groups], "color": _colour("ink-soft")},
        text=[_told(group) for group in groups],
        hovertemplate="%{text}<extra></extra>",
        cliponaxis=False,
    )


def _text(typed: str) -> str:
    """Texts come from people: plotly reads a small part of HTML in them, and they are no part of it."""
    return typed.replace("<", "‹").replace(">", "›")


def _told(group: Sequence[Mark]) -> str:
    """The event; of several their count, the first of them and how many more there are."""
    texts = [_text(mark.text) for mark in group]
    if len(texts) == 1:
        return texts[0]
    named = [text if len(text) <= MARK_LENGTH else f"{text[: MARK_LENGTH - 1]}…" for text in texts[:MARKS_NAMED]]
    more = [f"and {len(texts) - MARKS_NAMED:,} more"] if len(texts) > MARKS_NAMED else []
    return "<br>".join([f"{len(texts):,} events", *named, *more])


def _line(mark: Mark, *, is_faint: bool) -> dict[str, Any]:
    at = mark.at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds")
    line = {"width": 1, "dash": "dot", "color": _colour("ink-soft")}
    return {"type": "line", "xref": "x", "yref": "paper", "x0": at, "x1": at, "y0": 0, "y1": 1, "line": line, "opacity": 0.35 if is_faint else 1}


def bars(
    *,
    label: str,
    unit: str,
    first: str,
    names: Sequence[str],
    series: Sequence[Series],
    stacked: bool = False,
    across: bool = False,
    each_named: bool = False,
) -> Chart:
    """Bars by name; `across`: lying, for long names; `each_named`: none is left out on the axis, however little room there is.

    `first` heads the column of names in the table.
    """
    go = _plotly()
    figure = go.Figure(layout={"barmode": "stack" if stacked else "group"})
    named, counted = ("yaxis", "xaxis") if across else ("xaxis", "yaxis")
    figure.update_layout({named: {"type": "category"}, counted: {"rangemode": "tozero"}})
    if across:
        figure.layout.yaxis.autorange = "reversed"
    if each_named:
        figure.layout[named].dtick = 1
    for one in series:
        values = _numbers(one.values)
        shown = [_text(name) for name in names]
        figure.add_trace(
            go.Bar(
                x=values if across else shown,
                y=shown if across else values,
                orientation="h" if across else "v",
                name=one.name,
                marker={"color": _colour(one.colour)},
                hovertemplate=f"%{{{'x' if across else 'y'}:,.2~f}} {unit}",
            )
        )
    rows = tuple(zip(names, *(one.values for one in series), strict=True))
    return Chart(label, unit, figure.to_plotly_json(), (Column(first), *(Column(one.name, one.colour) for one in series)), rows)


def heat_map(*, label: str, unit: str, at: Sequence[datetime], names: Sequence[str], values: Sequence[Sequence[Value]], most: float) -> Chart:
    """A row of cells over time for each name, from 0 to `most`; a cell without a value stays empty. In the table each name is a column."""
    go = _plotly()
    scale = [[step / 9, _colour(f"heat-{step}")] for step in range(10)]
    figure = go.Figure(layout={"yaxis": {"type": "category", "autorange": "reversed"}, "xaxis": {"type": "date"}})
    cells = np.array([_numbers(row) for row in values]) if values else np.empty((0, len(at)))
    shown = [_text(name) for name in names]
    times = np.array([moment.astimezone(UTC).replace(tzinfo=None) for moment in at], dtype="datetime64[s]")
    said = "%" if unit == "%" else f" {unit}"
    told = f"%{{y}}, %{{x}}: %{{z:,.1~f}}{said}<extra></extra>"
    figure.add_trace(go.Heatmap(z=cells, x=times, y=shown, zmin=0, zmax=most, xgap=1, ygap=1, showscale=False, hovertemplate=told))
    # The scale is set behind plotly's back, as it takes no variable for a colour of a scale; charts.js puts the colours in.
    made = figure.to_plotly_json()
    made["data"][0]["colorscale"] = scale
    rows = tuple(zip(at, *values, strict=True)) if values else tuple((moment,) for moment in at)
    keys = tuple(Column(f"{most * step / 9:,.0f}{said}", f"heat-{step}") for step in (0, 3, 6, 9))
    return Chart(label, unit, made, (Column("Time"), *(Column(name) for name in names)), rows, keys=keys)


def chart_response(request: HttpRequest, chart: Chart, *, name: str = "chart") -> HttpResponseBase:
    """The chart as `static/js/charts.js` asks for it, or as a file with `?format=csv`."""
    if request.GET.get("format") == "csv":
        header = [column.name if not number else f"{column.name} ({chart.unit})" for number, column in enumerate(chart.columns)]
        return csvfile.answer(request, f"{name}.csv", header, lambda _: (chart.rows, ""), tuple)
    return HttpResponse(figure_json(chart_document(chart)), content_type="application/json")


def chart_document(chart: Chart) -> Mapping[str, Any]:
    """What the script draws: the figure, its label, and the table as it stands in the page."""
    table = render_to_string("_chart_table.html", {"chart": chart})
    legend = render_to_string("_chart_legend.html", {"chart": chart})
    return {"label": chart.label, "empty": chart.is_empty, "figure": chart.figure, "table": table, "legend": legend}


def figure_json(document: Mapping[str, Any]) -> str:
    """Plotly's own encoder: it knows arrays, and what has no value becomes null."""
    from plotly.io.json import to_json_plotly

    return str(to_json_plotly(document))
