"""Schedules, times and expressions for these tests."""

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from scheduler.models import Job, JobState, Schedule, ScheduleRun
from scheduler.services.schedules.schedules import schedule_create
from tests.builders import NOON

TEAM = "acme/research/nlp"
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def told(moments: list[datetime]) -> list[str]:
    return [f"{moment:%m-%d %H:%M}" for moment in moments]


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


def make(personas: Any, who: str = "submitter", *, now: datetime = NOON, **changed: Any) -> Schedule:
    said = {"name": "nightly", "cron": "0 * * * *", "description": {"quota": TEAM, "gpus": 1, "launch": {"command": ["true"]}}} | changed
    return schedule_create(access=personas.access(who), given=said, now=now)


def outcomes(schedule: Schedule) -> list[tuple[str, str, int]]:
    rows = ScheduleRun.objects.filter(schedule=schedule).order_by("due_at")
    return [(f"{row.due_at:%d %H:%M}", row.outcome, row.times) for row in rows]


def end_all() -> None:
    Job.objects.filter(ended_at__isnull=True).update(state=JobState.COMPLETED, ended_at=NOON)
