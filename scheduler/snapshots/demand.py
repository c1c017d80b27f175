"""The usual demand as it was last learnt."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from gpufleet.core.prepared import Prepared
from scheduler.engine.model.values import Demand, Topology
from scheduler.models import UsualDemand
from scheduler.scenarios.faults import Bad
from scheduler.scenarios.reading import read_demand

ASKED: Prepared[tuple[list[dict[str, Any]]]] = Prepared(lambda: UsualDemand.objects.values_list("parts"))


def demand_learnt_at() -> datetime | None:
    return UsualDemand.objects.values_list("learnt_at", flat=True).first()


def demand_of(parts: Sequence[dict[str, Any]], topology: Topology) -> tuple[Demand, ...]:
    """As the engine knows it. What was asked for on a level that there is no more is left out, as is what can't be read."""
    return read_demand(list(parts), topology, Bad())
