"""Draining nodes: they take no new jobs, and what runs there finishes, or is moved or stopped: now, or at a moment that is kept on the node.

What is due at that moment is carried out by the loop (`drains_enforce`), whichever console it runs in by then.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Exists, OuterRef, Q

from gpufleet.core.audit import Actor
from gpufleet.core.faults import Conflict
from gpufleet.core.live.news import News
from gpufleet.core.prepared import Prepared
from quotas.models import LedgerEntry, ShareClass
from quotas.permissions import Access, Can
from scheduler.hardware import causes
from scheduler.hardware.draining import Fate, outcome_of
from scheduler.models import HOLDING, DrainWay, Gpu, Health, JobState, Node, Placement, PlannedHealth
from scheduler.notify.happenings import Happened
from scheduler.selectors.nodes import Guest, node_guests
from scheduler.services.beginnings import FARTHEST
from scheduler.services.hardware.deadlines import deadlines_call_off, deadlines_of, names_by_job
from scheduler.services.hardware.hardware import (
    Undone,
    check_reason,
    hardware_record,
    health_mark,
    health_step,
    jobs_of_nodes_locked,
    locked_node,
    unmarked_or_conflict,
)
from scheduler.services.loop.lease import lease_want
from scheduler.services.loop.runs import Stop, attempts_stop
from scheduler.services.loop.steps import Steps, jobs_locked, open_attempts
from scheduler.services.loop.usage import timeline_follow, usage_moment

MOST_NODES = 100
PLANNED = "planned_health"
DRAINED_FROM = (Health.HEALTHY, Health.SUSPECT, Health.DRAINING)
MOST = 1000
_BORROWS = LedgerEntry.objects.filter(attempt=OuterRef("attempt_id"), until__isnull=True, share_class=ShareClass.BORROWED)
# Asked in every tick: what still runs on a draining node whose moment has come, and may be sent away in the way that was chosen.
DRAINS_DUE: Prepared[tuple[int, str, str, datetime | None]] = Prepared(
    lambda at: (
        Placement.objects.filter(until__isnull=True, leaving_since__isnull=True, node__health=Health.DRAINING, node__drain_at__lte=at)
        .filter(attempt__stop_to="")
        .filter(
            Q(node__drain_way=DrainWay.STOP)
            | Q(node__drain_way=DrainWay.MOVE, job__preemptible="yes")
            | Q(Exists(_BORROWS), node__drain_way=DrainWay.MOVE, job__preemptible="when_borrowed")
        )
        .order_by("job_id", "node__name")
        .values_list("job_id", "node__name", "node__health_reason", "node__drain_at")[:MOST]
    )
)
NEXT_DRAIN = Prepared[datetime | None](
    lambda now: Node.objects.filter(health=Health.DRAINING, drain_at__gt=now).order_by("drain_at").values_list("drain_at", flat=True)[:1]
)


@dataclass(frozen=True, slots=True)
class Drained:
    """`asked` is how many jobs are asked to leave at once, `told` how many owners' jobs were told of the moment at which they have to."""

    nodes: Sequence[Node]
    asked: int
    told: int


def drain_checked(*, way: str, at: datetime | None, now: datetime) -> None:
    """A `ValidationError` where the way and the moment make no sense."""
    faults: dict[str, list[str]] = {}
    if way not in DrainWay.values:
        faults["jobs"] = [f"It can be {', '.join(DrainWay.values)}."]
    if at is not None and way == DrainWay.FINISH:
        faults["at"] = ["Jobs that finish need no time."]
    elif at is not None and at <= now:
        faults["at"] = ["The time must be in the future."]
    elif at is not None and at > now + FARTHEST:
        faults["at"] = [f"The time is at most {FARTHEST.days} days ahead."]
    if faults:
        raise ValidationError(faults)


def nodes_drain(
    *,
    access: Access,
    nodes: Sequence[Node],
    way: str,
    at: datetime | None,
    reason: str,
    now: datetime,
    seen: Mapping[str, str] | None = None,
    undone: Undone | None = None,
) -> Drained:
    """Drain nodes, or change how they drain. `at` None: at once.

    A drain of theirs that was planned for later gives way to this one. `seen` is the health that was shown, by node; a newer is a conflict,
    as is another than `undone` where one node's drain comes back.
    """
    access.must_everywhere(Can.OPERATE)
    drain_checked(way=way, at=at, now=now)
    at = at.astimezone(UTC) if at is not None else None
    check_reason(reason)
    if not 1 <= len(nodes) <= MOST_NODES:
        raise ValidationError({"nodes": [f"Name 1 to {MOST_NODES} nodes; these are {len(nodes):,}."]})
    with transaction.atomic():
        now = usage_moment(now=now)
        jobs_of_nodes_locked(nodes)
        locked = [locked_node(node) for node in sorted(nodes, key=lambda node: node.pk)]
        for node in locked:
            unmarked_or_conflict(node, undone)
        _drain_plans_drop(access, locked, reason, now)
        done = _drain(access, locked, way, at, reason, now, seen or {}, {node.pk: undone.reason for node in locked} if undone else {})
        lease_want()
    return done


