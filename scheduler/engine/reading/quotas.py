"""Reading the quota tree and the windows of a scenario."""

from collections.abc import Sequence
from typing import Any

from ..model.values import ANY_TYPE, CLASS_RANK, CLASSES, Amount, Node, Quota, Topology, Window
from .checkers import MISSING, Bad, Check, Faults, instant_after, number, one_of, optional, scaled, short, table_of, text, whole

_milli = scaled(1000, most=100_000_000)
_seconds = scaled(1000)
_UNLIMITED = Amount()
# No organisation is deeper, and every placement is charged to each level.
DEEPEST = 64
CYCLE_SHOWN = 20


def _amount(value: Any) -> Amount:
    if value is None:
        return _UNLIMITED
    if type(value) is dict:
        pairs = []
        for key, item in value.items():
            try:
                pairs.append((text(key), _milli(item)))
            except Bad as bad:
                raise bad.within(str(key)) from None
        return Amount(by_type=tuple(sorted(pairs)))
    return Amount(total=_milli(value))


def _usage(value: Any) -> tuple[tuple[str, int], ...]:
    def part(item: Any) -> int:
        if not 0 <= number(item) <= 1:
            raise Bad(f"must be between 0 and 1, not {short(item)}")
        return round(item * 1_000_000)

    if type(value) is dict:
        return tuple(sorted((text(key), part(item)) for key, item in value.items()))
    usage = part(value)
    return ((ANY_TYPE, usage),) if usage else ()


def _one_or_by_type(check: Check, default: int) -> Check:
    """A value for every type, or a map; a type that a map does not name has the default."""

    table = table_of(check)

    def read(value: Any) -> tuple[int, tuple[tuple[str, int], ...]]:
        return (default, table(value)) if type(value) is dict else (check(value), ())

    return read


def read_quotas(rows: list[Any], now: int, faults: Faults) -> tuple[Quota, ...]:
    table: dict[str, tuple[Check, Any]] = {
        "name": (text, MISSING),
        "parent": (optional(text), None),
        "guaranteed": (_amount, Amount(total=0)),
        "limit": (_amount, _UNLIMITED),
        "weight": (_one_or_by_type(scaled(1000, most=1_000_000), 1000), (1000, ())),
        "priority": (_one_or_by_type(whole(-1_000_000, 1_000_000), 100), (100, ())),
        "preempt_min_runtime_s": (optional(_seconds), None),
        "reclaim_min_runtime_s": (optional(_seconds), None),
        "created": (instant_after(now), now),
        "usage": (_usage, ()),
    }
    found: dict[str, Quota] = {}
    places: dict[str, int] = {}
    for place, raw in enumerate(rows):
        fields = faults.fields(raw, table, ("quotas", place))
        if fields is None:
            if isinstance(raw, dict) and isinstance(raw.get("name"), str):
                places.setdefault(raw["name"], place)  # known, so that its children and jobs are not reported as well
            continue
        name = fields["name"]
        if name in found:
            faults.add(("quotas", place, "name"), f"{short(name)} is the name of another quota")
            continue
        places[name] = place
        found[name] = Quota(
            name=name,
            parent=fields["parent"],
            guaranteed=fields["guaranteed"],
            limit=fields["limit"],
            weight=fields["weight"][0],
            priority=fields["priority"][0],
            preempt_min_runtime_ms=fields["preempt_min_runtime_s"],
            reclaim_min_runtime_ms=fields["reclaim_min_runtime_s"],
            created=fields["created"],
            usage=fields["usage"],
            weights=fields["weight"][1],
            priorities=fields["priority"][1],
        )
    _check_tree(found, places, faults)
    return tuple(found[name] for name in sorted(found))


