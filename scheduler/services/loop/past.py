"""Past usage for fairness (QTA-4): what each node of the tree used of late, once a step, from ledger and timeline.

A millisecond of use counts half when it is one half-life ago, a quarter at two. The use of a node against the capacity of the fleet, both so decayed,
is the U by which the engine divides what is idle. Each step carries the sums of the one before on, so it reads only what lies between them.
"""

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from math import log
from typing import Any

from django.db import transaction
from django.db.models import Q

from gpufleet.core.times import MILLISECOND
from quotas.models import LedgerClock, LedgerEntry
from scheduler.engine.model.values import Fairness
from scheduler.models import CapacityEntry, UsageStep
from scheduler.services.loop.usage import usage_moment

# What is longer ago counts less than a millionth.
HALF_LIVES = 20
AT_ONCE = 5_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def step_begin(now: datetime, fairness: Fairness) -> datetime:
    """When the step began that `now` lies in."""
    assert fairness.step_ms, "the loop always has steps"
    step = timedelta(milliseconds=fairness.step_ms)
    return EPOCH + (now - EPOCH) // step * step


def past_usage_take(*, now: datetime, fairness: Fairness) -> bool:
    """Sum up the usage until the beginning of this step, unless that has been done or past usage counts for nothing. Done twice it is done once."""
    if not fairness.usage_weight_millionths or not LedgerClock.objects.filter(pk=1).exists():
        return False
    begin, half_life = step_begin(now, fairness), fairness.half_life_ms // 1000
    step = UsageStep.objects.filter(half_life_seconds=half_life)
    if step.filter(at=begin).exists():
        return False
    with transaction.atomic():
        # From here on nobody changes how much is held before this step, whatever his clock says; only phases may change (`may_change_from`).
        usage_moment(now=now)
        if step.filter(at=begin).exists():
            return False
        last = step.filter(at__lt=begin).order_by("-at").first()
        sums = _Sums(begin, timedelta(seconds=half_life), last)
        UsageStep.objects.create(at=begin, half_life_seconds=half_life, used=sums.used(), capacity=sums.capacity())
    return True


def past_usage_if(*, now: datetime, fairness: Fairness) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
    """What a step would sum up that began now, by node, and the capacity beside it. Nothing is written."""
    half_life = timedelta(milliseconds=fairness.half_life_ms)
    last = UsageStep.objects.filter(half_life_seconds=fairness.half_life_ms // 1000, at__lte=now).order_by("-at").first()
    sums = _Sums(now, half_life, last)
    return sums.used(), sums.capacity()


class _Sums:
    def __init__(self, begin: datetime, half_life: timedelta, last: UsageStep | None) -> None:
        self.begin = begin
        self.half_life = half_life / MILLISECOND
        self.last = last
        earliest = begin - HALF_LIVES * half_life
        self.since = max(last.at, earliest) if last is not None else earliest
        began = LedgerClock.objects.filter(pk=1).values_list("began_at", flat=True).first()
        if began is not None:  # what was used before had no capacity beside it
            self.since = max(self.since, began)
        self.kept = self._weight(last.at) if last is not None else 0.0

    def _weight(self, moment: datetime) -> float:
        """How much a millisecond at that moment counts."""
        return float(0.5 ** ((self.begin - moment) / MILLISECOND / self.half_life))

    def _decayed(self, rows: Iterable[tuple[Any, ...]]) -> dict[Any, float]:
        """The integral of what was held, by key, over the time since the last step."""
        found: dict[Any, float] = defaultdict(float)
        for key, milli, since, until in rows:
            start, end = max(since, self.since), min(until or self.begin, self.begin)
            if start < end:
                found[key] += milli * self.half_life / log(2) * (self._weight(end) - self._weight(start))
        return found

    def _overlapping(self) -> Q:
        return Q(since__lt=self.begin) & (Q(until__gt=self.since) | Q(until__isnull=True))

    def used(self) -> dict[str, dict[str, int]]:
        entries = LedgerEntry.objects.filter(self._overlapping()).order_by().values_list("quota_id", "gpu_type", "gpu_milli", "since", "until")
        fresh = self._decayed(((quota, kind), *rest) for quota, kind, *rest in entries.iterator(AT_ONCE))
        found: dict[str, dict[str, int]] = defaultdict(dict)
        before = {(int(quota), kind): amount for quota, kinds in (self.last.used if self.last else {}).items() for kind, amount in kinds.items()}
        for quota, kind in sorted({*before, *fresh}):
            found[str(quota)][kind] = round(before.get((quota, kind), 0) * self.kept + fresh.get((quota, kind), 0.0))
        return dict(found)

    def capacity(self) -> dict[str, int]:
        entries = CapacityEntry.objects.filter(self._overlapping()).order_by().values_list("gpu__gpu_type_id", "since", "until")
        fresh = self._decayed((kind, 1000, since, until) for kind, since, until in entries.iterator(AT_ONCE))
        before = self.last.capacity if self.last else {}
        return {kind: round(before.get(kind, 0) * self.kept + fresh.get(kind, 0.0)) for kind in sorted({*before, *fresh})}
