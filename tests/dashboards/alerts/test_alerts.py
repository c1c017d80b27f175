"""Alerts: window and hysteresis, who is told, acknowledged, silenced, escalated; and that what is not known fires nothing."""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from dashboards.alerts.figures import FIGURES, figures_now
from dashboards.alerts.judging import Limits, begun, gone_on
from dashboards.alerts.leads import leads_of
from dashboards.alerts.models import Alert, AlertRule
from dashboards.alerts.round import alert_tell, alerts_round
from dashboards.alerts.services import alert_acknowledge, alert_rule_change, alert_rule_create, alert_rule_test, silence_create
from dashboards.health.models import Incident
from dashboards.idle.models import IdleEpisode
from dashboards.models import ActivityEntry
from dashboards.prometheus.models import PrometheusServer
from gpufleet.core.live.news import News
from quotas.models import Budget, BudgetDay, ChargeLine, ChargeMonth, NodeKind, QuotaNode, QuotaShare, Role
from scheduler.models import CapacityEntry, Delivery, Health, JobState, Notice
from scheduler.notify.happenings import FleetEvent
from tests import builders
from tests.builders import NOON
from tests.dashboards.worlds import gpus_of, readings
from tests.personas import Personas, person

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


def rule(**fields):
    AlertRule.objects.all().delete()
    facts = {"name": "Nodes out", "figure": "nodes_out", "subject": "*", "threshold": 20, "clear_at": 10, "for_minutes": 5, "told": ["operator"]}
    return AlertRule.objects.create(public_id="ar-1", **(facts | fields))


@pytest.fixture
def pool(personas: Personas):
    return [builders.node(gpus=1, pool=builders.pool()) for _ in range(4)]


def silenced_rule(personas: Personas, **fields):
    """Silenced for an hour from noon; a webhook of the top hears all of its alerts."""
    one = rule(**fields)
    builders.webhook(builders.quota(), kinds=["alert.firing", "alert.resolved", "alert.escalated"])
    silence_create(access=personas.access("operator"), rule=one, reason="Planned work.", until=NOON + timedelta(hours=1), now=NOON)


def used_up(node: QuotaNode) -> Budget:
    """A budget of which nothing is left."""
    budget = Budget.objects.create(public_id=f"b-{node.pk}", name="Month", quota=node, unit="gpu_hours", amount=1000, period="month")
    BudgetDay.objects.create(budget=budget, day=(NOON - timedelta(days=1)).date(), milli_millis=2 * 3_600_000_000)
    Budget.objects.filter(pk=budget.pk).update(period_start=datetime(2026, 11, 1, tzinfo=UTC), counted_to=NOON.replace(hour=0))
    return budget


def sick(nodes, health=Health.DOWN):
    for node in nodes:
        node.health = health
        node.save()


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
    assert json.loads(second.body)["text"].startswith("*Nodes out (main) fires*\nNodes out of service: 25.0%")
    assert alerts_round(now=NOON + 6 * MINUTE).fired == 0

    sick(pool[:1], Health.HEALTHY)
    alerts_round(now=NOON + 7 * MINUTE)
    assert Alert.objects.get().state == "firing"
    assert alerts_round(now=NOON + 12 * MINUTE).resolved == 1
    assert list(ActivityEntry.objects.order_by("pk").values_list("kind", flat=True)) == ["alert.firing", "alert.resolved"]


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


def test_what_is_not_known_neither_fires_nor_ends(personas: Personas):
    gpus = gpus_of(builders.node(gpus=2))
    for gpu in gpus:
        builders.placement(builders.job(state=JobState.RUNNING), gpu)
    rule(figure="gap_percent", subject="", threshold=50, clear_at=40, for_minutes=0)
    readings(dict.fromkeys(gpus, 0), at=NOON)
    assert alerts_round(now=NOON).fired == 1

    for minute in (10, 20, 30):  # the source is stale by then
        alerts_round(now=NOON + minute * MINUTE)
    assert Alert.objects.get().state == "firing"
    readings(dict.fromkeys(gpus, 90), at=NOON + 40 * MINUTE)
    alerts_round(now=NOON + 40 * MINUTE)
    assert alerts_round(now=NOON + 41 * MINUTE).resolved == 1 or Alert.objects.get().state == "resolved"


