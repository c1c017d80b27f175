"""Rating: exact, the same whatever way it is cut or added up, and the same as a second rater says that shares nothing with it."""

import random
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.core.times import millis
from quotas.chargeback.pricing import FOREVER, Card, Kind, Price, PriceBook, amount_nanos, half_even
from quotas.chargeback.rating import Interval, Rated, day_of, rated, shared
from tests.quotas.chargeback import rater

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
FIRST, LAST = millis(START), millis(END)
HOUR_MS = 3_600_000
TYPES, CLASSES, TIERS, POOLS = ("H100", "A100"), ("guaranteed", "borrowed", "reserved"), ("whole", "share", "mig:1g.10gb"), ("", "north/fast")
COUNTS = ("quota_path", "job", "owner", "cost_centre", "labels", "day")

kinds = st.builds(Kind, st.sampled_from(TYPES), st.sampled_from(CLASSES), st.booleans(), st.sampled_from(TIERS), st.sampled_from(POOLS))


@st.composite
def intervals(draw: st.DrawFn) -> Interval:
    since = draw(st.integers(FIRST - 40 * HOUR_MS, LAST))
    length = draw(st.one_of(st.integers(1, 5000), st.integers(1, 90 * HOUR_MS)))
    name = draw(st.sampled_from("abc"))
    return Interval(
        job=f"j-{draw(st.integers(1, 4))}",
        quota_id=ord(name),
        quota_path=f"acme/{name}",
        owner=draw(st.sampled_from(("", "ada"))),
        cost_centre=draw(st.sampled_from(("", "CC-1"))),
        labels=draw(st.sampled_from(("{}", '{"run":"x"}'))),
        cluster="north",
        kind=draw(kinds),
        gpu_milli=draw(st.one_of(st.integers(1, 1000), st.sampled_from((1000, 8000)))),
        since=since,
        until=since + length,
    )


prices = st.integers(0, 20_000_000)


@st.composite
def books(draw: st.DrawFn) -> PriceBook:
    """One to three cards in a line, each with a general price of some types and any number of special ones."""
    cuts = sorted(draw(st.lists(st.integers(FIRST - HOUR_MS, LAST + HOUR_MS), min_size=1, max_size=3, unique=True)))
    cards = []
    for number, (since, until) in enumerate(zip(cuts, [*cuts[1:], FOREVER], strict=True)):
        keys = st.tuples(
            st.sampled_from(TYPES), st.sampled_from(("", *CLASSES, "preemptible")), st.sampled_from(("", "mig", *TIERS)), st.sampled_from(POOLS)
        )
        lines = {("H100", "", "", "")} | set(draw(st.lists(keys, max_size=6)))
        made = tuple(Price(*key, draw(prices), draw(prices), draw(st.integers(0, 1_000_000)), f"rc-{number}") for key in sorted(lines))
        cards.append(Card(since, until, f"rc-{number}", made))
    return PriceBook(cards)


def totals(lines: list[Rated]) -> tuple[int, int, int, int]:
    return tuple(
        sum(column) for column in zip(*((one.milli_millis, one.list_nanos, one.contracted_nanos, one.effective_nanos) for one in lines), strict=True)
    ) or (0, 0, 0, 0)


@given(st.lists(intervals(), max_size=8), books())
@settings(max_examples=60, deadline=None)
def test_lines_hold_all_that_was_used_and_every_partition_adds_up(found: list[Interval], book: PriceBook) -> None:
    lines = rated(found, book, FIRST, LAST)

    used = sum(one.gpu_milli * max(0, min(LAST, one.until) - max(FIRST, one.since)) for one in found)
    assert sum(line.milli_millis for line in lines) == used
    for name in COUNTS:
        parts = defaultdict(list)
        for line in lines:
            parts[getattr(line.key, name)].append(line)
        summed = [totals(part) for part in parts.values()]
        assert tuple(map(sum, zip(*summed, strict=True))) == totals(lines) or not lines
    assert all(START.date() <= day_of(line.key.day) < END.date() for line in lines)


