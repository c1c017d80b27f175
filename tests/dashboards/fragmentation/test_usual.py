"""The usual demand on its way to the scheduler: learnt from four weeks, kept, and left room for."""

from datetime import timedelta

import pytest

from dashboards.fragmentation.demand import demand_turn, parts_of
from dashboards.fragmentation.measure import Shape
from scheduler.engine.model.values import Demand
from scheduler.loop.policy import policy
from scheduler.models import JobState, UsualDemand
from scheduler.scenarios.reading import load
from scheduler.snapshots import Snapshots
from scheduler.snapshots.spelling import Speller
from tests import builders
from tests.builders import NOON
from tests.scheduler.loop.worlds import Loop, leaf, submit

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("learns", [False, True])
def test_of_equal_places_the_scheduler_takes_the_one_that_breaks_no_usual_gang(learns: bool) -> None:
    builders.cluster(levels=("leaf",))
    for number, place in enumerate(("leaf-1", "leaf-1", "leaf-2")):
        builders.node(f"n{number}", gpus=8, at=place)
    asked = {"roles": [{"name": "worker", "gpus": 8, "min": 2}], "topology": {"required": "leaf"}}
    for days in (1, 2, 3):
        builders.job(f"gang-{days}", state=JobState.COMPLETED, spec=asked, gpus_milli=16_000, submitted_at=NOON - timedelta(days=days))
    if learns:
        assert demand_turn(now=NOON)
        assert not demand_turn(now=NOON + timedelta(minutes=59))
    small = submit(leaf("research", 8), gpus=1)
    Loop().tick()

    assert small.placements.get().gpu.node.name == ("n2" if learns else "n0")


def test_a_snapshot_has_what_was_learnt_and_an_export_of_it_too() -> None:
    builders.cluster(levels=("leaf",))
    builders.node(gpus=8, at="leaf-1")
    shapes = {
        Shape(2, 8, frozenset({"H100"}), "leaf", cpu_milli=1500): 6,
        Shape(1, 0, level="cluster", share_milli=250): 1,
        Shape(4, 8): 1,  # may span clusters
        Shape(1, 0, level="cluster", mig="3g.40gb"): 5,
        Shape(2, 2, level="rack"): 2,  # a level that there is no more
    }
    UsualDemand.objects.create(learnt_at=NOON, parts=parts_of(shapes))
    chosen, snapshots = policy(), Snapshots()

    def take() -> tuple[Demand, ...]:
        scenario = snapshots.take(settings=chosen.engine, now=NOON, start_timeout=chosen.start_timeout).scenario
        assert load(Speller().spell(scenario)).demand == scenario.demand
        return scenario.demand

    first = take()
    assert first == (
        Demand(100_000, 0, 1, None, 250),
        Demand(100_000, 8, 1, None),
        Demand(600_000, 8, 2, "leaf", None, 1500, ("H100",)),
    )
    assert take() is first
    UsualDemand.objects.update(parts=[])
    assert take() == ()
