"""Stragglers (HLT-8): the slow rank of a gang, its node and the likely cause, before the job's mean shows it.

Reported step times are looked at where the whole gang reports them, a rank a GPU; else SM activity and NVLink traffic by the minute. A rank that has
been named stays named until it keeps up again. Of one that its steps named they say so, too, as long as the gang reports: between long steps and
through checkpoints too few looks are read to name anybody, and a gang that waits busily is as active as ever.
"""

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from django.db import transaction

from dashboards.health.detect import AGREE, LEAST_MIB, LEAST_RANKS, LOOKS, READ, STAYS, Slow, looks_read, slow_ranks
from dashboards.health.models import HealthBucket, HealthFinding, StepLook, Straggler
from dashboards.health.round import rule_of
from dashboards.health.rules import Hit, figure_told, said
from dashboards.health.state import SIGNALS
from dashboards.health.steps import KEPT, LOOK, looks_of
from dashboards.signals import Floats, activity_window, nvlink_window
from dashboards.telemetry.frames import MINUTE, SETTLE, minute_of
from dashboards.telling import Event, events_tell
from gpufleet.core.bulk import objects_update, rows_insert
from gpufleet.core.ids import public_ids
from gpufleet.core.progress import turn_take
from scheduler.models import HOLDING, Gpu, Job, Placement
from scheduler.notify.happenings import FleetEvent

TURN = "stragglers"
PACE = timedelta(seconds=10)
MINUTES = LOOKS + 1
NEW = ("public_id", "job_id", "attempt", "gpu_id", "node_id", "rank", "ranks", "since", "seen_at", "percent", "measure", "cause")
# A slow rank computes longer and waits less, or waits for its own clock: either way it leaves the others' SM activity.
FRESH_STEPS = timedelta(seconds=45)
# For so long after its last report what a gang's steps named is theirs to end.
HELD_STEPS = KEPT * LOOK
LOOK_BACK = timedelta(minutes=30)
CAUSES = {
    "thermal": "Thermal throttling",
    "power_brake": "Power brake",
    "ecc_corrected": "ECC errors",
    "ecc_uncorrected": "Uncorrected ECC errors",
    "nvlink_errors": "NVLink errors",
    "pcie_lost": "PCIe downgrade",
    "pcie_replays": "PCIe replays",
    "nic_errors": "NIC errors",
    "nic_lost": "NIC speed below nominal",
    "retransmits": "TCP retransmissions",
    "pcie_saturated": "PCIe saturation",
    "xid": "XIDs",
    "temperature": "Heat",
}


@dataclass(slots=True)
class Gang:
    """Ranks of a run in order: the GPU and node of each; and since when all of them run."""

    attempt: int
    job: int
    since: datetime
    ranks: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Named:
    gang: Gang
    slow: Slow
    measure: str


Place = tuple[int, int]  # an attempt, and the GPU of one of its ranks


def stragglers_turn(*, now: datetime) -> int | None:
    with transaction.atomic():
        if turn_take(name=TURN, now=now, at_least=PACE) is None:
            return None
    return stragglers_round(now=now)


def stragglers_round(*, now: datetime) -> int:
    """Name stragglers, and end those that keep up. Returns how many are named now."""
    gangs = gangs_running()
    open_ones = {(row.attempt, row.gpu_id): row for row in Straggler.objects.filter(ended_at__isnull=True)}
    found, judged, held = _found(gangs, open_ones, now)
    named: dict[Place, Named] = {}
    for one in found:
        named.setdefault(_place(one), one)
    with transaction.atomic():
        slow: list[Straggler] = []
        over: list[Straggler] = []
        for place, row in open_ones.items():
            if place in named:
                row.seen_at, row.percent = now, round(named[place].slow.percent)
                slow.append(row)
            elif place not in held and (row.attempt in judged or row.attempt not in gangs):
                row.ended_at = now
                over.append(row)
        objects_update(slow, ("seen_at", "percent"))
        objects_update(over, ("ended_at",))
        _name([one for place, one in named.items() if place not in open_ones], now)
    return len(named)


