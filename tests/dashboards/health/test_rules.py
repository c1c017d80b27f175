"""Health rules: raw state kept sparsely, findings with windows and hysteresis, what they do to nodes, and how far they may go."""

import time
import zlib
from collections import Counter
from datetime import timedelta

import numpy as np
import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from dashboards.alerts.models import AlertRule
from dashboards.alerts.round import alerts_round
from dashboards.health.defaults import default_rules
from dashboards.health.incidents import calm_needed, incidents_follow
from dashboards.health.lifecycle import RULES_ACT
from dashboards.health.models import HealthBucket, HealthFinding, HealthFrame, HealthRule, HealthSettings, Incident
from dashboards.health.round import health_round, rule_of, spans_of, sums_stored
from dashboards.health.rules import Rule, Sum, Sums, judged, replay
from dashboards.health.services import dry_run, rule_change, rule_create, settings_save
from dashboards.health.state import STORED, UNREAD, RawState, state_write
from dashboards.health.xids import xid_of
from dashboards.models import ActivityEntry
from dashboards.prometheus.models import PrometheusServer
from dashboards.readings import hardware_now
from gpufleet.core.faults import Conflict
from scheduler.backends.base import Refusal
from scheduler.models import IN_SERVICE, Attempt, DrainWay, Gpu, Health, InventoryEvent, Job, JobState, Node, Order, OrderKind, Placement
from scheduler.services.hardware.draining import nodes_drain
from scheduler.services.hardware.hardware import gpu_health_change, hardware_event, node_health_change
from scheduler.services.hardware.refusing import nodes_refused
from scheduler.services.loop.runs import Ended, attempts_ended
from tests import builders
from tests.builders import NOON
from tests.dashboards.health_worlds import LOOK, look, looks
from tests.dashboards.worlds import gpus_of
from tests.personas import Personas

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


@pytest.fixture
def fleet(personas: Personas):
    """Ten nodes of one pool, and no other rules than the test makes."""
    HealthRule.objects.all().delete()
    pool = builders.pool()
    nodes = [builders.node(gpus=2, pool=pool, heartbeat_at=NOON) for _ in range(10)]
    return nodes, [gpu for node in nodes for gpu in gpus_of(node)]


def rule(**fields):
    facts = {"name": "Throttles", "signal": "thermal", "threshold": 60, "window_minutes": 5, "clear_below": 15, "clear_minutes": 10}
    return HealthRule.objects.create(public_id=f"hr-{HealthRule.objects.count()}", **(facts | {"action": "suspect"} | fields))


def health_of(node):
    return Node.objects.get(pk=node.pk).health


def test_healthy_hardware_leaves_no_rows(fleet):
    _, gpus = fleet
    looks(gpus, {"temperature": dict.fromkeys(gpus, 61)}, start=NOON, end=NOON + 11 * MINUTE)

    assert HealthBucket.objects.count() == 0
    assert HealthFrame.objects.count() == 1


def test_counters_are_kept_by_what_they_grew_through_resets_and_gaps(fleet):
    nodes, gpus = fleet
    for step, value in enumerate([100, 100, 130, 2, 5]):
        look(gpus[:2], {"ecc_corrected": {gpus[0]: value}}, at=NOON + step * LOOK, nic_errors=step)
    state_write(cluster_id=nodes[0].cluster_id, at=NOON, source="test", state=RawState(gpus=[gpus[0].pk], columns={"ecc_corrected": [900]}))

    assert HealthBucket.objects.get(signal="ecc_corrected").value == 30 + 2 + 3
    assert HealthBucket.objects.get(signal="nic_errors").value == 4
    assert Node.objects.get(pk=nodes[0].pk).heartbeat_at == NOON + 4 * LOOK


