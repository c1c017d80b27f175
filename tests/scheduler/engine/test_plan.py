"""One rule a test, on fleets small enough to be checked by eye."""

import pytest

from scheduler.engine.model.values import Settings
from scheduler.scenarios.reading import PASS_OF, SETTINGS
from tests.servers import PROJECT

from .scenes import A100, H100, actions, at, job, leafed, node, placed, plan_of, quota, reasons, running, scene

FULL = range(8)


def test_a_gang_starts_whole_or_not_at_all() -> None:
    plan = plan_of(scene([node("n1"), node("n2")], [quota("q")], [job("wide", gpus=8, workers=3), job("fits", gpus=8, workers=2)]))

    assert actions(plan) == {"fits": "start"}
    assert reasons(plan, "wide") == {"empty_fleet"}


def test_a_required_level_holds_all_workers_and_the_tightest_domain_is_taken() -> None:
    nodes = leafed(6)
    held = running("held", [at("n004", *FULL)], "q")
    plan = plan_of(scene(nodes, [quota("q")], [held, job("gang", gpus=4, workers=2, topology={"required": "leaf"})]))

    assert placed(plan, "gang") == ["n005", "n005"]


def test_ranks_follow_the_fabric() -> None:
    plan = plan_of(scene(leafed(4), [quota("q")], [job("gang", gpus=8, workers=4)]))

    assert placed(plan, "gang") == ["n000", "n001", "n002", "n003"]


def test_spread_takes_the_emptiest_node() -> None:
    held = running("held", [at("n1", 0)])
    for placement, expected in (("pack", "n1"), ("spread", "n2")):
        plan = plan_of(scene([node("n1"), node("n2")], [quota("q")], [held, job("one")], settings={"placement": placement}))
        assert placed(plan, "one") == [expected]


def test_of_equal_nodes_the_one_is_taken_that_breaks_no_block() -> None:
    """For a gang that waits, and where none waits for the usual demand."""
    nodes = leafed(3)  # two nodes in the first leaf, one in the second
    small = job("small", submitted=-200)
    gang = job("gang", gpus=8, workers=2, topology={"required": "leaf"})
    plan = plan_of(scene(nodes, [quota("q")], [small, gang]))
    assert placed(plan, "small") == ["n002"]
    assert actions(plan) == {"small": "start", "gang": "start"}

    usual = [{"share": 1, "gpus": 8, "workers": 2, "required": "leaf"}]
    for one in (small, job("small", workers=2)):
        assert set(placed(plan_of(scene(nodes, [quota("q")], [one], demand=usual)), "small")) == {"n002"}
    assert placed(plan_of(scene(nodes, [quota("q")], [small])), "small") == ["n000"]


def test_in_a_domain_that_holds_the_gang_no_more_there_is_nothing_to_break() -> None:
    nodes = [*leafed(4), node("n004", path={"leaf": "l001"})]
    held = running("held", [at("n000", 0)])
    gang = job("gang", gpus=8, workers=3, topology={"required": "leaf"})
    plan = plan_of(scene(nodes, [quota("q")], [held, job("small", gpus=8, submitted=-200), gang]))

    assert placed(plan, "small") == ["n001"]
    assert actions(plan) == {"small": "start", "gang": "start"}


def test_a_limit_above_the_leaf_binds() -> None:
    quotas = [quota("org", 8, limit=3), quota("org/a", parent="org")]
    plan = plan_of(scene([node("n1")], quotas, [job("two", "org/a", 2), job("more", "org/a", 2, submitted=-50)]))

    assert actions(plan) == {"two": "start"}
    assert "limit" in reasons(plan, "more")


def test_work_that_is_not_preemptible_stays_inside_the_guarantee() -> None:
    plan = plan_of(scene([node("n1")], [quota("q", 2)], [job("fixed", gpus=4, preemptible=False), job("loose", gpus=4)]))

    assert actions(plan) == {"loose": "start"}
    assert "guarantee" in reasons(plan, "fixed")