@pytest.mark.parametrize(("figure", "threshold"), [("gap_percent", 50), ("gap_cost", 1)])
def test_an_idle_share_ends_with_the_allocations_whether_readings_are_there_or_not(personas: Personas, figure, threshold):
    gpus = gpus_of(builders.node(gpus=2))
    builders.rate(gpus[0].gpu_type_id, since=NOON - timedelta(days=1), micros=2_000_000)
    held = [builders.placement(builders.job(state=JobState.RUNNING), gpu) for gpu in gpus]
    rule(figure=figure, subject="", threshold=threshold, clear_at=threshold, for_minutes=0)
    readings(dict.fromkeys(gpus, 0), at=NOON)
    assert alerts_round(now=NOON).fired == 1

    for placement in held:
        type(placement).objects.filter(pk=placement.pk).update(until=NOON)

    assert alerts_round(now=NOON + 10 * MINUTE).resolved == 1


def test_an_alert_on_a_gpu_type_ends_when_its_last_gpu_is_gone(personas: Personas):
    node = builders.node(gpus=2)
    for gpu in gpus_of(node):
        builders.placement(builders.job(state=JobState.RUNNING), gpu)
    rule(figure="gap_percent", subject="*", threshold=50, clear_at=40, for_minutes=0)
    readings(dict.fromkeys(gpus_of(node), 0), at=NOON)
    assert alerts_round(now=NOON).fired == 1

    type(node).objects.update(removed_at=NOON)

    assert alerts_round(now=NOON + MINUTE).resolved == 1


def test_a_cluster_whose_last_node_was_removed_is_silent_for_no_time(personas: Personas):
    old, other = builders.node(gpus=1), builders.node(gpus=1, of=builders.cluster("south"))
    rule(figure="telemetry_age", threshold=60, clear_at=30, for_minutes=0, severity="critical")
    for node in (old, other):
        readings(dict.fromkeys(gpus_of(node), 10), at=NOON)
    assert alerts_round(now=NOON + 2 * MINUTE).fired == 2

    type(old).objects.filter(pk=old.pk).update(removed_at=NOON + 3 * MINUTE)
    alerts_round(now=NOON + 4 * MINUTE)

    assert list(Alert.objects.filter(resolved_at=None).values_list("subject", flat=True)) == ["south"]
    assert figures_now(now=NOON + 4 * MINUTE, wanted=["telemetry_age"])["telemetry_age"] == {"": 240.0, "north": 0.0, "south": 240.0}


def test_stale_telemetry_is_told_within_a_minute(personas: Personas):
    gpus = gpus_of(builders.node(gpus=2))
    rule(figure="telemetry_age", threshold=60, clear_at=30, for_minutes=0, severity="critical")
    readings(dict.fromkeys(gpus, 10), at=NOON)
    assert alerts_round(now=NOON + timedelta(seconds=45)).fired == 0

    assert alerts_round(now=NOON + timedelta(seconds=61)).fired == 1
    assert Alert.objects.get().subject == "north"


