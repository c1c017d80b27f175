"""Taking places from running work for a waiting job: search, check, evict and start, all or nothing."""

from collections.abc import Callable, Collection, Mapping, Sequence
from heapq import nsmallest
from typing import NamedTuple

from ..ahead.reservations import delays, held_back, off_limits
from ..model.reasons import Reason, reason
from ..place.placement import Placer, fit_one, is_alone
from ..rules.claims import claims
from ..rules.gates import kept_clear, open_leaf
from ..rules.taken_back import TakenInVain
from ..rules.times import backoff_until
from ..state.fleet import Seat
from ..state.grid import ascending, flags_of, span_bits
from ..state.planning import IN_ORDER, Cycle
from ..state.work import Work
from .units import Unit
from .victims import Found, Ranked, Rights, Target, as_if_running, least_sets, most_freed_by, no_larger, usual_size

Key = tuple[object, ...]


def told_once(cycle: Cycle, key: Key, work: Work, search: Callable[[], Reason | None]) -> Reason | None:
    """What a search comes to, or came to for a job like this one in this state. Who was held back by a reservation says nothing about those that stay
    less long."""
    key = (*key, *cycle.window_key(work))
    known: tuple[Reason, int] | None = None if work.seats or work.job.run.last_evicted is not None else cycle.memo(key)
    if known is not None and cycle.book.length(work) >= known[1]:
        return known[0]
    refused = search()
    if refused is not None and not is_backed_off(cycle, work):  # else others that ask for the same may do more
        cycle.remember(key, (refused, cycle.book.length(work) if refused.code == "reservation" else 0))
    return refused


def is_backed_off(cycle: Cycle, work: Work) -> bool:
    """Whether an eviction a short while ago decides beside what it asks for."""
    return cycle.is_to_come(backoff_until(cycle, work))


Short = tuple[tuple[int, int, int], ...]  # (first, end, milli-GPU): what must leave below nodes of the tree


def targets(
    cycle: Cycle, work: Work, quota_type: int, domains: Sequence[int] | None = None, *, counted: bool = True, more: Short = (), off: int = 0
) -> list[Target]:
    """The slices in which the job could be placed, each with how to tell whether it fits there; what more must leave wherever it is; and off
    which nodes it stays."""
    kind = work.kind
    grid = cycle.grid
    wants = work.missing()
    width = work.form.width
    slices = [(0, grid.size)]
    if width >= 0 and len(grid.levels[width]) > 1:
        level = grid.levels[width]
        if work.seats:
            domains = [level.domain_of(work.seats[0].node)]
        slices = [level.slice_of(domain) for domain in (range(len(level)) if domains is None else domains)]
    short = at_limits(cycle, work, quota_type) + more
    asked, soon = sum([kind.roles[place].gpus * len(ranks) for place, ranks in wants]), cycle.fleet.soon
    if work.form.plain and counted:
        place, ranks = wants[0]
        role = kind.roles[place]
        eligible = work.form.eligible(place, quota_type, suspect=kind.tolerates_suspect, spare=bool(work.seats))
        flags, array = None if eligible.full else eligible.flags, eligible.array
        if off:
            array = array * flags_of(~off, grid.size)
            flags = bytes(array.tolist())
        worker, lacking = (len(ranks), role.gpus, role.cpu_milli, role.host_memory_mib), asked - soon.idle
        found = [Target(low, high, *worker, array, flags, lacking=lacking, short=short) for low, high in slices]
        if closed := cycle.cluster.apart(work):
            open_to_it, crowd = array * flags_of(~closed, grid.size), crowd_of(cycle, work)
            for one in found:
                one.room, one.crowd = soon.slots_in(*worker[1:], open_to_it, one.low, one.high), crowd
        return found
    found = []
    for low, high in slices:
        lacking = asked - int(soon.count_np[low:high].sum())

        def fits(units: Sequence[Unit], low: int = low, high: int = high, lacking: int = lacking) -> bool:
            if any(sum(unit.milli for unit in units if first <= unit.leaf < end) < milli for first, end, milli in short):
                return False
            if most_freed_by(units) < lacking:
                return False
            return fits_without(cycle, lambda: place_in(cycle, work, quota_type, low, high, off) is not None, units)

        found.append(Target(low, high, fits=fits, lacking=lacking, short=short))
    return found


