"""A reservation that is changed by somebody who may not approve it holds nothing until it is approved again, and holds its GPUs from then on."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError

from gpufleet.core.faults import Conflict
from gpufleet.core.models import AuditEntry, User
from quotas.models import Reservation, Window
from quotas.permissions import access_for_user
from scheduler.services.windows.reservations import (
    reservation_cancel,
    reservation_change,
    reservation_decide,
    reservation_facts,
    reservation_request,
    reservation_undo,
    window_end,
    windows_write,
)
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


def test_the_end_of_an_only_window_is_undone_and_the_rest_of_it_comes_back(personas: Personas) -> None:
    held = Held(personas, ends_at=NOON + 9 * HOUR)
    window_end(access=held.lead, reservation=held.row, now=NOON + 2 * HOUR)
    assert not _hold(NOON + 3 * HOUR)
    reservation_undo(access=held.lead, reservation=held.row, revision=held.row.revision, now=NOON + 2 * HOUR + timedelta(minutes=1))

    assert len(_hold(NOON + 3 * HOUR)) == 1
    assert not _hold(NOON + 9 * HOUR)


def test_a_window_that_somebody_ended_stays_ended(personas: Personas) -> None:
    held = Held(personas, ends_at=NOON + 9 * HOUR, rule="FREQ=DAILY")
    held.change(NOON, gpus=5)
    held.approve(NOON + HOUR)
    window_end(access=held.lead, reservation=held.row, now=NOON + 2 * HOUR)
    held.change(NOON + 3 * HOUR, gpus=4)
    held.approve(NOON + 4 * HOUR)

    assert not _hold(NOON + 5 * HOUR)
    assert len(_hold(NOON + 24 * HOUR)) == 1, "the next day's is another one"


@pytest.mark.parametrize("rule", ["", "FREQ=DAILY"])
@pytest.mark.parametrize("act", ["change", "cancel"])
def test_who_changed_it_puts_back_what_was_approved(personas: Personas, act: str, rule: str) -> None:
    held = Held(personas, ends_at=NOON + 9 * HOUR, rule=rule, notice_s=90, purpose="Review")
    before = reservation_facts(held.row)
    if act == "change":
        held.change(NOON, nodes=1, starts_at=NOON + HOUR, ends_at=NOON + 2 * HOUR, rule="", notice_s=0, name="Moved", purpose="")
    else:
        reservation_cancel(access=held.lead, reservation=held.row, reason="not needed", now=NOON)
    left = held.row.revision
    assert not _hold(NOON + HOUR)

    reservation_undo(access=held.lead, reservation=held.row, reason="Undo.", revision=left, now=NOON + HOUR)

    assert reservation_facts(held.row) == before
    assert (len(_hold(NOON + HOUR)), len(_hold(NOON + HOUR / 2)), len(_hold(NOON + 9 * HOUR))) == (1, 0, 0)
    entry = AuditEntry.objects.latest("id")
    assert (entry.action, entry.actor, entry.reason, entry.after["state"]) == ("reservation.change", held.lead.actor.user, "Undo.", "approved")


def test_an_approval_comes_back_for_a_while_only(personas: Personas) -> None:
    held = Held(personas, ends_at=NOON + 8_000 * HOUR)
    reservation_cancel(access=held.lead, reservation=held.row, now=NOON)
    later = AuditEntry.objects.latest("id").at + HOUR / 3

    reservation_undo(access=held.lead, reservation=held.row, revision=held.row.revision, now=later)

    assert held.row.state == "requested"


def test_what_somebody_changed_since_is_not_put_back(personas: Personas) -> None:
    """Nor does the Undo of one person take back the change of another: a lead would have approved what a quota admin took away."""
    held = Held(personas, ends_at=NOON + 9 * HOUR)
    held.change(NOON, gpus=5)
    left = held.row.revision
    held.change(NOON, gpus=3)
    held.approve(NOON)
    facts = reservation_facts(held.row)
    for revision in (left, held.row.revision, None):
        with pytest.raises(Conflict, match="Held has been changed since by root2"):
            reservation_undo(access=held.lead, reservation=held.row, revision=revision, now=NOON)
    assert reservation_facts(held.row) == facts
    held.change(NOON, gpus=2)
    with pytest.raises(Conflict, match=r"has been changed since\. It stays"):
        reservation_undo(access=held.lead, reservation=held.row, revision=left, now=NOON)


def test_what_others_have_reserved_since_is_not_taken_back(personas: Personas) -> None:
    held = Held(personas, gpus=6, ends_at=NOON + 9 * HOUR)
    reservation_cancel(access=held.lead, reservation=held.row, now=NOON)
    asked = {"name": "Other", "quota": "acme/product/search", "gpu_type": H100, "gpus": 4, "starts_at": NOON, "ends_at": NOON + HOUR}
    reservation_request(access=held.root, given=asked, now=NOON)

    with pytest.raises(ValidationError, match="6 GPUs asked, 4 left"):
        reservation_undo(access=held.lead, reservation=held.row, revision=held.row.revision, now=NOON)
    assert held.row.state == "cancelled"
