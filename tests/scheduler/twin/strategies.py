"""Random scenarios that are valid, and touch everything the contract offers.

`scenario_random(seed)` is quick enough for thousands of cases; `scenarios()` draws the same shapes through hypothesis, which can shrink
them. What already runs was placed by the twin's own search, so a scenario says nothing impossible about the present.
"""

import random
from typing import Any

from hypothesis import strategies as st

from .boards import layout_faults, profiles_of
from .places import Undecided, gang_fits, occupancy
from .world import Reader, World, read

Json = dict[str, Any]
NOW = "2026-11-20T09:00:00Z"
TYPES = {"H100-SXM-80GB": 80, "A100-SXM-40GB": 40, "H200-SXM-141GB": 141, "A30-24GB": 24}
SIZES = {"tiny": (3, 5, 3), "small": (5, 10, 5), "medium": (10, 24, 8)}  # at most so many nodes, jobs, leaves


def scenario_random(seed: int, size: str = "small") -> Json:
    """The valid scenario of a seed; the same one for ever."""
    return scenario_from(random.Random(seed), size)


def scenarios(size: str = "tiny") -> st.SearchStrategy[Json]:
    return st.randoms(use_true_random=False).map(lambda rng: scenario_from(rng, size))


def scenario_from(rng: random.Random, size: str = "small") -> Json:
    most_nodes, most_jobs, most_leaves = SIZES[size]
    levels: list[str] = rng.choice([[], ["rack"], ["zone", "leaf"], ["zone", "spine", "leaf"]])
    types = rng.sample(sorted(TYPES), rng.choice([1, 1, 1, 2, 2, 3]))
    scenario: Json = {"format": "gpufleet-scenario/1", "now": NOW, "settings": _settings(rng), "topology": {"levels": levels}}
    scenario["nodes"] = _nodes(rng, levels, types, rng.randint(1, most_nodes))
    scenario["quotas"] = _quotas(rng, scenario["nodes"], rng.randint(1, most_leaves))
    if rng.random() < 0.25:
        scenario["reservations"] = _windows(rng, scenario)
    if rng.random() < 0.2:
        scenario["demand"] = [
            {"share": 0.55, "gpus": 1},
            {"share": 0.1, "workers": 2, "gpus": 2, "required": rng.choice([*levels, "node", "cluster"])},
        ]
    scenario["jobs"] = []
    if rng.random() < 0.5:
        _crowd(rng, scenario, most_jobs)
    for number in range(rng.randint(1, most_jobs)):
        scenario["jobs"].append(_job(rng, scenario, number))
    _overtake(rng, scenario)
    rng.shuffle(scenario["jobs"])
    _by_type(rng, scenario["quotas"])  # last, so that the scenarios of seeds that are known stay what they are otherwise
    return scenario


def _by_type(rng: random.Random, quotas: list[Json]) -> None:
    """Weights and priorities that differ from type to type."""
    types = sorted({kind for quota in quotas if isinstance(quota["guaranteed"], dict) for kind in quota["guaranteed"]})
    for quota in quotas if types else ():
        if rng.random() < 0.1:
            quota["weight"] = {kind: rng.choice([0, 1, 2, 5]) for kind in types if rng.random() < 0.8}
        if rng.random() < 0.05:
            quota["priority"] = {kind: rng.choice([50, 200]) for kind in types if rng.random() < 0.8}


def _settings(rng: random.Random) -> Json:
    offers: Json = {
        "placement": ["spread"],
        "passes": [["allocate"], ["allocate", "backfill"], ["stale", "allocate", "reclaim", "preempt"], ["reclaim"], ["allocate", "shrink", "grow"]],
        "preemption": [False],
        "consolidation": [False],
        "backfill": [False],
        "max_moves": [0, 1, None],
        "preempt_min_runtime_s": [300, 3600],
        "reclaim_min_runtime_s": [300, 3600],
        "stale_grace_s": [0, 600],
        "hysteresis_s": [300],
        "backfill_depth": [0, 1, 2],
        "backfill_notice_s": [0, 600],
        "overrun": [1.5],
        "window_horizon_s": [7200],
        "repartition_per_hour": [0, 1],
        "max_wait_s": [{"batch": 600}, {"inference": 30, "interactive": 300, "batch": None}],
        "worth": [{"batch": 1000}, {"batch": 100000, "interactive": 0}],
        "fairness": [{"usage_weight": 1}, {"usage_weight": 0.5, "half_life_s": 3600}],
        "sharing_trust": ["job", "any"],
        "forecast": ["head", "none"],
    }
    chance = rng.choice([0, 0.05, 0.15])
    return {key: rng.choice(values) for key, values in offers.items() if rng.random() < chance}