def test_one_silent_server_is_told_where_another_source_speaks_for_the_rest_of_its_cluster(personas: Personas):
    gpus = gpus_of(builders.node(gpus=2))
    rule(figure="telemetry_age", threshold=60, clear_at=30, for_minutes=0, severity="critical")
    readings(dict.fromkeys(gpus, 10), at=NOON + timedelta(seconds=60))
    seen = {"enabled": True, "url": "http://127.0.0.1:1", "changed_at": NOON - timedelta(days=1)}
    for name, seconds in (("main", 60), ("silent", 0)):
        PrometheusServer.objects.create(public_id=f"ps-{name}", name=name, read_at=NOON + timedelta(seconds=seconds), **seen)
    PrometheusServer.objects.create(public_id="ps-off", name="off", read_at=NOON - timedelta(hours=1), **{**seen, "enabled": False})
    PrometheusServer.objects.create(public_id="ps-new", name="new", **{**seen, "changed_at": NOON + timedelta(seconds=30)})

    assert alerts_round(now=NOON + timedelta(seconds=61)).fired == 1
    assert Alert.objects.get().subject == "Prometheus silent"

    PrometheusServer.objects.filter(name="silent").update(enabled=False)
    for seconds in (75, 90):
        alerts_round(now=NOON + timedelta(seconds=seconds))
    assert Alert.objects.get(subject="Prometheus silent").resolved_at is not None, "nobody waits for a server that is switched off"


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


def test_every_figure_can_be_read_in_an_empty_console_and_in_one_with_work(personas: Personas, django_assert_max_num_queries):
    assert set(figures_now(now=NOON)) <= set(FIGURES)
    team = personas.nodes["acme/research/nlp"]
    QuotaShare.objects.create(node=team, gpu_type="H100-SXM-80GB", guaranteed_milli=8000)
    builders.job(on=team, gpus_milli=4000, spec={"roles": [{"gpu_types": ["H100-SXM-80GB"]}]}, submitted_at=NOON - 30 * MINUTE)
    Incident.objects.create(public_id="in-1", node=builders.node(gpus=1), opened_at=NOON, title="Test")
    with django_assert_max_num_queries(28):
        found = figures_now(now=NOON)

    assert found["floor_gap"][team.path] == 4.0
    assert found["queue_wait"]["batch"] == 30.0
    assert found["incidents"][""] == 1.0


A100, H100, B200 = "A100-SXM-80GB", "H100-SXM-80GB", "B200-SXM-180GB"


@pytest.mark.parametrize(
    ("waiting", "gap"),
    [
        ([(32, None)], 32),
        ([(32, [A100, H100])], 32),
        ([(32, [H100])], 32),
        ([(32, [A100])], 0),
        ([(64, None)], 40),
        ([(24, [H100, B200]), (8, [B200])], 32),
        ([(40, [H100, B200]), (8, [B200])], 40),
        ([(4, None)], 4),
    ],
)
def test_a_guarantee_is_waited_for_by_whoever_accepts_its_type(personas: Personas, waiting, gap):
    """32 H100 and 8 B200 are guaranteed. Nothing counts twice."""
    team = personas.nodes["acme/research/nlp"]
    QuotaShare.objects.create(node=team, gpu_type=H100, guaranteed_milli=32_000)
    QuotaShare.objects.create(node=team, gpu_type=B200, guaranteed_milli=8_000)
    for gpus, types in waiting:
        builders.job(on=team, gpus_milli=1000 * gpus, spec={"roles": [{"min": 1, "gpus": gpus} | ({"gpu_types": types} if types else {})]})

    assert figures_now(now=NOON, wanted=["floor_gap"])["floor_gap"][team.path] == gap


@pytest.mark.parametrize(("types", "gap"), [([A100], 0), ([H100], 16)])
def test_a_role_without_gpus_accepts_no_type_of_them(personas: Personas, types, gap):
    team = personas.nodes["acme/research/nlp"]
    QuotaShare.objects.create(node=team, gpu_type=H100, guaranteed_milli=32_000)
    roles = [{"name": "driver", "min": 1, "cpu": 4}, {"name": "worker", "min": 2, "gpus": 8, "gpu_types": types}]
    builders.job(on=team, gpus_milli=16_000, spec={"roles": roles})

    assert figures_now(now=NOON, wanted=["floor_gap"])["floor_gap"][team.path] == gap


