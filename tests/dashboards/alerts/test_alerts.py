"""Alerts: window and hysteresis, who is told, acknowledged, silenced, escalated; and how they end."""

import json
from datetime import timedelta

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from hypothesis import given
from hypothesis import strategies as st

from dashboards.alerts.figures import FIGURES, figures_now
from dashboards.alerts.judging import Limits, begun, gone_on
from dashboards.alerts.leads import leads_of
from dashboards.alerts.models import Alert, AlertRule
from dashboards.alerts.round import alerts_round, said
from dashboards.alerts.selectors import AlertRow
from dashboards.alerts.services import alert_acknowledge, alert_rule_create, alert_rule_test, silence_create
from dashboards.health.models import Incident
from dashboards.idle.models import IdleEpisode
from dashboards.models import ActivityEntry
from dashboards.prometheus.models import PrometheusServer
from dashboards.slo.models import ServiceBreach
from gpufleet.core.templatetags.shell import duration
from quotas.models import Budget
from scheduler.models import Attempt, CapacityEntry, Delivery, Health, JobState, Notice, Scaling, WorkerState
from tests import builders
from tests.builders import NOON
from tests.dashboards.alert_worlds import rule, sick, silenced_rule, used_up
from tests.dashboards.worlds import gpus_of
from tests.personas import Personas

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


def test_an_alert_fires_after_its_window_and_tells_people_and_webhooks(pool, personas: Personas):
    rule()
    builders.webhook(builders.quota(), kinds=["alert.firing", "alert.resolved"])
    builders.webhook(personas.nodes["acme/research"], kinds=["alert.firing"], name="Not theirs")
    builders.webhook(builders.quota(), kinds=["alert.firing"], form="slack", name="Chat")
    sick(pool[:1])
    assert alerts_round(now=NOON).fired == 0
    assert Alert.objects.get().state == "pending"

    assert alerts_round(now=NOON + 5 * MINUTE).fired == 1
    alert = Alert.objects.get()
    assert (alert.subject, alert.value) == ("main", 25.0)
    assert [notice.user.username for notice in Notice.objects.filter(kind="alert")] == ["operator"]
    first, second = Delivery.objects.order_by("pk")
    assert json.loads(first.body)["subject"]["figure"] == "nodes_out"
    assert json.loads(second.body)["text"].startswith("*Nodes out (main) fires*\nNodes out of service: 25%, limit 20%")
    assert alerts_round(now=NOON + 6 * MINUTE).fired == 0

    sick(pool[:1], Health.HEALTHY)
    alerts_round(now=NOON + 7 * MINUTE)
    assert Alert.objects.get().state == "firing"
    assert alerts_round(now=NOON + 12 * MINUTE).resolved == 1
    assert list(ActivityEntry.objects.order_by("pk").values_list("kind", flat=True)) == ["alert.firing", "alert.resolved"]


def test_an_alert_of_an_incident_tells_its_cause(pool, personas: Personas):
    """In the texts of webhooks and notices: whoever is woken up reads what is wrong."""
    rule(name="Incident", figure="incidents", threshold=1, clear_at=0, for_minutes=0)
    builders.webhook(builders.quota(), kinds=["alert.firing"], form="slack", name="Chat")
    builders.webhook(builders.quota(), kinds=["alert.firing"])
    node, other = builders.node("sick"), builders.node("well")
    for number, (on, title, closed) in enumerate(((node, "Fan failed", NOON), (node, "XID 79 on GPU 3.", None), (other, "Hot", NOON))):
        at = NOON + number * MINUTE
        Incident.objects.create(public_id=f"in-{number}", node=on, opened_at=at, closed_at=closed and at, title=title)

    assert alerts_round(now=NOON + 5 * MINUTE).fired == 1

    chat, generic = (json.loads(one.body) for one in Delivery.objects.order_by("hook__name", "pk"))
    assert "UTC. Cause: XID 79 on GPU 3." in chat["text"]
    assert (generic["subject"]["incident"], generic["subject"]["cause"]) == ("in-1", "XID 79 on GPU 3.")
    assert Notice.objects.get(kind="alert").text.endswith("Cause: XID 79 on GPU 3.")


