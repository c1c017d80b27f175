"""Arrays as a whole: how many of their jobs are where, when the last one is expected to end, and which of them want to be looked at first."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Case, Count, IntegerField, Max, Min, Q, QuerySet, Sum, Value, When
from django.http import Http404

from quotas.permissions import Access, Can
from quotas.selectors.rates import price_book
from quotas.selectors.spending import Spent, attempts_spent
from scheduler.jobs.speeds import seconds_at, slowest_on, speed_on
from scheduler.jobs.stored import types_of
from scheduler.models import ENDED, HOLDING, Attempt, Job, JobState
from scheduler.selectors.holders import open_placements
from scheduler.selectors.jobs import WAITING

ROWS_SHOWN = 100
# Of jobs of one array: who failed is looked at before who runs, and who waits before who is done.
_FIRST = ((JobState.FAILED,), (*HOLDING,), (*WAITING, JobState.DRAFT), (JobState.CANCELLED,))


@dataclass(frozen=True, slots=True)
class Foreseen:
    """When the last job is expected to have ended. `by`: starts (each is foreseen) or pace (as quickly as until now); without `at` unknown."""

    at: datetime | None
    by: str = ""
    unknown: int = 0  # jobs of which neither start nor length is known


@dataclass(frozen=True, slots=True)
class ArrayState:
    """`first` is its first job that the reader may see; `counts` are by state."""

    public_id: str
    first: Job
    counts: dict[str, int]
    held: int
    holding_milli: int
    last_ended: datetime | None
    foreseen: Foreseen | None

    @property
    def name(self) -> str:
        return self.first.name.removesuffix(f"[{self.first.array_index}]")

    @property
    def size(self) -> int:
        return sum(self.counts.values())

    @property
    def ended(self) -> int:
        return sum(self.counts.get(state, 0) for state in ENDED)

    @property
    def waiting(self) -> int:
        return sum(self.counts.get(state, 0) for state in WAITING)

    @property
    def holding(self) -> int:
        return sum(self.counts.get(state, 0) for state in HOLDING)

    @property
    def percent(self) -> int:
        """Of its jobs that have ended; 100 only once all have."""
        return 100 * self.ended // self.size if self.size else 0

    @property
    def ended_at(self) -> datetime | None:
        return self.last_ended if self.ended == self.size else None


def elements(access: Access, array: str) -> QuerySet[Job]:
    """The jobs of an array that the reader may see."""
    # Said twice, as the index has only jobs of arrays.
    return Job.objects.filter(access.visible(Can.SEE, "quota__path"), ~Q(array=""), array=array)


def array_spent(access: Access, array: str, now: datetime) -> Spent:
    """What its jobs were charged until now, as far as the reader may see them. In money only where he may see the costs of all of these."""
    mine = elements(access, array)
    rates = None
    if access.can_somewhere(Can.SEE_COSTS):
        paths = mine.order_by().values_list("quota__path", flat=True).distinct()
        rates = price_book() if all(access.can(Can.SEE_COSTS, path) for path in paths) else None
    return attempts_spent(Attempt.objects.filter(job__in=mine.order_by().values("pk")).order_by().values("pk"), rates=rates, now=now)


def array_for(access: Access, array: str, now: datetime) -> ArrayState:
    """In five queries at most, however many jobs it has. 404 where the reader may see none of them."""
    access.must_somewhere(Can.SEE)
    mine = elements(access, array)
    first = mine.select_related("quota", "owner").defer("launch").order_by("array_index").first()
    if first is None:
        raise Http404(f"There is no array {array}.")
    held = Count("pk", filter=Q(held_at__isnull=False))
    rows = mine.order_by().values_list("state").annotate(count=Count("pk"), waits=held, milli=Sum("gpus_milli"), last=Max("ended_at"))
    counts, holds, milli, last = {}, 0, 0, None
    for state, count, waits, sum_milli, ended in rows:
        counts[state] = count
        holds += waits if state not in ENDED else 0
        milli += sum_milli if state in HOLDING else 0
        last = max(filter(None, (last, ended)), default=None)
    left = sum(count for state, count in counts.items() if state not in ENDED)
    return ArrayState(array, first, counts, holds, milli, last, _foreseen(mine, first, counts, now) if left else None)


def _foreseen(mine: QuerySet[Job], first: Job, counts: dict[str, int], now: datetime) -> Foreseen:
    """By each job's own start and how long it takes; where some have none, by the pace of those that have ended."""
    live = mine.exclude(state__in=ENDED)
    # The jobs of an array are alike: the speeds of one are those of all.
    spec = first.spec
    types = _types_held(live) if spec.get("throughput") else {}
    wherever = _slowest_anywhere(spec)
    began = Max("attempts__running_at", filter=Q(attempts__ended_at__isnull=True))
    rows = (
        live.order_by().values_list("pk", "state", "held_at", "estimate_seconds", "limit_seconds", "outlook__predicted_start").annotate(began=began)
    )
    ends, unknown = [], 0
    for pk, state, held, estimate, limit, start, running in rows:
        seconds = seconds_at(slowest_on(spec, types[pk]) if pk in types else wherever, estimate, limit)
        begins = (running or now) if state in HOLDING else start
        if seconds is None or begins is None or held is not None:
            unknown += 1
        else:
            ends.append((begins if state in HOLDING else max(begins, now)) + timedelta(seconds=seconds))
    if not unknown:
        return Foreseen(max(now, *ends), "starts")
    return Foreseen(_at_this_pace(mine, counts, now), "pace", unknown)


