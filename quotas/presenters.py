"""What pages show: the tree with sums over subtrees and one cell per GPU type, and audit entries as lines."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpufleet.core.models import AuditEntry
from quotas.models import QuotaNode, QuotaShare
from quotas.rules import said

Held = Mapping[int, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Cell:
    """A node's part of one GPU type. `guaranteed` None is unlimited, `limit` None is no limit."""

    gpu_type: str
    used: int
    guaranteed: int | None
    limit: int | None
    weight: int | None = None
    priority: int | None = None

    @property
    def borrowed(self) -> int:
        return max(0, self.used - self.guaranteed) if self.guaranteed is not None else 0

    @property
    def scale(self) -> int:
        """What a full bar stands for: the guarantee, or the limit where more is used than guaranteed."""
        if self.guaranteed is None or self.used > self.guaranteed:
            return self.limit or max(self.used, 1)
        return self.guaranteed

    @property
    def tone(self) -> str:
        return "over" if self.borrowed else "used"

    @property
    def says_nothing(self) -> bool:
        return not self.used and self.guaranteed == 0 and self.limit is None


@dataclass(slots=True)
class TreeRow:
    node: QuotaNode
    indent: int
    cells: list[Cell] = field(default_factory=list)

    @property
    def shift(self) -> int:
        return min(self.indent, 6)


def summed(paths: Mapping[int, str], held: Held) -> dict[str, dict[str, int]]:
    """Use by path and type with everything below added to what lies above it."""
    sums: dict[str, dict[str, int]] = {}
    for pk, by_type in held.items():
        if pk not in paths:
            continue
        steps = paths[pk].split("/")
        for depth in range(len(steps)):
            at = sums.setdefault("/".join(steps[: depth + 1]), {})
            for gpu_type, milli in by_type.items():
                at[gpu_type] = at.get(gpu_type, 0) + milli
    return sums


def cells_of(node: QuotaNode, gpu_types: Iterable[str], used: Mapping[str, int]) -> list[Cell]:
    shares: dict[str, QuotaShare] = {share.gpu_type: share for share in node.shares.all()}
    cells = []
    for gpu_type in gpu_types:
        share = shares.get(gpu_type)
        if share is None:
            cells.append(Cell(gpu_type, used.get(gpu_type, 0), 0, None))
        else:
            cells.append(Cell(gpu_type, used.get(gpu_type, 0), share.guaranteed_milli, share.limit_milli, share.weight, share.priority))
    return cells


def types_of(nodes: Iterable[QuotaNode], known: Iterable[str]) -> list[str]:
    """The fleet's GPU types, and those that the tree still names although the fleet has none left."""
    return sorted({*known, *(share.gpu_type for node in nodes for share in node.shares.all())})


def tree_rows(nodes: list[QuotaNode], gpu_types: list[str], sums: Mapping[str, Mapping[str, int]]) -> list[TreeRow]:
    shallowest = min((node.depth for node in nodes), default=0)
    return [TreeRow(node, node.depth - shallowest, cells_of(node, gpu_types, sums.get(node.path, {}))) for node in nodes]


def changes_of(entry: AuditEntry) -> list[dict[str, Any]]:
    """One line per field that differs. Amounts are in GPUs, as everywhere else on the pages."""
    before, after = entry.before or {}, entry.after or {}
    keys = dict.fromkeys([*before, *after])
    return [{"field": key.removesuffix("_milli"), "before": _in_gpus(key, before.get(key)), "after": _in_gpus(key, after.get(key))} for key in keys]


def _in_gpus(key: str, value: Any) -> Any:
    return said(value) if key.endswith("_milli") and isinstance(value, int) else value


def _summary(entry: AuditEntry) -> str:
    """The change in one line, for the list and the file."""
    parts = []
    for change in changes_of(entry):
        if entry.before and entry.after:
            parts.append(f"{change['field']}: {_short(change['before'])} → {_short(change['after'])}")
        else:
            parts.append(f"{change['field']}: {_short(change['after'] if entry.after else change['before'])}")
    return ", ".join(parts)


def _short(value: Any) -> str:
    text = "–" if value is None or value == "" else str(value)
    return text if len(text) <= 60 else text[:59] + "…"


class AuditLine:
    """An entry as the list shows it."""

    def __init__(self, entry: AuditEntry) -> None:
        self.entry = entry
        self.summary = _summary(entry)
