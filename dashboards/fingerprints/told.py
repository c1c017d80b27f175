"""What pages say of the load to come: a chart of the next hours, and what it rests on."""

from dataclasses import dataclass
from datetime import datetime

from dashboards.fingerprints.fleet import STEP, FleetAhead, fleet_ahead
from gpufleet.core.charts import Chart, Series, over_time
from gpufleet.core.templatetags.shell import plural
from quotas.models import QuotaNode

HOURS = 4


@dataclass(frozen=True, slots=True)
class AheadTold:
    """Of running jobs, `whose` if they are not all. `rests` says of how many it is, and of how many it is not."""

    found: FleetAhead
    whose: str = ""
    hours: int = HOURS

    @property
    def at(self) -> datetime:
        return self.found.since

    @property
    def rests(self) -> str:
        return _rests(self.found)

    @property
    def chart(self) -> Chart:
        return _chart(self.found, self.whose)


def ahead_told(*, now: datetime, gpu_type: str = "", quota: QuotaNode | None = None) -> AheadTold:
    """Of all running jobs, or those on a GPU type, or of a node of the quota tree and all below it."""
    found = fleet_ahead(hours=HOURS, now=now, gpu_type=gpu_type, quota=quota)
    return AheadTold(found, gpu_type or (quota.path if quota is not None else ""))


def _chart(found: FleetAhead, whose: str) -> Chart:
    """What is expected to compute, with the range in which it lies eight times in ten."""
    at = [found.since + number * STEP for number in range(len(found.steps))]

    def column(name: str) -> list[float | None]:
        return [round(getattr(step, name), 1) if found.jobs else None for step in found.steps]

    saving = column("saving")
    series = [
        Series("Allocated to these jobs", [found.gpus if found.jobs else None] * len(at), "held"),
        Series("Low", column("low"), "used", "low"),
        Series("High", column("high"), "used", "high"),
        Series("Computing", column("computing"), "used"),
        *([Series("Saving a checkpoint", saving, "series-3")] if any(saving) else []),
    ]
    return over_time(label=f"Expected load{f' of {whose}' if whose else ''}, next {HOURS} hours", unit="GPUs", at=at, series=series)


def _rests(found: FleetAhead) -> str:
    if not found.jobs and not found.other_jobs:
        return "No job runs on whole GPUs."
    if not found.jobs:
        return f"Too little is known of {plural(found.other_jobs, 'running job')}: phases are learned from three runs of a template."
    said = f"{plural(found.jobs, 'running job')} on {plural(found.gpus, 'GPU')}, if all continue and no others start."
    if not found.other_jobs:
        return said
    are = "is" if found.other_jobs == 1 else "are"
    return f"{said} {plural(found.other_jobs, 'more job')} on {plural(found.others, 'GPU')} {are} not included: too few runs are known."
