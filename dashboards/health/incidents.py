"""Incidents: made from the hardware's own history, so that a person's decision and a rule's are told alike. Each inventory event is read once."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any

from django.db.models import Count, Exists, ExpressionWrapper, F, Max, OuterRef, Q, QuerySet

from dashboards.health.models import Action, HealthFinding, Incident, IncidentStep
from dashboards.telling import Event, events_tell
from gpufleet.core.bulk import objects_update, rows_insert
from gpufleet.core.ids import public_ids
from gpufleet.core.times import MomentField
from scheduler.hardware import causes
from scheduler.models import IN_SERVICE, Attempt, Gpu, Health, InventoryEvent, Node, Placement
from scheduler.models import Checkpoint as Saved
from scheduler.notify.happenings import FleetEvent

SEVERITY = (Health.HEALTHY, Health.SUSPECT, Health.DRAINING, Health.BURN_IN, Health.DRAINED, Health.REPAIRING, Health.DOWN)
MOST_EVENTS = 2000
STEP = ("incident_id", "at", "text", "health", "event", "by")
LONGEST_TRANSACTION = timedelta(minutes=10)
A_DAY = timedelta(days=1)
# A node is trusted again after its findings have been over for so long, doubled with each incident of the last day.
CALM = timedelta(minutes=5)
MOST_DOUBLINGS = 6
# So long after a node fell silent, or a GPU broke, a rule about it may take to hold.
SEEN_LATE = timedelta(minutes=5)
# Errors that end what runs on the GPU.
KILLING = ("xid", "ecc_uncorrected", "remap_failed")


def incidents_follow() -> int:
    """Tell what happened to hardware since the last call, in the caller's transaction. Returns how many steps that made."""
    last = IncidentStep.objects.aggregate(last=Max("event"))["last"] or 0
    events = InventoryEvent.objects.filter(kind="health").select_related("node", "gpu").order_by("pk")
    following = Following({one.node_id: one for one in Incident.objects.filter(closed_at__isnull=True).select_related("node", "rule")})
    following.take_all(list(_late(events, last)), late=True)
    while page := list(events.filter(pk__gt=last)[:MOST_EVENTS]):
        following.take_all(page)
        if following.made:
            break
        last = page[-1].pk  # nobody is told of any of them: go on behind them
    following.write()
    following.tell()
    return following.made


def _late(events: QuerySet[InventoryEvent], last: int) -> QuerySet[InventoryEvent]:
    """Events that have come to light after a later one: a key is given before the transaction ends."""
    newest = InventoryEvent.objects.filter(pk=last).values_list("at", flat=True).first()
    if newest is None:
        return events.none()
    return events.filter(~Exists(IncidentStep.objects.filter(event=OuterRef("pk"))), pk__lt=last, at__gt=newest - LONGEST_TRANSACTION)


def _is_of(event: InventoryEvent, open_ones: Mapping[int, Incident]) -> bool:
    """Whether an event without a step is one of the incident that is open, and not one before it that made none."""
    incident = open_ones.get(event.node_id or 0)
    return incident is None or event.at >= incident.opened_at or (event.after or {}).get("health") != Health.HEALTHY


