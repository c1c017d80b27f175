"""What a what-if changes: settings of the scheduler and nodes of the fleet, as plain functions: values in, faults by field out."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scheduler.engine.model.values import CLASSES, PASSES, PLACEMENTS, TYPE_CHOICES, Node, Settings

DAYS = (1, 3, 7, 14, 28)
USUAL_DAYS = 7
MINUTES = (1, 5, 15)
MOST_NODES = 10_000  # added in all
MOST_KINDS = 100
MOST_TRACE_HOURS = 366 * 24
LONGEST_SECONDS = 366 * 86_400
SHORTEST_HALF_LIFE_S = 60
HEAVIEST_USAGE = 1000
LEAST_OVERRUN, MOST_OVERRUN = 0.01, 100
ORDERS = {"tree": "Quota tree", "fifo": "First come, first served"}
AWAY = ("draining", "down")
MILLION = 1_000_000

Faults = dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class Rule:
    """A setting that a what-if may change: how it is read from the settings and put there. `choices`: of a word; `least`, `most`: of a number."""

    title: str
    help: str
    read: Callable[[Settings], Any]
    put: Callable[[Settings, Any], Settings]
    choices: tuple[str, ...] = ()
    least: float = 0
    most: float | None = None
    unit: str = ""

    @property
    def is_switch(self) -> bool:
        return not self.choices and self.most is None


def _pass(name: str, title: str, help: str) -> Rule:
    def put(settings: Settings, on: bool) -> Settings:
        chosen = {*settings.passes, name} if on else {*settings.passes} - {name}
        return replace(settings, passes=tuple(one for one in PASSES if one in chosen))

    return Rule(title, help, lambda settings: name in settings.passes, put)


def _max_wait(name: str) -> Rule:
    def read(settings: Settings) -> int:
        return (getattr(settings.max_wait_ms, name) or 0) // 1000

    def put(settings: Settings, seconds: int) -> Settings:
        return replace(settings, max_wait_ms=settings.max_wait_ms._replace(**{name: 1000 * seconds or None}))

    return Rule(f"Longest wait, {name}", "After this wait a job heads the reservations. 0: no bound.", read, put, most=LONGEST_SECONDS, unit="s")


RULES: Mapping[str, Rule] = {
    "order": Rule(
        "Order",
        "First come, first served: no quotas, backfill, preemption or reservations.",
        lambda settings: "tree",
        lambda settings, word: settings,  # it is played by another policy
        choices=tuple(ORDERS),
    ),
    "placement": Rule(
        "Placement",
        "Pack fills nodes, spread uses many, fgd avoids fragmentation.",
        lambda settings: settings.placement,
        lambda settings, word: replace(settings, placement=word),
        choices=PLACEMENTS,
    ),
    "type_choice": Rule(
        "GPU type choice",
        "Accepted type that a job gets first, unless it states it.",
        lambda settings: settings.type_choice,
        lambda settings, word: replace(settings, type_choice=word),
        choices=TYPE_CHOICES,
    ),
    "backfill": _pass("backfill", "Backfill", "Jobs start in gaps before reservations."),
    "reclaim": _pass("reclaim", "Reclaim", "Teams take lent GPUs back by preemption."),
    "preemption": _pass("preempt", "Preemption", "Higher priority preempts lower within a team."),
    "consolidation": _pass("consolidate", "Consolidation", "Running jobs move to make room for gangs."),
    "usage_weight": Rule(
        "Usage weight",
        "Effect of past usage on shares of idle GPUs. 0: none.",
        lambda settings: settings.fairness.usage_weight_millionths / MILLION,
        lambda settings, weight: replace(settings, fairness=replace(settings.fairness, usage_weight_millionths=round(weight * MILLION))),
        most=HEAVIEST_USAGE,
    ),
    "half_life_s": Rule(
        "Usage half-life",
        "Past usage counts half after this time.",
        lambda settings: settings.fairness.half_life_ms // 1000,
        lambda settings, seconds: replace(settings, fairness=replace(settings.fairness, half_life_ms=1000 * seconds)),
        least=SHORTEST_HALF_LIFE_S,
        most=LONGEST_SECONDS,
        unit="s",
    ),
    "min_runtime_s": Rule(
        "Minimum run time",
        "Protection from preemption where a quota states none.",
        lambda settings: settings.reclaim_min_runtime_ms // 1000,
        lambda settings, seconds: replace(settings, preempt_min_runtime_ms=1000 * seconds, reclaim_min_runtime_ms=1000 * seconds),
        most=LONGEST_SECONDS,
        unit="s",
    ),
    "overrun": Rule(
        "Overrun factor",
        "Plans multiply estimated run times by it. 1: as stated.",
        lambda settings: settings.overrun_millionths / MILLION,
        lambda settings, factor: replace(settings, overrun_millionths=round(factor * MILLION)),
        least=LEAST_OVERRUN,
        most=MOST_OVERRUN,
    ),
    **{f"max_wait_{name}_s": _max_wait(name) for name in reversed(CLASSES)},
}


@dataclass(frozen=True, slots=True, order=True)
class NodeKind:
    """Nodes that are alike: of one cluster, with so many GPUs of one type."""

    cluster: str
    gpu_type: str
    gpus: int

    def __str__(self) -> str:
        return f"{self.cluster}/{self.gpu_type}/{self.gpus}"


@dataclass(frozen=True, slots=True)
class NodesThere:
    """How many nodes of a kind there are, and how many of them are draining, drained or down."""

    kind: NodeKind
    nodes: int
    away: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is played: the last days, or a trace, and what is changed beside the quota tree. Nothing that is not named is changed."""

    days: int = USUAL_DAYS
    policy: Mapping[str, Any] = field(default_factory=dict)
    nodes: Mapping[NodeKind, int] = field(default_factory=dict)  # how many more; below 0: fewer
    return_nodes: bool = False
    trace: str = ""  # its id; empty: the last days
    here: bool = False  # the trace on this fleet, not on its own
    queue: str = ""  # path of the quota node for queues of the trace that have none of their name
    from_hour: int = 0  # of the trace, at which it begins
    first_hours: int | None = None  # so many from there on; None: all
    minutes: int = 1  # that it may take

    @property
    def on_own_fleet(self) -> bool:
        return bool(self.trace) and not self.here

    @property
    def hours(self) -> int:
        """At most."""
        return MOST_TRACE_HOURS if self.trace else 24 * self.days

    @property
    def changes_fleet(self) -> bool:
        return bool(self.nodes) or self.return_nodes

    def stored(self) -> dict[str, Any]:
        nodes = [
            {"cluster": kind.cluster, "gpu_type": kind.gpu_type, "gpus": kind.gpus, "count": count} for kind, count in sorted(self.nodes.items())
        ]
        found: dict[str, Any] = {"days": self.days, "policy": dict(self.policy), "nodes": nodes, "return_nodes": self.return_nodes}
        found["minutes"] = self.minutes
        if self.trace:
            found |= {"trace": self.trace, "here": self.here, "queue": self.queue, "from_hour": self.from_hour, "first_hours": self.first_hours}
        return found


