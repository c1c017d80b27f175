"""What people are told of a job that waits: all that blocks it, with numbers and names, and when it is expected to start."""

from dataclasses import replace
from typing import Any

import pytest

from scheduler.engine.cycle import make_plan
from scheduler.engine.state.state import Kept
from scheduler.presenters.explained import explain
from scheduler.scenarios.reading import parse

from .scenes import A100, H100, actions, at, job, leafed, node, plan_of, quota, reasons, running, scene

FULL = range(8)
Json = dict[str, Any]


def told(scenario: Json, name: str, code: str) -> str:
    (detail,) = details(scenario, name, code)
    return detail


def details(scenario: Json, name: str, code: str) -> list[str]:
    found = [one for waiting in plan_of(scenario)["waiting"] if waiting["job"] == name for one in waiting["reasons"]]
    return [str(one["detail"]) for one in found if one["code"] == code]


def expected(scenario: Json) -> dict[str, str | None]:
    return {waiting["job"]: waiting["predicted_start"] for waiting in plan_of(scenario)["waiting"]}


@pytest.mark.parametrize(
    ("nodes", "asks", "lacks"),
    [
        ([node("n0", health="draining"), node("n1", health="down")], {}, "of 2 nodes that it could run on 1 is down, 1 is draining"),
        (
            [node("n0", health="suspect"), node("n1", spare=True)],
            {},
            "of 2 nodes that it could run on 1 is spare, 1 is suspect, which it does not tolerate",
        ),
        ([node("n0", labels={"pool": "a"}), node("n1")], {"node_labels": {"pool": "b"}}, "none of 2 nodes has the label pool=b"),
        (
            [node("n0", attributes={"pcie_gbps": 30.5})],
            {"needs": {"pcie_gbps": 40}},
            "it needs 40 pcie_gbps, and the most that one of 1 node has is 30.5",
        ),
        ([node("n0", 4), node("n1", unhealthy_gpus=[0])], {"gpus": 8}, "it needs 8 GPUs on one node, and the most that one of 2 nodes has is 7"),
        ([node("n0", cpus=4), node("n1", cpus=6)], {"role": {"cpus": 8.25}}, "it needs 8.25 processors, and the most that one of 2 nodes has is 6"),
        ([node("n0", host_memory_gb=4)], {"role": {"host_memory_gb": 8}}, "it needs 8 GB of host memory, and the most that one of 1 node has is 4"),
        (
            [node("n0")],
            {"sharing": "mps", "roles": [{"gpu_memory_gb": 100}]},
            "it needs 100 GB of memory on one GPU, and the most that one of 1 node has is 80",
        ),
        (
            [node("n0", 2)],
            {"sharing": "mps", "roles": [{"gpu_share": 0.5, "devices": 3}]},
            "it needs 3 GPUs on one node, and the most that one of 1 node has is 2",
        ),
    ],
)
def test_who_can_run_nowhere_is_told_what_is_lacking(nodes: list[Json], asks: Json, lacks: str) -> None:
    assert told(scene(nodes, [quota("q", 8)], [job("asks", **asks)]), "asks", "no_node").endswith(f"role worker: {lacks}")


def test_the_role_is_named_that_no_node_can_hold() -> None:
    roles = [{"name": "worker", "gpus": 8}, {"name": "driver", "gpus": 0, "cpus": 500}]
    scenario = scene([node("n0", cpus=64), node("n1", cpus=64)], [quota("q", 8)], [{**job("gang"), "roles": roles}])

    assert "role driver: it needs 500 processors" in told(scenario, "gang", "no_node")


