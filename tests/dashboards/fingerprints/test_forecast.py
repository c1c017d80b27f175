"""What a run does now, and when its next spike is expected."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboards.fingerprints.forecast import ahead
from dashboards.fingerprints.learning import fingerprint_of
from dashboards.fingerprints.phases import COUNTERS, Phase, run_phases
from tests.dashboards.fingerprints.drawn import Drawn, blind, drawn_run

FOUND = fingerprint_of(run_phases(drawn_run(seed=seed, load=240 + 20 * seed, save=90).counters) for seed in range(10))


def up_to(drawn: Drawn, minutes: int):
    return run_phases({name: row[:minutes] for name, row in drawn.counters.items()})


def test_a_run_that_loads_is_to_compute_as_soon_as_others_did() -> None:
    told = ahead(FOUND, up_to(drawn_run(load=300), 3))

    assert (told.phase, told.next, told.is_late) == (Phase.LOAD, Phase.COMPUTE, False)
    assert told.earliest <= told.expected <= told.latest
    assert told.expected == pytest.approx(330, abs=30)


def test_a_load_that_takes_longer_than_others_is_late() -> None:
    told = ahead(FOUND, up_to(drawn_run(load=3000), 30))

    assert (told.phase, told.is_late) == (Phase.LOAD, True)


@settings(deadline=None)
@given(minutes=st.integers(20, 170), period=st.floats(480, 1080), seed=st.integers(0, 999))
def test_the_next_checkpoint_lies_in_its_range(minutes, period, seed) -> None:
    """Of a run that has saved often enough by its own period, which is another than that of its template."""
    drawn = drawn_run(minutes=200, load=240, period=period, save=90, seed=seed)
    run = up_to(drawn, minutes)

    told = ahead(FOUND, run)

    if told.next == Phase.CHECKPOINT and run.period is not None:
        now = 60 * minutes
        assert now <= told.earliest <= told.expected <= told.latest
        coming = [at for at in drawn.saves if at > now - 180]
        assert any(told.earliest - 180 <= at <= told.latest + 180 for at in coming)


def test_a_young_run_follows_the_period_of_its_template() -> None:
    drawn = drawn_run(load=240)

    told = ahead(FOUND, up_to(drawn, 10))

    assert (told.phase, told.next) == (Phase.COMPUTE, Phase.CHECKPOINT)
    assert told.expected == pytest.approx(drawn.saves[0], abs=120)


def test_its_first_dip_is_a_checkpoint_where_its_template_saves_some() -> None:
    drawn = drawn_run(load=240, save=150)
    inside = int(drawn.saves[0] // 60) + 1

    told = ahead(FOUND, up_to(drawn, inside))

    assert (told.phase, told.next) == (Phase.CHECKPOINT, Phase.COMPUTE)


def test_nothing_is_expected_of_what_is_not_read_or_not_known() -> None:
    drawn = drawn_run()
    unknown = fingerprint_of([])

    assert ahead(FOUND, run_phases(blind(drawn.counters, COUNTERS))).phase == Phase.UNKNOWN
    assert ahead(FOUND, run_phases(blind(drawn.counters, COUNTERS, slice(170, 180)))).phase == Phase.UNKNOWN
    steady = run_phases(dict.fromkeys(COUNTERS, np.full(60, 70.0)))
    assert (ahead(unknown, steady).phase, ahead(unknown, steady).next) == (Phase.COMPUTE, None)
