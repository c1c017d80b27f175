"""The load that running jobs are to bring, in sum."""

from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboards.fingerprints.fleet import FleetAhead, fleet_ahead
from dashboards.fingerprints.forecast import Going, load_ahead
from dashboards.fingerprints.store import runs_learn, runs_note
from tests import builders
from tests.builders import NOON
from tests.dashboards.fingerprints.drawn import drawn_run
from tests.dashboards.fingerprints.worlds import MINUTE, minutes_stored, run_made
from tests.dashboards.worlds import gpus_of

runs = st.builds(
    Going,
    gpus=st.floats(1, 64),
    began=st.floats(-90_000, 0),
    load=st.floats(0, 3600),
    loading=st.floats(0, 0.2),
    working=st.floats(0.2, 1),
    period=st.none() | st.floats(180, 7200),
    anchor=st.floats(-9000, 0),
)


def test_a_load_that_ends_and_checkpoints_come_when_they_are_due() -> None:
    run = Going(8, began=-60, load=660, loading=0.05, working=0.8, period=1200, anchor=600)

    steps = load_ahead([run], step=300, count=12)

    assert [step.computing for step in steps[:3]] == [pytest.approx(0.4), pytest.approx(0.4), pytest.approx(6.4)]
    assert [step.loaded for step in steps[:3]] == [0, 0, 8]
    assert sum(step.saving for step in steps[5:7]) == pytest.approx(8, rel=0.05)  # at 1,800 s
    assert steps[3].saving == pytest.approx(0, abs=0.2)


@given(st.lists(runs, max_size=5))
def test_no_more_computes_than_there_is_and_each_period_has_its_checkpoint(going) -> None:
    steps = load_ahead(going, step=300, count=24)

    gpus = sum(run.gpus for run in going)
    assert all(0 <= step.computing <= gpus * 1.0001 and step.saving >= -1e-9 for step in steps)
    most = sum(run.gpus * (7200 / run.period + 2) for run in going if run.period)
    assert sum(step.saving for step in steps) <= most + 1e-6


def test_the_moment_of_a_checkpoint_fades_with_each_that_lies_between() -> None:
    run = Going(1, began=-90_000, load=0, loading=0, working=0.8, period=1200, anchor=-60)

    saving = [step.saving for step in load_ahead([run], step=300, count=72)]

    assert max(saving[:4]) > 0.6
    assert saving[-4:] == [pytest.approx(0.25, abs=0.05)] * 4


@pytest.mark.parametrize("count", [1, 5, 40])
def test_eight_times_in_ten_what_computes_lies_in_the_range(count) -> None:
    drawn = np.random.default_rng(count)
    gpus = [float(one) for one in drawn.integers(1, 16, count)]
    expected = [Going(one, began=-9000, load=0, loading=0, working=0.5, spread=0.1) for one in gpus]

    (step,) = load_ahead(expected, step=300, count=1)

    came = (drawn.normal(0.5, 0.1, (4000, count)) * gpus).sum(axis=1)
    assert np.mean((came >= step.low) & (came <= step.high)) == pytest.approx(0.8, abs=0.025)
    assert step.low < step.computing < step.high


def test_no_range_reaches_below_none_or_above_all_of_them() -> None:
    (step,) = load_ahead([Going(8, began=-9000, load=0, loading=0, working=0.9, spread=0.4)], step=300, count=1)
    assert (step.high, step.low) == (8, pytest.approx(8 * (0.9 - 1.2816 * 0.4)))
    (step,) = load_ahead([Going(8, began=-9000, load=0, loading=0, working=0.1, spread=0.4)], step=300, count=1)
    assert step.low == 0


@pytest.mark.django_db
def test_the_sum_is_of_running_jobs_and_says_what_is_not_in_it(django_assert_max_num_queries) -> None:
    def cluster(name: str):
        return gpus_of(builders.node(f"{name}1", gpus=2, of=builders.cluster(name)))

    for number in range(3):
        gpus = cluster(f"past{number}")
        minutes_stored(gpus, drawn_run(minutes=120, seed=number).counters, since=NOON - 4 * 60 * MINUTE)
        run_made("train", gpus, since=NOON - 4 * 60 * MINUTE, until=NOON - 2 * 60 * MINUTE)
    north, south = cluster("north"), cluster("south")
    minutes_stored(north, drawn_run(minutes=100, seed=9).counters, since=NOON - 100 * MINUTE)
    known = run_made("train", north, since=NOON - 100 * MINUTE, until=None)
    run_made("other", south, since=NOON - 100 * MINUTE, until=None)
    runs_note(since=NOON - 5 * 60 * MINUTE, now=NOON)
    runs_learn(now=NOON)

    with django_assert_max_num_queries(3):
        found = fleet_ahead(hours=2, now=NOON)

    assert (found.gpus, found.others, len(found.steps)) == (2, 2, 24)
    assert (found.jobs, found.other_jobs) == (1, 1)
    assert all(0 < step.low < step.computing < step.high <= 2 for step in found.steps), "runs of the past differ"
    assert np.mean([step.computing for step in found.steps]) == pytest.approx(2 * 0.68, abs=0.05)
    # It saves every 12 minutes, and did so last at 150 + 12 x 8 x 60 s or so: the next is near the eighth minute from there.
    drawn = drawn_run(minutes=140, seed=9)
    due = min(at for at in drawn.saves if at > 100 * 60) - 100 * 60
    assert sum(step.saving for step in found.steps[max(0, int(due // 300) - 1) : int(due // 300) + 2]) > 1.5
    mine, other = known.job.quota, builders.quota("elsewhere", parent=known.job.quota)
    assert fleet_ahead(hours=1, now=NOON, quota=mine).gpus == 2
    assert (nobody := fleet_ahead(hours=1, now=NOON, quota=other)) == FleetAhead(NOON, nobody.steps, 0, 0, 0, 0)
    assert fleet_ahead(hours=1, now=NOON, gpu_type=north[0].gpu_type_id).gpus == 2
    assert fleet_ahead(hours=1, now=NOON, gpu_type="none").gpus == 0
    only = known.placements.first().node.cluster
    assert fleet_ahead(hours=1, now=NOON, cluster=only).gpus == 2
    assert fleet_ahead(hours=1, now=NOON + timedelta(days=1), cluster=south[0].node.cluster).gpus == 0
