"""The catalogue of splits against an exhaustive count, and every message a person can meet."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.engine.model.mig import (
    BOARDS,
    Board,
    Instance,
    board_of,
    layout_faults,
    room_for,
    valid_layout,
)
from scheduler.hardware.layouts import layouts, maximal_layouts, stranded

H100 = BOARDS["H100-80"]
BASE = ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
DOUBLE = (*BASE, "1g.20gb")
ALL = (*DOUBLE, "1g.10gb+me")


@pytest.mark.parametrize(("profiles", "count", "maximal"), [(BASE, 298, 19), (DOUBLE, 723, 78), (ALL, 2319, 239)])
def test_layouts_number_what_an_exhaustive_search_counts(profiles: tuple[str, ...], count: int, maximal: int) -> None:
    found = list(layouts(H100, profiles))

    assert len(found) == len(set(found)) == count
    assert len(maximal_layouts(H100, profiles)) == maximal


def test_base_profiles_make_37_multisets_of_which_14_are_maximal() -> None:
    def kinds(layout: tuple[Instance, ...]) -> tuple[tuple[str, int], ...]:
        return tuple(sorted(Counter(instance.profile for instance in layout).items()))

    assert len({kinds(layout) for layout in layouts(H100, BASE) if layout}) == 37
    assert len({kinds(layout) for layout in maximal_layouts(H100, BASE)}) == 14


def test_a_full_layout_is_never_charged_more_than_the_gpu() -> None:
    for board in BOARDS.values():
        for layout in maximal_layouts(board):
            charged = sum(board.charge_milli(profile) for i in layout if (profile := board.profile(i.profile)))
            assert charged <= 1000, (board.name, layout)


@pytest.mark.parametrize(
    ("instances", "message"),
    [
        ([(0, "5g.50gb")], "H100-80 has no profile 5g.50gb; it has 1g.10gb"),
        ([(2, "3g.40gb")], "3g.40gb can't start at slice 2 on H100-80; it can at 0, 4"),
        ([(0, "4g.40gb"), (0, "1g.10gb")], "overlaps 1g.10gb at slice 0 on memory slice 0"),
        ([(0, "2g.20gb"), (2, "2g.20gb"), (4, "2g.20gb"), (6, "1g.20gb"), (5, "1g.10gb")], "8 compute slices; H100-80 has 7"),
        ([(0, "1g.10gb+me"), (1, "1g.10gb+me")], "2 x 1g.10gb+me; H100-80 holds at most 1"),
        ([(0, "4g.40gb"), (4, "4g.40gb")], "4g.40gb can't start at slice 4"),
    ],
)
def test_an_impossible_layout_is_refused_by_what_is_wrong(instances: list[tuple[int, str]], message: str) -> None:
    faults = layout_faults(H100, [Instance(*item) for item in instances])

    assert any(message in fault for fault in faults), faults


def test_small_instances_leave_room_for_large_ones() -> None:
    assert room_for(H100, (), "3g.40gb") == (4, 0)
    assert room_for(H100, (), "1g.10gb")[0] == 6
    assert room_for(H100, (Instance(0, "4g.40gb"),), "3g.40gb") == (4,)


def test_stranding_of_layouts_that_look_full() -> None:
    assert stranded(H100, [Instance(0, "3g.40gb"), Instance(4, "3g.40gb")]) == (1, 0)
    assert stranded(H100, [Instance(start, "1g.10gb") for start in range(7)]) == (0, 1)


@pytest.mark.parametrize(
    ("gpu_type", "board"),
    [
        ("H100-SXM-80GB", "H100-80"),
        ("A100-SXM-40GB", "A100-40"),
        ("NVIDIA A100-SXM4-80GB", "A100-80"),
        ("H200", "H200-141"),
        ("GB200-NVL72-189GB", "GB200-186"),
        ("A30", "A30-24"),
        ("A100", None),
        ("L40S-48GB", None),
        ("T4", None),
    ],
)
def test_the_board_is_read_off_the_type(gpu_type: str, board: str | None) -> None:
    found = board_of(gpu_type)
    assert (found.name if found else None) == board


@st.composite
def placements(draw: st.DrawFn) -> tuple[Board, list[Instance]]:
    board = draw(st.sampled_from(list(BOARDS.values())))
    names = st.sampled_from([profile.name for profile in board.profiles])
    return board, draw(st.lists(st.builds(Instance, st.integers(0, 7), names), max_size=8))


@given(placements())
def test_room_for_one_more_is_what_a_check_of_the_larger_layout_says(case: tuple[Board, list[Instance]]) -> None:
    board, instances = case
    if not valid_layout(board, instances):
        return
    for profile in board.profiles:
        wider = {start for start in range(8) if valid_layout(board, [*instances, Instance(start, profile.name)])}
        assert set(room_for(board, tuple(instances), profile.name)) == wider
