"""Gates at a leaf and every node above it: A + r <= L, for non-preemptible work N + r <= D; and its backoff, and what held_gates.py says."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..model.reasons import Reason, counted, gpus, reason
from ..model.values import ANY_TYPE
from ..state.tree import EVERY_TYPE, Tree
from ..state.work import Work
from .held_gates import held_gate
from .times import backoff

if TYPE_CHECKING:
    from ..state.planning import Cycle


def open_leaf(cycle: "Cycle", work: Work, quota_type: int, milli: int, claim: int | None = None) -> tuple[int, Sequence[Reason]]:
    """The first leaf, from that of the claim on, that may be charged with a job; or its own, and what refuses it in each."""
    refused = []
    for leaf in cycle.cluster.leaves_of(work, quota_type, since=claim):
        if (closed := closed_gate(cycle, work, leaf, quota_type, milli)) is None:
            return leaf, ()
        refused.append(closed)
    return work.home, refused


def closed_gate(cycle: "Cycle", work: Work, leaf: int, quota_type: int, milli: int) -> Reason | None:
    """What refuses a job that asks for so much: a limit, the guarantees where it can't be evicted, its backoff, or what is held for others."""
    return (
        limit_gate(cycle.tree, leaf, quota_type, milli)
        or (fixed_gate(cycle.tree, leaf, quota_type, milli, cycle.cluster.windows.ends(work)) if work.form.fixed else None)
        or backoff(cycle, work, leaf, quota_type, milli)
        or (held_gate(cycle, work, leaf, quota_type, milli) if cycle.book.holds and not work.seats else None)
    )


def kept_clear(cycle: "Cycle", work: Work, quota_type: int, milli: int) -> tuple[Reason | None, int]:
    """Why a start of so much more now would be in the way of a window, or over a power cap; and the nodes it must stay off."""
    refused, banned = cycle.cluster.windows.gate(cycle.cluster, work, quota_type, milli)
    if refused is None and cycle.cluster.power is not None:
        refused, off = cycle.cluster.power.gate(cycle, work, quota_type, milli)
        banned |= off
    return refused, banned


def limit_gate(tree: Tree, leaf: int, quota_type: int, milli: int) -> Reason | None:
    """Why the path's limits refuse so much more, if they do: the first one."""
    return next(limits_refusing(tree, leaf, quota_type, milli), None) if tree.limited else None


def limits_refusing(tree: Tree, leaf: int, quota_type: int, milli: int) -> Iterator[Reason]:
    """All limits on the path that refuse so much more."""
    for place, of_type, most in tree.limits(leaf, quota_type):
        if (used := tree.used_of(place, of_type)) + milli > most:
            yield _limit_reason(tree, place, used, most, milli, None if of_type == EVERY_TYPE else tree.types[of_type])
    division = tree.division(quota_type)
    if tree.quotas[leaf] is None and division.used[leaf] + milli > (most := division.limit[leaf] or 0):  # a window of a class
        yield _limit_reason(tree, leaf, division.used[leaf], most, milli)


def _limit_reason(tree: Tree, place: int, used: int, limit: int, milli: int, what: str | None = None) -> Reason:
    name = tree.names[place]
    most = counted(limit) if what is None else f"{gpus(limit)} {what}"
    detail = f"{name} uses {gpus(used)} of its limit of {most}; {gpus(milli)} more would exceed it"
    of_type = {} if what is None else {"type": what}
    return reason("limit", detail, quota=name, used=used / 1000, limit=limit / 1000, needed=milli / 1000, **of_type)


def fixed_gate(tree: Tree, leaf: int, quota_type: int, milli: int, ends: int) -> Reason | None:
    """Why non-preemptible work does not fit inside the guarantees on its path, if it does not: the first one."""
    return next(guarantees_refusing(tree, leaf, quota_type, milli, ends), None)


def guarantees_refusing(tree: Tree, leaf: int, quota_type: int, milli: int, ends: int) -> Iterator[Reason]:
    """All guarantees on the path inside which it does not fit. A window counts only for what ends inside it."""
    division = tree.division(quota_type)
    for place, promised in tree.promised_to_fixed(leaf, division, ends):
        if division.fixed[place] + milli > promised:
            name = tree.names[place]
            detail = (
                f"non-preemptible work of {name} holds {gpus(division.fixed[place])} of its guarantee of {tree.amount(division, promised)}; "
                f"{gpus(milli)} more would exceed it"
            )
            facts = {"used": division.fixed[place] / 1000, "guaranteed": promised / 1000, "needed": milli / 1000}
            yield reason("guarantee", detail, quota=name, **facts, **({} if division.name == ANY_TYPE else {"type": division.name}))
