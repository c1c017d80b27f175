"""What comes of each time at which a job is due."""

from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction

from gpufleet.core.faults import Conflict
from gpufleet.core.models import AuditEntry
from scheduler.models import Job, JobState, Schedule, ScheduleRun
from scheduler.services.schedules import schedules as service
from scheduler.services.schedules.schedules import schedule_change, schedule_pause, schedule_resume, schedules_turn
from tests import builders
from tests.builders import NOON
from tests.scheduler.schedules.making import DAY, HOUR, MINUTE, TEAM, end_all, make, outcomes


def test_a_job_is_submitted_once_at_its_time_and_knows_it(personas, fleet):
    schedule = make(personas, zone="Europe/Berlin")

    assert schedules_turn(now=NOON + 59 * MINUTE) == 0
    assert schedules_turn(now=NOON + HOUR + timedelta(seconds=7)) == 1
    assert schedules_turn(now=NOON + HOUR + timedelta(seconds=7)) == 0
    job = Job.objects.get()
    assert (job.name, job.schedule, job.due_at, job.owner) == ("nightly", schedule.public_id, NOON + HOUR, personas.users["submitter"])
    assert job.launch["env"] == {"GPUFLEET_DUE_AT": "2026-11-20T13:00:00Z"}
    assert job.submitted_at == NOON + HOUR + timedelta(seconds=7)
    run = ScheduleRun.objects.get()
    assert (run.outcome, run.jobs, run.due_at) == ("submitted", [job.public_id], NOON + HOUR)
    entry = AuditEntry.objects.get(action="job.create")
    assert (entry.via, entry.after["schedule"], entry.actor) == ("schedule", schedule.public_id, personas.users["submitter"])
    assert "due 2026-11-20 13:00:00 UTC" in job.events.get().cause
    told = personas.client("viewer").get(f"/api/v1/jobs/{job.public_id}").json()
    assert (told["schedule"], told["due_at"]) == (schedule.public_id, "2026-11-20T13:00:00Z")
    html = personas.client("viewer").get(f"/jobs/{job.public_id}/").content.decode()
    assert f'href="/schedules/{schedule.public_id}/"' in html and "2026-11-20 13:00:00 UTC" in html


def test_an_array_is_one_run_and_each_of_its_jobs_knows_the_time(personas, fleet):
    schedule = make(personas, description={"quota": TEAM, "gpus": 1, "array": {"size": 3}})
    schedules_turn(now=NOON + HOUR)

    run = ScheduleRun.objects.get(schedule=schedule)
    names = list(Job.objects.order_by("pk").values_list("public_id", flat=True))
    assert (run.jobs, run.job_count) == ([names[0], names[2]], 3)
    assert {job.launch["env"]["GPUFLEET_DUE_AT"] for job in Job.objects.all()} == {"2026-11-20T13:00:00Z"}


def test_a_clock_that_is_set_back_submits_nothing_twice(personas, fleet):
    schedule = make(personas, overlap="allow")
    schedules_turn(now=NOON + 2 * HOUR)
    count = Job.objects.count()

    for back in (HOUR, 90 * MINUTE, 2 * HOUR, DAY):
        assert schedules_turn(now=NOON + 2 * HOUR - back) == 0
    access = personas.access("submitter")
    schedule = schedule_change(access=access, schedule=schedule, given={"cron": "*/30 * * * *"}, now=NOON)
    assert schedule.next_due == NOON + 2 * HOUR + 30 * MINUTE
    schedule = schedule_pause(access=access, schedule=schedule, reason="", now=NOON)
    schedule = schedule_resume(access=access, schedule=schedule, reason="", now=NOON)
    assert schedule.next_due == NOON + 2 * HOUR + 30 * MINUTE
    # Even with a row that was put back by hand, the database knows.
    Schedule.objects.update(next_due=NOON + 2 * HOUR)
    schedules_turn(now=NOON + 2 * HOUR)
    assert Job.objects.count() == count
    with pytest.raises(IntegrityError), transaction.atomic():
        ScheduleRun.objects.create(schedule=schedule, due_at=NOON + 2 * HOUR, outcome="submitted")


def test_while_an_earlier_run_goes_on_the_rule_for_overlaps_decides(personas, fleet):
    by_rule = {rule: make(personas, name=rule, overlap=rule) for rule in ("allow", "skip", "replace")}
    for hours in (1, 2):
        schedules_turn(now=NOON + hours * HOUR)

    assert outcomes(by_rule["allow"]) == [("20 13:00", "submitted", 1), ("20 14:00", "submitted", 1)]
    assert outcomes(by_rule["skip"]) == [("20 13:00", "submitted", 1), ("20 14:00", "skipped", 1)]
    assert outcomes(by_rule["replace"]) == [("20 13:00", "submitted", 1), ("20 14:00", "submitted", 1)]
    first, second = Job.objects.filter(schedule=by_rule["replace"].public_id).order_by("pk")
    assert (first.state, second.state) == ("cancelled", "queued")
    assert first.events.latest("pk").cause == f"Replaced by {second.public_id}, the next run of {by_rule['replace'].public_id}."
    assert ScheduleRun.objects.latest("pk").note == f"It replaced {first.public_id}."
    assert Job.objects.filter(schedule=by_rule["allow"].public_id, state="queued").count() == 2
    skipped = ScheduleRun.objects.get(schedule=by_rule["skip"], outcome="skipped")
    assert skipped.note == f"{Job.objects.get(schedule=by_rule['skip'].public_id).public_id} of an earlier run had not ended."

    end_all()
    schedules_turn(now=NOON + 3 * HOUR)
    assert outcomes(by_rule["skip"])[-1] == ("20 15:00", "submitted", 1)


