"""Growth of elastic jobs: whose turn it is, and what it may take from whom."""

from typing import Any

import pytest

from scheduler.scenarios.reading import parse
from scheduler.simulation.world import World

from .scenes import actions, at, job, node, placed, plan_of, quota, running, scene

Json = dict[str, Any]


def elastic(name: str, quota_name: str, gpus: range, *, least: int = 1, most: int = 8, **fields: Any) -> Json:
    """A job that runs on so many single GPUs of n0 and could do with `least`, or use `most`."""
    return running(name, [at("n0", gpu) for gpu in gpus], quota_name, least=least, most=most, **fields)


def workers(plan: Json, name: str) -> int:
    return next(len(one["workers"]) for one in plan["decisions"] if one.get("job") == name)


def test_growth_takes_back_surplus_up_to_its_fair_share() -> None:
    """b holds six of eight GPUs, of which four are its share; a grows from two to four and b keeps four."""
    greedy, modest = elastic("greedy", "b", range(2, 8)), elastic("modest", "a", range(2))
    plan = plan_of(scene([node("n0")], [quota("a", 4), quota("b", 4)], [greedy, modest]))

    assert actions(plan) == {"greedy": "shrink", "modest": "grow"}
    assert (workers(plan, "greedy"), workers(plan, "modest")) == (4, 4)
    shrink, grow = plan["decisions"]
    assert shrink["why"]["code"] == "reclaim"
    assert shrink["why"]["for"] == "modest"
    assert [worker["index"] for worker in shrink["workers"]] == [0, 1, 2, 3]
    assert grow["after"] == ["greedy"]


def test_growth_never_takes_a_minimum() -> None:
    held = running("held", [at("n0", 2, 3, 4, 5, 6, 7)], "b")
    plan = plan_of(scene([node("n0")], [quota("a", 4), quota("b", 4)], [held, elastic("modest", "a", range(2))]))

    assert actions(plan) == {}


def test_growth_does_not_preempt_nor_take_from_its_own_queue() -> None:
    low = elastic("low", "a", range(2, 8), priority=0)
    plan = plan_of(scene([node("n0")], [quota("a", 8)], [low, elastic("high", "a", range(2), priority=50)]))

    assert actions(plan) == {}


def test_growth_reclaims_only_where_reclaim_is_a_pass() -> None:
    greedy, modest = elastic("greedy", "b", range(2, 8)), elastic("modest", "a", range(2))
    quotas = [quota("a", 4), quota("b", 4)]

    for passes, expected in ((["grow"], {}), (["reclaim"], {}), (["reclaim", "grow"], {"greedy": "shrink", "modest": "grow"})):
        assert actions(plan_of(scene([node("n0")], quotas, [greedy, modest], settings={"passes": passes}))) == expected


def test_growth_waits_for_the_delay_before_it_takes_anything() -> None:
    greedy, young = elastic("greedy", "b", range(2, 8)), elastic("young", "a", range(2), preemption_delay_s=3600)
    plan = plan_of(scene([node("n0")], [quota("a", 4), quota("b", 4)], [greedy, young]))

    assert actions(plan) == {}
    assert plan["next_wake"] == "2026-11-20T09:58:20Z"  # it was submitted 100 s ago


def test_surplus_that_a_waiting_minimum_could_use_is_not_taken_for_growth() -> None:
    """c may not take back anything, as it has no share; but a GPU that comes free is its minimum's before it is a's surplus."""
    greedy, modest = elastic("greedy", "b", range(2, 8)), elastic("modest", "a", range(2))
    quotas = [quota("a", 4), quota("b", 4), quota("c", 0, weight=0)]
    plan = plan_of(scene([node("n0")], quotas, [greedy, modest, job("waits", "c")]))

    assert "modest" not in actions(plan)


