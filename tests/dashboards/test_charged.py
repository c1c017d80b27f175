"""Efficiency of a month: what jobs computed of what they are charged for; unknown where nothing was measured."""

from datetime import timedelta

import numpy as np
import pytest

from dashboards.charged import EVERY, charge_uses_turn
from dashboards.telemetry.spans import HOUR, JobSums, jobs_write
from quotas.chargeback.months import month_close, month_refresh
from quotas.chargeback.periods import Period
from quotas.chargeback.report import report
from quotas.models import ChargeUse, Reservation, Window
from tests import builders
from tests.personas import Personas
from tests.quotas.chargeback.test_months import LATER, OCTOBER, START, price
from tests.quotas.chargeback.worlds import A100, used

pytestmark = pytest.mark.django_db
GPU_HOUR = 1000 * 3_600_000


def test_rows_say_how_much_of_their_use_computed(personas: Personas) -> None:
    nlp, search = personas.nodes["acme/research/nlp"], personas.nodes["acme/product/search"]
    price(personas)
    first, second = builders.job(quota=nlp), builders.job(quota=nlp)
    used(nlp, START, 4, job=first.public_id, milli=2000)
    used(nlp, START, 2, job=second.public_id, gpu_type=A100)
    used(search, START, 10, job="j-unmeasured")
    charge_uses_turn(now=LATER)
    month_refresh(first=OCTOBER, now=LATER)

    def hour(number: int, **of: tuple[int, int, int]) -> None:
        keys = sorted((job.pk, of[name]) for name, job in (("first", first), ("second", second)) if name in of)
        sums = (np.array(column, np.int64) for column in zip(*(sums for _, sums in keys), strict=True))
        jobs_write(HOUR, {START + timedelta(hours=number): JobSums(np.array([key for key, _ in keys], np.uint32), *sums)})

    # held, computing, unread: the first computes half of what is read of it, the second three quarters once it is up, which takes an hour.
    hour(0, first=(2 * GPU_HOUR, GPU_HOUR // 2, GPU_HOUR), second=(2 * GPU_HOUR, GPU_HOUR, 0))
    hour(1, first=(2 * GPU_HOUR, GPU_HOUR // 2, GPU_HOUR), second=(GPU_HOUR, GPU_HOUR // 2, 0))
    assert charge_uses_turn(now=LATER + EVERY) == 1
    assert sorted(ChargeUse.objects.values_list("job", "measured", "computing")) == sorted(
        [(first.public_id, 2 * GPU_HOUR, GPU_HOUR), (second.public_id, 2 * GPU_HOUR, 3 * GPU_HOUR // 2)]
    )
    assert charge_uses_turn(now=LATER + EVERY) == 0, "its turn was taken"

    found = report(personas.access("finance"), Period.of(OCTOBER), now=LATER)
    rows = {row.key: row for row in found.rows}
    # 8 GPU-hours at a half and 2 at three quarters; the other team's 10 were not measured.
    assert (rows["acme/research/nlp"].computing, rows["acme/research/nlp"].measured) == (5.5 * GPU_HOUR, 10 * GPU_HOUR)
    assert rows["acme/research/nlp"].efficiency_percent == 55 and rows["acme/product/search"].efficiency_percent is None
    assert (found.total.efficiency_percent, found.total.measured_percent) == (55, 50)
    by_type = {row.key: row.efficiency_percent for row in report(personas.access("finance"), Period.of(OCTOBER), by="gpu_type", now=LATER).rows}
    assert by_type == {"H100-SXM-80GB": 50, A100: 75}
    page = personas.client("finance").get("/cost/?month=2026-10").content.decode()
    assert '<span class="value">55%</span> <span class="unit">SM-active</span>' in page and "unknown" in page
    told = personas.client("finance").get("/api/v1/costs/2026-10").json()["total"]
    assert (told["computing_milli_millis"], told["measured_milli_millis"]) == (5.5 * GPU_HOUR, 10 * GPU_HOUR)

    month_close(access=personas.access("finance"), first=OCTOBER, mode="showback", now=LATER)
    hour(2, first=(2 * GPU_HOUR, 0, 0))
    assert charge_uses_turn(now=LATER + 2 * EVERY) == 0, "of a closed month it stays"


def test_what_teams_reserved_and_left_unused_is_told(personas: Personas) -> None:
    nlp, search = personas.nodes["acme/research/nlp"], personas.nodes["acme/product/search"]
    price(personas)
    facts = {"gpu_type": A100, "gpus_milli": 4000, "starts_at": START, "requested_name": "Lead", "state": "approved"}
    mine = Reservation.objects.create(public_id="r-1", name="Evaluation", quota=nlp, **facts)
    Window.objects.create(reservation=mine, starts_at=START - timedelta(hours=3), ends_at=START + timedelta(hours=2))
    Window.objects.create(
        reservation=mine, starts_at=START + timedelta(days=1), ends_at=START + timedelta(days=2), released_at=START + timedelta(hours=25)
    )
    floor = Reservation.objects.create(public_id="r-2", name="Floor", job_class="interactive", **facts)
    Window.objects.create(reservation=floor, starts_at=START)
    used(nlp, START, 2, milli=1000, gpu_type=A100, share_class="reserved")
    used(search, START, 2, milli=1000, gpu_type=A100)
    month_refresh(first=OCTOBER, now=LATER)

    for by in ("team", "project"):
        rows = {row.key: row.reserved_unused for row in report(personas.access("finance"), Period.of(OCTOBER), by=by, now=LATER).rows}
        assert rows == {"acme/research/nlp": (2 * 4 - 2 + 1 * 4) * GPU_HOUR, "acme/product/search": 0}
    assert report(personas.access("finance"), Period.of(OCTOBER), by="day", now=LATER).total.reserved_unused == 0
    assert "Reserved, unused" in personas.client("team_lead").get("/cost/?month=2026-10").content.decode()