def crowd_of(cycle: Cycle, work: Work) -> dict[int, dict[Work, int]]:
    """By node those that may not be a job's neighbours, with how many workers each has there."""
    crowd: dict[int, dict[Work, int]] = {}
    for other, node in cycle.cluster.colocation.neighbours(work) if cycle.cluster.colocation is not None else ():
        crowd.setdefault(node, {})[other] = sum([seat.node == node for seat in other.seats])
    return crowd


def at_limits(cycle: Cycle, work: Work, quota_type: int) -> Short:
    """What must leave below which nodes of the tree so that their limits admit the job."""
    tree = cycle.tree
    milli = work.missing_milli(quota_type)
    leaf = work.leaf
    over = [(place, tree.end[place], tree.used_of(place, of_type) + milli - most) for place, of_type, most in tree.limits(leaf, quota_type)]
    return tuple([each for each in over if each[2] > 0])


def fits_already(cycle: Cycle, work: Work, quota_type: int) -> bool:
    """Whether there is room for a job as it is: then something else than places holds it back."""
    if work.seats or not work.form.plain or cycle.cluster.apart(work):
        with cycle.cluster.attempt():
            return place_in(cycle, work, quota_type, 0, cycle.grid.size) is not None
    return cycle.slots(cycle.fleet.soon).could_fit(work.form, quota_type)


def hopeful_domains(cycle: Cycle, work: Work, quota_type: int, ranked: Ranked, off: int = 0) -> list[int] | None:
    """Domains that the units could clear, by a bound; None where no domain can be ruled out."""
    grid, form = cycle.grid, work.form
    width = form.width
    if work.seats or at_limits(cycle, work, quota_type):
        return None
    if form.plain and form.kind.roles[0].gpus:
        key = ("freed", id(ranked))
        known: tuple[Ranked, dict[int, int]] | None = cycle.memo(key)
        if known is None:  # for a list that is kept while nothing changes summed up once
            usable, freed = grid.usable, dict[int, int]()
            for _, unit in ranked:
                for _, _, node, mask, _, _, _, parts in unit.seats:
                    freed[node] = freed.get(node, 0) + (mask & usable[node]).bit_count() + len(parts)
            known = cycle.remember(key, (ranked, freed))  # with the list itself, so that no other one gets its identity meanwhile
        return cleared(cycle, work, quota_type, known[1], off)
    if width < 0 or len(grid.levels[width]) == 1:
        return None
    domain_of = grid.levels[width].domain_of
    return sorted({domain_of(seat.node) for _, unit in ranked for seat in unit.seats})


def cleared(cycle: Cycle, work: Work, quota_type: int, freed: Mapping[int, int], off: int = 0) -> list[int]:
    """Domains that lack room as they are, off some nodes, and would have it with so many GPUs more by node; the whole fleet counts as one."""
    grid, form = cycle.grid, work.form
    role = form.kind.roles[0]
    gpus, width = role.gpus, form.width
    soon = cycle.fleet.soon
    eligible = form.eligible(0, quota_type, suspect=form.kind.tolerates_suspect, spare=False)
    level = grid.levels[width] if width >= 0 and len(grid.levels[width]) > 1 else None
    flags = eligible.flags
    more: dict[int, int] = {}
    for node, count in freed.items():
        if flags[node] and not off >> node & 1:
            domain = 0 if level is None else level.domain_of(node)
            # What the host lacks may come free as well, so only GPUs are counted, and what is there now counts for nothing on this node.
            more[domain] = more.get(domain, 0) + (soon.count[node] + count) // gpus
    sums = cycle.slots(soon).sums(role, eligible, width if level is not None else -1)
    if off := off | cycle.cluster.apart(work):  # a node that is closed to it has room once it is cleared
        slots = soon.slots(gpus, role.cpu_milli, role.host_memory_mib, eligible.array) * flags_of(~off, grid.size)
        sums = slots.sum(keepdims=True) if level is None else level.sums(slots)
    return sorted(domain for domain, room in more.items() if sums[domain] < role.least <= sums[domain] + room)


