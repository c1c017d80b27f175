"""Who gives way for a service over its objective: only those that the rules of preemption and reclaim allow, the least lost work first."""

import pytest

from scheduler.engine.cycle import make_plan
from scheduler.engine.model.plan import Decision
from scheduler.engine.model.reasons import reason
from scheduler.engine.model.values import CLASSES
from scheduler.engine.relief import REFUSALS, Relief, Yields, yielding
from scheduler.engine.state.state import Kept
from scheduler.scenarios.reading import parse
from scheduler.scenarios.spelling import spelt
from tests.scheduler.engine.scenes import actions, at, job, node, placed, plan_of, quota, reasons, running, scene
from tests.scheduler.twin.colocated import colocated_random

NOW_MS = parse(scene([node("n0")], [quota("q")], [])).now
MINUTE_MS = 60_000
OWN = [quota("q", 16)]


def service(**fields):
    return {**running("svc", [at("n0", 0, 1)], fields.pop("of", "q"), **fields), "class": "inference"}


def asked(jobs, *, quotas=OWN, beside=None, begin=0, silent=(), nodes=2, **fields):
    scenario = parse(scene([node(f"n{number}") for number in range(nodes)], quotas, [*jobs], **fields))
    others = tuple(one["name"] for one in jobs if one["name"] != "svc") if beside is None else beside
    (found,) = yielding(scenario, [Relief("svc", others, NOW_MS + begin, frozenset(silent))])
    return found


def test_the_least_lost_work_gives_way():
    jobs = [
        service(),
        running("old", [at("n0", 2)], started=-5000),
        running("big", [at("n0", 3, 4)], started=-1000),
        running("young", [at("n0", 5)], started=-1500),
    ]

    found = asked(jobs)
    assert (found.job, found.at, found.lost) == ("young", NOW_MS, 1500 * 1000)

    saved = [*jobs, running("saved", [at("n0", 6, 7)], started=-9000, checkpoint={"interval_s": 600, "last": -60, "save_s": 5, "restore_s": 5})]
    assert asked(saved).job == "saved", "since its checkpoint it has lost the least"


def test_of_equals_the_youngest_gives_way_then_the_first_by_name():
    twins = [running(name, [at("n0", gpu)], started=-100) for gpu, name in enumerate("bcd", start=2)]

    assert asked([service(), *twins]).job == "b"
    assert asked([service(), *twins, {**running("e", [at("n0", 6)], started=-100), "submitted": -50}]).job == "e"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"preemptible": False}, "not_preemptible"),
        ({"checkpoint": None}, "no_checkpoint"),
        ({"class": "inference", "preemptible": True}, "serving"),
        ({"state": "starting"}, "starting"),
        ({"preemptible": "when_borrowed"}, "guarantee"),
    ],
)
def test_who_may_not_be_evicted_stays_and_the_reason_is_told(fields, code):
    found = asked([service(), {**running("train", [at("n0", 2)]), **fields}])

    assert (found.job, found.refused) == (None, (("train", code),))
    assert code in REFUSALS


def test_a_minimum_run_time_puts_it_off():
    jobs = [service(), running("train", [at("n0", 2)], started=-50)]
    rules = [quota("q", 16, preempt_min_runtime_s=300)]

    assert (asked(jobs, quotas=rules).job, asked(jobs, quotas=rules).at) == ("train", NOW_MS + 250_000)
    assert asked(jobs, quotas=rules, begin=10 * MINUTE_MS).at == NOW_MS + 10 * MINUTE_MS, "it is over by then"
    assert asked([*jobs, running("dear", [at("n0", 3, 4)], started=-900)], quotas=rules).job == "dear", "who may go at once goes"


def test_of_another_team_only_borrowed_work_is_evicted_or_what_finds_another_place():
    borrowed = [quota("q", 2), quota("r", 1)]
    inside = [quota("q", 2), quota("r", 8)]
    jobs = [service(), running("train", [at("n0", 2, 3)], "r")]

    assert asked(jobs, quotas=borrowed, nodes=1).job == "train"
    assert asked(jobs, quotas=inside, nodes=1).refused == (("train", "guarantee"),), "the only node is that of the service"
    assert asked(jobs, quotas=inside, nodes=2).job == "train", "there is room on n1"
    full = [*jobs, running("rest", [at("n1", *range(8))], preemptible=False)]
    assert asked(full, quotas=[quota("q", 10), quota("r", 6)], beside=("train",)).refused == (("train", "guarantee"),)