@pytest.mark.parametrize(
    ("nodes", "asks", "says"),
    [
        (
            [node("n0")],
            {"roles": [{"name": "driver", "gpus": 1}, {"name": "worker", "gpus": 8}]},
            "its roles together need 9 GPUs, and the largest cluster, were it empty, has 8",
        ),
        (
            leafed(4),
            {"roles": [{"name": "tr", "min": 2, "gpus": 8}, {"name": "u", "gpus": 8}], "topology": {"required": "leaf"}},
            "its roles together need 24 GPUs, and the largest leaf, were it empty, has 16",
        ),
        (
            leafed(4),
            {"roles": [{"name": "tr", "min": 3, "gpus": 8, "topology": {"required": "leaf"}}, {"name": "u", "gpus": 1}]},
            "the largest leaf, were it empty, holds 2 of 3 workers of 8 GPUs of role tr",
        ),
        (
            [node("n0", 6), node("n1", 6)],
            {"roles": [{"name": "a", "min": 2, "gpus": 4}, {"name": "b", "gpus": 3}]},
            "each of its roles would fit into the largest cluster, were it empty, but not all of them together",
        ),
        (
            [node("n0", islands=[[0, 1, 2, 3], [4, 5, 6, 7]])],
            {"gpus": 4, "workers": 2, "topology": {"tp_group": 8}},
            "its NVLink groups (role worker) need 8 GPUs each, and the largest island has 4",
        ),
        (
            [node("n0"), node("n1", gpu_type=A100)],
            {"gpus": 8, "workers": 2},
            "the largest cluster, were it empty, holds 1 of 2 workers of 8 GPUs on A100-SXM-40GB; a gang stands in one quota type",
        ),
        (
            [node("n0", host_memory_gb=64)],
            {"gpus": 1, "workers": 2, "role": {"host_memory_gb": 33}},
            "the largest cluster, were it empty, holds 1 of 2 workers of 1 GPU; "
            "each also needs 33 GB of host memory, of which one node has 64 at most",
        ),
    ],
)
def test_what_even_the_empty_fleet_has_too_little_of_is_named(nodes: list[Json], asks: Json, says: str) -> None:
    assert told(scene(nodes, [quota("q", 8)], [{**job("asks"), **asks} if "roles" in asks else job("asks", **asks)]), "asks", "empty_fleet") == says


@pytest.mark.parametrize(
    ("asks", "says"),
    [
        ({"mig": "9g.40gb"}, "no GPU on which role worker could run can be split into 9g.40gb"),
        ({"mig": "7g.80gb", "min": 9, "max": 9}, "no node, however empty, has room for the 9 workers of role worker with 7g.80gb each"),
    ],
)
def test_the_part_is_named_that_no_node_has(asks: Json, says: str) -> None:
    assert told(scene([node("n0")], [quota("q", 8)], [job("asks", sharing="mig", roles=[asks])]), "asks", "no_node") == says


def test_that_a_host_runs_out_before_its_gpus_is_said() -> None:
    scenario = scene([node("n0", cpus=16)], [quota("q", 8)], [job("first", role={"cpus": 10}), job("second", role={"cpus": 10})])

    assert told(scenario, "second", "fragmentation").endswith("; each also needs 10 processors, of which one node has 6 left at most")
    assert "also needs" not in told(scene([node("n0"), node("n1")], [quota("q", 16)], _wedged(), settings={"max_moves": 0}), "block", "fragmentation")


def _wedged() -> list[Json]:
    return [running("small", [at("n0", 0)]), running("large", [at("n1", 0, 1, 2)]), job("block", gpus=8)]


@pytest.mark.parametrize(
    ("settings", "code", "says"),
    [
        ({"max_moves": 0}, "moves", "no set of at most 0 moves makes room"),
        ({"consolidation": False}, "passes", "consolidate is switched off"),
        ({"passes": ["allocate", "consolidate", "reclaim"], "max_moves": 0}, "passes", "no job is evicted to make room: preempt is switched off"),
        ({"passes": ["allocate"]}, "passes", "consolidate is switched off"),
    ],
)
def test_what_the_settings_forbid_is_told(settings: Json, code: str, says: str) -> None:
    plan = plan_of(scene([node("n0"), node("n1")], [quota("q", 16)], _wedged(), settings=settings))

    assert any(says in one["detail"] for one in plan["waiting"][0]["reasons"] if one["code"] == code)


def test_that_work_is_safe_for_a_while_is_told_where_it_is_in_the_way() -> None:
    beside = scene(
        [node("n0")],
        [quota("a", reclaim_min_runtime_s=200), quota("b", 8)],
        [running("low", [at("n0", *FULL)], "a"), job("mine", "b", 8)],
    )
    assert told(beside, "mine", "victims").endswith("free enough GPUs in one place; work is protected for 200 s after its start")

    inside = scene(
        [node("n0")], [quota("q", 8)], [running("low", [at("n0", *FULL)]), job("high", gpus=8, priority=1)], settings={"preempt_min_runtime_s": 300}
    )
    assert told(inside, "high", "victims").endswith("; work is protected for 300 s after its start")


def test_who_may_not_put_anybody_out_yet_is_told_nothing_of_victims() -> None:
    scenario = scene([node("n0")], [quota("a"), quota("b", 8)], [running("low", [at("n0", *FULL)], "a"), job("mine", "b", 8, preemption_delay_s=200)])

    assert reasons(plan_of(scenario), "mine") == {"capacity", "delay"}