def test_a_guarantee_is_taken_back_from_borrowers_and_no_more_than_needed() -> None:
    quotas = [quota("a", 8), quota("b", 8)]
    jobs = [running(f"a{i}", [at(f"n{i // 8}", i % 8)], "a", started=-1000 + i) for i in range(16)]
    plan = plan_of(scene([node("n0"), node("n1")], quotas, [*jobs, job("mine", "b", 4)]))

    assert actions(plan)["mine"] == "start"
    assert sorted(actions(plan).values()).count("evict") == 4
    assert {name for name, action in actions(plan).items() if action == "evict"} == {"a12", "a13", "a14", "a15"}


def test_the_starter_waits_for_the_victims_it_needs() -> None:
    quotas = [quota("a", 0), quota("b", 8)]
    plan = plan_of(scene([node("n0")], quotas, [running("old", [at("n0", *FULL)], "a", grace_s=30), job("mine", "b", 8)]))

    start = next(one for one in plan["decisions"] if one["job"] == "mine")
    assert start["after"] == ["old"]
    assert plan["decisions"][0] == {"action": "evict", "job": "old", "why": plan["decisions"][0]["why"], "grace_s": 30}


def test_what_stands_inside_a_guarantee_is_not_reclaimed() -> None:
    quotas = [quota("a", 8), quota("b", 8)]
    plan = plan_of(scene([node("n0")], quotas, [running("inside", [at("n0", *FULL)], "a"), job("mine", "b", 8)]))

    assert actions(plan) == {}
    assert "shortage" in reasons(plan, "mine")


def test_higher_numbers_preempt_in_their_own_leaf_only() -> None:
    quotas = [quota("a", 4), quota("b", 4)]
    held = [running("low", [at("n0", 0, 1, 2, 3)], "a"), running("other", [at("n0", 4, 5, 6, 7)], "b")]
    plan = plan_of(scene([node("n0")], quotas, [*held, job("high", "a", 4, priority=10), job("same", "b", 4)]))

    assert actions(plan) == {"low": "evict", "high": "start"}


def test_surplus_is_given_back_before_anyone_is_evicted() -> None:
    elastic = running("wide", [at("n0", i) for i in range(8)], least=2, most=8)
    plan = plan_of(scene([node("n0")], [quota("q")], [elastic, job("mine", gpus=3)]))

    assert actions(plan) == {"wide": "shrink", "mine": "start"}
    assert len(next(one for one in plan["decisions"] if one["job"] == "wide")["workers"]) == 5


def test_elastic_jobs_grow_into_what_is_idle() -> None:
    plan = plan_of(scene([node("n0")], [quota("q")], [job("wide", workers=2, most=6), job("other", gpus=3)]))

    assert actions(plan) == {"wide": "start", "other": "start"}
    assert len(placed(plan, "wide")) == 5


def test_consolidation_moves_the_fewest_jobs() -> None:
    held = [running("small", [at("n0", 0)]), running("large", [at("n1", 0, 1, 2)])]
    plan = plan_of(scene([node("n0"), node("n1")], [quota("q")], [*held, job("block", gpus=8)]))

    assert actions(plan) == {"small": "move", "block": "start"}
    assert placed(plan, "small") == ["n1"]


def test_consolidation_moves_more_jobs_where_a_single_one_finds_no_other_place() -> None:
    """To clear n0 takes one job, of six GPUs; to clear n1 two of two GPUs each, and only these find room."""
    held = [
        running("six", [at("n0", 0, 1, 2, 3, 4, 5)]),
        running("two", [at("n1", 0, 1)]),
        running("other", [at("n1", 2, 3)]),
        running("pinned", [at("n2", 0, 1, 2, 3, 4, 5)], preemptible=False),
    ]
    plan = plan_of(scene([node("n0"), node("n1"), node("n2")], [quota("q", 24)], [*held, job("block", gpus=8)]))

    assert actions(plan) == {"two": "move", "other": "move", "block": "start"}
    assert placed(plan, "block") == ["n1"]


