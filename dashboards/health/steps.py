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
from scheduler.models import Placement

LOOK = timedelta(seconds=15)
KEPT = 8
MOST_RANKS = 65_536
FEW_RANKS = 1024  # 32 KiB: a job may have so many whatever it holds, as ranks of processors are; beyond that a rank a place
# A file is written anew with each report: one that is older than any reading says nothing, nor does one from the future.
FILE_COUNTS, AHEAD = timedelta(seconds=45), timedelta(seconds=5)
PRECISIONS = frozenset(get_args(Precision))
LEAST_SECONDS = 1e-6  # below that a single-precision figure could be 0


def steps_report(
    *, attempt: int, ranks: int, seconds: Mapping[int, float], at: datetime, flops: float | None = None, precision: str = "bf16"
) -> None:
    """Put what ranks say into the look that `at` lies in. A later word of a rank in one look counts; impossible figures do not.

    Nor do those of a gang that is larger than what its attempt holds.

    `flops`, the operations of one step of the whole job, hold until a rank tells others.
    """
    at = whole_millis(at)
    if not _may_have(attempt, ranks):
        return
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
    """Put what files say into the looks in which they were written, once each. A file of another time than about now says nothing.

    A file that is older than what is known of its gang was seen late, as that of another cluster: it tells what its ranks have not told yet.
    """
    about_now = sorted(((key, one) for key, one in told if now - FILE_COUNTS <= one.at <= now + AHEAD), key=lambda pair: (pair[0], pair[1].at))
    rows = StepLook.objects.in_bulk({key for key, _ in about_now}) if about_now else {}
    by_look: dict[tuple[int, int], list[SeenSteps]] = defaultdict(list)
    late: dict[int, list[SeenSteps]] = defaultdict(list)
    for key, one in about_now:
        row = rows.get(key)
        if row is None or one.at > row.at:
            by_look[key, _look_of(one.at)].append(one)
        else:
            late[key].append(one)
    for key, files in late.items():
        if _filled(rows[key], files):
            _fill(key, files)
    for (key, _), files in by_look.items():
        last = files[-1]
        same = [one for one in files if one.ranks == last.ranks]
        counted = next((one for one in reversed(same) if one.flops is not None and one.precision in PRECISIONS), None)
        steps_report(
            attempt=key,
            ranks=last.ranks,
            seconds={rank: value for one in same for rank, value in one.seconds},
            at=last.at,
            flops=counted.flops if counted else None,
            precision=counted.precision if counted else "bf16",
        )


def _filled(row: StepLook, files: Sequence[SeenSteps]) -> bool:
    """Put what files say of ranks that have said nothing in their look. Whether there was anything."""
    looks, changed = looks_of(row), False
    for one in files:
        place = _look_of(one.at) - _look_of(row.at) - 1
        if one.ranks != row.ranks or -place > len(looks):
            continue
        for rank, value in one.seconds:
            if np.isnan(looks[place, rank]) and LEAST_SECONDS <= value < 86_400:
                looks[place, rank], changed = value, True
        if row.flops is None and one.flops is not None and one.precision in PRECISIONS:
            row.flops, row.precision, changed = one.flops, one.precision, True
    row.figures = looks.astype("<f4").tobytes()
    return changed


def _fill(attempt: int, files: Sequence[SeenSteps]) -> None:
    with transaction.atomic():
        row = StepLook.objects.select_for_update().filter(attempt_id=attempt).first()  # its attempt may be gone by now
        if row is not None and _filled(row, files):
            row.save(update_fields=["figures", "flops", "precision"])


def _may_have(attempt: int, ranks: int) -> bool:
    return ranks <= FEW_RANKS or ranks <= Placement.objects.filter(attempt=attempt, until__isnull=True).count()


def looks_of(row: StepLook) -> NDArray[np.float32]:
    return np.frombuffer(bytes(row.figures), "<f4").reshape(-1, row.ranks).copy()


def _look_of(at: datetime) -> int:
    return int(at.timestamp() // LOOK.total_seconds())
