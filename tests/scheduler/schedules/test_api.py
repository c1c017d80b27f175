"""Schedules over HTTP, and what makes no sense."""

import json
from datetime import datetime
from typing import Any

import pytest
from django.core.exceptions import ValidationError

from gpufleet.core.models import AuditEntry
from scheduler.models import Job, Schedule, ScheduleRun
from tests.builders import NOON
from tests.scheduler.schedules.making import DAY, HOUR, TEAM, end_all, make


@pytest.mark.parametrize(
    ("changed", "path"),
    [
        ({"name": " "}, "name"),
        ({"cron": "61 * * * *"}, "cron"),
        ({"zone": "Mars"}, "zone"),
        ({"overlap": "perhaps"}, "overlap"),
        ({"catch_up": "some"}, "catch_up"),
        ({"catch_up": "all", "overlap": "skip"}, "catch_up"),
        ({"start_within_s": 0}, "start_within_s"),
        ({"ends_at": NOON - HOUR}, "ends_at"),
        ({"starts_at": NOON + HOUR, "ends_at": NOON + HOUR}, "ends_at"),
        ({"starts_at": NOON - 500 * DAY}, "starts_at"),
        ({"starts_at": datetime(2026, 1, 1)}, "starts_at"),
        ({"description": ["gpus"]}, "description"),
        ({"description": {"quota": TEAM, "gpus": -1}}, "description.gpus"),
        ({"description": {"quota": "acme/product/search", "gpus": 1}}, "description.quota"),
        ({"description": {"quota": TEAM, "gpus": 1, "draft": True}}, "description.draft"),
        ({"description": {"quota": TEAM, "gpus": 1, "deadline": "2027-01-01T00:00:00Z"}}, "description.deadline"),
        ({"description": {"quota": TEAM, "gpus": 1, "not_before": "2027-01-01T00:00:00Z"}}, "description.not_before"),
    ],
)
def test_what_makes_no_sense_is_refused_at_its_field(personas, fleet, changed, path):
    with pytest.raises(ValidationError) as fault:
        make(personas, **changed)
    assert list(fault.value.message_dict) == [path]
    assert not Schedule.objects.exists()


def body(**changed: Any) -> dict[str, Any]:
    return {"name": "nightly", "cron": "30 2 * * *", "zone": "Europe/Berlin", "description": {"quota": TEAM, "gpus": 1}} | changed


def test_a_key_that_there_is_not_is_named_and_nothing_is_made(personas, fleet):
    answer = personas.client("submitter").post("/api/v1/schedules", body(overlapp="replace"), content_type="application/json")

    assert (answer.status_code, answer.json()["errors"]) == (422, [{"path": "overlapp", "message": "There is no key overlapp here."}])
    assert not Schedule.objects.exists()


def test_the_api_makes_shows_changes_runs_and_removes(personas, fleet):
    client = personas.client("submitter")
    job = {"quota": TEAM, "gpus": 1, "launch": {"shell": "date"}}
    answer = client.post("/api/v1/schedules", body(description=job), content_type="application/json")
    made = answer.json()
    assert answer.status_code == 201 and answer["ETag"] == '"1"'
    assert len(made["times_ahead"]) == 5 and made["times_ahead"][0] == made["next_due"]
    assert (made["state"], made["overlap"], made["catch_up"], made["owner"]) == ("active", "skip", "last", "submitter")
    assert made["description"] == {"name": "nightly", "quota": TEAM, "gpus": 1, "launch": {"shell": "date"}}
    address = f"/api/v1/schedules/{made['id']}"
    seen = personas.client("viewer").get(address).json()
    assert (seen["may_steer"], "launch" in seen["description"]) == (False, False)

    def patch(said: Any, **headers: str) -> Any:
        return client.patch(address, json.dumps(said), content_type="application/json", headers=headers)

    changed = patch({"ends_at": "2040-01-01T00:00:00Z", "zone": None}, **{"If-Match": '"1"'})
    assert changed.json()["ends_at"] == "2040-01-01T00:00:00Z"
    assert patch({"ends_at": None}).json()["ends_at"] is None
    assert patch({"name": "late"}, **{"If-Match": '"1"'}).status_code == 412
    assert patch({"cron": "99 * * * *"}).json()["errors"] == [{"path": "cron", "message": "The minute can't be 99."}]
    paused = client.post(f"{address}/pause", {"reason": "Holidays"}, content_type="application/json").json()
    assert (paused["state"], paused["paused_by"], paused["paused_reason"], paused["times_ahead"]) == ("paused", "Submitter", "Holidays", [])
    assert client.post(f"{address}/resume", {}, content_type="application/json").json()["state"] == "active"
    run = client.post(f"{address}/run", {}, content_type="application/json")
    assert (run.status_code, run.json()["outcome"]) == (201, "submitted")
    assert client.get(f"{address}/runs").json()["items"] == [run.json()]
    assert client.get("/api/v1/jobs", {"schedule": made["id"]}).json()["items"][0]["id"] == run.json()["jobs"][0]
    assert [row["id"] for row in client.get("/api/v1/schedules", {"state": "active", "q": "night"}).json()["items"]] == [made["id"]]
    assert client.get("/api/v1/schedules", {"state": "ended"}).json()["items"] == []
    assert client.delete(address).status_code == 204
    assert client.get(address).status_code == 404
    assert Job.objects.filter(schedule=made["id"]).exists(), "its jobs stay"
    assert personas.client("viewer").get(f"/jobs/{run.json()['jobs'][0]}/").status_code == 200