class Following:
    """Steps of incidents out of events, gathered and written together: as many queries for many as for one."""

    def __init__(self, open_ones: dict[int, Incident]) -> None:
        self.open_ones = open_ones
        self.made = 0
        self._opened: list[Incident] = []
        self._steps: list[tuple[Incident, InventoryEvent, str]] = []
        self._worse: dict[int, Incident] = {}
        self._ends: dict[int, tuple[Incident, datetime]] = {}
        self._told: list[tuple[Callable[[Incident], Event], Incident, datetime]] = []

    def take_all(self, events: Sequence[InventoryEvent], *, late: bool = False) -> None:
        healthy = {event.node_id: event.pk for event in reversed(events) if event.node_id is not None and _health(event) == Health.HEALTHY}
        whole = Wholeness(healthy, since=min(healthy.values())) if healthy else None
        for event in events:
            if not late or _is_of(event, self.open_ones):
                self._take(event, whole)

    def _take(self, event: InventoryEvent, whole: "Wholeness | None") -> None:
        node, to = event.node, _health(event)
        if node is None or node.removed_at is not None:
            return
        incident = self.open_ones.get(node.pk)
        if incident is None:
            if to == Health.HEALTHY:
                return
            if node.pk in self._ends:
                self.write()  # one is open at a time
            worst = to if event.gpu_id is None else Health.SUSPECT.value
            incident = self.open_ones[node.pk] = Incident(node=node, opened_at=event.at, title=event.cause[:300], worst=worst or Health.SUSPECT)
            self._opened.append(incident)
            self._told.append((_opened, incident, event.at))
        self.made += 1
        self._steps.append((incident, event, to))
        if event.gpu_id is None and SEVERITY.index(Health(to)) > SEVERITY.index(Health(incident.worst)):
            incident.worst = to
            self._worse[node.pk] = incident
        if to == Health.HEALTHY and whole is not None and whole.right_after(event):
            self._ends[node.pk] = incident, event.at
            self._told.append((_closed, incident, event.at))
            del self.open_ones[node.pk]

    def write(self) -> None:
        for at, together in groupby(sorted(self._opened, key=lambda one: (one.opened_at, one.node_id)), key=attrgetter("opened_at")):
            fresh = {one.node_id: one for one in together}
            for made in incidents_open([Opening(one.node, one.title, health=one.worst) for one in fresh.values()], at=at):
                one = fresh[made.node_id]
                one.pk, one.public_id, one.gpus = made.pk, made.public_id, made.gpus
        rows_insert(IncidentStep, STEP, [_step(incident, event, to) for incident, event, to in self._steps])
        objects_update(list(self._worse.values()), ("worst",))
        incidents_close(list(self._ends.values()))
        self._opened, self._steps, self._worse, self._ends = [], [], {}, {}

    def tell(self) -> None:
        for at, together in groupby(self._told, key=itemgetter(2)):
            events_tell([event(incident) for event, incident, _ in together], now=at)


def _health(event: InventoryEvent) -> str:
    return str((event.after or {}).get("health", ""))


def _step(incident: Incident, event: InventoryEvent, to: str) -> tuple[Any, ...]:
    name = f"GPU {event.gpu.index}" if event.gpu else incident.node.name
    text = f"{name}: {Health(to).label.lower() if to in Health.values else to}. {event.cause}"[:300]
    return incident.pk, event.at, text, to if event.gpu_id is None else "", event.pk, event.actor_name or "gpufleet"


class Wholeness:
    """Whether all of a node was healthy right after an event. Three queries, for all nodes that are asked of."""

    def __init__(self, nodes: Collection[int], since: int) -> None:
        """`since`: no event that is asked of is older than this key."""
        self._now: dict[int, dict[int | None, str]] = defaultdict(dict)
        self._events: dict[int, list[InventoryEvent]] = defaultdict(list)
        there = sorted(nodes)
        for node, gpu, health in Gpu.objects.filter(node__among=there, removed_at__isnull=True).values_list("node", "pk", "health"):
            self._now[node][gpu] = health
        for node, health in Node.objects.filter(pk__among=there).values_list("pk", "health"):
            self._now[node][None] = health
        for row in InventoryEvent.objects.filter(node__among=there, kind="health", pk__gt=since).order_by("pk"):
            self._events[row.node_id or 0].append(row)

    def right_after(self, event: InventoryEvent) -> bool:
        node = event.node_id or 0
        now = dict(self._now[node])
        # What is so now was so then, but for what changed since: the first change says what it was before.
        seen: set[int | None] = set()
        for row in self._events[node]:
            if row.pk > event.pk and row.gpu_id not in seen:
                seen.add(row.gpu_id)
                now[row.gpu_id] = str((row.before or {}).get("health", Health.HEALTHY))
        now.pop(event.gpu_id, None)
        return all(health == Health.HEALTHY for health in now.values())


@dataclass(frozen=True, slots=True)
class Opening:
    """What an incident begins with."""

    node: Node
    title: str
    rule: int | None = None
    health: str = ""


def incidents_open(openings: Sequence[Opening], *, at: datetime) -> list[Incident]:
    """Nobody is told yet. As many queries for many as for one."""
    counted = Gpu.objects.filter(node__among=[one.node.pk for one in openings], removed_at__isnull=True).order_by().values_list("node")
    gpus = dict(counted.annotate(count=Count("pk")))
    names = public_ids("in", len(openings))
    rows = [
        (name, one.node.pk, at, one.title[:300], one.rule, one.rule is not None, gpus.get(one.node.pk, 0), one.health or Health.SUSPECT)
        for name, one in zip(names, openings, strict=True)
    ]
    rows_insert(Incident, ("public_id", "node_id", "opened_at", "title", "rule_id", "by_rule", "gpus", "worst"), rows)
    return list(Incident.objects.filter(public_id__among=names).select_related("node", "rule").order_by("pk"))


