"""An action on many jobs in words: what it would come to, and what became of it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from gpufleet.core.previews import Affected, JobEffect, LeftAlone
from gpufleet.core.previews import Effect as CoreEffect
from gpufleet.core.previews import Preview as Told
from gpufleet.core.templatetags.shell import gpus, gpus_told, money, plural
from scheduler.models import HOLDING, Job, JobBatch, JobState
from scheduler.presenters.node_changes import LEAST_HOURS, moment_told, work_lost
from scheduler.services.jobs.bulk import CAUSES, LATER, Action, Consequence, Effect, Following, Preview, Verdict
from scheduler.services.jobs.edit_previews import Restart
from scheduler.services.jobs.planned_changes import may_be_planned
from scheduler.services.jobs.prices import Price, Repeated

TEAMS_SHOWN = 8
JOBS_SHOWN, OTHERS_SHOWN = 100, 50

# Of each action: what is asked above the preview, what its button says, and what was done to the jobs; {} is how many they are.
WORDS = {
    Action.CANCEL: ("Cancel {}?", "Cancel {}", "Cancelled {}"),
    Action.HOLD: ("Hold {}?", "Hold {}", "Held {}"),
    Action.RELEASE: ("Release {}?", "Release {}", "Released {}"),
    Action.PRIORITY: ("Change the priority of {}?", "Change the priority of {}", "Changed the priority of {}"),
    Action.CHECKPOINT: ("Have {} save their work now?", "Have {} save their work", "Asked {} to save their work"),
}
# What a button schedules that has an action begin later.
NOUNS = {
    Action.CANCEL: "cancellation",
    Action.HOLD: "hold",
    Action.RELEASE: "release",
    Action.PRIORITY: "priority change",
    Action.CHECKPOINT: "checkpoint",
}
# Of one job, where that reads otherwise.
WORDS_OF_ONE = {
    Action.PRIORITY: ("Change the priority of {}?", "Change priority", "Changed the priority of {}"),
    Action.CHECKPOINT: ("Have {} save its work now?", "Save work now", "Asked {} to save its work"),
}
CHOICES = (
    (Action.CANCEL, "Cancel"),
    (Action.HOLD, "Hold"),
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


# What becomes of other jobs, the weighty first.
EFFECTS = {
    "preempted": "Is preempted",
    "shrinks": "Shrinks",
    "waits": "Does not start yet",
    LATER: "Waits longer",
    "moves": "Moves",
    "starts": "Starts at once",
    "grows": "Grows",
    "stays": "Is not preempted",
}


@dataclass(frozen=True, slots=True)
class Left:
    """Jobs that are left alone for one reason."""

    title: str
    rows: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class BulkView:
    """`told` is the preview as templates/_change.html shows it; `sent` are the jobs that the form names, `later` those that it names as well for a
    change that begins later. `scheduled` is what the button says in place of `button` where it does."""

    preview: Preview
    heading: str
    button: str
    scheduled: str
    told: Told
    sent: tuple[Verdict, ...]
    later: tuple[Verdict, ...] = ()

    @property
    def changing(self) -> list[Job]:
        return self.preview.changing

    @property
    def is_grave(self) -> bool:
        return self.preview.asked.action == Action.CANCEL


def bulk_view(preview: Preview, *, faults: Sequence[str] = (), may_plan: bool = False, begins: datetime | None = None) -> BulkView:
    """With `faults` nothing is foreseen: the preview says them. `may_plan`: the change can begin later; at `begins`, where that is known."""
    asked = preview.asked
    # Whose priority is the new one already is sent as well: it may be another one by the time it is applied.
    kept = (Effect.CHANGES, Effect.SAME) if asked.action == Action.PRIORITY else (Effect.CHANGES,)
    sent = tuple(verdict for verdict in preview.verdicts if verdict.effect in kept)
    later = tuple(verdict for verdict in preview.verdicts if verdict not in sent and may_be_planned(verdict)) if may_plan else ()
    heading, button, _ = words_of(asked.action, len(sent or later))
    number = sent[0].job.name if len(asked.jobs) == len(sent) == 1 and sent[0].job is not None else plural(len(sent), "job")
    return BulkView(
        preview=preview,
        heading=heading.format(number) if sent else "Nothing would change now" if later else "Nothing would change",
        button=button.format("job" if len(asked.jobs) == 1 else plural(len(sent or later), "job")),
        scheduled=NOUNS[asked.action] + ("" if len(asked.jobs) == 1 else f" of {plural(len(sent) + len(later), 'job')}"),
        told=Told(sentences=(), faults=faults) if faults else steer_told(preview, begins=begins),
        sent=sent,
        later=later,
    )


def words_of(action: Action, count: int) -> tuple[str, str, str]:
    return WORDS_OF_ONE.get(action, WORDS[action]) if count == 1 else WORDS[action]


def preview_sentences(preview: Preview, *, begins: datetime | None = None) -> list[str]:
    """What the change comes to, as the page, the API and the command line tell it. `begins`: when it is to begin, if not now."""
    jobs = preview.changing
    sentences = [
        *_later_said(preview, begins),
        *_lines(preview, jobs),
        *_price_said(preview.price),
        *_then_said(preview, jobs),
        *_notified_said(preview, jobs),
    ]
    if preview.asked.action == Action.CANCEL and jobs:
        sentences.append("A cancelled job can't be resumed.")
    if count := sum(verdict.effect != Effect.CHANGES and not (begins and may_be_planned(verdict)) for verdict in preview.verdicts):
        sentences.append(f"{plural(count, 'job')} {'is' if count == 1 else 'are'} left alone.")
    return sentences


def _later_said(preview: Preview, begins: datetime | None) -> Iterable[str]:
    if begins is None:
        return
    yield f"It begins at {moment_told(begins)} and is looked at again then. This is what it would do now."
    if count := sum(verdict.effect != Effect.CHANGES and may_be_planned(verdict) for verdict in preview.verdicts):
        yield f"{plural(count, 'job')} would not change now and {'is' if count == 1 else 'are'} part of it all the same."


def steer_told(preview: Preview, *, begins: datetime | None = None) -> Told:
    """The preview as templates/_change.html shows it."""
    jobs, following = preview.changing, preview.following
    left = _left([(verdict.effect, verdict) for verdict in preview.verdicts])
    own = {one.job.pk: one for one in following.effects} if following else {}
    changing = [verdict for verdict in preview.verdicts if verdict.effect == Effect.CHANGES and verdict.job is not None]
    then = any(verdict.job.pk in own for verdict in changing if verdict.job is not None)
    rows = [
        _row(verdict.job, (CoreEffect(verdict.detail), *([_then(own.get(verdict.job.pk))] if then else [])))
        for verdict in changing[:JOBS_SHOWN]
        if verdict.job is not None
    ]
    named = {job.pk for job in jobs}
    others = [one for one in weightiest_first(following) if one.job.pk not in named]
    shown = [_row(one.job, (_then(one), CoreEffect(one.detail))) for one in others[:OTHERS_SHOWN]]
    return Told(
        sentences=preview_sentences(preview, begins=begins),
        ways=("What happens", "Then") if then else ("What happens",),
        jobs=rows,
        more=max(0, len(changing) - JOBS_SHOWN),
        others=[Affected("Other jobs", ("What happens", "Why"), shown, max(0, len(others) - OTHERS_SHOWN))] if shown else [],
        left=[
            LeftAlone(
                group.title,
                [(row.name, row.job.name if row.job else "", str(row.job.state) if row.job else "", row.detail) for row in group.rows],
                again=begins is not None and all(may_be_planned(row) for row in group.rows),
            )
            for group in left
        ],
        as_of=following.as_of if following else None,
    )


def restart_told(found: Restart) -> Told:
    """The same of a restart: what the job does again, and that it waits."""
    preview, jobs = found.preview, found.preview.changing
    again = "goes on from that checkpoint" if preview.saved_step is not None else "begins anew"
    lost = _repeated_said(" and repeats {}{}", found.repeated)
    sentences = [
        *_lines(preview, jobs),
        f"Unless it saves its work now, it {again}{lost}." if found.saves else f"It {again}{lost}.",
        *(["Workers that do not exit within the grace period are killed."] if found.grace else []),
        *_then_said(preview, jobs),
        *_notified_said(preview, jobs),
    ]
    return replace(steer_told(preview), sentences=sentences)


def _repeated_said(sentence: str, repeated: Repeated) -> str:
    """With the GPU-hours, and what they cost where the reader may know it; nothing of a few minutes."""
    hours = repeated.milli_seconds / 3_600_000
    cost = f", worth {money(repeated.micros)} at the guaranteed rate" if repeated.micros else ""
    return sentence.format(f"{hours:,.1f} GPU-hours", cost) if hours >= LEAST_HOURS else ""


def weightiest_first(following: Following | None) -> list[Consequence]:
    """What becomes of jobs that the reader may see, those that are changed included."""
    return sorted(following.effects if following else (), key=lambda one: list(EFFECTS).index(one.effect))


def _row(job: Job, effects: tuple[CoreEffect, ...]) -> JobEffect:
    return JobEffect(job.public_id, job.name, job.quota.path, job.owner.username if job.owner else "", job.gpus_milli, effects)


def _then(found: Consequence | None) -> CoreEffect:
    return CoreEffect("–") if found is None else CoreEffect(EFFECTS[found.effect], note=work_lost(found.lost_seconds))


def _left(rows: Iterable[tuple[str, Any]]) -> tuple[Left, ...]:
    found: dict[str, list[Any]] = {}
    for effect, row in rows:
        found.setdefault(effect, []).append(row)
    return tuple(Left(title, tuple(found[effect])) for effect, title in LEFT_ALONE.items() if effect in found)


def _lines(preview: Preview, jobs: Sequence[Job]) -> Iterable[str]:
    if not jobs:
        return
    if len(preview.asked.jobs) > 1:  # of one job the page says it all
        yield from _by_state_and_team(jobs)
    if preview.asked.action == Action.CANCEL:
        freed = sum(preview.freed.values())
        types = ", ".join(f"{gpus(amount)} {name}" for name, amount in preview.freed.items())
        if freed:
            comes, costs = ("comes", "it costs") if freed == 1000 else ("come", "they cost")
            cost = f" At the guaranteed rate {costs} {money(preview.freed_micros)} an hour." if preview.freed_micros else ""
            yield f"{gpus_told(freed)} {comes} free after the last worker exits: {types}.{cost}"
        if preview.along:
            on = "it" if len(preview.asked.jobs) == 1 else "one of these"
            waits = f"waits for {on} to complete and is" if preview.along == 1 else f"wait for {on} to complete and are"
            yield f"{plural(preview.along, 'other job')} {waits} cancelled too."
        if preview.loses_work:
            step = preview.saved_step
            yield "No complete checkpoint was reported." if step is None else f"The newest complete checkpoint is of step {step}."


def _price_said(price: Price | None) -> Iterable[str]:
    if price is None:
        return
    (was, now), (was_most, now_most) = price.hourly, price.limit
    if was != now:
        yield f"It costs {_span(now)} an hour at the guaranteed rate; before, {_span(was)}."
    if was_most != now_most and now_most is None:
        yield f"Without a time limit its cost is open: {_span(now)} an hour at the guaranteed rate."
    elif was_most != now_most and now_most is not None:
        before = f", {money(abs(now_most - was_most))} {'more' if now_most > was_most else 'less'} than before" if was_most is not None else ""
        yield f"It costs at most {money(now_most)} until its time limit{before}."
    if was == now and was_most == now_most:
        yield f"Its price stays {_span(now)} an hour at the guaranteed rate."


def _span(hourly: tuple[int, int]) -> str:
    least, most = hourly
    return money(least) if least == most else f"{money(least)} to {money(most)}"


def _by_state_and_team(jobs: Sequence[Job]) -> Iterable[str]:
    states = Counter(str(JobState(job.state).label).lower() for job in jobs)
    yield f"{', '.join(f'{count:,} {state}' for state, count in states.most_common())}."
    teams = Counter(job.quota.path for job in jobs)
    milli: Counter[str] = Counter()
    for job in jobs:
        milli[job.quota.path] += job.gpus_milli
    named = [f"{path}: {plural(count, 'job')} of {gpus_told(milli[path])}" for path, count in teams.most_common(TEAMS_SHOWN)]
    rest = len(teams) - len(named)
    yield "; ".join([*named, *([f"and {plural(rest, 'more team')}"] if rest else [])]) + "."


def _then_said(preview: Preview, jobs: Sequence[Job]) -> Iterable[str]:
    following = preview.following
    if not jobs or preview.asked.action == Action.CHECKPOINT:
        return
    if following is None:
        yield "The effect on other jobs cannot be computed now."
        return
    yield _starts_said(preview, jobs, following)
    named = {job.pk for job in jobs}
    counts = Counter(one.effect for one in following.effects if one.job.pk not in named)
    if count := counts["preempted"]:
        hours = _repeated_said(" {} of work are repeated{}.", following.repeated)
        yield f"{plural(count, 'running job')} {'is' if count == 1 else 'are'} preempted.{hours}"
    if count := counts["waits"] + counts[LATER]:
        yield f"{plural(count, 'waiting job')} {'waits' if count == 1 else 'wait'} longer."
    if (hidden := following.unseen - following.others) > 0:
        yield f"{plural(hidden, 'more job')} of other teams {'is' if hidden == 1 else 'are'} affected."
    if following.cut:
        yield f"{plural(following.cut, 'more job')} {'is' if following.cut == 1 else 'are'} affected."


def _notified_said(preview: Preview, jobs: Sequence[Job]) -> Iterable[str]:
    if not jobs:
        return
    following = preview.following
    known = following is not None and not following.unseen and not following.cut
    if not preview.notified:
        if not preview.along and (known or preview.asked.action == Action.CHECKPOINT):
            yield "No owner is notified."
    elif preview.notified == 1:
        yield "The owner of 1 job is notified."
    else:
        yield f"Owners of {preview.notified:,} jobs are notified."


def _starts_said(preview: Preview, jobs: Sequence[Job], following: Following) -> str:
    count = len(following.jobs) + following.others
    gone = "Once it has gone" if len(jobs) == 1 else "Once they have gone"
    when = gone if any(job.state in HOLDING for job in jobs) and preview.asked.action == Action.CANCEL else "At once"
    if not count:
        return "No waiting job would start by that alone."
    others = following.others
    mixed = f", {others:,} of them of other teams" if others and following.jobs else ""
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
    heading = words_of(Action(batch.action), len(done))[2].format(plural(len(done), "job"))
    return BatchView(batch, heading, done, _left([(verdict["effect"], verdict) for verdict in verdicts]))
