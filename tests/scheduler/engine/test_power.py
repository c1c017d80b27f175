"""Power caps of pools: nothing starts, grows or moves over one while it may run."""

import random
from dataclasses import replace

import pytest

from scheduler.engine.cycle import make_plan
from scheduler.engine.rules.invariants import InvariantBroken
from scheduler.engine.rules.power import Power
from scheduler.engine.rules.times import ends_at
from scheduler.engine.state.cluster import Cluster
from scheduler.engine.state.tree import NEVER
from scheduler.engine.trial import Ground
from scheduler.scenarios.reading import ScenarioError, parse
from scheduler.scenarios.spelling import spelt
from tests.scheduler.engine.scenes import A100, H100, actions, at, job, node, plan_of, quota, reasons, running, scene
from tests.scheduler.twin.powered import powered_random

HOUR = 3600


def pooled(count, name="a", first=0, **fields):
    return [node(f"n{number}", labels={"pool": name}, **fields) for number in range(first, first + count)]


def cap(watts, start=0, end=None, pool="a"):
    return {"pool": pool, "watts": watts, "start": start, "end": end}


def capped(*caps, nodes=None, jobs=(), quotas=None, **fields):
    power = {"gpu_watts": {H100: 700, A100: 400}, "caps": [*caps]}
    return scene(nodes or pooled(4), quotas or [quota("q", 32)], [*jobs], power=power, **fields)


def told(plan, name):
    return next(one for waiting in plan["waiting"] if waiting["job"] == name for one in waiting["reasons"] if one["code"] == "power")


def starts(plan):
    return {name for name, action in actions(plan).items() if action == "start"}


def test_no_more_starts_than_the_cap_leaves_now():
    jobs = [job(f"j{number}", gpus=8, limit_s=HOUR, submitted=number - 100) for number in range(3)]
    plan = plan_of(capped(cap(11_200), jobs=jobs))

    assert starts(plan) == {"j0", "j1"}
    assert reasons(plan, "j2") == {"power"}
    assert told(plan, "j2")["detail"] == "the cap of pool a of 11.2 kW leaves nothing; it needs 5.6 kW"


def test_a_job_that_ends_before_the_cap_starts():
    jobs = [job("long", gpus=8, limit_s=2 * HOUR, submitted=-100), job("short", gpus=8, limit_s=HOUR, submitted=-50), job("unlimited", gpus=8)]
    plan = plan_of(capped(cap(5000, HOUR, 2 * HOUR), jobs=jobs))

    assert starts(plan) == {"short"}
    assert told(plan, "long")["detail"] == (
        "the cap of pool a of 5 kW from 2026-11-20T10:00:00Z to 2026-11-20T11:00:00Z leaves 5 kW; it needs 5.6 kW"
    )
    assert told(plan, "unlimited")["left_watts"] == 5000
    assert plan["next_wake"] == "2026-11-20T10:00:00Z"


def test_dates_count_on_estimates_as_they_do_for_places_and_starts_do_not():
    """Most jobs state no limit: whoever waits under a cap would have no predicted start, although all is known that its place is predicted by."""
    work = [running(f"r{number}", [at(f"n{number}", *range(8))], started=0, estimate_s=(number + 1) * HOUR) for number in range(2)]
    plan = plan_of(capped(cap(11_200), jobs=[*work, job("next", gpus=8), job("then", gpus=8)]))

    assert starts(plan) == set() and reasons(plan, "next") == {"power"}
    dates = {one["job"]: one["predicted_start"] for one in plan["waiting"]}
    assert dates == {"next": "2026-11-20T10:00:00Z", "then": "2026-11-20T11:00:00Z"}


def test_the_predicted_start_is_when_the_cap_lets_it_in():
    jobs = [job("long", gpus=8, limit_s=2 * HOUR)]
    plan = plan_of(capped(cap(5000, HOUR, 2 * HOUR), jobs=jobs))

    assert {one["job"]: one["predicted_start"] for one in plan["waiting"]} == {"long": "2026-11-20T11:00:00Z"}
    assert [one["at"] for one in plan["decisions"] if one["action"] == "reserve"] == ["2026-11-20T11:00:00Z"]


