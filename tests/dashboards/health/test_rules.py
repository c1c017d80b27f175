"""Health rules: findings with windows and hysteresis, and what they do to nodes."""

import time
from collections import Counter
from datetime import timedelta

import numpy as np
import pytest
from django.core.exceptions import ValidationError
from django.db import connection
from django.test.utils import CaptureQueriesContext

from dashboards.health.defaults import default_rules
from dashboards.health.models import HealthBucket, HealthFinding, HealthRule, Incident
from dashboards.health.round import health_round, rule_of, spans_of, sums_stored
from dashboards.health.rules import Hit, Sum, Sums, judged, said
from dashboards.health.selectors import steps_told
from dashboards.health.services import dry_run, rule_create
from dashboards.health.xids import xid_of
from dashboards.models import ActivityEntry
from dashboards.prometheus.models import PrometheusServer
from scheduler.models import Gpu, Health, Node
from tests import builders
from tests.builders import NOON
from tests.dashboards.health_worlds import health_of, look, looks, rule
from tests.personas import Personas

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(("signal", "kept"), [("temperature", 80), ("retransmits", 10)])
def test_a_rule_on_levels_that_are_not_kept_is_refused(fleet, personas: Personas, signal, kept):
    """It could never hold. Where it is over may lie below: what is not kept counts as nothing."""
    values = {"name": "Low", "signal": signal, "window_minutes": 5, "clear_below": 5, "clear_minutes": 5, "action": "note"}
    access = personas.access("operator")
    with pytest.raises(ValidationError) as fault:
        rule_create(access=access, values=values | {"threshold": kept - 1}, reason="", now=NOON)

    assert fault.value.message_dict == {"threshold": [f"Choose {kept} or more: lower levels are not kept."]}
    assert rule_create(access=access, values=values | {"threshold": kept}, reason="", now=NOON).threshold == kept


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
    ("name", "told"),
    [
        ("Thermal throttling", "Rule Thermal throttling: 60 s in 5 min on GPU 1."),
        ("Throttles", "Rule Throttles: Thermal throttling: 60 s in 5 min on GPU 1."),
    ],
)
def test_a_rule_that_is_named_for_its_signal_names_it_once(fleet, name, told):
    nodes, gpus = fleet
    rule(name=name)
    looks(gpus, {"thermal": {gpus[3]: 1}}, start=NOON, end=NOON + MINUTE)
    health_round(now=NOON + MINUTE)

    assert Node.objects.get(pk=nodes[1].pk).health_reason == told
    assert [step.text for step in steps_told(Incident.objects.get())] == ["The rule held.", ""], "the title says the rest"


def test_no_more_seconds_are_told_than_a_window_has():
    """The sums are of whole five minutes: a window that ends between two of them holds a part of one more."""
    hit = Hit(rule_of(HealthRule(signal="thermal", threshold=600, window_minutes=15, clear_below=15, clear_minutes=10, action="note")), 0, 926)

    assert said(hit) == "Thermal throttling: 900 s in 15 min"


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
