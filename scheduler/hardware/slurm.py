"""What a Slurm cluster consists of, as a document that the import understands."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import yaml

from scheduler.backends.slurm.gres import Gres, profile_of
from scheduler.backends.slurm.printed import hostlist
from scheduler.backends.slurm.values import SlurmNode
from scheduler.engine.model.mig import BOARDS, Board, Instance, Layout, board_of, layout_faults
from scheduler.imports.documents import FORMAT

FEATURE = "true"  # the value of a label that Slurm gives: one that it no longer has goes, and labels with any other value are somebody else's
SWITCH = re.compile(r"(\w+)=(\S*)")


@dataclass(frozen=True, slots=True)
class KnownType:
    """The type of the inventory that a type of GRES stands for. Memory is given where the inventory does not have it yet."""

    name: str
    memory_mib: int | None = None
    board: str = ""  # of the MIG catalogue, where the inventory names it


class UnknownType(ValueError):
    """A type of GRES that nobody said what it is."""


def types_of(gres: str) -> set[str]:
    """The types of GRES that are to be known of a node: those of its whole GPUs, and of the GPUs that its MIG instances lie on."""
    there = Gres.read(gres)
    return {base_of(kind, there) for kind, _ in there.types}


def base_of(kind: str, there: Gres) -> str:
    """`nvidia_h100_80gb_hbm3_1g.10gb` lies on a `nvidia_h100_80gb_hbm3`; a bare `1g.10gb` on what the other GPUs of the node are."""
    return (kind.removesuffix(profile_of(kind)).rstrip("_") if profile_of(kind) else kind) or there.whole[0] or "gpu"


def packed(board: Board, instances: Mapping[str, int]) -> list[Layout]:
    """GPUs that such instances lie on, as few as can be: the largest first, each where the first GPU has room. Slurm does not tell where they are.

    Raises ValueError for a profile that the board does not have.
    """
    sizes = {profile.name: profile for profile in board.profiles}
    if unknown := sorted(instances.keys() - sizes.keys()):
        raise ValueError(f"{board.name} has no MIG profile {', '.join(unknown)}")
    gpus: list[Layout] = []
    for name in sorted(instances, key=lambda name: (-sizes[name].memory, -sizes[name].compute, name)):
        for _ in range(instances[name]):
            for place, layout in enumerate([*gpus, ()]):
                tried = (tuple(sorted([*layout, Instance(start, name)])) for start in sizes[name].starts)
                found = next((one for one in tried if not layout_faults(board, one)), None)
                if found is not None:
                    gpus[place : place + 1] = [found]
                    break
    return gpus


def paths_of(topology: str) -> dict[str, tuple[str, ...]]:
    """The switches above each node, widest first, of `scontrol show topology`."""
    above: dict[str, str] = {}
    leaves: dict[str, str] = {}
    for line in topology.splitlines():
        facts = dict(SWITCH.findall(line))
        if "SwitchName" not in facts:
            continue
        for child in hostlist(facts.get("Switches", "")):
            above[child] = facts["SwitchName"]
        if "Switches" not in facts:
            for node in hostlist(facts.get("Nodes", "")):
                leaves[node] = facts["SwitchName"]
    found = {}
    for node, switch in leaves.items():
        path = [switch]
        while path[0] in above and above[path[0]] not in path:
            path.insert(0, above[path[0]])
        found[node] = tuple(path)
    return found


def levels_of(depth: int) -> list[str]:
    """By how far they are from the nodes: a switch above all others changes no name, and so no level's meaning."""
    return [*(f"core-{number}" for number in range(depth - 2, 1, -1)), *["core", "spine", "leaf"][max(0, 3 - depth) :]]


def document_of(
    nodes: Sequence[SlurmNode],
    topology: str,
    *,
    cluster: str,
    types: Mapping[str, KnownType],
    new_cluster: bool,
    split: Mapping[str, tuple[int, Mapping[str, int]]] | None = None,
    labels: Mapping[str, Mapping[str, str]] | None = None,
    boundaries: Sequence[str] = (),
) -> str:
    """The cluster as an import file. Raises `UnknownType` where `types` lacks one.

    `split` is what the inventory has of nodes with MIG instances, whole GPUs and instances by profile: where Slurm has as many of each, the inventory
    is left as it is, since it may know better on which GPUs they lie. `labels` is what it has of those: the ones that Slurm does not give stay.
    `boundaries` are the labels of those that Slurm enforces on all nodes.
    """
    paths = paths_of(topology)
    depth = max((len(paths.get(node.name, ())) for node in nodes), default=0)
    levels = levels_of(depth)
    rows, fresh = [], {}
    for node in sorted(nodes, key=lambda node: node.name):
        there = Gres.read(node.gres)
        row: dict[str, Any] = {"name": node.name, "cluster": cluster, "cpus": node.cpus, "host_memory_mib": node.memory_mib}
        if there.types:
            for gres in sorted(types_of(node.gres)):
                known = types.get(gres)
                if known is None:
                    raise UnknownType(f"{node.name} has GPUs of the GRES type {gres}: name their type with --gpu-type {gres}=NAME:MEMORY_MIB.")
                if known.memory_mib is not None:
                    fresh[known.name] = {"name": known.name, "memory_mib": known.memory_mib}
            row |= _gpus(node.name, there, types, (split or {}).get(node.name))
        path = paths.get(node.name, ())
        if path and len(path) == depth:
            row["path"] = dict(zip(levels, path, strict=True))
        told = [*node.features, *boundaries, *(label for label, count in (("slurm/mps", there.mps), ("slurm/shard", there.shards)) if count)]
        others = {name: value for name, value in (labels or {}).get(node.name, {}).items() if value != FEATURE}
        row["labels"] = others | dict.fromkeys(told, FEATURE)
        rows.append(row)
    document: dict[str, Any] = {"format": FORMAT}
    if fresh:
        document["gpu_types"] = list(fresh.values())
    described: dict[str, Any] = {"name": cluster}
    if new_cluster:
        described["backend"] = "slurm"
    if levels:
        described["levels"] = [{"name": name} for name in levels]
    document["clusters"] = [described]
    document["nodes"] = rows
    text: str = yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=150)
    return text


def _gpus(name: str, there: Gres, types: Mapping[str, KnownType], split: tuple[int, Mapping[str, int]] | None) -> dict[str, Any]:
    """Whole GPUs in the order of Slurm's numbers, with those that are split in between where their instances are numbered."""
    first = types[base_of(there.types[0][0], there)]
    whole = sum(count for kind, count in there.types if not profile_of(kind))
    found: dict[str, Any] = {"gpu_type": first.name}
    if there.profiles and split is not None and (whole, there.profiles) == (split[0], dict(split[1])):
        return found
    count, mig = 0, []
    for is_split, group in groupby(there.types, key=lambda one: bool(profile_of(one[0]))):
        kinds = list(group)
        if not is_split:
            count += sum(number for _, number in kinds)
            continue
        base = types[base_of(kinds[0][0], there)]
        board = BOARDS.get(base.board) or board_of(base.name)
        if board is None:
            raise UnknownType(f"{name} has MIG instances, and {base.name} is no GPU that the MIG catalogue has.")
        try:
            layouts = packed(board, Gres(tuple(kinds)).profiles)
        except ValueError as fault:
            raise UnknownType(f"{name}: {fault}.") from None
        for layout in layouts:
            mig.append({"gpu": count, "instances": [{"profile": one.profile, "start": one.start} for one in layout]})
            count += 1
    found["gpus"] = count
    return found | ({"mig": mig} if mig else {})
