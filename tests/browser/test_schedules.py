"""Jobs that recur, in a browser: written, run, paused, on a desk and on a phone, light and dark."""

import os

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser
SHOTS = os.environ.get("TEST_SHOTS", "")  # a folder for pictures to look at
PHONE = {"viewport": {"width": 390, "height": 844}}


@pytest.mark.parametrize(("theme", "options"), [("light", {}), ("dark", PHONE)], ids=["desk", "phone"])
def test_a_schedule_is_written_run_and_paused(sites, browser, theme, options):
    site = sites("demo")
    visitor = site.visit(browser, "sam", theme=theme, **options)
    visitor.open("/schedules/new/")
    page = visitor.page
    page.get_by_label("Name").fill("nightly")
    page.get_by_label("When").fill("61 2 * * *")
    page.get_by_label("The job, as YAML").fill("quota: veridia/research/language/instruct\ngpus: 1\n")
    visitor.watch.allowed_statuses = (422,)
    page.get_by_role("button", name="Create schedule").click()
    expect(page.get_by_text("The minute can't be 61.")).to_be_visible()
    assert visitor.axe() == []
    page.get_by_label("When").fill("30 2 * * MON-FRI")
    page.get_by_role("button", name="Create schedule").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("nightly")
    expect(page.locator("dd time")).to_have_count(5)
    page.get_by_role("button", name="Run now").click()
    expect(page.get_by_role("cell", name="By hand by Sam Adeyemi.")).to_be_visible()
    page.get_by_role("button", name="Pause").click()
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
    expect(page.get_by_role("link", name="nightly")).to_have_count(0)
    site.close_windows()
