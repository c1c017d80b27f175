"""What GPUs cost: the active rate cards as values."""

from collections import defaultdict
from datetime import datetime

from gpufleet.core.times import millis
from quotas.chargeback.pricing import FOREVER, Card, Price, PriceBook
from quotas.models import CardState, RateLine

_CARD = ("card__valid_from", "card__valid_to", "card__public_id")
_PRICE = ("gpu_type", "share_class", "tier", "pool", "list_micros", "contracted_micros", "discount_ppm")


def price_book() -> PriceBook:
    """All active cards, in one query."""
    prices: dict[tuple[datetime, datetime | None, str], list[Price]] = defaultdict(list)
    for since, until, card, *said in RateLine.objects.filter(card__state=CardState.ACTIVE).order_by("id").values_list(*_CARD, *_PRICE):
        prices[since, until, card].append(Price(*said, card))  # type: ignore[call-arg]
    return PriceBook(
        Card(millis(since), FOREVER if until is None else millis(until), card, tuple(lines)) for (since, until, card), lines in prices.items()
    )


def rates_now(*, now: datetime) -> dict[str, int]:
    """What one guaranteed hour of a whole GPU of each type costs now, in micro-units."""
    return price_book().types_now(millis(now))
