"""What people do with jobs and the scheduler: on pages and over the API, by those who may, written down with who and why."""

import pytest
from django.urls import reverse

from gpufleet.core.models import AuditEntry
from scheduler.models import Attempt, Checkpoint, Dependency, Job, JobEvent, JobState, Lease
from tests.builders import NOON, attempt, job, node, placement

pytestmark = pytest.mark.django_db


@pytest.fixture
def ours(personas):
    return personas.nodes["acme/research/nlp"]


@pytest.fixture
def mine(personas, ours):
    return job("mine", on=ours, owner=personas.users["submitter"])


def fresh(of: Job) -> Job:
    return Job.objects.get(pk=of.pk)


def post(client, name, of, **data):
    return client.post(reverse(name, args=[of.public_id]), data)


def test_the_owner_cancels_what_waits_and_says_why(personas, mine):
    client = personas.client("submitter")
    asked = client.get(reverse("job_cancel", args=[mine.public_id])).content.decode()
    assert "It leaves the queue at once." in asked

    assert post(client, "job_cancel", mine, reason="Wrong data.").status_code == 302

    assert fresh(mine).state == JobState.CANCELLED
    event = JobEvent.objects.filter(job=mine).latest("id")
    assert (event.to_state, event.cause, event.actor_name) == ("cancelled", "Wrong data.", "Submitter")
    assert AuditEntry.objects.filter(object_id=mine.public_id, reason="Wrong data.").exists()


def test_what_runs_is_asked_to_leave_and_keeps_its_gpus_until_it_has(personas, ours):
    running = job("gang", on=ours, state=JobState.RUNNING)
    run = attempt(running, running_at=NOON)
    placement(running, node(gpus=1).gpus.get(), attempt=run)
    Checkpoint.objects.create(job=running, attempt=run, step=70, verified_at=NOON, reported_at=NOON)
    Dependency.objects.create(job=job("next", on=ours), on=running)
    client = personas.client("team_lead")

    asked = client.get(reverse("job_cancel", args=[running.public_id])).content.decode()
    assert "checkpoint is of step 70" in asked
    assert "1 other job waits for it to complete and is cancelled too." in asked
    assert post(client, "job_cancel", running).status_code == 302

    stopping = Attempt.objects.get(pk=run.pk)
    assert (stopping.stop_to, stopping.stop_outcome) == ("cancelled", "cancelled")
    assert fresh(running).state == JobState.CHECKPOINTING
    assert running.placements.filter(until__isnull=True).exists()
    assert "gone by" in client.get("/jobs/?phase=holding").content.decode()


def test_only_its_people_steer_a_job(personas, ours, mine):
    others = job("others", on=ours)
    for who, of, status in (
        ("submitter", mine, 302),
        ("submitter", others, 403),
        ("viewer", mine, 403),
        ("finance", mine, 403),
        ("team_lead", others, 302),
        ("operator", others, 302),
    ):
        Job.objects.filter(pk=of.pk).update(held_at=None)
        assert post(personas.client(who), "job_hold", of).status_code == status, (who, of.name)
    assert "Cancel job" in personas.client("submitter").get(reverse("job", args=[mine.public_id])).content.decode()
    assert "Cancel job" not in personas.client("viewer").get(reverse("job", args=[mine.public_id])).content.decode()


def test_who_lost_the_right_to_submit_lost_the_job_too(personas, ours):
    left = job("left", on=ours, owner=personas.users["viewer"])

    assert post(personas.client("viewer"), "job_cancel", left).status_code == 403


def test_a_held_job_keeps_its_place_and_is_let_go_again(personas, mine):
    client = personas.client("submitter")
    assert post(client, "job_hold", mine).status_code == 302
    html = client.get(reverse("job", args=[mine.public_id])).content.decode()
    assert fresh(mine).held_at is not None
    assert fresh(mine).submitted_at == mine.submitted_at
    assert "Held back <time" in html and "Release" in html

    assert post(client, "job_release", mine).status_code == 302
    assert fresh(mine).held_at is None


def test_what_can_not_be_done_is_said_on_the_page(personas, ours, mine):
    client = personas.client("team_lead")
    running = job("runs", on=ours, state=JobState.RUNNING)
    over = job("over", on=ours, state=JobState.COMPLETED)

    held = post(client, "job_hold", running)
    assert held.status_code == 409
    assert "has its GPUs already" in held.content.decode()
    again = post(client, "job_cancel", over)
    assert again.status_code == 409
    assert "has ended already" in again.content.decode()
    long = post(client, "job_cancel", mine, reason="x" * 281)
    assert long.status_code == 422
    assert "at most 280 characters" in long.content.decode()
    assert fresh(mine).state == JobState.QUEUED


def test_programs_steer_jobs_the_same_way(personas, mine):
    client = personas.client("submitter")

    def call(verb, status, **body):
        answer = client.post(f"/api/v1/jobs/{mine.public_id}/{verb}", body, content_type="application/json")
        assert answer.status_code == status, answer.content
        return answer.json()

    assert call("hold", 200, reason="Later.")["held_at"]
    Job.objects.filter(pk=mine.pk).update(retry_at=NOON.replace(year=2190))
    assert call("release", 200)["held_at"] is None
    assert fresh(mine).retry_at is None, "somebody says that it may start"
    assert call("cancel", 422, reason="x" * 281)["errors"][0]["path"] == "reason"
    assert call("cancel", 200)["state"] == "cancelled"
    assert "has ended already" in call("cancel", 409)["detail"]


def test_the_scheduler_is_paused_with_a_reason_and_resumed(personas):
    client = personas.client("operator")
    refused = client.post("/scheduler/pause/", {"reason": " "})
    assert refused.status_code == 422
    assert "State a reason" in refused.content.decode()

    assert client.post("/scheduler/pause/", {"reason": "New switches."}).status_code == 302
    html = client.get("/scheduler/").content.decode()
    assert "Paused by Operator" in html and "New switches." in html and "Resume" in html
    assert client.post("/scheduler/pause/", {"reason": "Again."}).status_code == 409
    wanted = Lease.objects.get(name="tick").wanted

    assert client.post("/scheduler/resume/").status_code == 302
    assert Lease.objects.get(name="tick").paused_at is None
    assert Lease.objects.get(name="tick").wanted > wanted, "going on asks for a plan"
    assert client.post("/scheduler/resume/").status_code == 409
    assert list(AuditEntry.objects.filter(object_kind="scheduler").order_by("id").values_list("action", flat=True)) == [
        "scheduler.pause",
        "scheduler.resume",
    ]


def test_only_operators_pause(personas):
    assert personas.client("finance").post("/scheduler/pause/", {"reason": "x"}).status_code == 403
    assert "Pause the scheduler" not in personas.client("finance").get("/scheduler/").content.decode()
    answer = personas.client("operator").post("/api/v1/scheduler/pause", {"reason": "x"}, content_type="application/json")
    assert (answer.status_code, answer.json()["state"]) == (200, "paused")
