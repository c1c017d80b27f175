"""What a Slurm cluster consists of, as a document that the import understands."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import yaml

from gpufleet.core.findings import some
from scheduler.backends.slurm.gres import Gres, profile_of
from scheduler.backends.slurm.printed import hostlist
from scheduler.backends.slurm.values import SlurmNode
from scheduler.engine.model.mig import BOARDS, Board, Instance, Layout, board_of, layout_faults
from scheduler.imports.documents import FORMAT

FEATURE = "true"  # the value of a label that Slurm gives: one that it no longer has goes, and labels with any other value are somebody else's
# Of nodes on which nobody has said where MIG instances lie that Slurm leaves open.
ASSUMED = "slurm/mig-assumed"
SWITCH = re.compile(r"(\w+)=(\S*)")


@dataclass(frozen=True, slots=True)
class KnownType:
    """The type of the inventory that a type of GRES stands for. Memory is given where the inventory does not have it yet."""

    name: str
    memory_mib: int | None = None
    board: str = ""  # of the MIG catalogue, where the inventory names it


Places = Mapping[int, Layout]  # of instances, by the index of their GPU


@dataclass(frozen=True, slots=True)
class Split:
    """What the inventory has of a node with MIG instances: whole GPUs, instances by profile, and where they lie."""

    whole: int
    instances: Mapping[str, int]
    places: Places


@dataclass(frozen=True, slots=True)
class Found:
    """A cluster as an import file, and what an operator should know of it."""

    text: str
    notes: tuple[str, ...]


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


def leaves_open(board: Board, places: Places) -> bool:
    """Whether instances may lie otherwise than so. Those that fill their GPU cannot."""
    profiles = {one.profile for layout in places.values() for one in layout}
    return any(board.known(name).memory < board.memory_slices for name in profiles)


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
    split: Mapping[str, Split] | None = None,
    labels: Mapping[str, Mapping[str, str]] | None = None,
    boundaries: Sequence[str] = (),
) -> Found:
    """The cluster as an import file. Raises `UnknownType` where `types` lacks one.

    `split` is what the inventory has of nodes with MIG instances: where Slurm has as many of each, the inventory is left as it is, since it may know
    better on which GPUs they lie. Where it does not, that is assumed, and said. `labels` is what it has of those: the ones that Slurm does not give
    stay. `boundaries` are the labels of those that Slurm enforces on all nodes.
    """
    paths = paths_of(topology)
    depth = max((len(paths.get(node.name, ())) for node in nodes), default=0)
    levels = levels_of(depth)
    rows, fresh = [], {}
    assumed: dict[str, list[str]] = {}
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
            gpus, is_open = _gpus(node.name, there, types, (split or {}).get(node.name))
            row |= gpus
            if is_open:
                assumed.setdefault(_counts(there.profiles), []).append(node.name)
        path = paths.get(node.name, ())
        if path and len(path) == depth:
            row["path"] = dict(zip(levels, path, strict=True))
        told = [*node.features, *boundaries, *(label for label, count in (("slurm/mps", there.mps), ("slurm/shard", there.shards)) if count)]
        told += [ASSUMED] if any(node.name in names for names in assumed.values()) else []
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
    notes = [
        f"{some(names)}: Slurm does not tell on which GPUs {counts} lie. They are assumed on as few as can be; an inventory file (mig) corrects that."
        for counts, names in sorted(assumed.items(), key=lambda one: one[1])
    ]
    return Found(yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=150), tuple(notes))


def _counts(instances: Mapping[str, int]) -> str:
    return ", ".join(f"{count} × {profile}" for profile, count in sorted(instances.items()))


def _gpus(name: str, there: Gres, types: Mapping[str, KnownType], split: Split | None) -> tuple[dict[str, Any], bool]:
    """Whole GPUs in the order of Slurm's numbers, with those that are split in between where their instances are numbered. And whether it is assumed
    where instances lie."""
    found: dict[str, Any] = {"gpu_type": types[base_of(there.types[0][0], there)].name}
    whole = sum(count for kind, count in there.types if not profile_of(kind))
    is_known = bool(there.profiles) and split is not None and (whole, there.profiles) == (split.whole, dict(split.instances))
    try:
        count, places, is_open = _placed(name, there, types)
    except UnknownType:
        if not is_known:
            raise
        return found, False  # an operator said where they lie
    if is_known and split is not None:
        return found, is_open and split.places == places
    mig = [{"gpu": gpu, "instances": [{"profile": one.profile, "start": one.start} for one in layout]} for gpu, layout in places.items()]
    return found | {"gpus": count} | ({"mig": mig} if mig else {}), is_open


def _placed(name: str, there: Gres, types: Mapping[str, KnownType]) -> tuple[int, dict[int, Layout], bool]:
    """How many GPUs there are, which of them have which instances, and whether they may have others."""
    count, is_open = 0, False
    places: dict[int, Layout] = {}
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
        own = dict(enumerate(layouts, count))
        places |= own
        is_open = is_open or leaves_open(board, own)
        count += len(layouts)
    return count, places, is_open
