"""From the last state back to a plan: its decisions, what is told of each job that waits, the shares, and what comes next."""

from collections.abc import Iterable
from functools import cache
from itertools import chain
from typing import Any

from ..model.mig import board_of, fitting_profiles
from ..model.plan import Course, Plan, Share, Waiting, new_waiting
from ..model.reasons import Reason, reason, spell_instant, thousandths
from ..rules.invariants import check
from ..rules.times import duration, ends_at
from ..rules.windows import NEVER
from ..state.form import Form
from ..state.grid import Ints
from ..state.planning import Cycle
from ..state.tree import Tree
from ..state.work import Work
from .blockers import Blockers, Reasons
from .decisions import decisions_of, reserved
from .forecast import Forecast
from .rooms import Key, mig_splits
from .waking import next_wake


class Told:
    """What the plan before has told, as long as nothing that it was told from has changed. The reasons of a waiting job come from the books of its
    leaf, of all above it and of what stands beside that path, and from the room for its shape. Where these are as they were, so are the reasons. All
    else (a note of this plan, a date, a delay that runs out) is told anew."""

    def __init__(self) -> None:
        self.turn = -1  # of which plan it is
        self.entries: dict[Work, Waiting] = {}
        self.own: dict[Work, None] = {}  # of whom that plan told something that came from itself alone
        self.rooms: dict[Key, tuple[Reason | None, Work]] = {}
        self._books: list[tuple[int, ...]] = []  # by node what is used, of which fixed, fair shares, and what may be counted on

    @classmethod
    def before(cls, cycle: Cycle, forecast: Forecast) -> "Told":
        """What the plan before has told, without the jobs that have gone since; or nothing."""
        state, told = cycle.cluster.state, cycle.cluster.state.told
        if told is None or cycle.fleet.soon.splits or forecast.advises_all or told.turn + 1 != state.turn:
            told = state.told = cls()
        for work in state.since.gone:
            told.entries.pop(work, None)
            told.own.pop(work, None)
        told.turn = state.turn
        return told

    def changed_places(self, tree: Tree) -> list[int] | None:
        """Nodes of the tree whose numbers are not those of the plan before; None: there are none to compare. These count from now on."""
        before, books = self._books, [(each.used, each.fixed, each.fair, each.counts_on) for each in tree.divisions]
        self._books = [*zip(*chain(*books), strict=True)]
        if len(before) != len(self._books):
            return None
        return [place for place, now in enumerate(self._books) if now != before[place]]


def conclude(cycle: Cycle) -> Plan:
    """The plan of a cycle whose passes have nothing left to add."""
    check(cycle)
    tree, decisions = cycle.tree, decisions_of(cycle)
    wake = next_wake(cycle)  # before anything is told: what is asked for that decides nothing
    decisions += reserved(cycle)
    waiting = _waiting(cycle)
    shares = []
    for place, name in [*enumerate(tree.names)][1:]:
        for division in tree.divisions:
            promised, used = division.guaranteed[place], division.used[place]
            borrowed = 0 if promised is None else max(0, used - promised)
            shares.append(Share(name, division.name, division.fair[place], used, promised, borrowed))
    return Plan(cycle.now, tuple(decisions), waiting, tuple(shares), wake, measure(cycle))


def carry_on(cycle: Cycle, before: int | None) -> Course:
    """The decisions without all that is only told to somebody, and without a moment to look again that comes later than that."""
    check(cycle)
    return Course(tuple(decisions_of(cycle)), next_wake(cycle, before), fragmented(cycle))


def _waiting(cycle: Cycle) -> tuple[Waiting, ...]:
    """What is told of every job that waits, in the order of jobs."""
    works, forecast = cycle.cluster.works, Forecast(cycle)
    blockers = Blockers(cycle, foresees=forecast.advises_all)
    told = Told.before(cycle, forecast)
    changed, entries = told.changed_places(cycle.tree), told.entries
    moved = dict.fromkeys((*cycle.cluster.journal, *cycle.waiting.queues.open))
    # Of whom there is something of its own to tell: what this plan has found, a date, or a delay, which depends on the time.
    own = dict.fromkeys(works[order] for order in (*cycle.waiting.static, *cycle.waiting.notes, *forecast.predicted))
    among = works if changed is None else (*told.own, *cycle.cluster.state.since.come)
    own.update(dict.fromkeys([work for work in among if work.job.deadline is not None or work.kind.preemption_delay_ms]))
    anew = works if changed is None else _to_be_told(cycle, blockers, told, changed, (*moved, *own))
    # Of whom there is nothing of his own to tell, his queue and what he asks for decide.
    shared: dict[tuple[int, Form], Reasons] = {}
    home, form = -1, None
    for work in anew:
        if (work.seats and not work.degraded) or work.state == "stopping":
            entries.pop(work, None)
        elif changed is not None or forecast.advises_all or work in own or work.seats or work.stale or cycle.cluster.power:
            entries[work] = _entry(cycle, forecast, blockers, work)
        else:
            if work.form is not form or work.home != home:  # neighbours are often alike
                home, form = work.home, work.form
                reasons = shared.get((home, form)) or shared.setdefault((home, form), blockers.of(work))
            entries[work] = new_waiting((work.job.name, reasons, None, None))
    told.rooms, told.own = blockers.rooms.told, moved | own
    return tuple(filter(None, map(entries.get, works)))


