"""A cluster leaves the fleet: nothing is placed there any more, and its history stays."""

from datetime import datetime

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.urls import reverse

from gpufleet.core.faults import Conflict
from gpufleet.core.models import AuditEntry
from quotas.models import LedgerClock
from scheduler.backends.base import BackendSilent, SeenRun
from scheduler.backends.memory import DatabaseStore
from scheduler.backends.registry import Backends, backend_for, backends_all
from scheduler.backends.simulated import SimulatedBackend
from scheduler.backends.slurm.client import SlurmClient
from scheduler.backends.slurm.values import SlurmNode
from scheduler.engine.model.mig import Instance
from scheduler.hardware.lists import pool_choices
from scheduler.models import (
    Cluster,
    Gpu,
    GpuSplit,
    InventoryEvent,
    JobState,
    Node,
    OutsideJob,
    Placement,
    PlannedHealth,
    SlurmCluster,
    SplitState,
)
from scheduler.selectors.clusters import clusters_listed
from scheduler.services.hardware.geometry import gpu_geometry_change
from scheduler.services.hardware.imports import import_apply, import_preview
from scheduler.services.hardware.removing import cluster_remove
from scheduler.services.hardware.slurm_imports import import_every, imports_turn
from scheduler.services.hardware.slurm_nodes import slurm_nodes_reconcile
from scheduler.services.loop.observe import SILENT_FOR, runs_observe
from scheduler.services.loop.runs import Stop, attempts_stop
from scheduler.services.loop.usage import silence_follow
from tests import builders
from tests.builders import NOON
from tests.invariants import fleet_faults
from tests.scheduler.loop.worlds import Loop, leaf, state, submit

pytestmark = pytest.mark.django_db
INVENTORY = """
clusters: [{name: hpc, backend: simulated}]
nodes: [{name: gpu001, cluster: hpc, gpu_type: H100-SXM-80GB, gpus: 8}]
"""


class Leaving:
    """A cluster with a job on one of its two nodes, and another beside it."""

    def __init__(self) -> None:
        self.cluster = builders.cluster("hpc")
        self.nodes = [builders.node(f"gpu00{number}", of=self.cluster, gpus=8) for number in (1, 2)]
        builders.node("other", of=builders.cluster("south"), gpus=4)
        builders.pool("old", of=self.cluster)
        builders.pool("main", of=builders.cluster("south"))
        self.team, self.loop = leaf("team", 16), Loop()
        self.job = submit(self.team, name="large", gpus=8)
        self.loop.tick()
        self.loop.up(self.job)

    def over(self) -> "Leaving":
        self.loop.after(minutes=5).over(self.job)
        return self

    def remove(self, access, *, reason: str = "Sold.", confirm: str = "hpc"):
        return cluster_remove(access=access, cluster=self.cluster, reason=reason, confirm=confirm, now=self.loop.now)


@pytest.fixture
def leaving(personas) -> Leaving:
    return Leaving()


def test_its_nodes_are_no_capacity_any_more_and_what_ran_there_is_told(leaving, personas):
    PlannedHealth.objects.create(public_id="h-1", node=leaving.nodes[0], to="drained", begins_at=NOON, reason="Move", author_name="Ada")
    OutsideJob.objects.create(cluster=leaving.cluster, number=7, since=NOON)
    waits = submit(leaving.team, name="waits", gpus=8)
    access = personas.access("operator")

    found = leaving.over().remove(access)

    assert (found.nodes, found.gpus, found.planned, found.stranded) == (2, 16, 1, 1)
    assert not Node.objects.filter(cluster=leaving.cluster, removed_at__isnull=True).exists()
    assert not Gpu.objects.filter(node__cluster=leaving.cluster, removed_at__isnull=True).exists()
    assert not PlannedHealth.objects.exists()
    assert OutsideJob.objects.get().until is not None
    assert [row.name for row in clusters_listed(access)] == ["south"]
    entry = AuditEntry.objects.get(action="cluster.remove")
    before = {"name": "hpc", "backend": "simulated", "nodes": 2, "gpus": 16}
    assert (entry.object_id, entry.reason, entry.before) == (leaving.cluster.public_id, "Sold.", before)
    assert InventoryEvent.objects.filter(kind="removed", cause="Cluster hpc was removed: Sold.").count() == 2
    assert fleet_faults() == []

    leaving.loop.after(minutes=1).tick()
    assert state(waits) == JobState.QUEUED
    assert not Placement.objects.filter(until__isnull=True).exists()
    reader = personas.client("viewer")
    page = reader.get(reverse("cluster", args=["hpc"])).content.decode()
    assert "Its nodes were removed with it." in page
    assert "?cluster=hpc" not in page, "lists are of what the fleet has"
    assert [name for name, _ in pool_choices()] == ["main"]
    assert reader.get(reverse("node", args=[leaving.nodes[0].public_id])).status_code == 200
    assert reader.get("/api/v1/clusters/hpc").json()["removed_at"] is not None


