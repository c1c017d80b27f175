"""Windows that are in force, for whoever counts what is promised: the ledger, the engine's snapshot, budgets of capacity."""

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from django.db.models import Q, QuerySet

from gpufleet.core.prepared import Prepared
from quotas.models import Window

COLUMNS = ("reservation__quota__path", "reservation__job_class", "reservation__gpu_type", "reservation__gpus_milli")
IN_FORCE: Prepared[tuple[str | None, str, str, int]] = Prepared(lambda at: lasting_at(at).order_by("id").values_list(*COLUMNS))


def lasting_at(at: datetime) -> QuerySet[Window]:
    """Windows that last at a moment and hold what they promise."""
    return Window.objects.filter(Q(ends_at__isnull=True) | Q(ends_at__gt=at), starts_at__lte=at, released_at__isnull=True)


class InForce(NamedTuple):
    """GPUs of a type that a subtree, or a class, is promised beyond the guarantees."""

    path: str | None
    job_class: str
    gpu_type: str
    milli: int


def of_class(windows: Iterable[InForce]) -> dict[tuple[str, str], int]:
    """What a class is promised of a type, by both."""
    found: dict[tuple[str, str], int] = {}
    for window in windows:
        if window.path is None:
            found[window.job_class, window.gpu_type] = found.get((window.job_class, window.gpu_type), 0) + window.milli
    return found
