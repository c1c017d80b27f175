"""The form in which a job is submitted, with its part that makes it recur."""

import json
import shlex
from typing import Any

import pytest

from scheduler.jobs.fields import PLAIN, REPEAT
from scheduler.jobs.yaml_text import read_yaml
from scheduler.models import Job, JobDraft, Schedule
from scheduler.presenters.submitting import FLAGS
from scheduler.schedules.schema import ScheduleIn
from tests.scheduler.schedules.making import TEAM

JOB = {"name": "nightly", "quota": TEAM, "gpus": "1", "launch.command": "python evaluate.py"}
WHEN = {"repeat.cron": "30 2 * * *", "repeat.zone": "Europe/Berlin"}


def look(personas: Any, who: str = "submitter", **said: str) -> dict[str, Any]:
    answer = personas.client(who).post("/jobs/new/look", {"_from": "form", **said})
    assert answer.status_code == 200
    told: dict[str, Any] = answer.json()
    return told


def test_every_key_of_a_schedule_has_a_field_and_a_flag():
    keys = ScheduleIn.model_fields.keys() - {"name", "description"}
    assert {path.removeprefix(REPEAT) for path in PLAIN if path.startswith(REPEAT)} == keys == FLAGS.keys()


def test_a_job_is_made_to_recur_where_it_is_submitted(personas, fleet):
    client = personas.client("submitter")
    assert 'name="repeat.cron"' in client.get("/jobs/new/").content.decode()
    form = {**JOB, **WHEN, "repeat.overlap": "replace", "repeat.start_within_s": "90m", "repeat.ends_at": "2040-01-01T00:00:00Z"}
    answer = client.post("/jobs/new/", {"_from": "form", **form}, follow=True)

    schedule = Schedule.objects.get()
    assert answer.redirect_chain[-1][0] == f"/schedules/{schedule.public_id}/"
    assert "nightly is kept: it is submitted each time that it is due." in answer.content.decode()
    assert (schedule.name, schedule.cron, schedule.zone, schedule.overlap, schedule.catch_up) == (
        "nightly",
        "30 2 * * *",
        "Europe/Berlin",
        "replace",
        "last",
    )
    assert (schedule.start_within_s, f"{schedule.ends_at:%Y}", schedule.quota.path) == (5400, "2040", TEAM)
    assert schedule.description == {"name": "nightly", "gpus": 1, "launch": {"command": ["python", "evaluate.py"]}}
    assert not Job.objects.exists()


def test_the_next_three_times_are_told_as_one_types(personas, fleet):
    told = look(personas, **JOB, **WHEN)

    assert (told["faults"], told["others"], told["send"]) == ({}, [], "Create schedule")
    assert told["due"].count("<li>") == 3 and told["due"].count(", 02:30 ") == 3
    assert "<strong>Every day at 02:30</strong> by the clock of Europe/Berlin" in told["due"]
    assert "data-verdict" in told["fit"] or "data-again" in told["fit"], "what it would be now is told as well"
    once = look(personas, **JOB)
    assert (once["send"], "submitted once" in once["due"]) == ("Submit", True)
    over = look(personas, **JOB, **WHEN, **{"repeat.ends_at": "2020-01-01T00:00:00Z"})
    assert over["faults"] == {"repeat.ends_at": ["It lies in the past."]} and "<li>" not in over["due"]
    never = look(
        personas, **JOB, **{"repeat.cron": "0 0 29 2 *", "repeat.starts_at": "2029-03-01T00:00:00Z", "repeat.ends_at": "2029-04-01T00:00:00Z"}
    )
    assert (never["faults"], "It is never due" in never["due"]) == ({}, True)
    # Faults of the job keep nobody from seeing when it is due.
    assert look(personas, **{**JOB, "gpus": "-1"}, **WHEN)["due"].count("<li>") == 3


def test_days_and_a_time_are_chosen_and_the_pickers_know_no_zone(personas, fleet):
    chosen: dict[str, Any] = {"repeat.cron-every": "week", "repeat.cron-days": ["SAT", "SUN"], "repeat.cron-time": "02:00"}
    told = look(personas, **JOB, **WHEN, **chosen, **{"repeat.starts_at": "2035-01-01T09:00"})
    assert (told["faults"], told["due"].count("<li>S"), "0 2 * * SAT,SUN" in told["due"]) == ({}, 3, True)
    assert '"starts_at": "2035-01-01T09:00:00Z"' in told["curl"]
    once = look(personas, **JOB, **WHEN, **chosen | {"repeat.cron-every": ""})
    assert (once["send"], "submitted once" in once["due"]) == ("Submit", True)
    # What YAML says with an offset is the same moment to the picker, and goes back as that.
    text = f"name: nightly\nquota: {TEAM}\ngpus: 2\nnot_before: 2035-01-01T09:00:00+01:00\n"
    by_yaml = personas.client("submitter").post("/jobs/new/look", {"_from": "yaml", "yaml": text}).json()
    assert (by_yaml["faults"], by_yaml["values"]["not_before"]) == ({}, "2035-01-01T08:00:00")
    assert "2035-01-01T08:00:00Z" in look(personas, **JOB, not_before="2035-01-01T08:00:00")["yaml"]


