"""Power caps of the past: what-ifs replay under those that were in force, each from when it was set until it was changed or removed."""

import json
from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest

from gpufleet.core.times import millis
from scheduler.engine.model.values import NO_POWER
from scheduler.loop.policy import policy
from scheduler.scenarios.reading import load, parse
from scheduler.services.forecasts.history import history
from scheduler.services.forecasts.pasts import Days, TraceHere
from scheduler.services.power import cap_change, cap_remove, cap_set
from scheduler.simulation.calendar import Capped
from scheduler.simulation.span import HOUR, played
from scheduler.snapshots import Snapshots
from scheduler.snapshots.power import caps_of_span
from scheduler.whatifs.wanted import Wanted
from tests.builders import NOON
from tests.scheduler.past_worlds import two_full_nodes

H100, HOURS = "H100-SXM-80GB", timedelta(hours=1)


def waited(caps, *, at=3, step=0):
    """Hours that a job of 8 GPUs waits for an idle fleet of 8 that draws 800 W each, where it comes so many hours after the beginning."""
    scenario = parse(
        {
            "format": "gpufleet-scenario/1",
            "now": "2026-11-02T00:00:00Z",
            "settings": {"forecast": "none"},
            "nodes": [{"name": "n", "gpu_type": "H100", "gpus": 8}],
            "quotas": [{"name": "a", "guaranteed": 8}],
            "power": {"gpu_watts": {"H100": 800}, "caps": []},
            "jobs": [{"name": "j", "quota": "a", "roles": [{"name": "worker", "gpus": 8, "min": 1}]}],
        }
    )
    start = scenario.now
    made = [Capped(None, watts, *(None if hour is None else start + round(hour * HOUR) for hour in at_hours)) for watts, *at_hours in caps]
    hours = list(played(scenario, [[0, start + at * HOUR, HOUR, HOUR, HOUR, "a"]], 12, lambda: True, (), None, step, made))
    return hours[-1]["table"]["a"][2] / HOUR


@pytest.mark.parametrize("step", [0, 60_000])
def test_a_cap_holds_while_it_is_known_and_applies(step):
    assert waited([]) == 0
    assert waited([(5000, 2, 6, 0, None)], step=step) == pytest.approx(3, abs=0.05), "until it ends"
    assert waited([(5000, 2, None, 0, 5)], step=step) == pytest.approx(2, abs=0.05), "until it was removed"
    assert waited([(5000, 2, None, 0, 5), (6400, 2, None, 5, None)], step=step) == pytest.approx(2, abs=0.05), "until it was raised"
    assert waited([(6400, 0, None, 0, None)], step=step) == 0, "what suffices holds nothing up"


def test_nobody_waits_for_a_cap_that_was_not_known_yet_and_a_coming_one_holds_up_what_would_run_into_it():
    assert waited([(5000, 3.5, 8, 3.2, None)]) == 0, "it was set once the job ran"
    assert waited([(5000, 3.5, 8, 1, None)]) == pytest.approx(5, abs=0.05)


@pytest.fixture
def caps(personas, monkeypatch):
    """One that was raised five hours ago and removed two hours ago, one that stands, one of an hour of each day, and one that was over long ago."""
    access, begin = personas.access("operator"), NOON - 40 * HOURS

    def at(moment):
        monkeypatch.setattr("gpufleet.core.audit.now", lambda: moment)
        return moment

    made = [{"watts": watts, "starts_at": begin} for watts in (1000, 8000, 99_000)]
    made.append({"watts": 50_000, "starts_at": begin, "ends_at": begin + HOURS, "rule": "FREQ=DAILY"})
    old, raised, *_ = [cap_set(access=access, given=given, now=at(begin)) for given in made]
    at(begin + HOURS)
    cap_remove(access=access, one=old, now=NOON)
    cap_change(access=access, one=raised, given={"watts": 12_000}, now=at(NOON - 5 * HOURS))
    at(NOON - 2 * HOURS)
    cap_remove(access=access, one=raised, now=NOON)


@pytest.mark.django_db
def test_the_caps_of_a_span_are_told_from_rows_and_from_the_audit_log(caps, django_assert_num_queries):
    begin = NOON - 10 * HOURS
    with django_assert_num_queries(3):
        power, found = caps_of_span(begin, NOON, {H100}, horizon_ms=HOUR)

    assert power.gpu_watts == ((H100, 700),) and not power.caps
    spans = [(one.watts, (one.known - millis(begin)) / HOUR, one.gone and (one.gone - millis(begin)) / HOUR) for one in found]
    assert [one for one in spans if one[0] != 50_000] == [(8000, 0, 5), (99_000, 0, None), (12_000, 5, 8)]
    recurring = [one for one in found if one.watts == 50_000]
    assert len(recurring) > 3 and all(one.end is not None and one.end - one.start == HOUR for one in recurring)
    assert caps_of_span(NOON - 39 * HOURS, NOON, {H100}, horizon_ms=HOUR)[1][0].watts != 1000, "what was over by then is none of it"
    assert caps_of_span(NOON - 60 * HOURS, NOON, {H100}, horizon_ms=HOUR)[1][0].known == millis(NOON - 40 * HOURS)


def told(past):
    """Of each side its power caps: of the scenario that it begins with, and those that come and go."""
    found = past.cut(24)
    assert found is not None
    lines = [side.text.splitlines() for side in found.parts]
    return [load(scenario) for scenario, *_ in lines], [[Capped(*row) for row in json.loads(given)] for *_, given in lines]


@pytest.mark.django_db
def test_both_sides_of_a_what_if_of_the_past_have_them_and_a_trace_those_that_stand(caps, personas):
    two_full_nodes(personas)
    chosen = policy()
    snapshot = Snapshots().take(settings=chosen.engine, now=NOON, start_timeout=chosen.start_timeout)
    scenarios, given = told(Days(snapshot, None, Wanted(), NOON))
    for scenario, mine in zip(scenarios, given, strict=True):
        assert dict(scenario.power.gpu_watts)[H100] == 700
        assert {one.watts for one in mine} == {8000, 12_000, 50_000, 99_000}

    trace = replace(scenarios[0], power=NO_POWER, jobs=tuple(replace(job, work_ms=HOUR) for job in scenarios[0].jobs))
    scenarios, given = told(TraceHere(trace, snapshot, None, Wanted(trace="t", here=True), NOON))
    assert [[cap.watts for cap in scenario.power.caps] for scenario in scenarios] == [[99_000]] * 2
    assert given == [[], []]


@pytest.mark.django_db
def test_the_own_past_as_a_scenario_has_each_cap_as_long_as_it_was_set(caps, personas):
    two_full_nodes(personas)

    scenario = load(history(length=10 * HOURS, now=NOON, left_out=Counter()))

    hours = {cap.watts: (max(0, (cap.start - scenario.now) / HOUR), cap.end and (cap.end - scenario.now) / HOUR) for cap in scenario.power.caps}
    assert (hours[8000], hours[12_000], hours[99_000]) == ((0, 5), (5, 8), (0, None))
