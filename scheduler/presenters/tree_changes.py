"""What a change of the quota tree, or a reservation, does to jobs, as templates/_change.html shows it."""

from collections.abc import Iterable, Mapping
from datetime import UTC

from gpufleet.core.previews import Effect, JobEffect, Preview
from gpufleet.core.templatetags.shell import gpus_told, look_of, money, plural
from quotas.models import ReservationState
from scheduler.presenters.node_changes import NOBODY_NOTIFIED, work_lost
from scheduler.services.forecasts.previews import JobEffect as TreeEffect
from scheduler.services.forecasts.previews import Preview as TreePreview
from scheduler.services.forecasts.previews import Worth
from scheduler.services.windows.previews import Cancelling
from scheduler.services.windows.previews import Preview as WindowPreview

WORTH_SHOWN = 8


def tree_told(found: TreePreview) -> Preview:
    return Preview(
        sentences=tree_sentences(found),
        ways=("What happens", "Why"),
        jobs=_jobs_told(found.jobs),
        more=found.more_jobs,
        unseen=found.unseen,
        as_of=found.as_of,
    )


def tree_sentences(found: TreePreview) -> list[str]:
    """What the change comes to, as the page, the API and the command line tell it."""
    sentences = [*found.warnings, *_effects_said(found.counts, found.unseen), *(_worth_said(one) for one in found.worth[:WORTH_SHOWN])]
    if (rest := len(found.worth) - WORTH_SHOWN) > 0:
        sentences.append(f"{plural(rest, 'more guarantee or limit', 'more guarantees and limits')} of less worth.")
    return sentences


def cancellation_told(found: Cancelling) -> Preview:
    """What becomes of jobs when a reservation is cancelled."""
    of = found.reservation
    amount = f"{gpus_told(of.gpus_milli)} of {of.gpu_type}"
    if found.window is None:
        asked = of.state == ReservationState.REQUESTED
        none = (
            "It is not approved yet, so it holds nothing."
            if asked
            else "It holds nothing now: its next window is not planned yet, or its last is over."
        )
        return Preview(sentences=[none, "No window follows.", NOBODY_NOTIFIED])
    first = (
        "The window that lasts ends now, and no window follows."
        if found.lasts
        else f"The window of {found.window.starts_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC does not begin, and no window follows."
    )
    what = f"The rest of this window is worth {money(found.cost_micros)}" if found.lasts else f"This window is worth {money(found.cost_micros)}"
    return Preview(
        sentences=[
            first,
            f"{amount} {'is' if of.gpus_milli == 1000 else 'are'} no longer reserved for {of.owner_label}.",
            *([f"{what} at the guaranteed rate."] if found.cost_micros else []),
            *_effects_said(found.counts, found.unseen),
        ],
        ways=("What happens", "Why"),
        jobs=_jobs_told(found.jobs),
        more=found.more,
        unseen=found.unseen,
    )


def _jobs_told(jobs: Iterable[TreeEffect]) -> list[JobEffect]:
    return [JobEffect(one.job, one.name, one.path, one.owner, one.gpus_milli, (Effect(look_of(one.effect).word), Effect(one.detail))) for one in jobs]


def _effects_said(counts: Mapping[str, int], unseen: int) -> Iterable[str]:
    yield from (f"{look_of(effect).word}: {plural(count, 'job')}." for effect, count in counts.items())
    if not counts and not unseen:
        yield "No job starts, stops or changes its class."
    if counts.get("preempted"):
        yield "The owners of preempted jobs are notified when they leave."
    elif not unseen:
        yield NOBODY_NOTIFIED


def _worth_said(one: Worth) -> str:
    amount, cost = f"{gpus_told(abs(one.milli))} of {one.gpu_type}", f"{money(abs(one.micros_per_month), 0)} a month at the guaranteed rate"
    more = "more" if one.milli > 0 else "less"
    if one.field == "guaranteed":
        return f"{one.path} is guaranteed {amount} {more}: {cost}."
    return f"{one.path} may use {amount} {more}: at most {cost}."


def reservation_told(found: WindowPreview) -> Preview:
    """Jobs that must leave for its first window, or that stand in its way and can't be asked to."""
    leaving = [one for one in found.leaving if one.job is not None]
    jobs = [
        JobEffect(
            *(one.job.public_id, one.job.name, one.job.quota.path, one.job.owner.username if one.job.owner else "", one.milli),
            (Effect("Shrinks" if one.shrinks else "Leaves", one.leave_at, work_lost(one.lost_seconds)),),
        )
        for one in leaving
        if one.job is not None
    ]
    jobs += [
        JobEffect(
            *(job.public_id, job.name, job.quota.path, job.owner.username if job.owner else "", job.gpus_milli),
            (Effect("Stays, and is in the way"),),
        )
        for _, job in found.displaced
        if job is not None
    ]
    hidden = [one.milli for one in found.leaving if one.job is None]
    unseen = len(hidden) + sum(job is None for _, job in found.displaced)
    return Preview(sentences=list(_window_lines(found)), ways=("What happens",), jobs=jobs, unseen=unseen, unseen_milli=sum(hidden))


def _window_lines(found: WindowPreview) -> Iterable[str]:
    clearing = found.clearing
    if clearing is not None:
        yield "The first window will be met." if clearing.is_met else "The first window will not be met."
        if clearing.used:
            yield f"{gpus_told(clearing.used)} in use by its owner."
        if clearing.idle:
            yield f"{gpus_told(clearing.idle)} idle then."
        if clearing.freed:
            yield f"{gpus_told(clearing.freed)} freed by jobs that leave."
        if clearing.missing:
            yield f"{gpus_told(clearing.missing)} missing."
    if found.leaving:
        count = len(found.leaving)
        yield f"{plural(count, 'job')} must leave. {'Its owner is' if count == 1 else 'Their owners are'} notified then."
    elif clearing is not None:
        yield "No owner is notified."
    if found.displaced:
        yield f"{plural(len(found.displaced), 'job')} in the way cannot be asked to leave."
    if found.over_guarantees:
        yield f"Promises exceed the healthy capacity by {gpus_told(found.over_guarantees)}."
    if found.cost_micros:
        which = "Its first window costs" if len(found.windows) > 1 else "It costs"
        yield f"{which} {money(found.cost_micros)} at the guaranteed rate."
    yield "You approve it yourself." if found.approves else "A quota admin approves it."
