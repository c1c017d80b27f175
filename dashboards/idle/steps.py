"""What is done about an idle episode: notify, warn, reclaim, snooze. Each is a line of its trail, told to the owner, and in the audit log.

A reclaim goes the scheduler's own way: the run is asked to save its work and leave, and the job waits to resume from its checkpoint.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.core.exceptions import ValidationError
from django.db import transaction

from dashboards.idle.models import IdleEpisode, IdleStep, Stage
from dashboards.telling import Event, events_tell
from gpufleet.core.audit import SYSTEM, Actor, audit_record
from gpufleet.core.faults import Conflict, text_faults
from gpufleet.core.live.news import News
from quotas.permissions import Access, Can
from scheduler.models import HOLDING, JobState
from scheduler.notify.happenings import FleetEvent
from scheduler.services.jobs.jobs import job_hold, job_stop
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
class Act:
    """A step that is due: the stage that the episode reaches by it."""

    episode: int
    stage: str
    hold: bool = False
    reclaim_after: int | None = None


def act_take(*, act: Act, now: datetime) -> bool:
    """Take a step that a policy asks for. False: the episode has moved on meanwhile, or was snoozed."""
    with transaction.atomic():
        episode = _locked(act.episode)
        if episode is None or episode.ended_at is not None or STAGE_ORDER.index(episode.stage) >= STAGE_ORDER.index(act.stage):
            return False
        if is_snoozed(episode, now):
            return False
        try:
            _take(episode, act.stage, actor=SYSTEM, reason="", hold=act.hold, reclaim_after=act.reclaim_after, now=now)
        except Conflict:
            return False
    return True


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
        _take(fresh, stage, actor=access.actor, reason=_reason(text), now=now)
    return fresh


def episode_reclaim(*, access: Access, episode: IdleEpisode, reason: str, hold: bool = False, now: datetime) -> IdleEpisode:
    """Take the GPUs back now: the job saves its work, leaves, and waits to resume. With `hold` it waits until someone releases it."""
    _must_act(access, episode)
    text = _reason(reason)
    if not text:
        raise ValidationError({"reason": ["State a reason. The owner is told it."]})
    with transaction.atomic():
        fresh = _held(episode)
        _take(fresh, Stage.RECLAIMING, actor=access.actor, reason=text, hold=hold, now=now)
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
        _step(fresh, "snoozed", f"Snoozed for {hours} h: {text}", access.actor, now)
        _record(fresh, "idle.snooze", access.actor, {"until": fresh.snoozed_until.isoformat()}, text)
    return fresh


def _take(
    episode: IdleEpisode, stage: str, *, actor: Actor, reason: str, now: datetime, hold: bool = False, reclaim_after: int | None = None
) -> None:
    news = News()
    if stage == Stage.RECLAIMING:
        cause = f"{_gpus(episode)} {idle_told(episode)}: reclaimed." + (f" {reason}" if reason else "")
        if episode.job.state not in HOLDING:
            raise Conflict(f"{episode.job.public_id} holds no GPUs by now.")
        job_stop(job=episode.job, to=JobState.PREEMPTED, outcome="preempted", cause=cause, now=now, actor=actor, news=news, only_holding=True)
        if hold:
            job_hold(job=episode.job, now=now, actor=actor, cause="Held after its idle GPUs were reclaimed.")
    said = _said(episode, stage, reason, hold, reclaim_after)
    episode.stage, episode.stage_at = stage, now
    episode.save(update_fields=["stage", "stage_at"])
    _step(episode, stage, said, actor, now)
    _record(episode, f"idle.{stage}", actor, {"stage": stage, "job": episode.job.public_id}, reason)
    if episode.owner_id is not None:
        title = f"{_gpus(episode)} of {episode.job.name} {'are' if episode.idle_milli != 1000 else 'is'} idle"
        notices_say(kind=Kind.IDLE, words=[Word(episode.owner_id, title, said, episode.job.public_id)], now=now, news=news)
    event = Event(
        kind=EVENTS[Stage(stage)],
        title=f"{episode.job.name}: {_gpus(episode)} idle",
        text=said,
        path=episode.quota.path,
        job=episode.job.public_id,
        link=f"/idle/{episode.public_id}/",
        subject={"episode": episode.public_id, "owner": episode.owner.username if episode.owner else None, "idle_milli": episode.idle_milli},
        by=actor.name,
    )
    events_tell([event], now=now)
    news.publish()


def _said(episode: IdleEpisode, stage: str, reason: str, hold: bool, reclaim_after: int | None) -> str:
    since = idle_told(episode)
    facts = f"{_gpus(episode)} {since}."
    if stage == Stage.RECLAIMING:
        then = "It is held until someone releases it." if hold else "It resumes from its checkpoint when GPUs are free."
        facts = f"{_gpus(episode)} {since}: reclaimed. The job saves its work first. {then}"
    elif reclaim_after is not None:
        due = episode.seen_at + timedelta(minutes=reclaim_after) - idle_of(episode)
        facts += f" Use them or release them; they are reclaimed from {due:%H:%M} UTC on."
    else:
        facts += " Use them or release them."
    return f"{facts} {reason}".strip()[:300]


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


def _step(episode: IdleEpisode, kind: str, text: str, actor: Actor, now: datetime) -> None:
    IdleStep.objects.create(episode=episode, at=now, kind=kind, text=text[:300], by=actor.name)


def _record(episode: IdleEpisode, action: str, actor: Actor, after: dict[str, object], reason: str) -> None:
    audit_record(actor=actor, action=action, kind="idle_episode", object_id=episode.public_id, after=after, reason=reason, quota=episode.quota)


def _locked(key: int) -> IdleEpisode | None:
    return IdleEpisode.objects.select_for_update(of=("self",)).select_related("job__quota", "quota", "owner").filter(pk=key).first()


def _open(episode: IdleEpisode) -> IdleEpisode:
    fresh = _locked(episode.pk)
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
