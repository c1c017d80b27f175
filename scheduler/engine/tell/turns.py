"""In which order those who wait are asked, and by what each of them comes behind the one before.

It is the walk of `allocate` along the queues if none of them got anything: what a plan finds when it begins on a full fleet. Once somebody
gets something, his team uses more, and the order is another one.
"""

from typing import NamedTuple

from ..model.values import Job, Scenario
from ..rules.invariants import check
from ..state.planning import Cycle
from ..state.state import Kept
from ..state.tree import Division
from ..state.work import Work

FIRST = "first"  # nobody is asked before it
ROUND = "round"  # others have a GPU type higher up among those they accept, or one that is asked for before
# By what jobs of one leaf are told apart, and by what two nodes of the tree: as `JobOrder.rank` and `Tree.key` have it.
OF_JOBS = ("window", "class", "priority", "submitted")
OF_NODES = ("fair", "guarantee", "node_priority", "nothing", "share_with", "share", "counted_on", "age")


class Side(NamedTuple):
    """A node of the tree as it stands beside another one, in milli-GPU: `asked` is what its best job asks for."""

    quota: str
    used: int
    asked: int
    fair: int
    guaranteed: int | None  # None: unlimited
    counts_on: int
    priority: int


class Turn(NamedTuple):
    """The n-th of all that wait. `before` is who is asked directly before it; `ours` and `theirs` are the nodes that decide, where leaves differ."""

    number: int
    of_leaf: int  # the n-th of its leaf
    job: Job
    before: Job | None
    by: str
    ours: Side | None = None
    theirs: Side | None = None


def turns(scenario: Scenario, kept: Kept | None = None) -> tuple[Turn, ...]:
    """Everyone who waits and is asked, in that order. `kept` only saves time, and serves on behind it."""
    kept = kept if kept is not None else Kept()
    cycle = Cycle(scenario, kept)
    found: list[Turn] = []
    seen: set[Work] = set()
    of_leaf: dict[int, int] = {}
    for choice, division in cycle.waiting.rounds():
        before: tuple[Work, int] | None = None
        order = cycle.waiting.order_of(division, choice, cycle.waiting.of_round(division, choice))
        while (work := order.best()) is not None:
            asked = order.asks[work.home]
            if work not in seen:  # who accepts several types is asked again in a later round
                seen.add(work)
                nth = of_leaf[work.home] = of_leaf.get(work.home, 0) + 1
                by, ours, theirs = _compared(cycle, division, before, (work, asked)) if before else (ROUND if found else FIRST, None, None)
                found.append(Turn(len(found) + 1, nth, work.job, before[0].job if before else None, by, ours, theirs))
            before = work, asked
            order.drop(work.home)
    check(cycle)  # who went and who came is taken up there too
    kept.keep(cycle)
    return tuple(found)


def _compared(cycle: Cycle, division: Division, first: tuple[Work, int], second: tuple[Work, int]) -> tuple[str, Side | None, Side | None]:
    """Why one is asked directly before the other. Each of them is the best of its side: nothing was dropped there meanwhile."""
    (one, one_asks), (other, other_asks) = first, second
    if one.home == other.home:
        return _first_unlike(OF_JOBS, cycle.waiting.order.rank(one), cycle.waiting.order.rank(other)), None, None
    tree = cycle.tree
    theirs, ours = tree.fork(one.home, other.home)
    by = _first_unlike(OF_NODES, tree.key(theirs, division, one_asks), tree.key(ours, division, other_asks))
    return by, _side(cycle, division, ours, other_asks), _side(cycle, division, theirs, one_asks)


def _first_unlike(names: tuple[str, ...], one: tuple[int, ...], other: tuple[int, ...]) -> str:
    for name, mine, theirs in zip(names, one, other, strict=True):
        if mine != theirs:
            assert mine < theirs, "the job that comes first has the smaller key"
            return name
    raise AssertionError("no two jobs, and no two nodes, have the same key")


def _side(cycle: Cycle, division: Division, place: int, asked: int) -> Side:
    fair, promised, counts_on = division.fair[place], division.guaranteed[place], division.counts_on[place]
    return Side(cycle.tree.names[place], division.used[place], asked, fair, promised, counts_on, division.priority[place])
