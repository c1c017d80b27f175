"""A list with hands on it: only its own region changes, the address says it all, and it works without scripts."""

import re
import statistics
from collections.abc import Callable
from urllib.parse import urljoin, urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.harness import CUT_TABLES, Site, Visitor

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
    page.get_by_role("button", name="Columns").click()
    page.get_by_role("checkbox", name="Memory", exact=True).check()
    page.get_by_role("button", name="Show columns").click()
    expect(page.get_by_role("columnheader", name="Memory", exact=True)).to_be_visible()
    page.evaluate("window.sameDocument = true")

    page.get_by_role("link", name="Memory", exact=True).click()
    expect(page.locator("th[aria-sort=descending]")).to_have_text("Memory")
    page.get_by_role("button", name="Filter", exact=True).click()
    page.locator("select[name=mode]").select_option("mig")
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
    page.get_by_role("button", name="Filter", exact=True).click()
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

    page.get_by_role("button", name="Filter", exact=True).click()
    page.locator("input[name=label]").fill("work")
    expect(page.locator("#suggested-label option[value='workload']")).to_be_attached()
    page.locator("input[name=label]").fill("workload")
    page.locator("input[name=label]").press("Enter")
    page.wait_for_url("**/jobs/?*label=workload*")
    expect(page.locator("input[name=cost_centre]")).to_be_hidden()
    page.get_by_text("More filters").click()
    page.locator("input[name=cost_centre]").fill("nobody")
    page.locator("input[name=cost_centre]").press("Enter")
    page.wait_for_url("**cost_centre=nobody*")
    expect(page.locator("#table-jobs")).to_contain_text("No job matches these filters.")
    expect(page.locator("input[name=cost_centre]")).to_be_visible()
    assert [*visitor.watch.faults, *visitor.axe()] == []


LISTS = """
/jobs/ /jobs/queue/ /quotas/ /nodes/ /gpus/ /clusters/ /fleet/?view=table /idle/ /incidents/ /reservations/list/ /schedules/ /templates/ /budgets/
/activity/ /activity/alerts/ /activity/alerts/rules/ /incidents/rules/ /idle/policies/ /audit/ /people/ /tokens/ /webhooks/ /notifications/
/quotas/changes/ /quotas/ledger/ /gap/gpus/ /cost/rates/ /cost/exports/ /cost/mails/ /cost/lines/?by=team&key=veridia/research/language /telemetry/
""".split()  # noqa: SIM905
FIRST_ROW = """() => {
  const wraps = [...document.querySelectorAll("main .table-wrap")];
  const row = wraps[0]?.querySelector("tbody tr");
  return {
    top: row ? row.getBoundingClientRect().top + scrollY : 0,
    boxes: wraps.filter((one) => one.scrollWidth > one.clientWidth + 1 || one.scrollHeight > one.clientHeight + 2).map((one) => one.ariaLabel),
  };
}"""

WIDEST = "() => Math.max(...[...document.querySelectorAll('main > *')].map((one) => one.getBoundingClientRect().width))"


# Where a row is no row of a list, and says on a phone what each of its cells is.
LABELLED = (
    *("/", "/home/on-call/", "/home/team/", "/home/month/", "/people/", "/schedules/", "/incidents/", "/incidents/rules/", "/audit/"),
    *("/activity/alerts/rules/", "/idle/", "/idle/policies/", "/gap/", "/fragmentation/", "/budgets/", "/cost/", "/cost/rates/", "/templates/"),
    *("/quotas/ledger/", "/reservations/list/", "/reservations/timeline/", "/scheduler/", "/gpus/catalogue/"),
)
TOO_SMALL = """() => [...document.querySelectorAll("a, button, select, summary, input:not([type=hidden])")].filter((target) => {
  const { width, height } = target.getBoundingClientRect();
  // WCAG 2.5.8 leaves out links inside sentences, and what a label makes larger.
  if (!target.checkVisibility() || width < 2 || target.closest("p, .page-sub, .crumbs, .hint, .skip, dd, label")) return false;
  return width < 23.5 || height < 23.5;
}).map((target) => `${target.outerHTML.slice(0, 120)} is ${target.getBoundingClientRect().width} x ${target.getBoundingClientRect().height}`)"""
SIDEWAYS = "document.documentElement.scrollWidth > document.documentElement.clientWidth"


