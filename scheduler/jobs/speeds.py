"""How long a job takes on a type of GPU, by the relative speeds that it states. Its estimate is for speed 1."""

from collections.abc import Iterable, Mapping
from typing import Any

MILLION = 1_000_000


def speed_on(spec: Mapping[str, Any], gpu_type: str) -> float:
    """1 where nothing is stated, 0 where it can't run."""
    stated = (spec.get("throughput") or {}).get(gpu_type, 1)
    return float(stated) if isinstance(stated, int | float) else 1.0


def slowest_on(spec: Mapping[str, Any], gpu_types: Iterable[str]) -> float:
    """A gang goes at the pace of its slowest worker."""
    return min((speed_on(spec, name) for name in gpu_types), default=1.0)


def seconds_at(speed: float, estimate: int | None, limit: int | None) -> int | None:
    """How long it runs at that speed, in whole seconds rounded up; at most its limit, which counts time and not work."""
    pace = round(speed * MILLION)
    if estimate is None or pace <= 0:
        return limit
    lasts = -(-estimate * MILLION // pace)
    return lasts if limit is None else min(lasts, limit)


def as_planned(estimate: int | None, limit: int | None, overrun_millionths: int) -> int | None:
    """An estimate as plans count it: times the overrun factor, unless a limit is stated."""
    return estimate if estimate is None or limit is not None else estimate * overrun_millionths // MILLION


def is_cut(speed: float, estimate: int | None, limit: int | None) -> bool:
    """Whether its limit ends it before its work is done."""
    lasts = seconds_at(speed, estimate, None)
    return estimate is not None and limit is not None and lasts is not None and lasts > limit
