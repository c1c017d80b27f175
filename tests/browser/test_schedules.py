"""Jobs that recur, in a browser: written, run, paused, on a desk and on a phone, light and dark."""

import os

import pytest
from playwright.sync_api import expect

from gpufleet.core.models import User
from gpufleet.core.times import now
from quotas.permissions import access_for_user
from scheduler.models import Schedule
from scheduler.services.schedules.schedules import schedule_change, schedule_create, schedule_pause, schedule_remove, schedules_turn
from tests import builders
from tests.browser.harness import LiveConsole, listeners, wait_for

pytestmark = pytest.mark.browser
SHOTS = os.environ.get("TEST_SHOTS", "")  # a folder for pictures to look at
PHONE = {"viewport": {"width": 390, "height": 844}}


@pytest.mark.parametrize(("theme", "options"), [("light", {}), pytest.param("dark", PHONE, marks=pytest.mark.soak)], ids=["desk", "phone"])
def test_a_schedule_is_written_run_and_paused(sites, browser, theme, options):
    site = sites("demo")
    visitor = site.visit(browser, "sam", theme=theme, **options)
    visitor.open("/schedules/new/")
    page = visitor.page
    page.get_by_label("Name").fill("nightly")
    page.get_by_label("When").select_option("cron")
    page.get_by_label("Cron expression").fill("61 2 * * *")
    page.get_by_label("The job, as YAML").fill("quota: veridia/research/language/instruct\ngpus: 1\n")
    visitor.watch.allowed_statuses = (422,)
    page.get_by_role("button", name="Create schedule").click()
    expect(page.get_by_text("The minute can't be 61.")).to_be_visible()
    assert visitor.axe() == []
    page.get_by_label("When").select_option("week")
    for day in ("Sat", "Sun"):
        page.get_by_label(day, exact=True).uncheck()
    page.get_by_label("Time", exact=True).fill("02:30")
    expect(page.get_by_role("status").get_by_text("30 2 * * MON-FRI")).to_be_visible()
    page.get_by_role("button", name="Create schedule").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("nightly")
    expect(page.locator("dd code")).to_have_text("30 2 * * MON-FRI")
    expect(page.locator("dd time")).to_have_count(5)
    page.get_by_role("button", name="Run now").click()
    expect(page.get_by_role("cell", name="By hand by Sam Adeyemi.")).to_be_visible()
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    assert visitor.axe() == []
    if SHOTS:
        page.screenshot(path=f"{SHOTS}/schedule-{theme}.png", full_page=True)
    visitor.open("/schedules/")
    assert visitor.axe() == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert visitor.watch.faults == []
    page.get_by_role("link", name="nightly").click()
    page.get_by_role("link", name="Remove").click()
    page.get_by_role("button", name="Remove").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Schedules")
    expect(page.get_by_role("link", name="nightly")).to_have_count(0)


PASSWORD = "correct horse battery"


def test_the_list_and_the_page_of_a_schedule_are_live(live_console: LiveConsole, browser):
    team = builders.quota("nlp", parent=builders.quota("acme"))
    builders.node("alpha", gpus=2)
    access = access_for_user(User.objects.create_superuser("root", "root@example.org", PASSWORD))
    given = {"cron": "* * * * *", "overlap": "allow", "description": {"quota": team.path, "gpus": 1}}

    def made(name: str) -> Schedule:
        return live_console.do(schedule_create, access=access, given=given | {"name": name}, now=now())

    first = made("first")
    visitor = live_console.visit(browser, "root", password=PASSWORD)
    page = visitor.page

    def opened(path: str) -> None:
        visitor.open(path)
        wait_for(page, lambda: any("schedules" in listener.topics for listener in listeners()))
        page.evaluate("window.sameDocument = true")
        page.mouse.move(0, 0)

    opened("/schedules/")
    row = page.locator(f'tr[data-key="{first.public_id}"]')
    expect(row).to_contain_text("Active")
    live_console.do(schedule_pause, access=access, schedule=first, reason="Holidays", now=now())
    expect(row).to_contain_text("Paused")
    second = made("second")
    expect(page.locator("#table-schedules tbody tr")).to_have_count(2)
    live_console.do(schedule_remove, access=access, schedule=first, reason="")
    expect(row).to_have_count(0)
    assert page.evaluate("window.sameDocument") is True

    opened(f"/schedules/{second.public_id}/")
    expect(page.get_by_text("It has not been due yet.")).to_be_visible()
    live_console.do(schedules_turn, now=second.next_due)
    expect(page.locator("#table-runs tbody tr")).to_have_count(1)
    live_console.do(schedule_change, access=access, schedule=second, given={"cron": "30 2 * * *"}, now=now())
    expect(page.locator("dd code")).to_have_text("30 2 * * *")
    assert page.evaluate("window.sameDocument") is True
    assert visitor.watch.faults == []