def test_a_network_that_repeats_few_segments_leaves_no_rows_and_one_that_repeats_many_is_noted(fleet):
    nodes, gpus = fleet
    HealthRule.objects.bulk_create(HealthRule(public_id=f"hr-{number}", **values) for number, values in enumerate(default_rules()))
    look(gpus, {}, at=NOON, retransmits=9)
    assert not HealthBucket.objects.exists()
    look(gpus[:2], {"pcie_saturated": {gpus[0]: 1}}, at=NOON + LOOK, retransmits=230)
    health_round(now=NOON + LOOK)
    finding = HealthFinding.objects.get()
    assert (finding.rule.name, finding.node, finding.value, health_of(nodes[0])) == ("TCP retransmissions", nodes[0], 230, Health.HEALTHY)
    for minute in range(1, 22):
        look(gpus[:2], {"pcie_saturated": {gpus[0]: 1}}, at=NOON + minute * MINUTE, retransmits=99)
        health_round(now=NOON + minute * MINUTE)

    assert HealthFinding.objects.get(rule__signal="retransmits").cleared_at == NOON + 20 * MINUTE
    saturated = HealthFinding.objects.get(rule__signal="pcie_saturated")
    assert (saturated.gpu, saturated.since, saturated.cleared_at) == (gpus[0], NOON + 10 * MINUTE, None)
    tried = dry_run(rule_of(saturated.rule), now=NOON + 21 * MINUTE)
    assert [(name, one.since) for name, one in tried.held] == [(f"{nodes[0].name}/0", NOON + 10 * MINUTE)]


@pytest.mark.parametrize(("signal", "kept"), [("temperature", 80), ("retransmits", 10)])
def test_a_rule_on_levels_that_are_not_kept_is_refused(fleet, personas: Personas, signal, kept):
    """It could never hold. Where it is over may lie below: what is not kept counts as nothing."""
    values = {"name": "Low", "signal": signal, "window_minutes": 5, "clear_below": 5, "clear_minutes": 5, "action": "note"}
    access = personas.access("operator")
    with pytest.raises(ValidationError) as fault:
        rule_create(access=access, values=values | {"threshold": kept - 1}, reason="", now=NOON)

    assert fault.value.message_dict == {"threshold": [f"Choose {kept} or more: lower levels are not kept."]}
    assert rule_create(access=access, values=values | {"threshold": kept}, reason="", now=NOON).threshold == kept


def test_what_a_version_with_fewer_signals_left_is_gone_on_from(fleet):
    _, gpus = fleet
    look(gpus[:2], {"ecc_corrected": {gpus[0]: 100}}, at=NOON)
    for column in ("last", "sums"):
        row = HealthFrame.objects.get()
        whole = np.frombuffer(zlib.decompress(bytes(getattr(row, column))), np.uint32).reshape(len(STORED), -1)
        HealthFrame.objects.update(**{column: zlib.compress(whole[:-4].tobytes())})
    assert hardware_now(now=NOON).processes == {}
    look(gpus[:2], {"ecc_corrected": {gpus[0]: 130}, "processes": {gpus[0]: 4}}, at=NOON + LOOK)

    assert {row.signal: row.value for row in HealthBucket.objects.all()} == {"ecc_corrected": 30}
    assert hardware_now(now=NOON + LOOK).processes[gpus[0].pk] == 4


def test_processes_are_those_of_the_newest_look(fleet):
    _, gpus = fleet
    look(gpus[:2], {"processes": {gpus[0]: 4, gpus[1]: 1}}, at=NOON)
    look(gpus[:2], {"processes": {gpus[0]: int(UNREAD), gpus[1]: 2}}, at=NOON + LOOK)

    assert hardware_now(now=NOON + LOOK).processes == {gpus[1].pk: 2}


