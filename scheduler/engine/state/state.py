"""The one thing that lives longer than a plan: the fleet, the tree and the jobs where they stand, and what follows from that.

It is built from a scenario and from then on changed by what happened since: who came and who went. At the end of a plan all that was decided is
taken back, so that the next one begins with what its scenario says. A reserved or starting job is charged for its places; one that stops is not.
With it hang, as long as it goes on from plan to plan,

- `Queues`: the queues, and how many wait for what. It changes by who came and went, and by time for who is held;
- `Prospect`: the look-ahead without reservations. Times in it are instants, so a later plan only moves its beginning, takes up the jobs
  that changed, and looks again at those whose time was up or has not begun;
- `Told`: the reasons of each waiting job. They come from the numbers of the tree around its leaf and from the room for its shape:
  both are compared by value with those of the plan before, and where they are the same so are the reasons. Whoever has something of his
  own to tell (a note, a date, a delay), or had it in the plan before, is told anew;
- `Leaving`: when those leave who stand, as far as that was asked, and until when others hold what they were promised;
- `Standing`: who stands below which leaf, and what follows from that whatever the time;
- `First`: who held what when the plan began, against which the last word on a plan checks what it has changed.

Where shares or instances are held, windows are stated, or settings are others, the look-ahead and the reasons are made anew.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from itertools import compress, count, repeat
from operator import attrgetter, is_, is_not
from typing import TYPE_CHECKING, Any, NamedTuple

from ..model.mig import board_of
from ..model.values import QUEUED, Job, Placed, Scenario
from ..place.unbroken import Block, largest, usual_blocks
from ..rules.claims import claims
from ..rules.windows import Windows
from .fleet import NO_PARTS, Fleet, Part, Seat, bits_of, by_node, new_seat, on_gpus
from .form import Forms
from .queues import Queues
from .tree import Tree
from .work import Work

if TYPE_CHECKING:
    from ..ahead.entries import Prospect
    from ..place.gradient import Gradient
    from ..rules.invariants import First
    from ..tell.outcome import Told
    from ..tell.waking import Leaving
    from .charged import Standing
    from .planning import Cycle


MANY = 256  # jobs that are compared in one step: those that are equal in all that they state are as good as the same


class State:
    def __init__(self, scenario: Scenario, forms: Forms) -> None:
        self.scenario = scenario
        self.forms = forms
        self.grid = grid = forms.grid
        self.windows = Windows(scenario, grid)
        self.tree = Tree(scenario, grid.types, grid.capacity, self.windows.lasting)
        self.fleet = Fleet(grid)
        self.works: list[Work] = []
        self.leavers: dict[Work, tuple[Seat, ...]] = {}  # who leaves places that are still held, and which
        self.ending = 0  # how many stand of whom it is known when they leave, or who give way
        self.crowding = 0  # how many may use up a host before its GPUs
        self.queues = Queues()
        self.turn = 0  # of the plan that is being made: what another one than the last has told is out of date
        self.told: Told | None = None
        self.leaving: Leaving | None = None
        self.prospect: Prospect | None = None
        self.first: First | None = None
        self.standing: Standing | None = None
        self.gradient: Gradient | None = None
        self.since = compared((), (), scenario.jobs, self._new)  # what came and went since the plan before
        self.claimed: dict[Work, int] = {}  # who is charged to a window of his class, and to which
        for place, node in enumerate(grid.nodes):
            if node.mig:
                self.fleet.lay_out(place, node.split)
        self._take_up()
        leaving = self._leaving()
        self.fleet.begin(leaving)
        self.fleet.leave_instances(leaving)
        self._charge_claims()

    @cached_property
    def usual_blocks(self) -> tuple[Block, ...]:
        """The largest blocks of the usual demand."""
        return largest(usual_blocks(self.grid, self.scenario.demand))

    # From one plan to the next

    def go_on(self, scenario: Scenario) -> bool:
        """Take up what differs between the jobs of the plan before and those of this one. False where that does not suffice: on other nodes or with
        other quotas, or where other windows last than before."""
        mine = self.scenario
        if scenario.now < mine.now or not self.forms.serve(scenario) or mine.quotas != scenario.quotas or mine.demand != scenario.demand:
            return False
        windows = Windows(scenario, self.grid)
        if windows.lasting != self.windows.lasting:
            return False
        others = scenario.settings != mine.settings or scenario.asks_apart or scenario.power is not mine.power
        if others or scenario.windows or mine.windows or scenario.power.caps:
            self.told = self.leaving = self.prospect = None
        if windows.of_classes:  # who is charged to one of them may be another one now
            self.standing = None
        self._charge(self.claimed, -1)
        self.scenario, self.windows, self.since = scenario, windows, compared(self.works, mine.jobs, scenario.jobs, self._new)
        self.turn += 1
        self.tree.usage_weight = scenario.settings.fairness.usage_weight_millionths
        layouts = self._layouts_of(self.since.gone)
        self._take_up()
        layouts |= self._layouts_of(self.since.come)
        self._lay_out(layouts)
        leaving = self._leaving()
        self.fleet.begin(leaving)
        self.fleet.leave_instances([seat for seat in leaving if not layouts.isdisjoint(_gpus(seat))])
        self._charge_claims()
        if self.leaving is not None:
            self.leaving.follow(self.since.gone, self.since.come)
        return True

    def _charge_claims(self) -> None:
        self.claimed = claims(self) if self.windows.of_classes else {}
        self._charge(self.claimed, 1)

    def _charge(self, claimed: Mapping[Work, int], sign: int) -> None:
        """To windows of classes instead of to leaves, or back."""
        for work, leaf in claimed.items():
            self.tree.charge(work.home, work.quota_type, -sign * work.milli, work.form.fixed)
            self.tree.charge(leaf, work.quota_type, sign * work.milli, work.form.fixed)
            work.charged_leaf = leaf if sign > 0 else work.home

    def _layouts_of(self, works: Iterable[Work]) -> set[tuple[int, int]]:
        """The GPUs whose layout hangs on these jobs: split by whoever laid out the node, or by an instance of theirs."""
        if not (self.grid.any_split or self.forms.instances):
            return set()
        seats = [seat for work in works for seat in (*work.seats, *self.leavers.get(work, ()))]
        nodes, instances = self.grid.nodes, {(seat.node, part.gpu) for seat in seats for part in seat.parts if part.mode == "mig"}
        return instances | {(node, gpu) for seat in seats for node, gpu in _gpus(seat) if nodes[node].split >> gpu & 1}

    def _lay_out(self, layouts: Set[tuple[int, int]]) -> None:
        """Split GPUs as whoever stands there now, or was promised it, leaves them."""
        nodes: dict[int, int] = {}
        for node, gpu in layouts:
            nodes[node] = nodes.get(node, 0) | 1 << gpu
        for node, gpus in nodes.items():
            self.fleet.lay_out(node, gpus)
        for work in self.works if layouts else ():
            mine = [_only(seat, nodes[seat.node]) for seat in work.seats if seat.node in nodes]
            if work.job.run.leaving or work.job.run.state == "reserved":
                self.fleet.promise(mine)
            for seat in mine:
                self.fleet.take(seat)

    def _take_up(self) -> None:
        """Who came and who went since the plan before."""
        since, works, fleet, tree = self.since, self.works, self.fleet, self.tree
        fleet.now = fleet.soon
        works[since.first : len(works) - since.last] = since.now
        if not since.in_place:
            for at in range(since.first, len(works)):
                works[at].order = at
        self.crowding += sum([work.form.crowds for work in since.come]) - sum([work.form.crowds for work in since.gone])
        for work in since.gone:
            self.leavers.pop(work, None)
            if work.seats:
                fleet.release(work.seats, fresh=True)
                tree.charge(work.home, work.quota_type, -work.milli, work.form.fixed)
                self.ending -= work.ends
        whole, charges = list[Seat](), Counter[tuple[int, int, bool]]()  # thousands at first: one step a node, and a leaf
        for work in [work for work in since.come if work.job.run is not QUEUED]:
            run, form, seats = work.job.run, work.form, self._seat(work)
            if seats:
                if run.leaving or run.state == "reserved":
                    fleet.promise(seats)
                if form.parted:
                    for seat in seats:
                        fleet.take(seat)
                else:
                    whole += seats
                charges[work.home, work.quota_type, form.fixed] += work.milli
                self.ending += work.ends
        for node, held in by_node(whole).items():
            fleet.take_gpus(node, *held)
        for (leaf, quota_type, fixed), milli in charges.items():
            tree.charge(leaf, quota_type, milli, fixed)

    # Where a job stands

    def _new(self, job: Job, order: int) -> Work:
        return Work(job, order, self.tree.position[job.quota], self.forms.get(id(job.kind)) or self.forms.of(job.kind))

    def _seat(self, work: Work) -> tuple[Seat, ...]:
        """Note where it stands, and what it still holds and has given up: all of it where it stops. Returns its places."""
        run = work.job.run
        if run.state != "stopping":
            leaving = run.leaving
            if run.workers:
                work.stand_at(self._seats(work, run.workers), self.grid.type_of)
        else:
            leaving = (*run.leaving, *run.workers)
        if leaving:
            self.leavers[work] = self._seats(work, leaving)
        return work.seats

    def _seats(self, work: Work, workers: Iterable[Placed]) -> tuple[Seat, ...]:
        index, each, roles, trust = self.grid.index, work.form.each, work.kind.roles, self.scenario.settings.sharing_trust
        seats: list[Seat] = []
        for worker in workers:
            if each is not None:  # the most usual by far
                milli, cpus, memory = each
                seats.append(new_seat((0, worker.index, index[worker.node], worker.gpus, cpus, memory, milli, NO_PARTS)))
                continue
            role, node = roles[worker.role], index[worker.node]
            mask, milli, parts = worker.gpus, role.gpus * 1000, NO_PARTS
            if worker.mig:
                board = board_of(self.grid.nodes[node].gpu_type)
                assert board is not None
                parts = tuple([Part(gpu, board.charge_milli(board.known(profile)), "mig", "", profile, start) for gpu, profile, start in worker.mig])
            elif worker.share_milli is not None:
                share = worker.share_milli, work.kind.sharing, work.trust(trust)
                parts = tuple([Part(gpu, *share, memory=role.memory_mib or 0) for gpu in bits_of(worker.gpus)])
            if parts:
                mask, milli = 0, sum([part.milli for part in parts])
            seats.append(new_seat((worker.role, worker.index, node, mask, role.cpu_milli, role.host_memory_mib, milli, parts)))
        return tuple(seats)

    def _leaving(self) -> list[Seat]:
        return [seat for seats in self.leavers.values() for seat in seats]


class Kept:
    """What one plan can hand to the next. A plan made with it equals the plan made from scratch; it is only sooner there.

    Jobs are recognised by identity: who keeps state between plans passes the same objects for what has not changed. Where a `State` can't go on, a
    new one is built with the same `Forms` and their grid, if these serve the scenario.
    """

    def __init__(self) -> None:
        self.state: State | None = None

    def begin(self, scenario: Scenario) -> State:
        """What a plan begins with: the state of the plan before, where it can go on from that, or all anew. One that is broken off leaves none."""
        before, self.state = self.state, None
        if before is None:
            return State(scenario, Forms(scenario))
        if before.go_on(scenario):
            return before
        forms = before.forms if before.forms.serve(scenario) else Forms(scenario)
        vars(before).clear()  # its parts know it: without this it would stay until the garbage collector comes by
        return State(scenario, forms)

    def keep(self, cycle: "Cycle") -> None:
        """The state of a plan that is made, for the next one to go on from."""
        cycle.rest()
        self.state = cycle.cluster.state


def _gpus(seat: Seat) -> Iterator[tuple[int, int]]:
    return ((seat.node, gpu) for gpu in bits_of(on_gpus(seat)))


def _only(seat: Seat, gpus: int) -> Seat:
    """What a worker holds of some GPUs of its node."""
    return seat._replace(mask=seat.mask & gpus, cpus=0, memory=0, parts=tuple([part for part in seat.parts if gpus >> part.gpu & 1]))


def alike_at_both_ends(one: Sequence[Job], other: Sequence[Job]) -> tuple[int, int]:
    """How many jobs two lists have in common at their beginning and, behind what differs, at their end."""
    most, first = min(len(one), len(other)), 0
    while first + MANY <= most and one[first : first + MANY] == other[first : first + MANY]:
        first += MANY
    first += next(compress(count(), map(is_not, one[first:], other[first:])), most - first)
    rest = most - first
    last = next(compress(count(), map(is_not, reversed(one), reversed(other))), rest)
    return first, min(rest, last)


class Difference(NamedTuple):
    """What two lists of jobs do not have in common: between the first so many and the last so many that are the same."""

    first: int
    last: int
    now: Sequence[Work]  # who stands there now
    gone: Sequence[Work]
    come: Sequence[Work]
    in_place: bool  # whether who came stands where somebody went, and nobody else has moved


def compared(works: Sequence[Work], one: Sequence[Job], other: Sequence[Job], new: Callable[[Job, int], Work]) -> Difference:
    """The difference between the jobs of which these are the works and others; `new` makes the works of those who came, each at its place."""
    first, last = alike_at_both_ends(one, other)
    before = works[first : len(works) - last]
    jobs = other[first : len(other) - last]
    known = dict(zip(map(id, one[first : len(one) - last]), before, strict=True))
    keys = [*map(id, jobs)]
    now: list[Any] = [*map(known.get, keys)]  # between two jobs that have changed most have not
    places = [*compress(count(), map(is_, now, repeat(None)))]
    for place in places:
        now[place] = new(jobs[place], first + place)
    gone = sorted([known[key] for key in known.keys() - keys], key=attrgetter("order"))
    in_place = len(jobs) == len(before) and [work.order - first for work in gone] == places
    return Difference(first, last, now, gone, [now[place] for place in places], in_place)
