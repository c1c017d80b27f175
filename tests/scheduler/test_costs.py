"""The turn of costs: idle time out of the capacity timeline, by day."""

from datetime import UTC, date, datetime, timedelta

import pytest

from quotas.chargeback.months import Span
from quotas.models import ChargeIdle, ChargeIdleDay, ChargeMonth
from scheduler.models import CapacityEntry
from scheduler.services.costs import costs_step, idle_between
from tests import builders

pytestmark = pytest.mark.django_db
HOUR = 3_600_000
OCTOBER = date(2026, 10, 1)
NOW = datetime(2026, 10, 4, 6, tzinfo=UTC)


def test_idle_time_is_of_the_days_on_which_it_was() -> None:
    first, second = builders.node(gpus=2).gpus.order_by("id")
    start = Span(OCTOBER).start
    CapacityEntry.objects.create(gpu=first, since=start - timedelta(days=3), until=start + timedelta(hours=30), unwanted_milli=1000)
    CapacityEntry.objects.create(gpu=first, since=start + timedelta(hours=30), unwanted_milli=250, used_milli=750)
    CapacityEntry.objects.create(gpu=second, since=start + timedelta(days=1), until=start + timedelta(days=2), blocked_milli=1000)
    gpu_type, days = first.gpu_type_id, [OCTOBER + timedelta(days=number) for number in range(4)]

    found = idle_between(OCTOBER, NOW)

    assert found == {
        (gpu_type, "unwanted", days[0]): 24 * HOUR * 1000,
        (gpu_type, "unwanted", days[1]): 6 * HOUR * 1000 + 18 * HOUR * 250,
        (gpu_type, "unwanted", days[2]): 24 * HOUR * 250,
        (gpu_type, "unwanted", days[3]): 6 * HOUR * 250,
        (gpu_type, "blocked", days[1]): 24 * HOUR * 1000,
    }

    for moment in (NOW - timedelta(hours=1), NOW):
        costs_step(now=moment)
    month = ChargeMonth.objects.get(first=OCTOBER)
    stored = {(row.gpu_type, row.cause, row.day): row.milli_millis for row in ChargeIdleDay.objects.filter(month=month)}
    assert stored == found
    assert {(row.cause, row.milli_millis) for row in ChargeIdle.objects.filter(month=month)} == {
        ("unwanted", sum(used for (_, cause, _), used in found.items() if cause == "unwanted")),
        ("blocked", 24 * HOUR * 1000),
    }