def test_consolidation_clears_those_nodes_together_that_leave_room_for_all() -> None:
    """Of n0, n1 and n2 each could be cleared alone, but there is a place for only one job of two GPUs."""
    held = [
        running("two", [at("n0", 0, 1)]),
        running("deux", [at("n1", 0, 1)]),
        running("one", [at("n2", 0)], submitted=-900),
        running("a", [at("n3", 0, 1, 2, 3, 4, 5)], preemptible=False),
        running("b", [at("n4", 0, 1, 2, 3, 4, 5, 6)], preemptible=False),
    ]
    nodes = [node(f"n{place}") for place in range(5)]
    plan = plan_of(scene(nodes, [quota("q", 40)], [*held, job("block", gpus=8, workers=2)]))

    assert actions(plan) == {"one": "move", "deux": "move", "block": "start"}


def test_consolidation_makes_room_for_a_gang_of_several_roles() -> None:
    held = [running("a", [at("n0", 0)]), running("b", [at("n1", 0, 1)])]
    roles = [{"name": "worker", "min": 2, "gpus": 3}, {"name": "driver", "gpus": 2}]
    gang = {**job("gang", topology={"required": "node"}), "roles": roles}
    plan = plan_of(scene([node("n0"), node("n1")], [quota("q")], [*held, gang]))

    assert actions(plan) == {"a": "move", "gang": "start"}


def test_consolidation_makes_room_for_what_a_gang_has_lost() -> None:
    held = [running("a", [at("n0", 0)]), running("b", [at("n1", 0, 1, 2)])]
    broken = running("broken", [at("n2", 0, 1, 2, 3, 4, 5, 6, 7)], least=2, degraded_since=-10)
    plan = plan_of(scene([node("n0"), node("n1"), node("n2")], [quota("q", 24)], [*held, broken]))

    assert actions(plan) == {"a": "move", "broken": "repair"}


def test_nobody_is_moved_where_more_is_lost_than_won() -> None:
    held = [running("small", [at("n0", 0)], started=-7200), running("large", [at("n1", 0, 1, 2)], started=-3600)]
    nodes = [node("n0"), node("n1")]
    for estimate, moved in ((900, False), (901, True)):  # 8 GPUs for so long against one for two hours
        plan = plan_of(scene(nodes, [quota("q")], [*held, job("block", gpus=8, estimate_s=estimate, limit_s=99999)]))
        assert actions(plan) == ({"small": "move", "block": "start"} if moved else {})


def test_of_two_jobs_that_each_make_room_the_one_that_loses_less_is_moved() -> None:
    held = [running("old", [at("n0", 0, 1)], started=-7200), running("young", [at("n0", 2, 3)], started=-60), running("wall", [at("n1", 0)])]
    plan = plan_of(scene([node("n0"), node("n1", 4)], [quota("q")], [*held, job("block", gpus=6)]))

    assert actions(plan) == {"young": "move", "block": "start"}


def test_who_has_waited_too_long_is_not_bound_by_the_number_of_moves() -> None:
    held = [running("small", [at("n0", 0)]), running("large", [at("n1", 0, 1, 2)])]
    for longest, expected in ((None, {}), (60, {"small": "move", "block": "start"})):
        settings = {"max_moves": 0, "max_wait_s": {"batch": longest}}
        assert actions(plan_of(scene([node("n0"), node("n1")], [quota("q")], [*held, job("block", gpus=8)], settings=settings))) == expected


def test_a_wait_in_which_nothing_could_have_started_it_does_not_count() -> None:
    held = [running("small", [at("n0", 0)]), running("large", [at("n1", 0, 1, 2)])]
    settings = {"max_moves": 0, "max_wait_s": {"batch": 60}}
    for since, expected in ((-59, {}), (-60, {"small": "move", "block": "start"})):
        block = job("block", gpus=8, submitted=-7200, waits_since=since)
        assert actions(plan_of(scene([node("n0"), node("n1")], [quota("q")], [*held, block], settings=settings))) == expected


