"""Somebody holds GPUs and computes nothing: they are found, their GPUs are reclaimed, and the work goes on later where it was saved."""

from datetime import timedelta

import pytest
from playwright.sync_api import expect

from dashboards.idle.episodes import idle_round
from gpufleet.core.models import User
from gpufleet.core.times import now
from scheduler.backends.simulated import MemoryStore, SimulatedBackend
from scheduler.models import Attempt, Cluster, Gpu, Job, JobState
from scheduler.services.loop.tick import Memory, tick_run
from tests import builders
from tests.browser.harness import LiveConsole
from tests.dashboards.signals import watched
from tests.scheduler.loop.worlds import leaf, submit

pytestmark = pytest.mark.browser
PASSWORD = "correct horse battery"


def test_the_worst_hoarder_of_the_week_is_found_and_its_gpus_are_reclaimed(live_console: LiveConsole, browser):
    for number in range(2):
        builders.node(f"n{number}", gpus=8)
    User.objects.create_superuser("root", "root@example.org", PASSWORD)
    ada, team, moment = builders.person("ada"), leaf("team", 16), now() - timedelta(hours=3)
    backends = {cluster.pk: SimulatedBackend(MemoryStore()) for cluster in Cluster.objects.all()}
    memory = Memory()

    def tick(at: object) -> None:
        live_console.do(tick_run, holder="one", now=at, backends=backends, memory=memory)

    work = {"preemptible": "yes", "estimate_s": 86_400, "work_s": 86_400, "grace_s": 10}
    saving = {"checkpoint": {"interval_s": 60, "save_s": 1, "restore_s": 1}}
    hoard = submit(team, gpus=8, at=moment, name="hoard", owner=ada, spec=work | saving)
    submit(team, gpus=1, at=moment, name="notebook", owner=builders.person("grace"), spec=work)
    for minutes in (0, 2, 4):
        tick(moment + timedelta(minutes=minutes))
    held = set(Gpu.objects.filter(placements__until__isnull=True, placements__job__isnull=False))
    assert len(held) == 9
    live_console.do(watched, dict.fromkeys(held, 0), until=now(), minutes=60)
    live_console.do(idle_round, now=now())

    visitor = live_console.visit(browser, "root", password=PASSWORD)
    page = visitor.page
    visitor.open("/idle/?sort=-wasted")
    worst = page.get_by_role("region", name="Owners with the most waste").get_by_role("row").nth(1)
    expect(worst).to_contain_text("ada")
    page.get_by_role("row").filter(has_text="hoard").get_by_role("link", name="Reclaim").click()
    expect(page.locator("main")).to_contain_text("hoard")
    expect(page.locator("main")).to_contain_text("resumes from its newest checkpoint")
    page.get_by_label("Reason").fill("Others wait for them")
    page.get_by_role("button", name="Reclaim").click()
    expect(page.get_by_text("The GPUs are being reclaimed").first).to_be_visible()
    assert visitor.axe() == []
    for seconds in (0, 20, 40, 90):
        tick(now() + timedelta(seconds=seconds))

    (saved, resumed) = Attempt.objects.filter(job=hoard).order_by("number")
    assert (saved.outcome, resumed.ended_at) == ("preempted", None)
    assert resumed.resumed_from is not None
    assert resumed.resumed_from.attempt == saved
    visitor.open(f"/jobs/{hoard.public_id}/")
    expect(page.locator("main")).to_contain_text("Running")
    assert Job.objects.get(pk=hoard.pk).state == JobState.RUNNING
    visitor.open("/activity/")
    expect(page.locator("main")).to_contain_text("hoard")
    assert visitor.watch.faults == []
