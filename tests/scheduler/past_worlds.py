"""A past that replays play again."""

from datetime import timedelta

from quotas.models import QuotaNode, QuotaShare
from scheduler.models import Attempt
from tests import builders
from tests.builders import NOON
from tests.personas import Personas
from tests.scheduler.loop.worlds import H100, submit


def two_full_nodes(personas: Personas) -> Personas:
    """Two teams each fill one of two nodes for 20 hours; a third job waits until a node is free."""
    for number in range(2):
        builders.node(f"n{number}", gpus=8)
    for path, milli in {"acme": 16_000, "acme/research": 16_000, "acme/research/nlp": 16_000, "acme/product": 0, "acme/product/search": 0}.items():
        QuotaShare.objects.create(node=personas.nodes[path], gpu_type=H100, guaranteed_milli=milli)
    for path, hours_ago, hours in (("acme/research/nlp", 30, 20), ("acme/research/nlp", 30, 20), ("acme/product/search", 28, 2)):
        at = NOON - timedelta(hours=hours_ago)
        job = submit(QuotaNode.objects.get(path=path), gpus=8, name=path, at=at, spec={"preemptible": "yes"})
        Attempt.objects.create(job=job, number=1, started_at=at, running_at=at, ended_at=at + timedelta(hours=hours), outcome="completed")
        type(job).objects.filter(pk=job.pk).update(state="completed", ended_at=at + timedelta(hours=hours))
    return personas
