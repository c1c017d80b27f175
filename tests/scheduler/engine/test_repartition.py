"""Splitting GPUs anew: over whose instances, how often, and what the plan says of it."""

from typing import Any

import pytest

from scheduler.engine.place.parts import Parts
from scheduler.scenarios.faults import ScenarioError
from scheduler.scenarios.reading import parse
from scheduler.scenarios.spelling import spelt

from .scenes import A100, actions, at, job, node, placed, plan_of, quota, reasons, running, scene

Json = dict[str, Any]
QUOTAS = [quota("a", 0), quota("b", 2)]


def board(name: str, *layouts: list[tuple[str, int]], **fields: Any) -> Json:
    """A node with one GPU per layout; an empty one is a whole GPU."""
    split = [
        {"gpu": gpu, "instances": [{"profile": profile, "start": start} for profile, start in layout]} for gpu, layout in enumerate(layouts) if layout
    ]
    return node(name, len(layouts), mig=split, **fields)


def tenant(name: str, quota_name: str, where: str, gpu: int, profile: str, start: int, **fields: Any) -> Json:
    place = at(where, gpu, mig={"profile": profile, "start": start})
    made = job(name, quota_name, role={"mig": profile, "gpus": None}, sharing="mig")
    return {**made, "state": "running", "started": -50, "since": -50, "workers": [place], **fields}


def asking(name: str, quota_name: str, profile: str, **fields: Any) -> Json:
    return job(name, quota_name, role={"mig": profile, "gpus": None}, sharing="mig", **fields)


def splits(plan: Json) -> list[Json]:
    return [one for one in plan["decisions"] if one["action"] == "repartition"]


FULL = [("3g.40gb", 0), ("3g.40gb", 4)]


def test_instances_of_borrowers_are_destroyed_for_a_job_within_its_share() -> None:
    tenants = [tenant("left", "a", "n0", 0, "3g.40gb", 0), tenant("right", "a", "n0", 0, "3g.40gb", 4)]
    plan = plan_of(scene([board("n0", FULL)], QUOTAS, [*tenants, asking("mine", "b", "7g.80gb")]))

    assert actions(plan) == {"left": "evict", "right": "evict", "mine": "start"}
    (split,) = splits(plan)
    assert (split["node"], split["gpu"], split["instances"]) == ("n0", 0, [{"profile": "7g.80gb", "start": 0}])
    assert split["after"] == ["left", "right"]
    assert split["why"]["for"] == "mine"
    assert [one["action"] for one in plan["decisions"]] == ["evict", "evict", "repartition", "start"]


def test_a_tenant_whose_place_is_not_needed_stays() -> None:
    tenants = [tenant("small", "a", "n0", 0, "1g.10gb", 6), tenant("wide", "a", "n0", 0, "4g.40gb", 0)]
    plan = plan_of(scene([board("n0", [("4g.40gb", 0), ("1g.10gb", 6)])], QUOTAS, [*tenants, asking("mine", "b", "3g.40gb")]))

    assert actions(plan) == {"small": "evict", "mine": "start"}


def test_nobody_is_evicted_where_an_empty_instance_can_be_destroyed() -> None:
    used = tenant("used", "a", "n0", 0, "3g.40gb", 0)
    plan = plan_of(scene([board("n0", FULL, FULL[:1])], QUOTAS, [used, asking("mine", "b", "7g.80gb")]))

    assert actions(plan) == {"mine": "start"}
    assert [(one["gpu"], one["after"]) for one in splits(plan)] == [(1, [])]


@pytest.mark.parametrize("shield", [{"preemptible": False}, {"quota": "b"}])
def test_instances_of_those_who_may_not_be_evicted_stay(shield: Json) -> None:
    """Not preemptible; or of the same queue and no lower."""
    plan = plan_of(scene([board("n0", FULL)], QUOTAS, [tenant("there", "a", "n0", 0, "3g.40gb", 0) | shield, asking("mine", "b", "7g.80gb")]))

    assert actions(plan) == {}


