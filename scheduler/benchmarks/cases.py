"""Scenarios of the engine's bench, as plain data drawn from a seed."""

import random
from collections.abc import Callable
from typing import Any

Scenario = dict[str, Any]
TYPE, SMALLER_TYPE = "H100-SXM-80GB", "A100-SXM-40GB"
NOW = "2026-11-20T09:00:00Z"
# Workers and GPUs per worker: most jobs are small, a few hold most of the GPUs.
MIX = ((0.45, 1, 1), (0.2, 1, 2), (0.13, 1, 4), (0.14, 1, 8), (0.05, 2, 8), (0.02, 4, 8), (0.01, 8, 8))
QUEUE_MIX = ((0.55, 1, 1), (0.10, 1, 2), (0.10, 1, 4), (0.15, 1, 8), (0.05, 2, 8), (0.03, 4, 8), (0.02, 16, 8))


def fleet(count: int) -> list[dict[str, Any]]:
    return [
        {
            "name": f"n{place:05d}",
            "gpu_type": TYPE,
            "gpus": 8,
            "gpu_memory_gb": 80,
            "path": {"zone": f"z{place // 512:02d}", "spine": f"s{place // 64:03d}", "leaf": f"l{place // 16:04d}"},
            "cpus": 192,
            "host_memory_gb": 2048,
        }
        for place in range(count)
    ]


def tree(gpus: int, orgs: int = 8, teams: int = 4, projects: int = 5, promised: float = 0.6) -> list[dict[str, Any]]:
    """Organisations, teams and projects: 200 nodes as it stands. Guarantees add up to a part of the fleet."""
    quotas: list[dict[str, Any]] = []
    each = int(gpus * promised) // (orgs * teams * projects)
    for org in range(orgs):
        quotas.append({"name": f"o{org}", "guaranteed": each * teams * projects, "weight": 1 + org % 3})
        for team in range(teams):
            name = f"o{org}/t{team}"
            quotas.append({"name": name, "parent": f"o{org}", "guaranteed": each * projects, "weight": 1 + team % 2})
            quotas.extend({"name": f"{name}/p{project}", "parent": name, "guaranteed": each} for project in range(projects))
    return quotas


def leaves(quotas: list[dict[str, Any]]) -> list[str]:
    inner = {quota.get("parent") for quota in quotas}
    return [quota["name"] for quota in quotas if quota["name"] not in inner]


def scenario(nodes: list[Any], quotas: list[Any], jobs: list[Any], **settings: Any) -> Scenario:
    return {
        "format": "gpufleet-scenario/1",
        "now": NOW,
        "settings": {"forecast": "head", "max_moves": 4, **settings},
        "topology": {"levels": ["zone", "spine", "leaf"]},
        "nodes": nodes,
        "quotas": quotas,
        "jobs": jobs,
    }


def drawn(chance: random.Random, mix: tuple[tuple[float, int, int], ...]) -> tuple[int, int]:
    at = chance.random() * sum(share for share, _, _ in mix)
    for share, workers, gpus in mix:
        at -= share
        if at < 0:
            return workers, gpus
    return mix[-1][1:]


def job(chance: random.Random, name: str, quota: str, workers: int, gpus: int, age: int) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": name,
        "quota": quota,
        "class": "batch" if chance.random() < 0.85 else "interactive",
        "priority": 10 * chance.randrange(3),
        "submitted": -age,
        "roles": [{"name": "worker", "min": workers, "max": workers, "gpus": gpus, "cpus": 4 * gpus, "host_memory_gb": 32 * gpus}],
        "estimate_s": chance.randrange(600, 36_000),
        "limit_s": chance.randrange(36_000, 72_000),
        "checkpoint": {"interval_s": 1800, "save_s": 30, "restore_s": 60},
        "grace_s": 60,
    }
    if workers > 1:
        made["topology"] = chance.choice(({"preferred": "leaf"}, {"required": "leaf"}, {"required": "spine"}))
    return made