def test_what_ends_gives_its_watts_to_the_next():
    jobs = [running("r", [at("n0", *range(8))], limit_s=HOUR, started=-600), job("j", gpus=8, limit_s=HOUR)]
    plan = plan_of(capped(cap(10_000), jobs=jobs))

    assert reasons(plan, "j") == {"power"}
    assert plan["waiting"][0]["predicted_start"] == "2026-11-20T09:50:00Z"


def test_what_runs_as_a_cap_falls_stays():
    jobs = [running(f"r{number}", [at(f"n{number}", *range(8))]) for number in range(4)]

    assert actions(plan_of(capped(cap(1000), jobs=jobs))) == {}


def test_the_gpus_of_another_pool_are_not_capped():
    jobs = [job(f"j{number}", gpus=8, submitted=number - 100) for number in range(4)]
    plan = plan_of(capped(cap(6000), nodes=[*pooled(2), *pooled(2, "b", 2)], jobs=jobs))

    places = sorted(worker["node"] for one in plan["decisions"] if one["action"] == "start" for worker in one["workers"])
    assert len(places) == 3
    assert places[-2:] == ["n2", "n3"]


def test_a_gang_is_held_against_a_pool_as_a_whole():
    """It would fit with one worker in the capped pool: a cap is not to be met by chance of the place."""
    gang = job("gang", gpus=8, workers=3)
    plan = plan_of(capped(cap(6000), nodes=[*pooled(2), *pooled(2, "b", 2)], jobs=[gang]))

    assert reasons(plan, "gang") == {"power"}


def test_a_cap_of_the_whole_fleet_counts_every_pool():
    jobs = [job(f"j{number}", gpus=8, submitted=number - 100) for number in range(4)]
    plan = plan_of(capped(cap(12_000, pool=None), nodes=[*pooled(2), *pooled(2, "b", 2)], jobs=jobs))

    assert starts(plan) == {"j0", "j1"}
    assert told(plan, "j2")["detail"].startswith("the fleet's cap of 12 kW leaves 0.8 kW")


def test_of_two_caps_at_once_the_lower_one_counts():
    jobs = [job(f"j{number}", gpus=8, submitted=number - 100) for number in range(3)]

    assert starts(plan_of(capped(cap(12_000), cap(6000, end=HOUR), jobs=jobs))) == {"j0"}


def test_growth_leaves_the_cap_alone():
    elastic = job("e", gpus=8, workers=1, most=4)
    plan = plan_of(capped(cap(12_000), jobs=[elastic]))

    assert [len(one["workers"]) for one in plan["decisions"] if one["action"] == "start"] == [2]


def test_victims_give_their_watts_back_as_they_give_their_gpus():
    quotas = [quota("a", 8), quota("b", 0)]
    jobs = [running("r", [at("n0", *range(8))], "b"), job("j", "a", gpus=8)]
    plan = plan_of(capped(cap(6000), nodes=pooled(1), jobs=jobs, quotas=quotas))

    assert actions(plan) == {"r": "evict", "j": "start"}


def test_nobody_is_evicted_for_watts():
    quotas = [quota("a", 8), quota("b", 0)]
    jobs = [running("r", [at("n0", *range(8))], "b"), job("j", "a", gpus=8)]
    plan = plan_of(capped(cap(6000), nodes=pooled(2), jobs=jobs, quotas=quotas))

    assert actions(plan) == {}
    assert "power" in reasons(plan, "j")


def test_a_later_job_leaves_the_watts_of_a_reservation():
    """The large job starts as soon as the first has ended: what would still run then may draw no more than it leaves."""
    first = running("r", [at("n0", *range(8))], limit_s=HOUR, started=0)
    large, small = job("large", gpus=8, workers=2, limit_s=HOUR, submitted=-90), job("small", gpus=4, submitted=-80)
    scenario = capped(cap(12_000), jobs=[first, large, {**small, "limit_s": 2 * HOUR}, job("short", gpus=4, limit_s=HOUR, submitted=-70)])
    plan = plan_of(scenario)

    assert starts(plan) == {"short"}
    assert "with what is reserved for jobs ahead" in told(plan, "small")["detail"]


def test_a_part_of_a_gpu_draws_its_part():
    share = {**job("half"), "roles": [{"gpu_share": 0.5}], "sharing": "mps"}
    assert starts(plan_of(capped(cap(350), jobs=[share]))) == {"half"}
    assert starts(plan_of(capped(cap(349), jobs=[share]))) == set()


