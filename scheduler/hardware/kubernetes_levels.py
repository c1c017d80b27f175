"""Levels of a cluster's topology by the labels of its nodes in Kubernetes: which label becomes which level, and where each node then stands."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from gpufleet.core.findings import some
from scheduler.imports.documents import Fault, Unreadable

CLIQUE = "nvidia.com/gpu.clique"
NONE = "none"  # stated in place of labels: no label becomes a level
MOST_LEVELS = 6
OF_EVERY_CLUSTER = ("cluster", "node")
LABEL = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
LEVEL = re.compile(r"[A-Za-z0-9_-]{1,40}")
BETWEEN = re.compile(r"[,\n]")
NODES_TOLD, CLASHES_TOLD = 8, 3


@dataclass(frozen=True, slots=True)
class LevelLabel:
    """A label of nodes, and the level that its values are domains of."""

    label: str
    level: str


WELL_KNOWN = REGION, ZONE = (LevelLabel("topology.kubernetes.io/region", "region"), LevelLabel("topology.kubernetes.io/zone", "zone"))


@dataclass(frozen=True, slots=True)
class Known:
    """What the inventory has of a cluster: its levels, wide to narrow, and the place of each node that has one."""

    levels: tuple[str, ...] = ()
    places: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Standing:
    """The levels of a cluster, the labels that became levels, the place of each node that has one, and what an operator should know of them."""

    levels: tuple[str, ...]
    labels: tuple[str, ...]
    places: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]


def levels_text(text: str) -> str:
    """What is stated, in one line as it is kept: `label=level` with commas between them."""
    return ", ".join("=".join(part.strip() for part in word.split("=")) for word in _words(text))


def levels_stated(text: str) -> tuple[LevelLabel, ...] | None:
    """The labels that are stated, wide to narrow. None: nothing is stated. Empty: no label becomes a level. Raises ValueError for what is neither."""
    words = _words(text)
    if words in ([], [NONE]):
        return () if words else None
    found: list[LevelLabel] = []
    for word in words:
        label, _, level = (part.strip() for part in word.partition("="))
        if not LABEL.fullmatch(label) or not LEVEL.fullmatch(level):
            raise ValueError(f"“{word[:80]}” is not LABEL=LEVEL, such as {ZONE.label}={ZONE.level}.")
        if level in OF_EVERY_CLUSTER:
            raise ValueError(f"Every cluster has the level {level}: name this level differently.")
        if any(label == one.label or level == one.level for one in found):
            raise ValueError(f"“{word[:80]}” repeats a label or a level.")
        found.append(LevelLabel(label, level))
    if len(found) > MOST_LEVELS:
        raise ValueError(f"State at most {MOST_LEVELS} levels.")
    return tuple(found)


def levels_fault(stated: Sequence[LevelLabel], there: Sequence[str], *, cluster: str) -> str:
    """Why the stated labels cannot be levels of a cluster that has levels already. Empty: they can."""
    names = [one.level for one in stated]
    if all(new == old for new, old in zip(names, there, strict=False)):
        return ""
    told = f"{cluster} already has the levels {', '.join(there)}. Their names and order are fixed."
    return f"{told} State a label for each, then for narrower levels."


def standing(nodes: Mapping[str, Mapping[str, str]], stated: Sequence[LevelLabel] | None, there: Known, *, cluster: str) -> Standing:
    """Where nodes stand by their labels. A label that is missing says nothing: the node keeps its place of the inventory as far as its other labels
    agree with that. Raises `Unreadable` for levels that the cluster cannot have."""
    notes: list[str] = []
    if stated is None:
        stated = _by_default(nodes, there.levels)
        if not stated and there.levels and any(one.label in labels for one in WELL_KNOWN for labels in nodes.values()):
            notes.append(f"No labels are stated for the levels of {cluster} ({', '.join(there.levels)}): nodes keep their places of the inventory.")
        elif not there.levels:
            notes += [note for one in WELL_KNOWN if one not in stated and (note := _unused(one, nodes))]
    elif fault := levels_fault(stated, there.levels, cluster=cluster):
        raise Unreadable(Fault(1, 1, "levels", fault))
    levels = max(there.levels, tuple(one.level for one in stated), key=len)
    told = {name: tuple(takewhile(bool, (labels.get(one.label, "") for one in stated))) for name, labels in nodes.items()}
    places = {name: place for name, values in told.items() if (place := _place(values, there.places.get(name, ())))}
    for depth, one in enumerate(stated):
        notes += _missing(one, [name for name in sorted(told) if len(told[name]) == depth], places, depth, len(nodes))
        if depth:
            notes += _clashes(one.level, {name: (values[depth], "/".join(values[:depth])) for name, values in told.items() if len(values) > depth})
    if levels:
        # A node of which the narrowest level is not known has no neighbors, also not by NVLink.
        ends = {name: "/".join(place) if len(place := places.get(name, ())) == len(levels) else name for name in nodes}
        notes += _clashes("NVLink domain", {name: (clique, ends[name]) for name, labels in nodes.items() if (clique := labels.get(CLIQUE, ""))})
    return Standing(levels, tuple(one.label for one in stated), places, tuple(notes))


def _words(text: str) -> list[str]:
    return [word for word in (part.strip() for part in BETWEEN.split(text)) if word]


def _by_default(nodes: Mapping[str, Mapping[str, str]], there: Sequence[str]) -> tuple[LevelLabel, ...]:
    """Region and zone, as far as every node has them; of a cluster with levels these where it has no others."""
    if there:
        by_level = {one.level: one for one in WELL_KNOWN}
        return tuple(by_level[level] for level in there) if by_level.keys() >= {*there} else ()
    return tuple(one for one in WELL_KNOWN if nodes and all(labels.get(one.label) for labels in nodes.values()))


def _unused(one: LevelLabel, nodes: Mapping[str, Mapping[str, str]]) -> str:
    lacking = [name for name, labels in sorted(nodes.items()) if not labels.get(one.label)]
    if len(lacking) == len(nodes):
        return ""
    told = f"Label {one.label} is missing on {len(lacking)} of {len(nodes)} nodes: {some(lacking, NODES_TOLD)}."
    return f"{told} It becomes a level by itself only if every node has it."


def _place(told: tuple[str, ...], known: tuple[str, ...]) -> tuple[str, ...]:
    return known if known[: len(told)] == told else told


def _missing(one: LevelLabel, names: Sequence[str], places: Mapping[str, tuple[str, ...]], depth: int, count: int) -> list[str]:
    keep = [name for name in names if len(places.get(name, ())) > depth]
    alone = [name for name in names if len(places.get(name, ())) <= depth]
    told = (
        (alone, f"A node without it has no {one.level}, and no neighbors there or by NVLink."),
        (keep, f"Such a node keeps its {one.level} of the inventory."),
    )
    return [f"Label {one.label} is missing on {len(group)} of {count} nodes: {some(group, NODES_TOLD)}. {gets}" for group, gets in told if group]


def _clashes(level: str, found: Mapping[str, tuple[str, str]]) -> list[str]:
    """Domains of one name in several wider ones. Each counts by itself, so that no gang is taken for closer together than it is."""
    nodes: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, (value, above) in sorted(found.items()):
        nodes[value][above].append(name)
    several = [(value, places) for value, places in sorted(nodes.items()) if len(places) > 1]
    notes = []
    for value, places in several[:CLASHES_TOLD]:
        told = [above if names == [above] else f"{above} ({some(names, CLASHES_TOLD)})" for above, names in sorted(places.items())]
        notes.append(f"The {level} {value} is in {len(places)} places: {some(told, CLASHES_TOLD)}. Each counts as a separate {level}.")
    if len(several) > CLASHES_TOLD:
        notes.append(f"{len(several) - CLASHES_TOLD} more of the level {level} are in several places.")
    return notes
