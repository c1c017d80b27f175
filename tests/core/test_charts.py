"""Charts as the server makes them: what is drawn, what the table and the file say, and that no text of a person becomes markup."""

import base64
import json
import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import numpy as np
import pytest
from django.template import Context, Template
from django.test import RequestFactory
from hypothesis import given
from hypothesis import strategies as st
from plotly.offline import get_plotlyjs_version

from gpufleet.core.charts import MOST_MARKS, Chart, Mark, Series, bars, chart_document, chart_response, figure_json, heat_map, over_time
from gpufleet.core.ranges import RANGES, range_of
from gpufleet.core.templatetags.charts import bullet, sparkline
from tests.servers import PROJECT

NOON = datetime(2026, 11, 24, 12, tzinfo=UTC)
VALUES = st.lists(st.none() | st.floats(0, 1e6) | st.integers(0, 10**6), min_size=1, max_size=200)


def chart(values, **more) -> Chart:
    at = [NOON + timedelta(minutes=number) for number in range(len(values))]
    return over_time(label="Use", unit="GPUs", at=at, series=[Series("Allocated", values, "held", kind="area")], **more)


def numbers(packed: dict) -> list[float]:
    """What plotly packed for the browser."""
    return np.frombuffer(base64.b64decode(packed["bdata"]), dtype=packed["dtype"]).tolist()


def shown(made: Chart) -> str:
    return Template("{% load charts %}{% chart made source='/x?team=a' %}").render(Context({"made": made}))


@given(VALUES)
def test_a_missing_value_is_a_gap_and_never_a_zero(values):
    figure = chart(values).figure

    assert [value is None for value in values] == [np.isnan(value) for value in numbers(figure["data"][0]["y"])]


@given(VALUES)
def test_the_table_has_at_most_48_rows_and_the_mean_of_what_they_cover(values):
    made = chart(values)

    known = [value for value in values if value is not None]
    assert len(made.table) <= 48
    assert [row[0] for row in made.table] == sorted((row[0] for row in made.table), reverse=True)
    for row in made.table:
        assert row[1] is None or min(known) - 1e-6 <= row[1] <= max(known) + 1e-6


def test_a_stack_neither_rises_from_nothing_nor_falls_to_it_where_it_is_not_known():
    first, last = "2026-11-24T12:01:00", "2026-11-24T12:03:00"
    drawn = chart([None, 1, None, 3, None], stacked=True).figure["data"][0]

    assert [str(at) for at in (drawn["x"][0], drawn["x"][-1])] == [first, last]
    assert len(numbers(drawn["y"])) == 3


def test_a_time_without_any_value_is_hatched():
    shapes = chart([1, 2, None, None, 3]).figure["layout"]["shapes"]

    assert [(shape["x0"], shape["x1"]) for shape in shapes] == [("2026-11-24T12:01:00", "2026-11-24T12:04:00")]
    assert "No data</li>" in shown(chart([1, None, 3]))
    assert "No data</li>" not in shown(chart([1, 2, 3]))


def test_a_heat_map_tells_its_scale():
    made = heat_map(label="Use", unit="%", at=[NOON], names=["GPU 0"], values=[[40]], most=100)

    assert [(key.name, key.colour) for key in made.legend] == [("0%", "heat-0"), ("33%", "heat-3"), ("67%", "heat-6"), ("100%", "heat-9")]


def test_an_event_is_a_line_on_the_axis():
    made = chart([1, 2], marks=[Mark(NOON, "n1 <b>drained</b>")])

    assert made.figure["layout"]["shapes"][0]["type"] == "line"
    assert made.figure["data"][-1]["text"] == ["n1 ‹b›drained‹/b›"]
    assert "n1 &lt;b&gt;drained" in shown(made)


def marked(*marks):
    """A chart of two hours, on which a minute is a place for a mark."""
    at = [NOON, NOON + timedelta(hours=2)]
    return over_time(label="SM", unit="%", at=at, series=[Series("SM", [1, 2], "used")], marks=marks)


def minutes_on(minutes, text="n1: Node down"):
    return Mark(NOON + timedelta(minutes=minutes), text)


def test_events_that_would_touch_are_drawn_as_one_that_lists_them():
    made = marked(
        *(minutes_on(30 + number / 10, f"n{number}: <i>Node</i> {'x' * 90 if number == 1 else 'down'}") for number in range(5)), minutes_on(90)
    )

    events = made.figure["data"][-1]
    assert [str(at) for at in events["x"]] == ["2026-11-24T12:30:00", "2026-11-24T13:30:00"]
    assert len([shape for shape in made.figure["layout"]["shapes"] if shape["type"] == "line"]) == 2
    group, alone = events["text"]
    assert group.split("<br>") == ["5 events", "n0: ‹i›Node‹/i› down", f"n1: ‹i›Node‹/i› {'x' * 63}…", "n2: ‹i›Node‹/i› down", "and 2 more"]
    assert alone == "n1: Node down"
    assert events["marker"]["size"][0] > events["marker"]["size"][1]
    assert [mark.at for mark in made.marks] == sorted((mark.at for mark in made.marks), reverse=True)
    assert [f"n{number}: &lt;i&gt;Node" in shown(made).partition("data-plot-table")[2] for number in range(5)] == [True] * 5


