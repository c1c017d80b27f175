"""Who stands where as a plan begins, and who leaves. At the end of a plan it is so again, and the next one goes on from it."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice

from ..model.mig import board_of
from ..model.values import QUEUED, Job, Kind, Placed, Scenario
from ..rules.claims import claims
from ..rules.windows import Windows
from .difference import Difference, compared
from .fleet import NO_PARTS, Fleet, Part, Seat, bits_of, new_seat
from .form import Forms
from .grid import Grid
from .tree import Tree
from .work import Work


class FirstState:
    def __init__(self, scenario: Scenario, grid: Grid, forms: Forms, tree: Tree, windows: Windows) -> None:
        self.scenario = scenario
        self.grid = grid
        self.forms = forms
        self.tree = tree
        self.windows = windows
        self.fleet = Fleet(grid)
        self.works: list[Work] = []
        self.leavers: dict[Work, tuple[Seat, ...]] = {}  # who leaves places that are still held, and which
        self.timed: list[Work] | None = []  # jobs with times of their own, or more to them than running; where all were taken up anew
        self.goes_on = False  # from the state of the plan before
        self.since = Difference()  # what came and went since then
        self._ending: dict[Work, None] | None = None  # who stands and will leave some time or give way, once that was asked
        self.fleet.hold_geometry()
        held = self._seat_all(self.timed)
        leaving = self._leaving()
        # Whether the places of jobs alone decide what is held: no GPU has a layout of its own, and nobody leaves a part of one.
        instances = grid.any_split or any(split.mode == "mig" for split in self.fleet.now.splits.values())
        self.by_places = not instances and not any(seat.parts for seat in leaving)
        self.fleet.settle(leaving)
        if windows.lasting:
            for work, leaf in claims(self).items():
                held[work.home, work.quota_type, work.form.fixed] -= work.milli
                held[leaf, work.quota_type, work.form.fixed] += work.milli
                work.charged_leaf = leaf
        for (leaf, quota_type, fixed), milli in held.items():
            tree.charge(leaf, quota_type, milli, fixed)

    # Made anew

    def _seat_all(self, timed: list[Work]) -> dict[tuple[int, int, bool], int]:
        """Returns the milli-GPU that are held, by leaf, quota type and whether they are fixed."""
        fleet, position, forms, works = self.fleet, self.tree.position, self.forms, self.works
        index, type_of = self.grid.index, self.grid.type_of
        held: defaultdict[tuple[int, int, bool], int] = defaultdict(int)
        whole: list[Seat] = []
        kind: Kind | None = None
        for order, job in enumerate(self.scenario.jobs):
            if job.kind is not kind:  # neighbours are often alike
                kind = job.kind
                form = forms.get(id(kind)) or forms.of(kind)
                each, several, fixed = form.each, form.all_least > 1, form.fixed
            run, home = job.run, position[job.quota]
            workers = run.workers
            if each is not None and len(workers) == 1 and run.state == "running" and not run.leaving:  # the most usual by far
                worker, (milli, of_host, of_memory) = workers[0], each
                node = index[worker.node]
                seats = (new_seat((0, worker.index, node, worker.gpus, of_host, of_memory, milli, NO_PARTS)),)
                whole += seats
                work = Work(job, order, home, form, seats, seats, milli, type_of[node], several)
                if several or run.until is not None or run.reclaimed is not None:
                    timed.append(work)
            else:
                work = Work(job, order, home, form)
                if run is not QUEUED:
                    timed.append(work)
                    self._seat(work)
                    if run.state == "reserved" or run.leaving:
                        fleet.promise(work.seats)
                    elif form.parted:
                        fleet.put(fleet.now, work.seats)
                    else:
                        whole += work.seats
            works.append(work)
            if work.seats:
                held[home, work.quota_type, fixed] += work.milli
        fleet.hold(whole)
        return held

    def _seat(self, work: Work) -> None:
        """Note where it stands, and what it still holds and has given up: all of it where it stops."""
        run = work.job.run
        stops = run.state == "stopping"
        if run.leaving or (stops and run.workers):
            self.leavers[work] = self._seats(work, (*run.leaving, *run.workers) if stops else run.leaving)
        if run.workers and not stops:
            work.stand_at(self._seats(work, run.workers), self.grid.type_of)

    def _seats(self, work: Work, workers: Iterable[Placed]) -> tuple[Seat, ...]:
        index, roles, trust = self.grid.index, work.kind.roles, self.scenario.settings.sharing_trust
        seats = []
        for worker in workers:
            role, node = roles[worker.role], index[worker.node]
            mask, milli, parts = worker.gpus, role.gpus * 1000, NO_PARTS
            if worker.mig:
                board = board_of(self.grid.nodes[node].gpu_type)
                assert board is not None
                parts = tuple([Part(gpu, board.charge_of(profile), "mig", "", profile, start) for gpu, profile, start in worker.mig])
            elif worker.share_milli is not None:
                share = worker.share_milli, work.kind.sharing, work.trust(trust)
                parts = tuple([Part(gpu, *share, memory=role.memory_mib or 0) for gpu in bits_of(worker.gpus)])
            if parts:
                mask, milli = 0, sum([part.milli for part in parts])
            seats.append(new_seat((worker.role, worker.index, node, mask, role.cpu_milli, role.host_memory_mib, milli, parts)))
        return tuple(seats)

    def _leaving(self) -> list[Seat]:
        return [seat for seats in self.leavers.values() for seat in seats]

    # From one plan to the next

    def difference(self, scenario: Scenario) -> Difference | None:
        """What the jobs of another scenario on the same nodes do not have in common with those of this one.

        None where it can't go on from this one: with MIG, where somebody leaves a part of a GPU, or with a window more than the jobs that
        changed decides about the first state, and it is made anew.
        """
        mine = self.scenario
        if mine.windows or scenario.windows or not self.by_places or scenario.now < mine.now:
            return None
        if mine.quotas is not scenario.quotas and mine.quotas != scenario.quotas:
            return None
        position, forms = self.tree.position, self.forms

        def new(job: Job, order: int) -> Work:
            return Work(job, order, position[job.quota], forms.of(job.kind))

        between = compared(self.works, mine.jobs, scenario.jobs, new)
        return between if all(map(_is_by_places, between.come)) else None

    def go_on(self, scenario: Scenario, windows: Windows) -> bool:
        """Take up what differs between the jobs of the plan before and those of this one, where that suffices."""
        since = self.difference(scenario)
        if since is None:
            return False
        self.scenario, self.windows, self.timed, self.goes_on, self.since = scenario, windows, None, True, since
        works, fleet, tree = self.works, self.fleet, self.tree
        works[since.first : len(works) - since.last] = since.now
        if not since.in_place:
            shifted = len(since.before) != len(since.now)
            for at, work in enumerate(islice(works, since.first, None) if shifted else since.now, since.first):
                work.order = at
        for work in since.gone:
            self.leavers.pop(work, None)
            if work.seats:
                fleet.lift(work.seats)
                tree.charge(work.home, work.quota_type, -work.milli, work.form.fixed)
        for work in since.come:
            if work.job.run is not QUEUED:
                self._seat(work)
            if work.seats:
                fleet.put(fleet.soon, work.seats)
                tree.charge(work.home, work.quota_type, work.milli, work.form.fixed)
        if self._ending is not None:
            for work in since.gone:
                self._ending.pop(work, None)
            self._ending.update(_ending(since.come))
        tree.usage_weight = scenario.settings.fairness.usage_weight_millionths
        fleet.begin(self._leaving())
        return True

    @property
    def anyone_ends(self) -> bool:
        """Whether anyone who stands is known to leave some time."""
        if self._ending is None:
            self._ending = _ending(self.works)
        return bool(self._ending or self.leavers)


def _ending(works: Sequence[Work]) -> dict[Work, None]:
    return {work: None for work in works if work.first_seats and work.ends}


def _is_by_places(work: Work) -> bool:
    """Whether nothing but its own GPUs and shares of them depends on where a job stands, or leaves."""
    run = work.job.run
    if run is QUEUED or not (run.workers or run.leaving) or not work.form.parted:
        return True
    return work.kind.sharing != "mig" and run.state != "stopping" and not run.leaving
