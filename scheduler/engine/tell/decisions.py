"""What a plan does, from what differs between its first state and its last; who has to leave first, and for whom."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from operator import attrgetter

from ..ahead.entries import counted_on
from ..model.mig import Instance
from ..model.plan import Decision, Stand, new_decision
from ..model.reasons import reason, spell_instant
from ..state.fleet import Seat, on_gpus
from ..state.grid import Grid
from ..state.planning import Cycle
from ..state.work import Work

TAKING = ("reclaim", "preempt", "shrink", "consolidate", "reservation_due")


def stands(work: Work, grid: Grid) -> tuple[Stand, ...]:
    roles, nodes, found = work.kind.roles, grid.nodes, []
    for seat in work.seats:
        mig = tuple(sorted((one.gpu, one.profile, one.start) for one in seat.parts if one.mode == "mig")) if seat.parts else ()
        share = seat.parts[0].milli if seat.parts and not mig else None
        found.append(Stand(roles[seat.role].name, seat.rank, nodes[seat.node].name, on_gpus(seat), share, mig))
    return tuple(found)


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


def decisions_of(cycle: Cycle) -> list[Decision]:
    """What the plan does to jobs and boards, in the order in which it is carried out: GPUs are split anew between those who leave and who come."""
    works = sorted(dict.fromkeys(cycle.cluster.journal), key=attrgetter("order"))
    # In the order in which they were given their places: who leaves and was never given another one comes first of all.
    changed = [(action, work) for work in sorted(works, key=attrgetter("sequence")) if (action := action_of(work)) is not None]
    changes = Changes(cycle, works, changed)
    those: dict[str, list[Decision]] = {turn: [] for turn in ("evict", "shrink", "move", "late", "split", "start", "grow")}
    for action, work in changed:
        turn = "start" if action == "repair" else action
        if action == "move" and work.milli > sum(seat.milli for seat in work.first_seats):
            turn = "late"  # who is moved with more than he had comes behind those who left it to him
        those[turn].append(changes.decision(action, work))
    those["split"] = changes.splits()
    return in_order([*chain.from_iterable(those.values())])


def in_order(decisions: Sequence[Decision]) -> list[Decision]:
    """Each behind those it has to wait for, and behind those who move for it where these don't wait in turn: they may leave what a limit lacks."""
    place_of = {decision.job: place for place, decision in enumerate(decisions) if decision.job is not None}
    moving: dict[str, list[str]] = {}  # by for whom
    for decision in decisions:
        if decision.action == "move" and decision.for_job is not None and decision.job is not None:
            moving.setdefault(decision.for_job, []).append(decision.job)

    def waits_for(name: str, other: str) -> bool:
        """Whether a job has to wait for another one, if only through others."""
        seen, line = {name}, [name]
        while line:
            place = place_of.get(line.pop())
            names = decisions[place].after if place is not None else ()
            if other in names:
                return True
            line += [before for before in names if before not in seen]
            seen.update(names)
        return False

    def before(decision: Decision) -> Iterator[int]:
        yield from (place_of[name] for name in decision.after if name in place_of)
        for name in moving.get(decision.job or "", ()):
            if not waits_for(name, decision.job or ""):
                yield place_of[name]

    done: list[Decision] = []
    seen: set[int] = set()
    for first, decision in enumerate(decisions):
        if first in seen:
            continue
        seen.add(first)
        line = [(first, before(decision))]
        while line:
            place, earlier = line[-1]
            if (unseen := next((one for one in earlier if one not in seen), None)) is None:
                done.append(decisions[place])
                line.pop()
            else:
                seen.add(unseen)
                line.append((unseen, before(decisions[unseen])))
    return done