@given(st.lists(st.integers(0, 7200), max_size=300))
def test_every_event_is_in_one_mark_and_no_two_marks_touch(seconds):
    made = marked(*(minutes_on(second / 60, "e") for second in seconds))

    if not seconds:
        return
    events = made.figure["data"][-1]
    counts = [int(text.split()[0]) if text != "e" else 1 for text in events["text"]]
    assert sum(counts) == len(made.marks) == len(seconds)
    assert all((after - before).astype(int) > 60 for before, after in pairwise(events["x"]))
    assert len(counts) <= 121


def test_a_chart_says_which_events_it_leaves_out():
    few, many, most = (marked(*(minutes_on(number / 10) for number in range(count))) for count in (200, 203, MOST_MARKS + 5))

    assert shown(few).count("Node down</li>") == 200
    assert "older events" not in shown(few)
    assert shown(many).count("Node down</li>") == 200
    assert "and 3 older events</li>" in shown(many)
    assert f"and 800 older events. Only the latest {MOST_MARKS} events are marked." in shown(most)
    assert len(most.marks) == MOST_MARKS
    assert most.marks[0] == minutes_on((MOST_MARKS + 4) / 10), "the latest are told"


@pytest.mark.parametrize("text", ["</script><script>alert(1)</script>", "<b>x</b>", "a & b"])
def test_names_of_people_are_text(text):
    made = bars(label=text, unit="$", first="Team", names=[text], series=[Series("Cost", [1], "used")])

    page = shown(made)
    document = re.search(r"<script[^>]*>(.*?)</script>", page, re.S)

    assert document is not None
    assert json.loads(document.group(1))["label"] == text
    assert "<script>alert" not in page
    assert "<b>" not in json.dumps(json.loads(figure_json(chart_document(made)))["figure"])


def test_a_chart_of_nothing_says_so():
    assert "No data in this range." in shown(chart([None, None]))


def test_the_file_has_every_point_and_the_unit():
    answer = chart_response(RequestFactory().get("/", {"format": "csv"}), chart([1, None, 2.5]), name="use")

    assert b"".join(answer).decode().splitlines()[0] == "Time,Allocated (GPUs)"
    assert answer["Content-Disposition"] == 'attachment; filename="use.csv"'


def test_marks_leave_the_time_axis_as_long_as_it_is():
    at = [NOON, NOON + timedelta(minutes=1)]
    late = Mark(NOON + timedelta(minutes=2), "Node down")
    made = over_time(label="SM", unit="%", at=at, series=[Series("SM", [1, 2], "used")], marks=[late])

    assert made.figure["layout"]["xaxis"]["range"] == ["2026-11-24T12:00:00", "2026-11-24T12:02:00"]
    assert over_time(label="SM", unit="%", at=[], series=[], marks=[late]).is_empty


def test_a_name_that_somebody_typed_is_no_markup():
    made = over_time(label="Latency", unit="ms", at=[NOON], series=[Series('<a href="https://example.org">p99</a>', [1], "used")])

    assert made.figure["data"][0]["name"] == '‹a href="https://example.org"›p99‹/a›'


def test_a_heat_map_leaves_cells_without_a_value_empty():
    at = [NOON, NOON + timedelta(minutes=1)]
    made = heat_map(label="SM", unit="%", at=at, names=["GPU 0", "<b>"], values=[[50, None], [None, None]], most=100)

    drawn = numbers(json.loads(figure_json(chart_document(made)))["figure"]["data"][0]["z"])
    assert drawn[0] == 50
    assert np.isnan(drawn[1:]).all()
    assert made.figure["data"][0]["y"] == ["GPU 0", "‹b›"]
    assert made.table == [(at[1], None, None), (at[0], 50, None)]
    assert [column.name for column in made.columns] == ["Time", "GPU 0", "<b>"]


def test_the_vendored_script_is_of_the_version_that_figures_are_made_for():
    head = (PROJECT / "static/vendor/plotly/plotly.min.js").read_text()[:40]

    assert head.startswith(f"/* plotly.js {get_plotlyjs_version()},"), "make charts"


@pytest.mark.parametrize("one", RANGES)
def test_no_range_has_more_than_750_points(one):
    assert one.length / one.step <= 750
    assert range_of({"range": one.key}) == one


def test_an_unknown_range_is_the_default():
    assert range_of({"range": "5y"}, "7d").key == "7d"


@given(st.lists(st.none() | st.floats(0, 1e9), max_size=60))
def test_a_sparkline_stays_in_its_box(values):
    drawn = sparkline(values, "Use")

    points = [tuple(map(float, point.split(","))) for run in re.findall(r'points="([^"]*)"', drawn) for point in run.split()]
    assert all(0 <= x <= 120 and 0 <= y <= 24 for x, y in points)
    assert bool(points) == any(value is not None for value in values)


@given(*[st.integers(0, 10**7)] * 5)
def test_a_bullet_stays_in_its_box(used, guaranteed, borrowed, waiting, limit):
    drawn = bullet(used, guaranteed=guaranteed, borrowed=min(borrowed, used), waiting=waiting, limit=limit)

    for x, width in re.findall(r'x="(\d+)" width="(\d+)"', drawn):
        assert int(x) + int(width) <= 1001