def test_a_throttling_gpu_makes_its_node_suspect_and_opens_an_incident(fleet):
    nodes, gpus = fleet
    rule()
    builders.webhook(builders.quota(), kinds=["incident.opened"])
    looks(gpus, {"thermal": {gpus[3]: 1}}, start=NOON, end=NOON + MINUTE)

    done = health_round(now=NOON + MINUTE)

    assert done.acted == [f"{nodes[1].name} suspect"]
    assert health_of(nodes[1]) == Health.SUSPECT
    incident = Incident.objects.get()
    assert (incident.node, incident.by_rule, incident.title) == (nodes[1], True, "Thermal throttling: 60 s in 5 min on GPU 1")
    assert ActivityEntry.objects.get().kind == "incident.opened"
    assert health_round(now=NOON + 75 * timedelta(seconds=1)).opened == 0


@pytest.mark.parametrize(
    ("code", "found", "health"),
    [
        (79, ["XID: hardware"], Health.DRAINED),
        (46, ["XID: reset needed"], Health.DRAINED),
        (39, [], Health.HEALTHY),  # a copy engine's exception, of an application
        (137, ["XID: watch"], Health.HEALTHY),
        (56, ["XID: watch"], Health.HEALTHY),  # not in use on GPUs since Ampere
        (999, ["XID: watch"], Health.HEALTHY),
    ],
)
def test_the_default_rules_drain_only_for_xids_that_are_known_to_need_it(fleet, code, found, health):
    nodes, gpus = fleet
    HealthRule.objects.bulk_create(HealthRule(public_id=f"hr-{number}", **values) for number, values in enumerate(default_rules()))
    look(gpus, {}, at=NOON, xids=[(gpus[0], code)])
    health_round(now=NOON)

    assert (list(HealthFinding.objects.values_list("rule__name", flat=True)), health_of(nodes[0])) == (found, health)
    assert xid_of(code).code == code


def test_a_finding_ends_after_the_signal_stays_low_and_the_node_is_trusted_again(fleet):
    nodes, gpus = fleet
    rule()
    looks(gpus, {"thermal": {gpus[0]: 1}}, start=NOON, end=NOON + 2 * MINUTE)
    health_round(now=NOON + 2 * MINUTE)
    history = []
    for minute in range(3, 40):
        at = NOON + minute * MINUTE
        look(gpus, {}, at=at)
        health_round(now=at)
        history.append((minute, health_of(nodes[0]), HealthFinding.objects.filter(cleared_at=None).count()))

    cleared = next(minute for minute, _, count in history if count == 0)
    healthy = next(minute for minute, health, _ in history if health == Health.HEALTHY)
    assert 10 <= cleared <= 17
    assert healthy >= cleared + 5
    assert Incident.objects.get().closed_at is not None
    assert {health for _, health, _ in history} == {Health.SUSPECT, Health.HEALTHY}


def test_a_stale_source_neither_finds_nor_clears(fleet):
    nodes, gpus = fleet
    rule()
    looks(gpus, {"thermal": {gpus[0]: 1}}, start=NOON, end=NOON + 2 * MINUTE)

    assert health_round(now=NOON + 5 * MINUTE).opened == 0
    look(gpus, {"thermal": {gpus[0]: 1}}, at=NOON + 5 * MINUTE)
    assert health_round(now=NOON + 5 * MINUTE).opened == 1
    health_round(now=NOON + 90 * MINUTE)
    assert HealthFinding.objects.get().cleared_at is None
    for minute in range(91, 112):  # a source that reads only the others says nothing of it
        look(gpus[2:], {}, at=NOON + minute * MINUTE)
        health_round(now=NOON + minute * MINUTE)
    assert HealthFinding.objects.get().cleared_at is None
    assert health_of(nodes[0]) == Health.SUSPECT


