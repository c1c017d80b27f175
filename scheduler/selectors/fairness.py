"""Time-based fairness of one node of the quota tree (QTA-4): what it held, and its past usage as the scheduler counted it at the time."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import numpy as np
import numpy.typing as npt
from django.db.models import Q
from django.db.models.fields.json import KeyTransform

from gpufleet.core.times import MILLISECOND, millis
from quotas.models import LedgerEntry, QuotaNode
from quotas.permissions import at_or_below
from scheduler.models import ShareStep, UsageStep

Values = list[float | None]
MISSED = timedelta(hours=2)  # an hour that no forecast was made in is not drawn on


def held_course(path: str, gpu_type: str, since: datetime, until: datetime, step: timedelta) -> npt.NDArray[np.float64]:
    """Mean GPUs that the node held with all below it, as the tree was then, in each step."""
    rows = LedgerEntry.objects.filter(at_or_below(path, "quota_path"), gpu_type=gpu_type, since__lt=until)
    found = rows.filter(Q(until__isnull=True) | Q(until__gt=since)).values_list("since", "until", "gpu_milli")
    spans = [(millis(begin), millis(end or until), milli) for begin, end, milli in found]
    edges = np.arange(millis(since), millis(until) + 1, step // MILLISECOND, dtype=np.int64)
    if not spans:
        return np.zeros(len(edges) - 1)
    table = np.array(spans, dtype=np.int64)
    begun = _integral(table[:, 0], table[:, 2], edges) - _integral(table[:, 1], table[:, 2], edges)
    held: npt.NDArray[np.float64] = np.diff(begun) / (step / MILLISECOND) / 1000
    return held


def _integral(at: npt.NDArray[np.int64], milli: npt.NDArray[np.int64], edges: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Of what began at those moments, all of it times its length, until each edge."""
    order = np.argsort(at, kind="stable")
    at, milli = at[order] - edges[0], milli[order]
    count = np.searchsorted(at, edges - edges[0], side="right")
    sums = np.concatenate([[0], np.cumsum(milli)])
    weighted = np.concatenate([[0.0], np.cumsum(milli.astype(float) * at)])
    result: npt.NDArray[np.float64] = sums[count] * (edges - edges[0]).astype(float) - weighted[count]
    return result


def decayed_course(node: QuotaNode, gpu_type: str, moments: Sequence[datetime], half_life_seconds: int) -> Values:
    """The part of the fleet's decayed capacity that the node used, as of each moment; None where the scheduler had not summed it up."""
    if not moments:
        return []
    keys = {str(key) for key in QuotaNode.objects.filter(Q(pk=node.pk) | Q(path__startswith=f"{node.path}/")).values_list("pk", flat=True)}
    steps = UsageStep.objects.filter(half_life_seconds=half_life_seconds, at__lte=moments[-1]).order_by("at")
    known = []
    for at, used, capacity in steps.values_list("at", "used", "capacity"):
        mine = sum(kinds.get(gpu_type, 0) for key, kinds in used.items() if key in keys)
        if capacity.get(gpu_type):
            known.append((at, mine / capacity[gpu_type]))
    found: Values = []
    place = -1
    for moment in moments:
        while place + 1 < len(known) and known[place + 1][0] <= moment:
            place += 1
        found.append(known[place][1] if place >= 0 else None)
    return found


def fair_course(node: QuotaNode, gpu_type: str, moments: Sequence[datetime]) -> Values:
    """The fair share of the node in GPUs, as of each moment; None where the scheduler had not divided the fleet."""
    if not moments:
        return []
    steps = ShareStep.objects.filter(at__gt=moments[0] - MISSED, at__lte=moments[-1]).order_by("at")
    told = steps.values_list("at", KeyTransform(gpu_type, KeyTransform(node.public_id, "fair")))
    known = [(at, (milli or 0) / 1000) for at, milli in told]
    found: Values = []
    place = -1
    for moment in moments:
        while place + 1 < len(known) and known[place + 1][0] <= moment:
            place += 1
        found.append(known[place][1] if place >= 0 and moment - known[place][0] < MISSED else None)
    return found
