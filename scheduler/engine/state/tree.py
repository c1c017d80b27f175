"""The quota tree while a plan is made: who uses how much, who may use more, and who is served next.

Nodes stand in depth-first order under an invisible root at position 0, so a subtree is a range of positions and "is below"
is two comparisons. There is one `Division` per way of sharing out: one over all types where guarantees are numbers, one
per quota type where they are maps.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import compress
from operator import ne

from ..model.reasons import counted, gpus
from ..model.values import ANY_TYPE, Quota, Scenario, Window
from ..rules.fairshare import Siblings, divide, siblings

NEVER = 1 << 62
INFINITE = 1 << 100
WINDOW_MARK = "window:"
EVERY_TYPE = -1
NOTHING_GONE: Mapping[int, int] = {}


class Division:
    """One sharing out of one pool: guarantees, limits, use, requests and fair shares by position."""

    def __init__(self, name: str, types: tuple[int, ...], capacity: int, size: int) -> None:
        self.name = name
        self.types = types
        self.capacity = capacity
        self.standing: list[int | None] = [0] * size  # guarantees without windows
        self.guaranteed: list[int | None] = [0] * size  # with the windows that last now
        self.limit: list[int | None] = [None] * size
        self.used = [0] * size
        self.fixed = [0] * size  # of which non-preemptible
        self.asked = [0] * size  # by those that have no place as a plan begins
        self.requested = [0] * size
        self.fair = [0] * size
        self.counts_on = [0] * size  # B
        self.usage = [0] * size
        self.weight = [0] * size
        self.priority = [100] * size
        self.groups: dict[int, Siblings] = {}  # by the node above them


class Layout:
    """Who stands below whom, by position; behind all others the windows of classes."""

    def __init__(self, quotas: Sequence[Quota], windows: Iterable[Window]) -> None:
        self.names: list[str] = [""]
        self.quotas: list[Quota | None] = [None]
        self.parent: list[int] = [-1]
        self.children: list[list[int]] = [[]]
        self.window_at: dict[int, Window] = {}
        below: dict[str | None, list[Quota]] = {}
        for quota in quotas:
            below.setdefault(quota.parent, []).append(quota)
        stack = [(quota, 0) for quota in reversed(below.get(None, []))]
        while stack:
            quota, parent = stack.pop()
            stack.extend((child, len(self.names)) for child in reversed(below.get(quota.name, [])))
            self._append(quota.name, quota, parent)
        for window in windows:
            self.window_at[len(self.names)] = window
            self._append(WINDOW_MARK + window.name, None, 0)
        size = len(self.names)
        self.end = [*range(1, size + 1)]
        for place in range(size - 1, 0, -1):
            self.end[self.parent[place]] = max(self.end[self.parent[place]], self.end[place])
        self.position = {name: place for place, name in enumerate(self.names) if place}
        self.path: list[tuple[int, ...]] = [()]
        for place in range(1, size):
            self.path.append((place, *self.path[self.parent[place]]))
        created = [0 if quota is None else quota.created for quota in self.quotas]
        for place, window in self.window_at.items():
            created[place] = window.start
        self.age = [0] * size  # place by (created, name), no two the same
        for rank, place in enumerate(sorted(range(size), key=lambda place: (created[place], self.names[place]))):
            self.age[place] = rank

    def _append(self, name: str, quota: Quota | None, parent: int) -> None:
        self.children[parent].append(len(self.names))
        self.names.append(name)
        self.quotas.append(quota)
        self.parent.append(parent)
        self.children.append([])

    def below(self, ancestor: int, place: int) -> bool:
        return ancestor <= place < self.end[ancestor]

    def fork(self, one: int, other: int) -> tuple[int, int]:
        """The nodes just below the lowest common ancestor of two leaves, on either side."""
        sides = zip(reversed(self.path[one]), reversed(self.path[other]), strict=False)  # from the top down
        return next(((mine, theirs) for mine, theirs in sides if mine != theirs), (one, other))

    def nearest(self, place: int, field: str, default: int) -> int:
        """A minimum run time: the nearest value stated at the node or above it."""
        for at in self.path[place]:
            quota = self.quotas[at]
            stated = None if quota is None else getattr(quota, field)
            if stated is not None:
                return int(stated)
        return default


class Tree(Layout):
    """Divisions and the arithmetic of gates and order."""

    def __init__(self, scenario: Scenario, types: Sequence[str], capacity: Sequence[int], windows: Sequence[Window]) -> None:
        super().__init__(scenario.quotas, (window for window in windows if window.class_rank is not None))
        self.types = list(types)
        # Where there is one type, its division is that of all types together.
        self.by_type = len(types) != 1 and any(quota.guaranteed.by_type is not None for quota in scenario.quotas)
        size = len(self.names)
        if self.by_type:
            self.divisions = [Division(name, (place,), capacity[place], size) for place, name in enumerate(types)]
            self.division_of = list(range(len(types)))
        else:
            name = types[0] if len(types) == 1 else ANY_TYPE
            self.divisions = [Division(name, tuple(range(len(types))), sum(capacity), size)]
            self.division_of = [0] * len(types)
        # Use by type is kept beside the divisions only where it is another number.
        self.used_by_type: list[list[int]] | None = None
        self.limit_total: list[int | None] = [None] * size
        self.limit_by_type: list[dict[int, int] | None] = [None] * size
        if len(types) > 1 and not self.by_type:
            self.used_by_type = [[0] * size for _ in types]
        self._amounts(windows)
        self.limited = bool(self.window_at) or any(total is not None for total in self.limit_total) or any(map(bool, self.limit_by_type))
        self.usage_weight = scenario.settings.fairness.usage_weight_millionths
        # Whether anyone's work is safe for a while after its start.
        self.protects = any(quota.preempt_min_runtime_ms or quota.reclaim_min_runtime_ms for quota in scenario.quotas)
        # By division: the weight of usage and the requests as of which its shares were computed last.
        self._shared: list[tuple[int, list[int]] | None] = [None] * len(self.divisions)
        self._inner = [place for place, below in enumerate(self.children) if below]
        # What one division may have can hang on what is used in the others.
        self._together = len(self.divisions) > 1 and any(total is not None for total in self.limit_total)
        self.version = 0

    # Amounts

    def _amounts(self, windows: Sequence[Window]) -> None:
        for place in range(1, len(self.names)):
            quota = self.quotas[place]
            if quota is None:
                continue  # a window of a class: it has no share of the surplus
            self.limit_total[place] = quota.limit.total
            if quota.limit.by_type is not None:
                named = dict(quota.limit.by_type)
                self.limit_by_type[place] = {index: named[name] for index, name in enumerate(self.types) if name in named}
            usage, weights, priorities = dict(quota.usage), dict(quota.weights), dict(quota.priorities)
            for division in self.divisions:
                if quota.guaranteed.unlimited:
                    stated = None
                elif quota.guaranteed.by_type is not None:
                    stated = quota.guaranteed.of(division.name) or 0
                else:
                    stated = quota.guaranteed.total
                division.standing[place] = division.guaranteed[place] = stated
                division.limit[place] = quota.limit.of(division.name)
                division.usage[place] = usage.get(division.name, usage.get(ANY_TYPE, 0))
                division.weight[place] = weights.get(division.name, quota.weight)
                division.priority[place] = priorities.get(division.name, quota.priority)
        of_quotas = [window for window in windows if window.class_rank is None]
        self.lasting = [(window, () if window.quota is None else self.path[self.position[window.quota]]) for window in of_quotas]
        for window, path in self.lasting:
            division = self.divisions[self._window_division(window)]
            for place in path:
                if (stated := division.guaranteed[place]) is not None:
                    division.guaranteed[place] = stated + window.gpus
        for place, window in self.window_at.items():
            own = self._window_division(window)
            for index, division in enumerate(self.divisions):
                amount = window.gpus if index == own else 0
                division.standing[place] = division.guaranteed[place] = division.limit[place] = amount
        self._widen_limits()

    def _widen_limits(self) -> None:
        """A window adds to the limit where the limit would make nothing of it: to that of its type, or to that over all types."""
        for window, path in self.lasting:
            division = self.divisions[self._window_division(window)]
            kind = self.types.index(window.gpu_type) if window.gpu_type in self.types else -1
            for place in path:
                promised = division.guaranteed[place]
                if promised is None or division.standing[place] is None:
                    continue
                together = sum(amount for each in self.divisions if (amount := each.guaranteed[place]) is not None)
                limit, caps = self.limit_total[place], self.limit_by_type[place]
                if limit is not None:
                    self.limit_total[place] = max(limit, min(together, limit + window.gpus))
                if caps is not None and kind in caps:
                    caps[kind] = max(caps[kind], min(promised, caps[kind] + window.gpus))
                if (limit := division.limit[place]) is not None:
                    division.limit[place] = max(limit, min(promised, limit + window.gpus))

    def _window_division(self, window: Window) -> int:
        return self.division_of[self.types.index(window.gpu_type)] if window.gpu_type in self.types else 0

    def division(self, quota_type: int) -> Division:
        return self.divisions[self.division_of[quota_type]]

    # Use

    def charge(self, leaf: int, quota_type: int, milli: int, fixed: bool) -> None:
        """Add to (or, below zero, take from) what the leaf and all above it use."""
        division = self.division(quota_type)
        self.add(division.used, leaf, milli)
        if fixed:
            self.add(division.fixed, leaf, milli)
        if self.used_by_type is not None:
            self.add(self.used_by_type[quota_type], leaf, milli)
        self.version += 1

    def add(self, column: list[int], leaf: int, milli: int) -> None:
        """Add to what a column of a division says of a leaf and of all above it; before shares are read again they must be computed anew."""
        for place in self.path[leaf]:
            column[place] += milli

    def limits(self, leaf: int, quota_type: int) -> Iterator[tuple[int, int, int]]:
        """The limits on a leaf's way up that count a quota type: of which node, on that type or on every type, and how much."""
        for place in self.path[leaf] if self.limited else ():
            total, caps = self.limit_total[place], self.limit_by_type[place]
            if total is not None:
                yield place, EVERY_TYPE, total
            if caps is not None and quota_type in caps:
                yield place, quota_type, caps[quota_type]

    def used_of(self, place: int, quota_type: int) -> int:
        """What is used below a node of one type, or of every type."""
        if quota_type == EVERY_TYPE:
            return sum([division.used[place] for division in self.divisions])
        return (self.division(quota_type).used if self.used_by_type is None else self.used_by_type[quota_type])[place]

    def limit_for(self, division: Division, place: int) -> int | None:
        """The limit as it binds in one division: a number over all types leaves what the other types do not use."""
        total = self.limit_total[place]
        limit = division.limit[place] if self.by_type or self.limit_by_type[place] is None else None
        if total is not None and len(self.divisions) > 1:
            others = sum(other.used[place] for other in self.divisions if other is not division)
            left = max(0, total - others)
            return left if limit is None else min(limit, left)
        caps = self.limit_by_type[place]
        if caps is None or self.by_type:
            return limit
        return sum(caps.values()) if len(caps) == len(self.types) else None

    # Shares

    def share(self) -> None:
        """Compute every fair share: from scratch, or where divisions are on their own of what is asked for otherwise than the last time."""
        for index, division in enumerate(self.divisions):
            before, requested = self._shared[index], division.requested
            if self._together or before is None or before[0] != self.usage_weight:
                self._share_below(division, self._inner)
            elif before[1] != requested:
                others = compress(range(len(requested)), map(ne, requested, before[1]))
                self._share_below(division, {self.parent[place] for place in others if place})
            else:
                continue
            self._shared[index] = (self.usage_weight, list(requested))
        self.version += 1

    def shares_without_usage(self, division: Division) -> tuple[list[int], list[int]]:
        """Fair share and what may be counted on, by position, as if nobody had used anything in the past."""
        kept = division.fair, division.counts_on, self.usage_weight
        size = len(self.names)
        division.fair, division.counts_on, self.usage_weight = [0] * size, [0] * size, 0
        self._share_below(division, self._inner)
        found = division.fair, division.counts_on
        division.fair, division.counts_on, self.usage_weight = kept
        return found

    def _share_below(self, division: Division, parents: Iterable[int]) -> None:
        """Divide anew among the children of these nodes, and below whose share has changed by that."""
        line = sorted(parents)
        waiting = set(line)
        while line:
            parent = heappop(line)  # children stand behind their parents
            changed = self._divide(division, parent, division.fair[parent] if parent else division.capacity)
            for place in changed:
                if place not in waiting and self.children[place]:
                    waiting.add(place)
                    heappush(line, place)

    def _divide(self, division: Division, parent: int, pool: int) -> list[int]:
        """Divide a pool among the children of a node. Returns those whose share is another one now."""
        members = self.children[parent]
        if not members:
            return []
        fair, requested, counted_on, guaranteed = division.fair, division.requested, division.counts_on, division.guaranteed
        limits = [self.limit_for(division, place) for place in members]
        wants = [requested[place] if limit is None else min(limit, requested[place]) for place, limit in zip(members, limits, strict=True)]
        changed = []
        if (stated := division.groups.get(parent)) is None:
            of = [[column[place] for place in members] for column in (division.weight, division.priority, division.usage, self.age)]
            stated = division.groups[parent] = siblings([guaranteed[place] for place in members], *of)
        parts = divide(pool, wants, stated, self.usage_weight)
        for place, limit, part in zip(members, limits, parts, strict=True):
            promised = guaranteed[place]
            counts_on = max(promised, part) if promised is not None else division.capacity if limit is None else limit
            if limit is not None and limit < counts_on:
                counts_on = limit
            if part != fair[place]:
                changed.append(place)
            fair[place], counted_on[place] = part, counts_on
        return changed

    # Gates

    def promised_to_fixed(self, leaf: int, division: Division, ends: int) -> Iterator[tuple[int, int]]:
        """The guarantees on a leaf's way up, as non-preemptible work that ends at an instant may count them."""
        for place in self.path[leaf]:
            if (promised := division.standing[place]) is None:
                continue
            own = self.window_at.get(place)
            if own is not None and own.end is not None and ends > own.end:
                promised = 0
            for window, path in self.lasting:
                if place in path and self.divisions[self._window_division(window)] is division and (window.end is None or ends <= window.end):
                    promised += window.gpus
            yield place, promised

    def amount(self, division: Division, milli: int) -> str:
        """So much of a division with its name where there are several, as each tells of its own."""
        return counted(milli) if len(self.divisions) == 1 else f"{gpus(milli)} {division.name}"

    def within_share(self, place: int, quota_type: int, milli: int) -> bool:
        division = self.division(quota_type)
        return division.used[place] + milli <= division.fair[place]

    def within_guarantee(self, leaf: int, quota_type: int, milli: int, gone: Mapping[int, int] = NOTHING_GONE) -> bool:
        """Whether the path stays within its guarantees on every level, with what is gone by node of the tree."""
        division = self.division(quota_type)
        for place in self.path[leaf]:
            promised = division.guaranteed[place]
            if promised is not None and (over := division.used[place] + milli - promised) > 0 and over > self.sum_below(place, gone):
                return False
        return True

    def sum_below(self, place: int, amounts: Mapping[int, int]) -> int:
        """How much of what is told by node counts below a node."""
        return sum([amount for at, amount in amounts.items() if self.below(place, at)])

    # Order

    def key(self, place: int, division: Division, milli: int, less: int = 0) -> tuple[int, ...]:
        """Where a node stands among its siblings with its best job asking for `milli`; the least key is served first. `less` is what the node would
        no longer use."""
        used = division.used[place] - less
        promised = division.guaranteed[place]
        base = division.counts_on[place]
        with_job = used + milli
        if base > 0:  # exact as long as the product of two bases is below 2^64
            ratio_with, ratio = (with_job << 64) // base, (used << 64) // base
        else:
            # For x > 0, x/0 is above every number, so age and name decide between two of them; 0/0 is 0.
            ratio_with, ratio = (INFINITE if with_job else 0), (INFINITE if used else 0)
        return (
            used > division.fair[place],
            promised is not None and with_job > promised,
            -division.priority[place],
            base == 0,
            ratio_with,
            ratio,
            base,
            self.age[place],
        )

    def shortage(self) -> Iterable[tuple[Division, int]]:
        """Divisions whose guarantees in force exceed the healthy capacity."""
        for division in self.divisions:
            promised = [division.guaranteed[place] for place in self.children[0]]
            total = sum(amount for amount in promised if amount is not None)
            if total > division.capacity:
                yield division, total
