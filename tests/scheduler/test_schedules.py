"""Jobs that recur: when they are due, what comes of each time, and whose rights count."""

import json
import threading
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import IntegrityError, connection, connections, transaction
from hypothesis import example, given
from hypothesis import strategies as st

from gpufleet.core.faults import Conflict, Stale
from gpufleet.core.models import AuditEntry
from quotas.models import RoleBinding
from scheduler.models import Job, JobState, Notice, Schedule, ScheduleRun
from scheduler.recurrence import NoTimes, Rhythm, expression_fault, zone_fault
from scheduler.services import schedules as service
from scheduler.services.schedules import (
    MOST_REFUSALS,
    schedule_change,
    schedule_create,
    schedule_pause,
    schedule_resume,
    schedule_run_now,
    schedules_turn,
    step_of,
)
from tests import builders
from tests.builders import NOON

TEAM = "acme/research/nlp"
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def told(moments: list[datetime]) -> list[str]:
    return [f"{moment:%m-%d %H:%M}" for moment in moments]


# When


def times(expression: str, zone: str, since: str, until: str) -> list[str]:
    found = []
    for due in Rhythm(expression, zone).following(at(since)):
        if due > at(until):
            break
        found.append(due)
    return told(found)


def test_a_time_that_the_clock_leaves_out_in_spring_is_due_when_the_gap_is_over():
    assert times("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00", "2026-03-30T23:00") == ["03-28 01:30", "03-29 01:00", "03-30 00:30"]
    assert times("0,30 2,3 * * *", "Europe/Berlin", "2026-03-29T00:00", "2026-03-29T12:00") == ["03-29 01:00", "03-29 01:30"]


def test_a_time_that_the_clock_shows_twice_in_autumn_is_due_once():
    assert times("30 2 * * *", "Europe/Berlin", "2026-10-24T00:00", "2026-10-26T23:00") == ["10-24 00:30", "10-25 00:30", "10-26 01:30"]
    # Also if it is looked for between the two.
    assert Rhythm("30 2 * * *", "Europe/Berlin").after(at("2026-10-25T01:10")) == at("2026-10-26T01:30")


def test_each_hour_is_due_each_hour_whatever_the_clock_shows():
    for day in ("2026-03-29", "2026-10-25"):
        assert len(times("0 * * * *", "Europe/Berlin", f"{day}T00:30", f"{day}T05:30")) == 5


def test_a_zone_without_summer_time_is_due_at_the_same_time_all_year():
    assert times("30 2 * * *", "Asia/Kolkata", "2026-03-28T00:00", "2026-03-29T23:00") == ["03-28 21:00", "03-29 21:00"]
    assert times("30 2 1 1,7 *", "Asia/Tokyo", "2026-01-01T00:00", "2027-01-01T00:00") == ["06-30 17:30", "12-31 17:30"]


EXPRESSIONS = st.builds(
    "{} {} {} {} {}".format,
    st.sampled_from(["0", "30", "*/15", "5,35", "*", "59", "10-20/5"]),
    st.sampled_from(["2", "*", "0", "2,3", "23", "*/6", "1-3"]),
    st.sampled_from(["*", "*", "1", "25-31", "L"]),
    st.sampled_from(["*", "*", "3,10", "2"]),
    st.sampled_from(["*", "*", "SUN", "MON-FRI", "SUN#4", "5L"]),
)
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Pacific/Auckland", "America/St_Johns"])
# Days around changes of the clocks in one or another of the zones.
STARTS = st.sampled_from([at(day) for day in ("2026-03-07", "2026-03-28", "2026-04-04", "2026-09-26", "2026-10-24", "2026-10-31", "2026-12-31")])


def matched(expression: str, local: datetime) -> bool:
    """Whether the wall clock shows one of the times, by the expression's own reader."""
    shown = local.replace(tzinfo=None, second=0, microsecond=0)
    return next(CronSim(expression, shown - timedelta(seconds=1))) == shown


