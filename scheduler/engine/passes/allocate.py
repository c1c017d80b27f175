"""Start what fits, in the order of queues, without anyone having to give way.

With backfill on (backfill.py), places are kept for blocked jobs, and what comes behind them starts only where it delays none.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from ..ahead.reservations import delays, held_back, off_limits, yields
from ..model.reasons import Reason, reason
from ..place.seating import fit
from ..rules.gates import open_leaf
from ..search.evicting import delaying_none
from ..state.fleet import Seat
from ..state.form import Form
from ..state.planning import FAIR, Cycle
from ..state.tree import Division
from ..state.work import Work
from .walk import TAKEN_AGAIN, in_turn

Keep = Callable[[Cycle, Work, tuple[int, ...]], None]


def run(cycle: Cycle) -> None:
    """Alone, everything that fits starts; with backfill on, that pass serves the queue instead: nothing must run into what it keeps."""
    if "backfill" not in cycle.settings.passes and cycle.begin_walk():
        serve(cycle, keep=None, free_start=True)


def serve(cycle: Cycle, *, keep: Keep | None, free_start: bool) -> None:
    """One walk over the queue. `keep`: what is kept for a blocked job; `free_start`: jobs ahead of any reservation may start."""
    for choice, division in cycle.waiting.rounds():
        Walk(cycle, choice, division, keep=keep, free_start=free_start).run()


class Walk:
    """One pass over the queues of one division."""

    def __init__(self, cycle: Cycle, choice: int, division: Division, *, keep: Keep | None, free_start: bool) -> None:
        self.cycle = cycle
        self.choice = choice
        self.division = division
        self.keep = keep
        self.free_start = free_start
        self.book = cycle.book
        # Whether those who are `_alike` may fit, by quota type: nothing is freed in this pass, so who does not will not.
        self.fits: dict[tuple[int, object], bool] = {}
        self.shapes: list[tuple[int, Form | None]] | None = None
        self.by_right = cycle.turn == FAIR

    def run(self) -> None:
        cycle, waiting = self.cycle, self.cycle.waiting
        order = waiting.order_of(self.division, self.choice, waiting.of_round(self.division, self.choice), self.onward)
        for work in in_turn(cycle, order):
            types = cycle.waiting.tried_types(work, self.choice)
            if not self._serve(work, types) and self.keep:
                self.keep(cycle, work, types)
            if self._over():
                return

    def _over(self) -> bool:
        """Whether no shape that is waited for fits, and no more places are kept: then nothing comes of the rest of the walk."""
        if self.by_right or len(self.cycle.grid.types) > 1 or (self.keep and self.book.room_for_more(0)):
            return False
        if self.shapes is None:
            self.shapes = [*self.cycle.waiting.shapes().items()]
        slots = self.cycle.slots(self.cycle.fleet.soon)
        while self.shapes:
            shape, form = self.shapes[-1]
            if form is None or (self.fits.get((0, shape), True) and slots.could_fit(form, 0, suspect=form.kind.tolerates_suspect)):
                return False
            self.shapes.pop()
        return True

    def onward(self, queue: Sequence[Work], at: int) -> int:
        """The place of the first job from there on that is not hopeless. Nothing changes meanwhile, so of those that are alike one tells for all."""
        refused: set[object] = set()
        for place in range(at, len(queue)):
            work = queue[place]
            alike = (work.form, self.book.length(work)) if work.evicted else work.form
            if work.seats or alike not in refused:
                if not self.hopeless(work):
                    return place
                refused.add(alike)
        return len(queue)

    def _alike(self, work: Work) -> object:
        """What jobs share that fit, or do not fit, alike: their shape, and for a share of a GPU the domain of trust as well."""
        return (work.form.shape, work.trust(self.cycle.settings.sharing_trust)) if work.kind.sharing == "mps" else work.form.shape

    def _has_right(self, work: Work, quota_type: int) -> bool:
        return self.cycle.has_turn(work, quota_type, work.missing_milli(quota_type))

    def may_fit(self, work: Work, quota_type: int) -> bool:
        key = quota_type, self._alike(work)
        fits = self.fits.get(key)  # until placing it fails
        if fits is None:
            fits = self.cycle.slots(self.cycle.fleet.soon).could_fit(work.form, quota_type, suspect=work.kind.tolerates_suspect)
            if fits and not work.form.plain:  # the bound looks at one role at a time, and not at parts
                with self.cycle.cluster.attempt():
                    fits = fit_any(self.cycle, work, quota_type, 0) is not None
            self.fits[key] = fits
        return fits

    def hopeless(self, work: Work) -> bool:
        """It can't fit while nothing is freed, and no place will be kept for it either."""
        if work.seats:
            return False
        types = self.cycle.waiting.tried_types(work, self.choice)
        for quota_type in types:
            if self.by_right and not self._has_right(work, quota_type):
                continue
            # For whom this plan has put out a place is kept only if he can have it now.
            if self.keep and self.book.room_for_more(quota_type) and not (work.evicted and self.book.is_full(work, quota_type)):
                room = self.division.fair[work.home] - self.division.used[work.home]
                if quota_type not in self.book.blocked_within or work.missing_milli(quota_type) <= room:
                    return False
            if self.may_fit(work, quota_type):
                return False
        return True

    def _serve(self, work: Work, types: tuple[int, ...]) -> bool:
        if not self.free_start and not self.book.entries:
            return False
        for quota_type in types:
            if self.by_right and not self._has_right(work, quota_type):
                continue
            if not work.seats and not self.may_fit(work, quota_type):
                continue
            outcome = try_start(self.cycle, work, quota_type)
            if outcome == STARTED:
                return True
            if outcome == NO_ROOM and not work.seats:
                self.fits[quota_type, self._alike(work)] = False
        return False


