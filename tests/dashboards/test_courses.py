"""How a GPU, a node and a job went over time, as their pages draw it."""

import re
from datetime import timedelta

import numpy as np
import pytest
from django.urls import reverse

from dashboards.activity import Activity
from dashboards.courses import cluster_chart, gpu_chart, job_chart, job_range, job_ranges, node_chart, node_heat, team_chart
from dashboards.gap.causes import Cause, Part
from dashboards.gap.store import Gap, gaps_write
from dashboards.models import GpuRollup
from dashboards.telemetry.frames import minute_of
from dashboards.telemetry.packing import ids_packed
from dashboards.telemetry.spans import HOUR, QUARTER, UNREAD, JobSums, jobs_write, span_begin
from gpufleet.core.ranges import BY_KEY
from gpufleet.core.times import now
from scheduler.models import Attempt, InventoryEvent, JobState
from scheduler.services.jobs.steering import scheduler_pause
from tests import builders
from tests.builders import NOON
from tests.dashboards.worlds import gpus_of

pytestmark = pytest.mark.django_db
# What the sheet of an object says beside its sparkline, where that is not the activity of GPUs.
SHEET = {"job": ("Computing", "0.5 GPUs"), "quota": ("Computing", "–")}


def rollup(cluster: int, gpus: list[int], percents: list[int | None], *, span: int, ago: timedelta) -> None:
    column = np.array([UNREAD if percent is None else 100 * percent for percent in percents], "<u2").tobytes()
    ids = ids_packed(np.array(gpus, np.uint32))
    GpuRollup.objects.create(cluster_id=cluster, span=span, at=NOON - ago, gpu_ids=ids, minutes=bytes(len(gpus)), sm=column, memory=column)


def test_gpus_and_nodes_are_drawn_from_the_grain_that_their_range_has() -> None:
    node = builders.node(gpus=2)
    first, second = gpus_of(node)
    rollup(node.cluster_id, [first.pk, second.pk], [20, 60], span=QUARTER, ago=timedelta(minutes=15))
    for hours, percents in ((3, [10, None]), (2, [40, None]), (1, [None, None])):
        rollup(node.cluster_id, [first.pk, second.pk], percents, span=HOUR, ago=timedelta(hours=hours))

    day = node_chart(node, chosen=BY_KEY["24h"], now=NOON)
    assert (len(day.rows), day.rows[-1][1:], day.rows[-2][1:]) == (96, (40, 40), (None, None))
    assert gpu_chart(first, chosen=BY_KEY["24h"], now=NOON).rows[-1][1] == 20
    quarter = gpu_chart(first, chosen=BY_KEY["90d"], now=NOON)
    assert (len(quarter.rows), quarter.rows[-1][1]) == (720, 25)
    assert gpu_chart(second, chosen=BY_KEY["90d"], now=NOON).is_empty


def test_each_gpu_of_a_node_is_a_row_of_its_heat_map(personas, django_assert_max_num_queries) -> None:
    node, beside = builders.node("n1", gpus=2), builders.node("n2", gpus=1)
    gpus = [*gpus_of(node), *gpus_of(beside)]
    rollup(node.cluster_id, [gpu.pk for gpu in gpus], [20, None, 90], span=QUARTER, ago=timedelta(minutes=15))
    rollup(node.cluster_id, [gpu.pk for gpu in gpus[1:]], [60, 90], span=QUARTER, ago=timedelta(minutes=30))

    of_node = gpus_of(node)
    with django_assert_max_num_queries(2):
        chart = node_heat(node, of_node, chosen=BY_KEY["24h"], now=NOON)
    assert [column.name for column in chart.columns] == ["Time", "GPU 0", "GPU 1"]
    assert [row[1:] for row in chart.rows[-3:]] == [(None, None), (None, 60), (20, None)]
    week = node_heat(node, of_node, chosen=BY_KEY["7d"], now=NOON)
    assert (len(week.rows), week.rows[-1][1:]) == (96, (20, 60))
    assert all(len(node_heat(node, of_node, chosen=one, now=NOON).rows) <= 100 for one in BY_KEY.values())

    client, page = personas.client("viewer"), reverse("node", args=[node.public_id])
    assert "Utilization by GPU" not in client.get(page).content.decode(), "nothing was read in the range"
    rollup(node.cluster_id, [gpus[0].pk], [20], span=QUARTER, ago=NOON - span_begin(now(), QUARTER) + timedelta(minutes=15))
    assert "Utilization by GPU" in client.get(page).content.decode()
    assert client.get(reverse("node-course", args=[node.public_id]), {"by": "gpu", "range": "24h"}).json()["empty"] is False


