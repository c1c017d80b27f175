"""Windows that recur: what is drawn equals dateutil's own expansion over three years, in six zones, over every daylight-saving change."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from dateutil.rrule import rrulestr
from dateutil.tz import resolve_imaginary
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.core.recurrence import Times, rule_fault
from scheduler.windows.capacity import Booking, nearest_start, peak

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "America/Sao_Paulo")
DAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")


@st.composite
def rules(draw: st.DrawFn) -> str:
    frequency = draw(st.sampled_from(("DAILY", "WEEKLY", "MONTHLY", "YEARLY")))
    parts = [f"FREQ={frequency}", f"INTERVAL={draw(st.integers(1, 4))}"]
    if frequency == "WEEKLY" and draw(st.booleans()):
        parts.append(f"BYDAY={','.join(draw(st.lists(st.sampled_from(DAYS), min_size=1, max_size=5, unique=True)))}")
    if frequency == "MONTHLY":
        parts.append(draw(st.sampled_from(("BYMONTHDAY=1", "BYMONTHDAY=-1", "BYMONTHDAY=31", "BYDAY=MO;BYSETPOS=1", "BYDAY=SU;BYSETPOS=-1"))))
    if draw(st.booleans()):
        parts.append(f"COUNT={draw(st.integers(1, 400))}")
    return ";".join(parts)


@pytest.mark.parametrize("zone", ZONES)
@given(rule=rules(), start=st.datetimes(datetime(2026, 1, 1), datetime(2027, 6, 1)), minutes=st.integers(1, 24 * 60))
def test_every_recurrence_equals_the_expansion_of_dateutil(zone: str, rule: str, start: datetime, minutes: int) -> None:
    start = start.replace(microsecond=0)
    length = timedelta(minutes=minutes)
    place = ZoneInfo(zone)
    since, until = datetime(2026, 1, 1, tzinfo=UTC), datetime(2029, 1, 1, tzinfo=UTC)
    if rule_fault(rule, start):
        return

    def moment(local: datetime) -> datetime:
        return resolve_imaginary(local.replace(tzinfo=place)).astimezone(UTC)

    own = rrulestr(rule, dtstart=start)
    locals_ = own.between(datetime(2025, 12, 1), datetime(2029, 2, 1), inc=True)
    wanted = [(moment(local), moment(local + length)) for local in locals_]
    wanted = [(begin, end if end > begin else begin + length) for begin, end in wanted]
    wanted = [(begin, end) for begin, end in wanted if begin < until and end > since]

    assert list(Times(zone, start, start + length, rule).between(since, until)) == wanted


@pytest.mark.parametrize(
    ("start", "minutes", "lasts"), [("02:30", 60, 60), ("02:45", 30, 30), ("02:00", 60, 60), ("01:30", 60, 60), ("02:30", 210, 150)]
)
def test_a_window_that_the_clock_leaves_out_is_there_all_the_same(start: str, minutes: int, lasts: int) -> None:
    """It came every night from 02:30 to 03:30, and on one night of the year nothing was reserved."""
    first = datetime.fromisoformat(f"2027-03-20T{start}")
    times = Times("Europe/Berlin", first, first + timedelta(minutes=minutes), "FREQ=DAILY")

    found = list(times.between(datetime(2027, 3, 27, 23, tzinfo=UTC), datetime(2027, 3, 28, 22, tzinfo=UTC)))

    assert [end - begin for begin, end in found if end is not None] == [timedelta(minutes=lasts)]


def test_eight_in_the_morning_stays_eight_over_the_change() -> None:
    times = Times("Europe/Berlin", datetime(2026, 10, 23, 8), datetime(2026, 10, 23, 20), "FREQ=DAILY")
    found = list(times.between(datetime(2026, 10, 24, tzinfo=UTC), datetime(2026, 10, 26, 23, tzinfo=UTC)))

    assert [(start.hour, end.hour if end else None) for start, end in found] == [(6, 18), (7, 19), (7, 19)]


@pytest.mark.parametrize(
    "rule", ["FREQ=HOURLY", "FREQ=WEEKLY;BYDAY=XX", "FREQ=DAILY;FREQ=DAILY", "nonsense", "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", 400 * "X"]
)
def test_what_is_no_rule_is_said_in_words(rule: str) -> None:
    assert rule_fault(rule, datetime(2026, 1, 1)).endswith(".")


HOUR = timedelta(hours=1)
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
bookings = st.lists(
    st.builds(
        lambda start, length, milli: Booking("r-1", NOON + start * HOUR, None if length == 0 else NOON + (start + length) * HOUR, 1000 * milli),
        st.integers(0, 40),
        st.integers(0, 12),
        st.integers(1, 8),
    ),
    max_size=8,
)


@given(booked=bookings, start=st.integers(0, 40), length=st.integers(1, 12), milli=st.integers(1, 10))
def test_the_nearest_start_fits_and_none_that_is_nearer_does(booked: list[Booking], start: int, length: int, milli: int) -> None:
    asked = NOON + start * HOUR
    found = nearest_start(booked, asked, length * HOUR, milli=1000 * milli, capacity=10_000, since=NOON)

    def fits(at: datetime) -> bool:
        hours = (at + number * HOUR for number in range(length))
        return all(sum(one.milli for one in booked if one.lasts_at(hour)) + 1000 * milli <= 10_000 for hour in hours)

    nearer = [NOON + number * HOUR for number in range(120) if found is None or abs(NOON + number * HOUR - asked) < abs(found - asked)]
    assert not any(fits(at) for at in nearer)
    if found is not None:
        assert fits(found)
        assert peak(booked, found, found + length * HOUR).milli + 1000 * milli <= 10_000
