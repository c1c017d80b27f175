"""Work of a node that is taken out of service moves to a spare: each worker to the GPU of its number, and its gang starts again where it stood else.

All places are promised when the jobs are asked to leave, so no job that waits comes in between, and the spare serves as a replacement and stays one.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from gpufleet.core.audit import SYSTEM, Actor
from gpufleet.core.live.news import News
from gpufleet.core.prepared import together
from scheduler.engine.model.values import Node as Machine
from scheduler.jobs.stored import name_of, roles_of
from scheduler.models import Attempt, Job, JobState, Node, OutsideSeat, Placement, Promise, PromisedSeat
from scheduler.services.loop.holds import OPEN_OF, WHOLE_MILLI, Seat, seats_faults
from scheduler.services.loop.lease import lease_want
from scheduler.services.loop.promises import SLACK, Grant, promise_make
from scheduler.services.loop.runs import Clusters, Stop, by_attempt, stop_ask
from scheduler.services.loop.steps import Steps, jobs_locked, open_attempts
from scheduler.snapshots.fleet import FleetView, fleet_asked, fleet_view


@dataclass(frozen=True, slots=True)
class Replaced:
    """How many jobs of a node were asked to move to which spare."""

    spare: Node
    jobs: int


@dataclass(frozen=True, slots=True)
class _Guest:
    job: Job
    attempt: Attempt
    held: Sequence[Placement]


def node_replace(*, node: Node, cause: str, now: datetime, actor: Actor = SYSTEM) -> Replaced | None:
    """Ask running jobs to save and move from a node to a free spare. Jobs that it can't serve as the node did, and jobs in parts of GPUs, stay."""
    news = News()
    with transaction.atomic():
        steps = Steps(now=now, actor=actor)
        guests = _guests(node)
        fleet = fleet_view(tuple(together(*fleet_asked(steps.now)))) if guests else None
        spare = _spare_for(node, fleet) if fleet else None
        if fleet is None or spare is None:
            return None
        wanted = {guest.job.pk: _seats(guest, node, spare, fleet) for guest in guests if _is_served(guest, node, spare, fleet)}
        new = {key: [seat for seat in seats if seat.node_id == spare.pk] for key, seats in wanted.items()}
        old = {key: [seat for seat in seats if seat.node_id != spare.pk] for key, seats in wanted.items()}
        gone, taken = seats_faults(wanted=new)
        out_of_service, _ = seats_faults(wanted=old)  # busy they are: by the job itself
        moving = [guest for guest in guests if guest.job.pk in wanted.keys() - gone.keys() - taken.keys() - out_of_service.keys()]
        clusters = Clusters(guest.attempt for guest in moving)
        for guest in moving:
            _move(steps, guest, clusters, wanted[guest.job.pk], cause)
        steps.write(news)
        news.publish()
        if moving:
            lease_want()
    return Replaced(spare, len(moving)) if moving else None


def _guests(node: Node) -> list[_Guest]:
    """Jobs that run whole on whole GPUs, are not leaving, and are promised nothing."""
    jobs = jobs_locked(Placement.objects.filter(node=node, until__isnull=True).values_list("job_id", flat=True))
    attempts = open_attempts(jobs)
    held = by_attempt(OPEN_OF([attempt.pk for attempt in attempts.values()]))
    promised = set(Promise.objects.filter(job__in=jobs).values_list("job_id", flat=True))
    return [
        _Guest(job, attempts[key], held[attempts[key].pk])
        for key, job in jobs.items()
        if job.state == JobState.RUNNING and key in attempts and key not in promised and not attempts[key].stop_to
        if all(_is_whole(one) for one in held[attempts[key].pk])
    ]


def _is_whole(one: Placement) -> bool:
    return one.mig_id is None and one.leaving_since is None and not one.joining and (one.gpu_id is None or one.gpu_milli == WHOLE_MILLI)


