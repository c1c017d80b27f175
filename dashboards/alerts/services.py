"""What people do about alerts: acknowledge, silence, and change the rules."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from dashboards.alerts.figures import FIGURES
from dashboards.alerts.models import Alert, AlertRule, AlertState, Severity, Silence
from dashboards.alerts.rights import figure_faults, must_act, must_act_on_any
from dashboards.alerts.round import alert_tell
from gpufleet.core.audit import audit_record
from gpufleet.core.faults import Conflict, Stale, text_faults
from gpufleet.core.ids import public_id
from gpufleet.core.live.news import News
from quotas.models import Role
from quotas.permissions import Access
from scheduler.models import Webhook
from scheduler.notify.happenings import FleetEvent

NAME_LENGTH, REASON_LENGTH, SUBJECT_LENGTH = 80, 300, 400
MOST_RULES = 100
LONGEST_SILENCE = timedelta(days=30)
LONGEST_MINUTES = 10_080
MOST_VALUE = 1e12
FIELDS = (
    "name",
    "figure",
    "subject",
    "threshold",
    "clear_at",
    "floor",
    "for_minutes",
    "severity",
    "told",
    "escalate_minutes",
    "escalate_to",
    "enabled",
)
ROLES = (Role.OPERATOR.value, Role.QUOTA_ADMIN.value, Role.FINANCE.value, Role.SUPERUSER.value, Role.TEAM_LEAD.value)


def alert_acknowledge(*, access: Access, alert: Alert, note: str = "", now: datetime) -> Alert:
    """Somebody looks after it: it is not escalated."""
    must_act(access, alert.rule.figure)
    with transaction.atomic():
        fresh = Alert.objects.select_for_update(of=("self",)).select_related("rule").get(pk=alert.pk)
        if fresh.state != AlertState.FIRING:
            raise Conflict("This alert is over.")
        if fresh.acknowledged_at is not None:
            raise Conflict(f"{fresh.acknowledged_by} has acknowledged it already.")
        if faults := text_faults(note, REASON_LENGTH, "note"):
            raise ValidationError(faults)
        fresh.acknowledged_at, fresh.acknowledged_by, fresh.note = now, access.actor.name, note.strip()
        fresh.save(update_fields=["acknowledged_at", "acknowledged_by", "note"])
        after = {"rule": fresh.rule.name, "subject": fresh.subject}
        audit_record(actor=access.actor, action="alert.acknowledge", kind="alert", object_id=fresh.public_id, after=after, reason=fresh.note)
    return fresh


def silence_create(*, access: Access, reason: str, until: datetime, now: datetime, rule: AlertRule | None = None, subject: str = "") -> Silence:
    """Tell nobody of a rule's alerts, or of all, for a stated time."""
    must_act(access, rule.figure if rule else "")
    faults = text_faults(reason, REASON_LENGTH)
    if not reason.strip():
        faults["reason"] = ["State a reason."]
    if not now < until <= now + LONGEST_SILENCE:
        faults["until"] = [f"Choose a moment within the next {LONGEST_SILENCE.days} days."]
    if len(subject) > SUBJECT_LENGTH or "\0" in subject:
        faults["subject"] = [f"At most {SUBJECT_LENGTH} characters."]
    if faults:
        raise ValidationError(faults)
    with transaction.atomic():
        made = Silence.objects.create(
            public_id=public_id("si"), rule=rule, subject=subject, reason=reason.strip(), until=until, by=access.actor.name, created_at=now
        )
        after = {"rule": rule.name if rule else "all", "subject": subject, "until": until.isoformat()}
        audit_record(actor=access.actor, action="alert.silence", kind="alert_silence", object_id=made.public_id, after=after, reason=made.reason)
    return made


def silence_end(*, access: Access, silence: Silence, now: datetime) -> None:
    must_act(access, silence.rule.figure if silence.rule else "")
    with transaction.atomic():
        if Silence.objects.filter(pk=silence.pk, ended_at__isnull=True).update(ended_at=now):
            audit_record(actor=access.actor, action="alert.silence_end", kind="alert_silence", object_id=silence.public_id)


def alert_rule_create(*, access: Access, values: Mapping[str, Any], hooks: Iterable[Webhook] = (), reason: str, now: datetime) -> AlertRule:
    must_act_on_any(access)
    row = AlertRule(severity=Severity.WARNING)
    _set(row, values)
    with transaction.atomic():
        faults = rule_faults(row) | figure_faults(access, row.figure) | text_faults(reason, REASON_LENGTH)
        if AlertRule.objects.filter(removed_at__isnull=True).count() >= MOST_RULES:
            faults["name"] = [f"There are {MOST_RULES} rules, which is the most."]
        if faults:
            raise ValidationError(faults)
        row.public_id, row.changed_at, row.changed_by = public_id("ar"), now, access.actor.name
        row.save(force_insert=True)
        row.hooks.set(hooks)
        _record(access, "alert_rule.create", row, None, alert_rule_facts(row), reason)
    return row