def test_growth_of_work_that_is_not_preemptible_stays_inside_the_guarantee() -> None:
    greedy, fixed = elastic("greedy", "b", range(2, 8)), elastic("fixed", "a", range(2), preemptible=False)
    plan = plan_of(scene([node("n0")], [quota("a", 3, weight=3), quota("b", 0)], [greedy, fixed]))

    assert (workers(plan, "greedy"), workers(plan, "fixed")) == (5, 3)


def test_in_a_queue_who_is_at_its_minimum_grows_before_who_is_above_it() -> None:
    first, second = elastic("first", "a", range(2), submitted=-500), elastic("second", "a", range(4, 5), submitted=-400)
    held = running("held", [at("n0", 2, 3, 5, 6)], "a")
    plan = plan_of(scene([node("n0")], [quota("a", 8)], [first, second, held]))

    assert actions(plan) == {"second": "grow"}
    assert workers(plan, "second") == 2


def grows_and_waits(gpus: int) -> Json:
    """A job has lost its worker 0 and could have it again on n0, beside one that waits for so many GPUs on one node."""
    nodes = [node("n0", 1), node("n1", 3)]
    grows = {**running("grows", [at("n1", gpu) for gpu in range(3)], least=1, most=4), "workers": [at("n1", gpu, index=1 + gpu) for gpu in range(3)]}
    return scene(nodes, [quota("q", 4)], [grows, job("waits", gpus=gpus)])


def test_a_minimum_that_runs_is_not_given_back_for_one_that_is_only_about_to() -> None:
    """Worker 0 comes to n0; with it alone left the job would stand still until that is up."""
    plan = plan_of(grows_and_waits(3))

    assert actions(plan) == {"grows": "grow"}
    assert placed(plan, "grows") == ["n0", "n1", "n1", "n1"]


def test_who_gives_back_does_not_grow_in_the_same_plan() -> None:
    scenario = grows_and_waits(2)
    scenario["nodes"] = [node("n0", 1), node("n1", 3, labels={"pool": "p"})]
    scenario["jobs"][1]["node_labels"] = {"pool": "p"}
    plan = plan_of(scenario)

    assert actions(plan) == {"grows": "shrink", "waits": "start"}
    assert placed(plan, "grows") == ["n1"]


def test_who_has_lost_some_of_a_step_is_given_those_first() -> None:
    """One worker, and steps of two: with two workers left it grows to three and five, never to four."""
    grows = running("grows", [at("n0", 0), at("n0", 1)], least=1, role={"step": 2}, most=7)

    assert workers(plan_of(scene([node("n0", 4)], [quota("q", 4)], [grows])), "grows") == 3
    assert workers(plan_of(scene([node("n0", 6)], [quota("q", 6)], [grows])), "grows") == 5


def learners_and_actors(actors: int, *, desired: int | None = None) -> Json:
    """A job of one learner, which it has lost, and of actors on n0."""
    roles = [{"name": "actor", "min": 1, "max": 4, "gpus": 1}, {"name": "learner", "min": 1, "max": 1, "gpus": 1}]
    if desired is not None:
        roles[0]["desired"] = desired
    stand = [{**at("n0", gpu, index=gpu), "role": "actor"} for gpu in range(actors)]
    made = {**running("gang", [at("n0", 0)], "a", degraded_since=-5, grace_s=60), "roles": roles, "workers": stand}
    return {**made, "class": "inference"} if desired is not None else made


def test_a_gang_that_is_made_whole_keeps_its_surplus_in_that_plan() -> None:
    """Its learner comes to the idle GPU; its third actor's is what b could have had."""
    gang, asks = learners_and_actors(3), job("asks", "b", gpus=2)
    plan = plan_of(scene([node("n0", 4)], [quota("a", 2), quota("b", 2)], [gang, asks]))

    assert actions(plan) == {"gang": "repair"}
    assert len(placed(plan, "gang")) == 4


