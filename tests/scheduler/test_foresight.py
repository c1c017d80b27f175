"""Ranges that are learnt from what became of earlier ones."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.bench.predictions import ranged
from scheduler.benchmarks.predictions import WORLDS, Fleet, Told, played
from scheduler.foresight import ASSUMED, HOUR, LEAST, MINUTE, PROMISED, Foresight, Outcome, Ranged, assumed, estimated, missed, ruled, score, spread
from scheduler.simulation.futures import Waits

lengths = st.integers(0, 40 * HOUR)
futures = st.lists(lengths, min_size=3, max_size=3).map(lambda three: Waits(*sorted(three)))
histories = st.lists(st.builds(Outcome, futures, lengths, st.booleans()), max_size=120)


@given(histories, futures)
def test_a_range_is_around_its_middle_and_never_in_the_past(history: list[Outcome], waits: Waits) -> None:
    found = Foresight(history).foreseen(waits)

    assert 0 <= found.earliest <= found.at <= found.latest
    assert Foresight(history).foreseen(waits) == found


@given(histories, futures, lengths)
def test_futures_that_spread_wider_have_a_wider_range(history: list[Outcome], waits: Waits, more: int) -> None:
    """As long as it does not reach into the past."""
    foresight = Foresight(history)
    one, other = foresight.foreseen(waits), foresight.foreseen(waits._replace(high=waits.high + more))
    if one.earliest and other.earliest:
        assert other.latest - other.earliest >= one.latest - one.earliest - 1


@given(histories, futures)
def test_a_range_stays_within_what_was_seen(history: list[Outcome], waits: Waits) -> None:
    """Nothing is told that is further off than the furthest of the history, and of what is assumed beside it, in spreads."""
    found = Foresight(history).foreseen(waits)
    if found.known:
        far = Foresight(history).far
        off = [missed(outcome, far) for outcome in history] + [*assumed(ASSUMED)]
        assert found.earliest >= waits.middle + min(off) * spread(waits, far) - 1
        assert found.latest <= max(0, waits.middle + max(off) * spread(waits, far)) + 1


@given(st.lists(st.builds(Outcome, futures, lengths, st.booleans()), max_size=LEAST - 1), futures)
def test_before_there_is_a_history_a_rule_tells(history: list[Outcome], waits: Waits) -> None:
    found = Foresight(history).foreseen(waits)

    assert (found, found.known) == (ruled(waits), 0)
    assert found.at == (waits.middle if waits.high else 0)


@given(st.lists(lengths, min_size=2, max_size=2).map(sorted), st.floats(0, 1))
def test_who_waits_longer_has_no_narrower_range(middles: list[int], part: float) -> None:
    """Where futures spread alike."""
    off = round(part * middles[0])
    one, other = (ruled(Waits(middle - off, middle, middle + off + 1)) for middle in middles)

    assert other.latest - other.earliest >= one.latest - one.earliest - 1


def test_a_range_is_narrow_where_one_plans_by_it_and_wide_where_nobody_can_know() -> None:
    """A tenth sooner or later over the futures: within the hour for who waits minutes, half the wait in between, more than it from a day on."""
    widths = {}
    for hours in (0.25, 4, 36):
        found = ruled(Waits(round(0.9 * hours * HOUR), round(hours * HOUR), round(1.1 * hours * HOUR)))
        widths[hours] = (found.latest - found.earliest) / HOUR

    assert widths[0.25] <= 1
    assert widths[4] <= 2
    assert widths[36] >= 36


@given(lengths)
def test_a_start_by_estimates_alone_has_a_wide_range(wait: int) -> None:
    found = ruled(estimated(wait))

    assert found.at == wait
    assert found.latest >= 2 * wait
    assert found.earliest <= wait // 2


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("off", [0.0, 0.5])
@pytest.mark.parametrize("wider", [0.3, 1.0, 3.0])
def test_of_waits_that_come_as_they_came_before_four_fifths_are_inside(seed: int, off: float, wider: float) -> None:
    """Exchangeable: a start misses the middle alike all the time. It does not matter that futures are too narrow, too wide or too early."""
    draw = random.Random(seed)

    def outcome() -> tuple[Waits, int]:
        middle = draw.randrange(2 * HOUR, 10 * HOUR)
        width = draw.uniform(0.1, 0.4) * middle
        waits = Waits(round(middle - width / 2), middle, round(middle + width / 2))
        return waits, max(0, round(middle + (off + wider * draw.gauss(0, 0.4)) * width))

    history = [Outcome(*outcome(), inside=number % 6 != 0) for number in range(1500)]
    foresight = Foresight(history)
    tried = [(foresight.foreseen(waits), waited) for waits, waited in (outcome() for _ in range(1000))]
    found = score([Ranged(sure.earliest, sure.at, sure.latest, waited) for sure, waited in tried])

    assert found is not None
    assert PROMISED - 0.02 <= found.inside <= 0.93


def test_ranges_widen_while_they_hold_too_few_and_narrow_again() -> None:
    draw = random.Random(3)
    waits = Waits(HOUR, 2 * HOUR, 3 * HOUR)
    seen = [round(2 * HOUR + draw.gauss(0, 0.5) * HOUR) for _ in range(300)]

    def width(inside: bool) -> int:
        found = Foresight(Outcome(waits, waited, inside) for waited in seen).foreseen(waits)
        return found.latest - found.earliest

    assert width(inside=False) > 1.3 * width(inside=True)


@pytest.mark.parametrize("hours", [4, 11, 20])
def test_where_most_wait_long_half_the_wait_is_still_the_range(hours: int) -> None:
    """How far is far hangs on how long the others wait: else nobody of a full week could be told anything."""
    draw = random.Random(6)
    waits = Waits(round(0.9 * hours * HOUR), hours * HOUR, round(1.1 * hours * HOUR))
    seen = [round(hours * HOUR * (1 + draw.gauss(0, 0.12))) for _ in range(800)]
    found = Foresight(Outcome(waits, waited, number % 6 != 0) for number, waited in enumerate(seen)).foreseen(waits)

    inside = sum(found.earliest <= waited <= found.latest for waited in seen) / len(seen)
    assert found.latest - found.earliest <= 0.5 * hours * HOUR
    assert inside >= PROMISED


def test_one_sweep_that_misses_alike_does_not_upset_the_range() -> None:
    """Fifty jobs that all came late by the same, after as many that came as foreseen."""
    draw = random.Random(4)
    waits = Waits(HOUR, 2 * HOUR, 3 * HOUR)
    seen = [round(2 * HOUR + draw.gauss(0, 0.9) * HOUR) for _ in range(50)]
    usual = Foresight(Outcome(waits, waited, True) for waited in seen).foreseen(waits)
    upset = Foresight(Outcome(waits, waited, True) for waited in seen + [4 * HOUR] * 50).foreseen(waits)

    assert abs(upset.at - usual.at) < 0.25 * HOUR
    assert upset.earliest < 2 * HOUR < 3 * HOUR < upset.latest


def test_a_score_counts_what_lies_inside_and_takes_medians() -> None:
    found = score([Ranged(0, 10_000, 20_000, 20_000), Ranged(5_000, 6_000, 9_000, 4_000), Ranged(0, 1_000, 2_000, 9_000)])

    assert found is not None
    assert (found.starts, round(found.inside_percent), found.width_seconds, found.wait_seconds, found.error_seconds) == (3, 33, 4, 9, 8)
    assert score([]) is None


def test_what_is_told_in_a_week_knows_nothing_of_what_comes_later() -> None:
    """A history is what had started by then: what is told about the first half is the same without the second."""
    draw = random.Random(5)
    story = [
        Told(f"j{number}", at, Waits(wait // 2, wait, 2 * wait), at + round(wait * draw.lognormvariate(0, 0.5)))
        for number, (at, wait) in enumerate((number * 5 * MINUTE, draw.randrange(HOUR, 5 * HOUR)) for number in range(300))
    ]
    whole, rule = ranged(story)
    middle = story[150].at
    early = [one for one in story if one.started is not None and one.started < middle]
    assert len(early) > 50
    assert whole[: len(early)] == ranged([one for one in story if one.at < middle])[0][: len(early)]
    assert len(rule) == len(whole) == 300


@pytest.mark.parametrize("limit", [None, 1.25])
def test_a_seed_tells_the_same_story_and_nodes_are_lost_on_the_way(limit: float | None) -> None:
    fleet = Fleet(5, 0.9, limit)
    story, world = played(5, fleet, days=1)

    assert (story, world) == played(5, fleet, days=1)
    assert story != played(6, fleet, days=1)[0]
    assert all(one.waits.low <= one.waits.middle <= one.waits.high for one in story)
    assert all(one.started is None or one.started > one.at for one in story)
    assert len(story) > 10
    assert set(WORLDS) == {"limited", "open"}
