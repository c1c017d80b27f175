"""Every figure of the gap page leads to rows that add up to it: GPUs exactly, money to the cent, weeks to the tenth as printed."""

import csv
import html
import io
import itertools
import re
from datetime import timedelta
from decimal import Decimal
from urllib.parse import urlencode

import pytest
from django.test import Client

from dashboards.gap.figures import CENT, DIMENSIONS, HOURS_A_MONTH, gap_by, gap_weeks
from dashboards.gap.rows import gap_behind
from dashboards.gap.store import Gap, gap_newest, gap_turn, gaps_write, pieces_newest
from dashboards.gap.views import LOST
from dashboards.telemetry.spans import HOUR as SPAN_HOUR
from dashboards.telemetry.spans import QUARTER, span_begin
from gpufleet.core.times import now
from scheduler.models import Gpu, Health, JobState
from tests import builders
from tests.dashboards.worlds import gpus_of, readings
from tests.personas import Personas

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
CELL = re.compile(r'<(?:td [^>]*class="num"|dd)><a (class="value" )?href="(/gap/[^"]+)">([^<]+)</a>')


def mixed_fleet(personas: Personas) -> None:
    """27 GPUs of two types in two pools: whole and shared, read and unread, starting, down, drained, free, wanted, and some of nobody's pool."""
    moment = now()
    pools = [builders.pool("train"), builders.pool("serve"), None]
    builders.rate("H100-SXM-80GB", since=moment - HOUR, micros=2_333_333)
    builders.rate("A100", since=moment - HOUR, micros=1_117_777)
    nodes = [builders.node(gpus=3, pool=pools[number % 3], type_name=("A100", "H100-SXM-80GB")[number % 2]) for number in range(9)]
    for node, health in ((nodes[7], Health.DOWN), (nodes[8], Health.DRAINED)):
        node.health = health
        node.save()
    teams = [personas.nodes[path] for path in ("acme/research/nlp", "acme/research/vision", "acme/product/search")]
    gpus = [gpu for node in nodes for gpu in gpus_of(node)]
    for number, gpu in enumerate(gpus[:17]):
        state = JobState.STARTING if number % 7 == 3 else JobState.RUNNING
        job = builders.job(f"job-{number}", state=state, on=teams[number % 3], job_class=("batch", "interactive")[number % 2])
        started = None if state == JobState.STARTING else moment - HOUR
        builders.placement(job, gpu, gpu_milli=(1000, 333, 500)[number % 3])
        job.attempts.update(running_at=started)
        if number % 3 == 1:
            other = builders.job(f"share-{number}", state=JobState.RUNNING, on=teams[0])
            builders.placement(other, gpu, gpu_milli=417)
            other.attempts.update(running_at=moment - HOUR)
    builders.job("waits", on=teams[1], spec={"roles": [{"name": "worker", "min": 1, "gpus": 2}]}, gpus_milli=2000)
    builders.job("too large", on=teams[1], spec={"roles": [{"name": "worker", "min": 1, "gpus": 3, "gpu_types": ["A100"]}]}, gpus_milli=3000)
    readings({gpu: None if number % 5 == 4 else (number * 13) % 101 for number, gpu in enumerate(gpus)}, at=moment)


def rows_at(browser: Client, address: str) -> list[dict[str, str]]:
    answer = browser.get(f"{address}{'&' if '?' in address else '?'}format=csv")
    assert answer.status_code == 200, address
    return list(csv.DictReader(io.StringIO(b"".join(answer.streaming_content).decode().removeprefix("\ufeff"))))  # type: ignore[attr-defined]


