"""Reservations in a browser: drawn by mouse and by keyboard, seen to displace a job, and seen to be kept in time."""

from datetime import timedelta

import pytest
from playwright.sync_api import expect

from gpufleet.core.models import User
from gpufleet.core.times import now
from quotas.models import Reservation
from scheduler.backends.simulated import MemoryStore, SimulatedBackend
from scheduler.models import Cluster, JobState
from scheduler.services.loop.tick import Memory, tick_run
from tests import builders
from tests.browser.harness import LiveConsole
from tests.scheduler.loop.worlds import leaf, state, submit

pytestmark = pytest.mark.browser
PASSWORD = "correct horse battery"
HOUR_HEIGHT, HEAD, GUTTER, DAY_WIDTH = 28, 26, 48, 140


def world() -> None:
    for number in range(5):
        builders.node(f"n{number}", gpus=8)
    leaf("research")
    User.objects.create_superuser("root", "root@example.org", PASSWORD)


def test_32_gpus_next_tuesday_are_reserved_in_five_clicks(live_console: LiveConsole, browser):
    world()
    visitor = live_console.visit(browser, "root", password=PASSWORD)
    page = visitor.page
    visitor.open("/reservations/")
    page.get_by_role("link", name="Later").click()  # 1
    expect(page.get_by_text("No reservations in this week.")).to_be_visible()
    box = page.locator("[data-calendar]").bounding_box()
    assert box is not None
    scale = box["width"] / (GUTTER + 7 * DAY_WIDTH)
    x = box["x"] + scale * (GUTTER + 1.5 * DAY_WIDTH)

    def y(hour: float) -> float:
        return box["y"] + scale * (HEAD + hour * HOUR_HEIGHT)

    page.mouse.move(x, y(9.1))
    page.mouse.down()  # 2
    page.mouse.move(x, y(11), steps=4)
    page.mouse.move(x, y(12), steps=4)
    page.mouse.up()
    expect(page.get_by_role("heading", level=1)).to_have_text("New reservation")
    page.get_by_label("How many").click()  # 3
    page.keyboard.type("32")
    page.get_by_role("button", name="Reserve").click()  # 4
    expect(page.get_by_role("heading", level=1)).to_have_text("Reservation")
    found = Reservation.objects.get()

    assert (found.gpus_milli, found.starts_at.isoweekday(), found.starts_at.hour) == (32_000, 2, 9)
    assert found.ends_at is not None and found.ends_at.hour == 12
    assert found.starts_at > now()
    assert visitor.axe() == []

    # In the timeline it is dragged to the next day; what that comes to is shown at once.
    visitor.open("/reservations/timeline/")
    window = page.locator("[data-timeline] .window rect").bounding_box()
    drawing = page.locator("[data-timeline]").bounding_box()
    assert window is not None and drawing is not None
    day = (drawing["width"] - 150 * drawing["width"] / 980) / 14
    x, y = window["x"] + window["width"] / 2, window["y"] + window["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + day / 2, y, steps=3)
    page.mouse.move(x + day, y, steps=3)
    page.mouse.up()
    expect(page.get_by_label("Start")).to_have_value(f"{found.starts_at + timedelta(days=1):%Y-%m-%dT%H:%M}")
    expect(page.get_by_role("region", name="Capacity")).to_contain_text("Healthy")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Reservation")
    moved = Reservation.objects.get()
    assert moved.ends_at is not None
    assert (moved.starts_at - found.starts_at, moved.ends_at - found.ends_at) == (timedelta(days=1), timedelta(days=1))
    page.get_by_role("button", name="Undo", exact=True).click()
    expect(page.get_by_text("Undone: Reservation is as before.")).to_be_visible()
    back = Reservation.objects.get()
    assert (back.starts_at, back.ends_at, back.state) == (found.starts_at, found.ends_at, "approved")
    assert visitor.watch.faults == []


def test_by_keyboard_the_form_opens_with_the_hours_that_were_chosen(live_console: LiveConsole, browser):
    world()
    visitor = live_console.visit(browser, "root", password=PASSWORD)
    page = visitor.page
    visitor.open("/reservations/?week=2030-01-07")
    page.locator("[data-calendar]").focus()
    for key in ("ArrowDown", "ArrowRight", "Shift+ArrowDown", "Shift+ArrowDown"):
        page.keyboard.press(key)
    expect(page.locator("[data-slot]")).to_have_text("2030-01-08 09:00 to 11:00")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Start")).to_have_value("2030-01-08T09:00")
    expect(page.get_by_label("End")).to_have_value("2030-01-08T11:00")
    visitor.open("/reservations/timeline/?week=2030-01-07")
    page.locator("[data-timeline]").focus()
    for key in ("ArrowDown", "ArrowRight", "Shift+ArrowRight"):
        page.keyboard.press(key)
    expect(page.locator("[data-slot]")).to_contain_text("2030-01-07 10:00 to 2030-01-07 14:00")
    assert visitor.axe() == []
    page.keyboard.press("Enter")
    expect(page.get_by_label("Start")).to_have_value("2030-01-07T10:00")
    expect(page.get_by_label("End")).to_have_value("2030-01-07T14:00")
    assert visitor.axe() == []
    # On from there without a mouse, to the reservation itself. Beyond two years it is refused at its field, and the form stays.
    for _ in range(60):
        if page.evaluate("document.activeElement.name") == "amount":
            break
        page.keyboard.press("Tab")
    expect(page.get_by_label("How many")).to_be_focused()
    page.keyboard.type("8")
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_contain_text("Start within two years from now.")
    soon = now().replace(hour=10, minute=0) + timedelta(days=3)
    for label, at in (("Start", soon), ("End", soon + timedelta(hours=4))):
        page.get_by_label(label).fill(f"{at:%Y-%m-%dT%H:%M}")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Reservation")
    assert Reservation.objects.get().gpus_milli == 8_000


def test_the_job_that_must_leave_is_shown_first_and_leaves_in_time(live_console: LiveConsole, browser):
    world()
    batch = leaf("batch")
    moment = now() - timedelta(hours=1)
    backends = {cluster.pk: SimulatedBackend(MemoryStore()) for cluster in Cluster.objects.all()}
    memory = Memory()

    def tick(at: object) -> None:
        live_console.do(tick_run, holder="one", now=at, backends=backends, memory=memory)

    job = submit(batch, gpus=8, workers=5, at=moment, spec={"work_s": 90_000, "grace_s": 30})
    tick(moment)
    tick(moment + timedelta(minutes=3))
    assert state(job) == JobState.RUNNING
    visitor = live_console.visit(browser, "root", password=PASSWORD)
    page = visitor.page
    start = (now() + timedelta(minutes=30)).replace(second=0, microsecond=0)
    visitor.open(f"/reservations/new/?start={start:%Y-%m-%dT%H:%M}&end={start + timedelta(hours=1):%Y-%m-%dT%H:%M}")
    page.get_by_label("For", exact=True).select_option("acme/research")
    page.get_by_label("How many").fill("16")
    page.get_by_label("Reason").fill("Review")  # the preview follows what is typed
    expect(page.locator("#change-preview")).to_contain_text(job.name)
    expect(page.get_by_role("region", name="Capacity")).to_contain_text("Healthy")
    assert visitor.axe() == []
    page.get_by_role("button", name="Reserve").click()
    expect(page.get_by_role("region", name="Jobs affected").get_by_role("row").filter(has_text=job.name)).to_contain_text("Leaves in")
    assert not Reservation.objects.exists()
    page.get_by_role("button", name="Reserve").click()
    expect(page.get_by_text("Asked to leave")).to_have_count(1)
    tick(start - timedelta(seconds=600))
    assert state(job) == JobState.CHECKPOINTING
    tick(start - timedelta(seconds=500))
    assert state(job) == JobState.PREEMPTED
    page.reload()
    expect(page.get_by_role("heading", name="Asked to leave")).to_be_visible()
    assert visitor.axe() == []
