"""Fair shares, guarantees and orders worked out by hand from the semantics: the twin is held against these, the engine against the twin."""

from fractions import Fraction
from typing import Any

import pytest

from .boards import layout_faults, profiles_of
from .builders import H100, at, job, node, quota, running, scenario
from .laws import LAWS
from .order import queue_key, ratio, serves_first
from .shares import Figures, divide, figures, line_up
from .world import ALL, read

A100 = "A100-SXM-40GB"


def member(name: str, *, wants: float, guaranteed: float | None = 0, limit: float | None = None, **more: Any) -> Figures:
    def thousandfold(number: float | None) -> int | None:
        return None if number is None else round(number * 1000)

    values = {"weight": Fraction(1), "priority": 100, "created": 0, "usage": Fraction(0), **more}
    return Figures(name, thousandfold(guaranteed), thousandfold(limit), requested=round(wants * 1000), **values)


def shares(pool: float, *members: Figures, usage_weight: int = 0) -> dict[str, float]:
    divide(round(pool * 1000), list(members), Fraction(usage_weight))
    return {entry.quota: entry.fair / 1000 for entry in members}


def test_guarantees_come_first_and_the_surplus_goes_by_weight():
    a = member("a", wants=10, guaranteed=4, weight=Fraction(1))
    b = member("b", wants=10, guaranteed=2, weight=Fraction(3))

    assert shares(10, a, b) == {"a": 5, "b": 5}  # 4 are left: one to a, three to b


def test_the_last_gpu_goes_to_the_older_of_equals():
    names = [member("a", wants=9), member("b", wants=9, created=-5), member("c", wants=9)]

    assert shares(7, *names) == {"a": 2, "b": 3, "c": 2}


def test_what_one_does_not_need_is_divided_again():
    # 10 in parts of 2.5, 2.5 and 5: a needs 1 of its 2, so 2 are left after the round; b and c get 0 and 1 of them in whole
    # GPUs, and the last one goes to b, which lost two thirds of a GPU where c lost one third.
    a, b, c = member("a", wants=1), member("b", wants=9), member("c", wants=9, weight=Fraction(2))

    assert shares(10, a, b, c) == {"a": 1, "b": 3, "c": 6}


def test_who_is_content_with_less_than_its_exact_part_starts_another_round():
    # 7 in parts of 4.2, 1.4 and 1.4: whole GPUs are 4, 1 and 1, and b needs no more than its 1. So the last one is divided again,
    # between a and c alone: a loses three quarters of it, c one quarter.
    a, b, c = member("a", wants=8, weight=Fraction(3)), member("b", wants=1), member("c", wants=9)

    assert shares(7, a, b, c) == {"a": 5, "b": 1, "c": 1}


def test_a_higher_priority_is_filled_before_the_next_gets_anything():
    assert shares(8, member("a", wants=6), member("b", wants=6, priority=200)) == {"a": 2, "b": 6}


def test_weight_zero_gets_no_surplus_but_keeps_its_guarantee():
    a, b = member("a", wants=8, guaranteed=2, weight=Fraction(0)), member("b", wants=3)

    assert shares(8, a, b) == {"a": 2, "b": 3}


def test_all_weights_zero_leave_the_rest_undivided():
    assert shares(8, member("a", wants=8, weight=Fraction(0)), member("b", wants=8, weight=Fraction(0))) == {"a": 0, "b": 0}


def test_past_usage_shifts_the_surplus():
    a, b = member("a", wants=9, usage=Fraction(1, 2)), member("b", wants=9)  # 1/2 + (1/2 - 1/2) against 1/2 + 1/2

    assert shares(9, a, b, usage_weight=1) == {"a": 3, "b": 6}


def test_an_unlimited_guarantee_takes_what_it_wants_of_the_pool():
    assert shares(8, member("a", wants=6, guaranteed=None), member("b", wants=6)) == {"a": 6, "b": 2}


def test_guarantees_beyond_the_pool_leave_no_surplus():
    assert shares(4, member("a", wants=9, guaranteed=3), member("b", wants=9, guaranteed=3), member("c", wants=9)) == {"a": 3, "b": 3, "c": 0}


def test_a_limit_caps_the_want():
    assert shares(8, member("a", wants=8, limit=3), member("b", wants=8)) == {"a": 3, "b": 5}