def test_a_degraded_gang_is_repaired_on_a_spare() -> None:
    gang = running("gang", [at("n0", *FULL)], least=2, most=2, degraded_since=-10)
    nodes = [node("n0"), node("n1", health="down"), node("s", spare=True)]
    plan = plan_of(scene(nodes, [quota("q")], [gang, job("waits", gpus=8)]))

    assert actions(plan) == {"gang": "repair"}
    assert placed(plan, "gang") == ["n0", "s"]


def test_a_gang_without_repair_ends_after_its_grace() -> None:
    gang = running("gang", [at("n0", *FULL)], least=2, most=2, degraded_since=-61)
    plan = plan_of(scene([node("n0")], [quota("q")], [gang]))

    assert actions(plan) == {"gang": "evict"}


def test_a_degraded_gang_that_may_not_evict_yet_is_planned_again_when_it_may() -> None:
    gang = running("gang", [at("n0", *FULL)], "a", least=2, most=2, degraded_since=-10, preemption_delay_s=130)
    low = running("low", [at("n1", *FULL)], "b")
    scenario = scene([node("n0"), node("n1")], [quota("a", 16), quota("b")], [gang, low], settings={"stale_grace_s": 3600})
    plan = plan_of(scenario)
    assert actions(plan) == {}
    assert plan["next_wake"] == "2026-11-20T09:00:30Z"  # it was submitted 100 s ago
    gang["submitted"] = -130
    assert actions(plan_of(scenario)) == {"low": "evict", "gang": "repair"}


def test_the_grace_of_a_gang_begins_now_where_nobody_says_since_when_it_is_degraded() -> None:
    gang = running("gang", [at("n0", *FULL)], least=2, most=2, since=-3600, started=-3600)
    plan = plan_of(scene([node("n0")], [quota("q")], [gang]))

    assert actions(plan) == {}
    assert plan["next_wake"] == "2026-11-20T09:01:00Z"


def test_a_plan_wakes_when_work_is_safe_no_longer_on_the_level_on_which_it_is_taken_back() -> None:
    """Between top nodes the minimum run time of the top node counts, whatever those below it say."""
    quotas = [quota("a", 8), quota("b"), quota("b/c", 0, parent="b", reclaim_min_runtime_s=0)]
    quotas[1]["reclaim_min_runtime_s"] = 600
    made = scene([node("n0")], quotas, [running("r", [at("n0", *FULL)], "b/c", started=-599), job("waits", "a", 8)])
    plan = plan_of(made)

    assert (actions(plan), plan["next_wake"]) == ({}, "2026-11-20T09:00:01Z")
    assert actions(plan_of({**made, "now": plan["next_wake"], "jobs": [{**made["jobs"][0], "started": -600}, made["jobs"][1]]})) == {
        "r": "evict",
        "waits": "start",
    }


@pytest.mark.parametrize("state", ["reserved", "starting"])
def test_a_promise_holds_its_places_until_its_time_and_no_longer(state: str) -> None:
    promised = {**running("promised", [at("n0", *FULL)], "b", started=None, since=-60), "state": state}
    for until, expected in ((0.001, {}), (None, {}), (0, {"other": "start"}), (-60, {"other": "start"})):
        plan = plan_of(scene([node("n0")], [quota("a"), quota("b")], [{**promised, "until": until}, job("other", "a", 8, submitted=-200)]))
        assert actions(plan) == expected
        assert [one["job"] for one in plan["waiting"]] == (["promised"] if expected else ["other"])


def test_who_has_not_started_has_not_run_his_minimum_time() -> None:
    """Since when the places are promised is no run time."""
    settings = {"reclaim_min_runtime_s": 300}
    for fields, expected in (({"started": -400}, {"held": "evict", "asked": "start"}), ({"started": None, "since": -400, "until": 60}, {})):
        for state in ("reserved", "starting"):
            held = {**running("held", [at("n0", *FULL)], "b", **fields), "state": state}
            plan = plan_of(scene([node("n0")], [quota("a", 8), quota("b")], [held, job("asked", "a", 8)], settings=settings))
            assert actions(plan) == expected


