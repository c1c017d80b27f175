"""When a cron expression in a zone is due."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import example, given
from hypothesis import strategies as st

from gpufleet.core.zones import zone_fault
from scheduler.schedules.recurrence import NoTimes, Rhythm, expression_fault
from tests.builders import NOON
from tests.scheduler.schedules.making import EXPRESSIONS, HOUR, MINUTE, STARTS, ZONES, at, told


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


HOURS = 36  # each hour of a day, and a night in which clocks change, wherever in a day it begins


@given(EXPRESSIONS, ZONES, STARTS, st.integers(0, 1439))
@example("30 2 * * *", "Europe/Berlin", at("2026-10-24"), 1500 - 60)
@example("*/15 2 * * *", "Europe/Berlin", at("2026-10-24"), 0)
def test_due_times_are_those_that_a_slow_look_at_every_minute_finds(expression, zone, start, minute):
    since = start + minute * MINUTE
    slow = due_slowly(expression, ZoneInfo(zone), since, HOURS)
    fast = []
    for due in Rhythm(expression, zone).following(since):
        if due >= since + HOURS * HOUR:
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