def test_a_finding_of_a_gpu_that_is_not_read_does_not_end(fleet):
    """Its neighbours are: a GPU that has fallen off the bus has no reading, and the node it is in has."""
    nodes, gpus = fleet
    rule()
    looks(gpus, {"thermal": {gpus[0]: 1}}, start=NOON, end=NOON + 2 * MINUTE)
    health_round(now=NOON + 2 * MINUTE)
    for minute in range(3, 40):
        look(gpus[1:], {}, at=NOON + minute * MINUTE)
        health_round(now=NOON + minute * MINUTE)
    assert (health_of(nodes[0]), HealthFinding.objects.get().cleared_at) == (Health.SUSPECT, None)

    look(gpus, {}, at=NOON + 40 * MINUTE)
    health_round(now=NOON + 40 * MINUTE)
    assert HealthFinding.objects.get().cleared_at == NOON + 40 * MINUTE


def test_a_finding_of_a_gpu_that_was_removed_ends(fleet):
    _, gpus = fleet
    rule()
    looks(gpus, {"thermal": {gpus[0]: 1}}, start=NOON, end=NOON + 2 * MINUTE)
    health_round(now=NOON + 2 * MINUTE)
    Gpu.objects.filter(pk=gpus[0].pk).update(removed_at=NOON + 3 * MINUTE)
    look(gpus[1:], {}, at=NOON + 30 * MINUTE)
    health_round(now=NOON + 30 * MINUTE)

    assert HealthFinding.objects.get().cleared_at == NOON + 30 * MINUTE


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


@pytest.mark.parametrize("gpu_is_sick", [False, True])
def test_an_incident_of_a_node_that_stayed_healthy_ends_with_its_findings(fleet, personas: Personas, gpu_is_sick):
    """So it is where rules change nothing; unless a GPU of the node is not healthy, which a person said."""
    nodes, gpus = fleet
    rule()
    HealthSettings.objects.create(pk=1, acts=False)
    looks(gpus, {"thermal": {gpus[0]: 1}}, start=NOON, end=NOON + 2 * MINUTE)
    health_round(now=NOON + 2 * MINUTE)
    assert Incident.objects.get().closed_at is None
    if gpu_is_sick:
        gpu_health_change(access=personas.access("operator"), gpu=gpus[1], to=Health.SUSPECT, reason="Odd.", now=NOON + 2 * MINUTE)
    for minute in range(3, 20):
        look(gpus, {}, at=NOON + minute * MINUTE)
        health_round(now=NOON + minute * MINUTE)

    finding = HealthFinding.objects.get()
    assert finding.cleared_at is not None and Incident.objects.get().closed_at is None
    for minute in range(20, 25):
        health_round(now=NOON + minute * MINUTE)
    assert (Incident.objects.get().closed_at, health_of(nodes[0])) == (None if gpu_is_sick else finding.cleared_at + 5 * MINUTE, Health.HEALTHY)


def test_a_flapping_gpu_of_a_node_that_stayed_healthy_has_no_incident_each_time(fleet):
    """It must be calm for as long as a suspect, each time for longer."""
    _, gpus = fleet
    rule(clear_minutes=1)
    HealthSettings.objects.create(pk=1, acts=False)
    for number in range(4 * 60):
        at = NOON + number * LOOK
        look(gpus, {"thermal": {gpus[0]: 1}} if number % 50 < 6 else {}, at=at)
        health_round(now=at)
    assert (HealthFinding.objects.count(), Incident.objects.count()) == (5, 2)


def test_the_incident_of_a_node_that_was_removed_ends(fleet, personas: Personas):
    nodes, gpus = fleet
    AlertRule.objects.all().delete()
    AlertRule.objects.create(
        public_id="ar-1", name="Incidents", figure="incidents", subject="*", threshold=1, clear_at=1, for_minutes=0, told=["operator"]
    )
    rule()
    looks(gpus, {"thermal": {gpus[0]: 1}}, start=NOON, end=NOON + MINUTE)
    health_round(now=NOON + MINUTE)
    assert alerts_round(now=NOON + MINUTE).fired == 1
    Node.objects.filter(pk=nodes[0].pk).update(removed_at=NOON + 2 * MINUTE)
    looks(gpus[2:], {}, start=NOON + MINUTE + LOOK, end=NOON + 3 * MINUTE)

    health_round(now=NOON + 3 * MINUTE)

    assert Incident.objects.get().closed_at == NOON + 2 * MINUTE
    assert HealthFinding.objects.get().cleared_at is not None
    ended = ActivityEntry.objects.get(kind="incident.closed")
    assert (ended.title, ended.at) == (f"{nodes[0].name} was removed", NOON + 3 * MINUTE)
    assert alerts_round(now=NOON + 4 * MINUTE).resolved == 1


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


