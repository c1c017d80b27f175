"""When and where could it start? Free GPUs of every node over time, by the estimates of what runs.

Beside each node's step function stands, per number of GPUs asked for, a table of the gaps in which at least so many are
free. One worker is then an `argmin`; a gang is two sorted arrays and a count. Whole GPUs only: where more decides, the job is
tried in a rehearsal from then on.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np

from .grid import Grid, Ints, Level

MANY_STEPS = 24  # of one node, from which on it is worth a look which of them are none any more
FEW = 256  # gaps that are looked at one by one
FOREVER = 1 << 60
END = 1 << 61


class Lookahead:
    def __init__(self, grid: Grid, now: int, idle: list[int], releases: list[tuple[int, int, int]]) -> None:
        """`releases` are (time, node, GPUs) of everything that is held now and ends at all."""
        self.grid = grid
        self.now = now
        self._times: list[list[int]] = [[0] for _ in idle]
        self._free: list[list[int]] = [[count] for count in idle]
        self._as_of = [now] * len(idle)  # from when on the steps of a node are counted
        for at, node, count in sorted(releases):
            moment = max(0, at - now)
            times, free = self._times[node], self._free[node]
            if times[-1] == moment:
                free[-1] += count
            else:
                times.append(moment)
                free.append(free[-1] + count)
        self.tables: dict[int, Table] = {}

    def copy(self) -> "Lookahead":
        """One that may be changed while this one stays."""
        copy = Lookahead(self.grid, self.now, [], [])
        copy._times, copy._free, copy._as_of = [list(times) for times in self._times], [list(free) for free in self._free], list(self._as_of)
        return copy

    def _steps(self, node: int) -> tuple[list[int], list[int]]:
        """From when on how many GPUs of a node are free, counted from now."""
        times, free, gone = self._times[node], self._free[node], self.now - self._as_of[node]
        if gone:
            self._as_of[node] = self.now
            if len(times) > 1:
                past = bisect_right(times, gone) - 1
                del free[:past]
                times[:] = [0, *[moment - gone for moment in times[past + 1 :]]]
        return times, free

    def table(self, count: int) -> "Table":
        table = self.tables.get(count)
        if table is None:
            table = self.tables[count] = Table(self, count)
        else:
            table.catch_up(self)
        return table

    def earliest(self, gpus: int, workers: int, length: int, allowed: Ints, level: Level | None) -> tuple[int, list[tuple[int, int]]] | None:
        """The earliest (time, [(node, GPUs)]) for so many workers for so long, inside one domain of the level if one is given."""
        most = self.grid.most_gpus
        if not gpus or gpus > most:
            return None
        if workers == 1:
            return self._one(gpus, length, allowed)
        starts: list[Ints] = []
        lasts: list[Ints] = []
        nodes: list[Ints] = []
        for multiple in range(gpus, most + 1, gpus):
            if (multiple // gpus) > workers:
                break
            table = self.table(multiple)
            good = (table.end - table.start >= length) & (allowed[:, None] > 0)
            rows, columns = np.nonzero(good)
            starts.append(table.start[rows, columns])
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

    def _one(self, gpus: int, length: int, allowed: Ints) -> tuple[int, list[tuple[int, int]]] | None:
        table = self.table(gpus)
        good = (table.end - table.start >= length) & (allowed[:, None] > 0)
        starts = np.where(good, table.start, END)
        flat = int(starts.argmin())
        node, column = divmod(flat, starts.shape[1])
        moment = int(starts[node, column])
        return None if moment >= END else (moment, [(node, gpus)])

    def _first_time(self, start: Ints, last: Ints, node: Ints, workers: int, level: Level | None) -> tuple[int, int, int] | None:
        """The first moment at which enough gaps are open in one domain, and the domain; ties by path."""
        if len(start) < FEW:
            return self._first_of_few(start.tolist(), last.tolist(), node.tolist(), workers, level)
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

    def _first_of_few(self, start: list[int], last: list[int], node: list[int], workers: int, level: Level | None) -> tuple[int, int, int] | None:
        """The same for so few gaps that looking at them one by one is sooner done."""
        here: dict[int, tuple[list[int], list[int]]] = {0: (start, last)}
        if level is not None and len(level) > 1:
            here = {}
            for opens, closes, at in zip(start, last, node, strict=True):
                domain = level.domain_of(at)
                known = here.get(domain)
                if known is None:
                    known = here[domain] = [], []
                known[0].append(opens)
                known[1].append(closes)
        best: tuple[int, int] | None = None
        for domain, (opening, closing) in here.items():
            if len(opening) < workers:
                continue
            opening.sort()
            closing.sort()
            for moment in opening[workers - 1 :]:
                if best is not None and (moment, domain) >= best:
                    break
                if bisect_right(opening, moment) - bisect_left(closing, moment) >= workers:
                    best = (moment, domain)
                    break
        if best is None:
            return None
        return best[0], *((0, self.grid.size) if level is None or len(level) == 1 else level.slice_of(best[1]))

    def reserve(self, moment: int, length: int, places: list[tuple[int, int]]) -> None:
        """Keep the GPUs from the moment on for so long."""
        until = END if length >= FOREVER else moment + length
        for node, count in places:
            self.hold(moment, until, node, count)

    def give_back(self, moment: int, length: int, places: list[tuple[int, int]]) -> None:
        self.reserve(moment, length, [(node, -count) for node, count in places])

    def gaps(self, node: int, count: int) -> list[tuple[int, int]]:
        """From when to when at least so many GPUs of a node are free."""
        times, free = self._steps(node)
        if len(times) == 1:
            return [(0, END)] if free[0] >= count else []
        gaps = []
        opened = -1
        for at, have in zip(times, free, strict=True):
            if have >= count:
                if opened < 0:
                    opened = at
            elif opened >= 0:
                gaps.append((opened, at))
                opened = -1
        if opened >= 0:
            gaps.append((opened, END))
        return gaps

    def is_no_other(self, node: int, gpus: int, workers: int, length: int, at: int, taken: int) -> bool:
        """Whether a node of which so many GPUs are taken at a date, or none, offers them then, and no more or sooner: so that the date stays."""
        for count in range(gpus, min(gpus * workers, self.grid.most_gpus) + 1, gpus):
            long = [(start, end) for start, end in self.gaps(node, count) if end - start >= length]
            if count > taken:
                if long and long[0][0] <= at:
                    return False
            elif not long or long[0][0] < at or not any(start <= at <= end - length for start, end in long):
                return False
        return True

    def hold(self, moment: int, until: int, node: int, count: int) -> None:
        """So many GPUs of a node are held from one moment to another; fewer than none: given back."""
        times, free = self._steps(node)
        first = self._cut(times, free, moment)
        stop = len(times) if until >= END else self._cut(times, free, until)
        for place in range(first, stop):
            free[place] -= count
        if len(times) > MANY_STEPS:
            steps = [place for place, have in enumerate(free) if not place or have != free[place - 1]]
            times[:], free[:] = [times[place] for place in steps], [free[place] for place in steps]
        for table in self.tables.values():
            table.stale.add(node)

    def pass_time(self, now: int) -> None:
        """Count from a later moment on. What is told of a node, or a table, follows when it is asked for."""
        self.now = now

    def _cut(self, times: list[int], free: list[int], moment: int) -> int:
        """The place of the step that begins at the moment, made if there is none."""
        place = bisect_right(times, moment) - 1
        if times[place] == moment:
            return place
        times.insert(place + 1, moment)
        free.insert(place + 1, free[place])
        return place + 1

    def least_free(self, node: int, first: int, until: int, besides: Sequence[tuple[int, int, int]] = ()) -> int:
        """The fewest GPUs free on a node from one moment to another; `besides` lists (from, to, GPUs) that are not held against it."""
        times, free = self._steps(node)
        place = bisect_right(times, first) - 1
        least = END
        for at, count in zip(times[place:], free[place:], strict=True):
            if at >= until:
                break
            least = min(least, count + sum(more for start, end, more in besides if start <= at < end))
        return least


class Table:
    """The gaps in which at least `count` GPUs of a node are free: (start, end) by node, padded with empty ones."""

    def __init__(self, ahead: Lookahead, count: int) -> None:
        self.count = count
        self.now = ahead.now
        self.stale: set[int] = set()  # nodes that have changed since it was last read
        size = ahead.grid.size
        rows = [(node, row) for node in range(size) if (row := ahead.gaps(node, count))]
        self.width = max(2, max([len(row) for _, row in rows], default=2))
        self.start = np.full((size, self.width), END, dtype=np.int64)
        self.end = np.zeros((size, self.width), dtype=np.int64)
        for node, row in rows:
            for column, (start, end) in enumerate(row):
                self.start[node, column] = start
                self.end[node, column] = end

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
