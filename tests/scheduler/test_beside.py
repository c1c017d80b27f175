"""Futures that are played in a process of their own come out as they do here."""

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.services.forecasts.beside import waits_foreseen_beside
from scheduler.simulation.futures import Stage, past_of, waits_foreseen
from tests.scheduler.simulation.test_futures import fleet, job


@settings(max_examples=5, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([1, 4, 8]), st.integers(1, 8)), min_size=2, max_size=12), st.integers(0, 1000))
def test_they_come_out_the_same(drawn: list[tuple[int, int]], seed: int) -> None:
    scenario = fleet([job(f"j{number}", gpus, hours, at=number) for number, (gpus, hours) in enumerate(drawn)])
    past = past_of([("a", 100, 50), ("a", 100, 130), ("b", 100, 300)], scenario.jobs)
    names = {each.name for each in scenario.jobs}

    assert waits_foreseen_beside(scenario, past, names, seed=seed) == waits_foreseen(Stage(scenario, past), names, seed=seed)
