"""Money and hours as pages of costs write them."""

from decimal import Decimal

from django import template

from quotas.chargeback.cards import written
from quotas.chargeback.pricing import HOUR, cents, half_even

register = template.Library()


@register.filter
def price(micros: int | None) -> str:
    """A price of a GPU hour: two decimals, more where it has them."""
    return "–" if micros is None else written(micros)


@register.filter
def percent_ppm(ppm: int) -> str:
    return f"{(Decimal(ppm) / 10_000).normalize():f}%" if ppm else "–"


@register.filter
def money(nanos: int | None) -> str:
    """Nano-units to the cent, half to even."""
    return "–" if nanos is None else f"{Decimal(cents(nanos)) / 100:,.2f}"


@register.filter
def hours(milli_millis: int) -> str:
    """GPU hours with one decimal."""
    return f"{Decimal(half_even(milli_millis * 10, HOUR)) / 10:,.1f}"
