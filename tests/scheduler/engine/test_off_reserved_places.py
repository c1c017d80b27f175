"""Idle GPUs that a job may not use are no room for it: it evicts elsewhere, by the rules, as if they were taken."""

from typing import Any

import pytest

from .scenes import actions, at, job, node, placed, plan_of, quota, running, scene

ENDS_SOON = {"preemptible": False, "started": -1000, "limit_s": 2000}


def kept_for_another(*jobs: dict[str, Any], more: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    """Four GPUs of n1 are idle and reserved, with the others, for a job that may run nowhere else."""
    holder = job("holder", "r", 8, submitted=-600, node_labels={"is": "first"}, limit_s=100_000)
    nodes = [node("n1", labels={"is": "first"}), node("n2"), *more]
    quotas = [quota("z", 4, weight=0), quota("r", 8, weight=0, priority=200), quota("b", weight=0), quota("x", 8, weight=0, created=-10)]
    return scene(nodes, quotas, [running("ends", [at("n1", 0, 1, 2, 3)], "z", **ENDS_SOON), holder, *jobs])


def halves(quota_name: str) -> list[dict[str, Any]]:
    return [running(f"h{half}", [at("n2", *range(4 * half, 4 * half + 4))], quota_name) for half in range(2)]


@pytest.mark.parametrize("code", ["reclaim", "preempt"])
def test_a_job_evicts_beside_idle_gpus_that_are_reserved(code: str) -> None:
    mine = job("mine", "x", 4, priority=90, submitted=-60, limit_s=100_000, grace_s=600)
    plan = plan_of(kept_for_another(*halves("b" if code == "reclaim" else "x"), mine))

    (moved,) = [one for one in plan["decisions"] if one["action"] == "move"]
    assert moved["why"]["code"] == code
    assert moved["backfilled"], "it may leave in time, so it goes on in the gap"
    assert placed(plan, "mine") == ["n2"]


def test_a_large_job_leaves_where_no_smaller_one_makes_room_beside_what_is_reserved() -> None:
    large = running("large", [at("n2", 0, 1, 2, 3, 4, 5, 6, 7), at("n3", 0, 1, 2, 3, 4, 5, 6, 7)], "b", least=2)
    scenario = kept_for_another(large, job("mine", "x", 4, submitted=-60, limit_s=100_000, grace_s=600), more=(node("n3"),))

    assert actions(plan_of(scenario)) == {"large": "evict", "mine": "start"}


def test_a_gang_evicts_all_it_needs_beside_idle_gpus_that_are_reserved() -> None:
    mine = job("mine", "x", 4, 2, submitted=-60, limit_s=100_000, grace_s=600)
    plan = plan_of(kept_for_another(*halves("b"), mine))

    assert actions(plan) == {"h0": "move", "h1": "evict", "mine": "start"}
    assert placed(plan, "mine") == ["n2", "n2"]


def test_who_is_gone_before_the_reservation_evicts_nobody() -> None:
    plan = plan_of(kept_for_another(*halves("b"), job("mine", "x", 4, submitted=-60, limit_s=900)))

    assert actions(plan) == {"mine": "start"}


def test_in_one_domain_with_reserved_gpus_others_are_evicted() -> None:
    """n1 and n2 are one domain, which has room as it is; and none off the reserved place without a victim."""
    mine = job("mine", "x", 4, submitted=-60, limit_s=100_000, grace_s=600, topology={"required": "leaf"})
    scenario = kept_for_another(*halves("b"), mine, more=(node("n3", path={"leaf": "b"}),))
    for one in scenario["nodes"][:2]:
        one["path"] = {"leaf": "a"}
    scenario["jobs"].append(running("fixed", [at("n3", *range(8))], "y", preemptible=False))
    scenario["quotas"].append(quota("y", 8, weight=0))
    scenario["topology"] = {"levels": ["leaf"]}

    plan = plan_of(scenario)
    assert actions(plan) == {"h0": "move", "mine": "start"}
    assert placed(plan, "mine") == ["n2"]


def test_a_job_evicts_beside_the_idle_block_of_a_window_to_come() -> None:
    window = {"name": "w", "quota": "r", "gpus": 8, "gpu_type": node("n1")["gpu_type"], "level": "leaf", "start": 1000, "end": 20_000}
    nodes = [node("n1", path={"leaf": "a"}), node("n2", path={"leaf": "b"})]
    mine = job("mine", "x", 4, submitted=-60, limit_s=100_000, grace_s=6000)
    quotas = [quota("r", weight=0), quota("b", weight=0), quota("x", 4, weight=0)]

    plan = plan_of(scene(nodes, quotas, [*halves("b"), mine], reservations=[window]))

    assert actions(plan) == {"h0": "move", "mine": "start"}
    assert placed(plan, "mine") == ["n2"]


def test_a_job_evicts_a_set_that_crosses_a_line_where_one_that_crosses_none_is_reserved() -> None:
    nodes = [node("n0", 4, labels={"is": "first"}), node("n1", 4), node("n2")]
    names = {"mine": 2, "h": 4, "b": 0, "c": 2, "fixed": 2, "fill": 4}
    quotas = [quota(name, count, weight=0, **({"priority": 200} if name == "h" else {})) for name, count in names.items()]
    jobs = [
        running("fixed", [at("n0", 0, 1)], "fixed", preemptible=False, limit_s=1000),
        running("cheap", [at("n0", 2, 3)], "b", limit_s=500, priority=0),
        running("crosses", [at("n1", 0, 1, 2, 3)], "c", priority=10),
        running("fill", [at("n2", *range(8))], "fill", preemptible=False),
        job("holder", "h", 4, priority=90, node_labels={"is": "first"}, submitted=-900),
        job("mine", "mine", 2, priority=50, submitted=-100, grace_s=600, preemptible=False),
    ]

    plan = plan_of(scene(nodes, quotas, jobs))
    assert actions(plan)["crosses"] == "evict"
    assert placed(plan, "mine") == ["n1"]
