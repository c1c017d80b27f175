"""Work beside services: only behind a boundary that the node was verified to enforce, and not against a service level."""

import pytest

from scheduler.engine.cycle import make_plan
from scheduler.engine.rules.colocation import Colocation
from scheduler.engine.rules.invariants import InvariantBroken
from scheduler.engine.trial import Ground
from scheduler.scenarios.reading import ScenarioError, parse
from scheduler.scenarios.spelling import spelt
from tests.scheduler.engine.scenes import actions, at, job, node, placed, plan_of, quota, reasons, running, scene

HOUR = 3600
APART = {"service": "chat", "other": "llama", "where": "node", "figure": "p99 latency", "predicted_ms": 240, "allowed_ms": 200}
BOTH = [{"profile": "3g.40gb", "start": 0}, {"profile": "3g.40gb", "start": 4}]


def asked(how, nodes=2, jobs=(), boundaries=(), quotas=None, gpus=8, settings=None, **fields):
    nodes = [node(f"n{number}", gpus, boundaries=[*boundaries]) for number in range(nodes)] if isinstance(nodes, int) else nodes
    return scene(nodes, quotas or [quota("q", 16)], [*jobs], settings={"colocation": how, **(settings or {})}, **fields)


def service(*places, name="svc", **fields):
    """A service: it runs on these places, or waits for 2 GPUs."""
    made = running(name, [*places], **fields) if places else job(name, gpus=fields.pop("gpus", 2), **fields)
    return {**made, "class": "inference"}


def told(plan, name):
    return next(one for waiting in plan["waiting"] if waiting["job"] == name for one in waiting["reasons"] if one["code"] == "colocation")


def test_a_fleet_that_asks_for_nothing_decides_as_before():
    jobs = [service(at("n0", 0, 1)), job("train", gpus=6)]

    assert placed(plan_of(asked("any", jobs=jobs)), "train") == ["n0"]
    assert placed(plan_of(asked("gpu", jobs=jobs)), "train") == ["n0"]  # of its own GPUs


@pytest.mark.parametrize(("boundaries", "place"), [([], "n1"), (["mig"], "n1"), (["cores"], "n0")])
def test_other_work_stands_beside_a_service_only_where_jobs_are_pinned(boundaries, place):
    jobs = [service(at("n0", 0, 1)), job("train", gpus=6)]

    assert placed(plan_of(asked("node", jobs=jobs, boundaries=boundaries)), "train") == [place]


def test_a_service_comes_to_no_node_where_other_work_stands_and_is_told_why():
    jobs = [running("train", [at("n0", 0)], preemptible=False), service()]
    plan = plan_of(asked("node", 1, jobs))

    assert reasons(plan, "svc") == {"colocation"}
    assert told(plan, "svc")["detail"] == "job train stands on n0, which was not verified to pin jobs to their processors"
    assert (told(plan, "svc")["beside"], told(plan, "svc")["boundary"]) == ("train", "cores")


def test_services_stand_beside_each_other_and_so_does_other_work():
    jobs = [service(at("n0", 0, 1)), running("train", [at("n1", 0, 1)]), service(name="more", gpus=6), job("batch", gpus=6)]
    plan = plan_of(asked("node", jobs=jobs))

    assert (placed(plan, "more"), placed(plan, "batch")) == (["n0"], ["n1"])


def test_one_plan_starts_no_two_beside_each_other():
    jobs = [service(gpus=4), job("train", gpus=4)]
    plan = plan_of(asked("node", 1, jobs))

    assert actions(plan) == {"svc": "start"}
    assert told(plan, "train")["detail"] == "service svc stands on n0, which was not verified to pin jobs to their processors"


def test_who_stands_beside_a_service_already_stays():
    jobs = [service(at("n0", 0, 1)), running("train", [at("n0", 2, 3)])]

    assert actions(plan_of(asked("node", 1, jobs, settings={"sharing_trust": "any"}))) == {}


def test_a_gpu_is_never_shared_by_mps_with_a_service():
    nodes = [node("n0", 2)]
    half = {"role": {"gpus": None, "gpu_share": 0.5}, "sharing": "mps"}
    jobs = [{**service(name="svc", **half), "submitted": -200}, job("train", **half), job("tune", **half)]
    plan = plan_of(asked("gpu", nodes, jobs, settings={"sharing_trust": "any"}))
    where = {one["job"]: one["workers"][0]["gpus"] for one in plan["decisions"] if one["action"] == "start"}

    assert where["svc"] != where["train"] == where["tune"]


def test_tenants_of_a_gpu_that_was_shared_before_anybody_asked_stay_and_nobody_joins_them():
    third = {"role": {"gpus": None, "gpu_share": 0.3}, "sharing": "mps"}
    there = [at("n0", 0, gpu_share=0.3)]
    jobs = [{**running("svc", there, **third), "class": "inference"}, running("train", there, **third), job("more", **third)]
    plan = plan_of(asked("gpu", [node("n0", 1)], jobs, settings={"sharing_trust": "any"}))

    assert actions(plan) == {}
    assert told(plan, "more")["detail"] == "services and other work share a GPU of n0 already; nobody joins them"


