"""The CSV form: one row a node. It is turned into the tree that YAML and JSON have, so that one schema checks all three."""

from collections.abc import Callable

from scheduler.imports.documents import Fault, Item
from scheduler.imports.schema import NODE

COLUMNS = ("levels", *(name for name in NODE if name != "attributes"))


def tree_of(rows: Item, faults: list[Fault]) -> Item:
    """The rows as a document. Clusters that rows name come into being with it; `levels` names their topology."""
    for name, (cell, _) in rows.entries.items():
        if name not in COLUMNS:
            faults.append(Fault(cell.line, cell.column, name, f"is not a column; the columns are {', '.join(COLUMNS)}"))
    missing = [name for name in ("cluster", "name") if name not in rows.entries]
    faults.extend(Fault(rows.line, rows.column, name, "this column is missing") for name in missing)
    clusters: dict[str, Item] = {}
    nodes = Item(rows.line, rows.column, "list")
    for row in rows.items:
        nodes.items.append(_node(row))
        _cluster(row, clusters, faults)
    root = Item(rows.line, rows.column, "map")
    listed = Item(rows.line, rows.column, "list", items=list(clusters.values()))
    root.entries = {"clusters": (listed, listed), "nodes": (nodes, nodes)}
    return root


def _node(row: Item) -> Item:
    node = Item(row.line, row.column, "map")
    for name, (key, cell) in row.entries.items():
        if name in COLUMNS and name != "levels":
            node.entries[name] = (key, _PACKED[name](cell) if name in _PACKED else cell)
    return node


def _cluster(row: Item, clusters: dict[str, Item], faults: list[Fault]) -> None:
    if "cluster" not in row.entries:
        return
    cell = row.entries["cluster"][1]
    levels = row.entries["levels"][1] if "levels" in row.entries else None
    known = clusters.get(cell.text)
    if known is None:
        known = clusters[cell.text] = Item(cell.line, cell.column, "map", entries={"name": (cell, cell)})
    if levels is None:
        return
    packed = _map_list(levels, "/", lambda piece: piece)
    if "levels" not in known.entries:
        known.entries["levels"] = (levels, packed)
    elif [item.text for item in known.entries["levels"][1].items] != [item.text for item in packed.items]:
        first = known.entries["levels"][0]
        faults.append(Fault(levels.line, levels.column, "levels", f"“{levels.text[:60]}” differs from “{first.text[:60]}” in line {first.line}"))


def _pieces(cell: Item, separator: str) -> list[Item]:
    """The parts of a cell, each at its own column."""
    found, offset = [], 0
    for part in cell.text.split(separator):
        lead = len(part) - len(part.lstrip())
        if part.strip():
            found.append(Item(cell.line, cell.column + offset + lead, "text", part.strip()))
        offset += len(part) + len(separator)
    return found


def _map_list(cell: Item, separator: str, entry: Callable[[Item], Item]) -> Item:
    return Item(cell.line, cell.column, "list", items=[entry(piece) for piece in _pieces(cell, separator)])


def _named(piece: Item, names: tuple[str, ...], separator: str) -> Item:
    """`a:b` as {first name: a, second name: b}. What lies beyond the names becomes part of the last, and is refused there."""
    entry = Item(piece.line, piece.column, "map")
    rest = piece
    for number, name in enumerate(names):
        head, found, tail = rest.text.partition(separator) if number < len(names) - 1 else (rest.text, "", "")
        item = Item(rest.line, rest.column, "text", head.strip())
        if item.text:
            entry.entries[name] = (item, item)
        rest = Item(rest.line, rest.column + len(head) + len(found), "text", tail)
    return entry


def _labels(cell: Item) -> Item:
    labels = Item(cell.line, cell.column, "map")
    for piece in _pieces(cell, ";"):
        name, _, value = piece.text.partition("=")
        labels.entries[name.strip()] = (piece, Item(piece.line, piece.column + len(name) + 1, "text", value.strip(), quoted=True))
    return labels


def _mig(piece: Item) -> Item:
    entry = _named(piece, ("gpu", "instances"), ":")
    if "instances" in entry.entries:
        key, packed = entry.entries["instances"]
        entry.entries["instances"] = (key, _map_list(packed, "+", lambda part: _named(part, ("profile", "start"), "@")))
    return entry


_PACKED: dict[str, Callable[[Item], Item]] = {
    "labels": _labels,
    "uuids": lambda cell: _map_list(cell, ";", lambda piece: piece),
    "unhealthy_gpus": lambda cell: _map_list(cell, ";", lambda piece: piece),
    "islands": lambda cell: _map_list(cell, "|", lambda group: _map_list(group, ",", lambda piece: piece)),
    "mig": lambda cell: _map_list(cell, ";", _mig),
    "nics": lambda cell: _map_list(cell, ";", lambda piece: _named(piece, ("name", "speed_gbps", "rail"), ":")),
}
