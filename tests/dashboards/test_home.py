"""Home: which page a role is shown, what it answers in one line, and that it names nothing outside the reader's subtrees."""

import re
from datetime import timedelta
from html import unescape
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st

from dashboards.home.order import USUAL, columns_of, moved
from dashboards.home.parts import budgeted_now, call_answer, month_answer, team_answer, team_home
from dashboards.home.views import own_page, tabs_of
from dashboards.presenters import fleet_answer
from dashboards.telemetry.spans import QUARTER, JobSums, jobs_write, span_begin
from gpufleet.core.models import AuditEntry, User
from gpufleet.core.times import now
from quotas.chargeback.report import Row
from scheduler.models import Health, JobState, Wait, WaitKind
from tests import builders

pytestmark = pytest.mark.django_db

ANSWERS = [
    (team_answer(waiting=0, for_quota=0, running=0), "No jobs running or waiting."),
    (team_answer(waiting=0, for_quota=0, running=3), "3 jobs running, none waiting."),
    (team_answer(waiting=1, for_quota=0, running=1200), "1 job waiting for GPUs; 1,200 running."),
    (team_answer(waiting=12, for_quota=2, running=0), "12 jobs waiting, 2 for quota; 0 running."),
    (call_answer(nodes=0, alerts=0), "Nothing needs you: nodes healthy, no alerts."),
    (call_answer(nodes=0, alerts=1), "All nodes healthy, 1 alert firing."),
    (call_answer(nodes=1, alerts=2), "1 node needs attention, 2 alerts firing."),
    (month_answer(spent="$12", change_percent=None, over=0), "$12 this month."),
    (month_answer(spent="$12", change_percent=-4, over=0), "$12 this month, -4% at this pace."),
    (month_answer(spent="$12", change_percent=-4, over=1), "$12 this month, 1 budget used up."),
    (fleet_answer(gpus=0, sick=0, gap="0", unit="GPUs"), "No hardware yet."),
    (fleet_answer(gpus=8, sick=0, gap="–", unit="GPUs"), "All nodes healthy, no telemetry."),
    (fleet_answer(gpus=8, sick=0, gap="0", unit="GPUs"), "All nodes healthy, no GPU idle."),
    (fleet_answer(gpus=8, sick=2, gap="<1", unit="GPUs"), "2 nodes need attention, <1 GPUs idle."),
]


@pytest.mark.parametrize(("told", "expected"), ANSWERS)
def test_an_answer_has_at_most_eight_words(told, expected):
    assert told == expected
    assert len(told.split()) <= 8


@pytest.mark.parametrize(
    ("name", "page", "tabs"),
    [
        ("superuser", "overview", ["Fleet", "On call", "Team", "Month"]),
        ("operator", "overview", ["Fleet", "On call"]),
        ("finance", "home_month", ["Fleet", "Month"]),
        ("team_lead", "home_team", ["Fleet", "Team", "Month"]),
        ("submitter", "home_team", ["Fleet", "Team"]),
        ("viewer", "overview", ["Fleet"]),
    ],
)
def test_each_role_is_shown_its_own_page_first(personas, name, page, tabs):
    access = personas.access(name)

    assert own_page(access) == page
    assert [tab.label for tab in tabs_of(access)] == tabs
    shown = personas.client(name).get("/").content.decode()
    assert f'href="{reverse(page)}" aria-current="page"' in shown or len(tabs) == 1


def test_a_team_reads_its_own_jobs_and_what_each_waits_for(personas):
    nodes = personas.nodes
    blocked = builders.job("over-quota", on=nodes["acme/research/nlp"], gpus_milli=4000)
    Wait.objects.create(job=blocked, kind=WaitKind.QUOTA, since=now())
    builders.job("other-teams", on=nodes["acme/research/vision"])
    mine = builders.job("mine", on=nodes["acme/research/nlp"], state=JobState.RUNNING)
    mine.owner = personas.users["submitter"]
    mine.save(update_fields=["owner"])

    lead = personas.client("team_lead").get("/").content.decode()
    own = personas.client("submitter").get("/").content.decode()

    assert "1 job waiting, 1 for quota; 1 running." in lead
    assert "over-quota" in lead
    assert "other-teams" not in lead
    assert "1 job running, none waiting." in own
    assert "over-quota" not in own


