"""Recurring jobs from the command line."""

import json

import pytest

from scheduler.models import Job, Schedule
from tests.builders import node

pytestmark = pytest.mark.django_db(transaction=True)
FILE = "name: nightly\nquota: acme/research/nlp\ngpus: 1\nlaunch: {command: [python, evaluate.py]}\n"
SUBMIT = {"who": "submitter", "scopes": ("submit",)}


@pytest.fixture
def job_file(db, tmp_path):
    node(gpus=4)
    path = tmp_path / "nightly.yaml"
    path.write_text(FILE)
    return str(path)


def test_a_schedule_is_added_shown_paused_resumed_run_and_removed(run, job_file):
    words = ["--cron", "30 2 * * *", "--zone", "Europe/Berlin", "--overlap", "replace", "--catch-up", "none", "--start-within", "2h"]
    status, out, _ = run("schedule", "add", job_file, *words, "--until", "2040-01-01T00:00:00Z", **SUBMIT)

    made = Schedule.objects.get()
    assert status == 0 and out.startswith(f"{made.public_id}  nightly  next due ")
    assert (made.cron, made.zone, made.overlap, made.catch_up, made.start_within_s) == ("30 2 * * *", "Europe/Berlin", "replace", "none", 7200)
    assert made.description["launch"] == {"command": ["python", "evaluate.py"]}
    name = made.public_id
    assert run("schedule", "pause", name, "--reason", "Holidays", **SUBMIT)[:2] == (0, f"{name}  paused\n")
    assert "Holidays" in run("schedule", "show", name, **SUBMIT)[1]
    assert run("schedule", "resume", name, **SUBMIT)[1].startswith(f"{name}  next due ")
    assert run("schedule", "run", name, **SUBMIT)[1] == f"{name}  {Job.objects.get().public_id}\n"
    shown = run("schedule", "show", name, **SUBMIT)[1]
    assert "30 2 * * * in Europe/Berlin" in shown and Job.objects.get().public_id in shown and "submitted" in shown
    assert f"{name}, due" in run("show", Job.objects.get().public_id, **SUBMIT)[1]
    told = json.loads(run("schedule", "show", name, "--json", **SUBMIT)[1])
    assert (len(told["times_ahead"]), told["runs"][0]["jobs"]) == (5, [Job.objects.get().public_id])
    assert run("schedule", "ls", "--ids", **SUBMIT)[1] == f"{name}\n"
    assert "nightly" in run("schedule", "ls", "--state", "active", **SUBMIT)[1]
    assert run("schedule", "rm", name, **SUBMIT)[:2] == (0, f"{name}  removed\n")
    assert not Schedule.objects.exists()


def test_what_is_refused_is_said_and_keeps_none_of_the_others_back(run, job_file):
    status, _, err = run("schedule", "add", job_file, "--cron", "99 * * * *", **SUBMIT)
    assert status == 5 and "cron: The minute can't be 99." in err
    assert run("schedule", "add", job_file, "--cron", "0 * * * *", **SUBMIT)[0] == 0
    name = Schedule.objects.get().public_id

    status, out, err = run("schedule", "pause", "s-999", name, name, **SUBMIT)

    assert (status, out) == (4, f"{name}  paused\n")
    assert "s-999: " in err and f"{name}: " in err
    assert run("schedule", "paint", **SUBMIT)[0] == 2


def test_a_run_whose_answer_is_lost_is_asked_for_again_and_made_once(run, job_file, lose):
    assert run("schedule", "add", job_file, "--cron", "0 * * * *", "--overlap", "allow", **SUBMIT)[0] == 0
    name = Schedule.objects.get().public_id
    asked = lose(lambda number: number < 3)

    assert run("schedule", "run", name, **SUBMIT)[1] == f"{name}  {Job.objects.get().public_id}\n"
    assert asked == [f"/schedules/{name}/run"] * 3