def _check_tree(found: dict[str, Quota], places: dict[str, int], faults: Faults) -> None:
    for name, quota in found.items():
        if quota.parent is not None and quota.parent not in places:
            faults.add(("quotas", places[name], "parent"), f"there is no quota {short(quota.parent)}")
    depths: dict[str, int] = {}
    for name in sorted(found):
        steps: dict[str, None] = {}
        at: str | None = name
        while at is not None and at in found and at not in depths and at not in steps:
            steps[at] = None
            at = found[at].parent
        trail = list(steps)
        depth = depths.get(at or "", 0)
        if at in steps:
            cycle = trail[trail.index(at) :] if at is not None else trail
            shown = cycle if len(cycle) <= CYCLE_SHOWN else [*cycle[:CYCLE_SHOWN], "…"]
            faults.add(("quotas", places[cycle[0]], "parent"), f"is part of a cycle: {' -> '.join(shown)} -> {cycle[0]}")
        for step in reversed(trail):
            depth += 1
            depths[step] = depth
            if depth == DEEPEST + 1:  # what lies below is not named again
                faults.add(("quotas", places[step], "parent"), f"is deeper than {DEEPEST} levels")
    styles = {name: quota.guaranteed.by_type is not None for name, quota in found.items() if not quota.guaranteed.unlimited}
    for name in sorted(found):
        for key, by_type in (("weight", found[name].weights), ("priority", found[name].priorities)):
            if by_type and not any(styles.values()):
                faults.add(("quotas", places[name], key), "may be a map only where guarantees are maps by type")
    if len(set(styles.values())) > 1:
        odd = sum(styles.values()) * 2 <= len(styles)  # the rarer way is reported
        for name in sorted(styles):
            if styles[name] is odd:
                faults.add(("quotas", places[name], "guaranteed"), "all guarantees of a tree are numbers, or all are maps by type")


def read_windows(
    rows: list[Any], now: int, known: frozenset[str], topology: Topology, nodes: Sequence[Node] | None, faults: Faults
) -> tuple[Window, ...]:
    """`nodes` is None where some are faulty: then nothing is said of types."""
    time = instant_after(now)
    table: dict[str, tuple[Check, Any]] = {
        "name": (text, MISSING),
        "quota": (optional(text), None),
        "class": (optional(one_of(*CLASSES)), None),
        "gpus": (_milli, MISSING),
        "gpu_type": (optional(text), None),
        "level": (optional(one_of(*topology.all_levels)), None),
        "start": (time, MISSING),
        "end": (optional(time), None),
        "notice_s": (_seconds, 0),
        "decay_s": (optional(_seconds), None),
    }
    types = {node.quota_type for node in nodes or ()}
    boards = {node.gpu_type for node in nodes or ()}
    found: list[Window] = []
    names: set[str] = set()
    for place, raw in enumerate(rows):
        path = ("reservations", place)
        fields = faults.fields(raw, table, path)
        if fields is None:
            continue
        if fields["name"] in names:
            faults.add((*path, "name"), f"{short(fields['name'])} is the name of another reservation")
        names.add(fields["name"])
        if (fields["quota"] is None) == (fields["class"] is None):
            faults.add(path, "must name either an owner (quota) or a class")
        if fields["quota"] is not None and fields["quota"] not in known:
            faults.add((*path, "quota"), f"there is no quota {short(fields['quota'])}")
        if fields["gpu_type"] is None and len(types) > 1:
            faults.add((*path, "gpu_type"), f"must name one of {', '.join(sorted(types))}")
        if nodes is not None and fields["gpu_type"] is not None and fields["gpu_type"] not in types:
            what = "is a GPU type, and its nodes belong to quota types of their own" if fields["gpu_type"] in boards else "no node belongs to it"
            faults.add((*path, "gpu_type"), f"{what}; a window names a quota type, and there are {', '.join(sorted(types)) or 'none'}")
        if fields["end"] is not None and fields["end"] <= fields["start"]:
            faults.add((*path, "end"), "must lie after start")
        rank = None if fields["class"] is None else CLASS_RANK[fields["class"]]
        found.append(
            Window(
                name=fields["name"],
                quota=fields["quota"],
                class_rank=rank,
                gpus=fields["gpus"],
                gpu_type=fields["gpu_type"] or min(types, default=None),
                level=fields["level"],
                start=fields["start"],
                end=fields["end"],
                notice_ms=fields["notice_s"],
                decay_ms=fields["decay_s"],
            )
        )
    return tuple(sorted(found, key=lambda window: (window.start, window.name)))