def test_an_elastic_job_is_listed_with_the_gpus_that_it_holds(personas):
    """The page of a service said 2 GPUs, and every list 1: the fewest that it needs."""
    job = builders.job("served", on=personas.nodes["acme/research/nlp"], state=JobState.RUNNING, gpus_milli=1000)
    node = builders.node("n1", gpus=2)
    for gpu in node.gpus.all():
        builders.placement(job, gpu)
    client = personas.client("team_lead")

    assert "2 GPUs" in re.sub(r"\s|&nbsp;", " ", client.get("/").content.decode())
    for address in ("/", "/jobs/?state=running"):
        (row,) = re.findall(r"<tr[^>]*>(?:(?!</tr>).)*served(?:(?!</tr>).)*</tr>", client.get(address).content.decode(), re.DOTALL)
        assert re.search(r'class="num[^"]*"[^>]*>\s*2\s*</td>', row), row
    written = client.get("/jobs/?state=running&format=csv").getvalue().decode().splitlines()
    assert dict(zip(written[0].split(","), written[1].split(","), strict=True))["GPUs"] in ("2", "2.0")


def test_failed_jobs_beyond_the_newest_are_one_link_away(personas):
    of_team, user = personas.nodes["acme/research/nlp"], personas.users["submitter"]
    for number in range(5):
        builders.job(f"broken-{number}", on=of_team, state=JobState.FAILED, ended_at=now() - timedelta(hours=number), owner=user)
    builders.job("of-a-colleague", on=of_team, state=JobState.FAILED, ended_at=now())

    for name, found in (("team_lead", 6), ("submitter", 5)):
        client = personas.client(name)
        html = client.get(reverse("home_team")).content.decode()
        address = re.search(r'<a href="([^"]+)">All failed jobs</a>', html)
        assert address is not None, name
        assert len(re.findall(r">(?:broken|of-a)-", html)) == 3
        listed = client.get(unescape(address.group(1))).content.decode()
        assert len(set(re.findall(r">(broken-\d|of-a-colleague)<", listed))) == found, name


def test_a_running_job_shows_how_it_computed_in_the_last_hours(personas):
    job = builders.job("mine", on=personas.nodes["acme/research/nlp"], state=JobState.RUNNING)
    quarters = [span_begin(now(), QUARTER) - timedelta(minutes=15 * back) for back in (4, 3, 2)]
    whole = 8000 * QUARTER * 1000  # eight GPUs for a quarter of an hour
    used, unread = (whole, whole // 2, 0), (0, 0, whole)
    parts = [JobSums(np.array([job.pk], np.uint32), *(np.array([one]) for one in (whole, *pair))) for pair in zip(used, unread, strict=True)]
    jobs_write(QUARTER, dict(zip(quarters, parts, strict=True)))

    (row,) = team_home(personas.access("team_lead"), now=now()).running_jobs

    assert [value for value in row.course if value is not None] == [100, 50], "where nothing was read the line has a gap"
    assert 'aria-label="Utilization, last 12 hours"' in personas.client("team_lead").get("/").content.decode()


def test_who_is_on_call_reads_the_next_step_of_each_node(personas):
    builders.node("sick", health=Health.SUSPECT, gpus=4)
    builders.node("gone", health=Health.DOWN, gpus=1)

    shown = personas.client("operator").get(reverse("home_on_call")).content.decode()

    assert "2 nodes need attention, 0 alerts firing." in shown
    assert 'aria-label="Drain: sick"' in shown
    assert 'aria-label="Start repair: gone"' in shown
    assert "5 GPUs affected" in shown


@given(st.sampled_from(sorted(USUAL)), st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["up", "down", "across"])), max_size=8))
def test_moves_lose_no_part_and_up_undoes_down(page, moves):
    columns = USUAL[page]
    parts = sorted(key for column in columns for key in column)
    for number, way in moves:
        part = parts[number % len(parts)]
        after = moved(columns, part, way)
        assert sorted(key for column in after for key in column) == parts
        if way != "across" and after != columns:
            assert moved(after, part, "up" if way == "down" else "down") == columns
        columns = after


