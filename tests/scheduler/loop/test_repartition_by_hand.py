"""A repartition that an operator asks for goes the way of the engine's own: drain, order, verify."""

from typing import Any

import pytest
from django.core.exceptions import ValidationError

from gpufleet.core.audit import SYSTEM
from gpufleet.core.faults import Conflict
from quotas.models import QuotaNode
from quotas.permissions import Access, Can, Grant
from scheduler.backends.base import BackendRefused
from scheduler.backends.simulated import MemoryStore, SimulatedBackend
from scheduler.engine.model.mig import Instance
from scheduler.models import Cluster, Gpu, GpuMode, GpuSplit, Health, Job, JobState, MigInstance, Order, Repartition, SplitState
from scheduler.services.hardware.geometry import gpu_geometry_cancel, gpu_geometry_change
from tests import builders
from tests.scheduler.loop.test_whole_way import Fleet
from tests.scheduler.loop.worlds import gpus_of, leaf, state, submit

pytestmark = pytest.mark.django_db
OPERATOR = Access(SYSTEM, (Grant("", frozenset({Can.OPERATE, Can.SEE})),))
HALVES = [Instance(0, "3g.40gb"), Instance(4, "3g.40gb")]


class Refuses(SimulatedBackend):
    def repartition(self, **order: Any) -> None:
        raise BackendRefused("The driver says no.")


def gpu(index: int = 0) -> Gpu:
    return Gpu.objects.get(index=index)


def ask(fleet: Fleet, layout: list[Instance] | None = HALVES, index: int = 0) -> GpuSplit:
    return gpu_geometry_change(access=OPERATOR, gpu=gpu(index), layout=layout, reason="small jobs", now=fleet.now)


def slices(team: QuotaNode, work_s: int, **fields: Any) -> Job:
    return submit(team, spec={"roles": [{"mig": "3g.40gb"}], "sharing": "mig", "work_s": work_s}, gpus_milli=500, **fields)


def profiles(index: int = 0) -> list[str]:
    return list(MigInstance.objects.filter(gpu=gpu(index), removed_at__isnull=True).values_list("profile", flat=True))


def test_it_drains_then_orders_then_verifies_and_the_job_there_ends_by_itself():
    builders.node("n1", gpus=2)
    fleet, team = Fleet(), leaf("team", 2)
    first = submit(team, gpus=1, spec={"work_s": 600})
    fleet.until(lambda: state(first) == JobState.RUNNING)
    (index,) = gpus_of(first)

    split = ask(fleet, index=index)
    later = [submit(team, gpus=1, spec={"work_s": 30}, at=fleet.now) for _ in range(3)]
    fleet.until(lambda: state(later[2]) == JobState.COMPLETED)

    assert state(first) == JobState.RUNNING
    assert (gpu(index).health, gpu(index).mode, split.state) == (Health.DRAINING, GpuMode.WHOLE, SplitState.DRAINING)
    assert not Order.objects.filter(kind="repartition").exists()
    fleet.until(lambda: GpuSplit.objects.get().state == SplitState.DONE)
    assert state(first) == JobState.COMPLETED
    assert (gpu(index).health, gpu(index).mode, profiles(index)) == (Health.HEALTHY, GpuMode.MIG, ["3g.40gb", "3g.40gb"])
    assert Repartition.objects.count() == 1, "it counts toward the rate per hour"
    slice_job = slices(team, 30, at=fleet.now)
    fleet.until(lambda: state(slice_job) == JobState.COMPLETED)


def test_instances_in_both_layouts_keep_what_runs_in_them():
    builders.mig_gpu(builders.node("n1", gpus=1))
    fleet, team = Fleet(), leaf("team", 2)
    runs = slices(team, 3600)
    fleet.until(lambda: state(runs) == JobState.RUNNING)
    kept = runs.placements.get(until__isnull=True).mig
    assert kept is not None

    ask(fleet, [Instance(kept.start, "3g.40gb"), Instance(4 - kept.start, "2g.20gb")])
    fleet.until(lambda: GpuSplit.objects.get().state == SplitState.DONE, most=60)

    assert state(runs) == JobState.RUNNING
    assert sorted(profiles()) == ["2g.20gb", "3g.40gb"]


def test_a_back_end_that_refuses_leaves_the_gpu_as_it_is():
    builders.node("n1", gpus=1)
    fleet = Fleet()
    (cluster,) = fleet.backends
    fleet.backends[cluster] = Refuses(MemoryStore())

    ask(fleet)
    fleet.tick()

    split = GpuSplit.objects.get()
    assert (split.state, split.fault, profiles(), gpu().health) == (SplitState.REFUSED, "The driver says no.", [], Health.HEALTHY)
    ask(fleet)  # and may be asked again


def test_where_no_back_end_can_do_it_it_is_refused_with_the_reason():
    builders.node("n1", gpus=1)
    fleet = Fleet()
    for kind, why in (("local", "cannot repartition GPUs"), ("nowhere", "does not exist")):
        Cluster.objects.update(backend=kind)
        with pytest.raises(ValidationError, match=why):
            ask(fleet)
    assert (gpu().health, GpuSplit.objects.count()) == (Health.HEALTHY, 0)


def test_a_console_that_is_killed_after_the_back_end_answered_writes_it_down_later():
    builders.node("n1", gpus=1)
    fleet = Fleet()
    split = ask(fleet)
    Order.objects.filter(kind="repartition").update(done_at=fleet.now)

    fleet.after(seconds=5).tick()

    split.refresh_from_db()
    assert (split.state, profiles()) == (SplitState.DONE, ["3g.40gb", "3g.40gb"])


def test_it_can_be_cancelled_while_it_drains_and_not_afterwards():
    builders.node("n1", gpus=1)
    fleet, job = Fleet(), submit(leaf("team", 2), gpus=1, spec={"work_s": 600})
    fleet.until(lambda: state(job) == JobState.RUNNING)

    ask(fleet)
    with pytest.raises(Conflict, match="already"):
        ask(fleet)
    gpu_geometry_cancel(access=OPERATOR, gpu=gpu(), now=fleet.now)

    assert (gpu().health, GpuSplit.objects.get().state, state(job)) == (Health.HEALTHY, SplitState.CANCELLED, JobState.RUNNING)
    fleet.until(lambda: state(job) == JobState.COMPLETED)
    ask(fleet)
    with pytest.raises(Conflict, match="told already"):
        gpu_geometry_cancel(access=OPERATOR, gpu=gpu(), now=fleet.now)


def test_a_refused_repartition_of_a_plan_takes_the_gpu_out_of_planning():
    builders.mig_gpu(builders.node("n1", gpus=1))
    fleet = Fleet()
    (cluster,) = fleet.backends
    fleet.backends[cluster] = Refuses(MemoryStore())
    submit(leaf("team", 2), gpus=1, spec={"work_s": 60})

    fleet.tick()

    assert gpu().health == Health.DRAINING
    assert "repartition was refused" in gpu().health_reason
