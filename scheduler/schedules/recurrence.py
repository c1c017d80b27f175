"""When a recurring job is due: a cron expression of five fields, read in a time zone.

An expression with fixed minutes and hours follows the wall clock, each of its times once a day: one that the clock leaves out in spring is due when
the gap is over, one that it shows twice in autumn is due the first time. Where minutes or hours begin with `*` it follows elapsed time instead.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cronsim import CronSim, CronSimError

from gpufleet.core.zones import NoTimes, zone_meant

EXPRESSION_LENGTH = 100
FIELDS = ("minute", "hour", "day-of-month", "month", "day-of-week")
EXAMPLE = "30 2 * * MON-FRI"
MOST_COUNTED = 1000
INSTANT = timedelta(milliseconds=1)
# How far back the newest of many due times is looked for, before all of them are gone through.
LOOKING_BACK = (timedelta(hours=1), timedelta(days=1), timedelta(days=32), timedelta(days=400))


def expression_fault(expression: str) -> str:
    """What is wrong with an expression; empty: nothing."""
    if len(expression) > EXPRESSION_LENGTH:
        return f"At most {EXPRESSION_LENGTH} characters."
    if len(expression.split()) != len(FIELDS):
        return f"Five fields are wanted: minute, hour, day of the month, month, day of the week, such as {EXAMPLE}."
    try:
        found = next(CronSim(expression, datetime(2000, 1, 1, tzinfo=UTC)), None)
    except CronSimError as fault:
        return _worded(fault, expression)
    return "" if found is not None else "No date ever matches it."


def _worded(fault: CronSimError, expression: str) -> str:
    name = str(fault).removeprefix("Bad ")
    if name not in FIELDS:
        return f"It can't be read; write it as {EXAMPLE}."
    return f"The {name.replace('-', ' ')} can't be {expression.split()[FIELDS.index(name)]}."


@dataclass(frozen=True, slots=True)
class Rhythm:
    """The due times of an expression, up to an end."""

    expression: str
    zone: str
    until: datetime | None = None

    def after(self, moment: datetime) -> datetime | None:
        """The first due time behind a moment; None: there is none any more."""
        local = moment.astimezone(zone_meant(self.zone))
        try:
            # The expression goes by the wall clock, which shows some hours twice: what it finds may lie before the moment.
            found = next((due for due in (due.astimezone(UTC) for due in CronSim(self.expression, local)) if due > moment), None)
        except (CronSimError, OverflowError) as fault:
            raise NoTimes(f"The expression {self.expression} can't be read.") from fault
        return found if found is not None and (self.until is None or found <= self.until) else None

    def following(self, moment: datetime) -> Iterator[datetime]:
        due = self.after(moment)
        while due is not None:
            yield due
            due = self.after(due)

    def newest(self, first: datetime, moment: datetime) -> datetime:
        """The last due time up to and with a moment; `first` is one of them."""
        for back in LOOKING_BACK:
            since = max(first, moment - back)
            found = first if since == first else None
            for due in self.following(since):
                if due > moment:
                    break
                found = due
            if found is not None:
                return found
        return self._last(first, moment)

    def _last(self, first: datetime, moment: datetime) -> datetime:
        for due in self.following(first):
            if due > moment:
                break
            first = due
        return first

    def count(self, first: datetime, last: datetime) -> int:
        """How many due times from one to another; `MOST_COUNTED` stands for as many or more."""
        found = 1
        for due in self.following(first):
            if due > last or found == MOST_COUNTED:
                break
            found += 1
        return found
