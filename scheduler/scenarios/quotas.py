"""The quota tree and the windows of a scenario."""

from collections.abc import Collection, Sequence
from operator import attrgetter
from typing import Any

from scheduler.engine.model.values import ANY_TYPE, Amount, Node, Quota, Topology, Window

from .checkers import MILLI, SECONDS, TEXT, moment, one_of, scaled, table_of, whole
from .faults import Bad, short
from .fields import Codec, Field, optional, record
from .kinds import RANK

# No organisation is deeper, and every placement is charged to each level.
DEEPEST = 64
CYCLE_SHOWN = 20


def _or_by_type(codec: Codec, default: int) -> Codec:
    """A value for every type, or a map; a type that a map does not name has the default."""
    by_type = table_of(codec)
    return Codec(
        lambda value: (default, by_type.read(value)) if type(value) is dict else (codec.read(value), ()),
        lambda both: by_type.write(both[1]) if both[1] else codec.write(both[0]),
    )


def _amount(value: Any) -> Amount:
    if type(value) is dict:
        return Amount(by_type=table_of(MILLI).read(value))
    return Amount(total=optional(MILLI).read(value))


def _usage(value: Any) -> tuple[tuple[str, int], ...]:
    usage, by_type = _or_by_type(_PART, 0).read(value)
    return ((ANY_TYPE, usage),) if usage else by_type


_PART = scaled(1_000_000, most=1)
AMOUNT = Codec(_amount, lambda amount: optional(MILLI).write(amount.total) if amount.by_type is None else table_of(MILLI).write(amount.by_type))
USAGE = Codec(_usage, table_of(_PART).write)
WEIGHT, PRIORITY = _or_by_type(scaled(1000, most=1_000_000), 1000), _or_by_type(whole(-1_000_000, 1_000_000), 100)


def quota_codec(now: int) -> Codec:
    fields = {
        "name": Field("name", TEXT),
        "parent": Field("parent", optional(TEXT), None),
        "guaranteed": Field("guaranteed", AMOUNT, Amount(total=0)),
        "limit": Field("limit", AMOUNT, Amount()),
        "weight": Field("both_weights", WEIGHT, (1000, ()), of=attrgetter("weight", "weights")),
        "priority": Field("both_priorities", PRIORITY, (100, ()), of=attrgetter("priority", "priorities")),
        "preempt_min_runtime_s": Field("preempt_min_runtime_ms", optional(SECONDS), None),
        "reclaim_min_runtime_s": Field("reclaim_min_runtime_ms", optional(SECONDS), None),
        "created": Field("created", moment(now), now),
        "usage": Field("usage", USAGE, ()),
    }

    def make(both_weights: Any, both_priorities: Any, **values: Any) -> Quota:
        (weight, weights), (priority, priorities) = both_weights, both_priorities
        return Quota(**values, weight=weight, priority=priority, weights=weights, priorities=priorities)

    return record(fields, make)


def read_quotas(raw: Any, now: int, known: Collection[str], bad: Bad) -> tuple[Quota, ...]:
    """`known` are the names of the faulty ones, too: their children and jobs are not reported as well."""
    found = bad.named(quota_codec(now).read, raw, "quotas", "quota")
    for place, quota in found.values():
        bad.when(quota.parent is not None and quota.parent not in known, f"there is no quota {short(quota.parent)}", "quotas", place, "parent")
    places = {name: found[name][0] for name in sorted(found)}
    quotas = {name: found[name][1] for name in places}
    _check_tree(quotas, places, bad)
    _check_styles(quotas, places, bad)
    return tuple(quotas.values())


def _check_tree(quotas: dict[str, Quota], places: dict[str, int], bad: Bad) -> None:
    """No quota is above itself, and none is too deep."""
    depths: dict[str, int] = {}
    for name in quotas:
        trail: dict[str, None] = {}
        at: str | None = name
        while at is not None and at in quotas and at not in depths and at not in trail:
            trail[at] = None
            at = quotas[at].parent
        steps = list(trail)
        if at is not None and at in trail:
            cycle = steps[steps.index(at) :]
            shown = cycle if len(cycle) <= CYCLE_SHOWN else [*cycle[:CYCLE_SHOWN], "…"]
            bad.add(f"is part of a cycle: {' -> '.join(shown)} -> {at}", "quotas", places[at], "parent")
        above = depths.get(at or "", 0)
        for depth, step in enumerate(reversed(steps), above + 1):
            depths[step] = depth
            if depth == DEEPEST + 1:  # what lies below is not named again
                bad.add(f"is deeper than {DEEPEST} levels", "quotas", places[step], "parent")


def _check_styles(quotas: dict[str, Quota], places: dict[str, int], bad: Bad) -> None:
    """Guarantees are all numbers or all maps; and only with maps other things are."""
    by_type = {name: quota.guaranteed.by_type is not None for name, quota in quotas.items() if not quota.guaranteed.unlimited}
    for name, quota in quotas.items() if not any(by_type.values()) else ():
        for key, stated in (("weight", quota.weights), ("priority", quota.priorities)):
            bad.when(stated, "may be a map only where guarantees are maps by type", "quotas", places[name], key)
    odd = sum(by_type.values()) * 2 <= len(by_type)  # the rarer way is reported
    for name in by_type if len(set(by_type.values())) > 1 else ():
        bad.when(by_type[name] is odd, "all guarantees of a tree are numbers, or all are maps by type", "quotas", places[name], "guaranteed")


def window_codec(now: int, topology: Topology, known: Collection[str], nodes: Sequence[Node] | None) -> Codec:
    """`nodes` is None where some are faulty: a type that only those have is no fault of a window."""
    time = moment(now)
    types = {node.quota_type for node in nodes or ()}
    boards = {node.gpu_type for node in nodes or ()}
    fields = {
        "name": Field("name", TEXT),
        "quota": Field("quota", optional(TEXT), None),
        "class": Field("class_rank", optional(RANK), None),
        "gpus": Field("gpus", MILLI),
        "gpu_type": Field("gpu_type", optional(TEXT), None),
        "level": Field("level", optional(one_of(*topology.all_levels)), None),
        "start": Field("start", time),
        "end": Field("end", optional(time), None),
        "notice_s": Field("notice_ms", SECONDS, 0),
        "decay_s": Field("decay_ms", optional(SECONDS), None),
    }

    def make(**values: Any) -> Window:
        bad = Bad()
        quota, gpu_type, start, end = values["quota"], values["gpu_type"], values["start"], values["end"]
        bad.when((quota is None) == (values["class_rank"] is None), "must name either an owner (quota) or a class")
        bad.when(quota is not None and quota not in known, f"there is no quota {short(quota)}", "quota")
        bad.when(gpu_type is None and len(types) > 1, f"must name one of {', '.join(sorted(types))}", "gpu_type")
        if nodes is not None and gpu_type is not None and gpu_type not in types:
            what = "is a GPU type, and its nodes belong to quota types of their own" if gpu_type in boards else "no node belongs to it"
            bad.add(f"{what}; a window names a quota type, and there are {', '.join(sorted(types)) or 'none'}", "gpu_type")
        bad.when(end is not None and end <= start, "must lie after start", "end")
        bad.raise_if_any()
        return Window(**values | {"gpu_type": gpu_type or min(types, default=None)})

    return record(fields, make)
