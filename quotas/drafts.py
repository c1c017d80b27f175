"""The quota tree as a value: edits in, another tree or faults out. No database. Changes, previews, imports and reverts all work on it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from quotas.models import NodeKind
from quotas.rules import (
    DEEPEST,
    LONGEST_PATH,
    NODE_FIELDS,
    SHARE_FIELDS,
    SUBMISSION_LIMITS,
    WIDTH,
    Faults,
    NodeValues,
    Share,
    guarantees,
    name_faults,
    note,
    overpromised,
    place_faults,
    said,
    value_faults,
)

OPS = ("create", "update", "move", "archive", "restore")
MOST_EDITS = 5_000
EDIT_KEYS = {"op", "node", "parent", "name", "set"}


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node as it is or shall be. `id` is its public id; of a node that is yet to be made, what the edits call it."""

    id: str
    parent: str | None
    name: str
    values: NodeValues
    archived: bool = False
    revision: int = field(default=0, compare=False)

    def as_json(self) -> dict[str, Any]:
        return {"id": self.id, "parent": self.parent, "name": self.name, "archived": self.archived, "revision": self.revision, **asdict(self.values)}


def state_of(document: Mapping[str, Any]) -> NodeState:
    """The reverse of `as_json`. A field that came later has its default."""
    shares = {gpu_type: Share(**share) for gpu_type, share in document["shares"].items()}
    values = {name: document[name] for name in NODE_FIELDS if name in document and name != "shares"}
    return NodeState(
        document["id"], document["parent"], document["name"], NodeValues(**values, shares=shares), document["archived"], document["revision"]
    )


class Tree:
    """All nodes, archived ones too, by id."""

    def __init__(self, states: Iterable[NodeState]) -> None:
        self.states = {state.id: state for state in states}

    def __getitem__(self, key: str) -> NodeState:
        return self.states[key]

    def get(self, key: str | None) -> NodeState | None:
        return self.states.get(key) if key is not None else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tree) and self.states == other.states

    __hash__ = None  # type: ignore[assignment]

    @cached_property
    def children(self) -> Mapping[str | None, Sequence[NodeState]]:
        found: dict[str | None, list[NodeState]] = defaultdict(list)
        for state in self.states.values():
            found[state.parent].append(state)
        return found

    def live_children(self, key: str | None) -> list[NodeState]:
        return [child for child in self.children.get(key, ()) if not child.archived]

    @cached_property
    def paths(self) -> Mapping[str, str]:
        """The path of every node that hangs from a top."""
        found: dict[str, str] = {}
        waiting = [(state, state.name) for state in self.children.get(None, ())]
        while waiting:
            state, path = waiting.pop()
            found[state.id] = path
            waiting += [(child, f"{path}/{child.name}") for child in self.children.get(state.id, ())]
        return found

    def above(self, key: str | None) -> list[NodeState]:
        """A node and all above it, from itself up."""
        found: list[NodeState] = []
        while key is not None and (state := self.states.get(key)) is not None and len(found) <= len(self.states):
            found.append(state)
            key = state.parent
        return found

    def in_order(self) -> list[NodeState]:
        return sorted(self.states.values(), key=lambda state: self.paths.get(state.id, state.id))


@dataclass(frozen=True, slots=True)
class Edit:
    """One step of a change. `set` holds only what it changes; a share of None is taken away."""

    op: str
    node: str
    parent: str | None = None
    name: str | None = None
    set: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {"op": self.op, "node": self.node}
        if self.op in ("create", "move"):
            document |= {"parent": self.parent, "name": self.name}
        if self.op in ("create", "update"):
            document["set"] = dict(self.set)
        return document


def edits_read(raw: Any) -> tuple[list[Edit], Faults]:
    """Edits out of a document, with all that is wrong with its form."""
    faults: Faults = {}
    if not isinstance(raw, list) or not raw:
        return [], {"edits": ["State at least one edit."]}
    if len(raw) > MOST_EDITS:
        return [], {"edits": [f"A change has at most {MOST_EDITS:,} edits."]}
    found = []
    for place, one in enumerate(raw):
        edit = _edit_read(one, f"edits.{place}", faults)
        if edit is not None:
            found.append(edit)
    return found, faults


