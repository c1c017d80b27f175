"""Is a finished plan legal? Every rule of the semantics that a plan can be held against, re-worked from the scenario in the obvious way."""

import copy
from collections.abc import Callable
from graphlib import CycleError, TopologicalSorter
from typing import Any

from .legal_idle import idle_violations
from .legal_neighbours import neighbour_violations
from .legal_order import order_violations
from .legal_places import place_violations
from .legal_power import cap_violations
from .legal_rights import right_violations
from .legal_times import time_violations
from .legal_windows import window_violations, without_released
from .replay import CHANGES, apply_decision, apply_plan
from .world import World, read

Json = dict[str, Any]
NEEDED_KEYS = {
    "evict": {"job", "why"},
    "shrink": {"job", "workers", "why"},
    "start": {"job", "workers", "after", "backfilled", "why"},
    "repair": {"job", "workers", "after", "why"},
    "grow": {"job", "workers", "why"},
    "move": {"job", "workers", "why"},
    "repartition": {"node", "gpu", "instances", "after", "why"},
    "reserve": {"job", "at", "workers", "why"},
}


def check_plan(scenario: Json, plan: Json, plan_of: Callable[[Json], Json] | None = None) -> list[str]:
    """Every rule that the plan breaks, in words; an empty list for a legal plan. `plan_of` makes the plan after it, where that matters."""
    scenario = without_released(scenario)
    world = read(scenario)
    found = _form(world, plan)
    if found:
        return found  # what has no form can't be carried out, not even on paper
    found = _order(world, plan)
    after = apply_plan(scenario, plan)
    final = read(after)
    found += place_violations(world, plan, final)
    if not found:
        found += right_violations(scenario, plan)
        found += time_violations(world, plan, final)
        found += window_violations(world, plan, final)
        found += cap_violations(scenario, world, final)
        found += neighbour_violations(world, final)
        if not (scenario.get("power") or {}).get("caps"):  # else who waits may have to leave watts
            found += idle_violations(world, plan, final, lambda more: plan_of is not None and _undone(after, more, plan_of))
        found += order_violations(scenario, plan)
    found += _waiting(world, plan, final)
    return found


def _undone(after: Json, more: list[Json], plan_of: Callable[[Json], Json]) -> bool:
    """Whether a job would lose its place at once, had the plan also decided to start it like this."""
    then = copy.deepcopy(after)
    for decision in more:
        apply_decision(then, decision)
    started = {decision["job"] for decision in more if decision["action"] == "start"}
    return any(decision["action"] in ("evict", "move") and decision["job"] in started for decision in plan_of(then)["decisions"])


def _form(world: World, plan: Json) -> list[str]:
    found = []
    if plan.get("format") != "gpufleet-plan/1":
        found.append(f"format is {plan.get('format')!r}")
    found += [f"the plan has no {key}" for key in ("now", "decisions", "waiting", "shares", "next_wake", "metrics") if key not in plan]
    for number, decision in enumerate(plan.get("decisions", [])):
        where = f"decisions[{number}]"
        action = decision.get("action")
        if action not in NEEDED_KEYS:
            found.append(f"{where}: no such action {action!r}")
            continue
        found += [f"{where} {action}: no {key}" for key in sorted(NEEDED_KEYS[action]) if key not in decision]
        if not (decision.get("why") or {}).get("code"):
            found.append(f"{where} {action}: no reason given")
        why = decision.get("why") or {}
        if why.get("for") and why["for"] not in why.get("detail", ""):
            found.append(f"{where} {action}: for {why['for']}, and the words don't say so: {why.get('detail')!r}")
        if "job" in decision and decision["job"] not in world.jobs:
            found.append(f"{where} {action}: unknown job {decision['job']}")
        if "node" in decision and decision["node"] not in world.nodes:
            found.append(f"{where} {action}: unknown node {decision['node']}")
        for worker in decision.get("workers", []):
            if worker.get("node") not in world.nodes:
                found.append(f"{where} {action} {decision.get('job')}: unknown node {worker.get('node')}")
            elif worker.get("role") not in world.jobs[decision["job"]].roles:
                found.append(f"{where} {action} {decision.get('job')}: unknown role {worker.get('role')}")
    return found


def _order(world: World, plan: Json) -> list[str]:
    """At most one change a job; what must be gone first stands first; no circle of jobs that wait for each other."""
    found = []
    changed: dict[str, int] = {}
    for number, decision in enumerate(plan["decisions"]):
        if decision["action"] in CHANGES:
            if decision["job"] in changed:
                found.append(f"{decision['job']} is changed twice: a plan is the difference between the first state and the last")
            changed.setdefault(decision["job"], number)
    graph: dict[str, set[str]] = {}
    for number, decision in enumerate(plan["decisions"]):
        for name in decision.get("after") or []:
            who = decision.get("job") or f"{decision.get('node')}:{decision.get('gpu')}"
            graph.setdefault(who, set()).add(name)
            found += _after(world, plan, changed, number, who, name)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found.append(f"jobs wait for each other in a circle: {' -> '.join(error.args[1])}")
    return found


def _after(world: World, plan: Json, changed: dict[str, int], number: int, who: str, name: str) -> list[str]:
    if name not in world.jobs:
        return [f"{who} goes after an unknown job {name}"]
    job = world.jobs[name]
    if name not in changed:
        if job.state == "stopping" or job.leaving:
            return []
        return [f"{who} goes after {name}, which nobody asked to leave"]
    if plan["decisions"][changed[name]]["action"] not in ("evict", "shrink", "move") and not job.leaving:
        return [f"{who} goes after {name}, which only gets more"]
    if changed[name] > number:
        return [f"{who} goes after {name}, which is decided later: not in the order in which it can be carried out"]
    return []


def _untouched(plan: Json) -> set[str]:
    """Who waits and is not put out by the plan itself."""
    return {entry["job"] for entry in plan["waiting"]} - {decision.get("job") for decision in plan["decisions"] if decision["action"] == "evict"}


def _waiting(world: World, plan: Json, final: World) -> list[str]:
    """Who waits is told why; who was served is not told that he waits."""
    found = []
    told = {}
    for entry in plan["waiting"]:
        if entry["job"] in told:
            found.append(f"{entry['job']} waits twice")
        told[entry["job"]] = entry
        if entry["job"] not in world.jobs:
            found.append(f"waiting: unknown job {entry['job']}")
        elif world.jobs[entry["job"]].last_evicted is None and entry["job"] in _untouched(plan):
            found += [f"{entry['job']} was never evicted, and is told so" for r in entry.get("reasons", []) if r.get("code") == "backoff"]
        if not entry.get("reasons"):
            found.append(f"{entry['job']} waits without a reason")
        found += [f"{entry['job']}: a reason without code or words" for r in entry.get("reasons", []) if not (r.get("code") and r.get("detail"))]
    for job in world.jobs.values():
        now = final.jobs.get(job.name)
        if now is None or job.state == "stopping":
            continue
        if job.state == "queued" and now.state == "queued" and job.name not in told:
            found.append(f"{job.name} was not started, and not told why")
        if job.state == "queued" and now.state != "queued" and job.name in told:
            found.append(f"{job.name} was started, and is told why it waits")
    return found
