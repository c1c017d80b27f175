"""Money and hours as pages of costs write them."""

from decimal import Decimal

from django import template
from django.utils.safestring import mark_safe

from quotas.chargeback.cards import written
from quotas.chargeback.exports import gpu_hours
from quotas.chargeback.exports import nanos as written_nanos
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
    return mark_safe("–" if nanos is None else f"{Decimal(cents(nanos)) / 100:,.2f}")  # noqa: S308 - digits, which need no escaping


@register.filter
def hours(milli_millis: int) -> str:
    """GPU-hours with one decimal."""
    return mark_safe(f"{Decimal(half_even(milli_millis * 10, HOUR)) / 10:,.1f}")  # noqa: S308 - digits


@register.filter
def hours_milli(milli_millis: int) -> str:
    """GPU-hours with three decimals."""
    return milli_hours(half_even(milli_millis * 1000, HOUR))


@register.filter
def milli_hours(amount: int) -> str:
    """Thousandths of GPU-hours."""
    return f"{Decimal(amount) / 1000:,.3f}"


@register.filter
def hours_exact(milli_millis: int) -> str:
    return gpu_hours(milli_millis)


@register.filter
def nanos(amount: int) -> str:
    """Nano-units as a plain decimal, nothing rounded."""
    return written_nanos(amount)


@register.filter
def gpu_seconds(milli_millis: int) -> str:
    return f"{Decimal(milli_millis) / 1_000_000:,.3f}"


CAUSES = {
    "idle": "Allocated, idle",
    "starting": "Starting",
    "window": "Reserved, unused",
    "draining": "Draining",
    "down": "Out of service",
    "kept": "Kept for a job",
    "blocked": "Free, jobs did not fit",
    "unwanted": "Free, no demand",
}


@register.filter
def cause(name: str) -> str:
    return CAUSES.get(name, name)
