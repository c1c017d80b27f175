"""The quota tree as the engine's quotas."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpufleet.core.prepared import Prepared, Question
from gpufleet.core.times import millis
from quotas.models import QuotaNode, QuotaShare
from scheduler.engine.model.values import Amount, Fairness, Quota
from scheduler.models import UsageStep

# Jobs belong to leaves. What sits on an inner node of the tree is shown as a leaf of its own below it, with nothing guaranteed.
OWN = "-"
MILLION = 1_000_000
RUNTIMES = ("preempt_min_runtime_s", "reclaim_min_runtime_s")
_NODE = ("id", "parent_id", "path", "weight", "priority", "created_at", "archived_at", "revision", *RUNTIMES, "policy")
NODES = Prepared(lambda: QuotaNode.objects.order_by("id").values_list(*_NODE))
SHARES = Prepared(
    lambda: QuotaShare.objects.order_by("id").values_list("node_id", "gpu_type", "guaranteed_milli", "limit_milli", "weight", "priority")
)
REVISIONS: Prepared[tuple[int, int]] = Prepared(lambda: QuotaNode.objects.filter(archived_at__isnull=True).values_list("id", "revision"))


@dataclass(frozen=True, slots=True)
class TreeView:
    rows: tuple[Any, ...]
    revision: tuple[int, int, int]
    quotas: tuple[Quota, ...]
    paths: Mapping[int, str]  # of the leaf that a job of this node belongs to


def tree_asked() -> list[Question]:
    """Nodes and shares, of which a tree view is made."""
    return [NODES.asking(), SHARES.asking()]


def tree_revision() -> tuple[int, int, int]:
    """What moves on whenever the tree changes: every write of a node raises its revision."""
    revisions = REVISIONS()
    return len(revisions), sum(revision for _, revision in revisions), max((key for key, _ in revisions), default=0)


@dataclass(frozen=True, slots=True)
class Past:
    """The newest step of past usage."""

    id: int
    used: Mapping[str, Mapping[str, int]]
    capacity: Mapping[str, int]


def past_usage(now: datetime, fairness: Fairness, known: Past | None) -> Past | None:
    """As of the beginning of this step; nothing where it does not count. What is known is not read again."""
    if not fairness.usage_weight_millionths:
        return None
    steps = UsageStep.objects.filter(half_life_seconds=fairness.half_life_ms // 1000, at__lte=now).order_by("-at")
    newest = steps.values_list("id", flat=True).first()
    if newest is None or (known is not None and known.id == newest):
        return known if newest is not None else None
    return Past(*UsageStep.objects.values_list("id", "used", "capacity").get(pk=newest))


def tree_view(rows: tuple[Any, ...], inner_with_jobs: frozenset[int], archived_with_jobs: frozenset[int], past: Past | None = None) -> TreeView:
    node_rows, share_rows, capacity = rows
    by_id = {row[0]: row for row in node_rows}
    shown = {row[0] for row in node_rows if row[6] is None}
    for key in archived_with_jobs:  # what still runs there is charged as long as it does
        at: int | None = key
        while at is not None and at not in shown:
            shown.add(at)
            at = by_id[at][1]
    parents = {by_id[key][1] for key in shown}
    shares: dict[int, list[Any]] = defaultdict(list)
    for row in share_rows:
        shares[row[0]].append(row)
    found: list[Quota] = []
    paths: dict[int, str] = {}
    used = _used(past, {row[0]: row[1] for row in node_rows}) if past is not None else {}
    for key in shown:
        _, parent, path, weight, priority, created, _, _, preempt, reclaim, _ = by_id[key]
        weights = _each_type(1000 * weight, {row[1]: 1000 * row[4] for row in shares[key] if row[4] is not None}, capacity)
        priorities = _each_type(priority, {row[1]: row[5] for row in shares[key] if row[5] is not None}, capacity)
        quota = Quota(
            name=path,
            parent=by_id[parent][2] if parent in shown else None,
            guaranteed=_guaranteed(shares[key], dict(capacity)),
            limit=_limit(shares[key]),
            # What is said for each type leaves nothing to say for the others.
            weight=1000 if weights else 1000 * weight,
            priority=100 if priorities else priority,
            preempt_min_runtime_ms=_millis(preempt),
            reclaim_min_runtime_ms=_millis(reclaim),
            created=millis(created),
            usage=_parts(used.get(key), past),
            weights=weights,
            priorities=priorities,
        )
        found.append(quota)
        paths[key] = path
        if key in parents and key in inner_with_jobs:
            paths[key] = f"{path}/{OWN}"
            usage = _parts(past.used.get(str(key)), past) if past is not None else ()
            found.append(Quota(paths[key], path, Amount(by_type=()), Amount(), 1000 * weight, priority, None, None, millis(created), usage))
    revision = _revision(node_rows)
    return TreeView(rows, revision, tuple(sorted(found, key=lambda quota: quota.name)), paths)


def _used(past: Past, parents: Mapping[int, int | None]) -> dict[int, dict[str, int]]:
    """What each node used, with all below it as the tree is now: whoever moves takes his past along."""
    found: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for key, kinds in past.used.items():
        at: int | None = int(key)
        while at is not None:
            for kind, amount in kinds.items():
                found[at][kind] += amount
            at = parents.get(at)
    return found


def _parts(used: Mapping[str, int] | None, past: Past | None) -> tuple[tuple[str, int], ...]:
    """Millionths of the fleet's capacity, by type."""
    if not used or past is None:
        return ()
    shares = ((kind, min(MILLION, amount * MILLION // past.capacity[kind])) for kind, amount in sorted(used.items()) if past.capacity.get(kind))
    return tuple((kind, share) for kind, share in shares if share)


def _revision(node_rows: list[Any]) -> tuple[int, int, int]:
    live = [(row[0], row[7]) for row in node_rows if row[6] is None]
    return len(live), sum(revision for _, revision in live), max((key for key, _ in live), default=0)


def _millis(seconds: int | None) -> int | None:
    return None if seconds is None else 1000 * seconds


def policy_of(rows: tuple[Any, ...]) -> Mapping[str, Any]:
    """The fleet-wide rules: those of the top."""
    return next((row[10] or {} for row in rows[0] if row[1] is None), {})


def inner_nodes(rows: tuple[Any, ...]) -> frozenset[int]:
    return frozenset(row[1] for row in rows[0] if row[1] is not None and row[6] is None)


def archived_nodes(rows: tuple[Any, ...]) -> frozenset[int]:
    return frozenset(row[0] for row in rows[0] if row[6] is not None)


def _guaranteed(shares: list[Any], capacity: Mapping[str, int]) -> Amount:
    """By type. What is promised without a bound is all that there is of the type; a node that says nothing is promised nothing."""
    return Amount(by_type=tuple(sorted((kind, capacity.get(kind, 0) if milli is None else milli) for _, kind, milli, *_ in shares)))


def _each_type(usual: int, stated: Mapping[str, int], capacity: Sequence[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """The value for each type there is, if the node's own does not hold for all of them."""
    return tuple((kind, stated.get(kind, usual)) for kind, _ in capacity) if stated else ()


def _limit(shares: list[Any]) -> Amount:
    stated = tuple(sorted((kind, limit) for _, kind, _, limit, *_ in shares if limit is not None))
    return Amount(by_type=stated) if stated else Amount()
