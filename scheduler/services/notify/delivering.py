"""Carrying messages to webhooks: claimed, sent outside of any transaction, written down. Whoever is killed in between sends again, under the same id.

A message is due, and whoever sends it first moves its time on: should nobody write down what became of it, it is due again after that. So it arrives
at least once, and receivers tell repeats by its id. One that fails waits longer each time and is given up after a day.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import connection, transaction
from django.db.models import F, OuterRef, Q, Subquery

from gpufleet.core.audit import SYSTEM, audit_record
from scheduler.loop.measures import DELIVERIES, DELIVERY
from scheduler.models import Delivery, DeliveryState, Sending, SendingState, Webhook, WebhookState
from scheduler.notify.happenings import NOTICES, TEST
from scheduler.notify.outgoing import Outcome, Rules, post, signature
from scheduler.services.loop.measuring import tally
from scheduler.services.notify.notices import notice_tell
from scheduler.services.notify.outbox import A_TURN
from scheduler.services.notify.webhooks import fingerprint_of, secret_of

# How long a claim holds: well above what one round can take.
CLAIM = timedelta(seconds=90)
FIRST_PAUSE_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 3600.0
JITTER = 0.2
GIVE_UP = timedelta(hours=24)
# One hook may not keep the others waiting, least of all one that does not answer.
AT_ONCE = 8
AT_ONCE_A_HOOK = 4
HOOKS_A_ROUND = 50
PARKED_AT_ONCE = 1000
NOBODY: Mapping[int, int] = {}

# Why nobody tried a message for a day.
UNTRIED: dict[str, str] = {
    "removed": "It was not sent: the webhook was removed.",
    WebhookState.PAUSED: "It was not sent for a day: the webhook is paused.",
    WebhookState.DISABLED: "It was not sent for a day: the webhook is switched off.",
    WebhookState.ACTIVE: "Not sent for a day: no worker picked it up. Is a worker of the queue default running?",
}

Send = Callable[[str, bytes, dict[str, str], Rules], Outcome]


@dataclass(frozen=True, slots=True)
class Claimed:
    """A message that is ours to send, until the claim runs out."""

    delivery: Delivery
    hook: Webhook
    attempt: int


def deliveries_turn(*, clock: Callable[[], datetime], rng: random.Random, send: Send = post) -> int:
    """Send what is due, for some seconds at most. Returns how many messages were tried."""
    began = clock()
    deliveries_park(now=began)
    tried = 0
    under_way: dict[Future[Outcome], Claimed] = {}
    with ThreadPoolExecutor(max_workers=AT_ONCE, thread_name_prefix="webhook") as threads:
        while True:
            now = clock()
            if now - began < A_TURN:
                busy = Counter(one.hook.pk for one in under_way.values())
                for one in deliveries_claim(now=now, most=AT_ONCE - len(under_way), busy=busy):
                    under_way[threads.submit(_send, one, now, send)] = one
            if not under_way:
                return tried
            # A thread only sends: what is written, this one writes. Whoever is slow keeps his own place from the others, and no other one.
            ended = wait(under_way, return_when=FIRST_COMPLETED).done
            done = [(under_way.pop(each), each.result()) for each in list(under_way) if each in ended]
            deliveries_settle(done=done, now=clock(), rng=rng)
            tried += len(done)


def deliveries_claim(*, now: datetime, most: int = AT_ONCE, busy: Mapping[int, int] = NOBODY) -> list[Claimed]:
    """A few messages that are due, of each hook the oldest; of a hook that fails only one. `busy` says how many of a hook are under way."""
    due = Delivery.objects.filter(state=DeliveryState.WAITING, due_at__lte=now)
    sendable = due.filter(hook=OuterRef("pk")).filter(Q(kind=TEST) | Q(hook__state=WebhookState.ACTIVE))
    found: list[Claimed] = []
    with transaction.atomic():
        waiting = Webhook.objects.filter(removed_at__isnull=True).annotate(oldest=Subquery(sendable.order_by("due_at").values("due_at")[:1]))
        # Those that don't fail go first: NULLs, which PostgreSQL sorts last by itself. Then whoever has waited longest.
        order = (F("failing_since").asc(nulls_first=True), "oldest", "pk")
        hooks = list(waiting.filter(oldest__isnull=False).order_by(*order)[:HOOKS_A_ROUND])
        locked = connection.features.has_select_for_update_skip_locked
        for hook in hooks:
            rows = due.filter(hook=hook) if hook.state == WebhookState.ACTIVE else due.filter(hook=hook, kind=TEST)
            share = (1 if hook.failing_since is not None else AT_ONCE_A_HOOK) - busy.get(hook.pk, 0)
            oldest = rows.order_by("due_at", "pk").select_for_update(skip_locked=locked)[: max(0, min(share, most - len(found)))]
            found.extend(Claimed(row, hook, row.attempts + 1) for row in oldest)
            if len(found) >= most:
                break
        for one in found:
            Delivery.objects.filter(pk=one.delivery.pk).update(attempts=one.attempt, due_at=now + CLAIM, tried_at=now)
    return found


def _send(one: Claimed, now: datetime, send: Send) -> Outcome:
    secret = secret_of(one.hook)
    if fingerprint_of(secret) != one.hook.fingerprint:
        return Outcome(None, 0, "The installation's key has changed since the secret was made: make a new secret.")
    body = one.delivery.body.encode()
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "gpufleet-webhook/1",
        "Gpufleet-Event": one.delivery.kind,
        "Gpufleet-Event-Id": one.delivery.event,
        "Gpufleet-Delivery": one.delivery.public_id,
        "Gpufleet-Attempt": str(one.attempt),
        "Gpufleet-Signature": signature(secret, body, now),
    }
    return send(one.hook.url, body, headers, Rules.of_settings())


def pause_after(attempt: int, rng: random.Random) -> timedelta:
    """How long a message waits after its n-th try: three times as long each time up to an hour, and not quite the same for all."""
    seconds = min(FIRST_PAUSE_SECONDS * 3 ** min(attempt - 1, 10), LONGEST_PAUSE_SECONDS)
    return timedelta(seconds=seconds * rng.uniform(1 - JITTER, 1 + JITTER))


def deliveries_settle(*, done: Sequence[tuple[Claimed, Outcome]], now: datetime, rng: random.Random) -> None:
    """Write down how it went. Whoever comes late, after somebody else has claimed the message anew, only tells of success."""
    by_hook: dict[int, list[Outcome]] = defaultdict(list)
    with transaction.atomic():
        for one, outcome in done:
            by_hook[one.hook.pk].append(outcome)
            columns = {
                "status": outcome.status,
                "duration_ms": outcome.duration_ms,
                "fault": outcome.fault,
                "excerpt": outcome.excerpt,
            }
            rows = Delivery.objects.filter(pk=one.delivery.pk, state=DeliveryState.WAITING)
            # A test is tried once: whoever asked for it looks at what came of it, and asks again.
            given_up = not outcome.taken and (one.delivery.kind == TEST or now - one.delivery.made_at >= GIVE_UP)
            if outcome.taken:
                rows.update(**columns, state=DeliveryState.DELIVERED, done_at=now)
            elif given_up:
                rows.filter(attempts=one.attempt).update(**columns, state=DeliveryState.PARKED, done_at=now)
            else:
                rows.filter(attempts=one.attempt).update(**columns, due_at=now + pause_after(one.attempt, rng))
            tally.count(DELIVERIES, "delivered" if outcome.taken else "given_up" if given_up else "failed")
            tally.time(DELIVERY, seconds=outcome.duration_ms / 1000)
        _sendings_follow([one.delivery.pk for one, _ in done if one.delivery.kind == NOTICES], now)
        for key, outcomes in sorted(by_hook.items()):
            _judge(key, outcomes, now)


def _sendings_follow(keys: Sequence[int], now: datetime) -> None:
    """What became of messages became of the notices in them."""
    if not keys:
        return
    waiting = Sending.objects.filter(state=SendingState.WAITING, delivery__in=keys)
    waiting.filter(delivery__state=DeliveryState.DELIVERED).update(state=SendingState.SENT, done_at=now, fault="")
    said = Subquery(Delivery.objects.filter(pk=OuterRef("delivery")).values("fault")[:1])
    waiting.filter(delivery__state=DeliveryState.PARKED).update(state=SendingState.FAILED, done_at=now, fault=said)


def _judge(key: int, outcomes: Iterable[Outcome], now: datetime) -> None:
    """What its last tries say of a hook. One that only fails for days is switched off."""
    hook = Webhook.objects.select_for_update(of=("self",)).select_related("node", "person", "author").get(pk=key)
    if any(outcome.taken for outcome in outcomes):
        if hook.failing_since is not None:
            Webhook.objects.filter(pk=key).update(failing_since=None)
        return
    since = hook.failing_since or now
    if hook.failing_since is None:
        Webhook.objects.filter(pk=key).update(failing_since=since)
    days = settings.WEBHOOKS["GIVE_UP_DAYS"]
    if hook.state == WebhookState.ACTIVE and now - since >= timedelta(days=days):
        Webhook.objects.filter(pk=key).update(state=WebhookState.DISABLED, disabled_at=now, revision=hook.revision + 1)
        audit_record(
            actor=SYSTEM,
            action="webhook.disable",
            kind="webhook",
            object_id=hook.public_id,
            quota=hook.node,
            before={"state": hook.state},
            after={"state": WebhookState.DISABLED.value},
            reason=f"It has only failed for {days} days.",
        )
        told = hook.person or hook.author
        if told is not None:
            title, remedy = f"The webhook {hook.name} was switched off", "send a test, then resume it."
            if hook.person is not None:
                title, remedy = "Your own webhook was switched off", "then press Change at your own webhook in your notification settings."
            text = f"It has only failed since {since:%Y-%m-%d %H:%M} UTC. Repair the receiver, {remedy}"
            link = "/notifications/settings/" if hook.person is not None else f"/webhooks/{hook.public_id}/"
            notice_tell(user=told, title=title, text=text, now=now, link=link)


def deliveries_park(*, now: datetime) -> int:
    """Give up what waited for a day, whether or not it was tried: for a hook that is paused, switched off or removed nobody tries."""
    old = Delivery.objects.filter(state=DeliveryState.WAITING, made_at__lte=now - GIVE_UP, due_at__lte=now)
    facts = ("pk", "fault", "hook__state", "hook__removed_at")
    reasons: dict[str, list[int]] = defaultdict(list)
    rows = list(old.order_by("made_at").values_list(*facts)[:PARKED_AT_ONCE])
    for key, fault, state, removed in rows:
        # What was tried has its reason already: the last answer.
        reasons["" if fault else UNTRIED["removed" if removed is not None else state]].append(key)
    gone = 0
    with transaction.atomic():
        for reason, keys in reasons.items():
            waiting = Delivery.objects.filter(pk__in=keys, state=DeliveryState.WAITING, due_at__lte=now)
            gone += waiting.update(state=DeliveryState.PARKED, done_at=now, **({"fault": reason} if reason else {}))
        _sendings_follow([key for key, *_ in rows], now)
    tally.count(DELIVERIES, "given_up", n=gone)
    return gone
