"""What an import would do: changes for people to read, and the same as operations for the service that applies them."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scheduler.engine.model.mig import Instance
from scheduler.imports.documents import Fault
from scheduler.models import Cluster, Domain, Gpu, GpuType, Nic, Node, TopologyLevel

NodeKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Difference:
    """One field, before and after."""

    field: str
    before: Any
    after: Any


def differing(present: Any, fields: Mapping[str, Any]) -> tuple[Difference, ...]:
    """The fields in which a row is not yet what is wanted."""
    return tuple(Difference(name, getattr(present, name), value) for name, value in fields.items() if getattr(present, name) != value)


def stated(fields: Mapping[str, Any]) -> tuple[Difference, ...]:
    """What a new row is given. What is empty says nothing."""
    return tuple(Difference(name, None, value) for name, value in fields.items() if value not in (None, "", {}, []))


@dataclass(frozen=True, slots=True)
class Change:
    """One line of the preview. `kind` is added, changed, removed, or kept: missing in the file but left alone."""

    kind: str
    what: str
    name: str
    differences: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()
    node: NodeKey | None = None
    gpu: int | None = None

    @property
    def before(self) -> dict[str, Any]:
        return {difference.field: difference.before for difference in self.differences}

    @property
    def after(self) -> dict[str, Any]:
        return {difference.field: difference.after for difference in self.differences}


@dataclass(slots=True)
class NewNode:
    key: NodeKey
    pool: str | None
    place: str | None
    fields: dict[str, Any]


@dataclass(slots=True)
class NewGpu:
    node: NodeKey
    index: int
    fields: dict[str, Any]
    layout: tuple[Instance, ...] = ()
    instance_uuids: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class ChangedNode:
    """`fields` are plain ones; a pool or place that is given (also as None) is in `moves`."""

    node: Node
    fields: dict[str, Any]
    moves: dict[str, str | None]
    key: NodeKey


@dataclass(slots=True)
class ChangedGpu:
    gpu: Gpu
    fields: dict[str, Any]
    layout: tuple[Instance, ...] | None = None
    instance_uuids: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class Plan:
    """Everything that an import would do, in the order in which it is shown."""

    changes: list[Change] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    new_types: list[GpuType] = field(default_factory=list)
    changed_types: list[tuple[GpuType, dict[str, Any]]] = field(default_factory=list)
    new_clusters: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    changed_clusters: list[tuple[Cluster, dict[str, Any]]] = field(default_factory=list)
    new_levels: list[tuple[str, int, dict[str, Any]]] = field(default_factory=list)
    changed_levels: list[tuple[TopologyLevel, dict[str, Any]]] = field(default_factory=list)
    new_pools: list[tuple[str, str]] = field(default_factory=list)
    new_domains: list[tuple[str, tuple[str, ...], dict[str, Any]]] = field(default_factory=list)
    changed_domains: list[tuple[Domain, dict[str, Any]]] = field(default_factory=list)
    new_nodes: list[NewNode] = field(default_factory=list)
    changed_nodes: list[ChangedNode] = field(default_factory=list)
    gone_nodes: list[Node] = field(default_factory=list)
    new_gpus: list[NewGpu] = field(default_factory=list)
    changed_gpus: list[ChangedGpu] = field(default_factory=list)
    gone_gpus: list[Gpu] = field(default_factory=list)
    new_nics: list[tuple[NodeKey, str, dict[str, Any]]] = field(default_factory=list)
    changed_nics: list[tuple[Nic, dict[str, Any]]] = field(default_factory=list)
    gone_nics: list[Nic] = field(default_factory=list)

    @property
    def effective(self) -> list[Change]:
        """The changes that applying would make; what is kept makes none."""
        return [change for change in self.changes if change.kind != "kept"]

    @property
    def counts(self) -> dict[str, int]:
        return dict(Counter(change.kind for change in self.changes))

    def counts_of(self, kinds: Sequence[str] = ("added", "changed", "removed", "kept")) -> list[tuple[str, int]]:
        return [(kind, self.counts[kind]) for kind in kinds if kind in self.counts]

    @property
    def digest(self) -> str:
        """Two plans with the same digest do the same."""
        return hashlib.sha256(repr(self.changes).encode()).hexdigest()