def test_every_list_and_place_fits_its_screens(demo: Site, browser: Browser):
    """Each is opened once, on the smallest screen, which then grows. Nothing scrolls sideways or is too small for a finger at 320 pixels, no table
    hides columns on a phone or a small desk, and a list begins above 200 pixels of a page that is no wider than one can read."""
    visitor: Visitor = demo.visit(browser, "root", viewport={"width": 320, "height": 640})
    page = visitor.page
    visitor.open("/")
    places = page.eval_on_selector_all("#places a", "links => links.map(link => link.getAttribute('href'))")
    assert len(places) > 10
    faults, with_rows = [], 0

    def on(width: int, height: int) -> None:
        visitor.see(theme="light", size={"width": width, "height": height})

    for address in dict.fromkeys((*places, *LISTS, *LABELLED)):
        on(320, 640)
        visitor.open(address)
        if address in places:
            if page.evaluate(SIDEWAYS):
                faults.append(f"{address} scrolls sideways at 320 pixels")
            faults += [f"{address} at 320 pixels: {target}" for target in page.evaluate(TOO_SMALL)]
        if address in LABELLED:
            on(390, 844)
            faults += [f"{address} at 390 pixels cuts {table!r}" for table in page.evaluate(CUT_TABLES)]
        if address in LISTS:
            on(1280, 800)
            faults += [f"{address} at 1280 pixels cuts {table.split(chr(10))[0]}" for table in page.evaluate(CUT_TABLES)]
            if address == "/audit/":
                narrowest = page.evaluate("Math.min(...[...document.querySelectorAll('main td .breaks')].map((one) => one.offsetWidth))")
                assert narrowest > 130, "no change is a column of letters"
            on(1440, 900)
            told = page.evaluate(FIRST_ROW)
            with_rows += told["top"] > 0
            if told["top"] >= 200:
                faults.append(f"{address} has its first row at {told['top']} pixels")
            faults += [f"{address} scrolls in a box of its own: {box}" for box in told["boxes"]]
            on(2800, 900)
            if (widest := page.evaluate(WIDEST)) > 1680:
                faults.append(f"{address} is {widest} pixels wide")

    assert [*visitor.watch.faults, *faults] == []
    assert with_rows >= 12, "lists with rows"
    assert visitor.watch.faults == []
    on(1440, 900)
    visitor.open("/nodes/")
    page.mouse.wheel(0, 1500)
    expect(page.locator("table.grid thead th").first).to_be_in_viewport()


@pytest.mark.parametrize("address", ["/jobs/", "/gpus/", *(pytest.param(path, marks=pytest.mark.soak) for path in ("/nodes/", "/clusters/"))])
def test_on_a_phone_a_row_is_three_lines_with_every_column_in_sight(demo: Site, browser: Browser, address: str):
    visitor: Visitor = demo.visit(browser, "root", viewport={"width": 390, "height": 844})
    visitor.open(address)
    rows = visitor.page.locator("table.grid tbody tr")
    assert statistics.median(rows.evaluate_all("rows => rows.map((row) => row.offsetHeight)")) <= 80
    assert visitor.page.evaluate(FIRST_ROW)["boxes"] == []
    assert visitor.axe() == []


CURRENT_TAB = """() => {
  const tab = document.querySelector(".tabs [aria-current]").getBoundingClientRect();
  const row = document.querySelector(".tabs").getBoundingClientRect();
  return { hidden: Math.max(0, tab.right - row.right, row.left - tab.left), scrolls: document.querySelector(".tabs").scrollLeft };
}"""


def test_on_a_phone_the_current_tab_is_in_sight(demo: Site, browser: Browser):
    visitor: Visitor = demo.visit(browser, "root", viewport={"width": 320, "height": 640})
    found = {}
    for address in ("/jobs/?q=", "/jobs/?phase=ended", "/gpus/?condition=throttling"):
        visitor.open(address)
        found[address] = visitor.page.evaluate(CURRENT_TAB)

    assert {address: told["hidden"] for address, told in found.items() if told["hidden"] > 1} == {}
    assert found["/jobs/?q="]["scrolls"] == 0 < found["/jobs/?phase=ended"]["scrolls"]


def test_on_a_desk_the_buttons_of_idle_jobs_are_in_sight(demo: Site, browser: Browser):
    visitor: Visitor = demo.visit(browser, "root", viewport={"width": 1280, "height": 800})
    visitor.open("/idle/")

    assert visitor.page.get_by_role("link", name="Reclaim").count()
    assert visitor.page.evaluate(CUT_TABLES) == []


