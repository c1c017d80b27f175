"""Plans that are right and plans that are wrong, by hand: each wrong one breaks one rule, and the twin must name it."""

from typing import Any

import pytest

from .builders import at, evict, job, node, plan, quota, running, scenario, start
from .laws import LAWS
from .legal import check_plan
from .legal_gates import a_gate_is_kept
from .planner import planned
from .replay import apply_in_transit, apply_plan
from .world import read

Json = dict[str, Any]


def fleet(*jobs: Json, nodes: list[Json] | None = None, quotas: list[Json] | None = None, **settings: Any) -> Json:
    """Two nodes of four GPUs, and the queues a (4 guaranteed) and b (4 guaranteed)."""
    return scenario(nodes=nodes or [node("n1", 4), node("n2", 4)], quotas=quotas or [quota("a", 4), quota("b", 4)], jobs=list(jobs), **settings)


def test_a_gang_on_idle_gpus_is_legal():
    world = fleet(job("g", workers=2, gpus=2))

    assert check_plan(world, plan(start("g", at("n1", 0, 1), at("n1", 2, 3, index=1)))) == []


def test_a_victim_of_reclaim_and_the_one_that_takes_its_place():
    """b holds 6, counts on 4; a is within its guarantee, so b gives one gang back and stands at 4."""
    gangs = [running(f"b{number}", at("n1" if number < 2 else "n2", *gpus), quota="b") for number, gpus in enumerate([(0, 1), (2, 3), (0, 1)])]
    world = fleet(*gangs, running("mine", at("n2", 2, 3)), job("w", gpus=2))
    legal = plan(evict("b2", "reclaim", "w"), start("w", at("n2", 0, 1), after=["b2"]))

    assert check_plan(world, legal) == []
    assert {j["name"]: j["state"] for j in apply_plan(world, legal)["jobs"] if j["name"] in ("b2", "w")} == {"b2": "queued", "w": "running"}
    assert {j["name"]: j["state"] for j in apply_in_transit(world, legal)["jobs"] if j["name"] in ("b2", "w")} == {"b2": "stopping", "w": "reserved"}


BUSY = [running("r", at("n1", 0, 1))]
FULL = [running(f"r{number}", at(name, 0, 1, 2, 3), quota="b") for number, name in enumerate(("n1", "n2"))]
BELOW_ONE = fleet(
    running("r0", at("n1", 0, 1, 2, 3), quota="b", started=-60),
    running("r1", at("n2", *range(8)), quota="b", started=-60),
    job("w", gpus=4),
    nodes=[node("n1", 4), node("n2", 8)],
    quotas=[quota("o", 12), quota("a", 4) | {"parent": "o"}, quota("b", 8) | {"parent": "o"}],
    worth={"batch": 0},
)
TWO = {"min": 2, "max": 4, "step": 2, "gpus": 1, "name": "worker"}

SERVES = {**running("s", at("n1", 0)), "class": "inference"}
SHARED = {"roles": [{"name": "worker", "gpu_share": 0.3}], "sharing": "mps"}
SPLIT = [{"gpu": 0, "instances": [{"profile": "3g.40gb", "start": 0}, {"profile": "3g.40gb", "start": 4}]}]
INSTANCE = {"roles": [{"name": "worker", "mig": "3g.40gb"}], "sharing": "mig"}

