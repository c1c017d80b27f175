"""Fingerprints of templates for those who may see the runs that they are learned from."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from dashboards.courses import job_gpu_courses
from dashboards.fingerprints.forecast import ahead
from dashboards.fingerprints.learning import Fingerprint, PhaseTold, fingerprint_of
from dashboards.fingerprints.models import RunLearned
from dashboards.fingerprints.phases import COUNTERS, Phase, RunPhases, run_phases
from dashboards.fingerprints.store import first_minute, phases_stored
from dashboards.measures import DRAM, MEMORY, SM, TENSOR
from dashboards.telemetry.frames import SETTLE
from dashboards.weak import weak_gpus
from gpufleet.core.charts import Chart, Series, over_time
from quotas.permissions import Access, Can
from scheduler.models import Attempt, Job, JobState, Placement

LOOKED_BACK = timedelta(days=90)
MOST_RUNS = 100  # the newest
# The name of each phase on pages, and its colour.
PHASES = {
    Phase.LOAD: ("Load", "series-1"),
    Phase.COMPUTE: ("Compute", "used"),
    Phase.CHECKPOINT: ("Checkpoint", "series-3"),
    Phase.IDLE: ("Idle", "waste"),
}
PHASE_NAMES = {Phase.UNKNOWN: "Unknown"} | {phase: name for phase, (name, _) in PHASES.items()}


@dataclass(frozen=True, slots=True)
class Example:
    """The newest run in which the most phases were seen. Its minutes begin at `since`."""

    job: str
    name: str
    since: datetime
    run: RunPhases


@dataclass(frozen=True, slots=True)
class Learned:
    """`weak`: runs that are left out because a GPU of theirs has only the driver's utilization."""

    fingerprint: Fingerprint
    weak: int
    example: Example | None = None


def template_learned(access: Access, key: str, *, now: datetime) -> Learned:
    """Of the template with this key. One query. Runs that the reader may not see are left out, as in the speeds of templates."""
    seen = RunLearned.objects.filter(access.visible(Can.SEE, "attempt__job__quota__path"), template=key, looked_at__isnull=False)
    newest = seen.filter(since__gt=now - LOOKED_BACK).select_related("attempt__job").order_by("-since", "-pk")
    rows = list(newest[:MOST_RUNS])
    strong = [(row, phases_stored(row)) for row in rows if not row.is_weak]
    found = fingerprint_of(run for _, run in strong)
    return Learned(found, len(rows) - len(strong), _example(strong) if found.is_known else None)


def _example(rows: list[tuple[RunLearned, RunPhases]]) -> Example | None:
    if not rows:
        return None
    row, run = max(rows, key=lambda one: (len({part.phase for part in one[1].parts} - {Phase.UNKNOWN}), one[0].since, one[0].pk))
    return Example(row.attempt.job.public_id, row.attempt.job.name, first_minute(row.since), run)


def example_chart(example: Example) -> Chart:
    """SM activity of each part of a run, in the colour of its phase: a band that changes its colour where the run changes its phase."""
    at: list[datetime] = []
    columns: dict[Phase, list[float | None]] = {phase: [] for phase in PHASES}
    for part in example.run.parts:
        begin = example.since + timedelta(minutes=part.first)
        at += [begin, begin + timedelta(minutes=part.minutes) - timedelta(seconds=1)]
        for phase, column in columns.items():
            column += [part.levels[0] if phase == part.phase else None] * 2
    seen = [phase for phase, column in columns.items() if any(value is not None for value in column)]
    series = [Series(PHASES[phase][0], columns[phase], PHASES[phase][1], "area") for phase in seen]
    # Stacked, though only one has a value at a time: an area by itself would be drawn on to where its phase comes again.
    return over_time(label=f"SM activity of {example.name} by phase", unit="%", at=at, series=series, stacked=True, most=100)


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """A phase as the table shows it; `levels` in the order of its columns."""

    name: str
    share: str
    told: PhaseTold
    levels: tuple[tuple[str, float | None], ...]


COLUMNS = (("SM", "sm"), ("Tensor", "tensor"), ("DRAM", "dram"), ("Memory", "memory"))


def fingerprint_told(learned: Learned) -> dict[str, object]:
    """What a template's page shows of it."""
    rows = [
        PhaseRow(PHASES[one.phase][0], percent_of(one.share), one, tuple((name, one.levels.get(counter)) for name, counter in COLUMNS))
        for one in learned.fingerprint.phases
    ]
    return {
        "learned": learned,
        "learned_rows": rows,
        "learned_chart": example_chart(learned.example) if learned.example else None,
        "learned_hours": f"{learned.fingerprint.minutes / 60:,.0f} h",
    }


def percent_of(share: float) -> str:
    percent = 100 * share
    return f"{percent:.0f}%" if percent >= 1 or not percent else "under 1%"


# ---- A run that goes on ----

# So much of its newest time is read.
NEWEST = timedelta(hours=3)
LEAST_READ = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class JobPhase:
    """What a running job does now, `at` the end of the last whole minute, and what comes next as far as its template says."""

    at: datetime
    phase: Phase
    name: str
    fingerprint: Fingerprint
    next: Phase | None = None
    next_name: str = ""
    earliest: datetime | None = None
    expected: datetime | None = None
    latest: datetime | None = None
    is_late: bool = False


def job_phase(access: Access, job: Job, attempt: Attempt | None, *, now: datetime) -> JobPhase | None:
    """None where it does not run, or no template of it is known well enough. Five queries, and two more for each further cluster."""
    if job.template is None or job.state != JobState.RUNNING or attempt is None or attempt.ended_at is not None or attempt.running_at is None:
        return None
    begin = first_minute(attempt.running_at)
    end = now - SETTLE - timedelta(seconds=(now - SETTLE).timestamp() % 60)
    if end - begin < LEAST_READ:
        return None
    found = template_learned(access, job.template, now=now).fingerprint
    if not found.is_known or _is_weak(attempt):
        return None
    since = max(begin, end - NEWEST)
    courses = job_gpu_courses(job, lines=(SM, MEMORY, TENSOR, DRAM), since=since, until=end, span=60)
    lead = (begin - attempt.running_at).total_seconds()
    run = run_phases({line: course.values for line, course in zip(COUNTERS, courses, strict=True)}, lead=lead if since == begin else None)
    told = ahead(found, run, lead=lead)
    earliest, expected, latest = (max(now, since + timedelta(seconds=round(after))) for after in (told.earliest, told.expected, told.latest))
    if told.next is None:
        return JobPhase(end, told.phase, PHASE_NAMES[told.phase], found)
    name, following = PHASE_NAMES[told.phase], PHASE_NAMES[told.next]
    return JobPhase(end, told.phase, name, found, told.next, following, earliest, expected, latest, told.is_late)


def _is_weak(attempt: Attempt) -> bool:
    """Whether a GPU of it has only the driver's utilization. One query, and another where there is such a GPU at all."""
    weak = weak_gpus()
    return bool(weak) and Placement.objects.filter(attempt=attempt, until__isnull=True, gpu__among=sorted(weak)).exists()