def test_a_queue_splits_anew_over_its_own_lower_work() -> None:
    low = tenant("low", "b", "n0", 0, "3g.40gb", 0)
    plan = plan_of(scene([board("n0", FULL)], QUOTAS, [low, asking("high", "b", "7g.80gb", priority=10)]))

    assert actions(plan) == {"low": "evict", "high": "start"}
    assert plan["decisions"][0]["why"]["code"] == "preempt"
    low_stays = plan_of(scene([board("n0", FULL)], QUOTAS, [low, asking("high", "b", "7g.80gb", priority=10)], settings={"preemption": False}))
    assert actions(low_stays) == {}


def test_a_whole_gpu_is_made_of_instances_that_may_be_evicted() -> None:
    tenants = [tenant("left", "a", "n0", 0, "3g.40gb", 0), tenant("right", "a", "n0", 1, "3g.40gb", 4)]
    plan = plan_of(scene([board("n0", FULL, FULL)], QUOTAS, [*tenants, job("mine", "b", 2)]))

    assert actions(plan) == {"left": "evict", "right": "evict", "mine": "start"}
    assert [(one["gpu"], one["instances"], one["after"]) for one in splits(plan)] == [(0, [], ["left"]), (1, [], ["right"])]


def test_a_share_of_a_gpu_is_made_of_empty_instances() -> None:
    plan = plan_of(scene([board("n0", FULL)], QUOTAS, [job("part", "b", role={"gpus": None, "gpu_share": 0.5}, sharing="mps")]))

    assert actions(plan) == {"part": "start"}
    assert [one["instances"] for one in splits(plan)] == [[]]


@pytest.mark.parametrize(
    ("lately", "expected"), [([], {"mine": "start"}), ([-3599], {}), ([-3600], {"mine": "start"}), (["2026-11-20T08:30:00Z", -10], {})]
)
def test_what_was_split_anew_within_the_hour_counts(lately: list[Any], expected: Json) -> None:
    """Of the whole pool, whatever node it was on."""
    nodes = [board("n0", FULL), board("n1", [], health="draining", repartitioned=lately)]
    plan = plan_of(scene(nodes, QUOTAS, [asking("mine", "b", "7g.80gb")], settings={"repartition_per_hour": 1}))

    assert actions(plan) == expected
    if not expected:
        assert "repartition" in reasons(plan, "mine")
        assert plan["next_wake"] is not None, "the hour of what was split anew ends without an event"


def test_other_pools_have_their_own_rate() -> None:
    nodes = [board("n0", FULL, labels={"pool": "a"}), board("n1", FULL, labels={"pool": "b"}, repartitioned=[-10])]
    plan = plan_of(scene(nodes, QUOTAS, [asking("mine", "b", "7g.80gb")], settings={"repartition_per_hour": 1}))

    assert [one["node"] for one in splits(plan)] == ["n0"]


@pytest.mark.parametrize("bad", [5, "soon", [1], ["yesterday"], [None], [float("nan")]])
def test_a_history_that_can_not_be_is_refused_at_its_path(bad: Any) -> None:
    with pytest.raises(ScenarioError) as refused:
        parse(scene([board("n0", FULL, repartitioned=bad)], QUOTAS, []))

    assert all(fault.path.startswith("$.nodes[0].repartitioned") for fault in refused.value.faults)


def test_a_history_survives_being_written_down() -> None:
    scenario = parse(scene([board("n0", FULL, repartitioned=[-20, -10.5])], QUOTAS, []))

    assert parse(spelt(scenario)) == scenario


def test_a_place_may_be_promised_before_its_board_is_split_anew() -> None:
    """What stands in its way there is nobody's to use; whoever really runs needs an instance that exists."""
    nodes = [board("n0", [("3g.40gb", 0), ("1g.10gb", 6)])]
    promised = tenant("promised", "b", "n0", 0, "7g.80gb", 0, state="reserved", started=None, until=60)
    plan = plan_of(scene(nodes, QUOTAS, [promised, asking("late", "a", "1g.10gb")], settings={"repartition_per_hour": 0}))

    assert actions(plan) == {}
    with pytest.raises(ScenarioError):
        parse(scene(nodes, QUOTAS, [{**promised, "state": "running"}]))


