"""Start what fits, in the order of queues, without anyone having to give way.

With backfill on (backfill.py), places are kept for blocked jobs, and what comes behind them starts only where it delays none.
A degraded gang asks for the workers that it lacks: on idle nodes, then on spares (`fit` in placement.py).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from ..ahead.reservations import delays, held_back, off_limits, places_of_overdue, yields
from ..model.reasons import Reason, reason
from ..place.placement import fit
from ..rules.gates import kept_clear, open_leaf
from ..search.evicting import delaying_none
from ..state.fleet import Seat
from ..state.form import Form
from ..state.planning import FAIR, Cycle
from ..state.tree import NEVER, Division
from ..state.work import Work
from .backfilled import leaves_in_time
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
        self.cycle, self.choice, self.division, self.keep, self.free_start = cycle, choice, division, keep, free_start
        self.book, self.view = cycle.book, cycle.fleet.soon
        self.only_type, self.by_right = len(cycle.grid.types) == 1, cycle.turn == FAIR
        # Whether those who are `_alike` may fit, by quota type: nothing is freed in this pass, so who does not will not.
        self.fits: list[dict[object, bool]] = [{} for _ in cycle.grid.types]
        self.shapes: dict[int, Form | None] | None = None

    def run(self) -> None:
        cycle, waiting = self.cycle, self.cycle.waiting
        order = waiting.order_of(self.division, self.choice, waiting.of_round(self.division, self.choice), self.onward)
        for work in in_turn(cycle, order) if order.best() is not None and not self._over() else ():
            types = waiting.tried_types(work, self.choice)
            if not self._serve(work, types) and self.keep:
                self.keep(cycle, work, types)
            if self._over():
                return

    def _over(self) -> bool:
        """Whether no shape that is waited for fits, and no more places are kept: then nothing comes of the rest of the walk."""
        if not self.only_type or self.by_right or (self.keep and self.book.room_for_more(0)):
            return False
        cycle, fits = self.cycle, self.fits[0]
        if not self.view.idle and not cycle.cluster.forms.gpuless and not any(work.degraded for work in cycle.waiting.queues.open):
            return True
        if self.shapes is None:
            self.shapes = cycle.waiting.shapes()
        for shape, form in [*self.shapes.items()]:
            if fits.get(shape, True):
                if form is None or cycle.slots(self.view).could_fit(form, 0):
                    return False
                fits[shape] = False
            del self.shapes[shape]  # nothing is freed in this pass
        return True

    def onward(self, queue: Sequence[Work], at: int) -> int:
        """The place of the first job from there on that is not hopeless. Nothing changes meanwhile, so of those that are alike one tells for all."""
        refused: set[object] = set()
        room = NEVER  # most of those that wait where only rights count ask for more than is left
        if self.by_right and self.only_type and at < len(queue):
            room = self.division.fair[queue[at].home] - self.division.used[queue[at].home]
        for place in range(at, len(queue)):
            work = queue[place]
            if work.form.lowest > room and not work.seats:
                continue
            alike = (work.form, work.job.limit_ms, work.job.estimate_ms) if work.evicted else work.form
            if work.seats or alike not in refused:
                if not self.hopeless(work):
                    return place
                refused.add(alike)
        return len(queue)

    def _alike(self, work: Work) -> object:
        """What jobs share that fit, or do not fit, alike: their shape, and for a share of a GPU the domain of trust as well."""
        return (work.form.shape, work.trust(self.cycle.settings.sharing_trust)) if work.kind.sharing == "mps" else work.form.shape

    def _in_turn(self, work: Work, types: tuple[int, ...]) -> tuple[int, ...]:
        if not self.by_right:
            return types
        milli = self.cycle.waiting.asked_milli(work, self.choice)
        return tuple(quota_type for quota_type in types if self.cycle.tree.within_share(work.leaf, quota_type, milli))

    def may_fit(self, work: Work, quota_type: int) -> bool:
        known, shape, alike = self.fits[quota_type], work.form.shape, self._alike(work)
        fits = known.get(shape, True) and known.get(alike)  # until placing it fails
        if fits is None:
            fits = self.cycle.slots(self.view).could_fit(work.form, quota_type)
            if not fits:
                alike = shape  # whoever may share with whom
            elif not work.form.plain:  # the bound looks at one role at a time, and not at parts
                with self.cycle.cluster.attempt():
                    fits = fit_any(self.cycle, work, quota_type, 0) is not None
            known[alike] = fits
        return fits

    def hopeless(self, work: Work) -> bool:
        """It can't fit while nothing is freed, and no place will be kept for it either."""
        if work.seats:
            return False
        waiting = self.cycle.waiting
        for quota_type in self._in_turn(work, waiting.tried_types(work, self.choice)):
            if self.keep and self.book.room_for_more(quota_type):
                blocked, used, fair = quota_type in self.book.blocked_within, self.division.used[work.home], self.division.fair[work.home]
                within = not (blocked or work.evicted) or used + waiting.asked_milli(work, self.choice) <= fair
                # For whom this plan has put out a place is kept only if he can have it now.
                in_vain = work.evicted and (blocked or not within) and self.book.is_full(work, quota_type)
                if (within or not blocked) and not in_vain:
                    return False
            if self.may_fit(work, quota_type):
                return False
        return True

    def _serve(self, work: Work, types: tuple[int, ...]) -> bool:
        for quota_type in self._in_turn(work, types) if self.free_start or self.book.entries else ():
            if work.seats or self.may_fit(work, quota_type):
                outcome = try_start(self.cycle, work, quota_type)
                if outcome == STARTED:
                    return True
                if outcome == NO_ROOM and not work.seats:
                    self.fits[quota_type][self._alike(work)] = False
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
    found = Look(REFUSED, TAKEN_AGAIN) if repairs and cycle.takers.holds_back(work) else _look(cycle, work, quota_type)
    if found.outcome == STARTED:
        why = _why(cycle, work, quota_type, found)
        cycle.cluster.seat(work, found.seats, quota_type, found.leaf, why)
        work.backfilled = found.backfilled or (work.job.run.backfilled and bool(work.first_seats) and not work.evicted)
        cycle.book.has_backfilled |= work.backfilled
        cycle.changed()
        if repairs:
            cycle.takers.moved(work, before)
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
    book, kept, milli = cycle.book, bool(cycle.book.entries), work.missing_milli(quota_type)
    leaf, closed = open_leaf(cycle, work, quota_type, milli)
    refused, banned = (closed[0], 0) if closed else kept_clear(cycle, work, quota_type, milli)
    if refused is not None:
        return Look(REFUSED, refused)
    seats = _clear_of_reservations(cycle, work, quota_type, milli, banned) if kept or banned else fit_any(cycle, work, quota_type, 0)
    if seats is not None:
        return Look(STARTED, None, seats, leaf)
    if kept and (seats := fit_any(cycle, work, quota_type, banned)) is not None:
        crowded = delays(book, work, quota_type, milli, seats)
        # What runs of a gang that is made whole was not lent to it.
        if work.seats or not yields(cycle, work) or not leaves_in_time(cycle, work, quota_type, crowded):
            return Look(REFUSED, held_back(book, work, quota_type, milli, crowded[0]))
        return Look(STARTED, None, seats, leaf, backfilled=True)
    if banned and fit_any(cycle, work, quota_type, 0) is not None:
        capped = None if cycle.cluster.power is None else cycle.cluster.power.reason(cycle, work, quota_type, milli)
        return Look(REFUSED, capped or cycle.cluster.windows.block_reason(cycle.cluster, work, quota_type, milli))
    return Look(REFUSED if banned or work.evicted else NO_ROOM)