def _nodes(rng: random.Random, levels: list[str], types: list[str], count: int) -> list[Json]:
    nodes = []
    gpus = {name: rng.choice([2, 4, 4, 8]) for name in types}
    pools = rng.random() < 0.15  # quota types that split one GPU type
    wide_islands = rng.random() < 0.2
    clusters = rng.choice([1, 1, 1, 1, 2])
    for number in range(count):
        kind = types[number % len(types)]
        path, at = {}, number
        for depth, level in enumerate(levels):
            at = number * (len(levels) + 1 - depth) % count if rng.random() < 0.05 else number >> (len(levels) - depth)
            path[level] = f"{level[0]}{at}"
        node: Json = {"name": f"n{number}", "gpu_type": kind, "gpus": gpus[kind], "gpu_memory_gb": TYPES[kind], "path": path}
        if clusters == 2:
            node["cluster"] = f"c{number % 2}"
        if pools:
            node["quota_type"] = f"{kind}/{'ab'[number % 3 == 0]}"
        _islands(rng, node, wide=wide_islands)
        _condition(rng, node)
        nodes.append(node)
    return nodes


def _islands(rng: random.Random, node: Json, *, wide: bool) -> None:
    if wide:
        where = "-".join(node["path"].values()) or "all"
        node["island"] = f"nvl-{node.get('cluster', 'default')}-{where}"
    elif node["gpus"] >= 4 and rng.random() < 0.2:
        half = node["gpus"] // 2
        node["islands"] = [list(range(half)), list(range(half, node["gpus"]))]


