"""One future of a queue, event by event, on counts of free GPUs by node. See `futures`."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import accumulate, chain
from typing import NamedTuple

from scheduler.engine.model.values import Settings
from scheduler.engine.state.grid import Grid
from scheduler.engine.state.tree import Division, Tree

from .giving_way import Candidate, Legal, Search
from .one import Alike, One

MOVE_MS = 60_000  # what saving and loading takes of who is moved or put out
TRIED_NODES = 8  # that are looked at for moves, those with most free GPUs first
LARGE_GPUS = 8


class Kept(NamedTuple):
    """Room that is kept for who is blocked: from an instant on, GPUs by node, for so long."""

    at: int
    nodes: dict[int, int]
    length: int
    within: bool  # its guarantee


class Playing:
    def __init__(self, grid: Grid, tree: Tree, settings: Settings, now: int) -> None:
        self.grid, self.tree, self.settings, self.now = grid, tree, settings, now
        self.free = [0 if node.spare else count for node, count in zip(grid.nodes, grid.usable_count, strict=True)]
        self.most = max(self.free, default=0)
        self.nodes_by_free: list[list[set[int]]] = [[set() for _ in range(self.most + 1)] for _ in grid.types]
        for node, count in enumerate(self.free):
            self.nodes_by_free[grid.type_of[node]][count].add(node)
        self.nodes_of: list[list[int]] = [[] for _ in grid.types]
        for node, kind in enumerate(grid.type_of):
            self.nodes_of[kind].append(node)
        self.on: list[dict[One, int]] = [{} for _ in self.free]  # who stands on a node, with how many GPUs
        self._ends: list[list[tuple[int, int]] | None] = [None] * len(self.free)  # when they are expected to leave it, the first in front
        self._rooms: dict[tuple[tuple[int, ...], int], list[tuple[int, int]]] = {}  # when nodes have so many GPUs free, as things stand
        self.standing: dict[int, dict[One, None]] = {}  # by leaf
        self._inside: dict[int, set[One]] = {}  # by leaf, who stands inside its guarantee
        self.queues: dict[int, dict[Alike, list[One]]] = {}  # by leaf and what they need
        self.timers: list[tuple[int, int, One, int]] = []
        self.starts: dict[str, int] = {}
        self.asked = 0  # of those that have not started yet
        self._coming: Iterator[tuple[int, One]] = iter(())
        self._next: tuple[int, One] | None = None
        self._serial = 0
        self._forks: dict[tuple[int, int], tuple[int, int]] = {}
        self.fresh: dict[One, None] = {}  # who was started at this instant on what was free
        self.in_order = True  # nobody was served by right yet at this instant
        self.in_vain = False  # somebody would take back what was started at this instant
        self.begin = now
        self.served: dict[int, int] = {}  # by leaf: what those had that have left, in thousandths of a GPU times milliseconds

    # What stands and what waits

    def _give(self, node: int, gpus: int) -> None:
        self._rooms.clear()
        by_free, have = self.nodes_by_free[self.grid.type_of[node]], self.free[node]
        by_free[max(0, have)].discard(node)
        self.free[node] = have + gpus
        by_free[max(0, have + gpus)].add(node)

    def division(self, one: One) -> Division:
        return self.tree.divisions[self.tree.division_of[self._type(one)]]

    def _type(self, one: One) -> int:
        """Where it is charged: as of what it stands on, or would ask for first."""
        return self.grid.type_of[one.seats[0][0]] if one.seats else one.types[0]

    def _ask(self, one: One, milli: int) -> None:
        for index in {self.tree.division_of[kind] for kind in one.types}:
            self.tree.add(self.tree.divisions[index].requested, one.leaf, milli)

    def stand(self, one: One, seats: list[tuple[int, int]], since: int, until: int) -> None:
        if not seats:
            return  # it has parts of GPUs that others hold already: nobody gains anything when it goes
        one.seats, one.since, one.ends = seats, since, max(until, self.now + 1)
        one.version += 1
        for node, gpus in seats:
            self._give(node, -gpus)
            self.on[node][one] = self.on[node].get(one, 0) + gpus
            self._ends[node] = None
        self._charge(one, 1)
        self.standing.setdefault(one.leaf, {})[one] = None
        self._inside.pop(one.leaf, None)
        self._until_end(one)

    def _charge(self, one: One, sign: int) -> None:
        kind = self._type(one)
        milli = sign * 1000 * sum(gpus for _, gpus in one.seats)
        self.tree.charge(one.leaf, kind, milli, one.fixed)
        self.tree.add(self.division(one).requested, one.leaf, milli)

    def _until_end(self, one: One) -> None:
        self._serial += 1
        heappush(self.timers, (one.ends, self._serial, one, one.version))

    def _leave(self, one: One) -> None:
        self._charge(one, -1)
        self.served[one.leaf] = self.served.get(one.leaf, 0) + self._had(one)
        for node, gpus in one.seats:
            self._give(node, gpus)
            self.on[node].pop(one, None)
            self._ends[node] = None
        del self.standing[one.leaf][one]
        self._inside.pop(one.leaf, None)
        one.seats = []
        one.version += 1

    def wait_all(self, works: Sequence[One]) -> None:
        asked: dict[tuple[int, tuple[int, ...]], int] = {}
        for one in works:
            self.queues.setdefault(one.leaf, {}).setdefault(one.alike, []).append(one)
            asked[one.leaf, one.types] = asked.get((one.leaf, one.types), 0) + one.milli
            self.asked += one.asked
        for queue in self.queues.values():
            for alike in queue.values():
                alike.sort(key=_order)
        for (leaf, types), milli in asked.items():
            for index in {self.tree.division_of[kind] for kind in types}:
                self.tree.add(self.tree.divisions[index].requested, leaf, milli)

    def wait(self, one: One) -> None:
        insort(self.queues.setdefault(one.leaf, {}).setdefault(one.alike, []), one, key=_order)
        self._ask(one, one.milli)
        self.asked += one.asked

    def _start(self, one: One, seats: list[tuple[int, int]]) -> None:
        queue = self.queues[one.leaf]
        queue[one.alike].remove(one)
        if not queue[one.alike]:
            del queue[one.alike]
            if not queue:
                del self.queues[one.leaf]
        self._ask(one, -one.milli)
        if one.asked:
            one.asked = False
            self.asked -= 1
            self.starts[one.name] = self.now
        self.stand(one, seats, self.now, self.now + one.takes)

    def _put_out(self, one: One) -> None:
        one.takes = max(1, one.ends - self.now) + MOVE_MS
        self._leave(one)
        self.wait(one)

    # Events

    def come(self, coming: Iterator[tuple[int, One]]) -> None:
        """Who is submitted on the way, in order."""
        self._coming = coming
        self._next = next(coming, None)

    def run(self, most_events: int) -> None:
        """Until all that are asked for have started, or nothing more happens."""
        self._plan()
        while self.timers and self.asked and most_events > 0:
            at = self.timers[0][0]
            if self._next is not None:
                at = min(at, self._next[0])
            self.now = max(self.now, at)
            self._rooms.clear()
            left = False
            while self._next is not None and self._next[0] == at:
                self.wait(self._next[1])
                self._next = next(self._coming, None)
                left = True
            while self.timers and self.timers[0][0] == at:
                _, _, one, version = heappop(self.timers)
                if one.version == version:
                    self._leave(one)
                    left = True
            if left:
                most_events -= 1
                self._plan()
        if self.timers and self.asked and self.now > self.begin:
            self._reckon()

    def _had(self, one: One) -> int:
        return one.milli * (self.now - max(one.since, self.begin))

    def _reckon(self) -> None:
        """When the others start if their queues go on being served as they were until here: each behind the work of those before it.

        What limits leave no room for has to end first.
        """
        ends: dict[tuple[int, int, int, tuple[int, int]], tuple[list[int], list[int]]] = {}
        for leaf, queue in self.queues.items():
            stand = self.standing.get(leaf, {})
            had = self.served.get(leaf, 0) + sum(self._had(one) for one in stand)
            before = sum(one.milli * (one.ends - self.now) for one in stand) // max(1, len(stand))  # until the first of them ends
            able = [one for works in queue.values() for one in works if not self._refused(one, alone=True)] if had else []
            for one in sorted(able, key=_order):
                if one.asked:
                    self.starts[one.name] = max(self.now + before * (self.now - self.begin) // had, self._limited_until(one, ends))
                before += one.milli * one.takes

    def _limited_until(self, one: One, known: dict[tuple[int, int, int, tuple[int, int]], tuple[list[int], list[int]]]) -> int:
        """When limits let it start, if nothing else starts below them. `known` keeps what is asked again for others of its queue."""
        division, index = self.division(one), self.tree.division_of[self._type(one)]
        at = self.now
        for place in self.tree.path[one.leaf]:
            limit = self.tree.limit_for(division, place)
            over = 0 if limit is None else division.used[place] + one.milli - limit
            if over <= 0:
                continue
            key = (place, index, one.leaf, one.order[:2])
            if key not in known:
                known[key] = self._given_back(place, index, one)
            ends, freed = known[key]
            found = bisect_left(freed, over)
            if found < len(ends):
                at = max(at, ends[found])
        return at

    def _given_back(self, place: int, index: int, to: One) -> tuple[list[int], list[int]]:
        """When what stands below a place ends, and how much is given back by then in all. What may be put out for the job counts as given back."""
        rows = []
        for leaf, stand in self.standing.items():
            if place not in self.tree.path[leaf] or not stand:
                continue
            promised = self._promised(leaf)
            for other in stand:
                if self.tree.division_of[self._type(other)] != index:
                    continue
                yields = not other.fixed and (other.order[:2] > to.order[:2] if leaf == to.leaf else other not in promised)
                rows.append((self.now if yields else other.ends, 1000 * sum(gpus for _, gpus in other.seats)))
        rows.sort()
        return [ends for ends, _ in rows], list(accumulate(milli for _, milli in rows))

    def _plan(self) -> None:
        """Start who is served and fits; then make room by moves and reclaims, one job after the other.

        Where somebody would take back what has been started just now, those within their fair shares are served before all others.
        """
        self.fresh.clear()
        self.in_order = True
        again = True
        while again and self.queues:
            self.tree.share()
            again = False
            self._serve_all()
            for one in self._in_order_of_queues():
                seats = self._by_moves(one) or self._by_taking(one)
                if seats:
                    self._start(one, seats)
                    again = True
                    break
                if self.in_vain:
                    break
            self.in_order = False
            if self.in_vain:
                self.in_vain, again = False, True
                self._take_back()
                self.tree.share()
                self._serve_all(by_right=True)

    def _serve_all(self, *, by_right: bool = False) -> None:
        fits = {alike: self._has_room(alike) for alike in {alike for queue in self.queues.values() for alike in queue}}
        room = {
            (leaf, alike)
            for leaf, queue in self.queues.items()
            for alike, works in queue.items()
            if fits[alike] and not self._refused(works[0]) and (not by_right or self._within_fair(works[0]))
        }
        if room:
            self._serve(room, by_right=by_right)

    def _take_back(self) -> None:
        """Nobody has started at this instant."""
        for one in self.fresh:
            one.takes = one.ends - one.since
            self._leave(one)
            self.wait(one)
            if self.starts.get(one.name) == self.now:
                del self.starts[one.name]
                one.asked = True
                self.asked += 1
        self.fresh.clear()

    def _in_order_of_queues(self) -> Iterator[One]:
        """Those that may have room made for them: a leaf's in their own order, and the leaves by who is next in each."""
        firsts = {leaf: sorted(self._firsts(leaf, queue), key=_order, reverse=True) for leaf, queue in self.queues.items()}
        heads = [(self._key(works[-1]), leaf) for leaf, works in firsts.items() if works]
        heapify(heads)
        while heads:
            _, leaf = heads[0]
            works = firsts[leaf]
            yield works.pop()
            if works:
                heapreplace(heads, (self._key(works[-1]), leaf))
            else:
                heappop(heads)

    def _firsts(self, leaf: int, queue: dict[Alike, list[One]]) -> Iterable[One]:
        """The first of each kind of a leaf, as far as it may have room made for it. Where there is room, it is kept for somebody."""
        for alike, works in queue.items():
            one = works[0]
            if self._within_fair(one) and not self._refused(one) and not self._has_room(alike):
                yield one

    def _within_fair(self, one: One) -> bool:
        division = self.division(one)
        return division.used[one.leaf] + one.milli <= division.fair[one.leaf]

    def _within(self, one: One) -> bool:
        return self.tree.within_guarantee(one.leaf, one.types[0], one.milli)

    def _refused(self, one: One, *, alone: bool = False) -> bool:
        """Whether a limit, or for fixed work a guarantee, stands in its way: as things stand, or even if it were alone."""
        division = self.division(one)
        for place in self.tree.path[one.leaf]:
            limit = self.tree.limit_for(division, place)
            if limit is not None and (0 if alone else division.used[place]) + one.milli > limit:
                return True
            promised = division.standing[place]
            if one.fixed and promised is not None and (0 if alone else division.fixed[place]) + one.milli > promised:
                return True
        return False

    def _key(self, one: One) -> tuple[tuple[int | str, ...], ...]:
        division = self.division(one)
        return tuple(self.tree.key(place, division, one.milli) for place in reversed(self.tree.path[one.leaf]))

    # Who is served

    def _serve(self, room: set[tuple[int, Alike]], *, by_right: bool) -> None:
        """In the order of queues, whoever fits without standing in the way of who was refused before; or only those within their fair shares."""
        refused: list[tuple[One, bool]] = []
        kept: list[Kept] | None = None
        blocked_within = False
        firsts = {leaf: sorted([works[0] for works in queue.values()], key=_order) for leaf, queue in self.queues.items()}

        def head(leaf: int) -> One | None:
            return next((one for one in firsts[leaf] if not by_right or self._within_fair(one)), None)

        heads = {leaf: one for leaf in self.queues if (one := head(leaf)) is not None}
        keys = {leaf: self._key(one) for leaf, one in heads.items()}
        while heads and room:
            leaf = min(heads, key=lambda leaf: (keys[leaf], leaf))
            one = heads[leaf]
            seats: list[tuple[int, int]] | None = None
            gated, within = self._refused(one), self._within(one)
            if (leaf, one.alike) in room and not gated:
                if kept is None:
                    kept = []
                    for other, was_within in refused:
                        self._keep(other, was_within, kept)
                seats = self._fit(one, within, kept)
            firsts[leaf].remove(one)
            if seats is not None:
                self._start(one, seats)
                following = self.queues.get(leaf, {}).get(one.alike)
                if following:
                    insort(firsts[leaf], following[0], key=_order)
                self.fresh[one] = None
                self.tree.share()
                room = {place for place in room if self._has_room(place[1])}
            else:
                fair = not gated and self._within_fair(one)
                blocked_within = blocked_within or fair
                # Who is above his fair share has room kept only as long as nobody within his waits.
                if not gated and len(refused) < self.settings.backfill_depth and (fair or not blocked_within):
                    refused.append((one, within))
                    if kept is not None:
                        self._keep(one, within, kept)
            after = head(leaf)
            if after is None:
                del heads[leaf]
            else:
                heads[leaf] = after
            # A placement changes shares, and with them the keys of all.
            if seats is not None:
                keys = {leaf: self._key(one) for leaf, one in heads.items()}
            elif after is not None:
                keys[leaf] = self._key(after)

    def _has_room(self, alike: Alike) -> bool:
        types, demand = alike
        return any(all(self._counted(kind, gpus, count) for gpus, count in demand) for kind in types)

    def _counted(self, kind: int, gpus: int, count: int) -> bool:
        by_free = self.nodes_by_free[kind]
        for have in range(self.most, gpus - 1, -1):
            count -= len(by_free[have]) * (have // gpus)
            if count <= 0:
                return True
        return False

    def _fit(self, one: One, within: bool, kept: Sequence[Kept]) -> list[tuple[int, int]] | None:
        """Where it would stand, on the fullest nodes that suffice."""
        for kind in one.types:
            found: dict[int, int] = {}
            if all(self._fit_role(kind, gpus, count, found, one, within, kept) for gpus, count in one.demand):
                return list(found.items())
        return None

    def _fit_role(self, kind: int, gpus: int, count: int, found: dict[int, int], one: One, within: bool, kept: Sequence[Kept]) -> bool:
        for have in range(gpus, self.most + 1):
            for node in sorted(self.nodes_by_free[kind][have]):
                fits = (have - found.get(node, 0)) // gpus
                while fits > 0 and kept and not self._spares(node, found.get(node, 0) + min(fits, count) * gpus, one, within, kept):
                    fits -= 1
                if fits > 0:
                    taken = min(fits, count)
                    found[node] = found.get(node, 0) + taken * gpus
                    count -= taken
                    if not count:
                        return True
        return False

    def _spares(self, node: int, gpus: int, one: One, within: bool, kept: Sequence[Kept]) -> bool:
        """Whether so many GPUs less on a node leave what is kept there to others. What stays within its guarantee heeds nobody above his."""
        for place in kept:
            need = place.nodes.get(node)
            if need and self.now + one.stated > place.at and not (within and not place.within) and self._free_at(node, place.at) - gpus < need:
                return False
        return True

    def _expected(self, one: One) -> int:
        """When it ends by what it states; who has outlived that is expected to take as long again, and so on."""
        length = one.stated
        while one.since + length <= self.now:
            length *= 2
        return one.since + length

    def _leaving(self, node: int) -> list[tuple[int, int]]:
        """When who stands on a node is expected to leave it, with how many GPUs. It holds until somebody comes, leaves or outlives that."""
        known = self._ends[node]
        if known is None or (known and known[0][0] <= self.now):
            known = self._ends[node] = sorted((self._expected(one), gpus) for one, gpus in self.on[node].items())
        return known

    def _free_at(self, node: int, at: int) -> int:
        have = self.free[node]
        for end, gpus in self._leaving(node):
            if end > at:
                break
            have += gpus
        return have

    def _keep(self, one: One, within: bool, kept: list[Kept]) -> None:
        """Keep room for who is refused."""
        if len(one.demand) > 1:
            return
        gpus, count = one.demand[0]
        times = self._room_for(one.types, gpus)
        taken = {node for place in kept for node in place.nodes}
        if taken:
            times = [slot if slot[1] not in taken else (self._beside(kept, *slot, gpus), slot[1]) for slot in times]
            times.sort()
        if len(times) >= count:
            kept.append(Kept(times[count - 1][0], {node: gpus for _, node in times[:count]}, one.stated, within))

    def _room_for(self, types: tuple[int, ...], gpus: int) -> list[tuple[int, int]]:
        """When each node has so many GPUs free, the soonest in front; known until somebody comes or leaves, or time goes on."""
        key = (types, gpus)
        known = self._rooms.get(key)
        if known is None:
            known = []
            for node in chain.from_iterable(self.nodes_of[kind] for kind in types):
                at, have = self.now, self.free[node]
                if have < gpus:
                    for end, more in self._leaving(node):
                        have += more
                        if have >= gpus:
                            at = end
                            break
                    else:
                        continue
                known.append((at, node))
            known.sort()
            self._rooms[key] = known
        return known

    def _beside(self, kept: Sequence[Kept], at: int, node: int, gpus: int) -> int:
        """When a node has so many GPUs free beside those that are kept there."""
        for place in kept:
            if node in place.nodes and self._free_at(node, max(place.at, at)) - place.nodes[node] < gpus:
                at = max(at, place.at + place.length)
        return at

    # Making room

    def _by_moves(self, one: One) -> list[tuple[int, int]] | None:
        """Move small jobs of other nodes together, so that it fits."""
        moves = self.settings.max_moves
        if "consolidate" not in self.settings.passes or not one.gives_way or len(one.demand) > 1 or moves == 0:
            return None
        gpus, count = one.demand[0]
        for kind in one.types:
            by_free = self.nodes_by_free[kind]
            if sum(have * len(by_free[have]) for have in range(self.most + 1)) < gpus * count:
                continue
            found = self._emptied(kind, gpus, count, len(self.on) if moves is None else moves)
            if found is not None:
                seats, plan = found
                for other, to in plan:
                    self._move(other, to)
                return seats
        return None

    def _emptied(self, kind: int, gpus: int, count: int, moves: int) -> tuple[list[tuple[int, int]], list[tuple[One, int]]] | None:
        by_free = self.nodes_by_free[kind]
        order = [node for have in range(self.most, 0, -1) for node in sorted(by_free[have])]
        left = {node: self.free[node] for node in order}
        plan: list[tuple[One, int]] = []
        seats: list[tuple[int, int]] = []
        for node in order[: TRIED_NODES + count]:
            if len(seats) == count:
                break
            found = self._cleared(node, gpus - left[node], left, {other for other, _ in plan}, {seat for seat, _ in seats})
            if found is None or len(plan) + len(found) > moves:
                continue
            for other, to in found:
                left[to] -= other.seats[0][1]
                left[node] += other.seats[0][1]
            plan += found
            left[node] -= gpus
            seats.append((node, gpus))
        return (seats, plan) if len(seats) == count else None

    def _cleared(self, node: int, need: int, left: dict[int, int], moved: set[One], taken: set[int]) -> list[tuple[One, int]] | None:
        """Who has to move where, for so many more GPUs to be free on a node."""
        have, found = dict(left), []
        for other in sorted(self.on[node], key=lambda other: (self.on[node][other], -other.since, other.order)):
            if need <= 0:
                break
            held = self.on[node][other]
            if len(other.seats) > 1 or not other.gives_way or other in moved:
                continue
            to = min((to for to in have if to != node and to not in taken and have[to] >= held), key=lambda to: (have[to], to), default=None)
            if to is not None:
                found.append((other, to))
                have[to] -= held
                need -= held
        return found if need <= 0 else None

    def _move(self, one: One, to: int) -> None:
        ((node, gpus),) = one.seats
        self._give(node, gpus)
        del self.on[node][one]
        self._give(to, -gpus)
        self.on[to][one] = gpus
        self._ends[node] = self._ends[to] = None
        one.seats = [(to, gpus)]
        one.ends += MOVE_MS
        one.version += 1
        self._until_end(one)

    def _by_taking(self, one: One) -> list[tuple[int, int]] | None:
        """Put out whom it may: of other queues above what they may count on, or lower ones of its own."""
        passes = self.settings.passes
        seats = self._taken(one, self._reclaimable(one)) if "reclaim" in passes else None
        if seats or self.in_vain or "preempt" not in passes:
            return seats
        return self._taken(one, self._preemptible(one))

    def _fork(self, one: int, other: int) -> tuple[int, int]:
        found = self._forks.get((one, other))
        if found is None:
            found = self._forks[one, other] = self.tree.fork(one, other)
        return found

    def _reclaimable(self, one: One) -> list[tuple[One, Legal]]:
        division, tree = self.division(one), self.tree
        found: list[tuple[One, Legal]] = []
        for leaf, works in self.standing.items():
            if leaf == one.leaf or not works:
                continue
            mine, theirs = self._fork(one.leaf, leaf)
            promised, own = division.guaranteed[theirs], division.guaranteed[mine]
            floor = division.counts_on[theirs]
            if promised is not None and (own is None or division.used[mine] + one.milli <= own):
                floor = min(floor, promised)
            if division.used[theirs] <= floor:
                continue
            spared = tree.nearest(theirs, "reclaim_min_runtime_ms", self.settings.reclaim_min_runtime_ms)

            def legal(taken: dict[int, int], theirs: int = theirs, floor: int = floor) -> bool:
                return division.used[theirs] - taken.get(theirs, 0) > floor

            found += [
                (other, legal)
                for other in works
                if other.gives_way and (self.now - other.since >= max(1, spared) or (self.in_order and other in self.fresh))
            ]
        return found

    def _preemptible(self, one: One) -> list[tuple[One, Legal]]:
        spared = self.tree.nearest(one.leaf, "preempt_min_runtime_ms", self.settings.preempt_min_runtime_ms)
        lower = (other for other in self.standing.get(one.leaf, ()) if other.order[:2] > one.order[:2])
        return [(other, _always) for other in lower if other.gives_way and self.now - other.since >= max(1, spared)]

    def _taken(self, one: One, victims: list[tuple[One, Legal]]) -> list[tuple[int, int]] | None:
        """Put out as few as suffice, those that lose least first; larger ones only where no set of others makes room."""
        if not victims or len(one.demand) > 1:
            return None
        bound = max(LARGE_GPUS * 1000, 2 * one.milli)
        search = Search(self, one)
        if not search.is_possible([other for other, _ in victims]):
            return None
        ranked = self._ranked(victims, bound)
        for most in (bound, max(other.milli for other, _ in victims)):
            among = [victim for victim in ranked if victim[1].milli <= most]
            needed = search.least(among)
            if needed is not None and self._cross(one, needed):
                needed = search.least(self._crossing_none(one, among)) or needed
            if needed is not None:
                if any(other in self.fresh for other in needed):
                    self.in_vain = True
                    return None
                for other in needed:
                    self._put_out(other)
                return self._fit(one, True, ())
            if len(among) == len(ranked):
                break
        return None

    def _line(self, one: One, other: One) -> tuple[int, int]:
        """The node that answers for a victim, and its line: its fair share where it stands above, else its guarantee."""
        division, theirs = self.division(one), self._fork(one.leaf, other.leaf)[1]
        line = division.counts_on[theirs]
        return theirs, line if division.used[theirs] >= line else min(division.used[theirs], division.guaranteed[theirs] or 0)

    def _cross(self, one: One, victims: Sequence[One]) -> bool:
        """Whether a set leaves a victim's node below its line; what was started at this instant goes first all the same."""
        if all(other in self.fresh or other.leaf == one.leaf for other in victims):
            return False
        used, taken, lines = self.division(one).used, dict[int, int](), dict[int, int]()
        for other in victims:
            place, lines[place] = self._line(one, other)
            taken[place] = taken.get(place, 0) + other.milli
        return any(used[place] - milli < lines[place] for place, milli in taken.items())

    def _crossing_none(self, one: One, ranked: Sequence[Candidate]) -> list[Candidate]:
        """The same candidates, each legal as long as its node stays at its line or above."""
        used, found = self.division(one).used, list[Candidate]()
        for rank, other, _ in ranked:
            place, line = self._line(one, other)

            def stays(taken: dict[int, int], place: int = place, least: int = line + other.milli) -> bool:
                return used[place] - taken.get(place, 0) >= least

            found.append((rank, other, stays))
        return found

    def _ranked(self, victims: list[tuple[One, Legal]], bound: int) -> list[Candidate]:
        """In the order in which they are tried: what is borrowed, then by size, class and priority; in each by what is lost, the youngest first."""
        promised = {leaf: self._promised(leaf) for leaf in {other.leaf for other, _ in victims}}
        ranked: list[Candidate] = [
            ((other not in self.fresh, other in promised[other.leaf], other.milli > bound, *other.order[:2]), other, legal)
            for other, legal in victims
        ]
        ranked.sort(key=lambda victim: (victim[0], victim[1].lost(self.now), -victim[1].since, victim[1].order))
        return ranked

    def _promised(self, leaf: int) -> set[One]:
        """Who of a leaf stands inside its guarantee: those that have stood longest. Known until somebody of it comes or leaves."""
        known = self._inside.get(leaf)
        if known is None:
            known, used = set(), 0
            for one in sorted(self.standing[leaf], key=lambda one: (one.gives_way, one.order[:2], one.since, one.order)):
                promised = self.division(one).guaranteed[leaf]
                used += one.milli
                if promised is None or used <= promised:
                    known.add(one)
            self._inside[leaf] = known
        return known


def _order(one: One) -> tuple[int, int, int]:
    return one.order


def _always(taken: dict[int, int]) -> bool:
    return True
