"""For whom a place is reserved: jobs above their fair share only while no job within its own waits for the type."""

from typing import Any

import pytest

from .scenes import actions, at, job, node, plan_of, quota, running, scene

Json = dict[str, Any]


def reserved(plan: Json) -> list[str]:
    return [one["job"] for one in plan["decisions"] if one["action"] == "reserve"]


def waiting_for(small_on: str, *more: Json, **settings: Any) -> Json:
    """`large` comes first in the order of queues, and is above the fair share of its queue; `small` comes second, within."""
    nodes = [node(f"n{i}", labels={"l": f"l{i}"}) for i in range(4)]
    held = [
        running("half", [at("n0", *range(4))], "fixed", preemptible=False, limit_s=2000, started=-1000),
        running("whole", [at("n1", *range(8))], "fixed", preemptible=False, limit_s=3000, started=-1000),
    ]
    large = job("large", "first", 8, node_labels={"l": "l0"}, limit_s=100_000)
    small = job("small", "a", 4, node_labels={"l": small_on}, limit_s=100_000, grace_s=600)
    quotas = [quota("fixed", 12, weight=0), quota("first", 4, weight=0, priority=200), quota("a"), quota("b")]
    return scene(nodes, quotas, [*held, large, small, *more], settings=settings)


@pytest.mark.parametrize("depth", [1, 8])
def test_above_its_share_a_job_has_no_place_reserved_before_one_within(depth: int) -> None:
    assert reserved(plan_of(waiting_for("l1", backfill_depth=depth))) == ["small"]


def test_a_job_within_its_share_starts_beside_one_above() -> None:
    """After that no job within its share waits, and the other gets its reservation."""
    plan = plan_of(waiting_for("l0"))

    assert actions(plan) == {"small": "start"}
    assert reserved(plan) == ["large"]


def test_above_its_share_a_job_has_a_place_reserved_if_only_gates_that_stay_shut_refuse_the_others() -> None:
    made = waiting_for("l1")
    alone = {**made, "jobs": [one for one in made["jobs"] if one["name"] != "small"]}
    backed_off = {**made, "jobs": [*alone["jobs"], {**made["jobs"][-1], "last_evicted": -10, "evictions": 1}]}

    assert reserved(plan_of(alone)) == ["large"]
    assert reserved(plan_of({**backed_off, "settings": {"hysteresis_s": 300}})) == ["large"]
