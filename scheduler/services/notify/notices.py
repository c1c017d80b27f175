"""What people are told of their jobs: made from the outbox, by their own choices, grouped where much happens at once."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from django.conf import settings
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.db.models import Max

from gpufleet.core.audit import audit_record
from gpufleet.core.faults import Conflict, Stale
from gpufleet.core.live.news import News
from gpufleet.core.models import AuditEntry, User
from gpufleet.core.zones import zone_named
from quotas.permissions import Access, Can, accesses_for_users
from scheduler.models import Happening, Job, JobFollow, JobState, Notice, NoticeChoices, Sending, SendingState, Webhook
from scheduler.notify.happenings import Happened
from scheduler.notify.quiet_hours import A_DAY, QuietHours
from scheduler.selectors.discretion import Discretion, Names

# Of one kind, so many of a turn are told one by one; more of them as one.
SINGLY = 5
NAMED = 3
TEXT_LENGTH = 500
TITLE_LENGTH = 200
BATCH = 500
# Mails gather for a moment, and one person gets none sooner than this after the last one.
GATHER = timedelta(seconds=15)
BETWEEN_MAILS = timedelta(minutes=2)


class Kind(StrEnum):
    STARTED = "started"
    PREEMPTED = "preempted"
    FAILED = "failed"
    FINISHED = "finished"
    NEAR_LIMIT = "near_limit"
    DRAIN = "drain"
    MOVED = "moved"
    IDLE = "idle"
    ALERT = "alert"
    APPROVAL = "approval"
    RESERVATION = "reservation"
    BUDGET = "budget"
    SCHEDULE = "schedule"
    REPLACEMENT = "replacement"


# Kinds that came later. Choices that were saved before there were such kinds say nothing of them: then the console tells them.
ADDED_LATER = frozenset(
    {Kind.IDLE, Kind.ALERT, Kind.DRAIN, Kind.MOVED, Kind.APPROVAL, Kind.RESERVATION, Kind.BUDGET, Kind.SCHEDULE, Kind.REPLACEMENT}
)


class Way(StrEnum):
    CONSOLE = "console"
    EMAIL = "email"
    WEBHOOK = "webhook"


# About oneself rather than about a job: always told, in the console.
OWN = "own"
TEST_TITLE = "This is a test"
CHANGED = "The choices have changed. Reload them and try again."
KIND_OF: dict[str, Kind] = {
    Happened.STARTED: Kind.STARTED,
    Happened.PREEMPTED: Kind.PREEMPTED,
    Happened.REQUEUED: Kind.PREEMPTED,
    Happened.FAILED: Kind.FAILED,
    Happened.COMPLETED: Kind.FINISHED,
    Happened.CANCELLED: Kind.FINISHED,
    Happened.NEAR_LIMIT: Kind.NEAR_LIMIT,
    Happened.NODE_DRAINING: Kind.DRAIN,
    Happened.MOVED: Kind.MOVED,
    Happened.REPLACE_STOPPED: Kind.REPLACEMENT,
}
# Told to whoever began what stopped, too.
OF_OTHERS = frozenset({Happened.REPLACE_STOPPED})
KIND_LABELS: dict[str, str] = {
    Kind.STARTED: "A job runs",
    Kind.PREEMPTED: "A job lost its GPUs and waits again",
    Kind.FAILED: "A job failed",
    Kind.FINISHED: "A job completed, or somebody else cancelled it",
    Kind.NEAR_LIMIT: "A job's time limit is near",
    Kind.DRAIN: "The node of a job is drained at a stated time",
    Kind.MOVED: "A job is moved to other GPUs; for operators, also as such moves begin and end",
    Kind.IDLE: "GPUs of your job are idle",
    Kind.ALERT: "An alert fires or ends",
    Kind.APPROVAL: "A quota change or reservation needs your approval, or yours is decided",
    Kind.RESERVATION: "Your reservation lacks GPUs, is released unused, or is changed by somebody else",
    Kind.BUDGET: "A budget of your teams is near its limit, used up, or open again",
    Kind.SCHEDULE: "A schedule or planned change of yours was not carried out",
    Kind.REPLACEMENT: "Replacing the replicas of a service stopped early",
}
WAY_LABELS = {Way.CONSOLE: "Console", Way.EMAIL: "E-mail", Way.WEBHOOK: "Own webhook"}
QUIET_RULES = {"hold": "Hold it back and send it as one when they are over", "drop": "Leave it out"}
_ONE = {
    Happened.STARTED: "{} runs",
    Happened.PREEMPTED: "{} was preempted",
    Happened.REQUEUED: "{} waits again",
    Happened.FAILED: "{} failed",
    Happened.COMPLETED: "{} completed",
    Happened.CANCELLED: "{} was cancelled",
    Happened.NEAR_LIMIT: "The time limit of {} is near",
    Happened.NODE_DRAINING: "Drain of the node of {}",
    Happened.MOVED: "{} is moved to other GPUs",
    Happened.REPLACE_STOPPED: "Replacing replicas of {} stopped",
}
_MANY = {
    Kind.STARTED: "{} jobs run",
    Kind.PREEMPTED: "{} jobs lost their GPUs and wait again",
    Kind.FAILED: "{} jobs failed",
    Kind.FINISHED: "{} jobs are over",
    Kind.NEAR_LIMIT: "The time limits of {} jobs are near",
    Kind.DRAIN: "Drains of the nodes of {} jobs",
    Kind.MOVED: "{} jobs are moved to other GPUs",
    Kind.IDLE: "GPUs of {} jobs are idle",
    Kind.ALERT: "{} alerts",
    Kind.APPROVAL: "{} changes and reservations that need approval or are decided",
    Kind.RESERVATION: "{} notices about your reservations",
    Kind.BUDGET: "{} notices about budgets",
    Kind.SCHEDULE: "{} notices about your schedules and planned changes",
    Kind.REPLACEMENT: "Replacing replicas stopped {} times",
}
# Where many of a kind are seen together, of those that are about no job.
_LISTS = {
    Kind.MOVED: "/fragmentation/",
    Kind.ALERT: "/activity/alerts/",
    Kind.APPROVAL: "/quotas/changes/",
    Kind.RESERVATION: "/reservations/list/",
    Kind.BUDGET: "/budgets/",
    Kind.SCHEDULE: "/schedules/",
}


# What the audit has of a step that ends a run: it leaves, or what it leaves for becomes another thing.
ENDING = ({"state": JobState.CHECKPOINTING.value}, {"becomes": JobState.CANCELLED.value})


@dataclass(frozen=True, slots=True)
class Choices:
    """What one person chose; without a choice, all in the console."""

    ways: Mapping[str, frozenset[str]] = field(default_factory=lambda: {kind.value: frozenset({Way.CONSOLE.value}) for kind in Kind})
    quiet: QuietHours | None = None
    drops: bool = False
    urgent: frozenset[str] = frozenset()
    zone: str = "UTC"
    revision: int = 0


def choices_of(row: NoticeChoices | None) -> Choices:
    if row is None:
        return Choices()
    quiet = QuietHours(row.quiet_from, row.quiet_until, row.zone) if row.quiet_from is not None and row.quiet_until is not None else None
    ways = {kind.value: frozenset(row.ways.get(kind, (Way.CONSOLE.value,) if kind in ADDED_LATER else ())) for kind in Kind}
    return Choices(ways, quiet, row.quiet_rule == "drop", frozenset(row.urgent), row.zone, row.revision)


def mail_is_on() -> bool:
    return bool(settings.EMAIL_HOST)


def notices_choose(
    *,
    access: Access,
    ways: Mapping[str, Sequence[str]],
    zone: str = "UTC",
    quiet_from: int | None = None,
    quiet_until: int | None = None,
    quiet_rule: str = "hold",
    urgent: Sequence[str] = (),
    seen: int | None = None,
    revision: int | None = None,
) -> Choices:
    """All of a person's choices at once. `seen` and `revision`: the one that was read, 0 where there was none; an outdated `revision` is `Stale`."""
    user = _self(access)
    faults = _choice_faults(user, ways, zone, quiet_from, quiet_until, quiet_rule, urgent)
    if faults:
        raise ValidationError(faults)
    with transaction.atomic():
        User.objects.select_for_update(no_key=True).get(pk=user.pk)
        row = NoticeChoices.objects.filter(user=user).first()
        present = row.revision if row else 0
        if revision is not None and revision != present:
            raise Stale(CHANGED, present)
        if seen is not None and seen != present:
            raise Conflict(CHANGED)
        before = _facts(row) if row else None
        row = row or NoticeChoices(user=user, revision=0)
        row.ways = {kind.value: [way.value for way in Way if way in ways.get(kind, ())] for kind in Kind}
        row.zone, row.quiet_from, row.quiet_until, row.quiet_rule = zone, quiet_from, quiet_until, quiet_rule
        row.urgent = [kind.value for kind in Kind if kind in urgent]
        row.revision += 1
        row.save()
        audit_record(actor=access.actor, action="notices.choose", kind="person", object_id=user.public_id, before=before, after=_facts(row))
    return choices_of(row)


