"""What a Slurm cluster consists of, as a document that the import understands."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from scheduler.backends.slurm.client import SlurmNode, hostlist
from scheduler.imports.documents import FORMAT

GRES = re.compile(r"gpu(?::(?P<type>[A-Za-z][\w.-]*))?:(?P<count>\d+)")
SWITCH = re.compile(r"(\w+)=(\S*)")


@dataclass(frozen=True, slots=True)
class KnownType:
    """The type of the inventory that a type of GRES stands for. Memory is given where the inventory does not have it yet."""

    name: str
    memory_mib: int | None = None


class UnknownType(ValueError):
    """A type of GRES that nobody said what it is."""


def gpus_of(gres: str) -> tuple[str, int]:
    """Type and number of whole GPUs of `gpu:h100:8(S:0-1),nic:2`; MIG profiles and shards are not whole ones."""
    for match in GRES.finditer(gres):
        if not re.match(r"\d+g\.", match["type"] or ""):
            return match["type"] or "gpu", int(match["count"])
    return "", 0


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
    return {1: ["leaf"], 2: ["spine", "leaf"], 3: ["core", "spine", "leaf"]}.get(depth, [f"level-{number + 1}" for number in range(depth)])


def document_of(nodes: Sequence[SlurmNode], topology: str, *, cluster: str, types: Mapping[str, KnownType], new_cluster: bool) -> str:
    """The cluster as an import file. Raises `UnknownType` where `types` lacks one."""
    paths = paths_of(topology)
    depth = max((len(paths.get(node.name, ())) for node in nodes), default=0)
    levels = levels_of(depth)
    rows, fresh = [], {}
    for node in sorted(nodes, key=lambda node: node.name):
        gres, count = gpus_of(node.gres)
        row: dict[str, Any] = {"name": node.name, "cluster": cluster, "cpus": node.cpus, "host_memory_mib": node.memory_mib}
        if count:
            known = types.get(gres)
            if known is None:
                raise UnknownType(f"{node.name} has GPUs of the GRES type {gres}: name their type with --gpu-type {gres}=NAME:MEMORY_MIB.")
            row |= {"gpu_type": known.name, "gpus": count}
            if known.memory_mib is not None:
                fresh[known.name] = {"name": known.name, "memory_mib": known.memory_mib}
        path = paths.get(node.name, ())
        if path and len(path) == depth:
            row["path"] = dict(zip(levels, path, strict=True))
        if node.features:
            row["labels"] = dict.fromkeys(node.features, "true")
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