def release(cycle: Cycle, units: Sequence[Unit], why: Reason, for_job: str | None, own: int = -1) -> None:
    """Take the units from their jobs; a job that loses all its units is evicted, another one is shrunk. `own` leaf gives its surplus back."""
    surplus: dict[int, list[Unit]] = {}
    whole: dict[int, Work] = {}
    for unit in units:
        if unit.surplus:
            surplus.setdefault(unit.work.order, []).append(unit)
        else:
            whole[unit.work.order] = unit.work  # without its minimum nothing of it stays
    # As they lie in memory: thousands are looked at again and again.
    cycle.cluster.unseat_all({whole[order]: whole[order].seats for order in sorted(whole)}, why, for_job)
    for order, members in surplus.items():
        if order not in whole:
            told = given_back(for_job) if members[0].leaf == own else why
            cycle.cluster.unseat(members[0].work, [seat for unit in members for seat in unit.seats], told, for_job)


def fits_without(cycle: Cycle, fits: Callable[[], bool], units: Sequence[Unit]) -> bool:
    """Whether a job would fit with the units gone; nothing is changed."""
    with cycle.cluster.attempt():
        release(cycle, units, reason("reclaim", "a trial"), None)
        return fits()


def given_back(for_job: str | None) -> Reason:
    return reason("shrink", f"surplus is released for the minimum of {for_job}")


def place_in(cycle: Cycle, work: Work, quota_type: int, low: int, high: int, banned: int = 0) -> tuple[Seat, ...] | None:
    """Take places for what is missing of a job in a slice of what is idle or being freed; None and nothing taken."""
    within = None if low == 0 and high == cycle.grid.size else (low, high)
    banned |= cycle.cluster.apart(work)
    if is_alone(cycle, work):
        return fit_one(cycle, work, quota_type, cycle.fleet.soon, banned if within is None else banned | ~span_bits(low, high))
    placer = Placer(cycle.cluster, work, quota_type, cycle.fleet.soon, spare=bool(work.seats), banned=banned)
    return placer.place(work.missing(), within)


def beside_others(
    cycle: Cycle, work: Work, quota_type: int, milli: int, claim: int | None, place: Callable[[int], tuple[Seat, ...] | None], none: Reason
) -> tuple[tuple[Seat, ...], int] | Reason:
    """Take places that `place` finds off the banned nodes, if gates, windows and reservations agree; they, and which leaf is charged, or why not."""
    leaf, closed = open_leaf(cycle, work, quota_type, milli, claim)
    if closed:
        return closed[-1]
    refused, banned = kept_clear(cycle, work, quota_type, milli)
    if refused is not None:
        return refused
    seats = place(banned)
    if seats is None or cycle.cluster.in_a_circle(work, seats):
        return none
    crowded = delays(cycle.book, work, quota_type, milli, seats)
    return held_back(cycle.book, work, quota_type, milli, crowded[0]) if crowded else (seats, leaf)


def delaying_none(
    cycle: Cycle, work: Work, quota_type: int, milli: int, banned: int, place: Callable[[int], tuple[Seat, ...] | None]
) -> tuple[Seat, ...] | None:
    """Take a place that delays no reservation: off the banned nodes, and off those on which others found by `place` would delay one."""
    while True:
        mark = cycle.cluster.mark()
        seats = place(banned)
        crowded = () if seats is None else delays(cycle.book, work, quota_type, milli, seats)
        if not crowded:
            return seats
        cycle.cluster.undo(mark)
        for node in crowded:
            banned |= 1 << node


