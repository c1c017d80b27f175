"""Nodes that rules and people look after: what a person sets stays, and who goes on with what."""

from datetime import timedelta

import pytest

from dashboards.health.lifecycle import RULES_ACT
from dashboards.health.models import HealthFinding, HealthSettings, Incident
from dashboards.health.round import health_round
from scheduler.backends.base import Refusal
from scheduler.models import DrainWay, Health, Job, JobState, Node
from scheduler.services.hardware.draining import nodes_drain
from scheduler.services.hardware.hardware import gpu_health_change, node_health_change
from scheduler.services.hardware.refusing import nodes_refused
from tests import builders
from tests.builders import NOON
from tests.dashboards.health_worlds import LOOK, health_of, look, looks, rule
from tests.dashboards.worlds import gpus_of
from tests.personas import Personas

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize("to", [Health.DOWN, Health.SUSPECT])
def test_what_a_person_sets_while_a_rule_looks_after_the_node_stays(fleet, personas: Personas, to):
    nodes, gpus = fleet
    rule(action="drain")
    job = builders.job(state=JobState.RUNNING, on=builders.quota(), gpus_milli=1000)
    builders.placement(job, gpus[0])
    looks(gpus, {"thermal": {gpus[0]: 1}}, start=NOON, end=NOON + MINUTE)
    health_round(now=NOON + MINUTE)
    assert health_of(nodes[0]) == Health.DRAINING
    looks(gpus, {}, start=NOON + MINUTE + LOOK, end=NOON + 25 * MINUTE)
    node_health_change(access=personas.access("operator"), node=nodes[0], to=to, reason="Board is out.", now=NOON + 25 * MINUTE)
    for minute in range(26, 60):
        look(gpus, {}, at=NOON + minute * MINUTE)
        health_round(now=NOON + minute * MINUTE)

    assert (health_of(nodes[0]), HealthFinding.objects.filter(cleared_at=None).count()) == (to, 0)


@pytest.mark.parametrize(("until", "stays"), [((), Health.DRAINED), ((Health.REPAIRING,), Health.REPAIRING)])
def test_a_node_that_a_person_drains_in_a_rules_incident_waits_for_people(fleet, personas: Personas, until, stays):
    nodes, gpus = fleet
    rule()
    HealthSettings.objects.create(pk=1, repair_minutes=5, burn_in_minutes=0)
    looks(gpus, {"thermal": {gpus[0]: 1}}, start=NOON, end=NOON + MINUTE)
    health_round(now=NOON + MINUTE)
    access = personas.access("operator")
    for number, to in enumerate((Health.DRAINING, Health.DRAINED, *until)):
        node = Node.objects.get(pk=nodes[0].pk)
        node_health_change(access=access, node=node, to=to, reason="Board is odd.", now=NOON + MINUTE + number * LOOK)
    for minute in range(3, 40):
        look(gpus, {}, at=NOON + minute * MINUTE)
        health_round(now=NOON + minute * MINUTE)
    assert health_of(nodes[0]) == stays

    node_health_change(access=access, node=Node.objects.get(pk=nodes[0].pk), to=Health.BURN_IN, reason="New board.", now=NOON + 40 * MINUTE)
    health_round(now=NOON + 41 * MINUTE)
    assert health_of(nodes[0]) == Health.HEALTHY


def test_a_node_that_rules_of_the_last_release_drained_in_a_persons_incident_goes_on(fleet, personas: Personas):
    """They did not note in the incident that rules look after its node."""
    nodes, _ = fleet
    gpu_health_change(access=personas.access("operator"), gpu=gpus_of(nodes[0])[1], to=Health.SUSPECT, reason="Odd.", now=NOON)
    node_health_change(access=RULES_ACT, node=nodes[0], to=Health.DRAINING, reason="Rule ECC: 3 errors.", now=NOON)

    for minute in range(1, 4):
        health_round(now=NOON + minute * MINUTE)

    assert (Incident.objects.get().by_rule, health_of(nodes[0])) == (False, Health.REPAIRING)


def test_a_node_that_refused_a_job_in_a_rules_incident_waits_for_an_operator(fleet):
    """No finding says that it has what it refused for, so no calm is a sign of it."""
    nodes, gpus = fleet
    rule()
    HealthSettings.objects.create(pk=1, acts=False)
    looks(gpus, {"thermal": {gpus[0]: 1}}, start=NOON, end=NOON + MINUTE)
    health_round(now=NOON + MINUTE)
    nodes_refused(cluster=nodes[0].cluster_id, refusals=[Refusal(nodes[0].name, "gpus", "Has 1 GPU.")], now=NOON + 2 * MINUTE)
    HealthSettings.objects.update(acts=True)
    for minute in range(2, 60):
        look(gpus, {}, at=NOON + minute * MINUTE)
        health_round(now=NOON + minute * MINUTE)

    assert (health_of(nodes[0]), HealthFinding.objects.filter(cleared_at=None).count()) == (Health.SUSPECT, 0)


def test_a_drain_by_hand_goes_as_it_was_chosen_also_on_a_node_that_rules_look_after(fleet, personas: Personas):
    nodes, gpus = fleet
    rule()
    HealthSettings.objects.create(pk=1, patience_minutes=0)
    job = builders.job(state=JobState.RUNNING, on=builders.quota(), gpus_milli=1000)
    builders.placement(job, gpus[0])
    looks(gpus, {"thermal": {gpus[0]: 1}}, start=NOON, end=NOON + MINUTE)
    health_round(now=NOON + MINUTE)
    access = personas.access("operator")
    nodes_drain(access=access, nodes=nodes[:1], way=DrainWay.FINISH, at=None, reason="It may end.", now=NOON + 2 * MINUTE)

    health_round(now=NOON + 3 * MINUTE)
    assert Job.objects.get(pk=job.pk).state == JobState.RUNNING
