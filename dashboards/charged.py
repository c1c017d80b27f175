"""What jobs computed of what they are charged for: telemetry of each job and day, beside the lines of the month."""

from datetime import UTC, date, datetime, timedelta

from django.db import transaction
from django.db.models import Sum

from dashboards.models import JobRollup
from dashboards.telemetry.spans import HOUR, jobs_added, jobs_of
from gpufleet.core.progress import turn_take
from quotas.chargeback.months import Span, month_at
from quotas.chargeback.sums import sums_write
from quotas.models import ChargeMonth, ChargeUse
from scheduler.models import Job

EVERY = timedelta(minutes=10)
DAY = timedelta(days=1)
# Hours are made again from late readings for so long.
UNSETTLED = timedelta(days=2)
BATCH = 500


def charge_uses_turn(*, now: datetime) -> int:
    """Write the days that may still change, and those of open months that are not there yet. Returns how many days were written."""
    with transaction.atomic():
        if turn_take(name="charge_uses", now=now, at_least=EVERY) is None:
            return 0
    today, written = now.astimezone(UTC).date(), 0
    for first in ChargeMonth.objects.filter(closed_at__isnull=True, first__lte=month_at(now)).order_by("first").values_list("first", flat=True):
        with transaction.atomic():  # with the sums, which are never older than what they add up
            month = ChargeMonth.objects.select_for_update().filter(first=first, closed_at__isnull=True).first()
            if month is not None:
                written += uses_write(month, today)
    return written


def uses_write(month: ChargeMonth, today: date) -> int:
    """The days of a month that its caller has locked, and its sums; how many days were written."""
    there = set(month.uses.order_by().values_list("day", flat=True).distinct())
    days = [month.first + DAY * number for number in range((min(today, Span(month.first).next - DAY) - month.first).days + 1)]
    written = sum(day_write(month, day) for day in days if day not in there or day > today - UNSETTLED)
    if written:
        sums_write(month)
    return written


def day_write(month: ChargeMonth, day: date) -> bool:
    """Of hours that are over, of a month that its caller has locked; whether there was anything to write."""
    start = datetime(day.year, day.month, day.day, tzinfo=UTC)
    hours = JobRollup.objects.filter(span=HOUR, at__gte=start, at__lt=start + DAY).order_by("at")
    sums = jobs_added([jobs_of(row) for row in hours])
    measured = sums.held - sums.unread
    keys = [int(key) for key in sums.jobs[measured > 0]]
    if not keys:
        return False
    names = dict(Job.objects.filter(pk__among=keys).values_list("pk", "public_id"))
    lines = month.lines.filter(day=day, corrects__isnull=True).order_by()
    charged = {job: int(of) for job, of in lines.values_list("job").annotate(Sum("milli_millis"))}
    rows = []
    for key, held, of, computing in zip(*(column.tolist() for column in (sums.jobs, sums.held, measured, sums.computing)), strict=True):
        # What it held before it was up is not charged, and is taken to be as well read as the rest.
        part = of * min(held, charged.get(names.get(key, ""), 0)) // max(held, 1)
        if part > 0:
            rows.append(ChargeUse(month=month, day=day, job=names[key], measured=part, computing=min(part, computing)))
    month.uses.filter(day=day).delete()
    ChargeUse.objects.bulk_create(rows, batch_size=BATCH)
    return True
