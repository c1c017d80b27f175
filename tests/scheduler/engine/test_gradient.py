"""Fragmentation gradient descent: the measure against a slow reading of its definition, and the place that follows from it."""

import random

import numpy as np
import pytest

from scheduler.engine.place.gradient import MILLION, Measure, Usual
from tests.scheduler.engine.scenes import A100, H100, at, job, node, plan_of, quota, running, scene

TYPES = [A100, H100]


def slow(demand: tuple[Usual, ...], free: list[int], cpus: int, gpu_type: str) -> int:
    """By the definition, one kind and one GPU at a time."""
    found = 0
    for one in demand:
        large = [part for part in free if part >= one.milli]
        useless = one.gpus == 0 or cpus < one.cpu_milli or (one.gpu_types and gpu_type not in one.gpu_types) or len(large) < one.gpus
        found += one.weight * (sum(free) if useless else sum(free) - sum(large))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_columns_are_the_definition(seed: int) -> None:
    chance = random.Random(seed)
    demand = tuple(
        Usual(chance.randrange(MILLION), *chance.choice(((0, 1000), (1, 1000), (2, 1000), (8, 1000), (1, 250), (1, 500))), *rest)
        for rest in [(chance.choice((0, 1500, 8000)), chance.choice(((), (H100,), (A100,), (A100, H100)))) for _ in range(seed % 7)]
    )
    free = [[chance.choice((0, 0, 200, 500, 1000, 1000)) for _ in range(4)] for _ in range(30)]
    cpus = [chance.choice((0, 1499, 1500, 9000)) for _ in free]
    kinds = [chance.randrange(2) for _ in free]

    found = Measure(demand, TYPES).of(np.array(free), np.array(cpus), np.array(kinds))

    assert found.tolist() == [slow(demand, *row, TYPES[kind]) for *row, kind in zip(free, cpus, kinds, strict=True)]


def placed(demand: list[dict[str, object]], *jobs: dict[str, object], nodes: list[dict[str, object]]) -> dict[str, tuple[str, list[int]]]:
    settings = {"placement": "fgd", "sharing_trust": "any"}
    plan = plan_of(scene(nodes, [quota("q", None)], [*jobs], settings=settings, demand=demand))
    return {one["job"]: (one["workers"][0]["node"], one["workers"][0]["gpus"]) for one in plan["decisions"] if one["action"] == "start"}


def test_a_worker_stands_where_it_spoils_least() -> None:
    """Half GPUs are asked for by half of the demand, so a share joins the half that is free; whole ones need the processors of b."""
    half = running("held", [at("c", 0, gpu_share=0.5)], roles=[{"gpu_share": 0.5}], sharing="mps")
    nodes = [node("a", 2, cpus=1), node("b", 2, cpus=9), node("c", 2, cpus=9)]
    demand = [{"share": 0.5, "gpus": 1, "cpus": 4}, {"share": 0.5, "gpu_share": 0.5, "cpus": 4}]

    share = job("share", roles=[{"gpu_share": 0.5, "cpus": 1}], sharing="mps")
    assert placed(demand, half, share, nodes=nodes[1:]) == {"share": ("c", [0])}
    assert placed(demand, half, job("whole", role={"cpus": 1}), nodes=nodes)["whole"][0] == "a", "nobody else can use its GPUs"
    only = [{"share": 1, "gpus": 1, "gpu_types": [A100]}]
    others = [node("a", 2), node("b", 2, gpu_type=A100)]
    assert placed(only, job("any", gpus=1, role={"gpu_types": [H100, A100]}), nodes=[{**one, "quota_type": "all"} for one in others])["any"][0] == "a"


def test_without_a_stated_demand_the_jobs_are_it() -> None:
    large = [job(f"large-{number}", gpus=2, submitted=-50) for number in range(9)]
    held = running("held", [at("b", 0)])
    assert placed([], held, job("small", gpus=1), *large, nodes=[node("a", 2), node("b", 2)])["small"] == ("b", [1])


def test_a_demand_asks_for_one_thing() -> None:
    from scheduler.scenarios.reading import ScenarioError, parse

    for part in ({}, {"gpus": 1, "gpu_share": 0.5}):
        with pytest.raises(ScenarioError, match="must ask for exactly one of gpus, gpu_share"):
            parse(scene([node("a")], [quota("q")], [], demand=[{"share": 1, **part}]))
