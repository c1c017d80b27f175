"""Why a job waits, as its page and its row say it to several kinds of people."""

import re
from datetime import timedelta

import pytest
from django.urls import reverse

from gpufleet.core.templatetags.shell import THIN
from gpufleet.core.times import now
from scheduler.jobs.filters import BLOCKERS
from scheduler.models import (
    Cluster,
    Dependency,
    JobEvent,
    JobState,
    Promise,
)
from scheduler.presenters.jobs import MOST_WORDS, Line
from tests.builders import NOON, attempt, job, node, outlook, placement
from tests.scheduler.read_pages import page, text

pytestmark = pytest.mark.django_db


@pytest.fixture
def ours(personas):
    return personas.nodes["acme/research/nlp"]


@pytest.fixture
def theirs(personas):
    return personas.nodes["acme/product/search"]


@pytest.mark.parametrize(
    ("held", "code", "said"),
    [
        ({}, "dependency", "Waits for {first}"),
        ({"not_before": NOON.replace(year=2999)}, "held", "Not before 2999-11-20"),
        ({"retry_at": NOON.replace(year=2999)}, "retry", "Tried again"),
    ],
)
def test_what_keeps_a_job_out_of_the_queue_is_told_before_any_forecast(personas, ours, held, code, said):
    """Plans leave such a job out, and the next forecast may be minutes away."""
    first, waiting = job("first", on=ours), job("second", on=ours, **held)
    if not held:
        Dependency.objects.create(job=waiting, on=first)
    new = job("third", on=ours)

    html, told = page(personas.client("viewer"), waiting), personas.client("viewer").get(f"/api/v1/jobs/{waiting.public_id}/why").json()

    assert [reason["code"] for reason in told["reasons"]] == [code]
    assert said.format(first=first.public_id).lower() in re.sub(r"<[^>]+>", "", html).lower()
    assert "has not looked at it yet" not in html
    assert told["looked_at"] is None and "Looked at" not in html, "no plan has"
    assert "has not looked at it yet" in page(personas.client("viewer"), new)


def test_a_waiting_job_says_in_its_row_why_it_waits(personas, ours):
    waiting = job("big", on=ours)
    outlook(waiting, "needs 8 H100 GPUs; 5 are free where it may run", "second", predicted_start=now() + timedelta(hours=2))

    html = text(personas.client("viewer"), "/jobs/")

    assert "Needs 8 H100 GPUs; 5 are free where it may run." in html
    assert "+1 more" in html
    assert "starts" in html


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"change": "gpu_types", "to": ["A100-SXM-80GB", "L40S-48GB"]}, "It would start now on A100-SXM-80GB or L40S-48GB."),
        ({"change": "topology.required", "to": None}, "It would start now with its required level widened to the whole cluster."),
        ({"change": "roles.worker.min", "to": 3}, "It would start now with 3 workers."),
        ({"change": "preemptible", "to": True}, "It would start now as preemptible work."),
    ],
)
def test_the_change_that_would_start_it_now_is_told_in_words(personas, ours, change, said):
    waiting = job("big", on=ours)
    outlook(waiting, "needs 8 GPUs", would_start_if=change)

    assert said in page(personas.client("viewer"), waiting)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"held_at": NOON}, "Held back by a person."),
        ({"not_before": NOON + timedelta(days=900)}, "Not due yet."),
        ({"retry_at": NOON + timedelta(days=900)}, "Backs off before it is tried again."),
        ({"state": JobState.DRAFT}, "Not submitted yet."),
        ({"state": JobState.RUNNING, "degraded_since": NOON}, "Some of its workers are lost."),
        ({}, "Not looked at yet."),
    ],
)
def test_what_the_plan_does_not_know_is_said_all_the_same(personas, ours, fields, said):
    job(on=ours, **fields)

    assert said in text(personas.client("viewer"), "/jobs/")


def test_a_line_of_a_list_has_at_most_eight_words(personas, ours) -> None:
    assert all(len(words.split()) <= MOST_WORDS for words in BLOCKERS.values())
    waits = job("train", on=ours)
    outlook(waits, reasons=[{"code": "capacity", "detail": "needs 1 L40S-48GB GPU; 0 are free where it may run"}])
    client = personas.client("operator")

    (cell,) = re.findall(r'<span class="job-line"[^>]*>[^<]*', client.get(reverse("jobs")).content.decode())
    assert cell == '<span class="job-line" title="Needs 1 L40S-48GB GPU; 0 are free where it may run.">Too few GPUs free.'
    assert "Needs 1 L40S-48GB GPU; 0 are free where it may run." in client.get(reverse("job", args=[waits.public_id])).content.decode()
    assert Line("Rank 3 of the gang ended with the code 137.").brief == "Details on its page."
    assert Line("alpha-7 stopped answering; the job waits for another place.").brief == "alpha-7 stopped answering."
    assert Line("Waits for 2 jobs to end.", short="Waits for another job.").brief == "Waits for 2 jobs to end."


