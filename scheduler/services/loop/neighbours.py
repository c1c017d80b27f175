"""Which services and templates may not be neighbours, kept for the engine."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import transaction

from scheduler.models import KeptApart
from scheduler.services.loop.lease import lease_want


def apart_learn(*, pairs: Sequence[Mapping[str, Any]], now: datetime) -> bool:
    """Keep these pairs, each with `service` (a job), `template`, `where`, `figure`, `predicted_ms` and `allowed_ms`. Whether they are others than
    before: then a plan is wanted."""
    learnt = [dict(pair) for pair in pairs]
    with transaction.atomic():
        before = KeptApart.objects.select_for_update().values_list("pairs", flat=True).first()
        KeptApart.objects.update_or_create(id=1, defaults={"learnt_at": now, "pairs": learnt})
        changed = (before or []) != learnt
        if changed:
            lease_want()
    return changed