def due_slowly(expression: str, zone: ZoneInfo, since: datetime, hours: int) -> list[datetime]:
    """Minute for minute, as the rules are written down."""
    minutes, hours_said = expression.split()[:2]
    elapsed = minutes.startswith("*") or hours_said.startswith("*")
    found: set[datetime] = set()
    for number in range(-3 * 60, hours * 60):
        moment = since + number * MINUTE
        local = moment.astimezone(zone)
        if elapsed:
            if matched(expression, local):
                found.add(moment)
            continue
        if local.fold == 0 and matched(expression, local):
            found.add(moment)
        # What lies in a gap that ends now.
        before = (moment - MINUTE).astimezone(zone)
        gap = (local.replace(tzinfo=None) - before.replace(tzinfo=None)) - MINUTE
        for skipped in range(int(gap / MINUTE)):
            if matched(expression, before.replace(tzinfo=None) + (skipped + 1) * MINUTE):
                found.add(moment)
    return sorted(moment for moment in found if moment > since)


@given(EXPRESSIONS, ZONES, STARTS, st.integers(0, 1439))
@example("30 2 * * *", "Europe/Berlin", at("2026-10-24"), 1500 - 60)
@example("*/15 2 * * *", "Europe/Berlin", at("2026-10-24"), 0)
def test_due_times_are_those_that_a_slow_look_at_every_minute_finds(expression, zone, start, minute):
    since = start + minute * MINUTE
    slow = due_slowly(expression, ZoneInfo(zone), since, 60)
    fast = []
    for due in Rhythm(expression, zone).following(since):
        if due >= since + 60 * HOUR:
            break
        fast.append(due)

    assert told(fast) == told(slow)


@given(EXPRESSIONS, ZONES, STARTS, st.integers(0, 60 * 24 * 500))
def test_the_newest_due_time_is_found_without_going_through_all(expression, zone, start, minutes):
    rhythm = Rhythm(expression, zone)
    first = rhythm.after(start)
    moment = max(first, start + minutes * MINUTE)
    newest = rhythm.newest(first, moment)

    assert first <= newest <= moment
    assert rhythm.after(newest) > moment
    assert newest == first or rhythm.after(newest - timedelta(seconds=1)) == newest


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("", "Five fields"),
        ("* * * *", "Five fields"),
        ("0 0 0 * * *", "Five fields"),
        ("60 * * * *", "The minute can't be 60."),
        ("0 25 * * *", "The hour can't be 25."),
        ("0 0 32 * *", "The day of month can't be 32."),
        ("0 0 * FOO *", "The month can't be FOO."),
        ("0 0 * * 8", "The day of week can't be 8."),
        ("0 0 30 2 *", "The day of month can't be 30."),
        ("0 0 31 2,4 MON#5", ""),
        ("*/0 * * * *", "The minute can't be */0."),
        ("\u00b2 * * * *", "The minute can't be \u00b2."),
        ("1" * 200 + " * * * *", "At most 100 characters."),
        ("30 2 * * mon-fri", ""),
        ("0 0 29 2 *", ""),
    ],
)
def test_an_expression_is_refused_at_its_field(expression, said):
    assert expression_fault(expression).startswith(said)
    assert bool(expression_fault(expression)) == bool(said)


@pytest.mark.parametrize("name", ["", "Mars/Olympus", "Europe", "../etc/passwd", "UTC\0", "\ud800", "X" * 300])
def test_a_zone_that_nobody_knows_is_refused(name):
    assert zone_fault(name) == "Name a time zone such as Europe/Berlin or UTC."
    with pytest.raises(NoTimes):
        Rhythm("* * * * *", name).after(NOON)


# What comes of each time


@pytest.fixture
def fleet(db: None) -> None:
    builders.node(gpus=4)