def test_children_divide_what_their_parent_got():
    tree = [quota("x", 6), quota("x/a", 2, parent="x"), quota("x/b", 0, parent="x"), quota("y", 0)]
    jobs = [job(f"{leaf}-{number}", leaf) for leaf in ("x/a", "x/b", "y") for number in range(8)]
    table = figures(read(scenario(nodes=[node("n1")], quotas=tree, jobs=jobs)))

    # x has 6 + one of the two left, y the other. Of the 7 below x: a 2, then 5 in equal parts, the odd one to the first name.
    assert {name: table[name, ALL].fair for name in ("x", "y", "x/a", "x/b")} == {"x": 7000, "y": 1000, "x/a": 5000, "x/b": 2000}


def test_a_number_as_limit_is_shared_by_the_types():
    fleet = [node("n1", 4), {**node("n2", 4), "gpu_type": A100, "gpu_memory_gb": 40}]
    tree = [quota("a", {H100: 4}, limit=5)]
    jobs = [running("r", at("n2", 0, 1, 2)), *(job(f"w{number}") for number in range(8))]
    table = figures(read(scenario(nodes=fleet, quotas=tree, jobs=jobs)))

    assert table["a", H100].limit == 2000  # 5 less the 3 that it holds of the other type
    assert table["a", H100].fair == 2000
    assert table["a", A100].fair == 4000  # 5 - 0 of the other type, but only 4 are there


def test_a_window_adds_to_its_owner_and_every_ancestor_while_it_is_open():
    tree = [quota("x", 4, limit=5), quota("x/a", 1, parent="x"), quota("x/b", 0, parent="x")]
    world = scenario(nodes=[node("n1")], quotas=tree)
    world["reservations"] = [
        {"name": "now", "quota": "x/a", "gpus": 2, "gpu_type": H100, "start": -10, "end": 10},
        {"name": "later", "quota": "x/a", "gpus": 2, "gpu_type": H100, "start": 10, "end": 20},
    ]
    table = figures(read(world))

    assert [table[name, ALL].guaranteed for name in ("x", "x/a", "x/b")] == [6000, 3000, 0]
    assert table["x", ALL].limit == 6000  # raised as far as the guarantee needs it


def test_who_stands_inside_a_guarantee():
    """Non-preemptible, when_borrowed, preemptible; the unit that crosses the line is borrowed, and so is all behind it."""
    jobs = [
        running("young", at("n1", 0), started=-10),
        running("firm", at("n1", 1), preemptible=False),
        running("service", at("n1", 2), at("n1", 3), **{"class": "inference"}),
        running("gang", at("n1", 4), at("n1", 5)),
    ]
    line = line_up(read(scenario(nodes=[node("n1")], quotas=[quota("a", 4)], jobs=jobs)), "a", ALL)

    assert [(unit.job, unit.milli, inside) for unit, inside in line] == [
        ("firm", 1000, True),
        ("service", 2000, True),
        ("gang", 2000, False),  # 5 of 4
        ("young", 1000, False),  # would fit, but stands behind the gang that does not
    ]


def test_surplus_is_counted_in_steps_behind_the_minimum():
    elastic = running("e", *(at("n1", gpu) for gpu in range(5)))
    elastic["roles"][0].update(min=1, step=2, max=5)
    line = line_up(read(scenario(nodes=[node("n1")], quotas=[quota("a", 3)], jobs=[elastic])), "a", ALL)

    assert [(unit.milli, unit.surplus, inside) for unit, inside in line] == [(1000, False, True), (2000, True, True), (2000, True, False)]


def test_what_does_not_count_in_a_request():
    jobs = [
        job("due later", not_before=60),
        job("too wide", workers=9),
        job("wrong type", roles=[{"name": "worker", "min": 1, "gpus": 1, "gpu_types": [A100]}]),
        {**running("going", at("n1", 0)), "state": "stopping"},
        job("elastic", most=4),
        job("service", most=4, **{"class": "inference"}),
    ]
    jobs[-1]["roles"][0]["desired"] = 2
    table = figures(read(scenario(nodes=[node("n1")], quotas=[quota("a", 4)], jobs=jobs)))

    assert table["a", ALL].requested == 6000  # 4 of the elastic one, 2 that the service wants now
    assert table["a", ALL].allocated == 0


@pytest.mark.parametrize(
    ("part", "charge"),
    [
        ({"gpu_share": 0.25}, 250),
        ({"gpu_memory_gb": 20}, 250),
        ({"gpu_memory_gb": 27}, 337),  # floor(1000 * 27 / 80)
        ({"mig": "3g.40gb"}, 500),
        ({"mig": "7g.80gb"}, 1000),
        ({"gpu_share": 0.25, "devices": 2}, 500),
    ],
)
def test_what_a_part_of_a_gpu_is_charged(part: dict[str, Any], charge: int):
    sharing = "mig" if "mig" in part else "mps"
    table = figures(read(scenario(nodes=[node("n1")], quotas=[quota("a", 4)], jobs=[job("p", sharing=sharing, roles=[{"name": "w", **part}])])))

    assert table["a", ALL].requested == charge