def test_who_leaves_first_is_named() -> None:
    held = [running("late", [at("n0", *range(4))], limit_s=9000, started=0), running("soon", [at("n0", *range(4, 8))], estimate_s=600, started=0)]
    scenario = scene([node("n0")], [quota("q", 8)], [*held, job("waits", gpus=8)])

    assert told(scenario, "waits", "capacity").endswith("0 are free where it may run; soon is expected to leave first, by 2026-11-20T09:10:00Z")
    assert told({**scenario, "settings": {"forecast": "none"}}, "waits", "capacity").endswith("0 are free where it may run")


def test_nobody_is_expected_to_start_before_a_limit_lets_him_in() -> None:
    held = [running("a", [at("n0", 0, 1)], "org/q", limit_s=600, started=0), running("b", [at("n0", 2, 3)], "org/q", limit_s=1200, started=0)]
    waiting = [job(f"j{i}", "org/q", 2, submitted=i - 50, estimate_s=300, limit_s=900) for i in range(3)]
    for cap in (4, {H100: 4}):
        quotas = [quota("org", 8, limit=cap), quota("org/q", 8, parent="org")]
        assert expected(scene([node("n0")], quotas, [*held, *waiting])) == {
            "j0": "2026-11-20T09:10:00Z",
            "j1": "2026-11-20T09:20:00Z",
            "j2": "2026-11-20T09:25:00Z",
        }
    endless = running("b", [at("n0", 2, 3)], "org/q")
    assert expected(scene([node("n0")], quotas, [held[0], endless, job("large", "org/q", 4)])) == {"large": None}


def test_nobody_is_expected_to_start_before_his_back_off_is_over() -> None:
    back = job("back", last_evicted=-10, evictions=2)

    assert expected(scene([node("n0")], [quota("q")], [back], settings={"hysteresis_s": 60})) == {"back": "2026-11-20T09:00:50Z"}


def test_one_of_a_thing_is_told_as_one() -> None:
    held = [running("s", [at("n000", 0), at("n002", 0)], limit_s=3600)]
    gang = job("gang", gpus=8, workers=2, topology={"required": "leaf"})
    text = explain(make_plan(parse(scene(leafed(4), [quota("q", 32)], [*held, gang, job("one", submitted=-10)], settings={"consolidation": False}))))

    assert "with 1 worker" in text
    assert "(1 GPU)" in text
    assert "2 GPUs" not in text.split("start one")[1].split("\n")[0]


@pytest.mark.parametrize(
    ("nodes", "cap", "asks", "code", "change"),
    [
        ([node("n0")], 6, {"gpus": 2, "workers": 4}, "limit", ("roles.worker.min", 3)),
        ([node("n0"), node("n1")], None, {"gpus": 8, "workers": 3}, "empty_fleet", ("roles.worker.min", 2)),
        (
            leafed(2, 1),
            None,
            {"gpus": 8, "workers": 2, "role": {"step": 2}, "topology": {"required": "leaf"}},
            "empty_fleet",
            ("topology.required", None),
        ),
        ([node("n0")], None, {"gpus": 8, "role": {"gpu_types": ["other"]}}, "no_type", ("gpu_types", H100)),
        ([node("n0"), node("n1", 4, gpu_type=A100)], None, {"gpus": 8, "role": {"gpu_types": [A100]}}, "no_node", ("gpu_types", H100)),
        ([node("n0")], None, {"gpus": 16}, "no_node", None),
        ([node("n0")], None, {"not_before": 60}, "held", None),
    ],
)
def test_who_can_never_start_as_he_is_is_told_what_would_start_him(
    nodes: list[Json], cap: int | None, asks: Json, code: str, change: tuple[str, object] | None
) -> None:
    (waiting,) = plan_of(scene(nodes, [quota("q", 16, limit=cap)], [job("asks", **asks)]))["waiting"]

    assert [one["code"] for one in waiting["reasons"]] == [code]
    assert waiting["would_start_if"] == (None if change is None else {"change": change[0], "to": change[1]})


def test_who_is_not_due_yet_is_expected_as_soon_as_he_is_or_when_there_is_room_then() -> None:
    held = running("held", [at("n0", *range(8))], limit_s=900, started=0)
    soon, later = job("soon", gpus=8, not_before=100, limit_s=60), job("later", gpus=8, not_before=130, limit_s=60)

    assert expected(scene([node("n0")], [quota("q", 8)], [soon])) == {"soon": "2026-11-20T09:01:40Z"}
    assert expected(scene([node("n0")], [quota("q", 8)], [soon, later])) == {"soon": "2026-11-20T09:01:40Z", "later": "2026-11-20T09:02:40Z"}
    assert expected(scene([node("n0")], [quota("q", 8)], [held, soon])) == {"soon": "2026-11-20T09:15:00Z"}
    assert expected(scene([node("n0")], [quota("q", 8)], [{**soon, "roles": [{"gpus": 16}]}])) == {"soon": None}
    limited = scene([node("n0"), node("n1")], [quota("q", 8, limit=8)], [held, soon])
    assert expected(limited) == {"soon": "2026-11-20T09:15:00Z"}