SHORT_WORDS = ".change-jobs .team, .change-jobs td[data-label=Owner], .diff td:nth-child(2)"
BROKEN_WORDS = """(which) => [...document.querySelectorAll(which)].flatMap((cell) => {
  const text = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT).nextNode();
  return [...(text?.data || "").matchAll(/\\S+/g)].filter((word) => {
    const range = document.createRange();
    range.setStart(text, word.index);
    range.setEnd(text, word.index + word[0].length);
    return range.getClientRects().length > word[0].split("-").length;
  }).map((word) => word[0]);
})"""


def test_previews_break_no_word_of_a_team_or_field(demo: Site, browser: Browser):
    visitor: Visitor = demo.visit(browser, "root", viewport={"width": 1280, "height": 800})
    visitor.open("/quotas/changes/")
    visitor.page.get_by_role("link", name="Move H100s from Atlas to Instruct").click()
    expect(visitor.page.locator(".diff td").first).to_contain_text("guaranteed")
    broken = visitor.page.evaluate(BROKEN_WORDS, SHORT_WORDS)
    visitor.open("/nodes/?q=h100-s02l2")
    for node in [link.get_attribute("href") for link in visitor.page.locator("tbody th a").all()]:
        visitor.open(f"{node}health/?to=draining")
        broken += visitor.page.evaluate(BROKEN_WORDS, SHORT_WORDS)

    assert broken == []


# The first row of each of these leads to a page with tables of its own.
FIRST_OF = ("/incidents/?sort=-jobs", "/cost/", "/cost/rates/", "/people/", "/jobs/?phase=holding", "/reservations/list/")


def test_on_a_phone_no_table_of_the_page_of_a_row_hides_columns_at_its_side(demo: Site, browser: Browser):
    visitor: Visitor = demo.visit(browser, "root", viewport={"width": 390, "height": 844})
    cut = {}
    for address in FIRST_OF:
        visitor.open(address)
        href = visitor.page.locator("main table.grid tbody th a").first.get_attribute("href") or ""
        visitor.open(urlsplit(urljoin(demo.origin + address, href))._replace(scheme="", netloc="").geturl())
        cut[f"first of {address}"] = visitor.page.evaluate(CUT_TABLES)

    assert {address: tables for address, tables in cut.items() if tables} == {}
    visitor.open("/people/")
    assert visitor.page.locator("tbody tr").first.get_by_role("cell").nth(1).get_attribute("data-said") == "E-mail"
    assert visitor.axe() == []


def test_on_a_phone_the_map_and_the_costs_come_before_what_they_are_asked_by(demo: Site, browser: Browser):
    visitor: Visitor = demo.visit(browser, "root", theme="dark", viewport={"width": 390, "height": 844})
    page, filters = visitor.page, visitor.page.get_by_role("button", name="Filters")
    top = "(one) => one.getBoundingClientRect().top"
    visitor.open("/fleet/")
    assert page.locator(".rack canvas").first.evaluate(top) < 400
    expect(filters).to_contain_text("SM activity by ")
    filters.click()
    page.get_by_role("radio", name="Health").check()
    page.get_by_label("Type").select_option(index=1)
    assert visitor.axe() == []
    page.keyboard.press("Escape")
    expect(filters).to_contain_text(re.compile(r"^\s*Filters Health by \w+, \w+"))

    visitor.open("/cost/?by=gpu_type")
    assert page.locator(".figure .value").first.evaluate(top) < 300
    expect(filters).to_contain_text("by GPU type")
    expect(page.get_by_label("From")).not_to_be_visible()
    filters.click()
    expect(page.get_by_label("From")).to_be_visible()
    page.keyboard.press("Escape")
    visitor.see(theme="light", size={"width": 1440, "height": 900})
    expect(filters).not_to_be_visible()
    expect(page.get_by_label("From")).to_be_visible()
    assert [*visitor.watch.faults, *visitor.axe()] == []


