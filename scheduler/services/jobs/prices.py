"""What a change does to the price of a job, and what repeated work cost: at the guaranteed rate of now, for those who may see costs."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Sum

from gpufleet.core.money import cost_micros
from quotas.permissions import Access, Can
from quotas.selectors.rates import rates_now
from scheduler.jobs.stored import least_of, roles_of, takes_gpus, wanted_of
from scheduler.models import Job, Placement
from scheduler.selectors.windows import capacity_now


@dataclass(frozen=True, slots=True)
class Price:
    """Micro-units, before and after a change. `hourly` is the least and the most an hour, by its fewest and most GPUs and the types that it may have;
    `limit` is the most until its time limit, None where it has none."""

    hourly: tuple[tuple[int, int], tuple[int, int]]
    limit: tuple[int | None, int | None]


def price_of(access: Access, job: Job, edited: Job, *, now: datetime) -> Price | None:
    """None where the reader may not know it, or where a type that it may have has no price."""
    sizes = (_sizes(job), _sizes(edited))
    if not access.can(Can.SEE_COSTS, job.quota.path) or not all(sizes) or not any(most for _, most in filter(None, sizes)):
        return None
    rates = rates_now(now=now)
    types = set(_held([job.pk]).get(job.pk, ())) or _types(job)
    if not types or not types <= rates.keys():
        return None
    least, most = min(rates[one] for one in types), max(rates[one] for one in types)
    first, then = ((fewest * least // 1000, largest * most // 1000) for fewest, largest in filter(None, sizes))
    limits = [_until(found, size[1], most) for found, size in zip((job, edited), filter(None, sizes), strict=True)]
    return Price((first, then), (limits[0], limits[1]))


@dataclass(frozen=True, slots=True)
class Repeated:
    """Work that jobs do again: GPU time in thousandths of a GPU times seconds, and what that cost; None where the reader may not know it."""

    milli_seconds: int = 0
    micros: int | None = None


def repeated_work(access: Access, lost: Mapping[int, int], jobs: Mapping[int, Job], *, now: datetime) -> Repeated:
    """Of the seconds of work that jobs, by their keys, lose on all GPUs that they hold: a job that leaves one node leaves all of them."""
    held = _held(lost) if lost else {}
    parts = [(milli, seconds, name) for key, seconds in lost.items() for name, milli in held.get(key, {}).items()]
    total = sum(milli * seconds for milli, seconds, _ in parts)
    if not parts or not all(access.can(Can.SEE_COSTS, jobs[key].quota.path) for key in lost):
        return Repeated(total)
    rates = rates_now(now=now)
    if any(name not in rates for _, _, name in parts):
        return Repeated(total)
    micros = (cost_micros(gpu_milli=milli, millis=1000 * seconds, micros_per_gpu_hour=rates[name]) for milli, seconds, name in parts)
    return Repeated(total, sum(micros))


def _until(job: Job, milli: int, rate: int) -> int | None:
    if job.limit_seconds is None:
        return None
    return cost_micros(gpu_milli=milli, millis=1000 * job.limit_seconds, micros_per_gpu_hour=rate)


def _held(jobs: "Mapping[int, int] | list[int]") -> dict[int, dict[str, int]]:
    """Milli-GPU by type that each job holds."""
    rows = Placement.objects.filter(job__among=list(jobs), until__isnull=True, gpu__isnull=False).order_by()
    found: dict[int, dict[str, int]] = defaultdict(dict)
    for key, gpu_type, milli in rows.values_list("job_id", "gpu__gpu_type_id").annotate(milli=Sum("gpu_milli")):
        found[key][gpu_type] = milli
    return found


def _on_gpus(job: Job) -> list[Mapping[str, Any]]:
    """Its roles but those that ask for processors alone, which cost nothing."""
    return [role for role in roles_of(job.spec) if takes_gpus(role)]


def _types(job: Job) -> set[str]:
    """That it may have: those that it names, else those of the fleet, without those on which it cannot run."""
    named = [role.get("gpu_types") for role in _on_gpus(job)]
    speeds = job.spec.get("throughput") or {}
    found = {name for names in named for name in names or ()} if named and all(named) else set(capacity_now().by_type)
    return {name for name in found if speeds.get(name, 1)}


def _sizes(job: Job) -> tuple[int, int] | None:
    """The fewest and the most milli-GPU. None where several roles, some of them in parts of GPUs, leave the most unsaid."""
    ranges = [(least_of(role), wanted_of(role), 1000 * int(role.get("gpus") or 0)) for role in _on_gpus(job)]
    if all(least == most for least, most, _ in ranges):
        return job.gpus_milli, job.gpus_milli
    if all(each for _, _, each in ranges):
        return job.gpus_milli, job.gpus_milli + sum((most - least) * each for least, most, each in ranges)
    if len(ranges) == 1 and ranges[0][0]:
        return job.gpus_milli, job.gpus_milli // ranges[0][0] * ranges[0][1]
    return None
