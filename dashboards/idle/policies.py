"""Idle policies: which one holds for a job, and how people change them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q

from dashboards.idle.models import IdleExemption, IdlePolicy
from gpufleet.core.audit import audit_record
from gpufleet.core.faults import Stale
from gpufleet.core.ids import public_id
from gpufleet.core.zones import zone_named
from quotas.models import QuotaNode
from quotas.permissions import Access, Can, is_within
from scheduler.models import Job, JobClass

A_DAY = 24 * 60
LONGEST_MINUTES = 7 * A_DAY
LONGEST_EXEMPTION = timedelta(days=180)
REASON_LENGTH = 300
STEPS = ("notify_minutes", "warn_minutes", "warn_again_minutes", "reclaim_minutes")
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclass(frozen=True, slots=True)
class Rules:
    """A policy as values. Steps that are None are not taken."""

    enabled: bool = True
    threshold_percent: int = 5
    window_minutes: int = 20
    classes: tuple[str, ...] = (JobClass.BATCH.value, JobClass.INTERACTIVE.value)
    notify_minutes: int | None = 30
    warn_minutes: int | None = 60
    warn_again_minutes: int | None = 90
    reclaim_minutes: int | None = None
    reclaim_share_percent: int = 50
    hold_after: bool = False
    weekdays: tuple[int, ...] = ()
    hours_from: int | None = None
    hours_until: int | None = None
    zone: str = "UTC"

    def reclaims(self, *, idle_milli: int, held_milli: int) -> bool:
        """Whether so much of what a job holds is idle that all of it may be reclaimed."""
        return self.reclaim_minutes is not None and 100 * idle_milli >= self.reclaim_share_percent * held_milli

    def acts_at(self, now: datetime) -> bool:
        """Whether `now` lies in the hours in which steps are taken."""
        local = now.astimezone(ZoneInfo(self.zone))
        if self.weekdays and local.weekday() not in self.weekdays:
            return False
        if self.hours_from is None or self.hours_until is None:
            return True
        minute = 60 * local.hour + local.minute
        if self.hours_from < self.hours_until:
            return self.hours_from <= minute < self.hours_until
        return minute >= self.hours_from or minute < self.hours_until


DEFAULT = Rules()


def rules_of(row: IdlePolicy) -> Rules:
    values = {name: getattr(row, name) for name in asdict(DEFAULT)}
    return Rules(**values | {"classes": tuple(row.classes), "weekdays": tuple(row.weekdays)})


@dataclass(frozen=True, slots=True)
class Policies:
    """All policies by path, nearest first to be asked."""

    by_path: Mapping[str, Rules] = field(default_factory=dict)

    def for_path(self, path: str) -> tuple[str, Rules]:
        """The nearest policy at or above a node, and the path that states it; the empty path for the built-in one."""
        steps = path.split("/")
        for depth in range(len(steps), 0, -1):
            here = "/".join(steps[:depth])
            if here in self.by_path:
                return here, self.by_path[here]
        return "", DEFAULT


def policies_read() -> Policies:
    rows = IdlePolicy.objects.filter(node__archived_at__isnull=True).select_related("node")
    return Policies({row.node.path: rules_of(row) for row in rows})


def may_edit_policy(access: Access, path: str) -> bool:
    return access.can(Can.EDIT_QUOTA, path) or access.can_everywhere(Can.OPERATE)


def policy_save(*, access: Access, node: QuotaNode, values: Mapping[str, Any], reason: str, now: datetime, revision: int | None = None) -> IdlePolicy:
    """State a policy on a node, or change the one that it states. `revision`: the one that was read, 0 where there was none."""
    _must_edit(access, node)
    with transaction.atomic():
        QuotaNode.objects.select_for_update(no_key=True).get(pk=node.pk)
        row = IdlePolicy.objects.filter(node=node).first()
        present = row.revision if row else 0
        if revision is not None and revision != present:
            raise Stale("The policy was changed meanwhile. Read it again, then decide.", present)
        base = rules_of(row) if row else policies_read().for_path(node.path)[1]
        stated: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        rules = replace(base, **stated)
        if faults := rules_faults(rules, reason):
            raise ValidationError(faults)
        before = _facts(base) if row else None
        row = row or IdlePolicy(node=node, revision=0)
        for name, value in _facts(rules).items():
            setattr(row, name, value)
        row.revision, row.changed_at = row.revision + 1, now
        row.save()
        audit_record(
            actor=access.actor,
            action="idle.policy",
            kind="quota",
            object_id=node.public_id,
            before=before,
            after=_facts(rules),
            reason=reason.strip(),
            quota=node,
        )
    return row


def policy_remove(*, access: Access, node: QuotaNode, reason: str) -> bool:
    """Let the policy above hold again. False: the node states none."""
    _must_edit(access, node)
    with transaction.atomic():
        row = IdlePolicy.objects.select_for_update().filter(node=node).first()
        if row is None:
            return False
        before = _facts(rules_of(row))
        row.delete()
        audit_record(
            actor=access.actor, action="idle.policy_remove", kind="quota", object_id=node.public_id, before=before, reason=reason.strip(), quota=node
        )
    return True


def exemption_create(
    *, access: Access, reason: str, until: datetime, now: datetime, node: QuotaNode | None = None, job: Job | None = None
) -> IdleExemption:
    """Keep policies from acting on a job, or on all below a node, for a stated time."""
    place = node or (job.quota if job else None)
    assert place is not None, "a node or a job"
    _must_edit(access, place)
    faults = {}
    if not reason.strip() or len(reason.strip()) > REASON_LENGTH:
        faults["reason"] = [f"State a reason of at most {REASON_LENGTH} characters."]
    if not now < until <= now + LONGEST_EXEMPTION:
        faults["until"] = [f"Choose a moment within the next {LONGEST_EXEMPTION.days} days."]
    if faults:
        raise ValidationError(faults)
    with transaction.atomic():
        made = IdleExemption.objects.create(
            public_id=public_id("x"), node=node, job=job, reason=reason.strip(), until=until, by=access.actor.name, created_at=now
        )
        after = {"of": job.public_id if job else place.path, "until": until.isoformat()}
        audit_record(
            actor=access.actor,
            action="idle.exempt",
            kind="idle_exemption",
            object_id=made.public_id,
            after=after,
            reason=made.reason,
            quota=place,
        )
    return made


def exemption_end(*, access: Access, exemption: IdleExemption, now: datetime) -> None:
    place = exemption.node or (exemption.job.quota if exemption.job else None)
    assert place is not None
    _must_edit(access, place)
    with transaction.atomic():
        if IdleExemption.objects.filter(pk=exemption.pk, removed_at__isnull=True).update(removed_at=now):
            audit_record(actor=access.actor, action="idle.exempt_end", kind="idle_exemption", object_id=exemption.public_id, quota=place)


def exemptions_now(now: datetime) -> list[IdleExemption]:
    open_ones = IdleExemption.objects.filter(removed_at__isnull=True, until__gt=now)
    return list(open_ones.select_related("node", "job__quota").order_by("until", "pk"))


def exemptions_seen(access: Access, now: datetime) -> list[IdleExemption]:
    condition = access.visible(Can.SEE, "node__path") | access.visible(Can.SEE, "job__quota__path")
    return list(
        IdleExemption.objects.filter(condition, removed_at__isnull=True, until__gt=now).select_related("node", "job__quota").order_by("until", "pk")
    )


@dataclass(frozen=True, slots=True)
class Exempt:
    """Who is exempt now."""

    jobs: frozenset[int]
    paths: tuple[str, ...]

    def covers(self, job: int, path: str) -> bool:
        return job in self.jobs or any(is_within(path, above) for above in self.paths)


def exempt_now(now: datetime) -> Exempt:
    rows = exemptions_now(now)
    return Exempt(frozenset(row.job_id for row in rows if row.job_id is not None), tuple(row.node.path for row in rows if row.node is not None))


def rules_faults(rules: Rules, reason: str = "-") -> dict[str, list[str]]:
    faults: dict[str, list[str]] = {}
    if not 1 <= rules.threshold_percent <= 50:
        faults["threshold_percent"] = ["Choose 1 to 50 percent."]
    if not 1 <= rules.reclaim_share_percent <= 100:
        faults["reclaim_share_percent"] = ["Choose 1 to 100 percent."]
    if not 5 <= rules.window_minutes <= A_DAY:
        faults["window_minutes"] = ["Choose 5 minutes to 24 hours."]
    if not rules.classes or not set(rules.classes) <= set(JobClass.values):
        faults["classes"] = [f"Choose at least one of {', '.join(JobClass.values)}."]
    earlier, named = 0, ""
    for name in STEPS:
        minutes = getattr(rules, name)
        if minutes is None:
            continue
        if not 0 <= minutes <= LONGEST_MINUTES:
            faults[name] = ["Choose 0 minutes to 7 days."]
        elif minutes < earlier:
            faults[name] = [f"This step must not come before the step {named}."]
        earlier, named = max(earlier, minutes), name.removesuffix("_minutes").replace("_", " ")
    if rules.reclaim_minutes is not None and rules.warn_minutes is None:
        faults["reclaim_minutes"] = ["Warn before you reclaim: set the first warning too."]
    for name in ("hours_from", "hours_until"):
        value = getattr(rules, name)
        if (rules.hours_from is None) != (rules.hours_until is None) and value is None:
            faults[name] = ["Working hours need a beginning and an end."]
        elif value is not None and not 0 <= value < A_DAY:
            faults[name] = ["Choose a time of day."]
    if not set(rules.weekdays) <= set(range(7)):
        faults["weekdays"] = ["Weekdays are 0 (Monday) to 6 (Sunday)."]
    try:
        zone_named(rules.zone)
    except ValueError:
        faults["zone"] = ["Name a time zone such as Europe/Berlin or UTC."]
    if not reason.strip() or len(reason.strip()) > REASON_LENGTH:
        faults["reason"] = [f"State a reason of at most {REASON_LENGTH} characters."]
    return faults


def steps_due(rules: Rules, idle: timedelta, *, shift: timedelta = timedelta(0)) -> Sequence[str]:
    """Which steps an episode has reached after so much idle time, in order. `shift` delays reclaiming, so that a warning always comes first."""
    found = []
    for name in STEPS:
        minutes = getattr(rules, name)
        if minutes is not None and idle >= timedelta(minutes=minutes) + (shift if name == "reclaim_minutes" else timedelta(0)):
            found.append(name.removesuffix("_minutes"))
    return found


def _facts(rules: Rules) -> dict[str, Any]:
    return asdict(rules) | {"classes": list(rules.classes), "weekdays": list(rules.weekdays)}


def _must_edit(access: Access, node: QuotaNode) -> None:
    if not may_edit_policy(access, node.path):
        raise access.refusal(Can.EDIT_QUOTA, Can.OPERATE, path=node.path)


def exemption_for(access: Access, public_id: str) -> IdleExemption | None:
    rows = IdleExemption.objects.filter(Q(node__isnull=False) | Q(job__isnull=False), public_id=public_id, removed_at__isnull=True)
    found = rows.select_related("node", "job__quota").first()
    place = (found.node or (found.job.quota if found.job else None)) if found else None
    return found if place is not None and access.can(Can.SEE, place.path) else None
