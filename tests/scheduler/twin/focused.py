"""Random scenarios about one thing each, where `scenario_random` meets it too rarely."""

import random
from typing import Any

from .boards import layout_faults
from .builders import H100, at, node, quota, scenario
from .strategies import scenario_random

Json = dict[str, Any]


def growth_random(seed: int) -> Json:
    """Elastic jobs of several queues on a full fleet of one type: who grows, and at whose cost?"""
    rng = random.Random(seed)
    nodes = [node(f"n{number}", rng.choice([4, 8]), path={"rack": f"r{number // 2}"}) for number in range(rng.randint(1, 4))]
    total = sum(one["gpus"] for one in nodes)
    quotas = _tree(rng, total)
    inner = {one["parent"] for one in quotas}
    leaves = [one["name"] for one in quotas if one["name"] not in inner]
    free = [(one["name"], gpu) for one in nodes for gpu in range(one["gpus"])]
    jobs: list[Json] = []
    number = 0
    while free and number < 12:
        jobs.append(_elastic(rng, f"e{number}", rng.choice(leaves[: 1 + rng.randrange(len(leaves))]), free))
        number += 1
    jobs.extend({**_asks(rng, f"w{place}", rng.choice(leaves)), "state": "queued", "workers": []} for place in range(rng.choice([0, 0, 0, 1, 2])))
    made = scenario(nodes=nodes, quotas=quotas, jobs=jobs, levels=["rack"])
    if rng.random() < 0.2:
        made["settings"]["passes"] = ["allocate", "shrink", "reclaim", "grow"]
    if rng.random() < 0.1:
        made["settings"]["worth"] = {"batch": rng.choice([0, 1000])}
    return made