def test_a_job_that_waits_for_others_says_for_how_many(personas, ours):
    last = job("last", on=ours)
    Dependency.objects.create(job=last, on=job("first", on=ours))
    Dependency.objects.create(job=last, on=job("over", on=ours, state=JobState.COMPLETED))

    assert "Waits for 1 job to end." in text(personas.client("viewer"), "/jobs/?q=last")


def test_other_teams_are_not_named_where_they_stand_in_the_way(personas, ours, theirs):
    secret = job("secret", on=theirs, state=JobState.RUNNING)
    waiting = job("mine", on=ours)
    outlook(waiting, f"above their share: acme/product/search; {secret.public_id} holds GPUs there until later, acme/research may too")
    Promise.objects.create(job=waiting, until=NOON, after=[secret.public_id], cause=f"fits once {secret.public_id} has gone")
    JobEvent.objects.create(job=waiting, at=NOON, cause=f"acme/product/search takes it back for {secret.public_id}")

    for address in ("/jobs/", reverse("job", args=[waiting.public_id])):
        seen = text(personas.client("viewer"), address)
        assert secret.public_id not in seen
        assert "product" not in seen
    html = page(personas.client("viewer"), waiting)
    assert "another team" in html
    assert "Another team takes it back for another job." in html, "a sentence, also where a name that it began with is kept back"
    assert "acme/research may too" in html
    assert "1 job of another team leaves" in html
    assert secret.public_id in page(personas.client("operator"), waiting)


def test_other_teams_in_a_row_are_counted(personas, ours, theirs):
    waiting = job("mine", on=ours)
    outlook(waiting, f"above their share: {theirs.path}, {theirs.parent.path} and {theirs.path}; {ours.path} is not")

    html = page(personas.client("viewer"), waiting)

    assert "Above their share: 3 other teams; acme/research/nlp is not." in html


def limit_reason(quota, *, used, needed, limit, kind="H100-SXM-80GB"):
    detail = f"{quota.path} uses {used} of its limit of {limit} {kind}; {needed} more would exceed it"
    return {"code": "limit", "detail": detail, "quota": quota.path, "used": used, "needed": needed, "limit": limit, "type": kind}


def running_on(quota, gpus, *, kind="H100-SXM-80GB", **fields):
    """A job that has run for an hour on so many GPUs."""
    made = job(on=quota, state=JobState.RUNNING, **fields)
    attempt(made, running_at=now() - timedelta(hours=1))
    for device in node(gpus=gpus, type_name=kind).gpus.all():
        placement(made, device)
    return made


def test_a_job_on_a_cluster_that_does_not_respond_says_what_that_means(personas, ours):
    running, ended = running_on(ours, 1), job("over", on=ours, state=JobState.COMPLETED)
    assert "has not responded" not in page(personas.client("viewer"), running)
    Cluster.objects.update(silent_since=NOON)

    told = page(personas.client("viewer"), running)
    assert ">north</a> has not responded <time" in told
    assert "A cancel or a change takes effect when the cluster responds." in told
    assert "has not responded" not in page(personas.client("viewer"), ended)


def test_who_waits_for_a_limit_is_told_who_holds_it_and_when_enough_is_given_back(personas, ours, theirs):
    soon = running_on(ours, 2, name="soon", estimate_seconds=9000)
    running_on(theirs, 4, name="secret", estimate_seconds=5 * 3600)
    running_on(ours, 1, name="other-type", kind="L40S-48GB")
    whole = ours.parent.parent
    waiting = job("mine", on=ours)
    outlook(waiting, reasons=[limit_reason(whole, used=6, needed=4, limit=8)])
    viewer, operator = page(personas.client("viewer"), waiting), page(personas.client("operator"), waiting)

    assert "holds 2 GPUs" in viewer
    assert viewer.index(soon.public_id) < viewer.index("another team")
    assert "secret" not in viewer
    assert "secret" in operator
    assert "other-type" not in operator
    assert "Predicted release of enough GPUs" in viewer
    assert f"in 1{THIN}h" in viewer


def test_where_nobody_knows_when_a_limit_has_room_again_that_is_said(personas, ours):
    running_on(ours, 2, name="serving")
    for number in range(6):
        running_on(ours, 1, name=f"over-{number}", estimate_seconds=1800)
    waiting = job("mine", on=ours)
    outlook(waiting, reasons=[limit_reason(ours, used=8, needed=8, limit=8)], forecast_at=NOON)

    html = page(personas.client("viewer"), waiting)

    assert html.count("its end is not known") == 5
    assert "2 more jobs: 8 GPUs in all, 8 of acme/research/nlp." in html
    assert "No estimate when enough is released." in html
    assert "No start can be predicted now." in html
