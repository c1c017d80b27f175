"""Which victims a reclaim takes: sets that leave every victim's queue at its line go before rank."""

from typing import Any

import pytest

from .scenes import actions, at, job, leafed, node, plan_of, quota, running, scene

Json = dict[str, Any]


def reclaimed(victims: list[Json], guaranteed: int, gpus: int = 2, **fields: Any) -> dict[str, str]:
    nodes, quotas = [node("n0"), *fields.pop("nodes", [])], [quota("mine", 2), quota("theirs", guaranteed)]
    return actions(plan_of(scene(nodes, quotas, [*victims, job("asker", "mine", gpus)], **fields)))


def theirs(name: str, *gpus: int, **fields: Any) -> Json:
    return running(name, [at(fields.pop("on", "n0"), *gpus)], "theirs", **fields)


def test_two_small_jobs_go_rather_than_one_whose_queue_would_fall_below_its_guarantee() -> None:
    """The large one ranks first, having lost less; without it the queue would be left with 3 of its 6 GPUs."""
    victims = [theirs("large", 0, 1, 2, 3, 4, started=-10), *(theirs(f"small-{gpu}", gpu, started=-1000) for gpu in (5, 6, 7))]
    found = reclaimed(victims, 6)
    assert found.pop("asker") == "start"
    assert sorted(found) == ["small-5", "small-6"] or sorted(found) == ["small-6", "small-7"], found


@pytest.mark.parametrize("gpus", [0, 1, 2])
def test_the_smallest_job_that_suffices_goes_also_where_it_is_its_processors_that_do(gpus: int) -> None:
    """Each holds all processors of its node; the large one has lost less."""
    nodes = [node(name, cpus=32, host_memory_gb=64) for name in ("n0", "n1")]
    held = [running("wide", [at("n0", *range(8))], priority=10), running("thin", [at("n1", 0)], priority=10, started=-500)]
    for one in held:
        one["roles"][0]["cpus"] = 32
    asker = job("asker", gpus=gpus, workers=4, priority=90, role={"cpus": 8})
    assert actions(plan_of(scene(nodes, [quota("q", 16)], [*held, asker]))) == {"thin": "evict", "asker": "start"}


def test_where_every_set_crosses_the_line_rank_decides() -> None:
    victims = [theirs("younger", 0, 1, 2, 3, started=-10), theirs("older", 4, 5, 6, 7, started=-1000)]
    assert reclaimed(victims, 6) == {"younger": "evict", "asker": "start"}


def test_of_two_domains_the_one_is_cleared_whose_victims_leave_the_queue_at_its_line() -> None:
    """On the first node only a job of 8 GPUs stands, the youngest; on the other four of 2 GPUs."""
    nodes = [node("n1")]
    victims = [theirs("whole", *range(8), started=-1), *(theirs(f"part-{gpu}", gpu, gpu + 1, on="n1") for gpu in (0, 2, 4, 6))]
    found = reclaimed(victims, 14, nodes=nodes)
    assert found.pop("asker") == "start"
    assert len(found) == 1 and next(iter(found)).startswith("part-"), found


def test_each_domain_is_compared_by_its_least_set_that_crosses_no_line() -> None:
    """`first` ranks least and shares its domain with `second`, but its queue would lose a guarantee of 2; `third` is alone in the other domain."""
    held = [
        running("first", [at("n000", 0, 1, 2, 3)], "promised", priority=1),
        running("second", [at("n000", 4, 5, 6, 7)], "a", priority=5),
        running("third", [at("n001", 0, 1, 2, 3)], "b", priority=9),
        running("fixed", [at("n001", 4, 5, 6, 7)], "fixed", preemptible=False),
    ]
    quotas = [quota("promised", 2, weight=0), quota("a", weight=0), quota("b", weight=0), quota("fixed", 4, weight=0), quota("mine", 4, weight=0)]
    asker = job("asker", "mine", 2, 2, topology={"required": "leaf"})
    assert actions(plan_of(scene(leafed(2, 1), quotas, [*held, asker]))) == {"second": "evict", "asker": "start"}


@pytest.mark.parametrize(("first", "second", "victim"), [(-900, -800, "a-b"), (-800, -900, "a-a")])
def test_of_jobs_that_started_together_the_one_submitted_last_goes(first: int, second: int, victim: str) -> None:
    victims = [theirs("a-a", 0, 1, 2, 3, submitted=first), theirs("a-b", 4, 5, 6, 7, submitted=second)]
    assert reclaimed(victims, 0, gpus=2)[victim] == "evict"


def behind_an_elastic_one(ranked: list[Json], least: int, limit: int, gpus: int) -> dict[str, str]:
    """The asker may run on n0 alone. `elastic` comes first, but its workers on n1 would have to go as well: too much for its queue."""
    nodes = [node("n0", labels={"may": "yes"}), node("n1")]
    held = running("elastic", ranked, "a", least=least, most=len(ranked), priority=1)
    behind = running("behind", [at("n0", *range(4, 4 + gpus))], "b", priority=9)
    taken = {(one["node"], gpu) for job in (held, behind) for one in job["workers"] for gpu in one["gpus"]}
    free = {name: [gpu for gpu in range(8) if (name, gpu) not in taken] for name in ("n0", "n1")}
    fixed = [running(f"fixed-{name}", [at(name, *free[name])], "fixed", preemptible=False) for name in free if free[name]]
    quotas = [quota("a", limit=limit), quota("b", weight=0), quota("fixed", 16 - len(taken), weight=0), quota("c")]
    asker = job("asker", "c", gpus, node_labels={"may": "yes"})
    return actions(plan_of(scene(nodes, quotas, [held, *fixed, behind, asker])))


def test_the_search_goes_on_behind_a_minimum_whose_surplus_elsewhere_would_have_to_go_first() -> None:
    ranked = [*(at("n0", gpu) for gpu in range(4)), at("n1", 0), at("n1", 1)]
    assert behind_an_elastic_one(ranked, 4, 4, 4) == {"behind": "evict", "asker": "start"}


def test_the_search_goes_on_behind_surplus_of_a_low_index() -> None:
    ranked = [at("n1", 0), at("n0", 0), at("n1", 1), at("n1", 2)]
    assert behind_an_elastic_one(ranked, 1, 3, 1) == {"behind": "evict", "asker": "start"}
