"""A node's work moves to a spare: only to one that serves it as the node did, and only what runs whole."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from scheduler.models import Gpu, Health, Job, JobState, Node, Placement, PromisedSeat
from scheduler.services.hardware.replacing import node_replace
from tests import builders
from tests.builders import NOON

pytestmark = pytest.mark.django_db


def change(name: str, **fields: object) -> Callable[[Job], object]:
    return lambda gang: Node.objects.filter(name=name).update(**fields)


def bind(level: str, role: bool = False) -> Callable[[Job], object]:
    bound = {"topology": {"required": level}}
    return lambda gang: Job.objects.filter(pk=gang.pk).update(spec=gang.spec | ({"roles": [{"name": "worker"} | bound]} if role else bound))


def hold(name: str) -> Callable[[Job], object]:
    return lambda gang: builders.placement(builders.job(state=JobState.RUNNING), builders.gpu(Node.objects.get(name=name)))


@pytest.mark.parametrize(
    ("makes", "spare"),
    [
        (lambda gang: None, "s1"),  # on its leaf
        (bind("leaf"), "s1"),
        (change("s1", health=Health.SUSPECT), "s2"),
        (change("s1", spare=False), "s2"),
        (change("s1", host_memory_mib=1), "s2"),
        (hold("s1"), "s2"),
        (lambda gang: (bind("leaf")(gang), change("s1", spare=False)(gang)), None),
        (lambda gang: (bind("leaf", role=True)(gang), change("s1", spare=False)(gang)), None),
        (lambda gang: (bind("spine")(gang), change("s1", spare=False)(gang)), "s2"),
        (lambda gang: (change("s1", labels={"pool": "other"})(gang), hold("s2")(gang)), None),
        (lambda gang: Gpu.objects.filter(node__spare=True, index=1).update(health=Health.DOWN), None),
        (change("n1", health=Health.DRAINING), None),  # the rest of the gang can't start again where it stands
        (lambda gang: Placement.objects.filter(job=gang).update(joining=True), None),
        (lambda gang: Job.objects.filter(pk=gang.pk).update(state=JobState.DEGRADED), None),
    ],
)
def test_a_gang_is_promised_the_nearest_spare_that_serves_it(makes: Callable[[Job], object], spare: str | None) -> None:
    builders.cluster(levels=("spine", "leaf"))
    pool = builders.pool()
    sick, other = (builders.node(f"n{number}", gpus=2, at="a/a1", pool=pool) for number in range(2))
    builders.node("s1", gpus=2, at="a/a1", pool=pool, spare=True)
    builders.node("s0", gpus=2, at="b/b1", pool=pool, spare=True)
    builders.node("s2", gpus=2, at="a/a2", pool=pool, spare=True)
    Node.objects.filter(name="s0").update(gpu_type=builders.gpu_type("A100"))
    gang = builders.job(state=JobState.RUNNING, gpus_milli=4000)
    for worker, gpu in enumerate(Gpu.objects.filter(node__in=[sick, other]).order_by("-pk")):
        builders.placement(gang, gpu, worker=worker)
    makes(gang)
    before = {worker: where for worker, *where in gang.placements.values_list("worker", "node__name", "gpu__index")}

    done = node_replace(node=sick, cause="It is ill.", now=NOON)

    gang.refresh_from_db()
    promised = {worker: where for worker, *where in PromisedSeat.objects.values_list("worker", "node__name", "gpu__index")}
    if spare is None:
        assert (done, promised, gang.attempts.get().stop_to) == (None, {}, "")
        return
    assert done is not None and (done.spare.name, done.jobs) == (spare, 1)
    assert promised == {worker: [spare if name == "n0" else name, index] for worker, (name, index) in before.items()}
    assert gang.state == JobState.CHECKPOINTING
    assert gang.promise.until > NOON + timedelta(seconds=60)
    assert node_replace(node=sick, cause="It is ill.", now=NOON) is None, "it is leaving already"