def test_a_moment_beyond_the_limit_leaves_no_trace(pool):
    rule()
    sick(pool[:1])
    alerts_round(now=NOON)
    sick(pool[:1], Health.HEALTHY)
    alerts_round(now=NOON + MINUTE)

    assert (Alert.objects.count(), ActivityEntry.objects.count()) == (0, 0)


def test_an_acknowledged_alert_is_not_escalated_and_another_is(pool, personas: Personas):
    rule(for_minutes=0, escalate_minutes=10, escalate_to=["superuser"])
    sick(pool[:2])
    alerts_round(now=NOON)
    alert = Alert.objects.get()
    with pytest.raises(PermissionDenied):
        alert_acknowledge(access=personas.access("viewer"), alert=alert, now=NOON)
    assert alerts_round(now=NOON + 11 * MINUTE).escalated == 1
    assert alerts_round(now=NOON + 12 * MINUTE).escalated == 0
    assert set(Notice.objects.filter(title__endswith="is not acknowledged").values_list("user__username", flat=True)) == {"operator", "superuser"}

    Alert.objects.update(escalated_at=None)
    alert_acknowledge(access=personas.access("operator"), alert=alert, note="On it.", now=NOON + 13 * MINUTE)
    assert alerts_round(now=NOON + 30 * MINUTE).escalated == 0


def test_a_silence_lists_the_alert_and_tells_nobody(pool, personas: Personas):
    one = rule(for_minutes=0)
    builders.webhook(builders.quota(), kinds=["alert.firing", "alert.resolved"])
    access = personas.access("operator")
    with pytest.raises(ValidationError):
        silence_create(access=access, reason="", until=NOON + timedelta(days=90), now=NOON)
    silence_create(access=access, rule=one, reason="Planned work.", until=NOON + timedelta(hours=1), now=NOON)
    sick(pool[:2])

    alerts_round(now=NOON)
    sick(pool[:2], Health.HEALTHY)
    alerts_round(now=NOON + MINUTE)
    alerts_round(now=NOON + 2 * MINUTE)

    assert Alert.objects.get().silenced
    assert (Delivery.objects.count(), Notice.objects.count()) == (0, 0)


def test_an_alert_that_outlasts_its_silence_is_told_when_that_ends(pool, personas: Personas):
    silenced_rule(personas, for_minutes=0, escalate_minutes=30, escalate_to=["superuser"])
    sick(pool[:2])
    for minutes in (0, 59):
        alerts_round(now=NOON + minutes * MINUTE)
    assert (Delivery.objects.count(), Notice.objects.count()) == (0, 0)

    for minutes in (60, 61, 89):
        alerts_round(now=NOON + minutes * MINUTE)
    assert [delivery.kind for delivery in Delivery.objects.all()] == ["alert.firing"]
    assert Notice.objects.count() == 1
    assert alerts_round(now=NOON + 90 * MINUTE).escalated == 1
    sick(pool[:2], Health.HEALTHY)
    for minutes in (92, 93):
        alerts_round(now=NOON + minutes * MINUTE)
    assert [delivery.kind for delivery in Delivery.objects.order_by("pk")] == ["alert.firing", "alert.escalated", "alert.resolved"]


def test_an_alert_that_is_about_to_end_with_its_silence_is_told_only_if_it_comes_back(pool, personas: Personas):
    silenced_rule(personas, for_minutes=10)
    sick(pool[:2])
    for minutes in (0, 10):
        alerts_round(now=NOON + minutes * MINUTE)
    sick(pool[:2], Health.HEALTHY)
    for minutes in (55, 61):
        alerts_round(now=NOON + minutes * MINUTE)
    assert Alert.objects.get().state == "firing"
    assert Delivery.objects.count() == 0

    sick(pool[:2])
    alerts_round(now=NOON + 62 * MINUTE)
    assert [delivery.kind for delivery in Delivery.objects.all()] == ["alert.firing"]