def wanted_of(stored: Mapping[str, Any]) -> Wanted:
    """What was stored; an empty document is a replay of the usual days that changes the tree alone."""
    nodes = {NodeKind(row["cluster"], row["gpu_type"], row["gpus"]): row["count"] for row in stored.get("nodes", ())}
    others = {key: stored[key] for key in ("trace", "here", "queue", "from_hour", "first_hours", "minutes") if key in stored}
    return Wanted(stored.get("days", USUAL_DAYS), stored.get("policy", {}), nodes, stored.get("return_nodes", False), **others)


# The fleet


def kind_of(node: Node) -> NodeKind:
    return NodeKind(node.path[0], node.gpu_type, node.gpus)


def nodes_there(nodes: Iterable[Node]) -> list[NodesThere]:
    """By kind, those with GPUs."""
    counts, away = Counter[NodeKind](), Counter[NodeKind]()
    for node in nodes:
        if node.gpus:
            counts[kind_of(node)] += 1
            away[kind_of(node)] += node.health in AWAY
    return [NodesThere(kind, counts[kind], away[kind]) for kind in sorted(counts)]


def nodes_changed(nodes: Sequence[Node], wanted: Wanted) -> tuple[Node, ...]:
    """The fleet as wanted. New nodes repeat the racks of those that are alike; nodes leave from the last by name, those that serve first."""
    found = [replace(node, health="healthy") if wanted.return_nodes and node.health in AWAY else node for node in nodes]
    alike: dict[NodeKind, list[Node]] = defaultdict(list)
    for node in found:
        alike[kind_of(node)].append(node)
    gone: set[str] = set()
    for kind, count in sorted(wanted.nodes.items()):
        these = alike.get(kind, [])
        if count < 0:
            leaving = sorted(these, key=lambda node: (node.health not in AWAY, node.name), reverse=True)
            gone.update(node.name for node in leaving[:-count])
        elif these:
            found += (_like(these[number % len(these)], number // len(these) + 1) for number in range(count))
    return tuple(sorted((node for node in found if node.name not in gone), key=lambda node: (node.path, node.island, node.name)))


def _like(node: Node, turn: int) -> Node:
    """A new node beside one: in a new narrowest domain, and a new island, which those of one turn share as the others do."""
    name = f"{node.name}+{turn}"
    path = (*node.path[:-1], f"{node.path[-1]}+{turn}") if len(node.path) > 1 else node.path
    island = name if node.island == node.name else f"{node.island}+{turn}"
    return replace(node, name=name, path=path, island=island, health="healthy", unhealthy=0)


def capacity_of(nodes: Iterable[Node]) -> Counter[str]:
    """Milli-GPU by type, whether they serve or not, as a fleet view has it."""
    found = Counter[str]()
    for node in nodes:
        found[node.gpu_type] += 1000 * node.gpus
    return found


# The policy


def settings_changed(settings: Settings, wanted: Wanted) -> Settings:
    for name, value in wanted.policy.items():
        settings = RULES[name].put(settings, value)
    return settings


def differing(wanted: Wanted, settings: Settings, fleet: Sequence[NodesThere]) -> Wanted:
    """Without what is as it is today."""
    policy = {name: value for name, value in wanted.policy.items() if value is not None and value != RULES[name].read(settings)}
    nodes = {kind: count for kind, count in wanted.nodes.items() if count}
    return replace(wanted, policy=policy, nodes=nodes, return_nodes=wanted.return_nodes and any(one.away for one in fleet))


def wanted_faults(wanted: Wanted, fleet: Sequence[NodesThere]) -> Faults:
    """By field: `days`, `policy.` with the name of a rule, and `nodes.` with the place of a kind."""
    faults: Faults = {}
    if wanted.days not in DAYS:
        faults["days"] = [f"Choose {', '.join(map(str, DAYS[:-1]))} or {DAYS[-1]} days."]
    for name, value in wanted.policy.items():
        if value is not None and (fault := _rule_fault(name, value)):
            faults[f"policy.{name}"] = [fault]
    there = {one.kind: one for one in fleet}
    for place, (kind, count) in enumerate(wanted.nodes.items()):
        known = there.get(kind)
        if known is None:
            faults[f"nodes.{place}.gpu_type"] = [f"No node of {kind.cluster} has {kind.gpus} GPUs of type {kind.gpu_type}."]
        elif -count > known.nodes:
            faults[f"nodes.{place}.count"] = [f"There are only {known.nodes:,} such nodes."]
    if sum(max(0, count) for count in wanted.nodes.values()) > MOST_NODES:
        faults["nodes"] = [f"At most {MOST_NODES:,} nodes can be added."]
    return faults


def _rule_fault(name: str, value: Any) -> str:
    rule = RULES[name]
    if rule.choices:
        return "" if value in rule.choices else f"Choose one of {', '.join(rule.choices)}."
    if rule.most is None:
        return ""
    return "" if rule.least <= value <= rule.most else f"Enter a value from {rule.least} to {rule.most:,.0f}."
