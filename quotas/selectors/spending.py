"""What attempts have used so far, out of the ledger, and what that costs at the rates of its time."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import Q, QuerySet, Subquery, Sum

from gpufleet.core.money import cost_micros
from gpufleet.core.times import millis
from quotas.chargeback.pricing import Kind, PriceBook
from quotas.models import CHARGED, LedgerClock, LedgerEntry, Phase

MILLI_MILLIS_PER_GPU_HOUR = 1000 * 3_600_000


@dataclass(frozen=True, slots=True)
class Spent:
    """`milli_millis` is exact: thousandths of a GPU times milliseconds. `cost_micros` is None where nobody asked, or where no hour of it has a rate;
    `without_rate` names the types of which some hours have none, and these are not in the cost. Before `ledger_began` nothing was written down;
    None where it was given what was before it, as in a demo."""

    milli_millis: int = 0
    cost_micros: int | None = None
    without_rate: tuple[str, ...] = ()
    ledger_began: datetime | None = None
    holds: Mapping[str, int] = field(default_factory=dict)  # milli-GPU now, by share class
    micros_per_hour: int | None = None  # what that costs now, as far as it has rates

    @property
    def gpu_hours(self) -> float:
        return self.milli_millis / MILLI_MILLIS_PER_GPU_HOUR


def attempts_spent(attempts: Collection[int] | QuerySet[Any], *, rates: PriceBook | None, now: datetime) -> Spent:
    """What is charged of these attempts until now, and what they hold; of many they are a query for their keys. One query: the database adds up
    workers that hold alike."""
    these = Q(attempt__in=attempts) if isinstance(attempts, QuerySet) else Q(attempt__among=list(attempts))
    rows = (
        LedgerEntry.objects.filter(these, gpu_milli__gt=0)
        .order_by()
        .values_list("gpu_type", "share_class", "preemptible", "tier", "pool", "phase", "since", "until")
        .annotate(Sum("gpu_milli"), began=Subquery(LedgerClock.objects.values("began_at")[:1]))
    )
    total = money = priced = 0
    bare: set[str] = set()
    found = list(rows)
    holds: Counter[str] = Counter()
    hourly: list[int] = []
    at = millis(now)
    for gpu_type, share_class, preemptible, tier, pool, phase, since, until, milli, _ in found:
        kind = Kind(gpu_type, share_class, preemptible == "yes", tier, pool)
        if until is None:
            holds[share_class] += milli
        if phase == Phase.STARTING:
            continue
        if until is None:
            price = rates.at(kind, at) if rates is not None else None
            hourly += [milli * price.effective_micros] if price is not None else []
        start, end = millis(since), millis(until or now)
        length = max(0, end - start)
        total += milli * length
        if rates is None or not length:
            continue
        covered, charged = rates.charged(kind, start, end)
        money += milli * charged
        priced += covered
        if covered < length:
            bare.add(gpu_type)
    # One rounding, at the end: `money` is thousandths of a GPU times milliseconds times what an hour costs.
    cost = cost_micros(gpu_milli=money, millis=1, micros_per_gpu_hour=1) if priced else None
    hour = cost_micros(gpu_milli=sum(hourly), millis=3_600_000, micros_per_gpu_hour=1) if hourly else None
    began = found[0][-1] if found else None
    began = began if began is not None and all(row[6] >= began for row in found) else None
    return Spent(total, cost, tuple(sorted(bare)), began, dict(holds), hour)


def attempts_cost(attempts: Collection[int], *, rates: PriceBook, now: datetime) -> dict[int, int]:
    """Micro-units that each of these attempts has cost until now, as far as its hours have rates. One query."""
    rows = (
        LedgerEntry.objects.filter(CHARGED, attempt__among=list(attempts))
        .order_by()
        .values_list("attempt", "gpu_type", "share_class", "preemptible", "tier", "pool", "since", "until")
        .annotate(Sum("gpu_milli"))
    )
    money: Counter[int] = Counter()
    priced: set[int] = set()
    for attempt, gpu_type, share_class, preemptible, tier, pool, since, until, milli in rows:
        start, end = millis(since), millis(until or now)
        if end <= start:
            continue
        covered, charged = rates.charged(Kind(gpu_type, share_class, preemptible == "yes", tier, pool), start, end)
        money[attempt] += milli * charged
        if covered:
            priced.add(attempt)
    return {attempt: cost_micros(gpu_milli=money[attempt], millis=1, micros_per_gpu_hour=1) for attempt in priced}