def test_idle_gpus_of_a_team_are_those_of_its_projects_too(personas: Personas):
    team = personas.nodes["acme/research/nlp"]
    project = builders.quota(parent=team, name="eval", kind=NodeKind.PROJECT)
    for number, quota in enumerate((team, project)):
        job = builders.job(state=JobState.RUNNING, on=quota)
        sizes = {"waste": "low", "held_milli": 2000, "idle_milli": 2000, "activity_centi": 0, "started_at": NOON, "seen_at": NOON, "stage_at": NOON}
        IdleEpisode.objects.create(public_id=f"e-{number}", job=job, attempt=builders.attempt(job), quota=quota, **sizes)

    found = figures_now(now=NOON, wanted=["idle_gpus"])["idle_gpus"]
    assert (found[""], found[team.path], project.path in found) == (4, 4, False)


def test_each_incident_is_told_while_another_is_open(personas: Personas):
    """Also where two clusters have a node of the same name."""
    rule(figure="incidents", threshold=1, clear_at=1, for_minutes=0)
    nodes = [builders.node("node-1"), builders.node("node-2"), builders.node("node-1", of=builders.cluster("south"))]
    for minute, node in enumerate(nodes):
        Incident.objects.create(public_id=f"in-{minute}", node=node, opened_at=NOON, title="Test")
        assert alerts_round(now=NOON + minute * MINUTE).fired == 1
        assert Notice.objects.filter(user__username="operator").count() == minute + 1

    assert set(Alert.objects.values_list("subject", flat=True)) == {"north/node-1", "north/node-2", "south/node-1"}
    Incident.objects.filter(node=nodes[0]).update(closed_at=NOON)
    assert alerts_round(now=NOON + 4 * MINUTE).resolved == 1
    assert figures_now(now=NOON, wanted=["incidents"])["incidents"] == {"": 2.0, "north/node-2": 1.0, "south/node-1": 1.0}


def test_alerts_that_go_on_as_they_are_cost_a_round_nothing(personas: Personas):
    rule(figure="incidents", threshold=1, clear_at=1, for_minutes=0)
    queries = []
    for count in (1, 9):
        for number in range(count):
            Incident.objects.create(public_id=f"in-{count}-{number}", node=builders.node(f"node-{count}-{number}"), opened_at=NOON, title="Test")
        assert alerts_round(now=NOON + count * MINUTE).fired == count
        with CaptureQueriesContext(connection) as asked:
            alerts_round(now=NOON + (count + 1) * MINUTE)
        queries.append(len(asked))
    assert queries[0] == queries[1]
    assert Alert.objects.filter(state="firing").count() == 10


def test_two_hundred_alerts_cost_a_round_as_many_queries_as_twenty(personas: Personas):
    """As they fire, are escalated, change and end. Chats and people get one message that lists them; programs get one of each."""
    watched = rule(figure="incidents", threshold=1, clear_at=1, for_minutes=0, escalate_minutes=10, escalate_to=["superuser"])
    kinds = ["alert.firing", "alert.escalated", "alert.resolved"]
    for name, form in (("Program", "json"), ("Chat", "slack")):
        builders.webhook(builders.quota(), kinds=kinds, name=name, form=form)
    watched.hooks.add(builders.webhook(personas.nodes["acme/product"], kinds=["job.failed"], name="Chosen"))
    nodes = [builders.node(f"node-{number}") for number in range(200)]

    def turn(at: timedelta) -> tuple[int, tuple[int, ...]]:
        """Queries, and who was told how often."""
        Delivery.objects.all().delete()
        Notice.objects.all().delete()
        with CaptureQueriesContext(connection) as asked:
            done = alerts_round(now=NOON + at)
        messages = [Delivery.objects.filter(hook__name=name).count() for name in ("Program", "Chat", "Chosen")]
        return len(asked), (done.fired, done.escalated, done.resolved, *messages, Notice.objects.count())

    found = []
    for count in (20, 200):
        start = count * timedelta(hours=1)
        opened = [Incident(public_id=f"in-{count}-{node.pk}", node=node, opened_at=NOON, title="Test") for node in nodes[:count]]
        Incident.objects.bulk_create(opened)
        turns = [turn(start)]
        chat, notice = json.loads(Delivery.objects.get(hook__name="Chat").body)["text"], Notice.objects.get()
        assert chat.startswith(f"*{count} alerts fire*\n• <") and chat.count("|Nodes out (north/node-") == count
        assert (notice.user.username, notice.title, notice.count) == ("operator", f"{count} alerts", count)
        assert notice.text.endswith(f"fires and {count - 3} more.")
        turns.append(turn(start + 11 * MINUTE))
        Alert.objects.update(value=7)
        turns.append(turn(start + 12 * MINUTE))
        Incident.objects.all().delete()
        turns.append(turn(start + 13 * MINUTE))
        told = [(count, 0, 0, count, 1, count, 1), (0, count, 0, count, 1, count, 2), (0, 0, 0, 0, 0, 0, 0), (0, 0, count, count, 1, count, 1)]
        assert [one for _, one in turns] == told
        found.append([queries for queries, _ in turns])

    assert found[0] == found[1]
    assert Alert.objects.filter(state="resolved").values("public_id").distinct().count() == 220


