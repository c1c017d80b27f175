"""Gates that reservations hold: a blocked job keeps limits, guarantees and its fair share on its way up, as well as places.

A later job starts below them only if, at the holder's date, it has ended, may be evicted for the holder, or leaves room for both.
"""

from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from ..model.reasons import Reason, counted, reason, spell_instant
from ..model.values import CLASS_RANK, Preemptible
from ..state.tree import EVERY_TYPE, Division, Tree
from ..state.work import Work
from .times import duration, ends_at, overdue, protected_for
from .windows import NEVER

if TYPE_CHECKING:
    from ..state.planning import Cycle
    from ..state.waiting import Waiting


class Rule(Enum):
    """The number of a node that refuses more work."""

    LIMIT = "limit"
    GUARANTEE = "guarantee"
    SHARE = "fair share"


class Gate(NamedTuple):
    place: int  # the node of the tree
    rule: Rule
    most: int  # milli-GPU
    types: tuple[int, ...]  # the quota types that count

    def counts(self, tree: Tree, work: Work, leaf: int, quota_type: int) -> bool:
        """Whether a job that is charged to a leaf counts against it."""
        return tree.below(self.place, leaf) and quota_type in self.types and (work.form.fixed or self.rule is not Rule.GUARANTEE)

    def used(self, tree: Tree) -> int:
        divisions = [division for division in tree.divisions if not set(division.types).isdisjoint(self.types)]
        return sum([(division.fixed if self.rule is Rule.GUARANTEE else division.used)[self.place] for division in divisions])


class Hold(NamedTuple):
    """The gates that a blocked job keeps."""

    work: Work
    leaf: int
    quota_type: int
    milli: int
    gates: tuple[Gate, ...]
    opens: int | None  # when they let it in, in milliseconds from now; None: no estimate says when
    guaranteed: bool  # whether it would stay within its guarantees
    safe: int  # for how long after its start it may not preempt lower work of its leaf: for ever where that would not stay within its share


class HeldShares:
    """For whom later jobs of a leaf are held back, so that it can reclaim: until all passes have refused it."""

    def __init__(self) -> None:
        self.held: set[int] = set()  # by order
        self.refused: set[int] = set()

    def in_vain(self, waiting: "Waiting") -> bool:
        """Whether every pass has refused some of them after all: then those who were held back are looked at once more."""
        among = waiting if self.held else ()
        in_vain = {work.order for work in among if work.order in self.held and not overdue(waiting.cluster, work)} - self.refused
        self.held.clear()
        self.refused |= in_vain
        return bool(in_vain)


def hold_of(cycle: "Cycle", work: Work, quota_type: int, milli: int, *, within: bool) -> Hold | None:
    """The gates that a blocked job holds; None if none of them can refuse it. `within`: whether it stays within its leaf's fair share."""
    tree, leaf = cycle.tree, work.leaf
    division = tree.division(quota_type)
    every = tuple(range(len(tree.types)))
    limits = tree.limits(leaf, quota_type)
    gates = [Gate(place, Rule.LIMIT, most, every if of_type == EVERY_TYPE else (of_type,)) for place, of_type, most in limits]
    if work.form.fixed:
        promises = tree.promised_to_fixed(leaf, division, cycle.cluster.windows.ends(work))
        gates += [Gate(place, Rule.GUARANTEE, promised, division.types) for place, promised in promises]
    share = Gate(leaf, Rule.SHARE, division.fair[leaf], division.types)
    if within and "reclaim" in cycle.settings.passes and milli > cycle.idle_milli(quota_type):
        gates.append(share)
    if not gates:
        return None
    safe = protected_for(cycle, leaf, "preempt") if "preempt" in cycle.settings.passes else NEVER
    hold = Hold(work, leaf, quota_type, milli, tuple(gates), 0, tree.within_guarantee(leaf, quota_type, milli), safe)
    opens, room = _opens(cycle, hold), share.most - milli
    # Whoever leaves, or with those gone who are evicted for it, it has to stay within its share then.
    if opens is None or (share.used(tree) > room and _left(cycle, hold, share, opens) > room):
        hold = hold._replace(safe=NEVER)
        opens = _opens(cycle, hold)
    return hold._replace(opens=opens)


