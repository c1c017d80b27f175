"""Who approves is told of what waits, and its author of the answer: quota changes, reservations, budgets. Webhooks and Activity tell it, too."""

import random
from datetime import timedelta
from typing import Any

import pytest
from django.core import mail
from django.core.exceptions import ValidationError
from django.urls import reverse

from dashboards.alerts.selectors import activity_listed
from dashboards.models import ActivityEntry
from gpufleet.core.live.news import News
from quotas.models import ChangeState, QuotaChange, Reservation, Role, Window
from quotas.permissions import access_for_user
from quotas.selectors.changes import change_standing, steps_open
from quotas.services.changes import Wanted, change_apply, change_approve, change_draft, change_propose, change_reject, change_schedule, changes_turn
from scheduler.models import Delivery, Health, Node, Notice
from scheduler.services.notify.notices import Kind, Word, notices_choose, notices_say
from scheduler.services.notify.sending import sendings_turn
from scheduler.services.windows.reservations import (
    reservation_cancel,
    reservation_change,
    reservation_decide,
    reservation_request,
    window_end,
)
from tests import builders
from tests.builders import NOON
from tests.personas import Personas, person
from tests.quotas.test_budgets import budget, busy
from tests.scheduler.loop.test_whole_way import Fleet
from tests.scheduler.loop.worlds import H100, submit

pytestmark = pytest.mark.django_db
HOUR, TEAM = timedelta(hours=1), "acme/research/nlp"
CAPACITY = {H100: 64_000}


@pytest.fixture
def team(personas: Personas) -> Personas:
    """Changes below acme/research need a second person; one admin more is there, one further down, and one of another department."""
    node = personas.nodes["acme/research"]
    node.needs_approval = True
    node.save(update_fields=["needs_approval"])
    for name, path in (("second", "acme/research"), ("lower", TEAM), ("elsewhere", "acme/product")):
        personas.users[name] = person(name, role=Role.QUOTA_ADMIN, node=personas.nodes[path])
    return personas


def told() -> list[tuple[str, str, str]]:
    """What was told since the last time: to whom, of which kind, and the beginning of the title."""
    found = [(one.user.username, one.kind, one.title.partition(":")[0]) for one in Notice.objects.select_related("user").order_by("pk")]
    Notice.objects.all().delete()
    return sorted(found)


def draft(team: Personas, path: str = TEAM, **fields: Any) -> QuotaChange:
    node = team.nodes[path]
    edits = [{"op": "update", "node": node.public_id, "set": {"weight": 3}}]
    return change_draft(access=team.access("quota_admin"), wanted=Wanted(edits, reason="More for speech"), now=NOON, **fields)


def propose(team: Personas) -> QuotaChange:
    made = draft(team)
    return change_propose(access=team.access("quota_admin"), change=made, revision=made.revision, now=NOON)


def test_who_may_approve_a_change_is_told_that_it_waits(team: Personas) -> None:
    """The author is not, nor is an admin of a node below, who may not decide it, or one of another department."""
    hook = builders.webhook(team.nodes["acme"], kinds=["quota.proposed"])
    made = propose(team)

    notice = Notice.objects.get()
    assert (notice.user.username, notice.kind, notice.link) == ("second", "approval", f"/quotas/changes/{made.public_id}/")
    assert notice.title == f"Approval needed: {made.title}"
    assert notice.text == f"{made.public_id}, by Quota Admin. More for speech"
    assert [(one.hook_id, one.kind) for one in Delivery.objects.all()] == [(hook.pk, "quota.proposed")]
    line = ActivityEntry.objects.get()
    assert (line.kind, line.path, line.link) == ("quota.proposed", TEAM, notice.link)
    page = team.client("second").get(reverse("notices")).content.decode()
    assert f'<a href="{notice.link}"><strong>Approval needed' in page
    assert team.client("second").get(notice.link).status_code == 200
    assert team.client("second").get("/api/v1/me/notices").json()["items"][0]["link"] == notice.link