def _edit_read(one: Any, at: str, faults: Faults) -> Edit | None:
    if not isinstance(one, dict) or one.get("op") not in OPS:
        note(faults, f"{at}.op", f"Choose one of {', '.join(OPS)}.")
        return None
    for key in sorted(set(one) - EDIT_KEYS, key=str):
        note(faults, f"{at}.{str(key)[:40]}", f"Unknown key. Keys are {', '.join(sorted(EDIT_KEYS))}.")
    texts = {}
    for key in ("node", "parent", "name"):
        value = one.get(key)
        if value is not None and not (isinstance(value, str) and len(value) <= 120):
            note(faults, f"{at}.{key}", "It must be a short text.")
        elif isinstance(value, str):
            texts[key] = value
    if not texts.get("node"):
        note(faults, f"{at}.node", "Name the node by its id; of a new node, what the other edits call it.")
        return None
    wanted = one.get("set") or {}
    if not isinstance(wanted, dict):
        note(faults, f"{at}.set", "It must be an object.")
        return None
    before = len(faults)
    checked = {key: value for key, value in wanted.items() if _fits(key, value, f"{at}.set", faults)}
    if len(faults) > before:
        return None
    return Edit(one["op"], texts["node"], texts.get("parent"), texts.get("name"), checked)


FORMS: Mapping[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(("kind", "title", "cost_centre", "default_class"), ((str,), "a text")),
    **dict.fromkeys(("weight", "priority"), ((int,), "a whole number")),
    **dict.fromkeys(("overcommit", "needs_approval"), ((bool,), "true or false")),
    **dict.fromkeys(("preempt_min_runtime_s", "reclaim_min_runtime_s", *SUBMISSION_LIMITS), ((int, type(None)), "a whole number or null")),
    **dict.fromkeys(("shares", "policy"), ((dict,), "an object")),
}


def _fits(key: Any, value: Any, at: str, faults: Faults) -> bool:
    """Whether a value has the form of its field; what it may be is judged by the rules."""
    if key not in FORMS:
        note(faults, f"{at}.{str(key)[:40]}", f"Unknown field. Fields are {', '.join(FORMS)}.")
        return False
    kinds, words = FORMS[key]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        note(faults, f"{at}.{key}", f"It must be {words}.")
        return False
    before = len(faults)
    shares: dict[Any, Any] = value if key == "shares" else {}  # type: ignore[assignment]
    for gpu_type, share in shares.items():
        if share is None:
            continue
        if not isinstance(share, dict):
            note(faults, f"{at}.shares.{gpu_type}", "It must be an object, or null.")
            continue
        for name, amount in share.items():
            if name not in SHARE_FIELDS:
                note(faults, f"{at}.shares.{gpu_type}.{str(name)[:40]}", f"Unknown field. Fields are {', '.join(SHARE_FIELDS)}.")
            elif amount is not None and (isinstance(amount, bool) or not isinstance(amount, int)):
                note(faults, f"{at}.shares.{gpu_type}.{name}", "It must be a whole number or null.")
    return len(faults) == before


def values_with(values: NodeValues, wanted: Mapping[str, Any]) -> NodeValues:
    """These values with some of them changed. Shares and rules that are not named stay."""
    changed = {name: value for name, value in wanted.items() if name not in ("shares", "policy")}
    shares = dict(values.shares)
    for gpu_type, share in (wanted.get("shares") or {}).items():
        if share is None:
            shares.pop(gpu_type, None)
        else:
            shares[gpu_type] = replace(shares.get(gpu_type, Share()), **share)
    policy = {name: value for name, value in {**values.policy, **(wanted.get("policy") or {})}.items() if value is not None}
    return replace(values, **changed, shares=shares, policy=policy)