def test_the_filter_line_offers_filters_and_shows_what_is_set_as_chips(demo: Site, browser: Browser):
    visitor: Visitor = demo.visit(browser, "root", viewport={"width": 1440, "height": 900})
    visitor.open("/gpus/?size=25")
    page = visitor.page
    line = page.get_by_role("combobox", name="Filter GPUs")
    line.press_sequentially("hea")
    page.get_by_role("option", name="health: Health").click()
    page.get_by_role("option", name="Healthy Health").click()
    page.wait_for_url("**health=healthy*")
    chips = page.get_by_role("list", name="Filters")
    expect(chips).to_contain_text("Health Healthy")

    line.fill("gpu:h100 type:a100 zzz")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=zzz*")
    expect(chips.get_by_role("listitem")).to_have_count(3)
    assert "type=" in page.url
    page.get_by_role("link", name="Remove filter Health Healthy").click()
    expect(chips.get_by_role("listitem")).to_have_count(2)
    assert visitor.axe() == []

    visitor.open("/nodes/")
    page.get_by_role("button", name="Columns").click()
    page.get_by_role("checkbox", name="Host memory, MiB").check()
    page.get_by_role("checkbox", name="Heartbeat").check()
    page.get_by_role("checkbox", name="Temperature").uncheck()
    page.get_by_role("button", name="Show columns").click()
    expect(page.get_by_role("columnheader", name="Host memory, MiB")).to_be_visible()
    expect(page.get_by_role("columnheader", name="Heartbeat")).to_be_visible()
    expect(page.get_by_role("columnheader", name="Temperature")).to_have_count(0)
    assert [*visitor.watch.faults, *visitor.axe()] == []


@pytest.mark.parametrize("address", ["/jobs/", "/quotas/", *(pytest.param(path, marks=pytest.mark.soak) for path in ("/nodes/", "/gpus/"))])
def test_a_row_opens_beside_the_list(demo: Site, browser: Browser, address: str):
    visitor = demo.visit(browser, "root", viewport={"width": 1440, "height": 900})
    visitor.open(address)
    page, sheet = visitor.page, visitor.page.locator("#sheet")
    names = page.locator("table.grid tbody th a").all_inner_texts()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(sheet.get_by_role("heading", level=2).first).to_contain_text(names[0])
    expect(page.locator("tr.is-open th")).to_contain_text(names[0])
    if address == "/jobs/":
        for fact in ("Class", "Time limit", "Owner", "Team"):
            expect(sheet.get_by_role("term").filter(has_text=re.compile(f"^{fact}$"))).to_be_visible()
    page.keyboard.press("j")
    expect(sheet.get_by_role("heading", level=2).first).to_contain_text(names[1])
    assert visitor.axe() == []

    page.reload()
    expect(sheet.get_by_role("heading", level=2).first).to_contain_text(names[1])
    page.keyboard.press("Escape")
    expect(sheet).to_be_hidden()
    assert page.evaluate("document.activeElement.textContent") == names[1]

    page.set_viewport_size({"width": 390, "height": 844})
    page.locator("table.grid tbody th a").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(names[0])
    assert visitor.watch.faults == []


def test_what_leads_to_a_part_of_the_page_leads_there_from_the_sheet(demo: Site, browser: Browser):
    """Only some of the page is in the sheet: Health, where "Change health" leads, is not."""
    visitor = demo.visit(browser, "root", viewport={"width": 1440, "height": 900})
    visitor.open("/nodes/")
    page, sheet = visitor.page, visitor.page.locator("#sheet")
    name = page.locator("table.grid tbody th a").first.inner_text()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    sheet.get_by_role("link", name="Change health").click()
    page.wait_for_url(re.compile(r"/nodes/n-\d+/#health$"))
    expect(page.get_by_role("heading", level=1)).to_have_text(name)

    page.go_back()
    expect(sheet.get_by_role("heading", level=2).first).to_contain_text(name)
    page.keyboard.press("Control+k")
    page.keyboard.type("change h")
    expect(page.get_by_role("option", name=f"Change health {name}")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/nodes/n-\d+/#health$"))
    assert visitor.watch.faults == []


def test_o_opens_the_page_of_the_row_in_the_sheet(demo: Site, browser: Browser):
    visitor = demo.visit(browser, "root", viewport={"width": 1440, "height": 900})
    visitor.open("/nodes/")
    page, sheet = visitor.page, visitor.page.locator("#sheet")
    name = page.locator("table.grid tbody th a").first.inner_text()
    page.keyboard.press("o")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(sheet.get_by_role("heading", level=2).first).to_contain_text(name)
    page.keyboard.press("o")
    page.wait_for_url(re.compile(r"/nodes/n-\d+/$"))
    expect(page.get_by_role("heading", level=1)).to_have_text(name)

    page.go_back()
    expect(sheet.get_by_role("heading", level=2).first).to_contain_text(name)
    page.keyboard.press("g")
    page.keyboard.press("o")
    page.wait_for_url(f"{demo.origin}/")
    assert visitor.watch.faults == []
