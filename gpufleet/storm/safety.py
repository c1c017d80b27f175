"""What must hold after every event, whoever was killed: each fault is a sentence."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django.db import connection
from django.db.models import F, Window
from django.db.models.functions import Lag

from dashboards.gap.snapshot import gap_now
from scheduler.models import ENDED, HOLDING, Job, JobEvent, JobState, Order
from scheduler.selectors.reconciliation import usage_differences
from scheduler.simulation.progress import Life, Phase

# States in which a whole gang is held. A degraded job has lost workers, one that saves its work may have.
WHOLE = (JobState.STARTING, JobState.RUNNING, JobState.RESUMING)

# GPUs of which more is held than there is, or of which the timeline says something else.
SEATS = """
    SELECT gpu.id, coalesce(held.milli, 0), listed.used_milli + listed.starting_milli
    FROM gpu
    LEFT JOIN (SELECT gpu_id, sum(gpu_milli) AS milli FROM placement WHERE until IS NULL GROUP BY gpu_id) AS held ON held.gpu_id = gpu.id
    LEFT JOIN capacity_entry AS listed ON listed.gpu_id = gpu.id AND listed.until IS NULL
    WHERE held.milli > 1000 OR coalesce(held.milli, 0) <> coalesce(listed.used_milli + listed.starting_milli, 0)
"""
# Instances that are held and gone, or held twice; GPUs that are held in another way than they are split; instances that lie over one another.
SLICES = """
    SELECT 'instance ' || held.mig_id || ' is held ' || count(*) || ' times and gone: ' || (max(slice.removed_at) IS NOT NULL)
    FROM placement AS held JOIN mig_instance AS slice ON slice.id = held.mig_id
    WHERE held.until IS NULL GROUP BY held.mig_id HAVING count(*) > 1 OR max(slice.removed_at) IS NOT NULL
    UNION ALL
    SELECT 'GPU ' || gpu.id || ' is in mode ' || gpu.mode || ' and held by ' || coalesce('instance ' || held.mig_id, 'a worker without one')
    FROM placement AS held JOIN gpu ON gpu.id = held.gpu_id
    WHERE held.until IS NULL AND (gpu.mode = 'mig') <> (held.mig_id IS NOT NULL)
    UNION ALL
    SELECT 'instances ' || one.id || ' and ' || other.id || ' lie over one another'
    FROM mig_instance AS one JOIN mig_instance AS other ON other.gpu_id = one.gpu_id AND other.id > one.id
    WHERE one.removed_at IS NULL AND other.removed_at IS NULL AND one.start < other.start + other.size AND other.start < one.start + one.size
"""
# Jobs that have not ended, or that hold something all the same.
GANGS = """
    SELECT job.public_id, job.state, job.gpus_milli, job.degraded_since,
        coalesce(runs.number, 0), coalesce(runs.attempts, 0), coalesce(seats.milli, 0)
    FROM job
    LEFT JOIN (SELECT job_id, count(*) AS attempts, max(number) AS number FROM attempt WHERE ended_at IS NULL GROUP BY job_id) AS runs
        ON runs.job_id = job.id
    LEFT JOIN (SELECT job_id, sum(gpu_milli) AS milli FROM placement WHERE until IS NULL GROUP BY job_id) AS seats ON seats.job_id = job.id
    WHERE job.ended_at IS NULL OR runs.attempts > 0 OR seats.milli > 0
"""
# The open ends of the ledger are the open placements.
RECORDS = """
    SELECT attempt, role, worker, sum(milli) FROM (
        SELECT attempt_id AS attempt, role, worker, gpu_milli AS milli FROM placement WHERE until IS NULL AND gpu_id IS NOT NULL
        UNION ALL
        SELECT attempt, role, worker, -gpu_milli FROM ledger_entry WHERE until IS NULL
    ) AS held
    GROUP BY attempt, role, worker HAVING sum(milli) <> 0
