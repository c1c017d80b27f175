"""The last word on a plan: whatever is broken in a state that was sound is found, and the job is named."""

from collections.abc import Callable
from typing import Any

import pytest

from scheduler.engine.cycle import settled
from scheduler.engine.rules.invariants import InvariantBroken, check
from scheduler.engine.state.fleet import Seat
from scheduler.engine.state.planning import Cycle
from scheduler.engine.state.work import Work
from scheduler.scenarios.reading import parse

Json = dict[str, Any]


def scene() -> Json:
    """One job runs, single workers and a gang start beside it."""
    nodes = [{"name": f"n{at}", "gpu_type": "H100-SXM-80GB", "gpus": 8, "path": {}} for at in range(4)]
    nodes[3] |= {"unhealthy_gpus": [7], "health": "healthy"}
    runs = {"state": "running", "started": -600, "workers": [{"role": "worker", "index": 0, "node": "n0", "gpus": [0, 1]}]}
    jobs = [{"name": "runs", "quota": "a", "submitted": -900, "roles": [{"name": "worker", "gpus": 2}], **runs}]
    jobs += [{"name": f"starts-{at}", "quota": "a", "submitted": -60 - at, "roles": [{"name": "worker", "gpus": 2}]} for at in range(3)]
    jobs.append({"name": "gang", "quota": "b", "submitted": -30, "roles": [{"name": "worker", "min": 2, "gpus": 4}]})
    return {
        "format": "gpufleet-scenario/1",
        "now": "2026-11-20T09:00:00Z",
        "nodes": nodes,
        "quotas": [{"name": "a", "guaranteed": 16}, {"name": "b", "guaranteed": 8}],
        "jobs": jobs,
    }


def sound() -> Cycle:
    cycle = settled(parse(scene()))
    assert sum(not work.first_seats and bool(work.seats) for work in cycle.cluster.works) == 4
    check(cycle)
    return cycle


def job(cycle: Cycle, name: str) -> Work:
    return next(work for work in cycle.cluster.works if work.job.name == name)


def moved(change: Callable[[Seat], Seat], name: str) -> Cycle:
    """The same with one worker elsewhere."""
    cycle = sound()
    work = job(cycle, name)
    work.seats = (change(work.seats[0]), *work.seats[1:])
    return cycle


BROKEN: dict[str, tuple[Callable[[Cycle], Callable[[Seat], Seat]], str]] = {
    "where another one runs": (lambda cycle: lambda seat: seat._replace(node=job(cycle, "runs").seats[0].node, mask=3), "held twice"),
    "where another one starts": (lambda cycle: lambda seat: job(cycle, "starts-0").seats[0], "held twice"),
    "where a gang starts": (
        lambda cycle: lambda seat: seat._replace(node=job(cycle, "gang").seats[1].node, mask=job(cycle, "gang").seats[1].mask & 51),
        "held twice",
    ),
    "with a GPU too many": (lambda cycle: lambda seat: seat._replace(node=2, mask=7), "got 3 GPUs"),
    "on a GPU that is not well": (lambda cycle: lambda seat: seat._replace(node=3, mask=0b11000000), "not healthy"),
    "as another role": (lambda cycle: lambda seat: seat._replace(role=1), "has 0 of 1 workers"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_no_broken_start_of_one_worker_passes(how: str):
    change, message = BROKEN[how]

    with pytest.raises(InvariantBroken, match=message) as found:
        check(moved(change(sound()), "starts-1"))
    assert found.value.job in ("starts-1", "starts-0", "gang")


@pytest.mark.parametrize("how", BROKEN)
def test_no_broken_start_of_a_gang_passes(how: str):
    with pytest.raises(InvariantBroken):
        check(moved(BROKEN[how][0](sound()), "gang"))


def test_nobody_starts_on_a_node_that_is_drained():
    cycle = sound()
    work = job(cycle, "starts-1")
    object.__setattr__(cycle.grid.nodes[work.seats[0].node], "health", "draining")

    with pytest.raises(InvariantBroken, match="not healthy"):
        check(cycle)


def test_what_starts_is_charged():
    cycle = sound()
    cycle.tree.charge(job(cycle, "starts-1").home, 0, -2000, False)

    with pytest.raises(InvariantBroken, match="books"):
        check(cycle)


@pytest.mark.parametrize("types", [1, 2])
@pytest.mark.parametrize("by_type", [False, True])
def test_nobody_uses_more_than_a_limit(types: int, by_type: bool):
    scenario = scene()
    h100, a100 = "H100-SXM-80GB", "A100-SXM-80GB"
    if types == 2:
        scenario["nodes"].append({"name": "n4", "gpu_type": a100, "gpus": 8, "path": {}})
        scenario["quotas"][0]["guaranteed"] = {h100: 16, a100: 4}
        scenario["quotas"][1]["guaranteed"] = {h100: 8}
    for each in scenario["jobs"]:
        each["roles"][0]["gpu_types"] = [h100]
    scenario["quotas"][0]["limit"] = {h100: 8} if by_type else 8  # all that is used in the end
    cycle = settled(parse(scenario))
    check(cycle)
    place, tree = cycle.tree.position["a"], cycle.tree
    kind = tree.types.index(h100)
    assert tree.used_of(place, kind) == 8000
    caps = tree.limit_by_type[place]
    if caps is None:
        tree.limit_total[place] = 7000
    else:
        caps[kind] = 7000

    with pytest.raises(InvariantBroken, match=r"uses more .*than its limit"):
        check(cycle)


def test_nobody_gets_workers_and_gives_others_back_at_once():
    scenario = scene()
    runs = scenario["jobs"][0]
    runs["roles"][0].update(min=1, max=2)
    runs["workers"].append({"role": "worker", "index": 1, "node": "n1", "gpus": [0, 1]})
    cycle = settled(parse(scenario))
    work = job(cycle, "runs")
    work.seats = (work.seats[0], work.seats[1]._replace(node=2, mask=0b11000000))
    cycle.cluster.journal.append(work)

    with pytest.raises(InvariantBroken, match="gets workers and gives others back at once") as found:
        check(cycle)
    assert found.value.job == "runs"
