"""Changes of health rules and of their limits by people, and the dry run of a rule against what was stored."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from dashboards.health.models import Action, HealthBucket, HealthRule, HealthSettings
from dashboards.health.round import AGES, rule_of
from dashboards.health.rules import Replayed, Rule, Sum, replay
from dashboards.health.state import KEPT_AGE, KEPT_FROM, SIGNALS
from dashboards.health.xids import GROUPS
from gpufleet.core.audit import audit_record
from gpufleet.core.faults import Conflict, Stale, text_faults
from gpufleet.core.ids import public_id
from gpufleet.core.models import Progress
from quotas.permissions import Access, Can
from scheduler.models import Gpu, Node

NAME_LENGTH = 80
REASON_LENGTH = 300
MOST_RULES = 100
LONGEST_MINUTES = 7 * 1440
MOST_VALUE = 2**53
DRY_RUN = timedelta(days=30)
FIELDS = ("name", "signal", "group", "threshold", "window_minutes", "clear_below", "clear_minutes", "action", "enabled")
SETTINGS = ("acts", "most_percent", "patience_minutes", "repair_minutes", "burn_in_minutes", "burn_in_command")


def rule_create(*, access: Access, values: Mapping[str, Any], reason: str, now: datetime) -> HealthRule:
    access.must_everywhere(Can.OPERATE)
    row = HealthRule(group="", enabled=True)
    with transaction.atomic():
        for name in FIELDS:
            if name in values:
                setattr(row, name, values[name])
        faults = rule_faults(row) | text_faults(reason, REASON_LENGTH)
        if HealthRule.objects.filter(removed_at__isnull=True).count() >= MOST_RULES:
            faults["name"] = [f"There are {MOST_RULES} rules, which is the most."]
        if faults:
            raise ValidationError(faults)
        row.public_id, row.changed_at, row.changed_by = public_id("hr"), now, access.actor.name
        row.save(force_insert=True)
        _record(access, "health_rule.create", row, None, rule_facts(row), reason)
    return row


def rule_change(
    *, access: Access, rule: HealthRule, values: Mapping[str, Any], reason: str, now: datetime, revision: int | None = None
) -> HealthRule:
    access.must_everywhere(Can.OPERATE)
    with transaction.atomic():
        row = _locked(rule, revision)
        before = rule_facts(row)
        for name in FIELDS:
            if name in values:
                setattr(row, name, values[name])
        if faults := rule_faults(row) | text_faults(reason, REASON_LENGTH):
            raise ValidationError(faults)
        row.revision, row.changed_at, row.changed_by = row.revision + 1, now, access.actor.name
        row.save()
        if not row.enabled:
            row.findings.filter(cleared_at__isnull=True).update(cleared_at=now)
        _record(access, "health_rule.change", row, before, rule_facts(row), reason)
    return row


def rule_remove(*, access: Access, rule: HealthRule, reason: str = "", now: datetime) -> None:
    access.must_everywhere(Can.OPERATE)
    with transaction.atomic():
        row = _locked(rule, None)
        row.removed_at, row.enabled, row.revision = now, False, row.revision + 1
        row.save(update_fields=["removed_at", "enabled", "revision"])
        row.findings.filter(cleared_at__isnull=True).update(cleared_at=now)
        _record(access, "health_rule.remove", row, rule_facts(row), None, reason)


def settings_save(*, access: Access, values: Mapping[str, Any], reason: str, revision: int | None = None) -> HealthSettings:
    """How far rules may go by themselves."""
    access.must_everywhere(Can.OPERATE)
    with transaction.atomic():
        HealthSettings.objects.get_or_create(pk=1)
        row = HealthSettings.objects.select_for_update().get(pk=1)
        if revision is not None and revision != row.revision:
            raise Stale("The settings were changed meanwhile. Read them again, then decide.", row.revision)
        before = {name: getattr(row, name) for name in SETTINGS}
        for name in SETTINGS:
            if name in values:
                setattr(row, name, values[name])
        if faults := settings_faults(row) | text_faults(reason, REASON_LENGTH):
            raise ValidationError(faults)
        row.revision += 1
        row.save()
        after = {name: getattr(row, name) for name in SETTINGS}
        audit_record(
            actor=access.actor, action="health_settings.change", kind="health_settings", object_id="1", before=before, after=after, reason=reason
        )
    return row


def rule_faults(row: HealthRule) -> dict[str, list[str]]:
    faults: dict[str, list[str]] = {}
    if not row.name.strip() or len(row.name) > NAME_LENGTH or not row.name.isprintable():
        faults["name"] = [f"Give it a name of at most {NAME_LENGTH} characters."]
    if row.signal not in SIGNALS:
        faults["signal"] = [f"Choose one of {', '.join(SIGNALS)}."]
    if row.group and (row.signal != "xid" or row.group not in GROUPS):
        faults["group"] = [f"Only rules on XIDs have a kind: {', '.join(GROUPS)}."]
    if row.action not in Action.values:
        faults["action"] = [f"Choose one of {', '.join(Action.values)}."]
    for name, least, most in (
        ("threshold", 1, MOST_VALUE),
        ("clear_below", 1, MOST_VALUE),
        ("window_minutes", 1, LONGEST_MINUTES),
        ("clear_minutes", 1, LONGEST_MINUTES),
    ):
        value = getattr(row, name)
        if not isinstance(value, int) or not least <= value <= most:
            faults[name] = [f"Choose a whole number from {least:,} to {most:,}."]
    if not faults and row.clear_below > row.threshold:
        faults["clear_below"] = ["It must not lie above the threshold: a rule would end while it still holds."]
    if "threshold" not in faults and row.threshold < (kept := KEPT_FROM.get(row.signal, 0)):
        faults["threshold"] = [f"Choose {kept} or more: lower levels are not kept."]
    return faults


def settings_faults(row: HealthSettings) -> dict[str, list[str]]:
    faults = {}
    for name, least, most in (("most_percent", 1, 50), ("patience_minutes", 0, 10_080), ("burn_in_minutes", 0, 1440)):
        if not least <= getattr(row, name) <= most:
            faults[name] = [f"Choose {least} to {most:,}."]
    if row.repair_minutes is not None and not 0 <= row.repair_minutes <= 43_200:
        faults["repair_minutes"] = ["Choose 0 to 43,200 minutes, or nothing."]
    command = row.burn_in_command
    if not isinstance(command, list) or len(command) > 50 or any(not isinstance(word, str) or len(word) > 500 or "\0" in word for word in command):
        faults["burn_in_command"] = ["At most 50 words."]
    return faults


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a rule would have done: each time that it would have held, with the names of the devices; and what it can't know."""

    start: datetime
    end: datetime
    held: list[tuple[str, Replayed]]
    note: str = ""

    @property
    def devices(self) -> int:
        return len({one.device for _, one in self.held})