def test_a_service_that_holds_what_its_own_gap_needs_gives_back_first() -> None:
    """Two actors are desired, four stand there, and nothing is idle: the learner comes in the next plan."""
    scenario = scene([node("n0", 4)], [quota("a", 4)], [learners_and_actors(4, desired=2)])
    plan = plan_of(scenario)

    assert actions(plan) == {"gang": "shrink"}
    assert len(placed(plan, "gang")) == 2
    scenario["jobs"][0]["workers"] = scenario["jobs"][0]["workers"][:2]
    assert actions(plan_of(scenario)) == {"gang": "repair"}


def test_what_is_not_desired_any_more_counts_in_no_share() -> None:
    """Once four of its six workers are given back, b's part is shared out to a, which grows by it in the same plan."""
    service = elastic("service", "b", range(2, 8), **{"class": "inference"})
    service["roles"][0]["desired"] = 2
    plan = plan_of(scene([node("n0")], [quota("a"), quota("b")], [elastic("grows", "a", range(2)), service]))

    assert {one["quota"]: one["fair"] for one in plan["shares"]} == {"a": 6.0, "b": 2.0}
    assert (workers(plan, "service"), workers(plan, "grows")) == (2, 6)


def test_an_index_is_given_anew_only_once_its_worker_has_left() -> None:
    """Worker 1 is on its way out: until then nobody could say which of the two a back-end tells of."""
    grows = {**running("grows", [at("n0", 0)], least=1, most=3), "leaving": [at("n0", 1, index=1)]}
    scenario = scene([node("n0", 4)], [quota("q", 4)], [grows])
    plan = plan_of(scenario)

    assert [worker["index"] for one in plan["decisions"] for worker in one["workers"]] == [0, 2]
    grows["leaving"] = []
    assert [worker["index"] for one in plan_of(scenario)["decisions"] for worker in one["workers"]] == [0, 1, 2]


def test_a_degraded_gang_gives_back_its_own_surplus_where_nothing_else_makes_room() -> None:
    """Three actors, no learner, and nothing idle: an actor goes, and the learner comes in the next plan, a second later."""
    scenario = scene([node("n0", 4)], [quota("a", 4), quota("b")], [learners_and_actors(3), running("other", [at("n0", 3)], "b", preemptible=False)])
    plan = plan_of(scenario)

    assert actions(plan) == {"gang": "shrink"}
    assert plan["next_wake"] == "2026-11-20T09:00:01Z"
    scenario["jobs"][0]["workers"] = scenario["jobs"][0]["workers"][:2]
    assert actions(plan_of(scenario)) == {"gang": "repair"}


def test_growth_that_is_left_for_the_next_plan_comes_at_once() -> None:
    """Started in this plan, a job takes what is guaranteed to it from another queue's surplus in the next one: it is not left at its minimum."""
    lender = {**running("lender", [at("n0", gpu) for gpu in range(7)], "r", least=1), "roles": [{"min": 1, "max": 8, "gpus": 1}]}
    scenario = scene([node("n0")], [quota("q", 2), quota("r", 0)], [lender, job("grows", most=2, work_s=HOURS, limit_s=HOURS)])
    world = World(parse(scenario))
    world.run(world.now + 60_000)
    assert len(world.active["grows"].run.workers) == 2


def of_two_queues(asks: list[Json], *, step: int) -> Json:
    """`low` ranks least. Its next step is 4 GPUs, which leave its queue with 2 of 4 GPUs that it is promised; `high` has 4 above its queue's 4."""
    low = running("low", [at("n0", gpu) for gpu in range(6)], "a", least=2, most=6, priority=10, role={"step": step})
    high = running("high", [at("n1", gpu) for gpu in range(8)], "b", least=2, most=8, priority=20, role={"step": 2})
    beside = running("beside", [at("n0", 6), at("n0", 7)], "b", priority=20)
    quotas = [quota("a", 4, weight=0), quota("b", 4, weight=0), quota("mine", 4, weight=0)]
    return scene([node("n0"), node("n1"), node("n2", 2)], quotas, [low, high, beside, *asks])


