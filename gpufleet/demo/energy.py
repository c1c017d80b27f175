"""What the demo's energy costs and stands for by the hour, and jobs that wait for a better one."""

from collections.abc import Mapping
from datetime import datetime, time, timedelta
from math import cos, pi
from typing import Any
from zoneinfo import ZoneInfo

from gpufleet.core.models import User
from gpufleet.core.recurrence import moment_of
from quotas.permissions import access_for_user
from scheduler.services.energy import forecast_put, rate_set
from scheduler.services.jobs.submission import submission_create

BERLIN = ZoneInfo("Europe/Berlin")
DAY_MICROS, NIGHT_MICROS = 240_000, 110_000
HOURS, MIDDLE, SWING, CLEANEST = 72, 310, 150, 9  # of the forecast, in grams; the wind comes up some hours from now, whenever that is
PROJECT = "veridia/research/language/instruct"
JOBS: tuple[dict[str, Any], ...] = (
    {"name": "distil-nightly", "gpus": 8, "workers": 2, "work_s": 7_000, "estimate_s": 7_200, "defer": "price"},
    {"name": "embed-archive", "gpus": 8, "work_s": 10_000, "estimate_s": 10_800, "defer": "carbon"},
)


def energy_seed(*, people: Mapping[str, User], now: datetime) -> None:
    """A tariff of day and night, a forecast of CO2, and jobs that are deferred by one of them each (at night by CO2 alone)."""
    operator = access_for_user(people["oona"], via="system")
    today = now.astimezone(BERLIN).date()
    begins, night, morning = (
        moment_of(datetime.combine(day, time(hour)), BERLIN)
        for day, hour in ((today - timedelta(days=1), 0), (today - timedelta(days=1), 22), (today, 6))
    )
    tariff = {"zone": "Europe/Berlin", "price_micros": DAY_MICROS, "starts_at": begins, "note": "Day tariff"}
    rate_set(access=operator, given=tariff, now=now)
    tariff |= {"price_micros": NIGHT_MICROS, "starts_at": night, "ends_at": morning, "rule": "FREQ=DAILY", "note": "Night tariff"}
    rate_set(access=operator, given=tariff, now=now)
    first = now.replace(minute=0, second=0, microsecond=0)
    steps = [
        {"start": first + timedelta(hours=hour), "grams": round(MIDDLE + SWING * cos(2 * pi * (hour + 12 - CLEANEST) / 24))} for hour in range(HOURS)
    ]
    forecast_put(access=operator, pool="", steps=steps, now=now)
    sam = access_for_user(people["sam"], via="system")
    for said in JOBS:
        deadline = (now + timedelta(hours=26)).isoformat()
        submission_create(access=sam, description=said | {"quota": PROJECT, "deadline": deadline}, now=now, actor=sam.actor)
