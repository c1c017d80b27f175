"""Ranges that are learnt from what became of earlier ones."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.bench.predictions import ranged
from scheduler.benchmarks.predictions import WORLDS, Fleet, Told, played, week
from scheduler.loop.foresight import (
    ASSUMED,
    HOUR,
    MINUTE,
    PROMISED,
    SURE_MISSES,
    UNSURE_MISSES,
    Foresight,
    Measure,
    Outcome,
    Ranged,
    assumed,
    estimated,
    ruled,
    score,
)
from scheduler.simulation.futures import Waits, waits_foreseen

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
def test_a_range_reaches_no_further_than_what_was_seen(history: list[Outcome], waits: Waits) -> None:
    """Nothing is told that is further off than the furthest of the history, and of what is assumed beside it, in units."""
    foresight = Foresight(history)
    found, measure = foresight.foreseen(waits), foresight.measure
    furthest = max(abs(miss) for miss in (*map(measure.missed, history), *assumed(ASSUMED, *SURE_MISSES), *assumed(ASSUMED, *UNSURE_MISSES)))
    off = 2 * furthest * measure.unit(measure.spread(waits))

    assert found.earliest >= min(0, waits.middle - off) - 1
    assert found.latest <= waits.middle + off + 1


@given(futures)
def test_before_there_is_a_history_a_rule_tells(waits: Waits) -> None:
    found = Foresight().foreseen(waits)

    assert (found, found.known) == (ruled(waits), 0)
    assert found.at == (waits.middle if waits.high else 0)


@given(st.lists(st.builds(Outcome, futures, lengths, st.booleans()), max_size=5), futures)
def test_a_few_outcomes_hardly_change_what_the_rule_tells(history: list[Outcome], waits: Waits) -> None:
    rule, found = (one.latest - one.earliest for one in (ruled(waits), Foresight(history).foreseen(waits)))

    assert 0.5 * rule <= found <= 2 * rule


@given(histories, st.lists(futures, max_size=120), futures)
def test_who_is_told_besides_moves_only_what_counts_as_unsure(history: list[Outcome], told: list[Waits], waits: Waits) -> None:
    """What others were told has no outcome yet: it says how sure the fleet's starts are, not how far they miss."""
    alone, beside = Foresight(history), Foresight(history, told)

    assert beside.measure.usual == alone.measure.usual
    found = beside.foreseen(waits)
    assert 0 <= found.earliest <= found.at <= found.latest


def test_of_a_fleet_whose_starts_are_unsure_most_are_told_narrowly_all_the_same() -> None:
    """What is unsure hangs on the others: whoever has just come counts before he starts."""
    waits = Waits(6 * HOUR, 10 * HOUR, 16 * HOUR)
    before = Foresight().foreseen(waits)
    found = Foresight((), [waits] * 1000).foreseen(waits)

    assert before.latest - before.earliest > 2 * (found.latest - found.earliest)


def test_the_least_sure_are_held_nearly_always_and_the_others_three_times_in_four() -> None:
    """Each misses by as much as its futures spread."""
    draw = random.Random(8)

    def outcomes(count: int) -> list[Outcome]:
        found = []
        for number in range(count):
            spread = (0.5, 1, 8)[number % 3]
            middle = draw.randrange(8 * HOUR, 12 * HOUR)
            off = draw.gauss(0, spread * HOUR)
            waits = Waits(round(middle - 1.28 * spread * HOUR), middle, round(middle + 1.28 * spread * HOUR))
            found.append(Outcome(waits, max(0, round(middle + off)), number % 6 != 0))
        return found

    foresight = Foresight(outcomes(2000))
    held: dict[int, list[bool]] = {0: [], 1: [], 2: []}
    for number, outcome in enumerate(outcomes(3000)):
        found = foresight.foreseen(outcome.foreseen)
        held[number % 3].append(found.earliest <= outcome.waited <= found.latest)
    sure, also, unsure = (sum(inside) / len(inside) for inside in held.values())

    assert unsure >= 0.93
    assert sure >= also
    assert 0.7 <= (sure + also) / 2 <= 0.9