@pytest.mark.parametrize("edit", [{"op": "update", "set": {"weight": 3}}, {"op": "archive"}], ids=["touches nothing", "has a fault"])
def test_what_another_change_has_done_meanwhile_is_not_proposed(team: Personas, edit: dict[str, Any]) -> None:
    """Everybody has the rights that edits of no node take: admins of other departments were told of it."""
    author = team.access("quota_admin")
    edits = [edit | {"node": team.nodes[TEAM].public_id}]
    made, same = (change_draft(access=author, wanted=Wanted(edits, reason="Twice"), now=NOON) for _ in range(2))
    same = change_propose(access=author, change=same, revision=same.revision, now=NOON)
    same = change_approve(access=team.access("second"), change=same, revision=same.revision, now=NOON)
    change_apply(access=author, change=same, revision=same.revision, capacity=CAPACITY, now=NOON)
    told()

    with pytest.raises(ValidationError):
        change_propose(access=author, change=made, revision=made.revision, now=NOON)
    assert told() == []


def test_edits_with_faults_are_not_offered_for_approval(team: Personas) -> None:
    """The team under the draft has jobs by now: it cannot have a child, and nobody else changed the node."""
    author = team.access("quota_admin")
    made = change_draft(
        access=author,
        wanted=Wanted([{"op": "create", "node": "new", "parent": team.nodes[TEAM].public_id, "name": "child", "set": {"kind": "team"}}]),
        now=NOON,
    )
    assert "propose" in steps_open(author, made, change_standing(author, made))
    builders.job(quota=team.nodes[TEAM])

    assert "propose" not in steps_open(author, made, change_standing(author, made))


def test_superusers_are_told_where_nobody_else_may_approve(team: Personas) -> None:
    team.users["second"].role_bindings.all().delete()
    propose(team)

    assert told() == [("superuser", "approval", "Approval needed")]


@pytest.mark.parametrize(("decide", "says"), [(change_approve, "Approved"), (change_reject, "Rejected")])
def test_the_author_is_told_what_was_decided(team: Personas, decide: Any, says: str) -> None:
    made = propose(team)
    told()
    decide(access=team.access("second"), change=made, revision=made.revision, reason="As agreed", now=NOON)

    notice = Notice.objects.get()
    assert (notice.user.username, notice.title.partition(":")[0]) == ("quota_admin", says)
    assert notice.text == f"{made.public_id}, by Second. As agreed"


def test_a_change_that_its_author_applies_is_told_to_webhooks_alone(team: Personas) -> None:
    builders.webhook(team.nodes["acme/product"], kinds=["quota.applied"])
    hook = builders.webhook(team.nodes["acme/research"], kinds=["quota.applied"])
    made = propose(team)
    made = change_approve(access=team.access("second"), change=made, revision=made.revision, now=NOON)
    told()
    change_apply(access=team.access("quota_admin"), change=made, revision=made.revision, capacity=CAPACITY, now=NOON)

    assert told() == []
    assert [one.hook_id for one in Delivery.objects.all()] == [hook.pk]


@pytest.mark.parametrize("fails", [False, True])
def test_the_author_is_told_what_became_of_a_scheduled_change(team: Personas, fails: bool) -> None:
    made = propose(team)
    made = change_approve(access=team.access("second"), change=made, revision=made.revision, now=NOON)
    made = change_schedule(access=team.access("quota_admin"), change=made, revision=made.revision, apply_at=NOON + HOUR, capacity=CAPACITY, now=NOON)
    told()
    if fails:
        team.users["quota_admin"].role_bindings.all().delete()
    changes_turn(capacity=lambda: CAPACITY, now=NOON + 2 * HOUR)

    made.refresh_from_db()
    assert made.state == (ChangeState.FAILED if fails else ChangeState.APPLIED)
    assert told() == [("quota_admin", "approval", "Could not take effect" if fails else "In force")]


def test_steps_that_nobody_waits_for_are_not_told(team: Personas) -> None:
    draft(team)

    assert told() == []
    assert not ActivityEntry.objects.exists()


def request(team: Personas, who: str = "team_lead", **given: Any) -> Reservation:
    asked = {"name": "Release", "quota": TEAM, "gpu_type": H100, "gpus": 4, "starts_at": NOON + HOUR, "ends_at": NOON + 3 * HOUR} | given
    return reservation_request(access=team.access(who), given=asked, now=NOON)


