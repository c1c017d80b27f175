"""Fingerprints of templates for those who may see the runs that they are learned from."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from dashboards.fingerprints.learning import Fingerprint, PhaseTold, fingerprint_of
from dashboards.fingerprints.models import RunLearned
from dashboards.fingerprints.phases import Phase, RunPhases
from dashboards.fingerprints.store import first_minute, phases_stored
from gpufleet.core.charts import Chart, Series, over_time
from quotas.permissions import Access, Can
from scheduler.jobs.template_rules import Template

LOOKED_BACK = timedelta(days=90)
MOST_RUNS = 100  # the newest
# The name of each phase on pages, and its colour.
PHASES = {
    Phase.LOAD: ("Load", "series-1"),
    Phase.COMPUTE: ("Compute", "used"),
    Phase.CHECKPOINT: ("Checkpoint", "series-3"),
    Phase.IDLE: ("Idle", "waste"),
}


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


def template_learned(access: Access, template: Template, *, now: datetime) -> Learned:
    """One query. Runs that the reader may not see are left out, as in the speeds of templates."""
    seen = RunLearned.objects.filter(access.visible(Can.SEE, "attempt__job__quota__path"), template=template.key, looked_at__isnull=False)
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
    return over_time(label=f"SM activity of {example.name} by phase", unit="%", at=at, series=series, most=100)


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