def _opened(incident: Incident) -> Event:
    return Event(
        kind=FleetEvent.INCIDENT_OPENED,
        title=f"{incident.node.name}: {incident.title}",
        text=f"An incident is open on {incident.node.name} ({incident.gpus} GPUs).",
        link=f"/incidents/{incident.public_id}/",
        subject={"incident": incident.public_id, "node": incident.node.public_id},
    )


def incidents_open_told(openings: Sequence[Opening], *, at: datetime) -> list[Incident]:
    """The same, told together."""
    made = incidents_open(openings, at=at) if openings else []
    events_tell([_opened(incident) for incident in made], now=at)
    return made


@dataclass(frozen=True, slots=True)
class Hand:
    """Who brought a node to where it is: by name who set its present health, and who took it out of service; empty: it is in service."""

    last: str
    out: str


NOBODY = Hand("", "")


def hands() -> dict[int, Hand]:
    """Of each node with an open incident, as its steps tell. One query."""
    found: dict[int, Hand] = {}
    steps = IncidentStep.objects.filter(incident__closed_at__isnull=True).exclude(health="").order_by("incident_id", "at", "pk")
    for node, health, by in steps.values_list("incident__node_id", "health", "by"):
        before = found.get(node)
        found[node] = Hand(by, "" if health in IN_SERVICE else before.out if before and before.out else by)
    return found


def incidents_of_a_day(now: datetime) -> Counter[int]:
    """How many each node had, by key. One query."""
    rows = Incident.objects.filter(opened_at__gt=now - A_DAY).order_by().values_list("node")
    return Counter(dict(rows.annotate(count=Count("pk"))))


def calm_needed(incidents_of_a_day: int) -> timedelta:
    """How long a node must be calm: longer each time that it fell ill in the last day."""
    return CALM * 2 ** min(max(incidents_of_a_day - 1, 0), MOST_DOUBLINGS)


def incident_note(*, incident: Incident, text: str, at: datetime, by: str = "gpufleet") -> None:
    IncidentStep.objects.create(incident=incident, at=at, text=text[:300], by=by)


def incidents_note(texts: Sequence[tuple[int, str]], *, at: datetime) -> None:
    """Lines of several incidents, by key."""
    rows_insert(IncidentStep, ("incident_id", "at", "text", "by"), [(incident, at, text[:300], "gpufleet") for incident, text in texts])


def incidents_close(ends: Sequence[tuple[Incident, datetime]]) -> None:
    """Each with when it was over. Nobody is told yet."""
    for at, some in groupby(sorted(ends, key=lambda end: (end[1], end[0].pk)), key=itemgetter(1)):
        incidents = [incident for incident, _ in some]
        measure(incidents, now=at)
        for incident in incidents:
            incident.closed_at = max(at, incident.opened_at)
        objects_update(incidents, ("closed_at",))
        HealthFinding.objects.filter(incident__among=[one.pk for one in incidents], cleared_at__isnull=True).update(cleared_at=at)


def _closed(incident: Incident) -> Event:
    assert incident.closed_at is not None
    end = "was removed" if incident.node.removed_at is not None else "is healthy again"
    return Event(
        kind=FleetEvent.INCIDENT_CLOSED,
        title=f"{incident.node.name} {end}",
        text=f"The incident took {_span(incident.closed_at - incident.opened_at)} and cost {incident.out_milli_millis / 3.6e9:,.1f} GPU-hours.",
        link=f"/incidents/{incident.public_id}/",
        subject={"incident": incident.public_id, "node": incident.node.public_id},
    )