def fit_any(cycle: Cycle, work: Work, quota_type: int, banned: int) -> tuple[Seat, ...] | None:
    for view in cycle.fleet.views():
        mark = cycle.cluster.mark() if work.evicted else None  # nobody else can stand in a circle
        if (seats := fit(cycle, work, quota_type, view, banned)) is not None:
            if mark is None or not cycle.cluster.in_a_circle(work, seats):
                return seats
            cycle.cluster.undo(mark)
    return None


def _clear_of_reservations(cycle: Cycle, work: Work, quota_type: int, milli: int, banned: int) -> tuple[Seat, ...] | None:
    book = cycle.book
    if overdue := places_of_overdue(book, work):  # also of what they do not bind: elsewhere it is as well off
        mark = cycle.cluster.mark()
        seats = fit_any(cycle, work, quota_type, banned | overdue)
        if seats is not None and not delays(book, work, quota_type, milli, seats):
            return seats
        cycle.cluster.undo(mark)
    banned |= off_limits(book, work, quota_type, milli)
    return delaying_none(cycle, work, quota_type, milli, banned, partial(fit_any, cycle, work, quota_type))


def _why(cycle: Cycle, work: Work, quota_type: int, found: Look) -> Reason:
    """What a job that starts, or is repaired, is told of it."""
    if work.first_seats and work.seats:
        return reason("repair", f"{len(found.seats)} of its workers had no place")
    if work.evicted:
        return reason("moved", "evicted for another job, and another place was free")
    if found.backfilled:
        return reason("backfill", f"runs before a reservation and can stop within {work.kind.grace_ms // 1000} s")
    if not cycle.book.entries:
        return FITS
    # Some of what is kept does not hold back what stays within its guarantees, as the holder does not.
    milli, bound = work.missing_milli(quota_type), all(entry.guaranteed for entry in cycle.book.entries)
    return DELAYS_NONE if bound or not cycle.tree.within_guarantee(work.charged_leaf, quota_type, milli) else DELAYS_NONE_WITHIN
