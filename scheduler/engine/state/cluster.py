"""The one mutable thing while a plan is made: jobs, where they stand, what they are charged, and how to take it all back.

Jobs change only by `seat`, `unseat`, `unseat_all` and `charge_elsewhere`. Each logs how to undo what it changes of fleet, tree and
job, so that "all or nothing" is an attempt that is not kept.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

from ..model.reasons import Reason
from ..model.values import Scenario
from ..place.gradient import Gradient, demand_of
from ..place.unbroken import Blocks
from ..rules.colocation import Colocation
from ..rules.power import Power
from .fleet import Seat, on_gpus
from .state import Kept
from .tree import WINDOW_MARK
from .work import Work

# What a change of a job is undone to.
UNDOABLE = ("seats", "milli", "quota_type", "charged_leaf", "evicted", "moved", "backfilled", "why", "for_job", "stale")
_undoable = attrgetter(*UNDOABLE)


@dataclass(slots=True)
class Attempt:
    kept: bool = False

    def keep(self) -> None:
        self.kept = True


@dataclass(slots=True)
class Lessons:
    """What the passes have come to that can't stay, by the order of jobs: the plan begins anew, with that in mind."""

    held_off: set[int] = field(default_factory=set)  # who would stand outside his guarantee in the end, too soon after an eviction
    made_whole: set[int] = field(default_factory=set)  # who gets what its minimum lacks, so that nothing is taken from it but all of it
    giving: set[int] = field(default_factory=set)  # from whom something is taken, so that it gets nothing


