"""Taking places from running work for a waiting job: search, check, evict and start, all or nothing."""

from collections.abc import Callable, Collection, Sequence
from heapq import nsmallest
from typing import NamedTuple

import numpy as np

from ..model.reasons import Reason, reason
from ..place.placement import Placer
from ..place.seating import fit_one, is_alone
from ..rules.claims import claims
from ..rules.displaced import TakenInVain
from ..rules.gates import closed_gate
from ..rules.times import backoff_until
from ..state.fleet import Seat
from ..state.grid import Ints, ascending, flags_of, ints, span_bits
from ..state.planning import IN_ORDER, Cycle
from ..state.work import Work
from .reservations import delays, held_back, off_limits
from .units import Unit
from .victims import Found, Ranked, Rights, Target, least_sets


def is_backed_off(cycle: Cycle, work: Work) -> bool:
    """Whether an eviction a short while ago decides beside what it asks for."""
    return work.backoff_matters and backoff_until(cycle, work) > cycle.now


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
    if work.form.plain and counted:
        place, ranks = wants[0]
        role = kind.roles[place]
        eligible = work.form.eligible(grid, place, quota_type, suspect=kind.tolerates_suspect, spare=bool(work.seats))
        flags, array = None if eligible.full else eligible.flags, eligible.array
        if off:
            array = array * (1 - flags_of(off, grid.size))
            flags = bytes(array.tolist())
        return [Target(low, high, len(ranks), role.gpus, role.cpu_milli, role.host_memory_mib, array, flags, short=short) for low, high in slices]
    found = []
    for low, high in slices:

        def fits(units: Sequence[Unit], low: int = low, high: int = high) -> bool:
            if any(sum(unit.milli for unit in units if first <= unit.leaf < end) < milli for first, end, milli in short):
                return False
            with cycle.cluster.attempt():
                release(cycle, units, reason("reclaim", "a trial"), None)
                return place_in(cycle, work, quota_type, low, high, off) is not None

        found.append(Target(low, high, fits=fits, short=short))
    return found


def at_limits(cycle: Cycle, work: Work, quota_type: int) -> Short:
    """What must leave below which nodes of the tree so that their limits admit the job."""
    tree = cycle.tree
    milli = work.missing_milli(quota_type)
    leaf = work.charged_leaf if work.seats else work.home
    limits = tree.limits(leaf, quota_type) if tree.limited else ()
    over = [(place, tree.end[place], tree.used_of(place, of_type) + milli - most) for place, of_type, most in limits]
    return tuple([each for each in over if each[2] > 0])


def fits_already(cycle: Cycle, work: Work, quota_type: int) -> bool:
    """Whether there is room for a job as it is: then something else than places holds it back."""
    form, grid = work.form, cycle.grid
    if work.seats or not form.plain:
        with cycle.cluster.attempt():
            return place_in(cycle, work, quota_type, 0, grid.size) is not None
    role = form.kind.roles[0]
    eligible = form.eligible(grid, 0, quota_type, suspect=form.kind.tolerates_suspect, spare=False)
    return cycle.capacity(cycle.fleet.soon).most(role, eligible, form.width) >= role.least


