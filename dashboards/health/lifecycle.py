"""The way of a node that rules took out: its work moved or ended, drained, repaired, tried out by a test job, and healthy again (HLT-7)."""

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Exists, Max, OuterRef

from dashboards.health.incidents import NOBODY, Hand, calm_needed, hands, incident_note, incidents_of_a_day
from dashboards.health.models import HealthFinding, HealthSettings, Incident, IncidentStep
from gpufleet.core.apart import done_apart
from gpufleet.core.audit import Actor
from gpufleet.core.faults import Conflict
from gpufleet.core.live.news import News
from quotas.models import QuotaNode
from quotas.permissions import Access, Can, Grant
from scheduler.backends.registry import SIMULATED
from scheduler.hardware import causes
from scheduler.models import ENDED, GpuMode, Health, Job, JobClass, JobState, Node, Placement
from scheduler.services.hardware.hardware import node_reason_change
from scheduler.services.hardware.healths import HealthStep, nodes_health_change
from scheduler.services.hardware.replacing import node_replace
from scheduler.services.jobs.jobs import job_create, job_stop
from scheduler.services.loop.holds import Seat
from scheduler.services.loop.promises import Grant as SeatGrant
from scheduler.services.loop.promises import Starter
from scheduler.services.loop.runs import Stop, attempts_stop
from scheduler.services.loop.steps import Steps, jobs_locked

log = logging.getLogger(__name__)
RULES = Actor(user=None, name="Health rules", via="system")
RULES_ACT = Access(RULES, (Grant("", frozenset({Can.OPERATE})),))
FLAPS = 3
FLAPPING = "Flapping"
BURN_IN_GRACE = timedelta(minutes=10)
LABEL, NAME_LENGTH = "burn-in", 120


def go_on(*, now: datetime, settings: HealthSettings, findings: Sequence[HealthFinding]) -> None:
    """The next step of every node that rules look after."""
    sick: dict[int, list[HealthFinding]] = defaultdict(list)
    for finding in findings:
        if finding.rule.action != "note":
            sick[finding.node_id].append(finding)
    by, recent = hands(), incidents_of_a_day(now)
    guests = _guests()
    steps: list[HealthStep] = []
    flapping = Exists(IncidentStep.objects.filter(incident=OuterRef("pk"), text__startswith=FLAPPING))
    open_ones = Incident.objects.filter(closed_at__isnull=True).select_related("node__cluster", "rule", "burn_in").order_by("pk")
    for incident in open_ones.annotate(over=Max("findings__cleared_at"), is_flapping=flapping):
        hand = by.get(incident.node_id, NOBODY)
        # What rules of older versions did in an incident that a person had opened is known by its steps alone.
        if incident.node.removed_at is None and (incident.by_rule or RULES.name in (hand.last, hand.out)):
            try:
                past = Past(recent[incident.node_id], incident.over, incident.is_flapping)
                step = _go_on(incident, settings, bool(sick[incident.node_id]), hand, past, guests[incident.node_id], now)
            except Exception:
                # Whatever is wrong with one node, the others and the rest of the round go on.
                log.exception("The next step of %s failed.", incident.node.name)
            else:
                steps += [step] if step else []
    healths_change(steps, now=now)


def healths_change(steps: Sequence[HealthStep], *, now: datetime) -> set[int]:
    """Take the steps of rules together, each node one. Those that another hand was quicker with are left out. Returns the nodes that took theirs."""

    def change(some: Sequence[HealthStep]) -> set[int]:
        found = nodes_health_change(access=RULES_ACT, steps=some, now=now)
        for node, fault in found.refused.items():
            log.info("health rules left node %s as it is: %s", node, fault)
        return set(found.done)

    def failed(step: HealthStep, fault: Exception) -> None:
        log.error("The step of node %s to %s failed.", step.node, step.to, exc_info=fault)

    return set().union(*done_apart(steps, change, failed=failed))


def _guests() -> dict[int, list[int]]:
    """The jobs on each draining node."""
    found: dict[int, list[int]] = defaultdict(list)
    rows = Placement.objects.filter(node__health=Health.DRAINING, until__isnull=True).order_by("node", "job").values_list("node", "job").distinct()
    for node, job in rows:
        found[node].append(job)
    return found


@dataclass(frozen=True, slots=True)
class Past:
    """How many incidents a node had in the last day, when the last finding of this one was over, and whether it is said that the node flaps."""

    recent: int
    over: datetime | None
    is_flapping: bool