def test_a_job_is_drawn_over_its_own_time() -> None:
    placed = builders.placement(of=builders.job(state=JobState.RUNNING))
    job, attempt = placed.job, placed.attempt
    assert job_chart(job, [], now=NOON).is_empty
    for minute, computing in ((0, 750), (1, 250)):
        sums = [np.array([amount * 60_000], np.int64) for amount in (1000, computing, 0)]
        jobs_write(60, {NOON + timedelta(minutes=minute): JobSums(np.array([job.pk], np.uint32), *sums)})

    chart = job_chart(job, [attempt], now=NOON + timedelta(minutes=3))
    assert [row[1:] for row in chart.rows] == [(1.0, 0.75), (1.0, 0.25), (None, None)]


def test_a_team_is_drawn_with_all_below_it_and_nothing_beside_it(personas, django_assert_max_num_queries) -> None:
    nodes = personas.nodes
    parts = {
        Part(Cause.COMPUTING, "H100", "", "batch", nodes["acme/research"].pk): 1000,
        Part(Cause.COMPUTING, "H100", "", "batch", nodes["acme/research/nlp"].pk): 2000,
        Part(Cause.IDLE, "A100", "", "batch", nodes["acme/research/nlp"].pk): 500,
        Part(Cause.COMPUTING, "H100", "", "batch", nodes["acme/product"].pk): 64_000,
        Part(Cause.UNWANTED, "H100", "", "", None): 8000,
    }
    gaps_write(60, {NOON - timedelta(minutes=1): Gap(1, parts)})

    with django_assert_max_num_queries(4):
        chart = team_chart(nodes["acme/research"], access=personas.access("team_lead"), chosen=BY_KEY["1h"], now=NOON)
    assert [column.name for column in chart.columns] == ["Time", "Computing", "Allocated, idle"]
    assert (chart.rows[-1][1:], chart.rows[-2][1:]) == ((3.0, 0.5), (None, None))


def test_a_cluster_is_drawn_without_what_was_removed_and_with_what_befell_its_nodes(django_assert_max_num_queries) -> None:
    node = builders.node("n1", gpus=2)
    other = builders.node("n2", gpus=1, cluster=node.cluster)
    gpus = [*gpus_of(node), *gpus_of(other)]
    rollup(node.cluster_id, [gpu.pk for gpu in gpus], [20, 60, 100], span=QUARTER, ago=timedelta(minutes=15))
    InventoryEvent.objects.create(node=node, at=NOON - timedelta(hours=1), kind="health", after={"health": "draining"}, actor_name="oona")
    InventoryEvent.objects.create(node=node, at=NOON - timedelta(days=2), kind="health", after={"health": "down"}, actor_name="oona")
    gpus[2].removed_at = NOON
    gpus[2].save(update_fields=["removed_at"])

    with django_assert_max_num_queries(4):
        chart = cluster_chart(node.cluster, chosen=BY_KEY["24h"], now=NOON)
    assert chart.rows[-1][1:] == (40, 40)
    assert [mark.text for mark in chart.marks] == ["n1: Node draining"]


def test_a_chart_of_the_fleet_tells_every_event_of_its_range(personas, django_assert_max_num_queries) -> None:
    """Of 60 events within a day only the last twenty had been marked."""
    node, at = builders.node("n1", gpus=1), now() - timedelta(hours=20)
    for number in range(60):
        after = {"health": "draining" if number % 2 else "healthy"}
        InventoryEvent.objects.create(node=node, at=at + timedelta(minutes=15 * number), kind="health", after=after, actor_name="oona")

    client = personas.client("operator")
    with django_assert_max_num_queries(9):
        told = client.get(reverse("overview-history"), {"range": "24h"}).json()

    assert told["table"].count("n1: Node") == 60
    assert len(told["figure"]["data"][-1]["x"]) == 60, "15 minutes apart on a day they do not touch"
    month = client.get(reverse("overview-history"), {"range": "30d"}).json()
    assert month["table"].count("n1: Node") == 60
    assert sum(1 if text.startswith("n1") else int(text.split()[0]) for text in month["figure"]["data"][-1]["text"]) == 60
    assert len(month["figure"]["data"][-1]["x"]) < 6


