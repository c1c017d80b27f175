"""What budgets say of a job before it is submitted: which of them keep it from starting, and which it would use up."""

from dataclasses import dataclass
from datetime import datetime

from gpufleet.core.money import written_money
from quotas.models import Budget, BudgetUnit
from quotas.permissions import Access, Can
from quotas.selectors.budgets import budgets_over, standings
from quotas.selectors.rates import price_book

OF_ABOVE = "A budget of a node above its team"
SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class BudgetsSaid:
    """`holds` are sentences of budgets that are used up; `notes` of those that it would bring near their end, or beyond it."""

    holds: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def budgets_said(
    access: Access, path: str, *, gpu_type: str, gpus_milli: int, seconds: int | None, cost_micros: int | None, now: datetime
) -> BudgetsSaid:
    """For all jobs of a description together."""
    found = list(budgets_over(path))
    if not found:
        return BudgetsSaid()
    holds, notes = [], []
    for standing in standings(found, price_book(), now):
        budget = standing.budget
        if standing.period.is_over or (budget.gpu_type and gpu_type and budget.gpu_type != gpu_type and standing.state != "stopped"):
            continue
        name = _named(access, budget)
        if standing.state == "stopped":
            until = f" It opens again on {standing.period.end:%Y-%m-%d} UTC." if budget.period != "custom" else ""
            numbers = f": {standing.percent}% of {amount_said(budget.amount, budget.unit)}" if _sees(access, budget) else ""
            holds.append(f"{name} is used up{numbers}. No new job starts there.{until}")
            continue
        adds = _adds(budget, gpus_milli, seconds, cost_micros)
        if adds is None or not _sees(access, budget):
            continue
        after = 100 * (standing.used + adds) // budget.amount
        if standing.stops_at is not None and standing.used + adds >= standing.stops_at:
            notes.append(f"{name} would be used up by it: {standing.percent}% used now, {after}% after it.")
        elif after >= budget.warn_percent:
            notes.append(f"{name}: {standing.percent}% used now, {after}% after it.")
    return BudgetsSaid(tuple(holds), tuple(notes))


def _adds(budget: Budget, gpus_milli: int, seconds: int | None, cost_micros: int | None) -> int | None:
    if budget.unit == BudgetUnit.MONEY:
        return cost_micros
    return None if seconds is None else gpus_milli * seconds // SECONDS_PER_HOUR


def _sees(access: Access, budget: Budget) -> bool:
    return access.can(Can.SEE_COSTS if budget.unit == BudgetUnit.MONEY else Can.SEE, budget.quota.path)


def _named(access: Access, budget: Budget) -> str:
    return f"The budget {budget.name} of {budget.quota.path}" if access.can(Can.SEE, budget.quota.path) else OF_ABOVE


def amount_said(amount: int, unit: str) -> str:
    """An amount in the unit of a budget, for people."""
    if unit == BudgetUnit.MONEY:
        return written_money(amount)
    return f"{amount / 1000:,.1f}".removesuffix(".0") + " GPU-hours"
