"""Keep the earliest place and the gates for the first blocked jobs of each quota type; those that have waited `max_wait_s` head them.

What may start before such a place: `_look` in allocate.py, by `delays` and `yields` of reservations.py. What gives way to its holder: backfilled.py.
"""

from ..rules.gates import closed_gate
from ..rules.held_gates import hold_of, used_before
from ..rules.times import may_cause_evictions, overdue
from ..state.planning import Cycle
from ..state.work import Work
from .allocate import STARTED, serve, try_start
from .backfilled import due, in_gaps, lenders, not_bound


def run(cycle: Cycle) -> None:
    """Takes the place of a plain allocate: a job behind a blocked one must not run into the place kept for that one."""
    if not cycle.begin_walk():
        return
    free_start, keeps = "allocate" in cycle.settings.passes, cycle.settings.backfill_depth > 0
    heads = [work for work in cycle.waiting if overdue(cycle, work)] if keeps and cycle.settings.waits_end else []
    for work in sorted(heads, key=lambda work: work.order):
        types = work.open_types
        if not (free_start and any(try_start(cycle, work, quota_type) == STARTED for quota_type in types)):
            keep(cycle, work, types, heads=True)
    serve(cycle, keep=keep if keeps else None, free_start=free_start)


def keep(cycle: Cycle, work: Work, types: tuple[int, ...], *, heads: bool = False) -> None:
    """Keep the earliest place and the gates for a blocked job, and let backfilled work give way to it if its time has come."""
    book, power = cycle.book, cycle.cluster.power
    if book.asks(work) or (power is not None and power.never(work) is not None):
        return
    types = tuple([one for one in types if book.room_for_more(one) and _may_have_a_date(cycle, work, one, heads=heads)])
    if work.evicted:
        # It has not left yet, so it may stand elsewhere at once, but no date is kept for it before the next plan. Nor for others whom this plan
        # puts out: what is free in one type may be somebody's from then on, and each type is asked about.
        for quota_type in types:
            if (entry := book.add(work, (quota_type,), only_now=True)) is not None:
                due(cycle, work, quota_type)
                if work.seats:
                    return
                book.withdraw(entry)
        return
    if not types:
        return
    if len(types) == 1:
        may_be, staying = in_gaps(cycle, work, types[0])
        if not may_be:
            if staying:
                book.stay(work, staying)
            book.add_later(work, types[0])
            return
    entry = book.add(work, types)
    while entry is not None and not entry.at:
        due(cycle, work, entry.quota_type)
        waits = work in cycle.waiting and may_cause_evictions(cycle, work)
        if not waits or not book.stay(work, not_bound(cycle, work, entry.quota_type, lenders(cycle, work, entry.quota_type))):
            return
        book.withdraw(entry)  # nobody gives way to it, so its time has not come
        entry = book.add(work, types)


def _may_have_a_date(cycle: Cycle, work: Work, quota_type: int, *, heads: bool) -> bool:
    """Within the fair share, or no job within it waits for that type; and past the gates. What later work of its own leaf uses is not counted. Of a
    job that its gates refuse, they are kept, and a place from when they let it in."""
    book, tree, division = cycle.book, cycle.tree, cycle.tree.division(quota_type)
    leaf, milli = work.leaf, work.missing_milli(quota_type)
    stays, behind = tree.within_share(leaf, quota_type, milli), not heads and quota_type in book.blocked_within
    # Whom this plan evicts has yet to leave: from the next plan on he may keep others from a place, not before.
    within = stays or ((behind or not work.evicted) and used_before(cycle, work, leaf, division) + milli <= division.fair[leaf])
    if behind and not within:
        return False
    refused = closed_gate(cycle, work, leaf, quota_type, milli)
    if refused is not None and (work.evicted or refused.code not in ("limit", "guarantee")):
        return False
    hold = None if work.evicted else hold_of(cycle, work, quota_type, milli, within=within)
    if hold is not None:
        if refused is not None and hold.opens is not None:
            book.add_from(work, quota_type, hold.opens)
        elif refused is not None and not heads:
            return False
        book.holds.append(hold)
    if stays or (within and not work.evicted):
        book.blocked_within.add(quota_type)
    return refused is None