def _go_on(
    incident: Incident, settings: HealthSettings, is_sick: bool, hand: Hand, past: Past, guests: Sequence[int], now: datetime
) -> HealthStep | None:
    """Rules take back what they did themselves; who tests a node, they or a person, lets rules judge the test. Returns the step to take."""
    node = incident.node
    is_ours, took_out = hand.last == RULES.name, hand.out == RULES.name
    match node.health:
        case Health.SUSPECT if is_ours:
            return _suspect(incident, is_sick, past, now)
        case Health.DRAINING:
            return _draining(incident, settings, guests, now)
        case Health.DRAINED if took_out:
            return _step(node, Health.REPAIRING, "Drained. It waits for repair.")
        case Health.REPAIRING if took_out and _is_repaired(node, settings, now):
            return _step(node, Health.BURN_IN, f"In repair for {settings.repair_minutes} min; burn-in begins.")
        case Health.BURN_IN:
            return _burn_in(incident, settings, is_sick, now)
        case Health.DOWN if is_ours and not is_sick:
            return _step(node, Health.SUSPECT, "It answers again.")
    return None


def _is_repaired(node: Node, settings: HealthSettings, now: datetime) -> bool:
    return settings.repair_minutes is not None and now - node.health_since >= timedelta(minutes=settings.repair_minutes)


def _suspect(incident: Incident, is_sick: bool, past: Past, now: datetime) -> HealthStep | None:
    node, recent = incident.node, past.recent
    if is_sick:
        return None
    calm_since = max(filter(None, (past.over, node.health_since)))
    if recent > FLAPS and not past.is_flapping:
        text = f"{FLAPPING}: {recent} incidents in a day. It is trusted again after {_minutes(calm_needed(recent))} min."
        incident_note(incident=incident, text=text, at=now)
    if now - calm_since >= calm_needed(recent):
        return _step(node, Health.HEALTHY, f"Calm for {_minutes(now - calm_since)} min.")
    return None


def _draining(incident: Incident, settings: HealthSettings, guests: Sequence[int], now: datetime) -> HealthStep | None:
    node = incident.node
    if not guests:
        return _step(node, Health.DRAINED, "Nothing runs here any more.")
    if node.drain_way or now - node.health_since < timedelta(minutes=settings.patience_minutes):
        return None  # by hand it drains in the way that was chosen
    replaced = node_replace(node=node, cause=causes.drained(node.name, "by rule; the job resumes on a spare."), now=now, actor=RULES)
    if replaced is not None:
        moving = "1 job was asked to save and moves" if replaced.jobs == 1 else f"{replaced.jobs} jobs were asked to save and move"
        incident_note(incident=incident, text=f"{moving} to {replaced.spare.name}, a spare.", at=now)
    cause = causes.drained(node.name, "by rule; the job resumes elsewhere.")
    stops = [Stop(key, JobState.PREEMPTED, "preempted", cause) for key in guests]
    if asked := attempts_stop(stops=stops, now=now, actor=RULES):
        incident_note(incident=incident, text=f"{asked} {'job was' if asked == 1 else 'jobs were'} asked to save and leave.", at=now)
    return None


def _burn_in(incident: Incident, settings: HealthSettings, is_sick: bool, now: datetime) -> HealthStep | None:
    node, job = incident.node, incident.burn_in
    if not settings.burn_in_minutes:
        return _step(node, Health.HEALTHY, "No burn-in is asked for.")
    is_old = job is not None and job.submitted_at < node.health_since
    if job is not None and is_old and job.state not in ENDED:
        cause = f"It tested {node.name} before its repair."
        _try(lambda: job_stop(job=job, to=JobState.CANCELLED, outcome="cancelled", cause=cause, now=now, actor=RULES))
        return None
    if job is None or is_old:
        # By the clock of whoever repaired it a moment ago: no test is older than the repair that it follows.
        _start_test(incident, settings, max(now, node.health_since))
        return None
    is_lost = _has_left(job, node)
    if job.state == JobState.COMPLETED and not is_lost:
        tested, gpus = job.gpus_milli // 1000, node.gpus.filter(removed_at__isnull=True).count()
        if tested < gpus:
            _wait(node, f"Burn-in passed on {tested} of {gpus} GPUs; the others are not whole. Mark it healthy once they are checked.", now)
        else:
            return _step(node, Health.HEALTHY, f"Burn-in passed: {job.public_id} completed.")
    elif job.state in ENDED or is_sick or is_lost:
        if job.state not in ENDED:
            cause = f"It lost {node.name}, which it tests." if is_lost else "A health rule holds."
            _try(lambda: job_stop(job=job, to=JobState.CANCELLED, outcome="cancelled", cause=cause, now=now, actor=RULES))
        else:
            return _step(node, Health.REPAIRING, f"Burn-in failed: {job.public_id} {f'lost {node.name}' if is_lost else job.state}.")
    elif now - node.health_since > timedelta(minutes=settings.burn_in_minutes) + BURN_IN_GRACE:
        _try(lambda: job_stop(job=job, to=JobState.CANCELLED, outcome="cancelled", cause="Burn-in took too long.", now=now, actor=RULES))
    return None


