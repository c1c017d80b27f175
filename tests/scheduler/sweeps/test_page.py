"""The page of a sweep: one file, with every policy in every chart."""

import json
import re
from collections.abc import Sequence
from typing import Any

from scheduler.sweeps.page import page
from scheduler.sweeps.points import Interval
from scheduler.sweeps.telling import FIGURES, Row, Spread

from ..engine.scenes import H100

HOUR = 3_600_000
NAMES = (*FIGURES, f"allocation:{H100}", f"utilization:{H100}")


def row(policy: str, load: float, *states: str, without: Sequence[str] = ("wait_p95:inference", "wait_p95:interactive")) -> Row:
    of = Spread(7200, 3600, 14400) if "timed out" not in states else None
    counts = tuple((state, states.count(state)) for state in dict.fromkeys(states))
    return Row(policy, load, counts, {name: None if name in without else of for name in NAMES})


def made(title: str = "s.json", notes: Sequence[str] = (), **of_rows: Any) -> str:
    rows = [row(name, 1, "completed", **of_rows) for name in ("stated", "fifo", "type-blind")]
    rows += [row("stated", 2, "completed", "saturated"), row("fifo", 2, "timed out"), row("type-blind", 2, "saturated")]
    return page(title, rows, ["stated: 1"], "load", [H100], Interval(HOUR, 4 * HOUR), notes)


def figures(text: str) -> list[dict]:
    found = re.search(r'id="figures">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_every_chart_has_every_policy_with_its_range_and_marks_what_is_saturated():
    found = figures(made())

    assert len(found) == 8, "six of the fleet, and allocation and utilization of its one GPU type"
    for one in found:
        lines = {line["name"]: line for line in one["figure"]["data"]}
        assert set(lines) == {"stated", "fifo", "type-blind"}
        assert lines["stated"]["marker"]["symbol"] == ["circle", "x"] and lines["type-blind"]["marker"]["symbol"] == ["circle", "x"]
        assert lines["fifo"]["x"] == [1], "a point that timed out has no figures"
    (wait,) = (one["figure"]["data"][0] for one in found if one["figure"]["layout"]["yaxis"]["ticksuffix"] == " h" and one["id"] == "plot-1")
    assert (wait["y"], wait["error_y"]["array"], wait["error_y"]["arrayminus"]) == ([2, 2], [2, 2], [1, 1])


def test_classes_have_a_chart_and_a_column_each_where_jobs_are_of_several():
    one, two = made(), made(without=["wait_p95:interactive"])

    assert "Wait, 95%, batch" not in one and "wait p95 batch" not in one, "it is that of all"
    for text in ("<figcaption>Wait, 95%, {}</figcaption>", "<th>wait p95 {}</th>"):
        assert [name for name in ("inference", "interactive", "batch") if text.format(name) in two] == ["inference", "batch"]
    assert len(figures(two)) == len(figures(one)) + 2


def test_what_older_points_lack_is_a_gap_in_its_charts_and_told():
    lacks = [name for name in NAMES if name.startswith(("wait_p95:", "utilization:", "fairness", "fragmentation"))]
    text = made(notes=["An earlier version played 3 of 6 points."], without=lacks)

    assert "<p>An earlier version played 3 of 6 points.</p>" in text and "<td>-</td>" in text
    (chart,) = (one["figure"]["data"] for one in figures(text) if one["id"] == "plot-7")
    assert {line["name"]: line["x"] for line in chart} == {"stated": [2], "fifo": [], "type-blind": [2]}


def test_it_needs_nothing_else_and_a_name_is_no_markup():
    text = made("</script><b>x")
    without_plotly = re.sub(r"<script>.*</script>", "", text, flags=re.DOTALL)

    assert "<b>x" not in text and "&lt;b&gt;x" in text
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", without_plotly)
    assert "timed out" in without_plotly and "stated: 1" in without_plotly
