"""How a plan writes instants and amounts."""

from datetime import UTC, datetime
from functools import lru_cache


def thousandths(amount: int) -> int | float:
    """So many thousandths as a number: 1.5 of 1500, and whole ones without a point."""
    return amount / 1000 if amount % 1000 else amount // 1000


@lru_cache(maxsize=4096)
def spell_instant(milliseconds: int) -> str:
    """An instant as a plan writes it; milliseconds only where there are any."""
    seconds, rest = divmod(milliseconds, 1000)
    try:
        spelt = datetime.fromtimestamp(seconds, UTC).isoformat().removesuffix("+00:00")
    except (OverflowError, ValueError, OSError):
        return "9999-12-31T23:59:59Z"
    return f"{spelt}.{rest:03d}Z" if rest else f"{spelt}Z"
