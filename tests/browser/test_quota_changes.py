"""A guarantee that is changed in the editor, read in the preview, applied, seen at the job that it reclaims, and reverted."""

import re
from dataclasses import replace
from datetime import timedelta

import pytest
from playwright.sync_api import expect

from gpufleet.core.models import User
from gpufleet.core.times import now
from gpufleet.storm.fleet import EVERYTHING
from quotas.models import QuotaChange, QuotaNode, QuotaShare
from quotas.services.nodes import node_update, node_values
from scheduler.backends.simulated import MemoryStore, SimulatedBackend
from scheduler.models import Cluster
from scheduler.services.loop.tick import Memory, tick_run
from tests import builders
from tests.browser.harness import LiveConsole
from tests.scheduler.loop.worlds import H100, leaf, submit

pytestmark = pytest.mark.browser
PASSWORD = "correct horse battery"


def test_a_guarantee_is_changed_read_applied_seen_and_reverted(live_console: LiveConsole, browser):
    for number in range(2):
        builders.node(f"n{number}", gpus=8)
    research, product = leaf("research", 8), leaf("product")
    QuotaShare.objects.create(node=QuotaNode.objects.get(parent=None), gpu_type=H100, guaranteed_milli=16_000)
    User.objects.create_superuser("root", "root@example.org", PASSWORD)
    moment = now() - timedelta(hours=3)
    backends = {cluster.pk: SimulatedBackend(MemoryStore()) for cluster in Cluster.objects.all()}
    memory = Memory()

    def tick(at: object) -> None:
        live_console.do(tick_run, holder="one", now=at, backends=backends, memory=memory)

    for number in (1, 2):
        submit(research, gpus=8, at=moment, name=f"train-{number}", spec={"preemptible": "yes", "work_s": 90_000, "grace_s": 30})
    for minutes in (0, 3):
        tick(moment + timedelta(minutes=minutes))
    submit(product, gpus=8, at=moment + timedelta(minutes=4), name="serve", spec={"preemptible": "no"})
    tick(moment + timedelta(minutes=5))
    visitor = live_console.visit(browser, "root", password=PASSWORD)
    page = visitor.page
    visitor.open("/quotas/")
    page.get_by_role("link", name="Editor").click()
    cell = page.get_by_role("button", name=f"Guaranteed {H100} of product")
    cell.focus()
    page.keyboard.press("Enter")
    page.keyboard.type("4")
    page.keyboard.press("Enter")
    expect(cell).to_have_text("4")
    page.keyboard.press("Control+z")
    expect(cell).to_have_text("0")
    expect(page.locator("[data-count]")).to_have_text("No edits")
    page.keyboard.press("Enter")
    page.keyboard.type("0,5")
    page.keyboard.press("Enter")
    expect(page.locator("input[aria-invalid=true]")).to_have_value("0,5")  # and is not read as 5
    page.keyboard.press("Escape")

    # A node that is added, moved, archived, and all of it undone: by keyboard.
    research_row, menu = page.locator(f"tr#{research.public_id}"), page.get_by_role("button", name="Add, move or archive research")
    menu.focus()
    page.keyboard.press("Delete")
    expect(research_row).to_contain_text("Archived")
    page.keyboard.press("Control+z")
    page.keyboard.press("F2")
    page.get_by_label("Name", exact=True).fill("labs")
    page.keyboard.press("Enter")
    expect(research_row).to_contain_text("Moves to acme/labs")
    page.keyboard.press("Control+z")
    expect(research_row).not_to_contain_text("Moves")
    page.get_by_role("button", name="Add, move or archive acme").focus()
    page.keyboard.press("Insert")
    page.get_by_label("Name of the new node").fill("ads")
    assert visitor.axe() == []
    page.keyboard.press("Enter")
    expect(page.get_by_role("row").filter(has_text="ads")).to_contain_text("New")
    expect(page.locator("[data-count]")).to_have_text("1 edit of 1 node")
    cell.focus()
    page.keyboard.type("8")  # a digit begins an edit
    page.keyboard.press("Enter")
    expect(page.locator("[data-count]")).to_have_text("2 edits of 2 nodes")
    assert visitor.axe() == []
    page.get_by_label("Reason").fill("Launch")

    # Somebody else changes the node meanwhile: the edits stay, and it says what at which cell.
    seen = QuotaNode.objects.get(pk=product.pk)
    live_console.do(node_update, access=EVERYTHING, node=seen, values=replace(node_values(seen), weight=3), revision=seen.revision, now=now())
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("alert")).to_contain_text("product by gpufleet: weight 1 → 3")
    expect(page.get_by_role("button", name="Weight of product")).to_have_class(re.compile("overtaken"))
    expect(page.locator("[data-count]")).to_have_text("2 edits of 2 nodes")
    assert visitor.axe() == []
    page.get_by_role("button", name="Preview").click()
    row = page.get_by_role("region", name="Jobs affected").get_by_role("row").filter(has_text="train-")
    expect(row).to_contain_text("Preempted")
    assert visitor.axe() == []
    borrower = row.get_by_role("link").inner_text()
    page.get_by_role("button", name="Apply now").click()
    expect(page.get_by_text("The change is applied.")).to_be_visible()
    for seconds in (1, 40, 90):
        tick(now() + timedelta(seconds=seconds))
    visitor.open("/jobs/")
    page.get_by_role("link", name=borrower, exact=True).click()
    expect(page.locator("main")).to_contain_text("product")

    visitor.open("/quotas/changes/")
    page.get_by_role("link", name="2 nodes: acme/ads, acme/product").click()
    page.get_by_role("button", name="Revert").click()
    page.get_by_role("button", name="Apply now").click()
    expect(page.get_by_text("The change is applied.")).to_be_visible()
    visitor.open("/quotas/changes/")
    expect(page.get_by_role("region", name="changes").get_by_role("row")).to_have_count(4)

    assert QuotaShare.objects.get(node=product, gpu_type=H100).guaranteed_milli == 0
    assert QuotaChange.objects.filter(state="applied").count() == 3
    assert [fault for fault in visitor.watch.faults if "409 for" not in fault] == []  # the edits that came too late
