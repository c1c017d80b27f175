"""Budgets: set, changed, removed, excepted; and the turn that counts what was used and says which of them warn or stop.

Of a budget each moment is counted once: its row is locked while usage is added to its days, and says up to when that was done.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.dispatch import Signal

from gpufleet.core.audit import SYSTEM, Actor, audit_record
from gpufleet.core.faults import Conflict, Stale
from gpufleet.core.ids import public_id
from gpufleet.core.live.feed import feed_publish
from gpufleet.core.money import exact_money
from gpufleet.core.zones import zone_fault
from quotas.chargeback.pricing import PriceBook
from quotas.models import AtStop, Budget, BudgetDay, BudgetException, BudgetPeriod, BudgetUnit, LedgerClock, QuotaNode
from quotas.permissions import Access, Can, nodes_visible
from quotas.rules import Faults, note, said
from quotas.selectors.budgets import Standing, day_of, day_start, may_budget, must_budget, period_at, standings, used_by_day
from quotas.selectors.rates import price_book
from quotas.services.ledger import LATE

NAME_LENGTH, REASON_LENGTH = 80, 280
MOST = 10**15
HIGHEST = 1000
LONGEST = timedelta(days=3 * 366)
MOST_OF_A_NODE = 20
# No transaction that writes usage lasts so much longer: what lies behind is in the ledger.
SETTLED = LATE + timedelta(seconds=60)
FIELDS = ("name", "gpu_type", "unit", "amount", "period", "zone", "starts_at", "ends_at", "warn_percent", "stop_percent", "at_stop")
# Sent after a budget that was set, changed or excepted has been counted, where it warns, stops or goes on by that: `turned`, `actor`, `now`.
budget_turned = Signal()
COUNTED_ANEW = ("gpu_type", "period", "zone", "starts_at", "ends_at")


def budget_create(*, access: Access, given: Mapping[str, Any], now: datetime) -> Budget:
    """Every fault is told at its field. `amount` is in thousandths of a GPU-hour or in micro-units."""
    budget, faults = Budget(created_at=now, created_by=access.actor.user), Faults()
    path = str(given.get("quota") or "").strip("/")
    node = nodes_visible(access, Can.SEE).select_related("parent").filter(path=path).first()
    if node is None:
        note(faults, "quota", f"There is no team {path[:80]}." if path else "Name a team.")
    else:
        must_budget(access, node)
        budget.quota = node
        if Budget.objects.filter(quota=node, removed_at__isnull=True).count() >= MOST_OF_A_NODE:
            note(faults, "quota", f"A node has at most {MOST_OF_A_NODE} budgets.")
    _take(budget, given, faults)
    if faults:
        raise ValidationError(faults)
    with transaction.atomic():
        budget.public_id = public_id("b")
        budget.save(force_insert=True)
        _record(access.actor, "budget.create", budget, after=budget_facts(budget))
        _tell(budget)
    _count_and_tell(access.actor, budget, now)
    return Budget.objects.select_related("quota").get(pk=budget.pk)


def budget_change(*, access: Access, budget: Budget, given: Mapping[str, Any], revision: int | None = None, now: datetime) -> Budget:
    """What is not given stays. Where periods or types change, its usage is counted anew."""
    with transaction.atomic():
        found = _locked(budget, revision)
        must_budget(access, found.quota)
        before, faults = budget_facts(found), Faults()
        if "unit" in given and given["unit"] != found.unit:
            note(faults, "unit", "The unit stays. Set another budget instead.")
        _take(found, given, faults)
        if faults:
            raise ValidationError(faults)
        after = budget_facts(found)
        if any(before[name] != after[name] for name in COUNTED_ANEW):
            found.counted_to = found.period_start = None
            found.days.all().delete()
        found.revision += 1
        found.save()
        _record(access.actor, "budget.change", found, before, after, str(given.get("reason") or "")[:REASON_LENGTH])
        _tell(found)
    _count_and_tell(access.actor, found, now)
    return Budget.objects.select_related("quota").get(pk=found.pk)


def budget_remove(*, access: Access, budget: Budget, reason: str = "", revision: int | None = None, now: datetime) -> None:
    with transaction.atomic():
        found = _locked(budget, revision)
        must_budget(access, found.quota)
        found.removed_at = now
        found.revision += 1
        found.save(update_fields=["removed_at", "revision"])
        _record(access.actor, "budget.remove", found, before=budget_facts(found), reason=reason[:REASON_LENGTH])
        _tell(found)


def exception_grant(*, access: Access, budget: Budget, extra: int | None, until: datetime, reason: str, now: datetime) -> BudgetException:
    """More, or no stop at all (`extra` None), until it expires. A newer one takes the place of the one before."""
    faults = Faults()
    if not reason.strip():
        note(faults, "reason", "Reason is required.")
    elif len(reason) > REASON_LENGTH or not all(letter.isprintable() for letter in reason):
        note(faults, "reason", f"Use at most {REASON_LENGTH} printable characters.")
    if not now < until <= now + LONGEST:
        note(faults, "until", "State a time within three years from now.")
    if extra is not None and not 0 < extra <= MOST:
        note(faults, "extra", "State an amount above zero, or nothing for no stop.")
    if faults:
        raise ValidationError(faults)
    with transaction.atomic():
        found = _locked(budget, None)
        must_budget(access, found.quota)
        found.exceptions.filter(ended_at__isnull=True).update(ended_at=now)
        made = BudgetException.objects.create(
            budget=found, extra=extra, until=until, reason=reason.strip(), granted_name=access.actor.name, granted_at=now
        )
        facts = {"extra": extra, "until": until.isoformat()}
        _record(access.actor, "budget.except", found, after=facts, reason=reason)
        _tell(found)
    _count_and_tell(access.actor, found, now)
    return made


def exception_end(*, access: Access, budget: Budget, reason: str = "", now: datetime) -> None:
    with transaction.atomic():
        found = _locked(budget, None)
        must_budget(access, found.quota)
        if not found.exceptions.filter(ended_at__isnull=True, until__gt=now).update(ended_at=now):
            raise Conflict(f"{found.public_id} has no exception now.")
        _record(access.actor, "budget.end_exception", found, reason=reason[:REASON_LENGTH])
        _tell(found)
    _count_and_tell(access.actor, found, now)


# The turn


@dataclass(frozen=True, slots=True)
class Turned:
    """A budget that has come to its warning, or stops work now, or does so no longer."""

    standing: Standing
    what: str  # warned, stopped, resumed


def budgets_turn(*, now: datetime) -> list[Turned]:
    """Count what was used since the last turn. Returns what has changed, and what nobody has acted on yet."""
    keys = list(Budget.objects.filter(removed_at__isnull=True).order_by("pk").values_list("pk", flat=True))
    rates = price_book() if keys else None
    found = []
    for key in keys:
        turned = budget_count(key=key, now=now, rates=rates)
        if turned is not None:
            found.append(turned)
    return found


def budget_count(*, key: int, now: datetime, rates: PriceBook | None = None) -> Turned | None:
    """Bring one budget up to date. What it has turned to is told until somebody has acted on it (`untold`): its process may end before."""
    rates = rates or price_book()
    with transaction.atomic():
        budget = Budget.objects.select_for_update(of=("self",)).select_related("quota").filter(pk=key, removed_at__isnull=True).first()
        if budget is None:
            return None
        _count_days(budget, rates, now)
        (standing,) = standings([budget], rates, now)
        what = _thresholds(budget, standing, now)
        budget.untold = what or (budget.untold if _holds(budget.untold, standing.state) else "")
        budget.save(update_fields=["period_start", "counted_to", "warned_at", "stopped_at", "excepted", "untold"])
        if what:
            facts = {"used": _written(standing.used, budget.unit), "amount": _written(budget.amount, budget.unit), "percent": standing.percent}
            _record(SYSTEM, f"budget.{what}", budget, after=facts)
            _tell(budget)
    return Turned(standing, budget.untold) if budget.untold else None


def _count_and_tell(actor: Actor, budget: Budget, now: datetime) -> None:
    turned = budget_count(key=budget.pk, now=now)
    if turned is not None:
        budget_turned.send(Budget, turned=turned, actor=actor, now=now)


def budgets_unsettle(*, since: datetime) -> None:
    """What the ledger says from this moment on was not certain: it is counted again, as far as it is of the present period."""
    for budget in Budget.objects.select_for_update().filter(removed_at__isnull=True, counted_to__gt=since).order_by("pk"):
        assert budget.period_start is not None, "it was counted"
        day = max(day_of(since, budget.zone), day_of(budget.period_start, budget.zone))
        budget.days.filter(day__gte=day).delete()
        budget.counted_to = max(day_start(day, budget.zone), budget.period_start)
        budget.save(update_fields=["counted_to"])


def _count_days(budget: Budget, rates: PriceBook, now: datetime) -> None:
    """Add to its days what was used since it was counted last."""
    period = period_at(budget, now)
    if budget.period_start != period.start:
        budget.period_start, budget.counted_to = period.start, None
        budget.warned_at = budget.stopped_at = None
        budget.days.filter(day__gte=day_of(period.start, budget.zone)).delete()
    began = LedgerClock.objects.filter(pk=1).values_list("began_at", flat=True).first()
    at = max(budget.counted_to or period.start, began or period.start)
    end = min(now - SETTLED, period.end)
    for day, used in used_by_day(budget, at, end, rates).items():
        if used.milli_millis:
            row, _ = BudgetDay.objects.get_or_create(budget=budget, day=day)
            row.milli_millis, row.micros = row.milli_millis + used.milli_millis, row.micros + used.micros
            row.save(update_fields=["milli_millis", "micros"])
    budget.counted_to = max(at, end, budget.counted_to or at)


def _thresholds(budget: Budget, standing: Standing, now: datetime) -> str:
    """What has changed. It warns once in a period; it stops, and goes on with an exception, another amount or the next period."""
    state = standing.state
    was_stopped = budget.stopped_at is not None and not budget.excepted
    budget.excepted = state == "excepted"
    if state in ("stopped", "excepted"):
        budget.stopped_at = budget.stopped_at or now
    else:
        budget.stopped_at = None
    warns = state != "within" and state != "ended" and budget.warned_at is None
    if warns:
        budget.warned_at = now
    if state == "stopped" and not was_stopped:
        return "stopped"
    if was_stopped and state != "stopped":
        return "resumed"
    return "warned" if warns else ""


def _holds(untold: str, state: str) -> bool:
    """Whether what nobody has acted on is still so: usage may have been counted anew, or the amount raised."""
    if untold == "warned":
        return state not in ("within", "ended")
    return (state == "stopped") == (untold == "stopped")


def budget_facts(budget: Budget) -> dict[str, Any]:
    facts = {name: getattr(budget, name) for name in FIELDS}
    moments = {name: value.isoformat() if value is not None else None for name, value in facts.items() if name in ("starts_at", "ends_at")}
    return facts | moments | {"amount": _written(budget.amount, budget.unit), "quota": budget.quota.path}


def _written(amount: int, unit: str) -> str:
    """With its unit, which an entry about a change of the amount alone doesn't hold."""
    return exact_money(amount) if unit == BudgetUnit.MONEY else f"{said(amount)} GPU-hours"


