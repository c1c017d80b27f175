"""Public list prices, offered as a start of the first card. A person confirms them: prices for the same chip differ fourfold between suppliers."""

from dataclasses import dataclass

from quotas.chargeback.pricing import Price

SOURCE = "CoreWeave's public list prices on demand, read on 2026-09-20; AWS for A100 40 GB. Replace them by your own."


@dataclass(frozen=True, slots=True)
class PublicPrice:
    words: tuple[str, ...]  # all of these are in the name of the type
    micros: int


# The first that matches holds.
PUBLIC = (
    PublicPrice(("GB200",), 10_500_000),
    PublicPrice(("B200",), 8_600_000),
    PublicPrice(("H200",), 6_305_000),
    PublicPrice(("H100",), 6_155_000),
    PublicPrice(("A100", "40"), 2_740_000),
    PublicPrice(("A100",), 2_700_000),
    PublicPrice(("L40S",), 2_250_000),
)


def public_price(gpu_type: str) -> int | None:
    name = gpu_type.upper()
    return next((one.micros for one in PUBLIC if all(word in name for word in one.words)), None)


def public_prices(gpu_types: list[str]) -> list[Price]:
    found = [(gpu_type, public_price(gpu_type)) for gpu_type in gpu_types]
    return [Price(gpu_type, "", "", "", micros, micros) for gpu_type, micros in found if micros is not None]
