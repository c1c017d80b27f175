"""Periods that reports and files are of: whole days in UTC, mostly a month.

A line belongs to its day, and a correction to the first day of the month that charges it. So the parts of any period add up to it exactly, and months
to what their lines add up to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from django.core.exceptions import ValidationError
from django.db.models import Q

from quotas.chargeback.months import Span, month_at

DAY = timedelta(days=1)
MOST_MONTHS = 120
YEARS = range(2000, 3000)


@dataclass(frozen=True, slots=True)
class Part:
    """Some days of a month, but not all of them."""

    month: date
    first: date
    last: date

    @property
    def has_corrections(self) -> bool:
        return self.first == self.month

    @property
    def lines(self) -> Q:
        own = Q(corrects__isnull=True, day__gte=self.first, day__lte=self.last)
        return Q(month__first=self.month) & (own | Q(corrects__isnull=False) if self.has_corrections else own)


@dataclass(frozen=True, slots=True)
class Period:
    """From the first to the last day, both in it."""

    first: date
    last: date

    @classmethod
    def of(cls, month: date) -> "Period":
        return cls(month, Span(month).next - DAY)

    @property
    def start(self) -> datetime:
        return datetime(self.first.year, self.first.month, self.first.day, tzinfo=UTC)

    @property
    def end(self) -> datetime:
        return datetime(self.last.year, self.last.month, self.last.day, tzinfo=UTC) + DAY

    @property
    def days(self) -> list[date]:
        return [self.first + number * DAY for number in range((self.last - self.first).days + 1)]

    @property
    def months(self) -> list[date]:
        """Each month that it has days of."""
        found = [self.first.replace(day=1)]
        while (following := Span(found[-1]).next) <= self.last:
            found.append(following)
        return found

    @property
    def month(self) -> date | None:
        """The month that it is, if it is one."""
        return self.first if self == Period.of(self.first.replace(day=1)) else None

    @property
    def parts(self) -> list[Part]:
        """Of those months that it has some days of; at most the first and the last."""
        found = [Part(one, max(one, self.first), min(Span(one).next - DAY, self.last)) for one in self.months]
        return [part for part in found if (part.first, part.last) != (part.month, Span(part.month).next - DAY)]

    @property
    def whole_months(self) -> list[date]:
        cut = {part.month for part in self.parts}
        return [one for one in self.months if one not in cut]

    @property
    def pieces(self) -> list[Q]:
        """Which lines are in it, as conditions that each ask one thing and share no line."""
        whole = self.whole_months
        months = [Q(month__first=whole[0]) if len(whole) == 1 else Q(month__first__in=whole)] if whole else []
        return [*months, *(part.lines for part in self.parts)]

    @property
    def lines(self) -> Q:
        found, *further = self.pieces
        for piece in further:
            found |= piece
        return found

    @property
    def before(self) -> "Period":
        """The period of the same length that ends where it begins: as many months of a period of whole months, else as many days."""
        if not self.parts:
            first = self.first
            for _ in self.months:
                first = Span(first).before
            return Period(first, self.first - DAY)
        return Period(self.first - (self.last - self.first) - DAY, self.first - DAY)

    def __str__(self) -> str:
        """As names of files and the audit log have it."""
        return f"{self.first:%Y-%m}" if self.month else f"{self.first}-to-{self.last}"

    @property
    def title(self) -> str:
        if self.month:
            return f"{self.first:%B %Y}"
        if self.first == self.last:
            return f"{self.first.day} {self.first:%B %Y}"
        since = f"{self.first.day} {self.first:%B %Y}" if self.first.year != self.last.year else f"{self.first.day} {self.first:%B}"
        return f"{since} to {self.last.day} {self.last:%B %Y}"


def day_read(text: str, name: str) -> date:
    try:
        found = date.fromisoformat(text)
    except ValueError:
        raise ValidationError({name: [f"{text[:20]!r} is not a day: write YYYY-MM-DD."]}) from None
    if found.year not in YEARS:
        raise ValidationError({name: [f"The year is not between {YEARS[0]} and {YEARS[-1]}."]})
    return found


def period_read(first: str, last: str) -> Period:
    """Of two days as people write them."""
    found = Period(day_read(first, "from"), day_read(last, "to"))
    if found.last < found.first:
        raise ValidationError({"to": ["The last day is before the first."]})
    if len(found.months) > MOST_MONTHS:
        raise ValidationError({"to": [f"A period has at most {MOST_MONTHS} months."]})
    return found


def presets(now: datetime) -> Sequence[tuple[str, Period]]:
    """Periods that are asked for again and again."""
    this = month_at(now)
    quarter = this.replace(month=this.month - (this.month - 1) % 3)
    end = Span(Span(Span(quarter).next).next).next - DAY
    return (
        ("This month", Period.of(this)),
        ("Last month", Period.of(Span(this).before)),
        ("This quarter", Period(quarter, end)),
        ("Year to date", Period(this.replace(month=1), now.astimezone(UTC).date())),
    )