def test_who_is_submitted_only_later_is_not_there_yet() -> None:
    """He starts in no plan of today, asks for no share, and is told when he comes, as is when to plan again."""
    jobs = [job("first", "a", 8, submitted=500), job("second", "b", 8, submitted=600, not_before=700), job("now", "b", 8, submitted=-1)]
    scenario = scene([node("n0"), node("n1")], [quota("a", 8), quota("b")], jobs)
    plan = plan_of(scenario)

    assert actions(plan) == {"now": "start"}
    assert told(scenario, "first", "held") == "submitted only at 2026-11-20T09:08:20Z"
    assert told(scenario, "second", "held") == "not before 2026-11-20T09:11:40Z"
    assert plan["next_wake"] == "2026-11-20T09:08:20Z"
    assert {share["quota"]: share["fair"] for share in plan["shares"]} == {"a": 0, "b": 8}
    assert actions(plan_of(scene([node("n0")], [quota("a", 8)], [job("first", "a", 8, submitted=0)]))) == {"first": "start"}


def test_an_empty_instance_that_somebody_could_use_is_not_idle_in_vain() -> None:
    layout = [{"gpu": 0, "instances": [{"profile": "1g.10gb", "start": 0}, {"profile": "3g.40gb", "start": 4}]}]
    for role, vain in (({"mig": "3g.40gb"}, 1), ({"gpu_memory_gb": 30}, 1), ({"gpu_memory_gb": 5}, 0), ({"mig": "7g.80gb"}, 2)):
        scenario = scene([node("n0", 1, mig=layout)], [quota("q")], [job("part", sharing="mig", roles=[role])], settings={"passes": ["grow"]})
        assert plan_of(scenario)["metrics"].get("idle_slices", 0) == vain, role


@pytest.mark.parametrize(("evictions", "until"), [(1, "09:00:20"), (2, "09:00:50"), (4, "09:03:50"), (40, "09:59:50")])
def test_the_back_off_doubles_up_to_an_hour(evictions: int, until: str) -> None:
    back = job("back", last_evicted=-10, evictions=evictions)

    assert f"until 2026-11-20T{until}Z" in told(scene([node("n0")], [quota("q")], [back], settings={"hysteresis_s": 1}), "back", "backoff")


@pytest.mark.parametrize(("before", "starts"), [([], ["m0", "m1"]), ([-60, -3599], []), ([-60, -3601], ["m0"])])
def test_a_plan_splits_no_more_gpus_than_an_hour_allows(before: list[int], starts: list[str]) -> None:
    jobs = [job(f"m{place}", submitted=place - 50, roles=[{"mig": "7g.80gb"}]) for place in range(4)]
    plan = plan_of(scene([node("n0", repartitioned=before)], [quota("q", 8)], jobs, settings={"repartition_per_hour": 2}))

    assert [one["job"] for one in plan["decisions"] if one["action"] == "start"] == starts
    assert "repartition" in reasons(plan, "m3")


def test_who_is_put_out_together_with_who_has_only_just_started_is_told_for_whom() -> None:
    """young starts on what is idle beyond its share, and gives way again together with older surplus."""
    older = running("older", [at("n0", gpu, gpu + 1) for gpu in (0, 2, 4, 6)], "a", least=1, most=4)
    jobs = [older, running("held", [at("n1", 7)], "b"), job("gang", "b", 4, 2), job("young", "a", 4)]
    plan = plan_of(scene([node("n0"), node("n1")], [quota("a"), quota("b", 8)], jobs))

    assert actions(plan) == {"older": "shrink", "gang": "start"}
    assert plan["decisions"][0]["why"] == {"code": "reclaim", "detail": "b reclaims 8 GPUs for gang", "for": "gang"}


@pytest.mark.parametrize("submitted", [-90, -110])
def test_a_gang_that_has_lost_workers_is_told_what_those_need_whoever_was_told_before(submitted: int) -> None:
    lost = running("lost", [at("n1", *FULL)], least=2, estimate_s=600)
    waits = job("waits", gpus=8, workers=2, submitted=submitted, estimate_s=600)
    scenario = scene([node("n1"), node("n2")], [quota("q", 16)], [waits, lost, running("other", [at("n2", *FULL)])])

    assert told(scenario, "lost", "capacity").startswith("needs 8 ")
    assert told(scenario, "waits", "capacity").startswith("needs 16 ")


