"""What must hold for every scenario, whatever it is: each law answers with the violations that it found, in words."""

import copy
import json
import random
from datetime import datetime, timedelta
from typing import Any

from .legal import check_plan
from .legal_rights import held_of, within_guarantee
from .legal_times import when
from .planner import course_of, plan_of, planned
from .replay import apply_in_transit, apply_plan
from .shares import figures
from .world import ALL, Job, Reader, World, read

Json = dict[str, Any]
ROUNDS = 5


def legal(scenario: Json) -> list[str]:
    return check_plan(scenario, planned(scenario), plan_of)


def shuffled(scenario: Json, seed: int) -> Json:
    """The same scenario with its lists, and the keys of its objects, in another order. Lists whose order means something stay."""
    rng = random.Random(seed)
    other = copy.deepcopy(scenario)
    for name in ("nodes", "quotas", "reservations", "demand", "apart", "jobs"):
        rng.shuffle(other.get(name) or [])
    for job in other["jobs"]:
        rng.shuffle(job.get("workers") or [])
    return _keys(other, rng)


def _keys(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict):
        keys = list(value)
        rng.shuffle(keys)
        return {key: _keys(value[key], rng) for key in keys}
    return [_keys(item, rng) for item in value] if isinstance(value, list) else value


def deterministic(scenario: Json) -> list[str]:
    """The same plan byte for byte, again and again from shuffled lists."""
    first, found = json.dumps(planned(scenario)), []
    for seed in range(2):
        other = json.dumps(plan_of(shuffled(scenario, seed)))
        if other != first:
            found.append(f"shuffled, another plan: {_difference(first, other)}")
    return found


def _difference(one: str, other: str) -> str:
    at = next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return f"…{one[max(0, at - 80) : at + 60]}… and …{other[max(0, at - 80) : at + 60]}…"


def settles(scenario: Json) -> list[str]:
    """Applied and planned again, nothing is evicted or moved in five rounds, and nobody loses what he grew by at others' cost: both with the
    victims gone and with them on their way."""
    found = []
    for how in (apply_plan, apply_in_transit):
        current, plan = scenario, planned(scenario)
        grown: set[str] = set()
        stood = {job.name for job in read(scenario).jobs.values() if job.holds and not job.missing}
        for turn in range(ROUNDS):
            if any(d["why"]["code"] == "stale" for d in plan["decisions"]):
                break  # who was ended as stale may not start in that plan and comes back as a stranger in the next one
            if _does_one_of_two(read(current), plan):
                break  # the next plan does the other
            before, current = current, how(current, plan)
            if turn and current == before:
                break  # planned once more it is the same plan: `deterministic` says so
            grown |= {asker for _, asker in _shrunk_for_growth(plan)}
            plan = plan_of(current)
            upset = [f"{d['action']} {d['job']} ({d['why']['code']})" for d in plan["decisions"] if d["action"] in ("evict", "move")]
            upset += [f"shrink {one} for the growth of {asker}" for one, asker in _shrunk_for_growth(plan) if one in grown and asker in stood]
            if upset:
                found.append(f"{how.__name__}, round {turn + 1}: {', '.join(upset)}")
                break
    return found


def _does_one_of_two(world: World, plan: Json) -> bool:
    """Whether a gang that lacks workers gives some back, or is made whole with more than it wants by now: a plan never does both."""
    short = [job for job in world.jobs.values() if job.holds and job.missing]
    over = any(job.count(role.name) > role.most for job in short for role in job.roles.values())
    return over or not {job.name for job in short}.isdisjoint(d["job"] for d in plan["decisions"] if d["action"] == "shrink")


def _shrunk_for_growth(plan: Json) -> list[tuple[str, str]]:
    """(victim, who grows) of all surplus that was taken for growth."""
    grows = {d["job"] for d in plan["decisions"] if d["action"] == "grow"}
    return [(d["job"], d["why"]["for"]) for d in plan["decisions"] if d["action"] == "shrink" and d["why"].get("for") in grows]


def backfill_is_harmless(scenario: Json) -> list[str]:
    """Removing every backfilled job from a scenario makes no reservation earlier.

    Their GPUs are made free, and they still stand somewhere: on nodes that are no capacity, so that what everyone uses, and with it the order of
    queues, stays what it is. Nobody may start but in a gap; judged where the same jobs do, and nobody leaves a gap by then,
    as both change the dates behind them: whose job has left uses less, and is asked before others.
    """
    then = apply_plan(scenario, planned(scenario))
    passes = then["settings"].get("passes")
    if not any(job.get("backfilled") for job in then["jobs"]) or (passes is not None and "backfill" not in passes):
        return []
    world = read(then)
    if any(job.backfilled and job.preemptible is False for job in world.jobs.values()):
        return []  # who is never a victim has been in no gap
    then = {**then, "settings": {**then["settings"], "passes": ["backfill"]}}
    (served, dates), (others, earlier) = _dates(then), _dates(_set_aside(then))
    if served != others:
        return []
    world, found = read(then), []
    for name, at in dates.items():
        if earlier.get(name, at) < at and not any(_is_not_bound(world, one, world.jobs[name]) for one in world.jobs.values() if one.backfilled):
            found.append(f"{name} is reserved at {at} ms, without the backfilled jobs at {earlier[name]}")
    return found


