"""What pages show: the tree with sums over subtrees and one cell per GPU type, and audit entries as lines."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from gpufleet.core.lengths import length_written
from gpufleet.core.models import AuditEntry
from gpufleet.core.money import exact_money
from gpufleet.core.templatetags.shell import duration
from quotas.drafts import NodeState, Tree
from quotas.models import NodeKind, QuotaNode, QuotaShare
from quotas.rules import POLICY, Rule, field_word, said
from quotas.selectors.changes import Line

Held = Mapping[int, Mapping[str, int]]
INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d([.]\d+)?)?(Z|[+-]\d\d:\d\d)")


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
    """One line per field that differs, each value in the unit in which the other pages write it."""
    before, after = entry.before or {}, entry.after or {}
    return [_change(key, before.get(key), after.get(key)) for key in dict.fromkeys([*before, *after])]


def _length(millis: int) -> str:
    seconds, rest = divmod(millis, 1000)
    return f"{millis} ms" if rest else length_written(seconds)


# What the end of a field's name says of whole numbers in it: amounts of GPUs, money, and lengths of time. Nothing is rounded.
WRITTEN: dict[str, Callable[[int], str]] = {
    "_milli": said,
    "_micros": exact_money,
    "_nanos": lambda nanos: exact_money(Decimal(nanos).scaleb(-3)),
    "_ms": _length,
    "_s": length_written,
}


def _change(key: str, before: Any, after: Any) -> dict[str, Any]:
    unit = next((unit for unit in WRITTEN if key.endswith(unit)), None)
    written = WRITTEN[unit] if unit is not None and all(value is None or type(value) is int for value in (before, after)) else None
    if unit is None or written is None:
        return {"field": key, "before": _moment_in_words(before), "after": _moment_in_words(after)}
    before, after = (None if value is None else written(value) for value in (before, after))
    return {"field": key.removesuffix(unit), "before": before, "after": after}


def _moment_in_words(value: Any) -> Any:
    """An instant as the list writes its own: entries keep them as programs write them."""
    if not isinstance(value, str) or not INSTANT.fullmatch(value):
        return value
    return f"{datetime.fromisoformat(value).astimezone(UTC).replace(tzinfo=None).isoformat(' ')} UTC"


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


@dataclass(frozen=True, slots=True)
class ChangedField:
    """A line of a change as pages and the command line say it."""

    path: str
    node: str | None
    label: str
    before: str
    after: str
    what: str


@dataclass(frozen=True, slots=True)
class PastRow:
    """A node of a past tree: its guarantee and limit for each GPU type, as text."""

    path: str
    label: str
    indent: int
    kind: str
    weight: int
    priority: int
    amounts: list[str]

    @property
    def shift(self) -> int:
        return min(self.indent, 6)


def past_rows(tree: Tree, states: Iterable[NodeState]) -> tuple[list[str], list[PastRow]]:
    """The GPU types that it names, and its nodes in order."""
    shown = list(states)
    types = sorted({gpu_type for state in shown for gpu_type in state.values.shares})
    depths = [tree.paths[state.id].count("/") for state in shown]
    least = min(depths, default=0)
    rows = []
    for state, depth in zip(shown, depths, strict=True):
        values, amounts = state.values, []
        for gpu_type in types:
            share = values.shares.get(gpu_type)
            limit = "" if share is None or share.limit_milli is None else f", limit {said(share.limit_milli)}"
            amounts.append("–" if share is None else f"{said(share.guaranteed_milli)}{limit}")
        path, kind = tree.paths[state.id], NodeKind(values.kind).label
        rows.append(PastRow(path, values.title or state.name, depth - least, kind, values.weight, values.priority, amounts))
    return types, rows


def policy_told(policy: Mapping[str, int | str]) -> list[tuple[str, str]]:
    """The fleet-wide rules that are set, as pages say them."""
    return [(rule.title, _ruled(rule, policy[name])) for name, rule in POLICY.items() if name in policy]


def _ruled(rule: Rule, value: Any) -> str:
    if rule.choices:
        return rule.choices.get(value, str(value))
    if rule.unit == "s":
        return duration(value)
    if rule.unit == "millionths":
        return f"{value / 1_000_000:g}"
    return f"{value / 3600:,.4g} GPU-hours"


def changed_fields(lines: Iterable[Line]) -> list[ChangedField]:
    """`H100 guaranteed: 8 → 6`; of an amount that is not stated its meaning."""
    return [
        ChangedField(line.path, line.node, _field_word(line.field), _worded(line.field, line.before), _worded(line.field, line.after), line.what)
        for line in lines
    ]


def _field_word(name: str) -> str:
    if name.startswith("policy."):
        rule = POLICY.get(name.removeprefix("policy."))
        return rule.title.lower() if rule else name
    gpu_type, dot, rest = name.rpartition(".")
    word = field_word(rest)
    return f"{gpu_type} {word}" if dot else word


def _worded(name: str, value: Any) -> str:
    if name.endswith("guaranteed_milli"):
        return said(value)
    if name.endswith("limit_milli"):
        return "none" if value is None else said(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is not None and (rule := POLICY.get(name.removeprefix("policy."))):
        return _ruled(rule, value)
    return "–" if value is None or value == "" else str(value)


class AuditLine:
    """An entry as the list shows it."""

    def __init__(self, entry: AuditEntry) -> None:
        self.entry = entry
        self.summary = _summary(entry)