def make(personas: Any, who: str = "submitter", *, now: datetime = NOON, **changed: Any) -> Schedule:
    said = {"name": "nightly", "cron": "0 * * * *", "description": {"quota": TEAM, "gpus": 1, "launch": {"command": ["true"]}}} | changed
    return schedule_create(access=personas.access(who), given=said, now=now)


def outcomes(schedule: Schedule) -> list[tuple[str, str, int]]:
    rows = ScheduleRun.objects.filter(schedule=schedule).order_by("due_at")
    return [(f"{row.due_at:%d %H:%M}", row.outcome, row.times) for row in rows]


def end_all() -> None:
    Job.objects.filter(ended_at__isnull=True).update(state=JobState.COMPLETED, ended_at=NOON)


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
    assert (told["schedule"], told["due_at"]) == (schedule.public_id, "2026-11-20T13:00:00+00:00")
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


# Whose rights


def test_it_is_submitted_with_the_rights_of_its_owner_at_that_time(personas, fleet):
    schedule = make(personas)
    RoleBinding.objects.filter(user=personas.users["submitter"]).delete()
    for hours in range(1, MOST_REFUSALS + 3):
        schedules_turn(now=NOON + hours * HOUR)

    assert Job.objects.count() == 0
    assert [row[1] for row in outcomes(schedule)] == ["refused"] * MOST_REFUSALS
    run = ScheduleRun.objects.earliest("due_at")
    assert run.faults == {"owner": [f"Submitter may not submit to {TEAM} any more."]}
    schedule.refresh_from_db()
    assert (schedule.state, schedule.paused_by) == ("paused", "gpufleet")
    assert schedule.paused_reason.startswith("5 runs in a row were refused. owner: Submitter may not")
    titles = list(Notice.objects.filter(user=personas.users["submitter"]).order_by("pk").values_list("title", flat=True))
    assert titles == ["A run of nightly was refused", "nightly is paused"]
    assert AuditEntry.objects.get(action="schedule.pause").actor is None


def test_a_refused_run_names_its_faults_and_one_that_is_submitted_begins_the_count_anew(personas, fleet):
    kind = builders.gpu_type("B200")
    schedule = make(personas, description={"quota": TEAM, "gpus": 1, "gpu_types": ["B200"]})
    kind.delete()
    schedules_turn(now=NOON + HOUR)
    assert "gpu_types" in ScheduleRun.objects.get().faults
    builders.gpu_type("B200")
    schedules_turn(now=NOON + 2 * HOUR)

    schedule.refresh_from_db()
    assert (schedule.refusals, [row[1] for row in outcomes(schedule)]) == (0, ["refused", "submitted"])


def test_an_owner_who_is_switched_off_submits_nothing(personas, fleet):
    schedule = make(personas)
    type(personas.users["submitter"]).objects.filter(username="submitter").update(is_active=False)
    schedules_turn(now=NOON + HOUR)

    assert [row[1] for row in outcomes(schedule)] == ["refused"]


def test_only_its_owner_changes_what_is_submitted_with_his_rights(personas, fleet):
    schedule, lead = make(personas), personas.access("team_lead")
    other = {"quota": TEAM, "gpus": 2}
    with pytest.raises(PermissionDenied):
        schedule_change(access=lead, schedule=schedule, given={"description": other}, now=NOON)
    with pytest.raises(PermissionDenied):
        schedule_change(access=personas.access("viewer"), schedule=schedule, given={"name": "other"}, now=NOON)
    schedule_change(access=lead, schedule=schedule, given={"cron": "30 * * * *"}, now=NOON)

    taken = schedule_change(access=lead, schedule=schedule, given={"take_over": True, "description": other}, now=NOON)
    assert (taken.owner, taken.description["gpus"]) == (personas.users["team_lead"], 2)
    with pytest.raises(ValidationError, match="You may not submit"):
        schedule_change(access=personas.access("operator"), schedule=schedule, given={"take_over": True}, now=NOON)
    schedules_turn(now=NOON + 30 * MINUTE)
    assert Job.objects.get().owner == personas.users["team_lead"]