@pytest.mark.parametrize("viewer", ["superuser", "viewer"])
def test_the_rows_behind_each_figure_add_up_to_it_exactly(personas: Personas, viewer: str) -> None:
    mixed_fleet(personas)
    moment, access = now(), personas.access(viewer)
    gap_turn(now=moment)
    checked = 0
    for gpu_type, dimension in itertools.product(("", "A100"), DIMENSIONS):
        for row in gap_by(access, dimension, gpu_type=gpu_type, weeks=gap_weeks(now=moment), now=moment):
            chosen: dict[str, list[str]] = {"type": [gpu_type] if gpu_type else [], dimension: [row.key]}
            for cause, milli in (row.causes or {}).items():
                if milli:
                    assert gap_behind(access, {**chosen, "cause": [cause]}, now=moment).milli == milli
                    checked += 1
            lost = gap_behind(access, {**chosen, "cause": LOST}, now=moment)
            assert lost.milli == sum(one.milli for one in lost.gpus.values())
            if row.hour_micros is None:
                assert lost.hour_micros is None
            else:
                assert abs((lost.hour_micros or 0) - row.hour_micros) < CENT  # up or down, so that the column adds up
                assert lost.hour_micros == sum(one.cost_micros or 0 for one in lost.gpus.values())
    assert checked > 50


def test_a_part_of_a_team_s_name_is_enough_and_a_whole_name_means_that_team_alone(personas: Personas) -> None:
    moment, access = now(), personas.access("superuser")
    for title in ("Sight", "Sight 2", "Seasons"):
        job = builders.job(state=JobState.RUNNING, on=builders.quota(title.lower().replace(" ", "-"), title=title, parent=personas.nodes["acme"]))
        builders.placement(job, gpus_of(builders.node(gpus=1))[0])
    builders.quota("sea", title="Sea", parent=personas.nodes["acme"])  # holds nothing now
    gap_turn(now=moment)

    wanted = {"sig": 2000, "SIGHT": 2000, "Sight": 1000, "Sight 2": 1000, "sea": 1000, "Sea": 0, "none at all": 0}
    assert {text: gap_behind(access, {"team": [text]}, now=moment).milli for text in wanted} == wanted


def test_two_teams_of_one_title_are_two_rows_and_of_others_teams_nothing_is_told(personas: Personas) -> None:
    """Titles are chosen freely; the class of what a team runs is not for those who may not see its jobs."""
    moment, access = now(), personas.access("superuser")
    twins = [personas.nodes["acme/research/nlp"], builders.quota("sight", title="Sight", parent=personas.nodes["acme/product"])]
    twins[0].title = "Sight"
    twins[0].save()
    taken = builders.quota("others", title="Other teams", parent=personas.nodes["acme"])
    for team, job_class in ((twins[0], "batch"), (twins[0], "batch"), (twins[1], "interactive"), (taken, "batch")):
        job = builders.job(state=JobState.RUNNING, on=team, job_class=job_class)
        builders.placement(job, gpus_of(builders.node(gpus=1))[0])
        job.attempts.update(running_at=moment)
    gap_turn(now=moment)

    told = {row.key: row.milli for row in gap_by(access, "team", weeks=gap_weeks(now=moment), now=moment)}
    assert told == {"Sight (acme/research/nlp)": 2000, "Sight (acme/product/sight)": 1000, "Other teams (acme/others)": 1000}
    answer = personas.client("superuser").get("/api/v1/fleet/gap/gpus", {"team": "Sight (acme/product/sight)"}).json()
    assert (answer["gpu_milli"], [row["classes"] for row in answer["items"]]) == (1000, [["Interactive"]])

    research, stranger = personas.access("viewer"), personas.client("viewer")
    weeks = gap_weeks(now=moment)
    assert {row.key for row in gap_by(research, "team", weeks=weeks, now=moment)} == {"Sight", "Other teams"}, "that there is a twin is not told"
    assert {row.key: row.milli for row in gap_by(research, "class", weeks=weeks, now=moment)} == {"Batch": 2000, "Other teams": 2000}
    rows = stranger.get("/api/v1/fleet/gap/gpus", {"class": ["Batch", "Interactive"]}).json()["items"]
    assert {tuple(row["teams"]) for row in rows} == {("Sight",)}