def difference_of(before: NodeValues, after: NodeValues) -> dict[str, Any]:
    """What to set so that `before` becomes `after`."""
    wanted = {
        name: getattr(after, name) for name in NODE_FIELDS if name not in ("shares", "policy") and getattr(before, name) != getattr(after, name)
    }
    shares: dict[str, Any] = dict.fromkeys(before.shares.keys() - after.shares.keys())
    for gpu_type, share in after.shares.items():
        if gpu_type not in before.shares:
            shares[gpu_type] = asdict(share)
        elif share != (old := before.shares[gpu_type]):
            shares[gpu_type] = {name: getattr(share, name) for name in SHARE_FIELDS if getattr(share, name) != getattr(old, name)}
    policy = {name: after.policy.get(name) for name in {**before.policy, **after.policy} if before.policy.get(name) != after.policy.get(name)}
    return wanted | ({"shares": shares} if shares else {}) | ({"policy": policy} if policy else {})


def edits_between(before: Tree, after: Tree, *, archive_missing: bool = False) -> list[Edit]:
    """The edits that make one tree of another. A node that the other one does not have is archived, or left alone."""
    edits: list[Edit] = []
    for state in after.in_order():
        old = before.get(state.id)
        if old is None:
            edits.append(Edit("create", state.id, state.parent, state.name, difference_of(NodeValues(NodeKind.PROJECT), state.values)))
            edits[-1] = replace(edits[-1], set={"kind": state.values.kind, **edits[-1].set})
            continue
        if old.archived and not state.archived:
            edits.append(Edit("restore", state.id))
        if (old.parent, old.name) != (state.parent, state.name):
            edits.append(Edit("move", state.id, state.parent, state.name))
        if wanted := difference_of(old.values, state.values):
            edits.append(Edit("update", state.id, set=wanted))
    gone = [state for state in before.in_order() if not state.archived and (there := after.get(state.id)) is not None and there.archived]
    if archive_missing:
        gone += [state for state in before.in_order() if not state.archived and state.id not in after.states]
    return [*edits, *(Edit("archive", state.id) for state in reversed(gone))]


@dataclass(frozen=True, slots=True)
class Edited:
    """What edits make of a tree. Faults are by the place of their edit, as in `edits.0.shares.H100.limit_milli`."""

    before: Tree
    after: Tree
    faults: Faults

    @property
    def touched(self) -> list[str]:
        """Ids of the nodes that differ, from the top down."""
        found = [key for key, state in self.after.states.items() if (old := self.before.get(key)) is not state and old != state]
        return sorted(found, key=lambda key: self.after.paths.get(key, key))


def tree_edited(before: Tree, edits: Sequence[Edit], busy: Iterable[str] = ()) -> Edited:
    """Carry the edits out one after the other and judge what comes out as a whole. `busy` are the nodes with jobs that have not ended."""
    faults: Faults = {}
    states = dict(before.states)
    place_of: dict[tuple[str, str], int] = {}
    for place, edit in enumerate(edits):
        place_of[edit.node, edit.op] = place_of[edit.node, ""] = place
        for fieldname, message in _carried_out(states, edit):
            note(faults, f"edits.{place}.{fieldname}", message)
    after = Tree(states.values())
    edited = Edited(before, after, faults)
    judge = _Judge(before, after, frozenset(busy))
    for key in edited.touched:
        for fieldname, messages in judge.of(key).items():
            note(faults, f"edits.{_blamed(place_of, key, fieldname)}.{fieldname}", messages[0])
    for key, fieldname, message in judge.overpromised():
        note(faults, f"edits.{_blamed(place_of, key, fieldname)}.{fieldname}", message)
    return edited


def _carried_out(states: dict[str, NodeState], edit: Edit) -> Iterable[tuple[str, str]]:
    state = states.get(edit.node)
    if edit.op == "create":
        if state is not None:
            yield "node", "There is a node of this id already."
        elif edit.name is None:
            yield "name", "Name is required."
        else:
            values = values_with(NodeValues(NodeKind.PROJECT), edit.set)
            states[edit.node] = NodeState(edit.node, edit.parent, edit.name, values)
        return
    if state is None:
        yield "node", "There is no such node."
    elif edit.op == "update":
        states[edit.node] = replace(state, values=values_with(state.values, edit.set))
    elif edit.op == "move":
        states[edit.node] = replace(state, parent=edit.parent, name=edit.name if edit.name is not None else state.name)
    elif state.archived == (edit.op == "archive"):
        yield "node", "It is archived already." if state.archived else "It is not archived."
    else:
        states[edit.node] = replace(state, archived=edit.op == "archive")


