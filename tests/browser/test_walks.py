"""The daily tasks with their clicks counted, and what a page costs to load: the figures that the console promises."""

import csv
import gzip
import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from gpufleet.core.times import now
from scheduler.backends.simulated import MemoryStore, SimulatedBackend
from scheduler.models import Cluster, Gpu, Job, JobState
from scheduler.services.forecasts.forecasting import forecast_run
from scheduler.services.jobs.jobs import job_hold
from scheduler.services.loop.tick import Memory, tick_run
from tests import builders
from tests.browser.harness import LiveConsole, Site, Visitor
from tests.dashboards.health_worlds import looks
from tests.personas import PASSWORD, person
from tests.scheduler.loop.worlds import leaf, submit

pytestmark = pytest.mark.browser

DESK = {"width": 1440, "height": 900}
FOCUSED = "one => one === document.activeElement"
HEIGHT = "() => document.documentElement.scrollHeight"
# A running job that was evicted before waits again.
PREEMPT = """
from scheduler.models import Attempt, Job, Placement
job = Job.objects.filter(state="running").order_by("-evictions", "id").first()
Job.objects.filter(pk=job.pk).update(state="preempted")
Attempt.objects.filter(job=job, ended_at__isnull=True).update(ended_at=job.state_since, outcome="preempted")
Placement.objects.filter(job=job, until__isnull=True).update(until=job.state_since)
print(job.public_id)
"""
# Pages with a chart and without, as most people open them. In its first minutes a month has no costs, and no chart of them.
WITH_CHART = ("/", "/gap/", "/cost/?month=last", "/clusters/aurora/")
WITHOUT = ("/home/team/", "/jobs/", "/nodes/", "/gpus/", "/fleet/", "/quotas/", "/jobs/new/", "/jobs/queue/", "/activity/")


@pytest.fixture
def demo(sites: Callable[[str], Site]) -> Site:
    return sites("demo")


class Clicks:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, place: Locator) -> None:
        self.count += 1
        place.click()


@pytest.mark.parametrize("address", ["/", "/home/on-call/"])
def test_the_owner_of_idle_gpus_is_notified_in_two_clicks(demo: Site, browser: Browser, address: str):
    """As the operator, from Home and from the page of who is on call."""
    visitor, click = demo.visit(browser, "oona", viewport=DESK), Clicks()
    page = visitor.page
    visitor.open(address)
    holder = page.get_by_role("region", name="Idle allocations").locator("tbody tr").first
    name = holder.locator("th a").inner_text()
    click(holder.get_by_role("link", name="Notify"))
    expect(page.get_by_role("main")).to_contain_text(name)
    click(page.get_by_role("main").get_by_role("button", name=re.compile("Notify|Send")))
    expect(page.get_by_text("notified", exact=False).first).to_be_visible()
    assert click.count == 2
    assert visitor.watch.faults == []


def test_a_node_is_drained_in_three_clicks_with_the_jobs_named_before(live_console: LiveConsole, browser: Browser):
    node = builders.node("n1", gpus=2)
    job = builders.placement(of=builders.job("llama-pretrain", state=JobState.RUNNING), on=node.gpus.first()).job
    root = person("root", superuser=True)
    root.set_password(PASSWORD)
    root.save()
    visitor, click = live_console.visit(browser, "root", password=PASSWORD, viewport=DESK), Clicks()
    page = visitor.page
    visitor.open("/nodes/")
    click(page.locator("table.grid tbody th a", has_text="n1"))
    click(page.locator("#sheet").get_by_role("link", name="Drain"))
    expect(page.locator("#change-preview")).to_contain_text(job.name)
    page.get_by_label("Reason").fill("new driver")
    click(page.get_by_role("button", name="Drain", exact=True))
    expect(page.get_by_role("main")).to_contain_text("Draining")
    assert click.count == 3
    node.refresh_from_db()
    assert (node.health, node.health_since <= now()) == ("draining", True)
    assert visitor.watch.faults == []