def _take(budget: Budget, given: Mapping[str, Any], faults: Faults) -> None:
    for name in FIELDS:
        if name in given:
            setattr(budget, name, given[name])
    budget.name = str(budget.name or "").strip()
    if not budget.name:
        note(faults, "name", "Name is required.")
    elif len(budget.name) > NAME_LENGTH or not all(letter.isprintable() for letter in budget.name):
        note(faults, "name", f"Use at most {NAME_LENGTH} printable characters.")
    for name, values in (("unit", BudgetUnit.values), ("period", BudgetPeriod.values), ("at_stop", AtStop.values)):
        if getattr(budget, name) not in values:
            note(faults, name, f"Choose {', '.join(values)}.")
    if not isinstance(budget.amount, int) or not 0 < budget.amount <= MOST:
        note(faults, "amount", "State an amount above zero.")
    if len(budget.gpu_type or "") > 60:
        note(faults, "gpu_type", "There is no such GPU type.")
    if fault := zone_fault(budget.zone):
        note(faults, "zone", fault)
    if not 1 <= (budget.warn_percent or 0) <= HIGHEST:
        note(faults, "warn_percent", f"State 1 to {HIGHEST}.")
    if budget.stop_percent is not None and not 1 <= budget.stop_percent <= HIGHEST:
        note(faults, "stop_percent", f"State 1 to {HIGHEST}, or nothing.")
    elif budget.stop_percent is not None and "warn_percent" not in faults and budget.stop_percent < budget.warn_percent:
        note(faults, "stop_percent", "Stop at or above the warning.")
    _take_period(budget, faults)