def incidents_end(*, now: datetime) -> None:
    """Close those of nodes that were removed; and of nodes that are healthy, all of their GPUs too, once their findings have been over for as long
    as those of a suspect: where rules note alone, no step of health does.
    """
    open_ones = Incident.objects.filter(closed_at__isnull=True).select_related("node").order_by("pk")
    ends = [(incident, min(incident.node.removed_at or now, now)) for incident in open_ones.filter(node__removed_at__isnull=False)]
    findings = HealthFinding.objects.filter(node=OuterRef("node"), cleared_at__isnull=True).exclude(rule__action=Action.NOTE)
    sick = Gpu.objects.filter(node=OuterRef("node"), removed_at__isnull=True).exclude(health=Health.HEALTHY)
    healthy = open_ones.filter(~Exists(findings), ~Exists(sick), node__health=Health.HEALTHY, node__removed_at__isnull=True)
    recent = incidents_of_a_day(now)
    calm = healthy.annotate(over=Max("findings__cleared_at", filter=~Q(findings__rule__action=Action.NOTE)))
    ends += [(one, now) for one in calm if one.over is None or now - one.over >= calm_needed(recent[one.node_id])]
    incidents_close(ends)
    events_tell([_closed(incident) for incident, _ in ends], now=now)


def measure(incidents: Sequence[Incident], *, now: datetime) -> None:
    """Set what they have cost so far: GPU time out of service, and work of jobs that was not saved. As many queries for many as for one."""
    hurt, steps = jobs_hurt(incidents, now=now), _steps_of(incidents)
    for incident in incidents:
        incident.out_milli_millis = out_of_service(incident, steps[incident.pk], until=incident.closed_at or now)
        incident.jobs = len({one.attempt.job_id for one in hurt[incident.pk]})
        incident.lost_milli_millis = sum(one.lost_milli_millis for one in hurt[incident.pk])
    objects_update(incidents, ("out_milli_millis", "lost_milli_millis", "jobs"))


def _steps_of(incidents: Sequence[Incident]) -> Mapping[int, list[IncidentStep]]:
    found: dict[int, list[IncidentStep]] = defaultdict(list)
    for step in IncidentStep.objects.filter(incident__among=[one.pk for one in incidents]).order_by("at", "id") if incidents else ():
        found[step.incident_id].append(step)
    return found


def out_of_service(incident: Incident, steps: Sequence[IncidentStep], *, until: datetime) -> int:
    """Milli-GPU times milliseconds in which the node took no work."""
    total = sum((end - start for start, end in spans_out(steps, until=until)), timedelta(0))
    return incident.gpus * 1000 * int(total / timedelta(milliseconds=1))


def spans_out(steps: Sequence[IncidentStep], *, until: datetime) -> list[tuple[datetime, datetime]]:
    """When the node took no work."""
    told = [step for step in steps if step.health]
    ends = [*(step.at for step in told[1:]), max(until, told[-1].at)] if told else []
    return [(step.at, end) for step, end in zip(told, ends, strict=True) if step.health not in IN_SERVICE]


@dataclass(frozen=True, slots=True)
class Hurt:
    """A run that lost GPUs by an incident: how it ended, or that it goes on without them; what it held there, and the work that was not saved."""

    attempt: Attempt
    how: str
    milli: int
    lost_milli_millis: int


def jobs_hurt(incidents: Sequence[Incident], *, now: datetime) -> Mapping[int, list[Hurt]]:
    """By incident, runs that ended or shrank because of it. Who was preempted meanwhile, stopped by hand, or failed by itself is none of its.

    What kills a run is seen before the rule that opens an incident holds, so ends shortly before it count, too.
    """
    found: dict[int, list[Hurt]] = {incident.pk: [] for incident in incidents}
    here: dict[int, dict[int, list[Placement]]] = defaultdict(lambda: defaultdict(list))
    ends = {incident.pk: incident.closed_at or now for incident in incidents}
    for placement in _left(incidents, now):
        if placement.until <= ends[placement.incident]:
            here[placement.incident][placement.attempt_id].append(placement)
    keys = {attempt for runs in here.values() for attempt in runs}
    if not keys:
        return found
    attempts = {one.pk: one for one in Attempt.objects.filter(pk__among=keys).select_related("job__quota", "job__owner")}
    held: dict[int, int] = defaultdict(int)
    nodes: dict[int, set[int]] = defaultdict(set)
    for attempt, node, milli in Placement.objects.filter(attempt__among=keys).values_list("attempt_id", "node_id", "gpu_milli"):
        held[attempt] += milli
        nodes[attempt].add(node)
    saved = _saved(keys)
    blames = Causes.of([incident for incident in incidents if incident.pk in here], ends)
    for incident, runs in here.items():
        for key, gone in sorted(runs.items()):
            one = attempts[key]
            how = blames[incident].ended(one, gone, is_alone=len(nodes[key]) == 1)
            if how:
                at = one.ended_at if how == one.outcome else max(each.until for each in gone if each.until is not None)
                found[incident].append(Hurt(one, how, sum(each.gpu_milli for each in gone), _lost(one, held[key], at, saved[key])))
    return found


