"""A reservation that is changed by somebody who may not approve it holds nothing until it is approved again, and holds its GPUs from then on."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from gpufleet.core.faults import Conflict
from gpufleet.core.models import User
from quotas.models import Reservation, Window
from quotas.permissions import access_for_user
from scheduler.services.windows.reservations import reservation_change, reservation_decide, reservation_request, window_end, windows_write
from tests import builders
from tests.builders import NOON
from tests.personas import Personas
from tests.scheduler.loop.worlds import H100

pytestmark = pytest.mark.django_db
HOUR, TEAM = timedelta(hours=1), "acme/research/nlp"


def _hold(moment: datetime) -> list[int]:
    """The keys of windows that last."""
    return [one.pk for one in Window.objects.filter(starts_at__lte=moment) if one.ends_at is None or one.ends_at > moment]


class Held:
    def __init__(self, personas: Personas, **given: Any) -> None:
        builders.node(gpus=8)
        self.root, self.lead = access_for_user(User.objects.create(username="root2", is_superuser=True)), personas.access("team_lead")
        asked = {"name": "Held", "quota": TEAM, "gpu_type": H100, "gpus": 4, "starts_at": NOON - HOUR} | given
        self.key = reservation_request(access=self.root, given=asked, now=NOON - 2 * HOUR).pk

    @property
    def row(self) -> Reservation:
        return Reservation.objects.get(pk=self.key)

    def change(self, at: datetime, **given: Any) -> None:
        reservation_change(access=self.lead, reservation=self.row, given=given, now=at)

    def approve(self, at: datetime) -> None:
        reservation_decide(access=self.root, reservation=self.row, approve=True, now=at)


@pytest.mark.parametrize("times", [{}, {"ends_at": NOON + 9 * HOUR}, {"ends_at": NOON + 9 * HOUR, "rule": "FREQ=DAILY"}])
def test_what_is_approved_again_holds_from_then_on(personas: Personas, times: dict[str, Any]) -> None:
    held = Held(personas, **times)
    for at in (NOON, NOON + 3 * HOUR):
        held.change(at, gpus=5)
        assert not _hold(at + HOUR), "pending, it holds nothing"
        held.approve(at + HOUR)
        assert len(_hold(at + HOUR)) == 1, "from its approval on"
        assert not _hold(at + HOUR / 2), "not before"
        windows_write(held.row, at + 2 * HOUR)
        assert len(_hold(at + 2 * HOUR)) == 1, "writing ahead leaves it"
    assert bool(times) == (not _hold(NOON + 9 * HOUR))
    assert Window.objects.filter(starts_at=NOON + 23 * HOUR).exists() == ("rule" in times)


def test_changed_and_approved_at_the_moment_of_its_start(personas: Personas) -> None:
    held = Held(personas)
    held.change(NOON - HOUR, gpus=5)
    held.approve(NOON - HOUR)
    assert len(_hold(NOON)) == 1


def test_a_window_does_not_end_at_the_moment_of_its_start(personas: Personas) -> None:
    held = Held(personas, ends_at=NOON + 9 * HOUR)
    with pytest.raises(Conflict, match="has not begun yet"):
        window_end(access=held.lead, reservation=held.row, now=NOON - HOUR)
    assert len(_hold(NOON)) == 1


def test_a_window_that_somebody_ended_stays_ended(personas: Personas) -> None:
    held = Held(personas, ends_at=NOON + 9 * HOUR, rule="FREQ=DAILY")
    held.change(NOON, gpus=5)
    held.approve(NOON + HOUR)
    window_end(access=held.lead, reservation=held.row, now=NOON + 2 * HOUR)
    held.change(NOON + 3 * HOUR, gpus=4)
    held.approve(NOON + 4 * HOUR)

    assert not _hold(NOON + 5 * HOUR)
    assert len(_hold(NOON + 24 * HOUR)) == 1, "the next day's is another one"