def _spare_for(node: Node, fleet: FleetView) -> Node | None:
    """A free spare that offers all that the node does, the nearest in the topology first."""
    machines = {machine.name: machine for machine in fleet.nodes}
    sick = machines.get(fleet.names[node.pk])
    if sick is None:
        return None
    held = {
        *Placement.objects.filter(until__isnull=True, node__spare=True).values_list("node_id", flat=True),
        *PromisedSeat.objects.filter(node__spare=True).values_list("node_id", flat=True),
        *OutsideSeat.objects.filter(job__until__isnull=True, node__spare=True).values_list("node_id", flat=True),
    }
    fit = [one for one in fleet.nodes if fleet.node_ids[one.name] not in held and _stands_in(one, sick)]
    nearest = min(fit, key=lambda one: (-_levels_shared(one, sick), one.name), default=None)
    return Node.objects.get(pk=fleet.node_ids[nearest.name]) if nearest else None


def _stands_in(spare: Machine, sick: Machine) -> bool:
    offers, wanted = dict(spare.attributes), dict(sick.attributes)
    return (
        (spare.spare, spare.health, spare.unhealthy, spare.split) == (True, "healthy", 0, 0)
        and (spare.gpu_type, spare.path[0], spare.islands) == (sick.gpu_type, sick.path[0], sick.islands)
        and sick.island in (sick.name, spare.island)
        and dict(spare.labels).get("pool") == dict(sick.labels).get("pool")
        and set(sick.labels) <= set(spare.labels)
        and min(spare.gpus - sick.gpus, spare.cpu_milli - sick.cpu_milli, spare.host_memory_mib - sick.host_memory_mib) >= 0
        and spare.gpu_memory_mib >= sick.gpu_memory_mib
        and all(offers.get(name, 0) >= least for name, least in wanted.items())
    )


def _levels_shared(one: Machine, other: Machine) -> int:
    """In how many levels of the topology, from the cluster on, both are in one domain."""
    same = [here == there for here, there in zip(one.path, other.path, strict=True)]
    return same.index(False) if False in same else len(same)


def _is_served(guest: _Guest, node: Node, spare: Node, fleet: FleetView) -> bool:
    """Whether what has to be in one domain still is."""
    machines = {machine.name: machine for machine in fleet.nodes}
    shared = _levels_shared(machines[fleet.names[node.pk]], machines[fleet.names[spare.pk]])
    levels = fleet.topology.all_levels
    for level, held in _bound(guest):
        is_alone = all(one.node_id == node.pk for one in held)
        if not is_alone and (level not in levels or levels.index(level) >= shared):
            return False
    return True


def _bound(guest: _Guest) -> Iterator[tuple[str, Sequence[Placement]]]:
    """Levels that the job or a role of it requires, each with the places that it binds."""
    spec = guest.job.spec
    if level := (spec.get("topology") or {}).get("required"):
        yield level, guest.held
    for role in roles_of(spec):
        if level := (role.get("topology") or {}).get("required"):
            yield level, [one for one in guest.held if one.role == name_of(role)]


def _seats(guest: _Guest, node: Node, spare: Node, fleet: FleetView) -> list[Seat]:
    def seat_of(one: Placement) -> Seat:
        if one.node_id != node.pk:
            return Seat(one.node_id, one.gpu_id, one.worker, one.role, one.gpu_milli)
        gpu = None if one.gpu_id is None else fleet.gpu_ids[spare.pk, fleet.gpu_places[one.gpu_id][1]]
        return Seat(spare.pk, gpu, one.worker, one.role, one.gpu_milli)

    return [seat_of(one) for one in guest.held]


def _move(steps: Steps, guest: _Guest, clusters: Clusters, seats: Iterable[Seat], cause: str) -> None:
    job, attempt, seats = guest.job, guest.attempt, list(seats)
    stop_ask(steps, job, attempt, clusters.of(attempt), Stop(job.pk, JobState.PREEMPTED, "moved", cause))
    assert attempt.stop_until is not None, "it was just asked to leave"
    steps.change(job, last_moved_at=steps.now)
    steps.touch(seat.gpu_id for seat in seats)
    grant = Grant(job, Promise.Kind.MOVE, seats, cause, resumes=True, reclaimed_at=attempt.reclaimed_at)
    promise_make(grant=grant, after=[job.public_id], until=attempt.stop_until + SLACK, now=steps.now, back_to=JobState.PREEMPTED)
