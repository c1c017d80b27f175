"""Many alerts in one round: told together, in as many queries as a few."""

import json
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from dashboards.alerts.figures import figures_now
from dashboards.alerts.models import Alert
from dashboards.alerts.round import alerts_round
from dashboards.health.models import Incident
from scheduler.models import Delivery, Notice
from tests import builders
from tests.builders import NOON
from tests.dashboards.alert_worlds import rule
from tests.personas import Personas

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


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