WRONG: dict[str, tuple[Json, Json, str]] = {
    "a neighbour of a service where nobody is pinned": (
        fleet(SERVES, job("w"), colocation="node"),
        plan(start("w", at("n1", 1))),
        "w came beside s: n1 pins nobody to processors",
    ),
    "a service beside other work": (
        fleet(*BUSY, {**job("w"), "class": "inference"}, colocation="node"),
        plan(start("w", at("n1", 2))),
        "w came beside r: n1 pins nobody to processors",
    ),
    "a neighbour against a service level": (
        {
            **fleet({**SERVES, "tenant": "chat"}, job("w", tenant="llama"), colocation="gpu"),
            "apart": [{"service": "chat", "other": "llama", "where": "node", "predicted_ms": 3, "allowed_ms": 2}],
        },
        plan(start("w", at("n1", 1))),
        "s would break its service level beside w",
    ),
    "a share beside a service": (
        fleet({**running("s", at("n1", 0, gpu_share=0.3)), **SHARED, "class": "inference"}, job("w") | SHARED, colocation="gpu", sharing_trust="any"),
        plan(start("w", at("n1", 0, gpu_share=0.3))),
        "shares by MPS with s, and one of them serves",
    ),
    "an instance beside a service where MIG was not verified": (
        fleet(
            {**running("s", at("n1", 0, mig={"profile": "3g.40gb", "start": 0})), **INSTANCE, "class": "inference"},
            job("w") | INSTANCE,
            nodes=[node("n1", 1, mig=SPLIT)],
            colocation="gpu",
        ),
        plan(start("w", at("n1", 0, mig={"profile": "3g.40gb", "start": 4}))),
        "n1 enforces no MIG instances",
    ),
    "a place of another": (fleet(*BUSY, job("w")), plan(start("w", at("n1", 0))), "is promised to r, w"),
    "one place twice": (fleet(job("v"), job("w")), plan(start("v", at("n1", 0)), start("w", at("n1", 0))), "is promised to v, w"),
    "half a gang": (fleet(job("g", workers=2)), plan(start("g", at("n1", 0))), "1 of at least 2 worker"),
    "half a step": (
        fleet(job("g", roles=[TWO])),
        plan(start("g", *(at("n1", gpu, index=gpu) for gpu in range(3)))),
        "3 worker is not 2 + k * 2",
    ),
    "too few GPUs": (fleet(job("w", gpus=2)), plan(start("w", at("n1", 0))), "1 GPUs where 2 whole ones were asked"),
    "no such GPU": (fleet(job("w")), plan(start("w", at("n1", 9))), "no such GPUs"),
    "a broken GPU": (fleet(job("w"), nodes=[node("n1", 4, unhealthy_gpus=[1])]), plan(start("w", at("n1", 1))), "unhealthy GPUs"),
    "a node that is down": (fleet(job("w"), nodes=[node("n1", health="down")]), plan(start("w", at("n1", 1))), "the node is down"),
    "a suspect node": (fleet(job("w"), nodes=[node("n1", health="suspect")]), plan(start("w", at("n1", 1))), "the node is suspect"),
    "a spare": (fleet(job("w"), nodes=[node("n1", spare=True)]), plan(start("w", at("n1", 1))), "the node is a spare"),
    "another type": (
        fleet(job("w", roles=[{"name": "worker", "gpus": 1, "gpu_types": ["A100-SXM-40GB"]}])),
        plan(start("w", at("n1", 0))),
        "type, labels or needs do not suit it",
    ),
    "a type at speed 0": (fleet(job("w", throughput={"H100-SXM-80GB": 0})), plan(start("w", at("n1", 0))), "do not suit it"),
    "a label": (fleet(job("w", node_labels={"pool": "a"})), plan(start("w", at("n1", 0))), "do not suit it"),
    "two nodes where one is required": (
        fleet(job("g", workers=2, topology={"required": "node"})),
        plan(start("g", at("n1", 0), at("n2", 0, index=1))),
        "requires one node",
    ),
    "two clusters": (
        fleet(job("g", workers=2), nodes=[node("n1", cluster="x"), node("n2", cluster="y")]),
        plan(start("g", at("n1", 0), at("n2", 0, index=1))),
        "requires one cluster",
    ),
    "a TP group over two islands": (
        fleet(job("g", gpus=2, topology={"tp_group": 2}), nodes=[node("n1", 4, islands=[[0, 1], [2, 3]])]),
        plan(start("g", at("n1", 1, 2))),
        "lie in 2 islands",
    ),
    "too many cpus": (
        fleet(job("w", roles=[{"name": "worker", "gpus": 1, "cpus": 9}]), nodes=[node("n1", cpus=8)]),
        plan(start("w", at("n1", 0))),
        "9 of 8 cpus promised",
    ),
    "a limit": (fleet(job("w", gpus=2), quotas=[quota("a", 4, limit=1)]), plan(start("w", at("n1", 0, 1))), "a would hold 2000 of 1000"),
    "non-preemptible beyond the guarantee": (
        fleet(job("w", gpus=2, preemptible=False), quotas=[quota("a", 1)]),
        plan(start("w", at("n1", 0, 1))),
        "non-preemptible 2000 milli",
    ),
    "not due": (fleet(job("w", not_before=10)), plan(start("w", at("n1", 0))), "it is not due yet"),
    "not there": (fleet(job("w", submitted=10)), plan(start("w", at("n1", 0))), "it is not due yet"),
    "back too soon": (
        fleet(job("w", evictions=2, last_evicted=-59), quotas=[quota("a", 0)], hysteresis_s=1),
        plan(start("w", at("n1", 0))),
        "evicted 59000 ms ago, it pauses for 60000 ms",
    ),
    "a victim after the fact": (
        fleet(*FULL, job("w", gpus=4)),
        plan(start("w", at("n1", 0, 1, 2, 3), after=["r0"]), evict("r0", "reclaim", "w")),
        "not in the order in which it can be carried out",
    ),
    "a place that is not free yet": (
        fleet(*FULL, job("w", gpus=4)),
        plan(evict("r0", "reclaim", "w"), start("w", at("n1", 0, 1, 2, 3))),
        "is promised to r0, w while r0 still hold theirs",
    ),
    "waiting for nobody": (fleet(*BUSY, job("w")), plan(start("w", at("n1", 2), after=["r"])), "nobody asked to leave"),
    "changed twice": (fleet(job("w")), plan(start("w", at("n1", 2)), evict("w", "reclaim", "w")), "changed twice"),
    "words that leave out for whom": (
        fleet(*FULL, job("w", gpus=4)),
        plan({**evict("r0", "reclaim", "w"), "why": {"code": "reclaim", "for": "w", "detail": "somebody else comes"}}),
        "for w, and the words don't say so",
    ),
    "a protected victim": (
        fleet(*[{**one, "started": -10} for one in FULL], job("w", gpus=4), reclaim_min_runtime_s=300),
        plan(evict("r0", "reclaim", "w"), start("w", at("n1", 0, 1, 2, 3), after=["r0"])),
        "protected for 300000 ms",
    ),
    "a reclaim above the fair share": (
        fleet(*FULL, job("w", gpus=4), quotas=[quota("a", 0), quota("b", 8)]),
        plan(evict("r0", "reclaim", "w"), start("w", at("n1", 0, 1, 2, 3), after=["r0"])),
        "above the fair share 0 of a",
    ),
    "a firm victim": (
        fleet(*[{**one, "preemptible": False} for one in FULL], job("w", gpus=4)),
        plan(evict("r0", "reclaim", "w"), start("w", at("n1", 0, 1, 2, 3), after=["r0"])),
        "non-preemptible work is never a victim",
    ),
    "a preemption among equals": (
        fleet(*[{**one, "quota": "a"} for one in FULL], job("w", gpus=4)),
        plan(evict("r0", "preempt", "w"), start("w", at("n1", 0, 1, 2, 3), after=["r0"])),
        "of no higher class and number",
    ),
    "a preemption in another leaf": (
        fleet(*FULL, job("w", gpus=4, priority=9)),
        plan(evict("r0", "preempt", "w"), start("w", at("n1", 0, 1, 2, 3), after=["r0"])),
        "of another leaf",
    ),
    "no reason to wait": (fleet(job("w"), nodes=[node("n1", 4)]), plan(waiting=("w",)), "fits on n1:0 and every gate is open"),
    "a loss that work within its guarantees may cause": (BELOW_ONE, plan(waiting=("w",)), "w waits, but may reclaim r0"),
    "a loss for work beyond its guarantee": (
        {**BELOW_ONE, "quotas": [{**one, "guaranteed": 8} if one["name"] == "o" else one for one in BELOW_ONE["quotas"]]},
        plan(evict("r0", "reclaim", "w"), start("w", at("n1", 0, 1, 2, 3), after=["r0"])),
        "240 GPU-seconds lost for w, worth 0",
    ),
    "not told why": (fleet(*FULL, job("w", gpus=4)), plan(), "not told why"),
    "told in vain": (fleet(job("w")), plan(start("w", at("n1", 0)), waiting=("w",)), "is told why it waits"),
    "a layout that can't exist": (
        fleet(),
        plan({"action": "repartition", "node": "n1", "gpu": 0, "instances": [{"profile": "3g.40gb", "start": 2}], "after": [], "why": {"code": "x"}}),
        "can't start at slice 2",
    ),
    "an instance that is not there": (
        fleet(job("w", sharing="mig", roles=[{"name": "worker", "mig": "1g.10gb"}])),
        plan(start("w", at("n1", 0, mig={"profile": "1g.10gb", "start": 0}))),
        "has no instance",
    ),
    "a share of a stranger": (
        fleet(
            running("r", at("n1", 0, gpu_share=0.5), quota="b", sharing="mps") | {"roles": [{"name": "worker", "gpu_share": 0.5}]},
            job("w", sharing="mps", roles=[{"name": "worker", "gpu_share": 0.5}]),
        ),
        plan(start("w", at("n1", 0, gpu_share=0.5))),
        "shared across trust domains",
    ),
    "a reservation on a place that is not free then": (
        fleet(*[{**one, "limit_s": 7200} for one in FULL], job("w", gpus=4)),
        plan(
            {"action": "reserve", "job": "w", "at": "2026-11-20T09:30:00Z", "workers": [at("n1", 0, 1, 2, 3)], "why": {"code": "reserve"}},
            waiting=("w",),
        ),
        "0 are free then; held by r0",
    ),
}


