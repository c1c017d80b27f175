"""The round of the health rules: findings from raw state, what they do to nodes, and each node's way back.

Limits hold whatever a rule says: of a pool only a stated share is out of service by rule, a source that is stale or silent all over says nothing, and
a node that falls ill again and again is trusted later each time.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import reduce
from operator import attrgetter, or_

from django.db import transaction
from django.db.models import Q

from dashboards.health.incidents import (
    NOBODY,
    Opening,
    hands,
    incidents_end,
    incidents_follow,
    incidents_note,
    incidents_open_told,
    measure,
)
from dashboards.health.lifecycle import RULES, go_on, healths_change
from dashboards.health.models import Action, HealthBucket, HealthFinding, HealthFrame, HealthRule, HealthSettings, Incident, IncidentStep
from dashboards.health.rules import ORDER, Hit, Judged, Rule, Sum, Sums, judged, ruled, said
from dashboards.health.state import BUCKET, ages_write, device_of_node, gpus_read
from dashboards.prometheus.models import PrometheusServer
from dashboards.selectors import FRESH
from gpufleet.core.bulk import objects_update, rows_insert
from gpufleet.core.models import Progress
from gpufleet.core.progress import turn_take
from scheduler.models import IN_SERVICE, Gpu, Health, Node
from scheduler.services.hardware.healths import HealthStep, pcie_lost_write

TURN = "health"
AGES = "health ages"  # since when ages of heartbeats are kept
PACE = timedelta(seconds=10)  # beat asks each fifteen seconds
FINDING = ("rule_id", "node_id", "gpu_id", "device", "incident_id", "since", "seen_at", "value", "code")
SILENT = timedelta(seconds=120)  # a node that was not heard of for so long
# Of a pool's nodes so many may fall silent at once before silence is the source's, not theirs.
SILENT_PERCENT = 30
# A node was last heard of when its source was: both moments are of the same look.
AT_ONCE = timedelta(seconds=1)
TARGET = {Action.SUSPECT: Health.SUSPECT, Action.DRAIN: Health.DRAINING, Action.DOWN: Health.DOWN}


@dataclass(frozen=True, slots=True)
class Machine:
    """A node as rules see it."""

    key: int
    name: str
    pool: int | None
    cluster: int
    health: str
    heartbeat_at: datetime | None


@dataclass(slots=True)
class Round:
    """What one round did."""

    opened: int = 0
    cleared: int = 0
    acted: list[str] = field(default_factory=list)
    withheld: list[str] = field(default_factory=list)
    stale: tuple[int, ...] = ()


def rule_of(row: HealthRule) -> Rule:
    minutes = timedelta(minutes=1)
    return Rule(
        row.pk,
        row.name,
        row.signal,
        row.group,
        row.threshold,
        row.window_minutes * minutes,
        row.clear_below,
        row.clear_minutes * minutes,
        row.action,
    )


def settings_row() -> HealthSettings:
    return HealthSettings.objects.filter(pk=1).first() or HealthSettings()


def health_turn(*, now: datetime) -> Round | None:
    """One round. None: another process just did it."""
    with transaction.atomic():
        if turn_take(name=TURN, now=now, at_least=PACE) is None:
            return None
    return health_round(now=now)


def health_round(*, now: datetime) -> Round:
    done = Round()
    with transaction.atomic():
        incidents_follow()
    rules = [rule_of(row) for row in HealthRule.objects.filter(enabled=True, removed_at__isnull=True).order_by("pk")]
    machines = {machine.key: machine for machine in machines_now()}
    settings = settings_row()
    findings = list(HealthFinding.objects.filter(cleared_at__isnull=True).select_related("rule", "node", "gpu", "incident"))
    stale = stale_clusters(now)
    done.stale = tuple(sorted(stale))
    ages, unheard = heartbeat_ages(machines.values(), outages(now), now)
    sums = Sums(sums_stored(spans_of(rules), now))
    open_ones = ((one.rule_id, one.device) for one in findings if not (one.rule.signal == "heartbeat" and one.device in unheard))
    found = judged(rules, sums, ages, open_ones, now)
    with transaction.atomic():
        Progress.objects.bulk_create([Progress(name=AGES, reached_at=now)], ignore_conflicts=True)
        ages_write(ages=ages, at=now)
        _findings_write(found, findings, machines, stale, now, done)
    fresh = list(HealthFinding.objects.filter(cleared_at__isnull=True).select_related("rule", "node", "gpu", "incident"))
    of_links = sorted([finding for finding in fresh if finding.rule.signal == "pcie_lost"], key=attrgetter("value"))
    pcie_lost_write({finding.node_id: min(100, finding.value) for finding in of_links})
    if settings.acts:
        _act(fresh, machines, settings, now, done)
        go_on(now=now, settings=settings, findings=fresh)
    with transaction.atomic():
        incidents_follow()
        incidents_end(now=now)
        measure(list(Incident.objects.filter(closed_at__isnull=True).select_related("node").order_by("pk")), now=now)
    return done


def machines_now() -> list[Machine]:
    rows = Node.objects.filter(removed_at__isnull=True).order_by("pk")
    return [Machine(*row) for row in rows.values_list("pk", "name", "pool_id", "cluster_id", "health", "heartbeat_at")]


def spans_of(rules: Iterable[Rule]) -> dict[str, timedelta]:
    """How far back rules look, by signal."""
    found: dict[str, timedelta] = {}
    for rule in rules:
        if rule.signal != "heartbeat":
            found[rule.signal] = max(rule.window, rule.clear_after, found.get(rule.signal, timedelta(0)))
    return found


def sums_stored(spans: Mapping[str, timedelta], now: datetime) -> list[Sum]:
    """What is stored of each signal in so long a time before now."""
    by_start: dict[datetime, list[str]] = defaultdict(list)
    for signal, span in spans.items():
        by_start[now - span - 2 * BUCKET].append(signal)
    if not by_start:
        return []
    wanted = reduce(or_, (Q(at__gte=start, signal__in=signals) for start, signals in sorted(by_start.items())))
    rows = HealthBucket.objects.filter(wanted, at__gte=min(by_start)).order_by("at", "pk")
    return [Sum(*row) for row in rows.values_list("at", "device", "signal", "code", "value")]


def stale_clusters(now: datetime) -> set[int]:
    """Clusters whose raw state is too old to say anything. One that never had any has none to be stale."""
    return {cluster for cluster, at in HealthFrame.objects.values_list("cluster_id", "at") if abs(now - at) > FRESH}


def outages(now: datetime) -> list[datetime]:
    """When each source that says nothing now was last heard of: it is silent itself, is switched off or was removed."""
    frames = HealthFrame.objects.filter(at__lt=now - FRESH).values_list("at", flat=True)
    servers = PrometheusServer.objects.filter(read_at__lt=now - FRESH).values_list("read_at", flat=True)
    return sorted({at for at in (*frames, *servers) if at is not None})


def heartbeat_ages(machines: Iterable[Machine], stops: Sequence[datetime], now: datetime) -> tuple[dict[int, int], set[int]]:
    """Seconds since each node was heard of, by device; and those of which silence says nothing, as it must be the source's.

    So it is where a source fell silent with the node (`stops`), and where so much of a pool is silent at once.
    """
    by_pool: dict[tuple[int, int | None], list[Machine]] = defaultdict(list)
    for machine in machines:
        if machine.heartbeat_at is not None and machine.health not in (Health.REPAIRING, Health.DRAINED):
            by_pool[machine.cluster, machine.pool].append(machine)
    found: dict[int, int] = {}
    unheard: set[int] = set()
    for pool in by_pool.values():
        heard = {device_of_node(machine.key): machine.heartbeat_at for machine in pool if machine.heartbeat_at is not None}
        ages = {device: max(0, int((now - at).total_seconds())) for device, at in heard.items()}
        silent = sum(age > SILENT.total_seconds() for age in ages.values())
        if silent > 1 and 100 * silent > SILENT_PERCENT * len(pool):
            unheard |= ages.keys()
            continue
        cut = {device for device, at in heard.items() if any(abs(at - stop) < AT_ONCE for stop in stops)}
        unheard |= cut
        found |= {device: age for device, age in ages.items() if device not in cut}
    return found, unheard


def _findings_write(
    found: Judged, findings: Sequence[HealthFinding], machines: Mapping[int, Machine], stale: set[int], now: datetime, done: Round
) -> None:
    there = {(finding.rule_id, finding.device): finding for finding in findings}
    gpus = {device // 2 for _, device in found.hits if device % 2 == 0}
    node_of = dict(Gpu.objects.filter(pk__in=gpus, removed_at__isnull=True).values_list("pk", "node_id"))
    fresh: list[tuple[Hit, int]] = []
    going: list[HealthFinding] = []
    for place, hit in sorted(found.hits.items()):
        key, is_node = divmod(hit.device, 2)
        node = key if is_node else node_of.get(key)
        machine = machines.get(node) if node is not None else None
        if machine is None or (machine.cluster in stale and hit.rule.signal != "heartbeat"):
            continue
        finding = there.get(place)
        if finding is None:
            fresh.append((hit, machine.key))
        else:
            finding.value, finding.code, finding.seen_at = hit.value, hit.code, now
            going.append(finding)
    objects_update(going, ("value", "code", "seen_at"))
    _findings_open(fresh, now)
    over: list[HealthFinding] = []
    read = _gpus_read({machines[there[place].node_id].cluster for place in found.calm if there[place].gpu_id and there[place].node_id in machines})
    for place in sorted(found.calm):
        finding = there[place]
        machine = machines.get(finding.node_id)
        if machine is not None and finding.rule.signal != "heartbeat":
            if machine.cluster in stale or _unread(machine, now):
                continue
            # A GPU that fell off the bus is silent, not well.
            if finding.gpu is not None and finding.gpu.removed_at is None and finding.gpu_id not in read.get(machine.cluster, (finding.gpu_id,)):
                continue
        finding.cleared_at = now
        over.append(finding)
    objects_update(over, ("cleared_at",))
    told = [(finding.incident, f"{finding.rule.name} is over{_where(finding.gpu)}.") for finding in over]
    incidents_note([(incident.pk, text) for incident, text in told if incident is not None and incident.closed_at is None], at=now)
    done.opened, done.cleared = done.opened + len(fresh), done.cleared + len(over)


def _unread(machine: Machine, now: datetime) -> bool:
    """Whether no source tells of this node, while one may tell of others in its cluster."""
    return machine.heartbeat_at is not None and abs(now - machine.heartbeat_at) > FRESH


def _gpus_read(clusters: set[int]) -> dict[int, set[int]]:
    """By cluster the GPUs that are read. Of a cluster without raw state nothing is said."""
    frames = HealthFrame.objects.filter(cluster__in=clusters) if clusters else ()
    return {frame.cluster_id: gpus_read(frame, within=FRESH) for frame in frames}


def _findings_open(fresh: Sequence[tuple[Hit, int]], now: datetime) -> None:
    """Findings with the nodes that they are of. Each belongs to the incident of its node; one that only notes opens none."""
    if not fresh:
        return
    gpus = Gpu.objects.in_bulk({hit.device // 2 for hit, _ in fresh if hit.device % 2 == 0})
    nodes = Node.objects.in_bulk({node for _, node in fresh})
    where = {hit.device: gpus[hit.device // 2] if hit.device % 2 == 0 else None for hit, _ in fresh}
    texts = [f"{said(hit)}{_where(where[hit.device])}" for hit, _ in fresh]
    open_ones = dict(Incident.objects.filter(node__among=list(nodes), closed_at__isnull=True).values_list("node", "pk"))
    openings: dict[int, Opening] = {}
    for (hit, node), text in zip(fresh, texts, strict=True):
        if node not in open_ones and hit.rule.action != Action.NOTE:
            openings.setdefault(node, Opening(nodes[node], text, rule=hit.rule.key))
    open_ones |= {made.node_id: made.pk for made in incidents_open_told(list(openings.values()), at=now)}
    rows = [
        (hit.rule.key, node, gpu.pk if (gpu := where[hit.device]) else None, hit.device, open_ones.get(node), now, now, hit.value, hit.code)
        for hit, node in fresh
    ]
    rows_insert(HealthFinding, FINDING, rows)
    notes = [(open_ones.get(node), ruled(hit.rule.name, text)) for (hit, node), text in zip(fresh, texts, strict=True)]
    incidents_note([(incident, text) for incident, text in notes if incident is not None], at=now)


def _where(gpu: Gpu | None) -> str:
    return f" on GPU {gpu.index}" if gpu is not None else ""


def _act(findings: Sequence[HealthFinding], machines: Mapping[int, Machine], settings: HealthSettings, now: datetime, done: Round) -> None:
    """The strongest action that findings ask for on each node, within the limits of its pool."""
    wanted: dict[int, HealthFinding] = {}
    for finding in findings:
        known = wanted.get(finding.node_id)
        if known is None or ORDER.index(finding.rule.action) > ORDER.index(known.rule.action):
            wanted[finding.node_id] = finding
    room = _room(machines, settings)
    steps: list[HealthStep] = []
    withheld: list[tuple[HealthFinding, str]] = []
    for node, finding in sorted(wanted.items()):
        machine = machines.get(node)
        target = TARGET.get(Action(finding.rule.action))
        if machine is None or target is None or not _is_worse(machine.health, target):
            continue
        takes_out = target not in IN_SERVICE and machine.health in IN_SERVICE
        pool = room[machine.cluster, machine.pool]
        if takes_out and pool.out < 1:
            done.withheld.append(machine.name)
            withheld.append((finding, f"Not taken out of service: rules take at most {settings.most_percent}% of a pool."))
            if machine.health != Health.HEALTHY:
                continue
            target, takes_out = Health.SUSPECT, False
        if target == Health.SUSPECT and pool.closed < 1:
            done.withheld.append(machine.name)
            withheld.append((finding, "Not marked suspect: rules leave half of a pool to new work."))
            continue
        steps.append(HealthStep(node, target, ruled(finding.rule.name, _said(finding))[:300], machine.health))
        pool.out -= takes_out
        pool.closed -= machine.health == Health.HEALTHY
    _withheld(withheld, now)
    taken = healths_change(steps, now=now)
    Incident.objects.filter(node__among=sorted(taken), closed_at__isnull=True).update(by_rule=True)
    done.acted += [f"{machines[step.node].name} {step.to}" for step in steps if step.node in taken]


def _said(finding: HealthFinding) -> str:
    return said(Hit(rule_of(finding.rule), finding.device, finding.value, finding.code)) + _where(finding.gpu)


def _is_worse(health: str, target: str) -> bool:
    """Rules only make worse what still serves, or may be down: the way back has its own steps."""
    if target == Health.SUSPECT:
        return health == Health.HEALTHY
    if target == Health.DRAINING:
        return health in IN_SERVICE
    return health in (*IN_SERVICE, Health.DRAINING)


@dataclass(slots=True)
class Room:
    """How many nodes of a pool rules may still take out of service, and how many close to new work: those, and suspects."""

    out: int = 0
    closed: int = 0


def _room(machines: Mapping[int, Machine], settings: HealthSettings) -> dict[tuple[int, int | None], Room]:
    """Of each pool, whoever opened the incidents of its nodes. One node may always go."""
    size: dict[tuple[int, int | None], int] = defaultdict(int)
    room: dict[tuple[int, int | None], Room] = defaultdict(Room)
    by = hands()
    for machine in machines.values():
        place, hand = (machine.cluster, machine.pool), by.get(machine.key, NOBODY)
        size[place] += 1
        is_out = machine.health not in IN_SERVICE and hand.out == RULES.name
        room[place].out -= is_out
        room[place].closed -= is_out or (machine.health == Health.SUSPECT and hand.last == RULES.name)
    for place, count in size.items():
        room[place].out += max(1, count * settings.most_percent // 100)
        room[place].closed += -(-count // 2)
    return room


def _withheld(told: Sequence[tuple[HealthFinding, str]], now: datetime) -> None:
    """Say in the incidents what rules may not do, once each."""
    of = [(finding.incident_id, text) for finding, text in told if finding.incident_id is not None]
    if not of:
        return
    said = IncidentStep.objects.filter(incident__among=sorted({key for key, _ in of}), text__in=sorted({text for _, text in of}))
    there = set(said.values_list("incident_id", "text"))
    incidents_note([one for one in of if one not in there], at=now)
