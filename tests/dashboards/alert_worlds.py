"""What tests of alerts share: a rule, one that is silenced, a budget that is used up, and nodes that are sick."""

from datetime import UTC, datetime, timedelta

from dashboards.alerts.models import AlertRule
from dashboards.alerts.services import silence_create
from quotas.models import Budget, BudgetDay, QuotaNode
from scheduler.models import Health
from tests import builders
from tests.builders import NOON
from tests.personas import Personas


def rule(**fields):
    AlertRule.objects.all().delete()
    facts = {"name": "Nodes out", "figure": "nodes_out", "subject": "*", "threshold": 20, "clear_at": 10, "for_minutes": 5, "told": ["operator"]}
    return AlertRule.objects.create(public_id="ar-1", **(facts | fields))


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