def _condition(rng: random.Random, node: Json) -> None:
    """Health, spares, the host's room, labels, and how its boards are split."""
    node["health"] = rng.choices(["healthy", "suspect", "draining", "down"], [88, 4, 4, 4])[0]
    if rng.random() < 0.1:
        node["unhealthy_gpus"] = [rng.randrange(node["gpus"])]
    if rng.random() < 0.08:
        node["spare"] = True
    if rng.random() < 0.3:
        node["cpus"] = rng.choice([16, 32, 96])
        node["host_memory_gb"] = rng.choice([128, 512])
    if rng.random() < 0.3:
        node["labels"] = {"pool": rng.choice("ab")}
    if rng.random() < 0.3:
        node["attributes"] = {"pcie_gbps": rng.choice([25, 55])}
    split = []
    if rng.random() < 0.3:
        for gpu in sorted(rng.sample(range(node["gpus"]), rng.randint(1, max(1, node["gpus"] // 2)))):
            instances = _layout(rng, node["gpu_type"])
            if instances:
                split.append({"gpu": gpu, "instances": [{"profile": profile, "start": start} for profile, start in instances]})
    if split:
        node["mig"] = split


def _layout(rng: random.Random, gpu_type: str) -> list[tuple[str, int]]:
    instances: list[tuple[str, int]] = []
    profiles = profiles_of(gpu_type)
    for _ in range(rng.randint(1, 4)):
        name = rng.choice(sorted(profiles))
        start = rng.choice(profiles[name][2])
        if not layout_faults(gpu_type, [*instances, (name, start)]):
            instances.append((name, start))
    return sorted(instances, key=lambda instance: instance[1])


def _quotas(rng: random.Random, nodes: list[Json], leaves: int) -> list[Json]:
    totals: dict[str, int] = {}
    for node in nodes:
        kind = node.get("quota_type") or node["gpu_type"]
        totals[kind] = totals.get(kind, 0) + node["gpus"]
    by_type = rng.random() < 0.5
    tops = rng.randint(1, 2)
    quotas: list[Json] = [{"name": f"t{number}", "parent": None} for number in range(tops)]
    for number in range(leaves):
        parent = rng.choice(quotas)["name"]
        quotas.append({"name": f"{parent}/q{number}", "parent": parent})
    for quota in quotas:
        part = rng.choice([0, 0.2, 0.3, 0.5, 0.5, 1]) if quota["parent"] else rng.choice([0.5, 1, 1])
        if rng.random() < 0.08:
            quota["guaranteed"] = None
        elif by_type:
            quota["guaranteed"] = {kind: int(total * part) for kind, total in totals.items() if rng.random() < 0.9}
        else:
            quota["guaranteed"] = int(sum(totals.values()) * part)
        if rng.random() < 0.2:
            limit = rng.choice([0.5, 0.75, 1])
            if by_type and rng.random() < 0.5:
                quota["limit"] = {kind: max(1, int(total * limit)) for kind, total in totals.items()}
            else:
                quota["limit"] = max(1, int(sum(totals.values()) * limit))
        quota["weight"] = rng.choice([1, 1, 1, 2, 3, 0])
        quota["created"] = -86400 - rng.randint(0, 3)
        if rng.random() < 0.15:
            quota["priority"] = rng.choice([50, 200])
        if rng.random() < 0.15:
            quota["usage"] = rng.choice([0.1, 0.5, 0.9])
        for key in ("preempt_min_runtime_s", "reclaim_min_runtime_s"):
            if rng.random() < 0.08:
                quota[key] = rng.choice([0, 600, 7200])
    return quotas


def _windows(rng: random.Random, scenario: Json) -> list[Json]:
    windows = []
    for number in range(rng.choice([1, 1, 2])):
        node = rng.choice(scenario["nodes"])
        start = rng.choice([-3600, 600, 3600, 10800])
        window: Json = {
            "name": f"w{number}",
            "gpus": rng.choice([1, 2, 4]),
            "gpu_type": node.get("quota_type") or node["gpu_type"],
            "start": start,
            "end": rng.choice([None, max(start, 0) + 7200]),
            "notice_s": rng.choice([0, 120, 600]),
        }
        if rng.random() < 0.6:
            window["quota"] = rng.choice(scenario["quotas"])["name"]
        else:
            window["class"] = rng.choice(["inference", "inference", "interactive", "batch"])
        if rng.random() < 0.2:
            window["level"] = rng.choice([*scenario["topology"]["levels"], "node"])
        if rng.random() < 0.3:
            window["decay_s"] = 1800
        windows.append(window)
    return windows


def _leaves(scenario: Json) -> list[str]:
    inner = {quota["parent"] for quota in scenario["quotas"]}
    return [quota["name"] for quota in scenario["quotas"] if quota["name"] not in inner]


def _crowd(rng: random.Random, scenario: Json, most: int) -> None:
    """Plain small jobs on most of the fleet, mostly of one leaf: where others ask, something has to give."""
    greedy = rng.choice(_leaves(scenario))
    for number in range(rng.randint(most // 2, 2 * most)):
        job: Json = {
            "name": f"f-{number}",
            "quota": greedy if rng.random() < 0.7 else rng.choice(_leaves(scenario)),
            "class": rng.choices(["batch", "interactive", "inference"], [80, 10, 10])[0],
            "submitted": -20000 - number,
            "roles": [{"name": "worker", "min": 1, "max": rng.choice([1, 1, 1, 3]), "gpus": rng.choice([1, 1, 2])}],
        }
        _plans(rng, job)
        job.pop("not_before", None)
        _place(rng, scenario, job)
        if "state" in job:
            scenario["jobs"].append(job)


def _job(rng: random.Random, scenario: Json, number: int) -> Json:
    leaves = _leaves(scenario)
    cls = rng.choices(["batch", "interactive", "inference"], [70, 15, 15])[0]
    job: Json = {"name": f"j-{number}", "quota": rng.choice(leaves), "class": cls, "submitted": -60 * rng.randint(0, 200)}
    if rng.random() < 0.5:
        job["priority"] = rng.choice([0, 10, 50])
    if rng.random() < 0.2:
        job["preemptible"] = rng.choice([False, True, "when_borrowed"])
    _ask(rng, scenario, job)
    _plans(rng, job)
    if rng.random() < 0.6:
        _place(rng, scenario, job)
    elif rng.random() < 0.1:
        job.update(last_evicted=-rng.choice([10, 100, 4000]), evictions=rng.randint(1, 3))
    return job


def _ask(rng: random.Random, scenario: Json, job: Json) -> None:
    """Roles, sharing and topology."""
    kinds = sorted({node["gpu_type"] for node in scenario["nodes"]})
    accepted = rng.sample(kinds, rng.randint(1, len(kinds)))
    sizes = sorted({node["gpus"] for node in scenario["nodes"]})
    role: Json = {"name": "worker", "min": rng.choice([1, 1, 1, 2, 3, 4])}
    how = rng.random()
    if how < 0.1:
        role["mig"] = rng.choice(sorted(profiles_of(accepted[0])))
    elif how < 0.2:
        role.update({"gpu_share": rng.choice([0.1, 0.25, 0.5])} if rng.random() < 0.6 else {"gpu_memory_gb": rng.choice([4, 10, 20])})
        job["sharing"] = "timeslice" if job["class"] == "interactive" and rng.random() < 0.5 else "mps"
    else:
        role["gpus"] = rng.choice([1, 1, 1, 2, 2, 4, max(sizes)])
    if "mig" in role:
        job["sharing"] = "mig"
    if "gpus" not in role and rng.random() < 0.1:
        role["devices"] = 2
    if rng.random() < 0.3:
        role["step"] = rng.choice([1, 1, 2])
        role["max"] = role["min"] + role["step"] * rng.randint(1, 3)
        if rng.random() < 0.2:
            role["desired"] = rng.randint(role["min"], role["max"])
    if rng.random() < 0.6 or len(accepted) < len(kinds):
        role["gpu_types"] = accepted
    if rng.random() < 0.2:
        role.update(cpus=rng.choice([1, 8]), host_memory_gb=rng.choice([8, 64]))
    job["roles"] = [role]
    if rng.random() < 0.12:
        job["roles"].insert(rng.choice([0, 1]), {"name": "driver", "min": 1, "gpus": rng.choice([0, 0, 1]), "cpus": 1})
        if job["roles"] and "gpus" not in role:
            next(r for r in job["roles"] if r["name"] == "driver")["gpus"] = 0
    _topology(rng, scenario, job, role)
    if rng.random() < 0.08:
        job["node_labels"] = {"pool": "a"}
    if rng.random() < 0.05:
        job["needs"] = {"pcie_gbps": 40}
    if rng.random() < 0.1:
        job["tolerates_suspect"] = True
    if rng.random() < 0.15:
        job["throughput"] = {kind: rng.choice([1.0, 0.45, 0]) for kind in kinds}


def _topology(rng: random.Random, scenario: Json, job: Json, role: Json) -> None:
    every = ["cluster", *scenario["topology"]["levels"], "node"]
    topology: Json = {}
    if rng.random() < 0.25:
        topology["required"] = rng.choice(every)
    if rng.random() < 0.2:
        low = every.index(topology.get("required", "cluster"))
        topology["preferred"] = rng.choice(every[low:])
    if rng.random() < 0.15 and role.get("gpus", 0) >= 1 and len(job["roles"]) == 1:
        size = role["gpus"] if rng.random() < 0.5 else 2
        multiple = role["gpus"] % size == 0 or (size % role["gpus"] == 0 and role["min"] * role["gpus"] % size == 0 and "max" not in role)
        if multiple and size > 1:
            topology["tp_group"] = size
    if rng.random() < 0.1 and "required" not in topology:
        topology["span_clusters"] = True
    if topology:
        job["topology"] = topology
    if rng.random() < 0.05:
        role["topology"] = {"required": rng.choice(every)}


def _plans(rng: random.Random, job: Json) -> None:
    """What is known of its time."""
    if rng.random() < 0.6:
        job["estimate_s"] = rng.choice([60, 600, 3600, 7200])
    if rng.random() < 0.5:
        job["limit_s"] = rng.choice([600, 3600, 14400])
    if rng.random() < 0.5:
        job["grace_s"] = rng.choice([0, 30, 120, 600])
    if rng.random() < 0.05:
        job["not_before"] = rng.choice([-60, 600])
    if rng.random() < 0.05:
        job["deadline"] = 7200
    if rng.random() < 0.1:
        job["preemption_delay_s"] = rng.choice([60, 3600])
    if rng.random() < 0.4:
        known = {"interval_s": 1800, "last": -rng.choice([10, 300]), "save_s": 60, "restore_s": 120}
        job["checkpoint"] = rng.choice([None, known, {"interval_s": 600}])


def _place(rng: random.Random, scenario: Json, job: Json) -> None:
    """Let the job hold places, in one of the states that do, where the twin finds some."""
    world = read(scenario)
    names = list(world.nodes)
    rng.shuffle(names)
    shuffled = World(world.now, world.settings, world.levels, {name: world.nodes[name] for name in names}, world.quotas, world.windows, world.jobs)
    mine = Reader(scenario).job(job)
    counts = {}
    for role in mine.roles.values():
        steps = rng.randint(0, (role.most - role.min) // role.step)
        counts[role.name] = role.min + steps * role.step
    try:
        found = gang_fits(occupancy(shuffled), mine, counts=counts, division=shuffled.nodes[names[0]].quota_type)
    except Undecided:
        return
    if not found:
        return
    workers: list[Json] = []
    for worker in found:
        raw: Json = {"role": worker.role, "index": worker.index, "node": worker.node, "gpus": list(worker.gpus)}
        if worker.share is not None:
            raw["gpu_share"] = worker.share / 1000
        if worker.mig is not None:
            parts = [{"profile": profile, "start": start} for profile, start in worker.mig]
            raw["mig"] = parts[0] if len(parts) == 1 else parts
        workers.append(raw)
    _state(rng, job, workers)


def _state(rng: random.Random, job: Json, workers: list[Json]) -> None:
    state = rng.choices(["running", "starting", "reserved", "stopping"], [82, 5, 5, 8])[0]
    age = rng.choice([30, 200, 1000, 5000])
    job.update(state=state, since=-age, workers=workers)
    job.pop("not_before", None)
    if state in ("starting", "reserved"):
        job.update(since=-10, until=590)
        return
    job["started"] = -age
    if state == "stopping":
        job.update(since=-5, until=rng.choice([5, 60, 600]))
        return
    if rng.random() < 0.08 and len(workers) > 1:
        job["workers"] = sorted(rng.sample(workers, len(workers) - 1), key=lambda w: (w["role"], w["index"]))
        below = any(sum(w["role"] == r["name"] for w in job["workers"]) < r["min"] for r in job["roles"])
        if below:
            job["degraded_since"] = -rng.choice([5, 100, 900])
        else:
            job["workers"] = workers
    elif rng.random() < 0.1:
        _leave(job)
    if rng.random() < 0.08 and job.get("preemptible", True) is True and job.get("grace_s", 0) <= 30:
        job["backfilled"] = True
    if rng.random() < 0.05:
        job["last_moved"] = -age


def _leave(job: Json) -> None:
    """The last surplus step of a role is on its way out."""
    for role in job["roles"]:
        members = [w for w in job["workers"] if w["role"] == role["name"]]
        step = role.get("step", 1)
        if len(members) - step >= role["min"]:
            job["leaving"] = members[-step:]
            job["workers"] = [w for w in job["workers"] if w not in job["leaving"]]
            return


def _overtake(rng: random.Random, scenario: Json) -> None:
    """Some what is waiting was promised the places of what is stopping."""
    for stopping in [job for job in scenario["jobs"] if job.get("state") == "stopping"]:
        alike = [j for j in scenario["jobs"] if j.get("state", "queued") == "queued" and j["roles"] == stopping["roles"] and _same_needs(j, stopping)]
        if alike and rng.random() < 0.5:
            job = rng.choice(alike)
            job.update(state="reserved", since=-5, until=600, workers=[dict(worker) for worker in stopping["workers"]])
            job.pop("last_evicted", None)
            job.pop("evictions", None)


def _same_needs(one: Json, other: Json) -> bool:
    keys = ("topology", "sharing", "node_labels", "needs", "throughput", "tolerates_suspect", "quota")
    return all(one.get(key) == other.get(key) for key in keys)