def gangs_running() -> dict[int, Gang]:
    """Gangs of enough whole GPUs that compute, by attempt. One query."""
    rows = (
        Placement.objects.filter(until__isnull=True, gpu__isnull=False, gpu_milli=1000, mig__isnull=True, job__state__in=HOLDING)
        .filter(attempt__running_at__isnull=False)
        .order_by("attempt_id", "role", "worker", "gpu__index", "id")
        .values_list("attempt_id", "job_id", "gpu_id", "node_id", "attempt__running_at", "since")
    )
    found: dict[int, Gang] = {}
    for attempt, job, gpu, node, running, since in rows:
        gang = found.setdefault(attempt, Gang(attempt, job, running or since, []))
        gang.ranks.append((gpu, node))
        gang.since = max(gang.since, since)
    return {key: gang for key, gang in found.items() if len(gang.ranks) >= LEAST_RANKS}


def _found(gangs: Mapping[int, Gang], open_ones: Mapping[Place, Straggler], now: datetime) -> tuple[list[Named], set[int], set[Place]]:
    """Who is slow, of which gangs enough is known to say so, and who stays named as too little is."""
    found: list[Named] = []
    judged: set[int] = set()
    held: set[Place] = set()
    for row in StepLook.objects.filter(attempt__in=list(gangs), at__gte=now - HELD_STEPS).order_by("pk"):
        gang, figures = gangs[row.attempt_id], looks_of(row).astype(np.float64)
        # The newest look may be half told yet.
        settled = figures if now - row.at >= LOOK / 2 else figures[:-1]
        # Often the first rank alone reports, for MFU, or one a node: that says nothing about who is slow.
        if row.ranks != len(gang.ranks) or len(settled) < LOOKS:
            continue
        read = looks_read(settled[-LOOKS:])
        slow = [Named(gang, one, "step") for one in slow_ranks(settled, named=_named(gang, open_ones))]
        if read >= AGREE and now - row.at <= FRESH_STEPS:
            judged.add(gang.attempt)
            found += slow
        elif looks_read(settled):
            by_steps = {place for place, one in open_ones.items() if one.attempt == gang.attempt and one.measure == "step"}
            held |= by_steps if read < STAYS else set()
            found += [one for one in slow if _place(one) in by_steps]
    # What its GPUs did before it ran was the work of others.
    began = minute_of(now - SETTLE) - MINUTE * LOOKS
    rest = [gang for key, gang in gangs.items() if key not in judged and gang.since <= began]
    window = activity_window(minutes=MINUTES, now=now) if rest else None
    traffic = nvlink_window(gpus=window.gpus, now=now) if window is not None else None
    for gang in rest:
        assert window is not None
        assert traffic is not None
        places = window.places([gpu for gpu, _ in gang.ranks])
        if (places < 0).any() or window.fresh[places].mean() < READ:
            continue
        judged.add(gang.attempt)
        named = _named(gang, open_ones)
        by_sm = slow_ranks(window.sm[places].T, higher_is_slow=False, named=named)
        known = {one.rank for one in by_sm}
        found += [Named(gang, one, "sm") for one in by_sm]
        nodes = [node for _, node in gang.ranks]
        found += [Named(gang, one, "nvlink") for one in slow_links(traffic[:, places], nodes, named=named) if one.rank not in known]
    return found, judged, held


def slow_links(traffic: Floats, nodes: Sequence[int], *, named: frozenset[int] = frozenset()) -> list[Slow]:
    """Ranks with less NVLink traffic than the gang's others on their node: stages of a pipeline on other nodes may well have another."""
    found = []
    for node in dict.fromkeys(nodes):
        ranks = [rank for rank, its in enumerate(nodes) if its == node]
        mine = frozenset(place for place, rank in enumerate(ranks) if rank in named)
        slow = slow_ranks(traffic[:, ranks], higher_is_slow=False, least=LEAST_MIB, named=mine)
        found += [Slow(ranks[one.rank], one.percent) for one in slow]
    return found


