"""What a change of the quota tree would do now (QTA-7): the engine plans the present state twice, with the tree as it is and as it would be."""

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from gpufleet.core.money import HOURS_PER_MONTH, MILLIS_PER_HOUR, cost_micros
from quotas.drafts import NodeState, Tree, over_capacity
from quotas.lineup import BORROWED, Promised
from quotas.models import QuotaNode
from quotas.permissions import Access, Can
from quotas.rules import Share, said
from quotas.selectors.rates import rates_now
from quotas.services.ledger import ledger_classes_if
from scheduler.engine.cycle import make_plan
from scheduler.engine.model.plan import Plan
from scheduler.engine.model.values import Scenario, Settings
from scheduler.engine.state.state import Kept
from scheduler.loop.policy import policy, ruled
from scheduler.models import Job
from scheduler.selectors.discretion import Discretion
from scheduler.selectors.submission_limits import Limit, waiting_under
from scheduler.selectors.usage import held_by_quota
from scheduler.services.forecasts.differences import differences
from scheduler.services.loop.past import past_usage_if
from scheduler.snapshots import Snapshots
from scheduler.snapshots.taking import Snapshot
from scheduler.snapshots.tree import Past, archived_nodes, inner_nodes, policy_of, tree_view

MOST_NAMED = 200
RECLAIMABLE = "Its GPUs can be reclaimed."
FAR = 1 << 40  # keys of nodes that are yet to be made
_guard = threading.Lock()
_snapshots = Snapshots()
_drafted = Kept()  # of the last draft: the next one has most jobs in common with it


@dataclass(frozen=True, slots=True)
class ShareChange:
    """A node's part of one GPU type before and after, in milli-GPU. `fair` is what it may count on now."""

    path: str
    gpu_type: str
    used: int
    fair: tuple[int, int]
    guaranteed: tuple[int | None, int | None]
    borrowed: tuple[int, int]


@dataclass(frozen=True, slots=True)
class JobEffect:
    """What would become of a job: preempted, shrinks, moves, starts, waits (it would start otherwise), borrows or guaranteed."""

    job: str
    name: str
    path: str
    effect: str
    detail: str
    gpus_milli: int
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Worth:
    """A guarantee or limit of a node that the change gives or takes: by how many milli-GPU, and what they cost in a month at the guaranteed rate."""

    path: str
    gpu_type: str
    field: str  # guaranteed or limit
    milli: int
    micros_per_month: int


@dataclass(frozen=True, slots=True)
class Preview:
    as_of: datetime
    shares: tuple[ShareChange, ...]
    jobs: tuple[JobEffect, ...]
    more_jobs: int  # that are not named
    warnings: tuple[str, ...]
    unseen: int = 0  # effects on jobs that the reader may not see
    counts: Mapping[str, int] = field(default_factory=dict)  # by effect, the jobs that the reader may see, also those not named
    worth: tuple[Worth, ...] = ()  # the largest sum first, of nodes whose costs the reader may see


@dataclass(frozen=True, slots=True)
class Ground:
    """The present state under a drafted tree."""

    snapshot: Snapshot
    drafted: Scenario
    paths: Mapping[int, str]  # of nodes under the draft, by key
    names: Mapping[str, str] = field(default_factory=dict)  # paths now by the paths under the draft


def tree_preview(*, access: Access, before: Tree, after: Tree, now: datetime) -> Preview:
    """What the drafted tree changes at once. Nothing is written. If it differs only in fields that the engine does not read, nothing is planned."""
    chosen = policy()
    effects: list[tuple[str, str, str]] = []
    changed: list[ShareChange] = []
    with _guard:
        snapshot = _snapshots.take(settings=chosen.engine, now=now, start_timeout=chosen.start_timeout)
        rows = drafted_rows(snapshot, after, now)
        if rows != drafted_rows(snapshot, before, now):
            ground = drafted_ground(snapshot, before, after, rows, now)
            plan = make_plan(snapshot.scenario, _snapshots.kept)
            planned = make_plan(ground.drafted, _drafted)
            effects += differences(plan.decisions, planned.decisions, waiting=planned.waiting)
            changed += _shares(plan, planned, ground)
    effects += _classes(before, after)
    named, unseen, more, counts = effects_named(access, effects)
    names = _paths_before(before, after)
    shares = tuple(line for line in changed if access.can(Can.SEE, names.get(line.path, line.path)))
    told = _warnings(before, after, snapshot.fleet.capacity_milli)
    warnings = tuple(text for path, text in told if path is None or access.can(Can.SEE, names.get(path, path)))
    return Preview(now, shares, named, more, warnings, unseen, counts, _worth(access, before, after, now))


