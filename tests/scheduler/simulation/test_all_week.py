"""A simulated week of each way in which a job was once kept waiting in vain: waits have a true reason, and the bound holds at every turn."""

from typing import Any

from scheduler.engine.cycle import make_plan
from scheduler.engine.model.plan import Plan
from scheduler.engine.model.values import Scenario
from scheduler.scenarios.reading import parse
from scheduler.simulation.world import Life, World

from ..engine.scenes import job, node, quota, scene

HOUR = 3600
WEEK = 7 * 24 * HOUR
TURNS = range(0, WEEK, 8 * HOUR)
Json = dict[str, Any]


def week(nodes: list[Json], quotas: list[Json], jobs: list[Json]) -> tuple[dict[str, Life], dict[str, set[str]]]:
    """What became of each job, and the codes of all that each was told while it waited."""
    told: dict[str, set[str]] = {}

    def policy(scenario: Scenario) -> Plan:
        plan = make_plan(scenario)
        for one in plan.as_json()["waiting"]:
            assert one["reasons"], one
            told.setdefault(one["job"], set()).update(reason["code"] for reason in one["reasons"])
        return plan

    world = World(parse(scene(nodes, quotas, jobs, settings={"forecast": "none"})), policy)
    world.run(world.now + 1000 * WEEK)
    return world.lives, told


def wait(life: Life) -> float:
    assert life.first_start is not None, life.job.name
    return (life.first_start - life.arrived) / 1000


def half(name: str, leaf: str, at: int, hours: int) -> Json:
    made = job(name, leaf, submitted=at, sharing="mps", work_s=hours * HOUR, limit_s=hours * HOUR)
    return made | {"roles": [{"min": 1, "gpu_share": 0.5}]}


def test_the_refusal_of_one_team_keeps_no_share_of_a_gpu_from_another() -> None:
    """Team b has half of the GPU; team a may not join it, and asks before the second job of b, which may."""
    jobs = []
    for at in TURNS:
        jobs += [half(f"b-{at}", "b", at, 3), half(f"a-{at}", "a", at + 60, 1), half(f"second-{at}", "b", at + 120, 1)]

    lives, told = week([node("n0", 1)], [quota("a", 1), quota("b", 1)], jobs)

    assert all(wait(lives[f"second-{at}"]) == 0 for at in TURNS)
    assert all(wait(lives[f"a-{at}"]) <= 3 * HOUR for at in TURNS)
    assert all("sharing" in told[f"a-{at}"] for at in TURNS)


def test_reclaim_takes_no_job_without_which_its_queue_falls_below_its_guarantee() -> None:
    """The large job started last and is borrowed, so it ranks first; but two of the small ones make room, and leave their queue at its line."""
    small = [job(f"small-{number}", "theirs", submitted=0, work_s=2 * WEEK) for number in range(3)]
    large = [job(f"large-{at}", "theirs", 5, submitted=at + 60, work_s=7 * HOUR) for at in TURNS]
    askers = [job(f"asker-{at}", "mine", 2, submitted=at + 3 * HOUR, work_s=HOUR, limit_s=HOUR) for at in TURNS]

    lives, told = week([node("n0")], [quota("mine", 2), quota("theirs", 6)], [*small, *large, *askers])

    assert [lives[one["name"]].evictions for one in large] == [0] * len(TURNS)
    assert sum(lives[one["name"]].evictions for one in small) == 2 * len(TURNS)
    assert all(wait(lives[one["name"]]) <= 60 for one in (*large, *askers))
    assert set(told) <= {one["name"] for one in small}
    assert all("capacity" in codes for codes in told.values())


def test_growth_inside_the_guarantee_comes_at_once() -> None:
    """Nothing ends and nobody comes while it stands at one of its two GPUs: the scheduler itself has to come back for the other."""
    lender = job("lender", "theirs", most=8, submitted=0, work_s=8 * 2 * WEEK)
    growing = [job(f"grows-{at}", "mine", most=2, submitted=at + HOUR, work_s=2 * HOUR) for at in TURNS]

    lives, _ = week([node("n0")], [quota("mine", 2), quota("theirs")], [lender, *growing])

    for at in TURNS:
        life = lives[f"grows-{at}"]
        assert wait(life) <= 60 and life.ended is not None
        assert life.ended - life.arrived <= 1000 * (HOUR + 120), "with one GPU it takes two hours"
