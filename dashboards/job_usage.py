"""HLT-3 for one job: what it holds beside what of it computes, worker by worker, and what it has used so far.

Readings are of whole GPUs. A worker that holds a part of one (a share, a MIG instance) has none of its own: it is told as shared and is in no mean.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt

from dashboards.activity import STEP, Activity
from dashboards.figures import Figures, gap_cost
from dashboards.mfu import Mfu, mfu_of
from dashboards.models import NO_READING, NodeSample
from dashboards.selectors import frames_newest
from gpufleet.core.times import millis
from quotas.permissions import Access, Can
from quotas.selectors.rates import price_book
from quotas.selectors.spending import Spent, attempts_spent
from scheduler.models import Attempt, Gpu, Job
from scheduler.presenters.jobs import devices_told
from scheduler.selectors.jobs import Sitting

# How long five-minute samples are kept.
KEPT = timedelta(days=14)
# Of a large gang that has run for days every n-th sample is read: so many rows, however many nodes and days.
MOST_SAMPLES = 6_000
# In how many steps a worker's time is drawn, at most.
STEPS = 24
WORKERS_SHOWN = 16

SLOT = STEP // timedelta(milliseconds=1)
Percents = npt.NDArray[np.uint8]
Slots = npt.NDArray[np.int64]
Worker = tuple[str, int]


@dataclass(frozen=True, slots=True)
class WorkerUse:
    """One worker. `mean` is over its own time, as far as samples tell of it, `now` of the newest frame; None: no reading. `parts`: no whole GPU."""

    role: str
    index: int
    node_id: str
    node: str
    devices: str
    gpu_milli: int
    parts: bool
    mean: int | None
    now: int | None
    activity: Activity | None


@dataclass(frozen=True, slots=True)
class HeldNow:
    """Milli-GPU of what is held now: `busy` and `idle` add up to what has a fresh reading; the rest is `parts` of GPUs, or was not read."""

    held: int = 0
    busy: int = 0
    idle: int = 0
    unread: int = 0
    parts: int = 0
    idle_micros_per_hour: int | None = None

    @property
    def percent(self) -> int | None:
        read = self.busy + self.idle
        return round(100 * self.busy / read) if read else None


@dataclass(frozen=True, slots=True)
class AttemptUse:
    """The workers, the least busy first and those without a reading last. `now` is None once the attempt has ended.

    `every`: of how many five-minute samples one was read.
    """

    number: int
    workers: tuple[WorkerUse, ...]
    now: HeldNow | None
    mean: int | None
    every: int
    mfu: Mfu | None = None

    @property
    def shown(self) -> tuple[WorkerUse, ...]:
        return self.workers[:WORKERS_SHOWN]

    @property
    def parts_only(self) -> bool:
        return all(worker.parts for worker in self.workers)

    @property
    def others(self) -> int:
        return len(self.workers) - len(self.shown)


@dataclass(frozen=True, slots=True)
class JobUsage:
    """`spent` is that of all attempts. `counted_from`: the ledger began only then, after the job had held something."""

    spent: Spent
    counted_from: datetime | None
    attempt: AttemptUse | None


def job_usage(
    access: Access, job: Job, attempts: Sequence[Attempt], sittings: Sequence[Sitting], *, now: datetime, drawn: int = WORKERS_SHOWN
) -> JobUsage:
    """All of it in at most six queries. `attempts` are the job's, the latest first; `sittings` are all of the latest. `drawn`: the course over
    time is told of so many workers."""
    if not attempts:
        return JobUsage(Spent(), None, None)
    rates = price_book() if access.can(Can.SEE_COSTS, job.quota.path) else None
    spent = attempts_spent([attempt.pk for attempt in attempts], rates=rates, now=now)
    began = spent.ledger_began
    return JobUsage(
        spent=spent,
        counted_from=began if began is not None and attempts[-1].started_at < began else None,
        attempt=attempt_use(attempts[0], sittings, rates=rates.types_now(millis(now)) if rates else None, now=now, drawn=drawn),
    )


def attempt_use(attempt: Attempt, sittings: Sequence[Sitting], *, rates: Mapping[str, int] | None, now: datetime, drawn: int) -> AttemptUse | None:
    """How busy the GPUs of an attempt are, or were; None where it held none."""
    by_worker: dict[Worker, list[Sitting]] = {}
    for sitting in sittings:
        if sitting.gpu_id:
            by_worker.setdefault((sitting.role, sitting.worker), []).append(sitting)
    going_on = attempt.ended_at is None
    if going_on:
        by_worker = {worker: mine for worker, mine in by_worker.items() if any(one.until is None for one in mine)}
    if not by_worker:
        return None
    all_mine = [one for mine in by_worker.values() for one in mine]
    devices = _devices_of({one.node_id for one in all_mine})
    window = _window(all_mine, now)
    samples = _Samples(window, devices)
    fresh = _fresh_readings(devices, all_mine, now) if going_on else {}
    means = {worker: _total(samples, mine) for worker, mine in by_worker.items()}
    rows = []
    for worker, mine in by_worker.items():
        here = _last(mine)
        read = [fresh[one.gpu_id] for one in here if _whole(one) and one.gpu_id in fresh]
        rows.append((worker, mine, here, _mean(*means[worker]), _mean(sum(read), len(read))))
    rows.sort(key=lambda row: (_rank(row[3], row[4]), row[0]))
    workers = tuple(
        WorkerUse(
            role=worker[0],
            index=worker[1],
            node_id=here[0].node_id,
            node=here[0].node,
            devices=devices_told(here),
            gpu_milli=sum(one.gpu_milli for one in here),
            parts=not any(_whole(one) for one in here),
            mean=mean,
            now=latest,
            activity=_course(samples, mine) if number < drawn else None,
        )
        for number, (worker, mine, here, mean, latest) in enumerate(rows)
    )
    total = [sum(column) for column in zip(*means.values(), strict=True)]
    held = _held_now([one for one in all_mine if one.until is None], devices, fresh, rates) if going_on else None
    end = None if going_on else max((one.until for one in all_mine if one.until), default=None)
    mfu = mfu_of(attempt, [one for one in all_mine if one.until == end], devices.type_of)
    return AttemptUse(attempt.number, workers, held, _mean(*total), window.stride, mfu)


def _rank(mean: int | None, latest: int | None) -> float:
    percent = mean if mean is not None else latest
    return float("inf") if percent is None else percent


def _mean(total: int, count: int) -> int | None:
    return round(total / count) if count else None


def _whole(sitting: Sitting) -> bool:
    return sitting.gpu_milli >= 1000


def _last(mine: Sequence[Sitting]) -> list[Sitting]:
    """Where a worker sits, or sat when it went."""
    if here := [one for one in mine if one.until is None]:
        return here
    end = max(one.until for one in mine if one.until)
    return [one for one in mine if one.until == end]


def _held_now(here: Iterable[Sitting], devices: "_Devices", fresh: Mapping[str, int], rates: Mapping[str, int] | None) -> HeldNow:
    held = busy = unread = parts = 0
    idle: dict[str, int] = {}
    for one in here:
        held += one.gpu_milli
        if not _whole(one):
            parts += one.gpu_milli
        elif one.gpu_id not in fresh:
            unread += one.gpu_milli
        else:
            busy += 10 * fresh[one.gpu_id]
            kind = devices.type_of[one.gpu_id]
            idle[kind] = idle.get(kind, 0) + 1000 - 10 * fresh[one.gpu_id]
    known = rates is not None and any(kind in rates for kind in idle)
    cost = gap_cost({kind: Figures(gap=milli) for kind, milli in idle.items()}, dict(rates)) if rates is not None and known else None
    return HeldNow(held, busy, sum(idle.values()), unread, parts, cost)


# ---- What was read ----


@dataclass(frozen=True, slots=True)
class _Devices:
    """The GPUs of nodes, by public ids: their keys and types, and where each stands in its node's samples."""

    node_keys: dict[str, int]
    clusters: set[int]
    key_of: dict[str, int]
    type_of: dict[str, str]
    position: dict[str, int]
    size: dict[str, int]  # of each node


