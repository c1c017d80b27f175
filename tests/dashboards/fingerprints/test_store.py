"""Learning in rounds: which runs are looked at, what is read of them, and what a round costs."""

from datetime import timedelta

import numpy as np
import pytest
from django.utils import timezone

from dashboards.fingerprints.models import RunLearned
from dashboards.fingerprints.phases import COUNTERS, Phase
from dashboards.fingerprints.store import MOST_RUNS, counters_read, fingerprints_turn, holds_of, phases_stored, runs_learn, runs_note
from dashboards.models import TelemetryFrame
from gpufleet.retention import KINDS
from scheduler.models import Checkpoint, Placement
from tests import builders
from tests.builders import NOON
from tests.dashboards.fingerprints.drawn import blind, drawn_run
from tests.dashboards.fingerprints.worlds import MINUTE, minutes_stored, run_made
from tests.dashboards.worlds import gpus_of

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def learned(now=NOON, since=None) -> dict[int, RunLearned]:
    runs_note(since=since or now - 12 * HOUR, now=now)
    runs_learn(now=now)
    return RunLearned.objects.in_bulk()


def test_a_run_that_ended_is_learned_once_from_the_gpus_it_held() -> None:
    held, beside = gpus_of(builders.node("n1", gpus=2)), gpus_of(builders.node("n2", gpus=2))
    drawn = drawn_run(minutes=120)
    minutes_stored(held, drawn.counters, since=NOON - 3 * HOUR)
    run = run_made("train", held, since=NOON - 3 * HOUR, until=NOON - HOUR)
    none = run_made(None, beside, since=NOON - 3 * HOUR, until=NOON - HOUR)

    found = learned()

    assert none.pk not in found
    row = found[run.pk]
    assert (row.template, row.minutes, row.read, row.due_at, row.is_weak) == ("train", 120, 120, None, False)
    phases = phases_stored(row)
    assert [part.phase for part in phases.parts[:3]] == [Phase.LOAD, Phase.COMPUTE, Phase.CHECKPOINT]
    assert phases.period == pytest.approx(12, rel=0.1)
    assert set(row.sums) == {"load", "compute", "checkpoint"}
    assert runs_learn(now=NOON + HOUR) == 0


def test_gpus_of_several_clusters_are_read_and_none_hides_the_others() -> None:
    north = gpus_of(builders.node("n1", gpus=1))
    south = gpus_of(builders.node("s1", gpus=1, of=builders.cluster("south")))
    for gpus, level in ((north, 40.0), (south, 80.0)):
        minutes_stored(gpus, {name: np.full(10, level) for name in COUNTERS}, since=NOON - 10 * MINUTE)
    runs = [run_made("train", gpus, since=NOON - 10 * MINUTE, until=None) for gpus in (north, south)]

    keys = [run.pk for run in runs]
    found = counters_read(holds_of(keys), keys, begin=NOON - 10 * MINUTE, end=NOON)

    assert found[0].tolist() == [[40.0] * 10, [80.0] * 10]


def test_only_minutes_held_from_beginning_to_end_count_and_parts_of_gpus_never() -> None:
    whole, part = gpus_of(builders.node("n1", gpus=2))
    minutes_stored([whole, part], {name: np.full(10, 50.0) for name in COUNTERS}, since=NOON - 10 * MINUTE)
    run = run_made("train", [whole], since=NOON - timedelta(minutes=7, seconds=30), until=NOON - timedelta(minutes=2, seconds=30))
    shared = run_made("train", [part], since=NOON - 10 * MINUTE, until=None)
    Placement.objects.filter(attempt=shared).update(gpu_milli=500)

    keys = [run.pk, shared.pk]
    found = counters_read(holds_of(keys), keys, begin=NOON - 10 * MINUTE, end=NOON)

    assert np.flatnonzero(~np.isnan(found[0, 0])).tolist() == [3, 4, 5, 6]
    assert np.isnan(found[:, 1]).all()


def test_a_counter_that_is_not_read_is_unknown_and_not_zero() -> None:
    held = gpus_of(builders.node("n1", gpus=1))
    minutes_stored(held, blind(drawn_run(minutes=60).counters, ["dram"]), since=NOON - HOUR)
    run = run_made("train", held, since=NOON - HOUR, until=NOON)

    phases = phases_stored(learned(NOON + HOUR)[run.pk])

    assert {part.levels[COUNTERS.index("dram")] for part in phases.parts} == {None}


def test_a_run_that_goes_on_is_looked_at_each_time_that_it_is_twice_as_old_and_a_last_time_when_it_is_over() -> None:
    held = gpus_of(builders.node("n1", gpus=1))
    minutes_stored(held, drawn_run(minutes=240).counters, since=NOON)
    run = run_made("train", held, since=NOON, until=None)

    def due(after: timedelta) -> timedelta | None:
        row = learned(NOON + after)[run.pk]
        return None if row.due_at is None else row.due_at - NOON

    assert due(5 * MINUTE) == 15 * MINUTE
    assert not RunLearned.objects.filter(looked_at__isnull=False).exists()
    assert due(20 * MINUTE) == 40 * MINUTE
    assert due(40 * MINUTE) == 80 * MINUTE
    assert due(80 * MINUTE) == 160 * MINUTE
    run.ended_at = NOON + 100 * MINUTE
    run.save()
    Placement.objects.update(until=run.ended_at)
    assert due(101 * MINUTE) == 103 * MINUTE
    assert due(104 * MINUTE) is None
    assert RunLearned.objects.get().minutes == 100


