"""Why a service is over its objective, as far as the data says: replicas that are missing, or others on its GPUs."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil

from dashboards.slo.models import BreachCause, ServiceLevel
from gpufleet.core.templatetags.shell import plural
from scheduler.jobs.stored import least_of, most_of, roles_of, wanted_of
from scheduler.models import HOLDING, BesideHow, JobState, Outlook, Placement

# A job that came to the node of a service so shortly before the breach, or in it, may be its cause; one that has stood there all along is none.
NEW = timedelta(minutes=30)
NAMED = 3


@dataclass(frozen=True, slots=True)
class Cause:
    """`said` may name jobs of others; `publicly` names none, for whoever is told without having asked. `beside`: of co-tenants, all of them."""

    kind: str = BreachCause.UNKNOWN
    said: str = ""
    publicly: str = ""
    beside: tuple[str, ...] = ()
    how: str = BesideHow.SHARES


def _unknown(level: ServiceLevel) -> Cause:
    known = "How many replicas are wanted is not known" if level.replicas_wanted is None else "It has the replicas that it wants"
    said = f"{known}, and no other job is new on its nodes."
    return Cause(said=said, publicly=said)


def ceil_of(replicas: float | None) -> int | None:
    """A part of a replica is one more, but for what a sum of fractions is off by."""
    return None if replicas is None else ceil(round(replicas, 6))


def replicas_of(jobs: Collection[int]) -> dict[int, int]:
    """How many workers of each job have their place and do not leave it."""
    rows = Placement.objects.filter(job__among=sorted(jobs), until__isnull=True, leaving_since__isnull=True)
    found: dict[int, int] = defaultdict(int)
    for job, *_ in rows.order_by().values_list("job_id", "role", "worker").distinct():
        found[job] += 1
    return found


def causes_of(levels: Mapping[int, ServiceLevel], since: Mapping[int, datetime]) -> dict[int, Cause]:
    """By job. `since`: when the breach of each began. Three queries at most, however many."""
    found = {job: cause for job, level in levels.items() if (cause := _capacity(level))}
    rest = {job: level for job, level in levels.items() if job not in found}
    waiting = [job for job in found if levels[job].job.state not in HOLDING]
    for job, reasons in Outlook.objects.filter(job__among=waiting).values_list("job_id", "reasons") if waiting else ():
        if reasons and (detail := str(reasons[0].get("detail", "")).strip().rstrip(".")):
            found[job] = Cause(BreachCause.CAPACITY, f"{found[job].said} It waits: {detail}."[:400], found[job].publicly)
    beside = _beside(rest, since) if rest else {}
    return found | {job: beside.get(job) or _unknown(level) for job, level in rest.items()}


def _capacity(level: ServiceLevel) -> Cause | None:
    roles, wanted = roles_of(level.job.spec), ceil_of(level.replicas_wanted)
    least, most = sum(map(least_of, roles)), sum(map(most_of, roles))
    # Where no autoscaler says more, its gang wants its minimum.
    wanted = least if wanted is None else wanted
    if wanted <= level.replicas:
        return None
    said = f"Runs {level.replicas} of {plural(wanted, 'replica')} wanted."
    if level.job.state not in HOLDING:
        state = JobState(level.job.state).label.lower()
        return Cause(BreachCause.CAPACITY, f"{said} The job is {state}.", f"{said} The job is {state}.")
    now = sum(map(wanted_of, roles))
    if level.replicas >= most:
        said = f"{said} Its description allows at most {most}."
    elif level.replicas >= now:
        said = f"{said} It is set to {plural(now, 'replica')}."
    return Cause(BreachCause.CAPACITY, said, said)


def _beside(levels: Mapping[int, ServiceLevel], since: Mapping[int, datetime]) -> dict[int, Cause]:
    """Others on the same GPUs, then others that came to the same nodes just before, or while the breach lasts."""
    open_ones = Placement.objects.filter(until__isnull=True)
    mine = list(open_ones.filter(job__among=sorted(levels)).order_by("node__name", "pk").values_list("job_id", "node_id", "node__name", "gpu_id"))
    gpus: dict[int, set[int]] = defaultdict(set)
    nodes: dict[int, dict[int, str]] = defaultdict(dict)
    for job, node, name, gpu in mine:
        nodes[job][node] = name
        if gpu is not None:
            gpus[job].add(gpu)
    every = sorted({node for of_job in nodes.values() for node in of_job})
    others: dict[int, list[tuple[int, str, int | None, datetime]]] = defaultdict(list)
    for job, name, node, gpu, at in (
        open_ones.filter(node__among=every).order_by("job_id", "pk").values_list("job_id", "job__public_id", "node_id", "gpu_id", "since")
    ):
        others[node].append((job, name, gpu, at))
    found = {}
    for job, here in nodes.items():
        sharing = {name for node in here for other, name, gpu, _ in others[node] if other != job and gpu is not None and gpu in gpus[job]}
        if sharing:
            found[job] = _co_tenant(sharing, BesideHow.SHARES, "shares its GPUs", "share its GPUs")
            continue
        came = {name: at for node in here for other, name, _, at in others[node] if other != job and at >= since[job] - NEW}
        if came:
            minutes = int(NEW.total_seconds()) // 60
            when = f"within {minutes} minutes before" + (" or while it was slow" if max(came.values()) > since[job] else "")
            found[job] = _co_tenant(came.keys(), BesideHow.CAME, f"came to its node {when}", f"came to its nodes {when}")
    return found


def _co_tenant(names: Collection[str], how: str, one: str, many: str) -> Cause:
    told = sorted(names, key=lambda name: (len(name), name))
    verb = one if len(told) == 1 else many
    named = ", ".join(told[:NAMED]) + (f" and {len(told) - NAMED} more" if len(told) > NAMED else "")
    counted = "Another job" if len(told) == 1 else f"{len(told)} other jobs"
    return Cause(BreachCause.CO_TENANT, f"{named} {verb}.", f"{counted} {verb}.", tuple(told), how)
