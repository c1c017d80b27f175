"""The service level of a job as pages and programs read it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.core.exceptions import ValidationError
from django.db.models import QuerySet

from dashboards.courses import job_time
from dashboards.marks import MARKS
from dashboards.models import PrometheusServer
from dashboards.prometheus.asking import REFUSED
from dashboards.selectors import FRESH
from dashboards.slo.causes import ceil_of
from dashboards.slo.models import BreachCause, BreachEnd, ServiceBreach, ServiceLevel, ServiceSample
from dashboards.slo.relief import Done, Help, Next, done_told, helps_of, next_told, relief_names, relief_rows
from dashboards.slo.words import ms_told
from gpufleet.core.charts import Chart, Mark, Series, over_time
from gpufleet.core.faults import Missing
from gpufleet.core.ranges import MINUTE, Range
from quotas.permissions import Access
from scheduler.models import ENDED, Attempt, Job
from scheduler.selectors.discretion import Discretion
from scheduler.selectors.jobs import may_steer
from scheduler.selectors.neighbours import Pair, apart_of_service

BREACHES_SHOWN = 10
MOST_POINTS = 700
KEPT = timedelta(days=14)
LABELS = {"latency": "Latency", "rate": "Requests", "wanted": "Replicas wanted"}


@dataclass(frozen=True, slots=True)
class BreachTold:
    since: datetime
    until: datetime | None
    end: str
    objective_ms: int
    worst_ms: float
    cause: str
    said: str

    @property
    def cause_told(self) -> str:
        return str(BreachCause(self.cause).label)

    @property
    def end_told(self) -> str:
        return str(BreachEnd(self.end).label) if self.end else ""

    @property
    def worst_told(self) -> str:
        return ms_told(self.worst_ms)

    @property
    def objective_told(self) -> str:
        return ms_told(self.objective_ms)


@dataclass(frozen=True, slots=True)
class LevelTold:
    """`level` None: nothing is stated (any more). `breaches` are the newest, the latest first."""

    level: ServiceLevel | None
    state: str  # as the API has it; off where nothing is stated
    faults: Mapping[str, str]
    breaches: tuple[BreachTold, ...]
    apart: tuple[Pair, ...] = ()  # templates beside whose jobs it would miss its objective
    relief: Next | None = None  # of a breach that goes on because of co-tenants
    relieved: tuple[Done, ...] = ()  # jobs that were evicted for it, the latest first
    helps: tuple[Help, ...] = ()  # of a breach that goes on for missing capacity

    @property
    def title(self) -> str:
        return self.level.title if self.level else "Latency"

    @property
    def breach(self) -> BreachTold | None:
        """The one that goes on."""
        return self.breaches[0] if self.breaches and self.breaches[0].until is None else None

    @property
    def faults_told(self) -> list[tuple[str, str]]:
        return [(LABELS[key], self.faults[key]) for key in LABELS if key in self.faults]

    @property
    def is_current(self) -> bool:
        """Whether its figures are those of now."""
        return self.state not in ("off", "new", "stale", "ended")

    @property
    def latency_told(self) -> str:
        return ms_told(self.level.latency_ms) if self.level and self.level.latency_ms is not None else ""

    @property
    def objective_told(self) -> str:
        return ms_told(self.level.objective_ms) if self.level else ""

    @property
    def wanted(self) -> int | None:
        return ceil_of(self.level.replicas_wanted) if self.level else None


def level_of(job: Job) -> ServiceLevel | None:
    return ServiceLevel.objects.filter(job=job).first()


def must_have_metric(job: Job) -> None:
    """Only what is read can be followed."""
    if not ServiceLevel.objects.filter(job=job).exclude(wanted="").exists():
        raise ValidationError({"follow": "Its service level states no query of replicas wanted."})


def level_missing(job: Job) -> Missing:
    return Missing(f"{job.public_id} has no service level.")


def level_told(access: Access, job: Job, *, now: datetime) -> LevelTold:
    """In eight queries at most, one of names that the reader may not know, and those of templates where it is kept apart from any."""
    level = level_of(job)
    rows = list(ServiceBreach.objects.filter(job=job).order_by("-since", "-pk")[:BREACHES_SHOWN])
    going_on = rows[0] if rows and rows[0].until is None and job.state not in ENDED else None
    cause = going_on.cause if going_on is not None and level is not None else None
    row, done = relief_rows(job, cause) if rows else (None, [])
    discretion = Discretion(access, [*(row.said for row in rows), *relief_names(row, done)])
    breaches = tuple(BreachTold(row.since, row.until, row.end, row.objective_ms, row.worst_ms, row.cause, discretion.text(row.said)) for row in rows)
    is_open = bool(breaches) and breaches[0].until is None
    state = _state(level, job, is_open, now) if level else "off"
    faults = _faults(level, may_steer(access, job)) if level and state != "ended" else {}
    apart = apart_of_service(access, job) if level and state != "ended" else ()
    relief = next_told(row, discretion) if cause == BreachCause.CO_TENANT else None
    helps = helps_of(job, level) if level is not None and cause == BreachCause.CAPACITY else ()
    return LevelTold(level, state, faults, breaches, apart, relief, done_told(done, discretion), helps)


def _faults(level: ServiceLevel, may_read: bool) -> dict[str, str]:
    """As a server has worded them only for those who may read the queries."""
    if may_read:
        return dict(level.faults)
    parts = {key: fault.partition(REFUSED) for key, fault in level.faults.items()}
    return {key: f"{before}{REFUSED.rstrip(': ')}." if refused else before for key, (before, refused, _) in parts.items()}


def _state(level: ServiceLevel, job: Job, is_open: bool, now: datetime) -> str:
    if job.state in ENDED:
        return "ended"
    if level.looked_at is None:
        return "new"
    if now - level.looked_at > FRESH:
        return "stale"
    if is_open:
        return "breached"
    if level.latency_ms is None:
        return "unknown"
    return "over" if level.latency_ms > level.objective_ms else "met"


def servers_for_services() -> QuerySet[PrometheusServer]:
    """Also those from which no GPUs are read: services often have a Prometheus of their own, without DCGM."""
    return PrometheusServer.objects.filter(for_services=True, removed_at__isnull=True)


def is_answered() -> bool:
    """Whether any server takes queries of services."""
    return servers_for_services().exists()


@dataclass(frozen=True, slots=True)
class LevelCourse:
    """Columns of one value a step; None where nothing was read."""

    at: tuple[datetime, ...]
    step: timedelta
    objective_ms: tuple[int | None, ...]
    latency_ms: tuple[float | None, ...]
    requests: tuple[float | None, ...]
    wanted: tuple[float | None, ...]
    replicas: tuple[int | None, ...]


def level_course(job: Job, *, since: datetime, until: datetime) -> LevelCourse:
    """In whole minutes, as many to a step as give at most `MOST_POINTS` steps. Of a step: its highest latency, and the newest of the rest."""
    since = max(since, until - KEPT)
    minutes = max(1, -(-int((until - since).total_seconds()) // 60 // MOST_POINTS))
    step = minutes * MINUTE
    seconds = int(step.total_seconds())
    first = datetime.fromtimestamp(int(since.timestamp()) // seconds * seconds, tz=since.tzinfo)
    count = int((until - first) // step) + 1
    objective: list[int | None] = [None] * count
    latency: list[float | None] = [None] * count
    requests: list[float | None] = [None] * count
    wanted: list[float | None] = [None] * count
    replicas: list[int | None] = [None] * count
    rows = ServiceSample.objects.filter(job=job, at__gte=first, at__lte=until).order_by("at")
    for moment, ms, goal, rate, replicas_wanted, stood in rows.values_list(
        "at", "latency_ms", "objective_ms", "requests", "replicas_wanted", "replicas"
    ):
        place = int((moment - first) // step)
        objective[place], requests[place], wanted[place], replicas[place] = goal, rate, replicas_wanted, stood
        latency[place] = max((one for one in (latency[place], ms) if one is not None), default=None)
    at = tuple(first + number * step for number in range(count))
    return LevelCourse(at, step, tuple(objective), tuple(latency), tuple(requests), tuple(wanted), tuple(replicas))


def job_level_chart(job: Job, attempts: Sequence[Attempt], told: LevelTold, *, chosen: Range | None, now: datetime) -> Chart:
    """Latency and its objective as it was, over a range of the job's time; the attempts are given with the latest first."""
    since, until = job_time(attempts, now=now, chosen=chosen)
    course = level_course(job, since=since, until=until)
    series = [
        Series(told.title, [None if one is None else round(one, 1) for one in course.latency_ms], "used"),
        Series("Objective", course.objective_ms, "waste", dashed=True),
    ]
    begun = ServiceBreach.objects.filter(job=job, since__gte=course.at[0], since__lte=until).order_by("-since", "-pk").values_list("since", "cause")
    marks = [Mark(at, f"Over its objective: {BreachCause(cause).label.lower()}") for at, cause in begun[:MARKS]]
    return over_time(label=f"{told.title} of {job.name}", unit="ms", at=course.at, series=series, marks=marks)
