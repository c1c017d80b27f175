"""Dates to come against a slow, obvious look-ahead: every minute, every node, nothing kept between two questions."""

import random
from typing import Any

import numpy as np
import pytest

from scheduler.engine.ahead.lookahead import FOREVER, Lookahead
from scheduler.engine.state.grid import Grid
from scheduler.scenarios.reading import parse
from tests.scheduler.twin.places import Undecided, gang_fits, occupancy
from tests.scheduler.twin.world import read

from .scenes import H100, NOW, node, plan_of, quota, scene

Json = dict[str, Any]
LAST = 60


class Dense:
    """Free GPUs of every node in every minute up to the last; what is free then is free for ever."""

    def __init__(self, free: list[list[int]]) -> None:
        self.free = free

    def hold(self, start: int, end: int, at: int, count: int) -> None:
        for minute in range(start, min(end, LAST + 1)):
            self.free[at][minute] -= count

    def earliest(
        self, gpus: int, workers: int, length: int, allowed: list[int], domains: list[range], since: int = 0
    ) -> tuple[int, list[tuple[int, int]]] | None:
        for start in range(since, LAST + 1):
            for domain in domains:
                places: list[tuple[int, int]] = []
                missing = workers
                for at in domain:
                    room = min(self.free[at][start : min(LAST + 1, start + length)]) // gpus if allowed[at] else 0
                    if room > 0 and missing:
                        places.append((at, gpus * min(room, missing)))
                        missing -= min(room, missing)
                if not missing:
                    return start, places
        return None


def drawn(seed: int) -> tuple[random.Random, Grid, Lookahead, Dense]:
    rng = random.Random(seed)
    nodes = [
        node(f"n{place:02d}", rng.choice([2, 4, 8]), path={"rack": f"r{place // rng.choice([1, 2, 2, 3])}"}) for place in range(rng.randint(1, 7))
    ]
    grid = Grid(parse(scene(nodes, [quota("q")], [], topology={"levels": ["rack"]})))
    idle, releases = [], []
    dense = []
    for at, count in enumerate(grid.usable_count):
        idle.append(rng.randint(0, count))
        row, left = [idle[at]] * (LAST + 1), count - idle[at]
        while left and rng.random() < 0.9:
            part, end = rng.randint(1, left), rng.randint(0, 20)
            releases.append((end, at, part))
            row = [have + (part if minute >= end else 0) for minute, have in enumerate(row)]
            left -= part
        dense.append(row)
    rng.shuffle(releases)
    return rng, grid, Lookahead(grid, 0, idle, releases), Dense(dense)


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_the_earliest_time_and_place_are_those_of_the_slow_search(first: int) -> None:
    """And so is every one after it, with what was found before reserved."""
    dates = 0
    for seed in range(first, first + 100):
        rng, grid, ahead, dense = drawn(seed)
        for _ in range(8):
            gpus, workers, length = rng.choice([1, 1, 2, 3, 4, 8]), rng.choice([1, 1, 2, 3, 5]), rng.choice([1, 3, 10, FOREVER])
            allowed = [int(rng.random() < 0.8) for _ in range(grid.size)]
            width = rng.choice([None, 0, 1, 2])
            level = None if width is None else grid.levels[width]
            domains = [range(grid.size)] if level is None else [range(*level.slice_of(domain)) for domain in range(len(level))]
            since = rng.choice([0, 0, rng.randint(1, 30)])
            expected = dense.earliest(gpus, workers, min(length, 10 * LAST), allowed, domains, since)
            found = ahead.earliest(gpus, workers, length, np.array(allowed, dtype=np.int64), level, since)

            assert found == expected, f"seed {seed}"
            if found is not None:
                dates += 1
                ahead.reserve(found[0], length, found[1])
                for at, count in found[1]:
                    dense.hold(found[0], found[0] + min(length, 10 * LAST), at, count)
            for at in range(grid.size):
                first_minute, until = rng.randint(0, 30), rng.randint(31, 40)
                assert ahead.least_free(at, first_minute, until) == min(dense.free[at][first_minute:until]), f"seed {seed}"
    assert dates > 200


def test_a_later_look_finds_what_a_new_one_would() -> None:
    """What is open by then is open from then on, and what has closed offers nothing, though the fleet was looked at before."""
    late = 0
    for seed in range(200):
        rng, grid, ahead, dense = drawn(seed)
        asked = [(rng.choice([1, 2, 3, 4]), rng.choice([1, 1, 2, 3]), rng.choice([1, 3, 10, FOREVER])) for _ in range(6)]
        everywhere = np.ones(grid.size, dtype=np.int64)
        for at in range(grid.size):  # for a while somebody comes to what is free: some gaps have an end
            least = min(dense.free[at][5:15])
            if least and rng.random() < 0.6:
                count = rng.randint(1, least)
                ahead.reserve(5, 10, [(at, count)])
                dense.hold(5, 15, at, count)
        for gpus, workers, length in asked:
            ahead.earliest(gpus, workers, length, everywhere, grid.levels[1])
        now = rng.randint(1, 18)
        ahead.now = now
        for gpus, workers, length in asked:
            found = ahead.earliest(gpus, workers, length, everywhere, grid.levels[1])
            domains = [range(*grid.levels[1].slice_of(domain)) for domain in range(len(grid.levels[1]))]
            later = Dense([[*row[now:], *[row[-1]] * now] for row in dense.free])
            assert found == later.earliest(gpus, workers, min(length, 10 * LAST), [1] * grid.size, domains), f"seed {seed}"
            late += found is not None and found[0] > 0
    assert late