def _left(incidents: Sequence[Incident], now: datetime) -> Iterable[Any]:
    """What was held on GPUs of their nodes and given back while they were open, or shortly before; `incident` is the key of the one."""
    if not incidents:
        return ()
    rows = Placement.objects.filter(
        gpu__isnull=False,
        until__range=(min(one.opened_at for one in incidents) - SEEN_LATE, now),  # the database sees no constant in what follows
        until__gte=ExpressionWrapper(F("node__incidents__opened_at") - SEEN_LATE, MomentField()),
        node__incidents__among=[one.pk for one in incidents],
    )
    return rows.annotate(incident=F("node__incidents")).order_by("pk")


def _saved(attempts: Collection[int]) -> Mapping[int, list[datetime]]:
    """When checkpoints of each run were whole."""
    found: dict[int, list[datetime]] = defaultdict(list)
    for attempt, at in Saved.objects.filter(attempt__among=attempts, verified_at__isnull=False).values_list("attempt_id", "verified_at"):
        if attempt is not None and at is not None:
            found[attempt].append(at)
    return found


@dataclass(frozen=True, slots=True)
class Causes:
    """What of an incident can end a run: spans in which its node was out of service, and errors of GPUs that end what runs there."""

    name: str
    out: Sequence[tuple[datetime, datetime]]
    errors: Sequence[HealthFinding]

    @classmethod
    def of(cls, incidents: Sequence[Incident], ends: Mapping[int, datetime]) -> "dict[int, Causes]":
        errors: dict[int, list[HealthFinding]] = defaultdict(list)
        keys = [incident.pk for incident in incidents]
        for finding in HealthFinding.objects.filter(incident__among=keys, rule__signal__in=KILLING, gpu__isnull=False) if keys else ():
            errors[finding.incident_id or 0].append(finding)
        steps = _steps_of(incidents)
        return {one.pk: cls(one.node.name, spans_out(steps[one.pk], until=ends[one.pk]), errors[one.pk]) for one in incidents}

    def ended(self, attempt: Attempt, gone: Sequence[Placement], *, is_alone: bool) -> str:
        """How it ended by this incident, or `degraded` where it goes on; empty: not by it."""
        at = max(one.until for one in gone if one.until is not None)
        if attempt.ended_at is None or attempt.ended_at > at:
            if all(one.leaving_since is not None for one in gone):
                return ""  # workers of a gang that shrank were asked to leave
            return "lost" if attempt.outcome == "lost" else "degraded"
        match attempt.outcome:
            case "preempted" | "moved":
                asked = attempt.stop_asked_at or at
                is_ours = causes.is_drain(attempt.cause) and any(start <= asked <= end for start, end in self.out)
            case "lost":
                is_ours = self._lost_here(attempt, at, is_alone)
            case "failed":
                gpus = {one.gpu_id for one in gone}
                is_ours = any(one.gpu_id in gpus and self._held_at(one, at) for one in self.errors)
            case _:
                is_ours = False
        return attempt.outcome if is_ours else ""

    def _lost_here(self, attempt: Attempt, at: datetime, is_alone: bool) -> bool:
        """Of a gang whose cause names no node, that one is to blame which was out of service."""
        if named := causes.nodes_down(attempt.cause):
            return self.name in named
        return attempt.running_at is not None and (is_alone or any(start - SEEN_LATE <= at <= end for start, end in self.out))

    @staticmethod
    def _held_at(finding: HealthFinding, at: datetime) -> bool:
        return finding.since - SEEN_LATE <= at <= (finding.cleared_at or at)


def _lost(attempt: Attempt, milli: int, at: datetime | None, saved: Sequence[datetime]) -> int:
    """Work since the last checkpoint, of all GPUs of the gang: a gang goes back together."""
    if at is None or attempt.running_at is None:
        return 0
    since = max([attempt.running_at, *(moment for moment in saved if moment <= at)])
    if attempt.outcome in ("preempted", "moved") and attempt.stop_asked_at is not None:
        # It was asked to save its work first: what came before is kept.
        since = max(since, attempt.stop_asked_at)
    return milli * max(0, int((at - since) / timedelta(milliseconds=1)))


def _span(span: timedelta) -> str:
    minutes = int(span / timedelta(minutes=1))
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"
