"""Do the processes hear each other: Redis, the channel between them, the worker and its clock?"""

import asyncio
import fcntl
from collections.abc import Iterator
from datetime import timedelta

import redis
from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.conf import settings
from django.db.models import Q

from gpufleet.core.models import Progress
from gpufleet.core.tasks import HEARTBEAT_QUEUES, heartbeat_name
from gpufleet.core.times import now
from gpufleet.doctor import Finding, some
from quotas.models import CostMailing, MailState
from scheduler.models import Delivery, DeliveryState, Happening, Schedule, Sending, SendingState, Webhook, WebhookState
from scheduler.selectors.loop import scheduler_silent
from scheduler.services.jobs.old_checkpoints import LATE as CHECKPOINTS_LATE
from scheduler.services.jobs.old_checkpoints import checkpoints_late
from scheduler.services.notify.notices import Way

OLDEST_REDIS = (6, 0)
ANSWER_SECONDS = 5
MESSAGES_LATE = timedelta(minutes=10)
COSTS_LATE = timedelta(minutes=15)  # they are looked at every five
COSTS_REMEMBERED = timedelta(days=7)
SCHEDULES_LATE = timedelta(minutes=10)
FAILING_LONG = timedelta(hours=1)
# The first tries of a mail server that restarts fail as well.
TRIED_OFTEN = 3
LONGEST_SILENCE = timedelta(seconds=60)


def redis_answers() -> Iterator[Finding]:
    if not settings.ENV["REDIS_URL"]:
        return
    try:
        with redis.Redis.from_url(settings.ENV["REDIS_URL"], socket_timeout=ANSWER_SECONDS, socket_connect_timeout=ANSWER_SECONDS) as client:
            version = client.info("server")["redis_version"]
    except redis.RedisError as error:
        yield Finding(
            f"Redis does not answer: {error}",
            "No task starts, and pages learn of changes two seconds late.",
            "Check that it runs and that GPUFLEET_REDIS_URL names it. Nothing was lost: work starts once it is back.",
        )
        return
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_REDIS:
        yield Finding(f"Redis is version {version}.", "gpufleet is tested with 6 and newer.", "Upgrade the server.")


def channel_layer_carries() -> Iterator[Finding]:
    async def round_trip() -> bool:
        layer = get_channel_layer()
        channel = await layer.new_channel()
        await layer.send(channel, {"type": "doctor.hello"})
        answer = await asyncio.wait_for(layer.receive(channel), ANSWER_SECONDS)
        return bool(answer["type"] == "doctor.hello")

    try:
        async_to_sync(round_trip)()
    except (TimeoutError, OSError, redis.RedisError) as error:
        yield Finding(
            f"A message through the channel layer did not arrive: {str(error) or type(error).__name__}.",
            "Pages learn of changes two seconds late.",
            "See what is said about Redis.",
        )


def console_runs() -> bool:
    """Whether an embedded console holds the data folder now."""
    path = settings.DATA_DIR / "console.lock"
    if not path.exists():
        return False
    with path.open() as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def worker_and_clock() -> Iterator[Finding]:
    """Beat asks for a heartbeat on each queue and a worker writes it down, so a fresh one proves both."""
    if not settings.PRODUCTION and not console_runs():
        yield Finding("No console runs on this data folder.", "Nothing changes, and no page answers.", "Start it with gpufleet up.", note=True)
        return
    seen = dict(Progress.objects.filter(name__in=[heartbeat_name(queue) for queue in HEARTBEAT_QUEUES]).values_list("name", "reached_at"))
    for queue in HEARTBEAT_QUEUES:
        last = seen.get(heartbeat_name(queue))
        if last is None or now() - last > LONGEST_SILENCE:
            when = f"since {last:%Y-%m-%d %H:%M:%S} UTC" if last else "yet"
            yield Finding(
                f"No task of the queue {queue!r} was carried out {when}.",
                "Beat does not run, no worker takes this queue, or Redis lies between them.",
                f"Check beat, then the worker started with --queues {queue}: docs/operate/production.md. A console that just started needs a minute.",
            )


def ticks_finish() -> Iterator[Finding]:
    """A worker may answer while the scheduler in it hangs, on a file system or in a plan."""
    if not settings.PRODUCTION and not console_runs():
        return
    if silent := scheduler_silent(now()):
        yield Finding(
            f"The scheduler has not finished a tick for {silent:,} s.",
            "No job starts, and no end is noticed. Running jobs go on.",
            "Look into the log of the worker of the queue scheduler for what it does, then restart it. Nothing is lost.",
        )


