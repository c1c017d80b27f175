"""A second rater that shares nothing with the first: decimals, one interval after another. Sixty lines, so that it can be read."""

from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal, getcontext

getcontext().prec = 60
NANO = Decimal("0.000000001")
DAY = timedelta(days=1)


def price_at(cards, interval, moment):
    """The list, contracted and effective price, or nothing. A card: (since, until, lines); a line: the fields of a row of the card."""
    best, best_rank = None, (-1, -1, -1)
    for since, until, lines in cards:
        if moment < since or (until is not None and moment >= until):
            continue
        for line in lines:
            if line["gpu_type"] != interval["gpu_type"]:
                continue
            if line["pool"] not in ("", interval["pool"]):
                continue
            if line["tier"] and line["tier"] != interval["tier"] and not (line["tier"] == "mig" and interval["tier"].startswith("mig:")):
                continue
            if line["class"] == "preemptible":
                if not interval["preemptible"]:
                    continue
                class_rank = 2
            elif line["class"]:
                if line["class"] != interval["class"]:
                    continue
                class_rank = 1
            else:
                class_rank = 0
            tier_rank = 0 if not line["tier"] else 1 if line["tier"] == "mig" else 2
            rank = (1 if line["pool"] else 0, tier_rank, class_rank)
            if rank > best_rank:
                best, best_rank = line, rank
    if best is None:
        return None
    micro = Decimal("0.000001")
    effective = (best["contracted"] * (100 - best["discount"]) / 100).quantize(micro, ROUND_HALF_EVEN)
    return best["list"], best["contracted"], effective


def rate(cards, intervals, start, end):
    """Amounts by day, job, class, tier, pool, type and prices: GPU-hours (exact as a fraction of milliseconds) and the three costs."""
    moments = sorted({at for since, until, _ in cards for at in (since, until) if at is not None})
    hours = {}
    for interval in intervals:
        at, until = max(start, interval["since"]), min(end, interval["until"])
        while at < until:
            midnight = datetime(at.year, at.month, at.day, tzinfo=UTC) + DAY
            following = min([until, midnight, *(one for one in moments if one > at)])
            price = price_at(cards, interval, at)
            key = (at.date(), *(interval[name] for name in ("job", "gpu_type", "class", "preemptible", "tier", "pool")), price)
            millis = (following - at) / timedelta(milliseconds=1)
            hours[key] = hours.get(key, Decimal(0)) + Decimal(int(millis)) * interval["milli"]
            at = following
    found = {}
    for key, used in hours.items():
        costs = tuple((used * price / Decimal(3_600_000_000)).quantize(NANO, ROUND_HALF_EVEN) for price in key[-1]) if key[-1] else (Decimal(0),) * 3
        found[key] = (int(used), *costs)
    return found