def _is_not_bound(world: World, backfilled: Job, holder: Job) -> bool:
    """Whether a reservation never bound somebody: who comes first in its queue, or stays within his guarantees where its holder does not."""
    if backfilled.quota == holder.quota and backfilled.rank > holder.rank:
        return True
    table, line = figures(world), world.ancestry(backfilled.quota)
    inside = any(
        all(entry.guaranteed is None or entry.allocated <= entry.guaranteed for entry in (table[name, division] for name in line))
        for division in world.divisions()
    )
    return inside and not within_guarantee(world, holder)


def _dates(scenario: Json) -> tuple[set[str], dict[str, int]]:
    """Who gets a place now or loses it, and the dates of those who have a reservation."""
    world, plan = read(scenario), plan_of(scenario)
    dates = {d["job"]: when(world, d["at"]) for d in plan["decisions"] if d["action"] == "reserve"}
    return {d["job"] for d in plan["decisions"] if d["action"] in ("start", "repair", "move", "evict")}, dates


def _set_aside(scenario: Json) -> Json:
    """The scenario with its backfilled jobs on nodes of their own that are about to go."""
    other = copy.deepcopy(scenario)
    moved = [worker for job in other["jobs"] if job.get("backfilled") for worker in [*(job.get("workers") or []), *(job.get("leaving") or [])]]
    for node in [node for node in other["nodes"] if node["name"] in {worker["node"] for worker in moved}]:
        there = {**copy.deepcopy(node), "name": f"{node['name']}-aside", "health": "draining", "repartitioned": []}
        there.pop("island", None)
        other["nodes"].append(there)
    for worker in moved:
        worker["node"] += "-aside"
    return other


def shares_are_right(scenario: Json) -> list[str]:
    """Fair share and use as the plan states them, against the long way. Left out where in-transit work may or may not ask again."""
    plan = planned(scenario)
    final = read(apply_plan(scenario, plan))
    if final.windows or any(job.state == "stopping" for job in read(scenario).jobs.values()):
        return []
    table = figures(final)
    names = {entry["quota"] for entry in plan["shares"]}
    found = [f"no share stated for {name}" for name in sorted(set(final.quotas) - names)]
    for entry in plan["shares"]:
        division = entry["type"] if final.by_type else final.divisions()[0]
        mine = table[entry["quota"], division]
        for what, value in (("fair", mine.fair), ("used", mine.allocated)):
            if round(entry[what] * 1000) != value:
                found.append(f"{entry['quota']} {entry['type']}: {what} {entry[what]}, by hand {value / 1000}")
    return found


def the_plan_adds_up(scenario: Json) -> list[str]:
    """The sums in the plan are those of the world after it, and it wakes up in time for everything it announces."""
    plan, world = planned(scenario), read(scenario)
    final = read(apply_plan(scenario, plan))
    gpus = sum(len(node.good_gpus()) for node in world.nodes.values() if node.alive)
    allocated = sum(held_of(final, job, ALL) for job in final.jobs.values())
    found = []
    if plan["metrics"]["gpus"] != gpus:
        found.append(f"{plan['metrics']['gpus']} GPUs, by hand {gpus}")
    if round(plan["metrics"]["allocated"] * 1000) != allocated:
        found.append(f"{plan['metrics']['allocated']} allocated, by hand {allocated / 1000}")
    wake = None if plan["next_wake"] is None else when(world, plan["next_wake"])
    if wake is not None and wake <= 0:
        found.append(f"wakes at {plan['next_wake']}, which is not to come")
    ahead = [when(world, decision["at"]) for decision in plan["decisions"] if decision["action"] == "reserve"]
    ahead += [job.not_before or 0 for job in world.jobs.values() if job.state == "queued"]
    ahead += [time for window in world.windows for time in (window.start, window.end or 0)]
    missed = [time for time in ahead if 0 < time < (wake if wake is not None else 10**15)]
    if missed:
        found.append(f"wakes at {plan['next_wake']}, sleeps through {min(missed)} ms from now")
    guesses = [entry["predicted_start"] for entry in plan["waiting"] if entry["predicted_start"] is not None]
    return found + [f"{at} is predicted, and has passed" for at in guesses if when(world, at) < 0]


