"""When and where could it start? Free GPUs of every node over time, by the estimates of what runs.

Beside the steps of each node stands, per number of GPUs asked for, a table of the gaps in which at least so many are free. One worker is then an
`argmin`; a gang is two sorted arrays and a count. Whole GPUs only: where more decides, the job is tried in a rehearsal from then on.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import numpy as np

from ..state.grid import Grid, Ints, Level

FOREVER = 1 << 60  # a length: it and an instant add up to less than `END`
END = 1 << 61  # an instant
Gaps = list[tuple[int, int]]  # from one instant to another
Steps = tuple[list[int], list[int]]  # from which instant on how many GPUs are free; the first one since ever
Places = list[tuple[int, int]]  # (node, GPUs)


class Lookahead:
    def __init__(self, grid: Grid, now: int, idle: list[int], releases: Iterable[tuple[int, int, int]]) -> None:
        """`releases` are (instant, node, GPUs) of everything that is held now and ends at all."""
        self.grid = grid
        self.now = now  # who looks on from a later moment sets it
        self._idle = idle
        self._ends: list[dict[int, int]] = [{} for _ in idle]  # by node and instant the GPUs that come free
        for at, node, count in releases:
            self._ends[node][at] = self._ends[node].get(at, 0) + count
        self._kept: dict[int, list[tuple[int, int, int]]] = {}  # by node the places that are kept: from, to, GPUs
        self._steps: dict[int, Steps] = {}  # what follows from all that, as far as it was asked
        self._tables: dict[int, Table] = {}
        self.foreseen: list[tuple[int, int, Places]] = []  # who is foreseen without a reservation: from when on, for how long, where

    def copy(self) -> "Lookahead":
        """One that may be changed while this one stays."""
        copy = Lookahead(self.grid, self.now, [*self._idle], ())
        copy._ends = [dict(ends) for ends in self._ends]
        copy.foreseen = [*self.foreseen]
        copy._kept = {node: [*kept] for node, kept in self._kept.items()}
        return copy

    def _steps_of(self, node: int) -> Steps:
        if (known := self._steps.get(node)) is None:
            changes = self._ends[node]
            for past in [at for at in changes if at <= self.now]:
                self._idle[node] += changes.pop(past)
            if node in self._kept:
                changes = dict(changes)
                for start, until, count in self._kept[node]:
                    changes[start] = changes.get(start, 0) - count
                    changes[until] = changes.get(until, 0) + count
            times = sorted([at for at in changes if at < END])
            known = self._steps[node] = [0, *times], [*accumulate([changes[at] for at in times], initial=self._idle[node])]
        return known

    def table(self, count: int) -> "Table":
        if (table := self._tables.get(count)) is None:
            table = self._tables[count] = Table(self.grid.size)
        for node in table.stale:
            row = self.gaps(node, count)
            if (more := len(row) - table.start.shape[1]) > 0:
                table.start = np.pad(table.start, ((0, 0), (0, more)), constant_values=END)
                table.end = np.pad(table.end, ((0, 0), (0, more)), constant_values=0)
            table.start[node] = END
            table.end[node] = 0
            for column, (start, end) in enumerate(row):
                table.start[node, column] = start
                table.end[node, column] = end
        table.stale.clear()
        return table

    def earliest(self, gpus: int, workers: int, length: int, allowed: Ints, level: Level | None, since: int = 0) -> tuple[int, Places] | None:
        """The earliest (milliseconds from now, [(node, GPUs)]) for so many workers for so long, on these nodes, in one domain of a level."""
        most = self.grid.most_gpus
        if not gpus or gpus > most:
            return None
        length, since = max(1, length), self.now + since
        if workers == 1:
            table = self.table(gpus)
            opens = np.maximum(table.start, since)
            times = np.where((table.end - opens >= length) & (allowed[:, None] > 0), opens, END)
            place, column = divmod(int(times.argmin()), times.shape[1])
            soonest = int(times[place, column])
            return None if soonest >= END else (soonest - self.now, [(place, gpus)])
        starts: list[Ints] = []
        lasts: list[Ints] = []
        nodes: list[Ints] = []
        for multiple in range(gpus, min(most, gpus * workers) + 1, gpus):
            table = self.table(multiple)
            opens = np.maximum(table.start, since)
            rows, columns = np.nonzero((table.end - opens >= length) & (allowed[:, None] > 0))
            starts.append(opens[rows, columns])
            lasts.append(table.end[rows, columns] - length)
            nodes.append(rows)
        start, last, node = np.concatenate(starts), np.concatenate(lasts), np.concatenate(nodes)
        if (at := self._first_time(start, last, node, workers, level)) is None:
            return None
        instant, low, high = at
        fits = (start <= instant) & (last >= instant) & (node >= low) & (node < high)
        counts = Counter(np.sort(node[fits])[:workers].tolist())
        return instant - self.now, [(place, gpus * count) for place, count in counts.items()]

    def _first_time(self, start: Ints, last: Ints, node: Ints, workers: int, level: Level | None) -> tuple[int, int, int] | None:
        """The first instant at which enough gaps are open in one domain, and the domain; ties by path."""
        if level is None or len(level) == 1:
            parts = [(0, self.grid.size, start, last)]
        else:
            domain = np.searchsorted(level.starts_np, node, side="right") - 1
            order = np.argsort(domain, kind="stable")
            edges = np.flatnonzero(np.diff(domain[order])) + 1
            parts = [(*level.slice_of(int(domain[some[0]])), start[some], last[some]) for some in np.split(order, edges) if len(some)]
        best: tuple[int, int, int] | None = None
        for low, high, starts, lasts in parts:
            if len(starts) < workers:
                continue
            opens = np.sort(starts)
            if best is not None and opens[workers - 1] >= best[0]:
                continue  # enough gaps are open there no earlier than elsewhere
            open_now = np.searchsorted(opens, opens, side="right") - np.searchsorted(np.sort(lasts), opens, side="left")
            hits = np.flatnonzero(open_now >= workers)
            if len(hits) and (best is None or int(opens[hits[0]]) < best[0]):
                best = (int(opens[hits[0]]), low, high)
        return best

    def reserve(self, moment: int, length: int, places: Places) -> None:
        start = self.now + moment
        until = END if length >= FOREVER else start + length
        for node, count in places:
            self._kept.setdefault(node, []).append((start, until, count))
            self._has_changed(node)

    def foresee(self, moment: int, length: int, places: Places) -> None:
        """Keep the GPUs for who is foreseen there: power caps count what it draws."""
        self.reserve(moment, length, places)
        self.foreseen.append((self.now + moment, length, places))

    def give_back(self, moment: int, length: int, places: Places) -> None:
        self.reserve(moment, length, [(node, -count) for node, count in places])

    def keep_nothing(self) -> None:
        for node in self._kept:
            self._has_changed(node)
        self._kept = {}

    def change(self, node: int, leaving: Mapping[int, int]) -> None:
        """So many GPUs of a node more, or fewer, are held from now on, by the instant until which they are."""
        for until, count in leaving.items():
            if until > self.now:
                self._idle[node] -= count
                self._ends[node][until] = self._ends[node].get(until, 0) + count
        self._has_changed(node)

    def _has_changed(self, node: int) -> None:
        self._steps.pop(node, None)
        for table in self._tables.values():
            table.stale.add(node)

    def gaps(self, node: int, count: int) -> Gaps:
        """From when to when at least so many GPUs of a node are free."""
        gaps, opened = [], -1
        for at, have in zip(*self._steps_of(node), strict=True):
            if have >= count:
                if opened < 0:
                    opened = at
            elif opened >= 0:
                gaps.append((opened, at))
                opened = -1
        if opened >= 0:
            gaps.append((opened, END))
        return gaps

    def least_free(self, node: int, first: int, until: int, besides: Sequence[tuple[int, int, int]] = ()) -> int:
        """The fewest GPUs free on a node from one moment to another; `besides` lists (from, to, GPUs) that are not held against it."""
        (times, free), now = self._steps_of(node), self.now
        steps = range(bisect_right(times, now + first) - 1, bisect_left(times, now + until))
        return min([free[at] + sum([more for start, end, more in besides if start <= max(0, times[at] - now) < end]) for at in steps], default=END)


class Table:
    """The gaps in which at least so many GPUs of a node are free: (start, end) by node, padded with empty ones."""

    def __init__(self, size: int) -> None:
        self.stale = set(range(size))  # nodes that have changed since it was last read
        self.start: Ints = np.full((size, 2), END, dtype=np.int64)
        self.end: Ints = np.zeros_like(self.start)
