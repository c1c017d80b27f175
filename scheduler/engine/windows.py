"""Windows: capacity that is promised to an owner or a class for a time, and what may not be in its way when it starts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_
from typing import Protocol

from .fleet import Seat
from .grid import Grid, span_bits
from .reading import spell_instant
from .reasons import Reason, counted, gpus, reason
from .tree import Tree
from .values import Job, Kind, Placed, Preemptible, Scenario, Settings, Window

NEVER = 1 << 62


class Holder(Protocol):
    """What a window asks of a job."""

    job: Job
    kind: Kind
    home: int
    charged_leaf: int
    milli: int
    quota_type: int
    seats: tuple[Seat, ...]
    first_seats: tuple[Seat, ...]
    evicted: bool
    moved: bool


class Charged(Protocol):
    """What a window asks of the jobs on the fleet."""

    grid: Grid
    tree: Tree
    settings: Settings

    @property
    def works(self) -> Sequence[Holder]: ...


@dataclass(slots=True)
class Upcoming:
    """A window that has not started, with what must be kept clear for it."""

    window: Window
    quota_type: int
    kept: int  # milli-GPU, of this window and of those that last at its start
    low: int  # the block it stands in
    high: int
    capacity: int
    sticky: int = 0  # milli-GPU of the block that will not be free at the start
    counted_at: int = -1


def _kept(ahead: Upcoming, grid: Grid, milli: int) -> Reason:
    """Why so much more can't start before a window."""
    window = ahead.window
    where = ""
    if window.level is not None:
        level = grid.levels[grid.level_index[window.level]]
        where = f" of {level.name} {next(name for domain, name in enumerate(level.names) if level.slice_of(domain) == (ahead.low, ahead.high))}"
    detail = (
        f"{window.name} begins at {spell_instant(window.start)} and keeps {gpus(ahead.kept)} of {counted(ahead.capacity)}{where}; "
        f"{gpus(ahead.sticky)} may still be held then, and {gpus(milli)} more could not be off in time"
    )
    return reason("window", detail, window=window.name, start=spell_instant(window.start), kept=ahead.kept / 1000)


def _last_together(one: Window, other: Window) -> bool:
    """Whether one of them has begun, and has not ended, when the other begins."""
    return one.start <= other.start and (one.end is None or one.end > other.start)


def milli_of(worker: Placed) -> int:
    """What a worker keeps from a window; of a split GPU, all of it."""
    return worker.gpus.bit_count() * (1000 if worker.share_milli is None else worker.share_milli)