class Changes:
    """Who stood where when the plan began and has to be gone before somebody else can stand there; and for whom each gives way in the end, as who was
    first meant to profit may have lost the place again to a third."""

    def __init__(self, cycle: Cycle, touched: Sequence[Work], changed: Sequence[tuple[str, Work]]) -> None:
        self.cycle = cycle
        self.touched = touched  # all that this plan may have changed, in their order
        self.stood = [work for _, work in changed]
        self.served = {work.job.name for work in self.stood if work.seats}
        leaves = cycle.fleet.soon is not cycle.fleet.now  # else nobody does
        self.befores = {work.order: self.before(work) for action, work in changed if leaves and action not in ("evict", "shrink")}

    def decision(self, action: str, work: Work) -> Decision:
        why, beneficiary = work.why, work.for_job if action == "shrink" else None
        if action in ("evict", "move"):
            why, beneficiary = self.cycle.cluster.ousted.get(work) or (why, None)
        assert why is not None
        lost = beneficiary is not None and beneficiary not in self.served and beneficiary not in self._standing
        if lost and (taker := self._taker.get(work.job.name)) is not None:
            code = taker.why.code if taker.why is not None and taker.why.code in TAKING else why.code
            if code in ("reclaim", "preempt"):
                code = "preempt" if taker.charged_leaf == work.home else "reclaim"
            why, beneficiary = reason(code, f"makes room for {taker.job.name}"), taker.job.name
        if action == "evict":
            return new_decision((action, why, work.job.name, beneficiary, (), (), False, work.kind.grace_ms, None, None, None, ()))
        after = self.befores.get(work.order, ())
        return Decision(action, why, work.job.name, beneficiary, stands(work, self.cycle.grid), after, work.backfilled)

    @cached_property
    def _standing(self) -> set[str]:
        return {work.job.name for work in self.cycle.cluster.works if work.seats}

    @cached_property
    def _taker(self) -> dict[str, Work]:
        """By the name of who leaves a place: who waits for it, the first of them."""
        return {name: self.cycle.cluster.works[order] for order, names in sorted(self.befores.items(), reverse=True) for name in names}

    def splits(self) -> list[Decision]:
        """The GPUs that are split anew, in the order of those who stand there then: who asked for one may have given its place to another since."""
        cycle, splits = self.cycle, []
        for (place, gpu), asked in cycle.cluster.geometry.items():
            there = [work for work in (asked, *self.stood) if any(seat.node == place and on_gpus(seat) >> gpu & 1 for seat in work.seats)]
            holder = asked if asked in there else min(there, key=attrgetter("sequence"), default=asked)
            split, node = cycle.fleet.soon.splits.get((place, gpu)), cycle.grid.nodes[place].name
            why = reason("repartition", f"GPU {gpu} of {node} is repartitioned for {holder.job.name}")
            instances: tuple[Instance, ...] = split.instances if split is not None else ()
            after = self.leaving({place: 1 << gpu})
            decision = Decision("repartition", why, for_job=holder.job.name, after=after, node=node, gpu=gpu, instances=instances)
            splits.append((holder.sequence, (place, gpu), decision))
        return [decision for _, _, decision in sorted(splits)]

    @cached_property
    def _by_node(self) -> Mapping[int, Sequence[tuple[int, int]]]:
        """(GPUs, place of the job) by node of everything that leaves in this plan or is leaving already."""
        leavers = self.cycle.cluster.state.leavers
        by_node: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for work in dict.fromkeys((*self.touched, *leavers)):
            left: Collection[Seat] = set(work.first_seats) - set(work.seats) if work.seats else work.first_seats
            for seat in (*left, *leavers.get(work, ())):
                by_node[seat.node].append((on_gpus(seat) if seat.parts else seat.mask, work.order))
        return by_node

    def before(self, work: Work) -> tuple[str, ...]:
        """Who has to leave before a job can stand where it stands now: GPUs that were not idle, or a host that has no room before."""
        first, idle, now = set(work.first_seats), self.cycle.fleet.idle_at_start, self.cycle.fleet.now
        wanted: dict[int, int] = {}
        crowded = {seat.node for seat in work.seats if now.cpus[seat.node] < 0 or now.memory[seat.node] < 0}
        for seat in work.seats:
            mask = on_gpus(seat)
            if seat not in first and (seat.node in crowded or seat.parts or mask & ~idle[seat.node]):
                wanted[seat.node] = wanted.get(seat.node, 0) | mask
        return self.leaving(wanted, crowded, but=work)

    def leaving(self, wanted: Mapping[int, int], crowded: Collection[int] = (), but: Work | None = None) -> tuple[str, ...]:
        """Who leaves any of these GPUs, or a crowded node, in their order."""
        by_node, works = self._by_node, self.cycle.cluster.works
        orders = {order for node, mask in wanted.items() for held, order in by_node.get(node, ()) if held & mask or node in crowded}
        return tuple([works[order].job.name for order in sorted(orders) if works[order] is not but])


def reserved(cycle: Cycle) -> list[Decision]:
    """The places that are kept; none for who has not left his place yet."""
    found = []
    for entry in cycle.book.entries:
        work, roles, at = entry.work, entry.work.kind.roles, cycle.now + entry.at
        if work.first_seats and not work.degraded:
            continue
        if not (waits := [seat[:3] for seat in entry.date.seats]):
            wanted = ((place, rank) for place, ranks in work.missing() for rank in ranks)
            waits = [(*each, node) for each, node in zip(wanted, counted_on(work, entry.date), strict=True)]
        runs = stands(work, cycle.grid)  # of a gang that waits to be whole again
        workers = (*runs, *(Stand(roles[place].name, rank, cycle.grid.nodes[node].name, 0) for place, rank, node in waits))
        why = reason("reserve", f"by limits and estimates of what runs now it can start at {spell_instant(at)}")
        found.append(Decision("reserve", why, work.job.name, workers=workers, at=at))
    return found
