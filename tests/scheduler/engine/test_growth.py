"""Growth of elastic jobs: whose turn it is, and what it may take from whom."""

from typing import Any

from .scenes import actions, at, job, node, plan_of, quota, running, scene

Json = dict[str, Any]


def elastic(name: str, quota_name: str, gpus: range, *, least: int = 1, most: int = 8, **fields: Any) -> Json:
    """A job that runs on so many single GPUs of n0 and could do with `least`, or use `most`."""
    return running(name, [at("n0", gpu) for gpu in gpus], quota_name, least=least, most=most, **fields)


def workers(plan: Json, name: str) -> int:
    return next(len(one["workers"]) for one in plan["decisions"] if one.get("job") == name)


def test_growth_takes_back_surplus_up_to_its_fair_share() -> None:
    """b holds six of eight GPUs, of which four are its share; a grows from two to four and b keeps four."""
    greedy, modest = elastic("greedy", "b", range(2, 8)), elastic("modest", "a", range(2))
    plan = plan_of(scene([node("n0")], [quota("a", 4), quota("b", 4)], [greedy, modest]))

    assert actions(plan) == {"greedy": "shrink", "modest": "grow"}
    assert (workers(plan, "greedy"), workers(plan, "modest")) == (4, 4)
    shrink, grow = plan["decisions"]
    assert shrink["why"]["code"] == "reclaim"
    assert shrink["why"]["for"] == "modest"
    assert [worker["index"] for worker in shrink["workers"]] == [0, 1, 2, 3]
    assert grow["after"] == ["greedy"]


def test_growth_never_takes_a_minimum() -> None:
    held = running("held", [at("n0", 2, 3, 4, 5, 6, 7)], "b")
    plan = plan_of(scene([node("n0")], [quota("a", 4), quota("b", 4)], [held, elastic("modest", "a", range(2))]))

    assert actions(plan) == {}


def test_growth_does_not_preempt_nor_take_from_its_own_queue() -> None:
    low = elastic("low", "a", range(2, 8), priority=0)
    plan = plan_of(scene([node("n0")], [quota("a", 8)], [low, elastic("high", "a", range(2), priority=50)]))

    assert actions(plan) == {}


def test_growth_reclaims_only_where_reclaim_is_a_pass() -> None:
    greedy, modest = elastic("greedy", "b", range(2, 8)), elastic("modest", "a", range(2))
    quotas = [quota("a", 4), quota("b", 4)]

    for passes, expected in ((["grow"], {}), (["reclaim"], {}), (["reclaim", "grow"], {"greedy": "shrink", "modest": "grow"})):
        assert actions(plan_of(scene([node("n0")], quotas, [greedy, modest], settings={"passes": passes}))) == expected


def test_growth_waits_for_the_delay_before_it_takes_anything() -> None:
    greedy, young = elastic("greedy", "b", range(2, 8)), elastic("young", "a", range(2), preemption_delay_s=3600)
    plan = plan_of(scene([node("n0")], [quota("a", 4), quota("b", 4)], [greedy, young]))

    assert actions(plan) == {}


def test_surplus_that_a_waiting_minimum_could_use_is_not_taken_for_growth() -> None:
    """c may not take back anything, as it has no share; but a GPU that comes free is its minimum's before it is a's surplus."""
    greedy, modest = elastic("greedy", "b", range(2, 8)), elastic("modest", "a", range(2))
    quotas = [quota("a", 4), quota("b", 4), quota("c", 0, weight=0)]
    plan = plan_of(scene([node("n0")], quotas, [greedy, modest, job("waits", "c")]))

    assert "modest" not in actions(plan)


def test_growth_of_work_that_is_not_preemptible_stays_inside_the_guarantee() -> None:
    greedy, fixed = elastic("greedy", "b", range(2, 8)), elastic("fixed", "a", range(2), preemptible=False)
    plan = plan_of(scene([node("n0")], [quota("a", 3, weight=3), quota("b", 0)], [greedy, fixed]))

    assert (workers(plan, "greedy"), workers(plan, "fixed")) == (5, 3)


def test_in_a_queue_who_is_at_its_minimum_grows_before_who_is_above_it() -> None:
    first, second = elastic("first", "a", range(2), submitted=-500), elastic("second", "a", range(4, 5), submitted=-400)
    held = running("held", [at("n0", 2, 3, 5, 6)], "a")
    plan = plan_of(scene([node("n0")], [quota("a", 8)], [first, second, held]))

    assert actions(plan) == {"second": "grow"}
    assert workers(plan, "second") == 2