@pytest.mark.parametrize("growth", [1.5, 2])
def test_most_have_a_range_to_plan_by_also_while_a_fleet_fills_up(growth: int) -> None:
    """Everything becomes less sure with each day; still fewer than half are told that nobody can know."""
    draw = random.Random(3)
    lately: list[Waits] = []
    unsure = 0
    foresight = Foresight()
    for number in range(1500):
        if number % 10 == 0:
            foresight = Foresight((), lately)
        spread = round(draw.lognormvariate(0.5, 0.4) * growth ** (number / 500) * HOUR)
        lately.append(Waits(4 * HOUR, 4 * HOUR + spread // 2, 4 * HOUR + spread))
        unsure += foresight.measure.spread(lately[-1]) > foresight.measure.border

    assert 0.3 <= unsure / 1500 < 0.5


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("wider", [0.4, 0.8, 1.6])
def test_told_one_after_the_other_what_is_promised_is_held(seed: int, wider: float) -> None:
    """With what became of its own ranges, and with outcomes that are known only hours later, as in a week."""
    draw = random.Random(seed)
    story = []
    for number in range(1500):
        middle = round(draw.lognormvariate(1.4, 0.7) * HOUR)
        spread = round(draw.uniform(0.1, 0.5) * middle)
        waits = Waits(middle - spread // 2, middle, middle + spread // 2)
        at, waited = number * 7 * MINUTE, max(1, round(middle + wider * draw.gauss(0, 0.4) * spread))
        story.append(Told(f"j{number}", at, waits, at + waited))
    found = score(ranged(story)[0])

    assert found is not None
    assert PROMISED <= found.inside <= 0.95
    assert found.width <= 0.5 * found.wait


@given(histories, futures)
def test_more_misses_of_late_widen_a_range(history: list[Outcome], waits: Waits) -> None:
    inside, outside = (Foresight(outcome._replace(inside=inside) for outcome in history).foreseen(waits) for inside in (True, False))

    assert outside.earliest <= inside.earliest
    assert outside.latest >= inside.latest
    assert outside.at == inside.at


def test_a_history_without_any_wait_or_any_spread_is_borne() -> None:
    """Everyone started at once, or exactly as foreseen, or never near it."""
    for outcome in (Outcome(Waits(0, 0, 0), 0, True), Outcome(Waits(HOUR, HOUR, HOUR), HOUR, True), Outcome(Waits(0, 0, 1), 400 * HOUR, False)):
        foresight = Foresight([outcome] * 3000)
        assert foresight.foreseen(Waits(0, 0, 0))[:3] == (0, 0, 0)
        for waits in (Waits(HOUR, HOUR, HOUR), Waits(0, 0, 1), Waits(0, 50 * HOUR, 90 * HOUR)):
            found = foresight.foreseen(waits)
            assert 0 <= found.earliest <= found.at <= found.latest


@given(futures, st.floats(0.1, 5), st.floats(1, 3))
def test_units_grow_with_spreads_and_do_not_jump(waits: Waits, part: float, more: float) -> None:
    measure = Measure()
    one, other = part * measure.border, part * more * measure.border

    assert measure.unit(one) <= measure.unit(other) <= max(1.0, more) * measure.unit(one) + 1e-3
    assert 0 <= measure.unsure(one) <= measure.unsure(other) <= 1
    assert measure.spread(waits) > 0


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
    assert found.latest >= 1.8 * wait  # by what of them may come later
    assert found.earliest <= wait // 2


@pytest.mark.parametrize("seed", range(4))
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
    history: list[Outcome] = []
    tried: list[Ranged] = []
    for _ in range(24):
        found = Foresight(history).foreseen(waits)
        for waited in (round(hours * HOUR * (1 + draw.gauss(0, 0.12))) for _ in range(50)):
            tried.append(Ranged(found.earliest, found.at, found.latest, waited))
            history.append(Outcome(waits, waited, found.earliest <= waited <= found.latest))

    told = score(tried[200:])
    assert told is not None
    assert told.inside >= PROMISED
    assert told.width <= 0.5 * hours * HOUR


def test_one_sweep_that_misses_alike_does_not_upset_the_range() -> None:
    """Fifty jobs that all came late by the same, after as many that came as foreseen."""
    draw = random.Random(4)
    waits = Waits(HOUR, 2 * HOUR, 3 * HOUR)
    seen = [round(2 * HOUR + draw.gauss(0, 0.9) * HOUR) for _ in range(50)]
    told = ruled(waits)
    outcomes = [Outcome(waits, waited, told.earliest <= waited <= told.latest) for waited in seen + [4 * HOUR] * 50]
    usual, upset = Foresight(outcomes[:50]).foreseen(waits), Foresight(outcomes).foreseen(waits)

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


@pytest.mark.parametrize("limit", [1.25, pytest.param(None, marks=pytest.mark.soak)])
def test_a_seed_tells_the_same_story_and_nodes_are_lost_on_the_way(monkeypatch: pytest.MonkeyPatch, limit: float | None) -> None:
    fleet = Fleet(5, 0.9, limit)
    monkeypatch.setitem(waits_foreseen.__kwdefaults__, "futures", 4)  # of sixteen
    story, world = played(5, fleet, days=1)

    assert (story, world) == played(5, fleet, days=1)
    assert week(5, fleet, days=1) != week(6, fleet, days=1), "another seed is another day"
    assert all(one.waits.low <= one.waits.middle <= one.waits.high for one in story)
    assert all(one.started is None or one.started > one.at for one in story)
    assert len(story) > 10
    assert set(WORLDS) == {"limited", "open"}