def test_ratios_with_nothing_below_the_line():
    assert ratio(0, 0) == (0, Fraction(0))
    assert ratio(1, 0) > ratio(10**9, 1)
    assert ratio(1, 3) < ratio(334, 1000)


def test_the_order_of_queues():
    def entry(name: str, **values: Any) -> Figures:
        base = {"guaranteed": 4000, "limit": None, "weight": Fraction(1), "priority": 100, "created": 0, "usage": Fraction(0)}
        return Figures(name, **{**base, "fair": 4000, "counted_on": 4000, **values})

    first_to_last = [
        entry("high", priority=200, allocated=3000),  # within D, and of higher priority
        entry("empty", allocated=0),
        entry("half", allocated=2000),
        entry("beyond", allocated=4000, fair=8000, counted_on=8000),  # would leave its guarantee
        entry("nothing", guaranteed=0, fair=0, counted_on=0),
        entry("over", allocated=5000),  # over its fair share
    ]
    assert sorted(first_to_last, key=lambda e: queue_key(e, 1000)) == first_to_last


def test_inside_a_queue_class_counts_before_number_and_number_before_age():
    jobs = [
        job("old", submitted=-900),
        job("number", priority=5),
        job("class", **{"class": "interactive"}),
        job("new", submitted=-10),
    ]
    world = read(scenario(nodes=[node("n1")], quotas=[quota("a", 4)], jobs=jobs))
    table = figures(world)
    line = ["class", "number", "old", "new"]

    assert all(serves_first(world, table, ALL, world.jobs[one], world.jobs[two]) for n, one in enumerate(line) for two in line[n + 1 :])


def test_a_minimum_comes_before_anyones_surplus():
    jobs = [running("e", at("n1", 0), most=4, priority=100), job("w", "b")]
    tree = [quota("a", 8), quota("b", 0)]
    world = read(scenario(nodes=[node("n1")], quotas=tree, jobs=jobs))

    assert serves_first(world, figures(world), ALL, world.jobs["w"], world.jobs["e"])


def test_the_boards_have_the_published_number_of_layouts():
    """298 layouts of the base profiles of a 7-slice board, the empty one included; 723 with the double-memory 1g."""

    def layouts(names: list[str]) -> int:
        places = sorted((start, name) for name in names for start in profiles_of(H100)[name][2])

        def count(chosen: list[tuple[str, int]], since: int) -> int:
            total = 1
            for number in range(since, len(places)):
                start, name = places[number]
                if not layout_faults(H100, [*chosen, (name, start)]):
                    total += count([*chosen, (name, start)], number + 1)
            return total

        return count([], 0)

    base = ["1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]
    assert layouts(base) == 298
    assert layouts([*base, "1g.20gb"]) == 723


@pytest.mark.parametrize(("gigabytes", "charge"), [(20, 500), (40, 1000), (50, 625)])
def test_memory_is_asked_for_as_of_the_smallest_gpu_that_is_known_to_hold_it(gigabytes: int, charge: int):
    fleet = [node("n1", 1), {**node("n2", 1), "gpu_memory_gb": 40}, node("n3", 1)]
    del fleet[2]["gpu_memory_gb"]
    drawn = scenario(nodes=fleet, quotas=[quota("a", 2)], jobs=[job("p", sharing="mps", roles=[{"name": "w", "gpu_memory_gb": gigabytes}])])

    assert figures(read(drawn))["a", ALL].requested == charge
    assert LAWS["legal"](drawn) == LAWS["shares_are_right"](drawn) == []


def test_an_instance_is_asked_for_as_large_as_on_any_of_the_types_that_have_it():
    fleet = [node("n1", 1), {**node("n2", 1), "gpu_type": A100, "gpu_memory_gb": 40}, {**node("n3", 1), "gpu_type": "A30-24GB", "gpu_memory_gb": 24}]
    asks = {"name": "w", "mig": "1g.10gb", "gpu_types": [H100, A100, "A30-24GB"]}
    drawn = scenario(nodes=fleet, quotas=[quota("a", 0)], jobs=[job("p", sharing="mig", preemptible=False, roles=[asks])])

    assert figures(read(drawn))["a", ALL].requested == 250  # two of the eight slices of memory that an A100 has; an A30 has no such instance
    assert LAWS["shares_are_right"](drawn) == []