@pytest.mark.parametrize("width", [1440, pytest.param(390, marks=pytest.mark.soak)])
def test_another_health_is_planned_and_called_off_in_the_list_of_plans(live_console: LiveConsole, browser: Browser, width: int):
    node, begins = builders.node("n1", gpus=2), now() + timedelta(hours=3)
    builders.placement(of=builders.job("llama-pretrain", state=JobState.RUNNING), on=node.gpus.first())
    root = person("root", superuser=True)
    root.set_password(PASSWORD)
    root.save()
    visitor = live_console.visit(browser, "root", password=PASSWORD, viewport={"width": width, "height": 900})
    page = visitor.page
    visitor.open(f"/nodes/{node.public_id}/health/?to=down")
    page.get_by_label("Begins (UTC)").fill(f"{begins:%Y-%m-%dT%H:%M}")
    page.get_by_label("Reason").fill("power work")
    expect(page.locator("#change-preview")).to_contain_text(f"It begins at {begins:%Y-%m-%d %H:%M} UTC and is checked again then.")
    assert visitor.axe() == []
    page.get_by_role("button", name="Schedule change to down").click()
    expect(page.get_by_role("region", name="Planned change")).to_contain_text("Mark down.")
    node.refresh_from_db()
    assert node.health == "healthy"
    assert visitor.axe() == []

    visitor.open("/nodes/")
    page.get_by_role("link", name="Planned (1)").click()
    expect(page.get_by_role("main")).to_contain_text("power work")
    assert visitor.axe() == []
    page.get_by_role("button", name="Call off the planned change of n1").click()
    expect(page.get_by_role("main")).to_contain_text("No change is planned.")
    page.get_by_role("button", name="Undo", exact=True).click()
    expect(page.get_by_role("region", name="Planned change")).to_contain_text("Mark down.")
    assert visitor.watch.faults == []


def test_a_node_is_drained_by_keyboard_alone(live_console: LiveConsole, browser: Browser):
    node = builders.node("n1", gpus=2)
    job = builders.placement(of=builders.job("llama-pretrain", state=JobState.RUNNING), on=node.gpus.first()).job
    root = person("root", superuser=True)
    root.set_password(PASSWORD)
    root.save()
    visitor = live_console.visit(browser, "root", password=PASSWORD, viewport=DESK)
    page, keys = visitor.page, visitor.page.keyboard
    visitor.open("/jobs/")
    keys.press("g")
    keys.press("n")
    page.wait_for_url("**/nodes/")
    page.wait_for_load_state()
    keys.press("j")
    keys.press("Enter")
    press(page, page.locator("#sheet").get_by_role("link", name="Drain"))
    expect(page.locator("#change-preview")).to_contain_text(job.name)
    tab_to(page, page.get_by_label("Reason"))
    keys.type("new driver")
    press(page, page.get_by_role("button", name="Drain", exact=True))
    expect(page.get_by_role("main")).to_contain_text("Draining")
    press(page, page.get_by_role("button", name="Undo", exact=True))
    expect(page.get_by_text("Undone: n1 is healthy again.")).to_be_visible()
    node.refresh_from_db()
    assert node.health == "healthy"
    assert visitor.watch.faults == []


@pytest.mark.parametrize("address", ["/", "/home/on-call/"])
def test_the_owner_of_idle_gpus_is_notified_by_keyboard_alone(demo: Site, browser: Browser, address: str):
    visitor = demo.visit(browser, "oona", viewport=DESK)
    page = visitor.page
    visitor.open(address)
    holder = page.get_by_role("region", name="Idle allocations").locator("tbody tr").first
    name = holder.locator("th a").inner_text()
    for _ in range(4):
        if not holder.locator("a").first.evaluate(FOCUSED):
            page.keyboard.press("Shift+J")
    press(page, holder.get_by_role("link", name="Notify"), most=5)
    expect(page.get_by_role("main")).to_contain_text(name)
    skip(page)
    press(page, page.get_by_role("main").get_by_role("button", name=re.compile("Notify|Send")), most=8)
    expect(page.get_by_text("notified", exact=False).first).to_be_visible()
    assert visitor.watch.faults == []


@pytest.fixture
def hot(live_console: LiveConsole) -> Iterator[Gpu]:
    """The one GPU of 16 whose clocks are held down by heat."""
    for name in ("n1", "n2"):
        builders.node(name, gpus=8)
    root = person("root", superuser=True)
    root.set_password(PASSWORD)
    root.save()
    found = Gpu.objects.select_related("node").get(node__name="n2", index=5)
    # Read on for a while, so that the readings are new whenever a page asks.
    live_console.do(looks, list(Gpu.objects.order_by("pk")), {"thermal": {found: 1}}, start=now(), end=now() + timedelta(minutes=10))
    yield found