def test_nobody_hears_that_nobody_acknowledged_what_nobody_was_told_of(pool, personas: Personas):
    """Its silence ends while the figure is back within its limit, long after it fired."""
    silenced_rule(personas, for_minutes=10, escalate_minutes=15, escalate_to=["superuser"])
    sick(pool[:2])
    for minutes in (0, 10):
        alerts_round(now=NOON + minutes * MINUTE)
    sick(pool[:2], Health.HEALTHY)
    for minutes in (55, 61, 66):
        alerts_round(now=NOON + minutes * MINUTE)

    assert Alert.objects.get().state == "resolved"
    assert (Delivery.objects.count(), Notice.objects.count()) == (0, 0)


def test_a_rule_is_checked_told_of_and_tried(personas: Personas):
    access = personas.access("operator")
    wrong = {"name": "x", "figure": "gap_percent", "threshold": 10, "clear_at": 20, "told": ["viewer"], "escalate_minutes": 5}
    with pytest.raises(ValidationError) as faults:
        alert_rule_create(access=access, values=wrong, reason="", now=NOON)
    assert set(faults.value.message_dict) == {"told", "escalate_to", "clear_at"} or "told" in faults.value.message_dict
    hook = builders.webhook(personas.nodes["acme/product"], kinds=["job.failed"])
    made = alert_rule_create(
        access=access, values=wrong | {"clear_at": 5, "told": ["operator"], "escalate_minutes": None}, hooks=[hook], reason="", now=NOON
    )
    alert_rule_test(access=access, rule=made, now=NOON)

    assert Delivery.objects.get().hook == hook
    assert Alert.objects.count() == 0
    assert Notice.objects.get().title == "Test of the alert rule x"


def test_an_alert_of_a_budget_that_is_removed_ends_with_the_reason(personas: Personas):
    """So does one of a budget whose own period is over. A budget of another node says nothing of it."""
    rule(figure="budget_percent", threshold=90, clear_at=80, for_minutes=5, told=["operator"])
    builders.webhook(builders.quota(), kinds=["alert.resolved"])
    nlp, vision = personas.nodes["acme/research/nlp"], personas.nodes["acme/research/vision"]
    budgets = [used_up(node) for node in (nlp, vision)]
    for minute in (0, 5):
        alerts_round(now=NOON + minute * MINUTE)
    assert Alert.objects.filter(state="firing").count() == 2
    for _ in range(2):
        assert alerts_round(now=NOON + 6 * MINUTE).resolved == 0

    Budget.objects.filter(pk=budgets[0].pk).update(removed_at=NOON + 7 * MINUTE)
    assert alerts_round(now=NOON + 7 * MINUTE).resolved == 1

    alert = Alert.objects.get(resolved_at__isnull=False)
    assert (alert.subject, alert.note) == (nlp.path, "The budget was removed, or its period is over.")
    told = Notice.objects.get(title__endswith="is over")
    assert told.text.startswith("The budget was removed, or its period is over. Budget used:")
    assert json.loads(Delivery.objects.get().body)["subject"]["note"] == alert.note
    assert "The budget was removed" in personas.client("operator").get(f"/activity/alerts/{alert.public_id}/").content.decode()
    assert Alert.objects.get(subject=vision.path).state == "firing"