def way_leave(*, access: Access, way: Way) -> None:
    """Take a way out of a person's choices that leads nowhere any more."""
    user = _self(access)
    with transaction.atomic():
        User.objects.select_for_update(no_key=True).get(pk=user.pk)
        row = NoticeChoices.objects.filter(user=user).first()
        if row is None or not any(way in chosen for chosen in row.ways.values()):
            return
        before = _facts(row)
        row.ways = {kind: [one for one in chosen if one != way] for kind, chosen in row.ways.items()}
        row.revision += 1
        row.save(update_fields=["ways", "revision"])
        audit_record(actor=access.actor, action="notices.choose", kind="person", object_id=user.public_id, before=before, after=_facts(row))


def _facts(row: NoticeChoices) -> dict[str, Any]:
    return {name: getattr(row, name) for name in ("ways", "zone", "quiet_from", "quiet_until", "quiet_rule", "urgent")}


def _choice_faults(
    user: User,
    ways: Mapping[str, Sequence[str]],
    zone: str,
    quiet_from: int | None,
    quiet_until: int | None,
    quiet_rule: str,
    urgent: Sequence[str],
) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for kind, chosen in ways.items():
        if kind not in set(Kind):
            found[f"ways.{kind}"] = [f"There is no such kind; there are {', '.join(Kind)}."]
        elif not set(chosen) <= set(Way):
            found[f"ways.{kind}"] = [f"The ways are {', '.join(Way)}."]
        elif Way.EMAIL in chosen and not (mail_is_on() and user.email):
            why = "you have no address" if mail_is_on() else "this console sends no mail (GPUFLEET_EMAIL_URL)"
            found[f"ways.{kind}"] = [f"E-mail can't be chosen: {why}."]
        elif Way.WEBHOOK in chosen and own_hook(user) is None:
            found[f"ways.{kind}"] = ["Your own webhook can't be chosen: you have named none."]
    try:
        zone_named(zone)
    except ValueError:
        found["zone"] = ["Name a time zone such as Europe/Berlin or UTC."]
    for name, value in (("quiet_from", quiet_from), ("quiet_until", quiet_until)):
        if (quiet_from is None) != (quiet_until is None) and value is None:
            found[name] = ["Quiet hours need a beginning and an end."]
        elif value is not None and not 0 <= value < A_DAY:
            found[name] = ["A time of the day is wanted."]
    if quiet_from is not None and quiet_from == quiet_until and not found:
        found["quiet_until"] = ["The end must differ from the beginning. To receive nothing, choose no channel."]
    if quiet_rule not in QUIET_RULES:
        found["quiet_rule"] = ["Choose {}.".format(" or ".join(f"“{label}” ({rule})" for rule, label in QUIET_RULES.items()))]
    if not set(urgent) <= set(Kind):
        found["urgent"] = [f"The kinds are {', '.join(Kind)}."]
    return found


