"""Money is a whole number of micro-units (a millionth of the currency), so that sums are exact and no cent is lost to rounding on the way."""

from decimal import ROUND_HALF_EVEN, Decimal

from django.conf import settings

MILLIS_PER_HOUR = 3_600_000
HOURS_PER_MONTH = 730  # a twelfth of 365 days: what lasts is told by the month, whichever month it is


def cost_micros(*, gpu_milli: int, millis: int, micros_per_gpu_hour: int) -> int:
    """What holding `gpu_milli` for `millis` costs. Rounded once, half to even, at the end."""
    exact = Decimal(gpu_milli * millis * micros_per_gpu_hour) / Decimal(1000 * MILLIS_PER_HOUR)
    return int(exact.to_integral_value(rounding=ROUND_HALF_EVEN))


def written_money(micros: int) -> str:
    """As messages write it: `EUR 1,234.56`."""
    return f"{settings.CURRENCY} {Decimal(micros) / 1_000_000:,.2f}"


def exact_money(micros: int | Decimal) -> str:
    """As the audit log writes it, with all that there is behind the cents: `EUR 0.240125`."""
    exact = Decimal(micros).scaleb(-6).normalize()
    cents = exact.quantize(Decimal("0.01"))
    return f"{settings.CURRENCY} {cents if cents == exact else exact:,f}"