OWNERS = {"name": ("move", "create"), "parent": ("move", "create", "restore"), "node": ("archive", "restore")}


def _blamed(place_of: Mapping[tuple[str, str], int], key: str, fieldname: str) -> int:
    """The edit at which a fault of a node is shown."""
    ops = OWNERS.get(fieldname, ("update", "create", "move", "restore"))
    return next((place_of[key, op] for op in ops if (key, op) in place_of), place_of.get((key, ""), 0))


class _Judge:
    """The rules of the tree, for those of its nodes that a change touches."""

    def __init__(self, before: Tree, after: Tree, busy: frozenset[str]) -> None:
        self.before, self.after, self.busy = before, after, busy

    def of(self, key: str) -> Faults:
        state, old = self.after[key], self.before.get(key)
        faults = value_faults(state.values)
        if old is None or old.name != state.name:
            faults |= name_faults(state.name)
        if state.values.policy and state.parent is not None:
            note(faults, "policy", "Only the top of the tree has fleet-wide rules.")
        faults |= self._place(state, old)
        faults |= self._archiving(state, old)
        return faults

    def _place(self, state: NodeState, old: NodeState | None) -> Faults:
        faults: Faults = {}
        moved = old is None or old.parent != state.parent
        parent = self.after.get(state.parent)
        if state.parent is None:
            others = [top for top in self.after.children.get(None, ()) if top.id != state.id]
            if others and moved:
                note(faults, "parent", f"There is one top of the tree, {others[0].name}; put the node below it.")
        elif parent is None:
            note(faults, "parent", "There is no such node.")
            return faults
        elif state.id not in self.after.paths:
            note(faults, "parent", "A node can't be moved below itself.")
            return faults
        elif parent.archived and moved and not state.archived:
            note(faults, "parent", "This node is archived.")
        elif moved and parent.id in self.busy:
            at = self.after.paths[parent.id]
            note(faults, "parent", f"{at} has jobs that are waiting or running; jobs live on nodes without children.")
        if old is None or moved or old.name != state.name:
            faults |= self._name_taken(state)
        faults |= self._shape(state, old, parent, moved)
        return faults

    def _name_taken(self, state: NodeState) -> Faults:
        for other in self.after.children.get(state.parent, ()):
            if other.id != state.id and other.name == state.name:
                known = "An archived node has this name here; restore that one, or choose another name."
                return {"name": [known if other.archived else "A node of this name is already there."]}
        return {}

    def _shape(self, state: NodeState, old: NodeState | None, parent: NodeState | None, moved: bool) -> Faults:
        """Kind, depth and length of the path, of the node with all below it."""
        path = self.after.paths.get(state.id, state.name)
        depth = path.count("/")
        faults = place_faults(kind=state.values.kind, parent_kind=parent.values.kind if parent else None, path=path, depth=depth)
        if old is not None and old.values.kind != state.values.kind and state.values.kind in WIDTH:
            wider = [child for child in self.after.live_children(state.id) if WIDTH.get(child.values.kind, len(WIDTH)) < WIDTH[state.values.kind]]
            if wider:
                kinds = f"A {NodeKind(wider[0].values.kind).label.lower()} lies below it"
                note(faults, "kind", f"{kinds}, which can't lie below a {NodeKind(state.values.kind).label.lower()}.")
        if old is not None and (moved or old.name != state.name) and not faults:
            below = [self.after.paths[one] for one in self._below(state.id)]
            if max((one.count("/") for one in below), default=0) >= DEEPEST:
                note(faults, "parent", f"The tree can be {DEEPEST} levels deep.")
            if max((len(one) for one in below), default=0) > LONGEST_PATH:
                note(faults, "name", f"The whole path can have {LONGEST_PATH} characters.")
        return faults

    def _below(self, key: str) -> list[str]:
        found = [child.id for child in self.after.children.get(key, ())]
        for one in found:
            found += [child.id for child in self.after.children.get(one, ())]
        return found

    def _archiving(self, state: NodeState, old: NodeState | None) -> Faults:
        faults: Faults = {}
        parent = self.after.get(state.parent)
        if old is None or old.archived == state.archived:
            return faults
        if not state.archived:
            if parent is not None and parent.archived:
                note(faults, "node", "Restore the node above it first.")
            elif parent is not None and parent.id in self.busy:
                note(faults, "parent", f"{self.after.paths[parent.id]} has jobs that are waiting or running; jobs live on nodes without children.")
            return faults
        if state.parent is None:
            note(faults, "node", "The root of the tree cannot be archived: every role on it would end.")
        if self.after.live_children(state.id):
            note(faults, "node", "Archive what lies below it first.")
        if state.id in self.busy:
            note(faults, "node", "Jobs of this node are waiting or running. Let them end, or cancel them.")
        return faults

    def overpromised(self) -> Iterable[tuple[str, str, str]]:
        """Where the change promises more below a node than the node has, or makes it worse: at each node that does so."""
        parents = {state.parent for key, state in self.after.states.items() if self.before.get(key) != state} | {
            key for key, state in self.after.states.items() if self.before.get(key) != state
        }
        for key in sorted(parent for parent in parents if parent is not None):
            parent = self.after.get(key)
            if parent is None or parent.archived or parent.values.overcommit or key not in self.after.paths:
                continue
            for gpu_type, (total, has) in self._over(self.after, key).items():
                if self._worse(key, gpu_type, total, has):
                    yield from self._told(parent, gpu_type, total, has)

    def _over(self, tree: Tree, key: str) -> Mapping[str, tuple[int | None, int | None]]:
        children = [guarantees(child.values.shares) for child in tree.live_children(key)]
        return overpromised(guarantees(tree[key].values.shares), children)

    def _worse(self, key: str, gpu_type: str, total: int | None, has: int | None) -> bool:
        old = self.before.get(key)
        if old is None or old.values.overcommit or old.archived:
            return True
        known = self._over(self.before, key).get(gpu_type)
        if known is None:
            return True
        old_total, old_has = known
        return (old_total is not None and (total is None or total > old_total)) or (has or 0) < (old_has or 0)

    def _told(self, parent: NodeState, gpu_type: str, total: int | None, has: int | None) -> Iterable[tuple[str, str, str]]:
        at = f"shares.{gpu_type}.guaranteed_milli"
        path, blamed = self.after.paths[parent.id], False
        for child in self.after.live_children(parent.id):
            own = child.values.shares.get(gpu_type, Share()).guaranteed_milli
            if own != 0 and self._gives_more(child, gpu_type, own):
                blamed = True
                yield child.id, at, f"With it, all below {path} are promised {said(total)} of {gpu_type}; {path} itself has {said(has)}."
        if not blamed:
            short = f"Its children are promised {said(total)} of {gpu_type}, and it would have {said(has)}."
            yield parent.id, at, f"{short} Raise it, lower theirs, or allow overcommit."

    def _gives_more(self, child: NodeState, gpu_type: str, own: int | None) -> bool:
        old = self.before.get(child.id)
        if old is None or old.archived or old.parent != child.parent:
            return True
        before = old.values.shares.get(gpu_type, Share()).guaranteed_milli
        return before is not None and (own is None or own > before)


def violations(tree: Tree) -> list[str]:
    """What is wrong with a tree, whoever made it so: for tests and the doctor."""
    empty = _Judge(Tree(()), tree, frozenset())
    found = [f"{tree.paths.get(key, key)}: {at}: {messages[0]}" for key in tree.states for at, messages in empty.of(key).items()]
    return [*found, *(f"{tree.paths[key]}: {at}: {message}" for key, at, message in empty.overpromised())]


def over_capacity(tree: Tree, capacity: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """GPU types of which more is guaranteed than is healthy, with both figures. Below an unlimited guarantee the nodes under it count."""
    totals: dict[str, int] = defaultdict(int)
    types = {gpu_type for state in tree.states.values() for gpu_type in state.values.shares}
    for gpu_type in types:
        waiting = tree.live_children(None)
        while waiting:
            state = waiting.pop()
            promised = state.values.shares.get(gpu_type, Share()).guaranteed_milli
            if promised is None:
                waiting += tree.live_children(state.id)
            else:
                totals[gpu_type] += promised
    return {gpu_type: (total, capacity.get(gpu_type, 0)) for gpu_type, total in sorted(totals.items()) if total > capacity.get(gpu_type, 0)}
