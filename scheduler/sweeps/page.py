"""`sweep.html`: the charts and the table of a sweep as one file that needs nothing else, neither network nor console."""

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from .points import Axis, Interval
from .policies import BASELINES
from .telling import FLEET, HOUR_S, Row, Spread, classes_of, parts_of, table_of

# Okabe and Ito's colours, which those who see few colours tell apart; the baselines are grey.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b")
OF_BASELINES = {"fifo": ("#444444", "dash"), "type-blind": ("#8a8a8a", "dot")}
SATURATED = "x"

STYLE = """
body { margin: 0 auto; max-width: 1240px; padding: 16px 20px 40px; font: 14px/1.45 system-ui, sans-serif; color: #1b1f24; background: #fff; }
h1 { font-size: 22px; margin: 8px 0 4px; } h2 { font-size: 16px; margin: 28px 0 6px; } p { margin: 4px 0; color: #4a525a; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 560px), 1fr)); gap: 16px; margin-top: 16px; }
figure { margin: 0; min-width: 0; border: 1px solid #d5dae0; border-radius: 6px; padding: 10px 10px 4px; }
figcaption { font-weight: 600; } .plot { height: 320px; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; white-space: nowrap; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 10px; text-align: right; border-bottom: 1px solid #e3e7eb; } th { text-align: right; color: #4a525a; font-weight: 600; }
th:nth-child(1), td:nth-child(1), th:nth-child(3), td:nth-child(3) { text-align: left; }
"""
DRAW = """
for (const one of JSON.parse(document.getElementById("figures").textContent))
  Plotly.newPlot(one.id, one.figure.data, one.figure.layout, {responsive: true, displaylogo: false, displayModeBar: false});
"""
Figure = tuple[str, str, str, float]  # title, which figure, unit, and by what it is multiplied


def page(
    title: str, rows: Sequence[Row], knees: Sequence[str], axis: Axis, types: Sequence[str], interval: Interval, notes: Sequence[str] = ()
) -> str:
    import plotly.offline
    from plotly.io.json import to_json_plotly

    figures: list[Figure] = [
        ("Allocation", "allocation", "%", 100.0),
        ("Wait, 95%", "wait_p95", "h", 1 / HOUR_S),
        *((f"Wait, 95%, {name}", f"wait_p95:{name}", "h", 1 / HOUR_S) for name in classes_of(rows)),
        *((f"Allocation, {name}", f"allocation:{name}", "%", 100.0) for name in types),
        ("Utilization", "utilization", "%", 100.0),
        *((f"Utilization, {name}", f"utilization:{name}", "%", 100.0) for name in types),
        ("Completion time, mean", "completion", "h", 1 / HOUR_S),
        ("Finish-time fairness, mean", "fairness", "", 1.0),
        ("Fragmentation", "fragmentation", "%", 100.0),
    ]
    made = [{"id": f"plot-{number}", "figure": _figure(rows, axis, one)} for number, one in enumerate(figures)]
    # "<" would end the script early where a name has a tag in it.
    drawn = str(to_json_plotly(made)).replace("<", "\\u003c")
    charts = "".join(
        f'<figure><figcaption>{escape(one[0])}</figcaption><div class="plot" id="plot-{number}"></div></figure>' for number, one in enumerate(figures)
    )
    heads, *lines = table_of(rows, axis, [*FLEET, *parts_of(rows, types)])
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>" for line in lines)
    hours = [f"{length / 3_600_000:.1f}" for length in (interval.warm_up, interval.end, interval.until)]
    said = (
        f"Measured from {hours[0]} h to {hours[1]} h of {hours[2]} h, the same for every point.",
        "Lines are means over seeds; bars reach from the lowest to the highest seed.",
        "A cross is saturated in at least one seed.",
        *notes,
    )
    parts = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">',
        f"<title>{escape(title)} · sweep</title><style>{STYLE}</style></head>",
        f"<body><h1>{escape(title)}</h1>",
        *(f"<p>{escape(line)}</p>" for line in said),
        "<h2>Knee</h2>",
        *(f"<p>{escape(line)}</p>" for line in knees),
        f'<div class="charts">{charts}</div>',
        f'<h2>Points</h2><div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>',
        f'<script type="application/json" id="figures">{drawn}</script>',
        f"<script>{plotly.offline.get_plotlyjs()}</script><script>{DRAW}</script></body></html>",
    )
    return "\n".join(parts) + "\n"


def _figure(rows: Sequence[Row], axis: Axis, of: Figure) -> dict[str, Any]:
    _, name, unit, factor = of
    policies = list(dict.fromkeys(row.policy for row in rows))
    own = [policy for policy in policies if policy not in BASELINES]
    data = []
    for policy in policies:
        colour, dash = OF_BASELINES.get(policy) or (COLOURS[own.index(policy) % len(COLOURS)], "solid")
        known = [(row, spread) for row in rows if row.policy == policy and (spread := row.figures[name]) is not None]

        def each(value: Callable[[Spread], float], known: Sequence[tuple[Row, Spread]] = known) -> list[float]:
            return [round(factor * value(spread), 4) for _, spread in known]

        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": policy,
                "x": [row.value for row, _ in known],
                "y": each(lambda one: one.mean),
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": each(lambda one: one.most - one.mean),
                    "arrayminus": each(lambda one: one.mean - one.least),
                    "thickness": 1,
                    "width": 3,
                },
                "line": {"color": colour, "dash": dash, "width": 2},
                "marker": {"size": 9, "symbol": [_symbol(row) for row, _ in known]},
                "text": [row.state for row, _ in known],
                "hovertemplate": f"%{{y:.1f}} {unit} · %{{text}}" if unit else "%{y:.2f} · %{text}",
            }
        )
    return {
        "data": data,
        "layout": {
            "margin": {"l": 52, "r": 12, "t": 10, "b": 84},
            "hovermode": "x unified",
            "legend": {"orientation": "h", "y": -0.24},
            "xaxis": {
                "title": {"text": "load" if axis == "load" else "nodes"},
                "tickvals": sorted({row.value for row in rows}),
                "gridcolor": "#eceff2",
            },
            "yaxis": {"rangemode": "tozero", "ticksuffix": f" {unit}" if unit == "h" else unit, "gridcolor": "#eceff2"},
            "font": {"family": "system-ui, sans-serif", "size": 12, "color": "#1b1f24"},
            "plot_bgcolor": "#fff",
            "paper_bgcolor": "#fff",
        },
    }


def _symbol(row: Row) -> str:
    return SATURATED if any(state == "saturated" for state, _ in row.states) else "circle"