def _tree(rng: random.Random, total: int) -> list[Json]:
    quotas = [quota(name, rng.choice([0, total // 4, total // 2]), weight=rng.choice([1, 1, 2, 0])) for name in "abc"[: rng.randint(2, 3)]]
    if rng.random() < 0.4:
        parent = quotas[0]["name"]
        quotas += [quota(f"{parent}/{name}", rng.choice([0, total // 4]), parent=parent) for name in "xy"]
    if rng.random() < 0.2:
        quotas[-1]["limit"] = max(1, total // 2)
    return quotas


def _asks(rng: random.Random, name: str, leaf: str) -> Json:
    least, step = rng.choice([1, 1, 2]), rng.choice([1, 1, 2])
    role: Json = {"name": "worker", "min": least, "max": least + step * rng.randint(1, 4), "step": step, "gpus": rng.choice([1, 1, 1, 2])}
    cls = rng.choice(["batch", "batch", "interactive", "inference"])
    job: Json = {"name": name, "quota": leaf, "class": cls, "submitted": -rng.randint(100, 900)}
    job.update(roles=[role], priority=rng.choice([0, 0, 10]))
    if rng.random() < 0.2:
        job["preemptible"] = rng.choice([True, False, "when_borrowed"])
    if rng.random() < 0.2:
        job["topology"] = {"required": rng.choice(["rack", "node"])}
    if rng.random() < 0.1:
        job["preemption_delay_s"] = 500
    return job


def _elastic(rng: random.Random, name: str, leaf: str, free: list[tuple[str, int]]) -> Json:
    """A job with some of its steps running on the next GPUs that are free; one that found none waits."""
    job = _asks(rng, name, leaf)
    role = job["roles"][0]
    wanted = role["min"] + role["step"] * rng.randint(0, (role["max"] - role["min"]) // role["step"])
    workers: list[Json] = []
    while len(workers) < wanted:
        here = [gpu for place, gpu in free if place == free[0][0]][: role["gpus"]] if free else []
        if len(here) < role["gpus"]:
            del free[: len(here)]
            if not free:
                break
            continue
        workers.append(at(free[0][0], *here, index=len(workers)))
        del free[: len(here)]
    whole = len(workers) >= role["min"]
    keep = role["min"] + (len(workers) - role["min"]) // role["step"] * role["step"] if whole else 0
    domains = {worker["node"] for worker in workers[:keep]}
    if len(domains) > 1:
        job.pop("topology", None)
    if keep:
        job.update(state="running", since=-600, started=-600, workers=workers[:keep])
    return job


def lost_random(seed: int) -> Json:
    """Elastic jobs that have lost workers of any index, of one role or two, beside larger jobs that wait: who is made whole, who gives back?"""
    made = growth_random(seed)
    rng = random.Random(f"lost {seed}")
    sizes = [one["gpus"] for one in made["nodes"]]
    for job in made["jobs"]:
        workers = job.get("workers") or []
        if not workers:
            continue
        if rng.random() < 0.3:
            _second_role(rng, job)
        if rng.random() < 0.6:
            job["workers"] = sorted(rng.sample(workers, rng.randint(1, len(workers))), key=workers.index)
            if any(sum(one["role"] == role["name"] for one in job["workers"]) < role["min"] for role in job["roles"]):
                job["degraded_since"] = -rng.choice([10, 100])
                job["grace_s"] = rng.choice([30, 600])
        if rng.random() < 0.15:
            role = job["roles"][0]
            job["class"], role["desired"] = "inference", rng.randint(role["min"], role["max"])
    for number in range(rng.randint(1, 2)):
        job = _asks(rng, f"l{number}", rng.choice([one["quota"] for one in made["jobs"]]))
        job["roles"][0].update(gpus=rng.choice([2, max(sizes) // 2, max(sizes)]), max=job["roles"][0]["min"], step=1)
        made["jobs"].append({**job, "state": "queued", "workers": []})
    return made


def thinned_random(seed: int) -> Json:
    """Anything at all, with workers lost here and there, services that want fewer than they have, and nodes of ill health under what runs."""
    made = scenario_random(seed)
    rng = random.Random(f"thinned {seed}")
    for job in made["jobs"]:
        workers = job.get("workers") or []
        if workers and job["state"] == "running" and rng.random() < 0.4:
            job["workers"] = sorted(rng.sample(workers, rng.randint(1, len(workers))), key=workers.index)
            job.update(rng.choice([{}, {"degraded_since": -10}, {"degraded_since": -300}]))
        role = job["roles"][0]
        if role.get("max", 1) > role.get("min", 1) and rng.random() < 0.3:
            role["desired"] = rng.randint(role.get("min", 1), role["max"])
    for one in made["nodes"]:
        if rng.random() < 0.15:
            one["health"] = rng.choice(["down", "draining", "suspect"])
        elif rng.random() < 0.3:
            one["unhealthy_gpus"] = sorted(rng.sample(range(one["gpus"]), rng.randint(1, one["gpus"])))
    return made


def _second_role(rng: random.Random, job: Json) -> None:
    """Turn its last workers into those of another role."""
    role, workers = job["roles"][0], job["workers"]
    others = len(workers) - rng.randint(role["min"], len(workers))
    if others:
        job["roles"].append({"name": "helper", "min": rng.randint(1, others), "max": others + rng.randint(0, 2), "gpus": role["gpus"]})
        job["workers"] = workers[:-others] + [{**one, "role": "helper", "index": index} for index, one in enumerate(workers[-others:])]


def split_random(seed: int) -> Json:
    """Boards in instances, most of them in use, and jobs that need them split in another way or not at all."""
    rng = random.Random(seed)
    nodes = [node(f"n{number}", rng.choice([1, 2, 2, 4]), labels={"pool": rng.choice("pq")}) for number in range(rng.randint(1, 3))]
    total = sum(one["gpus"] for one in nodes)
    quotas = [quota(name, rng.choice([0, total // 2, total]), weight=rng.choice([1, 1, 0])) for name in "ab"]
    jobs: list[Json] = []
    for one in nodes:
        split = []
        for gpu in range(one["gpus"]):
            instances = _layout(rng) if rng.random() < 0.8 else []
            if instances:
                split.append({"gpu": gpu, "instances": [{"profile": profile, "start": start} for profile, start in instances]})
            jobs.extend(
                _tenant(rng, f"t{len(jobs)}-{gpu}-{start}", one["name"], gpu, profile, start) for profile, start in instances if rng.random() < 0.6
            )
            if not instances and rng.random() < 0.6:
                jobs.append(_holder(rng, f"h{len(jobs)}", one["name"], gpu))
        one["mig"] = split
        if rng.random() < 0.3:
            one["repartitioned"] = [-rng.choice([10, 1800, 3599, 3600, 4000]) for _ in range(rng.randint(1, 3))]
    jobs.extend(_wants_a_part(rng, f"w{place}") for place in range(rng.randint(1, 4)))
    made = scenario(nodes=nodes, quotas=quotas, jobs=jobs)
    made["settings"]["repartition_per_hour"] = rng.choice([0, 1, 2, 3, 6])
    return made


PROFILES = {"1g.10gb": range(7), "2g.20gb": (0, 2, 4), "3g.40gb": (0, 4), "7g.80gb": (0,)}


def _layout(rng: random.Random) -> list[tuple[str, int]]:
    chosen: list[tuple[str, int]] = []
    for _ in range(rng.randint(1, 4)):
        profile = rng.choice(sorted(PROFILES))
        start = rng.choice(list(PROFILES[profile]))
        if not layout_faults(H100, [*chosen, (profile, start)]):
            chosen.append((profile, start))
    return sorted(chosen, key=lambda instance: instance[1])


def _of(rng: random.Random, name: str, role: Json, **more: Any) -> Json:
    job: Json = {"name": name, "quota": rng.choice("ab"), "class": rng.choice(["batch", "batch", "interactive", "inference"])}
    job.update(submitted=-rng.randint(100, 900), priority=rng.choice([0, 0, 10]), roles=[{"name": "worker", **role}], **more)
    if rng.random() < 0.15:
        job["preemptible"] = rng.choice([False, "when_borrowed"])
    return job


def _tenant(rng: random.Random, name: str, where: str, gpu: int, profile: str, start: int) -> Json:
    age = rng.choice([10, 600, 5000])
    worker = at(where, gpu, mig={"profile": profile, "start": start})
    return _of(rng, name, {"mig": profile}, sharing="mig", state="running", since=-age, started=-age, workers=[worker])


def _holder(rng: random.Random, name: str, where: str, gpu: int) -> Json:
    age = rng.choice([10, 600, 5000])
    return _of(rng, name, {"gpus": 1}, state="running", since=-age, started=-age, workers=[at(where, gpu)])


def _wants_a_part(rng: random.Random, name: str) -> Json:
    how = rng.random()
    if how < 0.55:
        role: Json = {"mig": rng.choice(sorted(PROFILES)), "min": rng.choice([1, 1, 2])}
        if rng.random() < 0.1:
            role["devices"] = 2
        return _of(rng, name, role, sharing="mig")
    if how < 0.85:
        return _of(rng, name, {"gpus": rng.choice([1, 1, 2])})
    return _of(rng, name, {"gpu_share": 0.5}, sharing="mps")


def step_random(seed: int) -> Json:
    """Queues that live on surplus, some of which used much of late; who runs may have come by reclaim a short while ago."""
    rng = random.Random(seed)
    nodes = [node(f"n{number}", 8) for number in range(rng.randint(1, 2))]
    names = "abc"[: rng.randint(2, 3)]
    quotas = [quota(name, rng.choice([0, 0, 2]), weight=rng.choice([1, 1, 2]), usage=rng.choice([0, 0.1, 0.5, 0.9])) for name in names]
    jobs: list[Json] = []
    for one in nodes:
        free = list(range(one["gpus"]))
        while free:
            size = min(len(free), rng.choice([1, 2, 2, 4]))
            job = _of(rng, f"r{len(jobs)}", {"gpus": size}, state="running", since=-600, started=-600, workers=[at(one["name"], *free[:size])])
            if rng.random() < 0.6:
                job["reclaimed"] = -rng.choice([1, 500, 3000])
            jobs.append({**job, "quota": rng.choice(names)})
            del free[:size]
    jobs.extend({**_of(rng, f"w{place}", {"gpus": rng.choice([1, 2, 4])}), "quota": rng.choice(names)} for place in range(rng.randint(1, 3)))
    made = scenario(nodes=nodes, quotas=quotas, jobs=jobs)
    made["settings"]["fairness"] = {"usage_weight": rng.choice([0, 0.5, 2]), "step_s": rng.choice([60, 7000, 86400])}
    return made


def window_random(seed: int) -> Json:
    """A window of a class that is open, and its class in several queues: who stands in it, and what may be taken in its name?"""
    rng = random.Random(seed)
    nodes = [node(f"n{number}", rng.choice([2, 4, 8]), path={"rack": f"r{number // 2}"}) for number in range(rng.randint(1, 3))]
    total = sum(one["gpus"] for one in nodes)
    quotas = _tree(rng, total)
    inner = {one["parent"] for one in quotas}
    leaves = [one["name"] for one in quotas if one["name"] not in inner]
    for one in quotas:
        one.update(priority=rng.choice([100, 100, 50]))
        if rng.random() < 0.4:
            one.update(guaranteed=0, weight=0)
    cls = rng.choice(["inference", "inference", "batch"])
    free = [(one["name"], gpu) for one in nodes for gpu in range(one["gpus"])]
    others = ["batch", "batch", "interactive", cls]
    jobs = [_windowed(rng, f"r{number}", rng.choice(leaves), others, free) for number in range(rng.randint(2, 9))]
    jobs += [_windowed(rng, f"w{number}", rng.choice(leaves), [cls, cls, "interactive"], []) for number in range(rng.randint(1, 4))]
    made = scenario(nodes=nodes, quotas=quotas, jobs=jobs, levels=["rack"])
    made["reservations"] = [{"name": "floor", "class": cls, "gpus": rng.randint(1, total), "gpu_type": H100, "start": -60, "end": None}]
    if rng.random() < 0.2:
        made["reservations"].append({**made["reservations"][0], "name": "more", "class": rng.choice(["interactive", cls]), "gpus": 2})
    return made


def _windowed(rng: random.Random, name: str, leaf: str, classes: list[str], free: list[tuple[str, int]]) -> Json:
    """A job that runs where there is something free."""
    job = {**_elastic(rng, name, leaf, free), "class": rng.choice(classes)}
    if rng.random() < 0.6:
        role = job["roles"][0]
        role["max"] = max(role["min"], len(job.get("workers") or []))
    return job


def queue_random(seed: int) -> Json:
    """Queues of jobs for whole GPUs of one type, some of which run: who is served in which order, and where?"""
    rng = random.Random(seed)
    host: Json = {"cpus": 16, "host_memory_gb": 64} if rng.random() < 0.3 else {}
    nodes = [node(f"n{number}", rng.choice([2, 4]), path={"rack": f"r{number // 2}"}, **host) for number in range(rng.randint(1, 5))]
    total = sum(one["gpus"] for one in nodes)
    quotas = _tree(rng, total)
    inner = {one["parent"] for one in quotas}
    leaves = [one["name"] for one in quotas if one["name"] not in inner]
    for one in quotas:
        one.update(created=-rng.randint(1, 3), priority=rng.choice([100, 100, 100, 50]), usage=rng.choice([0, 0, 0.3]))
    free = [(one["name"], gpu) for one in nodes for gpu in range(one["gpus"]) if rng.random() < 0.7]
    jobs = [_elastic(rng, f"e{number}", rng.choice(leaves), free) for number in range(rng.randint(0, 4))]
    jobs += [{**_asks(rng, f"w{number}", rng.choice(leaves)), "state": "queued", "workers": []} for number in range(rng.randint(1, 6))]
    for job in jobs:
        if job.get("state") == "queued":  # gangs that wait for one domain decide between equal nodes, which the slow planner does not weigh
            job.pop("topology", None)
        if job.get("state") == "queued" and rng.random() < 0.2:
            job["topology"] = {"preferred": rng.choice(["rack", "node"])}
        if host and job.get("state") == "queued":
            job["roles"][0].update(cpus=rng.choice([0, 2, 6]), host_memory_gb=rng.choice([0, 8, 30]))
        if job.get("state") == "queued" and rng.random() < 0.15:
            job["roles"].append({"name": "other", "min": 1, "gpus": rng.choice([1, 2])})
    made = scenario(nodes=nodes, quotas=quotas, jobs=jobs, levels=["rack"])
    made["settings"]["passes"] = rng.choice([["allocate"], ["allocate", "grow"]])
    if rng.random() < 0.3:
        made["settings"]["fairness"] = {"usage_weight": 0.5}
    if rng.random() < 0.2:
        made["settings"]["placement"] = "spread"
    return made


def promised_random(seed: int) -> Json:
    """Any fleet, on which many have only been promised their places or are starting in them, some of them until a moment that has passed."""
    made, rng = scenario_random(seed), random.Random(seed)
    for job in made["jobs"]:
        if job.get("state") in ("reserved", "starting") or (job.get("state") == "running" and rng.random() < 0.4):
            job.update(state=rng.choice(["reserved", "starting"]), until=rng.choice([-600, -1, 0, 1, 600]), degraded_since=None)
            job.pop("started", None)
    return made


def ahead_random(seed: int) -> Json:
    """Windows that begin soon, on all of a type or in blocks of any level, and jobs of every kind of end that would start beside them."""
    rng = random.Random(seed)
    count = rng.randint(2, 6)
    nodes = [node(f"n{number}", rng.choice([2, 4]), path={"zone": f"z{number // 4}", "rack": f"r{number // 2}"}) for number in range(count)]
    for one in nodes:
        one.update(health=rng.choice(["healthy"] * 9 + ["draining"]), spare=rng.random() < 0.05)
    total = sum(one["gpus"] for one in nodes)
    quotas = _tree(rng, total)
    for one in quotas:
        one.update(rng.choice([{}, {}, {}, {"reclaim_min_runtime_s": 3600}, {"preempt_min_runtime_s": 900}]))
    inner = {one["parent"] for one in quotas}
    leaves = [one["name"] for one in quotas if one["name"] not in inner]
    free = [(one["name"], gpu) for one in nodes if not one["spare"] for gpu in range(one["gpus"]) if rng.random() < 0.6]
    jobs = [_ends(rng, _elastic(rng, f"r{number}", rng.choice(leaves), free)) for number in range(rng.randint(0, 5))]
    jobs += [_ends(rng, {**_asks(rng, f"w{number}", rng.choice(leaves)), "state": "queued", "workers": []}) for number in range(rng.randint(1, 6))]
    made = scenario(nodes=nodes, quotas=quotas, jobs=jobs, levels=["zone", "rack"])
    made["reservations"] = []
    for number in range(rng.randint(1, 4)):
        start = rng.choice([-60, 600, 600, 1200, 3600])
        window: Json = {"name": f"v{number}", "gpus": rng.randint(1, 4), "gpu_type": H100, "start": start, "notice_s": rng.choice([0, 120])}
        window["end"] = rng.choice([None, max(start, 0) + 600, max(start, 0) + 6000])
        window.update({"class": rng.choice(["inference", "batch"])} if rng.random() < 0.4 else {"quota": rng.choice(quotas)["name"]})
        if rng.random() < 0.6:
            window["level"] = rng.choice(["zone", "rack", "rack", "node"])
        made["reservations"].append(window)
    return made


def _ends(rng: random.Random, job: Json) -> Json:
    """With an end, a grace, or a right to stay that decides whether it could be in a window's way."""
    job.update(rng.choice([{}, {"limit_s": 300}, {"limit_s": 1000}, {"limit_s": 7200}, {"estimate_s": 600}]))
    job.update(rng.choice([{}, {}, {"preemptible": False}, {"grace_s": 60}, {"grace_s": 600}]))
    return job


ABOUT = {
    "growth": growth_random,
    "lost": lost_random,
    "thinned": thinned_random,
    "split": split_random,
    "step": step_random,
    "windows": window_random,
    "queues": queue_random,
    "ahead": ahead_random,
    "promises": promised_random,
}