def _take_period(budget: Budget, faults: Faults) -> None:
    if budget.period != BudgetPeriod.CUSTOM:
        budget.starts_at = budget.ends_at = None
    elif budget.starts_at is None or budget.ends_at is None:
        note(faults, "starts_at", "A custom period needs a start and an end.")
    elif not timedelta(0) < budget.ends_at - budget.starts_at <= LONGEST:
        note(faults, "ends_at", "End after the start, and within three years.")


def _locked(budget: Budget, revision: int | None) -> Budget:
    found = Budget.objects.select_for_update(of=("self",)).select_related("quota__parent").filter(pk=budget.pk, removed_at__isnull=True).first()
    if found is None:
        raise Conflict(f"{budget.public_id} was removed meanwhile.")
    if revision is not None and revision != found.revision:
        raise Stale("Somebody else changed this budget. Read it again.", found.revision)
    return found


def _record(
    actor: Actor, action: str, budget: Budget, before: dict[str, Any] | None = None, after: dict[str, Any] | None = None, reason: str = ""
) -> None:
    audit_record(actor=actor, action=action, kind="budget", object_id=budget.public_id, quota=budget.quota, before=before, after=after, reason=reason)


def _tell(budget: Budget) -> None:
    feed_publish(changes={"budgets": [{"id": budget.pk}]})


def teams_offered(access: Access) -> list[str]:
    """The nodes that the caller may set budgets for."""
    nodes: Iterable[QuotaNode] = nodes_visible(access, Can.SEE).select_related("parent").order_by("path")
    return [node.path for node in nodes if may_budget(access, node)]
