"""No starvation by gates: younger jobs of its own leaf do not keep a gang out of a limit, a share or a guarantee on an idle fleet."""

from typing import Any

import pytest

from scheduler.engine.trial import Ground
from scheduler.scenarios.reading import parse
from scheduler.simulation.world import World

from ..engine.scenes import actions, at, job, node, plan_of, quota, reasons, running, scene

MINUTES, HOUR = 60, 3600
Json = dict[str, Any]
LIMIT = [quota("q", 8, limit=8)]
FIXED = [quota("q", 8)]
SHARE = [quota("q", 8), quota("r", 8)]
BORROWERS = [job(f"r-{i:02d}", "r", submitted=0, work_s=200 * HOUR, limit_s=200 * HOUR) for i in range(16)]
ENDLESS = [job(f"r-{i:02d}", "r", submitted=0, work_s=200 * HOUR) for i in range(16)]  # nothing says when they end, but they may be reclaimed


def stream(leaf: str, until: int, **fields: Any) -> list[Json]:
    """A job of one GPU and 20 minutes, every 10 minutes."""
    times = range(0, until, 10 * MINUTES)
    return [job(f"s-{i:04d}", leaf, submitted=time, work_s=20 * MINUTES, **fields) for i, time in enumerate(times)]


def wait_of_the_gang(quotas: list[Json], jobs: list[Json], until: int, **settings: Any) -> float | None:
    world = World(parse(scene([node("n0"), node("n1")], quotas, jobs, settings={"forecast": "none", **settings})))
    world.run(world.now + 1000 * until)
    life = world.lives["gang"]
    return None if life.first_start is None else (life.first_start - life.arrived) / 1000


def gang(leaf: str = "q", **fields: Any) -> Json:
    return job("gang", leaf, 8, submitted=500, work_s=HOUR, limit_s=2 * HOUR, **fields)


PATTERNS = {
    "limit": (LIMIT, {"limit_s": 20 * MINUTES}, {}, []),
    "limit, by estimates": (LIMIT, {"estimate_s": 20 * MINUTES}, {}, []),
    "limit, a higher number": (LIMIT, {"limit_s": 20 * MINUTES, "preemptible": False}, {"priority": 50}, []),
    "guarantee": (FIXED, {"limit_s": 20 * MINUTES, "preemptible": False}, {"preemptible": False}, []),
    "share": (SHARE, {"limit_s": 20 * MINUTES}, {}, BORROWERS),
    "share, others without limits": (SHARE, {"limit_s": 20 * MINUTES}, {}, ENDLESS),
}


def wait_of(pattern: str, until: int, **settings: Any) -> float | None:
    quotas, small, large, others = PATTERNS[pattern]
    return wait_of_the_gang(quotas, [*stream("q", until, **small), *others, gang(**large)], until, **settings)


@pytest.mark.parametrize("pattern", sorted(PATTERNS))
def test_a_gang_waits_for_what_ran_before_it_alone(pattern: str) -> None:
    wait = wait_of(pattern, 2 * HOUR)
    assert wait is not None and wait <= 20 * MINUTES + 10 * MINUTES


@pytest.mark.parametrize(
    ("quotas", "fields"),
    [
        (LIMIT, {}),
        (FIXED, {"preemptible": False}),
        ([quota("team", limit=8), quota("team/a", parent="team"), quota("q", parent="team")], {}),
    ],
)
def test_max_wait_counts_for_a_gate_without_a_date(quotas: list[Json], fields: Json) -> None:
    """Nothing tells when the small jobs end; from `max_wait_s` on no further one starts in front of the gang."""
    leaf = "team/a" if len(quotas) > 1 else "q"
    jobs = [*stream(leaf, 4 * HOUR, **fields), gang(**fields)]
    wait = wait_of_the_gang(quotas, jobs, 4 * HOUR, max_wait_s={"batch": 2 * HOUR})
    assert wait is not None and wait <= 2 * HOUR + 20 * MINUTES


@pytest.mark.soak
@pytest.mark.parametrize("pattern", sorted(PATTERNS))
def test_gangs_start_all_week(pattern: str) -> None:
    """A gang every six hours: each starts within what runs before it, an hour of its predecessor included, and the share of small jobs goes on."""
    quotas, small, large, others = PATTERNS[pattern]
    week = 7 * 24 * HOUR
    gangs = [gang(**large) | {"name": f"gang-{i:02d}", "submitted": 500 + 6 * HOUR * i} for i in range(27)]
    world = World(parse(scene([node("n0"), node("n1")], quotas, [*stream("q", week, **small), *others, *gangs], settings={"forecast": "none"})))
    world.run(world.now + 1000 * week)
    waits = [(life.first_start - life.arrived) / 1000 for one in gangs if (life := world.lives[one["name"]]).first_start is not None]
    assert len(waits) == len(gangs) and max(waits) <= HOUR, waits
    late = [life for name, life in world.lives.items() if name.startswith("s-") and life.first_start is None]
    assert len(late) <= 12, f"{len(late)} small jobs never started"


# One plan at a time


def waiting_gang(**fields: Any) -> Json:
    return job("gang", gpus=8, submitted=-90, limit_s=2 * HOUR, **fields)


def held(later: Json, *, limit: int = 8) -> set[str]:
    """What is said to a later job while a gang waits for its queue's limit, beside one that ends in half an hour."""
    before = running("before", [at("n0", 0, 1)], limit_s=1800 + 50)
    plan = plan_of(scene([node("n0"), node("n1")], [quota("q", 8, limit=limit)], [before, waiting_gang(), later]))
    return {"start"} if actions(plan).get("later") == "start" else reasons(plan, "later")