@pytest.mark.parametrize(("low", "high"), [(-110, -90), (-90, -110)])
def test_how_long_lower_work_is_safe_is_told_to_whom_it_is_lower_whoever_was_told_before(low: int, high: int) -> None:
    jobs = [running("a", [at("n1", *FULL)], "p"), job("low", "q", gpus=8, submitted=low), job("high", "q", gpus=8, priority=10, submitted=high)]
    scenario = scene([node("n1")], [quota("p", 8), quota("q", 8)], jobs, settings={"forecast": "none", "preempt_min_runtime_s": 300})

    assert told(scenario, "high", "victims").endswith("protected for 300 s after its start")
    assert "safe" not in told(scenario, "low", "victims")


def test_who_asks_for_no_gpu_is_told_what_the_hosts_lack() -> None:
    jobs = [job("first", gpus=0, role={"cpus": 10}), job("second", gpus=0, role={"cpus": 10, "host_memory_gb": 1}, submitted=-50)]

    assert told(scene([node("n0", cpus=16, host_memory_gb=64)], [quota("q", 8)], jobs), "second", "fragmentation").endswith(
        "room for only 0 of 1 workers on one node each; each needs 10 processors, of which one node has 6 left at most"
    )


def test_a_role_without_gpus_makes_no_gpu_count_on_which_the_others_may_not_run() -> None:
    roles = [{"name": "driver", "gpus": 0}, {"name": "worker", "gpus": 1, "gpu_types": [H100]}]
    gang = {**job("gang", submitted=-20), "roles": roles}
    held = running("held", [at("n0", *FULL)], preemptible=False)

    detail = told(scene([node("n0"), node("n1", gpu_type=A100)], [quota("q", 8)], [held, gang]), "gang", "capacity")
    assert detail.startswith(f"needs 1 {H100} GPU; 0 are free where it may run")


def test_what_no_host_has_left_together_is_told_as_such() -> None:
    held = [running("a", [at("n0")], role={"cpus": 10}), running("b", [at("n1")], role={"host_memory_gb": 50})]
    both = job("both", gpus=1, role={"cpus": 10, "host_memory_gb": 50})
    hosts = [node(name, cpus=16, host_memory_gb=64) for name in ("n0", "n1")]

    assert told(scene(hosts, [quota("q", 8)], [*held, both]), "both", "fragmentation").endswith(
        "each also needs 10 processors and 50 GB of host memory, which no node has left together"
    )


def _lost(level: str, *, gpus: int, on: str, other: Json) -> Json:
    lost = running("lost", [at(on, *range(gpus))], least=2, topology={"required": level}, degraded_since=-5)
    return scene([*leafed(4)], [quota("q", 16), quota("b")], [lost, other], settings={"passes": ["allocate"]})


def test_a_gang_that_has_lost_workers_is_told_of_the_domain_in_which_the_others_stand() -> None:
    beside = running("beside", [at("n003", *FULL)], "b", limit_s=1050, preemptible=False)
    for scenario in (_lost("leaf", gpus=8, on="n002", other=beside), {**_lost("leaf", gpus=8, on="n002", other=beside), "settings": {}}):
        assert told(scenario, "lost", "topology") == (
            "its other workers stand in the leaf default/l001, which has room for 0 of 1 more: 0 of 8 GPUs; "
            "beside holds GPUs there until 2026-11-20T09:16:40Z"
        )
    together = running("beside", [at("n000", *range(4, 8))], "b", preemptible=False)
    assert told(_lost("node", gpus=4, on="n000", other=together), "lost", "topology") == (
        "its other workers stand in the node n000, which has room for 0 of 1 more: 0 of 4 GPUs; beside holds GPUs there until an unknown time"
    )


def test_a_role_that_has_lost_workers_is_told_of_the_domain_in_which_its_own_others_stand() -> None:
    roles = [{"name": "driver", "gpus": 0}, {"name": "worker", "min": 2, "gpus": 8, "topology": {"required": "leaf"}}]
    workers = [at("n000", role="driver"), at("n002", *FULL)]
    lost = {**running("lost", [at("n002", *FULL)]), "roles": roles, "workers": [{**workers[0], "role": "driver"}, workers[1]]}
    beside = running("beside", [at("n003", *FULL)], "b", preemptible=False)

    found = told(scene(leafed(4), [quota("q", 16), quota("b")], [lost, beside]), "lost", "topology")
    assert found.startswith("its other workers stand in the leaf default/l001, which has room for 0 of 1 more")