@pytest.mark.parametrize(("before", "after"), [("", "*"), ("*", ""), ("*", "main"), ("main", "spot")])
def test_an_alert_about_what_its_rule_does_not_watch_any_more_ends(personas: Personas, before, after):
    """As after an upgrade, where the first rules on incidents watch each node. Nobody is told that it was over, as it may not be."""
    for pool in (builders.pool(), builders.pool("spot")):
        builders.node(gpus=1, pool=pool, health="down")
    watched = rule(subject=before, for_minutes=0)
    fired = alerts_round(now=NOON).fired
    old = list(Alert.objects.values_list("pk", flat=True))
    told = Notice.objects.count()
    AlertRule.objects.update(subject=after, for_minutes=5)

    alerts_round(now=NOON + MINUTE)

    kept = Alert.objects.filter(pk__in=old, subject=after)
    over = Alert.objects.filter(pk__in=old).exclude(subject=after)
    assert (fired, len(old)) == (len(old), 2 if before == "*" else 1)
    assert over and set(over.values_list("state", "resolved_at", "note")) == {("resolved", NOON + MINUTE, "The rule no longer watches it.")}
    assert all(alert.resolved_at is None for alert in kept)
    assert Notice.objects.count() == told
    named = {"main", "spot"} if after == "*" else {after}
    assert set(Alert.objects.filter(rule=watched, resolved_at=None).values_list("subject", flat=True)) == named


def test_an_alert_ends_when_its_figure_falls_to_nothing(personas: Personas):
    """By GPU type, by team, and by pool: what is counted is 0 where there is none, and no pool that is gone has nodes that are out."""
    node = builders.node(gpus=2, pool=builders.pool("spot"), health="down")
    for gpu in gpus_of(node):
        CapacityEntry.objects.create(gpu=gpu, since=NOON, blocked_milli=1000)
    job = builders.job(state=JobState.RUNNING, on=personas.nodes["acme/research/nlp"])
    sizes = {"waste": "low", "held_milli": 2000, "idle_milli": 2000, "activity_centi": 0, "started_at": NOON, "seen_at": NOON, "stage_at": NOON}
    IdleEpisode.objects.create(public_id="e-1", job=job, attempt=builders.attempt(job), quota=job.quota, **sizes)
    AlertRule.objects.all().delete()
    for number, figure in enumerate(("fragmented_gpus", "idle_gpus", "nodes_out")):
        limits = {"threshold": 2, "clear_at": 1, "for_minutes": 0, "told": ["operator"]}
        AlertRule.objects.create(public_id=f"ar-{number}", name=figure, figure=figure, subject="*", **limits)
    assert alerts_round(now=NOON).fired == 3
    assert set(Alert.objects.values_list("subject", flat=True)) == {"H100-SXM-80GB", job.quota.path, "spot"}

    CapacityEntry.objects.update(until=NOON + MINUTE)
    IdleEpisode.objects.update(ended_at=NOON)
    type(node).objects.update(removed_at=NOON)

    assert alerts_round(now=NOON + MINUTE).resolved == 3
    assert figures_now(now=NOON, wanted=["idle_gpus"])["idle_gpus"][job.quota.path] == 0


@given(st.lists(st.one_of(st.none(), st.floats(0, 100, allow_nan=False)), max_size=60), st.floats(1, 99), st.floats(0, 1), st.integers(0, 10))
def test_an_alert_fires_only_beyond_its_limit_and_never_ends_above_where_it_is_over(values, threshold, part, window):
    limits = Limits(threshold, threshold * part, window * MINUTE)
    state, beyond_since = None, None
    for minute, value in enumerate(values):
        now = NOON + minute * MINUTE
        before = state.state if state else ""
        state = begun(limits, value, now) if state is None and value is not None else gone_on(state, limits, value, now) if state else None
        if value is not None:
            beyond_since = (beyond_since if beyond_since is not None else now) if value >= threshold else None
        if state and state.state == "firing" and before != "firing":
            assert beyond_since is not None and now - beyond_since >= limits.window
        if state and state.state == "resolved":
            assert value is not None and (value < limits.clear_at or before == "pending")
            state = None


