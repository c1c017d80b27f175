"""What a job waits for, in one word: for its quota, for GPUs, or because it is kept aside."""

from collections.abc import Iterable, Mapping
from typing import Any

from scheduler.models import WaitKind

OF_QUOTA = ("limit", "guarantee", "budget")
OF_ROOM = ("capacity", "fragmentation", "topology", "sharing")
ASIDE = ("hold", "held", "retry", "dependency", "aside", "deferred")
# For what a job is deferred, by what its description says.
DEFERRED_FOR = {"price": "a lower price of energy", "carbon": "energy with less CO2"}


def wait_kind(reasons: Iterable[Mapping[str, Any]]) -> str:
    """Of all that stands in its way. Above its fair share it may still have what is idle, so what it waits for is GPUs.

    With several GPU types it waits for quota only where none of them has a quota and lacks room.
    """
    told = list(reasons)
    if any(reason.get("code") in ASIDE for reason in told):
        return WaitKind.ASIDE
    of_quota = [reason.get("type") for reason in told if reason.get("code") in OF_QUOTA]
    if not of_quota:
        return WaitKind.GPUS
    lacking = [reason.get("type") for reason in told if reason.get("code") in OF_ROOM]
    return WaitKind.QUOTA if None in of_quota or all(kind in of_quota for kind in lacking) else WaitKind.GPUS
