"""When and where could it start? Free GPUs of every node over time, by the estimates of what runs.

Beside each node's step function stands, per number of GPUs asked for, a table of the gaps in which at least so many are
free. One worker is then an `argmin`; a gang is two sorted arrays and a count. Where there are few nodes the gaps stand in rows, which
are looked at one by one. Whole GPUs only: where more decides, the job is tried in a rehearsal from then on.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from .grid import Grid, Ints, Level

MANY_STEPS = 24  # of one node, from which on it is worth a look which of them are none any more
FEW, FEW_GAPS = 128, 200  # nodes, and their gaps, from which on columns are sooner looked at than one after the other
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
        self._rows: dict[int, Rows] = {}
        self._in_rows = grid.size <= FEW  # whether gaps are looked at one by one: until there are too many, and again when time has passed

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
        if self._in_rows:
            if sum(map(len, self._rows_of(gpus))) <= FEW_GAPS:
                return self._of_few(gpus, workers, length, allowed, level)
            self._in_rows = False
            self._rows.clear()
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

    def _of_few(self, gpus: int, workers: int, length: int, allowed: Ints, level: Level | None) -> tuple[int, list[tuple[int, int]]] | None:
        """The same for so few nodes that looking at one gap after the other is sooner done than in columns."""
        may, now = allowed.tolist(), self.now
        if workers == 1:
            return self._one_of_few(gpus, length, may)
        opens: list[int] = []
        closes: list[int] = []
        nodes: list[int] = []
        for multiple in range(gpus, min(self.grid.most_gpus, gpus * workers) + 1, gpus):
            for node, row in enumerate(self._rows_of(multiple)):
                if not may[node]:
                    continue
                for start, end in row:
                    begin = start if start > now else now
                    if end - begin >= length and end > begin:
                        opens.append(begin)
                        closes.append(end - length)
                        nodes.append(node)
        at = self._first_of_few(opens, closes, nodes, workers, level)
        if at is None:
            return None
        moment, low, high = at
        there = sorted([node for begin, last, node in zip(opens, closes, nodes, strict=True) if begin <= moment <= last and low <= node < high])
        counts: dict[int, int] = {}
        for node in there[:workers]:
            counts[node] = counts.get(node, 0) + gpus
        return moment - now, list(counts.items())

    def _one_of_few(self, gpus: int, length: int, may: list[int]) -> tuple[int, list[tuple[int, int]]] | None:
        best, place, now = END, -1, self.now
        for node, row in enumerate(self._rows_of(gpus)):
            if not may[node]:
                continue
            for start, end in row:
                begin = start if start > now else now
                if begin >= best:
                    break
                if end - begin >= length and end > begin:
                    best, place = begin, node
                    break
        return None if place < 0 else (best - now, [(place, gpus)])

    def _rows_of(self, count: int) -> list[list[tuple[int, int]]]:
        """By node the gaps in which at least so many GPUs are free, in instants: they stay while time passes."""
        rows, now = self._rows.get(count), self.now
        stale: Iterable[int] = range(self.grid.size)
        if rows is None:
            rows = self._rows[count] = Rows([[] for _ in stale], set())
        else:
            stale = rows.stale
        for node in stale:
            rows.gaps[node] = [(start + now, end if end >= END else end + now) for start, end in self.gaps(node, count)]
        rows.stale.clear()
        return rows.gaps

    def _first_of_few(self, opens: list[int], closes: list[int], nodes: list[int], workers: int, level: Level | None) -> tuple[int, int, int] | None:
        """The first moment at which enough gaps are open in one domain, and the domain; ties by path."""
        several = level is not None and len(level) > 1
        here: dict[int, tuple[list[int], list[int]]] = {}
        for begin, last, node in zip(opens, closes, nodes, strict=True):
            domain = level.domain_of(node) if several and level is not None else 0
            known = here.get(domain)
            if known is None:
                known = here[domain] = [], []
            known[0].append(begin)
            known[1].append(last)
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
        return best[0], *(level.slice_of(best[1]) if several and level is not None else (0, self.grid.size))

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
        for rows in self._rows.values():
            rows.stale.add(node)

    def pass_time(self, now: int) -> None:
        """Count from a later moment on. What is told of a node, or a table, follows when it is asked for."""
        self.now = now
        self._in_rows = self.grid.size <= FEW

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


class Rows(NamedTuple):
    """The gaps of nodes in which at least so many GPUs are free, (start, end) in instants."""

    gaps: list[list[tuple[int, int]]]
    stale: set[int]  # nodes that have changed since they were last read


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