def test_a_gang_that_fits_under_no_cap_is_told_that_it_never_starts():
    gang = job("gang", gpus=8, workers=4, limit_s=HOUR)
    plan = plan_of(capped(cap(20_000), jobs=[gang, job("next", gpus=8, submitted=-50)]))

    assert told(plan, "gang")["never"] is True
    assert "could start at no time in the next 14 days" in told(plan, "gang")["detail"]
    assert starts(plan) == {"next"}
    assert all(one["predicted_start"] is None for one in plan["waiting"])


def test_a_trial_says_that_it_never_starts_or_when_the_cap_lets_it_in():
    ground = Ground(parse(capped(cap(20_000, 0, HOUR), cap(5_000, 3 * HOUR))))
    tried = parse(capped(jobs=[job("gang", gpus=8, workers=4, limit_s=HOUR)])).jobs[0]

    assert ground.trial(replace(tried, name="x")).at == HOUR * 1000
    never = ground.trial(replace(tried, name="y", limit_ms=None))
    assert never.never
    assert [one.code for one in never.reasons] == ["power"]


def test_plans_come_again_as_a_cap_begins_and_ends():
    scenario = capped(cap(5000, HOUR, 2 * HOUR), cap(9000, 3 * HOUR), jobs=[])

    assert plan_of(scenario)["next_wake"] == "2026-11-20T10:00:00Z"
    assert plan_of({**scenario, "now": "2026-11-20T10:00:00Z", "power": {**scenario["power"], "caps": [cap(5000, -1, HOUR)]}})["next_wake"] == (
        "2026-11-20T11:00:00Z"
    )


def test_between_two_caps_it_may_fit():
    gang = job("gang", gpus=8, workers=4, limit_s=HOUR)
    caps = cap(20_000, 0, HOUR), cap(20_000, 3 * HOUR)
    plan = plan_of(capped(*caps, jobs=[gang]))
    assert plan["waiting"][0]["predicted_start"] == "2026-11-20T10:00:00Z"

    longer = plan_of(capped(*caps, jobs=[{**gang, "limit_s": 2.5 * HOUR}]))
    assert told(longer, "gang")["never"] is True


def test_a_thousand_gpus_wait_until_their_power_can_be_sustained():
    gang = job("gang", gpus=8, workers=125, limit_s=8 * HOUR)
    plan = plan_of(capped(cap(600_000, 4 * HOUR, 6 * HOUR), nodes=pooled(125), jobs=[gang], quotas=[quota("q", 1000)]))

    assert told(plan, "gang")["detail"] == (
        "the cap of pool a of 600 kW from 2026-11-20T13:00:00Z to 2026-11-20T15:00:00Z leaves 600 kW; it needs 700 kW"
    )
    assert plan["waiting"][0]["predicted_start"] == "2026-11-20T15:00:00Z"


@pytest.mark.parametrize(
    ("power", "path"),
    [
        ({"caps": [cap(1000)]}, "$.power.gpu_watts"),
        ({"gpu_watts": {H100: 700}, "caps": [cap(1000, HOUR, HOUR)]}, "$.power.caps[0].end"),
        ({"gpu_watts": {H100: 0}}, "$.power.gpu_watts['H100-SXM-80GB']"),
        ({"gpu_watts": {H100: 700}, "caps": [{"watt": 5}]}, "$.power.caps[0].watt"),
    ],
)
def test_a_faulty_cap_is_told_where_it_is(power, path):
    with pytest.raises(ScenarioError) as raised:
        parse({**capped(), "power": power})

    assert path in [fault.path for fault in raised.value.faults]


def test_caps_are_written_and_read_again():
    scenario = parse(capped(cap(5000, HOUR, 2 * HOUR), cap(7000, pool=None), jobs=[job("j")]))
    again = parse(spelt(scenario))

    assert again.power == scenario.power
    assert "power" not in spelt(parse(scene(pooled(1), [quota("q")], [])))


def test_a_plan_over_a_cap_is_refused_as_a_whole(monkeypatch):
    """By a check that shares nothing with the gate."""
    monkeypatch.setattr(Power, "gate", lambda *_: (None, 0))
    with pytest.raises(InvariantBroken, match="power cap"):
        make_plan(parse(capped(cap(5000), jobs=[job("j", gpus=8)])))


