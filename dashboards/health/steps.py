"""Step times that ranks report, kept as the last looks of fifteen seconds."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from django.db import transaction
from numpy.typing import NDArray

from dashboards.health.models import StepLook
from gpufleet.core.times import whole_millis

LOOK = timedelta(seconds=15)
KEPT = 8
MOST_RANKS = 65_536
LEAST_SECONDS = 1e-6  # below that a single-precision figure could be 0


def steps_report(
    *, attempt: int, ranks: int, seconds: Mapping[int, float], at: datetime, flops: float | None = None, precision: str = "bf16"
) -> None:
    """Put what ranks say into the look that `at` lies in. A later word of a rank in one look counts; impossible figures do not.

    `flops`, the operations of one step of the whole job, hold until a rank tells others.
    """
    at = whole_millis(at)
    figures = {rank: value for rank, value in seconds.items() if 0 <= rank < ranks <= MOST_RANKS and LEAST_SECONDS <= value < 86_400}
    if not figures:
        return
    with transaction.atomic():
        row = StepLook.objects.select_for_update().filter(attempt_id=attempt).first()
        looks = looks_of(row) if row is not None and row.ranks == ranks else np.full((1, ranks), np.nan, np.float32)
        if row is not None and row.ranks == ranks:
            passed = min(_look_of(at) - _look_of(row.at), KEPT)
            if passed < 0:
                return
            looks = np.vstack([looks, np.full((passed, ranks), np.nan, np.float32)])[-KEPT:] if passed else looks
        for rank, value in figures.items():
            looks[-1, rank] = value
        facts: dict[str, Any] = {"at": at, "ranks": ranks, "figures": looks.astype("<f4").tobytes()}
        if flops is not None:
            facts |= {"flops": flops, "precision": precision}
        StepLook.objects.update_or_create(attempt_id=attempt, defaults=facts)


def looks_of(row: StepLook) -> NDArray[np.float32]:
    return np.frombuffer(bytes(row.figures), "<f4").reshape(-1, row.ranks).copy()


def _look_of(at: datetime) -> int:
    return int(at.timestamp() // LOOK.total_seconds())