class Windows:
    def __init__(self, scenario: Scenario, grid: Grid) -> None:
        now = scenario.now
        self.grid = grid
        self.now = now
        self.scenario = scenario
        horizon = now + scenario.settings.window_horizon_ms
        current = [window for window in scenario.windows if window.start <= now and (window.end is None or now < window.end)]
        self.lasting = [window for window in current if not self._decayed(window)]
        self.of_classes = [window for window in self.lasting if window.class_rank is not None]
        ahead = [window for window in scenario.windows if now < window.start <= horizon]
        self.blocks = self._blocks()
        self.upcoming = [self._upcoming(window, scenario.windows) for window in ahead]
        self.displaced: list[tuple[str, str]] = []

    @cached_property
    def parents(self) -> Mapping[str, str | None]:
        """By quota node the one above it."""
        return {quota.name: quota.parent for quota in self.scenario.quotas}

    def times(self) -> Iterable[int]:
        """When a window starts, ends or is released."""
        for window in self.scenario.windows:
            yield window.start
            if window.end is not None:
                yield window.end
            if window.decay_ms is not None:
                yield window.start + window.decay_ms

    def _decayed(self, window: Window) -> bool:
        """Released: nobody who may use it runs or waits, some time after its start."""
        if window.decay_ms is None or self.now < window.start + window.decay_ms:
            return False
        return not any(self.entitled(window, job) for job in self.scenario.jobs if job.run.state != "stopping")

    def entitled(self, window: Window, job: Job) -> bool:
        if window.class_rank is not None:
            return job.kind.class_rank == window.class_rank
        at: str | None = job.quota
        while at is not None:
            if at == window.quota:
                return True
            at = self.parents.get(at)
        return False

    def _upcoming(self, window: Window, windows: Iterable[Window]) -> Upcoming:
        quota_type = self.grid.type_index.get(window.gpu_type or "", 0)
        block = self.blocks.get(window.name)
        kept = 0
        for other in windows:
            if _last_together(other, window) and other.gpu_type == window.gpu_type and other.level == window.level:
                kept += other.gpus if self.blocks.get(other.name) == block else 0
        low, high, capacity = block or (0, self.grid.size, self.grid.capacity[quota_type] if self.grid.capacity else 0)
        return Upcoming(window, quota_type, kept, low, high, capacity)

    def _blocks(self) -> dict[str, tuple[int, int, int]]:
        """The blocks to keep, by name: first node, the one behind the last, and what is usable there in milli-GPU."""
        found: dict[str, tuple[int, int, int]] = {}
        chosen: list[tuple[Window, tuple[int, int, int]]] = []
        for window in self.scenario.windows:
            if window.level is not None and (window.end is None or window.end > self.now):
                block = found[window.name] = self._block(window, window.level, chosen)
                chosen.append((window, block))
        return found

    def _block(self, window: Window, level_name: str, chosen: Iterable[tuple[Window, tuple[int, int, int]]]) -> tuple[int, int, int]:
        """The smallest domain that holds a window beside those chosen before and what runs there and can't be gone; ties by path."""
        quota_type = self.grid.type_index.get(window.gpu_type or "", 0)
        level = self.grid.levels[self.grid.level_index[level_name]]
        best: tuple[int, int, int, int, int] | None = None
        for domain in range(len(level)):
            low, high = level.slice_of(domain)
            usable = sum(self.grid.usable_count[node] for node in range(low, high) if self.grid.type_of[node] == quota_type) * 1000
            left = usable - sum(other.gpus for other, block in chosen if block[:2] == (low, high) and _last_together(other, window))
            if low < high:
                left -= self._held_for_long(window, low, high)
            # Where none holds it, the one that comes nearest.
            rank = (0, usable, low, high, usable) if left >= window.gpus else (1, -left, low, high, usable)
            if best is None or rank < best:
                best = rank
        assert best is not None
        return best[2:]

    def _held_for_long(self, window: Window, low: int, high: int) -> int:
        """Milli-GPU of a block that who runs there now will still hold at a window's start, whatever happens, and is no claim to it."""
        if window.start <= self.now:
            return 0
        here = {self.grid.nodes[node].name for node in range(low, high)}
        total = 0
        for job in self.scenario.jobs:
            if job.run.workers and job.run.state != "stopping" and not self.entitled(window, job):
                started = job.run.started if job.run.started is not None else self.now
                gone = job.limit_ms is not None and started + job.limit_ms <= window.start
                if not gone and (job.kind.preemptible is not Preemptible.ALWAYS or job.kind.grace_ms > window.notice_ms):
                    total += sum(milli_of(worker) for worker in job.run.workers if worker.node in here)
        return total

    # Who is charged to a class window

    def claim(self, cluster: Charged) -> None:
        """Charge running work of a class to its window where its own guarantees do not hold it."""
        for work, leaf in self.claims(cluster).items():
            work.charged_leaf = leaf

    def claims(self, cluster: Charged) -> dict[Holder, int]:
        """Who is charged to a window of his class, and to which: what his own guarantees do not hold, first come first served."""
        claimed: dict[Holder, int] = {}
        tree = cluster.tree
        for window in self.of_classes:
            leaf = tree.position[f"window:{window.name}"]
            room = window.gpus
            within: dict[int, int] = {}
            members = [work for work in cluster.works if work.seats and work.kind.class_rank == window.class_rank]
            members = [work for work in members if work not in claimed and self.grid.types[work.quota_type] == window.gpu_type]
            for work in sorted(members, key=lambda work: (self._here_since(work), work.job.name)):
                division = tree.divisions[tree.division_of[work.quota_type]]
                path = tree.path[work.home]
                promised = [division.guaranteed[place] for place in path]
                fits = all(most is None or within.get(place, 0) + work.milli <= most for place, most in zip(path, promised, strict=True))
                if fits:
                    for place in path:
                        within[place] = within.get(place, 0) + work.milli
                elif work.milli <= room:
                    room -= work.milli
                    claimed[work] = leaf
        return claimed

    def _here_since(self, work: Holder) -> int:
        """When it came to its place, as the next plan will see it."""
        stands = work.first_seats and not work.evicted and not work.moved
        return (work.job.run.started or self.now) if stands else self.now

    # What may start before a window

    def ends(self, work: Holder, started: int) -> int:
        limit = work.job.limit_ms
        return NEVER if limit is None else started + limit

    def sticks(self, window: Window, work: Holder, cluster: Charged, started: int) -> bool:
        """Whether it could be in the way at the window's start."""
        if self.entitled(window, work.job) or self.ends(work, started) <= window.start:
            return False
        if work.kind.preemptible is not Preemptible.ALWAYS or work.kind.grace_ms > window.notice_ms:
            return True
        tree, settings = cluster.tree, cluster.settings
        protection = max(
            tree.nearest(work.home, "preempt_min_runtime_ms", settings.preempt_min_runtime_ms),
            tree.nearest(work.home, "reclaim_min_runtime_ms", settings.reclaim_min_runtime_ms),
        )
        return started + protection > window.start

    def _count(self, ahead: Upcoming, cluster: Charged) -> None:
        ahead.sticky = 0
        for work in cluster.works:
            if work.seats and work.quota_type == ahead.quota_type:
                started = work.job.run.started if work.first_seats and work.job.run.started is not None else self.now
                if self.sticks(ahead.window, work, cluster, started):
                    ahead.sticky += sum(seat.milli for seat in work.seats if ahead.low <= seat.node < ahead.high)
        ahead.counted_at = cluster.tree.version

    def gate(self, cluster: Charged, work: Holder, quota_type: int, milli: int) -> tuple[Reason | None, int]:
        """Why a start now would be in the way of a window, and the nodes it must stay off."""
        banned = 0
        for ahead in self.upcoming:
            if ahead.quota_type != quota_type or not milli:
                continue
            started = work.job.run.started if work.first_seats and work.job.run.started is not None else self.now
            if not self.sticks(ahead.window, work, cluster, started):
                continue
            if ahead.counted_at != cluster.tree.version:
                self._count(ahead, cluster)
            if ahead.sticky + milli <= ahead.capacity - ahead.kept:
                continue
            if ahead.window.level is not None:
                banned |= span_bits(ahead.low, ahead.high)
                continue
            return _kept(ahead, self.grid, milli), 0
        return None, banned

    def lets(self, cluster: Charged, work: Holder, quota_type: int, milli: int, started: int) -> bool:
        """Whether no window on all of a type that begins later is in the way of a start at an instant."""
        return not any(ahead.window.level is None for ahead in self._in_the_way(cluster, work, quota_type, milli, started))

    def kept_off(self, cluster: Charged, work: Holder, quota_type: int, milli: int, started: int) -> int:
        """The nodes of which a start at an instant must stay off, as a block of them is kept for a window that begins later."""
        blocks = (ahead for ahead in self._in_the_way(cluster, work, quota_type, milli, started) if ahead.window.level is not None)
        return reduce(or_, (span_bits(ahead.low, ahead.high) for ahead in blocks), 0)

    def block_reason(self, cluster: Charged, work: Holder, quota_type: int, milli: int) -> Reason:
        """Why a start now is kept off the block of a window."""
        found = (ahead for ahead in self._in_the_way(cluster, work, quota_type, milli, self.now) if ahead.window.level is not None)
        return _kept(next(found), self.grid, milli)

    def _in_the_way(self, cluster: Charged, work: Holder, quota_type: int, milli: int, started: int) -> Iterator[Upcoming]:
        for ahead in self.upcoming:
            if ahead.quota_type == quota_type and ahead.window.start > started and milli and self.sticks(ahead.window, work, cluster, started):
                if ahead.counted_at != cluster.tree.version:
                    self._count(ahead, cluster)
                if ahead.sticky + milli > ahead.capacity - ahead.kept:
                    yield ahead

    def displaced_by(self, cluster: Charged) -> list[tuple[str, str]]:
        """(window, job) pairs where running work can't be gone at the start and the promise does not fit beside it."""
        found = []
        for ahead in self.upcoming:
            self._count(ahead, cluster)
            over = ahead.sticky - (ahead.capacity - ahead.kept)
            if over <= 0:
                continue
            for work in cluster.works:
                if work.seats and work.quota_type == ahead.quota_type:
                    started = work.job.run.started if work.job.run.started is not None else self.now
                    inside = any(ahead.low <= seat.node < ahead.high for seat in work.seats)
                    if inside and self.sticks(ahead.window, work, cluster, started):
                        found.append((ahead.window.name, work.job.name))
        return found
