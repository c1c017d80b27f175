"""Drawn scenarios that ask for boundaries between services and other work."""

import random
from typing import Any

from .strategies import scenario_from

Json = dict[str, Any]
TENANTS = ("a", "b")


def colocated_random(seed: int, size: str = "small") -> Json:
    """The scenario of a seed in which more jobs serve, nodes enforce this or that, and some pairs may not be neighbours; the same one for ever.

    What runs was placed before anybody asked for boundaries: some stand where they could not come to now. Every second one has no windows.
    """
    rng = random.Random(seed)
    scenario = scenario_from(rng, size)
    if seed % 2:
        scenario["reservations"] = []
    for job in scenario["jobs"]:
        if job.get("sharing") != "timeslice" and rng.random() < 0.4:
            job["class"] = "inference"
        if rng.random() < 0.8:
            job["tenant"] = rng.choice(TENANTS)
        if rng.random() < 0.3 and "limit_s" not in job:
            job["limit_s"] = rng.choice([600, 3600])
    for node in scenario["nodes"]:
        node["boundaries"] = rng.choice([[], ["cores"], ["mig"], ["cores", "mig"], ["cores", "mig"]])
    scenario["settings"]["colocation"] = rng.choice(["gpu", "node", "node"])
    scenario["apart"] = [
        {"service": service, "other": other, "where": rng.choice(["gpu", "node", "node"]), "predicted_ms": 240, "allowed_ms": 200}
        for service in TENANTS
        for other in TENANTS
        if rng.random() < 0.5
    ]
    return scenario


def measured_random(seed: int) -> Json:
    """The same without boundaries, where all pairs have been measured: they count all the same."""
    scenario = colocated_random(seed)
    scenario["settings"]["colocation"] = "any"
    scenario["apart"] = [pair | {"measured": True} for pair in scenario["apart"]]
    return scenario
