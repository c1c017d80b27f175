"""Runs of a template with telemetry of their GPUs in the store, minute by minute."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import numpy as np

from dashboards.fingerprints.phases import Floats
from dashboards.models import TelemetryMinute
from dashboards.telemetry.packing import ids_packed
from quotas.models import QuotaNode
from scheduler.models import Attempt, Gpu, JobState, Placement
from scheduler.services.jobs.templates import template_save
from tests import builders
from tests.builders import NOON
from tests.personas import Personas

MINUTE = timedelta(minutes=1)


def template_made(personas: Personas, path: str = "acme/research/nlp", name: str = "train") -> str:
    """The key of a new template, as jobs keep it."""
    version = template_save(
        access=personas.access("superuser"), node=QuotaNode.objects.get(path=path), name=name, title=name.capitalize(), body={"gpus": 1}, now=NOON
    )
    return version.template.public_id


def run_made(template: str | None, gpus: Sequence[Gpu], *, since: datetime, until: datetime | None, on: QuotaNode | None = None) -> Attempt:
    """A run that held these GPUs, a second before it was running."""
    state = JobState.RUNNING if until is None else JobState.COMPLETED
    job = builders.job(state=state, template=template, template_version=1, **({"on": on} if on else {}))
    run = builders.attempt(job, started_at=since - timedelta(seconds=1), running_at=since, ended_at=until)
    for gpu in gpus:
        Placement.objects.create(attempt=run, job=job, node=gpu.node, gpu=gpu, since=since - timedelta(seconds=1), until=until)
    return run


def minutes_stored(gpus: Sequence[Gpu], counters: Mapping[str, Floats], *, since: datetime) -> None:
    """The same readings of each of these GPUs of one cluster, two frames a minute; what is NaN was not read."""
    ids = ids_packed(np.array(sorted(gpu.pk for gpu in gpus), np.uint32))
    rows = []
    for minute in range(len(counters["sm"])):
        columns = {}
        for name, values in counters.items():
            read = not np.isnan(values[minute])
            total = round(2 * float(values[minute])) if read else 0
            columns |= {f"{name}_sum": np.full(len(gpus), total, "<u2").tobytes(), f"{name}_read": np.full(len(gpus), 2 * read, "u1").tobytes()}
        rows.append(TelemetryMinute(cluster_id=gpus[0].node.cluster_id, at=since + minute * MINUTE, frames=2, gpu_ids=ids, **columns))
    TelemetryMinute.objects.bulk_create(rows)
