"""The page that adds the console's own machine as a cluster."""

import pytest
from django.test import Client
from django.urls import reverse

from gpufleet.core.models import AuditEntry, User
from scheduler.models import Cluster, Gpu, InventoryImport
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


def test_what_lies_behind_a_step_that_hinders_is_not_tried():
    def broken():
        raise OSError("no such thing")
        yield

    looked = []
    first, second = Check("first", broken, "Make it."), Check("second", lambda: iter(looked), "Nothing.")

    tried = steps_tried([first], [second])

    assert [(step.name, step.result, step.told) for step in tried] == [("first", "failed", "no such thing"), ("second", "skipped", "Not tried.")]
    assert [step.result for step in steps_tried([Check("first", broken, "Make it.", needed=False)], [second])] == ["warning", "ok"]