def packed(chance: random.Random, nodes: list[dict[str, Any]], names: list[str], most: int, mix: Any, *, fill: float = 1.0) -> list[dict[str, Any]]:
    """Running jobs on a fleet, filled in node order until a part of its GPUs is held."""
    free = [8] * len(nodes)
    room = int(8 * len(nodes) * fill)
    jobs: list[dict[str, Any]] = []
    first = [0] * 9  # below this node there is no room for so many GPUs
    while room > 0 and len(jobs) < most:
        workers, gpus = drawn(chance, mix)
        found: list[int] = []
        at = first[gpus]
        while at < len(nodes) and len(found) < workers:
            if free[at] >= gpus:
                found.append(at)
            at += 1
        if len(found) < workers:
            if gpus == 1 and workers == 1:
                break
            mix = tuple(part for part in mix if (part[1], part[2]) != (workers, gpus)) or ((1.0, 1, 1),)
            continue
        while first[gpus] < len(nodes) and free[first[gpus]] < gpus:
            first[gpus] += 1
        made = job(chance, f"r-{len(jobs)}", chance.choice(names), workers, gpus, chance.randrange(20_000, 90_000))
        started = -chance.randrange(60, 20_000)
        places = []
        for index, node in enumerate(found):
            taken = list(range(8 - free[node], 8 - free[node] + gpus))
            free[node] -= gpus
            places.append({"role": "worker", "index": index, "node": nodes[node]["name"], "gpus": taken})
        made |= {"state": "running", "since": started, "started": started, "workers": places}
        made["checkpoint"]["last"] = started // 2
        made.pop("topology", None)
        jobs.append(made)
        room -= workers * gpus
    return jobs


def queued(chance: random.Random, names: list[str], count: int, mix: Any) -> list[dict[str, Any]]:
    return [job(chance, f"q-{place}", chance.choice(names), *drawn(chance, mix), chance.randrange(0, 86_400)) for place in range(count)]


def steady(seed: int, nodes: int = 500, jobs: int = 6000) -> Scenario:
    """Six thousand jobs for five hundred nodes; the bench lets a sixth of them start and settles the rest."""
    chance = random.Random(seed)
    machines, quotas = fleet(nodes), tree(8 * nodes)
    return scenario(machines, quotas, queued(chance, leaves(quotas), jobs, MIX))


