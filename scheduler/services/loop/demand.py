"""What jobs usually ask for, kept for the engine."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from scheduler.models import UsualDemand


def demand_learn(*, parts: Sequence[Mapping[str, Any]], now: datetime) -> None:
    """`parts` as in the `demand` of a scenario. The next snapshot is taken with them; it is no reason for a plan."""
    UsualDemand.objects.update_or_create(id=1, defaults={"learnt_at": now, "parts": [dict(part) for part in parts]})