def _place(one: Named) -> Place:
    return one.gang.attempt, one.gang.ranks[one.slow.rank][0]


def _named(gang: Gang, open_ones: Container[Place]) -> frozenset[int]:
    """Ranks of a gang that are named already."""
    return frozenset(rank for rank, (gpu, _) in enumerate(gang.ranks) if (gang.attempt, gpu) in open_ones)


def _name(fresh: Sequence[Named], now: datetime) -> None:
    """Write them down and tell of them, together."""
    if not fresh:
        return
    causes = causes_of([one.gang.ranks[one.slow.rank] for one in fresh], now)
    rows = [_row(one, public, causes, now) for one, public in zip(fresh, public_ids("st", len(fresh)), strict=True)]
    rows_insert(Straggler, NEW, [[getattr(row, name) for name in NEW] for row in rows])
    jobs = {job.pk: job for job in Job.objects.filter(pk__among={row.job_id for row in rows}).select_related("quota")}
    gpus = {gpu.pk: gpu for gpu in Gpu.objects.filter(pk__among={row.gpu_id for row in rows}).select_related("node")}
    events_tell([_event(row, jobs[row.job_id], gpus[row.gpu_id]) for row in rows], now=now)


def _row(one: Named, public: str, causes: Mapping[tuple[int, int], str], now: datetime) -> Straggler:
    gpu, node = one.gang.ranks[one.slow.rank]
    return Straggler(
        public_id=public,
        job_id=one.gang.job,
        attempt=one.gang.attempt,
        gpu_id=gpu,
        node_id=node,
        rank=one.slow.rank,
        ranks=len(one.gang.ranks),
        since=now,
        seen_at=now,
        percent=round(one.slow.percent),
        measure=one.measure,
        cause=causes.get((gpu, node), "No fault of the hardware is known; look at its data and its neighbours."),
    )


def _event(row: Straggler, job: Job, gpu: Gpu) -> Event:
    return Event(
        kind=FleetEvent.STRAGGLER,
        title=f"Rank {row.rank} slows {job.name} down by {row.percent}%",
        text=f"GPU {gpu.index} of {gpu.node.name}. Likely cause: {row.cause}",
        path=job.quota.path,
        job=job.public_id,
        link="/incidents/",
        subject={"straggler": row.public_id, "rank": row.rank, "node": gpu.node.public_id, "percent": row.percent, "measure": row.measure},
    )


def causes_of(devices: Sequence[tuple[int, int]], now: datetime) -> dict[tuple[int, int], str]:
    """What is known to be wrong with each (GPU, node): a rule that holds, else raw state of the last half hour. Two queries."""
    nodes = {node for _, node in devices}
    holds: dict[tuple[int | None, int], str] = {}
    for row in HealthFinding.objects.filter(node__in=nodes, cleared_at__isnull=True).select_related("rule").order_by("pk"):
        holds[row.gpu_id, row.node_id] = f"{said(Hit(rule_of(row.rule), row.device, row.value, row.code))}."
    seen: dict[tuple[int | None, int], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for gpu, node, signal, value in HealthBucket.objects.filter(node__in=nodes, at__gte=now - LOOK_BACK).values_list(
        "gpu_id", "node_id", "signal", "value"
    ):
        known = seen[gpu, node][signal]
        seen[gpu, node][signal] = max(known, value) if SIGNALS[signal].kind == "level" else known + value
    found = {}
    for gpu, node in devices:
        held = holds.get((gpu, node)) or holds.get((None, node))
        raw = {**seen[None, node], **seen[gpu, node]}
        stands_out = next((key for key in CAUSES if raw.get(key)), None)
        if held is not None:
            found[gpu, node] = held
        elif stands_out is not None:
            found[gpu, node] = f"{CAUSES[stands_out]}: {figure_told(SIGNALS[stands_out], raw[stands_out])} in 30 min."
    return found