def test_it_stays_while_a_job_runs_there_leaves_or_was_promised_it(leaving, personas):
    access = personas.access("operator")
    with pytest.raises(Conflict, match="1 job runs on hpc, or was promised its GPUs: drain its nodes first"):
        leaving.remove(access)
    attempts_stop(stops=[Stop(leaving.job.pk, JobState.CANCELLED, "cancelled", "No.")], now=leaving.loop.now)
    Cluster.objects.filter(pk=leaving.cluster.pk).update(silent_since=NOON)
    with pytest.raises(Conflict, match="give them up first"):
        leaving.remove(access)
    assert not Node.objects.filter(removed_at__isnull=False).exists()


def test_one_that_did_not_answer_does_not_stay_unseen_in_the_ledger(leaving, personas):
    """Its runs, once it is added again, would never be decided anew."""
    leaving.over()
    Cluster.objects.filter(pk=leaving.cluster.pk).update(silent_since=leaving.loop.now)
    silence_follow(at=leaving.loop.now)
    assert LedgerClock.objects.get().unseen == ["hpc"]

    leaving.remove(personas.access("operator"))

    assert LedgerClock.objects.get().unseen == []


def test_one_that_is_found_not_to_answer_while_it_is_removed_stays_removed(leaving, personas):
    """The loop still has its back-end: a tick that began before goes on with it."""

    class Dark(SimulatedBackend):
        def observe(self, *, now: datetime) -> tuple[SeenRun, ...]:
            raise BackendSilent("Nobody answers.")

        news = observe

    leaving.over()
    loop = Backends({leaving.cluster.pk: Dark(DatabaseStore(leaving.cluster.pk))})
    runs_observe(backends=loop, now=leaving.loop.now)
    leaving.remove(personas.access("operator"))
    runs_observe(backends=loop, now=leaving.loop.now + SILENT_FOR)

    assert Cluster.objects.get(pk=leaving.cluster.pk).silent_since is None
    assert LedgerClock.objects.get().unseen == []


def test_repartitions_of_its_gpus_are_over_and_hold_the_loop_up_no_more_than_others(leaving, personas):
    """Of one GPU the job has still to end, of the other the back-end has been told and has not answered."""
    access = personas.access("operator")
    for node in leaving.nodes:
        gpu_geometry_change(access=access, gpu=node.gpus.get(index=0), layout=[Instance(0, "3g.40gb")], reason="Test.", now=leaving.loop.now)
    assert set(GpuSplit.objects.values_list("state", flat=True)) == {SplitState.DRAINING, SplitState.ORDERED}

    leaving.over().remove(access)
    leaving.loop.after(minutes=1).tick()

    assert set(GpuSplit.objects.values_list("state", "fault")) == {(SplitState.CANCELLED, "GPU 0 was taken out of the fleet.")}
    assert fleet_faults() == []


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_one_that_is_imported_by_itself_comes_back_by_itself_at_no_time(leaving, personas, monkeypatch, tmp_path, when):
    """An interval may be stated afterwards, for when it is back; and Slurm may take its time to answer while somebody removes the cluster."""
    leaving.over()
    Cluster.objects.filter(pk=leaving.cluster.pk).update(backend="slurm")
    SlurmCluster.objects.create(cluster=leaving.cluster, conf="/nowhere", folder=str(tmp_path), tag="cafecafe", changed_at=NOON)
    access = personas.access("operator")

    def topology(_: SlurmClient) -> str:
        if when == "meanwhile":
            leaving.remove(access)
        return ""

    there = SlurmNode("gpu001", "gpu001", ("IDLE",), "", 64, 1 << 20, "gpu:H100-SXM-80GB:8", version="25.05")
    monkeypatch.setattr(SlurmClient, "nodes", lambda _: [there])
    monkeypatch.setattr(SlurmClient, "topology", topology)
    if when == "before":
        leaving.remove(access)
    import_every(access=access, cluster="hpc", minutes=30, now=leaving.loop.now)

    assert imports_turn(now=leaving.loop.now) == 0
    assert Cluster.objects.get(pk=leaving.cluster.pk).removed_at is not None
    assert not Node.objects.filter(cluster=leaving.cluster, removed_at__isnull=True).exists()