FITS = reason("fits", "first in the order of queues among those that fit")
DELAYS_NONE = reason("backfill", "delays no reservation ahead of it")
DELAYS_NONE_WITHIN = reason("backfill", "stays within its guarantees; delays no reservation of a job that stays within its own")
STARTED, REFUSED, NO_ROOM = "started", "refused", "no room"


class Look(NamedTuple):
    """Whether a job may start, and where, charged to which leaf; or why not, where that is told."""

    outcome: str
    why: Reason | None = None
    seats: tuple[Seat, ...] = ()
    leaf: int = 0
    backfilled: bool = False


def try_start(cycle: Cycle, work: Work, quota_type: int) -> str:
    """Start (or repair) a job where it fits: on what is idle or, as a whole, on what is being freed."""
    before, repairs = cycle.cluster.mark(), bool(work.seats)
    if repairs and cycle.takers.holds_back(work):
        found = Look(REFUSED, TAKEN_AGAIN)
    else:
        found = _look(cycle, work, quota_type)
    if found.outcome == STARTED:
        _seat(cycle, work, quota_type, found)
        if repairs:
            cycle.takers.dear[work.order] = "allocate"
        return STARTED
    cycle.cluster.undo(before)
    if found.why is not None:
        cycle.waiting.note(work, found.why)
    return found.outcome


def could_start(cycle: Cycle, work: Work, quota_type: int) -> bool:
    """Whether `try_start` would start a waiting job now; nothing is changed."""
    with cycle.cluster.attempt():
        return _look(cycle, work, quota_type).outcome == STARTED


def _look(cycle: Cycle, work: Work, quota_type: int) -> Look:
    """Where a job may stand now, with its places taken."""
    book, windows, milli, banned = cycle.book, cycle.cluster.windows, work.missing_milli(quota_type), 0
    leaf, closed = open_leaf(cycle, work, quota_type, milli)
    if closed:
        return Look(REFUSED, closed[0])
    if windows.upcoming:
        refused, banned = windows.gate(cycle.cluster, work, quota_type, milli)
        if refused is not None:
            return Look(REFUSED, refused)
    kept = bool(book.entries)
    off = banned | off_limits(book, work, quota_type, milli)
    seats = delaying_none(cycle, work, quota_type, milli, off, partial(fit_any, cycle, work, quota_type))
    if seats is not None:
        return Look(STARTED, None, seats, leaf)
    if kept and (seats := fit_any(cycle, work, quota_type, banned)) is not None:
        crowded = delays(book, work, quota_type, milli, seats)
        # What runs of a gang that is made whole was not lent to it.
        if work.seats or not yields(cycle, work):
            return Look(REFUSED, held_back(book, work, quota_type, milli, crowded[0]))
        return Look(STARTED, None, seats, leaf, backfilled=True)
    if banned and fit_any(cycle, work, quota_type, 0) is not None:
        return Look(REFUSED, windows.block_reason(cycle.cluster, work, quota_type, milli))
    return Look(REFUSED if banned or work.evicted else NO_ROOM)


def fit_any(cycle: Cycle, work: Work, quota_type: int, banned: int) -> tuple[Seat, ...] | None:
    for view in cycle.fleet.views():
        mark = cycle.cluster.mark() if work.evicted else None  # nobody else can stand in a circle
        seats = fit(cycle, work, quota_type, view, banned)
        if seats is not None:
            if mark is None or not cycle.cluster.in_a_circle(work, seats):
                return seats
            cycle.cluster.undo(mark)
    return None


def _seat(cycle: Cycle, work: Work, quota_type: int, found: Look) -> None:
    entries = cycle.book.entries
    if work.first_seats and work.seats:
        why = reason("repair", f"{len(found.seats)} of its workers had no place")
    elif work.evicted:
        why = reason("moved", "evicted for another job, and another place was free")
    elif found.backfilled:
        why = reason("backfill", f"runs before a reservation and can stop within {work.kind.grace_ms // 1000} s")
    elif not entries:
        why = FITS
    else:
        # Some of what is kept does not hold back what stays within its guarantees, as the holder does not.
        bound = all(entry.guaranteed for entry in entries) or not cycle.tree.within_guarantee(
            work.charged_leaf, quota_type, work.missing_milli(quota_type)
        )
        why = DELAYS_NONE if bound else DELAYS_NONE_WITHIN
    cycle.cluster.seat(work, found.seats, quota_type, found.leaf, why)
    work.backfilled = found.backfilled or (work.job.run.backfilled and bool(work.first_seats) and not work.evicted)
    cycle.book.has_backfilled |= work.backfilled
    cycle.changed()
