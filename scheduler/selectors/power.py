"""Power caps: which there are, of which pools, and what the GPUs there are rated and draw."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice

from django.db.models import Count, QuerySet

from gpufleet.core.faults import Missing
from quotas.permissions import Access, Can
from scheduler.engine.model.values import Scenario
from scheduler.engine.rules.power import Power
from scheduler.engine.state.cluster import Cluster
from scheduler.models import EnergyRate, Gpu, GpuType, Node, PowerCap
from scheduler.power.ratings import ASSUMED, maker_watts, rated_watts
from scheduler.snapshots.power import in_force

AHEAD = timedelta(days=740)
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Rating:
    """The watts of a GPU of one type: what counts, and who says so (operator, maker or assumed)."""

    gpu_type: str
    watts: int
    stated: int | None
    maker: int | None
    gpus: int

    @property
    def source(self) -> str:
        return "operator" if self.stated else "maker" if self.maker else "assumed"


@dataclass(frozen=True, slots=True)
class Drawn:
    """A pool now: its GPUs rated together, what jobs there may draw, and the lowest cap that applies, in watts."""

    pool: str
    gpus: int
    rated: int
    drawn: int
    cap: int | None

    @property
    def left(self) -> int | None:
        return None if self.cap is None else max(0, self.cap - self.drawn)


@dataclass(frozen=True, slots=True)
class Course:
    """What may be drawn of a pool over time at most, by limits, and its cap, at some instants."""

    pool: str
    at: Sequence[datetime]
    drawn: Sequence[int]
    caps: Sequence[int | None]


def may_cap(access: Access) -> bool:
    return access.can_everywhere(Can.OPERATE)


def caps_listed(access: Access) -> QuerySet[PowerCap]:
    """Everyone who sees anything sees them: they are why jobs wait."""
    access.must_somewhere(Can.SEE)
    return PowerCap.objects.select_related("created_by")


def cap_for(access: Access, public_id: str) -> PowerCap:
    found = caps_listed(access).filter(public_id=public_id).first()
    if found is None:
        raise Missing("There is no such power cap.")
    return found


def next_of(cap: PowerCap | EnergyRate, now: datetime) -> tuple[datetime, datetime | None] | None:
    """The time at which it applies now or next; None: it is over."""
    return next(iter(islice(cap.times.between(now, now + AHEAD), 1)), None)


def pools_known() -> list[str]:
    """By name and by the label `pool` of nodes."""
    rows = Node.objects.filter(removed_at__isnull=True).values_list("pool__name", "labels").distinct()
    return sorted({pool for name, labels in rows if (pool := str((labels or {}).get("pool") or name or ""))})


def gpu_pools() -> dict[int, str]:
    """The pool of each GPU."""
    rows = Gpu.objects.filter(removed_at__isnull=True, node__removed_at__isnull=True).values_list("id", "node__pool__name", "node__labels")
    return {gpu: str((labels or {}).get("pool") or name or "") for gpu, name, labels in rows}


def ratings(access: Access, *, every: bool = False) -> list[Rating]:
    access.must_somewhere(Can.SEE)
    counted = dict(
        Node.objects.filter(removed_at__isnull=True, gpus__removed_at__isnull=True).values_list("gpus__gpu_type_id").annotate(count=Count("gpus"))
    )
    rows = GpuType.objects.order_by("name").values_list("name", "rated_watts")
    found = [Rating(name, rated_watts(name, stated), stated, maker_watts(name), counted.get(name, 0)) for name, stated in rows]
    return [one for one in found if one.gpus or one.stated or every]


def any_in_force(now: datetime) -> bool:
    return PowerCap.objects.filter(in_force(now)).exists()


def power_now(scenario: Scenario) -> Mapping[str, Drawn]:
    """By pool that has a cap; "" is the whole fleet."""
    power = _power(scenario)
    found = {}
    for pool in power.caps if power is not None else ():
        assert power is not None
        nodes = [place for place in range(power.grid.size) if power.nodes[pool] >> place & 1]
        cap, milliwatts = power.at(pool, power.now)
        gpus = sum(power.grid.nodes[place].gpus for place in nodes)
        rated = sum(power.grid.nodes[place].gpus * power.watts[place] for place in nodes)
        found[pool or ""] = Drawn(pool or "", gpus, rated, milliwatts // 1000, None if cap is None else cap.watts)
    return found


def power_ahead(scenario: Scenario, pool: str, now: datetime, until: datetime, step: timedelta) -> Course:
    """What jobs that run may still draw by their limits, with caps, from now on."""
    power, name = _power(scenario), pool or None
    at, drawn, caps = [], [], list[int | None]()
    moment = now
    while power is not None and name in power.caps and moment <= until:
        instant = power.now + round((moment - now).total_seconds() * 1000)
        cap, watts = power.at(name, instant)
        at.append(moment)
        drawn.append(watts // 1000)
        caps.append(None if cap is None else cap.watts)
        moment += step
    return Course(pool, at, drawn, caps)


def _power(scenario: Scenario) -> Power | None:
    return Cluster(scenario).power


__all__ = ["ASSUMED", "Course", "Drawn", "Rating"]
