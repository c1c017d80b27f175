"""The page that adds the console's own machine as a cluster."""

import os
from pathlib import Path
from threading import Event

import pynvml
import pytest
from django.test import Client
from django.urls import reverse

from gpufleet.core.models import AuditEntry, User
from scheduler.backends.base import BackendError
from scheduler.models import Cluster, Gpu, InventoryImport
from scheduler.services.hardware import checks
from scheduler.services.hardware.checks import Check, steps_tried
from tests import builders

pytestmark = pytest.mark.django_db
ADD = {"cluster": "here", "keep": "1"}


@pytest.fixture
def alone(settings, tmp_path) -> Client:
    """The one person of a console that only this machine reaches, whose jobs run as its own user."""
    settings.LOCAL = {**settings.LOCAL, "LOCAL": True, "LOCAL_SAME_USER": True}
    settings.ALLOWED_HOSTS, settings.DATA_DIR, settings.VIRTUAL_GPUS = ["127.0.0.1"], tmp_path, 2
    client = Client(headers={"host": "127.0.0.1"})
    client.force_login(User.objects.create_superuser("root", "root@example.org", "correct horse battery"))
    return client


def steps(page) -> dict[str, str]:
    return {step.name: step.result for step in page.context["steps"]}


def test_each_step_is_tested_and_the_cluster_is_there_once_its_preview_is_applied(alone):
    tried = alone.post(reverse("cluster_add_local"), {"cluster": "here"})
    assert tried.status_code == 200
    assert {name: result for name, result in steps(tried).items() if name != "GPUs"} == {"local jobs": "ok", "user": "ok", "folders": "ok"}

    preview = alone.post(reverse("cluster_add_local"), ADD)
    assert preview.url == reverse("inventory_preview", args=[InventoryImport.objects.get().public_id])
    assert not Cluster.objects.exists()
    alone.post(preview.url)

    assert Cluster.objects.get(name="here").backend == "local"
    assert Gpu.objects.filter(node__cluster__name="here").exists()
    assert AuditEntry.objects.filter(action="inventory.import").exists()
    again = alone.post(reverse("cluster_add_local"), ADD)
    assert again.url == reverse("cluster", args=["here"])


def test_the_same_over_http(alone, settings):
    address = "/api/v1/clusters/here/local"
    tried = alone.post(f"{address}?dry_run=true").json()
    assert (tried["id"], tried["passes"], [step["name"] for step in tried["steps"]]) == (None, True, ["local jobs", "user", "folders", "GPUs"])
    assert not InventoryImport.objects.exists()

    preview = alone.post(address).json()
    assert (preview["passes"], preview["id"], Cluster.objects.exists()) == (True, InventoryImport.objects.get().public_id, False)
    assert alone.post(f"/api/v1/inventory/imports/{preview['id']}/apply").status_code == 200
    assert Cluster.objects.get(name="here").backend == "local"

    settings.LOCAL = {**settings.LOCAL, "LOCAL": False}
    refused = alone.post(address)
    assert (refused.status_code, refused.json()["errors"][0]["path"]) == (422, "")
    assert "local jobs: " in refused.json()["errors"][0]["message"]
    assert "Set GPUFLEET_LOCAL=on" in refused.json()["errors"][0]["message"]
    builders.cluster("other", backend="simulated")
    for name in ("other", "no name"):
        assert [error["path"] for error in alone.post(f"/api/v1/clusters/{name}/local?dry_run=true").json()["errors"]] == ["cluster"]


@pytest.mark.parametrize(
    ("wrong", "step", "words"),
    [
        ({"LOCAL": False}, "local jobs", "Set GPUFLEET_LOCAL=on"),
        ({"LOCAL_SAME_USER": False}, "user", "Local jobs need users of their own"),
        ({"LOCAL_SAME_USER": False, "LOCAL_USER": "nobody-here"}, "user", "There is no user nobody-here on this machine"),
        ({"LOCAL_CHECKPOINTS": "/proc/1/checkpoints"}, "folders", "The console cannot write to /proc/1"),
    ],
)
def test_a_step_that_fails_is_named_and_nothing_is_stored(alone, settings, wrong, step, words):
    settings.LOCAL = {**settings.LOCAL, **wrong}

    page = alone.post(reverse("cluster_add_local"), ADD)

    assert page.status_code == 422
    assert [name for name, result in steps(page).items() if result == "failed"] == [step]
    assert words in page.content.decode()
    assert not Cluster.objects.exists()
    assert not InventoryImport.objects.exists()


