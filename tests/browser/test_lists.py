"""A list with hands on it: only its own region changes, the address says it all, and it works without scripts."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.harness import Site, Visitor

pytestmark = pytest.mark.browser


@pytest.fixture
def demo(sites: Callable[[str], Site]) -> Site:
    return sites("demo")


# With the moment itself in the place of its age, which grows while one looks.
ROWS = """body => {
  const copy = body.cloneNode(true);
  for (const time of copy.querySelectorAll("time")) time.replaceWith(time.dateTime);
  return [...copy.rows].map((row) => [...row.cells].map((cell) => cell.textContent.trim()));
}"""


def first_node(page: Page) -> str:
    return page.locator("table.grid tbody th a").first.inner_text()


def test_sorting_filtering_and_paging_change_the_region_alone(demo: Site, browser: Browser):
    visitor: Visitor = demo.visit(browser, "root")
    visitor.open("/gpus/?size=25")
    page = visitor.page
    page.evaluate("window.sameDocument = true")

    page.get_by_role("link", name="Memory").click()
    expect(page.locator("th[aria-sort=descending]")).to_have_text("Memory")
    page.get_by_label("Mode").select_option("mig")
    page.wait_for_url("**/gpus/?*mode=mig*")
    page.get_by_role("link", name="Next").click()
    expect(page.locator(".pager")).to_contain_text("26–")

    assert page.evaluate("window.sameDocument") is True
    address = page.url
    assert "sort=-memory" in address
    assert "health=" not in address, "fields that say nothing stay out of the address"
    shown = page.locator("table.grid tbody").evaluate(ROWS)
    visitor.open(address.removeprefix(demo.origin))
    assert page.locator("table.grid tbody").evaluate(ROWS) == shown
    assert visitor.axe() == []
    assert visitor.watch.faults == []


def test_going_back_shows_the_list_as_it_was(demo: Site, browser: Browser):
    visitor = demo.visit(browser, "root")
    visitor.open("/nodes/?size=25")
    before = first_node(visitor.page)
    visitor.page.get_by_role("link", name="Next").click()
    expect(visitor.page.locator("table.grid tbody th a").first).not_to_have_text(before)

    visitor.page.go_back()

    expect(visitor.page.locator("table.grid tbody th a").first).to_have_text(before)


def test_a_list_works_without_scripts(demo: Site, browser: Browser):
    visitor = demo.visit(browser, "root", java_script_enabled=False)
    visitor.open("/nodes/?size=25")
    page = visitor.page
    page.locator("select[name=spare]").select_option("no")
    page.get_by_role("button", name="Apply").click()
    page.wait_for_url("**spare=no**")
    expect(page.locator(".pager")).to_contain_text("filtered")
    page.get_by_role("link", name="Clear filters").click()
    expect(page.locator(".pager")).not_to_contain_text("filtered")
    page.get_by_role("link", name="Next").click()
    expect(page.locator(".pager")).to_contain_text("26–")


def test_a_filter_offers_what_it_could_be_and_a_rare_one_waits_behind_a_button(demo: Site, browser: Browser):
    visitor: Visitor = demo.visit(browser, "root")
    visitor.open("/jobs/?size=25")
    page = visitor.page

    page.get_by_label("Labels").fill("work")
    expect(page.locator("#suggested-label option[value='workload']")).to_be_attached()
    page.get_by_label("Labels").fill("workload")
    page.get_by_label("Labels").press("Enter")
    page.wait_for_url("**/jobs/?*label=workload*")
    expect(page.get_by_label("Cost centre")).to_be_hidden()
    page.get_by_text("More filters").click()
    page.get_by_label("Cost centre").fill("nobody")
    page.get_by_label("Cost centre").press("Enter")
    page.wait_for_url("**cost_centre=nobody*")
    expect(page.locator("#table-jobs")).to_contain_text("No job matches these filters.")
    expect(page.get_by_label("Cost centre")).to_be_visible()
    assert [*visitor.watch.faults, *visitor.axe()] == []