def test_nobody_holds_what_was_promised_to_him_until_now() -> None:
    """Its places may be another one's by now; and what it still leaves is being freed, like that of everyone who stops."""
    held = running("held", [at("n0", *FULL)], "a")
    promised = {**running("promised", [at("n0", *FULL)], "b", started=None), "state": "reserved", "until": -1}
    plan = plan_of(scene([node("n0")], [quota("a", 8), quota("b")], [held, promised]))
    assert actions(plan) == {}
    assert [one["job"] for one in plan["waiting"]] == ["promised"]

    moving = {**promised, "leaving": [at("n1", *FULL)]}
    plan = plan_of(scene([node("n0"), node("n1")], [quota("a", 8), quota("b")], [held, moving, job("next", "a", 8)]))
    assert [(one["job"], placed(plan, "next"), one["after"]) for one in plan["decisions"]] == [("next", ["n1"], ["promised"])]
    assert plan["waiting"] == []


def test_a_short_job_runs_in_the_gap_and_a_long_one_does_not() -> None:
    held = running("held", [at("n0", 0, 1, 2, 3)], limit_s=3600, started=-60)
    wide = job("wide", gpus=8, submitted=-90)
    short = job("short", gpus=2, limit_s=600, submitted=-80, preemptible=False)
    long = job("long", gpus=2, limit_s=36000, submitted=-70, preemptible=False)
    plan = plan_of(scene([node("n0")], [quota("q", 16)], [held, wide, short, long]))

    assert actions(plan) == {"short": "start"}
    assert "reservation" in reasons(plan, "long")
    assert next(one for one in plan["decisions"] if one["action"] == "reserve")["at"] == "2026-11-20T09:59:00Z"


def test_a_job_without_gpus_that_a_limit_refuses_gets_no_reservation() -> None:
    """Its queue uses more than its limit allows by now, so nothing starts there, and there is nothing to keep for it."""
    held = [running("r1", [at("n1", *FULL)], limit_s=3600), running("r2", [at("n2", 0)], limit_s=3600)]
    plan = plan_of(scene([node("n1"), node("n2")], [quota("q", 16, limit=8)], [*held, job("asks-for-nothing", gpus=0), job("asks", gpus=4)]))

    assert "limit" in reasons(plan, "asks-for-nothing")
    assert [one["job"] for one in plan["decisions"]] == ["asks"]


def test_a_reservation_keeps_no_worker_out_that_takes_none_of_its_gpus() -> None:
    """A role without GPUs, or with few, stands where larger ones of the same gang would be in the way."""
    held = running("held", [at("n0", *range(4))], "b", limit_s=3600)
    gang = {**running("gang", [at("n0", 4)], "b", preemptible=False), "roles": [{"name": "driver", "gpus": 0}, {"name": "worker", "gpus": 1}]}
    plan = plan_of(scene([node("n0")], [quota("a", 8), quota("b", 8)], [held, gang, job("next", "a", 7)]))
    assert actions(plan) == {"gang": "repair"}

    asked = {**job("asked", "b", preemptible=False), "roles": [{"name": "few", "gpus": 1}, {"name": "many", "gpus": 4}]}
    nodes = [node("n0", 6), node("n1", 4)]
    plan = plan_of(scene(nodes, [quota("a", 8), quota("b", 10)], [held, job("next", "a", 5, submitted=-200), asked]))
    assert placed(plan, "asked") == ["n0", "n1"]


def test_a_short_job_takes_what_a_long_one_alike_may_not_before_a_reservation() -> None:
    held = [running(f"h{place}", [at("n0", place)], "b", limit_s=1000) for place in range(4)]
    fixed = running("fixed", [at("n0", 4, 5, 6, 7)], "d", limit_s=1000, preemptible=False)
    head = job("head", "a", 8, submitted=-400, preemption_delay_s=500)
    long = job("long", "b", 4, submitted=-200, priority=9, preemptible=False)
    short = {**long, "name": "short", "submitted": -100, "limit_s": 600}
    plan = plan_of(scene([node("n0")], [quota("a", 8), quota("b", 4), quota("d", 4)], [*held, fixed, head, long, short]))

    assert [(one["action"], one["job"]) for one in plan["decisions"] if one["action"] != "evict"] == [("start", "short"), ("reserve", "head")]


