"""Past usage in a simulation: what each quota node used of the fleet, decayed by the half-life of the settings, as the loop keeps it."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import log

from scheduler.engine.model.values import ANY_TYPE, Quota, Scenario

from .progress import MILLION

Milli = Mapping[str, int]  # milli-GPU by type


class PastUsage:
    """A millisecond of use counts half when it is one half-life ago. The usage that a scenario states is taken to have been like that for ever."""

    def __init__(self, scenario: Scenario, capacity: Milli) -> None:
        fairness = scenario.settings.fairness
        self.half_life, self.step_ms = fairness.half_life_ms, fairness.step_ms
        self.parents = {quota.name: quota.parent for quota in scenario.quotas}
        lasting = self.half_life / log(2)  # so many milliseconds count, of all that ever were
        self.capacity = {kind: milli * lasting for kind, milli in capacity.items() if milli}
        self.used: dict[str, dict[str, float]] = {}
        for quota in scenario.quotas:
            stated = dict(quota.usage)
            self.used[quota.name] = {kind: stated.get(kind, stated.get(ANY_TYPE, 0)) * all_of / MILLION for kind, all_of in self.capacity.items()}
        self._running: dict[str, tuple[str, Milli, int]] = {}  # by job: its quota, what it holds, and since when that is not counted
        self._at = scenario.now  # as of when the sums are
        self._fresh: dict[tuple[str, str], float] = {}  # use since then, as it counts then

    def change(self, job: str, quota: str, milli: Milli, now: int) -> None:
        """From now on a job holds so much."""
        self._count(job, now)
        if milli:
            self._running[job] = (quota, milli, now)
        else:
            self._running.pop(job, None)

    def _count(self, job: str, now: int) -> None:
        known = self._running.get(job)
        if known is None or known[2] >= now:
            return
        quota, milli, since = known
        weight = self.half_life / log(2) * (self._weight(now) - self._weight(since))
        for kind, held in milli.items():
            self._fresh[quota, kind] = self._fresh.get((quota, kind), 0.0) + held * weight
        self._running[job] = (quota, milli, now)

    def _weight(self, moment: int) -> float:
        return float(2.0 ** ((moment - self._at) / self.half_life))

    def next_step(self, now: int) -> int | None:
        """When usage is taken anew; None: with every plan."""
        return (now // self.step_ms + 1) * self.step_ms if self.step_ms else None

    def is_due(self, now: int) -> bool:
        return now > self._at and (not self.step_ms or now // self.step_ms > self._at // self.step_ms)

    def taken(self, quotas: Iterable[Quota], now: int) -> tuple[Quota, ...]:
        """The quota nodes with their usage as of the beginning of the step that an instant lies in."""
        begin = now if not self.step_ms else now // self.step_ms * self.step_ms
        for job in [*self._running]:
            self._count(job, begin)
        kept = 1 / self._weight(begin)
        for (quota, kind), milli in self._fresh.items():
            at: str | None = quota
            while at is not None:
                self.used[at][kind] = self.used[at].get(kind, 0.0) + milli
                at = self.parents[at]
        for used in self.used.values():
            for kind in used:
                used[kind] *= kept
        self._fresh.clear()
        self._at = begin
        return tuple(replace(quota, usage=self._parts(quota.name)) for quota in quotas)

    def _parts(self, quota: str) -> tuple[tuple[str, int], ...]:
        used, capacity = self.used[quota], self.capacity
        parts = {kind: _part(used.get(kind, 0.0), all_of) for kind, all_of in capacity.items()}
        return (*sorted(parts.items()), (ANY_TYPE, _part(sum(used.values()), sum(capacity.values()))))


def _part(used: float, capacity: float) -> int:
    return min(MILLION, round(MILLION * used / capacity)) if capacity else 0
