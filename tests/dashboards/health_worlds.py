"""Raw hardware state for tests: looks of a cluster, fifteen seconds apart; and rules about it."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import numpy as np

from dashboards.health.models import HealthRule
from dashboards.health.state import RawState, state_write
from scheduler.models import Gpu, Node

LOOK = timedelta(seconds=15)


def look(gpus: Sequence[Gpu], figures: Mapping[str, Mapping[Gpu, int]], *, at: datetime, xids: Sequence[tuple[Gpu, int]] = (), **nodes: int) -> None:
    """One look at GPUs of one cluster. What is not named is zero; `nodes` are figures of all of their nodes."""
    names = {"thermal", "temperature", "ecc_corrected", "ecc_uncorrected", "nvlink_errors", *figures}
    columns = {name: np.array([figures.get(name, {}).get(gpu, 0) for gpu in gpus], np.uint32) for name in names}
    keys = sorted({gpu.node_id for gpu in gpus})
    state_write(
        cluster_id=gpus[0].node.cluster_id,
        at=at,
        source="test",
        state=RawState(
            gpus=[gpu.pk for gpu in gpus],
            columns=columns,
            nodes=keys,
            node_columns={name: [value] * len(keys) for name, value in nodes.items()},
            xids=[(gpu.pk, code) for gpu, code in xids],
        ),
    )


def looks(gpus: Sequence[Gpu], figures: Mapping[str, Mapping[Gpu, int]], *, start: datetime, end: datetime) -> None:
    at = start
    while at <= end:
        look(gpus, figures, at=at)
        at += LOOK


def rule(**fields):
    facts = {"name": "Throttles", "signal": "thermal", "threshold": 60, "window_minutes": 5, "clear_below": 15, "clear_minutes": 10}
    return HealthRule.objects.create(public_id=f"hr-{HealthRule.objects.count()}", **(facts | {"action": "suspect"} | fields))


def health_of(node):
    return Node.objects.get(pk=node.pk).health
