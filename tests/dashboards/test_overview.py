"""The overview as people get it: what is said, to whom, and at what price in queries."""

import json
from datetime import timedelta
from decimal import Decimal
from itertools import pairwise

import pytest
from django.urls import reverse

from dashboards.figures import Figures, Holding
from dashboards.gap.causes import Cause, Part
from dashboards.gap.store import Gap, gaps_write
from dashboards.presenters import figure_texts, free_told, holders_told, split, whole_gpus
from dashboards.selectors import SEVERAL, Owner, fleet_read, nodes_needing_attention, owners_named
from dashboards.telemetry.frames import minute_of
from gpufleet.core.live.feed import feed_publish
from gpufleet.core.times import now
from scheduler.models import Health, JobState
from tests import builders
from tests.builders import NOON
from tests.dashboards.worlds import gpus_of, large_fleet, minutes, readings

pytestmark = pytest.mark.django_db


@pytest.fixture
def shared_fleet(personas):
    """Two teams on four GPUs: nlp works, vision idles."""
    first, second, third, _ = gpus = gpus_of(builders.node("node-1", gpus=4))
    builders.placement(builders.job(state=JobState.RUNNING, on=personas.nodes["acme/research/nlp"]), on=first)
    idle = builders.job("secret-project", state=JobState.RUNNING, on=personas.nodes["acme/research/vision"])
    builders.placement(idle, on=second)
    builders.placement(idle, on=third)
    readings(dict(zip(gpus, (80, 0, 1, 0), strict=True)), at=now())
    builders.rate("H100-SXM-80GB", since=NOON - timedelta(days=1), micros=2_000_000)
    return personas


def page(personas, name, **query):
    return personas.client(name).get(reverse("overview"), query).content.decode()


def test_the_figures(shared_fleet):
    text = page(shared_fleet, "operator")

    assert '<span class="value" data-f="held">75%</span>' in text
    assert '<span class="value" data-f="sm">20%</span>' in text
    assert '<span class="value" data-f="sm_held">27%</span>' in text
    assert '<span class="value" data-f="gap">2.2</span>' in text


def test_money_is_for_those_who_may_see_costs(shared_fleet):
    assert "$4.38" in page(shared_fleet, "finance")
    assert json_of(shared_fleet, "finance")["own"]["rates"] == {"H100-SXM-80GB": 2_000_000}
    assert "Idle cost" not in page(shared_fleet, "viewer")
    assert json_of(shared_fleet, "viewer")["own"]["rates"] is None


def json_of(personas, name):
    return json.loads(personas.client(name).get("/live/overview/snapshot").content)


@pytest.mark.parametrize(("name", "sees"), [("operator", True), ("quota_admin", True), ("viewer", False), ("team_lead", False)])
def test_a_team_is_named_only_to_those_who_may_see_it(shared_fleet, name, sees):
    text = page(shared_fleet, name)
    answer = shared_fleet.client(name).get("/live/overview/snapshot").content.decode()

    assert ("vision" in text) is sees
    assert ("vision" in answer) is sees
    assert ("Other teams" in text) is not sees
    assert "secret-project" not in text + answer


def test_the_shared_part_says_the_same_to_everybody(shared_fleet):
    rows = [json_of(shared_fleet, name)["rows"] for name in ("operator", "viewer")]

    for one in rows:
        del one["at"]
    assert rows[0] == rows[1]


def test_the_snapshot_and_the_page_start_at_the_newest_revision(shared_fleet):
    feed_publish(changes={"gpus": [{"id": 1}]})

    assert json_of(shared_fleet, "operator")["version"] == 1
    assert '"version": 1' in page(shared_fleet, "operator")


def test_without_telemetry_nothing_is_called_idle(personas):
    (gpu,) = gpus_of(builders.node(gpus=1))
    builders.placement(on=gpu)

    text = page(personas, "operator")

    assert "No telemetry yet" in text
    assert '<span class="value" data-f="sm">–</span>' in text
    assert '<span class="value" data-f="gap">–</span>' in text
    assert "Idle allocations need telemetry." in text


def test_an_empty_console_says_what_to_do_next(personas):
    assert "Import hardware" in page(personas, "operator")
    assert "Import hardware" not in page(personas, "viewer")
    assert "No hardware yet" in page(personas, "viewer")


