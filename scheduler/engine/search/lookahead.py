"""When and where could it start? Free GPUs of every node over time, by the estimates of what runs.

Beside each node's step function stands, per number of GPUs asked for, a table of the gaps in which at least so many are
free. One worker is then an `argmin`; a gang is two sorted arrays and a count. Whole GPUs only: where more decides, the job is tried in a
rehearsal from then on.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

import numpy as np

from ..state.grid import Grid, Ints, Level

MANY_STEPS = 24  # of one node, from which on it is worth a look which of them are none any more
FOREVER = 1 << 60
END = 1 << 61
Gaps = list[tuple[int, int]]  # from one moment to another
Steps = tuple[list[int], list[int]]
Places = list[tuple[int, int]]  # (node, GPUs)


class Lookahead:
    def __init__(self, grid: Grid, now: int, idle: list[int], releases: list[tuple[int, int, int]]) -> None:
        """`releases` are (time, node, GPUs) of everything that is held now and ends at all."""
        self.grid = grid
        self.now = now
        # Steps by node: from which instant on how many GPUs are free; the first one since ever. Times are instants, and stay while time passes.
        self._times: list[list[int]] = [[0] for _ in idle]
        self._free: list[list[int]] = [[count] for count in idle]
        for at, node, count in sorted(releases):
            times, free = self._times[node], self._free[node]
            if at <= now or times[-1] == at:
                free[-1] += count
            else:
                times.append(at)
                free.append(free[-1] + count)
        self._kept: dict[int, Steps] = {}  # the same of nodes on which places are kept, without those
        self.tables: dict[int, Table] = {}
        self._everywhere: Ints = np.ones(grid.size, dtype=np.int64)

    def copy(self) -> "Lookahead":
        """One that may be changed while this one stays."""
        copy = Lookahead(self.grid, self.now, [], [])
        copy._times, copy._free = [list(times) for times in self._times], [list(free) for free in self._free]
        copy._kept = {node: (list(times), list(free)) for node, (times, free) in self._kept.items()}
        return copy

    def _steps(self, node: int) -> Steps:
        """From which instant on how many GPUs of a node are free: the first step holds now."""
        kept = self._kept.get(node)
        times, free = (self._times[node], self._free[node]) if kept is None else kept
        if len(times) > 1 and times[1] <= self.now:
            past = bisect_right(times, self.now) - 1
            del free[:past], times[1 : past + 1]
        return times, free

    def table(self, count: int) -> "Table":
        table = self.tables.get(count)
        if table is None:
            table = self.tables[count] = Table(self, count)
        else:
            table.catch_up(self)
        return table

    def earliest(self, gpus: int, workers: int, length: int, allowed: Ints | None, level: Level | None, since: int = 0) -> tuple[int, Places] | None:
        """The earliest (time, [(node, GPUs)]) for so many workers for so long, on some of the nodes or all, inside one domain of the level if one is
        given, and not before `since`.
        """
        most = self.grid.most_gpus
        if not gpus or gpus > most:
            return None
        if allowed is None:
            allowed = self._everywhere
        if workers == 1:
            return self._one(gpus, length, allowed, since)
        starts: list[Ints] = []
        lasts: list[Ints] = []
        nodes: list[Ints] = []
        for multiple in range(gpus, most + 1, gpus):
            if (multiple // gpus) > workers:
                break
            table = self.table(multiple)
            opens = table.opens(since)
            good = (table.end - opens >= length) & (allowed[:, None] > 0)
            rows, columns = np.nonzero(good)
            starts.append(opens[rows, columns])
            lasts.append(table.end[rows, columns] - length)
            nodes.append(rows)
        start, last, node = np.concatenate(starts), np.concatenate(lasts), np.concatenate(nodes)
        if len(start) < workers:
            return None
        at = self._first_time(start, last, node, workers, level)
        if at is None:
            return None
        moment, low, high = at
        fits = (start <= moment) & (last >= moment) & (node >= low) & (node < high)
        chosen = np.sort(node[fits], kind="stable")[:workers].tolist()
        counts: dict[int, int] = {}
        for place in chosen:
            counts[place] = counts.get(place, 0) + gpus
        return moment, list(counts.items())

    def _one(self, gpus: int, length: int, allowed: Ints, since: int) -> tuple[int, Places] | None:
        table = self.table(gpus)
        opens = table.opens(since)
        good = (table.end - opens >= length) & (allowed[:, None] > 0)
        starts = np.where(good, opens, END)
        flat = int(starts.argmin())
        node, column = divmod(flat, starts.shape[1])
        moment = int(starts[node, column])
        return None if moment >= END else (moment, [(node, gpus)])

    def _first_time(self, start: Ints, last: Ints, node: Ints, workers: int, level: Level | None) -> tuple[int, int, int] | None:
        """The first moment at which enough gaps are open in one domain, and the domain; ties by path."""
        if level is None or len(level) == 1:
            order = np.sort(start)
            closed = np.sort(last)
            open_now = np.searchsorted(order, order, side="right") - np.searchsorted(closed, order, side="left")
            hits = np.flatnonzero(open_now >= workers)
            return (int(order[hits[0]]), 0, self.grid.size) if len(hits) else None
        domain = np.searchsorted(level.starts_np, node, side="right") - 1
        best: tuple[int, int] | None = None
        by_domain = np.argsort(domain, kind="stable")
        domain, start, last = domain[by_domain], start[by_domain], last[by_domain]
        edges = np.flatnonzero(np.diff(domain)) + 1
        for begin, finish in zip([0, *edges.tolist()], [*edges.tolist(), len(domain)], strict=True):
            if finish - begin < workers:
                continue
            order = np.sort(start[begin:finish])
            if best is not None and order[workers - 1] >= best[0]:
                continue  # enough gaps are open there no earlier than elsewhere
            closed = np.sort(last[begin:finish])
            open_now = np.searchsorted(order, order, side="right") - np.searchsorted(closed, order, side="left")
            hits = np.flatnonzero(open_now >= workers)
            if len(hits) and (best is None or int(order[hits[0]]) < best[0]):
                best = (int(order[hits[0]]), int(domain[begin]))
        return None if best is None else (best[0], *level.slice_of(best[1]))

    def reserve(self, moment: int, length: int, places: Places) -> None:
        """Keep the GPUs from the moment on for so long."""
        start = self.now + moment
        until = END if length >= FOREVER else start + length
        kept = self._kept
        for node, count in places:
            steps = kept.get(node)
            if steps is None:
                times, free = self._steps(node)
                steps = kept[node] = [*times], [*free]
            _hold(steps, start, until, count)
        if self.tables:
            nodes = [node for node, _ in places]
            for table in self.tables.values():
                table.stale.update(nodes)

    def give_back(self, moment: int, length: int, places: Places) -> None:
        self.reserve(moment, length, [(node, -count) for node, count in places])

    def keep_nothing(self) -> None:
        """Give back all places that are kept."""
        for table in self.tables.values():
            table.stale.update(self._kept)
        self._kept.clear()

    def change(self, node: int, leaving: Mapping[int, int]) -> None:
        """So many GPUs of a node more, or fewer, are held from now on, by the moment until which they are."""
        kept = self._kept.get(node)
        for until, count in leaving.items():
            if not until or not count:
                continue
            instant = END if until >= END else self.now + until
            _hold((self._times[node], self._free[node]), 0, instant, count)
            if kept is not None:
                _hold(kept, 0, instant, count)
        for table in self.tables.values():
            table.stale.add(node)

    def gaps(self, node: int, count: int) -> Gaps:
        """From when to when at least so many GPUs of a node are free."""
        times, free = self._steps(node)
        now = self.now
        if node not in self._kept:  # it only becomes more, as those leave who stand there
            first = bisect_left(free, count)
            return [(times[first] - now if first else 0, END)] if first < len(free) else []
        gaps = []
        opened = -1
        for at, have in zip(times, free, strict=True):
            if have >= count:
                if opened < 0:
                    opened = at - now if at else 0
            elif opened >= 0:
                gaps.append((opened, at - now))
                opened = -1
        if opened >= 0:
            gaps.append((opened, END))
        return gaps

    def pass_time(self, now: int) -> None:
        """Count from a later moment on. A table follows when it is asked for."""
        self.now = now

    def least_free(self, node: int, first: int, until: int, besides: Sequence[tuple[int, int, int]] = ()) -> int:
        """The fewest GPUs free on a node from one moment to another; `besides` lists (from, to, GPUs) that are not held against it."""
        times, free = self._steps(node)
        now = self.now
        place, stop = bisect_right(times, now + first) - 1, bisect_left(times, now + until)
        if not besides:
            return min(free[place:stop], default=END)
        least = END
        for at, count in zip(times[place:stop], free[place:stop], strict=True):
            moment = at - now if at else 0
            least = min(least, count + sum([more for start, end, more in besides if start <= moment < end]))
        return least


def _hold(steps: Steps, moment: int, until: int, count: int) -> None:
    """So many GPUs are held from one instant to another; fewer than none: given back."""
    times, free = steps
    first = _cut(times, free, moment) if moment else 0
    stop = len(times) if until >= END else _cut(times, free, until)
    for place in range(first, stop):
        free[place] -= count
    if len(times) > MANY_STEPS:
        places = [place for place, have in enumerate(free) if not place or have != free[place - 1]]
        times[:], free[:] = [times[place] for place in places], [free[place] for place in places]


def _cut(times: list[int], free: list[int], instant: int) -> int:
    """The place of the step that begins at the instant, made if there is none."""
    place = bisect_right(times, instant) - 1
    if times[place] == instant:
        return place
    times.insert(place + 1, instant)
    free.insert(place + 1, free[place])
    return place + 1


class Table:
    """The gaps in which at least `count` GPUs of a node are free: (start, end) by node, padded with empty ones."""

    def __init__(self, ahead: Lookahead, count: int) -> None:
        self.count = count
        self.now = ahead.now
        self.stale: set[int] = set()  # nodes that have changed since it was last read
        size = ahead.grid.size
        rows = [ahead.gaps(node, count) for node in range(size)]
        self.width = max(2, max(map(len, rows), default=2))
        padding = [(END, 0)] * self.width
        both = np.array([[*row, *padding[len(row) :]] for row in rows], dtype=np.int64).reshape(size, self.width, 2)
        self.start, self.end = both[:, :, 0].copy(), both[:, :, 1].copy()

    def opens(self, since: int) -> Ints:
        """When the gaps begin for who comes only then."""
        return np.maximum(self.start, since) if since else self.start

    def catch_up(self, ahead: Lookahead) -> None:
        if self.now != ahead.now:
            self._pass_time(ahead.now - self.now)
            self.now = ahead.now
        for node in self.stale:
            self._refresh(node, ahead.gaps(node, self.count))
        self.stale.clear()

    def _refresh(self, node: int, row: list[tuple[int, int]]) -> None:
        if len(row) > self.width:
            more = len(row) - self.width + 4
            self.start = np.pad(self.start, ((0, 0), (0, more)), constant_values=END)
            self.end = np.pad(self.end, ((0, 0), (0, more)), constant_values=0)
            self.width += more
        self.start[node] = END
        self.end[node] = 0
        for column, (start, end) in enumerate(row):
            self.start[node, column] = start
            self.end[node, column] = end

    def _pass_time(self, gone: int) -> None:
        self.start = np.where(self.start >= END, END, np.maximum(self.start - gone, 0))
        self.end = np.where(self.end >= END, END, self.end - gone)
        over = self.end <= self.start
        self.start[over], self.end[over] = END, 0