def test_surplus_that_crosses_no_line_goes_first_for_a_minimum() -> None:
    other = running("other", [at("n2", 0), at("n2", 1)], "mine", priority=90)
    waits = job("waits", "mine", 1, 2, priority=50)

    assert actions(plan_of(of_two_queues([other, waits], step=4))) == {"high": "shrink", "waits": "start"}
    assert actions(plan_of(of_two_queues([other, waits], step=2))) == {"low": "shrink", "waits": "start"}


def test_surplus_that_crosses_no_line_goes_first_for_growth() -> None:
    grows = running("grows", [at("n2", 0), at("n2", 1)], "mine", least=2, most=4, role={"step": 2})

    assert actions(plan_of(of_two_queues([grows], step=4))) == {"high": "shrink", "grows": "grow"}
    assert actions(plan_of(of_two_queues([grows], step=2))) == {"low": "shrink", "grows": "grow"}


def test_of_surplus_what_is_borrowed_goes_first() -> None:
    """All of `inside` stands on a guarantee; what makes its queue borrow is a gang of a lower number."""
    inside, gang = elastic("inside", "a", range(4), least=2, most=4, priority=10), running("gang", [at("n0", 4, 5, 6, 7)], "a", priority=5)
    borrowed = running("borrowed", [at("n1", gpu) for gpu in range(8)], "b", least=2, most=8, priority=20)
    quotas = [quota("a", 4, weight=0), quota("b", 4, weight=0), quota("mine", 2, weight=0)]
    plan = plan_of(scene([node("n0"), node("n1")], quotas, [inside, gang, borrowed, job("waits", "mine", 1, 2)]))

    assert actions(plan) == {"borrowed": "shrink", "waits": "start"}


@pytest.mark.parametrize(("number", "passes"), [(50, None), (90, None), (50, ["allocate", "reclaim", "preempt"])])
def test_surplus_of_the_own_queue_goes_along_with_what_is_reclaimed(number: int, passes: list[str] | None) -> None:
    """It is given back before a second job of the other queue is evicted; not by a job of a higher number, nor where shrink is no pass."""
    own = elastic("own", "a", range(4), least=2, most=4, priority=number)
    others = [running("older", [at("n0", 4, 5)], "b", started=-900), running("younger", [at("n0", 6, 7)], "b", started=-100)]
    fields = {} if passes is None else {"settings": {"passes": passes}}
    plan = plan_of(scene([node("n0")], [quota("a", 8), quota("b")], [own, *others, job("waits", "a", 1, 4, priority=50)], **fields))

    gives = {"own": "shrink", "younger": "evict"} if (number, passes) == (50, None) else {"older": "evict", "younger": "evict"}
    assert actions(plan) == {**gives, "waits": "start"}
    codes = {one["job"]: one["why"]["code"] for one in plan["decisions"] if one["action"] in ("evict", "shrink")}
    assert codes == {name: "shrink" if action == "shrink" else "reclaim" for name, action in gives.items()}


HOURS = 5 * 3600


@pytest.mark.parametrize("passes", [None, ["allocate", "preempt"]])
def test_surplus_of_an_equal_job_goes_along_with_a_lower_one(passes: list[str] | None) -> None:
    """Neither is enough alone. Without shrink among the passes only lower work gives something."""
    equal = running("equal", [at("n0", gpu) for gpu in range(6)], least=4, most=6, priority=50)
    lower = running("lower", [at("n0", 6, 7)], priority=10)
    fields = {} if passes is None else {"settings": {"passes": passes}}
    plan = plan_of(scene([node("n0")], [quota("q", 8)], [equal, lower, job("mine", workers=4, priority=50)], **fields))

    assert actions(plan) == ({"equal": "shrink", "lower": "evict", "mine": "start"} if passes is None else {})