def test_a_run_that_replaces_lets_what_runs_save_its_work(personas, fleet):
    schedule = make(personas, overlap="replace")
    schedules_turn(now=NOON + HOUR)
    job = Job.objects.get()
    Job.objects.filter(pk=job.pk).update(state=JobState.RUNNING)
    builders.attempt(Job.objects.get())

    schedules_turn(now=NOON + 2 * HOUR)

    job.refresh_from_db()
    attempt = job.attempts.get()
    assert (job.state, attempt.stop_to, attempt.ended_at) == ("checkpointing", "cancelled", None)
    assert [row[1] for row in outcomes(schedule)] == ["submitted", "submitted"]


def test_missed_times_are_caught_up_with_as_the_rule_says(personas, fleet):
    late = NOON + 5 * HOUR + 20 * MINUTE
    rules = {
        "none": {"catch_up": "none"},
        "last": {"catch_up": "last"},
        "all": {"catch_up": "all"},
        "none in time": {"catch_up": "none", "start_within_s": 1800},
        "last too late": {"catch_up": "last", "start_within_s": 600},
        "all within": {"catch_up": "all", "start_within_s": 2 * 3600 + 1800},
    }
    made = {name: make(personas, name=name, overlap="allow", **rule) for name, rule in rules.items()}
    schedules_turn(now=late)

    assert outcomes(made["none"]) == [("20 17:00", "missed", 5)]
    assert outcomes(made["last"]) == outcomes(made["none in time"]) == [("20 16:00", "missed", 4), ("20 17:00", "submitted", 1)]
    assert outcomes(made["all"]) == [(f"20 {hour}:00", "submitted", 1) for hour in range(13, 18)]
    assert outcomes(made["last too late"]) == [("20 17:00", "missed", 5)]
    assert outcomes(made["all within"]) == [("20 14:00", "missed", 2), *((f"20 {hour}:00", "submitted", 1) for hour in range(15, 18))]
    caught_up = Job.objects.filter(schedule=made["all"].public_id).order_by("pk")
    assert [job.due_at for job in caught_up] == [NOON + hours * HOUR for hours in range(1, 6)], "the oldest first"
    assert set(Schedule.objects.values_list("next_due", flat=True)) == {NOON + 6 * HOUR}
    missed = ScheduleRun.objects.get(schedule=made["all within"], outcome="missed")
    assert (missed.first_due, missed.due_at) == (NOON + HOUR, NOON + 2 * HOUR)


def test_a_turn_catches_up_with_a_hundred_times_and_the_next_one_goes_on(personas, fleet, monkeypatch):
    monkeypatch.setattr(service, "MOST_A_TURN", 3)
    schedule = make(personas, catch_up="all", overlap="allow")
    done = [schedules_turn(now=NOON + 8 * HOUR) for _ in range(4)]

    assert done == [3, 3, 2, 0]
    assert len(outcomes(schedule)) == 8


def test_a_year_without_the_console_is_one_row_and_quickly_dealt_with(personas, fleet):
    schedule = make(personas, cron="* * * * *")
    assert schedules_turn(now=NOON + 365 * DAY) == 2

    (_, missed, many), (_, submitted, one) = outcomes(schedule)
    assert (missed, many, submitted, one) == ("missed", 1000, "submitted", 1)


def test_it_begins_and_ends_where_it_is_bounded(personas, fleet):
    schedule = make(personas, starts_at=NOON + 2 * HOUR, ends_at=NOON + 4 * HOUR, overlap="allow")
    for hours in range(7):
        schedules_turn(now=NOON + hours * HOUR)

    assert [row[0] for row in outcomes(schedule)] == ["20 14:00", "20 15:00", "20 16:00"]
    schedule.refresh_from_db()
    assert (schedule.next_due, schedule.state) == (None, "ended")


def test_one_that_begins_in_the_past_is_filled_in(personas, fleet):
    schedule = make(personas, starts_at=NOON - 3 * HOUR, catch_up="all", overlap="allow")
    schedules_turn(now=NOON + MINUTE)

    assert [row[0] for row in outcomes(schedule)] == ["20 09:00", "20 10:00", "20 11:00", "20 12:00"]


def test_what_passes_while_it_is_paused_is_let_go(personas, fleet):
    schedule, access = make(personas, catch_up="all", overlap="allow"), personas.access("team_lead")
    schedule = schedule_pause(access=access, schedule=schedule, reason="Repairs", now=NOON)
    assert schedules_turn(now=NOON + 3 * HOUR) == 0
    schedule_resume(access=access, schedule=schedule, reason="", now=NOON + 3 * HOUR)
    schedules_turn(now=NOON + 4 * HOUR)

    assert outcomes(schedule) == [("20 16:00", "submitted", 1)]
    with pytest.raises(Conflict):
        schedule_resume(access=access, schedule=schedule, reason="", now=NOON)
