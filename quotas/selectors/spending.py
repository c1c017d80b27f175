"""What attempts have used so far, out of the ledger, and what that costs at the rates of its time."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise

from django.db.models import Subquery, Sum

from gpufleet.core.money import cost_micros
from gpufleet.core.times import millis
from quotas.models import LedgerClock, LedgerEntry, Rate

MILLI_MILLIS_PER_GPU_HOUR = 1000 * 3_600_000
# Later than anything that is charged.
NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Spent:
    """`milli_millis` is exact: thousandths of a GPU times milliseconds. `cost_micros` is None where nobody asked, or where no hour of it has a rate;
    `without_rate` names the types of which some hours have none, and these are not in the cost. Before `ledger_began` nothing was written down."""

    milli_millis: int = 0
    cost_micros: int | None = None
    without_rate: tuple[str, ...] = ()
    ledger_began: datetime | None = None
    holds: Mapping[str, int] = field(default_factory=dict)  # milli-GPU now, by share class
    micros_per_hour: int | None = None  # what that costs now, as far as it has rates

    @property
    def gpu_hours(self) -> float:
        return self.milli_millis / MILLI_MILLIS_PER_GPU_HOUR


@dataclass(frozen=True, slots=True)
class RateCard:
    """Every rate that there was, by GPU type, the oldest first: since when (ms) and micro-units for a GPU hour."""

    steps: dict[str, list[tuple[int, int]]]

    def now(self, now: datetime) -> dict[str, int]:
        at = millis(now)
        past = {gpu_type: [micros for since, micros in steps if since <= at] for gpu_type, steps in self.steps.items()}
        return {gpu_type: micros[-1] for gpu_type, micros in past.items() if micros}


def rate_card() -> RateCard:
    steps: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for gpu_type, since, micros in Rate.objects.order_by("valid_from").values_list("gpu_type", "valid_from", "micros_per_gpu_hour"):
        steps[gpu_type].append((millis(since), micros))
    return RateCard(dict(steps))


def attempts_spent(attempts: Collection[int], *, rates: RateCard | None, now: datetime) -> Spent:
    """What these attempts have held until now. One query: workers that hold alike from and until the same moment are added up by the database."""
    rows = (
        LedgerEntry.objects.filter(attempt__among=list(attempts), gpu_milli__gt=0)
        .order_by()
        .values_list("gpu_type", "since", "until", "share_class")
        .annotate(Sum("gpu_milli"), began=Subquery(LedgerClock.objects.values("began_at")[:1]))
    )
    total = money = priced = 0
    bare: set[str] = set()
    found = list(rows)
    holds: Counter[str] = Counter()
    hourly: list[int] = []
    prices = rates.now(now) if rates is not None else {}
    for gpu_type, since, until, share_class, milli, _ in found:
        if until is None:
            holds[share_class] += milli
            hourly += [milli * prices[gpu_type]] if gpu_type in prices else []
        start, end = millis(since), millis(until or now)
        length = max(0, end - start)
        total += milli * length
        if rates is None or not length:
            continue
        covered, charged = rates_charged(rates.steps.get(gpu_type, ()), start, end)
        money += milli * charged
        priced += covered
        if covered < length:
            bare.add(gpu_type)
    # One rounding, at the end: `money` is thousandths of a GPU times milliseconds times what an hour costs.
    cost = cost_micros(gpu_milli=money, millis=1, micros_per_gpu_hour=1) if priced else None
    hour = cost_micros(gpu_milli=sum(hourly), millis=3_600_000, micros_per_gpu_hour=1) if hourly else None
    return Spent(total, cost, tuple(sorted(bare)), found[0][-1] if found else None, dict(holds), hour)


def rates_charged(steps: Sequence[tuple[int, int]], start: int, end: int) -> tuple[int, int]:
    """How many milliseconds of [start, end) have a rate, and these milliseconds times their rates."""
    covered = charged = 0
    for (since, micros), (until, _) in pairwise([*steps, (NEVER, 0)]):
        length = max(0, min(end, until) - max(start, since))
        covered += length
        charged += length * micros
    return covered, charged
