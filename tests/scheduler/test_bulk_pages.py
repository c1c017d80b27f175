"""One thing done to many jobs in the console: chosen, looked at, and steered."""

import re
from typing import Any

import pytest
from django.urls import reverse

from gpufleet.core.audit import SYSTEM
from scheduler.models import Job, JobBatch
from scheduler.services.jobs.jobs import job_hold
from tests.builders import NOON, job
from tests.scheduler.bulk_calls import call, named, preview_page

pytestmark = pytest.mark.django_db


@pytest.fixture
def ours(personas):
    return personas.nodes["acme/research/nlp"]


@pytest.fixture
def theirs(personas):
    return personas.nodes["acme/product/search"]


def sent_by(html: str) -> dict[str, Any]:
    """What the preview's form sends."""
    found: dict[str, Any] = {}
    for name, value in re.findall(r'<input type="hidden" name="(action|priority|key|job|matching)" value="([^"]*)">', html):
        found.setdefault(name, []).append(value)
    if typed := re.search(r'name="priority" type="number"[^>]* value="([^"]*)"', html):
        found["priority"] = [typed[1]]
    return found


def test_in_the_console_rows_are_chosen_looked_at_and_then_steered(personas, ours):
    client = personas.client("team_lead")
    first, second = job("first", on=ours), job("second", on=ours)
    listed = client.get("/jobs/").content.decode()
    assert f'name="row" value="{first.public_id}" form="bulk"' in listed
    html = preview_page(client, "priority", first, second, priority="80")
    assert "Change the priority of 2 jobs?" in html
    assert "Priority 50 becomes 80." in html
    assert set(Job.objects.values_list("priority", flat=True)) == {50}

    # Somebody else is faster with one of them.
    job_hold(job=second, now=NOON, actor=SYSTEM)
    answer = client.post("/jobs/bulk/do/", sent_by(html) | {"reason": "More urgent."}, follow=True)

    told = answer.content.decode()
    assert dict(Job.objects.values_list("name", "priority")) == {"first": 80, "second": 50}
    assert "Changed the priority of 1 job" in told
    assert "1 job was left alone" in told and "Has changed meanwhile" in told and second.public_id in told
    # Pressed twice it is the same batch.
    assert client.post("/jobs/bulk/do/", sent_by(html) | {"reason": "More urgent."}).headers["Location"] == answer.redirect_chain[-1][0]
    assert JobBatch.objects.count() == 1
    assert personas.client("operator").get(answer.redirect_chain[-1][0]).status_code == 404


def test_the_console_says_what_is_left_alone_and_why(personas, ours, theirs):
    mine = job("mine", on=ours, owner=personas.users["submitter"])
    others, secret = job("others", on=ours), job("secret", on=theirs)

    html = preview_page(personas.client("submitter"), "hold", mine, others, secret)

    assert "Hold 1 job?" in html
    assert "2 jobs are left alone" in html
    assert "Not yours to touch" in html and "Not there" in html
    assert "secret" not in html
    nothing = preview_page(personas.client("submitter"), "hold", others)
    assert "Nothing would change" in nothing and 'name="reason"' not in nothing


def test_all_that_match_are_looked_at_in_the_console_too(personas, ours):
    for number in range(3):
        job(f"sweep-{number}", on=ours)
    job("other", on=ours)
    client = personas.client("team_lead")

    html = preview_page(client, "cancel", all="1", matching="?q=sweep&size=25&after=x")

    assert "Cancel 3 jobs?" in html
    assert 'href="/jobs/?q=sweep"' in html
    assert "can&#x27;t be “nonsense”" in preview_page(client, "cancel", status=422, all="1", matching="?state=nonsense")
    assert "names no job" in preview_page(client, "cancel", status=422)
    assert "whole number" in preview_page(client, "priority", Job.objects.get(name="other"), status=422, priority="high")


def test_filters_that_are_too_long_are_refused_and_not_cut(personas, ours):
    wanted, other = job("sweep", on=ours), job("other", on=ours)
    client = personas.client("team_lead")
    long = "&".join(["phase=waiting"] * 142 + ["sort=-state", "q=sweep"])  # cut at 2,000 it would be a list of all that waits

    html = preview_page(client, "cancel", status=422, all="1", matching=f"?{long}")

    assert "The filters are too long" in html
    assert other.public_id not in html and "jobs/bulk/do" not in html
    assert 'href="/jobs/"' in html
    # Who chose the jobs himself means those.
    html = preview_page(client, "cancel", wanted, matching=f"?{long}")
    assert "Cancel sweep?" in html and other.public_id not in html


def test_more_than_may_be_steered_at_once_are_cut_and_said(personas, ours, monkeypatch):
    monkeypatch.setattr("scheduler.views.bulk.MOST", 2)
    for number in range(3):
        job(f"sweep-{number}", on=ours)

    html = preview_page(personas.client("team_lead"), "cancel", all="1", matching="")

    assert "More jobs match" in html
    assert "Cancel 2 jobs?" in html


def test_who_steers_nothing_chooses_nothing(personas, ours):
    mine = job(on=ours)
    assert 'name="row"' not in personas.client("viewer").get("/jobs/").content.decode()
    assert 'name="row"' not in personas.client("viewer").get(f"/jobs/?rows={mine.public_id}").content.decode()
    assert 'name="row"' in personas.client("submitter").get(f"/jobs/?rows={mine.public_id}").content.decode()
    assert personas.client("viewer").post("/jobs/bulk/", {"action": "hold", "row": mine.public_id}).status_code == 403
    call(personas.client("viewer"), 403, action="hold", jobs=named(mine))


def test_a_reason_that_is_too_long_is_told_at_its_field(personas, ours):
    mine = job(on=ours)
    html = preview_page(personas.client("team_lead"), "hold", mine)

    answer = personas.client("team_lead").post("/jobs/bulk/do/", sent_by(html) | {"reason": "x" * 281})

    assert answer.status_code == 422
    assert "at most 280 characters" in answer.content.decode()
    assert reverse("job", args=[mine.public_id]) in answer.content.decode()
    assert Job.objects.get().held_at is None


@pytest.mark.parametrize("typed", ["5000", "soon", ""])
def test_a_priority_that_is_none_is_told_at_its_field_and_all_that_was_typed_stays(personas, ours, typed):
    mine = job("mine", on=ours)
    html = preview_page(personas.client("team_lead"), "priority", mine, priority="80")

    live = preview_page(personas.client("team_lead"), "priority", mine, status=422, priority=typed)
    preview = live.split('id="change-preview"')[1].split("</section>")[0]
    assert "Enter a whole number from -1000 to 1000." in preview and "becomes" not in preview
    refused = personas.client("team_lead").post("/jobs/bulk/do/", sent_by(html) | {"priority": typed, "reason": "More urgent."})

    page = refused.content.decode()
    assert refused.status_code == 422
    assert 'id="priority-error"' in page and f'inputmode="numeric" value="{typed}"' in page and 'aria-invalid="true"' in page
    assert 'value="More urgent."' in page
    assert sent_by(page)["job"] == sent_by(html)["job"], "the same jobs at the revision that was seen"
    assert Job.objects.get().priority == 50
    assert personas.client("team_lead").post("/jobs/bulk/do/", sent_by(page) | {"priority": "90", "reason": "Now."}).status_code == 302
    assert Job.objects.get().priority == 90
