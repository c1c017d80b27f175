"""Power caps of pools: what more may draw, and from when on.

What stands draws the rated watts of its GPUs until its limit ends, or for ever where it has none. More starts, grows or moves in a pool only if all
that stands, and what is kept for jobs ahead of it, stays below each cap for as long as it may run itself. All that a job asks for is held against
each pool in which it gets a GPU. What leaves counts no more: nobody is evicted for a cap. Dates count on what stands to leave as expected (`soon`).
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import copy
from functools import reduce
from itertools import accumulate
from operator import or_
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ..model.reasons import Reason, reason, spell_instant
from ..model.values import PowerCap
from ..state.tree import NEVER
from ..state.work import Work
from .times import ends_at

if TYPE_CHECKING:
    from ..ahead.entries import Entry
    from ..state.cluster import Cluster
    from ..state.planning import Cycle

DAY_MS = 86_400_000
Draw: TypeAlias = tuple[int, int, int]  # milliwatts, from an instant, to another
Places: TypeAlias = Iterable[tuple[int, int]]  # (node, milli-GPU)


class Stretch(NamedTuple):
    """What is allowed and what is drawn of a pool at an instant."""

    start: int
    cap: PowerCap
    drawn: int  # in milliwatts

    @property
    def left(self) -> int:
        return self.cap.watts * 1000 - self.drawn


class Left(NamedTuple):
    """Milliwatts that a pool leaves from each of these instants to the next, the last for ever; None: no cap lasts then."""

    starts: list[int]
    left: list[int | None]


class Power:
    """The capped pools of one plan, and who stands in them. It follows what the plan changes."""

    def __init__(self, cluster: "Cluster") -> None:
        scenario, grid = cluster.scenario, cluster.grid
        self.cluster, self.grid = cluster, grid
        self.now = scenario.now
        self.horizon = scenario.now + scenario.settings.window_horizon_ms
        self.caps: dict[str | None, list[PowerCap]] = {}  # by pool; None: the whole fleet
        for cap in scenario.power.caps:
            if cap.end is None or cap.end > self.now:
                self.caps.setdefault(cap.pool, []).append(cap)
        rated = dict(scenario.power.gpu_watts)
        self.watts = [rated.get(node.gpu_type, 0) for node in grid.nodes]  # of a GPU, by node
        self.pools = [[pool for pool in (None, name) if pool in self.caps] for name in grid.pool_of]  # that have caps, by node
        self.nodes = {pool: sum(1 << node for node, pools in enumerate(self.pools) if pool in pools) for pool in self.caps}
        self._read = 0  # so much of the cluster's journal is known
        self._lowest = {pool: 1000 * min(cap.watts for cap in caps) for pool, caps in self.caps.items()}
        self._lows: dict[str | None, tuple[list[int], list[int | None]]] = {}
        self._mine: dict[Work, list[tuple[str | None, int, int, int]]] = {}  # (pool, when it is gone, when it is expected to be, milliwatts)
        self._asks: dict[tuple[object, ...], dict[str | None, int]] = {}
        self._never: dict[tuple[object, ...], Reason | None] = {}
        self._kept: tuple[Entry | None, dict[str | None, int]] | None = None
        self._clear()
        for work in cluster.works:
            if work.seats:
                self._count(work)

    def _clear(self) -> None:
        # Milliwatts by when those who draw them are gone at the latest, and are expected to be.
        self._drawn: dict[bool, dict[str | None, dict[int, int]]] = {soon: {pool: {} for pool in self.caps} for soon in (False, True)}
        self._sums: dict[tuple[str | None, bool], tuple[list[int], list[int]]] = {}
        self._least: dict[str | None, int] = {}
        # What is drawn when it has to be known for the gate: now, and as each cap begins.
        self._levels = {pool: dict.fromkeys([self.now, *(cap.start for cap in caps if cap.start > self.now)], 0) for pool, caps in self.caps.items()}

    def times(self) -> Iterator[int]:
        return (at for caps in self.caps.values() for cap in caps for at in (cap.start, cap.end) if at is not None)

    def gone_by(self, work: Work) -> int:
        """When it has left at the latest, by its limit; one that is over it is there as of now."""
        return max(self.now + 1, self.cluster.windows.ends(work))

    def by_pool(self, places: Places) -> dict[str | None, int]:
        found: dict[str | None, int] = {}
        for node, milli in places:
            for pool in self.pools[node]:
                found[pool] = found.get(pool, 0) + milli * self.watts[node]
        return found

    def _count(self, work: Work) -> None:
        until = self.gone_by(work)
        soon = min(until, max(self.now + 1, ends_at(self.cluster, work)))
        mine = [(pool, until, soon, drawn) for pool, drawn in self.by_pool((seat.node, seat.milli) for seat in work.seats).items() if drawn]
        if mine:
            self._mine[work] = mine
        for pool, until, soon, drawn in mine:
            self._draw(pool, until, soon, drawn)

    def _draw(self, pool: str | None, until: int, soon: int, milliwatts: int) -> None:
        for is_soon, end in ((False, until), (True, soon)):
            held = self._drawn[is_soon][pool]
            held[end] = held.get(end, 0) + milliwatts
            if not held[end]:
                del held[end]
            self._sums.pop((pool, is_soon), None)
        self._least.pop(pool, None)
        levels = self._levels[pool]
        for at in levels:
            if at < until:
                levels[at] += milliwatts

    def _follow(self) -> None:
        journal = self.cluster.journal
        if self._read == len(journal):
            return
        for work in dict.fromkeys(journal[self._read :]):
            for pool, until, soon, drawn in self._mine.pop(work, ()):
                self._draw(pool, until, soon, -drawn)
            if work.seats:
                self._count(work)
        self._read = len(journal)

    def _known(self, pool: str | None, soon: bool) -> tuple[list[int], list[int]]:
        """When those who draw are gone, in order, and what the others draw from each of these instants on, and before the first."""
        self._follow()
        if (known := self._sums.get((pool, soon))) is None:
            held = self._drawn[soon][pool]
            ends = sorted(held)
            known = self._sums[pool, soon] = ends, [*accumulate([held[until] for until in reversed(ends)], initial=0)][::-1]
        return known

    def at(self, pool: str | None, instant: int, others: Sequence[Draw] = ()) -> tuple[PowerCap | None, int]:
        """The cap that applies to a pool at an instant, and the milliwatts that may be drawn of what stands and by others."""
        lasting = (cap for cap in self.caps[pool] if cap.start <= instant and (cap.end is None or instant < cap.end))
        self._follow()
        if (drawn := self._levels[pool].get(instant)) is None:
            ends, sums = self._known(pool, False)
            drawn = sums[bisect_right(ends, instant)]
        drawn += sum([more for more, first, until in others if first <= instant < until])
        return min(lasting, key=lambda cap: cap.watts, default=None), drawn

    def course(self, pool: str | None, others: Sequence[Draw] = ()) -> "Left":
        """What a pool is expected to leave from now on."""
        ends, sums = self._known(pool, True)
        turns, lowest = self._allowed(pool)
        more: Counter[int] = Counter()
        for drawn, start, end in others:
            if start < end:
                more[start] += drawn
                more[end] -= drawn
        coming = sorted(more)
        extra = [*accumulate([more[at] for at in coming], initial=0)]
        starts = sorted(at for at in {self.now, *ends, *turns, *coming} if self.now <= at < NEVER)
        allowed = [lowest[bisect_right(turns, at)] for at in starts]
        drawn_at = [sums[bisect_right(ends, at)] + extra[bisect_right(coming, at)] for at in starts]
        return Left(starts, [None if most is None else most - drawn for most, drawn in zip(allowed, drawn_at, strict=True)])

    def _allowed(self, pool: str | None) -> tuple[list[int], list[int | None]]:
        """When caps of a pool begin or end, and the lowest of those that last before the first of these instants and from each of them on."""
        if pool not in self._lows:
            caps = self.caps[pool]
            turns = sorted({at for cap in caps for at in (cap.start, cap.end) if at is not None})
            lasting = ([cap.watts for cap in caps if cap.start <= at and (cap.end is None or at < cap.end)] for at in turns)
            self._lows[pool] = turns, [None, *(1000 * min(found) if found else None for found in lasting)]
        return self._lows[pool]

    def asked(self, work: Work, quota_type: int, milli: int) -> dict[str | None, int]:
        """The milliwatts of so much more by pool in which a job may get a GPU of a type, were all of it there."""
        key = (work.form, quota_type, bool(work.seats))
        if key not in self._asks:
            most: dict[str | None, int] = {}
            for place, role in enumerate(work.kind.roles):
                if role.gpus or role.parted:
                    flags = work.eligible(place, quota_type).flags
                    for node in range(self.grid.size):
                        for pool in self.pools[node] if flags[node] else ():
                            most[pool] = max(most.get(pool, 0), self.watts[node])
            self._asks[key] = most
        return {pool: milli * watts for pool, watts in self._asks[key].items()}

    def in_the_way(self, pool: str | None, needed: int, since: int, until: int, others: Sequence[Draw] = ()) -> Stretch | None:
        """The first time at which a pool leaves less than what is needed from one instant to another: as a cap begins, or what is kept."""
        changes = {since, *(cap.start for cap in self.caps[pool]), *(start for _, start, _ in others)}
        stretches = ((at, *self.at(pool, at, others)) for at in sorted(changes) if since <= at < until)
        found = (Stretch(at, cap, drawn) for at, cap, drawn in stretches if cap is not None)
        return next((one for one in found if one.left < needed), None)

    def opens(self, course: "Left", needed: int, since: int, stays: int) -> int | None:
        """From when on a pool, as it leaves that, leaves what is needed for as long as a job stays; None: not as far as is planned."""
        starts, left = course
        at, last = since, len(starts) - 1
        for place in range(max(0, bisect_right(starts, since) - 1), len(starts)):
            if stays < NEVER and max(since, starts[place]) >= at + stays:
                break
            if (leaves := left[place]) is not None and leaves < needed:
                at = starts[place + 1] if place < last else NEVER
        return at if at < NEVER and (at == since or at <= self.horizon) else None

    def never(self, work: Work) -> Reason | None:
        """Why a job that stands nowhere could start at no time that is planned, were nobody else there."""
        if work.seats or not work.form.types:
            return None
        key = (work.form, work.job.limit_ms)
        if key not in self._never:
            self._never[key] = self._never_starts(work)
        return self._never[key]

    def _never_starts(self, work: Work) -> Reason | None:
        asks = [self.asked(work, quota_type, work.form.least_milli(quota_type)) for quota_type in work.form.types]
        if any(all(more <= self._lowest[pool] for pool, more in asked.items()) for asked in asks):
            return None
        self._follow()
        bare = copy(self)
        bare._clear()
        found: Stretch | None = None
        pool, needed = None, 0
        for quota_type, asked in zip(work.form.types, asks, strict=True):
            closed = {name for name, more in asked.items() if bare.opens(bare.course(name), more, self.now, stays_of(work)) is None}
            if not closed or not self._all_off(work, quota_type, closed):
                return None
            if found is None:
                pool = min(closed, key=_by_name)
                needed = asked[pool]
                found = bare.in_the_way(pool, needed, self.now, NEVER)
        if found is None:
            return None
        days = (self.horizon - self.now) // DAY_MS
        planned = f"the next {days} days" if days > 1 else "the time that is planned"
        needs = kilowatts(needed, up=True)
        detail = f"{_told(pool, found.cap, self.now)} does not suffice; it needs {needs}, and could start at no time in {planned}"
        return reason("power", detail, never=True, **_facts(pool, found, needed))

    def _all_off(self, work: Work, quota_type: int, closed: Collection[str | None]) -> bool:
        """Whether no node is left on which some worker of a job may stand, off some pools."""
        off = reduce(or_, (self.nodes[pool] for pool in closed), 0)
        asked = [place for place, role in enumerate(work.kind.roles) if role.least and (role.gpus or role.parted)]
        return any(not work.eligible(place, quota_type).bits & ~off for place in asked)

    def gate(self, cycle: "Cycle", work: Work, quota_type: int, milli: int) -> tuple[Reason | None, int]:
        """Why so much more of a job can't start now under the caps, or the nodes that it has to stay off."""
        closed = [*self._closed(cycle, work, quota_type, milli)]
        off = reduce(or_, (self.nodes[pool] for pool, *_ in closed), 0)
        if not closed or not self._all_off(work, quota_type, [pool for pool, *_ in closed]):
            return None, off
        pool, found, needed, kept = closed[0]
        return _refusal(pool, found, needed, self.now, kept=any(found.start < end for _, _, end in kept)), off

    def reason(self, cycle: "Cycle", work: Work, quota_type: int, milli: int) -> Reason | None:
        """The same of the first pool that is closed to it, whether or not there are others."""
        closed = self._closed(cycle, work, quota_type, milli)
        return next((_refusal(pool, found, needed, self.now, kept=bool(kept)) for pool, found, needed, kept in closed), None)

    def _closed(self, cycle: "Cycle", work: Work, quota_type: int, milli: int) -> Iterator[tuple[str | None, Stretch, int, Sequence[Draw]]]:
        """The pools that leave less than so much more of a job needs: when, what it needs, and what is kept there for jobs ahead of it."""
        asked = {pool: more for pool, more in self.asked(work, quota_type, milli).items() if more} if milli else {}
        if all(more + self._kept_in_all(cycle).get(pool, 0) <= self._least_left(pool) for pool, more in asked.items()):
            return
        until = self.gone_by(work) if work.seats else min(NEVER, self.now + stays_of(work))
        kept = self.draws([(self.now + entry.at, stays_of(entry.work), entry.places) for entry in cycle.book.ahead_of(work, quota_type, milli)])
        for pool in sorted(asked, key=_by_name):
            if (found := self.in_the_way(pool, asked[pool], self.now, until, kept.get(pool, ()))) is not None:
                yield pool, found, asked[pool], kept.get(pool, ())

    def _kept_in_all(self, cycle: "Cycle") -> dict[str | None, int]:
        """What all that is reserved would draw together: no less than what is kept at any time for jobs ahead of one."""
        entries = cycle.book.entries
        last = entries[-1] if entries else None  # those before it are the same as long as it is the same
        if self._kept is None or self._kept[0] is not last:
            self._kept = last, self.by_pool((node, 1000 * count) for entry in entries for node, count in entry.places)
        return self._kept[1]

    def _least_left(self, pool: str | None) -> int:
        """The least that its caps leave of what stands, from now on for ever: less is drawn later."""
        self._follow()
        if (least := self._least.get(pool)) is None:
            levels = self._levels[pool]
            least = self._least[pool] = min(1000 * cap.watts - levels[max(self.now, cap.start)] for cap in self.caps[pool])
        return least

    def draws(self, coming: Iterable[tuple[int, int, Iterable[tuple[int, int]]]]) -> dict[str | None, list[Draw]]:
        """What those draw by pool who come at an instant, for how long, on so many GPUs of nodes."""
        found: dict[str | None, list[Draw]] = {}
        for at, stays, places in coming:
            for pool, drawn in self.by_pool((node, 1000 * count) for node, count in places).items():
                found.setdefault(pool, []).append((drawn, at, NEVER if stays >= NEVER else at + stays))
        return found


