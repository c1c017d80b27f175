"""More than there is, is refused over the API with the numbers and the nearest start that fits, and that one is taken."""

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.http import HttpResponse

from gpufleet.core.times import now
from quotas.models import Reservation
from scheduler.windows.capacity import Booking, nearest_series
from tests import builders
from tests.personas import Personas
from tests.scheduler.loop.worlds import H100

pytestmark = pytest.mark.django_db
MORNING = (now() + timedelta(days=3)).replace(hour=9, minute=0, second=0, microsecond=0)
DAILY = "FREQ=DAILY"


@pytest.mark.parametrize(
    ("booked", "asked", "nearest"),
    [
        ({"hours": 3}, {"hours": 2}, MORNING - timedelta(hours=2)),
        ({"hours": 3}, {"hours": 2, "after": 2}, MORNING + timedelta(hours=3)),
        # All of its windows move: between those of the other, which last until noon and begin again at 09:00.
        ({"hours": 3, "rule": DAILY}, {"hours": 4, "after": 1, "rule": DAILY}, MORNING + timedelta(hours=3)),
        ({"hours": 1, "after": 48}, {"hours": 1, "rule": DAILY}, MORNING - timedelta(hours=1)),
        ({"hours": 12, "rule": DAILY}, {"hours": 13, "rule": DAILY}, None),
    ],
)
def test_it_is_refused_with_the_numbers_and_the_nearest_start_that_fits(
    personas: Personas, booked: dict[str, Any], asked: dict[str, Any], nearest: datetime | None
) -> None:
    builders.node(gpus=8)
    root = personas.client("superuser")

    def ask(gpus: int, start: datetime, *, hours: int, rule: str = "") -> HttpResponse:
        times = {"starts_at": start.isoformat(), "ends_at": (start + timedelta(hours=hours)).isoformat(), "rule": rule, "zone": "UTC"}
        body = {"name": f"asked-{gpus}", "quota": "acme/research", "gpu_type": H100, "gpus": gpus, **times}
        return root.post("/api/v1/reservations", json.dumps(body), content_type="application/json")

    assert ask(6, MORNING + timedelta(hours=booked.pop("after", 0)), **booked).status_code == 201
    refused = ask(4, MORNING + timedelta(hours=asked.pop("after", 0)), **asked)

    assert refused.status_code == 422
    (fault,) = refused.json()["errors"]
    assert fault["path"] == "gpus"
    assert f"4 GPUs asked, 2 left: 8 {H100} GPUs are healthy, 6 reserved by r-" in fault["message"]
    assert ("nearest start" in fault["message"]) == (nearest is not None)
    assert Reservation.objects.count() == 1
    if nearest is not None:
        assert f"The nearest start that fits is {nearest:%Y-%m-%d %H:%M} UTC." in fault["message"]
        assert ask(4, nearest, **asked).status_code == 201


def test_of_a_series_that_is_changed_the_window_that_lasts_stands_in_no_way() -> None:
    """It lasts since two hours ago; another one has the last of its hours from tomorrow on."""
    hour, day = timedelta(hours=1), timedelta(days=1)
    others = [Booking("other", MORNING + number * day - 3 * hour, MORNING + number * day - hour, 6000) for number in (1, 2)]

    def drawn(move: timedelta) -> list[tuple[datetime, datetime | None]]:
        return [(MORNING - 2 * hour + move + number * day, MORNING + hour + move + number * day) for number in (0, 1, 2)]

    found = nearest_series(others, MORNING + day - 2 * hour, drawn, milli=4000, capacity=8000, since=MORNING, begun=True)

    assert found == MORNING + day - hour
