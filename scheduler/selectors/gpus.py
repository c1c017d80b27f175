"""GPUs: the list, one GPU with its instances, its history."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Count, Exists, OuterRef, Q, QuerySet
from django.http import Http404

from quotas.permissions import Access, Can
from scheduler.models import OPEN_SPLITS, Gpu, GpuSplit, InventoryEvent, SplitState
from scheduler.selectors.holders import Holder, HoldingJob, gpu_holders, holding_jobs, open_placements, outside_seats
from scheduler.selectors.nodes import HISTORY_LENGTH, live_instances


@dataclass(frozen=True, slots=True)
class GpuRow:
    """A GPU as lists show it: with who holds it, as far as the reader may know."""

    gpu: Gpu
    holders: Sequence[Holder]

    @property
    def taken_milli(self) -> int:
        return sum(holder.gpu_milli for holder in self.holders)

    @property
    def use(self) -> str:
        return "free" if not self.holders else "allocated" if self.taken_milli >= 1000 else "shared"

    @property
    def jobs(self) -> list[HoldingJob]:
        return holding_jobs(self.holders)

    @property
    def held_by(self) -> str:
        """Names for a file; a hold that the reader may not know is said to be another team's."""
        return ", ".join(dict.fromkeys(f"{holder.job_id} {holder.quota}" if holder.named else holder.label for holder in self.holders))


def gpus_listed(access: Access) -> QuerySet[Gpu]:
    """Every GPU of every node that there is; any role anywhere sees all of them."""
    access.must_somewhere(Can.SEE)
    return Gpu.objects.filter(removed_at__isnull=True, node__removed_at__isnull=True).select_related(
        "node", "node__cluster", "node__pool", "gpu_type"
    )


def gpu_rows(access: Access, gpus: Sequence[Gpu]) -> list[GpuRow]:
    """Listed GPUs with their holders. Two queries."""
    holders = gpu_holders(access, [gpu.pk for gpu in gpus])
    return [GpuRow(gpu, holders.get(gpu.pk, ())) for gpu in gpus]


def gpu_for(access: Access, public_id: str) -> Gpu:
    """One GPU with its live MIG instances in `instances`."""
    access.must_somewhere(Can.SEE)
    found = (
        Gpu.objects.filter(public_id=public_id)
        .select_related("node", "node__cluster", "node__pool", "node__domain", "gpu_type")
        .prefetch_related(live_instances())
        .first()
    )
    if found is None:
        raise Http404(f"There is no GPU {public_id}.")
    return found


def gpu_history(gpu: Gpu) -> list[InventoryEvent]:
    return list(InventoryEvent.objects.filter(gpu=gpu).order_by("-at", "-id")[:HISTORY_LENGTH])


def gpu_split(gpu: Gpu) -> GpuSplit | None:
    """The repartition of a GPU that is under way; else the last one, where its back-end refused it."""
    found = GpuSplit.objects.filter(gpu=gpu).select_related("order").order_by("-asked_at", "-id").first()
    return found if found is not None and found.state in (*OPEN_SPLITS, SplitState.REFUSED) else None


def gpu_is_taken() -> Q:
    """A condition on GPUs: someone holds it or a part of it."""
    return Q(Exists(open_placements().filter(gpu=OuterRef("pk"))) | Exists(outside_seats().filter(gpu=OuterRef("pk"))))


def gpu_health_counts() -> dict[str, int]:
    present = Gpu.objects.filter(removed_at__isnull=True, node__removed_at__isnull=True)
    return dict(present.order_by().values_list("health").annotate(Count("pk")))
