"""Rules that change the health of many nodes at once: as many queries as for a few, and the same as one by one."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from dashboards.health.models import HealthRule, HealthSettings, Incident
from dashboards.health.round import health_round
from scheduler.models import Health, JobState, Node
from tests import builders
from tests.builders import NOON
from tests.dashboards.health_worlds import look, rule
from tests.dashboards.worlds import gpus_of

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("action", "busy", "lives"),
    [
        ("suspect", False, [Health.SUSPECT, Health.HEALTHY]),
        ("drain", False, [Health.DRAINED, Health.REPAIRING]),
        ("drain", True, [Health.DRAINING]),
        ("down", True, [Health.DOWN, Health.SUSPECT, Health.HEALTHY]),
    ],
)
def test_forty_nodes_that_fall_ill_cost_a_round_as_many_queries_as_ten(action: str, busy: bool, lives: list[str]) -> None:
    HealthRule.objects.all().delete()
    HealthSettings.objects.create(pk=1, most_percent=100, patience_minutes=10_000_000)
    rule(name="ECC", signal="ecc_corrected", threshold=10, window_minutes=5, clear_below=5, clear_minutes=5, action=action)
    found = []
    for count in (2, 10, 40):
        start = NOON + count * timedelta(days=1)
        of = builders.cluster(f"fabric-{count}")
        nodes = [builders.node(gpus=1, of=of, heartbeat_at=start) for _ in range(2 * count)]
        gpus = [gpu for node in nodes for gpu in gpus_of(node)]
        sick = [gpu for gpu in gpus if gpu.node_id in {node.pk for node in nodes[:count]}]
        for gpu in sick if busy else ():
            builders.placement(builders.job(state=JobState.RUNNING), gpu, since=start - timedelta(hours=1))
        queries, life = [], []
        for minute in range(25):
            at = start + minute * MINUTE
            look(gpus, {"ecc_corrected": dict.fromkeys(sick, 20 * min(minute, 3))}, at=at)
            Node.objects.filter(pk__in=[node.pk for node in nodes]).update(heartbeat_at=at)
            with CaptureQueriesContext(connection) as asked:
                health_round(now=at)
            queries.append(len(asked))
            life.append(set(Node.objects.filter(pk__in=[node.pk for node in nodes[:count]]).values_list("health", flat=True)))
        assert all(len(one) == 1 for one in life)
        healths = [next(iter(one)) for one in life]
        assert [health for before, health in zip(["healthy", *healths], healths, strict=False) if health != before] == lives
        assert set(Node.objects.filter(pk__in=[node.pk for node in nodes[count:]]).values_list("health", flat=True)) == {"healthy"}
        ends = lives[-1] == Health.HEALTHY
        assert Incident.objects.filter(node__in=nodes, closed_at__isnull=not ends, by_rule=True).count() == count
        found.append(queries)

    assert found[1] == found[2]