def is_the_hot_one(page: Page, gpu: Gpu) -> None:
    rows = page.locator("table.grid tbody tr")
    expect(rows).to_have_count(1)
    expect(rows.locator("th a")).to_have_attribute("href", f"/gpus/{gpu.public_id}/")
    expect(rows).to_contain_text(gpu.node.name)
    expect(rows.get_by_text("Throttling")).to_be_visible()


def test_a_throttling_gpu_is_found_in_one_click(live_console: LiveConsole, browser: Browser, hot: Gpu):
    visitor, click = live_console.visit(browser, "root", password=PASSWORD, viewport=DESK), Clicks()
    page = visitor.page
    visitor.open("/gpus/")
    expect(page.locator("table.grid tbody tr")).to_have_count(16)
    for column in ("Utilization", "Temperature"):
        expect(page.get_by_role("columnheader", name=column)).to_be_visible()
    tab = page.get_by_role("navigation", name="Which GPUs").get_by_role("link", name="Throttling")
    expect(tab).to_contain_text("1")
    click(tab)
    page.wait_for_url("**condition=throttling*")
    is_the_hot_one(page, hot)
    assert click.count == 1
    assert visitor.watch.faults == []


def test_a_throttling_gpu_is_found_by_keyboard_alone(live_console: LiveConsole, browser: Browser, hot: Gpu):
    visitor = live_console.visit(browser, "root", password=PASSWORD, viewport=DESK)
    page = visitor.page
    visitor.open("/")
    for key in ("g", str(page.locator('#places a[href="/gpus/"]').get_attribute("data-key"))):
        page.keyboard.press(key)
    page.wait_for_url("**/gpus/")
    page.wait_for_load_state()
    skip(page)
    press(page, page.get_by_role("navigation", name="Which GPUs").get_by_role("link", name="Throttling"), most=8)
    page.wait_for_url("**condition=throttling*")
    page.wait_for_load_state()
    expect(page.get_by_role("link", name="Remove filter Condition Throttling")).to_be_visible()
    is_the_hot_one(page, hot)
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator("#sheet h2").first).to_contain_text(f"GPU {hot.index}")
    expect(page.locator("#sheet")).to_contain_text(hot.node.name)
    assert visitor.watch.faults == []


def test_a_job_with_a_deadline_says_whether_it_is_met(live_console: LiveConsole, browser: Browser):
    """The fleet is busy for two hours: an hour's work is done in five hours, and not in two and a half."""
    builders.node("n1", gpus=8)
    team, began = leaf("research", 8), now()
    root = person("root", superuser=True)
    root.set_password(PASSWORD)
    root.save()
    backends = {cluster.pk: SimulatedBackend(MemoryStore()) for cluster in Cluster.objects.all()}
    memory = Memory()

    def look_on(at: datetime) -> None:
        live_console.do(tick_run, holder="one", now=at, backends=backends, memory=memory)
        live_console.do(forecast_run, holder="one", now=at, force=True)

    submit(team, gpus=8, at=began, name="busy", estimate_seconds=7200, spec={"work_s": 7200})
    look_on(began)
    visitor = live_console.visit(browser, "root", password=PASSWORD, viewport=DESK)
    page = visitor.page
    for name, hours, told in (("in-time", 5, "will be met"), ("late", 2.5, "will be missed")):
        deadline = began + timedelta(hours=hours)
        visitor.open("/jobs/new/")
        page.get_by_label("Name", exact=True).fill(name)
        page.get_by_label("GPUs of each worker").fill("8")
        page.get_by_label("Time limit", exact=True).fill("1h")
        page.get_by_role("heading", name="When, and after what").click()
        page.get_by_label("Deadline (UTC)").fill(f"{deadline:%Y-%m-%dT%H:%M}")
        page.get_by_role("button", name="Submit", exact=True).click()
        expect(page.locator("h1")).to_have_text(name)
        why = page.locator("[data-part=why]")
        expect(why).to_contain_text(f"Deadline {deadline:%Y-%m-%d %H:%M} UTC: no start is predicted yet.")
        look_on(now())
        page.reload()
        expect(why).to_contain_text(f"Deadline {deadline:%Y-%m-%d %H:%M} UTC: {told}. Predicted end")
        live_console.do(job_hold, job=Job.objects.get(name=name), now=now())
    assert [*visitor.watch.faults, *visitor.axe()] == []


