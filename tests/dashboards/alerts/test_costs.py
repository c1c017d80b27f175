"""Alerts of costs: who sees them, acts on them, and is told of them."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.test import Client

from dashboards.alerts.figures import figures_now
from dashboards.alerts.models import Alert, AlertRule
from dashboards.alerts.round import alert_tell, alerts_round
from dashboards.alerts.services import alert_rule_change
from gpufleet.core.live.news import News
from quotas.models import ChargeLine, ChargeMonth, Role
from scheduler.models import Notice
from scheduler.notify.happenings import FleetEvent
from tests.builders import NOON
from tests.dashboards.alert_worlds import rule
from tests.personas import Personas, person

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


def test_a_team_whose_costs_double_is_an_alert_with_its_report(personas: Personas):
    first = rule(figure="cost_rise", threshold=2, clear_at=1.5, for_minutes=0, floor=100, told=["finance"])
    nlp, search = personas.nodes["acme/research/nlp"], personas.nodes["acme/product/search"]
    months = {name: ChargeMonth.objects.create(first=f"2026-{name}-01", currency="USD", rated_to=NOON) for name in ("10", "11")}

    def costs(team, day: timedelta, amount: int) -> None:
        at = (NOON - day).date()
        amounts = dict.fromkeys(("list_nanos", "contracted_nanos", "effective_nanos"), amount * 10**9)
        said = {"job": "j-1", "quota": team, "quota_path": team.path, "gpu_type": "H100", "tier": "whole", "preemptible": False, "milli_millis": 1}
        ChargeLine.objects.create(month=months[f"{at.month}"], day=at, **said, **amounts)

    for day in range(8, 36):
        costs(nlp, timedelta(days=day), 10)
        costs(search, timedelta(days=day), 1)
    for day in range(1, 8):
        costs(nlp, timedelta(days=day), 21)
        costs(search, timedelta(days=day), 9)  # nine times as much, and less than the rule minds

    assert figures_now(now=NOON, wanted=["cost_rise"])["cost_rise"] == {nlp.path: 2.1, search.path: 9.0}
    assert alerts_round(now=NOON).fired == 1
    alert = Alert.objects.get()
    assert (alert.subject, alert.value) == (nlp.path, 2.1)
    page = personas.client("finance").get(f"/activity/alerts/{alert.public_id}/").content.decode()
    assert "/cost/lines/?month=2026-11&amp;by=team&amp;key=acme%2Fresearch%2Fnlp" in page
    assert personas.client("operator").get(f"/activity/alerts/{alert.public_id}/").status_code == 404
    first.floor = 1000
    first.save()
    assert alerts_round(now=NOON + MINUTE).resolved == 1


@pytest.fixture
def cost_alert(personas: Personas):
    team = personas.nodes["acme/research/nlp"]
    made = rule(name="Cost doubles", figure="cost_rise", threshold=2, clear_at=1.5, for_minutes=0, told=["finance"])
    return Alert.objects.create(public_id="al-cost", rule=made, subject=team.path, state="firing", value=3, worst=3, since=NOON, fired_at=NOON)


def beside() -> AlertRule:
    return AlertRule.objects.create(public_id="ar-2", name="Nodes out", figure="nodes_out", subject="*", threshold=20, clear_at=10)


COST_RULE = {"name": "Week", "figure": "cost_week", "subject": "*", "threshold": 9000, "clear_at": 8000, "for_minutes": 0, "severity": "info"}

COST_FIGURES = ["gap_cost", "cost_rise", "cost_week"]


def options(html: str) -> list[str]:
    return re.findall(r'<option value="(\w+)"', html.partition('name="figure"')[2].partition("</select>")[0])


def test_people_who_see_costs_act_on_alerts_and_rules_of_costs_alone(personas: Personas, cost_alert):
    other = beside()
    client, where = personas.client("finance"), "/activity/alerts/"
    gone: dict[str, Any] = {"content_type": "application/json"}

    assert "Acknowledge</button>" in client.get(f"{where}{cost_alert.public_id}/").content.decode()
    assert client.post(f"{where}{cost_alert.public_id}/acknowledge/", {"note": "We look"}).status_code == 302
    cost_alert.refresh_from_db()
    assert (cost_alert.acknowledged_by, cost_alert.note) == ("Finance", "We look")
    rules = client.get(f"{where}rules/").content.decode()
    assert rules.count("Remove</a>") == AlertRule.objects.filter(figure__in=COST_FIGURES).count()
    assert options(client.get(f"{where}rules/new/").content.decode()) == COST_FIGURES
    assert client.post(f"{where}rules/new/", {**COST_RULE, "threshold": "9000"}).status_code == 302
    made = AlertRule.objects.get(name="Week")
    root = "/api/v1/alerts/rules"
    assert client.patch(f"{root}/{made.public_id}", {"threshold": 9500}, **gone).status_code == 200
    assert client.post(f"{where}silences/new/", {"rule": made.public_id, "until": "2099-01-01T00:00", "reason": "x"}).status_code == 422
    assert client.post("/api/v1/alerts/silences", {"rule": made.public_id, "minutes": 9, "reason": "Paid"}, **gone).status_code == 201
    assert client.post("/api/v1/alerts/silences", {"minutes": 9, "reason": "All"}, **gone).status_code == 403
    assert client.post(f"{root}/{made.public_id}/test", **gone).status_code == 204
    refused = client.patch(f"{root}/{made.public_id}", {"figure": "gap_percent"}, **gone)
    assert (refused.status_code, refused.json()["errors"]) == (
        422,
        [{"path": "figure", "message": "You may only watch costs. Choose one of gap_cost, cost_rise, cost_week."}],
    )
    for method, address, body in (
        ("patch", f"{root}/{other.public_id}", {"threshold": 30}),
        ("delete", f"{root}/{other.public_id}", None),
        ("post", f"{root}/{other.public_id}/test", None),
        ("post", "/api/v1/alerts/silences", {"rule": other.public_id, "minutes": 9, "reason": "x"}),
    ):
        assert getattr(client, method)(address, body, **gone).status_code == 403, (method, address)
    assert client.get(f"{where}rules/{other.public_id}/").status_code == 403
    assert client.delete(f"{root}/{made.public_id}").status_code == 204


def test_operators_without_costs_are_offered_no_figure_of_costs(personas: Personas, cost_alert):
    client = personas.client("operator")
    kind: dict[str, Any] = {"content_type": "application/json"}
    other = beside()

    offered = options(client.get("/activity/alerts/rules/new/").content.decode())
    assert "gap_percent" in offered and not set(offered) & set(COST_FIGURES)
    assert client.post("/activity/alerts/rules/new/", COST_RULE).status_code == 422
    refused = client.post("/api/v1/alerts/rules", COST_RULE, **kind)
    assert (refused.status_code, refused.json()["errors"]) == (422, [{"path": "figure", "message": "You cannot view costs. Choose another figure."}])
    assert client.patch(f"/api/v1/alerts/rules/{other.public_id}", {"figure": "gap_cost", "subject": ""}, **kind).status_code == 422
    assert client.get(f"/api/v1/alerts/{cost_alert.public_id}").status_code == 404
    assert "Cost doubles" not in client.get("/activity/alerts/silences/new/").content.decode()
    assert "Cost doubles" in personas.client("superuser").get("/activity/alerts/silences/new/").content.decode()
    assert not AlertRule.objects.filter(name="Week").exists()


def test_what_alerts_of_costs_say_is_on_the_activity_of_those_alone_who_see_these_costs(personas: Personas, cost_alert):
    alert_tell(cost_alert, FleetEvent.ALERT_FIRING, roles=[], now=NOON, news=News())
    whole = AlertRule.objects.create(public_id="ar-3", name="Idle cost", figure="gap_cost", threshold=100, clear_at=90)
    of_fleet = Alert.objects.create(public_id="al-gap", rule=whole, state="firing", value=705, worst=705, since=NOON, fired_at=NOON)
    alert_tell(of_fleet, FleetEvent.ALERT_FIRING, roles=[], now=NOON, news=News())
    nodes = Alert.objects.create(public_id="al-n", rule=beside(), subject="main", state="firing", value=25, worst=25, since=NOON, fired_at=NOON)
    alert_tell(nodes, FleetEvent.ALERT_FIRING, roles=[], now=NOON, news=News())

    every = {"Cost doubles (acme/research/nlp) fires", "Idle cost fires", "Nodes out (main) fires"}
    seen = {"superuser": every, "finance": every, "operator": {"Nodes out (main) fires"}, "viewer": {"Nodes out (main) fires"}}
    seen["team_lead"] = {"Cost doubles (acme/research/nlp) fires", "Nodes out (main) fires"}
    for who, titles in seen.items():
        client = personas.client(who)
        assert {one["title"] for one in client.get("/api/v1/activity").json()["items"]} == titles, who
        page = client.get("/activity/").content.decode()
        assert all((title in page) == (title in titles) for title in every), who


def test_a_token_that_only_reads_acts_on_no_costs(personas: Personas, cost_alert):
    address, client = f"/api/v1/alerts/{cost_alert.public_id}/acknowledge", Client()

    def answer(*scopes: str):
        secret = personas.token("finance", *scopes)
        return client.post(address, "{}", content_type="application/json", headers={"Authorization": f"Bearer {secret}"})

    assert answer("read").status_code == 403
    assert "it needs the scope admin" in answer("read").json()["detail"]
    assert answer("admin").status_code == 404, "it does not see costs"
    assert answer("read", "admin").status_code == 200


def test_team_leads_are_told_of_their_own_team_and_can_open_the_alert(personas: Personas, cost_alert):
    access = personas.access("superuser")
    alert_rule_change(access=access, rule=cost_alert.rule, values={"told": ["team_lead"]}, reason="", now=NOON)
    cost_alert.rule.refresh_from_db()
    person("above", role=Role.TEAM_LEAD, node=personas.nodes["acme/research"])
    person("beside", role=Role.TEAM_LEAD, node=personas.nodes["acme/product"])

    news = News()
    alert_tell(cost_alert, FleetEvent.ALERT_FIRING, roles=cost_alert.rule.told, now=NOON, news=news)
    told = {notice.user.username for notice in Notice.objects.filter(kind="alert")}
    assert told == {"team_lead", "above"}
    page = personas.client("team_lead").get(f"/activity/alerts/{cost_alert.public_id}/")
    assert page.status_code == 200 and "Acknowledge</button>" not in page.content.decode()
    assert personas.client("team_lead").post(f"/activity/alerts/{cost_alert.public_id}/acknowledge/").status_code == 403
    for name in ("viewer", "operator"):
        assert personas.client(name).get(f"/activity/alerts/{cost_alert.public_id}/").status_code == 404, name
    others = Alert.objects.create(public_id="al-o", rule=cost_alert.rule, subject="acme/product", state="firing", value=3, worst=3, since=NOON)
    Alert.objects.filter(pk=others.pk).update(fired_at=NOON)
    assert personas.client("team_lead").get("/activity/alerts/al-o/").status_code == 404

    with pytest.raises(ValidationError) as faults:
        alert_rule_change(access=access, rule=beside(), values={"told": ["team_lead"]}, reason="", now=NOON)
    assert faults.value.message_dict == {"told": ["Team leads are told of figures of a team. Choose another role."]}