def _types_held(jobs: QuerySet[Job]) -> dict[int, set[str]]:
    """On which types of GPU those sit that hold some."""
    found: dict[int, set[str]] = {}
    held = open_placements().filter(job__in=jobs.values("pk")).order_by()
    for job, name in held.values_list("job_id", "gpu__gpu_type__name").distinct():
        found.setdefault(job, set()).add(name)
    return found


def _slowest_anywhere(spec: Mapping[str, Any]) -> float:
    """Of a job that sits nowhere yet: on any of the types that it accepts and can run on."""
    named = types_of(spec)
    speeds = [speed_on(spec, name) for name in named or spec.get("throughput") or ()]
    return min([speed for speed in speeds if speed > 0] + ([] if named else [1.0]), default=1.0)


def _at_this_pace(mine: QuerySet[Job], counts: dict[str, int], now: datetime) -> datetime | None:
    done = counts.get(JobState.COMPLETED, 0) + counts.get(JobState.FAILED, 0)
    began = Attempt.objects.filter(job__in=mine.values("pk")).aggregate(at=Min("started_at"))["at"] if done else None
    if began is None or began >= now:
        return None
    left = sum(count for state, count in counts.items() if state not in ENDED)
    return now + (now - began) * left / done


def array_rows(access: Access, array: str, limit: int = ROWS_SHOWN) -> list[Job]:
    """The jobs to look at first."""
    rank = Case(*(When(state__in=states, then=Value(place)) for place, states in enumerate(_FIRST)), default=Value(9), output_field=IntegerField())
    rows = elements(access, array).select_related("quota", "owner").defer("spec", "launch")
    return list(rows.order_by(rank, "array_index")[:limit])


def elements_left(access: Access, array: str, *, after: int, limit: int) -> list[tuple[int, str]]:
    """Jobs that have not ended, behind an index: index and id, in order."""
    rows = elements(access, array).exclude(state__in=ENDED).filter(array_index__gt=after)
    found = rows.order_by("array_index").values_list("array_index", "public_id")[:limit]
    return [(index, name) for index, name in found if index is not None]


def facts_of(found: ArrayState) -> dict[str, Any]:
    """For programs."""
    seen = found.foreseen
    return {
        "id": found.public_id,
        "name": found.name,
        "quota": found.first.quota.path,
        "owner": found.first.owner.username if found.first.owner else None,
        "submitted_at": found.first.submitted_at,
        "size": found.size,
        "counts": dict(Counter(found.counts)),
        "held": found.held,
        "holding_milli": found.holding_milli,
        "ended_percent": found.percent,
        "ended_at": found.ended_at,
        "foreseen_end": seen.at if seen else None,
        "foreseen_by": seen.by if seen and seen.at else None,
    }


def failed_of(rows: Sequence[Job]) -> list[str]:
    return [job.public_id for job in rows if job.state == JobState.FAILED]
