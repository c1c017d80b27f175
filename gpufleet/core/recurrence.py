"""When something that is stated by the wall clock of a time zone happens: once, or again and again by a rule of RFC 5545.

A rule is expanded by dateutil over the wall clock, so 08:00 stays 08:00 on both sides of a daylight-saving change. A time that the clock leaves out
in spring happens as much later as the clock jumps; one that it shows twice in autumn happens the first time. What would end at the moment at which
it begins, as all of it is left out, has its usual length.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import takewhile
from zoneinfo import ZoneInfo

from dateutil.rrule import rrule, rrulestr
from dateutil.tz import resolve_imaginary

from gpufleet.core.zones import NoTimes, zone_meant

RULE_LENGTH = 300
# Parts that a rule may state. Finer ones than a day would be thousands a year; BYEASTER is no part of the standard.
PARTS = frozenset(("FREQ", "INTERVAL", "COUNT", "UNTIL", "BYMONTH", "BYMONTHDAY", "BYYEARDAY", "BYWEEKNO", "BYDAY", "BYSETPOS", "WKST"))
FREQUENCIES = ("DAILY", "WEEKLY", "MONTHLY", "YEARLY")
EXAMPLE = "FREQ=WEEKLY;BYDAY=MO,TU,WE,TH,FR"
# A day has 26 hours at most where the clock is set back, and a zone differs from UTC by 14 at most.
A_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Times:
    """A first beginning and end by the wall clock (`end` None: it never ends), and the rule by which it comes again."""

    zone: str
    start: datetime
    end: datetime | None = None
    rule: str = ""

    def between(self, since: datetime, until: datetime) -> Iterator[tuple[datetime, datetime | None]]:
        """All that last at some moment from `since` until before `until`, in UTC and in order."""
        zone = zone_meant(self.zone)
        length = None if self.end is None else self.end - self.start
        for local in self._starts(since, until, zone):
            begins = moment_of(local, zone)
            ends = None if length is None else moment_of(local + length, zone)
            if length is not None and ends is not None and ends <= begins:
                ends = begins + length
            if begins < until and (ends is None or (ends > since and ends > begins)):
                yield begins, ends

    def _starts(self, since: datetime, until: datetime, zone: ZoneInfo) -> Iterator[datetime]:
        if not self.rule:
            yield self.start
            return
        length = timedelta(0) if self.end is None else self.end - self.start
        last = until.astimezone(zone).replace(tzinfo=None) + A_DAY
        first = since.astimezone(zone).replace(tzinfo=None) - length - A_DAY
        yield from takewhile(lambda local: local <= last, _rule(self.rule, self.start).xafter(first, inc=True))


def moment_of(local: datetime, zone: ZoneInfo) -> datetime:
    """The moment at which the clock of a zone shows a time."""
    return resolve_imaginary(local.replace(tzinfo=zone, fold=0)).astimezone(UTC)


@lru_cache(maxsize=512)
def _rule(rule: str, start: datetime) -> rrule:
    found = rrulestr(rule, dtstart=start)
    assert isinstance(found, rrule), "it was checked"
    return found


def rule_fault(rule: str, start: datetime) -> str:
    """What is wrong with a rule; empty: nothing."""
    if len(rule) > RULE_LENGTH:
        return f"Use at most {RULE_LENGTH} characters."
    parts = dict(part.partition("=")[::2] for part in rule.upper().split(";"))
    unknown = sorted(set(parts) - PARTS)
    if unknown or parts.get("FREQ") not in FREQUENCIES:
        return f"Write an RFC 5545 rule of whole days, such as {EXAMPLE}."
    if "\n" in rule or len(parts) != rule.count(";") + 1:
        return "State each part of the rule once."
    try:
        first = next(iter(_rule(rule, start)), None)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError) as fault:
        return f"The rule cannot be read: {fault}."
    return "" if first is not None else "The rule never happens."


__all__ = ["NoTimes", "Times", "moment_of", "rule_fault"]
