"""Energy rates and forecasts: which there are, who sees prices, and what counts for a pool over time."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from django.db.models import Count, QuerySet

from gpufleet.core.faults import Missing
from gpufleet.core.times import millis
from quotas.permissions import Access, Can
from scheduler.jobs.stored import accepts, types_of
from scheduler.models import EnergyForecast, EnergyRate, GpuType, Job, JobState, Node
from scheduler.power.deferring import Course, Span, course_of
from scheduler.power.ratings import rated_watts
from scheduler.snapshots.power import in_force

PRICE, CARBON = "price", "carbon"
# Behind the last start that is looked for: the longest run that is judged.
AHEAD = timedelta(days=60)


def sees_prices(access: Access, path: str | None = None) -> bool:
    """Of energy: who sees the costs of a team (of any, where none is named), and operators, who state the prices."""
    sees = access.can_somewhere(Can.SEE_COSTS) if path is None else access.can(Can.SEE_COSTS, path)
    return sees or access.can_everywhere(Can.OPERATE)


def rates_listed(access: Access) -> QuerySet[EnergyRate]:
    access.must_somewhere(Can.SEE)
    return EnergyRate.objects.select_related("created_by")


def rate_for(access: Access, public_id: str) -> EnergyRate:
    found = rates_listed(access).filter(public_id=public_id).first()
    if found is None:
        raise Missing("There is no such energy rate.")
    return found


def forecasts_listed(access: Access, now: datetime) -> QuerySet[EnergyForecast]:
    access.must_somewhere(Can.SEE)
    return EnergyForecast.objects.filter(ends_at__gt=now).select_related("sent_by")


@dataclass(frozen=True, slots=True)
class Here:
    """Nodes of one pool, type and set of labels."""

    pool: str
    gpu_type: str
    labels: Mapping[str, Any]
    count: int


@dataclass
class Tariffs:
    """What energy costs and stands for, as of a moment. What of it nobody asks for is not read."""

    now: datetime
    _spans: dict[str, list[Span]] = field(default_factory=dict)

    def spans(self, by: str) -> list[Span]:
        """Of prices or of carbon, written out over time."""
        if by not in self._spans:
            self._spans[by] = [*self._rates(by), *self._forecasts(by)]
        return self._spans[by]

    def changed(self, rate: EnergyRate | None, instead_of: EnergyRate | None) -> "Tariffs":
        """With another rate, in place of one of these or beside them."""
        found = Tariffs(self.now)
        gone = None if instead_of is None else instead_of.pk
        found.__dict__["_rows"] = [*(row for row in self._rows if row.pk != gone), *([] if rate is None else [rate])]
        return found

    def pools(self, by: str) -> list[str]:
        """Those of which something of their own is said."""
        return sorted({span.pool for span in self.spans(by) if span.pool})

    def course(self, by: str, pool: str, start: datetime, end: datetime) -> Course:
        return course_of(self.spans(by), pool, millis(start), millis(end))

    def pools_for(self, by: str, spec: Mapping[str, Any]) -> list[str]:
        """The pools that a job may use, by its GPU types and node labels. Those of which nothing of their own is said count as one, the fleet."""
        named = set(self.pools(by))
        if not named:
            return [""]
        return sorted({one.pool if one.pool in named else "" for one in self._nodes if _suits(one, spec)}) or [""]

    def types_for(self, spec: Mapping[str, Any]) -> list[str]:
        """The GPU types that a job may use: in the order that it names them, else the commonest first."""
        counted: Counter[str] = Counter()
        for one in self._nodes:
            if _suits(one, spec):
                counted[one.gpu_type] += one.count
        named = types_of(spec)
        return sorted(counted, key=lambda kind: (named.index(kind) if kind in named else len(named), -counted[kind], kind))

    def watts(self, gpu_type: str) -> int:
        return rated_watts(gpu_type, self._rated.get(gpu_type))

    @cached_property
    def _rows(self) -> list[EnergyRate]:
        return list(EnergyRate.objects.filter(in_force(self.now)).order_by("id"))

    @cached_property
    def _sent(self) -> list[EnergyForecast]:
        return list(EnergyForecast.objects.filter(ends_at__gt=self.now).order_by("id"))

    @cached_property
    def _rated(self) -> dict[str, int | None]:
        return dict(GpuType.objects.values_list("name", "rated_watts"))

    @cached_property
    def _nodes(self) -> list[Here]:
        rows = Node.objects.filter(removed_at__isnull=True, gpu_type__isnull=False).values_list("pool__name", "gpu_type_id", "labels")
        counted = rows.annotate(count=Count("id")).order_by()
        found = []
        for pool, kind, labels, count in counted:
            stated = {str(key): str(value) for key, value in (labels or {}).items()}
            if pool:
                stated.setdefault("pool", pool)
            found.append(Here(stated.get("pool", ""), kind or "", stated, count))
        return found

    def _rates(self, by: str) -> list[Span]:
        column = "price_micros" if by == PRICE else "grams"
        found = []
        for row in self._rows:
            value = getattr(row, column)
            if value is not None:
                times = row.times.between(self.now.astimezone(UTC), self.now + AHEAD)
                found += [Span(row.pool, value, millis(start), None if end is None else millis(end)) for start, end in times]
        return found

    def _forecasts(self, by: str) -> list[Span]:
        found = []
        for row in self._sent:
            ends = [*(start for start, *_ in row.steps[1:]), millis(row.ends_at)]
            for (start, price, grams), end in zip(row.steps, ends, strict=True):
                value = price if by == PRICE else grams
                if value is not None and end > start:
                    found.append(Span(row.pool, value, start, end, forecast=True))
        return found


def _suits(nodes: Here, spec: Mapping[str, Any]) -> bool:
    wanted = spec.get("node_labels") or {}
    return accepts(spec, nodes.gpu_type) and all(nodes.labels.get(str(key)) == str(value) for key, value in wanted.items())


@dataclass(frozen=True, slots=True)
class Deferred:
    """Jobs that are deferred now, with what they save by estimate; those whose saving in money may be told, and all for carbon."""

    jobs: int
    saved_micros: int | None
    saved_grams: int


def deferred_now(access: Access, now: datetime) -> Deferred:
    """Of jobs that the reader may see."""
    rows = Job.objects.filter(access.visible(Can.SEE, "quota__path"), ended_at__isnull=True, deferred_to__gt=now, state=JobState.QUEUED)
    count, micros, grams = 0, 0, 0
    for path, said in rows.values_list("quota__path", "deferral"):
        count += 1
        if said and "saved" in said:
            if said["by"] == CARBON:
                grams += said["saved"]
            elif sees_prices(access, path):
                micros += said["saved"]
    return Deferred(count, micros if sees_prices(access) else None, grams)
