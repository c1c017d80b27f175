"""Nodes of a Kubernetes cluster, from a file of `kubectl get nodes -o json`, as a document that the import understands.

What is read are the labels of NVIDIA's GPU feature discovery (product, count, memory, MIG strategy, clique), those that become levels, capacity,
readiness and zone.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from scheduler.engine.model.mig import board_of
from scheduler.hardware.kubernetes_levels import CLIQUE, ZONE, Known, LevelLabel, standing
from scheduler.imports.documents import FORMAT, KUBERNETES, MAX_BYTES, Fault, Unreadable

NVIDIA = "nvidia.com/"
COUNT = re.compile(r"[0-9]{1,9}")
MEMORY = re.compile(r"([0-9]{1,18})(Ki|Mi|Gi|Ti|)")
UNITS = {"": 1, "Ki": 1024, "Mi": 1024**2, "Gi": 1024**3, "Ti": 1024**4}
# Whatever Kubernetes writes as a quantity. Of those that are neither a count nor a memory the inventory keeps its own figure.
QUANTITY = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{1,18})?([eE][+-]?[0-9]{1,3}|[numkMGTPE]|[KMGTPE]i)?")
SPLIT = re.compile(r"(?P<board>.+)-MIG-(?P<profile>[0-9]+g\.[0-9]+gb\S*)")
VALUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
LONGEST = 120


@dataclass(frozen=True, slots=True)
class Described:
    """An import file, and what an operator should know of it before it is applied."""

    text: str
    notes: tuple[str, ...] = ()


def document_of(
    text: str,
    *,
    cluster: str,
    known_types: Mapping[str, str],
    new_cluster: bool,
    stated: Sequence[LevelLabel] | None = None,
    there: Known | None = None,
    backend: str = KUBERNETES,
) -> Described:
    """The nodes of the file as an import file; `known_types` maps boards to the names that the inventory has. `stated` are the labels that become
    levels, None those that are usual, and `there` is what the inventory has of the topology. Raises `Unreadable`."""
    found: list[tuple[str, str, dict[str, str], Mapping[str, Any]]] = []
    for place, one in enumerate(_nodes(text)):
        meta = one.get("metadata") if isinstance(one, dict) else None
        name = meta.get("name") if isinstance(meta, dict) else None
        if not isinstance(name, str) or not name:
            raise Unreadable(Fault(1, 1, f"items[{place}].metadata.name", "is missing"))
        assert isinstance(meta, dict)
        found.append((f"items[{place}]", name, _texts(meta.get("labels")), _map(one.get("status"))))
    topology = standing({name: labels for _, name, labels, _ in found}, stated, there or Known(), cluster=cluster)
    rows: list[dict[str, Any]] = []
    types: dict[str, dict[str, Any]] = {}
    for path, name, labels, status in found:
        for label in topology.labels:
            if labels.get(label) and not VALUE.fullmatch(labels[label]):
                raise Unreadable(Fault(1, 1, f"{path}.metadata.labels.{label}", "must be a value that Kubernetes takes for labels"))
        row, kind = _node(path, name, cluster, labels, status, known_types, topology.labels)
        if at := topology.places.get(name):
            row["path"] = dict(zip(topology.levels, at, strict=False))
        rows.append(row)
        types |= kind
    document: dict[str, Any] = {"format": FORMAT}
    if fresh := {name: facts for name, facts in types.items() if name not in known_types.values()}:
        document["gpu_types"] = [fresh[name] for name in sorted(fresh)]
    described: dict[str, Any] = {"name": cluster, "backend": backend} if new_cluster else {"name": cluster}
    if topology.levels:
        described["levels"] = [{"name": level} for level in topology.levels]
    document["clusters"] = [described]
    document["nodes"] = sorted(rows, key=lambda row: str(row["name"]))
    return Described(yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=150), topology.notes)


def _nodes(text: str) -> list[Any]:
    if len(text.encode(errors="replace")) > MAX_BYTES:
        raise Unreadable(Fault(1, 1, "", f"is larger than {MAX_BYTES // 1024**2} MiB"))
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as fault:
        line, column = (fault.lineno, fault.colno) if isinstance(fault, json.JSONDecodeError) else (1, 1)
        raise Unreadable(Fault(line, column, "", "this is not the JSON of kubectl get nodes -o json")) from None
    items = found.get("items") if isinstance(found, dict) else None
    if isinstance(found, dict) and found.get("kind") == "Node":
        items = [found]
    if not isinstance(items, list) or any(isinstance(one, dict) and one.get("kind", "Node") != "Node" for one in items):
        raise Unreadable(Fault(1, 1, "items", "must be a list of nodes, as kubectl get nodes -o json writes it"))
    return items


def _node(
    path: str,
    name: str,
    cluster: str,
    labels: Mapping[str, str],
    status: Mapping[str, Any],
    known_types: Mapping[str, str],
    of_levels: Sequence[str],
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    capacity = _map(status.get("capacity"))
    row: dict[str, Any] = {"name": name, "cluster": cluster}
    if COUNT.fullmatch(cpus := _quantity(capacity, "cpu", path)):
        row["cpus"] = int(cpus)
    if found := MEMORY.fullmatch(_quantity(capacity, "memory", path)):
        row["host_memory_mib"] = int(found[1]) * UNITS[found[2]] // 1024**2
    kept = {key: value for key, value in labels.items() if value and (key.startswith(NVIDIA) or key == ZONE.label or key in of_levels)}
    if kept:
        row["labels"] = {key: value[:LONGEST] for key, value in sorted(kept.items())}
    if clique := labels.get(CLIQUE, ""):
        row["island"] = clique[:LONGEST]
    types: dict[str, dict[str, Any]] = {}
    product = labels.get(f"{NVIDIA}gpu.product", "").removesuffix("-SHARED")
    count, memory = _count(labels, "gpu.count", path), _count(labels, "gpu.memory", path)
    # Of a product that is split the count is of instances, and nothing tells on which GPU they lie: such GPUs stay as the inventory has them.
    if product and count and SPLIT.fullmatch(product) is None:
        board = board_of(product.replace("-", " "))
        kind = (known_types.get(board.name) if board else None) or product.removeprefix("NVIDIA-")
        row |= {"gpu_type": kind, "gpus": count}
        types[kind] = {"name": kind}
        if board is not None:
            types[kind]["board"] = board.name
        if memory:
            types[kind]["memory_mib"] = memory
    conditions = status.get("conditions")
    ready = [_map(one).get("status") for one in conditions if _map(one).get("type") == "Ready"] if isinstance(conditions, list) else []
    if ready and ready[0] != "True":
        row["health"] = "down"
    return row, types


def _quantity(capacity: Mapping[str, Any], key: str, path: str) -> str:
    """The quantity as it is written; empty: not stated. Raises `Unreadable` for what Kubernetes never writes."""
    value = capacity.get(key)
    text = "" if value is None else str(value)
    if text and not QUANTITY.fullmatch(text):
        raise Unreadable(Fault(1, 1, f"{path}.status.capacity.{key}", "must be a quantity of Kubernetes"))
    return text


def _count(labels: Mapping[str, str], key: str, path: str) -> int:
    """The number of a label of GPU feature discovery; 0: not stated. Raises `Unreadable` for what is no number."""
    text = labels.get(f"{NVIDIA}{key}", "")
    if text and not COUNT.fullmatch(text):
        raise Unreadable(Fault(1, 1, f"{path}.metadata.labels.{NVIDIA}{key}", "must be a whole number"))
    return int(text or 0)


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(value: Any) -> dict[str, str]:
    return {str(key): text for key, text in _map(value).items() if isinstance(text, str)}
