"""Make a block by moving running work elsewhere, where that loses less than it wins."""

from collections.abc import Iterable, Iterator
from functools import cache, partial
from itertools import combinations
from math import comb
from operator import itemgetter

from ..ahead.reservations import delays
from ..model.reasons import Reason, counted, reason
from ..model.values import Preemptible
from ..place.placement import Placer, fit_one, is_alone
from ..rules.gates import closed_gate, kept_clear
from ..rules.times import overdue
from ..search.clearable import Cost, cost_of
from ..search.evicting import Target, delaying_none, place_in, targets
from ..state.fleet import Seat, View
from ..state.form import Wants
from ..state.planning import Cycle
from ..state.work import Work
from .walk import walk

NO_MOVES = reason("moves", "no set of moves makes room")
LOSES_MORE = reason("moves", "moving other jobs would lose more work than it gains")
MOST_SETS = 4000  # looked at for a gang whose room can't be counted
MOST_TRIES = 100  # of them carried out on trial
Moves = tuple[Cost, list[Work], Target]  # what it costs to move some jobs out of a slice


def run(cycle: Cycle) -> None:
    if cycle.fleet.soon.idle and (cycle.cluster.moves_left > 0 or cycle.waiting.any_overdue()):
        walk(cycle, may_consolidate, consolidate)


def may_consolidate(cycle: Cycle, work: Work, quota_type: int) -> bool:
    """For preemptible work, or work within its guarantees, that would fit into the sum of what is idle."""
    milli = work.missing_milli(quota_type)
    if not 0 < milli <= cycle.idle_milli(quota_type) or (not work.seats and _alike(cycle, work, quota_type) in cycle.refused):
        return False
    # Whom a plan of this very moment has put out changes no places: that would be a circle in one plan or in two.
    if work.form.parted or _moves_for(cycle, work) <= 0 or cycle.is_to_come((work.job.run.last_evicted or 0) + 1):
        return False
    # By the rules of reclaim work within its guarantees moves others, whether or not it is preemptible itself.
    reclaims = "reclaim" in cycle.settings.passes
    return work.kind.preemptible is Preemptible.ALWAYS or (reclaims and cycle.tree.within_guarantee(work.leaf, quota_type, milli))


def _alike(cycle: Cycle, work: Work, quota_type: int) -> tuple[object, ...]:
    """Jobs of one shape that stay equally long are in the way of the same windows and reservations."""
    return ("consolidate", work.form.shape, quota_type, cycle.book.length(work), *cycle.window_key(work))


def _moves_for(cycle: Cycle, work: Work) -> int:
    """So many jobs may still be moved for it: who has waited as long as his class may is not bound."""
    return 1 << 30 if overdue(cycle, work) else cycle.cluster.moves_left


def consolidate(cycle: Cycle, work: Work, quota_type: int) -> Reason | None:
    milli = work.missing_milli(quota_type)
    if (refused := closed_gate(cycle, work, work.leaf, quota_type, milli)) is not None:
        return refused
    loses, counts = False, work.form.plain and not work.seats and not cycle.cluster.apart(work)
    for cost, moved, target in (_counted if counts else _tried)(cycle, work, quota_type):
        if not _gains(cycle, work, milli, cost[1]):
            loses = True
        elif _carry_out(cycle, work, quota_type, target, moved):
            return None
    if loses:
        return LOSES_MORE  # another job of this shape may have more to win
    cycle.refused.add(_alike(cycle, work, quota_type))
    most = cycle.settings.max_moves
    return NO_MOVES if most is None or overdue(cycle, work) else no_moves(most)


@cache
def no_moves(most: int) -> Reason:
    return reason("moves", f"no set of at most {most} move{'s' * (most != 1)} makes room", most=most)


@cache
def used_up(most: int) -> Reason:
    are = "1 move that a plan may make is" if most == 1 else f"{most} moves that a plan may make are"
    return reason("moves", f"the {are} used up; the next plan may move jobs for it", most=most)