def test_a_few_alerts_are_told_one_by_one_to_people_and_as_one_list_to_chats(pool, personas: Personas):
    rule(figure="incidents", threshold=1, clear_at=1, for_minutes=0)
    builders.webhook(builders.quota(), kinds=["alert.firing", "alert.resolved"], form="slack", name="Chat")
    for number, node in enumerate(pool[:2]):
        Incident.objects.create(public_id=f"in-{number}", node=node, opened_at=NOON, title="Test")
    alerts_round(now=NOON)

    assert sorted(Notice.objects.values_list("title", flat=True)) == [f"Nodes out (north/{node.name}) fires" for node in pool[:2]]
    text = json.loads(Delivery.objects.get().body)["text"]
    assert text.startswith("*2 alerts fire*\n• <")
    page = personas.client("operator").get(f"/activity/alerts/{Alert.objects.order_by('pk')[1].public_id}/").content.decode()
    assert "Chat" in page, "the message is listed with each alert that it tells of"

    Incident.objects.filter(node=pool[0]).delete()
    Incident.objects.create(public_id="in-2", node=pool[2], opened_at=NOON, title="Test")
    alerts_round(now=NOON + MINUTE)
    said = json.loads(Delivery.objects.latest("pk").body)["text"].splitlines()[0]
    assert said == "*1 alert is over, 1 alert fires*"


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


def test_nodes_without_a_pool_are_a_subject_of_their_own(personas: Personas):
    for number in range(10):
        builders.node(gpus=1, health="down" if number else "healthy")
    builders.node(gpus=1, pool=builders.pool())
    rule(for_minutes=0)

    assert alerts_round(now=NOON).fired == 1
    alert = Alert.objects.get()
    assert (alert.subject, alert.value) == ("No pool", 90.0)
    assert set(figures_now(now=NOON, wanted=["nodes_out"])["nodes_out"]) == {"", "main", "No pool"}


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


def test_an_alert_leads_to_what_it_is_about(personas: Personas):
    """Each address opens, and the pages that a reader may not open are not offered."""
    node = builders.node("node-1")
    incident = Incident.objects.create(public_id="in-1", node=node, opened_at=NOON, title="Test")
    PrometheusServer.objects.create(public_id="ps-1", name="main", url="https://prometheus.example.org")
    subjects = {
        "gap_percent": "H100-SXM-80GB",
        "gap_cost": "",
        "fragmented_gpus": "H100-SXM-80GB",
        "queue_wait": "batch",
        "queue_gpus": "",
        "floor_gap": "acme/research",
        "budget_percent": "acme/research",
        "nodes_out": "No pool",
        "incidents": f"{node.cluster.name}/node-1",
        "stragglers": f"{node.cluster.name}/node-1",
        "idle_gpus": "acme/research",
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
        if subject.startswith("Prometheus"):
            assert leads_of(personas.access("viewer"), alert) == []
    assert subjects.keys() == FIGURES.keys() - {"cost_rise", "cost_week"}, "those lead to their report"