@pytest.mark.parametrize(
    ("said", "field", "message"),
    [
        ({"repeat.cron": "61 * * * *"}, "repeat.cron", "The minute can't be 61."),
        ({"repeat.cron-every": "week", "repeat.cron-time": "02:00"}, "repeat.cron", "Choose a day."),
        ({"repeat.cron": "", "repeat.zone": "UTC"}, "repeat.cron", "This field is required."),
        ({"repeat.zone": "Mars"}, "repeat.zone", "Name a time zone such as Europe/Berlin or UTC."),
        ({"repeat.overlap": "perhaps"}, "repeat.overlap", "It can be allow, skip, replace."),
        (
            {"repeat.catch_up": "all"},
            "repeat.catch_up",
            "To catch up with all, overlap must be allow: otherwise they would skip or replace each other.",
        ),
        ({"repeat.start_within_s": "soon"}, "repeat.start_within_s", "Use a duration, such as 90m, 12h or 1d."),
        ({"repeat.start_within_s": "0"}, "repeat.start_within_s", "From 1 to 31,622,400 seconds."),
        ({"repeat.starts_at": "tomorrow"}, "repeat.starts_at", "A time is wanted, such as 2026-11-20T09:00:00Z."),
        ({"draft": "true"}, "draft", "A draft would wait for somebody each time. Pause the schedule instead."),
        ({"not_before": "2030-01-01T00:00:00Z"}, "not_before", "A job that recurs has no fixed time; the schedule says when it is due."),
        ({"gpus": "-1"}, "gpus", "At least 0."),
        ({"name": ""}, "name", "This field is required."),
    ],
)
def test_each_fault_is_told_at_its_field(personas, fleet, said, field, message):
    form = JOB | WHEN | said
    told = look(personas, **form)
    assert told["faults"] == {field: [message]}
    answer = personas.client("submitter").post("/jobs/new/", {"_from": "form", **form}, follow=True)
    assert answer.status_code == 422
    assert not Schedule.objects.exists() and not Job.objects.exists()


def test_faults_of_both_are_told_in_one_round(personas, fleet):
    told = look(personas, **{**JOB, "gpus": "many", "launch.workdir": "here"}, **{"repeat.cron": "61 * * * *", "repeat.zone": "Mars"})
    assert told["faults"].keys() == {"gpus", "launch.workdir", "repeat.cron", "repeat.zone"}


def test_what_is_typed_as_yaml_recurs_as_the_fields_say(personas, fleet):
    text = f"name: nightly\nquota: {TEAM}\ngpus: 2\n"
    told = personas.client("submitter").post("/jobs/new/look", {"_from": "yaml", "yaml": text, "gpus": "1", **WHEN}).json()

    assert (told["faults"], told["values"]["gpus"], told["values"]["repeat.cron"]) == ({}, "2", "30 2 * * *")
    assert "repeat" not in told["yaml"]
    personas.client("submitter").post("/jobs/new/", {"_from": "yaml", "yaml": text, **WHEN}, follow=True)
    assert Schedule.objects.get().description == {"name": "nightly", "gpus": 2}
    # When it recurs is no key of the job.
    odd = personas.client("submitter").post("/jobs/new/look", {"_from": "yaml", "yaml": text + "repeat: {cron: '* * * * *'}\n"}).json()
    assert odd["others"] == ["Line 4: repeat: There is no key repeat here."]


def test_a_job_that_recurs_is_not_kept_as_a_draft(personas, fleet):
    answer = personas.client("submitter").post("/jobs/new/", {"_from": "form", **JOB, **WHEN, "keep": "1"}, follow=True)

    assert answer.status_code == 422
    assert "Pause the schedule instead." in answer.content.decode()
    assert not Schedule.objects.exists() and not Job.objects.exists()


def test_an_unfinished_draft_keeps_when_it_recurs(personas, fleet):
    client = personas.client("submitter")
    name = client.post("/jobs/new/draft", {"_from": "form", **JOB, **WHEN}).json()["draft"]
    assert JobDraft.objects.get().repeat == WHEN

    html = client.get(f"/jobs/new/?draft={name}").content.decode()

    assert 'value="30 2 * * *"' in html and 'value="Europe/Berlin"' in html
    client.post("/jobs/new/", {"_from": "form", **JOB, **WHEN, "_draft": name}, follow=True)
    assert (Schedule.objects.count(), JobDraft.objects.count()) == (1, 0)


def test_the_lines_beside_it_make_the_same_schedule(personas, fleet):
    client = personas.client("submitter")
    told = look(personas, **JOB, **WHEN, **{"repeat.catch_up": "none", "repeat.start_within_s": "1h"})

    words = shlex.split(told["curl"])
    assert words[3].endswith("/api/v1/schedules")
    assert client.post("/api/v1/schedules", json.loads(words[-1]), content_type="application/json").status_code == 201
    by_api = Schedule.objects.get()
    assert (by_api.catch_up, by_api.start_within_s, by_api.description["gpus"]) == ("none", 3600, 1)
    first, _, rest = told["command"].partition("\n")
    assert first == "gpufleet schedule add - --cron='30 2 * * *' --zone=Europe/Berlin --catch-up=none --start-within=3600 <<'JOB'"
    assert read_yaml(rest.rpartition("JOB")[0]).value["name"] == "nightly"


def test_who_may_not_submit_there_makes_no_schedule(personas, fleet):
    told = look(personas, **{**JOB, "quota": "acme/product/search"}, **WHEN)
    assert told["faults"].keys() == {"quota"}
    assert personas.client("viewer").post("/jobs/new/look", {"_from": "form", **JOB, **WHEN}).status_code == 403


def test_a_page_that_refused_it_is_opened_again_by_its_address(personas, fleet):
    client = personas.client("submitter")
    refused = client.post("/jobs/new/", {"_from": "form", **JOB, **WHEN, "gpus": "-1"}, follow=True)

    ((address, status),) = refused.redirect_chain
    assert (status, client.get(address).headers["Location"]) == (307, "/jobs/new/")
