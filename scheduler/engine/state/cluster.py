"""The one mutable thing while a plan is made: jobs, where they stand, what they are charged, and how to take it all back.

`start`, `evict` and `trim` are the only ways to change it. Each changes fleet, tree and job together and logs how to undo
that, so that "all or nothing" is an attempt that is not kept.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import compress, count, islice
from operator import attrgetter
from typing import Any

from ..model.mig import board_of
from ..model.reasons import Reason
from ..model.values import QUEUED, Job, Kind, Placed, Scenario
from ..place.blocks import Block, Blocks, largest, usual_blocks
from ..place.gradient import Gradient, demand_of
from ..rules.claims import claims
from ..rules.windows import Windows
from .difference import MANY, Difference, compared
from .fleet import NO_PARTS, Attempt, Fleet, Part, Seat, bits_of, new_seat
from .form import Form
from .kept import Kept
from .tree import Tree
from .work import Work

# What a change of a job is undone to.
_undoable = attrgetter("seats", "milli", "quota_type", "charged_leaf", "evicted", "moved", "backfilled", "why", "for_job", "stale")


class Cluster:
    """Jobs on the fleet, charged to the tree."""

    def __init__(self, scenario: Scenario, kept: Kept | None = None) -> None:
        self.handed_on = kept is not None  # whether another plan may go on from this one
        kept = Kept() if kept is None else kept
        self.kept = kept
        self.scenario = scenario
        self.settings = scenario.settings
        self.now = scenario.now
        self.grid = kept.grid(scenario)
        self.forms = kept.forms
        self.windows = Windows(scenario, self.grid)
        before = kept.taken()
        between = None if before is None else before.difference(scenario)
        if between is None:
            kept.beginning = ()
        if before is not None and between is not None:
            self.fleet: Fleet = before.fleet
            self.tree: Tree = before.tree
            self.works: list[Work] = before.works
            self.leavers: dict[Work, tuple[Seat, ...]] = before.leavers
            self._ending: dict[Work, None] | None = before._ending
        else:
            self.fleet = Fleet(self.grid)
            self.tree = kept.tree(scenario, self.grid, self.windows.lasting)
            self.works = []
            self.leavers = {}  # who leaves places that are still held, and which
            self._ending = None  # who stands at first and will leave some time or give way, once that was asked
        self.log: list[tuple[Any, ...]] = []
        self.before_changes: Callable[[], None] | None = None  # what has to be known of this state before it is another one
        self.geometry: dict[tuple[int, int], Work] = {}  # GPUs split anew by this plan, and for whom
        self.moves_left = 1 << 30 if self.settings.max_moves is None else self.settings.max_moves
        self.sequence = 0
        self.charged: list[int] = []  # leaves whose use has changed, in order; who follows it need not look at the others
        self.journal: list[Work] = []  # jobs whose places may have changed, in order; each reader knows how far it has read
        self.touched: dict[int, Work] = {}  # jobs whose places may have changed since somebody last looked
        self.put_out: list[Work] = []  # jobs that lost all their places, whether or not that was kept
        self.blocks = Blocks(self.grid, (), ())  # what waits and what is usual, once that is known
        self.ousted: dict[Work, tuple[Reason, str | None]] = {}  # every job that lost all its first places at some time: why, and to whom
        self.made_whole: set[int] = set()  # by order: who gets what its minimum lacks, so that nothing is taken from it but all of it
        self.giving: set[int] = set()  # from whom something is taken, so that it gets nothing
        self.timed: list[Work] | None = None  # jobs with times of their own, or more to them than running; where all were taken up anew
        self.goes_on = between is not None  # from the state of the plan before
        self.gone: Collection[Work] = ()  # since then
        self.come: Collection[Work] = ()
        # Whether the places of jobs alone decide what is held: no GPU has a layout of its own, and nobody leaves a part of one.
        self.by_places = False
        # Where they stood, and stand, in the list; None where that is not one step.
        self.between: tuple[int, int, Sequence[Work], Sequence[Work]] | None = None
        if between is None:
            self._seat_workers()
        else:
            self._go_on(between)

    @cached_property
    def gradient(self) -> Gradient | None:
        """What chooses nodes, where it is the steepest descent of fragmentation."""
        if self.settings.placement != "fgd":
            return None
        demand, known = demand_of(self.scenario), self.kept.gradient
        if known is None or known.grid is not self.grid or known.demand != demand:
            known = self.kept.gradient = Gradient(self.grid, demand)
        return known

    @property
    def usual_blocks(self) -> tuple[Block, ...]:
        """The largest blocks of the usual demand."""
        demand, known = self.scenario.demand, self.kept.usual_blocks
        if known is None or (known[0] is not demand and known[0] != demand):
            known = self.kept.usual_blocks = demand, largest(usual_blocks(self.grid, demand))
        return known[1]

    # Building

    def _seat_workers(self) -> None:
        fleet, tree = self.fleet, self.tree
        fleet.hold_geometry()
        timed = self.timed = []
        known = self.kept.sitting
        index, type_of, hold = self.grid.index, self.grid.type_of, fleet.hold
        free, cpus, memory = fleet.now.free, fleet.now.cpus, fleet.now.memory
        position, forms, form_of = tree.position, self.forms, self.forms.of
        works = self.works
        # Milli-GPU that are held: by whether they are fixed, by quota type and by leaf.
        held = [[[0] * len(tree.names) for _ in self.grid.types] for _ in (False, True)]
        kind: Kind | None = None
        last: Form | None = None  # of those that have one worker and run
        queued, join = QUEUED, works.append
        for order, job in enumerate(self.scenario.jobs):
            if job.kind is not kind:  # neighbours are often alike
                kind = job.kind
                form = forms.get(id(kind)) or form_of(kind)
            home = position[job.quota]
            run = job.run
            if run is queued:
                join(Work(job, order, home, form))
                continue
            workers, each = run.workers, form.each
            if each is not None and len(workers) == 1 and run.state == "running" and not run.leaving:
                # The most usual by far: one worker with whole GPUs.
                if form is not last:
                    last, several, sums = form, form.all_least > 1, held[form.fixed]
                    milli, of_host, of_memory = each
                worker = workers[0]
                node, gpus = index[worker.node], worker.gpus
                quota_type = type_of[node]
                seat = new_seat((0, worker.index, node, gpus, of_host, of_memory, milli, NO_PARTS))
                work = Work(job, order, home, form, (seat,), milli, quota_type)
                join(work)
                free[node] &= ~gpus
                if of_host or of_memory:
                    cpus[node] -= of_host
                    memory[node] -= of_memory
                sums[quota_type][home] += milli
                if several:
                    work.degraded = True
                    timed.append(work)
                elif run.until is not None or run.reclaimed is not None:
                    timed.append(work)
                continue
            work = Work(job, order, home, form)
            join(work)
            timed.append(work)
            self._note_leaver(work)
            if not workers or run.state == "stopping":
                continue
            sitting = known.get(work.job.name)
            if sitting is not None and sitting[0] is work.job:
                seats = sitting[1]
                work.seats = work.first_seats = seats
                work.milli, work.quota_type = sitting[2], sitting[3]
                work.look_for_gaps()
            else:
                seats = work.seats = work.first_seats = tuple([self.seat_of(work, worker) for worker in workers])
                self._note_amount(work)
                known[work.job.name] = (work.job, seats, work.milli, work.quota_type)
            (fleet.promise if work.state == "reserved" or run.leaving else hold)(seats)
            held[form.fixed][work.quota_type][home] += work.milli
        leaving = [seat for seats in self.leavers.values() for seat in seats]
        instances = self.grid.any_split or any(split.mode == "mig" for split in fleet.now.splits.values())
        self.by_places = not instances and not any(seat.parts for seat in leaving)
        fleet.settle(leaving)
        if self.windows.lasting:
            for one, leaf in claims(self).items():
                one.charged_leaf = leaf
            held = [[[0] * len(tree.names) for _ in self.grid.types] for _ in (False, True)]
            for work in works:
                if work.seats:
                    held[work.form.fixed][work.quota_type][work.charged_leaf] += work.milli
        for fixed, by_type in enumerate(held):
            for quota_type, by_leaf in enumerate(by_type):
                for leaf in compress(count(), by_leaf):
                    tree.charge(leaf, quota_type, by_leaf[leaf], bool(fixed))

    def _note_leaver(self, work: Work) -> None:
        """Places that a job still holds and has given up: all of them where it stops."""
        run = work.job.run
        places = (*run.leaving, *run.workers) if run.state == "stopping" else run.leaving
        if places:
            self.leavers[work] = tuple([self.seat_of(work, worker) for worker in places])

    # From one plan to the next

    def rest(self, changed: Iterable[Work]) -> None:
        """Take back all that this plan has decided about the jobs that it has changed."""
        self.undo((0, 0))
        for work in changed:
            work.begin_anew()
        self.ousted.clear()
        if self.blocks:
            self.blocks = Blocks(self.grid, (), ())

    def difference(self, scenario: Scenario) -> Difference | None:
        """What the jobs of another scenario do not have in common with those of this one.

        None where it can't go on from this one: with MIG, where somebody leaves a part of a GPU, or with a window more than the jobs that
        changed decides about the first state, and it is made anew.
        """
        mine, kept = self.scenario, self.kept
        if kept.grid(scenario) is not self.grid or mine.windows or scenario.windows or not self.by_places or scenario.now < mine.now:
            return None
        if mine.quotas is not scenario.quotas and mine.quotas != scenario.quotas:
            return None
        between = compared(self.works, mine.jobs, scenario.jobs, kept.beginning)
        if not 0 <= between.first - len(kept.beginning) < MANY:
            kept.beginning = scenario.jobs[: between.first]
        for one in between.come:
            if not self._is_by_places(one.job):
                return None
        return between

    def _is_by_places(self, job: Job) -> bool:
        """Whether nothing but its own GPUs and shares of them depends on where a job stands, or leaves."""
        run = job.run
        if run is QUEUED or not (run.workers or run.leaving) or not self.forms.of(job.kind).parted:
            return True
        return job.kind.sharing != "mig" and run.state != "stopping" and not run.leaving

    def _go_on(self, between: Difference) -> None:
        """Take up what differs between the jobs of the plan before and those of this one."""
        first, last, before, gone, now, fresh, in_place = between
        self.by_places = True
        works, fleet = self.works, self.fleet
        shifted = len(before) != len(now)
        works[first : len(works) - last] = now
        if not in_place:
            for at, work in enumerate(islice(works, first, None) if shifted else now, first):
                work.order = at
            if len(fresh) > 1:
                fresh.sort(key=attrgetter("order"))
        leavers, tree, position = self.leavers, self.tree, self.tree.position
        for work in gone:
            leavers.pop(work, None)
            if work.seats:
                fleet.lift(work.seats)
                tree.charge(work.home, work.quota_type, -work.milli, work.form.fixed)
        come: list[Work] = []
        for one in fresh:
            job, order = one.job, one.order
            now[order - first] = works[order] = work = Work(job, order, position[job.quota], self.forms.of(job.kind))
            come.append(work)
            run = job.run
            if run is QUEUED:
                continue
            if run.leaving or run.state == "stopping":
                self._note_leaver(work)
            if run.workers and run.state != "stopping":
                if work.form.parted:
                    work.seats = work.first_seats = tuple([self.seat_of(work, worker) for worker in run.workers])
                else:
                    work.seats = work.first_seats = self._whole_seats(work.form, run.workers)
                self._note_amount(work)
                fleet.put(fleet.soon, work.seats)
                tree.charge(work.home, work.quota_type, work.milli, work.form.fixed)
        if self._ending is not None:
            for work in gone:
                self._ending.pop(work, None)
            self._ending.update(dict.fromkeys(work for work in come if work.first_seats and work.ends))
        self.gone, self.come, self.between = gone, come, (first, last, before, now)
        self.tree.usage_weight = self.settings.fairness.usage_weight_millionths
        fleet.begin([seat for seats in self.leavers.values() for seat in seats])

    @property
    def anyone_ends(self) -> bool:
        """Whether anyone who stands, at first or by this plan, is known to leave some time."""
        if self._ending is None:
            self._ending = {work: None for work in self.works if work.first_seats and work.ends}
        return bool(self._ending or self.leavers) or any(work.seats and work.ends for work in self.journal)

    def _note_amount(self, work: Work) -> None:
        """What the places of a job come to, and in which quota type."""
        each, seats = work.form.each, work.seats
        if each is not None:  # all of them are alike
            work.milli, work.quota_type = each[0] * len(seats), self.grid.type_of[seats[0].node]
            work.degraded = len(seats) < work.form.all_least
            return
        milli = 0
        quota_type = -1
        for seat in seats:
            milli += seat.milli
            if seat.milli and quota_type < 0:
                quota_type = self.grid.type_of[seat.node]
        work.milli = milli
        work.quota_type = quota_type if quota_type >= 0 else self.grid.type_of[seats[0].node]
        work.look_for_gaps()

    def _whole_seats(self, form: Form, workers: Iterable[Placed]) -> tuple[Seat, ...]:
        """The places of workers that hold nothing but whole GPUs."""
        roles, index = form.kind.roles, self.grid.index
        seats = []
        for worker in workers:
            role = roles[worker.role]
            taken = role.cpu_milli, role.host_memory_mib, role.gpus * 1000, NO_PARTS
            seats.append(new_seat((worker.role, worker.index, index[worker.node], worker.gpus, *taken)))
        return tuple(seats)

    def seat_of(self, work: Work, worker: Placed) -> Seat:
        role = work.kind.roles[worker.role]
        node = self.grid.index[worker.node]
        if worker.share_milli is None and not worker.mig:
            return new_seat((worker.role, worker.index, node, worker.gpus, role.cpu_milli, role.host_memory_mib, role.gpus * 1000, NO_PARTS))
        parts: tuple[Part, ...] = ()
        if worker.mig:
            board = board_of(self.grid.nodes[node].gpu_type)
            assert board is not None
            charges = {each.name: board.charge_milli(each) for each in board.profiles}
            parts = tuple(Part(gpu, charges[profile], "mig", "", profile, start) for gpu, profile, start in worker.mig)
        elif worker.share_milli is not None:
            trust = self.trust_of(work)
            parts = tuple(Part(gpu, worker.share_milli, work.kind.sharing, trust, memory=role.memory_mib or 0) for gpu in bits_of(worker.gpus))
        if parts:
            return Seat(worker.role, worker.index, node, 0, role.cpu_milli, role.host_memory_mib, sum(part.milli for part in parts), parts)
        return Seat(worker.role, worker.index, node, worker.gpus, role.cpu_milli, role.host_memory_mib, role.gpus * 1000)

    def trust_of(self, work: Work) -> str:
        """The domain inside which a GPU may be shared."""
        if work.kind.sharing == "timeslice" or self.settings.sharing_trust == "any":
            return "*"
        return work.job.name if self.settings.sharing_trust == "job" else work.job.quota

    # Changing

    def mark(self) -> tuple[int, int]:
        if self.before_changes is not None:
            self.before_changes()
        return self.fleet.mark(), len(self.log)

    def undo(self, mark: tuple[int, int]) -> None:
        self.fleet.undo(mark[0])
        while len(self.log) > mark[1]:
            entry = self.log.pop()
            if entry[0] == "charge":
                self.tree.charge(entry[1], entry[2], -entry[3], entry[4])
                self.charged.append(entry[1])
            elif entry[0] == "moves":
                self.moves_left += entry[1]
            elif entry[0] == "geometry":
                if entry[2] is None:
                    del self.geometry[entry[1]]
                else:
                    self.geometry[entry[1]] = entry[2]
            elif entry[0] == "out":
                for work in reversed(entry[1]):
                    self._put_back(work)
            else:
                work = entry[1]
                self.touched[work.order] = work
                self.journal.append(work)
                (
                    work.seats,
                    work.milli,
                    work.quota_type,
                    work.charged_leaf,
                    work.evicted,
                    work.moved,
                    work.backfilled,
                    work.why,
                    work.for_job,
                    work.stale,
                ) = entry[2]
                work.look_for_gaps()

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

    def _remember(self, work: Work) -> None:
        if self.before_changes is not None:
            self.before_changes()
        self.touched[work.order] = work
        self.journal.append(work)
        self.log.append(("work", work, _undoable(work)))

    def _charge(self, leaf: int, quota_type: int, milli: int, fixed: bool) -> None:
        self.log.append(("charge", leaf, quota_type, milli, fixed))
        self.charged.append(leaf)
        self.tree.charge(leaf, quota_type, milli, fixed)

    def seat(self, work: Work, seats: Sequence[Seat], quota_type: int, leaf: int, why: Reason, *, taken: bool = True) -> None:
        """Give a job more workers; `taken` says that the fleet already holds the places."""
        self._remember(work)
        if not taken:
            for seat in seats:
                self.fleet.take(seat)
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
            work.look_for_gaps()
        self.sequence += 1
        work.sequence = self.sequence
        self._charge(leaf, quota_type, milli, work.form.fixed)

    def charge_elsewhere(self, work: Work, leaf: int) -> None:
        """Charge what a job holds to another leaf."""
        self._remember(work)
        self._charge(work.charged_leaf, work.quota_type, -work.milli, work.form.fixed)
        work.charged_leaf = leaf
        self._charge(leaf, work.quota_type, work.milli, work.form.fixed)

    def unseat(self, work: Work, seats: Sequence[Seat], why: Reason, for_job: str | None) -> None:
        """Take workers from a job: all of them is an eviction, some of them a shrink."""
        self._remember(work)
        first: Collection[Seat] = work.first_seats
        release = self.fleet.release
        if len(seats) == len(work.seats):
            untouched = work.seats is first
            known = first if untouched else set(first)
            for seat in seats:
                release(seat, fresh=not untouched and seat not in known)
            milli = work.milli
            work.seats = ()
            work.backfilled = False
        else:
            known, gone = set(first), set(seats)
            for seat in seats:
                release(seat, fresh=seat not in known)
            milli = sum(seat.milli for seat in seats)
            work.seats = tuple(seat for seat in work.seats if seat not in gone)
        work.milli -= milli
        work.look_for_gaps()
        if not work.seats and first:
            if not work.evicted:
                self.ousted[work] = why, for_job
            work.evicted = True
            self.put_out.append(work)
        if first:
            work.why = why
            work.for_job = for_job
        self._charge(work.charged_leaf, work.quota_type, -milli, work.form.fixed)

    def put_out_all(self, works: Sequence[Work], why: Reason, for_job: str | None) -> None:
        """Evict many jobs: places on one node, and what one leaf is charged, are given back in one step."""
        places: list[Seat] = []
        charges: defaultdict[tuple[int, int, bool], int] = defaultdict(int)
        untouched = [work for work in works if work.seats is work.first_seats and work.why is None and not work.form.parted]
        if len(untouched) < len(works):
            for work in works:
                if work.seats is not work.first_seats or work.why is not None or work.form.parted:
                    self.unseat(work, work.seats, why, for_job)
        if not untouched:
            return
        self.log.append(("out", untouched))
        one, milli = untouched[0], 0
        leaf, quota_type, fixed = one.charged_leaf, one.quota_type, one.form.fixed
        for work in untouched:
            places += work.seats
            if work.charged_leaf != leaf or work.quota_type != quota_type or work.form.fixed is not fixed:  # neighbours are often alike
                charges[leaf, quota_type, fixed] += milli
                leaf, quota_type, fixed, milli = work.charged_leaf, work.quota_type, work.form.fixed, 0
            milli += work.milli
            work.seats = ()
            work.milli = 0
            work.backfilled = work.degraded = False
            work.evicted = True
            work.why, work.for_job = why, for_job
        charges[leaf, quota_type, fixed] += milli
        self.touched.update({work.order: work for work in untouched})
        self.ousted.update(dict.fromkeys(untouched, (why, for_job)))
        self.journal += untouched
        self.put_out += untouched
        self.fleet.free_all(places)
        for (leaf, quota_type, fixed), milli in charges.items():
            self._charge(leaf, quota_type, -milli, fixed)

    def _put_back(self, work: Work) -> None:
        """As before the first time that this plan put it out."""
        self.touched[work.order] = work
        self.journal.append(work)
        work.seats = work.first_seats
        work.milli = sum([seat.milli for seat in work.seats])
        work.backfilled = work.job.run.backfilled
        work.evicted = False
        work.why = work.for_job = None
        work.look_for_gaps()

    def spend_moves(self, count: int) -> None:
        self.log.append(("moves", count))
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
        for one in wanted:
            for other in held:
                if one.node == other.node:
                    crowded = now.cpus[one.node] < 0 or now.memory[one.node] < 0
                    if crowded or on_gpus(one) & on_gpus(other):
                        return True
        return False

    def split_anew(self, work: Work, key: tuple[int, int]) -> None:
        self.log.append(("geometry", key, self.geometry.get(key)))
        self.geometry[key] = work


def on_gpus(seat: Seat) -> int:
    """The GPUs that a worker holds, whole or in part, as a mask."""
    mask = seat.mask
    for part in seat.parts:
        mask |= 1 << part.gpu
    return mask
