"""What is done about an idle episode: notify, warn, reclaim, snooze. Each is a line of its trail, told to the owner, and in the audit log.

A reclaim goes the scheduler's own way: the run is asked to save its work and leave, and the job waits to resume from its checkpoint.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet

from dashboards.idle.models import IdleEpisode, IdleStep, Stage
from dashboards.telling import Event, events_tell
from gpufleet.core.apart import done_apart
from gpufleet.core.audit import SYSTEM, Actor, audit_entry, audit_write
from gpufleet.core.bulk import objects_update, rows_insert
from gpufleet.core.faults import Conflict, text_faults
from gpufleet.core.live.news import News
from gpufleet.core.models import AuditEntry
from quotas.permissions import Access, Can
from scheduler.models import HOLDING, JobState
from scheduler.notify.happenings import FleetEvent
from scheduler.services.jobs.jobs import jobs_hold
from scheduler.services.loop.lease import lease_want
from scheduler.services.loop.runs import Stop, attempts_stop
from scheduler.services.loop.steps import jobs_locked
from scheduler.services.loop.usage import usage_moment
from scheduler.services.notify.notices import Kind, Word, notices_say

REASON_LENGTH = 300
LONGEST_SNOOZE = timedelta(hours=24)
MOST_SNOOZES = 2
MINUTE = timedelta(minutes=1)
# A gap of so many minutes in the readings is told. Rounds come late by less.
UNREAD_TOLD = 5 * MINUTE
EVENTS = {
    Stage.NOTIFIED: FleetEvent.IDLE_NOTIFIED,
    Stage.WARNED: FleetEvent.IDLE_WARNED,
    Stage.WARNED_AGAIN: FleetEvent.IDLE_WARNED,
    Stage.RECLAIMING: FleetEvent.IDLE_RECLAIMED,
}

STAGE_ORDER = [stage.value for stage in Stage]


@dataclass(frozen=True, slots=True)
class Take:
    """A step to be taken of an episode that is locked."""

    episode: IdleEpisode
    stage: str
    reason: str = ""
    hold: bool = False
    reclaim_after: int | None = None


@dataclass(frozen=True, slots=True)
class Act:
    """A step that is due: the stage that the episode reaches by it."""

    episode: int
    stage: str
    hold: bool = False
    reclaim_after: int | None = None


def acts_take(*, acts: Sequence[Act], failed: Callable[[Act, Exception], None], now: datetime) -> int:
    """Take the steps that policies ask for, of episodes that have neither moved on since nor been snoozed: as many queries for many.

    One that fails is told to `failed`, and the others are taken.
    """

    def take(acts: Sequence[Act]) -> int:
        locked = {episode.pk: episode for episode in _locked([act.episode for act in acts])}
        due = [(locked[act.episode], act) for act in acts if act.episode in locked]
        takes = [
            Take(episode, act.stage, hold=act.hold, reclaim_after=act.reclaim_after)
            for episode, act in due
            if episode.ended_at is None and STAGE_ORDER.index(episode.stage) < STAGE_ORDER.index(act.stage) and not is_snoozed(episode, now)
        ]
        return len(_take(takes, actor=SYSTEM, now=now))

    return sum(done_apart(acts, take, failed=failed))


def is_snoozed(episode: IdleEpisode, now: datetime) -> bool:
    return episode.snoozed_until is not None and episode.snoozed_until > now


def may_act(access: Access, episode: IdleEpisode) -> bool:
    return access.can(Can.MANAGE_JOBS, episode.quota.path) or access.can_everywhere(Can.OPERATE)


def may_snooze(access: Access, episode: IdleEpisode) -> bool:
    user = access.actor.user
    own = user is not None and episode.owner_id == user.pk and access.can(Can.SUBMIT, episode.quota.path)
    return own or may_act(access, episode)


def episode_notify(*, access: Access, episode: IdleEpisode, text: str = "", now: datetime) -> IdleEpisode:
    """Tell the owner now, whatever the policy says."""
    _must_act(access, episode)
    with transaction.atomic():
        fresh = _held(episode)
        stage = fresh.stage if fresh.stage != Stage.OPEN else Stage.NOTIFIED
        _take([Take(fresh, stage, _reason(text))], actor=access.actor, now=now)
    return fresh


def episode_reclaim(*, access: Access, episode: IdleEpisode, reason: str, hold: bool = False, now: datetime) -> IdleEpisode:
    """Take the GPUs back now: the job saves its work, leaves, and waits to resume. With `hold` it waits until someone releases it."""
    _must_act(access, episode)
    text = _reason(reason)
    if not text:
        raise ValidationError({"reason": ["State a reason. The owner is told it."]})
    with transaction.atomic():
        fresh = _held(episode)
        if not _take([Take(fresh, Stage.RECLAIMING, text, hold)], actor=access.actor, now=now):
            raise Conflict(f"{fresh.job.public_id} holds no GPUs by now.")
    return fresh


def episode_snooze(*, access: Access, episode: IdleEpisode, hours: int, reason: str, now: datetime) -> IdleEpisode:
    """Keep policies from acting on it for some hours. An owner may do so twice an episode."""
    if not may_snooze(access, episode):
        raise access.refusal(Can.MANAGE_JOBS, path=episode.quota.path)
    text = _reason(reason)
    faults = {}
    if not text:
        faults["reason"] = ["State why the GPUs must stay."]
    if not 1 <= hours <= LONGEST_SNOOZE // timedelta(hours=1):
        faults["hours"] = ["Choose 1 to 24 hours."]
    if faults:
        raise ValidationError(faults)
    with transaction.atomic():
        fresh = _open(episode)
        if fresh.snoozes >= MOST_SNOOZES and not may_act(access, fresh):
            raise Conflict(f"It was snoozed {MOST_SNOOZES} times, which is the most. Ask a team lead or an operator for an exemption.")
        fresh.snoozed_until, fresh.snoozes = now + timedelta(hours=hours), fresh.snoozes + 1
        fresh.save(update_fields=["snoozed_until", "snoozes"])
        _steps([(fresh, "snoozed", f"Snoozed for {hours} h: {text}")], access.actor, now)
        audit_write(entries=[_entry(fresh, "idle.snooze", access.actor, {"until": fresh.snoozed_until.isoformat()}, text)])
    return fresh


def _take(takes: Sequence[Take], *, actor: Actor, now: datetime) -> list[Take]:
    """Returns those that were taken: a job that holds nothing by now has nothing to reclaim."""
    news = News()
    reclaims = [one for one in takes if one.stage == Stage.RECLAIMING]
    gone = _reclaim(reclaims, actor=actor, now=now, news=news) if reclaims else set()
    taken = [one for one in takes if one.episode.job_id not in gone or one.stage != Stage.RECLAIMING]
    said = [_said(one) for one in taken]
    for one in taken:
        one.episode.stage, one.episode.stage_at = one.stage, now
    objects_update([one.episode for one in taken], ("stage", "stage_at"))
    _steps([(one.episode, one.stage, text) for one, text in zip(taken, said, strict=True)], actor, now)
    audit_write(
        entries=[_entry(one.episode, f"idle.{one.stage}", actor, {"stage": one.stage, "job": one.episode.job.public_id}, one.reason) for one in taken]
    )
    words = [_word(one.episode, text) for one, text in zip(taken, said, strict=True) if one.episode.owner_id is not None]
    notices_say(kind=Kind.IDLE, words=words, now=now, news=news)
    events_tell([_event(one, text, actor) for one, text in zip(taken, said, strict=True)], now=now)
    news.publish()
    if reclaims:
        lease_want()
    return taken


def _reclaim(takes: Sequence[Take], *, actor: Actor, now: datetime, news: News) -> set[int]:
    """Ask the runs to save their work and leave. Returns the jobs that hold nothing by now. The caller asks for a plan."""
    now = usage_moment(now=now)
    jobs = jobs_locked([one.episode.job_id for one in takes])
    held = [one for one in takes if one.episode.job_id in jobs and jobs[one.episode.job_id].state in HOLDING]
    stops = [
        Stop(
            one.episode.job_id,
            JobState.PREEMPTED,
            "preempted",
            f"{_gpus(one.episode)} {idle_told(one.episode)}: reclaimed." + (f" {one.reason}" if one.reason else ""),
        )
        for one in held
    ]
    attempts_stop(stops=stops, now=now, actor=actor, news=news, want=False)
    jobs_hold(
        jobs=[one.episode.job_id for one in held if one.hold], now=now, actor=actor, cause="Held after its idle GPUs were reclaimed.", news=news
    )
    return {one.episode.job_id for one in takes} - {one.episode.job_id for one in held}


def _word(episode: IdleEpisode, said: str) -> Word:
    assert episode.owner_id is not None
    title = f"{_gpus(episode)} of {episode.job.name} {'are' if episode.idle_milli != 1000 else 'is'} idle"
    return Word(episode.owner_id, title, said, episode.job.public_id)


def _event(take: Take, said: str, actor: Actor) -> Event:
    episode = take.episode
    return Event(
        kind=EVENTS[Stage(take.stage)],
        title=f"{episode.job.name}: {_gpus(episode)} idle",
        text=said,
        path=episode.quota.path,
        job=episode.job.public_id,
        link=f"/idle/{episode.public_id}/",
        subject={"episode": episode.public_id, "owner": episode.owner.username if episode.owner else None, "idle_milli": episode.idle_milli},
        by=actor.name,
    )


def _said(take: Take) -> str:
    episode = take.episode
    since = idle_told(episode)
    facts = f"{_gpus(episode)} {since}."
    if take.stage == Stage.RECLAIMING:
        then = "It is held until someone releases it." if take.hold else "It resumes from its checkpoint when GPUs are free."
        facts = f"{_gpus(episode)} {since}: reclaimed. The job saves its work first. {then}"
    elif take.reclaim_after is not None:
        due = episode.seen_at + timedelta(minutes=take.reclaim_after) - idle_of(episode)
        facts += f" Use them or release them; they are reclaimed from {due:%H:%M} UTC on."
    else:
        facts += " Use them or release them."
    return f"{facts} {take.reason}".strip()[:300]


def idle_of(episode: IdleEpisode) -> timedelta:
    """For how long readings show it idle."""
    return timedelta(milliseconds=episode.idle_millis)


def idle_told(episode: IdleEpisode) -> str:
    """In words: `idle since 2026-03-02 09:41 UTC`; where a part of that was not read, how much of it was and how much was not."""
    idle, since = idle_of(episode), f"since {episode.started_at:%Y-%m-%d %H:%M} UTC"
    unread = episode.seen_at - episode.started_at - idle
    if unread < UNREAD_TOLD:
        return f"idle {since}"
    return f"idle for {idle // MINUTE} min {since}, not read for {unread // MINUTE} min"


def _gpus(episode: IdleEpisode) -> str:
    count = f"{episode.idle_milli / 1000:g}"
    return f"{count} {'GPU' if count == '1' else 'GPUs'}"


def _steps(rows: Sequence[tuple[IdleEpisode, str, str]], actor: Actor, now: datetime) -> None:
    rows_insert(
        IdleStep, ("episode_id", "at", "kind", "text", "by"), [(episode.pk, now, kind, text[:300], actor.name) for episode, kind, text in rows]
    )


def _entry(episode: IdleEpisode, action: str, actor: Actor, after: dict[str, object], reason: str) -> AuditEntry:
    return audit_entry(actor=actor, action=action, kind="idle_episode", object_id=episode.public_id, after=after, reason=reason, quota=episode.quota)


def _locked(keys: Collection[int]) -> QuerySet[IdleEpisode]:
    return IdleEpisode.objects.select_for_update(of=("self",)).select_related("job__quota", "quota", "owner").filter(pk__among=keys).order_by("pk")


def _open(episode: IdleEpisode) -> IdleEpisode:
    fresh = _locked([episode.pk]).first()
    if fresh is None or fresh.ended_at is not None:
        raise Conflict("This episode has ended: its GPUs compute again, or the job left them.")
    return fresh


def _held(episode: IdleEpisode) -> IdleEpisode:
    fresh = _open(episode)
    if fresh.stage == Stage.RECLAIMING:
        raise Conflict("Its GPUs are being reclaimed already.")
    return fresh


def _reason(text: str) -> str:
    text = text.strip()
    if faults := text_faults(text, REASON_LENGTH):
        raise ValidationError(faults)
    return text


def _must_act(access: Access, episode: IdleEpisode) -> None:
    if not may_act(access, episode):
        raise access.refusal(Can.MANAGE_JOBS, Can.OPERATE, path=episode.quota.path)