def test_silence_of_a_whole_pool_is_the_sources_fault_and_one_silent_node_is_down(fleet):
    nodes, _ = fleet
    rule(signal="heartbeat", threshold=180, clear_below=60, action="down", name="Silent")
    Node.objects.update(heartbeat_at=NOON - 10 * MINUTE)
    health_round(now=NOON)
    assert set(Node.objects.values_list("health", flat=True)) == {Health.HEALTHY}

    Node.objects.exclude(pk=nodes[0].pk).update(heartbeat_at=NOON)
    health_round(now=NOON)
    assert health_of(nodes[0]) == Health.DOWN
    Node.objects.update(heartbeat_at=NOON + MINUTE)
    health_round(now=NOON + MINUTE)
    assert health_of(nodes[0]) == Health.SUSPECT


def test_a_node_that_falls_silent_with_its_source_is_left_alone(fleet):
    """A source that ends takes the heartbeat of its nodes with it, however few they are, and also where an operator has removed it."""
    nodes, _ = fleet
    rule(signal="heartbeat", threshold=180, clear_below=60, action="down", name="Silent")
    PrometheusServer.objects.create(public_id="ps-1", name="gone", url="http://gone", read_at=NOON, removed_at=NOON, enabled=False)
    later = NOON + 10 * MINUTE
    Node.objects.update(heartbeat_at=later)
    for number, heard in enumerate((NOON, NOON + MINUTE)):
        Node.objects.filter(pk=nodes[number].pk).update(heartbeat_at=heard)
    health_round(now=later)
    assert [health_of(node) for node in nodes] == [Health.HEALTHY, Health.DOWN, *[Health.HEALTHY] * 8]

    health_round(now=later + 10 * MINUTE)  # nothing is heard any more: what was found of the one that is down still holds
    assert health_of(nodes[1]) == Health.DOWN
    assert not HealthFinding.objects.exclude(cleared_at=None).exists()


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


def test_who_falls_ill_again_and_again_is_trusted_later_each_time():
    assert [calm_needed(count) / MINUTE for count in (0, 1, 2, 3, 4, 99)] == [5, 5, 10, 20, 40, 320]


def test_incidents_tell_of_hands_too_and_measure_what_they_cost(fleet, personas: Personas):
    nodes, gpus = fleet
    access = personas.access("operator")
    job = builders.job(state=JobState.RUNNING, on=builders.quota(), gpus_milli=2000)
    for gpu in gpus[:2]:
        builders.placement(job, gpu, since=NOON - 60 * MINUTE)
    Attempt.objects.filter(job=job).update(running_at=NOON - 60 * MINUTE)
    node_health_change(access=access, node=nodes[0], to=Health.DOWN, reason="Dark.", now=NOON)
    attempts_ended(ends=[Ended(Attempt.objects.get(job=job).pk, None, "Node lost.", node_lost=True)], now=NOON + MINUTE)
    health_round(now=NOON + 30 * MINUTE)
    node_health_change(access=access, node=nodes[0], to=Health.BURN_IN, reason="Back.", now=NOON + 40 * MINUTE)
    node_health_change(access=access, node=nodes[0], to=Health.HEALTHY, reason="Fine.", now=NOON + 60 * MINUTE)
    health_round(now=NOON + 61 * MINUTE)

    incident = Incident.objects.get()
    assert (incident.title, incident.by_rule, incident.worst) == ("Dark.", False, "down")
    assert incident.closed_at == NOON + 60 * MINUTE
    assert incident.out_milli_millis == 2000 * 60 * 60_000
    assert (incident.jobs, incident.lost_milli_millis) == (1, 2000 * 61 * 60_000)
    page = personas.client("operator").get(f"/incidents/{incident.public_id}/").content.decode()
    assert page.count("Dark.") == 1 and job.name in page
    assert job.name not in personas.client("viewer").get(f"/incidents/{incident.public_id}/").content.decode()


