"""Which victims a reclaim takes: sets that leave every victim's queue at its line go before rank."""

from typing import Any

import pytest

from .scenes import actions, at, job, node, plan_of, quota, running, scene

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


@pytest.mark.parametrize(("first", "second", "victim"), [(-900, -800, "a-b"), (-800, -900, "a-a")])
def test_of_jobs_that_started_together_the_one_submitted_last_goes(first: int, second: int, victim: str) -> None:
    victims = [theirs("a-a", 0, 1, 2, 3, submitted=first), theirs("a-b", 4, 5, 6, 7, submitted=second)]
    assert reclaimed(victims, 0, gpus=2)[victim] == "evict"