def test_a_name_of_another_kind_of_cluster_is_refused(alone):
    builders.cluster("here", backend="simulated")

    page = alone.post(reverse("cluster_add_local"), ADD)

    assert page.context["form"].errors == {"cluster": ["Cluster here runs on the back-end simulated."]}


@pytest.mark.skipif(os.getuid() != 0, reason="Only root starts jobs as other users.")
@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("rules", [{"LOCAL_USER": "nobody"}, {"LOCAL_UIDS": (71000, 71009)}])
def test_a_folder_that_jobs_cannot_enter_is_told_before_one_is_refused(alone, settings, tmp_path, rules, made):
    closed, opened = tmp_path / "closed", Path("/")
    closed.mkdir(mode=0o700)
    folder = closed / "checkpoints"
    if made:
        folder.mkdir(mode=0o751)
    settings.LOCAL = {**settings.LOCAL, "LOCAL_SAME_USER": False, **rules, "LOCAL_CHECKPOINTS": str(folder)}

    page = alone.post(reverse("cluster_add_local"), ADD)

    assert [name for name, result in steps(page).items() if result == "failed"] == ["folders"]
    assert "Jobs of another user cannot enter" in page.content.decode()
    settings.LOCAL = {**settings.LOCAL, "LOCAL_CHECKPOINTS": str(opened)}
    assert steps(alone.post(reverse("cluster_add_local"), {"cluster": "here"}))["folders"] == "ok"


def test_a_driver_that_fails_is_told_at_its_step(alone, monkeypatch):
    def lost():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    for name, stands_in in (("nvmlInit", lambda: None), ("nvmlShutdown", lambda: None), ("nvmlDeviceGetCount", lost)):
        monkeypatch.setattr(pynvml, name, stands_in)

    page = alone.post(reverse("cluster_add_local"), {"cluster": "here"})

    assert (page.status_code, steps(page)["GPUs"]) == (422, "failed")
    assert "GPU is lost" in page.content.decode()


def test_a_step_that_breaks_is_told_and_logged(caplog):
    def broken():
        yield "something"
        raise KeyError("a field")

    (step,) = steps_tried([Check("first", broken, "Make it.")])

    assert (step.result, step.seen, step.told) == ("failed", "something", "This step could not be carried out: KeyError: 'a field'")
    assert "the step first could not be carried out" in caplog.text


def test_a_file_system_that_hangs_is_told(monkeypatch):
    monkeypatch.setattr(checks, "PATIENCE", 0.05)
    comes_back = Event()

    with pytest.raises(BackendError, match="/far does not answer"):
        checks.in_time("/far", comes_back.wait)
    comes_back.set()
    assert checks.in_time("/far", lambda: 1) == 1


def test_what_lies_behind_a_step_that_hinders_is_not_tried():
    def broken():
        raise OSError("no such thing")
        yield

    looked = []
    first, second = Check("first", broken, "Make it."), Check("second", lambda: iter(looked), "Nothing.")

    tried = steps_tried([first], [second])

    assert [(step.name, step.result, step.told) for step in tried] == [("first", "failed", "no such thing"), ("second", "skipped", "Not tried.")]
    assert [step.result for step in steps_tried([Check("first", broken, "Make it.", needed=False)], [second])] == ["warning", "ok"]


def test_the_address_of_the_page_before_leads_here(personas):
    operator = personas.client("operator")

    old = operator.get("/inventory/slurm/?cluster=hpc")

    assert (old.status_code, old["Location"]) == (302, f"{reverse('cluster_add')}?cluster=hpc")
    assert operator.get(old["Location"]).status_code == 200