def test_what_the_address_says_wrongly_is_ignored(shared_fleet):
    for query in ({"range": "999h"}, {"range": "²h"}, {"range": "six"}, {"type": "<script>alert(1)</script>"}):
        text = page(shared_fleet, "operator", **query)
        assert 'value="24h" checked' in text
        assert "alert(1)" not in text


def test_the_chart_has_all_gpus_by_state_in_the_range_and_type_that_is_asked_for(shared_fleet):
    def parts(**gpus):
        return Gap(1, {Part(Cause(cause), "H100", "", "", None): 1000 * count for cause, count in gpus.items()})

    minute = minute_of(now()) - timedelta(minutes=2)
    gaps_write(60, {minute: parts(computing=4, idle=2, wanted=1, fragmented=1, drained=2), minute - timedelta(hours=5): parts(starting=10)})
    client = shared_fleet.client("viewer")

    def chart(**query):
        return client.get(reverse("overview-history"), {"format": "csv", **query}).getvalue().decode().splitlines()

    hour, other, longer = chart(range="1h"), chart(range="1h", type="A100"), chart(range="6h")
    drawn = client.get(reverse("overview-history"), {"range": "1h"}).json()

    assert hour[0] == 'Time,Computing (GPUs),"Allocated, idle (GPUs)",Reserved (GPUs),Free (GPUs),Down (GPUs)'
    assert len(hour) == 61
    assert {row.partition(",")[2] for row in hour[1:]} == {"4.0,2.0,0.0,2.0,2.0", ",,,,"}
    assert {row.partition(",")[2] for row in other[1:]} == {"0.0,0.0,0.0,0.0,0.0", ",,,,"}
    assert "Starting or no reading (GPUs)" in longer[0]
    assert "0.0,0.0,10.0,0.0,0.0,0.0" in {row.partition(",")[2] for row in longer[1:]}
    assert [trace["name"] for trace in drawn["figure"]["data"]] == ["Computing", "Allocated, idle", "Reserved", "Free", "Down"]
    assert "<table" in drawn["table"]


def test_programs_read_the_same_history_in_milli_gpus(shared_fleet):
    minutes(90, end=now())
    client = shared_fleet.client("viewer")

    told = client.get("/api/v1/fleet/history", {"hours": "1"}).json()

    assert (told["step_seconds"], len(told["at"])) == (60, 60)
    assert {milli for milli in told["allocated_milli"] if milli is not None} == {6000}
    assert set(client.get("/api/v1/fleet/history", {"gpu_type": "none of ours"}).json()["allocated_milli"]) == {None}
    assert client.get("/api/v1/fleet/history", {"hours": "5"}).status_code == 422


def test_the_worst_nodes_come_first():
    builders.node("fine", gpus=8)
    builders.node("small", gpus=1, health=Health.DOWN)
    busy = builders.node("busy", gpus=2, health=Health.DRAINING)
    builders.node("quiet", gpus=2, health=Health.SUSPECT)
    builders.placement(on=gpus_of(busy)[0])
    builders.gpu(builders.node("one-bad-gpu", gpus=8), health=Health.SUSPECT, health_reason="ECC errors")

    found = nodes_needing_attention(fleet_read(now=NOON))

    assert [(node.name, node.gpus_hurt, node.jobs) for node in found] == [
        ("busy", 2, 1),
        ("quiet", 2, 0),
        ("small", 1, 0),
        ("one-bad-gpu", 1, 0),
    ]
    assert next(node for node in found if node.name == "one-bad-gpu").reason == "GPU 0: ECC errors"


def test_a_project_is_told_by_its_team(personas):
    project = builders.quota("secret", parent=personas.nodes["acme/research/nlp"])

    assert owners_named(personas.access("viewer"))[project.pk] == Owner(personas.nodes["acme/research/nlp"].pk, "nlp")
    assert owners_named(personas.access("viewer"))[personas.nodes["acme/product/search"].pk] is None
    assert owners_named(personas.access("operator"))[personas.nodes["acme"].pk].name == "acme"


def test_what_may_not_be_named_is_one_row_at_the_end():
    holders = [Holding(1, 8000, 8000, 8000, 0), Holding(2, 9000, 9000, 9000, 0), Holding(3, 1000, 500, 1000, 500), Holding(SEVERAL, 700, 700, 700, 0)]

    rows = holders_told(holders, {1: None, 2: None, 3: Owner(3, "nlp")}).rows

    found = [(row.name, row.idle, row.held) for row in rows]
    assert found == [("nlp", "0.5", "1"), ("Other teams", "17", "17"), ("Shared by several teams", "0.7", "0.7")]


