"""What is asked very often where many GPUs are shared in parts, held against the plain way of answering it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.engine.ahead import rehearsal as rehearsal_module
from scheduler.engine.cycle import RUNS, make_plan
from scheduler.engine.model.reasons import reason
from scheduler.engine.model.values import Role
from scheduler.engine.passes import reclaim as reclaim_module
from scheduler.engine.place.parts import Parts
from scheduler.engine.place.placement import Placer
from scheduler.engine.place.slots import SlotCounts
from scheduler.engine.rules.taken_back import TakenBack, TakenInVain
from scheduler.engine.search.evicting import place_in, release, targets
from scheduler.engine.search.victims import Counter, complete, fewest
from scheduler.engine.state.charged import Standing
from scheduler.engine.state.fleet import View
from scheduler.engine.state.planning import Cycle
from scheduler.engine.state.requests import Requests
from scheduler.scenarios.reading import parse
from tests.scheduler.twin.strategies import scenario_random

from .scenes import actions, at, job, node, plan_of, quota, scene

searched = settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
seeds = st.integers(0, 10**6)
# GPUs, processors in thousandths and memory in MiB, where a node has 48 and 256 GB.
wishes = st.tuples(st.integers(0, 4), st.sampled_from([0, 1000, 30_000, 49_000]), st.sampled_from([0, 2000, 200_000, 300_000]))


def after_some_passes(seed: int, passes: int, **hosts: int) -> Cycle:
    """`hosts`: what each node has."""
    scenario = scenario_random(seed, "small")
    for each in scenario["nodes"]:
        each.update(hosts)
    cycle = Cycle(parse(scenario))
    for name in list(RUNS)[:passes]:
        try:
            RUNS[name](cycle)
        except (TakenBack, TakenInVain):
            break
    return cycle


@searched
@given(st.lists(st.integers(0, 9), max_size=40), st.integers(0, 60), st.integers(0, 20))
def test_units_are_given_back_as_one_after_the_other(sizes: list[int], wanted: int, least: int):
    """Many at once, where the job goes by sums and by how large the largest is: more never hurts in either."""

    def fits(units: Sequence[tuple[int, int]]) -> bool:
        return sum(size for _, size in units) >= wanted and max((size for _, size in units), default=0) >= min(least, 9)

    units = list(enumerate(sizes))
    kept = list(units)
    for unit in reversed(units):
        rest = [other for other in kept if other != unit]
        if fits(rest):
            kept = rest

    assert fewest(units, fits) == kept


@searched
@given(seeds, st.integers(0, 6), st.data())
def test_room_without_some_units_is_what_a_trial_finds(seed: int, passes: int, data: st.DataObject):
    cycle = after_some_passes(seed, passes)
    units = cycle.units().below(0)
    for work in [work for work in cycle.waiting if work.form.plain and not work.seats and work.kind.roles[0].gpus][:4]:
        if work.form.width >= 0 and len(cycle.grid.levels[work.form.width]) > 1:
            continue
        for quota_type in work.types:
            others = [unit for unit in units if unit.work is not work]
            gone = data.draw(st.lists(st.sampled_from(others), unique_by=id, max_size=12)) if others else []
            (target,) = targets(cycle, work, quota_type)
            counted = Counter(cycle.cluster, replace(target, short=())).change(complete(gone, cycle.units()), 1)
            with cycle.cluster.attempt():
                release(cycle, gone, reason("reclaim", "a trial"), None)
                tried = place_in(cycle, work, quota_type, 0, cycle.grid.size) is not None

            assert counted == tried, (work.job.name, [unit.work.job.name for unit in gone])


@searched
@given(seeds, st.integers(0, 9))
def test_the_best_parts_are_those_of_a_look_at_every_node(seed: int, passes: int):
    cycle = after_some_passes(seed, passes)
    for work in [work for work in cycle.waiting if work.form.parted and not work.seats]:
        for quota_type in work.types:
            for view in cycle.fleet.views():
                for left in (0, 2):
                    placer = Placer(cycle.cluster, work, quota_type, view, budget=dict.fromkeys(cycle.grid.pool_of, left))
                    for place, role in enumerate(work.kind.roles):
                        if role.parted:
                            bits = placer.eligible(place).bits
                            assert placer.parts.best(role, bits) == at_every_node(placer.parts, role, bits, cycle.grid.size)


def at_every_node(parts: Parts, role: Role, bits: int, size: int):
    offers = [offer for node in range(size) if bits >> node & 1 and (offer := parts.offer(node, role)) is not None]
    return min(offers, default=None)


@searched
@given(seeds, st.integers(0, 3), st.lists(wishes, min_size=6, max_size=10))
def test_who_is_refused_room_finds_it_on_no_node(seed: int, passes: int, asked: list[tuple[int, int, int]]):
    cycle = after_some_passes(seed, passes, cpus=48, host_memory_gb=256)
    for view in cycle.fleet.views():
        capacity = SlotCounts(cycle.grid, view)
        for work in list(cycle.waiting)[:4]:
            first = work.kind.roles[0]
            others = [
                replace(first, gpus=gpus, mig=None, memory_mib=None, share_milli=None, cpu_milli=cpus, host_memory_mib=memory)
                for gpus, cpus, memory in asked
            ]
            for quota_type in work.types:
                eligible = work.form.eligible(0, quota_type, suspect=work.kind.tolerates_suspect, spare=False)
                nodes = [node for node in range(cycle.grid.size) if eligible.bits >> node & 1]
                for role in (first, *others):
                    has_room = any(room_on(view, node, role) for node in nodes)
                    assert bool(capacity.nodes_for(role) & eligible.bits) == has_room, (work.job.name, role)


def room_on(view: View, node: int, role: Role) -> bool:
    """Of a part a bound: whoever shares the GPU may be somebody with whom it must not."""
    if not view.hosts(role.cpu_milli, role.host_memory_mib) >> node & 1:
        return False
    idle = view.count[node]
    if role.share_milli is None:
        return idle >= role.gpus
    left = [1000 - split.used for (where, _), split in view.splits.items() if where == node and split.mode != "mig"]
    return idle > 0 or max(left, default=0) >= role.share_milli


@searched
@given(seeds)
def test_nobody_who_is_not_asked_about_reclaim_would_reclaim(seed: int):
    scenario = parse(scenario_random(seed, "small"))
    sooner = make_plan(scenario).as_json()
    known = reclaim_module.beyond_lines
    reclaim_module.beyond_lines = lambda cycle: None
    try:
        assert make_plan(scenario).as_json() == sooner
    finally:
        reclaim_module.beyond_lines = known


@searched
@given(seeds)
def test_dates_of_parts_are_those_of_a_look_at_every_node(seed: int):
    scenario = parse(scenario_random(seed, "small"))
    known = rehearsal_module._one_part
    sooner = make_plan(scenario).as_json()
    rehearsal_module._one_part = lambda work, grid: False
    try:
        assert make_plan(scenario).as_json() == sooner
    finally:
        rehearsal_module._one_part = known


@searched
@given(seeds, st.integers(1, 9))
def test_what_stands_below_a_leaf_is_summed_up_as_anew(seed: int, passes: int):
    cycle = Cycle(parse(scenario_random(seed, "small")))
    asked = [(leaf, kind, form.level) for leaf in cycle.waiting.queues.by_leaf for form in cycle.cluster.forms.values() for kind in form.types]
    for leaf, kind, level in asked:
        cycle.standing.lowest(leaf)
        cycle.standing.freeable_below(leaf, kind, level)
    for name in list(RUNS)[:passes]:
        try:
            RUNS[name](cycle)
        except (TakenBack, TakenInVain):
            break
    anew = Standing(cycle.cluster)
    for leaf, kind, level in asked:
        assert cycle.standing.lowest(leaf) == anew.lowest(leaf)
        assert cycle.standing.freeable_below(leaf, kind, level) == anew.freeable_below(leaf, kind, level)


@searched
@given(seeds, st.integers(1, 9))
def test_what_is_asked_for_follows_placements_as_if_counted_anew(seed: int, passes: int):
    cycle = after_some_passes(seed, passes)
    cycle.requests.follow()
    followed = [list(division.requested) for division in cycle.tree.divisions]
    cycle.requests = Requests(cycle.waiting)
    cycle.requests.follow()

    assert [division.requested for division in cycle.tree.divisions] == followed


def test_nobody_is_told_to_share_a_gpu_before_it_is_shared():
    """The second would join the first an hour from now; until then the GPU is held as a whole."""
    node = {"name": "n1", "gpu_type": "H100-SXM-80GB", "gpus": 1}
    share = {"quota": "a", "sharing": "mps", "limit_s": 7200, "roles": [{"name": "worker", "min": 1, "max": 1, "gpu_share": 0.5}]}
    running = {
        "name": "whole",
        "quota": "a",
        "submitted": -60,
        "limit_s": 3600,
        "preemptible": False,
        "roles": [{"name": "worker", "min": 1, "max": 1, "gpus": 1}],
        "state": "running",
        "since": 0,
        "started": 0,
        "workers": [{"role": "worker", "index": 0, "node": "n1", "gpus": [0]}],
    }
    jobs = [running, *({"name": name, "submitted": -50 + at} | share for at, name in enumerate(("first", "second")))]
    scenario = {
        "format": "gpufleet-scenario/1",
        "now": "2026-11-20T09:00:00Z",
        "nodes": [node],
        "quotas": [{"name": "a", "guaranteed": 1}],
        "jobs": jobs,
    }

    told = {one["job"]: one["predicted_start"] for one in make_plan(parse(scenario)).as_json()["waiting"]}

    assert told == {"first": "2026-11-20T10:00:00Z", "second": "2026-11-20T10:00:00Z"}


def test_who_may_not_share_a_gpu_keeps_nobody_out_who_may() -> None:
    """One team's refusal is about whom it trusts, and says nothing of another team's job of the same shape."""

    def share(name: str, quota_name: str, **fields: Any) -> dict[str, Any]:
        return job(name, quota_name, role={"gpus": None, "gpu_share": 0.5}, sharing="mps", **fields)

    there = share("there", "b", state="running", started=-50) | {"workers": [at("n1", 0, gpu_share=0.5)]}
    for one in (there,):
        one["roles"][0].pop("gpus")
    first, second = share("first", "a", submitted=-90), share("second", "b", submitted=-80)
    for one in (first, second):
        one["roles"][0].pop("gpus")

    plan = plan_of(scene([node("n1", 1)], [quota("a", 1), quota("b", 1)], [there, first, second]))

    assert actions(plan) == {"second": "start"}