@pytest.mark.parametrize(
    ("asks", "told"),
    [
        ({}, True),  # with the split GPU made whole it would have its place
        ({"gpus": 2}, False),  # no node has room for its worker, however its GPUs are split
        ({"role": {"gpu_types": [A100]}}, False),  # of its type nothing is split
    ],
)
def test_who_wants_whole_gpus_is_told_of_split_ones_only_where_these_would_do(asks: Json, told: bool) -> None:
    nodes = [board("n0", FULL), node("n1", 2), node("n2", 2, gpu_type=A100)]
    tenants = [tenant("left", "a", "n0", 0, "3g.40gb", 0, preemptible=False), running("full", [at("n1", 0, 1)], "a", preemptible=False)]
    tenants.append(running("old", [at("n2", 0, 1)], "a", preemptible=False))
    for limit in (6, 0):  # also where no GPU may be split anew for now
        plan = plan_of(scene(nodes, QUOTAS, [*tenants, job("mine", "b", **asks)], settings={"repartition_per_hour": limit}))
        assert bool(reasons(plan, "mine") & {"sharing", "repartition"}) is told, plan["waiting"]
        assert "capacity" in reasons(plan, "mine")


def test_nobody_comes_to_a_sick_gpu_that_is_split() -> None:
    """Who runs there stays; an empty instance beside him, and one that its tenant is put out of, are nobody's."""
    stays = tenant("stays", "a", "n0", 0, "3g.40gb", 0)
    sick = board("n0", FULL, unhealthy_gpus=[0])

    assert actions(plan_of(scene([sick], QUOTAS, [stays, asking("mine", "b", "3g.40gb")]))) == {}
    plan = plan_of(scene([sick], QUOTAS, [stays, tenant("too", "a", "n0", 0, "3g.40gb", 4), asking("mine", "b", "3g.40gb")]))
    assert actions(plan) == {}


def test_nobody_joins_those_who_share_a_sick_gpu() -> None:
    share = {"gpu_share": 0.25, "gpus": None}
    stays = {**job("stays", "a", role=share), "state": "running", "started": -50, "workers": [at("n0", 0, gpu_share=0.25)]}
    jobs = [stays, job("joins", "a", role=share)]

    assert actions(plan_of(scene([node("n0", 1)], QUOTAS, jobs))) == {"joins": "start"}
    assert actions(plan_of(scene([node("n0", 1, unhealthy_gpus=[0])], QUOTAS, jobs))) == {}


def test_a_sick_gpu_is_not_made_whole_for_anybody() -> None:
    plan = plan_of(scene([board("n0", FULL, unhealthy_gpus=[0]), board("n1", FULL)], QUOTAS, [job("mine", "b")]))

    assert placed(plan, "mine") == ["n1"]
    assert [one["node"] for one in splits(plan)] == ["n1"]


def test_nodes_without_room_for_an_instance_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gang of instances is refused by counts, as one of whole GPUs is."""
    nodes = [board(f"n{number:02}", FULL, FULL) for number in range(16)]
    there = [
        tenant(f"{one['name']}-{gpu}-{start}", "b", one["name"], gpu, "3g.40gb", start, preemptible=False)
        for one in nodes
        for gpu in (0, 1)
        for start in (0, 4)
    ]
    gang = asking("gang", "b", "3g.40gb") | {"roles": [{"name": "worker", "min": 3, "mig": "3g.40gb"}]}
    asked: list[int] = []
    offer = Parts.offer
    monkeypatch.setattr(Parts, "offer", lambda parts, node, role: asked.append(node) or offer(parts, node, role))

    plan = plan_of(scene(nodes, [quota("a", 0), quota("b", 64)], [*there, gang]))

    assert actions(plan) == {}
    assert set(asked) <= {0, 1}  # whether an empty fleet could serve it