@pytest.mark.parametrize("fields", [{"limit_s": 1100, "preemptible": False}, {"limit_s": 2000, "grace_s": 200}])
def test_who_is_only_held_back_by_a_reservation_is_told_neither_of_moves_nor_of_victims(fields: Json) -> None:
    held = running("held", [at("n0", *FULL)], "b", limit_s=1050, preemptible=False)
    jobs = [held, job("gang", gpus=8, workers=2), job("short", gpus=8, submitted=-20, **fields)]

    assert reasons(plan_of(scene([node("n0"), node("n1")], [quota("q", 16), quota("b")], jobs)), "short") == {"reservation"}


def test_who_is_held_back_is_told_of_the_reservation_that_binds_it() -> None:
    """Not of the first on the node, whose time comes only after it has ended."""
    held = [
        running("a", [at("n0", 0, 1, 2, 3)], limit_s=3600, started=0, priority=9),
        running("b", [at("n0", 4, 5)], limit_s=10800, started=0, priority=9),
    ]
    whole, between = job("whole", gpus=8, submitted=-300), job("between", gpus=5, submitted=-200, limit_s=3600)
    scenario = scene([node("n0")], [quota("q", 8)], [*held, whole, between, job("late", gpus=2, limit_s=5400, grace_s=600)])

    assert told(scenario, "late", "reservation") == "would still run at 2026-11-20T10:00:00Z, when between has 1 node reserved"


def test_who_is_only_held_back_by_a_window_is_not_told_of_moves() -> None:
    window = {"name": "w", "quota": "a", "gpus": 4, "gpu_type": H100, "start": 1000, "end": 5000, "notice_s": 600}
    waits = job("waits", "b", 8, grace_s=700, limit_s=1001)

    assert reasons(plan_of(scene([node("n0")], [quota("a", 4), quota("b", 4)], [waits], reservations=[window])), "waits") == {"window"}


def _late(forecast: str, **fields: Any) -> Json:
    held = running("held", [at("n0", *FULL)], "b", limit_s=1050, preemptible=False)
    jobs = [held, job("waits", gpus=8, workers=2, **fields)]
    return scene([node("n0"), node("n1")], [quota("q", 16), quota("b")], jobs, settings={"forecast": forecast})


@pytest.mark.parametrize("forecast", ["all", "head", "none"])
@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"deadline": -100, "estimate_s": 10}, "its deadline has passed: 2026-11-20T08:58:20Z"),
        ({"deadline": -100}, "its deadline has passed: 2026-11-20T08:58:20Z"),
        (
            {"deadline": 400, "roles": [{"gpus": 16}], "limit_s": 500},
            "a start at 2026-11-20T09:00:00Z is too late to end before 2026-11-20T09:06:40Z",
        ),
    ],
)
def test_that_a_deadline_can_not_be_met_is_told_whatever_is_foreseen(forecast: str, fields: Json, says: str) -> None:
    assert told(_late(forecast, **fields), "waits", "deadline") == says


def test_who_is_due_only_after_his_deadline_is_told_so_or_when_he_is_expected() -> None:
    fields = {"deadline": 400, "not_before": 500, "estimate_s": 10}
    for forecast, begins in {"all": "09:16:40", "head": "09:08:20", "none": "09:08:20"}.items():
        says = f"a start at 2026-11-20T{begins}Z is too late to end before 2026-11-20T09:06:40Z"
        assert told(_late(forecast, **fields), "waits", "deadline") == says


@pytest.mark.parametrize("forecast", ["all", "head", "none"])
def test_when_a_place_is_kept_too_late_for_a_deadline_that_is_told(forecast: str) -> None:
    assert told(_late(forecast, deadline=1500, estimate_s=501), "waits", "deadline").startswith("a start at 2026-11-20T09:16:40Z is too late")
    for enough in ({"deadline": 1501, "estimate_s": 501}, {"deadline": 1001}):
        assert "deadline" not in reasons(plan_of(_late(forecast, **enough)), "waits")


def test_a_deadline_passes_between_two_plans() -> None:
    scenario = _late("head", deadline=100, estimate_s=60)
    scenario["settings"]["backfill_depth"] = 0
    kept = Kept()
    first = parse(scenario)
    codes = []
    for passed in (0, 50_000, 100_000):
        plan = make_plan(replace(first, now=first.now + passed), kept)
        codes.append([one.code for waiting in plan.waiting for one in waiting.reasons if one.code == "deadline"])

    assert codes == [[], ["deadline"], ["deadline"]]


def test_a_gang_that_is_made_whole_and_grows_is_told_why_it_was_made_whole() -> None:
    lost = running("lost", [at("n0", *range(4)), at("n0", *range(4, 8))], role={"min": 3, "max": 4})
    plan = plan_of(scene([node("n0"), node("n1")], [quota("q", 16)], [lost]))

    assert [(one["action"], len(one["workers"]), one["why"]["code"]) for one in plan["decisions"]] == [("repair", 4, "repair")]