def _self(access: Access) -> User:
    if access.actor.user is None:
        raise PermissionDenied
    return access.actor.user


# Made from what happened


def notices_make(*, rows: Iterable[Happening], jobs: Mapping[int, Job], names: Names, now: datetime, news: News) -> int:
    """Tell owners and followers of these happenings, and who began what stopped, in the caller's transaction. Returns how many notices that were."""
    told: dict[tuple[int, Kind], list[tuple[Happening, Job]]] = defaultdict(list)
    followers: dict[int, list[int]] = defaultdict(list)
    for followed, user in JobFollow.objects.filter(job__among=list(jobs)).order_by("pk").values_list("job_id", "user_id"):
        followers[followed].append(user)
    rows = list(rows)
    cancelled, begun = _cancelled_by(rows, jobs), _begun_by(rows, jobs)
    for row in rows:
        kind, job = KIND_OF.get(row.kind), jobs.get(row.job)
        if kind is None or job is None:
            continue
        concerned = [row.owner, *followers[row.job], begun.get(row.pk)]
        for user in dict.fromkeys(user for user in concerned if user is not None):
            if user != (row.actor or cancelled.get(row.pk)):  # nobody needs to be told what he did himself
                told[user, kind].append((row, job))
    found = User.objects.filter(pk__in={user for user, _ in told}, is_active=True).select_related("notice_choices")
    people = {user.pk: user for user in found}
    sees = accesses_for_users(people.values())
    followed_by = {user for following in [*followers.values(), begun.values()] for user in following}
    for (user, kind), each in told.items():
        follows = user in followed_by and user in sees
        # Who follows a job is told of it as long as he sees it; an owner always.
        told[user, kind] = [(row, job) for row, job in each if row.owner == user or (follows and sees[user].can(Can.SEE, job.quota.path))]
    made: list[Notice] = []
    for (key, kind), each in sorted(told.items()):
        if each and key in people and choices_for(people[key]).ways[kind]:
            made += _notices(people[key], kind, each, Discretion(sees[key], names))
    made.sort(key=lambda notice: notice.at)
    _write(made, people, now, news)
    return len(made)


