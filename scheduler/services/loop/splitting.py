"""Splitting GPUs anew as a plan decided: instances that stay keep their tenants; those that go have none, and nobody was promised them."""

from collections.abc import Mapping, Sequence

from django.db.models import Q

from gpufleet.core.audit import SYSTEM
from gpufleet.core.ids import public_ids
from gpufleet.core.live.news import News
from scheduler.engine.model.mig import Instance, board_of
from scheduler.engine.model.plan import Decision
from scheduler.models import OPEN_SPLITS, Gpu, GpuMode, GpuSplit, MigInstance, Node, Order, OrderKind, Placement, PromisedSeat, Repartition
from scheduler.services.hardware.hardware import hardware_event
from scheduler.services.loop.steps import Steps
from scheduler.snapshots.fleet import FleetView

NOT_EMPTY = "The GPU is not empty yet."
CHANGED = "The GPU has been split differently meanwhile."


class Splitter:
    """Checks decisions first and writes them together. New instances get their keys when a decision is found good, so that seats can name them."""

    def __init__(self, fleet: FleetView, steps: Steps) -> None:
        self.fleet = fleet
        self.steps = steps
        self.now = steps.now
        self._made: dict[tuple[int, str, int], MigInstance] = {}

    def split(self, decision: Decision) -> tuple[str, frozenset[int]]:
        """Why this GPU can't be split so now, and the jobs that sit where it has to be empty; or nothing, and its instances exist."""
        assert decision.node is not None
        assert decision.gpu is not None
        key = self.fleet.gpu_ids.get((self.fleet.node_ids.get(decision.node, 0), decision.gpu))
        gpu = Gpu.objects.select_for_update().filter(pk=key, removed_at__isnull=True).first() if key else None
        if gpu is None:
            return CHANGED, frozenset()
        if GpuSplit.objects.filter(gpu=gpu, state__in=OPEN_SPLITS).exists():
            return CHANGED, frozenset()
        present = {(one.profile, one.start): one for one in MigInstance.objects.filter(gpu=gpu, removed_at__isnull=True)}
        if present.keys() != {(profile, start) for (owner, profile, start) in self.fleet.slice_ids if owner == gpu.pk}:
            return CHANGED, frozenset()
        wanted = {(one.profile, one.start) for one in decision.instances}
        kept = {key: row for key, row in present.items() if key in wanted}
        staying = Q(mig__in=[row.pk for row in kept.values()])
        in_the_way = Placement.objects.filter(gpu=gpu, until__isnull=True).exclude(staying).values_list("job_id", flat=True)
        promised = PromisedSeat.objects.filter(gpu=gpu).exclude(staying).values_list("promise__job_id", flat=True)
        sitting = frozenset(in_the_way.union(promised))
        if sitting:
            return NOT_EMPTY, sitting
        self._split(gpu, decision.instances, kept)
        return "", frozenset()

    def slice_id(self, gpu: int, profile: str, start: int) -> int:
        """The key of an instance that a decision of this plan made; a KeyError where there is none."""
        return self._made[gpu, profile, start].pk

    def _split(self, gpu: Gpu, instances: Sequence[Instance], kept: Mapping[tuple[str, int], MigInstance]) -> None:
        board = board_of(gpu.gpu_type_id)
        sizes = {profile.name: profile.memory for profile in board.profiles} if board is not None else {}
        staying = [row.pk for row in kept.values()]
        MigInstance.objects.filter(gpu=gpu, removed_at__isnull=True).exclude(pk__in=staying).update(removed_at=self.now)
        new = [one for one in instances if (one.profile, one.start) not in kept]
        rows = [
            MigInstance(public_id=public, gpu=gpu, profile=one.profile, start=one.start, size=sizes[one.profile], created_at=self.now)
            for public, one in zip(public_ids("m", len(new)) if new else [], new, strict=True)
        ]
        MigInstance.objects.bulk_create(rows)
        self._made |= {(gpu.pk, row.profile, row.start): row for row in rows}
        self.steps.touch([gpu.pk])
        Gpu.objects.filter(pk=gpu.pk).update(mode=GpuMode.MIG if instances else GpuMode.WHOLE)

    def write(self, decisions: Sequence[Decision], news: News) -> None:
        """Tell the back-ends and the hardware's history of what was split."""
        for decision in decisions:
            assert decision.node is not None
            assert decision.gpu is not None
            node = Node.objects.get(pk=self.fleet.node_ids[decision.node])
            gpu = Gpu.objects.get(pk=self.fleet.gpu_ids[node.pk, decision.gpu])
            layout = [[one.profile, one.start] for one in decision.instances]
            record = Repartition.objects.create(gpu=gpu, cluster_id=node.cluster_id, at=self.now, instances=layout)
            payload = {"node": node.name, "gpu": gpu.index, "instances": layout}
            Order.objects.create(
                cluster_id=node.cluster_id, sequence=record.pk, kind=OrderKind.REPARTITION, payload=payload, made_at=self.now, due_at=self.now
            )
            hardware_event(
                actor=SYSTEM, node=node, gpu=gpu, kind="geometry", before=None, after={"instances": layout}, cause=decision.why.detail, now=self.now
            )
            news.add("gpus", gpu.pk)