def test_who_may_delay_the_reservation_of_a_job_above_its_guarantee_does_not_say_that_it_delays_none() -> None:
    def why(guaranteed: int) -> tuple[str, str]:
        held = running("held", [at("n0", *FULL)], limit_s=1050)
        jobs = [
            held,
            job("gang", "a/p", gpus=8, workers=2),
            job("short", gpus=8, submitted=-20, limit_s=900 if guaranteed > 16 else 1100, preemptible=False),
        ]
        quotas = [quota("q", guaranteed), quota("a", 16, priority=200), quota("a/p", 16 if guaranteed > 16 else 0, parent="a")]
        decisions = plan_of(scene([node("n0"), node("n1")], quotas, jobs))["decisions"]
        starts = {one["job"]: one["why"] for one in decisions if one["action"] == "start"}
        return starts["short"]["code"], starts["short"]["detail"]

    assert why(16) == ("backfill", "stays within its guarantees; delays no reservation of a job that stays within its own")
    assert why(24) == ("backfill", "delays no reservation ahead of it")


EITHER = {"role": {"gpu_types": [H100, A100]}}


def test_where_shares_are_by_type_each_that_is_in_the_way_is_told_with_its_name() -> None:
    nodes = [node("h"), node("a", gpu_type=A100)]
    quotas = [quota("poor", {H100: 0}), quota("rich", {H100: 8, A100: 8})]
    full = [running("old", [at("h", *FULL)], "rich"), running("older", [at("a", *FULL)], "rich")]
    scenario = scene(nodes, quotas, [*full, job("either", "poor", 8, **EITHER)])

    rest = "with 8 more it may only use what is idle"
    assert details(scenario, "either", "share") == [f"poor uses 0 of a fair share of 0 {name}; {rest}" for name in (H100, A100)]


def test_where_guarantees_are_by_type_each_that_is_in_the_way_is_told_with_its_name() -> None:
    nodes = [node("h"), node("a", gpu_type=A100)]
    fixed = job("fixed", "q", 8, preemptible=False, **EITHER)
    scenario = scene(nodes, [quota("q", {H100: 4, A100: 4})], [fixed])

    says = "non-preemptible work of q holds 0 of its guarantee of 4 {}; 8 more would exceed it"
    assert details(scenario, "fixed", "guarantee") == [says.format(name) for name in (H100, A100)]


@pytest.mark.parametrize(
    ("asks", "told_of"),
    [
        ({"role": {"gpu_types": [A100]}}, [f"guarantees of 16 {A100} are in force; 8 are healthy"]),
        ({"role": {"gpu_types": [H100]}}, []),
        ({"quota_name": "limited", "role": {"gpu_types": [A100]}}, []),
    ],
)
def test_a_shortage_is_told_to_whom_it_concerns(asks: Json, told_of: list[str]) -> None:
    """More A100 are promised than there are; who asks for H100, or for whom there is room but for a limit, waits for something else."""
    nodes = [node("h"), node("a", 10, gpu_type=A100, unhealthy_gpus=[8, 9])]
    quotas = [quota("poor", {H100: 0}), quota("rich", {H100: 8, A100: 16}), quota("limited", {H100: 0}, limit=1)]
    full = [running("old", [at("h", *FULL)], "rich"), running("older", [at("a", *range(7))], "rich"), running("small", [at("a", 7)], "limited")]
    jobs = full if asks.get("quota_name") is None else full[2:]
    scenario = scene(nodes, quotas, [*jobs, job("asks", **{"quota_name": "poor", "gpus": 1, **asks})])

    assert details(scenario, "asks", "shortage") == told_of
    assert reasons(plan_of(scenario), "asks")


@pytest.mark.parametrize(
    ("fields", "asks", "code", "says"),
    [
        ("limit", {}, "limit", "{} uses 3 of its limit of {} GPUs; 4 more would exceed it"),
        ("guaranteed", {"preemptible": False}, "guarantee", "non-preemptible work of {} holds 3 of its guarantee of {} GPUs; 4 more would exceed it"),
    ],
)
def test_who_is_over_a_line_on_several_levels_is_told_of_all(fields: str, asks: Json, code: str, says: str) -> None:
    quotas = [quota("o", **{"guaranteed": 6, fields: 6}), quota("o/a", **{"guaranteed": 4, fields: 4}, parent="o")]
    scenario = scene([node("n0")], quotas, [running("runs", [at("n0", 0, 1, 2)], "o/a", **asks), job("asks", "o/a", 4, **asks)])

    assert details(scenario, "asks", code) == [says.format("o/a", 4), says.format("o", 6)]