"""


class Unsafe(Exception):
    """Something that must never be was."""


class Gang(NamedTuple):
    name: str
    state: str
    wanted: int
    degraded_since: Any
    attempt: int
    attempts: int
    held: int


def present_faults(lives: list[Life], *, parts: bool) -> Iterator[str]:
    """About what is now. Asked after every event, so each question is one that the database answers at once."""
    with connection.cursor() as cursor:
        yield from _seats(_rows(cursor, SEATS))
        if parts:
            yield from (said for (said,) in _rows(cursor, SLICES))
        gangs = [Gang(*row) for row in _rows(cursor, GANGS)]
        yield from _gangs(gangs)
        for attempt, role, worker, milli in _rows(cursor, RECORDS):
            yield f"attempt {attempt}, {role} {worker}: placements and ledger differ by {milli}"
    yield from _truth(lives, {f"{gang.name}.{gang.attempt}" for gang in gangs if gang.attempts})


def _rows(cursor: Any, question: str, *given: int) -> list[tuple[Any, ...]]:
    cursor.execute(question, given)
    found: list[tuple[Any, ...]] = cursor.fetchall()
    return found


def gap_faults(now: datetime) -> Iterator[str]:
    """The parts of the utilization gap are the fleet, and what they give to jobs is what jobs hold, to the thousandth of a GPU."""
    parts = gap_now(now=now)
    with connection.cursor() as cursor:
        ((gpus,),) = _rows(
            cursor, "SELECT count(*) FROM gpu JOIN node ON node.id = gpu.node_id WHERE gpu.removed_at IS NULL AND node.removed_at IS NULL"
        )
        ((held,),) = _rows(cursor, "SELECT coalesce(sum(gpu_milli), 0) FROM placement WHERE until IS NULL AND gpu_id IS NOT NULL")
    told = sum(milli for part, milli in parts.items() if part.job_class)
    if sum(parts.values()) != 1000 * gpus:
        yield f"the parts of the gap are {sum(parts.values())} thousandths of {gpus} GPUs"
    if told != held:
        yield f"the gap gives {told} thousandths to jobs, which hold {held}"


def history_faults() -> Iterator[str]:
    """About all that was. It grows with the storm, so it is asked now and then."""
    for difference in usage_differences():
        yield f"{difference.what} ({difference.gpu_millis} GPU-microseconds)"
    before = Window(Lag("to_state"), partition_by=F("job"), order_by="id")
    for event in JobEvent.objects.annotate(before=before).values("job_id", "from_state", "before", "to_state"):
        if event["before"] is not None and event["from_state"] and event["from_state"] != event["before"]:
            yield f"job {event['job_id']} went from {event['from_state']} to {event['to_state']} and was {event['before']}"


def _seats(odd: list[tuple[Any, ...]]) -> Iterator[str]:
    for gpu, held, listed in odd:
        if held > 1000:
            yield f"GPU {gpu} is held {held} thousandths"
        if listed is None:
            yield f"GPU {gpu} is held and has no timeline"
        elif listed != held:
            yield f"GPU {gpu} is held {held} thousandths, and its timeline says {listed}"


def _gangs(gangs: list[Gang]) -> Iterator[str]:
    for gang in gangs:
        holding = gang.state in HOLDING
        if gang.attempts != (1 if holding else 0):
            yield f"{gang.name} is {gang.state} with {gang.attempts} open attempts"
        if not holding and gang.held:
            yield f"{gang.name} is {gang.state} and holds {gang.held} thousandths"
        # A gang that loses workers before all of them are up is degraded, too, and known by the moment alone.
        if gang.state in WHOLE and gang.degraded_since is None and gang.held < gang.wanted:
            yield f"{gang.name} is {gang.state} with a partial gang: {gang.held} of {gang.wanted}"


def _truth(lives: list[Life], open_attempts: set[str]) -> Iterator[str]:
    """What truly runs: no GPU beyond what it has, no instance twice, and nothing that the scheduler did not begin or has given up."""
    users: dict[tuple[str, int], list[tuple[int, str]]] = defaultdict(list)
    for life in lives:
        if life.phase == Phase.ENDED:
            continue
        if life.key not in open_attempts:
            yield f"{life.key} runs, and the scheduler has no open attempt of it"
        for member in life.members:
            if not member.lost:
                for gpu in member.gpus:
                    users[member.node, gpu].append((member.milli, life.key))
    for (node, gpu), there in users.items():
        if len(there) > 1 and sum(milli for milli, _ in there) > 1000:
            yield f"GPU {gpu} of {node} is used by {' and '.join(key for _, key in there)} at once"


@dataclass
class Plans:
    """Looks at each plan once: the engine's own checks have let it pass, and whoever wrote it did lead."""

    seen: int = 0
    epoch: int = 0

    def faults(self) -> Iterator[str]:
        with connection.cursor() as cursor:
            fresh = _rows(cursor, "SELECT id, epoch, fault FROM plan_record WHERE id > %s ORDER BY id", self.seen)
        for key, epoch, fault in fresh:
            if fault:
                yield f"plan {key}: {fault}"
            if epoch < self.epoch:
                yield f"plan {key} was written under epoch {epoch}, after one of epoch {self.epoch}: its writer had lost the lease"
            self.seen, self.epoch = key, max(epoch, self.epoch)


def stuck_jobs() -> list[str]:
    """Once the weather is calm and time has passed: what has not ended."""
    waiting = Job.objects.exclude(state__in=ENDED).filter(held_at__isnull=True).order_by("id").values_list("public_id", "state", "state_since")
    orders = Order.objects.filter(done_at__isnull=True).order_by("id").values_list("kind", "attempt__job__public_id", "fault")
    return [f"{name} is {state} since {since:%m-%d %H:%M:%S}" for name, state, since in waiting] + [
        f"order {kind} of {name} is not done: {fault}" for kind, name, fault in orders
    ]
