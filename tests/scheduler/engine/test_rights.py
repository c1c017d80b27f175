"""Who has the right to a place gets it without others being started, or put out, in vain."""

from collections import Counter
from typing import Any

import pytest

from scheduler.benchmarks import cases
from scheduler.benchmarks.engine import filled, thinned
from scheduler.engine.cycle import make_plan
from scheduler.scenarios.reading import parse

from .scenes import actions, at, job, node, placed, plan_of, quota, reasons, running, scene


def uneven(**fields: Any) -> dict[str, Any]:
    """o1 has its share, but inside it q has all of it; o2 has one GPU above its share, and started last."""
    quotas = [quota("o1"), quota("o1/p", parent="o1"), quota("o1/q", parent="o1"), quota("o2"), quota("o3")]
    held = [running(f"q{gpu}", [at("n0", gpu)], "o1/q", started=-900) for gpu in range(4)]
    held += [running(f"r{gpu}", [at("n0", 4 + gpu)], "o2", started=-100) for gpu in range(5)]
    held += [running(f"s{gpu}", [at("n0", 9 + gpu)], "o3", started=-900) for gpu in range(3)]
    asking = [job("more", "o1/q", 4), job("much", "o2", 4), job("some", "o3", 4)]
    return scene([node("n0", 12)], quotas, [*held, *asking, job("mine", "o1/p")], **fields)


def test_who_may_not_be_taken_from_is_passed_over() -> None:
    plan = plan_of(uneven())

    done = actions(plan)
    assert done["mine"] == "start"
    (gone,) = [name for name, action in done.items() if action == "evict"]
    assert gone.startswith("q"), "o2 would be left with less of its share than o1, so o1 makes room itself"


def test_where_nobody_may_be_taken_from_it_is_said_why() -> None:
    scenario = uneven()
    for one in scenario["jobs"]:
        if one["name"].startswith("q"):
            one["preemptible"] = False

    plan = plan_of(scenario)

    assert "mine" not in actions(plan)
    assert "balance" in reasons(plan, "mine")


@pytest.mark.parametrize(("seed", "nodes"), [(3, 32), (2, 64), (3, 64)])
def test_a_fleet_with_holes_is_filled_without_putting_anyone_out(seed: int, nodes: int) -> None:
    scenario = parse(cases.steady(seed, nodes, 12 * nodes))
    plan = make_plan(thinned(filled(scenario, seed, scenario.settings.passes), seed))

    done = Counter(decision.action for decision in plan.decisions)
    assert done["start"] > nodes / 2
    assert done["evict"] == done["move"] == 0


def test_where_nothing_is_taken_back_the_order_of_queues_decides() -> None:
    """o1 as a whole stays within its guarantee and is served first, although its leaf is promised nothing and that of o2 is."""
    quotas = [quota("o1", 8), quota("o1/p", parent="o1"), quota("o2", 4), quota("o2/q", 4, parent="o2")]

    plan = plan_of(scene([node("n0", 4)], quotas, [job("one", "o1/p", 4), job("two", "o2/q", 4)]))

    assert actions(plan) == {"one": "start"}


@pytest.mark.parametrize("evicting", ["reclaim", "preempt"])
def test_who_was_never_put_out_is_not_held_back_for_who_asks_for_the_same_and_was(evicting: str) -> None:
    """older was evicted ten seconds ago and is back only inside its guarantee; younger asks for the same, and may take it."""
    own = "b" if evicting == "preempt" else "a"
    held = [running(f"held-{gpu}", [at("n0", gpu)], own, priority=0) for gpu in range(8)]
    older = job("older", "b", 2, submitted=-200, priority=10, last_evicted=-10, evictions=1)
    younger = job("younger", "b", 2, submitted=-100, priority=10)
    plan = plan_of(scene([node("n0")], [quota("a"), quota("b")], [*held, older, younger], settings={"hysteresis_s": 300}))

    assert actions(plan).get("younger") == "start"
    assert reasons(plan, "older") >= {"backoff"}


def test_a_gang_is_made_whole_inside_its_domain_though_its_island_is_wider() -> None:
    """An island over three nodes, groups of two, and all on one node: with three of four workers gone, they come back to that one."""
    lost = {**job("lost", workers=4, topology={"required": "node", "tp_group": 2}), "state": "running", "started": -50, "degraded_since": -1}
    lost["workers"] = [at("n0", 2, index=2)]
    plan = plan_of(scene([node(f"n{number}", 4, island="wide") for number in range(3)], [quota("q", 12)], [lost]))

    assert actions(plan) == {"lost": "repair"}
    assert placed(plan, "lost") == ["n0"] * 4
