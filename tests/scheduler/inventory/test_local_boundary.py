"""The local back-end vouches for pinned processors where it has just tried them, and takes that back."""

import pytest
from django.urls import reverse

from gpufleet.core.models import AuditEntry
from gpufleet.core.times import now
from scheduler.backends import local_pins
from scheduler.backends.local_pins import Pins
from scheduler.hardware.boundaries import boundaries_of, labels_stated
from scheduler.hardware.discovery import Device, Machine, machine_name
from scheduler.models import Cluster, InventoryEvent, Node
from scheduler.services.hardware.discovery import machine_document
from scheduler.services.hardware.local_checks import local_check
from scheduler.services.hardware.local_pins import TRIED, local_nodes_verify
from tests import builders
from tests.scheduler.backends.test_local_pins import Files
from tests.scheduler.inventory.test_boundaries import enforced

pytestmark = pytest.mark.django_db


@pytest.fixture
def pinned(settings, tmp_path, monkeypatch):
    """A console that pins jobs of another user. What the trial says is the test's: `why`."""
    files = Files(tmp_path / "cgroup", "0-7")
    settings.LOCAL = {**settings.LOCAL, "LOCAL": True, "LOCAL_UIDS": (71000, 71009), "LOCAL_PIN": True, "LOCAL_CGROUP": str(files.top)}
    settings.DATA_DIR, settings.VIRTUAL_GPUS = tmp_path / "data", 2
    monkeypatch.setattr("scheduler.backends.local_accounts.os.getuid", lambda: 0)
    monkeypatch.setattr(Pins, "missing", lambda _self, _uid=None: files.why)
    monkeypatch.setattr(local_pins, "_populated", lambda _folder: True)
    return files


@pytest.fixture
def here() -> Node:
    node = builders.node(machine_name(), gpus=2)
    Cluster.objects.update(backend="local")
    Node.objects.update(labels={"rack": "r1"})
    return node


def document(cluster: str = "local") -> str:
    return machine_document(Machine(machine_name(), "", 8, 1024, [Device(0, "virtual", "GPU-0", 1024)], [[0]]), cluster)


def test_a_machine_that_pins_gets_the_boundary_and_loses_it_with_a_reason(pinned, here, personas):
    assert local_nodes_verify(now=now()) == 1
    assert local_nodes_verify(now=now()) == 0
    assert enforced() == [("cores",)]
    page = personas.client("operator").get(reverse("node", args=[here.public_id])).content.decode()
    assert "Processors pinned" in page
    assert "by its back-end" in page
    assert "verified to pin jobs to their processors" in page

    pinned.why = "The kernel took the controller away."
    assert local_nodes_verify(now=now()) == 1
    assert enforced() == [()]
    assert Node.objects.get().labels == {"rack": "r1"}
    assert [event.cause for event in InventoryEvent.objects.filter(kind="boundaries").order_by("pk")] == [TRIED, pinned.why]
    assert AuditEntry.objects.filter(action="node.boundaries").count() == 2
    assert "no longer verified to pin jobs" in personas.client("operator").get(reverse("node", args=[here.public_id])).content.decode()


@pytest.mark.parametrize("off", [{"LOCAL_PIN": False}, {"LOCAL": False}, {"LOCAL_UIDS": "", "LOCAL_SAME_USER": True}])
def test_settings_that_pin_nobody_or_let_jobs_leave_withdraw_it(pinned, here, settings, off):
    local_nodes_verify(now=now())
    settings.LOCAL = {**settings.LOCAL, **off}

    assert (local_nodes_verify(now=now()), enforced()) == (1, [()])


def test_nobody_vouches_for_another_machine(pinned, here):
    Node.objects.update(name="elsewhere", labels={"boundary/cores": "verified"})

    assert (local_nodes_verify(now=now()), enforced()) == (1, [()])
    assert InventoryEvent.objects.get(kind="boundaries").cause == f"elsewhere is not this machine, {machine_name()}."


def test_what_an_operator_states_of_a_machine_that_does_not_pin_stays(pinned, here):
    Node.objects.update(labels={"boundary/cores": "stated", "boundary/mig": "stated"})
    pinned.why = "No cpuset."
    assert local_nodes_verify(now=now()) == 0
    assert boundaries_of(Node.objects.get().labels, "local") == {"cores": "operator", "mig": "operator"}

    pinned.why = ""
    local_nodes_verify(now=now())
    labels = Node.objects.get().labels
    assert boundaries_of(labels, "local") == {"cores": "backend", "mig": "operator"}
    assert labels_stated(labels, frozenset(), "local") == {"boundary/cores": "verified"}
    assert boundaries_of(labels, "slurm") == {"cores": "operator", "mig": "operator"}


def test_discovery_tries_it_and_counts_only_what_workers_can_own(pinned, here):
    text = document(Cluster.objects.get().name)
    assert "boundary/cores: verified" in text
    assert "rack: r1" in text
    assert "cpus: 7" in text

    local_nodes_verify(now=now())
    assert "labels" not in document(Cluster.objects.get().name)
    pinned.why = "No cpuset."
    assert "labels: {rack: r1}" in document(Cluster.objects.get().name)


def test_the_doctor_and_the_page_that_adds_this_machine_try_it(pinned, settings):
    step = next(step for step in local_check() if step.name == "processors")
    assert (step.result, step.seen) == ("ok", "workers can own 7")

    builders.node(machine_name(), gpus=2)
    Cluster.objects.update(backend="local")
    Node.objects.update(cpus=8)
    assert "The inventory counts more processors of this machine than workers can own, which are 7." in str(local_check())

    pinned.why = "No cpuset."
    step = next(step for step in local_check() if step.name == "processors")
    assert (step.result, step.told) == ("failed", "Jobs cannot be pinned to processors: No cpuset.")

    pinned.why = ""
    settings.LOCAL = {**settings.LOCAL, "LOCAL_SAME_USER": True}
    settings.ALLOWED_HOSTS = ["127.0.0.1"]
    step = next(step for step in local_check() if step.name == "processors")
    assert (step.result, "does not vouch for the boundary: Jobs run as the console's own user" in step.told) == ("warning", True)

    settings.LOCAL = {**settings.LOCAL, "LOCAL_PIN": False}
    assert not [step for step in local_check() if step.name == "processors"]
