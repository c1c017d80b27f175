"""The demo's sweep: the latest trials that one person has submitted for one team, as elements of one array."""

from collections import Counter

from gpufleet.core.ids import public_ids
from scheduler.models import Job

LOOKED_AT, MOST = 400, 24
RATES = ("1e-3", "3e-4", "1e-4", "3e-5")
NAME = "sweep-lr"


def sweep_seed() -> None:
    """Of the demo's past, before anybody looks at it: whose trials they are and how they fared stays as it was."""
    trials = list(Job.objects.filter(name__startswith=f"{NAME}-").order_by("-submitted_at", "-pk")[:LOOKED_AT])
    whose = Counter((job.quota_id, job.owner_id) for job in trials)
    if not whose:
        return
    most = max(whose, key=lambda pair: (whose[pair], pair))
    chosen = sorted((job for job in trials if (job.quota_id, job.owner_id) == most), key=lambda job: (job.submitted_at, job.pk))[-MOST:]
    (array,) = public_ids("a", 1)
    for place, job in enumerate(chosen):
        job.array, job.array_index, job.name = array, place, f"{NAME}[{place}]"
        job.parameters = {"LR": RATES[place % len(RATES)], "SEED": str(1 + place // len(RATES))}
    Job.objects.bulk_update(chosen, ["array", "array_index", "name", "parameters"])