def test_a_change_of_what_somebody_else_changed_is_refused(personas, fleet):
    schedule, access = make(personas), personas.access("submitter")
    schedule_change(access=access, schedule=schedule, given={"name": "other"}, revision=1, now=NOON)
    with pytest.raises(Stale):
        schedule_change(access=access, schedule=schedule, given={"name": "third"}, revision=1, now=NOON)


def test_it_is_run_by_hand_as_its_owner_and_by_its_rule_for_overlaps(personas, fleet):
    schedule, lead = make(personas), personas.access("team_lead")
    run = schedule_run_now(access=lead, schedule=schedule, reason="", now=NOON + timedelta(seconds=90, milliseconds=300))

    job = Job.objects.get()
    assert (run.by, run.due_at, job.owner) == ("Team Lead", NOON + timedelta(seconds=90), personas.users["submitter"])
    assert job.launch["env"]["GPUFLEET_DUE_AT"] == "2026-11-20T12:01:30Z"
    with pytest.raises(Conflict, match="has not ended"):
        schedule_run_now(access=lead, schedule=schedule, reason="", now=NOON + 2 * MINUTE)
    end_all()
    with pytest.raises(Conflict, match="this second"):
        schedule_run_now(access=lead, schedule=schedule, reason="", now=NOON + timedelta(seconds=90, milliseconds=900))
    schedules_turn(now=NOON + HOUR)
    assert [row[0] for row in outcomes(schedule)] == ["20 12:01", "20 13:00"]


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


# Killed anywhere, doubled, late


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("overlap", ["allow", "replace"])
def test_killed_before_any_write_it_is_submitted_once_by_the_next_turn(personas, overlap):
    builders.node(gpus=4)
    schedule = make(personas, overlap=overlap)
    schedules_turn(now=NOON + HOUR)
    nth, killed = 0, 0
    while True:
        nth += 1
        seen = [0]

        def dying(execute, sql, params, many, context, seen=seen, nth=nth):
            if sql.split()[0] in ("INSERT", "UPDATE", "DELETE"):
                seen[0] += 1
                if seen[0] == nth:
                    raise Killed
            return execute(sql, params, many, context)

        before = Job.objects.count()
        try:
            with connection.execute_wrapper(dying):
                schedules_turn(now=NOON + (1 + nth) * HOUR)
        except Killed:
            killed += 1
            assert Job.objects.count() == before, "nothing is left of a turn that did not end"
        else:
            break
        schedules_turn(now=NOON + (1 + nth) * HOUR)
        assert Job.objects.count() == before + 1
    assert killed > 3
    assert Job.objects.values("due_at").distinct().count() == Job.objects.count() == len(outcomes(schedule))


@pytest.mark.django_db(transaction=True)
def test_turns_at_the_same_time_submit_each_time_once(personas):
    builders.node(gpus=4)
    for name in "abc":
        make(personas, name=name, catch_up="all", overlap="allow")
    start, faults = threading.Barrier(3), []

    def turn() -> None:
        try:
            start.wait(10)
            schedules_turn(now=NOON + 4 * HOUR)
        except Exception as fault:
            faults.append(fault)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=turn) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    schedules_turn(now=NOON + 4 * HOUR)

    assert faults == []
    assert Job.objects.count() == ScheduleRun.objects.filter(outcome="submitted").count() == 12
    assert Job.objects.values("schedule", "due_at").distinct().count() == 12