def test_programs_read_the_rows_that_the_page_shows(personas: Personas) -> None:
    mixed_fleet(personas)
    gap_turn(now=now())
    for viewer, asked in (("superuser", "cause=computing&cause=idle"), ("viewer", "team=Other+teams"), ("superuser", "type=A100&class=Batch")):
        browser = personas.client(viewer)
        page = rows_at(browser, f"/gap/gpus/?{asked}")
        first = browser.get(f"/api/v1/fleet/gap/gpus?{asked}&size=3").json()
        items, after = first["items"], first["next"]
        while after:
            more = browser.get(f"/api/v1/fleet/gap/gpus?{asked}&size=3&{urlencode({'after': after})}").json()
            items, after = items + more["items"], more["next"]
        assert [(row["node"], row["index"], row["gpu_milli"], " ".join(row["jobs"])) for row in items] == [
            (row["Node"], int(row["GPU"]), round(1000 * float(row["Counted"])), row["Jobs"]) for row in page
        ]
        assert first["gpu_milli"] == sum(row["gpu_milli"] for row in items) > 0
        assert (first["hour_micros"] is None) == (viewer == "viewer")
        if viewer != "viewer":
            assert first["hour_micros"] == sum(row["hour_micros"] for row in items)
    assert personas.client("superuser").get("/api/v1/fleet/gap/gpus?cause=nothing").status_code == 422


@pytest.mark.parametrize(("viewer", "dimension"), [("superuser", "team"), ("viewer", "pool")])
def test_every_figure_of_the_page_leads_to_rows_with_its_sum(personas: Personas, viewer: str, dimension: str) -> None:
    mixed_fleet(personas)
    gap_turn(now=now())
    browser = personas.client(viewer)
    page = browser.get(f"/gap/?by={dimension}").content.decode()
    found = [(html.unescape(address), html.unescape(printed), bool(above)) for above, address, printed in CELL.findall(page)]
    figures = [figure for figure in found if "/gap/gpus/" in figure[0]]

    assert len(figures) > 20
    rows = {address: rows_at(browser, address) for address, _, _ in figures}
    for address, printed, above in figures:
        milli = sum(round(1000 * float(row["Counted"])) for row in rows[address])
        if printed[0].isdigit():
            assert abs(milli - 1000 * Decimal(printed.replace(",", ""))) <= 100, (address, printed, milli)
        else:
            cost = sum((Decimal(row["Cost an hour"]) for row in rows[address]), Decimal(0))
            # The figures above the table are in whole units; those of the table too where they are of a month.
            cost *= 1 if above or "." in printed else HOURS_A_MONTH
            assert abs(cost - Decimal(printed[1:].replace(",", ""))) <= (Decimal("0.01") if "." in printed else 1), (address, printed, cost)
    whole = sum(round(1000 * float(row["Counted"])) for row in rows["/gap/gpus/"])
    assert whole == 1000 * Gpu.objects.count()


def test_rows_are_the_snapshot_to_the_thousandth_and_stay_so_while_the_fleet_changes(personas: Personas) -> None:
    mixed_fleet(personas)
    moment = now()
    gap_turn(now=moment)
    _, pieces = pieces_newest() or pytest.fail("no snapshot")
    by_gpu: dict[int, int] = {}
    for piece in pieces:
        by_gpu[piece.gpu] = by_gpu.get(piece.gpu, 0) + piece.milli
    Gpu.objects.filter(pk=min(by_gpu)).update(removed_at=moment)

    assert set(by_gpu.values()) == {1000}
    behind = gap_behind(personas.access("superuser"), {"cause": ["computing", "idle"]}, now=moment)
    assert behind.milli == sum(piece.milli for piece in pieces if piece.part.cause in ("computing", "idle"))
    assert behind.milli == sum(counted.milli for counted in behind.gpus.values())
    rows = rows_at(personas.client("superuser"), "/gap/gpus/?cause=computing&cause=idle")
    assert sum(round(1000 * float(row["Counted"])) for row in rows) == behind.milli
    told = rows_at(personas.client("viewer"), "/gap/gpus/?team=Other+teams")
    assert any(row["Jobs"].startswith("j-") for row in rows)
    assert told and {(row["Jobs"], row["Team"]) for row in told} == {("", "Other teams")}


