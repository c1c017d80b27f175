"""The outbox: what happened is written with the step itself, and made into messages afterwards. Nothing is lost between the two (docs/adr/0008)."""

import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

from django.conf import settings
from django.db import connection, transaction

from gpufleet.core.audit import SYSTEM, Actor
from gpufleet.core.bulk import rows_insert
from gpufleet.core.live.news import News
from gpufleet.core.prepared import Prepared, together
from gpufleet.core.times import written
from quotas.permissions import Access, Can, Grant, is_within
from scheduler.models import Delivery, Happening, HookForm, Job, JobFollow, NoticeChoices, Webhook, WebhookState
from scheduler.notify.happenings import PAYLOAD_VERSION, TOLD, slack_text
from scheduler.selectors.discretion import Discretion, Names
from scheduler.services.loop.story import Event
from scheduler.services.notify.notices import ADDED_LATER, KIND_OF, OF_OTHERS, notices_make

COLUMNS = ("kind", "at", "job", "revision", "owner", "actor", "actor_name", "from_state", "to_state", "cause", "attempt")
AT_ONCE = 500
# For so long at most a call makes messages, mails them, or sends them: each of the three has its turn, however much there is of another.
A_TURN = timedelta(seconds=10)
BATCH = 500

ACTIVE = Webhook.objects.filter(state=WebhookState.ACTIVE, removed_at__isnull=True)
KINDS_WANTED: Prepared[list[str]] = Prepared(lambda: ACTIVE.filter(node__isnull=False).values_list("kinds", flat=True))

CHOSEN: Prepared[tuple[int, dict[str, list[str]]]] = Prepared(
    lambda users: NoticeChoices.objects.filter(user__among=users).values_list("user_id", "ways")
)
FOLLOWED: Prepared[int] = Prepared(lambda jobs: JobFollow.objects.filter(job__among=jobs).values_list("job_id", flat=True))


def happening_wanted(kind: str) -> Callable[[], bool]:
    """Whether anybody wants to be told of this kind, asked now, answered later: for those who would make thousands of events to tell of."""
    answer = KINDS_WANTED.asking().ahead()
    return lambda: any(kind in kinds for kinds in answer())


def happenings_write(*, events: Iterable[Event], actor: Actor) -> None:
    """Put what others want to be told into the outbox, in the caller's transaction. Where nobody listens nothing is written."""
    found = [(event, kind) for event in events if (kind := event.told or TOLD.get((event.before, event.after)))]
    if not found:
        return
    owners = {event.job.owner_id for event, _ in found if event.job.owner_id is not None}
    hooks, choices = together(KINDS_WANTED.asking(), CHOSEN.asking(owners))
    wanted = set(chain.from_iterable(hooks))
    kept = [one for one in found if one[1] in wanted]
    if len(kept) < len(found):
        kept += _of_people([one for one in found if one[1] not in wanted], dict(choices))
    if not kept:
        return
    by = actor.user.pk if actor.user is not None else None
    rows_insert(Happening, COLUMNS, (_row(event, kind, by) for event, kind in kept))


def _of_people(found: list[tuple[Event, str]], chosen: Mapping[int, dict[str, list[str]]]) -> list[tuple[Event, str]]:
    """Those of jobs whose owner, or somebody who follows them, wants to be told of the kind; and those that others may want to be told, too."""
    found = [(event, kind) for event, kind in found if kind in KIND_OF]
    kept: list[tuple[Event, str]] = []
    rest: list[tuple[Event, str]] = []
    for event, kind in found:
        owner = event.job.owner_id
        mine = KIND_OF[kind]
        wants = kind in OF_OTHERS or (owner is not None and (owner not in chosen or chosen[owner].get(mine, mine in ADDED_LATER)))
        (kept if wants else rest).append((event, kind))
    if rest:
        followed = set(FOLLOWED({event.job.pk for event, _ in rest}))
        kept += [(event, kind) for event, kind in rest if event.job.pk in followed]
    return kept


