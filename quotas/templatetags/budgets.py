"""Amounts in the unit of a budget."""

from django import template

from gpufleet.core.templatetags.shell import money
from quotas.models import BudgetUnit

register = template.Library()


@register.filter
def amount(value: int, unit: str) -> str:
    """`1,204.5 GPU-hours`, or money of the installation's currency."""
    if unit == BudgetUnit.MONEY:
        return money(value)
    return f"{value / 1000:,.1f}".removesuffix(".0") + " GPU-hours"