@pytest.mark.django_db
@given(data=st.data())
def test_each_due_time_has_the_one_run_that_the_rules_say(data):
    """Turns at random times, also backwards and killed: what is written down is what the rules say of every time that was due."""
    rule = data.draw(st.sampled_from(["none", "last", "all"]))
    within = data.draw(st.sampled_from([None, 60, 3600, 86_400]))
    start = data.draw(STARTS)
    ends = data.draw(st.none() | st.integers(1, 4).map(lambda days: start + days * DAY))
    schedule = Schedule(cron=data.draw(EXPRESSIONS), zone=data.draw(ZONES), catch_up=rule, start_within_s=within, ends_at=ends)
    rhythm = Rhythm(schedule.cron, schedule.zone, ends)
    schedule.next_due = rhythm.after(start)
    moments = data.draw(st.lists(st.integers(0, 5 * 1440), min_size=1, max_size=8))
    submitted: dict[datetime, datetime] = {}
    let_go: list[tuple[datetime, datetime, int, datetime]] = []
    latest = start
    for minutes in moments:
        now = start + minutes * MINUTE
        latest = max(latest, now)
        for _ in range(data.draw(st.sampled_from([1, 3, 10_000]))):  # killed between two times, or not
            if schedule.next_due is None or schedule.next_due > now:
                break
            step = step_of(schedule, now)
            if step.first is not None:
                let_go.append((step.first, step.due, step.times, now))
            else:
                assert step.due not in submitted
                submitted[step.due] = now
            assert step.following is None or step.following > step.due
            schedule.next_due = step.following

    every = [due for due in _until(rhythm, start, latest) if schedule.next_due is None or due < schedule.next_due]
    bound = within if within is not None else 300 if rule == "none" else None
    gone = {due for due in every for first, last, _, _ in let_go if first <= due <= last}
    assert gone | submitted.keys() == set(every)
    assert not gone & submitted.keys()
    for first, last, count, now in let_go:
        assert count == min(1000, sum(first <= due <= last for due in every))
        newer = rhythm.after(last)
        too_late = bound is not None and (now - last).total_seconds() > bound
        assert too_late or (rule != "all" and newer is not None and newer <= now)
    for due, now in submitted.items():
        assert bound is None or (now - due).total_seconds() <= bound
        newer = rhythm.after(due)
        assert rule == "all" or newer is None or newer > now


def _until(rhythm: Rhythm, since: datetime, until: datetime) -> list[datetime]:
    found = []
    for due in rhythm.following(since):
        if due > until:
            break
        found.append(due)
    return found


# Over HTTP


def body(**changed: Any) -> dict[str, Any]:
    return {"name": "nightly", "cron": "30 2 * * *", "zone": "Europe/Berlin", "description": {"quota": TEAM, "gpus": 1}} | changed


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
    assert changed.json()["ends_at"] == "2040-01-01T00:00:00+00:00"
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


# Pages


FORM = {"name": "nightly", "cron": "30 2 * * *", "zone": "Europe/Berlin", "overlap": "skip", "catch_up": "last"}


def test_a_schedule_is_written_and_changed_on_a_page(personas, fleet):
    client = personas.client("submitter")
    assert "GPUFLEET_DUE_AT" in client.get("/schedules/new/").content.decode()
    form = FORM | {"description": f"quota: {TEAM}\r\ngpus: 1\r\n", "start_within_s": "3600", "ends_at": "2040-01-01T00:00:00Z"}
    answer = client.post("/schedules/new/", form, follow=True)

    schedule = Schedule.objects.get()
    page = f"/schedules/{schedule.public_id}/"
    assert answer.redirect_chain[-1][0] == page
    assert (schedule.ends_at, schedule.start_within_s) == (at("2040-01-01T00:00"), 3600)
    html = answer.content.decode()
    assert "30 2 * * *" in html and "Europe/Berlin" in html and "at most" in html and html.count("</time><br>") == 4
    edit = client.get(f"{page}edit/").content.decode()
    assert 'value="2040-01-01T00:00:00.000Z"' in edit and f"quota: {TEAM}" in edit
    changed = form | {"revision": "1", "cron": "45 2 * * *", "description": f"quota: {TEAM}\ngpus: 2\n"}
    assert client.post(f"{page}edit/", changed).status_code == 302
    assert client.post(f"{page}edit/", changed).status_code == 409
    schedule.refresh_from_db()
    assert (schedule.cron, schedule.description) == ("45 2 * * *", {"name": "nightly", "gpus": 2})