def test_what_is_inside_its_guarantee_goes_alone_and_beside_a_plan_that_gives_nobody_a_place():
    quotas = [quota("q", 4), quota("r", 12)]
    more = {**running("more", [at("n2", 0, 1)]), "class": "inference"}
    jobs = [service(), more, running("one", [at("n0", 2, 3, 4)], "r"), running("two", [at("n2", 2, 3, 4)], "r")]
    room = running("room", [at("n1", 0, 1, 2, 3)], "r", preemptible=False)
    scenario = parse(scene([node(f"n{number}") for number in range(3)], quotas, [*jobs, room]))
    asks = [Relief("svc", ("one",), NOW_MS), Relief("more", ("two",), NOW_MS)]

    assert [(one.job, one.guaranteed, one.goes) for one in yielding(scenario, asks)] == [("one", True, True), ("two", True, False)]
    assert [one.goes for one in yielding(scenario, asks[1:])] == [True], "both count on the same GPUs of n1"
    waits = parse(scene([node(f"n{number}") for number in range(3)], quotas, [*jobs, room, job("waits", "r", gpus=1)]))
    plan = make_plan(waits)
    assert [one.action for one in plan.decisions] == ["start"]
    assert [(one.job, one.goes) for one in yielding(waits, asks, plan.decisions)] == [("one", False), ("two", False)]
    left = [*jobs[:2], {**jobs[2], "state": "stopping", "until": 20}, jobs[3], room]
    (_, two) = yielding(parse(scene([node(f"n{number}") for number in range(3)], quotas, left)), asks)
    assert (two.job, two.goes) == ("two", False), "the place of the one that leaves is not taken yet"
    own = parse(scene([node("n0")], OWN, [service(), running("train", [at("n0", 2)]), job("waits", gpus=1)]))
    (found,) = yielding(own, [Relief("svc", ("train",), NOW_MS)], make_plan(own).decisions)
    assert (found.job, found.guaranteed, found.goes) == ("train", False, True), "to which no other place was promised"


@pytest.mark.parametrize("changed", ["svc", "train"])
def test_nobody_gives_way_where_the_plan_changes_the_service_or_the_job_itself(changed):
    scenario = parse(scene([node("n0")], OWN, [service(), running("train", [at("n0", 2)])]))
    moves = Decision("move", reason("consolidate", "a test"), changed)
    (found,) = yielding(scenario, [Relief("svc", ("train",), NOW_MS)], [moves])

    assert (found.job, found.at, found.goes) == ("train", NOW_MS, False)


def test_by_a_reading_that_does_not_count_nobody_goes_and_the_time_told_stays():
    scenario = parse(scene([node("n0")], OWN, [service(), running("train", [at("n0", 2)])]))
    (found,) = yielding(scenario, [Relief("svc", ("train",), NOW_MS - 1000, counts=False)])

    assert (found.job, found.at, found.goes) == ("train", NOW_MS - 1000, False)


def test_the_rule_of_reclaim_protects_it_where_they_are_of_two_teams():
    quotas = [quota("q", 2, preempt_min_runtime_s=900), quota("r", 0, reclaim_min_runtime_s=100)]

    assert asked([service(), running("train", [at("n0", 2)], "r", started=-50)], quotas=quotas).at == NOW_MS + 50_000


def test_a_service_above_its_guarantee_costs_others_no_more_than_it_is_worth():
    jobs = [service(), running("train", [at("n0", 2)], started=-500)]
    settings = {"worth": {"inference": 400, "interactive": None, "batch": None}}
    assert set(settings["worth"]) == set(CLASSES)

    assert asked(jobs, quotas=[quota("q", 0)], settings=settings).refused == (("train", "worth"),)
    assert asked(jobs, quotas=[quota("q", 3)], settings=settings).job == "train"


def test_while_one_leaves_nobody_else_does():
    leaving = {**running("gone", [at("n0", 3)]), "state": "stopping", "until": 20}

    found = asked([service(), running("train", [at("n0", 2)]), leaving])
    assert (found.job, found.refused) == (None, (("gone", "leaving"),))


def test_who_is_out_of_reach_or_gone_does_not_give_way():
    jobs = [service(), running("train", [at("n0", 2)]), job("waits", gpus=8)]

    assert asked(jobs, silent=["train"]).refused == (("train", "silent"),)
    assert asked(jobs, beside=("waits", "nobody")) == Yields("svc")


