"""An operator adds clusters: a real Slurm, with a step that fails first, and this machine."""

import os

import pytest
from playwright.sync_api import expect

from gpufleet.core.models import User
from scheduler.models import Cluster, Gpu, SlurmCluster
from tests.browser.harness import THEMES, LiveConsole, Visitor
from tests.scheduler.backends.slurm_site import slurm  # noqa: F401 - a fixture

pytestmark = pytest.mark.browser
PASSWORD = "correct horse battery"
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 720}


def entered(console: LiveConsole, browser) -> Visitor:
    User.objects.create_superuser("root", "root@example.org", PASSWORD)
    visitor = console.visit(browser, "root", password=PASSWORD)
    visitor.watch.allowed_statuses = (422,)
    return visitor


def seen_everywhere(visitor: Visitor) -> None:
    for theme in THEMES:
        for size in (PHONE, DESK):
            visitor.see(theme=theme, size=size)
            assert visitor.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"
            assert visitor.axe() == []


@pytest.mark.slurm
def test_a_slurm_cluster_is_added_once_each_step_passes(live_console: LiveConsole, browser, slurm, settings, monkeypatch):  # noqa: F811
    shared = slurm.dir / "shared"
    shared.mkdir(exist_ok=True)
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    settings.SLURM_USERS = ("nobody",) if os.getuid() == 0 else ()
    visitor = entered(live_console, browser)
    page = visitor.page
    visitor.open("/clusters/")
    page.get_by_role("link", name="Add a cluster").last.click()
    expect(page.get_by_role("heading", name="Add a cluster")).to_be_visible()
    first = page.get_by_label("Name").bounding_box()
    assert first is not None
    assert first["y"] < DESK["height"], "the first field is above the fold"
    seen_everywhere(visitor)

    page.get_by_label("Name").fill("hpc")
    page.get_by_label("Shared folder").fill(str(shared))
    page.get_by_label("Partition").fill("gpu")
    page.get_by_role("button", name="Test and add").click()
    expect(page.get_by_role("alert")).to_have_text("1 step failed; nothing was changed.")
    expect(page.locator("#id_partition_error")).to_have_text("There is no partition gpu; Slurm has main.")
    expect(page.get_by_role("listitem").filter(has_text="Submission")).to_contain_text("Skipped")
    seen_everywhere(visitor)
    assert not Cluster.objects.exists()

    page.get_by_label("Partition").fill("main")
    page.get_by_role("button", name="Test only").click()
    expect(page.get_by_text("No step failed; nothing was changed.")).to_be_visible()
    seen_everywhere(visitor)
    page.get_by_role("button", name="Test and add").click()
    page.get_by_label("Type of “h100”").fill("H100-SXM-80GB")
    page.get_by_label("Memory of “h100”").fill("81559")
    page.get_by_role("button", name="Preview import").click()
    assert not Gpu.objects.exists()
    page.get_by_role("button", name="Apply these changes").click()
    expect(page.get_by_role("row").filter(has_text="hpc")).to_be_visible()
    assert Gpu.objects.filter(node__cluster__name="hpc").count() == 32
    assert SlurmCluster.objects.get().partition == "main"
    visitor.open("/clusters/hpc/")
    page.locator("summary", has_text="More").click()
    page.get_by_role("link", name="Connection").click()
    expect(page.get_by_role("heading", name="Connection of hpc")).to_be_visible()
    expect(page.get_by_label("Shared folder")).to_have_value(str(shared))
    assert visitor.watch.faults == []


def test_this_machine_is_added_once_each_step_passes(live_console: LiveConsole, browser, settings, tmp_path):
    settings.ALLOWED_HOSTS, settings.DATA_DIR, settings.VIRTUAL_GPUS = ["127.0.0.1"], tmp_path, 2
    visitor = entered(live_console, browser)
    page = visitor.page
    visitor.open("/inventory/cluster/")
    page.get_by_role("link", name="This machine").click()
    page.get_by_role("button", name="Test and preview").click()
    expect(page.get_by_role("alert")).to_contain_text("failed; nothing was changed.")
    expect(page.get_by_text("What to do: Set GPUFLEET_LOCAL=on")).to_be_visible()
    seen_everywhere(visitor)

    settings.LOCAL = {**settings.LOCAL, "LOCAL": True, "LOCAL_SAME_USER": True}
    page.get_by_role("button", name="Test and preview").click()
    expect(page.get_by_role("button", name="Apply these changes")).to_be_visible()
    assert not Cluster.objects.exists()
    page.get_by_role("button", name="Apply these changes").click()
    expect(page.get_by_role("row").filter(has_text="local")).to_be_visible()
    assert Cluster.objects.get().backend == "local"
    assert visitor.watch.faults == []