@given(st.lists(intervals(), max_size=6), books(), st.data())
@settings(max_examples=60, deadline=None)
def test_cutting_joining_and_shuffling_intervals_changes_nothing(found: list[Interval], book: PriceBook, data: st.DataObject) -> None:
    cut = []
    for one in found:
        at = data.draw(st.integers(one.since, one.until))
        cut += [part for part in (replace(one, until=at), replace(one, since=at)) if part.since < part.until]
    halves = [
        half for one in cut for half in ([replace(one, gpu_milli=one.gpu_milli // 2), replace(one, gpu_milli=one.gpu_milli - one.gpu_milli // 2)])
    ]

    lines = rated(found, book, FIRST, LAST)
    assert rated(data.draw(st.permutations(halves)), book, FIRST, LAST) == lines
    assert rated(found, book, FIRST, LAST) == lines, "rating again says the same"


@given(st.lists(intervals(), max_size=6), books(), st.integers(FIRST, LAST))
@settings(max_examples=60, deadline=None)
def test_a_card_cut_at_any_moment_costs_what_two_periods_cost(found: list[Interval], book: PriceBook, at: int) -> None:
    """A version that begins at any instant: the month is what both of its parts are, each at its own prices."""
    early, late = rated(found, book, FIRST, at), rated(found, book, at, LAST)
    used: dict[object, int] = defaultdict(int)
    for line in [*early, *late]:
        used[line.key] += line.milli_millis

    assert {line.key: line.milli_millis for line in rated(found, book, FIRST, LAST)} == dict(used)
    cards = [part for card in book.cards for part in _halves(card, at)]
    again = rated(found, PriceBook(cards), FIRST, LAST)
    assert sum(line.milli_millis for line in again) == sum(used.values())
    assert _exact(again) == _exact(rated(found, book, FIRST, LAST))


def _halves(card: Card, at: int) -> list[Card]:
    if not card.since < at < card.until:
        return [card]
    later = tuple(replace(price, card=f"{price.card}b") for price in card.prices)
    return [replace(card, until=at), Card(at, card.until, f"{card.name}b", later)]


def _exact(lines: list[Rated]) -> int:
    return sum(line.milli_millis * line.key.price.effective_micros for line in lines if line.key.price)


@given(st.integers(-(10**15), 10**15), st.dictionaries(st.sampled_from("abcdefg"), st.integers(0, 10**12), min_size=1))
def test_what_is_shared_adds_up_exactly(amount: int, weights: dict[str, int]) -> None:
    parts = shared(amount, weights)

    assert sum(parts.values()) == (amount if sum(weights.values()) else 0)
    exact = {name: amount * weight / sum(weights.values()) for name, weight in weights.items()} if parts else {}
    assert all(abs(parts[name] - exact[name]) <= 1 + abs(amount) * 1e-12 for name in parts)


@given(st.integers(-(10**20), 10**20), st.integers(1, 10**9))
def test_halves_go_to_the_even_one(numerator: int, denominator: int) -> None:
    exact = Decimal(numerator) / Decimal(denominator)
    if abs(numerator) < 10**15:
        assert half_even(numerator, denominator) == round(exact) or half_even(numerator * 2, denominator) % 2
    assert abs(half_even(numerator, denominator) * denominator - numerator) * 2 <= denominator


def test_daylight_saving_changes_nothing() -> None:
    """The day on which Berlin's clocks go back has 24 hours of UTC, and so many are charged."""
    zone = ZoneInfo("Europe/Berlin")
    since, until = datetime(2026, 10, 25, tzinfo=zone), datetime(2026, 10, 26, tzinfo=zone)
    book = PriceBook([Card(0, FOREVER, "rc-1", (Price("H100", "", "", "", 1_000_000, 1_000_000),))])
    one = Interval("j-1", 1, "acme", "", "", "{}", "north", Kind("H100"), 1000, millis(since), millis(until))

    assert totals(rated([one], book, FIRST, LAST))[3] == 25 * 10**9
    assert amount_nanos(1000 * HOUR_MS, 1_000_000) == 10**9


@pytest.mark.parametrize("part", range(4))
def test_a_second_rater_agrees_on_two_hundred_months(part: int) -> None:
    chance = random.Random(part)
    for _ in range(50):
        cards, found = _drawn_cards(chance), [_drawn_interval(chance) for _ in range(12)]
        lines = rated([_as_interval(one) for one in found], _as_book(cards), FIRST, LAST)

        told = {}
        for line in lines:
            kind, price = line.key.kind, line.key.price
            said = (day_of(line.key.day), line.key.job, kind.gpu_type, kind.share_class, kind.preemptible, kind.tier, kind.pool)
            money = tuple(Decimal(nanos) / 10**9 for nanos in (line.list_nanos, line.contracted_nanos, line.effective_nanos))
            told[(*said, _prices(price))] = (line.milli_millis, *money)
        assert told == rater.rate(cards, found, START, END)


def _prices(price: Price | None) -> tuple[Decimal, ...] | None:
    return price and tuple(Decimal(micros) / 10**6 for micros in (price.list_micros, price.contracted_micros, price.effective_micros))


def _drawn_cards(chance: random.Random) -> list[tuple]:
    cuts = sorted(START + timedelta(milliseconds=chance.randrange(LAST - FIRST)) for _ in range(chance.randint(1, 3)))
    cards = []
    for since, until in zip(cuts, [*cuts[1:], None], strict=True):
        keys = {("H100", "", "", "")} | {
            (chance.choice(TYPES), chance.choice(("", *CLASSES, "preemptible")), chance.choice(("", "mig", *TIERS)), chance.choice(POOLS))
            for _ in range(chance.randint(0, 6))
        }
        lines = [
            dict(zip(("gpu_type", "class", "tier", "pool"), key, strict=True))
            | {name: Decimal(chance.randrange(10**7)) / 10**6 for name in ("list", "contracted")}
            | {"discount": Decimal(chance.randrange(10**6)) / 10**4}
            for key in sorted(keys)
        ]
        cards.append((since, until, lines))
    return cards


def _drawn_interval(chance: random.Random) -> dict:
    since = START - timedelta(hours=30) + timedelta(milliseconds=chance.randrange(LAST - FIRST))
    said = {"job": f"j-{chance.randint(1, 3)}", "gpu_type": chance.choice(TYPES), "class": chance.choice(CLASSES), "tier": chance.choice(TIERS)}
    times = {"since": since, "until": since + timedelta(milliseconds=chance.randrange(1, 80 * HOUR_MS))}
    return said | times | {"preemptible": chance.random() < 0.5, "pool": chance.choice(POOLS), "milli": chance.choice((1000, 8000, 333, 1))}


def _as_interval(one: dict) -> Interval:
    kind = Kind(one["gpu_type"], one["class"], one["preemptible"], one["tier"], one["pool"])
    return Interval(one["job"], 1, "acme", "", "", "{}", "north", kind, one["milli"], millis(one["since"]), millis(one["until"]))


def _as_book(cards: list[tuple]) -> PriceBook:
    made = []
    for number, (since, until, lines) in enumerate(cards):
        prices = tuple(
            Price(
                *(line[name] for name in ("gpu_type", "class", "tier", "pool")),
                int(line["list"] * 10**6),
                int(line["contracted"] * 10**6),
                int(line["discount"] * 10**4),
                f"rc-{number}",
            )
            for line in lines
        )
        made.append(Card(millis(since), FOREVER if until is None else millis(until), f"rc-{number}", prices))
    return PriceBook(made)
