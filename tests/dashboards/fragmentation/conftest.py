"""A fleet whose free GPUs are of no use to the job that waits."""

from datetime import timedelta

import pytest

from gpufleet.core.times import now
from scheduler.models import Health, JobState, Node
from tests import builders
from tests.scheduler.loop.worlds import Loop, submit


@pytest.fixture
def kept_out(personas, settings):
    """A job of one GPU on each of three nodes, and a gang of two whole nodes that waits: two moves, where a plan may make one."""
    settings.SCHEDULER = {**settings.SCHEDULER, "MAX_MOVES": 1}
    loop, team = Loop(), personas.nodes["acme/research/nlp"]
    loop.now = now() - timedelta(minutes=30)
    nodes = [builders.node(f"n{number}", gpus=4) for number in range(3)]
    for number, node in enumerate(nodes):
        Node.objects.exclude(pk=node.pk).update(health=Health.DRAINING)
        Node.objects.filter(pk=node.pk).update(health=Health.HEALTHY)
        job = submit(team, at=loop.now, name=f"small-{number}", spec={"estimate_s": 86_400})
        loop.tick()
        loop.up(job)
        assert job.placements.count() == 1
    Node.objects.update(health=Health.HEALTHY)
    gang = submit(team, workers=2, gpus=4, at=loop.now, name="gang", spec={"estimate_s": 86_400})
    loop.now = now()
    loop.tick()
    gang.refresh_from_db()
    assert gang.state == JobState.QUEUED
    return personas, loop