def _drain_plans_drop(access: Access, nodes: Sequence[Node], reason: str, now: datetime) -> None:
    plans = list(PlannedHealth.objects.filter(node__in=nodes, to=Health.DRAINING).select_related("node"))
    PlannedHealth.objects.filter(pk__in=[plan.pk for plan in plans]).delete()
    for plan in plans:
        health_plan_record(access.actor, plan.node, before=plan, after=None, reason=reason, now=now)


def health_plan_record(actor: Actor, node: Node, *, before: PlannedHealth | None, after: PlannedHealth | None, reason: str, now: datetime) -> None:
    hardware_record(actor, "node.health_plan", node, None, PLANNED, _plan_facts(before), _plan_facts(after), reason, now)


def _plan_facts(plan: PlannedHealth | None) -> dict[str, str | None]:
    if plan is None:
        return {}
    drain = {"jobs": plan.way, "at": _written(plan.at)} if plan.to == Health.DRAINING else {}
    return {"to": plan.to, "begins": _written(plan.begins_at), **drain}


def _drain(
    access: Access,
    nodes: Sequence[Node],
    way: str,
    at: datetime | None,
    reason: str,
    now: datetime,
    seen: Mapping[str, str],
    stands: Mapping[int, str],
) -> Drained:
    """The same for nodes that the caller has locked, with their jobs. It asks for no plan: the caller does, once all is written.

    `stands` are reasons that are kept on nodes instead of this one.
    """
    before = deadlines_of(nodes, now)
    for node in nodes:
        _close(access, node, way, at, reason, now, seen.get(node.public_id), stands.get(node.pk))
    timeline_follow(gpus=Gpu.objects.filter(node__in=nodes, removed_at__isnull=True).values_list("pk", flat=True), at=now)
    asked, told = 0, 0
    deadlines_call_off(access=access, deadlines=before, way=way, at=at, now=now)
    if way != DrainWay.FINISH:
        guests = [guest for guest in node_guests(access, *nodes, now=now) if not guest.leaving]
        names = names_by_job(nodes)
        if at is None:
            asked = _ask(guests, way, names, reason, now, access.actor)
        else:
            told = _tell(guests, way, at, names, reason, now, access.actor)
    return Drained(nodes, asked, told)


@dataclass(frozen=True, slots=True)
class Back:
    """A node that a drain left at a `health_mark`, and what it was before: a health, or another way and time of draining, and its reason."""

    node: Node
    mark: str
    health: str
    way: str
    at: datetime | None
    reason: str


@dataclass(frozen=True, slots=True)
class WentBack:
    """The nodes that are as before, those that have changed since, and those whose earlier deadline has passed; these two are left alone."""

    done: Sequence[Node]
    changed: Sequence[Node]
    late: Sequence[Node]