def test_an_alert_leads_to_what_it_is_about(personas: Personas):
    """Each address opens, and the pages that a reader may not open are not offered."""
    node = builders.node("node-1")
    incident = Incident.objects.create(public_id="in-1", node=node, opened_at=NOON, title="GPU 3 has fallen off the bus")
    PrometheusServer.objects.create(public_id="ps-1", name="main", url="https://prometheus.example.org")
    service = builders.job("chat", on=personas.nodes["acme/research/nlp"])
    ServiceBreach.objects.create(job=service, since=NOON, objective_ms=250, worst_ms=300)
    Scaling.objects.create(job=service, role="server", at=NOON, before=1, after=2, stood=1, actor_name="Ada")
    run = Attempt.objects.create(job=service, number=1)
    for worker in range(2):
        WorkerState.objects.create(attempt=run, role="server", worker=worker, ready=False, since=NOON)
    subjects = {
        "gap_percent": "H100-SXM-80GB",
        "gap_cost": "",
        "fragmented_gpus": "H100-SXM-80GB",
        "queue_wait": "batch",
        "queue_gpus": "",
        "floor_gap": "acme/research",
        "guarantee_shortage": "H100-SXM-80GB",
        "budget_percent": "acme/research",
        "nodes_out": "No pool",
        "incidents": f"{node.cluster.name}/node-1",
        "stragglers": f"{node.cluster.name}/node-1",
        "idle_gpus": "acme/research",
        "service_breaches": "acme/research",
        "scale_ups_late": "acme/research",
        "replicas_not_ready": "acme/research",
        "telemetry_age": node.cluster.name,
        "scheduler_overdue": "",
    }
    operator = personas.client("operator")
    for figure, subject in [*subjects.items(), ("telemetry_age", "Prometheus main")]:
        watched = rule(figure=figure, subject=subject)
        alert = Alert.objects.create(
            public_id=f"al-{watched.pk}", rule=watched, subject=subject, since=NOON, state="firing", value=2, worst=2, fired_at=NOON
        )
        found = leads_of(personas.access("operator"), alert)
        assert found, figure
        page = operator.get(f"/activity/alerts/{alert.public_id}/").content.decode()
        for lead in found:
            assert f'href="{lead.address.replace("&", "&amp;")}"' in page
            assert operator.get(lead.address).status_code == 200, lead
        if figure == "incidents":
            assert [lead.address for lead in found] == [f"/incidents/{incident.public_id}/", f"/nodes/{node.public_id}/"]
            # What happened is told before anybody opens the incident.
            for address in (f"/activity/alerts/{alert.public_id}/", "/activity/alerts/", "/home/on-call/"):
                assert "GPU 3 has fallen off the bus" in operator.get(address).content.decode(), address
        if subject.startswith("Prometheus"):
            assert leads_of(personas.access("viewer"), alert) == []
    assert subjects.keys() == FIGURES.keys() - {"cost_rise", "cost_week"}, "those lead to their report"


@pytest.mark.parametrize(
    ("figure", "value", "limit", "words"),
    [
        ("incidents", 0.0, 1.0, "Open incidents: 0, limit 1,"),
        ("queue_wait", 1530.2, 90.0, f"Longest wait in the queue: {duration(91_800)}, limit 90 min,"),
        ("guarantee_shortage", 3.0, 1.0, "Guaranteed GPUs beyond the healthy ones: 3 GPUs, limit 1 GPU,"),
        ("gap_percent", 48.24, 45.0, "Idle share of allocated GPUs: 48.2%, limit 45%,"),
        ("gap_cost", 2_500_000.5, 1_000_000.0, "Cost of idle allocated GPUs: 2,500,000.5 per hour, limit 1,000,000 per hour,"),
    ],
)
def test_messages_and_pages_tell_a_value_alike(figure, value, limit, words):
    alert = Alert(rule=AlertRule(figure=figure, threshold=limit), value=value, since=NOON)

    assert said(alert) == f"{words} since 2026-11-20 12:00 UTC."
    assert f"{AlertRow(alert).value_told}, limit {AlertRow(alert).limit_told}," in words