def advice_is_true(scenario: Json) -> list[str]:
    """The change that is said to start a job now does start it: who reads that, and makes the change, does so when the plan is carried out."""
    found = []
    plan = planned(scenario)
    then = apply_plan(scenario, plan)
    for entry in plan["waiting"]:
        change = entry["would_start_if"]
        if change is None:
            continue
        other = _with_change(then, entry["job"], change)
        if not any(d["action"] == "start" and d["job"] == entry["job"] for d in plan_of(other)["decisions"]):
            found.append(f"{entry['job']} would start with {change['change']} = {change['to']}, and does not")
    return found


def _with_change(scenario: Json, name: str, change: Json) -> Json:
    other = copy.deepcopy(scenario)
    place, job = next((place, job) for place, job in enumerate(other["jobs"]) if job["name"] == name)
    job = other["jobs"][place] = Reader(scenario).as_of_now(job)
    what, to = change["change"].split("."), change["to"]
    if what == ["topology", "required"]:
        job["topology"] = {**job["topology"], "required": to}
    elif what == ["gpu_types"]:
        for role in job["roles"]:
            role["gpu_types"] = [to]
    elif what == ["preemptible"]:
        job["preemptible"] = to
    else:
        role = next(role for role in job["roles"] if what == ["roles", role["name"], "min"])
        role["min"] = to
    return other


def forecasts_decide_nothing(scenario: Json) -> list[str]:
    """The decisions are the same whether predictions are asked for or not."""
    return _same_decisions(
        scenario, {f"forecast {what}": {**scenario, "settings": {**scenario["settings"], "forecast": what}} for what in ("none", "head")}
    )


def a_course_decides_the_same(scenario: Json) -> list[str]:
    """Nobody has to be told anything for the decisions to be what they are."""
    plan = [decision for decision in planned(scenario)["decisions"] if decision["action"] != "reserve"]
    course = course_of(scenario)
    return [] if course == plan else [_difference(json.dumps(plan), json.dumps(course))]


def idle_additions_change_nothing(scenario: Json) -> list[str]:
    """A job that is not due, one that no empty fleet could hold, and a node that is down: none of them changes a decision."""
    leaf = scenario["jobs"][0]["quota"] if scenario["jobs"] else None
    if leaf is None:
        return []
    plain: Json = {"quota": leaf, "submitted": -90000, "priority": 1000}
    held = {**plain, "name": "zz-held", "not_before": 600, "roles": [{"name": "worker", "gpus": 1}]}
    huge = {**plain, "name": "zz-huge", "roles": [{"name": "worker", "min": 1000, "gpus": 1}]}
    dead = {**scenario["nodes"][0], "name": "zz-dead", "health": "down", "mig": [], "repartitioned": []}
    dead.pop("island", None)
    variants = {
        "a job that is not due": {"jobs": [held]},
        "a job that is too large": {"jobs": [huge]},
        "a node that is down": {"nodes": [dead]},
    }
    every = {"jobs": [held, huge], "nodes": [dead]}
    if not _same_decisions(scenario, {"all three": _with(scenario, every)}):
        return []
    return _same_decisions(scenario, {name: _with(scenario, more) for name, more in {**variants, "all three": every}.items()})


def _with(scenario: Json, more: dict[str, list[Json]]) -> Json:
    return {**scenario, **{name: [*scenario[name], *rows] for name, rows in more.items()}}


def times_may_be_spelt_out(scenario: Json) -> list[str]:
    """A time as seconds from now and the same time as text are one time."""
    return _same_decisions(scenario, {"times as text": _spelt_out(scenario, datetime.fromisoformat(scenario["now"]))})


_TIMES = {"submitted", "since", "started", "until", "not_before", "deadline", "degraded_since", "last_evicted", "last_moved", "last", "created"}


def _spelt_out(value: Any, now: datetime) -> Any:
    if isinstance(value, list):
        return [_spelt_out(item, now) for item in value]
    if not isinstance(value, dict):
        return value
    times = _TIMES | ({"start", "end"} if "notice_s" in value else set())
    return {
        key: (now + timedelta(seconds=item)).isoformat() if key in times and isinstance(item, int) else _spelt_out(item, now)
        for key, item in value.items()
    }


def _same_decisions(scenario: Json, variants: dict[str, Json]) -> list[str]:
    mine = json.dumps(planned(scenario)["decisions"])
    found = []
    for name, variant in variants.items():
        other = json.dumps(plan_of(variant)["decisions"])
        if other != mine:
            found.append(f"{name}: other decisions: {_difference(mine, other)}")
    return found


LAWS = {
    law.__name__: law
    for law in (
        legal,
        a_course_decides_the_same,
        deterministic,
        settles,
        backfill_is_harmless,
        shares_are_right,
        the_plan_adds_up,
        advice_is_true,
        forecasts_decide_nothing,
        idle_additions_change_nothing,
        times_may_be_spelt_out,
    )
}