def test_a_reservation_is_told_to_who_approves_it_and_the_answer_to_who_asked(team: Personas) -> None:
    builders.node(gpus=8)
    found = request(team)
    assert told() == [("quota_admin", "approval", "Approval needed"), ("second", "approval", "Approval needed")]

    reservation_decide(access=team.access("second"), reservation=found, approve=True, now=NOON)
    assert told() == [("team_lead", "approval", "Approved")]
    reservation_change(access=team.access("team_lead"), reservation=found, given={"gpus": 5}, now=NOON)
    assert told() == [("quota_admin", "approval", "Approval needed"), ("second", "approval", "Approval needed")]
    reservation_decide(access=team.access("second"), reservation=found, approve=False, reason="Too many", now=NOON)
    assert Notice.objects.get().text == f"{found.public_id}, 5 {H100} from 2026-11-20 13:00 UTC, by Second. Too many"
    assert told() == [("team_lead", "approval", "Denied")]
    assert [line.kind for line in ActivityEntry.objects.order_by("pk")] == [
        *("reserve.requested", "reserve.approved", "reserve.requested", "reserve.denied")
    ]


def test_who_asked_is_told_what_others_do_with_it(team: Personas) -> None:
    builders.node(gpus=8)
    found = request(team)
    reservation_decide(access=team.access("second"), reservation=found, approve=True, now=NOON)
    told()
    reservation_change(access=team.access("second"), reservation=found, given={"gpus": 6}, now=NOON)
    window_end(access=team.access("second"), reservation=found, now=NOON + 2 * HOUR)
    reservation_cancel(access=team.access("second"), reservation=found, now=NOON + 2 * HOUR)

    assert told() == [(*("team_lead", "reservation"), title) for title in ("Cancelled", "Changed", "Window ended")]


def test_who_asked_is_told_when_somebody_elses_change_waits_for_approval(team: Personas) -> None:
    """The people who approve it were told, and the requester, whose reservation holds nothing by then, was not."""
    builders.node(gpus=8)
    team.users["lead"] = person("lead", role=Role.TEAM_LEAD, node=team.nodes[TEAM])
    found = request(team)
    reservation_decide(access=team.access("second"), reservation=found, approve=True, now=NOON)
    told()
    reservation_change(access=team.access("lead"), reservation=found, given={"gpus": 6}, now=NOON)

    notice = Notice.objects.get(user__username="team_lead")
    assert (notice.kind, notice.title) == ("reservation", "Changed, needs approval: Release (acme/research/nlp)")
    assert notice.text.endswith("by Lead.")
    assert told() == [
        *((who, "approval", "Approval needed") for who in ("quota_admin", "second")),
        ("team_lead", "reservation", "Changed, needs approval"),
    ]


def test_a_requester_who_may_approve_is_told_once_that_it_waits(team: Personas) -> None:
    builders.node(gpus=8)
    found = request(team, "quota_admin")
    reservation_change(access=team.access("team_lead"), reservation=found, given={"gpus": 6}, now=NOON)

    assert told() == [(who, "approval", "Approval needed") for who in ("quota_admin", "second")]


def test_other_words_of_what_waits_ask_nobody_for_approval_again(team: Personas) -> None:
    builders.node(gpus=8)
    team.users["lead"] = person("lead", role=Role.TEAM_LEAD, node=team.nodes[TEAM])
    found = request(team)
    told()
    reservation_change(access=team.access("team_lead"), reservation=found, given={"name": "Release 2", "purpose": "Launch"}, now=NOON)
    assert told() == []
    reservation_change(access=team.access("lead"), reservation=found, given={"purpose": "Our launch"}, now=NOON)
    assert told() == [("team_lead", "reservation", "Changed")]
    reservation_change(access=team.access("team_lead"), reservation=found, given={"gpus": 3}, now=NOON)
    assert told() == [(who, "approval", "Approval needed") for who in ("quota_admin", "second")]
    assert [line.kind for line in ActivityEntry.objects.all()] == ["reserve.requested"] * 2


