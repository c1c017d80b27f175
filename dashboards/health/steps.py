"""Step times that ranks report, over HTTP or by a file, kept as the last looks of fifteen seconds."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, get_args

import numpy as np
from django.db import transaction
from numpy.typing import NDArray

from dashboards.health.models import StepLook
from dashboards.telemetry.peaks import Precision
from gpufleet.core.times import whole_millis
from scheduler.backends.base import SeenSteps

LOOK = timedelta(seconds=15)
KEPT = 8
MOST_RANKS = 65_536
# A file is written anew with each report: one that is older than any reading says nothing, nor does one from the future.
FILE_COUNTS, AHEAD = timedelta(seconds=45), timedelta(seconds=5)
PRECISIONS = frozenset(get_args(Precision))
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


def steps_of_files(*, told: Sequence[tuple[int, SeenSteps]], now: datetime, **rest: Any) -> None:
    """Put what files say into the looks in which they were written, once each. A file of another time than about now says nothing."""
    by_look: dict[tuple[int, int], list[SeenSteps]] = defaultdict(list)
    for attempt, one in sorted(told, key=lambda pair: (pair[0], pair[1].at)):
        if now - FILE_COUNTS <= one.at <= now + AHEAD:
            by_look[attempt, _look_of(one.at)].append(one)
    newest = dict(StepLook.objects.filter(attempt__in={attempt for attempt, _ in by_look}).values_list("attempt_id", "at")) if by_look else {}
    for (attempt, _), files in by_look.items():
        last = files[-1]
        if attempt in newest and last.at <= newest[attempt]:
            continue
        same = [one for one in files if one.ranks == last.ranks]
        counted = next((one for one in reversed(same) if one.flops is not None and one.precision in PRECISIONS), None)
        steps_report(
            attempt=attempt,
            ranks=last.ranks,
            seconds={rank: value for one in same for rank, value in one.seconds},
            at=last.at,
            flops=counted.flops if counted else None,
            precision=counted.precision if counted else "bf16",
        )


def looks_of(row: StepLook) -> NDArray[np.float32]:
    return np.frombuffer(bytes(row.figures), "<f4").reshape(-1, row.ranks).copy()


def _look_of(at: datetime) -> int:
    return int(at.timestamp() // LOOK.total_seconds())
