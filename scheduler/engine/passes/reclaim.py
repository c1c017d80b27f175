"""Take back between queues: a leaf within its fair share takes from those above theirs, or above what they were promised."""

from functools import partial

from ..model.reasons import Reason, counted, reason
from ..rules.gates import fixed_gate
from ..rules.legality import Reclaim
from ..search.evicting import NOTHING, Taking, given_back, is_backed_off, take_in_turn, told_once
from ..search.victims import Found, Ranked, no_larger, usual_size
from ..state.planning import Cycle
from ..state.work import Work
from .walk import walk


def run(cycle: Cycle) -> None:
    walk(cycle, may_reclaim, reclaim, partial(small_enough, cycle, None if cycle.takers.held_back else beyond_lines(cycle)))


def beyond_lines(cycle: Cycle) -> dict[int, list[int]]:
    """The nodes that may have to give something to one beside them, by what is above both: they use more than they count on, or were promised."""
    found, parents = dict[int, list[int]](), cycle.tree.parent
    for division in cycle.tree.divisions:
        for place, (used, sure, promised) in enumerate(zip(division.used, division.counts_on, division.guaranteed, strict=True)):
            if used > (sure if promised is None else min(sure, promised)):
                found.setdefault(parents[place], []).append(place)
    return found


def small_enough(cycle: Cycle, beyond: dict[int, list[int]] | None, leaf: int, queue: list[Work]) -> list[Work]:
    """Those that could still be within the leaf's share while somebody beside it is beyond his line, or that a window may serve."""
    tree = cycle.tree
    if cycle.cluster.windows.lasting:
        return queue
    if beyond is not None and not any(beyond.get(tree.parent[place], [place]) != [place] for place in tree.path[leaf]):
        return []
    room = max([division.fair[leaf] - division.used[leaf] for division in tree.divisions])
    return [work for work in queue if work.form.lowest <= room or work.seats] if room > 0 else []


def claimant(cycle: Cycle, work: Work, quota_type: int) -> int | None:
    """The leaf in whose name the job may reclaim: one that stays within its fair share."""
    milli = work.missing_milli(quota_type)
    for leaf in cycle.cluster.leaves_of(work, quota_type) if cycle.cluster.windows.lasting else (work.leaf,):
        if milli and cycle.tree.within_share(leaf, quota_type, milli):
            return leaf
    return None


def may_reclaim(cycle: Cycle, work: Work, quota_type: int) -> bool:
    """The cheap half: within its share, and somebody is above his line by enough."""
    leaf, milli = claimant(cycle, work, quota_type), work.missing_milli(quota_type)
    if leaf is None:
        return False
    if work.form.fixed and fixed_gate(cycle.tree, leaf, quota_type, milli, cycle.cluster.windows.ends(work)) is not None:
        return False
    rules = Reclaim(cycle, work, quota_type, leaf, milli)
    key = ("reclaim", rules.signature, work.form.shape, *cycle.window_key(work))
    return bool(rules.sources) and (bool(work.seats) or key not in cycle.refused)


def reclaim(cycle: Cycle, work: Work, quota_type: int) -> Reason | None:
    if (leaf := claimant(cycle, work, quota_type)) is None:
        return NOTHING
    told = ("told", leaf, quota_type, work.form.shape, work.form.fixed, work.form.level, work.charged_leaf)
    return told_once(cycle, told, work, partial(_by_rules, cycle, work, quota_type, leaf))


def _by_rules(cycle: Cycle, work: Work, quota_type: int, leaf: int) -> Reason | None:
    refused: Reason | None = NOTHING
    for rules in Reclaim(cycle, work, quota_type, leaf, work.missing_milli(quota_type)).variants():
        if (refused := _reclaim(cycle, work, quota_type, rules)) is None:
            break
    return refused


def _reclaim(cycle: Cycle, work: Work, quota_type: int, rules: Reclaim) -> Reason | None:
    milli, leaf, name = rules.milli, rules.leaf, work.job.name
    key = ("reclaim", rules.signature, work.form.shape, *cycle.window_key(work))
    if not work.seats and key in cycle.refused:
        return NOTHING

    def why(found: Found) -> Reason:
        if all(unit.leaf == rules.own for unit in found.units):
            return given_back(name)
        return reason("reclaim", f"{cycle.tree.names[leaf]} reclaims {counted(milli)} for {name}")

    large = usual_size(milli)
    listed = ("ranked", rules.signature, large)
    known: tuple[Ranked, Ranked] | None = cycle.memo(listed)
    if known is None:
        ranked = rules.units(large)
        known = cycle.remember(listed, (ranked, no_larger(ranked, large)))
    ranked, small = known
    alike = (rules.signature, work.form.shape, *cycle.tree.limits(leaf, quota_type))
    refused = take_in_turn(cycle, Taking(work, quota_type, ranked, rules, why, alike, leaf), small)
    if refused is NOTHING and not work.seats and not is_backed_off(cycle, work):
        cycle.refused.add(key)
    return refused