def dry_run(rule: Rule, *, now: datetime, span: timedelta = DRY_RUN) -> DryRun:
    """Against what was stored. Changes nothing."""
    start, note = now - span, ""
    if rule.signal == "heartbeat":
        kept = Progress.objects.filter(name=AGES).values_list("reached_at", flat=True).first() or now
        if rule.threshold < KEPT_AGE or rule.clear_below < KEPT_AGE:
            note = f"Ages below {KEPT_AGE} s are not kept: a node counts as heard of from there on. "
        if kept > start:
            start, note = kept, f"{note}Heartbeat ages are kept since {kept:%Y-%m-%d %H:%M} UTC: earlier days are not tried."
    found = replay(rule, _sums(rule, start - rule.window), start=start, end=now)
    names = device_names({one.device for one in found})
    return DryRun(start, now, [(names.get(one.device, "removed"), one) for one in found], note.strip())


def _sums(rule: Rule, start: datetime) -> Iterator[Sum]:
    """What is stored that the rule could act on since then. A level below the one at which it ends changes nothing."""
    rows = HealthBucket.objects.filter(signal=rule.signal, at__gte=start)
    if SIGNALS[rule.signal].kind in ("level", "age"):
        rows = rows.filter(value__gte=rule.clear_below)
    yield from (Sum(*row) for row in rows.values_list("at", "device", "signal", "code", "value").iterator(chunk_size=10_000))


def rule_asked(values: Mapping[str, Any], base: HealthRule | None = None, reason: str = "") -> Rule:
    """A rule out of a form that is not saved; `ValidationError` where it could not be."""
    row = HealthRule(**{name: getattr(base, name) for name in FIELDS}) if base else HealthRule(name="Dry run", action=Action.NOTE)
    for name in FIELDS:
        if name in values:
            setattr(row, name, values[name])
    if faults := rule_faults(row) | text_faults(reason, REASON_LENGTH):
        raise ValidationError(faults)
    row.pk = base.pk if base else 0
    return replace(rule_of(row))


def device_names(devices: set[int]) -> dict[int, str]:
    names: dict[int, str] = defaultdict(str)
    gpus = Gpu.objects.filter(pk__in=[device // 2 for device in devices if device % 2 == 0])
    names |= {2 * key: f"{node}/{index}" for key, node, index in gpus.values_list("pk", "node__name", "index")}
    nodes = Node.objects.filter(pk__in=[device // 2 for device in devices if device % 2])
    return dict(names | {2 * key + 1: name for key, name in nodes.values_list("pk", "name")})


def rule_facts(row: HealthRule) -> dict[str, Any]:
    return {name: getattr(row, name) for name in FIELDS}


def _locked(rule: HealthRule, revision: int | None) -> HealthRule:
    row = HealthRule.objects.select_for_update().filter(pk=rule.pk, removed_at__isnull=True).first()
    if row is None:
        raise Conflict(f"The rule {rule.name} was removed.")
    if revision is not None and revision != row.revision:
        raise Stale("The rule was changed meanwhile. Read it again, then decide.", row.revision)
    return row


def _record(access: Access, action: str, row: HealthRule, before: Any, after: Any, reason: str) -> None:
    audit_record(actor=access.actor, action=action, kind="health_rule", object_id=row.public_id, before=before, after=after, reason=reason.strip())
