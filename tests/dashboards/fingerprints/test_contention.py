"""How much two templates would slow each other down."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboards.fingerprints.contention import Resource, Usage, Use, beside, usage_of
from dashboards.fingerprints.phases import Phase

PARTS = st.floats(0, 1)


def steady(sm: float, dram: float | None = 0.2, memory: float = 0.3) -> Usage:
    levels = {"sm": sm, "memory": memory} | ({} if dram is None else {"dram": dram})
    return Usage(5, (Use(Phase.COMPUTE, 1.0, levels),))


def usages() -> st.SearchStrategy[Usage]:
    def made(rows):
        total = sum(share for share, *_ in rows) or 1
        phases = (Phase.LOAD, Phase.COMPUTE, Phase.CHECKPOINT)
        return Usage(5, tuple(Use(phase, share / total, {"sm": sm, "dram": dram}) for phase, (share, sm, dram) in zip(phases, rows, strict=False)))

    return st.lists(st.tuples(st.floats(0.01, 1), PARTS, PARTS), min_size=3, max_size=3).map(made)


@pytest.mark.parametrize(
    ("one", "other", "slower", "scarce"),
    [
        (steady(0.3), steady(0.4), 1.0, Resource.NONE),
        (steady(0.7), steady(0.8), 1.5, Resource.SM),
        (steady(0.5, 0.9), steady(0.6, 0.8), 1.7, Resource.DRAM),
    ],
)
def test_what_is_wanted_above_the_whole_slows_both_down(one, other, slower, scarce) -> None:
    found = beside(one, other)

    assert (found.gpu, found.other_gpu, found.node, found.scarce) == (pytest.approx(slower), pytest.approx(slower), 1.0, scarce)


@given(usages(), usages())
def test_it_is_between_nothing_and_all_and_the_same_from_the_other_side(one, other) -> None:
    found, turned = beside(one, other), beside(other, one)

    assert 1.0 <= found.gpu <= 2.0 + found.both_store + 0.001 and 1.0 <= found.node <= 2.001
    assert (found.gpu, found.other_gpu, found.node) == pytest.approx((turned.other_gpu, turned.gpu, turned.node), abs=0.0011)
    assert found.scarce == turned.scarce or found.both_store > 0


@given(usages(), usages(), st.floats(0, 0.5))
def test_a_neighbour_that_uses_more_slows_no_less(one, other, more) -> None:
    busier = Usage(
        other.runs, tuple(Use(use.phase, use.share, {key: min(1.0, level + more) for key, level in use.levels.items()}) for use in other.phases)
    )

    assert beside(one, busier).gpu >= beside(one, other).gpu - 0.0011


def test_loads_and_checkpoints_share_storage_for_as_long_as_they_meet() -> None:
    saving = Usage(5, (Use(Phase.COMPUTE, 0.8, {"sm": 0.1}), Use(Phase.CHECKPOINT, 0.2, {"sm": 0.02})))

    found = beside(saving, saving)

    assert (found.node, found.scarce) == (pytest.approx(1.04), Resource.STORAGE)
    assert beside(saving, steady(0.1)).node == 1.0


def test_what_was_not_read_slows_nothing_and_is_told() -> None:
    found = beside(steady(0.9, None), steady(0.5, 0.9))

    assert (found.gpu, found.unread) == (pytest.approx(1.4), ("dram",))
    assert beside(steady(0.9), steady(0.5)).unread == ()


@pytest.mark.parametrize(("memory", "fits"), [(0.4, True), (0.8, False)])
def test_memory_of_both_has_to_fit(memory, fits) -> None:
    assert beside(steady(0.1, memory=memory), steady(0.1, memory=0.5)).fits is fits


def test_a_usage_is_the_mean_of_runs_and_too_few_have_none() -> None:
    run = {"compute": [90.0, 80.0, 60.0, None, 40.0], "load": [10.0, 5.0, 30.0, None, 2.0]}

    assert usage_of([run, run]) is None
    found = usage_of([run, run, {"compute": [50.0, 50.0, 60.0, None, 40.0]}, {"unknown": [50.0, None, None, None, None]}])
    assert found is not None and found.runs == 3
    load, compute = found.phases
    assert (load.phase, load.share, load.levels) == (Phase.LOAD, pytest.approx(0.2 / 3), pytest.approx({"sm": 0.05, "memory": 0.3, "dram": 0.02}))
    assert (compute.share, compute.levels["sm"]) == (pytest.approx(2.8 / 3), pytest.approx(0.7))
    assert found.storing == pytest.approx(0.2 / 3) and found.memory == pytest.approx(0.6)
