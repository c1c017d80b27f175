"""What the demo's people have submitted again and again."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gpufleet.core.models import User
from quotas.permissions import access_for_user
from scheduler.services.schedules.schedules import schedule_create

PROJECT = "veridia/research/language/instruct"
# Who, what, when. Their work is played by the simulated back-end.
SCHEDULES: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "sam",
        {
            "name": "evaluate-latest",
            "cron": "20 * * * *",
            "overlap": "skip",
            "catch_up": "last",
            "start_within_s": 1800,
            "description": {"gpus": 1, "work_s": 900, "estimate_s": 1200, "labels": {"purpose": "evaluation"}},
        },
    ),
    (
        "tessa",
        {
            "name": "retrain-weekly",
            "cron": "0 6 * * MON",
            "zone": "Europe/Berlin",
            "overlap": "replace",
            "catch_up": "last",
            "description": {"gpus": 8, "workers": 2, "work_s": 14_400, "estimate_s": 18_000},
        },
    ),
)


def schedules_seed(*, people: Mapping[str, User], now: datetime) -> None:
    for username, said in SCHEDULES:
        job = said["description"] | {"quota": PROJECT}
        schedule_create(access=access_for_user(people[username], via="system"), given=said | {"description": job}, now=now)