@pytest.mark.parametrize(("limit_s", "pool", "is_over"), [(2 * HOUR, "a", True), (HOUR, "a", False), (None, None, True), (2 * HOUR, "b", False)])
def test_a_plan_is_over_a_later_cap_only_if_what_starts_may_still_run_in_its_pool_then(monkeypatch, limit_s, pool, is_over):
    """Of two caps of a pool the later is the lower; what ran before counts on both sides."""
    monkeypatch.setattr(Power, "gate", lambda *_: (None, 0))
    caps = [cap(20_000, pool=pool), cap(10_000, HOUR, 2 * HOUR, pool=pool)]
    here = running("here", [at("n0", *range(8))])
    scenario = parse(capped(*caps, nodes=[*pooled(2), *pooled(1, "b", 2, health="draining")], jobs=[here, job("j", gpus=8, limit_s=limit_s)]))
    if is_over:
        with pytest.raises(InvariantBroken, match="power cap"):
            make_plan(scenario)
    else:
        make_plan(scenario)


def test_drawn_scenarios_meet_their_caps():
    """Else what holds of them would hold by doing nothing."""
    chance = random.Random(1)
    plans = [plan_of(powered_random(chance.randrange(10**6))) for _ in range(60)]
    waits = sum(any(reason["code"] == "power" for one in plan["waiting"] for reason in one["reasons"]) for plan in plans)

    assert waits >= 20
    assert sum(bool(starts(plan)) for plan in plans) >= 20


def slow_opening(power, pool, needed, since, stays, others):
    """The same, asked at every instant at which anything changes."""
    gone = {work: max(power.now + 1, min(power.gone_by(work), ends_at(power.cluster, work))) for work in power.cluster.works if work.seats}
    turns = {at for cap in power.caps[pool] for at in (cap.start, cap.end) if at is not None}
    moments = sorted(at for at in {since, *turns, *gone.values(), *(at for _, *both in others for at in both)} if since <= at < NEVER)

    def left(at):
        allowed = [1000 * cap.watts for cap in power.caps[pool] if cap.start <= at and (cap.end is None or at < cap.end)]
        drawn = sum(power.by_pool((seat.node, seat.milli) for seat in work.seats).get(pool, 0) for work, end in gone.items() if at < end)
        drawn += sum(more for more, start, end in others if start <= at < end)
        return min(allowed) - drawn if allowed else needed

    for place, begin in enumerate(moments):
        stay = [at for at in moments[place:] if stays >= NEVER or at < begin + stays]
        if all(left(at) >= needed for at in stay):
            return begin if begin == since or begin <= power.horizon else None
    return None


@pytest.mark.parametrize("seed", range(40))
def test_when_a_pool_opens_is_what_is_found_by_looking_at_every_instant(seed):
    draw = random.Random(seed)
    caps = [cap(draw.choice([0, 5600, 9000, 16_000]), draw.randrange(-2, 20) * HOUR // 2) for _ in range(draw.randrange(1, 6))]
    caps = [one if draw.random() < 0.3 else one | {"end": max(one["start"], 0) + draw.randrange(1, 9) * HOUR // 2} for one in caps]
    work = [running(f"r{number}", [at(f"n{number}", *range(8))], started=0, estimate_s=draw.randrange(1, 12) * HOUR // 2) for number in range(3)]
    scenario = parse(capped(*caps, jobs=work))
    power = Cluster(scenario).power
    assert power is not None
    now, half = scenario.now, HOUR * 1000 // 2
    for _ in range(40):
        others = []
        for _ in range(draw.randrange(4)):
            start = now + draw.randrange(-1, 12) * half
            others.append((draw.choice([700_000, 5_600_000]), start, draw.choice([start, start + draw.randrange(1, 6) * half, NEVER])))
        asked = "a", draw.choice([700_000, 5_600_000, 11_200_000]), now + draw.randrange(16) * half // 3, draw.choice([half, 5 * half, NEVER]), others
        pool, needed, since, stays, others = asked
        assert power.opens(power.course(pool, others), needed, since, stays) == slow_opening(power, *asked), asked