def test_who_is_over_a_limit_in_sum_and_of_a_type_is_told_of_both() -> None:
    quotas = [quota("q", 8, limit={H100: 5}), quota("q/a", 8, parent="q", limit=6)]
    scenario = scene([node("n0")], quotas, [running("runs", [at("n0", 0, 1, 2)], "q/a"), job("asks", "q/a", 4)])

    rest = "4 more would exceed it"
    assert details(scenario, "asks", "limit") == [f"q/a uses 3 of its limit of 6 GPUs; {rest}", f"q uses 3 of its limit of 5 {H100}; {rest}"]


def test_a_gang_that_is_ended_is_told_which_role_lacks_workers() -> None:
    """Four of three workers there are in sum, but no server."""
    roles = [{"name": "server", "min": 1, "gpus": 1}, {"name": "worker", "min": 2, "max": 4, "gpus": 1}]
    gang = {**running("gang", [at("n0", gpu) for gpu in range(4)], started=-900, degraded_since=-600), "roles": roles}
    (ended,) = plan_of(scene([node("n0", 4)], [quota("q", 4)], [gang]))["decisions"]

    assert ended["why"]["detail"] == "0 of 1 workers of role server for 600 s, longer than the grace of 60 s"


@pytest.mark.parametrize(
    ("pools", "before", "says", "wakes"),
    [
        (
            ("", ""),
            (),
            "2 GPUs may be repartitioned within an hour, and the limit is used up; the next at 2026-11-20T10:00:00Z",
            "2026-11-20T10:00:00Z",
        ),
        (
            ("p", "p"),
            (-600, -300),
            "2 GPUs in the pool p may be repartitioned within an hour, and the limit is used up; the next at 2026-11-20T09:50:00Z",
            "2026-11-20T09:50:00Z",
        ),
        (
            ("p", "q"),
            (-600, -300),
            "2 GPUs in each of the pools p, q may be repartitioned within an hour, and the limit is used up; the next at 2026-11-20T09:50:00Z",
            "2026-11-20T09:50:00Z",
        ),
    ],
)
def test_that_the_splits_of_an_hour_are_used_up_is_told_with_limit_pools_and_time(pools: Any, before: Any, says: str, wakes: str) -> None:
    """Those of this plan count as well, and it is planned again when the first of them counts no longer."""
    first, second = ({"pool": pool} if pool else {} for pool in pools)
    nodes = [node("n0", labels=first, repartitioned=list(before)), node("n1", labels=second)]
    jobs = [job(f"m{place}", submitted=place - 50, roles=[{"mig": "7g.80gb"}]) for place in range(4)]
    scenario = scene(nodes, [quota("q", 16)], jobs, settings={"repartition_per_hour": 2})

    assert details(scenario, "m3", "repartition") == [says]
    assert plan_of(scenario)["next_wake"] == wakes


@pytest.mark.parametrize(
    ("asks", "instances", "says"),
    [
        ({"roles": [{"mig": "1g.10gb"}]}, [], ["a GPU could be repartitioned for it, but repartition is switched off"]),
        ({"roles": [{"mig": "1g.10gb"}]}, None, []),
        ({"gpus": 1}, [{"profile": "7g.80gb", "start": 0}], ["a GPU could be repartitioned for it, but repartition is switched off"]),
    ],
)
def test_that_no_gpu_is_split_anew_is_told_where_one_could_serve(asks: Json, instances: Any, says: list[str]) -> None:
    """A GPU that somebody uses whole could not be split."""
    split = {} if not instances else {"mig": [{"gpu": 0, "instances": instances}]}
    runs = [running("whole", [at("n0", 0)])] if instances is None else []
    passes = ["allocate", "consolidate", "reclaim", "preempt"]
    scenario = scene([node("n0", 1, **split)], [quota("q", 1)], [*runs, job("asks", **asks)], settings={"passes": passes})

    assert details(scenario, "asks", "repartition") == says
    assert reasons(plan_of(scenario), "asks")


def test_that_the_moves_of_a_plan_are_used_up_for_others_is_told() -> None:
    half = [running(f"m{place}", [at(f"n{place}", 0, 1, 2, 3)]) for place in range(4)]
    nodes = [node(f"n{place}") for place in range(4)]
    scenario = scene(nodes, [quota("q", 32)], [*half, job("first", gpus=8, submitted=-200), job("second", gpus=8)], settings={"max_moves": 1})

    assert actions(plan_of(scenario))["first"] == "start"
    assert details(scenario, "second", "moves") == ["the 1 move that a plan may make is used up; the next plan may move jobs for it"]