def _has_left(job: Job, node: Node) -> bool:
    """Whether a test job lost its node: then it waits, or runs wherever the scheduler let it, and says nothing of the node."""
    attempts = job.attempts.values_list("outcome", flat=True)
    return len(attempts) > 1 or "lost" in attempts or job.placements.exclude(node=node).exists()


def _start_test(incident: Incident, settings: HealthSettings, now: datetime) -> None:
    """A test job on all GPUs of the node. It sits there by itself: nothing else may be placed on a node in burn-in."""
    node = incident.node
    top = QuotaNode.objects.filter(parent__isnull=True, archived_at__isnull=True).order_by("pk").first()
    gpus = list(node.gpus.filter(removed_at__isnull=True, mode=GpuMode.WHOLE).order_by("index").values_list("pk", flat=True))
    if untested := _untested(settings, node, top, gpus):
        _wait(node, f"Not tested: {untested} Mark it healthy once it is checked.", now)
        return
    assert top is not None
    seconds = settings.burn_in_minutes * 60
    spec = {"roles": [{"name": "worker", "min": 1, "gpus": len(gpus), "gpu_types": [node.gpu_type_id]}], "work_s": seconds, "grace_s": 5}
    launch = {"simulated": {"load_s": 5, "busy": [0.95, 0.99]}} | ({"command": settings.burn_in_command} if settings.burn_in_command else {})
    with transaction.atomic():
        job = job_create(
            name=f"burn-in-{node.name}"[:NAME_LENGTH],
            quota=top,
            owner=None,
            job_class=JobClass.BATCH,
            spec=spec,
            gpus_milli=1000 * len(gpus),
            now=now,
            actor=RULES,
            preemptible="no",
            labels={LABEL: node.public_id},
            limit_seconds=seconds + 300,
            launch=launch,
            cause=f"Tests {node.name} after its repair.",
        )
        steps = Steps(now=now, actor=RULES)
        locked = jobs_locked([job.pk])[job.pk]
        seats = [Seat(node.pk, gpu) for gpu in gpus]
        Starter(steps, [job.pk], seats).grant(SeatGrant(locked, "start", seats, f"Tests {node.name} after its repair."))
        news = News()
        steps.write(news)
        news.publish()
        incident.burn_in = job
        incident.save(update_fields=["burn_in"])
        incident_note(incident=incident, text=f"Burn-in runs as {job.public_id} for {settings.burn_in_minutes} min.", at=now)


def _untested(settings: HealthSettings, node: Node, top: QuotaNode | None, gpus: Sequence[int]) -> str:
    """Why no test job can say anything about a node; empty: it can."""
    if not gpus:
        return "none of its GPUs is whole."
    if top is None:
        return "no quota is there to run a test job in."
    if not settings.burn_in_command and node.cluster.backend != SIMULATED:
        return "no test command is set."
    return ""


def _wait(node: Node, reason: str, now: datetime) -> None:
    """Leave the next step to a person, and say so once."""
    if node.health_reason != reason:
        _try(lambda: node_reason_change(access=RULES_ACT, node=node, reason=reason, now=now))


def _step(node: Node, to: str, reason: str) -> HealthStep:
    return HealthStep(node.pk, to, reason, node.health)


def _try(act: Callable[[], object]) -> bool:
    """Do it, unless somebody else has been quicker."""
    try:
        act()
    except (Conflict, ValidationError) as fault:
        log.info("a step of a node's life cycle was left out: %s", fault)
        return False
    return True


def _minutes(span: timedelta) -> int:
    return int(span / timedelta(minutes=1))