def test_an_event_that_comes_to_light_after_a_later_one_has_its_incident_too(fleet, personas: Personas):
    """Keys are given in order, and transactions do not end in it: a drain of many nodes ends after that of one that began later."""
    nodes, _ = fleet
    access = personas.access("operator")
    for number, node in enumerate(nodes[:3]):
        node_health_change(access=access, node=node, to=Health.DOWN, reason=f"Dark {number}.", now=NOON + number * MINUTE)
    rows = list(InventoryEvent.objects.filter(kind="health").order_by("pk"))
    InventoryEvent.objects.filter(pk__in=[row.pk for row in rows[:2]]).delete()
    with transaction.atomic():
        assert incidents_follow() == 1
    for row in rows[:2]:
        row.save(force_insert=True)

    with transaction.atomic():
        assert (incidents_follow(), incidents_follow()) == (2, 0)

    assert list(Incident.objects.order_by("node").values_list("title", "node")) == [(f"Dark {n}.", nodes[n].pk) for n in range(3)]


def test_what_made_no_step_ends_no_incident_that_was_opened_after_it(fleet, personas: Personas):
    nodes, gpus = fleet
    rule()
    access = personas.access("operator")
    with transaction.atomic():
        for to, minute in ((Health.DOWN, 0), (Health.SUSPECT, 1), (Health.HEALTHY, 2)):
            node_health_change(access=access, node=nodes[1], to=to, reason="By hand.", now=NOON + minute * MINUTE)
        healths = {"before": {"health": "suspect"}, "after": {"health": "healthy"}}
        hardware_event(actor=access.actor, node=nodes[0], gpu=None, kind="health", cause="Old.", now=NOON, **healths)
        node_health_change(access=access, node=nodes[2], to=Health.DOWN, reason="Dark.", now=NOON + 3 * MINUTE)
        incidents_follow()
    looks(gpus, {"thermal": {gpus[0]: 1}}, start=NOON + 3 * MINUTE, end=NOON + 5 * MINUTE)

    for minute in (5, 6):
        health_round(now=NOON + minute * MINUTE)

    assert set(Incident.objects.filter(closed_at=None).values_list("node", flat=True)) == {nodes[0].pk, nodes[2].pk}
    assert Incident.objects.get(node=nodes[1]).closed_at == NOON + 2 * MINUTE


def test_the_page_of_an_incident_names_its_rule_once_and_leads_to_the_drain(fleet, personas: Personas):
    nodes, gpus = fleet
    rule()
    looks(gpus, {"thermal": {gpus[0]: 1}}, start=NOON, end=NOON + 3 * MINUTE)
    health_round(now=NOON + 3 * MINUTE)
    incident = Incident.objects.get()

    pages = [personas.client(name).get(f"/incidents/{incident.public_id}/").content.decode() for name in ("operator", "viewer")]

    drain = f"/nodes/{nodes[0].public_id}/health/?to=draining"
    assert [drain in page for page in pages] == [True, False]
    for page in pages:
        shown = page[page.index("<main") :]
        assert (shown.count("Throttles"), shown.count(incident.title.rstrip(".")), shown.count("The rule held.")) == (1, 1, 1)
    Incident.objects.update(closed_at=NOON + 5 * MINUTE)
    assert drain not in personas.client("operator").get(f"/incidents/{incident.public_id}/").content.decode(), "it is over"