@dataclass(frozen=True, slots=True)
class Word:
    """One thing that one person is to be told, of the fleet rather than of a step of a job."""

    user: int
    title: str
    text: str
    job: str = ""
    link: str = ""


def notices_say(*, kind: Kind, words: Sequence[Word], now: datetime, news: News) -> int:
    """Tell people something by the ways that each has chosen for its kind, in the caller's transaction. Returns how many notices that were."""
    found = User.objects.filter(pk__among={word.user for word in words}, is_active=True).select_related("notice_choices") if words else ()
    people = {user.pk: user for user in found}
    told: dict[int, list[Word]] = defaultdict(list)
    for word in words:
        if word.user in people and choices_for(people[word.user]).ways[kind]:
            told[word.user].append(word)
    made = [notice for user, each in sorted(told.items()) for notice in _worded(people[user], kind, each, now)]
    _write(made, people, now, news)
    return len(made)


def _worded(user: User, kind: Kind, words: Sequence[Word], now: datetime) -> list[Notice]:
    in_console = Way.CONSOLE in choices_for(user).ways[kind]
    if len(words) > SINGLY:
        title = _MANY[kind].format(f"{len(words):,}")
        text = f"{', '.join(word.title for word in words[:NAMED])} and {len(words) - NAMED:,} more."
        link = "" if any(word.job for word in words) else _LISTS.get(kind, "")
        return [Notice(user=user, kind=kind, at=now, title=title, text=text[:TEXT_LENGTH], link=link, count=len(words), in_console=in_console)]
    return [
        Notice(
            user=user,
            kind=kind,
            at=now,
            title=word.title[:TITLE_LENGTH],
            text=word.text[:TEXT_LENGTH],
            job=word.job,
            link=word.link,
            in_console=in_console,
        )
        for word in words
    ]


