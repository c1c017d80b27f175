"""From the last state back to a plan: what differs from the first one, who waits and why, and what comes next."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from operator import attrgetter

from ..model.mig import Instance
from ..model.plan import Course, Decision, Plan, Share, Stand, Waiting, new_decision, new_stand, new_waiting, placing
from ..model.reasons import Reason, reason
from ..model.values import QUEUED
from ..reading.checkers import spell_instant
from ..rules.invariants import check
from ..rules.times import duration, ends_at
from ..rules.windows import NEVER
from ..search.entries import Entry
from ..state.cluster import on_gpus
from ..state.fleet import Seat
from ..state.form import Form
from ..state.grid import Grid
from ..state.planning import Cycle
from ..state.tree import Division, Tree
from ..state.work import Work
from .blockers import Blockers, Reasons
from .forecast import Forecast
from .metrics import fragmented, measure
from .repeated import Repeated
from .waking import next_wake


def conclude(cycle: Cycle) -> Plan:
    """The plan of a cycle whose passes have nothing left to add."""
    check(cycle)
    forecast = Forecast(cycle)
    decisions = decisions_of(cycle)
    repeated = _repeated(cycle, forecast)
    decisions.extend(_reserved(cycle, repeated))
    changed = repeated.changed_places(cycle.tree)
    return Plan(
        now=cycle.now,
        decisions=tuple(decisions),
        waiting=_waiting(cycle, forecast, repeated, changed),
        shares=_shares(cycle, repeated, changed),
        next_wake=next_wake(cycle),
        metrics=measure(cycle),
    )


def carry_on(cycle: Cycle, before: int | None) -> Course:
    """The same without all that is only told to somebody, and without a moment to look again that comes later than that."""
    check(cycle)
    return Course(tuple(decisions_of(cycle)), next_wake(cycle, before), fragmented(cycle))


def _repeated(cycle: Cycle, forecast: Forecast) -> Repeated:
    """What the plan before has told, without the jobs that have gone since; or nothing."""
    cluster = cycle.cluster
    kept = cluster.kept
    repeated = kept.repeated
    told = repeated is not None and repeated.turn + 1 == kept.turn and repeated.settings == cycle.settings and not cycle.fleet.soon.splits
    if repeated is not None and told and cluster.first_state.goes_on and not forecast.advises_all:
        repeated.follow(cluster.first_state.since)
    else:
        repeated = kept.repeated = Repeated(cycle.settings)
    repeated.turn = kept.turn
    return repeated


def stand(work: Work, seat: Seat, grid: Grid) -> Stand:
    role = work.kind.roles[seat.role].name
    node = grid.nodes[seat.node].name
    if not seat.parts:
        return new_stand((role, seat.rank, node, seat.mask, None, ()))
    mask = 0
    for part in seat.parts:
        mask |= 1 << part.gpu
    if seat.parts[0].mode == "mig":
        return Stand(role, seat.rank, node, mask, mig=tuple(sorted((part.gpu, part.profile, part.start) for part in seat.parts)))
    return Stand(role, seat.rank, node, mask, share_milli=seat.parts[0].milli)


def stands(work: Work, grid: Grid) -> tuple[Stand, ...]:
    if work.form.parted:
        return tuple([stand(work, seat, grid) for seat in work.seats])
    roles, nodes = work.kind.roles, grid.nodes
    if len(work.seats) == 1:  # most of all
        (seat,) = work.seats
        return (new_stand((roles[seat.role].name, seat.rank, nodes[seat.node].name, seat.mask, None, ())),)
    return tuple([new_stand((roles[seat.role].name, seat.rank, nodes[seat.node].name, seat.mask, None, ())) for seat in work.seats])


def action_of(work: Work) -> str | None:
    """What the plan does to a job: the difference between its first places and its last."""
    first, last = work.first_seats, work.seats
    if not last:
        return "evict" if first else None
    if not first:
        return "start"
    if first == last:
        return None
    if work.evicted:
        return None if set(first) == set(last) else "move"
    if set(last) <= set(first):
        return "shrink"
    had = {seat.role: sum(1 for one in first if one.role == seat.role) for seat in last}
    short = any(had.get(place, 0) < role.least for place, role in enumerate(work.kind.roles))
    return "repair" if short else "grow"


_STAGE = {"evict": 0, "shrink": 1, "move": 2, "repartition": 3, "start": 4, "repair": 4, "grow": 5}


def decisions_of(cycle: Cycle) -> list[Decision]:
    """What the plan does to jobs and boards, in the order in which it is carried out."""
    if not cycle.cluster.journal:
        return []
    journal = dict.fromkeys(cycle.cluster.journal)
    if cycle.fleet.soon is cycle.fleet.now and not cycle.cluster.geometry and not any(work.first_seats for work in journal):
        return _starts(cycle, [work for work in journal if work.seats])
    works = sorted(journal, key=attrgetter("order"))
    # Who leaves and was never given another place comes first of all, in their order.
    gone = [work for work in works if not work.seats and not work.sequence and work.first_seats]
    stood = [work for work in works if (work.seats or work.sequence) and work.seats is not work.first_seats]
    changed = [(action, work) for work in stood if (action := action_of(work)) is not None]
    owners = Owners(cycle, works)
    befores = {}
    if cycle.fleet.soon is not cycle.fleet.now:  # else nobody leaves
        befores = {work.order: owners.before(work) for action, work in changed if action not in ("evict", "shrink")}
    served = Served(cycle, befores, [work for _, work in changed])
    leaving = _evictions(served, gone)
    # In the order in which they were given their places; who is moved with more than he had comes behind those who left it to him.
    changed.sort(key=lambda pair: (pair[0] == "move" and _gains(pair[1]), pair[1].sequence))
    staged: list[list[Decision]] = [[] for _ in range(6)]
    for action, work in changed:
        assert work.why is not None
        if action == "evict":
            (decision,) = _evictions(served, (work,))
        else:
            why, beneficiary = work.why, None
            if action == "move":
                why, beneficiary = served.by(work, *(cycle.cluster.ousted.get(work) or (work.why, None)))
            elif action == "shrink":
                why, beneficiary = served.by(work, work.why, work.for_job)
            decision = placing(action, why, work.job.name, beneficiary, stands(work, cycle.grid), befores.get(work.order, ()), work.backfilled)
        staged[_STAGE[action]].append(decision)
    splits = []
    for key in sorted(cycle.cluster.geometry):
        split = cycle.fleet.soon.splits.get(key)
        holder = _there(key, cycle.cluster.geometry[key], stood)
        instances: tuple[Instance, ...] = split.instances if split is not None else ()
        node = cycle.grid.nodes[key[0]].name
        why = reason("repartition", f"GPU {key[1]} of {node} is repartitioned for {holder.job.name}")
        decision = Decision("repartition", why, for_job=holder.job.name, after=owners.holding(*key), node=node, gpu=key[1], instances=instances)
        splits.append((holder.sequence, key, decision))
    splits.sort()
    staged[_STAGE["repartition"]] = [decision for _, _, decision in splits]
    return in_order(leaving, [*chain.from_iterable(staged)])


def _there(key: tuple[int, int], asked: Work, stood: Iterable[Work]) -> Work:
    """For whom a GPU is split anew: who asked for it may have given its place to another since."""
    node, gpu = key

    def is_there(work: Work) -> bool:
        return any(seat.node == node and on_gpus(seat) >> gpu & 1 for seat in work.seats)

    return asked if is_there(asked) else min(filter(is_there, stood), key=attrgetter("sequence"), default=asked)


def _gains(work: Work) -> bool:
    return work.milli > sum(seat.milli for seat in work.first_seats)


def _starts(cycle: Cycle, works: list[Work]) -> list[Decision]:
    """Nobody gives way and no board is split: these start, in the order in which they were given their places."""
    if len(works) > 1:
        works.sort(key=attrgetter("sequence"))
    decisions = []
    for work in works:
        assert work.why is not None
        decisions.append(placing("start", work.why, work.job.name, None, stands(work, cycle.grid), (), work.backfilled))
    return decisions


def _evictions(served: "Served", works: Iterable[Work]) -> list[Decision]:
    """One for each; there may be thousands."""
    decisions, ousted = [], served.cycle.cluster.ousted
    for work in works:
        why, beneficiary = ousted.get(work) or (work.why, None)
        assert why is not None
        if beneficiary not in served.served:
            why, beneficiary = served.by(work, why, beneficiary)
        decisions.append(new_decision(("evict", why, work.job.name, beneficiary, (), (), False, work.kind.grace_ms, None, None, None, ())))
    return decisions


def in_order(leaving: list[Decision], decisions: list[Decision]) -> list[Decision]:
    """Those who leave, then the other decisions, each behind those it has to wait for, and behind those who give way for it where these don't wait
    in turn.

    Who gives way may leave no place that is taken, but what a limit lacks.
    """
    yielding: dict[str, list[str]] = {}
    for decision in decisions:
        if decision.action == "move" and decision.for_job is not None and decision.job is not None:  # others stand at the front already
            yielding.setdefault(decision.for_job, []).append(decision.job)
    if yielding:
        leaving, decisions = [], [*leaving, *decisions]
    at = next((place for place, decision in enumerate(decisions) if decision.after or decision.job in yielding), len(decisions))
    done, rest = [*leaving, *decisions[:at]], decisions[at:]
    by_job: dict[str | None, Decision] = {decision.job: decision for decision in rest if decision.job is not None}
    state: dict[int, int] = {}  # 1: being looked at, 2: in the list
    for decision in rest:
        if not decision.after and decision.job not in yielding:  # nothing to wait for
            if not state.get(id(decision)):
                state[id(decision)] = 2
                done.append(decision)
            continue
        stack = [decision]
        while stack:
            top = stack[-1]
            if state.get(id(top)) == 2:
                stack.pop()
                continue
            state[id(top)] = 1
            names = [*top.after, *(name for name in yielding.get(top.job or "", ()) if not _waits_for(by_job, name, top.job))]
            before = [by_job[name] for name in names if name in by_job and not state.get(id(by_job[name]))]
            if before:
                stack.extend(reversed(before))
                continue
            state[id(top)] = 2
            done.append(stack.pop())
    return done


def _waits_for(by_job: dict[str | None, Decision], name: str, other: str | None) -> bool:
    """Whether a decision has to wait for another one, if only through others."""
    seen, line = {name}, [name]
    while line:
        decision = by_job.get(line.pop())
        for before in decision.after if decision is not None else ():
            if before == other:
                return True
            if before not in seen:
                seen.add(before)
                line.append(before)
    return False


class Served:
    """For whom somebody gives way in the end: who was first meant to profit may have lost the place again to a third."""

    def __init__(self, cycle: Cycle, befores: dict[int, tuple[str, ...]], changed: list[Work]) -> None:
        self.cycle = cycle
        self.befores = befores
        self.served = {work.job.name for work in changed if work.seats}

    def by(self, victim: Work, why: Reason, name: str | None) -> tuple[Reason, str | None]:
        if name is None or name in self.served or name in self._standing:
            return why, name
        takers = self.takers.get(victim.job.name)
        if not takers:
            return why, name
        taker = takers[0]
        code = taker.why.code if taker.why is not None and taker.why.code in TAKING else why.code
        if code in ("reclaim", "preempt"):
            code = "preempt" if taker.charged_leaf == victim.home else "reclaim"
        return reason(code, f"makes room for {taker.job.name}"), taker.job.name

    @cached_property
    def _standing(self) -> set[str]:
        return {work.job.name for work in self.cycle.cluster.works if work.seats}

    @cached_property
    def takers(self) -> dict[str, list[Work]]:
        """By the name of who leaves a place: who waits for it."""
        takers: dict[str, list[Work]] = {}
        for order, names in self.befores.items():
            for name in names:
                takers.setdefault(name, []).append(self.cycle.cluster.works[order])
        return takers


TAKING = ("reclaim", "preempt", "shrink", "consolidate", "reservation_due")


class Owners:
    """Who stood where when the plan began, and has to be gone before somebody else can stand there."""

    def __init__(self, cycle: Cycle, touched: Sequence[Work]) -> None:
        self.cycle = cycle
        self.touched = touched  # all that this plan may have changed, in their order

    @cached_property
    def _by_node(self) -> Mapping[int, Sequence[tuple[int, int]]]:
        """(GPUs, place of the job) by node of everything that leaves in this plan or is leaving already."""
        leavers = self.cycle.cluster.first_state.leavers
        looked_at: Iterable[Work] = dict.fromkeys((*self.touched, *leavers)) if leavers else self.touched
        others: list[Work] = []
        by_node: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for work in looked_at:
            run = work.job.run
            if run is QUEUED:
                continue
            if work.seats or run.leaving or work.form.parted or run.state == "stopping":
                others.append(work)
                continue
            for seat in work.first_seats:  # who held whole GPUs and has left all of them is most of all
                by_node[seat.node].append((seat.mask, work.order))
        for work in others:
            run = work.job.run
            left: Collection[Seat] = ()
            if work.first_seats is not work.seats:
                left = set(work.first_seats) - set(work.seats) if work.seats else work.first_seats
            for seat in {*left, *leavers.get(work, ())}:
                by_node[seat.node].append((on_gpus(seat), work.order))
        return by_node

    def holding(self, node: int, gpu: int) -> tuple[str, ...]:
        """Who has to leave a GPU before it can be split anew."""
        return self._names({order for held, order in self._by_node.get(node, ()) if held >> gpu & 1})

    def before(self, work: Work) -> tuple[str, ...]:
        wanted, crowded = self._wanted(work)
        found = self.leaving(wanted, crowded)
        found.discard(work.order)
        return self._names(found)

    def _wanted(self, work: Work) -> tuple[dict[int, int], set[int]]:
        """The GPUs by node on which it stands now, where they were not idle; and nodes on which the host has to have room first."""
        cycle = self.cycle
        first, idle = set(work.first_seats), cycle.fleet.idle_at_start
        cpus, memory = cycle.fleet.now.cpus, cycle.fleet.now.memory
        wanted: dict[int, int] = {}
        crowded: set[int] = set()
        for seat in work.seats:
            if seat in first:
                continue
            node, mask = seat.node, on_gpus(seat) if seat.parts else seat.mask
            if cpus[node] < 0 or memory[node] < 0:
                crowded.add(node)
            elif not seat.parts and not mask & ~idle[node]:
                continue
            wanted[node] = wanted.get(node, 0) | mask
        return wanted, crowded

    def leaving(self, wanted: Mapping[int, int], crowded: Collection[int]) -> set[int]:
        """Who leaves any of these GPUs, or a crowded node."""
        by_node = self._by_node
        if not crowded:
            return {order for node, mask in wanted.items() for held, order in by_node.get(node, ()) if held & mask}
        return {order for node, mask in wanted.items() for held, order in by_node.get(node, ()) if held & mask or node in crowded}

    def _names(self, orders: Iterable[int]) -> tuple[str, ...]:
        works = self.cycle.cluster.works
        return tuple([works[order].job.name for order in sorted(orders)])


def _reserved(cycle: Cycle, repeated: Repeated) -> list[Decision]:
    found = []
    before, repeated.reserved = repeated.reserved, {}
    for entry in cycle.book.entries:
        work = entry.work
        if work.first_seats and not work.degraded:
            continue  # it has not left its place yet
        at = cycle.now + entry.at
        if work.seats or entry.date.seats:
            found.append(_reservation(cycle, entry, at))
            continue
        known = before.get(work)
        if known is None or known[0] != at or known[1] != entry.places:
            known = (at, entry.places, _reservation(cycle, entry, at))
        repeated.reserved[work] = known
        found.append(known[2])
    return found


def _reservation(cycle: Cycle, entry: Entry, at: int) -> Decision:
    work, kind = entry.work, entry.work.kind
    workers = list(stands(work, cycle.grid))  # what still runs of a gang that waits to be whole again
    if entry.date.seats:
        workers.extend(Stand(kind.roles[seat.role].name, seat.rank, cycle.grid.nodes[seat.node].name, 0) for seat in entry.date.seats)
    else:
        counted = [node for node, count in sorted(entry.places) for _ in range(count // kind.roles[work.missing()[0][0]].gpus)]
        wanted = [(place, rank) for place, ranks in work.missing() for rank in ranks]
        for (place, rank), node in zip(wanted, counted, strict=True):
            workers.append(Stand(kind.roles[place].name, rank, cycle.grid.nodes[node].name, 0))
    why = reason("reserve", f"by limits and estimates of what runs now it can start at {spell_instant(at)}")
    return Decision("reserve", why, work.job.name, workers=tuple(workers), at=at)


def _waiting(cycle: Cycle, forecast: Forecast, repeated: Repeated, changed: Sequence[int] | None) -> tuple[Waiting, ...]:
    works = cycle.cluster.works
    blockers = Blockers(cycle)
    if changed is None:
        repeated.tell(_entries(cycle, forecast, blockers, works, repeated.due))
        repeated.same_room(cycle.fleet.soon)
    else:
        for work in _to_be_told(cycle, forecast, blockers, repeated, changed):
            repeated.tell_of(work.order, _entry(cycle, forecast, blockers, work))
        repeated.due.update(dict.fromkeys(work for work in cycle.cluster.first_state.since.come if work.job.deadline is not None))
    repeated.rooms = blockers.rooms.told
    repeated.own = dict.fromkeys(_own(cycle, forecast))
    return repeated.told()


def _own(cycle: Cycle, forecast: Forecast) -> Iterator[Work]:
    """Those of whom this plan alone tells something."""
    works = cycle.cluster.works
    yield from cycle.cluster.journal
    yield from (works[order] for order in (*cycle.waiting.static, *cycle.waiting.notes, *forecast.predicted))
    yield from cycle.waiting.queues.open
    if cycle.cluster.forms.delay:
        yield from (work for queue in cycle.waiting.queues.by_leaf.values() for work in queue if work.kind.preemption_delay_ms)


def _to_be_told(cycle: Cycle, forecast: Forecast, blockers: Blockers, repeated: Repeated, changed: Iterable[int]) -> Iterable[Work]:
    """Those whose reasons may be others than in the plan before."""
    tree, queues = cycle.tree, cycle.waiting.queues.by_leaf
    anew = dict.fromkeys((*repeated.own, *repeated.due, *cycle.cluster.first_state.since.come, *_own(cycle, forecast)))
    beside = {tree.parent[place] for place in changed}  # what counts beside a node counts below all its siblings
    leaves = {leaf for place in beside for leaf in range(place, tree.end[place]) if leaf in queues}
    for leaf in leaves:
        anew.update(dict.fromkeys(queues[leaf]))
    # Who holds GPUs of a domain, and until when, is no matter of room alone.
    lasting = not cycle.fleet.soon.splits and all(room is None or room.code != "topology" for room in repeated.rooms.values())
    if repeated.same_room(cycle.fleet.soon) and lasting:
        blockers.rooms.told.update(repeated.rooms)
        return anew
    for leaf, queue in queues.items():
        if leaf not in leaves:
            anew.update(dict.fromkeys(work for work in queue if not work.seats and blockers.rooms.is_another(work, repeated.rooms)))
    return anew


def _entries(cycle: Cycle, forecast: Forecast, blockers: Blockers, works: Sequence[Work], due: dict[Work, None]) -> list[Waiting | None]:
    """What is told of every job. Of whom there is nothing of his own to tell, his queue and what he asks for decide. Notes who is `due` by a time."""
    own, advises_all = {*cycle.waiting.static, *cycle.waiting.notes, *forecast.predicted}, forecast.advises_all
    shared: dict[tuple[int, Form], Reasons] = {}
    entries: list[Waiting | None] = [None] * len(works)
    for work in [work for work in works if not work.seats or work.degraded]:
        order, seats, form = work.order, work.seats, work.form
        dated = work.job.deadline is not None
        if dated:
            due[work] = None
        if seats or advises_all or order in own or work.stale or form.kind.preemption_delay_ms or dated or work.state == "stopping":
            entries[order] = _entry(cycle, forecast, blockers, work)
            continue
        key = (work.home, form)
        reasons = shared.get(key)
        if reasons is None:
            reasons = shared[key] = blockers.of(work)
        entries[order] = new_waiting((work.job.name, reasons, None, None))
    return entries


def _entry(cycle: Cycle, forecast: Forecast, blockers: Blockers, work: Work) -> Waiting | None:
    """What is told of a job, if it waits."""
    if work.state == "stopping" or (work.seats and not work.degraded):
        return None
    reasons = blockers.of(work)
    at = forecast.predicted.get(work.order)
    if work.job.deadline is not None:
        late = _late(cycle, forecast, work, work.job.deadline)
        reasons = reasons if late is None else (*reasons, late)
    return Waiting(work.job.name, reasons, at, forecast.advice(work) if at is not None or forecast.advises_all else None)


def _late(cycle: Cycle, forecast: Forecast, work: Work, deadline: int) -> Reason | None:
    """Why it can't end before its deadline, if so: by when it is predicted to start or a place is kept for it, else were it to start as soon as
    it may, which is known whatever is foreseen."""
    begins = work.job.not_before
    start = cycle.now if begins is None else max(cycle.now, begins)
    words = f"may not start before {spell_instant(start)}, too late" if start > cycle.now else "started now, it would still run too long"
    if work.order in forecast.predicted:
        start = forecast.predicted[work.order]
        words = f"predicted to start at {spell_instant(start)}, too late"
    elif work.order in forecast.kept:
        start = forecast.kept[work.order]
        words = f"a place is kept for it from {spell_instant(start)} on, too late"
    length = duration(cycle, work)
    if length >= NEVER:
        length = 0  # only its start can be too late
    elif work.seats:
        length = ends_at(cycle, work) - cycle.now
    if start < deadline and start + length <= deadline:
        return None
    detail = f"{words} to end before {spell_instant(deadline)}" if deadline > cycle.now else f"its deadline has passed: {spell_instant(deadline)}"
    return reason("deadline", detail, start=spell_instant(start), deadline=spell_instant(deadline))


def _shares(cycle: Cycle, repeated: Repeated, changed: Iterable[int] | None) -> tuple[Share, ...]:
    tree = cycle.tree
    if changed is None:
        repeated.shares = [_share(tree, division, place) for place in range(1, len(tree.names)) for division in tree.divisions]
    else:
        many = len(tree.divisions)
        for place in changed:
            if place:
                repeated.shares[(place - 1) * many : place * many] = [_share(tree, division, place) for division in tree.divisions]
    return tuple(repeated.shares)


def _share(tree: Tree, division: Division, place: int) -> Share:
    promised, used = division.guaranteed[place], division.used[place]
    borrowed = 0 if promised is None else max(0, used - promised)
    return Share(tree.names[place], division.name, division.fair[place], used, promised, borrowed)
