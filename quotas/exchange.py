"""The quota tree as a file, YAML or CSV: written with what differs from the defaults, and read into edits with every fault of the file at once."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import yaml

from gpufleet.core.amounts import ungrouped
from gpufleet.core.csvfile import harmless
from quotas.drafts import Edit, NodeState, Tree, edits_between, edits_read, values_with
from quotas.models import NodeKind
from quotas.rules import NODE_FIELDS, SUBMISSION_LIMITS, Faults, NodeValues, Share, note

FORMATS = ("yaml", "csv")
MOST_ROWS = 20_000
MOST_CHARACTERS = 8_000_000
PLAIN = tuple(name for name in NODE_FIELDS if name not in ("shares", "policy"))
AMOUNTS = {"guaranteed": "guaranteed_milli", "limit": "limit_milli", "weight": "weight", "priority": "priority"}
OF_TYPE = {f"type_{name}": name for name in AMOUNTS}
COLUMNS = ("path", "id", *PLAIN, "gpu_type", *OF_TYPE)
WHOLE = ("weight", "priority", "preempt_min_runtime_s", "reclaim_min_runtime_s", *SUBMISSION_LIMITS)
YES_NO = ("overcommit", "needs_approval")
DEFAULTS = asdict(NodeValues(NodeKind.PROJECT))
Row = tuple[str, dict[str, Any]]  # where it stands in the file, and what it says


def tree_written(tree: Tree, states: Iterable[NodeState], form: str) -> str:
    """The nodes as a file. GPUs are in GPUs, as pages have them."""
    return _csv(tree, states) if form == "csv" else _yaml(tree, states)


def _gpus(milli: int | None, unlimited: str | None) -> Any:
    if milli is None:
        return unlimited
    return milli // 1000 if milli % 1000 == 0 else milli / 1000


def _amounts(share: Share) -> dict[str, Any]:
    stated = {"guaranteed": _gpus(share.guaranteed_milli, "unlimited"), "limit": _gpus(share.limit_milli, None)}
    return stated | {"weight": share.weight, "priority": share.priority}


def _yaml(tree: Tree, states: Iterable[NodeState]) -> str:
    rows = []
    for state in states:
        row: dict[str, Any] = {"path": tree.paths[state.id], "id": state.id, "kind": str(state.values.kind)}
        row |= {name: value for name in PLAIN if name != "kind" and (value := getattr(state.values, name)) != DEFAULTS[name]}
        row |= {"policy": dict(state.values.policy)} if state.values.policy else {}
        shares = {kind: {key: value for key, value in _amounts(share).items() if value is not None} for kind, share in state.values.shares.items()}
        rows.append(row | ({"shares": shares} if shares else {}))
    return yaml.dump({"nodes": rows}, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True)


def _csv(tree: Tree, states: Iterable[NodeState]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for state in states:
        facts = [tree.paths[state.id], state.id, *(_cell(getattr(state.values, name)) for name in PLAIN)]
        lines = [[gpu_type, *_amounts(share).values()] for gpu_type, share in sorted(state.values.shares.items())] or [[""] * 5]
        for line in lines:
            writer.writerow([harmless(_cell(value)) for value in (*facts, *line)])
    return out.getvalue()


def _cell(value: Any) -> Any:
    return "" if value is None else ("yes" if value else "no") if isinstance(value, bool) else str(value) if isinstance(value, str) else value


def rows_read(text: str, form: str) -> tuple[list[Row], Faults]:
    """The nodes of a file by path, each as it is said there; and what of the file can't be read."""
    if form not in FORMATS:
        return [], {"format": [f"Choose one of {', '.join(FORMATS)}."]}
    if len(text) > MOST_CHARACTERS:
        return [], {"text": [f"A file has at most {MOST_CHARACTERS:,} characters."]}
    return _csv_read(text) if form == "csv" else _yaml_read(text)


