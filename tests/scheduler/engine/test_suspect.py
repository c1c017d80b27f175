"""A suspect node serves only jobs that tolerate it, and only where healthy nodes do not suffice."""

from typing import Any

import pytest

from .scenes import actions, at, job, node, placed, plan_of, quota, running, scene

Json = dict[str, Any]
BRAVE: Json = {"tolerates_suspect": True}


def growing() -> Json:
    """The suspect node n0 is the tighter one."""
    other = running("other", [at("n0", 0, 1)], preemptible=False, **BRAVE)
    elastic = running("served", [at("n1", 0, 1)], most=3, **BRAVE)
    return scene([node("n0", 4, health="suspect"), node("n1")], [quota("q", 12)], [other, elastic])


def reclaiming() -> Json:
    """The victim frees all that is needed."""
    victim = running("victim", [at("n1", 0, 1, 2, 3)], "b")
    gang = job("served", gpus=2, workers=2, **BRAVE)
    return scene([node("n0", 2, health="suspect"), node("n1", 4)], [quota("q", 4), quota("b")], [victim, gang])


def repairing() -> Json:
    """A spare that is suspect beside a healthy one."""
    kept = running("served", [at("n1", 0)], least=2, **BRAVE)
    spares = [node("n0", 1, health="suspect", spare=True), node("n2", 2, spare=True)]
    return scene([spares[0], node("n1", 1), spares[1]], [quota("q", 2)], [kept])


def moving() -> Json:
    moved = running("served", [at("n1", 0, 1)], checkpoint={"interval_s": 600, "last": -10}, **BRAVE)
    nodes = [node("n0", 2, health="suspect"), node("n1", 4), node("n2", 2)]
    return scene(nodes, [quota("q", 8)], [moved, job("large", gpus=4)])


@pytest.mark.parametrize("made", [growing(), reclaiming(), repairing(), moving()], ids=["growth", "reclaim", "repair", "move"])
def test_suspect_nodes_are_last(made: Json) -> None:
    plan = plan_of(made)

    assert actions(plan)["served"] in ("start", "grow", "move", "keep", "repair")
    assert "n0" not in placed(plan, "served")


def test_suspect_nodes_serve_what_no_healthy_one_can() -> None:
    plan = plan_of(scene([node("n0", 4, health="suspect"), node("n1", 1)], [quota("q", 5)], [job("large", gpus=4, **BRAVE), job("other", gpus=4)]))

    assert actions(plan) == {"large": "start"}
    assert placed(plan, "large") == ["n0"]
