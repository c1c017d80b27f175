"""Home: which page a role is shown, what it answers in one line, and that it names nothing outside the reader's subtrees."""

import pytest
from django.urls import reverse

from dashboards.home.parts import call_answer, month_answer, team_answer
from dashboards.home.views import own_page, tabs_of
from dashboards.presenters import fleet_answer
from gpufleet.core.times import now
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


def test_who_is_on_call_reads_the_next_step_of_each_node(personas):
    builders.node("sick", health=Health.SUSPECT, gpus=4)
    builders.node("gone", health=Health.DOWN, gpus=1)

    shown = personas.client("operator").get(reverse("home_on_call")).content.decode()

    assert "2 nodes need attention, 0 alerts firing." in shown
    assert 'aria-label="Drain: sick"' in shown
    assert 'aria-label="Start repair: gone"' in shown
    assert "5 GPUs affected" in shown