def _cancelled_by(rows: Sequence[Happening], jobs: Mapping[int, Job]) -> dict[int, int]:
    """Whoever asked for the end of what ran, by the row that tells of it: it ends later, by itself, and only the audit knows who it was."""
    ended = {
        (jobs[row.job].public_id, row.cause): row.pk
        for row in rows
        if row.kind == Happened.CANCELLED and row.actor is None and row.attempt is not None and row.job in jobs
    }
    if not ended:
        return {}
    asked = AuditEntry.objects.filter(object_kind="job", object_id__in={job for job, _ in ended}, action="job.state", actor__isnull=False)
    found = {}
    for job, cause, after, user in asked.order_by("pk").values_list("object_id", "reason", "after", "actor_id"):
        row = ended.get((job, cause[:300]))
        if row is not None and after in ENDING:
            found[row] = user
    return found


def _begun_by(rows: Sequence[Happening], jobs: Mapping[int, Job]) -> dict[int, int]:
    """Whoever began the replacement of replicas that stopped, by the row that tells of it: an operator or a lead often, who owns no such job."""
    stopped = {jobs[row.job].public_id: row.pk for row in rows if row.kind in OF_OTHERS and row.job in jobs}
    if not stopped:
        return {}
    asked = AuditEntry.objects.filter(object_kind="job", object_id__in=stopped, action="job.replace", actor__isnull=False)
    return {stopped[job]: user for job, user in asked.order_by("pk").values_list("object_id", "actor_id")}


def choices_for(user: User) -> Choices:
    return choices_of(getattr(user, "notice_choices", None))


def _notices(user: User, kind: Kind, found: Sequence[tuple[Happening, Job]], discretion: Discretion) -> list[Notice]:
    in_console = Way.CONSOLE in choices_for(user).ways[kind]
    if len(found) > SINGLY:
        names = [f"{job.name} ({job.public_id})" for _, job in found[:NAMED]]
        text = f"{', '.join(names)} and {len(found) - NAMED:,} more."
        title, at = _MANY[kind].format(f"{len(found):,}"), found[-1][0].at
        return [Notice(user=user, kind=kind, at=at, title=title, text=text[:TEXT_LENGTH], count=len(found), in_console=in_console)]
    return [
        Notice(
            user=user,
            kind=kind,
            at=row.at,
            title=_ONE[Happened(row.kind)].format(job.name)[:TITLE_LENGTH],
            text=discretion.text(row.cause)[:TEXT_LENGTH],
            job=job.public_id,
            in_console=in_console,
        )
        for row, job in found
    ]


def _write(made: Sequence[Notice], people: Mapping[int, User], now: datetime, news: News) -> None:
    Notice.objects.bulk_create(made, batch_size=BATCH)
    news.add("bells", *sorted({notice.user_id for notice in made if notice.in_console}))
    away = [notice for notice in made if choices_for(people[notice.user_id]).ways.get(notice.kind, frozenset()) - {Way.CONSOLE}]
    if not away:
        return
    last = dict(
        Sending.objects.filter(user__in={notice.user_id for notice in away}, way=Way.EMAIL, state=SendingState.SENT, done_at__gt=now - BETWEEN_MAILS)
        .values_list("user")
        .annotate(Max("done_at"))
    )
    sendings = []
    for notice in away:
        choices = choices_for(people[notice.user_id])
        ways = sorted(choices.ways[notice.kind] - {Way.CONSOLE})
        sendings += [_sending(notice, way, choices, now, last.get(notice.user_id)) for way in ways]
    Sending.objects.bulk_create(sendings, batch_size=BATCH)