class Taking(NamedTuple):
    """What may be taken for a job in one quota type, in the order in which it is tried, and by which rules."""

    work: Work
    quota_type: int
    ranked: Ranked
    rights: Rights
    why: Callable[[Found], Reason]
    alike: Key | None = None  # what the search depends on: where it is equal jobs find the same sets, and differ in what guard and gates say
    claim: int | None = None  # the leaf in whose name it is taken: it is charged there, not in one before it that has no right to it
    more: Short = ()


def take_units(cycle: Cycle, taking: Taking) -> Reason | None:
    """Take what must be taken and start the job there. None: done; else why not, and nothing was taken. Sets that cross no line go first, also off
    places that are kept for others."""
    if not taking.ranked:
        return NOTHING
    first, others = _take_least(cycle, taking, crossing=False)
    if not others:
        return first
    held = first is not None and first.code == "reservation"
    refused, _ = _take_least(cycle, taking, crossing=True, held=held)
    return first if refused is NOTHING else refused


def take_in_turn(cycle: Cycle, taking: Taking, small: Ranked, take: Callable[[Cycle, Taking], Reason | None] = take_units) -> Reason | None:
    """Take what must be taken from those of the units that are not large, then from any; at last in the order of a later plan, to which what this one
    starts is running work like any other. None: done; else why not the first time."""
    ranked, alike = taking.ranked, taking.alike or ()
    if _take_cheaply(cycle, taking._replace(ranked=small)):
        return None

    def by_size(small: Ranked, units: Ranked, order: str) -> Reason | None:
        refused = take(cycle, taking._replace(ranked=small, alike=(*alike, order, "small")))
        if refused is not None and (refused is NOTHING or refused.code in ("share", "reservation")) and len(small) < len(units):
            return take(cycle, taking._replace(ranked=units, alike=(*alike, order)))
        return refused

    refused = by_size(small, ranked, "now")
    if refused is not None and any(unit.fresh for _, unit in ranked):
        later = as_if_running(ranked)
        if by_size(no_larger(later, usual_size(taking.work.missing_milli(taking.quota_type))), later, "later") is None:
            return None
    return refused


def _take_cheaply(cycle: Cycle, taking: Taking) -> bool:
    """Take what is needed from others than those for whom somebody stopped running in this plan, if that can be done. Taking such a place sets the
    plan back to before it was given. With another victim at hand both keep what they got, which is what setting it back would come to as well."""
    dear, ranked = cycle.takers.dear, taking.ranked
    others = [pair for pair in ranked if pair[1].work.order not in dear] if dear else ranked
    if len(others) == len(ranked):
        return False
    return take_units(cycle, taking._replace(ranked=others, alike=(*(taking.alike or ()), "others"))) is None


def _take_least(cycle: Cycle, taking: Taking, *, crossing: bool, held: bool = False) -> tuple[Reason | None, bool]:
    """Take the first legal set among those that cross a line, or that cross none; why not, and whether there are sets of the other kind."""
    work, quota_type = taking.work, taking.quota_type
    others = False
    refused: Reason | None = NOTHING
    for one in _known_sets(cycle, taking):
        if one.crosses is not crossing:
            others = True
            continue
        if (refused := _try_set(cycle, taking, one)) is None:
            return None, False
    if refused is not NOTHING and (refused is None or refused.code != "reservation"):
        return refused, others
    # What makes room in the block of a window to come, or where others have a place reserved, makes none for who has to stay off it.
    milli = work.missing_milli(quota_type)
    off = kept_clear(cycle, work, quota_type, milli)[1]
    is_held = bool(cycle.book.entries) and (refused is not NOTHING or held or fits_already(cycle, work, quota_type))
    kept = off_limits(cycle.book, work, quota_type, milli) if is_held else 0
    for one in _known_sets(cycle, taking, off | kept) if off | kept else ():
        if one.crosses is not crossing:
            others = True
            continue
        if (again := _try_set(cycle, taking, one, off | kept)) is None:
            return None, False
        if not kept:
            refused = again
    return held_back(cycle.book, work, quota_type, milli, next(ascending(kept))) if refused is NOTHING and kept else refused, others


