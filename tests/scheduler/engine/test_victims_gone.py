"""Whether a job stays within its guarantees is asked with its victims gone: what they hold below a node above both is free by then."""

from typing import Any

import pytest

from .scenes import actions, at, job, node, plan_of, quota, reasons, running, scene

FLAT = [quota("a", 4), quota("b", 4)]
NESTED = [quota("o", 8), quota("a", 4, parent="o"), quota("b", 4, parent="o")]


def borrowed(gone: str = "b", quotas: list[dict[str, Any]] | None = None, **fields: Any) -> dict[str, Any]:
    """All eight GPUs of the guarantees are used by jobs of two GPUs, and somebody of a asks for four."""
    jobs = [running(f"r{n}", [at("n0", 2 * n, 2 * n + 1)], gone, submitted=-9000, started=-3600, priority=0) for n in range(4)]
    return scene([node("n0")], quotas or NESTED, [*jobs, job("mine", "a", 4, priority=50)], **fields)


@pytest.mark.parametrize("quotas", [FLAT, NESTED], ids=["flat", "nested"])
def test_work_within_its_guarantees_is_worth_any_loss(quotas: list[dict[str, Any]]) -> None:
    plan = plan_of(borrowed(quotas=quotas, settings={"worth": {"batch": 3600}}))

    assert actions(plan) == {"r2": "evict", "r3": "evict", "mine": "start"}


def test_so_is_work_that_preempts_within_the_guarantee_of_its_queue() -> None:
    plan = plan_of(borrowed("a", [quota("a", 8)], settings={"worth": {"batch": 3600}}))

    assert actions(plan) == {"r0": "evict", "r1": "evict", "mine": "start"}


def test_beyond_a_guarantee_with_the_victims_gone_the_loss_counts() -> None:
    quotas = [quota("o", 7), quota("a", 4, parent="o"), quota("b", 3, parent="o")]
    plan = plan_of(borrowed(quotas=quotas, settings={"worth": {"batch": 3600}}))

    assert actions(plan) == {}
    assert "worth" in reasons(plan, "mine")


@pytest.mark.parametrize("quotas", [FLAT, NESTED], ids=["flat", "nested"])
def test_who_started_after_a_long_wait_gives_way_to_work_within_its_guarantees(quotas: list[dict[str, Any]]) -> None:
    plan = plan_of(borrowed(quotas=quotas, settings={"max_wait_s": {"batch": 4000}}))

    assert actions(plan) == {"r2": "evict", "r3": "evict", "mine": "start"}


def test_beyond_a_guarantee_others_are_taken_than_who_started_after_a_long_wait() -> None:
    """Of b those are taken that are larger and lose more, but did not wait."""
    quotas = [quota("o", 7), quota("a", 4, parent="o"), quota("b", 3, parent="o")]
    scenario = borrowed(quotas=quotas, settings={"max_wait_s": {"batch": 4000}})
    for one in scenario["jobs"][:2]:
        one["started"] = one["submitted"]

    assert actions(plan_of(scenario)) == {"r0": "evict", "r1": "evict", "mine": "start"}


def test_where_the_least_that_makes_room_is_not_enough_for_the_guarantee_others_are_taken() -> None:
    """Beside two idle GPUs one job of two would do, with which o stays beyond its guarantee."""
    scenario = borrowed(settings={"max_wait_s": {"batch": 4000}})
    scenario["nodes"] = [node("n0", 10)]
    for one in scenario["jobs"][:2]:
        one["started"] = one["submitted"]

    assert actions(plan_of(scenario)) == {"r0": "evict", "mine": "start"}


def test_who_ranks_too_low_for_surplus_of_its_own_queue_is_not_told_what_it_would_cost() -> None:
    """What surplus of e would lose is worth neither of them; `low` may not take it, and finds others."""
    held = [running("e", [at("n0", gpu) for gpu in range(3)], "a", least=1, most=3, started=-100_000, priority=5)]
    held += [running(f"b{gpu:02d}", [at("n0", gpu)], "b", started=-50) for gpu in range(3, 16)]
    asking = [job("high", "a", 4, priority=10), job("low", "a", 4)]
    passes = ["allocate", "backfill", "shrink", "reclaim"]
    plan = plan_of(scene([node("n0", 16)], [quota("a"), quota("b")], [*held, *asking], settings={"worth": {"batch": 1000}, "passes": passes}))

    assert actions(plan)["low"] == "start"