def test_who_manages_jobs_changes_its_times_and_sees_no_field_for_the_job(personas, fleet):
    schedule, client = make(personas), personas.client("team_lead")
    page = f"/schedules/{schedule.public_id}/"
    assert 'name="description"' not in client.get(f"{page}edit/").content.decode()
    assert client.post(f"{page}edit/", FORM | {"revision": "1", "description": "quota: other"}).status_code == 302
    client.post(f"{page}take/")

    schedule.refresh_from_db()
    assert (schedule.cron, schedule.owner) == ("30 2 * * *", personas.users["team_lead"])
    assert schedule.description["launch"] == {"command": ["true"]}
    assert 'name="description"' in client.get(f"{page}edit/").content.decode()


def test_faults_of_the_job_are_told_at_its_field_with_their_line(personas, fleet):
    client = personas.client("submitter")
    answer = client.post("/schedules/new/", FORM | {"cron": "61 2 * * *", "description": f"quota: {TEAM}\ngpus: -1\nlaunch: {{shell: date}}\n"})

    html = answer.content.decode()
    assert answer.status_code == 422
    assert "The minute can&#x27;t be 61." in html and "Line 2, gpus: At least 0." in html
    for text, said in (("a: [", "this is no YAML"), ("- a", "Keys with values are wanted"), ("", "required")):
        assert said in client.post("/schedules/new/", FORM | {"description": text}).content.decode()
    assert not Schedule.objects.exists()


def test_a_job_is_repeated_from_its_page(personas, fleet):
    client = personas.client("submitter")
    job = builders.job(
        "evaluate", on=personas.nodes[TEAM], owner=personas.users["submitter"], launch={"command": ["python", "x.py"]}, gpus_milli=1000
    )
    assert f"/schedules/new/?repeat={job.public_id}" in client.get(f"/jobs/{job.public_id}/").content.decode()
    html = client.get(f"/schedules/new/?repeat={job.public_id}").content.decode()

    assert 'value="evaluate"' in html and "x.py" in html
    assert personas.client("viewer").get(f"/schedules/new/?repeat={job.public_id}").status_code == 403


def test_it_is_paused_run_and_removed_on_its_page(personas, fleet):
    schedule, client = make(personas), personas.client("submitter")
    page = f"/schedules/{schedule.public_id}/"

    assert "nightly is paused. What runs goes on." in client.post(f"{page}switch/", {"to": "paused"}, follow=True).content.decode()
    assert "is paused already" in client.post(f"{page}switch/", {"to": "paused"}, follow=True).content.decode()
    assert "nightly goes on." in client.post(f"{page}switch/", {"to": "active"}, follow=True).content.decode()
    assert "nightly is submitted." in client.post(f"{page}run/", follow=True).content.decode()
    html = client.get(page).content.decode()
    assert Job.objects.get().public_id in html and "By hand by Submitter." in html
    lead = personas.client("team_lead")
    assert "nightly is removed." in lead.post(f"{page}remove/", {"reason": "Over"}, follow=True).content.decode()
    assert AuditEntry.objects.get(action="schedule.remove").reason == "Over"


def test_a_run_by_hand_that_is_refused_says_why_and_leaves_no_run(personas, fleet):
    schedule, lead = make(personas), personas.client("team_lead")
    RoleBinding.objects.filter(user=personas.users["submitter"]).delete()
    page = f"/schedules/{schedule.public_id}/run/"

    assert personas.client("submitter").post(page).status_code == 403
    assert "owner: Submitter may not submit" in lead.post(page, follow=True).content.decode()
    assert not ScheduleRun.objects.exists()