def test_a_rule_is_tried_against_the_past_before_it_acts(fleet, personas: Personas):
    nodes, gpus = fleet
    looks(gpus[:2], {"thermal": {gpus[0]: 1}}, start=NOON - 60 * MINUTE, end=NOON - 50 * MINUTE)
    access = personas.access("superuser")
    with pytest.raises(ValidationError):
        rule_create(access=access, values={"name": "x", "signal": "thermal", "threshold": 10, "clear_below": 20}, reason="", now=NOON)
    values = {"name": "Hot", "signal": "thermal", "threshold": 200, "window_minutes": 5, "clear_below": 20, "clear_minutes": 10, "action": "drain"}
    made = rule_create(access=access, values=values, reason="Test", now=NOON)
    with pytest.raises(PermissionDenied):
        rule_change(access=personas.access("viewer"), rule=made, values={"threshold": 1}, reason="", now=NOON)
    with pytest.raises(Conflict):
        rule_change(access=access, rule=made, values={"threshold": 250}, reason="", now=NOON, revision=9)

    found = dry_run(rule_of(made), now=NOON)
    assert [(name, one.value >= 200, one.until is not None) for name, one in found.held] == [(f"{nodes[0].name}/0", True, True)]
    assert health_of(nodes[0]) == Health.HEALTHY
    values = dict.fromkeys((), "") | values | {"enabled": "on", "threshold": "100000", "dry_run": "yes"}
    page = personas.client("operator").post(f"/incidents/rules/{made.public_id}/", values | {"revision": "1"}).content.decode()
    assert "It would not have held." in page
    settings_save(access=access, values={"acts": False}, reason="Test")
    looks(gpus, {"thermal": {gpus[0]: 1}}, start=NOON, end=NOON + 5 * MINUTE)
    assert health_round(now=NOON + 5 * MINUTE).acted == []
    assert HealthFinding.objects.count() == 1


def test_a_rule_on_the_heartbeat_is_tried_against_the_silences_that_there_were(fleet, personas: Personas):
    """It would have held where rounds found it silent, not where its source was; and what was before it was kept is not said."""
    nodes, gpus = fleet
    asked = rule(signal="heartbeat", threshold=600, window_minutes=5, clear_below=60, clear_minutes=5, action="note", name="Silent")
    begun = NOON - 2 * 60 * MINUTE
    for minute in range(0, 100, 2):
        at = begun + minute * MINUTE
        heard = gpus[2:] if 20 <= minute < 40 else [] if minute >= 80 else gpus  # one node alone, then all of them with their source
        if heard:
            look(heard, {}, at=at)
        health_round(now=at)

    tried = dry_run(rule_of(asked), now=NOON)
    ((name, held),) = tried.held
    assert (name, held.since, held.until) == (nodes[0].name, begun + 25 * MINUTE, begun + 40 * MINUTE)
    assert held.value == 20 * 60
    assert (tried.start, "kept since" in tried.note) == (begun, True)
    assert [finding.since for finding in HealthFinding.objects.filter(rule=asked)] == [begun + 28 * MINUTE]
    page = personas.client("operator").get(f"/incidents/rules/{asked.public_id}/").content.decode()
    assert "kept since" in page