def _leave_room(cycle: Cycle, target: Target, moved: list[Work]) -> bool:
    """A bound: False where those who are moved certainly find no places beside the job, which takes all the room that there is in its slice."""
    assert target.allowed is not None
    room, sizes = cycle.fleet.soon.count_np.copy(), []
    for seat in (seat for one in moved for seat in one.seats):
        sizes.append(seat.mask.bit_count())
        room[seat.node] += sizes[-1]
    span = slice(target.low, target.high)
    slots = room[span] // target.gpus * target.allowed[span]
    if int(slots.sum()) > target.count:
        return True  # some of it is left, and nobody knows where
    room[span] -= slots * target.gpus
    return all(sum(size // least for size in sizes) <= int((room // least).sum()) for least in set(sizes) if least)


def _gains(cycle: Cycle, work: Work, milli: int, lost: int) -> bool:
    """Less is lost than the job would lose by waiting, as far as that is known."""
    job = work.job
    length = job.limit_ms if job.estimate_ms is None else job.estimate_ms
    if length is not None and lost * 1000 >= milli * length:
        return False
    at = cycle.book.date_of(work)
    return at is None or lost * 1000 < milli * at


def _by_cost(cycle: Cycle, sets: Iterable[tuple[list[Work], Target]]) -> list[Moves]:
    return sorted([(cost_of(moved, target.low, cycle.now), moved, target) for moved, target in sets], key=itemgetter(0))


def _counted(cycle: Cycle, work: Work, quota_type: int) -> list[Moves]:
    """Of each domain the fewest jobs whose leaving makes room, and that find room elsewhere as far as counting tells; the cheapest set first."""
    most, form = _moves_for(cycle, work), work.form
    eligible = form.eligible(0, quota_type, suspect=work.kind.tolerates_suspect, spare=False)
    room = cycle.slots(cycle.fleet.soon).sums(form.kind.roles[0], eligible, form.width).tolist()
    sets = []
    for target, slots in zip(targets(cycle, work, quota_type), room, strict=True):
        if slots >= target.count:
            continue  # it would fit as it is, and was held back for another reason
        clearable = cycle.movables.clearable(target.gpus)
        nodes = clearable.cheapest(target, target.count - slots, most)
        leaving = {one.order: one for node in nodes or () for one in clearable.works[node]}
        moved = [leaving[order] for order in sorted(leaving)]
        if nodes is not None and len(moved) <= most and _leave_room(cycle, target, moved):
            sets.append((moved, target))
    return _by_cost(cycle, sets)


def _tried(cycle: Cycle, work: Work, quota_type: int) -> Iterator[Moves]:
    """Sets for a gang of several roles or with levels of its own, for which only trying tells: all of one job first, then of two, and so on."""
    grid, soon, needed, tries = cycle.grid, cycle.fleet.soon, work.missing_milli(quota_type) // 1000, 0
    here = [one for one in cycle.cluster.works if one.movable and one is not work and one.quota_type == quota_type]
    found: list[tuple[Target, int, list[tuple[int, Work]]]] = []  # domain, GPUs short, (GPUs there, job)
    for target in targets(cycle, work, quota_type, counted=False):
        idle = sum(soon.count[node] for node in range(target.low, target.high) if grid.type_of[node] == quota_type)
        held = [(sum(seat.mask.bit_count() for seat in one.seats if target.low <= seat.node < target.high), one) for one in here]
        held = [(count, one) for count, one in held if count]
        if idle + sum(count for count, _ in held) >= needed:
            found.append((target, needed - idle, held))
    for size in range(1, min(_moves_for(cycle, work), len(here)) + 1):
        if sum(comb(len(held), size) for _, _, held in found) > MOST_SETS:
            return
        sets = [
            ([one for _, one in chosen], target)
            for target, short, held in found
            for chosen in combinations(held, size)
            if sum(count for count, _ in chosen) >= short
        ]
        for each in _by_cost(cycle, sets):
            tries += 1
            if tries > MOST_TRIES:
                return
            yield each


def _carry_out(cycle: Cycle, work: Work, quota_type: int, target: Target, moved: list[Work]) -> bool:
    """Seat the job and then those who are moved, if all of them find places."""
    cluster, milli = cycle.cluster, work.missing_milli(quota_type)
    why = reason("consolidate", f"{work.job.name} needs a block of {counted(milli)}")
    refused, banned = kept_clear(cycle, work, quota_type, milli)
    if refused is not None:
        return False
    before = cluster.mark()
    with cluster.attempt() as attempt:
        stood = [(one, one.charged_leaf, one.quota_type, one.missing_like_now(), one.why if one.fresh else why) for one in moved]
        for one in moved:
            cluster.unseat(one, one.seats, why, work.job.name)
        seats = place_in(cycle, work, quota_type, target.low, target.high, banned)
        if seats is None or cluster.in_a_circle(work, seats) or delays(cycle.book, work, quota_type, milli, seats):
            return False
        running = sum(not one.fresh for one in moved)
        moved_there = "1 job is" if running == 1 else f"{running} jobs are"
        detail = f"{moved_there} moved to make a block" if running else "others start elsewhere, which makes a block"
        cluster.seat(work, seats, quota_type, work.leaf, reason("consolidate", detail))
        for one, leaf, old_type, wants, its_why in stood:
            if (places := _elsewhere(cycle, one, old_type, wants)) is None:
                return False
            cluster.seat(one, places, old_type, leaf, its_why or why)
            one.moved = True
        if not overdue(cycle, work):
            cluster.spend_moves(len(moved))
        attempt.keep()
    cycle.changed()
    cycle.takers.moved(work, before, moved)
    return True


def _elsewhere(cycle: Cycle, one: Work, quota_type: int, wants: Wants) -> tuple[Seat, ...] | None:
    """A place for a job that is moved, idle or freed by an earlier decision, in nobody's way: neither a window's nor that of a reservation."""
    cluster, milli = cycle.cluster, one.form.wants_milli(wants, quota_type)
    refused, banned = kept_clear(cycle, one, quota_type, milli)
    if refused is not None:
        return None

    def place(view: View, banned: int) -> tuple[Seat, ...] | None:
        banned |= cluster.apart(one)
        if is_alone(cycle, one) and wants == one.form.wants:
            return fit_one(cycle, one, quota_type, view, banned)
        return Placer(cluster, one, quota_type, view, banned=banned).place(wants)

    for view in cycle.fleet.views():
        mark = cluster.mark()
        places = delaying_none(cycle, one, quota_type, milli, banned, partial(place, view))
        if places is not None and not cluster.in_a_circle(one, places):
            return places
        cluster.undo(mark)
    return None
