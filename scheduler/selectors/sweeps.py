"""Which sweeps there are."""

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404

from quotas.permissions import Access, Can
from scheduler.models import Sweep


def sweeps_listed(access: Access) -> QuerySet[Sweep]:
    """Without their results. Sums over a fleet are no team's secret, as of what-ifs."""
    access.must_somewhere(Can.SEE)
    return Sweep.objects.defer("results", "terms").select_related("asked_by")


def sweep_for(access: Access, public_id: str) -> Sweep:
    access.must_somewhere(Can.SEE)
    return get_object_or_404(Sweep.objects.select_related("asked_by", "trace").defer("trace__document", "trace__fleet"), public_id=public_id)
