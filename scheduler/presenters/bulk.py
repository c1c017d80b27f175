"""An action on many jobs in words: what it would come to, and what became of it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpufleet.core.templatetags.shell import gpus, gpus_told, plural
from scheduler.models import HOLDING, Job, JobBatch, JobState
from scheduler.services.jobs.bulk import CAUSES, Action, Effect, Preview, Verdict

TEAMS_SHOWN = 8
STARTS_SHOWN = 12

# Of each action: what is asked above the preview, what its button says, and what was done to the jobs; {} is how many they are.
WORDS = {
    Action.CANCEL: ("Cancel {}?", "Cancel {}", "Cancelled {}"),
    Action.HOLD: ("Hold {} back?", "Hold {} back", "Held {} back"),
    Action.RELEASE: ("Let {} go?", "Let {} go", "Let {} go"),
    Action.PRIORITY: ("Change the priority of {}?", "Change the priority of {}", "Changed the priority of {}"),
    Action.CHECKPOINT: ("Have {} save their work now?", "Have {} save their work", "Asked {} to save their work"),
}
CHOICES = (
    (Action.CANCEL, "Cancel"),
    (Action.HOLD, "Hold back"),
    (Action.RELEASE, "Release"),
    (Action.PRIORITY, "Change priority"),
    (Action.CHECKPOINT, "Save work now"),
)
LEFT_ALONE = {
    Effect.SAME: "Nothing changes",
    Effect.REFUSED: "Can't be done",
    Effect.STALE: "Has changed meanwhile",
    Effect.NOT_ALLOWED: "Not yours to touch",
    Effect.UNKNOWN: "Not there",
}
TONES = {Effect.SAME: "rest", Effect.REFUSED: "warn", Effect.STALE: "warn", Effect.NOT_ALLOWED: "bad", Effect.UNKNOWN: "bad"}


@dataclass(frozen=True, slots=True)
class Left:
    """Jobs that are left alone for one reason."""

    title: str
    tone: str
    rows: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class BulkView:
    """`lines` say what happens, most important first; `starts` who would start then."""

    preview: Preview
    heading: str
    button: str
    changing: tuple[Verdict, ...]
    left: tuple[Left, ...]
    lines: tuple[str, ...]
    starts: tuple[Job, ...]
    more_starts: int
    starts_said: str

    @property
    def left_count(self) -> int:
        return sum(len(group.rows) for group in self.left)


def bulk_view(preview: Preview) -> BulkView:
    asked, jobs = preview.asked, preview.changing
    heading, button, _ = WORDS[asked.action]
    if asked.priority is not None:
        heading, button = (f"Set the priority of {{}} to {asked.priority:,}{end}" for end in ("?", ""))
    number = plural(len(jobs), "job")
    return BulkView(
        preview=preview,
        heading=heading.format(number) if jobs else "Nothing would change",
        button=button.format(number),
        changing=tuple(verdict for verdict in preview.verdicts if verdict.effect == Effect.CHANGES),
        left=_left([(verdict.effect, verdict) for verdict in preview.verdicts]),
        lines=tuple(_lines(preview, jobs)),
        starts=preview.following.jobs[:STARTS_SHOWN] if preview.following else (),
        more_starts=max(0, len(preview.following.jobs) - STARTS_SHOWN) if preview.following else 0,
        starts_said=_starts_said(preview, jobs),
    )


def _left(rows: Iterable[tuple[str, Any]]) -> tuple[Left, ...]:
    found: dict[str, list[Any]] = {}
    for effect, row in rows:
        found.setdefault(effect, []).append(row)
    return tuple(Left(title, TONES[effect], tuple(found[effect])) for effect, title in LEFT_ALONE.items() if effect in found)


def _lines(preview: Preview, jobs: Sequence[Job]) -> Iterable[str]:
    if not jobs:
        return
    states = Counter(str(JobState(job.state).label).lower() for job in jobs)
    yield f"{', '.join(f'{count:,} {state}' for state, count in states.most_common())}."
    teams = Counter(job.quota.path for job in jobs)
    milli: Counter[str] = Counter()
    for job in jobs:
        milli[job.quota.path] += job.gpus_milli
    named = [f"{path}: {plural(count, 'job')} of {gpus_told(milli[path])}" for path, count in teams.most_common(TEAMS_SHOWN)]
    rest = len(teams) - len(named)
    yield "; ".join([*named, *([f"and {plural(rest, 'more team')}"] if rest else [])]) + "."
    if preview.asked.action == Action.CANCEL:
        freed = sum(preview.freed.values())
        types = ", ".join(f"{gpus(amount)} {name}" for name, amount in preview.freed.items())
        if freed:
            yield f"{gpus_told(freed)} come{'s' if freed == 1000 else ''} free once their workers have gone: {types}."
        if preview.along:
            waits = "waits for one of these to complete and is" if preview.along == 1 else "wait for one of these to complete and are"
            yield f"{plural(preview.along, 'other job')} {waits} cancelled too."
        yield "A cancelled job can't be resumed."


def _starts_said(preview: Preview, jobs: Sequence[Job]) -> str:
    if not jobs or preview.asked.action == Action.CHECKPOINT:
        return ""
    if preview.following is None:
        return "The effect on other jobs cannot be computed now."
    count = len(preview.following.jobs) + preview.following.others
    when = "Once they have gone" if any(job.state in HOLDING for job in jobs) and preview.asked.action == Action.CANCEL else "At once"
    if not count:
        return "No waiting job would start by that alone."
    others = preview.following.others
    mixed = f", {others:,} of them of other teams" if others and preview.following.jobs else ""
    whose = " of other teams" if others and not mixed else ""
    return f"{when} {plural(count, 'waiting job')}{whose} would start{mixed}."


@dataclass(frozen=True, slots=True)
class BatchView:
    batch: JobBatch
    heading: str
    done: tuple[Mapping[str, Any], ...]
    left: tuple[Left, ...]

    @property
    def left_count(self) -> int:
        return sum(len(group.rows) for group in self.left)

    @property
    def reason(self) -> str:
        """What somebody gave as his reason; the heading says what was done."""
        return "" if self.batch.reason == CAUSES[Action(self.batch.action)] else self.batch.reason


def batch_view(batch: JobBatch, verdicts: Sequence[Mapping[str, Any]]) -> BatchView:
    done = tuple(verdict for verdict in verdicts if verdict["effect"] == Effect.CHANGES)
    heading = WORDS[Action(batch.action)][2].format(plural(len(done), "job"))
    return BatchView(batch, heading, done, _left([(verdict["effect"], verdict) for verdict in verdicts]))
