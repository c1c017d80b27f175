"""Service times for jobs that state none."""

import numpy as np

from scheduler.engine.model.values import Scenario


def works_drawn(scenario: Scenario, seed: int) -> dict[str, int]:
    """Milliseconds at speed 1.0, drawn around the estimate: half of the jobs need less than two thirds of it."""
    chance = np.random.default_rng(seed)
    works = {}
    for job in scenario.jobs:
        if job.work_ms is None:
            around = job.estimate_ms if job.estimate_ms is not None else 3_600_000
            works[job.name] = max(1000, int(around * 0.66 * float(chance.lognormal(0.0, 0.5))))
    return works