def drafted_ground(snapshot: Snapshot, before: Tree, after: Tree, rows: tuple[Any, ...], now: datetime) -> Ground:
    """The same fleet and jobs under the drafted tree. `rows` are those of the drafted tree."""
    rules = policy_of(rows)
    settings = ruled(snapshot.unruled, rules)
    with_jobs = {row.quota_id for row in snapshot.jobs.values()}
    tree = tree_view(rows, inner_nodes(rows) & with_jobs, archived_nodes(rows) & with_jobs, past_as_of(now, settings))
    jobs = tuple(_elsewhere(job, tree.paths[snapshot.jobs[job.name].quota_id]) for job in snapshot.scenario.jobs)
    moved = _renamed(before, after)
    windows = tuple(one if one.quota not in moved else replace(one, quota=moved[one.quota]) for one in snapshot.scenario.windows)
    drafted = replace(snapshot.scenario, settings=settings, quotas=tree.quotas, windows=windows, jobs=jobs)
    return Ground(snapshot, drafted, tree.paths, _paths_before(before, after))


def drafted_rows(snapshot: Snapshot, after: Tree, now: datetime) -> tuple[Any, ...]:
    """The drafted tree as it would be read from the database."""
    keys = dict(QuotaNode.objects.values_list("public_id", "pk"))
    fresh = [state.id for state in after.in_order() if state.id not in keys]
    keys |= {key: FAR + place for place, key in enumerate(fresh)}
    old_rows = {row[0]: row for row in snapshot.tree.rows[0]}
    node_rows = [_node_row(state, after, keys, old_rows, now) for state in after.states.values()]
    share_rows = [
        (keys[state.id], gpu_type, share.guaranteed_milli, share.limit_milli, share.weight, share.priority)
        for state in after.states.values()
        for gpu_type, share in sorted(state.values.shares.items())
    ]
    return (sorted(node_rows), sorted(share_rows, key=lambda row: row[:2]), snapshot.tree.rows[2])


def _node_row(state: NodeState, after: Tree, keys: Mapping[str, int], old: Mapping[int, Any], now: datetime) -> tuple[Any, ...]:
    key, values = keys[state.id], state.values
    known = old.get(key)
    return (
        key,
        keys[state.parent] if state.parent is not None else None,
        after.paths[state.id],
        values.weight,
        values.priority,
        known[5] if known else now,
        now if state.archived else None,
        known[7] if known else 1,
        values.preempt_min_runtime_s,
        values.reclaim_min_runtime_s,
        dict(values.policy),
    )


def _elsewhere(job: Any, quota: str) -> Any:
    return job if job.quota == quota else replace(job, quota=quota)


def past_as_of(now: datetime, settings: Settings) -> Past | None:
    """What was used by then, as the settings count it, whatever steps are kept."""
    if not settings.fairness.usage_weight_millionths:
        return None
    return Past(0, *past_usage_if(now=now, fairness=settings.fairness))


# What the plans decide


def _classes(before: Tree, after: Tree) -> Iterable[tuple[str, str, str]]:
    """Running jobs that stand on their guarantee now and would borrow, or the reverse."""
    for job, was, now in ledger_classes_if(_promises(before), _promises(after), _renamed(before, after)):
        if (was == BORROWED) != (now == BORROWED):
            borrows = now == BORROWED
            yield job, "borrows" if borrows else "guaranteed", RECLAIMABLE if borrows else "Its GPUs can no longer be reclaimed."


def _promises(tree: Tree) -> dict[tuple[str, str], Promised]:
    return {
        (tree.paths[state.id], gpu_type): Promised(share.guaranteed_milli)
        for state in tree.states.values()
        for gpu_type, share in state.values.shares.items()
    }


def _renamed(before: Tree, after: Tree) -> dict[str, str]:
    return {before.paths[key]: after.paths[key] for key in before.states if key in after.paths and before.paths[key] != after.paths[key]}


def effects_named(access: Access, effects: Sequence[tuple[str, str, str]]) -> tuple[tuple[JobEffect, ...], int, int, Mapping[str, int]]:
    """The effects with the names of their jobs, the weighty first; how many the reader may not see; how many there are beyond those named; all that
    the reader may see, by effect."""
    gone = {job for job, effect, _ in effects if effect == "preempted"}
    effects = [one for one in effects if one[1] not in ("borrows", "guaranteed") or one[0] not in gone]  # who leaves has no class
    order = ["preempted", "shrinks", "waits", "borrows", "moves", "starts", "grows", "guaranteed", "stays"]
    ranked = sorted(dict.fromkeys(effects), key=lambda one: (order.index(one[1]), one[0]))
    rows = {job: facts for job, *facts in _job_rows({job for job, _, _ in ranked})}
    seen = [one for one in ranked if one[0] in rows and access.can(Can.SEE, rows[one[0]][1])]
    told = Discretion(access, [detail for _, _, detail in seen[:MOST_NAMED]])
    named = []
    for job, effect, detail in seen[:MOST_NAMED]:
        name, path, milli, owner = rows[job]
        named.append(JobEffect(job, name, path, effect, told.text(detail), milli, owner or ""))
    return tuple(named), len(ranked) - len(seen), max(0, len(seen) - MOST_NAMED), Counter(effect for _, effect, _ in seen)