def test_a_schedule_is_seen_in_its_subtree_alone(personas, fleet):
    make(personas)
    make(personas, "superuser", name="theirs", description={"quota": "acme/product/search", "gpus": 1})

    def names(who: str) -> list[str]:
        return [row["name"] for row in personas.client(who).get("/api/v1/schedules").json()["items"]]

    assert names("viewer") == ["nightly"]
    assert names("finance") == ["nightly", "theirs"]
    assert personas.client("stranger").get("/api/v1/schedules").status_code == 403


def test_the_list_asks_the_database_the_same_number_of_questions_however_long_it_is(personas, fleet, django_assert_num_queries):
    client = personas.client("viewer")
    make(personas)
    with django_assert_num_queries(4) as first:
        client.get("/api/v1/schedules")
    for _ in range(5):
        make(personas)
    with django_assert_num_queries(len(first)):
        client.get("/api/v1/schedules")


def test_a_run_by_hand_that_is_asked_for_again_is_told_again(personas, fleet):
    schedule, client = make(personas, overlap="allow"), personas.client("submitter")
    address = f"/api/v1/schedules/{schedule.public_id}/run"

    def run(reason: str = "", *, key: str = "once", to: str = address, **headers: str) -> Any:
        return client.post(to, {"reason": reason}, content_type="application/json", headers={"Idempotency-Key": key} | headers)

    first = run()
    assert (first.status_code, run().status_code, run().json()) == (201, 200, first.json())
    assert (Job.objects.count(), ScheduleRun.objects.count()) == (1, 1)
    # Also when the schedule has changed since the first answer was lost.
    client.patch(f"/api/v1/schedules/{schedule.public_id}", {"name": "other"}, content_type="application/json")
    assert run(**{"If-Match": '"1"'}).status_code == 200
    assert AuditEntry.objects.filter(action="schedule.run").count() == 1
    # The same key for something else is a mistake: another reason, another schedule, a job.
    other = make(personas, overlap="allow")
    wish = {"quota": TEAM, "gpus": 1}
    job = client.post("/api/v1/jobs", wish, content_type="application/json", headers={"Idempotency-Key": "once"})
    answers = [run("Another"), run(to=address.replace(schedule.public_id, other.public_id)), job]
    assert [answer.status_code for answer in answers] == [409, 409, 409]
    assert run(key="x" * 101).json()["errors"][0]["path"] == "Idempotency-Key"
    assert personas.client("viewer").post(address, {}, content_type="application/json", headers={"Idempotency-Key": "once"}).status_code == 403


def test_a_key_whose_run_was_refused_may_be_used_again(personas, fleet):
    schedule, client = make(personas), personas.client("submitter")
    address = f"/api/v1/schedules/{schedule.public_id}/run"

    def run(key: str) -> int:
        return client.post(address, {}, content_type="application/json", headers={"Idempotency-Key": key}).status_code

    assert [run("a"), run("b")] == [201, 409], "it skips what overlaps"
    end_all()
    ScheduleRun.objects.update(due_at=NOON)
    assert run("b") == 201
