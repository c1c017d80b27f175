"""What a breach leads to, as pages and programs read it: the job beside the service that is evicted next, those that were, and what helps."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from dashboards.slo.causes import ceil_of
from dashboards.slo.models import BreachCause, ServiceLevel
from dashboards.slo.words import ms_told
from gpufleet.core.templatetags.shell import plural
from scheduler.engine.relief import GUARANTEE, LEAVING, LONG_WAIT, NO_CHECKPOINT, NOT_PREEMPTIBLE, SERVES, SILENT, STARTING, WORTH
from scheduler.jobs.stored import is_elastic, least_of, most_of, roles_of, wanted_of
from scheduler.loop.policy import relief_now
from scheduler.models import HOLDING, Job, Relief, Relieved, ReplicaRule
from scheduler.selectors.discretion import Discretion

SHOWN = 10
STAYS = {
    LEAVING: "{} is already leaving.",
    SERVES: "{} is a service itself.",
    STARTING: "{} has only just been placed.",
    NOT_PREEMPTIBLE: "{} is not preemptible.",
    NO_CHECKPOINT: "{} has no checkpoint.",
    LONG_WAIT: "{} started after a long wait and is protected.",
    GUARANTEE: "{} runs inside its guarantee.",
    WORTH: "{} would lose more work than the fleet-wide rule Worth allows.",
    SILENT: "{} runs on a cluster that is not responding.",
}


@dataclass(frozen=True, slots=True)
class Next:
    """`state`: `off` (the fleet-wide rule asks for nothing), `next` (a job is evicted at `at`, if the breach lasts), `stays` (no job can be),
    `gone` (none is left beside it) or `looking` (the scheduler has not looked yet). `name` is empty where the reader may not know the job."""

    state: str
    name: str = ""
    at: datetime | None = None
    stays: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """One job that was evicted for it. `until` None: it stays away as long as the breach goes on. `name` as in `Next`."""

    name: str
    at: datetime
    figure: str
    latency_ms: float
    objective_ms: int
    lost_gpu_seconds: int
    until: datetime | None

    @property
    def latency_told(self) -> str:
        return ms_told(self.latency_ms)

    @property
    def objective_told(self) -> str:
        return ms_told(self.objective_ms)


@dataclass(frozen=True, slots=True)
class Help:
    """What ends missing capacity, and the page of the job on which it is done."""

    text: str
    page: str
    label: str


def relief_rows(job: Job, cause: str | None) -> tuple[Relief | None, list[Relieved]]:
    """`cause`: that of the breach that goes on. Two queries."""
    done = list(Relieved.objects.filter(service=job).order_by("-at", "-pk").select_related("job")[:SHOWN])
    return (Relief.objects.filter(job=job).first() if cause == BreachCause.CO_TENANT else None), done


def relief_names(row: Relief | None, done: Sequence[Relieved]) -> list[str]:
    """All that its sentences may name."""
    return [*([row.next_job, *row.refused] if row is not None else []), *(one.job.public_id for one in done)]


def next_told(row: Relief | None, discretion: Discretion) -> Next:
    if relief_now() is None:
        return Next("off")
    if row is None:
        return Next("looking")
    if row.since is None:
        return Next("gone")
    stays = tuple(_sentence(STAYS[code].format(discretion.text(name))) for name, code in sorted(row.refused.items()))
    if row.next_job:
        return Next("next", _known(row.next_job, discretion), row.next_at, stays)
    return Next("stays", stays=stays) if stays else Next("looking")


def done_told(rows: Sequence[Relieved], discretion: Discretion) -> tuple[Done, ...]:
    return tuple(
        Done(_known(one.job.public_id, discretion), one.at, one.figure, one.latency_ms, one.objective_ms, one.lost_gpu_seconds, one.until)
        for one in rows
    )


def helps_of(job: Job, level: ServiceLevel) -> tuple[Help, ...]:
    """Of a service that lacks replicas. None for a job that waits as a whole: its page says why, and its class preempts by itself."""
    if job.state not in HOLDING:
        return ()
    roles = roles_of(job.spec)
    least, most, now = sum(map(least_of, roles)), sum(map(most_of, roles)), sum(map(wanted_of, roles))
    wanted = ceil_of(level.replicas_wanted)
    wanted = least if wanted is None else wanted
    found = []
    if now < min(wanted, most) and any(map(is_elastic, roles)):
        follows = ReplicaRule.objects.filter(job=job).exists()
        text = f"Set {plural(min(wanted, most), 'replica')}, or let it follow its metric."
        found.append(Help("It follows its metric: the next reading adds replicas." if follows else text, "job_replicas", "Set replicas"))
    if wanted > most:
        found.append(Help(f"Its description allows at most {plural(most, 'replica')}: raise that.", "job_change", "Change"))
    if found:
        return tuple(found)
    if level.replicas < least:
        return (Help("The scheduler preempts lower work for the missing replicas, as they are part of the minimum.", "job_change", "Change"),)
    text = "The missing replicas wait for idle GPUs: above the minimum they preempt no job. A higher minimum lets the next ones do so."
    return (Help(text, "job_change", "Change"),)


def _known(name: str, discretion: Discretion) -> str:
    return name if discretion.text(name) == name else ""


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] if text.startswith("another") else text