def hopeful_domains(cycle: Cycle, work: Work, quota_type: int, ranked: Ranked, off: int = 0) -> list[int] | None:
    """Domains that lack room as they are, and that the units could clear, by a bound; None where no domain can be ruled out.

    What the host lacks may come free as well, so only GPUs are counted where anybody may leave.
    """
    grid, soon, form, role = cycle.grid, cycle.fleet.soon, work.form, work.kind.roles[0]
    if work.seats or not form.plain or not role.gpus or at_limits(cycle, work, quota_type):
        return None
    allowed = form.eligible(grid, 0, quota_type, suspect=form.kind.tolerates_suspect, spare=False).array
    if off:
        allowed = allowed * (1 - flags_of(off, grid.size))
    slots, freed = soon.slots(role.gpus, role.cpu_milli, role.host_memory_mib, allowed), freed_by(cycle, ranked)
    most = np.where(freed > 0, (soon.count_np + freed) // role.gpus * allowed, slots)
    if form.width < 0 or len(grid.levels[form.width]) == 1:
        return [0] if slots.sum() < role.least <= most.sum() else []
    level = grid.levels[form.width]
    found: list[int] = np.flatnonzero((level.sums(slots) < role.least) & (role.least <= level.sums(most))).tolist()
    return found


def freed_by(cycle: Cycle, ranked: Ranked) -> Ints:
    """GPUs by node that the units hold; for a list that is kept while nothing changes, summed up once."""
    key = ("freed", id(ranked))
    known: tuple[Ranked, Ints] | None = cycle.memo(key)
    if known is None:
        usable, freed = cycle.grid.usable, [0] * cycle.grid.size
        for _, unit in ranked:
            for _, _, node, mask, _, _, _, parts in unit.seats:
                freed[node] += (mask & usable[node]).bit_count() + len(parts)
        known = cycle.remember(key, (ranked, ints(freed)))  # with the list itself, so that no other one gets its identity meanwhile
    return known[1]


def release(cycle: Cycle, units: Sequence[Unit], why: Reason, for_job: str | None, own: int = -1) -> None:
    """Take the units from their jobs; a job that loses all its units is evicted, another one is shrunk. `own` leaf gives its surplus back."""
    surplus: dict[int, list[Unit]] = {}
    whole: dict[int, Work] = {}
    for unit in units:
        if unit.surplus:
            surplus.setdefault(unit.work.order, []).append(unit)
        else:
            whole[unit.work.order] = unit.work  # without its minimum nothing of it stays
    cycle.cluster.put_out_all([*whole.values()], why, for_job)
    for order, members in surplus.items():
        if order not in whole:
            told = given_back(for_job) if members[0].leaf == own else why
            cycle.cluster.unseat(members[0].work, [seat for unit in members for seat in unit.seats], told, for_job)


def given_back(for_job: str | None) -> Reason:
    return reason("shrink", f"surplus is released for the minimum of {for_job}")


def place_in(cycle: Cycle, work: Work, quota_type: int, low: int, high: int, banned: int = 0) -> tuple[Seat, ...] | None:
    """Take places for what is missing of a job in a slice of what is idle or being freed; None and nothing taken."""
    within = None if low == 0 and high == cycle.grid.size else (low, high)
    if is_alone(cycle, work):
        return fit_one(cycle, work, quota_type, cycle.fleet.soon, banned if within is None else banned | ~span_bits(low, high))
    placer = Placer(cycle.cluster, work, quota_type, cycle.fleet.soon, spare=bool(work.seats), banned=banned)
    return placer.place(work.missing(), within)


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
    """A job for which running work gives way, who that may be, and by which rules."""

    cycle: Cycle
    work: Work
    quota_type: int
    ranked: Ranked
    rights: Rights
    why: Callable[[Found], Reason]
    # What the search depends on: jobs for which it is equal find the same sets, and differ in what guard and gates say.
    alike: tuple[object, ...] | None = None
    claim: int | None = None  # the leaf in whose name it is taken: it is charged there, not in one before it that has no right to it
    more: Short = ()  # what must leave below nodes of the tree in any case

    def take(self) -> Reason | None:
        """Take what must be taken and start the job there. None: done; else why not, and nothing was taken.

        Sets that cross no line go first, also off places that are kept for others.
        """
        if not self.ranked:
            return NOTHING
        first, others = self._take_least(crossing=False)
        if first is None or not others:
            return first
        refused, _ = self._take_least(crossing=True, held=first.code == "reservation")
        return first if refused is NOTHING else refused

    def take_cheaply(self) -> bool:
        """Take what is needed from others than those for whom somebody stopped running in this plan, if that can be done.

        Taking such a place sets the plan back to before it was given. With another victim at hand both keep what they got, which is
        what setting it back would come to as well.
        """
        displaced = self.cycle.displaced
        others = [pair for pair in self.ranked if not displaced.dear(pair[1].work)] if displaced.any_dear else self.ranked
        return len(others) < len(self.ranked) and self._replace(ranked=others, alike=(*(self.alike or ()), "others")).take() is None

    def _take_least(self, *, crossing: bool, held: bool = False) -> tuple[Reason | None, bool]:
        """The same with sets that cross a line, or with those that cross none; and whether there are others, if it could not be done."""
        refused, others = self._take_one(crossing, 0)
        if refused is None or (refused is not NOTHING and refused.code != "reservation"):
            return refused, others
        # What makes room in the block of a window to come, or where others have a place reserved, makes none for who has to stay off it.
        cycle, work, quota_type, milli = self.cycle, self.work, self.quota_type, self.work.missing_milli(self.quota_type)
        off = cycle.cluster.windows.gate(cycle.cluster, work, quota_type, milli)[1]
        is_held = bool(cycle.book.entries) and (refused is not NOTHING or held or fits_already(cycle, work, quota_type))
        kept = off_limits(cycle.book, work, quota_type, milli) if is_held else 0
        if off | kept:
            again, more = self._take_one(crossing, off | kept)
            others |= more
            if again is None or not (kept or again is NOTHING):
                refused = again
        return held_back(cycle.book, [next(ascending(kept))]) if refused is NOTHING and kept else refused, others

    def _take_one(self, crossing: bool, off: int) -> tuple[Reason | None, bool]:
        refused: Reason | None = NOTHING
        others = False
        for one in self._known_sets(off):
            if one.crosses is not crossing:
                others = True
                continue
            refused = self._try(one, off)
            if refused is None:
                break
        return refused, others

    def _known_sets(self, off: int) -> list[Found]:
        """The same for all whose search depends on the same."""
        key = None if self.alike is None or self.work.seats else ("found", self.alike, off)
        found: list[Found] | None = None if key is None else self.cycle.memo(key)
        if found is None:
            found = self._sets(off)
            if key is not None:
                self.cycle.remember(key, found)
        return found

    def _sets(self, off: int) -> list[Found]:
        """The least sets of each domain that would make room, the least first."""
        cycle, work, quota_type, ranked = self.cycle, self.work, self.quota_type, self.ranked
        units = cycle.units()
        domains = None if self.more else hopeful_domains(cycle, work, quota_type, ranked, off)
        if domains is not None and not domains:
            return []
        found: list[Found] = []
        for target in targets(cycle, work, quota_type, domains, more=self.more, off=off):
            found += least_sets(cycle.cluster, ranked, self.rights, target, units)  # what fits without victims was held back for another reason
        return sorted(found, key=Found.rank) if len(found) > 1 else found

    def _try(self, found: Found, off: int) -> Reason | None:
        """Carry out one set if rights, gates and placement agree."""
        refused = self.rights.guard(found)
        if refused is not None:
            return refused
        cycle, work, cluster = self.cycle, self.work, self.cycle.cluster
        why = self.why(found)
        before = cluster.mark()
        victims = found.works
        upset = any(victim.first_seats and not victim.evicted for victim in victims)
        in_vain = cycle.turn == IN_ORDER and found.takes_fresh_beside(work.charged_leaf)
        if found.surplus:
            release(cycle, found.units, why, work.job.name, self.rights.own)
        else:
            cluster.put_out_all(victims, why, work.job.name)
        refused = self._start(found, why.code, off)
        if refused is not None:
            cluster.undo(before)
            return refused
        cycle.changed()
        if in_vain:
            raise TakenInVain
        cycle.displaced.served(work, before, victims, why.code, upset=upset)
        return None

    def _start(self, found: Found, code: str, off: int) -> Reason | None:
        """Give the job its places where others have left, if gates, windows and reservations agree."""
        cycle, work, quota_type, cluster = self.cycle, self.work, self.quota_type, self.cycle.cluster
        milli = work.missing_milli(quota_type)
        refused, leaf = None, work.home
        for leaf in cluster.leaves_of(work, quota_type, since=self.claim):
            refused = closed_gate(cycle, work, leaf, quota_type, milli)
            if refused is None:
                break
        banned = 0
        if refused is None:
            refused, banned = cluster.windows.gate(cluster, work, quota_type, milli)
        if refused is not None:
            return refused
        seats = place_in(cycle, work, quota_type, found.low, found.high, banned | off)
        if seats is None or cluster.in_a_circle(work, seats):
            return NOTHING
        # Nobody is put out for a stay in a gap: the holder of the reservation would gain the victims' places, to which he has no right.
        crowded = delays(cycle.book, work, quota_type, milli, seats)
        if crowded:
            return held_back(cycle.book, crowded)
        taken = {victim.job.name for victim in found.works}
        how_many = "1 job gives" if len(taken) == 1 else f"{len(taken)} jobs give"
        cluster.seat(work, seats, quota_type, leaf, reason(code, f"{how_many} way: {some_of(taken)}"))
        if leaf != work.home and not work.first_seats and claims(cluster).get(work) != leaf:
            return NOTHING  # what the victims have left is within the window in which it was to stand, and has been there for longer
        work.backfilled = work.job.run.backfilled and bool(work.first_seats) and not work.evicted
        return None


def some_of(names: Collection[str]) -> str:
    """The first of them by name."""
    return f"{', '.join(nsmallest(4, names))}{' and others' if len(names) > 4 else ''}"


NOTHING = reason("victims", "no set of preemptible jobs frees enough GPUs in one place")
