"""The demo's hardware: which nodes there are, where they stand and how their GPUs are split. A description only; `seed` writes it."""

import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from scheduler.engine.model.mig import BOARDS, Instance

H100, A100, L40S = "H100-SXM-80GB", "A100-SXM-80GB", "L40S-48GB"
LEAVES_PER_SPINE = 4
GPUS_PER_NODE = 8
SLICED_BOARD = BOARDS["A100-80"]


@dataclass(frozen=True, slots=True)
class Type:
    name: str
    board: str
    memory_mib: int
    hbm_gbps: int
    cpus: int
    host_memory_mib: int
    pcie_generation: int
    nic_gbps: int
    nics: int
    short: str


TYPES = {
    H100: Type(H100, "H100-80", 81_559, 3_350, 192, 2_097_152, 5, 400, 8, "h100"),
    A100: Type(A100, "A100-80", 81_920, 2_039, 128, 1_048_576, 4, 200, 8, "a100"),
    L40S: Type(L40S, "", 46_068, 864, 96, 786_432, 4, 200, 2, "l40s"),
}


@dataclass(frozen=True, slots=True)
class Block:
    """Nodes of one kind that were bought together. They start on a leaf of their own; the last ones of the block are spares."""

    cluster: str
    pool: str
    gpu_type: str
    nodes: int
    spares: int = 0
    sliced: int = 0
    island_leaves: int = 0  # so many of its first leaves share one NVLink fabric over their nodes


@dataclass(frozen=True, slots=True)
class Plan:
    name: str
    nodes_per_leaf: int
    blocks: tuple[Block, ...]
    history_hours: int
    stretch: int  # how much longer the quick work runs, so that a large fleet writes no eight-fold history
    pressure: int  # percent: a large fleet packs better, so the same demand would leave nothing free
    pace_seconds: int  # of the past, whose steps are longer than those of the present


@dataclass(frozen=True, slots=True)
class PlannedNode:
    name: str
    cluster: str
    pool: str
    gpu_type: str
    spine: str
    leaf: str
    island: str
    spare: bool
    sliced: bool


PLANS = {
    "small": Plan(
        "small",
        4,
        (
            Block("aurora", "training", H100, 32, spares=2, island_leaves=1),
            Block("aurora", "general", A100, 16, sliced=2),
            Block("borealis", "serving", L40S, 12, spares=1),
            Block("borealis", "slices", A100, 4, sliced=4),
        ),
        24,
        1,
        100,
        30,
    ),
    "large": Plan(
        "large",
        8,
        (
            Block("aurora", "training", H100, 320, spares=8, island_leaves=4),
            Block("borealis", "general", A100, 128, spares=3, sliced=24),
            Block("castor", "serving", L40S, 52, spares=2),
        ),
        12,
        3,
        86,
        60,
    ),
}
CLUSTER_TITLES = {"aurora": "Aurora", "borealis": "Borealis", "castor": "Castor"}

# How the sliced boards are cut, in turn: many small replicas, a mix, and two large ones.
LAYOUTS: tuple[tuple[Instance, ...], ...] = (
    tuple(Instance(start, "1g.10gb") for start in range(7)),
    (Instance(0, "2g.20gb"), Instance(2, "2g.20gb"), Instance(4, "3g.40gb")),
    (Instance(0, "4g.40gb"), Instance(4, "1g.10gb"), Instance(5, "1g.10gb"), Instance(6, "1g.10gb")),
    (Instance(0, "3g.40gb"), Instance(4, "3g.40gb")),
)


def planned_nodes(plan: Plan) -> Iterator[PlannedNode]:
    """Every node with its place. Leaves are filled one after the other, four of them under each spine."""
    leaves: dict[str, int] = {}
    for block in plan.blocks:
        first = leaves.get(block.cluster, 0)
        leaves[block.cluster] = first - -block.nodes // plan.nodes_per_leaf
        for number in range(block.nodes):
            leaf = first + number // plan.nodes_per_leaf
            spine, inner = leaf // LEAVES_PER_SPINE + 1, leaf % LEAVES_PER_SPINE + 1
            yield PlannedNode(
                name=f"{TYPES[block.gpu_type].short}-s{spine:02}l{inner}-n{number % plan.nodes_per_leaf + 1}",
                cluster=block.cluster,
                pool=block.pool,
                gpu_type=block.gpu_type,
                spine=f"spine-{spine}",
                leaf=f"leaf-{inner}",
                island=f"nvl-{leaf + 1}" if leaf - first < block.island_leaves else "",
                spare=number >= block.nodes - block.spares,
                sliced=number >= block.nodes - block.spares - block.sliced and number < block.nodes - block.spares,
            )


def gpu_uuid(rng: random.Random, kind: str = "GPU") -> str:
    return f"{kind}-{uuid.UUID(int=rng.getrandbits(128), version=4)}"