def _sending(notice: Notice, way: str, choices: Choices, now: datetime, last: datetime | None) -> Sending:
    made = Sending(notice=notice, user_id=notice.user_id, way=way, made_at=now, due_at=now)
    if way == Way.EMAIL:
        made.due_at = max(now + GATHER, last + BETWEEN_MAILS if last else now)
    quiet_until = choices.quiet.end_after(now) if choices.quiet is not None and notice.kind not in choices.urgent else None
    if quiet_until is not None and choices.drops:
        made.state, made.done_at = SendingState.DROPPED, now
    elif quiet_until is not None:
        made.due_at = max(made.due_at, quiet_until)
    return made


# Read, followed, tried


def notices_read(*, access: Access, keys: Sequence[int] | None, now: datetime) -> int:
    """Mark one's own as read: these, or all. Returns how many were unread before."""
    user = _self(access)
    unread = Notice.objects.filter(user=user, in_console=True, read_at__isnull=True)
    if keys is not None:
        unread = unread.filter(pk__in=keys)
    with transaction.atomic():
        count = unread.update(read_at=now)
        if count:
            news = News()
            news.add("bells", user.pk)
            news.publish()
    return count


def notice_tell(*, user: User, title: str, text: str, now: datetime, link: str = "") -> None:
    """Something about the ways themselves by which a person is told: always, and in the console."""
    news = News()
    with transaction.atomic():
        Notice.objects.create(user=user, kind=OWN, at=now, title=title[:TITLE_LENGTH], text=text[:TEXT_LENGTH], link=link)
        news.add("bells", user.pk)
        news.publish()


def notice_say(*, kind: Kind, word: Word, now: datetime) -> None:
    """One thing to one person, by the ways chosen for its kind."""
    news = News()
    with transaction.atomic():
        notices_say(kind=kind, words=[word], now=now, news=news)
        news.publish()


def notice_test(*, access: Access, now: datetime) -> Counter[str]:
    """A test by every way that the person uses for anything, one at a time. Quiet hours do not hold it back. Returns the ways."""
    with transaction.atomic():
        user = User.objects.select_for_update(of=("self",), no_key=True).select_related("notice_choices").get(pk=_self(access).pk)
        earlier = Notice.objects.filter(user=user, kind=OWN, title=TEST_TITLE)
        # One that failed is tried again for a day; whoever has mended its cause needs the next one now.
        if earlier.filter(sendings__state=SendingState.WAITING, sendings__attempts=0).exists():
            raise Conflict("A test is on its way already: see what becomes of it before the next.")
        if earlier.filter(read_at__isnull=True).exists():
            raise Conflict("The last test is behind the bell: read it before the next.")
        ways = sorted({Way.CONSOLE.value}.union(*choices_for(user).ways.values()))
        news = News()
        notice = Notice.objects.create(user=user, kind=OWN, at=now, title=TEST_TITLE, text="You requested this test message.")
        Sending.objects.bulk_create([Sending(notice=notice, user=user, way=way, made_at=now, due_at=now) for way in ways if way != Way.CONSOLE])
        audit_record(actor=access.actor, action="notices.test", kind="person", object_id=user.public_id, after={"ways": ways})
        news.add("bells", user.pk)
        news.publish()
    return Counter(ways)


def job_follow(*, access: Access, job: Job, follows: bool, now: datetime) -> bool:
    """Follow a job that one sees, or no longer. Returns whether that changed anything."""
    user = _self(access)
    with transaction.atomic():
        if follows:
            _, changed = JobFollow.objects.get_or_create(job=job, user=user, defaults={"since": now})
        else:
            changed = bool(JobFollow.objects.filter(job=job, user=user).delete()[0])
        if changed:
            action = "job.follow" if follows else "job.unfollow"
            audit_record(actor=access.actor, action=action, kind="job", object_id=job.public_id, quota=job.quota)
    return changed


def own_hook(user: User) -> Webhook | None:
    return Webhook.objects.filter(person=user, removed_at__isnull=True).first()