def _known_sets(cycle: Cycle, taking: Taking, off: int = 0) -> list[Found]:
    """The least sets of each domain that would make room, the least first: looked for once for all whose search depends on the same."""
    work, quota_type, ranked, more = taking.work, taking.quota_type, taking.ranked, taking.more
    key = None if taking.alike is None or work.seats else ("found", taking.alike, off)
    known: list[Found] | None = None if key is None else cycle.memo(key)
    if known is not None:
        return known
    found, units = list[Found](), cycle.units()
    domains = None if more else hopeful_domains(cycle, work, quota_type, ranked, off)
    slices = targets(cycle, work, quota_type, domains, more=more, off=off) if domains is None or domains else []
    for target, inside in zip(slices, _by_slice(ranked, slices, cycle.grid.size), strict=True):
        found += least_sets(cycle.cluster, inside, taking.rights, target, units)  # what fits without victims was held back for another reason
    if len(found) > 1:
        found.sort(key=Found.rank)
    if key is not None:
        cycle.remember(key, found)
    return found


def _by_slice(ranked: Ranked, slices: Sequence[Target], size: int) -> list[Ranked]:
    """What stands in each of the slices, in its order. Where something must leave wherever it is, that is everything."""
    if len(slices) < 2 or any(target.short for target in slices):
        return [ranked] * len(slices)
    slice_of = [-1] * size
    for number, target in enumerate(slices):
        slice_of[target.low : target.high] = [number] * (target.high - target.low)
    here: list[list[tuple[tuple[int, ...], Unit]]] = [[] for _ in slices]
    for pair in ranked:
        seats = pair[1].seats
        numbers = (slice_of[seats[0].node],) if len(seats) == 1 else dict.fromkeys(slice_of[seat.node] for seat in seats)
        for number in numbers:
            if number >= 0:
                here[number].append(pair)
    return [*here]


def _try_set(cycle: Cycle, taking: Taking, found: Found, off: int = 0) -> Reason | None:
    """Carry out one set if rights, gates, windows and reservations agree."""
    if (refused := taking.rights.guard(found)) is not None:
        return refused
    cluster, work, quota_type, code = cycle.cluster, taking.work, taking.quota_type, taking.why(found)
    before = cluster.mark()
    victims = found.works
    upset = any(victim.first_seats and not victim.evicted for victim in victims)
    in_vain = cycle.turn == IN_ORDER and any(unit.fresh and unit.leaf != work.charged_leaf for unit in found.units)  # what the plan has started
    milli = work.missing_milli(quota_type)
    release(cycle, found.units, code, work.job.name, taking.rights.own)

    def place(banned: int) -> tuple[Seat, ...] | None:
        return place_in(cycle, work, quota_type, found.low, found.high, banned | off)

    # Nobody is put out for a stay in a gap: the holder of the reservation would gain the victims' places, to which he has no right.
    placed = beside_others(cycle, work, quota_type, milli, taking.claim, place, NOTHING)
    if isinstance(placed, Reason):
        cluster.undo(before)
        return placed
    seats, leaf = placed
    taken = {victim.job.name for victim in victims}
    how_many = "1 job gives" if len(taken) == 1 else f"{len(taken)} jobs give"
    cluster.seat(work, seats, quota_type, leaf, reason(code.code, f"{how_many} way: {some_of(taken)}"))
    if leaf != work.home and not work.first_seats and claims(cluster).get(work) != leaf:
        cluster.undo(before)
        return NOTHING  # what the victims have left is within the window in which it was to stand, and has been there for longer
    work.backfilled = work.job.run.backfilled and bool(work.first_seats) and not work.evicted
    cycle.changed()
    if in_vain:
        raise TakenInVain
    cycle.takers.served(work, before, victims, code.code, upset=upset)
    return None


def some_of(names: Collection[str]) -> str:
    """The first of them by name."""
    return f"{', '.join(nsmallest(4, names))}{' and others' if len(names) > 4 else ''}"


NOTHING = reason("victims", "no set of preemptible jobs frees enough GPUs in one place")