def test_it_is_refused_without_reason_name_or_right_and_twice(leaving, personas):
    access = personas.access("operator")
    leaving.over()
    for wrong in ({"reason": " "}, {"confirm": "south"}, {"reason": "", "confirm": ""}):
        with pytest.raises(ValidationError) as fault:
            leaving.remove(access, **wrong)
        assert fault.value.message_dict.keys() == wrong.keys()
    with pytest.raises(PermissionDenied):
        leaving.remove(personas.access("team_lead"))
    leaving.remove(access)
    with pytest.raises(Conflict, match="hpc was removed already"):
        leaving.remove(access)


def test_the_loop_asks_it_nothing_any_more_and_its_logs_are_read(leaving, personas, tmp_path):
    """Nothing of a Slurm that may be gone is asked, and a log lies in its folder still."""
    Cluster.objects.filter(pk=leaving.cluster.pk).update(backend="slurm")
    SlurmCluster.objects.create(cluster=leaving.cluster, conf="/nowhere", folder=str(tmp_path), tag="cafecafe", import_minutes=5, changed_at=NOON)
    assert leaving.cluster.pk in backends_all()

    leaving.over().remove(personas.access("operator"))

    assert leaving.cluster.pk not in backends_all()
    leaving.cluster.refresh_from_db()
    assert backend_for(leaving.cluster).facts.pins_gpus is False
    assert leaving.cluster.pk not in backends_all(), "reading a log brings it back to nobody"
    assert slurm_nodes_reconcile(now=NOON) == 0
    assert SlurmCluster.objects.get().import_minutes == 0


def test_who_goes_through_the_back_ends_is_not_interrupted_by_a_thread_that_finds_one_gone(leaving):
    backends = Backends({number: SimulatedBackend(DatabaseStore(number)) for number in (1, 2, 3)})
    pairs, alone = iter(backends.items()), iter(backends.values())
    next(pairs), next(alone)

    backends.keep([1])

    assert ([key for key, _ in pairs], len(list(alone)), list(backends)) == ([2, 3], 2, [1])


def test_a_cluster_of_that_name_that_is_imported_again_goes_on(leaving, personas):
    access = personas.access("superuser")
    leaving.over().remove(access)

    preview = import_preview(access=access, text=INVENTORY, form="yaml", source="file", remove_missing=False, now=leaving.loop.now)
    assert preview.upload is not None
    import_apply(access=access, upload=preview.upload, now=leaving.loop.now)

    cluster = Cluster.objects.get(name="hpc")
    assert (cluster.pk, cluster.removed_at) == (leaving.cluster.pk, None)
    assert Node.objects.filter(cluster=cluster, removed_at__isnull=True).count() == 1
    entry = AuditEntry.objects.get(action="cluster.restore")
    assert (entry.object_id, entry.before["removed"]) == (cluster.public_id, f"{leaving.loop.now:%Y-%m-%d %H:%M:%S}")
    assert entry.after == {"removed": None, "cluster": "hpc", "import": preview.upload.public_id}
    assert {row.name for row in clusters_listed(access)} == {"hpc", "south"}
    assert fleet_faults() == []


def test_the_page_shows_what_happens_and_asks_for_the_name(leaving, personas):
    operator, address = personas.client("operator"), reverse("cluster_remove", args=["hpc"])
    assert "1 job runs on hpc, or was promised its GPUs: drain its nodes first." in operator.get(address).content.decode()
    leaving.over()
    submit(leaving.team, gpus=8)

    assert address in operator.get(reverse("cluster", args=["hpc"])).content.decode()
    page = operator.get(address).content.decode()
    assert "hpc leaves the fleet with 2 nodes and 16 GPUs." in page
    assert "1 waiting job fits no other cluster and will not start." in page
    wrong = operator.post(address, {"reason": "Sold", "confirm": "south"})
    assert (wrong.status_code, "Type hpc to confirm." in wrong.content.decode()) == (422, True)
    done = operator.post(address, {"reason": "Sold", "confirm": "hpc"}, follow=True)
    assert "hpc was removed." in done.content.decode()
    assert address not in operator.get(reverse("cluster", args=["hpc"])).content.decode()


def test_the_api_does_the_same(leaving, personas):
    operator, address = personas.client("operator"), "/api/v1/clusters/hpc/remove"
    body = {"reason": "Sold", "confirm": "hpc"}
    assert operator.post(address, body, content_type="application/json").status_code == 409
    leaving.over()
    told = operator.post(f"{address}?dry_run=true", {"reason": "Sold"}, content_type="application/json").json()
    assert told == {"nodes": 2, "gpus": 16, "planned": 0, "stranded": 0, "folder": ""}
    assert operator.post(address, {"reason": "Sold"}, content_type="application/json").status_code == 422
    assert operator.post(address, body, content_type="application/json").json() == told
    assert operator.post(address, body, content_type="application/json").status_code == 409