def used_before(cycle: "Cycle", work: Work, leaf: int, division: Division) -> int:
    """What a leaf uses, without running jobs of the leaf that rank behind a waiting one."""
    used = division.used[leaf]
    if not used or used <= division.fair[leaf] - work.form.lowest:
        return used
    rank, mine = cycle.waiting.order.rank, cycle.waiting.order.rank(work)
    return used - sum([one.milli for one in cycle.standing.below(leaf) if rank(one) > mine and one.quota_type in division.types])


def _opens(cycle: "Cycle", hold: Hold) -> int | None:
    """When enough of what runs has ended, or may be evicted for the holder, in milliseconds from now."""
    latest = 0
    for gate in hold.gates:
        ahead = [other for other in cycle.book.holds if _will_count(cycle, other, gate)]  # they are let in first
        if hold.milli + sum(other.milli for other in ahead) + gate.used(cycle.tree) <= gate.most:
            continue  # it is open
        leaving = [*_leaving(cycle, hold, gate)]
        for other in ahead:
            date, length = _date(cycle, other, gate), duration(cycle, other.work)
            leaving.append((NEVER if date is None or length >= NEVER else date + length, other.milli))
        excess = hold.milli - gate.most + sum(milli for _, milli in leaving)
        for at, milli in sorted(leaving):
            if excess > 0 and at < NEVER:
                excess -= milli
                latest = max(latest, at)
        if excess > 0:
            return None
    return latest


def _counted(cycle: "Cycle", gate: Gate) -> Iterator[Work]:
    """Running jobs that count against a gate."""
    for leaf in range(gate.place, cycle.tree.end[gate.place]):
        yield from (work for work in cycle.standing.below(leaf) if gate.counts(cycle.tree, work, leaf, work.quota_type))


def _will_count(cycle: "Cycle", hold: Hold, gate: Gate) -> bool:
    """Whether the holder of another hold will count against a gate."""
    return hold.work in cycle.waiting and gate.counts(cycle.tree, hold.work, hold.leaf, hold.quota_type)


def _leaving(cycle: "Cycle", hold: Hold, gate: Gate) -> Iterator[tuple[int, int]]:
    """When each running job that counts against a gate has ended, or may be evicted for the holder, in milliseconds from now; and its milli-GPU."""
    now = cycle.now
    for work in _counted(cycle, gate):
        end = now if work.backfilled and cycle.book.lent(work) else ends_at(cycle, work)
        if end > now and (safe := _safe_for(hold, work, work.charged_leaf)) < NEVER:
            end = min(end, max(now, work.here_since(now) + safe))
        if end < NEVER:
            cycle.is_to_come(end)  # it may still be there then, and another date follow
        yield NEVER if end >= NEVER else end - now, work.milli


def _left(cycle: "Cycle", hold: Hold, gate: Gate, at: int) -> int:
    """What of all that runs still counts against a gate at an instant, in milli-GPU."""
    return sum([milli for until, milli in _leaving(cycle, hold, gate) if until > at])


def _safe_for(hold: Hold, work: Work, leaf: int) -> int:
    """For how long after its start the holder may not preempt a job of a leaf."""
    lower = leaf == hold.leaf and work.form.level < hold.work.form.level and work.kind.preemptible is Preemptible.ALWAYS
    return hold.safe if lower else NEVER


