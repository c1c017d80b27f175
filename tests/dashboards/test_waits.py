"""The longest waits on Home: which jobs they are, what is said of each, and who is offered what."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.urls import reverse

from dashboards.home.waits import SHOWN, long_waits
from gpufleet.core.times import now
from scheduler.models import Job, JobState, Wait, WaitKind
from tests import builders

pytestmark = pytest.mark.django_db
H100 = "H100-SXM-80GB"


@pytest.fixture
def queue(personas):
    """A team with one job that waits for long, and one that only started to; another team with one in between."""
    moment = now()
    nlp, vision = personas.nodes["acme/research/nlp"], personas.nodes["acme/research/vision"]
    long = waiting("long", nlp, hours=9, gpus_milli=16_000, spec={"gpu_types": [H100]}, owner=personas.users["submitter"], priority=40)
    other = waiting("other", vision, hours=5, gpus_milli=500)
    waiting("short", nlp, hours=1)
    start = {"earliest_start": 1.2, "predicted_start": 2.2, "latest_start": 3.2}
    told: dict[str, Any] = {name: moment + timedelta(hours=hours) for name, hours in start.items()} | {"forecast_at": moment}
    builders.outlook(long, "Needs 16 GPUs on one NVLink island; the largest free one has 8", "The limit of nlp is full", **told)
    builders.outlook(other, "No node has room", code="capacity")
    return personas


def waiting(name, quota, *, hours, **fields) -> Job:
    return builders.job(name, on=quota, state_since=now() - timedelta(hours=hours), **fields)


def shown(access):
    return [one.row.job.name for one in long_waits(access, now=now()).rows]


def test_the_longest_wait_comes_first_and_only_of_teams_that_the_reader_may_see(queue):
    assert shown(queue.access("operator")) == ["long", "other", "short"]
    assert shown(queue.access("team_lead")) == ["long", "short"]
    assert "other" not in queue.client("team_lead").get(reverse("home_waits")).content.decode()


def test_what_waits_for_no_gpu_is_left_out(queue):
    on, later = queue.nodes["acme/research/nlp"], now() + timedelta(hours=1)
    waiting("held", on, hours=50, held_at=now())
    waiting("not-due", on, hours=50, not_before=later)
    behind = waiting("behind", on, hours=50)
    Wait.objects.create(job=behind, kind=WaitKind.ASIDE, since=now())
    waiting("runs", on, hours=50, state=JobState.RUNNING)
    over_quota = waiting("over-quota", on, hours=7, state=JobState.PREEMPTED)
    Wait.objects.create(job=over_quota, kind=WaitKind.QUOTA, since=now())
    due = waiting("due", on, hours=50, not_before=now() - timedelta(hours=2))

    found = long_waits(queue.access("operator"), now=now()).rows

    assert [one.row.job.name for one in found] == ["long", "over-quota", "other", "due", "short"]
    assert next(one.since for one in found if one.row.job == due) == due.not_before


def test_each_says_what_it_asks_for_why_it_waits_and_when_it_starts(queue):
    text = queue.client("operator").get(reverse("home_waits")).content.decode()
    long = text.partition(">long</a>")[2].partition("</tr>")[0]
    other = text.partition(">other</a>")[2].partition("</tr>")[0]

    assert '<span class="team" title="acme/research/nlp">nlp</span>, submitter' in long
    assert 'class="num">16<' in long
    assert H100 in long
    assert ">Too few GPUs free. <" in long
    assert "Needs 16 GPUs on one NVLink island; the largest free one has 8." in long, "the whole reason is told on hover"
    assert "+1 more" in long
    assert re.search(r">starts (\d+\s\w+\s)?\d\d:\d\d–(\d+\s\w+\s)?\d\d:\d\d\sUTC</time>", long)
    assert ", no owner" in other
    assert 'class="num">0.5<' in other
    assert "any type" in other
    assert "No start predicted" in other


def test_verbs_are_for_those_who_may_use_them(queue):
    def verbs(name):
        text = queue.client(name).get(reverse("home_waits")).content.decode()
        return {job.name: f'aria-label="Hold: {job.name}"' in text for job in Job.objects.all() if f">{job.name}</a>" in text}, text

    # An operator manages jobs everywhere, a lead those of the team, a submitter only the own ones.
    assert verbs("operator")[0] == {"long": True, "other": True, "short": True}
    assert verbs("team_lead")[0] == {"long": True, "short": True}
    assert verbs("submitter")[0] == {"long": True, "short": False}
    assert verbs("viewer")[0] == {"long": False, "short": False}
    assert "Actions" not in verbs("viewer")[1]
    job = Job.objects.get(name="long")
    text = verbs("operator")[1]
    assert f'href="{reverse("job_hold", args=[job.public_id])}"' in text
    address = f"{reverse('jobs_bulk')}?action=priority&amp;priority=40&amp;row={job.public_id}"
    assert f'href="{address}" aria-label="Priority: long"' in text
    assert queue.client("operator").get(address.replace("&amp;", "&")).status_code == 200


def test_the_list_is_short_and_says_that_it_goes_on(queue):
    for number in range(SHOWN):
        waiting(f"more-{number}", queue.nodes["acme/research/nlp"], hours=20)
    told = long_waits(queue.access("operator"), now=now())

    assert (len(told.rows), told.are_more) == (SHOWN, True)
    assert "All waiting jobs" in queue.client("operator").get(reverse("home_waits")).content.decode()


def test_where_nothing_waits_it_says_so(personas):
    builders.node(gpus=1)

    lead, viewer = (personas.client(name).get("/overview/").content.decode() for name in ("team_lead", "viewer"))

    assert "No job that you may see waits for GPUs." in lead
    assert 'href="/jobs/new/"' in lead.partition("waits for GPUs.")[2].partition("</section>")[0]
    assert 'href="/jobs/new/"' not in viewer.partition("waits for GPUs.")[2].partition("</section>")[0]


@pytest.mark.parametrize("jobs", [2, 60])
def test_it_costs_the_same_however_many_wait(personas, django_assert_max_num_queries, jobs):
    for number in range(jobs):
        told = waiting(f"job-{number}", personas.nodes["acme/research/nlp"], hours=number, owner=personas.users["submitter"])
        builders.outlook(told, "No node has room for acme/research/vision")
    access = personas.access("team_lead")

    with django_assert_max_num_queries(5):
        assert long_waits(access, now=now()).rows


def test_the_page_of_the_fleet_asks_for_the_list_alone(queue):
    builders.node(gpus=1)

    page = queue.client("operator").get("/overview/").content.decode()
    part = queue.client("operator").get(reverse("home_waits"))

    assert f'data-topic="jobs" data-from="{reverse("home_waits")}"' in page
    on_page, alone = (text.partition('data-part="waits"')[2].partition("</section>")[0] for text in (page, part.content.decode()))
    assert on_page == alone
    assert part["Cache-Control"] == "no-store"
    assert "Allocation and utilization" not in part.content.decode()