def _devices_of(nodes: set[str]) -> _Devices:
    rows = (
        Gpu.objects.filter(node__public_id__among=sorted(nodes), removed_at__isnull=True)
        .order_by("node_id", "index")
        .values_list("public_id", "pk", "gpu_type_id", "node__public_id", "node_id", "node__cluster_id")
    )
    found = _Devices({}, set(), {}, {}, {}, {})
    for gpu, key, kind, node, node_key, cluster in rows:
        found.node_keys[node] = node_key
        found.clusters.add(cluster)
        found.key_of[gpu] = key
        found.type_of[gpu] = kind
        # A sample holds a byte for each GPU of the node, in the order of their indices.
        found.position[gpu] = found.size.get(node, 0)
        found.size[node] = found.position[gpu] + 1
    return found


def _fresh_readings(devices: _Devices, sittings: Iterable[Sitting], now: datetime) -> dict[str, int]:
    """Percent by GPU, of the newest frames."""
    wanted = {devices.key_of[one.gpu_id]: one.gpu_id for one in sittings if one.gpu_id in devices.key_of}
    found = {}
    for frame in frames_newest(sorted(devices.clusters)):
        if frame.is_fresh(now):
            for key, percent in zip(frame.ids.tolist(), frame.sm.tolist(), strict=True):
                if percent != NO_READING and key in wanted:
                    found[wanted[key]] = min(percent, 100)
    return found