def test_the_figures_above_the_rows_come_along_when_the_list_alone_is_exchanged(personas: Personas) -> None:
    mixed_fleet(personas)
    gap_turn(now=now())
    browser = personas.client("superuser")
    counted = re.compile(r'<dl class="head-figures" id="gap-counted"( hx-swap-oob="true")?>(.*?)</dl>', re.DOTALL)
    alone = {"HX-Request": "true", "HX-Target": "table-gap-gpus"}

    pages = [browser.get(f"/gap/gpus/{asked}").content.decode() for asked in ("", "?cause=idle")]
    parts = [browser.get(f"/gap/gpus/{asked}", headers=alone).content.decode() for asked in ("", "?cause=idle")]
    (whole, idle), told = [counted.findall(page) for page in pages], [counted.findall(part) for part in parts]
    assert whole != idle
    assert [[("", text) for _, text in found] for found in told] == [whole, idle]
    assert [apart for found in told for apart, _ in found] == [' hx-swap-oob="true"'] * 2


@pytest.mark.parametrize("until", ["0001-01-01T00:00:00Z", "1969-01-01T00:00:00Z", "9999-12-31T23:59:59-14:00"])
def test_a_week_that_nobody_can_have_seen_is_this_one(personas: Personas, until: str) -> None:
    page = personas.client("superuser").get("/gap/week/", {"until": until})

    assert page.status_code == 200
    assert now() - page.context["week"].at < timedelta(days=8)


@pytest.mark.parametrize("dimension", ["team", "pool"])
def test_a_week_is_its_days(personas: Personas, dimension: str) -> None:
    """Of the fleet, of each cause, and of what each team or pool did not compute, also of one that has nothing now."""
    mixed_fleet(personas)
    gone = builders.job("gone", state=JobState.RUNNING, on=personas.nodes["acme"])
    held = builders.placement(gone, gpus_of(builders.node(gpus=1, pool=builders.pool("spot")))[0])
    moment = now()
    for step in range(28):
        at = moment - timedelta(days=14) + (12 * step + 6) * HOUR
        gap_turn(now=at)
        _, gap = gap_newest() or pytest.fail("no snapshot")
        for span in (QUARTER, SPAN_HOUR):  # as the turns of that time would have left them
            gaps_write(span, {span_begin(at, span): Gap(1 + step % 3, {part: (1 + step % 3) * milli for part, milli in gap.sums.items()})})
        builders.node(gpus=step % 2, type_name="A100")
    type(held).objects.filter(pk=held.pk).update(until=moment)
    type(held.node).objects.filter(pk=held.node.pk).update(removed_at=moment)
    gap_turn(now=moment)
    browser = personas.client("superuser")
    page = browser.get(f"/gap/?by={dimension}").content.decode()
    names = {row["key"] for row in browser.get(f"/gap/?by={dimension}").context["rows"]}
    assert names >= {"team": {"acme", "nlp", "vision", "search", "Not allocated"}, "pool": {"train", "serve", "spot", "No pool"}}[dimension]
    weeks = {html.unescape(address): printed for _, address, printed in CELL.findall(page) if "/gap/week/" in address}

    assert len(weeks) == 22 + 2 * len(names)  # ten causes, the fleet and each row, this week and last
    assert "–" not in weeks.values()
    for address, printed in weeks.items():
        told = browser.get(address)
        days, week = told.context["days"], told.context["week"]
        assert len(days) == 7
        assert (sum(row.snapshots for row in days), sum(row.milli for row in days)) == (week.snapshots, week.milli)
        assert abs(Decimal(week.milli) / week.snapshots - 1000 * Decimal(printed)) <= 100, address