def test_backfilled_work_gives_way_at_its_time() -> None:
    lent = running("lent", [at("n0", 0, 1)], backfilled=True)
    plan = plan_of(scene([node("n0")], [quota("q", 8)], [lent, job("wide", gpus=8)]))

    assert actions(plan) == {"lent": "evict", "wide": "start"}


def test_tensor_parallel_groups_stay_inside_an_island() -> None:
    nodes = [node("n0", islands=[[0, 1, 2, 3], [4, 5, 6, 7]])]
    held = running("held", [at("n0", 0, 4)])
    three = job("pair", gpus=2, workers=3, topology={"tp_group": 2})

    assert actions(plan_of(scene(nodes, [quota("q")], [held, three], settings={"consolidation": False}))) == {}
    assert actions(plan_of(scene(nodes, [quota("q")], [held, three]))) == {"held": "move", "pair": "start"}
    plan = plan_of(scene(nodes, [quota("q")], [held, job("pair", gpus=2, workers=2, topology={"tp_group": 2})]))
    starts = next(one for one in plan["decisions"] if one["job"] == "pair")["workers"]
    assert all(len({gpu // 4 for gpu in worker["gpus"]}) == 1 for worker in starts)


def test_a_role_with_a_topology_of_its_own_keeps_the_tensor_parallel_groups_of_its_job() -> None:
    nodes = [node("n0", 4, island="a"), node("n1", 4, island="a"), node("n2", 6, island="b")]
    held = [running("h0", [at("n0", 0, 1)]), running("h1", [at("n1", 0)]), running("h2", [at("n2", 0, 1, 2, 3)])]
    gang = job("gang", workers=4, topology={"tp_group": 4}, role={"topology": {"required": "cluster"}})
    starts = next(one for one in plan_of(scene(nodes, [quota("q")], [*held, gang]))["decisions"] if one["job"] == "gang")["workers"]

    assert {worker["node"] for worker in starts} == {"n0", "n1"}


def test_an_island_may_be_wider_than_the_level_that_holds_a_gang() -> None:
    nodes = [node("n0", 4, island="rack"), node("n1", 4, island="rack")]
    plan = plan_of(scene(nodes, [quota("q")], [job("gang", workers=4, topology={"tp_group": 4, "required": "node"})]))

    assert actions(plan) == {"gang": "start"}


def test_types_are_tried_by_throughput() -> None:
    nodes = [node("h"), node("a", gpu_type=A100, gpu_memory_gb=40)]
    fast = job("fast", gpus=8, throughput={H100: 1.0, A100: 2.0})
    never = job("never", gpus=8, throughput={H100: 0, A100: 0})
    plan = plan_of(scene(nodes, [quota("q")], [fast, never]))

    assert placed(plan, "fast") == ["a"]
    assert reasons(plan, "never") == {"no_type"}


CHOSEN = [
    # of the job, of the fleet, prices, where it starts
    ("", None, {H100: 4, A100: 1}, "h"),  # as ever: the fastest
    ("cheapest", None, {H100: 4, A100: 1}, "a"),  # half as fast for a quarter of the price
    ("cheapest", None, {H100: 3, A100: 2}, "h"),  # half as fast for two thirds
    ("cheapest", None, {H100: 2, A100: 1}, "h"),  # the same for the work: the faster one
    ("cheapest", None, {A100: 0, H100: 1}, "a"),
    ("cheapest", None, {A100: 9}, "a"),  # a type without a price comes last
    ("cheapest", None, {}, "h"),
    ("stated", None, {H100: 1, A100: 9}, "a"),
    ("", "cheapest", {H100: 4, A100: 1}, "a"),
    ("fastest", "cheapest", {H100: 4, A100: 1}, "h"),
]


@pytest.mark.parametrize(("choice", "fleet", "prices", "where"), CHOSEN)
def test_the_type_that_a_job_gets_first_is_its_own_choice_or_the_fleets(choice, fleet, prices, where) -> None:
    settings = {"gpu_prices": prices} | ({"type_choice": fleet} if fleet else {})
    asked = {"type_choice": choice} if choice else {}
    one = job("one", roles=[{"gpus": 4, "gpu_types": [A100, H100]}], throughput={H100: 1.0, A100: 0.5}, **asked)
    nodes = [node("h"), node("a", gpu_type=A100, gpu_memory_gb=40)]

    assert placed(plan_of(scene(nodes, [quota("q")], [one], settings=settings)), "one") == [where]


def test_the_choice_of_a_type_is_no_wait_for_it() -> None:
    nodes = [node("h"), node("a", gpu_type=A100, gpu_memory_gb=40)]
    jobs = [job(name, gpus=8, submitted=age, type_choice="cheapest") for age, name in ((-2, "first"), (-1, "second"))]
    plan = plan_of(scene(nodes, [quota("q")], jobs, settings={"gpu_prices": {H100: 4, A100: 1}}))

    assert (placed(plan, "first"), placed(plan, "second")) == (["a"], ["h"])


def test_mps_tenants_share_inside_one_domain_of_trust() -> None:
    jobs = [job(f"j{i}", "ab"[i % 2], sharing="mps", roles=[{"gpu_share": 0.5}]) for i in range(4)]
    plan = plan_of(scene([node("n0", 2)], [quota("a"), quota("b")], jobs))

    gpus = {one["job"]: one["workers"][0]["gpus"] for one in plan["decisions"]}
    assert gpus["j0"] == gpus["j2"] != gpus["j1"] == gpus["j3"]


def test_mig_uses_empty_instances_and_splits_anew_only_by_a_decision() -> None:
    nodes = [node("n0", 2, mig=[{"gpu": 0, "instances": [{"profile": "1g.10gb", "start": 6}]}])]
    jobs = [job(f"j{i}", roles=[{"mig": "1g.10gb"}], submitted=-100 + i) for i in range(2)]
    plan = plan_of(scene(nodes, [quota("q")], jobs))

    assert actions(plan) == {"j0": "start", "j1": "start"}
    anew = [one for one in plan["decisions"] if one["action"] == "repartition"]
    assert [(one["node"], one["gpu"]) for one in anew] == [("n0", 0)]
    assert anew[0]["instances"] == [{"profile": "1g.10gb", "start": 4}, {"profile": "1g.10gb", "start": 6}]


def test_nothing_that_outlasts_it_starts_on_the_gpus_of_a_coming_window() -> None:
    window = {"name": "floor", "class": "inference", "gpus": 6, "start": 3600, "notice_s": 60}
    stays = job("stays", gpus=4, grace_s=600)
    leaves = job("leaves", gpus=4, grace_s=30)
    plan = plan_of(scene([node("n0")], [quota("q", 8)], [stays, leaves], reservations=[window]))

    assert actions(plan) == {"leaves": "start"}
    assert "window" in reasons(plan, "stays")


def test_a_floor_serves_its_class_beyond_the_guarantee_of_its_leaf() -> None:
    window = {"name": "floor", "class": "inference", "gpus": 8, "start": -60, "end": 3600}
    serve = job("serve", "b", 8, **{"class": "inference"})
    plan = plan_of(scene([node("n0")], [quota("a"), quota("b")], [running("batch", [at("n0", *FULL)], "a"), serve], reservations=[window]))

    assert actions(plan) == {"batch": "evict", "serve": "start"}


def test_gangs_that_state_no_level_stay_inside_the_described_one() -> None:
    nodes = leafed(4, gpus=4)
    held = [running("h0", [at("n000", 0, 1, 2)]), running("h1", [at("n002", 0)])]
    gang = job("gang", gpus=3, workers=2)
    for topology, expected in (
        ({"levels": ["leaf"]}, ["n001", "n002"]),
        ({"levels": ["leaf"], "rails": "leaf"}, ["n002", "n003"]),
        ({"levels": ["leaf"], "oversubscription": {"leaf": 2}}, ["n002", "n003"]),
        ({"levels": ["leaf"], "bandwidth_gbps": {"leaf": 400}}, ["n002", "n003"]),
    ):
        plan = plan_of(scene(nodes, [quota("q")], [*held, gang], topology=topology))
        assert placed(plan, "gang") == expected, topology


def test_the_manual_has_every_setting() -> None:
    described = (PROJECT / "docs/engine.md").read_text()

    assert [key for key in {**SETTINGS.write(Settings()), **PASS_OF} if f"`{key}`" not in described] == []


def test_spares_and_suspect_nodes_are_no_room() -> None:
    """Neither for the largest gang nor in the count of idle GPUs that nobody can use."""
    nodes = [node("n0", 4), node("n1", 8, spare=True), node("n2", 8, health="suspect")]
    demand = [{"share": 1, "gpus": 8}]
    plain, brave = job("plain", gpus=8), job("brave", gpus=8, tolerates_suspect=True, quota_name="none")
    metrics = plan_of(scene(nodes, [quota("q"), quota("none", limit=4)], [plain, brave], demand=demand))["metrics"]

    assert metrics["largest_gang"][H100] == {"cluster": 4, "node": 4}
    assert metrics["fragmented_by_demand"] == 4
    assert metrics["fragmented"] == 0  # nobody waits whom the fleet could hold at all
    plan = plan_of(scene(nodes, [quota("q")], [running("held", [at("n0", 0)]), job("wide", gpus=4)]))
    assert plan["metrics"]["fragmented"] == 3


def test_who_was_evicted_is_told_how_often() -> None:
    def told(evictions: int) -> str:
        back = job("back", last_evicted=-10, evictions=evictions)
        plan = plan_of(scene([node("n1")], [quota("q")], [back], settings={"hysteresis_s": 300}))
        (detail,) = (one["detail"] for one in plan["waiting"][0]["reasons"] if one["code"] == "backoff")
        return str(detail)

    assert told(1).startswith("was evicted a short while ago; until 2026-11-20T09:04")
    assert told(3).startswith("was evicted 3 times, last a short while ago; until 2026-11-20T09:04")


def test_requests_for_memory_never_add_up_to_more_than_a_gpu_has() -> None:
    """3 of 80 GB are charged 37 milli: 27 of them would be 999 milli and 81 GB."""
    jobs = [{**job(f"j{i:02d}", sharing="mps"), "roles": [{"min": 1, "gpu_memory_gb": 3}]} for i in range(27)]
    plan = plan_of(scene([node("n0", 1)], [quota("q", 1)], jobs))
    assert list(actions(plan).values()).count("start") == 26


def test_alone_consolidate_moves_nothing_for_a_job_that_is_not_preemptible() -> None:
    """To move others for work within its guarantees is a right of reclaim."""
    nodes = [node("n0", 2), node("n1", 2)]
    stand = [running(f"r{i}", [at(f"n{i}", 0)], "r", checkpoint={"interval_s": 60}) for i in range(2)]
    asker = job("asker", "q", 2, preemptible=False)
    for passes, found in ((["consolidate"], False), (["consolidate", "reclaim"], True)):
        plan = plan_of(scene(nodes, [quota("q", 2), quota("r")], [*stand, asker], settings={"passes": passes}))
        assert ("move" in actions(plan).values()) is found


def test_a_share_by_memory_stands_on_no_gpu_with_a_little_less():
    """What it is charged is rounded down: of 80 GB, 80.05 come to no more than the whole."""
    jobs = [{**job(name, sharing="mps"), "roles": [{"gpu_memory_gb": memory}]} for name, memory in (("larger", 80.05), ("whole", 80))]

    assert actions(plan_of(scene([node("n1", 2)], [quota("q", 2)], jobs))) == {"whole": "start"}
