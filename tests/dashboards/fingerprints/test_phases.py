"""Phases of runs: what was drawn is found again, and what was not read is never made up."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboards.fingerprints.learning import Confidence, fingerprint_of
from dashboards.fingerprints.phases import COUNTERS, Phase, change_points, recurring, run_phases
from tests.dashboards.fingerprints.drawn import blind, drawn_run

SEEDS = st.integers(0, 2**32 - 1)


def of(run, phase):
    return [part for part in run.parts if part.phase == phase]


@settings(deadline=None)
@given(
    load=st.floats(90, 900),
    period=st.floats(420, 1800),
    save=st.floats(45, 150),
    level=st.floats(50, 95),
    noise=st.floats(0, 2),
    seed=SEEDS,
)
def test_drawn_phases_are_found_again(load, period, save, level, noise, seed):
    drawn = drawn_run(minutes=240, load=load, period=period, save=save, level=level, noise=noise, seed=seed)

    run = run_phases(drawn.counters)

    (loaded,) = of(run, Phase.LOAD)
    assert loaded.first == 0
    assert loaded.seconds == pytest.approx(load, abs=25)
    assert run.level == pytest.approx(level, abs=5)
    found = of(run, Phase.CHECKPOINT)
    # One that falls into two minutes is half as deep in each; few of them may be missed, and none added.
    assert 0.75 * len(drawn.saves) <= len(found) <= len(drawn.saves)
    assert run.period == pytest.approx(period / 60, rel=0.12)
    assert all(any(part.first - 1 <= at / 60 <= part.first + part.minutes + 1 for at in drawn.saves) for part in found)
    assert float(np.median([part.seconds for part in found])) == pytest.approx(save, abs=25)


@settings(deadline=None)
@given(minutes=st.integers(1, 300), level=st.floats(0, 100), noise=st.floats(0, 12), seed=SEEDS)
def test_steady_work_has_one_phase(minutes, level, noise, seed):
    rng = np.random.default_rng(seed)
    sm = np.clip(level + rng.normal(0, noise, minutes), 0, 100)

    run = run_phases(dict.fromkeys(COUNTERS, sm))

    assert not of(run, Phase.CHECKPOINT)
    assert not of(run, Phase.LOAD) or run.level is not None
    if noise <= 3 and level >= 20:
        assert [part.phase for part in run.parts] == [Phase.COMPUTE]


@settings(deadline=None)
@given(
    st.lists(st.one_of(st.none(), st.floats(0, 100)), max_size=120), st.sets(st.sampled_from(COUNTERS[1:])), st.one_of(st.none(), st.floats(0, 60))
)
def test_nothing_is_made_up(values, unread, lead):
    """Whatever the readings are, parts cover the run without a gap, and each minute without a reading is unknown."""
    sm = np.array([np.nan if value is None else value for value in values], np.float64)
    counters = blind(dict.fromkeys(COUNTERS, sm), sorted(unread))

    run = run_phases(counters, lead=lead)

    assert [part.first for part in run.parts] == [0, *(part.first + part.minutes for part in run.parts)][: len(run.parts)]
    assert sum(part.minutes for part in run.parts) == run.minutes == len(values)
    assert run.read == sum(value is not None for value in values)
    for part in run.parts:
        minutes = values[part.first : part.first + part.minutes]
        assert all(value is None for value in minutes) if part.phase == Phase.UNKNOWN else all(value is not None for value in minutes)
        assert all(part.levels[COUNTERS.index(name)] is None for name in unread)
        assert part.seconds >= 0


def test_a_run_without_readings_has_no_phases():
    drawn = drawn_run()

    run = run_phases(blind(drawn.counters, ["sm"]))

    assert [(part.phase, part.minutes) for part in run.parts] == [(Phase.UNKNOWN, 180)]
    assert run.level is None and run.read == 0 and run.period is None


def test_a_gap_in_the_readings_is_unknown_and_ends_no_phase():
    drawn = drawn_run(minutes=240)

    run = run_phases(blind(drawn.counters, COUNTERS, slice(100, 131)))

    assert [(part.first, part.minutes) for part in of(run, Phase.UNKNOWN)] == [(100, 31)]
    assert run.period == pytest.approx(drawn.period / 60, rel=0.12)


def test_a_load_that_was_not_read_from_the_beginning_is_no_load():
    drawn = drawn_run(load=600)

    unread = run_phases(blind(drawn.counters, COUNTERS, slice(0, 2)))
    late = run_phases(drawn.counters, lead=None)

    assert not of(unread, Phase.LOAD) and not of(late, Phase.LOAD)


def test_the_seconds_before_the_first_whole_minute_belong_to_the_load():
    drawn = drawn_run(load=300)

    assert of(run_phases(drawn.counters, lead=40.0), Phase.LOAD)[0].seconds == pytest.approx(340, abs=20)


def test_what_frees_its_memory_saves_no_checkpoint():
    drawn = drawn_run(save=120)
    low = drawn.counters["sm"] < 50
    drawn.counters["memory"][low] = 10

    run = run_phases(drawn.counters)

    assert not of(run, Phase.CHECKPOINT) and len(of(run, Phase.IDLE)) >= len(drawn.saves) - 1


def test_a_reported_checkpoint_names_a_dip_that_does_not_recur():
    drawn = drawn_run(minutes=60, period=1500)

    alone = run_phases(drawn.counters)
    told = run_phases(drawn.counters, reported=[drawn.saves[0] / 60 + 0.5])

    assert not of(alone, Phase.CHECKPOINT)
    assert [part.first for part in of(told, Phase.CHECKPOINT)] == [int((drawn.saves[0] - 15) // 60)]


def test_less_work_for_an_hour_is_not_idle_and_no_work_is():
    sm = np.concatenate([np.full(120, 80.0), np.full(60, 48.0), np.full(120, 80.0), np.full(60, 2.0)])

    run = run_phases(dict.fromkeys(COUNTERS, sm))

    assert [(part.phase, part.minutes) for part in run.parts] == [(Phase.COMPUTE, 300), (Phase.IDLE, 60)]


def test_a_run_that_never_computes_is_idle():
    assert [part.phase for part in run_phases({name: np.full(50, 1.0) for name in COUNTERS}).parts] == [Phase.IDLE]


@given(st.floats(4, 60), st.integers(5, 30), st.lists(st.floats(-0.4, 0.4), min_size=30, max_size=30), st.sets(st.integers(1, 28), max_size=2))
def test_a_period_is_found_though_some_are_missed(period, count, wobble, missed):
    moments = [place * period + wobble[place] for place in range(count) if place not in missed or not 0 < place < count - 1]
    seen = [round(moment / period) for moment in moments]

    found, chain = recurring(moments)

    if len(moments) >= 5 and all(later - one <= 3 for one, later in pairwise(seen)) and len(moments) >= 0.7 * (seen[-1] - seen[0] + 1):
        assert found == pytest.approx(period, rel=0.2)
        assert len(chain) >= len(moments) - 1


@given(st.lists(st.floats(0, 1000), max_size=3))
def test_three_moments_recur_in_no_period(moments):
    assert recurring(sorted(moments)) == (None, [])


def test_change_points_are_where_the_mean_changes():
    rng = np.random.default_rng(7)
    table = np.concatenate([np.full(40, 20.0), np.full(3, 60.0), np.full(50, 22.0)])[None] + rng.normal(0, 1.5, (1, 93))

    assert change_points(table) == [0, 40, 43]


# ---- Over runs ----


@settings(deadline=None)
@given(st.permutations(range(9)))
def test_the_order_of_runs_makes_no_difference(order):
    runs = [run_phases(drawn_run(seed=seed, load=100 + 20 * seed, level=50 + 4 * seed).counters) for seed in range(9)]

    assert fingerprint_of(runs[place] for place in order) == fingerprint_of(runs)


def test_a_fingerprint_tells_what_its_runs_have_in_common():
    runs = [run_phases(drawn_run(seed=seed, minutes=150 + 10 * seed).counters) for seed in range(10)]

    found = fingerprint_of(runs)

    assert (found.runs, found.confidence, found.left_out) == (10, Confidence.GOOD, 0)
    assert {one.phase for one in found.phases} == {Phase.LOAD, Phase.COMPUTE, Phase.CHECKPOINT}
    assert sum(one.share for one in found.phases) == pytest.approx(1, abs=0.01)
    assert found.period is not None and found.period.median == pytest.approx(12, abs=0.5) and found.period_runs == 10
    computing = found.phase(Phase.COMPUTE)
    assert computing is not None
    assert computing.levels == pytest.approx({"sm": 70, "memory": 85, "tensor": 42, "dram": 35}, abs=1.5)


def test_two_runs_are_not_enough_and_say_so():
    found = fingerprint_of([run_phases(drawn_run(seed=seed).counters) for seed in range(2)] + [run_phases(drawn_run(minutes=6).counters)])

    assert (found.confidence, found.runs, found.left_out, found.phases, found.period) == (Confidence.NOT_ENOUGH, 2, 1, (), None)


def test_runs_that_differ_are_told_with_low_confidence():
    runs = [run_phases(drawn_run(seed=seed, minutes=120, load=60 if seed % 2 else 5000).counters) for seed in range(12)]

    assert fingerprint_of(runs).confidence == Confidence.LOW


def test_a_counter_that_no_run_has_is_in_no_phase():
    runs = [run_phases(blind(drawn_run(seed=seed).counters, ["dram", "tensor"])) for seed in range(4)]

    assert all(one.levels.keys() == {"sm", "memory"} for one in fingerprint_of(runs).phases)