# Parts of GPUs, hosts and several roles: one job waits, and the fleet is looked at minute by minute.


def waiting_world(seed: int) -> Json:
    rng = random.Random(seed)
    hosts = rng.random() < 0.6
    host: Json = {"cpus": 16, "host_memory_gb": 64} if hosts else {}
    nodes = [node(f"n{place}", rng.choice([1, 2, 4]), path={"rack": f"r{place // 2}"}, **host) for place in range(rng.randint(1, 4))]
    made = scene(nodes, [quota("q", None)], [], topology={"levels": ["rack"]}, settings={"passes": ["allocate"]})
    for number in range(8):
        _run(rng, made, _ask(rng, f"r{number}", hosts=hosts))
    made["jobs"].append(_ask(rng, "late", hosts=hosts) | {"submitted": 0})
    return made


def _ask(rng: random.Random, name: str, *, hosts: bool) -> Json:
    role: Json = {"name": "worker", "min": rng.choice([1, 1, 2, 3])}
    role.update(rng.choice([{"gpus": 1}, {"gpus": 2}, {"gpus": 1}, {"gpu_share": rng.choice([0.25, 0.5])}]))
    roles = [role]
    if hosts and rng.random() < 0.7:
        role.update(cpus=rng.choice([2, 4, 8]), host_memory_gb=rng.choice([4, 16, 32]))
    if "gpus" in role and rng.random() < 0.4:
        roles.append({"name": "other", "min": rng.choice([1, 2]), "gpus": rng.choice([0, 1, 2]), "cpus": rng.choice([0, 6]) if hosts else 0})
    made: Json = {"name": name, "quota": "q", "submitted": -100, "roles": roles, "limit_s": 60 * rng.randint(1, 20)}
    if rng.random() < 0.3:
        made["topology"] = {"required": rng.choice(["rack", "node"])}
    return made


def _run(rng: random.Random, made: Json, job: Json) -> None:
    """Let it run where it fits, for some minutes more, or for ever."""
    world = read({**made, "jobs": [*made["jobs"], job]})
    try:
        found = gang_fits(occupancy(world), world.jobs[job["name"]])
    except Undecided:
        return
    if not found:
        return
    job["workers"] = [
        {"role": one.role, "index": one.index, "node": one.node, "gpus": list(one.gpus)} | ({"gpu_share": one.share / 1000} if one.share else {})
        for one in found
    ]
    job.update(state="running", since=-30, started=0)
    if rng.random() < 0.1:
        del job["limit_s"]
    made["jobs"].append(job)


def first_minute(made: Json) -> int | None:
    """The first minute in which the job fits beside those that run on."""
    for minute in range(30):
        there = [job for job in made["jobs"] if job["name"] == "late" or "limit_s" not in job or job["limit_s"] > 60 * minute]
        world = read({**made, "jobs": there})
        if gang_fits(occupancy(world), world.jobs["late"]) is not None:
            return minute
    return None


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_parts_hosts_and_roles_start_in_the_first_minute_in_which_they_fit(first: int) -> None:
    later = 0
    for seed in range(first, first + 100):
        made = waiting_world(seed)
        try:
            expected = first_minute(made)
        except Undecided:
            continue
        plan = plan_of(made)
        if expected == 0:
            assert [one["action"] for one in plan["decisions"]] == ["start"], f"seed {seed}"
            continue
        at = None if expected is None else f"{NOW[:14]}{expected:02d}:00Z"
        assert [one["predicted_start"] for one in plan["waiting"]] == [at], f"seed {seed}"
        later += at is not None
    assert later > 20


def test_a_job_in_parts_waits_for_the_share_that_it_needs() -> None:
    """Two thirds of the only GPU are held, one for ten minutes and one for twenty."""
    share = [{"name": "worker", "gpu_share": 0.4}]
    place = [{"role": "worker", "index": 0, "node": "n0", "gpus": [0], "gpu_share": 0.4}]
    common: Json = {"quota": "q", "submitted": -90, "roles": share, "sharing": "mps", "started": 0, "state": "running", "workers": place}
    held = [{**common, "name": name, "limit_s": 60 * minutes} for name, minutes in (("ten", 10), ("twenty", 20))]
    late = {"name": "late", "quota": "q", "submitted": -5, "roles": share, "sharing": "mps", "limit_s": 60}
    later = {"name": "later", "quota": "q", "submitted": -4, "roles": [{"name": "worker", "gpus": 1, "gpu_types": [H100]}]}
    plan = plan_of(scene([node("n0", 1)], [quota("q", None)], [*held, late, later], settings={"passes": ["allocate"]}))

    assert {one["job"]: one["predicted_start"] for one in plan["waiting"]} == {
        "late": f"{NOW[:14]}10:00Z",
        "later": f"{NOW[:14]}20:00Z",
    }