def _yaml_read(text: str) -> tuple[list[Row], Faults]:
    try:
        # Few lines of aliases would stand for millions of values.
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=yaml.CSafeLoader)):
            return [], {"text": ["Aliases are not allowed."]}
        document = yaml.load(text, Loader=yaml.CSafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as fault:
        return [], {"text": [f"This is not YAML: {str(fault)[:300]}"]}
    nodes = document.get("nodes") if isinstance(document, dict) else None
    if not isinstance(nodes, list) or not nodes or len(nodes) > MOST_ROWS:
        return [], {"nodes": [f"A list of 1 to {MOST_ROWS:,} nodes is required."]}
    faults: Faults = {key: ["Unknown key. There is only nodes."] for key in map(str, document) if key != "nodes"}
    rows: list[Row] = []
    for place, node in enumerate(nodes):
        at = f"nodes.{place}"
        if not isinstance(node, dict):
            note(faults, at, "It must be an object.")
            continue
        for key in sorted(set(map(str, node)) - {"path", "id", "policy", "shares", *PLAIN}):
            note(faults, f"{at}.{key[:40]}", "Unknown field.")
        rows.append((at, node))
    return rows, faults


def _csv_read(text: str) -> tuple[list[Row], Faults]:
    reader = csv.DictReader(io.StringIO(text.removeprefix("\ufeff")))
    header = reader.fieldnames or []
    faults: Faults = {f"column {name[:40]}": [f"Unknown column. Columns are {', '.join(COLUMNS)}."] for name in header if name not in COLUMNS}
    if "path" not in header:
        return [], faults | {"column path": ["The column path is required."]}
    found: dict[str, Row] = {}
    try:
        for place, line in enumerate(reader):
            at = f"line {place + 2}"
            if place >= MOST_ROWS:
                note(faults, at, f"A file has at most {MOST_ROWS:,} lines.")
                break
            if None in line:
                note(faults, at, "It has more cells than the header.")
            cells = {key: (value or "").strip().removeprefix("'") for key, value in line.items() if key in COLUMNS}
            _csv_line(at, cells, found, faults)
    except csv.Error as fault:
        note(faults, "text", f"This is not CSV: {fault}.")
    return list(found.values()), faults


def _csv_line(at: str, cells: dict[str, str], found: dict[str, Row], faults: Faults) -> None:
    path = cells["path"]
    row: dict[str, Any] = {"path": path, **({"id": cells["id"]} if cells.get("id") else {}), "shares": {}}
    for name in PLAIN:
        if name in cells:
            row[name] = _said(name, cells[name], at, faults)
    _, known = found.setdefault(path, (at, row))
    if known is not row and any(known.get(name) != row.get(name) for name in PLAIN):
        note(faults, at, f"{path} is stated twice, with different values.")
    gpu_type = cells.get("gpu_type", "")
    if gpu_type:
        if gpu_type in known["shares"]:
            note(faults, f"{at}, gpu_type", f"{gpu_type} of {path} is stated twice.")
        known["shares"][gpu_type] = {name: cells[column] or None for column, name in OF_TYPE.items() if column in cells}


def _said(name: str, text: str, at: str, faults: Faults) -> Any:
    if name in WHOLE:
        if not text:
            return DEFAULTS[name]
        if text.isascii() and text.removeprefix("-").isdigit() and len(text) < 12:
            return int(text)
        note(faults, f"{at}, {name}", f"It must be a whole number, not {text[:40]}.")
        return DEFAULTS[name]
    if name in YES_NO:
        if text.lower() not in ("", "yes", "no", "true", "false"):
            note(faults, f"{at}, {name}", "It must be yes or no.")
        return text.lower() in ("yes", "true")
    return text


def edits_of(rows: Sequence[Row], before: Tree, seen: frozenset[str], *, archive_missing: bool) -> tuple[list[Edit], dict[str, str], Faults]:
    """The edits that make the tree what the rows say; where in the file each node stands; and faults. Other nodes than `seen` are not there."""
    faults: Faults = {}
    by_path = {before.paths[key]: key for key in before.states if key in before.paths and key in seen}
    places: dict[str, str] = {}
    keys: dict[str, str] = {}
    for at, row in rows:
        path = row.get("path")
        if not isinstance(path, str) or not path:
            note(faults, f"{at}.path", "Path is required.")
            continue
        if path in keys:
            note(faults, f"{at}.path", f"{path} is stated twice.")
            continue
        stated = row.get("id")
        if stated is not None and (not isinstance(stated, str) or stated not in seen):
            note(faults, f"{at}.id", f"There is no node {str(stated)[:40]}. Leave the id out for a new node.")
        key = stated if isinstance(stated, str) and stated in seen else by_path.get(path, f"new:{path}"[:120])
        if key in places:
            note(faults, f"{at}.id", f"{key} is stated twice.")
            continue
        keys[path], places[key] = key, at
    states: list[NodeState] = []
    for at, row in rows:
        path = row.get("path")
        if isinstance(path, str) and places.get(keys.get(path, "")) == at:
            states += _state(at, row, keys, by_path, before, faults)
    after = Tree((before.states | {state.id: state for state in states}).values())
    edits = edits_between(before, after)
    if archive_missing:
        gone = [state for state in before.in_order() if state.id in seen and not state.archived and state.id not in places]
        edits += [Edit("archive", state.id) for state in reversed(gone)]
    return edits, places, faults


def _state(at: str, row: dict[str, Any], keys: dict[str, str], by_path: dict[str, str], before: Tree, faults: Faults) -> Iterable[NodeState]:
    path: str = row["path"]
    above, _, name = path.rpartition("/")
    old = before.get(keys[path])
    parent = keys.get(above) or by_path.get(above) if above else None
    if old is not None and before.paths.get(old.id) == path:
        parent = old.parent
    elif above and parent is None:
        note(faults, f"{at}.path", f"There is no node {above[:80]}, neither in the file nor in the tree.")
        return
    wanted = {key: row[key] for key in (*PLAIN, "policy") if key in row}
    shares = _shares(at, row.get("shares"), faults)
    fits, wrong = edits_read([{"op": "create", "node": "x", "name": name, "set": wanted | ({"shares": shares} if shares else {})}])
    for field, texts in wrong.items():
        note(faults, f"{at}.{field.removeprefix('edits.0.').removeprefix('set.')}", texts[0])
    if not fits:
        return
    # A file states the whole node: what it leaves out has its default, apart from fleet-wide rules.
    first = NodeValues(NodeKind.PROJECT if old is None else old.values.kind, policy=old.values.policy if old is not None else {})
    values = values_with(first, fits[0].set)
    yield NodeState(keys[path], parent, name, values, False, old.revision if old is not None else 0)


def _shares(at: str, raw: Any, faults: Faults) -> dict[str, dict[str, Any]]:
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        note(faults, f"{at}.shares", "It must be an object, by GPU type.")
        return {}
    found: dict[str, dict[str, Any]] = {}
    for gpu_type, share in raw.items():
        where = f"{at}.shares.{str(gpu_type)[:60]}"
        if not isinstance(share, Mapping):
            note(faults, where, "It must be an object.")
            continue
        for key in sorted(set(map(str, share)) - set(AMOUNTS)):
            note(faults, f"{where}.{key[:40]}", f"Unknown field. Fields are {', '.join(AMOUNTS)}.")
        found[str(gpu_type)] = {AMOUNTS[key]: _amount(key, value, f"{where}.{key}", faults) for key, value in share.items() if key in AMOUNTS}
    return found


def _amount(key: str, value: Any, at: str, faults: Faults) -> int | None:
    plain = ungrouped(str(value).strip().lower()) if value is not None else ""
    if key == "guaranteed" and plain == "unlimited":
        return None
    if not plain or plain == "none":
        return 0 if key == "guaranteed" else None
    try:
        number = float(plain)
    except ValueError:
        number = float("nan")
    scaled = number * (1000 if key in ("guaranteed", "limit") else 1)
    if isinstance(value, bool) or not abs(scaled) < 1e12 or scaled != round(scaled):
        unit = "a number of GPUs with at most three decimals" if key in ("guaranteed", "limit") else "a whole number"
        note(faults, at, f"It must be {unit}, not {str(value)[:40]}.")
        return None
    return round(scaled)
