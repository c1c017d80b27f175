"""What ails the demo's links: a network port below its speed, segments that are sent again, a PCIe link that is full. Health rules note it.

As with other ailments it follows from the seed and the time alone. There is always one of each kind, and nothing is drained for it.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np

from dashboards.health.links import GIGABIT_BYTES, speeds_lost
from dashboards.health.models import HealthBucket
from dashboards.health.state import BUCKET, NIC_LOST, PCIE_SATURATED, RETRANSMITS, RawState, device_of_gpu
from gpufleet.core.times import millis
from gpufleet.demo.hardware import Hardware, Machine
from scheduler.models import IN_SERVICE

Ports = Mapping[int, Mapping[str, int]]  # Gb/s by node and network port, as the inventory has them

KINDS = (NIC_LOST, RETRANSMITS, PCIE_SATURATED)
SLOT = 180 * 60_000
LASTS = SLOT + 20 * 60_000  # the next one is known by then
LEFT = 0.25  # of the speed of a port
AGAIN = 340  # of ten thousand segments


@dataclass(frozen=True, slots=True)
class Link:
    """What a node's network, or the PCIe link of one of its GPUs, has since `began` (milliseconds)."""

    kind: str
    node: int
    gpu: int
    began: int


def links_ailing(hardware: Hardware, *, seed: int, moment: int) -> list[Link]:
    machines = sorted((one for one in hardware.machines.values() if not one.spare and not one.sliced and one.gpus), key=lambda one: one.key)
    found = []
    for kind in KINDS if machines else ():
        for slot in range((moment - LASTS) // SLOT + 1, moment // SLOT + 1):
            rng = random.Random(f"{seed} {kind} {slot}")  # noqa: S311 - a play, not a secret
            machine: Machine = rng.choice(machines)
            one = Link(kind, machine.key, rng.choice(machine.gpus), slot * SLOT)
            if machine.health in IN_SERVICE:
                found.append(one)
    return found


def with_links(state: RawState, ailing: Sequence[Link], ports: Ports) -> RawState:
    """A look at the devices of a cluster, with what ails its links."""
    nodes = list(state.nodes)
    slow = {one.node for one in ailing if one.kind == NIC_LOST}
    again = {one.node for one in ailing if one.kind == RETRANSMITS}
    full = {one.gpu for one in ailing if one.kind == PCIE_SATURATED}
    speeds = {
        node: {name: gbps * GIGABIT_BYTES * (LEFT if node in slow and name == min(ports[node]) else 1) for name, gbps in ports[node].items()}
        for node in nodes
        if node in ports
    }
    lost, slow_ports = speeds_lost(speeds, ports)
    figures = {NIC_LOST: [lost.get(node, 0) for node in nodes], RETRANSMITS: [AGAIN * (node in again) for node in nodes]}
    columns = {PCIE_SATURATED: np.array([int(gpu in full) for gpu in state.gpus], np.uint32)}
    return replace(state, columns={**state.columns, **columns}, node_columns={**state.node_columns, **figures}, slow_nics=slow_ports)


def links_seed(hardware: Hardware, *, seed: int, now: datetime) -> None:
    """The last quarter of an hour of a PCIe link that is full: it takes the rule so long to hold."""
    begin = now.replace(minute=now.minute - now.minute % 5, second=0, microsecond=0)
    rows = [
        HealthBucket(at=at, device=device_of_gpu(one.gpu), node_id=one.node, gpu_id=one.gpu, signal=PCIE_SATURATED, value=int(BUCKET.total_seconds()))
        for one in links_ailing(hardware, seed=seed, moment=millis(now))
        for at in (begin - number * BUCKET for number in (3, 2, 1))
        if one.kind == PCIE_SATURATED and one.began <= millis(at)
    ]
    HealthBucket.objects.bulk_create(rows)
