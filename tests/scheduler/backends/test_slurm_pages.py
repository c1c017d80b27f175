"""Connecting a real Slurm in the browser, and importing its nodes."""

import os
import re

import pytest
from django.urls import reverse

from scheduler.models import Cluster, Gpu, SlurmCluster
from tests.scheduler.backends.test_slurm_end_to_end import shared  # noqa: F401 - a fixture

pytestmark = [pytest.mark.django_db, pytest.mark.slurm]


@pytest.fixture
def connection(slurm, shared, settings, monkeypatch):  # noqa: F811
    """What the form says. slurm.conf is the machine's own: the one that its commands find."""
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    settings.SLURM_USERS = ("nobody",) if os.getuid() == 0 else ()
    return {"cluster": "hpc", "user": "nobody" if os.getuid() == 0 else "", "folder": str(shared), "partition": "", "account": ""}


def test_a_cluster_is_connected_and_imported_by_its_pages(connection, personas):
    operator = personas.client("operator")

    tried = operator.post(reverse("cluster_add"), connection)
    assert re.findall(r">(OK|Warning|Failed|Skipped)<", tried.content.decode()) == ["OK"] * 10 + ["Warning", "OK"], "no prolog"
    assert not Cluster.objects.exists()

    relative = operator.post(reverse("cluster_add"), connection | {"node_logs": "logs", "keep": "1"})
    assert (relative.status_code, "is an absolute path" in relative.content.decode()) == (422, True)
    assert not Cluster.objects.exists()

    kept = operator.post(reverse("cluster_add"), connection | {"node_logs": "/local/logs", "keep": "1"}, follow=True)
    assert kept.redirect_chain[-1][0] == reverse("slurm_import", args=["hpc"])
    row = SlurmCluster.objects.get()
    assert (row.folder, row.node_logs) == (connection["folder"], "/local/logs")

    unnamed = operator.post(reverse("slurm_import", args=["hpc"]), {"name-h100": "H100-SXM-80GB"})
    assert "its memory is required" in unnamed.content.decode()
    shown = operator.post(reverse("slurm_import", args=["hpc"]), {"name-h100": "H100-SXM-80GB", "memory-h100": "81559"}, follow=True)
    address = shown.redirect_chain[-1][0]
    assert not Gpu.objects.exists(), "a preview changes nothing"
    operator.post(address)
    assert Gpu.objects.filter(node__cluster__name="hpc").count() == 32


def test_a_shared_folder_that_is_changed_is_remembered_and_told(connection, personas):
    operator, first = personas.client("operator"), connection["folder"]
    second = os.path.join(os.path.dirname(first), "second")
    os.makedirs(second, exist_ok=True)
    operator.post(reverse("cluster_add"), connection | {"keep": "1"})
    address = reverse("cluster_add") + "?cluster=hpc"
    said = f"Logs and checkpoints of earlier jobs stay in {first}: keep it mounted, or move them and leave a link."

    changed = operator.post(address, connection | {"folder": second, "keep": "1"}, follow=True).content.decode()
    assert said in changed
    assert SlurmCluster.objects.get().former_folders == [first]
    assert f"<code>{first}</code>" in operator.get(address).content.decode()
    same = operator.post(address, connection | {"folder": f"{second}/", "keep": "1"}, follow=True).content.decode()
    assert "earlier jobs" not in same
    operator.post(address, connection | {"keep": "1"})
    assert SlurmCluster.objects.get().former_folders == [f"{second}/"], "what is the folder again is no former one"


@pytest.mark.parametrize(("wrong", "words"), [({"partition": "none"}, "no partition none"), ({"folder": "/none"}, "/none")])
def test_a_step_that_fails_is_shown_and_nothing_is_kept(connection, personas, wrong, words):
    page = personas.client("operator").post(reverse("cluster_add"), connection | wrong | {"keep": "1"}).content.decode()

    assert "Failed" in page
    assert words in page
    assert not Cluster.objects.exists()


def test_only_users_that_the_settings_name_run_jobs(connection, personas):
    page = personas.client("operator").post(reverse("cluster_add"), connection | {"user": "daemon", "keep": "1"})

    assert page.status_code == 422
    assert not SlurmCluster.objects.exists()
