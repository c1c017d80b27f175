"""What is free and useless, against an obvious count of the same."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dashboards.fragmentation.measure import Pile, Room, Shape, SplitGpu, Why, scattered, typical

H100, A100 = "H100", "A100"


def room(free: list[int], *, leaf: int = 2, types: list[str] | None = None, parts: int = 0, cpu_milli: int = 10**12) -> Room:
    """Nodes with so many idle GPUs, `leaf` of them under each leaf."""
    size = len(free)
    return Room(
        types or [H100] * size,
        ["main"] * size,
        np.array(free, np.int64),
        np.array([parts, *[0] * (size - 1)], np.int64),
        np.full(size, cpu_milli, np.int64),
        np.full(size, 10**9, np.int64),
        {"cluster": np.zeros(size, np.int64), "leaf": np.arange(size) // leaf, "node": np.arange(size)},
    )


def causes(pile: Pile) -> dict[Why, int]:
    return {why: milli for why, milli in pile.waiting.useless.items() if milli}


def test_what_is_left_of_nodes_is_useless_to_whole_node_jobs() -> None:
    found = scattered(room([8, 3, 1, 0]), {Shape(1, 8): 1, Shape(1, 1): 3}, {})
    (pile,) = found.piles

    assert pile.free_milli == 12_000
    assert causes(pile) == {Why.PARTIAL: 1000}  # 4 GPUs to one job in four
    assert pile.usual.jobs == 0
    assert pile.idle == {8: 1, 3: 1, 1: 1}
    assert found.largest == {H100: {"cluster": 12, "leaf": 11, "node": 8}}
    assert not found.kept_out


def test_a_gang_that_has_to_stay_together_is_kept_out_by_topology() -> None:
    gang = Shape(2, 8, frozenset((H100,)), "leaf")
    found = scattered(room([8, 0, 8, 0]), {gang: 2}, {})

    assert found.piles[0].waiting.useless[Why.TOPOLOGY] == 16_000
    (out,) = found.kept_out
    assert (out.why, out.free, out.room, out.jobs) == (Why.TOPOLOGY, 16, 1, 2)


def test_processors_and_shared_gpus_have_their_own_causes() -> None:
    found = scattered(room([4, 4], parts=500, cpu_milli=1500), {Shape(1, 2, cpu_milli=1500): 1}, {})

    assert causes(found.piles[0]) == {Why.HOST: 4000, Why.SPLIT: 500}
    assert not found.kept_out


def test_jobs_that_take_parts_can_use_all_of_it() -> None:
    (pile,) = scattered(room([3], parts=500), {Shape(1, 0): 3, Shape(1, 2): 1}, {}).piles

    assert causes(pile) == {Why.PARTIAL: 250, Why.SPLIT: 125}


def test_too_few_of_all_is_short_and_not_fragmented() -> None:
    (pile,) = scattered(room([4, 2]), {Shape(1, 8): 1}, {}).piles

    assert (pile.waiting.milli, pile.waiting.short) == (0, 6000)


def test_jobs_count_only_for_types_that_they_accept() -> None:
    found = scattered(room([3, 3], types=[H100, A100]), {Shape(1, 2, frozenset((A100,))): 1}, {})

    assert {pile.gpu_type: pile.waiting.milli for pile in found.piles} == {A100: 1000, H100: 0}


def test_what_a_reservation_keeps_is_useless_to_others_and_serves_its_owner() -> None:
    kept = ((H100, 6),)
    (pile,) = scattered(room([8, 8]), {Shape(1, 4, kept=kept): 1}, {}).piles
    assert causes(pile) == {Why.RESERVATION: 6000}

    found = scattered(room([8, 8]), {Shape(2, 8, kept=kept): 1}, {})
    assert causes(found.piles[0]) == {Why.RESERVATION: 16_000}, "what is left does not suffice"
    (out,) = found.kept_out
    assert (out.why, out.free, out.room) == (Why.RESERVATION, 16, 1)

    owner = scattered(room([8, 8]), {Shape(2, 8): 1}, {})
    assert not causes(owner.piles[0]) and not owner.kept_out


def test_parts_that_a_profile_does_not_fit_are_of_the_geometry() -> None:
    splits = [SplitGpu(0, 571, (("1g.10gb", 285), ("2g.20gb", 286))), SplitGpu(1, 500)]
    fleet = replace(room([1, 0], parts=571), splits=splits, profiles={H100: frozenset(("1g.10gb", "2g.20gb"))})

    def useless(shape: Shape) -> dict[Why, int]:
        return causes(scattered(fleet, {shape: 1}, {}).piles[0])

    assert useless(Shape(1, 0, mig="1g.10gb")) == {Why.GEOMETRY: 286, Why.SPLIT: 500}
    assert useless(Shape(1, 0, mig="9g.90gb")) == {Why.GEOMETRY: 1571, Why.SPLIT: 500}
    assert useless(Shape(1, 0, share_milli=300)) == {Why.GEOMETRY: 571, Why.SPLIT: 200}


SHAPES = st.tuples(st.integers(1, 4), st.sampled_from([1, 2, 4, 8]), st.sampled_from(["", "leaf", "node"])).map(
    lambda drawn: Shape(drawn[0], drawn[1], level=drawn[2])
)


@given(st.lists(st.integers(0, 8), min_size=1, max_size=8), SHAPES)
def test_what_is_not_useless_serves(free: list[int], shape: Shape) -> None:
    (pile,) = scattered(room(free), {shape: 1}, {}).piles
    width = {"": len(free), "leaf": 2, "node": 1}[shape.level]
    domains = [free[start : start + width] for start in range(0, len(free), width)]
    serving = [sum(idle // shape.gpus for idle in domain) for domain in domains]
    useful = sum(slots for slots in serving if slots >= shape.workers) * shape.gpus

    assert pile.waiting.milli + pile.waiting.short == 1000 * (sum(free) - (useful if sum(free) >= shape.whole else 0))
    assert pile.free_milli == 1000 * sum(free)


@given(st.lists(st.integers(0, 8), min_size=1, max_size=8), SHAPES, st.integers(1, 40))
def test_a_reservation_makes_at_least_what_it_keeps_useless_and_never_more_than_is_free(free: list[int], shape: Shape, kept: int) -> None:
    (without,) = scattered(room(free), {shape: 1}, {}).piles
    (pile,) = scattered(room(free), {shape._replace(kept=((H100, kept),)): 1}, {}).piles
    useful = pile.free_milli - without.waiting.milli - without.waiting.short

    assert {why: milli for why, milli in causes(pile).items() if why != Why.RESERVATION} == causes(without)
    assert min(useful, 1000 * kept) <= pile.waiting.useless[Why.RESERVATION] <= useful
    assert pile.waiting.short == without.waiting.short


def test_the_usual_demand_is_its_commonest_shapes() -> None:
    assert typical({Shape(1, 1): 90, Shape(1, 2): 6, Shape(4, 8): 4}) == {Shape(1, 1): 90, Shape(1, 2): 6}
    assert typical({}) == {}
