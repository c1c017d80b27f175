"""Windows: capacity that is promised to an owner or a class for a time, and what may not be in its way when it starts.

Each has its GPUs in its block or on all of a type, and what may still be held there when it starts is counted with the others that last then.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import or_
from typing import TYPE_CHECKING, TypeAlias

from ..model.reasons import Reason, counted, gpus, reason, spell_instant
from ..model.values import Job, Preemptible, Scenario, Window
from ..state.grid import Grid, span_bits
from ..state.tree import NEVER, Layout
from ..state.work import Work

if TYPE_CHECKING:
    from ..state.cluster import Cluster
    from ..state.state import State

    Charged: TypeAlias = Cluster | State  # jobs on the fleet, charged to the tree

MOST_CHOICES = 500  # of blocks, to find some for all windows together
MOST_STARTS = 8  # of windows that are tried for one job
Holders = dict[int, list[tuple[Job, int]]]
Span = tuple[int, int]  # the first node of a block, and the one behind its last


@dataclass(slots=True)
class Region:
    """A block, or all of a type, with the windows that last at one instant and have their GPUs in it."""

    low: int
    high: int
    capacity: int  # milli-GPU
    windows: tuple[Window, ...]
    whole: bool  # all of the type, and no part of it
    staying: dict[int, int] = field(default_factory=dict)  # milli-GPU that may still be held then, by which of the windows their holders may use

    @property
    def kept(self) -> int:
        return sum(window.gpus for window in self.windows)

    def stays(self, mask: int, milli: int) -> None:
        self.staying[mask] = self.staying.get(mask, 0) + milli

    def in_the_way(self, mask: int = 0, milli: int = 0) -> int:
        """What may still be held then by whom no window holds, if so much more came of somebody who may use these windows."""
        amounts = {**self.staying, mask: self.staying.get(mask, 0) + milli} if milli else self.staying
        return sum(amounts.values()) - held_by_windows([window.gpus for window in self.windows], amounts)

    def over(self, mask: int = 0, milli: int = 0) -> int:
        """How much more would be held or promised then than there is."""
        return self.in_the_way(mask, milli) + self.kept - self.capacity


def held_by_windows(rooms: Sequence[int], amounts: Mapping[int, int]) -> int:
    """How much of these amounts stands in windows: each in those of its mask, whoever may use the fewest first."""
    left = [*rooms]
    for mask in sorted(amounts, key=lambda mask: (mask.bit_count(), mask)):
        rest = amounts[mask]
        for place, room in enumerate(left):
            if mask >> place & 1:
                left[place] -= min(room, rest)
                rest -= min(room, rest)
    return sum(rooms) - sum(left)


def regions_around(span: Span, placed: Sequence[tuple[Window, Span]], capacities: Mapping[Span, int], whole: Span) -> list[Region]:
    """The blocks of these windows that hold a block, it among them, and in each the windows that have their own inside it."""

    def within(span: Span) -> tuple[Window, ...]:
        return tuple(window for window, (low, high) in placed if span[0] <= low and high <= span[1])

    around = {(low, high) for _, (low, high) in placed if low <= span[0] and span[1] <= high}
    return [Region(*one, capacities[one], within(one), one == whole) for one in sorted({*around, span})]


@dataclass(slots=True)
class Upcoming:
    """A window that has not started, with all that must be kept clear when it does."""

    window: Window
    quota_type: int
    regions: list[Region]  # its block, and those around it that are promised as well
    counted_at: int = -1


def _ends(job: Job, started: int) -> int:
    return NEVER if job.limit_ms is None else started + job.limit_ms


def _came(job: Job) -> int:
    """From when on it has asked for a place: since it was there and due."""
    due = job.submitted if job.not_before is None else max(job.submitted, job.not_before)
    return due if job.run.started is None else min(due, job.run.started)


class Windows:
    def __init__(self, scenario: Scenario, grid: Grid) -> None:
        self.grid, self.scenario, self.now = grid, scenario, scenario.now
        self.whole: dict[int, Span] = {}  # by type
        self.capacities: dict[int, dict[Span, int]] = {}  # milli-GPU by type and block
        self.spans: dict[str, Span] = {}
        self.claimed_at = -1  # as of how many kept changes everyone is charged to the one that is his
        current = [window for window in scenario.windows if window.lasts(self.now)]
        self.lasting = [window for window in current if not self._decayed(window)]
        self.of_classes = [window for window in self.lasting if window.class_rank is not None]
        released = [window for window in current if window not in self.lasting]
        self.promised = [window for window in scenario.windows if (window.end is None or window.end > self.now) and window not in released]
        self._find_blocks()
        self.upcoming: list[Upcoming] = []  # those that come soon enough to be heeded
        for window in self.promised:
            if self.now < window.start <= self.now + scenario.settings.window_horizon_ms:
                quota_type = self._type(window)
                where = self.spans[window.name], self._beside(window), self.capacities[quota_type], self.whole[quota_type]
                self.upcoming.append(Upcoming(window, quota_type, regions_around(*where)))

    @cached_property
    def _queues(self) -> Layout:
        return Layout(self.scenario.quotas, ())

    @cached_property
    def _safe(self) -> Mapping[str, int]:
        """For how long a minimum run time protects the work of each queue, from whomever: the nearest one going up."""
        queues, settings, fields = self._queues, self.scenario.settings, ("preempt_min_runtime_ms", "reclaim_min_runtime_ms")
        return {name: max(queues.nearest(place, field, getattr(settings, field)) for field in fields) for name, place in queues.position.items()}

    def times(self) -> Iterable[int]:
        turns = ((one.start, one.end, None if one.decay_ms is None else one.start + one.decay_ms) for one in self.scenario.windows)
        return (at for each in turns for at in each if at is not None)

    def _decayed(self, window: Window) -> bool:
        """Released: nobody who may use it had come for its type until some time after its start. Who comes later does not bring it back."""
        if window.decay_ms is None or self.now < (until := window.start + window.decay_ms):
            return False
        return not any(_came(job) < until and self.entitled(window, job) and self._claims(window, job) for job in self.scenario.jobs)

    def _claims(self, window: Window, job: Job) -> bool:
        """Whether it stands on GPUs of a window's type, or would run there: on no more than there are, in service or not."""
        grid, quota_type = self.grid, self._type(window)
        if places := job.run.workers or job.run.leaving:
            return any(grid.type_of[grid.index[worker.node]] == quota_type for worker in places)
        asked = [role for role in job.kind.roles if role.gpus or role.parted]
        nodes = [node for node, of_type in zip(grid.nodes, grid.type_of, strict=True) if of_type == quota_type]
        if sum(role.least * role.gpus for role in asked) > sum(node.gpus for node in nodes):
            return False
        kinds = {node.gpu_type for node in nodes}
        return any(job.kind.speed(kind) and all(not role.gpu_types or kind in role.gpu_types for role in asked) for kind in kinds) and bool(asked)

    def entitled(self, window: Window, job: Job) -> bool:
        if window.class_rank is not None:
            return job.kind.class_rank == window.class_rank
        at = self._queues.position
        return window.quota is not None and self._queues.below(at[window.quota], at[job.quota])

    def _type(self, window: Window) -> int:
        return self.grid.type_index.get(window.gpu_type or "", 0)

    def _beside(self, window: Window) -> list[tuple[Window, Span]]:
        """The windows of its type that last when it begins, it among them, and where."""
        together = (other for other in self.promised if other.gpu_type == window.gpu_type and other.lasts(window.start))
        return [(other, self.spans[other.name]) for other in together if other.name in self.spans]

    def _find_blocks(self) -> None:
        """Where each window has its GPUs: on all of its type, or in a block of its level, so that there is room for all of them if there can be."""
        for quota_type in sorted({self._type(window) for window in self.promised}):
            whole = self.whole[quota_type] = self._with_capacity((0, self.grid.size), quota_type)
            self.capacities[quota_type] = {whole: self.grid.capacity[quota_type] if self.grid.capacity else 0}
        on_all = {window.name: self.whole[self._type(window)] for window in self.promised if window.level is None}
        self.spans = {**on_all}
        in_blocks = sorted((one for one in self.promised if one.level is not None), key=lambda one: (one.start, -one.gpus, one.name))
        held = {window.name: self._held_for_long(window) for window in in_blocks}
        if not self._choose(in_blocks, held, [MOST_CHOICES]):
            self.spans = on_all
            for window in in_blocks:
                self.spans[window.name] = self._blocks(window, held[window.name])[0][1]

    def _choose(self, windows: Sequence[Window], held: Mapping[str, Holders], left: list[int]) -> bool:
        """Give each window the smallest block that holds it beside those before it, with steps back where a later one then finds none."""
        if not windows:
            return True
        window = windows[0]
        for fault, span in self._blocks(window, held[window.name]):
            left[0] -= 1
            if any(fault) or left[0] < 0:
                return False
            self.spans[window.name] = span
            if self._choose(windows[1:], held, left):
                return True
            del self.spans[window.name]
        return False

    def _blocks(self, window: Window, held: Holders) -> list[tuple[tuple[int, int], Span]]:
        """The domains of a window's level: first those that hold it beside the windows before it and what runs there and can't be gone, the
        smallest in front, ties by path; then those in which that lacks least, first of those that would hold it if nobody were there."""
        assert window.level is not None
        quota_type, level = self._type(window), self.grid.levels[self.grid.level_index[window.level]]
        capacities, beside = self.capacities[quota_type], self._beside(window)
        found: list[tuple[tuple[int, int], int, Span]] = []
        for domain in range(len(level)):
            span = self._with_capacity(level.slice_of(domain), quota_type)
            usable = capacities[span] = sum(self._usable_milli(node, quota_type) for node in range(*span))
            over, too_small = 0, 0
            for region in regions_around(span, [*beside, (window, span)], capacities, self.whole[quota_type]):
                if not region.whole:
                    too_small = max(too_small, region.over())
                    for node in range(region.low, region.high):
                        for job, milli in held.get(node, ()):
                            region.stays(self.may_use(region, job), milli)
                    over = max(over, region.over())
            found.append(((too_small, over), usable, span))
        return [(fault, span) for fault, _, span in sorted(found)]

    def _with_capacity(self, span: Span, quota_type: int) -> Span:
        """A domain without the nodes at its ends that are no capacity of a type: they make no block another one."""
        nodes = [node for node in range(*span) if self._usable_milli(node, quota_type)]
        return (nodes[0], nodes[-1] + 1) if nodes else (span[0], span[0])

    def _usable_milli(self, node: int, quota_type: int) -> int:
        counts = self.grid.type_of[node] == quota_type and not self.grid.nodes[node].spare
        return 1000 * self.grid.usable_count[node] if counts else 0

    def _held_for_long(self, window: Window) -> Holders:
        """By node who runs there now and will still be there at a window's start, whatever happens, with so many milli-GPU."""
        found: Holders = {}
        jobs = [job for job in self.scenario.jobs if job.run.workers and job.run.state != "stopping"] if window.start > self.now else []
        for job in jobs:
            if self.stays(window, job, job.run.started if job.run.started is not None else self.now):
                for worker in job.run.workers:
                    node, milli = self.grid.index[worker.node], 1000 if worker.share_milli is None else worker.share_milli
                    if self.grid.type_of[node] == self._type(window):
                        found.setdefault(node, []).append((job, worker.gpus.bit_count() * milli))  # of a split GPU, all of it
        return found

    def may_use(self, region: Region, job: Job) -> int:
        """Which of a region's windows a job may use, as a bit set."""
        return sum(1 << place for place, window in enumerate(region.windows) if self.entitled(window, job))

    def ends(self, work: Work) -> int:
        """When its limit ends: of what gets more workers it has begun. What it may count of a window: `promised_to_fixed` in tree.py."""
        return _ends(work.job, work.here_since(self.now))

    def stays(self, window: Window, job: Job, started: int) -> bool:
        """Whether it could still be there at the window's start: by limit, not evictable within the notice, or protected by minimum run time."""
        if _ends(job, started) <= window.start:
            return False
        if job.kind.preemptible is not Preemptible.ALWAYS or job.kind.grace_ms > window.notice_ms:
            return True
        return started + self._safe[job.quota] > window.start

    def _counted(self, ahead: Upcoming, cluster: "Charged") -> list[Region]:
        """Its regions with all that may still be held in them when it begins."""
        if ahead.counted_at != cluster.tree.version:
            ahead.counted_at = cluster.tree.version
            for region in ahead.regions:
                region.staying.clear()
            for work in self._staying(ahead, cluster):
                seats = [seat for seat in work.seats if self._usable_milli(seat.node, ahead.quota_type)]
                for region in ahead.regions:
                    if milli := sum(seat.milli for seat in seats if region.low <= seat.node < region.high):
                        region.stays(self.may_use(region, work.job), milli)
        return ahead.regions

    def _staying(self, ahead: Upcoming, cluster: "Charged") -> Iterator[Work]:
        """Who stands on GPUs of a window's type and could still be there when it begins."""
        there = (work for work in cluster.works if work.seats and work.quota_type == ahead.quota_type)
        return (work for work in there if self.stays(ahead.window, work.job, work.here_since(self.now)))

    def gate(self, cluster: "Charged", work: Work, quota_type: int, milli: int) -> tuple[Reason | None, int]:
        """Why a start now would be in the way of a window, and the nodes it must stay off."""
        if not self.upcoming:  # mostly
            return None, 0
        found = [*self._in_the_way(cluster, work, quota_type, milli, work.here_since(self.now))]
        refused = next((self._kept(ahead, region, milli) for ahead, region in found if region.whole), None)
        return refused, 0 if refused else reduce(or_, (span_bits(region.low, region.high) for _, region in found), 0)

    def allows(self, cluster: "Charged", work: Work, quota_type: int, milli: int, started: int) -> tuple[bool, int]:
        """Whether no window on all of a type that begins later is in the way of a start at an instant; and the nodes of which it must stay off, as a
        block of them is kept for such a window."""
        regions = [region for _, region in self._in_the_way(cluster, work, quota_type, milli, started)]
        blocks = (span_bits(region.low, region.high) for region in regions if not region.whole)
        return not any(region.whole for region in regions), reduce(or_, blocks, 0)

    def starts(self, *, owned: bool = False) -> list[int]:
        """When windows begin, the next ones; or of those that have an owner."""
        return sorted({ahead.window.start for ahead in self.upcoming if not owned or ahead.window.class_rank is None})[:MOST_STARTS]

    def block_reason(self, cluster: "Charged", work: Work, quota_type: int, milli: int) -> Reason:
        """Why a start now is kept off the block of a window."""
        found = ((ahead, region) for ahead, region in self._in_the_way(cluster, work, quota_type, milli, self.now) if not region.whole)
        return self._kept(*next(found), milli)

    def _in_the_way(self, cluster: "Charged", work: Work, quota_type: int, milli: int, started: int) -> Iterator[tuple[Upcoming, Region]]:
        """The windows that begin later, and where, for which there would be less room than was promised than without so much more of a job."""
        for ahead in self.upcoming:
            if ahead.quota_type != quota_type or ahead.window.start <= started or not milli or self.entitled(ahead.window, work.job):
                continue
            if self.stays(ahead.window, work.job, started):
                for region in self._counted(ahead, cluster):
                    mask = self.may_use(region, work.job)
                    over = region.over(mask, milli)
                    if over > 0 and over > region.over():
                        yield ahead, region

    def _kept(self, ahead: Upcoming, region: Region, milli: int) -> Reason:
        """Why so much more can't start before a window."""
        window, where = ahead.window, ""
        if not region.whole:
            levels = (level for level in self.grid.levels if level.name in {one.level for one in region.windows})
            domains = ((level, domain) for level in levels for domain in range(len(level)))
            here = (region.low, region.high)
            blocks = (one for one in domains if self._with_capacity(one[0].slice_of(one[1]), ahead.quota_type) == here)
            where = next((f" of {level.name} {level.names[domain]}" for level, domain in blocks), "")
        others = f", with {', '.join(one.name for one in region.windows if one is not window)}," if len(region.windows) > 1 else ""
        detail = (
            f"{window.name} begins at {spell_instant(window.start)} and{others} keeps {gpus(region.kept)} of {counted(region.capacity)}{where}; "
            f"{gpus(region.in_the_way())} may still be held then, and {gpus(milli)} more could not be off in time"
        )
        return reason("window", detail, window=window.name, start=spell_instant(window.start), kept=region.kept / 1000)

    def displaced_by(self, cluster: "Charged") -> list[tuple[str, str]]:
        """(window, job) pairs where running work can't be gone at the start and the promise does not fit beside it."""
        found: dict[tuple[str, str], None] = {}
        for ahead in self.upcoming:
            for region in self._counted(ahead, cluster):
                for work in self._staying(ahead, cluster) if region.over() > 0 else ():
                    if not self.may_use(region, work.job) and any(region.low <= seat.node < region.high for seat in work.seats):
                        found[ahead.window.name, work.job.name] = None
        return list(found)