@pytest.mark.parametrize(("boundaries", "starts"), [([], False), (["mig"], True)])
def test_instances_of_both_stand_on_one_node_only_where_mig_was_verified(boundaries, starts):
    nodes = [node("n0", 1, mig=[{"gpu": 0, "instances": BOTH}], boundaries=boundaries)]
    half = {"role": {"gpus": None, "mig": "3g.40gb"}}
    there = {**running("svc", [at("n0", 0, mig={"profile": "3g.40gb", "start": 0})], **half), "class": "inference"}
    plan = plan_of(asked("gpu", nodes, [there, job("train", **half)]))

    assert (actions(plan) == {"train": "start"}) is starts
    if not starts:
        assert told(plan, "train")["detail"] == "service svc stands on n0, which was not verified to enforce MIG instances"


def test_nobody_comes_beside_a_service_that_would_break_its_service_level():
    jobs = [service(at("n0", 0, 1), tenant="chat"), job("train", gpus=4, tenant="llama"), job("other", gpus=2, tenant="small", submitted=-50)]
    plan = plan_of(asked("node", 1, jobs, ["cores", "mig"], apart=[APART]))

    assert actions(plan) == {"other": "start"}
    assert told(plan, "train")["detail"] == "beside service svc on n0 the service's p99 latency would be 240 ms of 200 ms allowed"


def test_nor_does_such_a_service_come_beside_other_work():
    jobs = [running("train", [at("n0", 0, 1)], tenant="llama", preemptible=False), service(tenant="chat")]
    plan = plan_of(asked("gpu", 1, jobs, apart=[APART]))

    assert told(plan, "svc")["detail"] == "beside job train on n0 its p99 latency would be 240 ms of 200 ms allowed"
    assert (told(plan, "svc")["predicted_ms"], told(plan, "svc")["allowed_ms"]) == (240, 200)


def test_a_pair_that_only_a_gpu_parts_stands_on_whole_gpus_of_one_node():
    jobs = [running("train", [at("n0", 0, 1)], tenant="llama"), service(tenant="chat")]

    assert actions(plan_of(asked("gpu", 1, jobs, apart=[{**APART, "where": "gpu"}]))) == {"svc": "start"}


def test_preemption_clears_a_node_of_all_who_may_not_be_neighbours_and_only_of_them():
    jobs = [running(f"t{number}", [at(f"n{number // 2}", number % 2)], started=-90 + number) for number in range(4)]
    plan = plan_of(asked("node", 2, [*jobs, service(gpus=1)], gpus=4))

    assert placed(plan, "svc") == ["n1"]
    assert sorted(name for name, action in actions(plan).items() if action in ("evict", "move")) == ["t2", "t3"]


def test_who_gives_way_is_chosen_as_ever():
    """Batch before inference, also where all of a node has to leave."""
    batch = [running(f"t{number}", [at("n0", number)], started=-90) for number in range(3)]
    other = {**running("other", [at("n1", *range(8))], started=-10), "class": "inference", "preemptible": True}
    plan = plan_of(asked("node", 2, [*batch, other, service(gpus=6, priority=5)], quotas=[quota("q", 0)]))

    assert placed(plan, "svc") == ["n0"]
    assert {name for name, action in actions(plan).items() if action == "evict"} == {"t0", "t1", "t2"}


def test_a_reservation_is_dated_by_when_the_last_neighbour_leaves_and_nobody_comes_there_who_stays_longer():
    jobs = [running("train", [at("n0", 0)], limit_s=HOUR, preemptible=False), service(gpus=4, submitted=-90), job("late", gpus=1, preemptible=False)]
    plan = plan_of(asked("node", 1, jobs))
    kept = next(one for one in plan["decisions"] if one["action"] == "reserve")

    assert (kept["job"], kept["at"]) == ("svc", "2026-11-20T09:59:10Z")
    assert "late" not in actions(plan)
    assert "reservation" in reasons(plan, "late")


def test_growth_repair_and_moves_heed_neighbours():
    elastic = running("train", [at("n1", 0)], most=12, least=1)
    plan = plan_of(asked("node", 2, [service(at("n0", 0, 1)), elastic]))
    lost = {**running("gang", [at("n1", 0)], role={"min": 2, "max": 2}), "degraded_since": -10}
    plan_of_lost = plan_of(asked("node", [node("n0"), node("n1", 1)], [service(at("n0", 0, 1)), lost]))

    assert {*placed(plan, "train")} == {"n1"}
    assert actions(plan_of_lost) == {}


def test_the_last_word_on_a_plan_refuses_such_neighbours(monkeypatch: pytest.MonkeyPatch):
    scenario = parse(asked("node", 1, [service(at("n0", 0, 1)), job("train", gpus=2)]))
    monkeypatch.setattr(Colocation, "off", lambda self, work: 0)

    with pytest.raises(InvariantBroken, match="train came to n0, where svc stands"):
        make_plan(scenario)


def test_a_trial_tells_the_neighbour():
    ground = Ground(parse(asked("node", 1, [running("train", [at("n0", 0)], preemptible=False)])))
    tried = ground.trial(parse(asked("node", 1, [service()])).jobs[0])

    assert [one.code for one in tried.reasons] == ["colocation"]


def test_a_scenario_tells_it_again_as_it_was_read():
    plain = spelt(parse(asked("any")))
    nodes = [node("n0", boundaries=["mig", "cores", "mig"])]
    full = spelt(parse(asked("node", nodes, [service(tenant="chat")], apart=[APART])))

    assert "colocation" not in plain["settings"]
    assert "apart" not in plain
    assert (full["settings"]["colocation"], full["nodes"][0]["boundaries"], full["apart"]) == ("node", ["cores", "mig"], [APART])
    assert full["jobs"][0]["tenant"] == "chat"
    with pytest.raises(ScenarioError, match="must be one of gpu, node"):
        parse(asked("node", apart=[{**APART, "where": "rack"}]))