def skip(page: Page) -> None:
    """To the content, by the first link of each page."""
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")


def press(page: Page, place: Locator, most: int = 60) -> None:
    tab_to(page, place, most)
    page.keyboard.press("Enter")


def tab_to(page: Page, place: Locator, most: int = 60) -> None:
    """Go there by the Tab key; where that leads past it, or away from the page, it is not found."""
    expect(place).to_be_visible()
    for _ in range(most + 1):
        if place.evaluate(FOCUSED):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{most} times Tab did not lead to {place}.")


def test_the_page_of_a_waiting_job_is_two_screens(demo: Site, browser: Browser):
    visitor: Visitor = demo.visit(browser, "root", viewport=DESK)
    visitor.open("/jobs/?phase=waiting&size=25")
    links = [link.get_attribute("href") for link in visitor.page.locator("table.grid tbody th a").all()]
    heights = {}
    for link in links[:6]:
        visitor.open(str(link))
        expect(visitor.page.get_by_role("heading", name="Why it waits")).to_be_visible()
        heights[link] = visitor.page.evaluate(HEIGHT)
    # One that ran before has attempts, preemptions and a history as well, all folded.
    before = demo.manage.run("shell", "--verbosity", "0", "-c", PREEMPT).stdout.strip()
    visitor.open(f"/jobs/{before}/")
    expect(visitor.page.get_by_role("heading", name="Attempts")).to_be_visible()
    heights[before] = visitor.page.evaluate(HEIGHT)
    assert heights and {link: height for link, height in heights.items() if height > 1800} == {}


def test_scripts_of_a_page_are_small(demo: Site, browser: Browser):
    """As a browser gets them compressed: 60 kB, and 450 kB with the charts."""
    visitor = demo.visit(browser, "root", viewport=DESK)
    sizes: dict[str, dict[str, int]] = {}
    most: dict[str, int] = {}
    weights: dict[str, int] = {}
    here = ""

    def weigh(response) -> None:
        if response.request.resource_type == "script":
            if response.url not in weights:
                weights[response.url] = len(gzip.compress(response.body(), 6))
            sizes[here][response.url] = weights[response.url]

    visitor.page.on("response", weigh)
    for here in (*WITH_CHART, *WITHOUT):
        sizes[here] = {}
        visitor.open(here)
        if here in WITH_CHART:
            expect(visitor.page.locator(".js-plotly-plot").first).to_be_attached()
        most[here] = 450_000 if visitor.page.locator("[data-plot]").count() else 60_000
    told = {address: sum(found.values()) for address, found in sizes.items()}
    assert {address: size for address, size in told.items() if not 0 < size <= most[address]} == {}
    assert sum(limit == 60_000 for limit in most.values()) >= len(WITHOUT) - 1, (
        "of these Home alone has a chart, which is drawn when it comes into view"
    )


def test_a_chart_is_saved_as_a_picture_and_as_figures(demo: Site, browser: Browser):
    visitor = demo.visit(browser, "root", viewport=DESK)
    page = visitor.page
    visitor.open("/cost/?month=last")
    chart = page.locator("[data-plot]").first
    expect(chart.locator(".js-plotly-plot")).to_be_attached()
    files = {}
    for name, role in (("PNG", "button"), ("CSV", "link")):
        with page.expect_download() as saved:
            chart.get_by_role(role, name=name).click()
        files[name] = saved.value.path().read_bytes()
    assert files["PNG"].startswith(b"\x89PNG") and len(files["PNG"]) > 5_000
    rows = list(csv.reader(files["CSV"].decode().splitlines()))
    assert len(rows) > 2 and {len(row) for row in rows} == {len(rows[0])}
    assert all(float(cell) >= 0 for cell in rows[1][1:] if cell not in ("", "–"))
    assert visitor.watch.faults == []
