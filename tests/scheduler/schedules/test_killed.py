"""Killed anywhere, doubled, late: each time is dealt with once."""

import threading
from datetime import datetime

import pytest
from django.db import connection, connections
from hypothesis import given
from hypothesis import strategies as st

from scheduler.models import Job, Schedule, ScheduleRun
from scheduler.schedules.recurrence import Rhythm
from scheduler.services.schedules.schedules import schedules_turn, step_of
from tests import builders
from tests.builders import NOON
from tests.scheduler.schedules.making import DAY, EXPRESSIONS, HOUR, MINUTE, STARTS, ZONES, make, outcomes


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