def held_gate(cycle: "Cycle", work: Work, leaf: int, quota_type: int, milli: int) -> Reason | None:
    """Which hold of a job ahead refuses so much more, as a gate of it would be closed at the holder's date if a job started now."""
    tree = cycle.tree
    for hold in cycle.book.holds:
        for gate in _heeded(cycle, hold, work, leaf, quota_type, milli):
            if gate.used(tree) + hold.milli + milli <= gate.most:
                continue
            at = _date(cycle, hold, gate)
            if at is None or (at and duration(cycle, work) <= at) or _safe_for(hold, work, leaf) <= at:
                continue
            if hold.milli + milli + _left(cycle, hold, gate, at) > gate.most:
                if gate.rule is Rule.SHARE:
                    cycle.held_shares.held.add(hold.work.order)
                name, holder, spelt = tree.names[gate.place], hold.work.job.name, spell_instant(cycle.now + at) if at else None
                when = f"from {spelt}" if spelt else "next"
                detail = f"{holder} has {counted(hold.milli)} of the {gate.rule.value} of {name} reserved {when}; this job would still use them"
                facts = {"at": spelt} if spelt else {}
                return reason("reservation", detail, holder=holder, quota=name, gpus=hold.milli / 1000, **facts)
    return None


def _heeded(cycle: "Cycle", hold: Hold, work: Work, leaf: int, quota_type: int, milli: int) -> Iterator[Gate]:
    """The gates of a hold that a job counts against, where it is served behind the holder and has to heed them."""
    gates = [gate for gate in hold.gates if gate.counts(cycle.tree, work, leaf, quota_type)]
    if not gates or hold.work is work or hold.work not in cycle.waiting or cycle.waiting.order.rank(work) <= cycle.waiting.order.rank(hold.work):
        return
    # What stays within its guarantees waits for no job above its own.
    if leaf == hold.leaf or hold.guaranteed or not cycle.tree.within_guarantee(leaf, quota_type, milli):
        yield from gates


def gates_ahead(cycle: "Cycle", work: Work, quota_type: int, milli: int) -> Iterator[tuple[Hold, Gate]]:
    """The gates, held by jobs ahead of it, that a job may not break by a start at any time."""
    for hold in cycle.book.holds:
        for gate in _heeded(cycle, hold, work, work.home, quota_type, milli):
            if (at := _date(cycle, hold, gate)) is not None and _safe_for(hold, work, work.home) > at:
                yield hold, gate


def uses_of(cycle: "Cycle", hold: Hold, gate: Gate) -> Iterator[tuple[int, int, int]]:
    """What counts against a held gate, the holder included: (milli-GPU, from, to), in milliseconds from now."""
    if gate.rule is Rule.SHARE:  # the holder takes its part once it starts; after that the rest may be exceeded
        yield gate.most + 1, 0, _starts(cycle, hold, gate)
        return
    for until, milli in _leaving(cycle, hold, gate):
        yield milli, 0, until
    for other in cycle.book.holds:
        if other is hold or _will_count(cycle, other, gate):
            start, length = _starts(cycle, other, gate), duration(cycle, other.work)
            known = start < NEVER  # else nobody knows when it starts, nor when it has ended
            yield other.milli, start if known else 0, start + length if known and length < NEVER else NEVER
        if other is hold:
            break


def _starts(cycle: "Cycle", hold: Hold, gate: Gate) -> int:
    """When the holder starts, in milliseconds from now; NEVER: nobody knows."""
    at = _date(cycle, hold, gate)
    return at if at or (at == 0 and (hold.opens == 0 or cycle.book.date_of(hold.work) is not None)) else NEVER


def _date(cycle: "Cycle", hold: Hold, gate: Gate) -> int | None:
    """When the holder may start, in milliseconds from now; 0: as soon as anything ends. None: nothing is kept for it. By reclaim that is as soon as
    enough of its own leaf has ended: at once, until all passes have refused it."""
    if gate.rule is Rule.SHARE and (hold.opens or hold.work.order not in cycle.held_shares.refused):
        return hold.opens
    if (at := cycle.book.date_of(hold.work)) is not None:
        return at
    if hold.opens and not cycle.book.has_no_date(hold.work):
        return hold.opens
    if not overdue(cycle, hold.work):
        return None
    # Where services alone leave it no room it waits in vain.
    services = ((one for one in _counted(cycle, each) if one.kind.class_rank == CLASS_RANK["inference"]) for each in hold.gates)
    staying = [sum(one.milli for one in those if ends_at(cycle, one) >= NEVER) for those in services]
    return 0 if all(hold.milli + milli <= each.most for each, milli in zip(hold.gates, staying, strict=True)) else None
