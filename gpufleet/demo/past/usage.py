"""The ledger of the demo's past, and what each node of the tree could count on in each hour of it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpufleet.core.bulk import rows_insert
from gpufleet.demo.past.world import Run, Work, World
from gpufleet.demo.rows import LEDGER_COLUMNS, cost_centre_of, moment_of
from quotas.models import LedgerEntry, QuotaNode, QuotaShare, ShareClass
from scheduler.engine.rules.fairshare import divide, siblings
from scheduler.models import Node, ShareStep

Shares = dict[tuple[str, str], int]


def usage_write(runs: Sequence[Run], jobs: Sequence[Work], facts: Sequence[Mapping[str, Any]], attempts: Mapping[int, int], now: datetime) -> None:
    """What each worker held, until now at most: from here on the ledger itself goes on. A run beyond the guarantee of its team is borrowed."""
    centres = dict(QuotaNode.objects.values_list("path", "cost_centre"))
    names = dict(Node.objects.values_list("pk", "name"))
    clusters = dict(Node.objects.values_list("pk", "cluster__name"))
    pools = {
        key: f"{cluster}/{pool}" for key, cluster, pool in Node.objects.filter(pool__isnull=False).values_list("pk", "cluster__name", "pool__name")
    }
    promised = {(path, gpu_type): milli for path, gpu_type, milli in QuotaShare.objects.values_list("node__path", "gpu_type", "guaranteed_milli")}
    held: dict[tuple[str, str], list[Run]] = defaultdict(list)
    rows: list[tuple[Any, ...]] = []
    for run in sorted(runs, key=lambda one: (one.started, one.job)):
        job, fact = jobs[run.job], facts[run.job]
        beside = held[job.team, job.gpu_type] = [other for other in held[job.team, job.gpu_type] if other.ended is None or other.ended > run.started]
        beside.append(run)
        most = promised.get((job.team, job.gpu_type), 0)
        inside = most is None or sum(seat.milli for one in beside for seat in one.seats) <= most
        share_class = ShareClass.GUARANTEED if inside else ShareClass.BORROWED
        since, until = moment_of(run.started), moment_of(run.ended) if run.ended else now
        for worker in sorted({seat.worker for seat in run.seats}):
            seats = [seat for seat in run.seats if seat.worker == worker]
            node = seats[0].node
            rows.append(
                (
                    *(attempts[id(run)], f"j-{job.number}", run.number, "worker", worker, False, clusters[node], names[node], job.gpu_type),
                    *(sum(seat.milli for seat in seats), [], "whole", pools.get(node, ""), "running", share_class),
                    *(fact["quota"].pk, job.quota, fact["job_class"], fact["priority"], fact["preemptible"]),
                    *(fact["owner"].username if fact["owner"] else "", fact["labels"], fact["cost_centre"] or ""),
                    *(fact["cost_centre"] or cost_centre_of(centres, job.quota), since, since, min(until, now)),
                )
            )
    rows_insert(LedgerEntry, LEDGER_COLUMNS, rows)


@dataclass(frozen=True, slots=True)
class Tree:
    """Nodes from the top down, with what they state of each type."""

    nodes: Sequence[tuple[str, int, int]]  # path, weight, priority
    shares: Mapping[tuple[str, str], tuple[int | None, int | None]]  # guarantee and limit

    @classmethod
    def read(cls) -> "Tree":
        shares = QuotaShare.objects.values_list("node__path", "gpu_type", "guaranteed_milli", "limit_milli")
        return cls(
            list(QuotaNode.objects.order_by("path").values_list("path", "weight", "priority")),
            {(path, gpu_type): (promised, limit) for path, gpu_type, promised, limit in shares},
        )

    def fair(self, world: World) -> Shares:
        """The fair share of each node, as the scheduler divides what is in service among those that hold or wait for GPUs."""
        capacity: dict[str, int] = defaultdict(int)
        for machine in world.hardware.machines.values():
            if machine.serves:
                capacity[machine.gpu_type] += 1000 * len(machine.usable)
        asked: Shares = defaultdict(int)
        for job in world.work.values():
            asked[job.quota, job.gpu_type] += job.milli
        found: Shares = {}
        for gpu_type, pool in capacity.items():
            wants = self._wants(asked, gpu_type)
            for path, _, _ in self.nodes:
                if "/" not in path:
                    found[path, gpu_type] = min(pool, wants[path])
                self._divide(path, gpu_type, wants, found)
        return found

    def _wants(self, asked: Shares, gpu_type: str) -> dict[str, int]:
        wants: dict[str, int] = defaultdict(int)
        for path, _, _ in sorted(self.nodes, key=lambda node: -node[0].count("/")):
            limit = self.shares.get((path, gpu_type), (0, None))[1]
            wants[path] += asked.get((path, gpu_type), 0)
            if limit is not None:
                wants[path] = min(limit, wants[path])
            wants[path.rpartition("/")[0]] += wants[path]
        return wants

    def _divide(self, path: str, gpu_type: str, wants: Mapping[str, int], found: Shares) -> None:
        below = [node for node in self.nodes if node[0].rpartition("/")[0] == path]
        stated = siblings(
            [self.shares.get((name, gpu_type), (0, None))[0] for name, _, _ in below],
            [1000 * weight for _, weight, _ in below],
            [priority for _, _, priority in below],
            [0] * len(below),
            list(range(len(below))),
        )
        parts = divide(found[path, gpu_type], [wants[name] for name, _, _ in below], stated)
        found.update({(name, gpu_type): part for (name, _, _), part in zip(below, parts, strict=True)})


def shares_write(shares: Mapping[datetime, Shares]) -> None:
    ids = dict(QuotaNode.objects.values_list("path", "public_id"))
    ShareStep.objects.bulk_create(ShareStep(at=hour, fair=_by_node(found, ids)) for hour, found in sorted(shares.items()))


def _by_node(shares: Shares, ids: Mapping[str, str]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for (path, gpu_type), milli in shares.items():
        if milli:
            found[ids[path]][gpu_type] = milli
    return found