def _by_name(pool: str | None) -> tuple[bool, str]:
    return pool is not None, pool or ""


def stays_of(work: Work) -> int:
    """How long a job may run in one place, by its limit."""
    return NEVER if work.job.limit_ms is None else max(1, work.job.limit_ms)


def kilowatts(milliwatts: int, *, up: bool = False) -> str:
    """As people write power: in kW with one decimal; what is left is rounded down, what is needed up."""
    tenths = -(-milliwatts // 100_000) if up else milliwatts // 100_000
    return f"{tenths // 10:,}.{tenths % 10} kW".replace(".0 kW", " kW")


def _told(pool: str | None, cap: PowerCap, now: int) -> str:
    whose = "the fleet's cap" if pool is None else f"the cap of pool {pool}"
    if cap.start <= now:
        when = f" until {spell_instant(cap.end)}" if cap.end is not None else ""
    else:
        when = f" from {spell_instant(cap.start)}" + (f" to {spell_instant(cap.end)}" if cap.end is not None else " on")
    return f"{whose} of {kilowatts(1000 * cap.watts)}{when}"


def _facts(pool: str | None, found: Stretch, needed: int) -> dict[str, object]:
    cap = found.cap
    named = {} if pool is None else {"pool": pool}
    lasts = {"start": spell_instant(cap.start)} | ({} if cap.end is None else {"end": spell_instant(cap.end)})
    return {"cap_watts": cap.watts, "left_watts": max(0, found.left) // 1000, "needed_watts": -(-needed // 1000), **named, **lasts}


def _refusal(pool: str | None, found: Stretch, needed: int, now: int, *, kept: bool) -> Reason:
    left = kilowatts(found.left) if found.left >= 100_000 else "nothing" if found.left <= 0 else "less than 0.1 kW"
    ahead = " with what is reserved for jobs ahead" if kept else ""
    detail = f"{_told(pool, found.cap, now)} leaves {left}{ahead}; it needs {kilowatts(needed, up=True)}"
    return reason("power", detail, **_facts(pool, found, needed))
