"""Prices as values: which line of which card holds for a use at a moment, and what that comes to. No database, no clock.

Prices are whole micro-units of the currency for a GPU hour, amounts whole nano-units. Use is thousandths of a GPU times milliseconds, exact.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

MILLION = 1_000_000
# Thousandths of a GPU times milliseconds in a GPU hour.
HOUR = 1000 * 3_600_000
# Milli-GPU times milliseconds times micro-units in one nano-unit: an hour has HOUR, a micro-unit has 1000 nano-units.
PER_NANO = HOUR // 1000
CENT = 10_000_000  # nano-units
FOREVER = 1 << 62
PREEMPTIBLE = "preemptible"


def half_even(numerator: int, denominator: int) -> int:
    """The nearest whole number; halves go to the even one. `denominator` is above zero."""
    whole, rest = divmod(numerator, denominator)
    twice = 2 * rest
    return whole + (twice > denominator or (twice == denominator and whole % 2 == 1))


def amount_nanos(milli_millis: int, micros_per_hour: int) -> int:
    """What a use costs, in nano-units, rounded once."""
    return half_even(milli_millis * micros_per_hour, PER_NANO)


def cents(nanos: int) -> int:
    return half_even(nanos, CENT)


@dataclass(frozen=True, slots=True)
class Kind:
    """What a price depends on. `tier`: whole, share or mig:PROFILE; `pool`: CLUSTER/POOL."""

    gpu_type: str
    share_class: str = "guaranteed"
    preemptible: bool = False
    tier: str = "whole"
    pool: str = ""


@dataclass(frozen=True, slots=True)
class Price:
    """One line of a card. Of two that match, the one for the pool comes first, then for the tier, then for the class."""

    gpu_type: str
    share_class: str
    tier: str
    pool: str
    list_micros: int
    contracted_micros: int
    discount_ppm: int = 0
    card: str = ""

    @property
    def effective_micros(self) -> int:
        return half_even(self.contracted_micros * (MILLION - self.discount_ppm), MILLION)

    @property
    def rank(self) -> tuple[bool, int, int]:
        tier = 0 if not self.tier else 1 if self.tier == "mig" else 2
        return bool(self.pool), tier, 0 if not self.share_class else 2 if self.share_class == PREEMPTIBLE else 1

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.gpu_type, self.share_class, self.tier, self.pool

    def holds_for(self, kind: Kind) -> bool:
        classes = (kind.share_class, PREEMPTIBLE) if kind.preemptible else (kind.share_class,)
        tiers = (kind.tier, kind.tier.partition(":")[0])
        return (
            self.gpu_type == kind.gpu_type
            and (not self.share_class or self.share_class in classes)
            and (not self.tier or self.tier in tiers)
            and (not self.pool or self.pool == kind.pool)
        )


@dataclass(frozen=True, slots=True)
class Card:
    """A card from `since` to `until`, in milliseconds."""

    since: int
    until: int
    name: str
    prices: tuple[Price, ...]

    def price_of(self, kind: Kind) -> Price | None:
        fitting = [price for price in self.prices if price.holds_for(kind)]
        return max(fitting, key=lambda price: price.rank) if fitting else None


class PriceBook:
    """All active cards, the oldest first. They do not overlap."""

    def __init__(self, cards: Iterable[Card]) -> None:
        self.cards = tuple(sorted(cards, key=lambda card: card.since))
        self._found: dict[Kind, tuple[tuple[int, int, Price], ...]] = {}

    def spans(self, kind: Kind) -> tuple[tuple[int, int, Price], ...]:
        """Every time at which this kind has a price."""
        if kind not in self._found:
            priced = ((card.since, card.until, card.price_of(kind)) for card in self.cards)
            self._found[kind] = tuple((since, until, price) for since, until, price in priced if price is not None)
        return self._found[kind]

    def at(self, kind: Kind, moment: int) -> Price | None:
        return next((price for since, until, price in self.spans(kind) if since <= moment < until), None)

    def pieces(self, kind: Kind, start: int, end: int) -> Iterator[tuple[int, int, Price | None]]:
        """[start, end) cut where the price changes; None where there is none."""
        at = start
        for since, until, price in self.spans(kind):
            begins, ends = max(start, since), min(end, until)
            if begins >= ends:
                continue
            if at < begins:
                yield at, begins, None
            yield begins, ends, price
            at = ends
        if at < end:
            yield at, end, None

    def charged(self, kind: Kind, start: int, end: int) -> tuple[int, int]:
        """How many milliseconds of [start, end) have a price, and these milliseconds times their effective prices."""
        covered = charged = 0
        for begins, ends, price in self.pieces(kind, start, end):
            if price is not None:
                covered += ends - begins
                charged += (ends - begins) * price.effective_micros
        return covered, charged

    def types_now(self, moment: int) -> dict[str, int]:
        """What a guaranteed hour of a whole GPU costs at a moment, by type."""
        card = next((card for card in self.cards if card.since <= moment < card.until), None)
        types = sorted({price.gpu_type for price in card.prices}) if card else []
        found = {gpu_type: card.price_of(Kind(gpu_type)) for gpu_type in types} if card else {}
        return {gpu_type: price.effective_micros for gpu_type, price in found.items() if price is not None}
