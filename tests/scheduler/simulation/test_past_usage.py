"""Past usage in a simulation: whoever used much of late has less of the surplus."""

from typing import Any

import pytest

from scheduler.engine.model.values import ANY_TYPE
from scheduler.scenarios.reading import parse
from scheduler.simulation.past import PastUsage
from scheduler.simulation.world import World

from ..engine.scenes import job, node, quota, scene

HOUR = 3600
Json = dict[str, Any]


def played(weight: float) -> dict[str, int]:
    """GPU-hours of two queues without guarantees in a day: `early` has the fleet alone for the first half, then both ask for more than there is."""
    fairness = {"usage_weight": weight, "step_s": 600, "half_life_s": 6 * HOUR}
    early = [job(f"e-{i:03d}", "early", submitted=0, work_s=HOUR, limit_s=HOUR) for i in range(8 * 24)]
    late = [job(f"l-{i:03d}", "late", submitted=12 * HOUR, work_s=HOUR, limit_s=HOUR) for i in range(8 * 12)]
    world = World(parse(scene([node("n0")], [quota("early"), quota("late")], [*early, *late], settings={"forecast": "none", "fairness": fairness})))
    world.run(world.now + 24 * HOUR * 1000)
    ended = [name for name, life in world.lives.items() if life.ended is not None]
    return {name: sum(1 for one in ended if one.startswith(name[0])) for name in ("early", "late")}


def test_who_used_the_fleet_alone_has_less_of_it_later() -> None:
    plain, fair = played(0), played(5)
    assert min(sum(plain.values()), sum(fair.values())) > 150
    assert fair["late"] >= plain["late"] + 8, (plain, fair)


def test_use_decays_by_half_lives() -> None:
    scenario = parse(scene([node("n0")], [quota("a"), quota("a/b", parent="a")], [], settings={"fairness": {"half_life_s": HOUR, "usage_weight": 1}}))
    past = PastUsage(scenario, {"H100-SXM-80GB": 8000})
    past.change("j", "a/b", {"H100-SXM-80GB": 4000}, scenario.now)
    for hours, share in ((1, 0.25), (2, 0.375), (20, 0.5)):
        quotas = past.taken(scenario.quotas, scenario.now + hours * HOUR * 1000)
        assert all(dict(one.usage)[ANY_TYPE] == pytest.approx(share * 1e6, abs=2) for one in quotas), hours
    past.change("j", "a/b", {}, scenario.now + 20 * HOUR * 1000)
    assert dict(past.taken(scenario.quotas, scenario.now + 21 * HOUR * 1000)[0].usage)[ANY_TYPE] == pytest.approx(0.25e6, abs=2)
