"""The engine against a planner in plain loops, decision by decision: who starts and grows, how far, and on which nodes."""

import random
from typing import Any

import pytest

from .focused import queue_random
from .planner import plan_of
from .slow_planner import Served, plan_slowly
from .world import read

Json = dict[str, Any]


# Between nodes with equally much room the engine takes the one that breaks fewer blocks; the slow planner takes the first by path.
EQUAL_NODES = {79, 599}


def told(plan: Json) -> list[Served]:
    served = []
    for one in plan["decisions"]:
        workers = sorted((worker["role"], worker["index"], worker["node"]) for worker in one["workers"])
        served.append((one["action"], one["job"], tuple(workers)))
    return sorted(served)


@pytest.mark.parametrize("first", range(0, 600, 100))
def test_the_engine_serves_whom_the_slow_planner_serves(first: int):
    served = 0
    for seed in sorted(set(range(first, first + 100)) - EQUAL_NODES):
        scenario = queue_random(seed)
        slow = plan_slowly(read(scenario))

        assert told(plan_of(scenario)) == slow, f"queue_random({seed})"
        served += len(slow)
    assert served > 100


def test_the_same_are_served_as_far_where_gangs_require_a_level():
    """Which of several equal nodes they take is another matter: the slow planner does not weigh what that breaks."""
    gangs = 0
    for seed in range(600):
        scenario, rng = queue_random(seed), random.Random(seed)
        for job in scenario["jobs"]:
            if job.get("state") == "queued" and rng.random() < 0.4:
                job["topology"] = {"required": rng.choice(["rack", "node"])}
                gangs += 1
        fast, slow = (
            [(action, name, len(workers)) for action, name, workers in plan] for plan in (told(plan_of(scenario)), plan_slowly(read(scenario)))
        )

        assert fast == slow, f"queue_random({seed})"
    assert gangs > 300
