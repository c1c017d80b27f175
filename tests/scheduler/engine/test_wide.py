"""What is done by columns for many units, held against the same done one unit after the other."""

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.engine.model.reasons import reason
from scheduler.engine.passes import preempt
from scheduler.engine.reading.scenario import parse
from scheduler.engine.rules.legality import Reclaim
from scheduler.engine.search import units as units_module
from scheduler.engine.search.columns import BY_SEAT, BY_UNIT, Columns
from scheduler.engine.search.evicting import freed_by
from scheduler.engine.search.ranking import WideRanking
from scheduler.engine.search.units import Unit, Units, columns_of
from scheduler.engine.search.victims import Target, has_fresh, no_larger, search
from scheduler.engine.search.wide import Room, Shelves, WideSearch, passed_over, running_sums
from scheduler.engine.state.planning import Cycle

Json = dict[str, Any]
drawn = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def crowded(chance: random.Random) -> Json:
    """A few nodes full of all sorts of jobs of three queues; started at a few instants only, so that there are ties."""
    nodes = [{"name": f"n{at}", "gpu_type": "H100-SXM-80GB", "gpus": chance.choice((4, 8)), "path": {"rack": f"r{at // 3}"}} for at in range(9)]
    nodes[0]["unhealthy_gpus"] = [0]
    quotas = [
        {"name": "a", "guaranteed": chance.randrange(0, 12)},
        {"name": "a/x", "parent": "a", "guaranteed": chance.randrange(0, 5), "reclaim_min_runtime_s": chance.choice((0, 300))},
        {"name": "a/y", "parent": "a", "guaranteed": chance.randrange(0, 5)},
        {"name": "b", "guaranteed": chance.randrange(20, 40)},
        {"name": "c", "guaranteed": chance.randrange(0, 6)},
    ]
    idle = {node["name"]: list(range(node["gpus"])) for node in nodes}
    jobs: list[Json] = []
    while any(idle.values()) and len(jobs) < 60:
        gpus, most = chance.choice((1, 1, 1, 2, 4)), chance.choice((1, 1, 1, 2, 4))
        workers = []
        for name in chance.sample(sorted(idle), len(idle)):
            while len(workers) < most and len(idle[name]) >= gpus:
                held = [idle[name].pop() for _ in range(gpus)]
                workers.append({"role": "worker", "index": len(workers), "node": name, "gpus": sorted(held)})
        if not workers:
            break
        started = -chance.choice((60, 60, 600, 3600))
        least = chance.choice((1, len(workers)))
        jobs.append(
            {
                "name": f"f-{chance.randrange(10**6)}-{len(jobs)}",
                "quota": chance.choice(("a/x", "a/x", "a/y", "c")),
                "class": chance.choice(("batch", "batch", "interactive", "inference")),
                "priority": chance.choice((0, 0, 10)),
                "preemptible": chance.choice((True, True, True, "when_borrowed", False)),
                "submitted": started - chance.choice((0, 60)),
                "roles": [{"name": "worker", "min": least, "max": len(workers), "gpus": gpus}],
                "state": "running",
                "since": started,
                "started": started,
                "workers": workers,
            }
        )
    asked = chance.choice((1, 2, 4))
    ask = {"name": "gang", "quota": "b", "submitted": -60, "roles": [{"name": "worker", "min": chance.randrange(1, 9), "gpus": asked}]}
    higher = {**ask, "name": "urgent", "quota": "a/x", "class": "inference"}
    by_usage: Json = {}
    if chance.random() < 0.5:  # past usage decides who stands above his share, and spares who came by reclaim within a step
        by_usage = {"fairness": {"usage_weight": 2, "step_s": 86400}}
        for quota in quotas:
            quota["usage"] = chance.choice((0, 0.5, 0.9))
        for job in jobs:
            if chance.random() < 0.3:
                job["reclaimed"] = -30
    return {
        "format": "gpufleet-scenario/1",
        "now": "2026-11-20T09:00:00Z",
        "topology": {"levels": ["rack"]},
        "nodes": nodes,
        "quotas": quotas,
        "jobs": [*jobs, ask, higher],
        "settings": by_usage,
    }