def _job_rows(ids: Iterable[str]) -> Iterable[tuple[Any, ...]]:
    return Job.objects.filter(public_id__among=list(ids)).values_list("public_id", "name", "quota__path", "gpus_milli", "owner__username")


def _paths_before(before: Tree, after: Tree) -> dict[str, str]:
    return {now: was for was, now in _renamed(before, after).items()}


# Shares and warnings


def _shares(plan: Plan, planned: Plan, ground: Ground) -> Iterable[ShareChange]:
    was = {(one.quota, one.quota_type): one for one in plan.shares}
    for one in planned.shares:
        old = was.get((ground.names.get(one.quota, one.quota), one.quota_type))
        fair, guaranteed, borrowed = (old.fair, old.guaranteed, old.borrowed) if old else (0, 0, 0)
        if (fair, guaranteed, borrowed) != (one.fair, one.guaranteed, one.borrowed):
            yield ShareChange(
                one.quota, one.quota_type, old.used if old else one.used, (fair, one.fair), (guaranteed, one.guaranteed), (borrowed, one.borrowed)
            )


def _warnings(before: Tree, after: Tree, capacity: Mapping[str, int]) -> Iterable[tuple[str | None, str]]:
    """The node that each is about, and what it says."""
    used = _used_now()
    for state in after.in_order():
        old = before.get(state.id)
        path = after.paths[state.id]
        most = state.values.waiting_limit
        if old is not None and most and most != old.values.waiting_limit and (waits := waiting_under(Limit(0, before.paths[state.id], most))) > most:
            yield path, f"Waiting limit of {path}: {most:,}, with {waits:,} jobs waiting. Nothing more is submitted there until fewer wait."
        for gpu_type, share in sorted(state.values.shares.items()):
            held = used.get((state.id, gpu_type), 0)
            was = old.values.shares.get(gpu_type, Share()) if old else Share()
            limit = share.limit_milli
            if limit is not None and limit < held and was.limit_milli != limit:
                fell = f"Limit of {path} for {gpu_type}: {said(was.limit_milli) if was.limit_milli is not None else 'none'} → {said(limit)}"
                yield path, f"{fell}, with {said(held)} in use. Nothing more starts there; {said(held - limit)} above it until jobs end."
            lower = share.guaranteed_milli
            if lower is not None and lower < held and (was.guaranteed_milli is None or was.guaranteed_milli > lower) and old is not None:
                first = said(was.guaranteed_milli)
                yield (
                    path,
                    f"Guarantee of {path} for {gpu_type}: {first} → {said(lower)}, with {said(held)} in use. What exceeds it can be reclaimed.",
                )
    already = over_capacity(before, capacity)
    for gpu_type, (total, has) in over_capacity(after, capacity).items():
        if total > already.get(gpu_type, (0, 0))[0]:
            yield None, f"{gpu_type}: {said(total)} would be guaranteed, {said(has)} are healthy."


def _worth(access: Access, before: Tree, after: Tree, now: datetime) -> tuple[Worth, ...]:
    """No sum is told of what was or becomes unlimited, or of a type without a price."""
    if not access.can_somewhere(Can.SEE_COSTS):
        return ()
    rates, found = rates_now(now=now), []
    for state in after.states.values():
        old = before.get(state.id)
        path = after.paths[state.id]
        were, are = _stated(old), _stated(state)
        if were == are or not access.can(Can.SEE_COSTS, before.paths[state.id] if old else path):
            continue
        for gpu_type in sorted((were.keys() | are.keys()) & rates.keys()):
            was, now_is = were.get(gpu_type, Share()), are.get(gpu_type, Share())
            amounts = {"guaranteed": (was.guaranteed_milli, now_is.guaranteed_milli), "limit": (was.limit_milli, now_is.limit_milli)}
            for name, (first, then) in amounts.items():
                if first is None or then is None or first == then:
                    continue
                month = cost_micros(gpu_milli=then - first, millis=HOURS_PER_MONTH * MILLIS_PER_HOUR, micros_per_gpu_hour=rates[gpu_type])
                found.append(Worth(path, gpu_type, name, then - first, month))
    return tuple(sorted(found, key=lambda one: (-abs(one.micros_per_month), one.path, one.gpu_type, one.field)))


def _stated(state: NodeState | None) -> Mapping[str, Share]:
    return {} if state is None or state.archived else state.values.shares


def _used_now() -> dict[tuple[str, str], int]:
    """Milli-GPU that each node holds with all below it, by public id and type."""
    nodes = {pk: (public, parent) for pk, public, parent in QuotaNode.objects.values_list("pk", "public_id", "parent_id")}
    found: dict[tuple[str, str], int] = defaultdict(int)
    for pk, kinds in held_by_quota().items():
        at: int | None = pk
        while at is not None:
            public, at = nodes[at]
            for gpu_type, milli in kinds.items():
                found[public, gpu_type] += milli
    return found
