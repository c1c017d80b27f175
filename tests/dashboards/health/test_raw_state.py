"""Raw state of the hardware: kept sparsely, by what counters grew, and beside frames of older versions."""

import zlib
from datetime import timedelta
from itertools import pairwise

import numpy as np
import pytest

from dashboards.health.defaults import default_rules
from dashboards.health.models import HealthBucket, HealthFinding, HealthFrame, HealthRule
from dashboards.health.round import health_round, rule_of
from dashboards.health.services import dry_run
from dashboards.health.state import STORED, UNREAD, RawState, state_write
from dashboards.readings import hardware_now
from gpufleet.core.prepared import together
from scheduler.models import Health, Lease, Node
from scheduler.snapshots.fleet import fleet_asked, fleet_view
from tests.builders import NOON
from tests.dashboards.health_worlds import LOOK, health_of, look, looks

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


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


def test_a_node_whose_pcie_link_is_narrower_offers_jobs_what_is_left_while_that_is_found(fleet, personas):
    """INV-5: bandwidth is what was measured, and may be degraded. The worst of its GPUs counts."""
    nodes, gpus = fleet
    Node.objects.update(pcie_gbps=55)
    HealthRule.objects.bulk_create(HealthRule(public_id=f"hr-{number}", **values) for number, values in enumerate(default_rules()))

    def offered():
        seen = fleet_view(tuple(together(*fleet_asked(NOON))))
        return {node.name.rpartition("/")[2]: dict(node.attributes)["pcie_gbps"] // 10**6 for node in seen.nodes}

    def page():
        return personas.client("operator").get(f"/nodes/{nodes[0].public_id}/").content.decode()

    for minute in range(14):
        look(gpus, {"pcie_lost": {gpus[0]: 50, gpus[1]: 75}}, at=NOON + minute * MINUTE)
        health_round(now=NOON + minute * MINUTE)
    assert offered() == {node.name: 55 for node in nodes} | {nodes[0].name: 13}
    assert health_of(nodes[0]) == Health.SUSPECT and "13 of 55 GB/s" in page()
    for minute in range(14, 40):
        look(gpus, {"pcie_lost": {gpus[0]: 50 if minute < 20 else 0}}, at=NOON + minute * MINUTE)
        health_round(now=NOON + minute * MINUTE)
    assert set(offered().values()) == {55} and "55 GB/s" in page()
    HealthRule.objects.update(action="note")  # so that nothing else asks for a plan
    wanted = [(0, Lease.objects.get(name="tick").wanted)]
    for minute in range(60, 100):
        look(gpus, {"pcie_lost": {gpus[2]: 50 if minute < 80 else 0}}, at=NOON + minute * MINUTE)
        health_round(now=NOON + minute * MINUTE)
        wanted.append((Node.objects.get(pk=nodes[1].pk).pcie_lost, Lease.objects.get(name="tick").wanted))
    changes = [now for before, now in pairwise(wanted) if before[0] != now[0]]
    assert [lost for lost, _ in changes] == [50, 0]
    assert changes[1][1] == changes[0][1] + 1, "a job that waits for it is looked at"


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
