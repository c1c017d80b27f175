"""Operators and webhooks are told of a defragmentation as it is planned, begins, and is over or called off.

Owners of the jobs that it moves are told by the moves themselves. What comes and goes between two looks is told as it is by then.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from dashboards.telling import Event, People, events_tell
from gpufleet.core.audit import SYSTEM
from gpufleet.core.live.news import News
from gpufleet.core.templatetags.shell import plural
from quotas.models import Role
from scheduler.models import Defragmentation
from scheduler.notify.happenings import FleetEvent
from scheduler.services.notify.notices import Kind, Word, notices_say

PLANNED, BEGUN, ENDED = "planned", "begun", "ended"
KINDS = {PLANNED: FleetEvent.DEFRAG_PLANNED, BEGUN: FleetEvent.DEFRAG_BEGUN, ENDED: FleetEvent.DEFRAG_ENDED}
TOLD_TO = (Role.OPERATOR, Role.SUPERUSER)


@dataclass(frozen=True, slots=True)
class Telling:
    """What is told of one, and who did it. That person, by key, is not told; None: it came by the clock or by rule."""

    found: Defragmentation
    stage: str
    by: int | None
    name: str


def defragmentations_tell(*, now: datetime) -> int:
    """Tell what has not been told yet, once. Returns how many that were."""
    with transaction.atomic():
        rows = Defragmentation.objects.select_for_update().exclude(told=ENDED).order_by("pk")
        tellings = [_telling(found, stage) for found in rows if (stage := _stage(found, now)) != found.told]
        if not tellings:
            return 0
        for one in tellings:
            Defragmentation.objects.filter(pk=one.found.pk).update(told=one.stage)
        events = [_event(one) for one in tellings]
        events_tell(events, now=now)
        news = News()
        notices_say(kind=Kind.MOVED, words=_words(tellings, events), now=now, news=news)
        news.publish()
    return len(tellings)


def _stage(found: Defragmentation, now: datetime) -> str:
    if found.state == Defragmentation.State.ENDED:
        return ENDED
    return BEGUN if found.starts_at <= now else PLANNED


def _telling(found: Defragmentation, stage: str) -> Telling:
    if stage == ENDED:
        return Telling(found, stage, found.stopped_by_id, str(found.stopped_by or SYSTEM.name))
    if stage == PLANNED or found.starts_at <= found.asked_at:
        return Telling(found, stage, found.asked_by_id, found.asked_by_name)
    return Telling(found, stage, None, SYSTEM.name)


def _words(tellings: Sequence[Telling], events: Sequence[Event]) -> list[Word]:
    people = People(TOLD_TO).with_roles(TOLD_TO)
    return [
        Word(user, event.title, event.text, link=event.link)
        for telling, event in zip(tellings, events, strict=True)
        for user in people
        if user != telling.by
    ]


def _event(telling: Telling) -> Event:
    found = telling.found
    return Event(
        kind=KINDS[telling.stage],
        title=_title(found, telling.stage),
        text=_text(found, telling.stage),
        link="/fragmentation/",
        subject={"defragmentation": found.public_id, "moves": found.moves_most, "moved": found.moves_done, "by_rule": found.by_rule},
        by=telling.name,
    )


def _title(found: Defragmentation, stage: str) -> str:
    starts = f"{found.starts_at:%Y-%m-%d %H:%M} UTC"
    if stage == PLANNED:
        return f"Defragmentation planned for {starts}"
    if stage == BEGUN:
        return "A defragmentation has begun"
    return f"The defragmentation of {starts} is called off" if _is_called_off(found) else "A defragmentation has ended"


def _is_called_off(found: Defragmentation) -> bool:
    return found.ended_at is not None and found.ended_at < found.starts_at


def _text(found: Defragmentation, stage: str) -> str:
    if stage == ENDED:
        return f"{found.ended_because} {_moved(found)}"
    until = f" until {found.ends_at:%H:%M} UTC" if stage == BEGUN else ""
    who = "By rule" if found.by_rule else found.asked_by_name
    return f"Up to {plural(found.moves_most, 'running job')} may be moved{until}. {who}: {found.reason}"


def _moved(found: Defragmentation) -> str:
    if not found.moves_done:
        return "No move was made."
    return f"{found.moves_done} of {plural(found.moves_most, 'move')} {'was' if found.moves_done == 1 else 'were'} made."
