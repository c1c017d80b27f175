"""That the storm tells a window whose GPUs others got from one that only looks short."""

from datetime import timedelta

import pytest

from gpufleet.storm.fleet import TYPE
from gpufleet.storm.promises import Promises
from quotas.models import Idle, Reservation, ReservationState, Shape, Window
from scheduler.models import Gpu, Health, JobState, Node
from tests import builders
from tests.builders import NOON

pytestmark = pytest.mark.django_db


@pytest.fixture
def nodes() -> list[Node]:
    """Two nodes are kept for a team: it runs on the first, of which a GPU is out of service, and the second is idle. Others run on the third."""
    org = builders.quota("org")
    nlp = builders.quota("nlp", parent=org)
    nodes = [builders.node(name, gpus=2, type_name=TYPE) for name in ("n1", "n2", "n3")]
    times = {"starts_at": NOON - timedelta(hours=1), "ends_at": NOON + timedelta(hours=3)}
    kept = {"shape": Shape.NODES, "nodes": 2, "gpus_milli": 4000, "gpu_type": TYPE, "idle": Idle.HELD, "state": ReservationState.APPROVED}
    Window.objects.create(reservation=Reservation.objects.create(public_id="r-1", name="Demo", quota=nlp, **times, **kept), **times)
    _run("mine", "nlp", nodes[0])
    _run("theirs", "robots", nodes[2])
    Gpu.objects.filter(node=nodes[0], index=1).update(health=Health.DRAINING)
    return nodes


def _run(name: str, team: str, node: Node) -> None:
    on = builders.quota(team, parent=builders.quota("org"))
    job = builders.job(name, on=on, state=JobState.RUNNING, gpus_milli=2000)
    for gpu in node.gpus.order_by("index"):
        builders.placement(job, on=gpu, gpu_milli=1000)


def _told(promises: Promises) -> list[str]:
    return list(promises.faults(NOON, edited=False))


def test_what_its_owner_still_holds_out_of_service_fills_a_window(nodes: list[Node]) -> None:
    promises = Promises()
    _told(promises)
    assert not _told(promises)
    gone = nodes[2].gpus.first()
    assert gone is not None
    gone.placements.all()[0].attempt.placements.update(until=NOON)

    _run("next", "vision", nodes[2])

    assert not _told(promises), "it holds two GPUs, and two more are idle"


def test_an_idle_node_of_a_window_that_goes_to_others_is_told(nodes: list[Node]) -> None:
    promises = Promises()
    _told(promises)

    _run("next", "vision", nodes[1])

    assert _told(promises) == ["org/vision got more, and for r-1 of org/nlp 2000 of 4000 thousandths are left"]
