"""Dry runs: rules are tried against the past, and find what the rounds would have found."""

import time
from datetime import timedelta

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from hypothesis import given
from hypothesis import strategies as st

from dashboards.health.models import HealthFinding
from dashboards.health.round import health_round, rule_of
from dashboards.health.rules import Rule, Sum, Sums, judged, replay
from dashboards.health.services import dry_run, rule_change, rule_create, settings_save
from gpufleet.core.faults import Conflict
from scheduler.models import Health
from tests.builders import NOON
from tests.dashboards.health_worlds import health_of, look, looks, rule
from tests.personas import Personas

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


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
    sent = values | {"enabled": "on", "threshold": "100000", "dry_run": "yes", "revision": "1"}
    page = personas.client("operator").post(f"/incidents/rules/{made.public_id}/", sent).content.decode()
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
