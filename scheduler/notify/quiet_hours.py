"""Quiet hours of a person: whether a moment lies in them, and when they end. Wall-clock times in the person's own zone."""

from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

A_DAY = 24 * 60


@dataclass(frozen=True, slots=True)
class QuietHours:
    """From one time of the day to another, in minutes after midnight; over midnight where the end is not behind the beginning."""

    begins: int
    ends: int
    zone: str

    def end_after(self, now: datetime) -> datetime | None:
        """When the quiet hours that `now` lies in are over; None outside of them."""
        zone = ZoneInfo(self.zone)
        local = now.astimezone(zone)
        minute = 60 * local.hour + local.minute
        over_midnight = self.ends <= self.begins
        within = minute >= self.begins or minute < self.ends if over_midnight else self.begins <= minute < self.ends
        if not within:
            return None
        days = 1 if over_midnight and minute >= self.begins else 0
        last = datetime.combine(local.date() + timedelta(days=days), time(self.ends // 60, self.ends % 60), tzinfo=zone)
        # A time that the clock shows twice is meant the second time for whoever is past the first; one that it skips is the moment after the gap.
        meant = (last.replace(fold=fold).astimezone(UTC) for fold in (0, 1))
        return next((moment for moment in meant if moment > now), now + timedelta(minutes=1))
