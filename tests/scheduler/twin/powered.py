"""Drawn scenarios with power caps."""

import random
from typing import Any

from .strategies import TYPES, scenario_from

Json = dict[str, Any]
WATTS = {"H100-SXM-80GB": 700, "A100-SXM-40GB": 400, "H200-SXM-141GB": 700, "A30-24GB": 165}


def powered_random(seed: int, size: str = "small") -> Json:
    """The scenario of a seed with caps of pools and of the fleet; the same one for ever. Every second one has neither windows nor parts of GPUs."""
    rng = random.Random(seed)
    scenario = scenario_from(rng, size)
    if seed % 2:
        scenario["reservations"] = []
    for job in scenario["jobs"]:
        if rng.random() < 0.5 and "limit_s" not in job:
            job["limit_s"] = rng.choice([600, 3600, 7200])
    return with_caps(scenario, rng)


def with_caps(scenario: Json, rng: random.Random) -> Json:
    pools = rng.choice([[], ["x"], ["x", "y"]])
    for node in scenario["nodes"]:
        if pools and rng.random() < 0.8:
            node["labels"] = {**(node.get("labels") or {}), "pool": rng.choice(pools)}
    scenario["power"] = {"gpu_watts": {kind: WATTS[kind] for kind in TYPES}, "caps": []}
    for _ in range(rng.choice([1, 1, 2, 3])):
        pool = rng.choice([*pools, None]) if pools else None
        inside = [node for node in scenario["nodes"] if pool in (None, (node.get("labels") or {}).get("pool"))]
        full = sum(node["gpus"] * WATTS[node["gpu_type"]] for node in inside)
        start = rng.choice([-600, 0, 600, 3600])
        end = rng.choice([None, start + 1800, start + 7200]) if start >= 0 else rng.choice([None, 1200, 7200])
        scenario["power"]["caps"].append({"pool": pool, "watts": int(full * rng.choice([0.2, 0.5, 0.5, 0.8])), "start": start, "end": end})
    return scenario
