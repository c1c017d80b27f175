"""How far health rules may go: their share of a pool, and what stays open to new work."""

from datetime import timedelta

import pytest

from dashboards.health.models import HealthFinding, HealthSettings, Incident
from dashboards.health.round import health_round
from scheduler.models import IN_SERVICE, Health, Job, JobState, Node
from scheduler.services.hardware.hardware import gpu_health_change, node_health_change
from scheduler.services.loop.runs import Ended, attempts_ended
from tests import builders
from tests.builders import NOON
from tests.dashboards.health_worlds import LOOK, health_of, look, looks, rule
from tests.dashboards.worlds import gpus_of
from tests.personas import Personas

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


def test_rules_never_take_more_than_their_share_of_a_pool(fleet):
    _, gpus = fleet
    rule(signal="ecc_uncorrected", threshold=1, clear_below=1, action="drain", name="ECC")
    HealthSettings.objects.create(pk=1, most_percent=20, patience_minutes=0)
    look(gpus, {}, at=NOON)
    look(gpus, {"ecc_uncorrected": dict.fromkeys(gpus, 3)}, at=NOON + LOOK)
    for step in range(2, 30):
        look(gpus, {"ecc_uncorrected": dict.fromkeys(gpus, 3)}, at=NOON + step * LOOK)
        health_round(now=NOON + step * LOOK)

    out = Node.objects.exclude(health__in=("healthy", "suspect")).count()
    assert out == 2
    assert Node.objects.filter(health="suspect").count() == 3, "with those that are out they are half of the pool"
    assert Incident.objects.filter(steps__text__startswith="Not taken out of service").count() == 8
    assert Incident.objects.filter(steps__text__startswith="Not marked suspect").count() == 5


def test_a_rule_that_holds_everywhere_leaves_half_of_a_pool_to_new_work(fleet, personas: Personas):
    """As one on warm GPUs would. What people do is not in the rules' share, and who is well again makes room for another."""
    nodes, gpus = fleet
    rule(signal="temperature", threshold=80, clear_below=80, name="Warm")
    node_health_change(access=personas.access("operator"), node=nodes[9], to=Health.SUSPECT, reason="Odd.", now=NOON)
    looks(gpus, {"temperature": dict.fromkeys(gpus, 85)}, start=NOON, end=NOON + MINUTE)
    for minute in range(1, 4):
        health_round(now=NOON + minute * MINUTE)
    assert [health_of(node) for node in nodes] == [*[Health.SUSPECT] * 5, *[Health.HEALTHY] * 4, Health.SUSPECT]

    node_health_change(access=personas.access("operator"), node=nodes[0], to=Health.HEALTHY, reason="It is the sensor.", now=NOON + 3 * MINUTE)
    HealthFinding.objects.filter(node=nodes[0]).delete()
    looks(gpus, {"temperature": dict.fromkeys(gpus[2:], 85)}, start=NOON + 20 * MINUTE, end=NOON + 21 * MINUTE)
    health_round(now=NOON + 21 * MINUTE)
    assert [health_of(node) for node in nodes] == [Health.HEALTHY, *[Health.SUSPECT] * 5, *[Health.HEALTHY] * 3, Health.SUSPECT]


def test_a_node_whose_incident_a_person_opened_counts_in_the_share_and_goes_on(fleet, personas: Personas):
    """A GPU that was marked by hand weeks ago is enough for an open incident."""
    nodes, gpus = fleet
    rule(signal="ecc_uncorrected", threshold=1, clear_below=1, action="drain", name="ECC")
    HealthSettings.objects.create(pk=1, most_percent=10, patience_minutes=0)
    for node in nodes[:5]:
        gpu_health_change(access=personas.access("operator"), gpu=gpus_of(node)[1], to=Health.SUSPECT, reason="Odd.", now=NOON - timedelta(days=20))
    job = builders.job(state=JobState.RUNNING, on=builders.quota(), gpus_milli=1000)
    builders.placement(job, gpus[0])
    look(gpus, {}, at=NOON)
    for step in range(1, 20):
        look(gpus, {"ecc_uncorrected": dict.fromkeys(gpus, 3)}, at=NOON + step * LOOK)
        health_round(now=NOON + step * LOOK)

    assert list(Node.objects.exclude(health__in=IN_SERVICE)) == [nodes[0]]
    assert Job.objects.get(pk=job.pk).state == JobState.CHECKPOINTING
    attempts_ended(ends=[Ended(job.attempts.get().pk, 0)], now=NOON + 6 * MINUTE)
    for minute in range(7, 10):
        look(gpus, {"ecc_uncorrected": dict.fromkeys(gpus, 3)}, at=NOON + minute * MINUTE)
        health_round(now=NOON + minute * MINUTE)
    assert health_of(nodes[0]) == Health.REPAIRING


def test_a_node_that_a_person_took_out_is_not_in_the_rules_share(fleet, personas: Personas):
    nodes, gpus = fleet
    rule()
    rule(signal="ecc_uncorrected", threshold=1, clear_below=1, action="drain", name="ECC")
    HealthSettings.objects.create(pk=1, most_percent=10)
    looks(gpus, {"thermal": {gpus[0]: 1}}, start=NOON, end=NOON + MINUTE)
    health_round(now=NOON + MINUTE)
    assert health_of(nodes[0]) == Health.SUSPECT
    node_health_change(access=personas.access("operator"), node=nodes[0], to=Health.DOWN, reason="Board is out.", now=NOON + MINUTE + LOOK)
    look(gpus, {"thermal": {gpus[0]: 1}, "ecc_uncorrected": {gpus[2]: 3}}, at=NOON + 2 * MINUTE)
    health_round(now=NOON + 2 * MINUTE)

    assert [health_of(node) for node in nodes[:2]] == [Health.DOWN, Health.DRAINED]


def test_a_node_that_must_go_out_does_so_beyond_the_half_that_suspects_have_closed(fleet):
    nodes, gpus = fleet
    rule(signal="temperature", threshold=80, clear_below=80, name="Warm")
    rule(signal="ecc_uncorrected", threshold=1, clear_below=1, action="drain", name="ECC")
    HealthSettings.objects.create(pk=1, most_percent=10, patience_minutes=30)
    looks(gpus, {"temperature": dict.fromkeys(gpus, 85)}, start=NOON, end=NOON + MINUTE)
    health_round(now=NOON + MINUTE)
    look(gpus, {"ecc_uncorrected": dict.fromkeys(gpus[-4:], 3)}, at=NOON + MINUTE + LOOK)
    health_round(now=NOON + MINUTE + LOOK)

    assert [health_of(node) for node in nodes] == [*[Health.SUSPECT] * 5, *[Health.HEALTHY] * 3, Health.DRAINED, Health.HEALTHY]