def messages_go_out() -> Iterator[Finding]:
    """What happened becomes messages within seconds, and messages that are due are tried."""
    moment = now()
    oldest = Happening.objects.order_by("pk").values_list("at", flat=True).first()
    if oldest is not None and moment - oldest > LONGEST_SILENCE:
        yield Finding(
            f"What happened since {oldest:%Y-%m-%d %H:%M:%S} UTC was not made into messages.",
            "No notification is sent: neither to webhooks nor to people.",
            "Check the worker of the queue default and its log. Nothing was lost: events are sent once the worker runs.",
        )
    late = Delivery.objects.filter(state=DeliveryState.WAITING, due_at__lt=moment - MESSAGES_LATE, hook__state=WebhookState.ACTIVE)
    late = late.filter(hook__removed_at__isnull=True, hook__failing_since__isnull=True)
    count = late.count()
    if count:
        names = list(late.order_by("hook__name").values_list("hook__name", flat=True).distinct()[:50])
        yield Finding(
            f"{count:,} messages to webhooks ({some(names)}) are due for more than {MESSAGES_LATE.total_seconds() / 60:g} minutes and were not sent.",
            "Receivers get events late; events older than a day are dropped.",
            "Check the worker of the queue default; with very many messages, start another one.",
        )
    failing = Webhook.objects.filter(state=WebhookState.ACTIVE, removed_at__isnull=True, failing_since__lt=moment - FAILING_LONG).order_by("pk")
    if names := list(failing.values_list("name", flat=True)[:50]):
        yield Finding(
            f"Webhooks have only failed for more than an hour: {some(names)}.",
            "Their messages wait, each for a day at most; after days of failing a webhook is switched off.",
            "The log on the page of the webhook has what its receiver answered.",
            note=True,
        )
    off = list(Webhook.objects.filter(state=WebhookState.DISABLED, removed_at__isnull=True).order_by("pk").values_list("name", flat=True)[:50])
    if off:
        yield Finding(f"Webhooks were switched off after days of failing: {some(off)}.", "They receive nothing.", "Resume or remove them.", note=True)


def schedules_go_on() -> Iterator[Finding]:
    """What is due again is submitted within seconds."""
    late = Schedule.objects.filter(paused_at__isnull=True, next_due__lt=now() - SCHEDULES_LATE).order_by("next_due", "pk")
    if names := list(late.values_list("public_id", flat=True)[:50]):
        yield Finding(
            f"Jobs that recur are due for more than {SCHEDULES_LATE.total_seconds() / 60:g} minutes and were not submitted: {some(names)}.",
            "They are late; what came of the times that pass is up to the rules of each schedule.",
            "Check beat and the worker of the queue default, and its log: it names a schedule that can't be dealt with.",
        )


def old_checkpoints_go() -> Iterator[Finding]:
    """Files of checkpoints that nobody resumes from any more are deleted within minutes."""
    late = checkpoints_late(now=now())
    if count := late.count():
        oldest = late.order_by("removed_at", "pk").values_list("location", flat=True).first()
        yield Finding(
            f"The files of {count:,} old checkpoints were not deleted for more than {CHECKPOINTS_LATE // timedelta(minutes=1)} minutes: {oldest}",
            "They fill the disk. Jobs resume from newer ones, which are not concerned.",
            "Check that this folder is mounted and writable where the worker of the queue default runs. Its log says what went wrong.",
        )


def mails_go_out() -> Iterator[Finding]:
    """Notices by e-mail that are due are sent, and the mail server takes them."""
    moment = now()
    waiting = Sending.objects.filter(way=Way.EMAIL, state=SendingState.WAITING)
    late = waiting.filter(due_at__lt=moment - MESSAGES_LATE).count()
    if late:
        yield Finding(
            f"{late:,} notices by e-mail are due for more than {MESSAGES_LATE.total_seconds() / 60:g} minutes and were not sent.",
            "People get mail late; mail older than a day is dropped.",
            "Check the worker of the queue default and its log.",
        )
    failed = Q(state=SendingState.WAITING, attempts__gte=TRIED_OFTEN) | Q(state=SendingState.FAILED, done_at__gt=moment - timedelta(days=1))
    refused = Sending.objects.filter(failed, way=Way.EMAIL).exclude(fault="")
    if people := list(refused.order_by("user__username").values_list("user__username", flat=True).distinct()[:50]):
        fault = refused.order_by("-pk").values_list("fault", flat=True).first()
        yield Finding(
            f"E-mails to {some(people)} could not be sent. The last time: {fault}",
            "They are tried again for a day, then given up. In the console the notices are there.",
            "Check the mail server of GPUFLEET_EMAIL_URL, and the addresses of those people.",
        )


def costs_go_out() -> Iterator[Finding]:
    """Costs by e-mail that are due are sent, and the mail server takes them."""
    moment = now()
    waiting = CostMailing.objects.filter(state=MailState.WAITING)
    late = waiting.filter(due_at__lt=moment - COSTS_LATE)
    if names := list(late.order_by("mail__node__path").values_list("mail__node__path", flat=True).distinct()[:50]):
        yield Finding(
            f"E-mails with costs are due for more than {COSTS_LATE // timedelta(minutes=1)} minutes and were not sent: {some(names)}.",
            "The people who get them do not know what their teams cost. Nothing is lost.",
            "Check beat and the worker of the queue default, and its log.",
        )
    refused = CostMailing.objects.filter(
        Q(state=MailState.WAITING, attempts__gte=TRIED_OFTEN) | Q(state=MailState.FAILED, done_at__gt=moment - COSTS_REMEMBERED)
    ).exclude(fault="")
    if people := list(refused.order_by("user__username").values_list("user__username", flat=True).distinct()[:50]):
        fault = refused.order_by("-pk").values_list("fault", flat=True).first()
        yield Finding(
            f"E-mails with costs to {some(people)} could not be sent. The last time: {fault}",
            "They are tried again for a day, then given up.",
            "Check GPUFLEET_EMAIL_URL, and the addresses and roles of these people; then press Send last month under Cost, E-mails.",
        )


CHECKS = {
    "messages go out": messages_go_out,
    "old checkpoints go": old_checkpoints_go,
    "mails go out": mails_go_out,
    "costs go out": costs_go_out,
    "schedules go on": schedules_go_on,
    "Redis answers": redis_answers,
    "the channel layer carries": channel_layer_carries,
    "worker and clock": worker_and_clock,
    "ticks finish": ticks_finish,
}