def _row(event: Event, kind: str, by: int | None) -> tuple[Any, ...]:
    job, attempt = event.job, event.attempt.number if event.attempt is not None else None
    return kind, event.at, job.pk, event.revision, job.owner_id, by, event.by, event.before, event.after, event.cause, attempt


def outbox_turns(*, clock: Callable[[], datetime]) -> int:
    """Make what happened into messages, for some seconds at most. Returns how many happenings there were."""
    began, made = clock(), 0
    while clock() - began < A_TURN and (some := outbox_turn(now=clock())):
        made += some
    return made


def outbox_turn(*, now: datetime, most: int = AT_ONCE) -> int:
    """Make the oldest happenings into messages. Returns how many there were. They leave the outbox in the same transaction."""
    with transaction.atomic():
        waiting = Happening.objects.order_by("pk").select_for_update(skip_locked=connection.features.has_select_for_update_skip_locked)
        rows = list(waiting[:most])
        if not rows:
            return 0
        jobs = {
            job.pk: job for job in Job.objects.filter(pk__among={row.job for row in rows}).select_related("quota", "owner").defer("spec", "launch")
        }
        hooks = list(ACTIVE.filter(node__isnull=False).select_related("node").order_by("pk"))
        # Causes name jobs and teams of the whole fleet: who is told reads of those that he may see.
        names = Names(row.cause for row in rows)
        Delivery.objects.bulk_create(_deliveries(rows, jobs, hooks, names, now), batch_size=BATCH)
        news = News()
        notices_make(rows=rows, jobs=jobs, names=names, now=now, news=news)
        Happening.objects.filter(pk__among=[row.pk for row in rows]).delete()
        news.publish()
    return len(rows)


def _deliveries(rows: Sequence[Happening], jobs: dict[int, Job], hooks: Sequence[Webhook], names: Names, now: datetime) -> list[Delivery]:
    found = []
    for hook in hooks:
        node = hook.node
        assert node is not None
        told = [(row, jobs[row.job]) for row in rows if row.kind in hook.kinds and row.job in jobs and is_within(jobs[row.job].quota.path, node.path)]
        # Who receives it knows what one sees there who sees that subtree alone.
        discretion = Discretion(Access(SYSTEM, (Grant(node.path, frozenset({Can.SEE})),)), names)
        for row, job in told:
            body = payload(row, job, discretion.text(row.cause))
            found.append(delivery_of(hook, event=f"e-{row.pk}", kind=row.kind, job=job.public_id, body=body, now=now))
    return sorted(found, key=lambda delivery: int(delivery.event.removeprefix("e-")))


def delivery_of(hook: Webhook, *, event: str, kind: str, job: str, body: str, now: datetime, again_of: Delivery | None = None) -> Delivery:
    """A message that is yet to be written. One that is sent again goes out as it was."""
    public = f"dl-{secrets.token_hex(12)}"
    if hook.form == HookForm.SLACK and again_of is None:
        body = json.dumps({"text": slack_text(json.loads(body))}, ensure_ascii=False, separators=(",", ":"))
    return Delivery(hook=hook, public_id=public, event=event, kind=kind, job=job, body=body, made_at=now, due_at=now, again_of=again_of)


def payload(row: Happening, job: Job, cause: str) -> str:
    """What receivers read (docs/operate/webhooks.md). The job is as it was when the message was made; all else, when it happened."""
    said = {
        "version": PAYLOAD_VERSION,
        "id": f"e-{row.pk}",
        "kind": row.kind,
        "at": written(row.at),
        "console": settings.PUBLIC_URL.rstrip("/"),
        "job": {
            "id": job.public_id,
            "name": job.name,
            "quota": job.quota.path,
            "owner": job.owner.username if job.owner is not None else None,
            "class": job.job_class,
            "gpus_milli": job.gpus_milli,
            "labels": job.labels,
        },
        "revision": row.revision,
        "attempt": row.attempt,
        "from": row.from_state or None,
        "to": row.to_state,
        "cause": cause,
        "by": row.actor_name,
    }
    return json.dumps(said, ensure_ascii=False, separators=(",", ":"))