def test_who_approves_what_he_asks_for_himself_is_told_nothing(team: Personas) -> None:
    builders.node(gpus=8)
    found = request(team, "quota_admin")
    reservation_cancel(access=team.access("quota_admin"), reservation=found, now=NOON)

    assert told() == []


@pytest.mark.parametrize(("is_healthy", "titles"), [(True, []), (False, ["Starts short of GPUs"])])
def test_the_clock_tells_of_a_window_that_lacks_gpus(team: Personas, is_healthy: bool, titles: list[str]) -> None:
    """That jobs leave for it, as they should, is no news to its requester."""
    other = builders.node(gpus=4)
    fleet = running_elsewhere(team, gpus=8)
    found = request(team, "quota_admin", gpus=12)
    if not is_healthy:
        Node.objects.filter(pk=other.pk).update(health=Health.DRAINED)
    fleet.now = found.starts_at - timedelta(seconds=found.notice_s)
    fleet.tick()

    window = Window.objects.get()
    assert (window.cleared_at, len(window.leaving), window.missing_milli) == (fleet.now, 1, 0 if is_healthy else 4000)
    assert told() == [("quota_admin", "reservation", title) for title in titles]


def test_the_clock_tells_of_a_window_that_is_released(team: Personas) -> None:
    fleet = running_elsewhere(team, gpus=1)
    found = request(team, "quota_admin", decay_s=600)
    fleet.now = found.starts_at + timedelta(seconds=599)
    fleet.tick()
    assert told() == []
    fleet.after(seconds=1).tick()

    assert Window.objects.get().released_at == fleet.now
    assert told() == [("quota_admin", "reservation", "Released unused")]


def running_elsewhere(team: Personas, *, gpus: int) -> Fleet:
    """A node of eight GPUs, on some of which another department borrows."""
    builders.node(gpus=8)
    fleet = Fleet()
    submit(team.nodes["acme/product/search"], gpus=gpus, spec={"work_s": 200_000, "grace_s": 20})
    fleet.tick()
    return fleet


@pytest.mark.parametrize("unit", ["gpu_hours", "money"])
def test_budgets_are_told_by_mail_to_webhooks_and_on_activity(settings: Any, unit: str) -> None:
    """Of one of money, Activity tells those alone who see the costs there, and a webhook no amount."""
    settings.EMAIL_HOST, settings.PUBLIC_URL = "mail.example.org", "https://console.example.org"
    fleet, found = busy(0.5)
    lead = person("lead", role=Role.TEAM_LEAD, node=found.quota)
    viewer = person("viewer", role=Role.VIEWER, node=found.quota)
    lead.email = "lead@example.org"
    lead.save()
    notices_choose(access=access_for_user(lead), ways={Kind.BUDGET: ["email"]})
    builders.webhook(found.quota, kinds=["budget.stopped"])
    builders.rate(H100, since=NOON - 24 * HOUR, micros=2_000_000)
    made = budget(unit=unit, amount=1_000 if unit == "gpu_hours" else 1_000_000, name="Small", now=fleet.now)
    sendings_turn(clock=lambda: fleet.now + timedelta(minutes=5), rng=random.Random(1))

    assert [message.subject for message in mail.outbox] == ["gpufleet: Budget used up: Small (acme/team)"]
    assert f"https://console.example.org/budgets/{made.public_id}/" in mail.outbox[0].body
    assert not Notice.objects.filter(user=lead, in_console=True).exists()
    (message,) = Delivery.objects.all()
    assert message.kind == "budget.stopped"
    assert ("% of " in message.body) == (unit == "gpu_hours")
    assert [line.kind for line in activity_listed(access_for_user(lead))] == ["budget.stopped"]
    assert activity_listed(access_for_user(viewer)).exists() == (unit == "gpu_hours")


def test_many_of_one_moment_are_one_notice_that_leads_to_their_list(personas: Personas) -> None:
    words = [Word(personas.users["viewer"].pk, f"Change {number}", "", link=f"/quotas/changes/qc-{number}/") for number in range(7)]
    news = News()
    notices_say(kind=Kind.APPROVAL, words=words, now=NOON, news=news)

    notice = Notice.objects.get()
    assert (notice.count, notice.link) == (7, "/quotas/changes/")
