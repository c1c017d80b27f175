"""Power caps and rated watts: set, changed and removed by operators."""

from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from gpufleet.core.audit import audit_record
from gpufleet.core.faults import Missing
from quotas.permissions import Access, Can
from quotas.rules import Faults, note
from scheduler.models import GpuType, PowerCap
from scheduler.services.loop.lease import lease_want
from scheduler.services.pooled import Pooled, said

MOST_WATTS = 10**10


def _read(found: PowerCap, given: Mapping[str, Any], faults: Faults) -> None:
    watts = given.get("watts", found.watts)
    if watts is None or not 0 <= watts <= MOST_WATTS:
        note(faults, "watts", "State 0 to 10,000,000 kW.")
    else:
        found.watts = watts


CAPS = Pooled(PowerCap, "pc", "caps", ("power.cap", "power.change", "power.remove"), ("watts",), _read)
cap_drawn, cap_set, cap_change, cap_remove = CAPS.drawn, CAPS.set, CAPS.change, CAPS.remove


def rating_set(*, access: Access, gpu_type: str, watts: int | None, reason: str = "") -> GpuType:
    """The rated watts of a GPU type; None: as its maker states."""
    access.must_everywhere(Can.OPERATE)
    if watts is not None and not 1 <= watts <= 100_000:
        raise ValidationError({"watts": ["State 1 to 100,000 W."]})
    with transaction.atomic():
        found = GpuType.objects.select_for_update().filter(name=gpu_type).first()
        if found is None:
            raise Missing("There is no such GPU type.")
        before, found.rated_watts = found.rated_watts, watts
        found.save(update_fields=["rated_watts"])
        was, becomes = {"rated_watts": before}, {"rated_watts": watts}
        audit_record(actor=access.actor, action="power.rate", kind="gpu_type", object_id=gpu_type, before=was, after=becomes, reason=said(reason))
        lease_want()
    return found
