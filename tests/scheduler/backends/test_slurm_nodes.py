"""The health of nodes of a real Slurm and of the inventory: each side learns of the other, and whoever set something ends it."""

from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.urls import reverse

from gpufleet.core.models import AuditEntry
from gpufleet.core.times import now
from scheduler.backends.registry import slurm_settings
from scheduler.backends.slurm.client import SlurmClient
from scheduler.models import Gpu, Health, InventoryImport, Node, OutsideSeat, SlurmCluster
from scheduler.services.hardware.hardware import node_health_change
from scheduler.services.hardware.imports import import_apply
from scheduler.services.hardware.slurm_imports import imports_turn
from scheduler.services.hardware.slurm_nodes import ITSELF, slurm_nodes_reconcile
from tests.scheduler.backends.test_slurm_end_to_end import connect, inventory, shared  # noqa: F401 - a fixture
from tests.servers import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.slurm]


@pytest.fixture
def fleet(slurm, shared):  # noqa: F811
    connect(slurm, shared)
    inventory("slurm", "--cluster", "hpc", "--gpu-type", "h100=H100-SXM-80GB:81559", "--apply")
    yield slurm
    slurm.sh("scontrol", "update", "NodeName=gpu[001-004]", "State=RESUME", check=False)
    wait_until(lambda: slurm.idle() == set(slurm.names), seconds=30, what="all nodes to be idle")


def node(name: str) -> Node:
    return Node.objects.get(name=name)


def states(name: str) -> tuple[tuple[str, ...], str]:
    client = SlurmClient(slurm_settings(SlurmCluster.objects.get()))
    return next((one.states, one.reason) for one in client.nodes() if one.name == name)


def comes_back(name: str) -> None:
    wait_until(lambda: slurm_nodes_reconcile(now=now()) and node(name).health == Health.HEALTHY, seconds=60, what=f"{name} to be back")


def turn(name: str, to: str, reason: str) -> None:
    node_health_change(access=ITSELF, node=node(name), to=to, reason=reason, now=now())


def test_what_slurm_drains_is_draining_here_until_slurm_resumes_it(fleet):
    fleet.sh("scontrol", "update", "NodeName=gpu001", "State=DRAIN", "Reason=fans; $(touch /tmp/x)")

    assert slurm_nodes_reconcile(now=now()) == 1
    assert (node("gpu001").health, node("gpu001").health_reason) == (Health.DRAINING, "Slurm: fans; $(touch /tmp/x)")
    assert slurm_nodes_reconcile(now=now()) == 0, "nothing more to say"
    fleet.sh("scontrol", "update", "NodeName=gpu001", "State=RESUME")
    comes_back("gpu001")


def test_a_drain_here_is_a_drain_in_slurm_and_ends_with_it(fleet):
    turn("gpu002", Health.DRAINING, "new cables")

    assert slurm_nodes_reconcile(now=now()) == 1
    found, reason = states("gpu002")
    assert any("DRAIN" in state for state in found)
    assert reason.startswith("gpufleet: new cables")
    assert slurm_nodes_reconcile(now=now()) == 0
    turn("gpu002", Health.DRAINED, "empty")
    assert slurm_nodes_reconcile(now=now()) == 0, "an operator here decides how it goes on"
    turn("gpu002", Health.HEALTHY, "cables are in")
    assert slurm_nodes_reconcile(now=now()) == 1
    wait_until(lambda: "gpu002" in fleet.idle(), what="the node to be back in Slurm")


def test_a_node_that_slurm_lost_is_down_here_and_comes_back(fleet):
    fleet.sh("scontrol", "update", "NodeName=gpu003", "State=DOWN", "Reason=no power")

    slurm_nodes_reconcile(now=now())
    assert (node("gpu003").health, node("gpu003").health_reason) == (Health.DOWN, "Slurm: no power")
    fleet.sh("scontrol", "update", "NodeName=gpu003", "State=RESUME")
    comes_back("gpu003")


