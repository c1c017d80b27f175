"""How much of each GPU type the nodes of the quota tree hold now."""

from collections.abc import Mapping

from django.db.models import Sum

from scheduler.models import GpuType, Placement


def held_by_quota() -> Mapping[int, Mapping[str, int]]:
    """Milli-GPU in open placements by quota node and GPU type, as charged to the node itself: what lies below it is not added."""
    rows = (
        Placement.objects.filter(until__isnull=True, gpu__isnull=False)
        .values_list("job__quota", "gpu__gpu_type")
        .annotate(held=Sum("gpu_milli"))
        .order_by("job__quota", "gpu__gpu_type")
    )
    held: dict[int, dict[str, int]] = {}
    for node, gpu_type, milli in rows:
        held.setdefault(node, {})[gpu_type] = milli
    return held


def gpu_types_known() -> list[str]:
    return list(GpuType.objects.order_by("name").values_list("name", flat=True))
