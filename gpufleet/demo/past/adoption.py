"""Where the past ends, its running jobs become runs of the simulated back-end, which goes on with them as with those that it started itself."""

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from gpufleet.core.times import millis
from gpufleet.demo.past.world import Run, Seat, Work
from scheduler.backends.base import attempt_key
from scheduler.backends.memory import lives_adopt
from scheduler.models import Checkpoint, Gpu, JobState, MigInstance, Node, Order, OrderKind
from scheduler.simulation.progress import Life, Member, Nature, Pace, life_begun, nature_of

OpenRun = tuple[Work, Run, int, int]  # with the keys of its job and its attempt


def work_seconds(job: Work, runs: Sequence[Run], *, stretch: int, seed: int, now: int) -> int:
    """How much work a job of the past is: what it did, and if it is not over what is still to come, as chance has it."""
    done = sum(run.computed(now) for run in runs) // 1000
    rng = random.Random(f"{seed} work {job.number}")  # noqa: S311 - a play, not a secret
    floor, mean = (minutes * 60 * (stretch if job.workload.quick else 1) for minutes in job.workload.minutes)
    return int(max(done, floor) + rng.expovariate(1 / mean)) + 5


def runs_adopt(open_runs: Sequence[OpenRun], runs: Mapping[int, Sequence[Run]], facts: Sequence[Mapping[str, Any]], *, now: datetime) -> None:
    """Write what the back-end remembers of the runs, the orders that it was given for them, and the checkpoints that they resumed from."""
    places = _Places(run for _, run, _, _ in open_runs)
    by_cluster: dict[int, list[Life]] = defaultdict(list)
    orders = []
    for job, run, _, attempt in open_runs:
        cluster = places.cluster_of[run.seats[0].node]
        by_cluster[cluster].append(_life(job, run, runs[job.key], facts[job.key], places, millis(now)))
        orders.append(Order(cluster_id=cluster, attempt_id=attempt, sequence=1, kind=OrderKind.START, made_at=now, due_at=now, done_at=now))
    Order.objects.bulk_create(orders, batch_size=500)
    for cluster, lives in sorted(by_cluster.items()):
        lives_adopt(cluster_id=cluster, lives=lives)


def _life(job: Work, run: Run, runs: Sequence[Run], facts: Mapping[str, Any], places: "_Places", now: int) -> Life:
    public = f"j-{job.number}"
    key = attempt_key(job=public, attempt=run.number)
    saved = sum(other.computed(now) for other in runs if other is not run) if job.workload.checkpoint_minutes else 0
    done = saved + run.computed(now)
    # Whether it will fail is decided for what lies ahead of it: it has not failed so far.
    nature = nature_of(job=public, key=key, spec=facts["spec"], launch=facts["launch"], limit=None, pace=Pace(), resume_step=done)
    nature = replace(nature, load=_load(run, nature, resumed=saved > 0))
    life = life_begun(key=key, nature=nature, members=places.members(run.seats), resume_step=saved, sequence=1, now=run.started)
    if job.state == JobState.CHECKPOINTING:
        life.terminate(job.since)
    life.advance(now)
    life.saves = life.saves[-1:]
    return life


def _load(run: Run, nature: Nature, *, resumed: bool) -> int:
    if run.running is None:
        return nature.load
    return max(0, run.running - run.started - (nature.restore if resumed else 0))


class _Places:
    """How the back-end names what the past knows by keys."""

    def __init__(self, runs: Iterable[Run]) -> None:
        held = list(runs)
        nodes = {seat.node for run in held for seat in run.seats}
        rows = Node.objects.filter(pk__in=nodes).values_list("pk", "name", "cluster_id")
        self.name_of = {key: name for key, name, _ in rows}
        self.cluster_of = {key: cluster for key, _, cluster in rows}
        self.gpu = {key: (index, uuid) for key, index, uuid in Gpu.objects.filter(node__in=nodes).values_list("pk", "index", "uuid")}
        self.mig = dict(MigInstance.objects.filter(gpu__node__in=nodes).values_list("pk", "uuid"))

    def members(self, seats: Sequence[Seat]) -> list[Member]:
        grouped: dict[tuple[int, int], list[Seat]] = defaultdict(list)
        for seat in seats:
            grouped[seat.worker, seat.node].append(seat)
        found = []
        for (worker, node), parts in sorted(grouped.items()):
            devices = sorted(self.gpu[part.gpu] for part in parts)
            migs = [self.mig[part.slice] for part in parts if part.slice is not None]
            indices, uuids = [index for index, _ in devices], [uuid for _, uuid in devices]
            found.append(Member("worker", worker, self.name_of[node], indices, uuids, migs, milli=parts[0].milli))
        return found


def waiting_checkpoints(waiting: Sequence[tuple[Work, Run, int, int]], runs: Mapping[int, Sequence[Run]], *, now: datetime) -> None:
    """What jobs that were put out will resume from: all that they did, as they saved it before they left."""
    Checkpoint.objects.bulk_create(
        [
            Checkpoint(
                job_id=job_id,
                attempt_id=attempt,
                step=sum(other.computed(millis(now)) for other in runs[job.key]),
                location=f"simulated://{attempt_key(job=f'j-{job.number}', attempt=run.number)}",
                reported_at=ended,
                verified_at=ended,
            )
            for job, run, job_id, attempt in waiting
            if (ended := datetime.fromtimestamp((run.ended or 0) / 1000, UTC))
        ],
        batch_size=500,
    )