def mixed(seed: int, nodes: int = 300, jobs: int = 400) -> Scenario:
    """Two types of GPU, three queues, shared GPUs and elastic jobs, nine tenths full and far from its fixed point: much is evicted in one plan."""
    chance = random.Random(seed)
    machines, names = fleet(nodes), ["a", "b", "c"]
    for place, node in enumerate(machines):
        if place % 2:
            node |= {"gpu_type": SMALLER_TYPE, "gpu_memory_gb": 40}
    running = packed(chance, machines, names, 6 * nodes, MIX, fill=0.9)
    waiting = queued(chance, names, jobs, MIX)
    for one in waiting:
        (role,) = one["roles"]
        role["gpu_types"] = chance.choice(([TYPE], [SMALLER_TYPE], [TYPE, SMALLER_TYPE]))
        if chance.random() < 0.2:
            one["sharing"], role["gpu_share"] = "mps", 0.5
            del role["gpus"]
        elif role["max"] == 1 and chance.random() < 0.2:
            role["max"] = chance.choice((2, 4, 8))
    for place, name in enumerate(names[1:]):
        gang = job(chance, f"g-{place}", name, nodes // 10, 8, 1000)
        waiting.append(gang | {"topology": {"required": "zone"}, "class": "batch", "priority": 50})
    return scenario(machines, [{"name": name, "guaranteed": 8 * nodes // 3} for name in names], running + waiting)


def capped(seed: int) -> Scenario:
    """The steady fleet under a power cap of each of the next ten evenings, which what runs stays below."""
    made = steady(seed)
    watts, hours = 700, 3600
    draw = sum(node["gpus"] for node in made["nodes"]) * watts
    caps = [{"watts": draw, "start": (24 * day + 17) * hours, "end": (24 * day + 20) * hours} for day in range(10)]
    return made | {"power": {"gpu_watts": {TYPE: watts}, "caps": caps}}


def steady_refused(seed: int) -> Scenario:
    """No guarantees, and most of what runs in the first project of each team can't be taken: what is left is refused by the balance."""
    made = steady(seed)
    for quota in made["quotas"]:
        quota["guaranteed"] = 20 if quota["name"].endswith("/p0") else 100 if "/t" in quota["name"] and "/p" not in quota["name"] else 0
        if quota["name"].endswith("/p0"):
            quota["weight"] = 4
        if "/" not in quota["name"]:
            quota["guaranteed"] = 400
    for place, one in enumerate(made["jobs"]):
        if one["quota"].endswith("/p0"):
            one["preemptible"] = place % 5 == 0
    return made


def fill(seed: int) -> Scenario:
    chance = random.Random(seed)
    machines, quotas = fleet(500), tree(4000)
    names = leaves(quotas)
    jobs = [job(chance, f"q-{place}", names[place % len(names)], 1, 1, chance.randrange(0, 86_400)) for place in range(4000)]
    return scenario(machines, quotas, jobs)


def reclaim(count: int) -> Callable[[int], Scenario]:
    def made(seed: int) -> Scenario:
        chance = random.Random(seed)
        machines = fleet(count)
        quotas = [{"name": "a", "guaranteed": 4 * count}, {"name": "b", "guaranteed": 4 * count}]
        jobs = []
        for node in machines:
            for gpu in range(8):
                started = -chance.randrange(60, 20_000)
                jobs.append(
                    {
                        "name": f"{node['name']}-{gpu}",
                        "quota": "a",
                        "submitted": started - 60,
                        "roles": [{"name": "worker", "gpus": 1}],
                        "state": "running",
                        "since": started,
                        "started": started,
                        "workers": [{"role": "worker", "index": 0, "node": node["name"], "gpus": [gpu]}],
                    }
                )
        jobs.append({"name": "gang", "quota": "b", "submitted": -60, "roles": [{"name": "worker", "min": count // 2, "gpus": 8}]})
        return scenario(machines, quotas, jobs)

    return made


def explain(seed: int) -> Scenario:
    """Fifty gangs that can't start, each for reasons of its own."""
    chance = random.Random(seed)
    machines, quotas = fleet(500), tree(4000)
    names = leaves(quotas)
    jobs = packed(chance, machines, names, 1_000_000, MIX)
    for place in range(50):
        gang = job(chance, f"g-{place}", names[place % len(names)], 2 + place, 8, 1000 + place)
        gang["topology"] = {"required": ("leaf", "spine", "zone")[place % 3]}
        jobs.append(gang)
    return scenario(machines, quotas, jobs)


def wide(seed: int, nodes: int = 12_500) -> Scenario:
    """Thirty thousand jobs for twelve thousand nodes, in a tree as wide as the steady one; a third of the jobs fill the fleet."""
    heavier = ((0.2, 1, 1), (0.1, 1, 2), (0.1, 1, 4), (0.35, 1, 8), (0.14, 2, 8), (0.08, 4, 8), (0.03, 16, 8))
    chance = random.Random(seed)
    machines, quotas = fleet(nodes), tree(8 * nodes, promised=0.3)
    jobs = queued(chance, leaves(quotas), 30_000 * nodes // 12_500, heavier)
    for one in jobs:  # one class and number, any place: so wide a fleet is to be full and settled after a single plan
        one |= {"class": "batch", "priority": 0}
        one.pop("topology", None)
    return scenario(machines, quotas, jobs)


def lookahead(seed: int) -> Scenario:
    chance = random.Random(seed)
    machines = fleet(500)
    quotas = tree(4000)
    jobs = queued(chance, leaves(quotas), 2140, QUEUE_MIX)
    for one in jobs:
        one["limit_s"] = 60 * chance.randrange(30, 630)
        one.pop("estimate_s")
        one.pop("topology", None)
    return scenario(machines, quotas, jobs, forecast="all")


def lookahead_deep(seed: int) -> Scenario:
    made = steady(seed)
    made["settings"]["forecast"] = "all"
    return made


def simulated(seed: int, count: int = 5000) -> Scenario:
    """5,000 jobs over 512 GPUs, loaded to nine tenths."""
    return over_time(seed, count, fleet(64), tree(512, orgs=3, teams=2, projects=2))


def huge(seed: int, count: int = 1_000_000, nodes: int = 12_500) -> Scenario:
    """A million jobs over 100,000 GPUs, loaded to nine tenths."""
    return over_time(seed, count, fleet(nodes), tree(8 * nodes))


def over_time(seed: int, count: int, machines: list[dict[str, Any]], quotas: list[dict[str, Any]]) -> Scenario:
    """Jobs that come one after another, each for some minutes up to two hours, and ask for nine tenths of the fleet."""
    chance, gpus = random.Random(seed), 8 * len(machines)
    names = leaves(quotas)
    jobs = []
    at = 0.0
    mix = QUEUE_MIX[:-1]
    mean = sum(share * workers * gpus for share, workers, gpus in mix) / sum(share for share, _, _ in mix)
    for place in range(count):
        work = chance.randrange(300, 7200)
        at += chance.expovariate(0.9 * gpus / (mean * 3750))
        made = job(chance, f"j-{place}", chance.choice(names), *drawn(chance, mix), 0)
        jobs.append(made | {"submitted": at, "work_s": work, "estimate_s": int(work * chance.uniform(0.8, 2)), "limit_s": None})
    return scenario(machines, quotas, jobs)


def replicas(seed: int, count: int) -> Scenario:
    """Inference replicas of one GPU, to arrive one at a time."""
    chance = random.Random(seed)
    machines, quotas = fleet(1), [{"name": "serving", "guaranteed": 8}]
    jobs = [
        {
            "name": f"replica-{place}",
            "quota": "serving",
            "class": "inference",
            "priority": chance.randrange(3),
            "submitted": 0,
            "roles": [{"name": "worker", "gpus": 1, "cpus": 4, "host_memory_gb": 32}],
        }
        for place in range(count)
    ]
    return scenario(machines, quotas, jobs)
