"""When a waiting job will probably start, and the smallest change that would start it now."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple

from ..model.values import Kind, Placed, Preemptible, Run
from ..passes.allocate import could_start
from ..passes.reclaim import may_evict
from ..place.capacity import plain, widest
from ..rules.allowance import Allowances, Taken
from ..rules.order import QueueOrder
from ..rules.times import backoff, backoff_until, duration
from ..rules.windows import NEVER, Windows
from ..search.entries import Date, seats_of
from ..search.lookahead import Lookahead
from ..search.rehearsal import Rehearsal, newly_shared
from ..state.cluster import on_gpus
from ..state.fleet import Seat
from ..state.form import Form
from ..state.planning import Cycle
from ..state.tree import Division, Tree
from ..state.work import Work

Advice = tuple[str, Any] | None


def in_turn(cycle: Cycle, test: Callable[[Work], bool]) -> Iterator[tuple[Work, tuple[int, ...]]]:
    """Who waits, in the order in which queues are served when room comes, with the types that it tries in that round."""
    for choice, division in cycle.waiting.rounds():
        for work, _ in serving(cycle, choice, division, cycle.waiting.of_round(division, choice, test)):
            yield work, cycle.waiting.tried_types(work, choice)


def serving(
    cycle: Cycle, choice: int, division: Division, queues: Mapping[int, Sequence[Work]], gone: Iterable[tuple[int, int]] = ()
) -> Iterator[tuple[Work, int]]:
    """One round of it, each with the milli-GPU that it asks for. What is foreseen for a queue counts as used by it, so that queues take turns.

    `gone` are those who had their turn already, by leaf and milli-GPU.
    """
    then = copy(division)
    then.used = [*division.used]

    def charge(leaf: int, asked: int) -> None:
        for place in cycle.tree.path[leaf]:
            then.used[place] += asked

    def milli(work: Work) -> int:
        return work.missing_milli(cycle.waiting.tried_types(work, choice)[0])

    for leaf, asked in gone:
        charge(leaf, asked)
    order = QueueOrder(cycle.tree, then, queues, milli)
    while (work := order.best()) is not None:
        asked = order.asks[work.home]
        charge(work.home, asked)
        order.drop(work.home)
        yield work, asked


class Foreseen(NamedTuple):
    """A date, the type that it is about, and when the gates let the job in, which is when it starts: then or later."""

    date: Date
    quota_type: int
    at: int


def earliest_of(
    cycle: Cycle,
    work: Work,
    types: tuple[int, ...],
    ahead: Lookahead,
    rehearsal: Rehearsal | None,
    allowances: Allowances,
    due: int = 0,
    then: Tree | None = None,
) -> Foreseen | None:
    """The earliest date in one of the types; `due`: from when on, in milliseconds from now, and `then` with which limits."""
    best: Foreseen | None = None
    windows, tree = cycle.cluster.windows, then or cycle.tree
    for quota_type in types:
        milli = work.missing_milli(quota_type)
        if work.form.fixed and cycle.tree.fixed_gate(work.home, quota_type, milli, NEVER) is not None:
            continue  # nothing that ends by itself is sure to make room inside a guarantee
        length = cycle.book.length(work)
        if allowances.binds and not allowances.may_open(work, quota_type, milli, length, tree):
            continue
        found = cycle.book.earliest(ahead, work, quota_type, rehearsal)
        since = due
        if windows.upcoming and (found is None or found.at):
            opened = behind_windows(cycle, work, quota_type, ahead, rehearsal, due)
            if opened is not None and (found is None or opened.at < found.at):
                found = opened
        if found is None:
            continue
        since = max(since, ahead.now - cycle.now + found.at)
        if cycle.settings.hysteresis_ms and backoff(cycle, work, work.home, quota_type, milli) is not None:
            since = max(since, backoff_until(cycle, work) - cycle.now)
        at = allowances.opens(work, quota_type, milli, length, since, tree) if allowances.binds else since
        if at is None:
            continue
        foreseen = Foreseen(found, quota_type, at)
        if best is None or foreseen.at < best.at:
            best = foreseen
    return best


def behind_windows(cycle: Cycle, work: Work, quota_type: int, ahead: Lookahead, rehearsal: Rehearsal | None, due: int = 0) -> Date | None:
    """When and where there is room for a job once some of the windows to come have begun: `due`, in milliseconds from now, at the earliest."""
    cluster, windows = cycle.cluster, cycle.cluster.windows
    best: Date | None = None
    milli = work.missing_milli(quota_type)
    found: dict[int, Date | None] = {}  # by the nodes that later windows keep clear
    for start in windows.starts():
        since = max(due, start - cycle.now)
        if best is not None and best.at <= since:
            break
        banned = windows.kept_off(cluster, work, quota_type, milli, cycle.now + since)
        if banned not in found:
            found[banned] = cycle.book.earliest(ahead, work, quota_type, rehearsal, banned=banned)
        date = found[banned]
        if date is None:
            continue
        at = max(since, date.at)
        if best is not None and best.at <= at:
            continue
        kept_off = windows.kept_off(cluster, work, quota_type, milli, cycle.now + at)
        if not kept_off & ~banned and windows.lets(cluster, work, quota_type, milli, cycle.now + at):
            best = date._replace(at=at)
    return best


class Forecast:
    """Predicted starts by a job's place: of the reserved ones, or of everyone who waits."""

    def __init__(self, cycle: Cycle) -> None:
        self.cycle = cycle
        self.mode = cycle.settings.forecast
        self.advises_all = self.mode == "all"
        self.predicted: dict[int, int] = {}
        self.dates: list[tuple[Work, Date, int]] = []  # of those without a reservation, in their order, with how long they will stand there
        self.taken: list[Taken] = []  # what everyone will count against limits, in the same order behind the reserved ones
        self._advice: dict[tuple[int, ...], Advice] = {}
        self._above: dict[tuple[int, tuple[int, int]], dict[Form, Work]] = {}
        if self.mode == "none":
            return
        if self.mode == "all":
            self.everyone()
        else:
            self.predicted = {entry.work.order: cycle.now + entry.at for entry in cycle.book.entries}

    def everyone(self) -> None:
        """Reserve for every waiting job in the order of queues; later ones find what earlier ones leave."""
        cycle = self.cycle
        book = cycle.book
        ahead = book.fresh_lookahead()
        allowances = Allowances(cycle)
        for entry in book.entries:
            opened = behind_windows(cycle, entry.work, entry.quota_type, ahead, None) if cycle.cluster.windows.upcoming and entry.at else None
            self.predicted[entry.work.order] = cycle.now + (entry.at if opened is None else min(entry.at, opened.at))
            ahead.reserve(entry.at, entry.length, entry.places)
            self._take(allowances, entry.work, entry.quota_type, entry.at, entry.length)
        rehearsal = book.rehearsal(ahead)
        for work, types in in_turn(cycle, lambda work: work.order not in self.predicted):
            self._predict(work, types, ahead, rehearsal, allowances)
        if cycle.cluster.windows.upcoming:
            self._widened(ahead, rehearsal, allowances)
        if cycle.waiting.queues.held:
            self._not_due(ahead, rehearsal, allowances)

    def _widened(self, ahead: Lookahead, rehearsal: Rehearsal, allowances: Allowances) -> None:
        """Whom only his limits refuse: as soon as a window of his queue widens them so that they alone would let him in."""
        cycle = self.cycle
        windows, works = cycle.cluster.windows, cycle.cluster.works
        refused = [works[order] for order, (first, *_) in cycle.waiting.static.items() if first.code == "limit"]
        trees = [
            (start, Tree(cycle.cluster.scenario, cycle.grid.types, cycle.grid.capacity, windows.lasting_at(start)))
            for start in windows.starts(owned=True)
            if refused
        ]
        for work in refused:
            types = tuple(each for each in work.form.types if cycle.waiting.verdicts.fits_empty(work, each))
            found = (earliest_of(cycle, work, types, ahead, rehearsal, allowances, start - cycle.now, tree) for start, tree in trees)
            foreseen = next((one for one in found if one is not None), None)
            if foreseen is not None:
                self._take(allowances, work, foreseen.quota_type, foreseen.at, cycle.book.length(work))
                self.predicted[work.order] = cycle.now + foreseen.at

    def _not_due(self, ahead: Lookahead, rehearsal: Rehearsal, allowances: Allowances) -> None:
        """Who is held until a moment to come, behind everyone who is due: by counting GPUs from then on, where that tells."""
        cycle, book, later = self.cycle, self.cycle.book, ahead.copy()
        for due, order, work in sorted((work.job.not_before or 0, work.order, work) for work in cycle.waiting.queues.held):
            blocked, types = cycle.waiting.verdicts.of(work)
            if blocked:
                continue
            since, length = due - cycle.now, book.length(work)
            counted = book.only_gpus_count(work.form) and not cycle.cluster.windows.upcoming
            later.pass_time(due)
            foreseen = earliest_of(cycle, work, types, later if counted else ahead, None if counted else rehearsal, allowances, since)
            if foreseen is None:
                continue
            self._take(allowances, work, foreseen.quota_type, foreseen.at, length)
            if counted and foreseen.at == since + foreseen.date.at:
                later.reserve(foreseen.date.at, length, foreseen.date.places)
            self.predicted[order] = cycle.now + foreseen.at

    def _predict(self, work: Work, types: tuple[int, ...], ahead: Lookahead, rehearsal: Rehearsal, allowances: Allowances) -> None:
        cycle = self.cycle
        book = cycle.book
        foreseen = earliest_of(cycle, work, types, ahead, rehearsal, allowances)
        if foreseen is not None and not foreseen.at and (lenders := book.lenders()):
            with book.standing(ahead, lenders, rehearsal):
                foreseen = earliest_of(cycle, work, types, ahead, rehearsal, allowances)
        if foreseen is None:
            return
        best, length = foreseen.date, book.length(work)
        self._take(allowances, work, foreseen.quota_type, foreseen.at, length)
        if foreseen.at > best.at:  # which GPUs are free when it is let in is left open: they go to whoever comes first
            self.predicted[work.order] = cycle.now + foreseen.at
            return
        self.dates.append((work, best, length))
        ahead.reserve(best.at, length, [*best.places, *newly_shared(best.seats, rehearsal, best.at, length)])
        if book.hosts_bind or best.seats:
            rehearsal.add(best.at, length, seats_of(work, best))
        self.predicted[work.order] = cycle.now + best.at

    def _take(self, allowances: Allowances, work: Work, quota_type: int, at: int, length: int) -> None:
        if not allowances.binds:
            return
        milli = work.missing_milli(quota_type)
        self.taken.append(Taken(work, quota_type, milli, at, length))
        allowances.take(self.taken[-1])

    @cached_property
    def kept(self) -> Mapping[int, int]:
        """From when on a place is kept for whom, whatever is predicted."""
        return {entry.work.order: self.cycle.now + entry.at for entry in self.cycle.book.entries}

    # The smallest change

    def advice(self, work: Work) -> Advice:
        """None also for who is put out by this plan: what it asks for is no longer to be changed while it runs."""
        if self.mode == "none" or work.seats or work.first_seats:
            return None
        static = self.cycle.waiting.static.get(work.order)
        if static is not None and static[0].code not in CHANGEABLE:
            return None
        if self.mode == "head" and work.order not in self.predicted:
            return None
        if not work.form.plain or (work.form.all_least and work.kind.roles[0].gpus > self.cycle.fleet.soon.largest):
            return None  # none of the changes asks for smaller workers
        key = (work.home, id(work.kind), *self._own(work))
        if key not in self._advice:
            self._advice[key] = self._new_advice(work)
        return self._advice[key]

    def _own(self, work: Work) -> tuple[int, int, int]:
        """What tells jobs of one queue and kind apart when they would start."""
        cycle = self.cycle
        place = next((entry.place for entry in cycle.book.entries if entry.work is work), -1)
        length = duration(cycle, work) if cycle.book.entries or cycle.cluster.windows.upcoming or work.form.fixed else 0
        return length, place, max(cycle.now, backoff_until(cycle, work))

    def _new_advice(self, work: Work) -> Advice:
        """Fewer workers, then a wider level, then another type, then preemptible: the first that would start it now."""
        if not plain(self.cycle.cluster, work.kind) or "allocate" not in self.cycle.settings.passes:
            return None
        return self._fewer(work) or self._wider(work) or self._other_type(work) or self._preemptible(work)

    def _starts(self, work: Work, change: str, to: int | str | None, make: Callable[[Kind], Kind]) -> bool:
        """Whether the job would start on what is free when the plan is done, if it asked for something else. Tried, not guessed."""
        cycle, known = self.cycle, self.cycle.cluster.forms.changed_kinds
        key = (id(work.kind), change, to)
        if key not in known:
            known[key] = make(work.kind)
        kept, windows = (work.kind, work.form, work.types), cycle.cluster.windows
        kind = known[key]
        form = cycle.cluster.forms.of(kind)
        work.kind, work.form, work.types = kind, form, form.types
        try:
            cycle.cluster.windows = self._windows_next
            refused, types = cycle.waiting.verdicts.of(work)
            types = () if refused else tuple(each for each in types if not self._wanted_back(work, each))
            return any(could_start(cycle, work, each) and not self._put_out_again(work, each) for each in types)
        finally:
            work.kind, work.form, work.types = kept
            cycle.cluster.windows = windows

    @cached_property
    def _windows_next(self) -> Windows:
        """The windows as the next plan sees them: what this one decides may leave another block for them."""
        cluster, scenario, nodes = self.cycle.cluster, self.cycle.cluster.scenario, self.cycle.grid.nodes
        if not cluster.journal or all(ahead.window.level is None for ahead in cluster.windows.upcoming):
            return cluster.windows
        runs: dict[str, Run] = {}
        for work in dict.fromkeys(cluster.journal):
            stood = work.first_seats and not work.evicted and not work.moved
            places = tuple([Placed(seat.role, seat.rank, nodes[seat.node].name, on_gpus(seat), _share(seat)) for seat in work.seats])
            started = work.job.run.started if stood else self.cycle.now
            runs[work.job.name] = replace(work.job.run, state="running" if places else "queued", started=started, workers=places)
        jobs = tuple(replace(job, run=runs.get(job.name, job.run)) for job in scenario.jobs)
        return Windows(replace(scenario, jobs=jobs), self.cycle.grid)

    def _wanted_back(self, work: Work, quota_type: int) -> bool:
        """Whether one of those that the next plan serves from what this one frees waits for the type, not behind the job."""
        rank = self.cycle.waiting.order.rank
        return any(quota_type in one.open_types and (one.home != work.home or rank(one) < rank(work)) for one in self._served_next)

    @cached_property
    def _served_next(self) -> tuple[Work, ...]:
        """Whom this plan puts out, and a gang that has released surplus for the workers that it lost: what is free is kept for them from the next
        plan on."""
        evicted = [one for one in self.cycle.cluster.ousted if one.evicted and not one.seats]
        return (*evicted, *(one for one in dict.fromkeys(self.cycle.cluster.journal) if one.degraded and one.gave_back))

    def _put_out_again(self, work: Work, quota_type: int) -> bool:
        """Whether somebody of the same queue who ranks higher would have it give way at once.

        It stands where nothing stood, so nobody has more room without it. But who takes from his queue no less than he gets does not take it
        further beyond its share, and with the job there is enough to take.
        """
        cycle, leaf = self.cycle, work.home
        if work.form.fixed or "preempt" not in cycle.settings.passes:
            return False
        division = cycle.tree.divisions[cycle.tree.division_of[quota_type]]
        room = min(division.fair[place] - division.used[place] for place in cycle.tree.path[leaf])
        spared = cycle.tree.nearest(leaf, "preempt_min_runtime_ms", cycle.settings.preempt_min_runtime_ms)
        mine = work.form.least_milli(quota_type)
        if "grow" in cycle.settings.passes:
            mine = max(mine, min(work.form.most_milli(quota_type), cycle.idle_milli(quota_type)))
        for one in self._higher(work):
            kept = cycle.waiting.notes.get(one.order, {}).get("reservation")
            if kept is not None and dict(kept.facts).get("holder") == work.job.name:
                return True  # it waits for nothing but the place that is kept for the job, and ranks higher on any other
            if quota_type not in one.open_types or not may_evict(cycle, one):
                continue
            asked = one.missing_milli(quota_type)
            lower = cycle.standing.freeable_below(leaf, quota_type, one.form.level)
            if lower > 0 and room < asked - lower <= mine and (asked > lower or spared):
                return True
        return False

    def _higher(self, work: Work) -> Iterable[Work]:
        """Those of its queue that wait and rank higher, one of each form."""
        cycle, level = self.cycle, work.form.level
        key = (work.home, level)
        if key not in self._above:
            self._above[key] = {one.form: one for one in cycle.waiting.order.above(cycle.waiting.in_leaf(work.home), level)}
        return self._above[key].values()

    def _room(self, work: Work, quota_type: int, level: int) -> int:
        kind = work.kind
        role = kind.roles[0]
        eligible = self.cycle.grid.eligible(kind, role, quota_type, suspect=kind.tolerates_suspect, spare=False)
        return self.cycle.capacity(self.cycle.fleet.soon).most(role, eligible, level)

    def _open(self, work: Work, quota_type: int, workers: int, *, fixed: bool = True) -> bool:
        milli = workers * work.form.worker_milli(0, quota_type)
        tree = self.cycle.tree
        if tree.limit_gate(work.home, quota_type, milli) is not None:
            return False
        return not (fixed and work.form.fixed) or tree.fixed_gate(work.home, quota_type, milli, NEVER) is None

    def _fewer(self, work: Work) -> Advice:
        role = work.kind.roles[0]
        if role.least <= 1:
            return None
        level = widest(self.cycle.cluster, work.kind)
        change = f"roles.{role.name}.min"
        most = max((min(role.least - 1, self._room(work, quota_type, level)) for quota_type in work.types), default=0)
        for workers in range(most, max(0, most - MOST_TRIES), -1):
            if (role.most - workers) % role.step or not any(self._open(work, quota_type, workers) for quota_type in work.types):
                continue
            if self._starts(work, change, workers, partial(_with_role, least=workers)):
                return change, workers
        return None

    def _wider(self, work: Work) -> Advice:
        role = work.kind.roles[0]
        names = self.cycle.grid.level_names
        for wider in range(widest(self.cycle.cluster, work.kind) - 1, -1, -1):
            level = names[wider] if wider else None
            enough = any(self._room(work, quota_type, wider) >= role.least for quota_type in work.types)
            if enough and self._starts(work, "topology.required", level, partial(_required, level=level)):
                return "topology.required", level
        return None

    def _other_type(self, work: Work) -> Advice:
        role = work.kind.roles[0]
        grid = self.cycle.grid
        for name in grid.gpu_types:
            if not role.gpu_types or name in role.gpu_types:
                continue
            if self._starts(work, "gpu_types", name, partial(_with_role, gpu_types=(name,))):
                return "gpu_types", name
        return None

    def _preemptible(self, work: Work) -> Advice:
        if work.form.fixed and self._starts(work, "preemptible", None, partial(replace, preemptible=Preemptible.ALWAYS)):
            return "preemptible", True
        return None


CHANGEABLE = frozenset({"no_type", "no_node", "empty_fleet", "limit"})  # what may be in the way whatever runs, and is not if less is asked for
MOST_TRIES = 8  # numbers of workers that are tried, from the largest that could have room


def _share(seat: Seat) -> int | None:
    """The share of a GPU that a worker has by MPS or time slice."""
    return seat.parts[0].milli if seat.parts and seat.parts[0].mode != "mig" else None


def _with_role(kind: Kind, **changes: Any) -> Kind:
    """The kind with its one role changed."""
    return replace(kind, roles=(replace(kind.roles[0], **changes),))


def _required(kind: Kind, level: str | None) -> Kind:
    return replace(kind, placing=replace(kind.placing, required=level))
