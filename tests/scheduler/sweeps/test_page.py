"""The page of a sweep: one file, with every policy in every chart."""

import json
import re

from scheduler.sweeps.page import page
from scheduler.sweeps.points import Interval
from scheduler.sweeps.telling import Row, Spread

from ..engine.scenes import H100

HOUR = 3_600_000
NAMES = ("allocation", "utilization", "wait_p50", "wait_p95", "completion", "preemptions", f"allocation:{H100}")


def row(policy: str, load: float, *states: str) -> Row:
    of = Spread(7200, 3600, 14400) if "timed out" not in states else None
    return Row(policy, load, tuple((state, states.count(state)) for state in dict.fromkeys(states)), dict.fromkeys(NAMES, of))


def made(title: str = "s.json") -> str:
    rows = [row(name, 1, "completed") for name in ("stated", "fifo", "type-blind")]
    rows += [row("stated", 2, "completed", "saturated"), row("fifo", 2, "timed out"), row("type-blind", 2, "saturated")]
    return page(title, rows, ["stated: 1"], "load", [H100], Interval(HOUR, 4 * HOUR))


def figures(text: str) -> list[dict]:
    found = re.search(r'id="figures">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_every_chart_has_every_policy_with_its_range_and_marks_what_is_saturated():
    found = figures(made())

    assert len(found) == 5, "four of the fleet, and the allocation of its one GPU type"
    for one in found:
        lines = {line["name"]: line for line in one["figure"]["data"]}
        assert set(lines) == {"stated", "fifo", "type-blind"}
        assert lines["stated"]["marker"]["symbol"] == ["circle", "x"] and lines["type-blind"]["marker"]["symbol"] == ["circle", "x"]
        assert lines["fifo"]["x"] == [1], "a point that timed out has no figures"
    (wait,) = (one["figure"]["data"][0] for one in found if one["figure"]["layout"]["yaxis"]["ticksuffix"] == " h" and one["id"] == "plot-1")
    assert (wait["y"], wait["error_y"]["array"], wait["error_y"]["arrayminus"]) == ([2, 2], [2, 2], [1, 1])


def test_it_needs_nothing_else_and_a_name_is_no_markup():
    text = made("</script><b>x")
    without_plotly = re.sub(r"<script>.*</script>", "", text, flags=re.DOTALL)

    assert "<b>x" not in text and "&lt;b&gt;x" in text
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", without_plotly)
    assert "timed out" in without_plotly and "stated: 1" in without_plotly