@pytest.mark.parametrize("what", sorted(WRONG))
def test_the_twin_names_what_is_wrong(what: str):
    world, wrong, words = WRONG[what]

    assert words in "\n".join(check_plan(world, wrong))


def test_a_limit_is_kept_for_who_waited_too_long_though_nobody_knows_until_when():
    tree = [quota("t", 8, limit=4), quota("t/a", 4, parent="t"), quota("t/b", 4, parent="t")]
    gang = job("gang", "t/a", workers=4) | {"class": "inference", "submitted": -900}
    late = job("late", "t/b") | {"submitted": -60}
    drawn = scenario(nodes=[node("n1")], quotas=tree, jobs=[running("r", at("n1", 0), quota="t/b"), gang, late], max_wait_s={"inference": 600})

    waits = {entry["job"]: entry["reasons"][0]["code"] for entry in planned(drawn)["waiting"]}
    assert waits["late"] == "reservation"
    assert LAWS["legal"](drawn) == []


def kept(*, holder: Json | None = None, later: Json | None = None, ahead: Json | None = None, limit: int | None = None, **settings: Any) -> bool:
    """Whether a gate is held that keeps out a later job of one GPU.

    The holder wants both nodes; on one of them another job of its queue runs, which it may preempt 570 s from now.
    """
    first = running("r", at("n1", 0, 1, 2, 3), started=-30, **(ahead or {}))
    jobs = [first, job("h", workers=2, gpus=4, priority=9, **(holder or {})), job("later", submitted=-300, **(later or {}))]
    more = {} if limit is None else {"limit": limit}
    world = read(fleet(*jobs, quotas=[quota("a", 8, preempt_min_runtime_s=600, **more)], **settings))
    return a_gate_is_kept(world, world.jobs["later"], "H100-SXM-80GB")


