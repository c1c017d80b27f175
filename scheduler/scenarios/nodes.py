"""The levels and the nodes of a scenario."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from scheduler.engine.model.mig import board_of, layout_faults
from scheduler.engine.model.values import UNSTATED_CPU_MILLI, UNSTATED_MEMORY_MIB, Instance, Node, SplitGpu, Topology
from scheduler.engine.state.fleet import bits_of

from .checkers import FLAG, GIGABYTES, MILLIONTHS, PROCESSORS, TEXT, TEXTS, moment, one_of, table_of, whole
from .faults import Bad, short
from .fields import Codec, Field, listed, optional, record

MOST_GPUS = 64


_TOPOLOGY = {
    "levels": Field("levels", TEXTS, ()),
    "rails": Field("rails", optional(TEXT), None),
    "bandwidth_gbps": Field("bandwidth_gbps", table_of(MILLIONTHS), ()),
    "oversubscription": Field("oversubscription", table_of(MILLIONTHS), ()),
}
TOPOLOGY = record(_TOPOLOGY, Topology)


def read_topology(raw: Any, bad: Bad) -> Topology:
    topology = bad.take(TOPOLOGY.read, raw, "topology") or Topology()
    levels, known = topology.levels, topology.all_levels
    for place, level in enumerate(levels):
        bad.when(level in ("cluster", "node"), f"{level} is implied and must not be named", "topology", "levels", place)
        bad.when(level in levels[:place], f"{short(level)} is named twice", "topology", "levels", place)
    rails, strange = topology.rails, f"is not a level; levels are {', '.join(known)}"
    bad.when(rails is not None and rails not in known, f"{short(rails)} {strange}", "topology", "rails")
    for key, amounts in (("bandwidth_gbps", topology.bandwidth_gbps), ("oversubscription", topology.oversubscription)):
        for level, _ in amounts:
            bad.when(level not in known, strange, "topology", key, level)
    return topology


def _mask(value: Any) -> int:
    mask = 0
    for gpu in GPUS.read(value):
        mask |= 1 << gpu
    if mask.bit_count() != len(value):
        raise Bad("names a GPU twice")
    return mask


def _islands(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    masks: tuple[int, ...] = listed(MASK, "a list of lists of GPU numbers").read(value)
    if not all(masks) or sum(mask.bit_count() for mask in masks) != sum(masks).bit_count():
        raise Bad("islands must not be empty and must not share a GPU")
    return tuple(sorted(masks, key=lambda mask: mask & -mask))


GPU = whole(0, MOST_GPUS - 1)
GPUS = listed(GPU, "a list of GPU numbers")
MASK = Codec(_mask, lambda mask: list(bits_of(mask)))
ISLANDS = Codec(_islands, lambda masks: [MASK.write(mask) for mask in masks] or None)
INSTANCE = record({"profile": Field("profile", TEXT), "start": Field("start", whole(0, 7))}, Instance)
INSTANCES = listed(INSTANCE)
SPLIT_GPU = record({"gpu": Field("gpu", GPU), "instances": Field("instances", INSTANCES)}, SplitGpu)


def node_codec(topology: Topology, now: int) -> Codec:
    time = moment(now)

    def past(value: Any) -> int:
        at: int = time.read(value)
        if at > now:
            raise Bad("must not lie ahead of now")
        return at

    fields = {
        "name": Field("name", TEXT),
        "gpu_type": Field("gpu_type", TEXT),
        "quota_type": Field("quota_type", optional(TEXT), None),
        "gpus": Field("gpus", whole(0, MOST_GPUS)),
        "gpu_memory_gb": Field("gpu_memory_mib", GIGABYTES, 0),
        "cluster": Field("cluster", TEXT, "default", of=lambda node: node.path[0]),
        "path": Field("domains", table_of(TEXT), (), of=lambda node: zip(topology.levels, node.path[1:], strict=True)),
        "island": Field("island", optional(TEXT), None),
        "islands": Field("islands", ISLANDS, ()),
        "health": Field("health", one_of("healthy", "suspect", "draining", "down"), "healthy"),
        "unhealthy_gpus": Field("unhealthy", MASK, 0),
        "spare": Field("spare", FLAG, False),
        "cpus": Field("cpu_milli", PROCESSORS, UNSTATED_CPU_MILLI, seldom=True),
        "host_memory_gb": Field("host_memory_mib", GIGABYTES, UNSTATED_MEMORY_MIB, seldom=True),
        "labels": Field("labels", table_of(TEXT), ()),
        "attributes": Field("attributes", table_of(MILLIONTHS), ()),
        "mig": Field("mig", listed(SPLIT_GPU), ()),
        "repartitioned": Field("repartitioned", listed(Codec(past, time.write)), (), seldom=True),
        "boundaries": Field("boundaries", listed(one_of("cores", "mig")), (), seldom=True),
    }
    return record(fields, lambda **values: _node(topology, **values))


def _node(topology: Topology, *, cluster: str, domains: tuple[tuple[str, str], ...], mig: Sequence[SplitGpu], **values: Any) -> Node:
    bad = Bad()
    levels, given = topology.levels, dict(domains)
    name, gpus, islands = values["name"], values["gpus"], values["islands"]
    if given.keys() != set(levels):
        for level in levels:
            bad.when(level not in given, f"does not say the node's {level}", "path")
        for level in given:
            bad.when(level not in levels, f"is not a level; levels are {', '.join(levels) or 'none'}", "path", level)
    for key, mask in (("unhealthy_gpus", values["unhealthy"]), ("islands", sum(islands))):
        bad.when(mask >> gpus, f"names a GPU beyond the node's {gpus}", key)
    larger = islands and values["island"] not in (None, name)
    bad.when(larger, "a node is either part of a larger island or has islands of its own", "islands")
    _check_boards(mig, values["gpu_type"], gpus, bad)
    bad.raise_if_any()
    values |= {
        "quota_type": values["quota_type"] or values["gpu_type"],
        "island": values["island"] or name,
        "path": (cluster, *(given[level] for level in levels)),
        "mig": tuple(sorted(SplitGpu(gpu, tuple(sorted(instances))) for gpu, instances in mig)),
        "repartitioned": tuple(sorted(values["repartitioned"])),
        "boundaries": tuple(sorted({*values["boundaries"]})),
    }
    return Node(**values)


def _check_boards(mig: Sequence[SplitGpu], gpu_type: str, gpus: int, bad: Bad) -> None:
    board = board_of(gpu_type)
    if board is None:
        bad.when(mig, f"{gpu_type} can't be split by MIG", "mig")
        return
    for place, (gpu, instances) in enumerate(mig):
        bad.when(gpu >= gpus, f"the node has {gpus} GPUs, counted from 0", "mig", place, "gpu")
        bad.when(gpu in (one.gpu for one in mig[:place]), f"GPU {gpu} is described twice", "mig", place, "gpu")
        for message in layout_faults(board, instances):
            bad.add(message, "mig", place, "instances")


def read_nodes(raw: Any, topology: Topology, now: int, bad: Bad) -> tuple[Node, ...]:
    nodes: list[Node] = []
    islands: dict[str, tuple[str, ...]] = {}
    for place, node in bad.named(node_codec(topology, now).read, raw, "nodes", "node").values():
        other = islands.setdefault(node.island, node.path)
        if other != node.path:
            bad.add(f"island {short(node.island)} reaches over {'/'.join(other)} and {'/'.join(node.path)}", "nodes", place, "island")
        nodes.append(node)
    return tuple(sorted(nodes, key=attrgetter("path", "island", "name")))