def test_a_job_that_slurm_runs_by_itself_is_seen_and_left_alone(fleet, monkeypatch):
    number = int(fleet.sh("sbatch", "--parsable", "--nodelist=gpu001", "--gres=gpu:3", "--chdir=/", "--output=/dev/null", "--wrap=sleep 300"))
    seats = OutsideSeat.objects.filter(job__until__isnull=True, gpu__isnull=False)

    wait_until(lambda: slurm_nodes_reconcile(now=now()), seconds=30, what="the job to be seen")
    assert set(seats.values_list("job__number", "node__name")) == {(number, "gpu001")}
    assert seats.count() == 3
    assert OutsideSeat.objects.get(gpu__isnull=True).cpus >= 1
    asked, ask = [], SlurmClient.with_gpus
    monkeypatch.setattr(SlurmClient, "with_gpus", lambda client, jobs: asked.append(list(jobs)) or ask(client, jobs))
    assert slurm_nodes_reconcile(now=now()) == 0, "nothing more to say"
    assert asked == [[]], "for as long as it runs Slurm is not asked again which GPUs it holds"
    assert f"{number} RUNNING" in fleet.sh("squeue", "--noheader", "--format=%i %T")
    fleet.sh("scancel", str(number))
    wait_until(lambda: slurm_nodes_reconcile(now=now()) and not seats.exists(), seconds=30, what="its end to be seen")


def test_a_node_of_two_partitions_one_of_them_hidden_is_read_once(fleet):
    fleet.sh("scontrol", "create", "PartitionName=second", "Nodes=gpu001", "Hidden=YES")
    try:
        client = SlurmClient(slurm_settings(SlurmCluster.objects.get()))
        assert [one.name for one in client.nodes()] == fleet.names
        assert client.partitions().keys() == {"main", "second"}
    finally:
        fleet.sh("scontrol", "delete", "PartitionName=second")


def test_the_doctor_names_nodes_on_which_they_differ(fleet):
    def doctor(name: str) -> tuple[str, bool]:
        out = StringIO()
        try:
            call_command("doctor", "--cluster", name, stdout=out)
        except SystemExit:
            return out.getvalue(), False
        return out.getvalue(), True

    said, healthy = doctor("hpc")
    assert (healthy, "13 checks, no findings." in said) == (True, True), said
    turn("gpu004", Health.DRAINING, "later")
    said, healthy = doctor("hpc")
    assert not healthy
    assert "Slurm and the inventory differ on gpu004 (draining here, idle in Slurm)." in said
    assert "not connected to Slurm or Kubernetes" in doctor("south")[0]


def test_a_cluster_is_imported_by_itself_as_far_as_that_is_safe(fleet, personas):
    operator, moment = personas.client("operator"), now()
    assert imports_turn(now=moment) == 0, "off unless somebody asks for it"
    page = operator.post(reverse("slurm_every", args=["hpc"]), {"minutes": "30"}, follow=True).content.decode()
    assert "Imported every 30 minutes." in page
    entries, uploads = AuditEntry.objects.count(), InventoryImport.objects.count()

    assert imports_turn(now=moment) == 0
    assert (AuditEntry.objects.count(), InventoryImport.objects.count()) == (entries, uploads), "an unchanged cluster leaves no trace"
    # A node that is new, and one of which Slurm has other figures by now.
    Node.objects.filter(name="gpu004").update(removed_at=moment)
    Gpu.objects.filter(node__name="gpu004").update(removed_at=moment)
    Node.objects.filter(name="gpu003").update(cpus=1)
    assert imports_turn(now=moment + timedelta(minutes=29)) == 0, "not due yet"
    moment += timedelta(minutes=30)
    assert imports_turn(now=moment) == 1
    assert Gpu.objects.filter(node__name="gpu004", removed_at__isnull=True).count() == 8
    assert node("gpu003").cpus == 32
    assert AuditEntry.objects.filter(action="inventory.import").last().actor_name == ITSELF.actor.name

    # Where a node stands decides where gangs fit: an operator looks at that first, and is shown one preview however often it is found.
    Node.objects.filter(name="gpu001").update(domain=node("gpu003").domain)
    for _ in range(2):
        moment += timedelta(minutes=30)
        assert imports_turn(now=moment) == 0
    waits = InventoryImport.objects.get(applied_at__isnull=True)
    assert reverse("inventory_preview", args=[waits.public_id]) in operator.get(reverse("slurm_import", args=["hpc"])).content.decode()
    out = StringIO()
    call_command("doctor", "--cluster", "hpc", stdout=out)
    assert f"Changes of hpc wait for an operator (preview {waits.public_id})." in out.getvalue()
    import_apply(access=personas.access("operator"), upload=waits, now=moment)
    assert imports_turn(now=moment + timedelta(minutes=30)) == 0
    assert SlurmCluster.objects.get().import_waits is None

    SlurmCluster.objects.update(conf="/none/slurm.conf")
    assert imports_turn(now=moment + timedelta(minutes=60)) == 0
    assert SlurmCluster.objects.get().import_fault