def nodes_drain_undo(*, access: Access, back: Sequence[Back], now: datetime) -> WentBack:
    """Take a drain of many nodes back, for those that nobody has changed since. A `Conflict` where no node is left."""
    access.must_everywhere(Can.OPERATE)
    if not 1 <= len(back) <= MOST_NODES:
        raise ValidationError({"nodes": [f"Name 1 to {MOST_NODES} nodes; these are {len(back):,}."]})
    with transaction.atomic():
        now = usage_moment(now=now)
        wanted = {one.node.pk: one for one in back}
        jobs_of_nodes_locked([one.node for one in back])
        fresh = {node.pk: node for node in Node.objects.select_for_update().filter(pk__among=sorted(wanted)).order_by("pk")}
        drains: dict[tuple[str, datetime | None], list[Node]] = defaultdict(list)
        done, changed, late = [], [], []
        for key, one in sorted(wanted.items()):
            node = fresh[key]
            is_late = one.way not in ("", DrainWay.FINISH) and (one.at is None or one.at <= now)
            if node.removed_at is not None or health_mark(node) != one.mark or node.health != Health.DRAINING or one.health not in DRAINED_FROM:
                changed.append(node)
                continue
            if one.health == Health.DRAINING and is_late:
                late.append(node)
                continue
            done.append(node)
            if one.health == Health.DRAINING:
                drains[one.way or DrainWay.FINISH.value, one.at.astimezone(UTC) if one.at is not None else None].append(node)
            else:
                health_step(access=access, node=node, to=one.health, reason="Undo of draining.", now=now, stands=one.reason)
        if not done:
            raise Conflict(f"These nodes {'cannot go back' if late else 'have changed since'}. Nothing was undone.")
        for (way, at), nodes in drains.items():
            drain_checked(way=way, at=at, now=now)
            _drain(access, nodes, way, at, "Undo of a change of the drain.", now, {}, {node.pk: wanted[node.pk].reason for node in nodes})
        timeline_follow(gpus=Gpu.objects.filter(node__in=done, removed_at__isnull=True).values_list("pk", flat=True), at=now)
        lease_want()
    return WentBack(done, changed, late)


def _close(access: Access, node: Node, way: str, at: datetime | None, reason: str, now: datetime, seen: str | None, stands: str | None) -> None:
    if seen is not None and seen != node.health:
        raise Conflict(f"{node.name} is {Health(node.health).label.lower()} by now. Look again, then decide.")
    before = {"jobs": node.drain_way or DrainWay.FINISH.value, "at": _written(node.drain_at)} if node.health == Health.DRAINING else {}
    if node.health != Health.DRAINING:
        health_step(access=access, node=node, to=Health.DRAINING, reason=reason, now=now)
    # The drain is the operator's now, also where Slurm began it: its reason says whose it is.
    node.health_reason = reason.strip() if stands is None else stands
    node.drain_way, node.drain_at = way, None if way == DrainWay.FINISH else at or now
    node.save(update_fields=["health_reason", "drain_way", "drain_at"])
    after = {"jobs": way, "at": _written(node.drain_at)}
    hardware_record(access.actor, "node.drain", node, None, "drain", before, after, reason, now)


def _written(at: datetime | None) -> str | None:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}" if at is not None else None


def _drained(names: str, reason: str) -> str:
    return causes.drained(names, f"({reason.strip().rstrip('.')[:120]})")


def _ask(guests: Sequence[Guest], way: str, names: Mapping[int, str], reason: str, now: datetime, actor: Actor) -> int:
    stops = [
        Stop(guest.job.pk, JobState.PREEMPTED, "preempted", f"{_drained(names[guest.job.pk], reason)}. The job resumes elsewhere.")
        for guest in guests
        if guest.job.pk in names and outcome_of(guest.run, way, None, now).at is not None
    ]
    return attempts_stop(stops=stops, now=now, actor=actor, want=False) if stops else 0


def _tell(guests: Sequence[Guest], way: str, at: datetime, names: Mapping[int, str], reason: str, now: datetime, actor: Actor) -> int:
    """Owners hear of the moment while there is time to save or to end; also those whose jobs are expected to end before it."""
    meant = {guest.job.pk for guest in guests if guest.job.pk in names and outcome_of(guest.run, way, at, now).fate != Fate.STAYS}
    if not meant:
        return 0
    steps = Steps(now=now, actor=actor)
    jobs = jobs_locked(meant)
    attempts = open_attempts(jobs)
    for key, job in jobs.items():
        if key in attempts and job.state in HOLDING:
            cause = f"{_drained(names[key], reason)}. If the job still runs at {at:%Y-%m-%d %H:%M} UTC, it is asked to save and resumes elsewhere."
            steps.note(job, cause, attempt=attempts[key], told=Happened.NODE_DRAINING)
    news = News()
    steps.write(news)
    news.publish()
    return len(jobs)


def drains_enforce(*, now: datetime, news: News) -> int:
    """Jobs that still run on draining nodes whose moment has come are asked to save and leave. Those that leave already are not asked twice."""
    due: dict[int, str] = {}
    for job, node, reason, at in DRAINS_DUE(now):
        assert at is not None, "only those with a moment are due"
        due.setdefault(job, f"{_drained(node, reason)}, and its jobs leave at {at:%Y-%m-%d %H:%M} UTC. The job resumes elsewhere.")
    stops = [Stop(job, JobState.PREEMPTED, "preempted", cause) for job, cause in due.items()]
    return attempts_stop(stops=stops, now=now, news=news) if stops else 0