def test_idle_gpus_of_teams_that_are_not_shown_are_told_and_all_add_up():
    holders = [Holding(team, 1000, 1000 - 51 * team, 1000, 0) for team in range(1, 8)]
    told = holders_told(holders, {team: Owner(team, f"team-{team}") for team in range(1, 8)})

    assert (len(told.rows), told.more) == (4, 3)
    assert sum(Decimal(row.idle) for row in told.rows) + Decimal(told.more_idle) == Decimal("5.6")


def test_the_split_bar_is_exactly_full():
    figures = Figures(gpus=7, held=3333, active_held=1111, gap=2000, held_unread=222, away=1000)
    parts = split(figures)

    assert sum(part.width for part in parts) == 1000
    assert all(before.x + before.width == after.x for before, after in pairwise(parts))
    assert sum(part.width for part in split(Figures())) == 0


def test_printed_parts_add_up_where_jobs_hold_parts_of_gpus():
    """108 + 310 + 95 were 513 of 512: each part was rounded alone."""
    for active, gap, unread, away in ((107_600, 309_600, 0, 0), (81_750, 12_333, 4_450, 3_200), (1, 49, 50, 50), (333, 333, 334, 0)):
        figures = Figures(gpus=512, read=512, held=active + gap + unread, active_held=active, gap=gap, held_unread=unread, away=away)
        parts, texts = split(figures), figure_texts(figures, None)
        printed = {part.key: Decimal(part.gpus.replace(",", "")) for part in parts}

        assert sum(printed.values()) == figures.gpus
        assert texts["gap"] == next(part.gpus for part in parts if part.key == "gap")
        assert Decimal(texts["held_note"].split(" of ")[0]) == printed["computing"] + printed["gap"] + printed["unread"]


def test_what_is_free_is_told_apart_and_adds_up():
    figures = Figures(gpus=100, held=4_333, active_held=4_333, kept=3_000, scattered=20_550, suspect=50)

    told = free_told(figures)

    assert told == "72.1 startable, 3 kept, 20.6 fragmented"
    printed = next(part.gpus for part in split(figures) if part.key == "free")
    assert sum(Decimal(piece.split()[0]) for piece in told.split(", ")) == Decimal(printed)
    assert free_told(Figures(gpus=1, held=1000)) == ""


def test_little_is_not_said_to_be_nothing():
    assert [whole_gpus(milli) for milli in (0, 1, 499, 500, 1499, 1500, 1_234_000)] == ["0", "<1", "<1", "1", "1", "2", "1,234"]
    assert figure_texts(Figures(gpus=1000, read=1000, active=100), None)["sm"] == "<1%"
    alone = figure_texts(Figures(gpus=1, read=1, held=1000, active=1000, active_held=1000), None)
    assert (alone["held_note"], alone["sm_note"]) == ("1 of 1 GPU", "1 GPU's worth")
    assert [figure_texts(Figures(gpus=2, held=held, gap=held), None)["gap_unit"] for held in (1000, 2000)] == ["GPU", "GPUs"]


@pytest.mark.parametrize("nodes", [2, 40])
def test_the_price_of_a_page_does_not_grow_with_the_fleet(personas, django_assert_max_num_queries, nodes):
    large_fleet(nodes, at=now())
    client = personas.client("team_lead")
    client.get(reverse("overview"))

    with django_assert_max_num_queries(28):
        assert client.get(reverse("overview")).status_code == 200
    with django_assert_max_num_queries(15):
        assert client.get("/live/overview/snapshot").status_code == 200


def test_a_node_that_needs_attention_offers_operators_its_next_step(personas):
    builders.node(gpus=4)
    suspect = builders.node("suspect", health=Health.SUSPECT, gpus=4)
    hurt = builders.node("hurt", gpus=4)
    hurt.gpus.filter(index=0).update(health=Health.SUSPECT)

    told = page(personas, "operator")
    assert f'href="{reverse("node_health", args=[suspect.public_id])}?to=draining" aria-label="Drain: suspect"' in told
    assert f'href="{reverse("node", args=[hurt.public_id])}#health" aria-label="Drain: hurt"' in told
    assert "Next step" not in page(personas, "viewer")
