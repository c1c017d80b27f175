"""Finding hardware, jobs and schedules by a part of their name or by their id."""

from collections.abc import Sequence

from django.db.models import BigIntegerField, F, OuterRef, Q, Subquery, Sum
from django.db.models.functions import Coalesce, Greatest

from gpufleet.core.ranking import by_closeness
from quotas.permissions import Access, Can
from scheduler.models import ENDED, Cluster, Gpu, Job, Node, Placement, Schedule

_HELD = Placement.objects.filter(job=OuterRef("pk"), until__isnull=True).order_by().values("job").annotate(milli=Sum("gpu_milli")).values("milli")


def nodes_search(access: Access, text: str, *, limit: int, by_id: bool = False) -> Sequence[Node]:
    """`by_id`: only the one whose id the text is."""
    if not access.can_somewhere(Can.SEE):
        return []
    named = Q(public_id=text) if by_id else Q(name__icontains=text) | Q(public_id__iexact=text)
    nodes = Node.objects.filter(named, removed_at__isnull=True)
    return list(nodes.order_by(by_closeness("public_id", text), by_closeness("name", text), "name", "id")[:limit])


def gpus_search(access: Access, text: str, *, limit: int) -> Sequence[Gpu]:
    """GPUs by id, or by the UUID that a driver message names. Their nodes' names find the nodes."""
    if not access.can_somewhere(Can.SEE):
        return []
    gpus = Gpu.objects.filter(Q(public_id__iexact=text) | Q(uuid__istartswith=text) | Q(uuid__istartswith=f"GPU-{text}"), removed_at__isnull=True)
    return list(gpus.select_related("node").order_by("node__name", "index", "id")[:limit])


def clusters_search(access: Access, text: str, *, limit: int) -> Sequence[Cluster]:
    if not access.can_somewhere(Can.SEE):
        return []
    named = Q(name__icontains=text) | Q(title__icontains=text) | Q(public_id__iexact=text)
    clusters = Cluster.objects.filter(named, removed_at__isnull=True)
    return list(clusters.order_by(by_closeness("name", text), "name")[:limit])


def jobs_search(access: Access, text: str, *, limit: int, by_id: bool = False) -> Sequence[Job]:
    """Jobs that wait or run, of the subtrees where the reader may see; ended ones by their id alone, as there is no end of them. `by_id`: only the
    one whose id the text is. `gpus_now`: what each holds, or the fewest that it needs, in thousandths."""
    named = Q(public_id=text) if by_id else Q(name__holds=text) & ~Q(state__in=ENDED) | Q(public_id__iexact=text)
    jobs = Job.objects.filter(access.visible(Can.SEE, "quota__path"), named).select_related("quota")
    held = Coalesce(Subquery(_HELD, output_field=BigIntegerField()), 0)
    jobs = jobs.annotate(gpus_now=Greatest(held, F("gpus_milli"), output_field=BigIntegerField()))
    return list(jobs.order_by("-submitted_at", "-id")[:limit])


def schedules_search(access: Access, text: str, *, limit: int) -> Sequence[Schedule]:
    named = Q(name__icontains=text) | Q(public_id__iexact=text)
    found = Schedule.objects.filter(access.visible(Can.SEE, "quota__path"), named).select_related("quota")
    return list(found.order_by(by_closeness("name", text), "name", "id")[:limit])
