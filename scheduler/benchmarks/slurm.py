"""The console's side of `gpufleet bench slurm`: quotas over an imported cluster, and what became of each job.

Runs inside a console's own process (`manage.py shell`): what it prints is one line of JSON.
"""

from collections.abc import Callable
from typing import Any

from scheduler.benchmarks.loop import FREE, person, say, tree
from scheduler.models import Attempt, Gpu, GpuType

TEAM = "org/team"


def world() -> None:
    """One team that is promised all GPUs of the cluster."""
    GpuType.objects.get_or_create(name=FREE, defaults={"board": "", "memory_mib": 81_559})
    tree([TEAM], Gpu.objects.filter(removed_at__isnull=True).count())
    say({"tokens": person()})


def attempts() -> None:
    """Of each job its attempts' keys, outcomes, and why each ended so."""
    rows = Attempt.objects.order_by("pk").values_list("job__name", "job__public_id", "number", "outcome", "cause")
    say([{"name": name, "key": f"{job}.{number}", "outcome": outcome, "cause": cause} for name, job, number, outcome, cause in rows])


MEASURES: dict[str, Callable[..., Any]] = {"world": world, "attempts": attempts}
