"""The way of a sick node back into service: drain, repair and burn-in."""

from datetime import timedelta

import pytest

from dashboards.health.models import HealthSettings, Incident
from dashboards.health.round import health_round
from scheduler.models import Attempt, Health, Job, JobState, Order, OrderKind, Placement
from scheduler.services.hardware.hardware import node_health_change
from scheduler.services.loop.runs import Ended, attempts_ended
from tests import builders
from tests.builders import NOON
from tests.dashboards.health_worlds import health_of, look, rule
from tests.personas import Personas

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


def test_the_whole_life_cycle_moves_work_repairs_and_tests(fleet, personas: Personas):
    nodes, gpus = fleet
    rule(signal="xid", group="support", threshold=1, clear_below=1, action="drain", name="XID")
    HealthSettings.objects.create(pk=1, patience_minutes=5, burn_in_minutes=10)
    job = builders.job(state=JobState.RUNNING, on=builders.quota(), gpus_milli=2000)
    for gpu in gpus[:2]:
        builders.placement(job, gpu)
    look(gpus, {}, at=NOON, xids=[(gpus[1], 79)])
    health_round(now=NOON)
    assert health_of(nodes[0]) == Health.DRAINING

    look(gpus, {}, at=NOON + 6 * MINUTE)
    health_round(now=NOON + 6 * MINUTE)
    assert Job.objects.get(pk=job.pk).state == JobState.CHECKPOINTING
    run = Attempt.objects.get(job=job)
    attempts_ended(ends=[Ended(run.pk, 0)], now=NOON + 7 * MINUTE)
    Placement.objects.filter(job=job).update(until=NOON + 7 * MINUTE)
    for step in range(3):
        health_round(now=NOON + (8 + step) * MINUTE)
    assert health_of(nodes[0]) == Health.REPAIRING

    node_health_change(access=personas.access("operator"), node=nodes[0], to=Health.BURN_IN, reason="New board.", now=NOON + 40 * MINUTE)
    look(gpus, {}, at=NOON + 40 * MINUTE)
    health_round(now=NOON + 40 * MINUTE)
    incident = Incident.objects.get()
    test = incident.burn_in
    assert test is not None and test.state == JobState.STARTING
    assert Placement.objects.filter(job=test, until=None).count() == 2
    assert Order.objects.get(attempt__job=test).kind == OrderKind.START

    attempts_ended(ends=[Ended(test.attempts.get().pk, 0)], now=NOON + 51 * MINUTE)
    look(gpus, {}, at=NOON + 52 * MINUTE)
    health_round(now=NOON + 52 * MINUTE)
    assert health_of(nodes[0]) == Health.HEALTHY
    incident.refresh_from_db()
    assert incident.closed_at is not None
    assert incident.jobs == 0  # it completed as it left
    assert incident.out_milli_millis == 2 * 1000 * 52 * 60_000


def test_a_failed_test_sends_the_node_back_to_repair(fleet, personas: Personas):
    nodes, _ = fleet
    access = personas.access("operator")
    for to, minute in ((Health.DRAINING, 0), (Health.DRAINED, 1), (Health.REPAIRING, 2), (Health.BURN_IN, 3)):
        node_health_change(access=access, node=nodes[0], to=to, reason="By hand.", now=NOON + minute * MINUTE)
    health_round(now=NOON + 4 * MINUTE)
    assert Incident.objects.get().burn_in is None  # rules leave alone what a person does

    Incident.objects.update(by_rule=True)
    health_round(now=NOON + 5 * MINUTE)
    test = Incident.objects.get().burn_in
    attempts_ended(ends=[Ended(test.attempts.get().pk, 1, "A GPU answers wrongly.")], now=NOON + 6 * MINUTE)
    assert Job.objects.get(pk=test.pk).state == JobState.FAILED
    health_round(now=NOON + 6 * MINUTE)
    assert health_of(nodes[0]) == Health.REPAIRING


def test_a_node_whose_step_fails_keeps_no_other_from_its_own(fleet, personas: Personas, caplog):
    """Here the test job of the first finds a GPU taken, as no node in burn-in should have one."""
    nodes, gpus = fleet
    access = personas.access("operator")
    for node in nodes[:2]:
        for to, minute in ((Health.DRAINING, 0), (Health.DRAINED, 1), (Health.REPAIRING, 2), (Health.BURN_IN, 3)):
            node_health_change(access=access, node=node, to=to, reason="By hand.", now=NOON + minute * MINUTE)
    health_round(now=NOON + 4 * MINUTE)
    Incident.objects.update(by_rule=True)
    builders.placement(on=gpus[0])

    health_round(now=NOON + 5 * MINUTE)

    tests = dict(Incident.objects.values_list("node", "burn_in"))
    assert (tests[nodes[0].pk], tests[nodes[1].pk] is not None) == (None, True)
    assert nodes[0].name in caplog.text and "Traceback" in caplog.text