def cycle_of(seed: int) -> Cycle:
    return Cycle(parse(crowded(random.Random(seed))))


def scattered(chance: random.Random) -> Json:
    """Nodes full of small jobs of two queues that hold more than they were promised, but may not lose all of it."""
    nodes = [{"name": f"n{at}", "gpu_type": "H100-SXM-80GB", "gpus": 8} for at in range(chance.randrange(2, 6))]
    parts, gangs = chance.choice(((1,), (1, 1, 2), (1, 2, 3))), chance.random() < 0.3
    jobs: list[Json] = []
    for node in nodes:
        idle = list(range(8))
        while len(idle) > chance.choice((0, 0, 1)):
            held = [idle.pop() for _ in range(min(len(idle), chance.choice(parts)))]
            workers = [{"role": "worker", "index": 0, "node": node["name"], "gpus": sorted(held)}]
            started = -chance.randrange(60, 3600)
            if gangs and jobs and chance.random() < 0.3 and len(jobs[-1]["workers"][-1]["gpus"]) == len(held):
                jobs[-1]["workers"].append({**workers[0], "index": len(jobs[-1]["workers"])})
                jobs[-1]["roles"][0]["min"] += 1
                continue
            ask = {"name": "worker", "min": 1, "gpus": len(held)}
            run = {"state": "running", "since": started, "started": started, "workers": workers}
            jobs.append({"name": f"f-{len(jobs)}", "quota": chance.choice(("a/x", "c")), "submitted": started, "roles": [ask], **run})
    most = 8 * len(nodes)
    first = chance.randrange(0, most // 2)
    quotas = [
        {"name": "a", "guaranteed": first},
        {"name": "a/x", "parent": "a", "guaranteed": first},
        {"name": "b", "guaranteed": most - first},
        {"name": "c", "guaranteed": 0, "weight": 2},
    ]
    jobs.append({"name": "gang", "quota": "b", "submitted": -60, "roles": [{"name": "worker", "min": chance.randrange(1, 3), "gpus": 4}]})
    return {"format": "gpufleet-scenario/1", "now": "2026-11-20T09:00:00Z", "topology": {}, "nodes": nodes, "quotas": quotas, "jobs": jobs}


def whole_fleet(cycle: Cycle, count: int, gpus: int) -> Target:
    return Target(0, cycle.grid.size, count, gpus, 0, 0, np.ones(cycle.grid.size, dtype=np.int64))


def job(cycle: Cycle, name: str) -> Any:
    return next(work for work in cycle.cluster.works if work.job.name == name)


def with_columns(monkeypatch: pytest.MonkeyPatch, *, used: bool) -> None:
    monkeypatch.setattr(Units, "wide", lambda self, places: used)


def rankings(cycle: Cycle, large: int) -> tuple[Any, Any, Reclaim]:
    """What `gang` may reclaim, ranked one by one and by columns."""
    gang = job(cycle, "gang")
    rules = Reclaim(cycle, gang, 0, gang.home, cycle.least_milli(gang.kind, 0))
    cycle.units().whole()  # both are to be of the same units
    with pytest.MonkeyPatch.context() as patch:
        with_columns(patch, used=False)
        plain = rules.units(large)
        with_columns(patch, used=True)
        wide = rules.units(large)
    return plain, wide, rules


def same_pairs(plain: Any, wide: Any) -> None:
    assert isinstance(wide, WideRanking)
    assert len(plain) == len(wide)
    assert [(rank, id(unit)) for rank, unit in wide] == [(rank, id(unit)) for rank, unit in plain]
    assert wide.has_fresh == has_fresh(plain)


def targets(cycle: Cycle, chance: random.Random) -> list[Target]:
    """Slices of all sizes, with and without nodes that may not serve the job and limits to be made room below."""
    size = cycle.grid.size
    found = []
    for _ in range(4):
        low = chance.randrange(size)
        high = chance.randrange(low + 1, size + 1)
        if chance.random() < 0.4:
            low, high = 0, size
        flags = bytes(chance.randrange(2) for _ in range(size)) if chance.random() < 0.4 else None
        allowed = np.ones(size, dtype=np.int64) if flags is None else np.array(list(flags), dtype=np.int64)
        leaf = cycle.tree.position["a"]
        short = ((leaf, cycle.tree.end[leaf], 1000 * chance.randrange(1, 8)),) if chance.random() < 0.2 else ()
        found.append(Target(low, high, chance.randrange(1, 12), chance.choice((1, 2, 4, 8)), 0, 0, allowed, flags, short=short))
    return found


@drawn
@given(st.integers(0, 10**9))
def test_units_stand_in_one_order(seed: int):
    cycle = cycle_of(seed)
    units = list(Units(cycle.cluster).all)
    random.Random(seed).shuffle(units)

    columns = Columns(units, cycle.grid.usable).in_order()

    assert list(columns.units) == sorted(units, key=lambda unit: unit.key)
    again = Columns(columns.units, cycle.grid.usable)
    for name in ("leaf", "milli", "lost", "began", "surplus", "fresh", "first", "seats", "node", "held", "gpus", "priority", "class_rank"):
        assert getattr(columns, name).tolist() == getattr(again, name).tolist(), name


@drawn
@given(st.integers(0, 10**9))
def test_who_stands_outside_a_guarantee(seed: int):
    cycle = cycle_of(seed)
    units, division = Units(cycle.cluster), cycle.tree.divisions[0]
    columns = Columns(units.all, cycle.grid.usable)
    for name in ("a", "a/x", "a/y", "c"):
        place = cycle.tree.position[name]
        outside = columns.borrowed(place, cycle.tree.end[place], division.types, division.guaranteed[place])

        assert {unit for unit, out in zip(units.all, outside.tolist(), strict=True) if out} == set(units.borrowed(place, division))


@drawn
@given(st.integers(0, 10**9))
def test_what_could_ever_come_free(seed: int):
    units = cycle_of(seed).units()
    columns = Columns(units.all, units.cluster.grid.usable)

    assert columns.freeable(units.cluster.grid.size).tolist() == units.freeable.tolist()


@drawn
@given(st.integers(0, 10**9))
def test_the_order_in_which_others_are_reclaimed(seed: int):
    cycle = cycle_of(seed)
    large = random.Random(seed).choice((2000, 8000, 1 << 60))
    plain, wide, _ = rankings(cycle, large)

    same_pairs(plain, wide)
    same_pairs(no_larger(plain, 2000), no_larger(wide, 2000))


@drawn
@given(st.integers(0, 10**9))
def test_the_order_in_which_a_leaf_is_preempted(seed: int):
    cycle = cycle_of(seed)
    urgent = job(cycle, "urgent")
    cycle.units().whole()  # units are compared by identity below, so let all be made once
    with pytest.MonkeyPatch.context() as patch:
        with_columns(patch, used=False)
        plain = preempt.ranked_units(cycle, urgent, 0, urgent.home, 8000)
        with_columns(patch, used=True)
        wide = preempt.ranked_units(cycle, urgent, 0, urgent.home, 8000)

    same_pairs(plain, wide)


@drawn
@given(st.integers(0, 10**9))
def test_the_same_victims_are_found(seed: int):
    cycle = cycle_of(seed)
    chance = random.Random(seed)
    plain, wide, rules = rankings(cycle, chance.choice((2000, 8000)))
    assert freed_by(cycle, wide) == freed_by(cycle, plain)
    for target in targets(cycle, chance):
        one = search(cycle.cluster, plain, rules.legal, target, cycle.units())
        other = search(cycle.cluster, wide, rules.legal, target, cycle.units())

        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert [id(unit) for unit in other.units] == [id(unit) for unit in one.units]
            assert (other.charged, other.worst) == (one.charged, one.worst)
            assert (other.works, other.milli, other.lost, other.surplus) == (one.works, one.milli, one.lost, one.surplus)
            assert list(other.minima()) == list(one.minima())
            assert other.rank() == one.rank()
            for leaf in (-1, *{unit.leaf for unit in one.units}):
                assert other.takes_fresh_beside(leaf) == one.takes_fresh_beside(leaf)


@drawn
@given(st.integers(0, 10**9))
def test_the_same_nodes_are_cleared_where_only_so_much_may_be_taken(seed: int):
    chance = random.Random(seed)
    cycle = Cycle(parse(scattered(chance)))
    plain, wide, rules = rankings(cycle, 8000)
    for target in [whole_fleet(cycle, chance.randrange(1, 4), gpus) for gpus in (2, 3, 4, 8)]:
        one = search(cycle.cluster, plain, rules.legal, target, cycle.units())
        other = search(cycle.cluster, wide, rules.legal, target, cycle.units())

        assert (None if one is None else [id(unit) for unit in one.units]) == (None if other is None else [id(unit) for unit in other.units])


def test_the_scenes_in_which_nodes_are_cleared_are_of_all_sorts():
    """Found or not, with and without units that are too large for what is left, all at once or one after the other."""
    seen = {"at once": 0, "at first": 0, "one by one": 0, "in vain": 0}
    for seed in range(150):
        chance = random.Random(seed)
        cycle = Cycle(parse(scattered(chance)))
        _, wide, _ = rankings(cycle, 8000)
        for gpus in (2, 3, 4, 8):
            found = WideSearch(cycle.cluster, wide, target := whole_fleet(cycle, chance.randrange(1, 4), gpus))
            if not len(wide) or found._legal().all():
                continue
            missing, shelves = target.count - found.room_before, Shelves(found)
            done, _ = found._cleared_at_once(shelves, missing) if shelves.apart and missing > 0 else (0, [])
            enough = int(shelves.gains[:done].sum()) >= missing
            seen["at once" if enough else "in vain" if found._collect_by_node() is None else "at first" if done else "one by one"] += 1

    assert min(seen.values()) >= 5, seen


@drawn
@given(st.integers(0, 10**9))
def test_who_may_be_taken_alone_and_after_others(seed: int):
    cycle = cycle_of(seed)
    chance = random.Random(seed)
    _, wide, rules = rankings(cycle, 8000)
    for target in targets(cycle, chance):
        wide_search = WideSearch(cycle.cluster, wide, target)
        units = wide.units_at(wide_search.places.tolist())
        taken: dict[int, int] = {}
        after_others = []
        for unit in units:
            place = rules.legal(unit, taken)
            after_others.append(place is not None)
            if place is not None:
                taken[place] = taken.get(place, 0) + unit.milli

        assert wide_search._legal_alone().tolist() == [rules.legal(unit, {}) is not None for unit in units]
        assert wide_search._legal().tolist() == after_others


@drawn
@given(st.lists(st.sampled_from([125, 500, 1000, 2000, 4000, 8000]), max_size=30), st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
def test_what_is_too_large_does_not_stop_those_behind_it(asked: list[int], used: int, line: int, floor: int):
    """A queue gives as long as it is above its line, and keeps its floor."""
    left = used * 1000
    allowed = []
    for milli in asked:
        allowed.append(left > line * 1000 and left - milli >= floor * 1000)
        left -= milli if allowed[-1] else 0

    assert passed_over(asked, (used - line) * 1000, (used - floor) * 1000).tolist() == allowed


@drawn
@given(st.integers(0, 10**9))
def test_taking_and_giving_back_leaves_the_room_as_it_was(seed: int):
    cycle = cycle_of(seed)
    chance = random.Random(seed)
    _, wide, _ = rankings(cycle, 8000)
    room = Room(WideSearch(cycle.cluster, wide, targets(cycle, chance)[0]))
    for at in range(len(wide)):
        room.free_up(at, 1)
    most = room.gained
    for at in range(len(wide)):
        room.free_up(at, -1)

    assert most >= 0
    assert room.gained == 0


def test_running_sums_start_anew_with_each_group():
    before, start = running_sums(np.array([3, 3, 5, 5, 5, 9]), np.array([1, 2, 3, 4, 5, 6]))

    assert before.tolist() == [0, 1, 0, 3, 7, 0]
    assert start.tolist() == [0, 0, 2, 2, 2, 5]


@drawn
@given(st.integers(0, 10**9))
def test_columns_read_from_jobs_are_those_of_their_units(seed: int):
    cycle = cycle_of(seed)
    works = [work for work in cycle.cluster.works if work.seats and not work.form.elastic]
    columns = columns_of(works, cycle.grid.usable, cycle.now)
    units = [Unit(work, work.seats, work.milli, False, 0, cycle.now) for work in columns.works]

    assert [unit.key for unit in units] == sorted(unit.key for unit in units)
    for made, unit in zip(columns.units, units, strict=True):
        assert all(
            getattr(made, name) == getattr(unit, name) for name in ("work", "seats", "milli", "leaf", "lost", "began", "fresh", "surplus", "key")
        )
    plain = Columns(units, cycle.grid.usable)
    for name in (*BY_UNIT, *BY_SEAT, "first"):
        if name != "kind":
            assert getattr(columns, name).tolist() == getattr(plain, name).tolist(), name
    # What a kind is called does not matter, as long as no two have one name.
    called = set(zip(columns.kind.tolist(), plain.kind.tolist(), [id(unit.work.kind) for unit in units], strict=True))
    assert len(called) == len({name for name, _, _ in called}) == len({kind for _, _, kind in called})


def test_units_are_made_of_columns_when_one_of_them_changes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(units_module, "WIDE", 4)
    cycle = cycle_of(7)
    for form in cycle.cluster.forms.values():
        form.elastic = False
    units = cycle.units()
    count = len(units.columns.units)
    gone = units.columns.works[0]

    cycle.cluster.unseat(gone, gone.seats, reason("stale", "a test"), None)

    assert gone not in [unit.work for unit in cycle.units().all]
    assert len(cycle.units().all) == count - 1
    assert [unit.key for unit in cycle.units().all] == sorted(unit.key for unit in cycle.units().all)


def test_columns_are_made_anew_when_units_have_changed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(units_module, "WIDE", 4)
    cycle = cycle_of(7)
    units = cycle.units()
    gone = units.all[0].work
    assert units.columns.units[0].work is gone

    cycle.cluster.unseat(gone, gone.seats, reason("stale", "a test"), None)

    assert all(unit.work is not gone for unit in cycle.units().columns.units)
    assert list(cycle.units().columns.units) == cycle.units().all


@drawn
@given(st.integers(0, 10**9))
def test_jobs_of_some_rows_come_in_their_own_order(seed: int):
    cycle = cycle_of(seed)
    works = [work for work in cycle.cluster.works if work.seats and not work.form.elastic]
    columns = columns_of(works, cycle.grid.usable, cycle.now)
    rows = [row for row in range(len(works)) if random.Random(seed + row).random() < 0.5]
    random.Random(seed).shuffle(rows)

    assert columns.works_at(np.array(rows, dtype=np.int64)) == sorted([columns.works[row] for row in rows], key=lambda work: work.order)
    assert columns.works[1:3] == [*columns.works][1:3] == [columns.works[row] for row in range(len(works))][1:3]
