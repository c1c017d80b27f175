"""Weights and priorities of a quota that differ from GPU type to GPU type."""

from typing import Any

from scheduler.scenarios.reading import parse
from scheduler.scenarios.spelling import spelt

from .scenes import A100, H100, at, job, node, plan_of, quota, running, scene

Json = dict[str, Any]


def world(**of_a: Any) -> Json:
    """Eight GPUs of each type, nothing promised, and two queues that want all of both."""
    nodes = [node("h"), {**node("a"), "gpu_type": A100}]
    jobs = [job(f"{name}-{kind}", name, 8, role={"gpu_types": [kind]}) for name in "ab" for kind in (A100, H100)]
    return scene(nodes, [quota("a", {}, **of_a), quota("b", {})], jobs)


def shares(scenario: Json) -> dict[tuple[str, str], float]:
    return {(one["quota"], one["type"]): one["fair"] for one in plan_of(scenario)["shares"]}


def test_each_type_is_divided_by_its_own_weights() -> None:
    assert shares(world(weight={H100: 3})) == {("a", H100): 6, ("b", H100): 2, ("a", A100): 4, ("b", A100): 4}
    assert shares(world(weight={H100: 0, A100: 7})) == {("a", H100): 0, ("b", H100): 8, ("a", A100): 7, ("b", A100): 1}


def test_a_priority_holds_for_its_type_alone() -> None:
    scenario = world(priority={A100: 50})

    assert shares(scenario) == {("a", H100): 4, ("b", H100): 4, ("a", A100): 0, ("b", A100): 8}
    started = [one["job"] for one in plan_of(scenario)["decisions"] if one["action"] == "start"]
    assert f"b-{A100}" in started, "and so does the order of queues"


def test_maps_survive_being_written_down() -> None:
    scenario = parse(world(weight={H100: 1.5}, priority={A100: 50}))

    assert parse(spelt(scenario)).quotas == scenario.quotas


def test_who_has_no_date_in_one_type_has_a_place_kept_in_the_next():
    """Nobody knows when the first type comes free."""
    nodes = [node("h"), {**node("a"), "gpu_type": A100}]
    held = [running("for-ever", [at("h", *range(8))]), running("for-an-hour", [at("a", *range(8))], estimate_s=3600)]
    plan = plan_of(scene(nodes, [quota("q", {H100: 8, A100: 8})], [*held, job("waits", gpus=8, role={"gpu_types": [H100, A100]}, estimate_s=60)]))
    (kept,) = [one for one in plan["decisions"] if one["action"] == "reserve"]
    assert (kept["job"], kept["workers"][0]["node"]) == ("waits", "a")