class Cluster:
    """Jobs on the fleet, charged to the tree."""

    def __init__(self, scenario: Scenario, kept: Kept | None = None) -> None:
        self.state = state = (kept or Kept()).begin(scenario)
        self.scenario, self.settings, self.now = scenario, scenario.settings, scenario.now
        self.grid, self.forms, self.windows = state.grid, state.forms, state.windows
        self.fleet, self.tree, self.works = state.fleet, state.tree, state.works
        self.before_changes: Callable[[], None] | None = None  # what has to be known of this state before it is another one
        self.geometry: dict[tuple[int, int], Work] = {}  # GPUs split anew by this plan, and for whom
        self.moves_left = 1 << 30 if self.settings.max_moves is None else self.settings.max_moves
        self.journal: list[Work] = []  # jobs whose places may have changed, in order; each reader knows how far it has read
        self.put_out: list[Work] = []  # jobs that lost all their places, whether or not that was kept
        self.blocks = Blocks(self.grid, (), ())  # what waits and what is usual, once that is known
        self.ousted: dict[Work, tuple[Reason, str | None]] = {}  # every job that lost all its first places at some time: why, and to whom
        self.lessons = Lessons()
        self.next_turn: int | None = None  # the first instant to come by which anything was decided
        self.power = Power(self) if any(cap.end is None or cap.end > self.now for cap in scenario.power.caps) else None  # of the capped pools

    def is_to_come(self, instant: int) -> bool:
        """Whether an instant has yet to come. What depends on that may be decided otherwise from then on: a plan has to be made again."""
        if instant <= self.now:
            return False
        if self.next_turn is None or instant < self.next_turn:
            self.next_turn = instant
        return True

    @cached_property
    def colocation(self) -> Colocation | None:
        """Who may not be whose neighbour; None where nothing is asked of that."""
        return Colocation(self) if self.scenario.asks_apart else None

    def apart(self, work: Work) -> int:
        """The nodes that a job has to stay off because of who stands there, as a bit set."""
        return 0 if self.colocation is None else self.colocation.off(work)

    @cached_property
    def gradient(self) -> Gradient | None:
        """What chooses nodes, where it is the steepest descent of fragmentation."""
        if self.settings.placement != "fgd":
            return None
        demand, known = demand_of(self.scenario), self.state.gradient
        if known is None or known.demand != demand:
            known = self.state.gradient = Gradient(self.grid, demand)
        return known

    def leaves_of(self, work: Work, quota_type: int, since: int | None = None) -> list[int]:
        """Where it may be charged: its own leaf, then a window of its class that is large enough; or those from one of them on."""
        leaves = [work.leaf]
        if not work.seats:
            type_name = self.grid.types[quota_type]
            for window in self.windows.of_classes:
                fits = window.class_rank == work.kind.class_rank and window.gpu_type == type_name
                if fits and work.form.least_milli(quota_type) <= window.gpus:
                    leaves += [self.tree.position[WINDOW_MARK + window.name]]
        return leaves if since is None else leaves[leaves.index(since) :]

    # Changing

    def mark(self) -> int:
        if self.before_changes is not None:
            self.before_changes()
        return self.fleet.mark()

    def undo(self, mark: int) -> None:
        self.fleet.undo(mark)

    @contextmanager
    def attempt(self) -> Iterator[Attempt]:
        """Changes to fleet, tree and jobs that are undone on the way out unless kept."""
        attempt = Attempt()
        mark = self.mark()
        try:
            yield attempt
        finally:
            if not attempt.kept:
                self.undo(mark)

    def _remember(self, *works: Work) -> None:
        if self.before_changes is not None:
            self.before_changes()
        self.journal += works
        self.fleet.log.append((None, self._put_back, (works[::-1], [*map(_undoable, works)][::-1])))

    def _put_back(self, works: Sequence[Work], states: Sequence[Sequence[object]]) -> None:
        self.journal += works
        for work, values in zip(works, states, strict=True):
            for name, value in zip(UNDOABLE, values, strict=True):
                setattr(work, name, value)
            work.note_degraded()

    def _charge(self, leaf: int, quota_type: int, milli: int, fixed: bool) -> None:
        self.fleet.log.append((None, self.tree.charge, (leaf, quota_type, -milli, fixed)))
        self.tree.charge(leaf, quota_type, milli, fixed)

    def seat(self, work: Work, seats: Sequence[Seat], quota_type: int, leaf: int, why: Reason) -> None:
        """Give a job more workers, in places that the fleet holds for it already."""
        self._remember(work)
        if len(seats) == 1 and not work.seats:
            milli = seats[0].milli
            work.seats = tuple(seats)
        else:
            milli = sum([seat.milli for seat in seats])
            work.seats = tuple(sorted((*work.seats, *seats)))
        work.milli += milli
        work.quota_type = quota_type
        work.charged_leaf = leaf
        work.why = why
        if work.degraded or not work.form.sole:
            work.note_degraded()
        work.sequence = len(self.journal)
        self._charge(leaf, quota_type, milli, work.form.fixed)

    def charge_elsewhere(self, work: Work, leaf: int) -> None:
        self._remember(work)
        self._charge(work.charged_leaf, work.quota_type, -work.milli, work.form.fixed)
        work.charged_leaf = leaf
        self._charge(leaf, work.quota_type, work.milli, work.form.fixed)

    def unseat(self, work: Work, seats: Sequence[Seat], why: Reason, for_job: str | None) -> None:
        """Take workers from a job: all of them is an eviction, some of them a shrink."""
        self.unseat_all({work: seats}, why, for_job)

    def unseat_all(self, leaving: Mapping[Work, Sequence[Seat]], why: Reason, for_job: str | None) -> None:
        """Take workers from many jobs: what leaves a node, and what a leaf is charged, is given back in one step."""
        stood: list[Seat] = []
        fresh: list[Seat] = []
        charges: Counter[tuple[int, int, bool]] = Counter()
        self._remember(*leaving)
        for work, seats in leaving.items():
            first, milli = work.first_seats, work.milli
            if work.seats is first:
                stood += seats
            else:
                known = set(first)
                for seat in seats:
                    (stood if seat in known else fresh).append(seat)
            if len(seats) == len(work.seats):
                work.seats = ()
                work.backfilled = work.degraded = False
            else:
                gone, milli = set(seats), sum(seat.milli for seat in seats)
                work.seats = tuple(seat for seat in work.seats if seat not in gone)
                work.note_degraded()
            work.milli -= milli
            if not work.seats and first:
                if not work.evicted:
                    self.ousted[work] = why, for_job
                work.evicted = True
                self.put_out.append(work)
            if first:
                work.why = why
                work.for_job = for_job
            charges[work.charged_leaf, work.quota_type, work.form.fixed] += milli
        self.fleet.release(stood, fresh=False)
        self.fleet.release(fresh, fresh=True)
        for (leaf, quota_type, fixed), milli in charges.items():
            self._charge(leaf, quota_type, -milli, fixed)

    def spend_moves(self, count: int) -> None:
        self.fleet.log.append((None, setattr, (self, "moves_left", self.moves_left)))
        self.moves_left -= count

    def in_a_circle(self, work: Work, seats: Sequence[Seat]) -> bool:
        """Whether a job that was put out would wait on these places for somebody who waits for it to leave its own."""
        if not work.evicted:
            return False  # nobody waits for it to leave
        gone = sorted([one for one in self.ousted if one.evicted], key=attrgetter("order"))
        seen: set[int] = set()
        line = [seats]
        while line:
            wanted = line.pop()
            for one in gone:
                if one.order not in seen and self._overlap(wanted, one.first_seats):
                    if one is work and wanted is not seats:
                        return True
                    if one is not work:
                        seen.add(one.order)
                        first = set(one.first_seats)
                        line.append([seat for seat in one.seats if seat not in first])
        return False

    def _overlap(self, wanted: Sequence[Seat], held: Sequence[Seat]) -> bool:
        """Whether somebody has to leave before somebody else can stand there."""
        now = self.fleet.now
        return any(
            one.node == other.node and (now.cpus[one.node] < 0 or now.memory[one.node] < 0 or on_gpus(one) & on_gpus(other))
            for one in wanted
            for other in held
        )

    def split_anew(self, work: Work, key: tuple[int, int]) -> None:
        self.fleet.log.append((None, setattr, (self, "geometry", self.geometry)))
        self.geometry = {**self.geometry, key: work}