def test_one_job_gives_way_once_for_two_services():
    jobs = [service(), {**running("more", [at("n0", 2)]), "class": "inference"}, running("train", [at("n0", 3)])]
    scenario = parse(scene([node("n0")], OWN, jobs))
    one, two = yielding(scenario, [Relief(name, ("train",), NOW_MS) for name in ("svc", "more")])

    assert (one.job, two.job, two.refused) == ("train", None, (("train", "leaving"),))


@pytest.mark.parametrize("seed", range(40))
def test_asking_changes_nothing_and_whoever_gives_way_may(seed):
    scenario = parse(colocated_random(seed))
    services = [one.name for one in scenario.jobs if one.kind.class_rank == 2 and one.run.state == "running"]
    others = tuple(one.name for one in scenario.jobs if one.run.workers)
    before = make_plan(scenario).as_json()
    asks = [Relief(name, tuple(one for one in others if one != name), scenario.now + MINUTE_MS) for name in services]
    found = yielding(scenario, asks)

    assert found == yielding(scenario, [Relief(one.service, one.beside[::-1], one.at) for one in asks])
    assert make_plan(scenario).as_json() == before
    by_name = {one.name: one for one in scenario.jobs}
    for answer in found:
        assert not {name for name, _ in answer.refused} & {answer.job}
        if answer.job is not None:
            victim = by_name[answer.job]
            assert victim.kind.class_rank < 2
            assert victim.kind.preemptible
            assert victim.run.state == "running"
            assert answer.at >= scenario.now + MINUTE_MS


# Kept off afterwards


KEPT_OFF = {"service": "chat", "other": "llama", "where": "node", "figure": "p99 latency", "predicted_ms": 420, "allowed_ms": 300, "measured": True}


@pytest.mark.parametrize("how", ["any", "gpu", "node"])
def test_a_measured_pair_is_kept_apart_whatever_the_fleet_asks_for(how):
    nodes = [node("n0", boundaries=["cores", "mig"])]
    jobs = [service(tenant="chat"), job("train", gpus=4, tenant="llama"), job("other", gpus=2, submitted=-50)]
    plan = plan_of(scene(nodes, OWN, jobs, settings={"colocation": how}, apart=[KEPT_OFF]))

    assert actions(plan) == {"other": "start"}
    assert reasons(plan, "train") == {"colocation"}
    (told,) = [one for one in plan["waiting"][0]["reasons"] if one["code"] == "colocation"]
    assert told["detail"] == "beside service svc on n0, the service's p99 latency was 420 ms of 300 ms allowed"
    assert (told["measured_ms"], told["allowed_ms"]) == (420, 300)


def test_it_finds_another_node():
    jobs = [service(tenant="chat"), job("train", gpus=4, tenant="llama")]

    assert placed(plan_of(scene([node("n0"), node("n1")], OWN, jobs, apart=[KEPT_OFF])), "train") == ["n1"]


def test_a_fleet_that_asks_for_no_boundaries_shares_gpus_as_before():
    half = {"role": {"gpus": None, "gpu_share": 0.5}, "sharing": "mps"}
    svc = {**job("svc", **half, tenant="x"), "class": "inference"}
    plan = plan_of(scene([node("n0", 1)], OWN, [svc, job("train", **half)], settings={"sharing_trust": "any"}, apart=[KEPT_OFF]))

    assert actions(plan) == {"svc": "start", "train": "start"}


def test_a_predicted_pair_counts_only_where_the_fleet_asks_for_it():
    jobs = [service(tenant="chat"), job("train", gpus=4, tenant="llama")]
    predicted = {key: value for key, value in KEPT_OFF.items() if key != "measured"}
    scenario = scene([node("n0")], OWN, jobs, apart=[predicted])

    assert actions(plan_of(scenario)) == {"train": "start"}
    assert "measured" not in spelt(parse(scenario))["apart"][0]
    assert spelt(parse({**scenario, "apart": [KEPT_OFF]}))["apart"] == [KEPT_OFF]


def test_a_plan_that_goes_on_from_another_knows_pairs_that_come_and_go():
    jobs = [service(tenant="chat"), job("train", gpus=4, tenant="llama")]
    kept = Kept()
    for apart in ([], [KEPT_OFF], [{**KEPT_OFF, "predicted_ms": 500}], []):
        scenario = parse(scene([node("n0"), node("n1")], OWN, jobs, apart=apart))
        assert make_plan(scenario, kept).as_json() == make_plan(scenario).as_json()
