"""When a quota's limit lets a waiting job start, by the estimates of who counts against it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heappop, heappush
from typing import NamedTuple

from .lookahead import FOREVER
from .state import Cycle
from .windows import NEVER
from .work import Work

EVERY_TYPE = -1
Key = tuple[int, int]  # a node of the tree, and the quota type that the limit is about


class Taken(NamedTuple):
    """What a waiting job will count, from when on and for how long, in milliseconds."""

    work: Work
    quota_type: int
    milli: int
    at: int
    length: int


@dataclass(slots=True)
class Allowance:
    used: int = 0  # milli-GPU
    releases: list[tuple[int, int]] = field(default_factory=list)  # (milliseconds from now, milli-GPU), the next in front


class Allowances:
    """What limits leave, in the order in which who waits is foreseen: later ones find what earlier ones leave."""

    def __init__(self, cycle: Cycle) -> None:
        self.cycle = cycle

    def opens(self, work: Work, quota_type: int, milli: int) -> int | None:
        """From when on, in milliseconds from now, no limit stands in the way; None: nobody knows."""
        latest = 0
        for key, most in self._limits(work.home, quota_type):
            allowance = self._by_limit.setdefault(key, Allowance())
            over = allowance.used + milli - most
            releases = [*allowance.releases] if over > 0 else []
            while over > 0:
                if not releases:
                    return None
                at, freed = heappop(releases)
                over -= freed
                latest = max(latest, at)
        return latest

    def take(self, taken: Taken) -> None:
        """It counts from then on."""
        work, quota_type, milli, at, length = taken
        for key, most in self._limits(work.home, quota_type):
            allowance = self._by_limit.setdefault(key, Allowance())
            allowance.used += milli
            while allowance.used > most and allowance.releases:
                allowance.used -= heappop(allowance.releases)[1]
            if length < FOREVER:
                heappush(allowance.releases, (at + length, milli))

    def _limits(self, leaf: int, quota_type: int) -> Iterator[tuple[Key, int]]:
        tree = self.cycle.tree
        if not tree.limited:
            return
        for place in tree.path[leaf]:
            total, caps = tree.limit_total[place], tree.limit_by_type[place]
            if total is not None:
                yield (place, EVERY_TYPE), total
            if caps is not None and quota_type in caps:
                yield (place, quota_type), caps[quota_type]

    @cached_property
    def _by_limit(self) -> dict[Key, Allowance]:
        """What runs, by the limits that it counts against."""
        cycle, found = self.cycle, dict[Key, Allowance]()
        for work in cycle.cluster.works if cycle.tree.limited else ():
            if work.seats:
                end = cycle.ends_at(work)
                for key, _ in self._limits(work.charged_leaf, work.quota_type):
                    allowance = found.setdefault(key, Allowance())
                    allowance.used += work.milli
                    if end < NEVER:
                        heappush(allowance.releases, (max(0, end - cycle.now), work.milli))
        return found