@dataclass(frozen=True, slots=True)
class _Window:
    """Which five-minute slots are read, as numbers of slots since 1970: every `stride`-th one that lies within somebody's time."""

    first: int
    count: int
    stride: int
    nodes: frozenset[str]

    @property
    def steps(self) -> int:
        return min(STEPS, self.count)

    def at(self, number: int) -> datetime:
        return datetime.fromtimestamp(0, tz=UTC) + STEP * (self.first + number * self.stride)


def _window(sittings: Sequence[Sitting], now: datetime) -> _Window:
    begin = max(min(millis(one.since) for one in sittings), millis(now - KEPT))
    end = max(millis(one.until or now) for one in sittings)
    nodes = frozenset(one.node_id for one in sittings)
    first, behind = -(-begin // SLOT), end // SLOT
    stride = max(1, -(-(behind - first) * len(nodes) // MOST_SAMPLES))
    # Whole multiples, so that an open page reads the same slots as before.
    first = -(-first // stride) * stride
    return _Window(first, max(0, -(-(behind - first) // stride)), stride, nodes)


class _Samples:
    """The samples of all these nodes in one query, as a matrix of slots by GPUs for each node."""

    def __init__(self, window: _Window, devices: _Devices) -> None:
        self.window, self.devices = window, devices
        self.by_node: dict[str, tuple[Slots, Percents]] = {}
        names = {devices.node_keys[name]: name for name in window.nodes if name in devices.node_keys}
        if not names or not window.count:
            return
        rows = NodeSample.objects.filter(node__among=sorted(names))
        if window.stride > 1:
            rows = rows.filter(at__in=[window.at(number) for number in range(window.count)])
        else:
            rows = rows.filter(at__gte=window.at(0), at__lt=window.at(window.count))
        found: dict[str, list[tuple[int, bytes]]] = {}
        for node, at, percents in rows.values_list("node_id", "at", "sm_active"):
            name, read = names[node], bytes(percents)
            # Where a GPU came or went since, unknown which byte is whose.
            if len(read) == devices.size[name]:
                found.setdefault(name, []).append((millis(at), read))
        for name, mine in found.items():
            table = np.frombuffer(b"".join(read for _, read in mine), dtype=np.uint8).reshape(len(mine), -1)
            self.by_node[name] = np.array([at for at, _ in mine], dtype=np.int64), table

    def of(self, sitting: Sitting) -> tuple[Slots, Percents]:
        """What was read of a whole GPU in those five minutes that lie wholly within the sitting: in the rest of the first others stood there."""
        node, gpu = self.by_node.get(sitting.node_id), self.devices.position.get(sitting.gpu_id)
        if node is None or gpu is None or not _whole(sitting):
            return np.empty(0, np.int64), np.empty(0, np.uint8)
        at, table = node
        column = table[:, gpu]
        mine = (column != NO_READING) & (at >= millis(sitting.since))
        if sitting.until is not None:
            mine &= at + SLOT <= millis(sitting.until)
        return at[mine], np.minimum(column[mine], 100)


def _total(samples: _Samples, mine: Iterable[Sitting]) -> tuple[int, int]:
    """Percents added up, and how many they are."""
    read = [samples.of(one)[1] for one in mine]
    return sum(int(percents.sum(dtype=np.int64)) for percents in read), sum(len(percents) for percents in read)


def _course(samples: _Samples, mine: Iterable[Sitting]) -> Activity | None:
    """The worker's mean in each step of the attempt's time; None where nothing was read in all of it."""
    window = samples.window
    total, count = np.zeros(window.steps), np.zeros(window.steps)
    for one in mine:
        at, percents = samples.of(one)
        step = (at // SLOT - window.first) // window.stride * window.steps // max(1, window.count)
        total += np.bincount(step, percents, window.steps)
        count += np.bincount(step, minlength=window.steps)
    if not count.any():
        return None
    return Activity(tuple(round(part / number) if number else None for part, number in zip(total.tolist(), count.tolist(), strict=True)))
