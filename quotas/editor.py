"""The editor of the tree: rows that unfold, cells that are edited in place, and edits that become one change."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quotas.chargeback.report import NodeCosts
from quotas.drafts import state_of
from quotas.models import NodeKind, QuotaNode
from quotas.permissions import Access, Can
from quotas.presenters import Cell, cells_of, changed_fields
from quotas.rules import said
from quotas.selectors.changes import Line, change_list, lines_since
from quotas.selectors.nodes import Outline

MOST_OPEN = 400
MOST_SINCE = 50  # changes of one node that are looked through
Figure = Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class EditorCell:
    """One GPU type of a node: what is stated, and how it stands."""

    cell: Cell
    fair: int | None
    waiting: int
    decayed: int  # millionths of the fleet

    @property
    def guaranteed_text(self) -> str:
        return said(self.cell.guaranteed)

    @property
    def limit_text(self) -> str:
        return "none" if self.cell.limit is None else said(self.cell.limit)

    @property
    def past_percent(self) -> str:
        return f"{self.decayed / 10_000:.1f}".removesuffix(".0")


@dataclass(frozen=True, slots=True)
class EditorRow:
    node: QuotaNode
    indent: int
    has_children: bool
    is_open: bool
    decides: bool  # whether what it is promised may be edited here
    cells: list[EditorCell]
    href: str
    may: str = ""  # of add, move and archive
    cost: tuple[int, int] | None = None  # this month so far and by its end at this pace, in nano-units; None: not to be seen

    @property
    def shift(self) -> int:
        return min(self.indent, 6)


def opened(nodes: Sequence[Outline], wanted: Iterable[str]) -> set[str]:
    """The paths whose children are shown: the two topmost levels, those that the address names, and what lies above these."""
    least = min((node.depth for node in nodes), default=0)
    by_id = {node.public_id: node.path for node in nodes}
    found = {node.path for node in nodes if node.depth == least}
    for key in list(wanted)[:MOST_OPEN]:
        steps = by_id[key].split("/") if key in by_id else []
        found |= {"/".join(steps[: depth + 1]) for depth in range(len(steps))}
    return found


def steps_above(path: str) -> list[str]:
    """The paths of all nodes above one."""
    steps = path.split("/")
    return ["/".join(steps[:depth]) for depth in range(1, len(steps))]


def editor_rows(
    access: Access,
    nodes: Sequence[Outline],
    shown: Iterable[QuotaNode],
    types: Sequence[str],
    sums: Mapping[str, Mapping[str, int]],
    figures: tuple[Figure, Figure, Figure],
    unfolded: set[str],
    href: Callable[[QuotaNode], str],
    costs: NodeCosts | None = None,
) -> list[EditorRow]:
    fair, waiting, decayed = figures
    least = min((node.depth for node in nodes), default=0)
    parents = {node.parent_id for node in nodes}
    rows = []
    for node in shown:
        cells = [
            EditorCell(
                cell, fair.get((node.path, cell.gpu_type)), waiting.get((node.path, cell.gpu_type), 0), _past(decayed, node.path, cell.gpu_type)
            )
            for cell in cells_of(node, types, sums.get(node.path, {}))
        ]
        above = node.path.rpartition("/")[0]
        decides = access.can(Can.EDIT_QUOTA, above) if above else access.can_everywhere(Can.EDIT_QUOTA)
        may = ["add"] if access.can(Can.EDIT_QUOTA, node.path) and node.kind != NodeKind.USER else []
        may += ["move", "archive"] if decides and above else []
        cost = (costs.so_far.get(node.path, 0), costs.ahead(node.path)) if costs is not None and access.can(Can.SEE_COSTS, node.path) else None
        has_children, is_open = node.pk in parents, node.path in unfolded
        rows.append(EditorRow(node, node.depth - least, has_children, is_open, decides, cells, href(node), " ".join(may), cost))
    return rows


def blank_row(types: Sequence[str]) -> EditorRow:
    """What a node has that is added in the browser."""
    cells = [EditorCell(Cell(gpu_type, 0, 0, None), None, 0, 0) for gpu_type in types]
    return EditorRow(QuotaNode(name="NEW"), 0, False, False, True, cells, "", "add")


def parents_named(edits: Iterable[Any], outline: Iterable[Outline]) -> None:
    """A parent that is not on the page is named by its path; from here on by its id."""
    ids = {node.path: node.public_id for node in outline}
    for edit in edits:
        if isinstance(edit, dict) and isinstance(edit.get("parent"), str):
            edit["parent"] = ids.get(edit["parent"], edit["parent"])


def _past(decayed: Figure, path: str, gpu_type: str) -> int:
    return decayed.get((path, gpu_type), decayed.get((path, "*"), 0))


def edits_sent(text: str) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The edits that a browser sends, and the revision at which it saw each node. Raises ValueError."""
    sent = json.loads(text)
    if not isinstance(sent, dict) or not isinstance(sent.get("edits"), list) or not isinstance(sent.get("seen"), dict):
        raise ValueError("It is not what the editor sends.")
    seen = {str(key): revision for key, revision in sent["seen"].items() if isinstance(revision, int)}
    return sent["edits"], seen


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, and at which cell of the page: of a node's name or place it has no field."""

    text: str
    node: str = ""
    field: str = ""


def changed_meanwhile(access: Access, nodes: Iterable[QuotaNode], seen: Mapping[str, int]) -> list[Fault]:
    """What others changed of nodes that were edited, since they were seen: a line for each field, and one where that is all that is known."""
    told: list[Fault] = []
    for node in nodes:
        revision = seen.get(node.public_id, node.revision)
        if revision == node.revision:
            continue
        newest = change_list(access).filter(nodes=node, applied_at__isnull=False).order_by("-applied_at", "-id")[:MOST_SINCE]
        since = [change for change in reversed(newest) if (was := change.before.get(node.public_id)) and was["revision"] >= revision]
        by = f" by {since[-1].applied_by_name}" if since else ""
        lines = lines_since(state_of(since[0].before[node.public_id]), node) if since else ()
        told += [
            Fault(f"{node.path}{by}: {one.label} {one.before} → {one.after}", node.public_id, _cell_of(line))
            for line, one in zip(lines, changed_fields(lines), strict=True)
        ]
        if not lines:
            told.append(Fault(f"{node.path} was changed{by}.", node.public_id))
    return told


def _cell_of(line: Line) -> str:
    """As the page names a cell: of a share `shares.H100.limit_milli`, of what has no cell nothing."""
    if line.field in ("weight", "priority"):
        return line.field
    return f"shares.{line.field}" if line.field.endswith(("guaranteed_milli", "limit_milli")) else ""


def faults_told(faults: Mapping[str, Sequence[str]], edits: Sequence[Mapping[str, Any]], paths: Mapping[str, str]) -> list[Fault]:
    """Each fault with the node that it is about."""
    told = []
    for at, texts in faults.items():
        steps = at.split(".", 2)
        place = int(steps[1]) if steps[0] == "edits" and len(steps) > 1 and steps[1].isdigit() else None
        edit = edits[place] if place is not None and place < len(edits) and isinstance(edits[place], dict) else {}
        node = str(edit.get("node", ""))
        path = paths.get(node) or str(edit.get("name") or node)
        told += [Fault(f"{path}: {text}" if path else text, node, steps[2] if len(steps) > 2 else "") for text in texts]
    return told
