"""A gang of 64 GPUs that can't start though 96 are free: an operator sees why, reads what a defragmentation would move, and applies it."""

from datetime import timedelta

import pytest
from playwright.sync_api import expect

from dashboards.fragmentation import store
from dashboards.fragmentation.snapshot import Fragments
from gpufleet.core.models import User
from gpufleet.core.times import now
from scheduler.backends.simulated import MemoryStore, SimulatedBackend
from scheduler.models import Cluster, Job, JobState
from scheduler.services.loop.tick import Memory, tick_run
from tests import builders
from tests.browser.harness import LiveConsole
from tests.scheduler.loop.worlds import leaf, submit

pytestmark = pytest.mark.browser
PASSWORD = "correct horse battery"
NODES = 24


def test_a_gang_of_64_finds_room_where_96_gpus_lie_scattered(live_console: LiveConsole, browser, settings, monkeypatch):
    monkeypatch.setattr(store, "_fragments", Fragments())
    for number in range(NODES):
        builders.node(f"n{number:02}", gpus=8)
    User.objects.create_superuser("root", "root@example.org", PASSWORD)
    team, moment = leaf("team", 8 * NODES), now() - timedelta(hours=2)
    backends = {cluster.pk: SimulatedBackend(MemoryStore()) for cluster in Cluster.objects.all()}
    memory = Memory()

    def tick(at: object) -> None:
        live_console.do(tick_run, holder="one", now=at, backends=backends, memory=memory)

    work = {"preemptible": "yes", "estimate_s": 86_400, "work_s": 86_400, "grace_s": 10, "checkpoint_s": 60}
    settings.SCHEDULER = {**settings.SCHEDULER, "PLACEMENT": "spread"}
    for number in range(NODES):
        submit(team, gpus=4, at=moment, name=f"half-{number:02}", spec=work)
    for seconds in (0, 120, 240):
        tick(moment + timedelta(seconds=seconds))
    assert Job.objects.filter(state=JobState.RUNNING).values("placements__node").distinct().count() == NODES, "half of each node is taken"
    settings.SCHEDULER = {**settings.SCHEDULER, "PLACEMENT": "pack"}
    gang = submit(team, workers=8, gpus=8, at=moment + timedelta(minutes=5), name="gang", spec=work)
    tick(now() - timedelta(seconds=90))
    assert Job.objects.get(pk=gang.pk).state == JobState.QUEUED, "it needs eight moves, and a plan may make four"
    live_console.do(store.fragmentation_turn, now=now())

    visitor = live_console.visit(browser, "root", password=PASSWORD)
    page = visitor.page
    visitor.open("/fragmentation/")
    kept_out = page.get_by_role("row").filter(has_text="8 workers × 8 GPUs")
    expect(kept_out).to_contain_text("Nodes too full")
    expect(kept_out).to_contain_text("96")
    page.get_by_role("link", name="Preview a defragmentation").click()
    affected = page.get_by_role("region", name="Jobs affected").get_by_role("row")
    expect(affected.filter(has_text="half-")).to_have_count(8)
    expect(page.locator("main")).to_contain_text("gang with 64 GPUs would start.")
    assert visitor.axe() == []
    preview = page.locator("#change-preview")
    page.get_by_label("Moves at most").fill("1")  # the preview follows what is typed
    expect(preview).to_contain_text("No job would move")
    page.get_by_label("Moves at most").fill("8")
    expect(preview).to_contain_text("gang with 64 GPUs would start.")
    page.get_by_label("Begins (UTC)").fill(f"{now() + timedelta(hours=3):%Y-%m-%dT%H:%M}")
    page.get_by_label("Reason").fill("The gang waits")
    expect(page.get_by_role("button", name="Schedule defragmentation")).to_be_visible()
    page.get_by_label("Begins (UTC)").fill("")
    page.get_by_label("Reason").focus()
    expect(preview).not_to_contain_text("It begins at")
    page.get_by_role("button", name="Defragment").click()
    expect(page.get_by_text("more may move for an hour")).to_be_visible()
    for seconds in (0, 20, 40, 60):
        tick(now() + timedelta(seconds=seconds))

    visitor.open(f"/jobs/{gang.public_id}/")
    expect(page.locator("main")).to_contain_text("Running")
    assert Job.objects.filter(name__startswith="half-", state__in=(JobState.RUNNING, JobState.STARTING)).count() == NODES
    assert visitor.watch.faults == []