def test_after_a_day_nothing_more_is_learned_of_a_run() -> None:
    run = run_made("train", gpus_of(builders.node("n1", gpus=1)), since=NOON, until=None)

    row = learned(NOON + 30 * HOUR)[run.pk]

    assert (row.minutes, row.due_at) == (24 * 60, None)


def test_runs_too_short_to_be_learned_from_are_not_noted() -> None:
    run_made("train", gpus_of(builders.node("n1", gpus=1)), since=NOON - 9 * MINUTE, until=NOON)

    assert learned(NOON + HOUR) == {}


def test_of_the_drivers_utilization_no_phases_are_learned() -> None:
    held = gpus_of(builders.node("n1", gpus=1))
    minutes_stored(held, drawn_run(minutes=60).counters, since=NOON - HOUR)
    ids = np.array([held[0].pk], "<u4").tobytes()
    TelemetryFrame.objects.create(
        cluster=held[0].node.cluster,
        at=NOON,
        source="nvml-driver",
        gpu_ids=ids,
        sm_active=b"\x01",
        memory_used=b"\x01",
        power_watts=b"\x01\x01",
        temperature_c=b"\x01",
    )
    run = run_made("train", held, since=NOON - HOUR, until=NOON)

    row = learned(NOON + HOUR)[run.pk]

    assert (row.is_weak, row.parts, row.read) == (True, [], 0)


def test_a_checkpoint_that_the_job_reported_names_its_dip() -> None:
    held = gpus_of(builders.node("n1", gpus=1))
    drawn = drawn_run(minutes=50, period=1500)
    minutes_stored(held, drawn.counters, since=NOON - HOUR)
    run = run_made("train", held, since=NOON - HOUR, until=NOON - 10 * MINUTE)
    Checkpoint.objects.create(job=run.job, attempt=run, step=1, reported_at=NOON - HOUR + timedelta(seconds=drawn.saves[0] + 20))

    assert Phase.CHECKPOINT in {part.phase for part in phases_stored(learned(NOON)[run.pk]).parts}


def test_a_round_asks_as_many_questions_for_many_runs_as_for_few(django_assert_max_num_queries) -> None:
    held = gpus_of(builders.node("n1", gpus=8))
    minutes_stored(held, drawn_run(minutes=60).counters, since=NOON - HOUR)
    for gpu in held:
        for begin in (60, 40):
            run_made("train", [gpu], since=NOON - begin * MINUTE, until=NOON - (begin - 15) * MINUTE)

    with django_assert_max_num_queries(15):  # two windows of time
        runs_note(since=NOON - 2 * HOUR, now=NOON)
        looked = runs_learn(now=NOON)

    assert looked == 16


def test_a_round_is_bounded_and_the_next_goes_on(monkeypatch) -> None:
    monkeypatch.setattr("dashboards.fingerprints.store.MOST_RUNS", 3)
    for number in range(5):
        run_made("train", gpus_of(builders.node(f"n{number}", gpus=1)), since=NOON - HOUR, until=NOON - 20 * MINUTE)
    runs_note(since=NOON - 2 * HOUR, now=NOON)

    assert [runs_learn(now=NOON) for _ in range(3)] == [3, 2, 0]
    assert MOST_RUNS > 3


def test_long_runs_take_more_rounds_and_each_takes_one_at_least(monkeypatch) -> None:
    monkeypatch.setattr("dashboards.fingerprints.store.MOST_CUT", 100)
    for number, minutes in enumerate((300, 60, 40, 40)):
        run_made("train", gpus_of(builders.node(f"n{number}", gpus=1)), since=NOON - 6 * HOUR, until=NOON - 6 * HOUR + minutes * MINUTE)
    runs_note(since=NOON - 7 * HOUR, now=NOON)

    assert sum(looked := [runs_learn(now=NOON) for _ in range(4)]) == 4
    assert looked[-1] == 0 and max(looked) == 2


def test_turns_begin_with_all_that_telemetry_still_has_and_go_on_from_the_last() -> None:
    moment = timezone.now()
    run_made("train", gpus_of(builders.node("n1", gpus=1)), since=moment - 30 * HOUR, until=moment - 29 * HOUR)

    assert fingerprints_turn(now=moment) is None
    assert fingerprints_turn(now=moment + MINUTE) == 1
    assert fingerprints_turn(now=moment + MINUTE) is None
    assert fingerprints_turn(now=moment + 2 * MINUTE) == 0


def test_what_was_learned_is_kept_a_quarter() -> None:
    (kind,) = (one for one in KINDS if one.model == "dashboards.RunLearned")
    assert kind.keep == timedelta(days=90)