def test_charts_of_the_fleet_mark_what_befell_nodes_and_pauses_for_readers_of_the_audit(personas, django_assert_max_num_queries) -> None:
    node, other = builders.node("n1", gpus=1), builders.node("n2", gpus=1, type_name="A100-SXM-40GB")
    at = now() - timedelta(minutes=20)
    for number, one in enumerate((node, other)):
        moment = at + timedelta(minutes=number)
        InventoryEvent.objects.create(node=one, at=moment, kind="health", after={"health": "draining"}, actor_name="oona")
    InventoryEvent.objects.create(node=node, gpu=gpus_of(node)[0], at=at, kind="health", after={"health": "down"}, actor_name="oona")
    scheduler_pause(access=personas.access("operator"), reason="Power test.", now=now())
    expected = {
        "operator": ["n1: Node draining", "n2: Node draining", "Scheduler paused by Operator: Power test."],
        "viewer": ["n1: Node draining", "n2: Node draining"],
    }

    for name, texts in expected.items():
        client = personas.client(name)
        for page in ("overview-history", "gap-history", "fragmentation-history"):
            with django_assert_max_num_queries(9):
                told = client.get(reverse(page), {"range": "1h"}).json()["table"]
            assert [text for text in texts if f"{text}</li>" not in told] == [], (name, page)
            assert told.count("<li>") == len(texts), (name, page)
            one = client.get(reverse(page), {"range": "1h", "type": "A100-SXM-40GB"}).json()["table"]
            assert "n1: Node" not in one and "n2: Node" in one, (name, page)


def test_a_job_offers_the_ranges_that_are_shorter_than_its_time() -> None:
    placed = builders.placement(of=builders.job(state=JobState.RUNNING))
    job, attempt = placed.job, placed.attempt
    later = attempt.started_at + timedelta(hours=7)
    ranges = job_ranges([attempt], now=later)

    assert [one.key for one in ranges] == ["1h", "6h", "all"]
    assert job_range("90d", ranges).key == "all"
    assert len(job_chart(job, [attempt], now=later, chosen=ranges[0]).rows) == 60
    assert [one.key for one in job_ranges([], now=later)] == ["all"]
    assert [one.title for one in ranges] == ["Last 1 hour", "Last 6 hours", "Whole job"]
    attempt.ended_at = later
    assert [one.title for one in job_ranges([attempt], now=later)] == ["Its last hour", "Its last 6 hours", "Whole job"]


def test_a_job_keeps_its_chart_where_the_chosen_range_has_no_data(personas) -> None:
    placed = builders.placement(of=builders.job(on=personas.nodes["acme/research/nlp"], state=JobState.RUNNING))
    Attempt.objects.update(started_at=now() - timedelta(hours=7))
    held = [np.array([amount * 60_000], np.int64) for amount in (1000, 500, 0)]
    page = reverse("job", args=[placed.job.public_id])
    client = personas.client("superuser")
    assert "data-plot-ranges" not in client.get(page).content.decode(), "nothing was ever read"

    jobs_write(60, {minute_of(now()) - timedelta(hours=5): JobSums(np.array([placed.job.pk], np.uint32), *held)})
    for chosen in ("all", "1h"):
        assert "data-plot-ranges" in client.get(page, {"range": chosen}).content.decode(), chosen


def test_every_object_has_its_history_on_top_of_its_page(personas) -> None:
    node = builders.node("n1", gpus=1)
    placed = builders.placement(of=builders.job(on=personas.nodes["acme/research/nlp"], state=JobState.RUNNING))
    Attempt.objects.update(started_at=now() - timedelta(minutes=5))
    held = [np.array([amount * 60_000], np.int64) for amount in (1000, 500, 0)]
    jobs_write(60, {minute_of(now()) - timedelta(minutes=2): JobSums(np.array([placed.job.pk], np.uint32), *held)})
    pages = {
        "node": [node.public_id],
        "gpu": [gpus_of(node)[0].public_id],
        "cluster": [node.cluster.name],
        "quota": [personas.nodes["acme/research/nlp"].public_id],
        "job": [placed.job.public_id],
    }
    client = personas.client("superuser")
    for name, arguments in pages.items():
        page = client.get(reverse(name, args=arguments)).content.decode()
        assert page.index("</header>") < page.index('class="panel strip"'), name
        # Nothing but the answer, the reason and the figures comes before it.
        before = page[: page.index('class="panel strip"')]
        assert "<table" not in before, name
        source = re.search(r'data-source="([^"]*)"', page)
        assert source is not None, name
        assert client.get(source.group(1), {"range": "7d"}).json()["label"], name
        told = re.findall(
            r'<div class="sheet-spark" data-sheet><span class="soft">([^<]*)</span> <(?:svg|span) .*?<span>([^<]*)</span>(.*?)</div>', page
        )
        (title, newest, of_when), *others = told
        assert ((title, newest), others) == (SHEET.get(name, ("SM activity", "–")), []), name
        assert bool(re.search(r'<time datetime="[^"]+" data-moment="relative"', of_when)) == (newest != "–"), "rows may have a newer reading"


def test_gaps_break_a_drawing_and_no_reading_is_not_zero() -> None:
    assert Activity((50, 100, None, 0)).path == "M0 100V50H1V0H2V100H0ZM3 100V100H4V100H3Z"
    assert Activity((None, None)).path == ""