def test_each_person_keeps_an_order_for_each_page(personas):
    lead, other = personas.client("team_lead"), personas.client("submitter")
    places = {"page": "home_team", "part": "quota"}

    answer = lead.post(reverse("home_order"), places | {"move": "across"})
    assert answer.headers["Location"] == f"{reverse('home_team')}?arrange=1&moved=quota%3Aacross"
    lead.post(reverse("home_order"), places | {"move": "up"})

    def parts(client, page="home_team"):
        return re.findall(r'data-part="(waiting|running|failed|quota|budgets|idle|nodes|alerts)"', client.get(reverse(page)).content.decode())

    assert parts(lead) == ["waiting", "running", "quota", "failed", "budgets", "idle"]
    assert parts(other) == ["waiting", "running", "failed", "quota", "budgets", "idle"]
    assert AuditEntry.objects.filter(action="person.update", object_id=personas.users["team_lead"].public_id).count() == 2
    lead.post(reverse("home_order"), {"page": "home_team", "move": "usual"})
    assert parts(lead) == parts(other)


def test_an_order_is_kept_over_http(personas):
    client, address = personas.client("viewer"), "/api/v1/me/home/home_month"
    turned = [["days", "departments"], ["budgets", "causes"]]

    kept = client.put(address, {"columns": turned}, content_type="application/json")
    assert (kept.status_code, kept.json()) == (200, {"page": "home_month", "columns": turned, "usual": False})
    shown = {page["page"]: page["usual"] for page in client.get("/api/v1/me/home").json()["items"]}
    assert shown == {page: page != "home_month" for page in USUAL}
    assert client.delete(address).status_code == 204
    assert not User.objects.get(username="viewer").home_order

    refused = client.put(address, {"columns": [["days"], ["budgets"]]}, content_type="application/json")
    assert (refused.status_code, refused.json()["errors"][0]["path"]) == (422, "columns")
    assert client.delete("/api/v1/me/home/nowhere").status_code == 404


def test_an_order_names_each_part_once(personas):
    client = personas.client("viewer")
    for columns in (
        ["chart types"],
        ["chart types waits holders", "sick idle"],
        ["chart types waits holders", "sick idle queue queue"],
        ["chart types waits holders x", "sick idle queue"],
    ):
        assert client.post(reverse("home_order"), {"page": "overview", "column": columns}).status_code == 422
    assert client.post(reverse("home_order"), {"page": "nowhere", "move": "up"}).status_code == 422
    assert client.post(reverse("home_order"), {"page": "overview", "part": "../x", "move": "up"}).status_code == 422
    assert not User.objects.get(username="viewer").home_order


def test_a_part_that_a_kept_order_does_not_know_stands_in_its_usual_column(personas):
    user = personas.users["viewer"]
    user.home_order = {"overview": [["queue", "gone"], ["types"]]}

    assert columns_of(user, "overview") == (("queue", "chart", "waits", "holders"), ("types", "sick", "idle"))


def test_a_department_has_one_share_of_its_budget_on_the_page() -> None:
    """The report has budgets as the turn counted them last, and the panel below as they are now: 36% and 37% of one budget."""
    budget, period = SimpleNamespace(gpu_type="", quota=SimpleNamespace(path="acme/products")), SimpleNamespace(is_over=False)
    rows = [Row("acme/products", budget_percent=36), Row("acme/research")]

    found = budgeted_now(rows, [cast("Any", SimpleNamespace(budget=budget, period=period, percent=37))])

    assert [row.budget_percent for row in found] == [37, None]
