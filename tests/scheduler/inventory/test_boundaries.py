"""Boundaries between the jobs of a node: who vouches for them, what an operator states, and what the scheduler makes of it."""

from datetime import timedelta

import pytest
from django.urls import reverse

from gpufleet.cli import main
from gpufleet.core.models import AuditEntry
from gpufleet.core.times import now
from scheduler.backends.slurm.values import Settings
from scheduler.hardware.boundaries import boundaries_of, found_in
from scheduler.loop.policy import policy
from scheduler.models import Cluster, InventoryEvent, Node
from scheduler.services.hardware.slurm_checks import prolog_confines
from scheduler.snapshots import Snapshots
from tests import builders
from tests.scheduler.test_undo import UNDO, undone

pytestmark = pytest.mark.django_db
CGROUP = {"TaskPlugin": "task/affinity,task/cgroup", "ConstrainCores": "yes", "ConstrainDevices": "yes"}


@pytest.fixture
def local() -> Node:
    """A node of a back-end for which nobody vouches."""
    node = builders.node("n1", gpus=2)
    Cluster.objects.update(backend="local")
    return Node.objects.get(pk=node.pk)


def enforced() -> list[tuple[str, ...]]:
    scenario = Snapshots().take(settings=policy().engine, now=now(), start_timeout=timedelta(minutes=5)).scenario
    return [node.boundaries for node in scenario.nodes]


def test_who_vouches_for_a_boundary():
    assert {*boundaries_of({}, "simulated").values()} == {"backend"}
    assert boundaries_of({"boundary/cores": "true"}, "slurm") == {"cores": "slurm"}
    assert boundaries_of({"boundary/cores": "true", "boundary/mig": "stated"}, "local") == {"cores": "operator", "mig": "operator"}
    assert boundaries_of({"rack": "r1"}, "local") == {}


@pytest.mark.parametrize(
    ("stated", "is_verified", "found"),
    [
        (CGROUP, True, ["boundary/cores", "boundary/mig"]),
        (CGROUP, False, []),  # nobody checks it on the nodes
        ({"TaskPlugin": "task/none"}, True, []),
        ({"TaskPlugin": "task/affinity"}, True, ["boundary/cores"]),
        ({"TaskPlugin": "task/cgroup", "ConstrainCores": "no", "ConstrainDevices": "yes"}, True, ["boundary/mig"]),
        ({"TaskPlugin": "task/none", "ConstrainCores": "yes", "ConstrainDevices": "yes"}, True, []),  # no plugin does that
    ],
)
def test_what_slurm_enforces_is_read_from_its_configuration_where_its_prolog_checks_it(stated, is_verified, found):
    assert found_in(stated, is_verified=is_verified) == found


def test_an_operator_states_a_boundary_with_a_reason_and_takes_it_back(personas, local):
    client, address = personas.client("operator"), reverse("node_boundaries", args=[local.public_id])
    assert enforced() == [()]

    first = client.post(address, {"cores": "on", "reason": "cpuset checked"}, follow=True)

    assert enforced() == [("cores",)]
    assert AuditEntry.objects.get(action="node.boundaries").after == {"boundaries": ["cores"]}
    assert InventoryEvent.objects.get(kind="boundaries").cause == "cpuset checked"
    assert "stated by an operator" in first.content.decode()
    assert UNDO.search(undone(client, first).content.decode()) is None
    assert enforced() == [()]


def test_a_statement_without_a_reason_that_changes_nothing_or_by_somebody_else_is_refused(personas, local):
    address = reverse("node_boundaries", args=[local.public_id])

    assert personas.client("operator").post(address, {"cores": "on", "reason": ""}).status_code == 422
    assert "no boundary already" in personas.client("operator").post(address, {"reason": "x"}).content.decode()
    assert personas.client("viewer").post(address, {"cores": "on", "reason": "x"}).status_code in (403, 404)
    assert enforced() == [()]


def test_the_api_states_what_an_operator_vouches_for_and_leaves_what_slurm_found(personas, local):
    Cluster.objects.update(backend="slurm")
    Node.objects.update(labels={"boundary/cores": "true", "rack": "r1"})
    client, address = personas.client("operator"), f"/api/v1/nodes/{local.public_id}/boundaries"

    told = client.put(address, {"boundaries": ["mig"], "reason": "read back"}, content_type="application/json")
    none = client.put(address, {"boundaries": [], "reason": "not so"}, content_type="application/json")

    known = client.put(address, {"boundaries": ["cores"], "reason": "seen"}, content_type="application/json")

    assert told.json()["boundaries"] == {"cores": "slurm", "mig": "operator"}
    assert (known.status_code, "n1 needs no statement for cores." in known.content.decode()) == (422, True)
    assert none.json()["boundaries"] == {"cores": "slurm"}
    assert Node.objects.get().labels == {"boundary/cores": "true", "rack": "r1"}
    assert client.get(f"/api/v1/nodes/{local.public_id}").json()["boundaries"] == {"cores": "slurm"}


@pytest.mark.parametrize(
    ("options", "user", "confines"),
    [([], "gpujobs", True), (["--unconfined"], "gpujobs", False), ([], "somebody", False)],
)
def test_slurm_vouches_only_where_this_consoles_own_prolog_checks_it(tmp_path, options, user, confines):
    main(["gpufleet", "slurm", "prolog", "--user", "gpujobs", "--write", str(tmp_path), *options])

    assert prolog_confines(Settings(user=user), str(tmp_path / "verify")) is confines


def test_a_slurm_without_a_prolog_vouches_for_nothing():
    assert not prolog_confines(Settings(), "(null)")
