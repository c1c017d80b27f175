"""Costs of a month by e-mail: when they are due, to whom, what is in them, and what becomes of those that fail."""

import random
from datetime import UTC, date, datetime, timedelta

import pytest
from django.core import mail as outbox
from django.core.exceptions import PermissionDenied, ValidationError

from gpufleet.core.models import AuditEntry, User
from quotas.chargeback.months import month_refresh
from quotas.models import CostMailing, RoleBinding
from quotas.services.cost_mails import cost_mail_again, cost_mail_create, cost_mail_remove
from scheduler.services.cost_mails import cost_mails_turn
from tests.personas import Personas
from tests.quotas.chargeback.test_months import START, price
from tests.quotas.chargeback.worlds import used

pytestmark = pytest.mark.django_db
OCTOBER = date(2026, 10, 1)
SET_UP, DUE = datetime(2026, 10, 20, tzinfo=UTC), datetime(2026, 11, 3, 6, tzinfo=UTC)


@pytest.fixture
def world(personas: Personas, settings) -> Personas:
    settings.EMAIL_HOST, settings.PUBLIC_URL = "mail.example.org", "https://console.example.org"
    price(personas)
    used(personas.nodes["acme/research/nlp"], START + timedelta(days=1), 100, milli=8000)
    used(personas.nodes["acme/product/search"], START + timedelta(days=1), 10)
    month_refresh(first=OCTOBER, now=DUE)
    User.objects.update(email="someone@example.org")
    return personas


def set_up(world: Personas, name: str = "finance", people: tuple[str, ...] = ("team_lead",), **said):
    given = {"path": "acme/research/nlp", "usernames": people, "day": 3, "now": SET_UP} | said
    return cost_mail_create(access=world.access(name), **given)


def turn(now: datetime) -> int:
    return cost_mails_turn(now=now, rng=random.Random(1))


def states() -> list[tuple[str, int]]:
    return list(CostMailing.objects.order_by("pk").values_list("state", "attempts"))


def test_the_costs_of_the_subtree_are_sent_once_when_they_are_due(world) -> None:
    set_up(world)
    set_up(world, people=("finance",), now=DUE + timedelta(hours=1))  # set up after its day: from the next month on

    assert turn(DUE - timedelta(minutes=1)) == 0
    assert (turn(DUE + timedelta(hours=2)), turn(DUE + timedelta(days=1))) == (1, 0)
    (sent,) = outbox.outbox
    assert sent.subject == "gpufleet: costs of acme/research/nlp, October 2026" and sent.to == ["someone@example.org"]
    assert "1,600.00 USD for 800.0 GPU-hours" in sent.body and "(estimate, the month is open)" in sent.body
    assert "https://console.example.org/cost/?month=2026-10" in sent.body
    ((name, content, kind),) = sent.attachments
    assert (name, kind) == ("gpufleet-2026-10-by-team.csv", "text/csv")
    assert "acme/research/nlp,800," in content and "product" not in sent.body + content
    assert states() == [("sent", 1)]


def test_what_the_server_refuses_is_tried_again_for_a_day(world, settings) -> None:
    made = set_up(world)
    settings.EMAIL_HOST = ""

    moment = DUE
    while moment < DUE + timedelta(days=3):
        turn(moment)
        moment += timedelta(minutes=30)
    (row,) = CostMailing.objects.all()
    assert row.state == "failed" and row.attempts > 5 and "sends no mail" in row.fault and not outbox.outbox
    assert "sends no mail" in world.client("finance").get("/cost/mails/").content.decode()

    settings.EMAIL_HOST = "mail.example.org"
    assert cost_mail_again(access=world.access("finance"), mail=made, first=OCTOBER, now=moment) == 1
    assert turn(moment) == 1 and states() == [("sent", 1)]


def test_a_person_who_lost_the_role_is_sent_nothing(world) -> None:
    made = set_up(world)
    RoleBinding.objects.filter(user__username="team_lead").delete()

    turn(DUE)
    assert states() == [("failed", 1)] and not outbox.outbox
    cost_mail_remove(access=world.access("finance"), mail=made, now=DUE)
    assert turn(DUE + timedelta(days=30)) == 0
    assert set(AuditEntry.objects.filter(object_kind="cost_mail").values_list("action", flat=True)) == {"cost_mail.create", "cost_mail.remove"}


def test_only_people_who_may_see_the_costs_are_named(world) -> None:
    with pytest.raises(ValidationError) as fault:
        set_up(world, people=("viewer", "nobody"), day=31)
    assert fault.value.message_dict["people"] == [
        "nobody is not an active person.",
        "viewer cannot see the costs of acme/research/nlp: give a role with costs first.",
    ]
    assert "day" in fault.value.message_dict
    with pytest.raises(PermissionDenied):
        set_up(world, "team_lead")