@pytest.mark.parametrize(
    ("fields", "limit", "expected"),
    [
        ({"limit_s": 1801}, 8, "reservation"),  # would still count
        ({"limit_s": 1800}, 8, "start"),  # has ended by then
        ({}, 8, "reservation"),  # nobody knows
        ({"limit_s": 9000}, 9, "start"),  # there is room for both
        ({"limit_s": 9000, "priority": 10}, 8, "start"),  # a higher number comes first
        ({"limit_s": 9000, "priority": -10}, 8, "start"),  # the gang may preempt it
        ({"limit_s": 9000, "priority": -10, "preemptible": False}, 8, "reservation"),
    ],
)
def test_a_later_job_starts_below_a_limit_if_it_breaks_no_gate_of_the_reservation(fields: Json, limit: int, expected: str) -> None:
    assert expected in held(job("later", submitted=-80, **fields), limit=limit)


def test_the_reservation_is_dated_by_when_the_gate_opens() -> None:
    before = running("before", [at("n0", 0)], limit_s=1800 + 50)
    plan = plan_of(scene([node("n0"), node("n1")], [quota("q", 8, limit=8)], [before, waiting_gang()]))
    assert [(one["job"], one["at"]) for one in plan["decisions"] if one["action"] == "reserve"] == [("gang", "2026-11-20T09:30:00Z")]


def test_inside_one_leaf_a_guarantee_exempts_nothing() -> None:
    """A later job stays within the guarantee of the queue, the gang above it does not: the gang's place is kept from it all the same."""
    before = running("before", [at("n0", *range(8))], "r", limit_s=1800 + 50, preemptible=False)
    jobs = [before, waiting_gang(preemptible=True) | {"roles": [{"min": 2, "gpus": 8}]}, job("later", submitted=-80, limit_s=9000, grace_s=300)]
    plan = plan_of(scene([node("n0"), node("n1")], [quota("q", 8), quota("r", 8)], jobs, settings={"passes": ["allocate", "backfill"]}))
    assert "reservation" in reasons(plan, "later")


def test_a_holder_without_a_date_for_its_place_keeps_no_gate() -> None:
    """The limit lets the gang in when `before` ends, but nothing says when another queue's endless job leaves its place."""
    before = running("before", [at("n0", 0, 1)], limit_s=1800 + 50)
    endless = running("endless", [at("n1", 0)], "r")
    gang = job("gang", submitted=-90, limit_s=2 * HOUR) | {"roles": [{"min": 2, "gpus": 8}]}
    quotas = [quota("q", 16, limit=16), quota("r", 1)]
    plan = plan_of(
        scene([node("n0"), node("n1")], quotas, [before, endless, gang, job("later", submitted=-80)], settings={"passes": ["allocate", "backfill"]})
    )
    assert actions(plan).get("later") == "start"


# What is foreseen of a job that only a held gate keeps out


FIXED_JOB = {"preemptible": False}


def small(**fields: Any) -> Json:
    return running("before", [at("n0", 0, 1)], limit_s=1850, work_s=1850, started=0, **fields)


@pytest.mark.parametrize(
    ("quotas", "fields", "later", "expected"),
    [
        (FIXED, FIXED_JOB, {"limit_s": 9000}, "11:30:50"),  # when the gang has ended, which starts at 09:30:50
        (FIXED, FIXED_JOB, {"limit_s": 1851}, "11:30:50"),
        (FIXED, FIXED_JOB, {}, "11:30:50"),
        (LIMIT, {}, {"limit_s": 9000}, "11:30:50"),
    ],
)
def test_a_job_behind_a_held_gate_is_predicted_when_the_gate_opens(quotas: list[Json], fields: Json, later: Json, expected: str) -> None:
    gang = job("gang", gpus=8, submitted=-90, limit_s=2 * HOUR, work_s=2 * HOUR, **fields)
    made = scene([node("n0"), node("n1")], quotas, [small(**fields), gang, job("later", submitted=-80, work_s=600, **fields, **later)])
    plan = plan_of(made)
    assert reasons(plan, "later") == {"reservation"}
    assert {one["job"]: one["predicted_start"] for one in plan["waiting"]}["later"] == f"2026-11-20T{expected}Z"
    assert Ground(parse(made)).waiting("later") is not None
    tried = Ground(parse(made)).trial(parse(made).jobs[-1], instead_of="later")
    assert tried.at == plan_seconds(expected) * 1000

    world = World(parse(made))
    world.run(world.now + 1000 * 4 * HOUR)
    assert world.lives["later"].first_start == world.template.now + plan_seconds(expected) * 1000


def plan_seconds(clock: str) -> int:
    hours, minutes, seconds = map(int, clock.split(":"))
    return (hours - 9) * HOUR + minutes * MINUTES + seconds


@pytest.mark.parametrize(("quotas", "fields", "gang"), [(FIXED, FIXED_JOB, {}), (LIMIT, {}, {"limit_s": 2 * HOUR})])
def test_a_job_behind_a_gate_that_nothing_dates_has_a_reason_and_no_predicted_start(quotas: list[Json], fields: Json, gang: Json) -> None:
    """Behind a gang that never ends, or one for which nobody knows when it starts."""
    before = running("before", [at("n0", 0, 1)], **({"limit_s": 1850} if not gang else {}), started=0, **fields)
    jobs = [before, job("gang", gpus=8, submitted=-9000, **gang, **fields), job("later", submitted=-80, limit_s=9000, **fields)]
    plan = plan_of(scene([node("n0"), node("n1")], quotas, jobs, settings={"max_wait_s": {"batch": 2 * HOUR}}))
    assert reasons(plan, "later") == {"reservation"}
    assert {one["job"]: one["predicted_start"] for one in plan["waiting"]}["later"] is None