def test_a_fair_share_is_kept_for_a_job_ahead_until_its_date():
    assert kept()
    assert kept(later={"limit_s": 600})


@pytest.mark.parametrize(
    "case",
    [
        {"later": {"limit_s": 500}},  # it has ended by then
        {"later": {"priority": 10}},  # it comes first
        {"holder": {"not_before": 60}},  # the holder does not ask yet
        {"holder": {"last_evicted": 0, "evictions": 1}},  # and who was put out just now is kept nothing in that plan
        {"ahead": {"preemptible": False}},  # nobody knows when the holder could start
        {"ahead": {"preemptible": False}, "max_wait_s": {"batch": 3600}},  # nor has it waited so long
        {"backfill": False},  # no places are kept at all
        {"passes": ["allocate", "backfill", "preempt"]},  # no reclaim could serve the holder within its share
    ],
    ids=str,
)
def test_a_gate_that_is_not_kept_excuses_nobody(case: dict[str, Any]):
    assert not kept(**case)


def test_who_has_waited_too_long_keeps_a_limit_of_which_nobody_knows_when_it_opens():
    case: dict[str, Any] = {"ahead": {"preemptible": False}, "max_wait_s": {"batch": 600}, "limit": 8}

    assert kept(**case)
    assert not kept(**{**case, "ahead": {"preemptible": False, "class": "inference"}})  # a service leaves no room for it, ever
    assert not kept(**{**case, "limit": 20, "passes": ["allocate", "backfill"]})  # the limit holds both
