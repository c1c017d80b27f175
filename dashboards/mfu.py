"""Model FLOPs utilization: what a job computes of what its GPUs could, by the step times and operations that its ranks report (HLT-1)."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from dashboards.health.steps import looks_of
from dashboards.models import StepLook
from dashboards.telemetry.peaks import peak_tflops
from scheduler.models import Attempt
from scheduler.selectors.jobs import Sitting


@dataclass(frozen=True, slots=True)
class Mfu:
    """`percent` is None where it can't be told, and `fault` says why."""

    at: datetime
    step_seconds: float
    precision: str
    percent: float | None = None
    fault: str = ""


def mfu_of(attempt: Attempt, sittings: Iterable[Sitting], type_of: Mapping[str, str]) -> Mfu | None:
    """None where no rank has told how many operations a step has. `sittings`: what the attempt holds, or held at its end."""
    row = StepLook.objects.filter(attempt=attempt, flops__isnull=False).first()
    if row is None:
        return None
    looks = looks_of(row)
    told = looks[~np.isnan(looks).all(axis=1)]
    # Ranks of a gang step together: the slowest one says how long a step takes.
    seconds = float(np.median(np.nanmax(told, axis=1)))
    found = Mfu(row.at, seconds, row.precision)
    held = list(sittings)
    if any(one.gpu_milli < 1000 for one in held):
        return _but(found, "It holds parts of GPUs, whose peak is not known.")
    if any(one.gpu_id not in type_of for one in held):
        return _but(found, "A GPU that it held is no longer in the inventory.")
    peak = 0.0
    for gpu_type, count in sorted(Counter(type_of[one.gpu_id] for one in held).items()):
        of_one = peak_tflops(gpu_type, row.precision)
        if of_one is None:
            return _but(found, f"The peak of {gpu_type} in {row.precision} is not known.")
        peak += count * of_one * 1e12
    assert row.flops is not None
    part = 100 * row.flops / (seconds * peak)
    if part > 100:
        return _but(found, f"The operations told are {part:,.0f}% of what its GPUs can compute in a step: they are of another unit, or too many.")
    return Mfu(row.at, seconds, row.precision, percent=round(part, 1))


def _but(found: Mfu, fault: str) -> Mfu:
    return Mfu(found.at, found.step_seconds, found.precision, fault=fault)