@given(
    st.lists(st.tuples(st.integers(0, 47), st.integers(0, 3), st.integers(1, 400)), max_size=40),
    st.integers(1, 500),
    st.integers(1, 12),
    st.sampled_from([5, 10, 90]),
    st.sampled_from(["ecc_corrected", "temperature", "thermal"]),
)
def test_what_a_dry_run_finds_is_what_the_rounds_would_have_found(stored, threshold, windows, clear_minutes, signal):
    unique = {(slot, device): value for slot, device, value in stored}
    rows = [Sum(NOON + 5 * slot * MINUTE, device, signal, 0, value) for (slot, device), value in sorted(unique.items())]
    one = Rule(1, "r", signal, "", threshold, 5 * windows * MINUTE, max(1, threshold // 2), clear_minutes * MINUTE, "note")
    end = NOON + 8 * 60 * MINUTE
    sums, open_ones, spans = Sums(rows), {}, []
    for slot in range(97):
        now = NOON + 5 * slot * MINUTE
        found = judged([one], sums, {}, [(1, device) for device in open_ones], now)
        for _, device in found.hits:
            open_ones.setdefault(device, now)
        for _, device in found.calm:
            spans.append((device, open_ones.pop(device), now))
    spans += [(device, since, None) for device, since in open_ones.items()]

    tried = replay(one, rows, start=NOON, end=end)

    assert sorted((r.device, r.since) for r in tried) == sorted((device, since) for device, since, _ in spans)
    assert {r.device: r.until for r in tried if r.until is None}.keys() == {device for device, _, until in spans if until is None}


def test_a_dry_run_over_thirty_days_takes_a_moment():
    """One GPU with an error each five minutes, and a hundred that had one each an hour."""
    one = Rule(1, "r", "ecc_corrected", "", 10, 60 * MINUTE, 5, 60 * MINUTE, "note")
    day = 24 * 12
    rows = [Sum(NOON + 5 * slot * MINUTE, 2, "ecc_corrected", 0, 1) for slot in range(30 * day)]
    rows += [Sum(NOON + 5 * slot * MINUTE, 2 * device, "ecc_corrected", 0, 1) for slot in range(0, 30 * day, 12) for device in range(2, 102)]
    began = time.perf_counter()

    assert [(held.device, held.value) for held in replay(one, rows, start=NOON, end=NOON + 30 * 1440 * MINUTE)] == [(2, 13)]
    assert time.perf_counter() - began < 10


def test_only_what_rules_look_at_is_read(fleet, personas: Personas):
    """Of each signal the longest window of its own rules; a dry run reads its signal alone, of levels those that it could act on."""
    _, gpus = fleet
    made = [rule(signal="temperature", threshold=95, clear_below=90), rule(signal="row_remaps", window_minutes=1440, clear_minutes=1440)]
    rule(signal="temperature", threshold=99, clear_below=98, clear_minutes=30)
    gpu = gpus[0]
    for signal, value in (("temperature", 96), ("temperature", 85), ("row_remaps", 1), ("nvlink_errors", 7)):
        for minutes in (5, 30, 600, 2000):
            at = NOON - minutes * MINUTE - (5 if value == 85 else 0) * MINUTE
            HealthBucket.objects.create(at=at, device=2 * gpu.pk, node=gpu.node, gpu=gpu, signal=signal, value=value)
    read = sums_stored(spans_of([rule_of(one) for one in HealthRule.objects.all()]), NOON)

    assert Counter((one.signal, one.value) for one in read) == {("temperature", 96): 2, ("temperature", 85): 2, ("row_remaps", 1): 3}
    with CaptureQueriesContext(connection) as queries:
        dry_run(rule_of(made[0]), now=NOON)
    (asked,) = [query["sql"] for query in queries if "health_bucket" in query["sql"]]
    assert '"signal" = ' in asked and '"value" >= 90' in asked


def test_four_thousand_gpus_are_judged_within_a_second(db):
    HealthRule.objects.all().delete()
    HealthRule.objects.bulk_create(HealthRule(public_id=f"hr-{n}", **values) for n, values in enumerate(default_rules()))
    rules = [rule_of(row) for row in HealthRule.objects.all()]
    rng = np.random.default_rng(7)
    rows = [
        Sum(NOON - 5 * int(slot) * MINUTE, int(device) * 2, signal, 0, int(rng.integers(1, 300)))
        for signal in ("thermal", "ecc_corrected", "nvlink_errors", "temperature")
        for device in rng.choice(4000, 60, replace=False)
        for slot in range(24)
    ]
    began = time.perf_counter()
    judged(rules, Sums(rows), {2 * n + 1: 5 for n in range(500)}, [], NOON)

    assert time.perf_counter() - began < 1.0