def _to_be_told(cycle: Cycle, blockers: Blockers, told: Told, changed: Iterable[int], own: Iterable[Work]) -> Iterable[Work]:
    """Those whose reasons may be others than in the plan before."""
    tree, queues = cycle.tree, cycle.waiting.queues.by_leaf
    anew = dict.fromkeys((*told.own, *cycle.cluster.state.since.come, *own))
    beside = {tree.parent[place] for place in changed}  # what counts beside a node counts below all its siblings
    for leaf in {leaf for place in beside for leaf in range(place, tree.end[place]) if leaf in queues}:
        anew.update(dict.fromkeys(queues[leaf]))
    other_room = blockers.rooms.others_than(told.rooms)
    for queue in queues.values() if other_room else ():
        anew.update(dict.fromkeys(work for work in queue if any((work.form.shape, each) in other_room for each in work.types)))
    return anew


def _entry(cycle: Cycle, forecast: Forecast, blockers: Blockers, work: Work) -> Waiting:
    reasons, at = blockers.of(work), forecast.predicted.get(work.order)
    if work.job.deadline is not None:
        reasons += _late(cycle, forecast, work, work.job.deadline)
    return Waiting(work.job.name, reasons, at, forecast.advisor.advice(work) if at is not None or forecast.advises_all else None)


def _late(cycle: Cycle, forecast: Forecast, work: Work, deadline: int) -> Reasons:
    """Why it can't end before its deadline, if so: by its predicted start or the place kept for it, else were it to start as soon as it may."""
    may = max(cycle.now, work.job.not_before or cycle.now)
    start = forecast.predicted.get(work.order, forecast.kept.get(work.order, may))
    length = duration(cycle, work)
    if length >= NEVER:
        length = 0  # only its start can be too late
    elif work.seats:
        length = ends_at(cycle, work) - cycle.now
    if start < deadline and start + length <= deadline:
        return ()
    begins, ends = spell_instant(start), spell_instant(deadline)
    detail = f"a start at {begins} is too late to end before {ends}" if deadline > cycle.now else f"its deadline has passed: {ends}"
    return (reason("deadline", detail, start=begins, deadline=ends),)


def measure(cycle: Cycle) -> dict[str, Any]:
    """How much of the fleet is in use, and how much of what is idle nobody could use."""
    grid = cycle.grid
    milli = sum(division.used[place] for division in cycle.tree.divisions for place in cycle.tree.children[0])
    result: dict[str, Any] = {"gpus": grid.gpus, "allocated": thousandths(milli), "fragmented": fragmented(cycle), "largest_gang": {}}
    room = cycle.fleet.soon.count_np * grid.startable[False]  # idle GPUs by node that a start may use
    for index, name in enumerate(grid.types):
        idle = room * grid.on_type[index]
        result["largest_gang"][name] = {level.name: int(level.sums(idle).max()) if len(level) else 0 for level in grid.levels}
    if cycle.cluster.scenario.demand:
        result["fragmented_by_demand"] = _against_demand(cycle, room)
    if stranded := _idle_slices(cycle):
        result["idle_slices"] = stranded
    if displaced := cycle.cluster.windows.displaced_by(cycle.cluster):
        result["displaced"] = [{"window": window, "job": job} for window, job in displaced]
    return result


def fragmented(cycle: Cycle) -> int:
    """Idle GPUs that a waiting job can't use, on average over the jobs that wait."""
    if not cycle.fleet.soon.idle:
        return 0
    counts = {key: [form, count] for key, (form, count) in cycle.waiting.queues.alike.items()}
    started = [work for work in dict.fromkeys(cycle.cluster.journal) if work.seats and not work.first_seats]
    put_out = [work for work in cycle.waiting.again.values() if work.first_seats and not work.seats and not work.stale]
    for works, sign in ((started, -1), (put_out, 1)):
        for work in works:
            counts.setdefault((work.form.shape, work.types[0]), [work.form, 0])[1] += sign
    total = weight = 0
    room = cycle.slots(cycle.fleet.soon)
    for (_, quota_type), (form, count) in counts.items():
        if count and form.largest is not None:
            weight += count
            total += count * room.useless(form, form.largest, quota_type)
    return total // weight if weight else 0


def _against_demand(cycle: Cycle, room: Ints) -> float:
    """Idle GPUs that the usual demand can't use, on average over the demand."""
    grid, idle = cycle.grid, int(room.sum())
    total = weight = 0
    for part in cycle.cluster.scenario.demand:
        if not part.gpus:
            continue  # of whole GPUs nothing is useless to who asks for a share, and who asks for none is not asked here
        slots = room // part.gpus
        sums = grid.sums(slots, -1 if part.required is None else grid.level_index[part.required])
        usable = int(sums[sums >= part.workers].sum()) * part.gpus
        total += part.share * (idle - usable)
        weight += part.share
    return round(total / weight, 3) if weight else 0.0


def _idle_slices(cycle: Cycle) -> int:
    """Empty MIG instances that no waiting job asks for."""
    splits = [(board_of(cycle.grid.nodes[node].gpu_type), split) for node, split in mig_splits(cycle)]
    if not splits:
        return 0
    roles = [role for form in {work.form for work in cycle.waiting if work.kind.sharing == "mig"} for role in form.kind.roles if role.parted]
    asked = cache(lambda board: {name for role in roles for name, _ in fitting_profiles(role, board)})
    empty = ((board, one) for board, split in splits if board is not None for one in split.instances if one not in split.taken)
    return sum(one.profile not in asked(board) for board, one in empty)
