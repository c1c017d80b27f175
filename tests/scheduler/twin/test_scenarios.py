"""The generators themselves: what they draw is sound, the same for one seed, and touches what it promises."""

from collections import Counter
from typing import Any

from .legal_places import place_violations
from .places import occupancy
from .replay import apply_plan
from .strategies import scenario_random
from .world import read

EMPTY: dict[str, Any] = {"decisions": []}


def test_a_seed_is_a_scenario_for_ever():
    assert scenario_random(7) == scenario_random(7)
    assert scenario_random(7) != scenario_random(8)


def test_nobody_sits_on_anothers_place_in_a_drawn_scenario():
    for seed in range(300):
        scenario = scenario_random(seed)
        world = read(scenario)
        assert place_violations(world, EMPTY, read(apply_plan(scenario, EMPTY))) == [], seed


def test_the_draw_reaches_everything():
    seen: Counter[str] = Counter()
    for seed in range(300):
        scenario = scenario_random(seed)
        world = read(scenario)
        seen.update(f"state {job.state}" for job in world.jobs.values())
        seen.update(f"class {job.cls}" for job in world.jobs.values())
        seen.update(f"sharing {job.sharing}" for job in world.jobs.values())
        seen.update(f"health {node.health}" for node in world.nodes.values())
        seen.update(f"setting {key}" for key in scenario["settings"])
        seen["maps"] += world.by_type
        seen["windows"] += bool(world.windows)
        seen["degraded"] += any(job.holds and job.missing for job in world.jobs.values())
        seen["leaving"] += any(job.leaving for job in world.jobs.values())
        seen["backfilled"] += any(job.backfilled for job in world.jobs.values())
        seen["roles"] += any(len(job.roles) > 1 for job in world.jobs.values())
        seen["elastic"] += any(role.max > role.min for job in world.jobs.values() for role in job.roles.values())
        seen["spare"] += any(node.spare for node in world.nodes.values())
        seen["split"] += any(node.mig for node in world.nodes.values())
        seen["parts"] += any(node.islands for node in world.nodes.values())
        seen["tp"] += any(job.topology.get("tp_group") for job in world.jobs.values())
        taken = occupancy(world)
        seen["full"] += all(not taken.idle_gpus(node) for node in world.nodes.values())

    wanted = ["state queued", "state reserved", "state starting", "state running", "state stopping", "class inference", "class interactive"]
    wanted += ["sharing mig", "sharing mps", "sharing timeslice", "health suspect", "health draining", "health down", "setting passes"]
    wanted += ["maps", "windows", "degraded", "leaving", "backfilled", "roles", "elastic", "spare", "split", "parts", "tp", "full"]
    assert [key for key in wanted if not seen[key]] == []
