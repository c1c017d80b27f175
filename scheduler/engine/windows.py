"""Windows: capacity that is promised to an owner or a class for a time, and what may not be in its way when it starts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from .fleet import Seat
from .grid import Grid, span_bits
from .reading import spell_instant
from .reasons import Reason, counted, gpus, reason
from .tree import Tree
from .values import Job, Kind, Preemptible, Scenario, Settings, Window

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


class Windows:
    def __init__(self, scenario: Scenario, grid: Grid) -> None:
        now = scenario.now
        self.grid = grid
        self.now = now
        self.scenario = scenario
        horizon = now + scenario.settings.window_horizon_ms
        current = [window for window in scenario.windows if window.start <= now and (window.end is None or now < window.end)]
        self.lasting = [window for window in current if not self._decayed(window)]
        ahead = [window for window in scenario.windows if now < window.start <= horizon]
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
        kept = 0
        for other in windows:
            lasts = other.start <= window.start and (other.end is None or other.end > window.start)
            if other.gpu_type == window.gpu_type and other.level == window.level and lasts:
                kept += other.gpus
        low, high, capacity = 0, self.grid.size, self.grid.capacity[quota_type] if self.grid.capacity else 0
        if window.level is not None:
            low, high, capacity = self._block(window.level, quota_type, kept)
        return Upcoming(window, quota_type, kept, low, high, capacity)

    def _block(self, level_name: str, quota_type: int, kept: int) -> tuple[int, int, int]:
        """The block to keep: the smallest domain that holds it, by what is not held now by what can't leave; ties by path."""
        level = self.grid.levels[self.grid.level_index[level_name]]
        best: tuple[int, int, int, int] | None = None
        for domain in range(len(level)):
            low, high = level.slice_of(domain)
            usable = sum(self.grid.usable_count[node] for node in range(low, high) if self.grid.type_of[node] == quota_type) * 1000
            rank = (0, usable, low, high) if usable >= kept else (1, -usable, low, high)  # where none holds it, the one that holds most
            if best is None or rank < best:
                best = rank
        assert best is not None
        return best[2], best[3], abs(best[1])

    # Who is charged to a class window

    def claim(self, cluster: Charged) -> None:
        """Charge running work of a class to its window where its own guarantees do not hold it, first come first served."""
        for window in self.lasting:
            if window.class_rank is None:
                continue
            tree = cluster.tree
            leaf = tree.position[f"window:{window.name}"]
            room = window.gpus
            within: dict[int, int] = {}
            members = [work for work in cluster.works if work.seats and work.kind.class_rank == window.class_rank]
            members = [work for work in members if work.charged_leaf == work.home and self.grid.types[work.quota_type] == window.gpu_type]
            for work in sorted(members, key=lambda work: (work.job.run.started or self.now, work.job.name)):
                division = tree.divisions[tree.division_of[work.quota_type]]
                path = tree.path[work.home]
                promised = [division.guaranteed[place] for place in path]
                fits = all(most is None or within.get(place, 0) + work.milli <= most for place, most in zip(path, promised, strict=True))
                if fits:
                    for place in path:
                        within[place] = within.get(place, 0) + work.milli
                elif work.milli <= room:
                    room -= work.milli
                    work.charged_leaf = leaf

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
            window = ahead.window
            detail = (
                f"{window.name} begins at {spell_instant(window.start)} and keeps {gpus(ahead.kept)} of {counted(ahead.capacity)}; "
                f"{gpus(ahead.sticky)} may still be held then, and {gpus(milli)} more could not be off in time"
            )
            return reason("window", detail, window=window.name, start=spell_instant(window.start), kept=ahead.kept / 1000), 0
        return None, banned

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