def alert_rule_change(
    *,
    access: Access,
    rule: AlertRule,
    values: Mapping[str, Any],
    hooks: Iterable[Webhook] | None = None,
    reason: str,
    now: datetime,
    revision: int | None = None,
) -> AlertRule:
    with transaction.atomic():
        row = _locked(rule, revision)
        must_act(access, row.figure)
        before = alert_rule_facts(row)
        _set(row, values)
        if faults := rule_faults(row) | figure_faults(access, row.figure) | text_faults(reason, REASON_LENGTH):
            raise ValidationError(faults)
        row.revision, row.changed_at, row.changed_by = row.revision + 1, now, access.actor.name
        row.save()
        if hooks is not None:
            row.hooks.set(hooks)
        _record(access, "alert_rule.change", row, before, alert_rule_facts(row), reason)
    return row


def alert_rule_remove(*, access: Access, rule: AlertRule, reason: str = "", now: datetime) -> None:
    with transaction.atomic():
        row = _locked(rule, None)
        must_act(access, row.figure)
        row.removed_at, row.enabled, row.revision = now, False, row.revision + 1
        row.save(update_fields=["removed_at", "enabled", "revision"])
        _record(access, "alert_rule.remove", row, alert_rule_facts(row), None, reason)


def alert_rule_test(*, access: Access, rule: AlertRule, now: datetime) -> None:
    """Tell everybody whom the rule tells that this is a test. No alert fires."""
    must_act(access, rule.figure)
    with transaction.atomic():
        fake = Alert(public_id="test", rule=rule, subject=rule.subject, since=now, value=rule.threshold, worst=rule.threshold)
        news = News()
        alert_tell(fake, FleetEvent.ALERT_FIRING, roles=rule.told, now=now, news=news, test=True)
        news.publish()
        _record(access, "alert_rule.test", rule, None, {"told": rule.told}, "")


def rule_faults(row: AlertRule) -> dict[str, list[str]]:
    faults: dict[str, list[str]] = {}
    if not row.name.strip() or len(row.name) > NAME_LENGTH or not row.name.isprintable():
        faults["name"] = [f"Give it a name of at most {NAME_LENGTH} characters."]
    figure = FIGURES.get(row.figure)
    if figure is None:
        faults["figure"] = [f"Choose one of {', '.join(FIGURES)}."]
    faults |= text_faults(row.subject, SUBJECT_LENGTH, "subject")
    if "subject" not in faults and row.subject and figure is not None and not figure.subjects:
        faults["subject"] = ["This figure is of the whole fleet alone: leave it empty."]
    for name in ("threshold", "clear_at", "floor"):
        value = getattr(row, name)
        if not isinstance(value, int | float) or not 0 <= value <= MOST_VALUE:
            faults[name] = ["Choose a number from 0."]
    if not faults and figure is not None and (row.clear_at > row.threshold) == figure.higher_is_worse and row.clear_at != row.threshold:
        faults["clear_at"] = ["It must lie on the good side of the limit."]
    if "floor" not in faults and row.floor and figure is not None and not figure.amount:
        faults["floor"] = [f"A floor goes with {', '.join(key for key, one in FIGURES.items() if one.amount)}: use 0."]
    if not 0 <= row.for_minutes <= LONGEST_MINUTES:
        faults["for_minutes"] = ["Choose 0 minutes to 7 days."]
    if row.severity not in Severity.values:
        faults["severity"] = [f"Choose one of {', '.join(Severity.values)}."]
    for name in ("told", "escalate_to"):
        if not set(getattr(row, name)) <= set(ROLES):
            faults[name] = [f"The roles are {', '.join(ROLES)}."]
        elif Role.TEAM_LEAD in getattr(row, name) and figure is not None and figure.subjects != "team":
            faults[name] = ["Team leads are told of figures of a team. Choose another role."]
    if row.escalate_minutes is not None and not 1 <= row.escalate_minutes <= LONGEST_MINUTES:
        faults["escalate_minutes"] = ["Choose 1 minute to 7 days, or nothing."]
    elif row.escalate_minutes is not None and not row.escalate_to:
        faults["escalate_to"] = ["Choose a recipient."]
    return faults


def alert_rule_facts(row: AlertRule) -> dict[str, Any]:
    return {name: getattr(row, name) for name in FIELDS}


def _set(row: AlertRule, values: Mapping[str, Any]) -> None:
    for name in FIELDS:
        if name in values:
            value = values[name]
            setattr(row, name, sorted(set(value)) if name in ("told", "escalate_to") else value)


def _locked(rule: AlertRule, revision: int | None) -> AlertRule:
    row = AlertRule.objects.select_for_update().filter(pk=rule.pk, removed_at__isnull=True).first()
    if row is None:
        raise Conflict(f"The rule {rule.name} was removed.")
    if revision is not None and revision != row.revision:
        raise Stale("The rule was changed meanwhile. Read it again, then decide.", row.revision)
    return row


def _record(access: Access, action: str, row: AlertRule, before: Any, after: Any, reason: str) -> None:
    audit_record(actor=access.actor, action=action, kind="alert_rule", object_id=row.public_id, before=before, after=after, reason=reason.strip())
