"""The shell with hands on it: keyboard, phone, both themes, both clocks, and without scripts."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.harness import Site, Visitor
from tests.spelled import DURATIONS, RELATIVE, STARTS

pytestmark = pytest.mark.browser

PHONE = {"width": 320, "height": 640}
SPELL_RELATIVE = """(distances) => distances.map((seconds) => {
  const time = document.createElement("time");
  time.dateTime = new Date(gpufleet.shell.serverNow() - seconds * 1000).toISOString();
  gpufleet.shell.paintTime(time);
  return time.textContent;
})"""

SPELL_STARTS = """(starts) => {
  const noon = Date.parse("2026-11-20T12:00:00Z"), at = (minutes) => new Date(noon + minutes * 60000).toISOString();
  const before = gpufleet.shell.serverNow(), clock = document.documentElement.dataset.clock;
  gpufleet.shell.setServerTime(noon);
  document.documentElement.dataset.clock = "utc";
  const told = starts.map(([start, from, until]) => {
    const time = document.createElement("time");
    time.dateTime = at(start);
    Object.assign(time.dataset, { moment: "start", from: at(from), until: at(until) });
    gpufleet.shell.paintTime(time);
    return time.textContent;
  });
  gpufleet.shell.setServerTime(before);
  document.documentElement.dataset.clock = clock;
  return told;
}"""


@pytest.fixture
def demo(sites: Callable[[str], Site]) -> Site:
    return sites("demo")


@pytest.fixture
def root(demo: Site, browser: Browser) -> Visitor:
    visitor = demo.visit(browser, "root", timezone_id="Europe/Berlin", viewport={"width": 1280, "height": 800})
    visitor.open("/nodes/")
    return visitor


def test_the_palette_goes_to_a_node_by_keyboard_alone(root: Visitor):
    name = root.page.locator("table.grid tbody th a").first.inner_text()

    root.page.keyboard.press("Control+k")
    field = root.page.get_by_role("combobox", name="Go to or search for")
    expect(field).to_be_focused()
    assert root.axe() == []
    root.page.keyboard.type(name)
    option = root.page.get_by_role("option", name=name).first
    expect(option).to_have_attribute("aria-selected", "true")
    assert field.get_attribute("aria-activedescendant") == option.get_attribute("id")
    root.page.keyboard.press("Enter")

    expect(root.page.get_by_role("heading", level=1)).to_have_text(name)
    root.page.wait_for_load_state()
    root.page.keyboard.press("Control+k")
    root.page.keyboard.type("cha")
    expect(root.page.get_by_role("option", name=f"Change health {name}")).to_have_attribute("aria-selected", "true")
    root.page.keyboard.press("Enter")
    root.page.wait_for_url("**#health")
    assert root.watch.faults == []


def test_a_verb_in_the_palette_is_about_the_row_that_has_the_focus(root: Visitor):
    page = root.page
    row = page.locator("table.grid tbody tr", has_text="Healthy").nth(2).locator("th a")
    name = row.inner_text()
    row.focus()
    page.keyboard.press("Control+k")
    page.keyboard.type("dra")
    expect(page.get_by_role("option", name=f"Drain {name} ")).to_have_attribute("aria-selected", "true")
    assert root.axe() == []
    page.keyboard.press("Enter")
    page.wait_for_url("**/nodes/*/health/?to=draining")
    expect(page.get_by_role("main")).to_contain_text(name)

    root.open("/")
    page.keyboard.press("Control+k")
    page.keyboard.type("dra")
    expect(page.get_by_role("option", name="Drain node…")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Enter")
    page.wait_for_url("**/nodes/")
    assert root.watch.faults == []


def test_escape_closes_the_palette_and_gives_the_focus_back(root: Visitor):
    root.page.locator("table.grid tbody th a").first.focus()

    root.page.keyboard.press("Control+k")
    root.page.keyboard.press("Escape")

    expect(root.page.locator("dialog[open]")).to_have_count(0)
    expect(root.page.locator("table.grid tbody th a").first).to_be_focused()


def test_slash_searches_and_arrows_choose(root: Visitor):
    root.page.keyboard.press("/")
    field = root.page.locator("#quick")
    expect(field).to_be_focused()
    root.page.keyboard.type("quo")
    expect(root.page.get_by_role("option", name="Quotas").first).to_be_visible()
    assert root.axe() == []
    root.page.keyboard.press("ArrowDown")
    expect(root.page.locator("[role=option][aria-selected=true]")).to_have_count(1)
    root.page.keyboard.press("Escape")
    expect(field).to_have_attribute("aria-expanded", "false")
    root.page.keyboard.press("Enter")

    root.page.wait_for_url("**/search/?q=quo")


def test_letters_go_places_and_can_be_switched_off(root: Visitor):
    root.page.keyboard.press("g")
    root.page.keyboard.press("q")
    root.page.wait_for_url("**/quotas/")

    root.page.keyboard.press("?")
    assert root.axe() == []
    root.page.get_by_role("checkbox", name="Keys without Ctrl work").uncheck()
    root.page.keyboard.press("Escape")
    root.page.keyboard.press("/")

    expect(root.page.locator("#quick")).not_to_be_focused()


def test_j_and_k_walk_the_rows(root: Visitor):
    names = root.page.locator("table.grid tbody th a").all_inner_texts()[:3]

    seen = []
    for key in ("j", "j", "j", "k"):
        root.page.keyboard.press(key)
        seen.append(root.page.evaluate("document.activeElement.innerText"))

    assert seen == [names[0], names[1], names[2], names[1]]


def test_sorting_by_keyboard_keeps_the_focus_and_says_the_count(root: Visitor):
    root.page.get_by_role("columnheader", name="Health", exact=True).get_by_role("link").focus()

    root.page.keyboard.press("Enter")

    expect(root.page.get_by_role("columnheader", name="Health", exact=True)).to_have_attribute("aria-sort", "ascending")
    expect(root.page.get_by_role("columnheader", name="Health", exact=True).get_by_role("link")).to_be_focused()
    expect(root.page.locator("body > [role=status].unseen")).to_contain_text("of 64")
    root.page.go_back()
    expect(root.page.get_by_role("columnheader", name="Node")).to_have_attribute("aria-sort", "ascending")
    root.page.wait_for_load_state()  # Going back loads the page anew: its rows are there before its scripts can hear a key.
    root.page.keyboard.press("Control+k")
    expect(root.page.get_by_role("combobox", name="Go to or search for")).to_be_focused()


def test_the_script_spells_times_as_the_tags_do(root: Visitor):
    relative = root.page.evaluate(SPELL_RELATIVE, [seconds for seconds, _ in RELATIVE])
    ranges = root.page.evaluate(SPELL_STARTS, [minutes for minutes, _ in STARTS])
    lasting = root.page.evaluate("(all) => all.map(gpufleet.shell.duration)", [seconds for seconds, _ in DURATIONS])

    assert [said.replace("\xa0", " ") for said in relative] == [said for _, said in RELATIVE]
    assert [said.replace("\xa0", " ") for said in ranges] == [said for _, said in STARTS]
    assert [said.replace("\xa0", " ") for said in lasting] == [said for _, said in DURATIONS]


def test_the_theme_is_kept_and_there_before_the_first_paint(root: Visitor):
    button = root.page.locator(".tools [data-theme-switch]")
    button.click()

    assert root.page.evaluate("document.documentElement.dataset.theme") == "dark"
    expect(button).to_have_attribute("aria-label", "Theme: dark")
    root.page.add_init_script(
        "document.addEventListener('DOMContentLoaded', () => { window.themeAtParse = document.documentElement.dataset.theme; })"
    )
    root.page.reload()
    assert root.page.evaluate("window.themeAtParse") == "dark"
    assert root.page.evaluate("getComputedStyle(document.body).colorScheme") == "dark"


def test_the_clock_is_kept_on_the_person(root: Visitor, demo: Site, browser: Browser):
    with_times = "/nodes/?columns=health.since"
    root.open(with_times)
    moment = root.page.locator("time[data-moment]").first
    assert moment.get_attribute("title").endswith(("CET", "CEST", "GMT+1", "GMT+2"))

    with root.page.expect_response("**/clock"):
        root.page.locator(".tools [data-clock-switch] button").click()

    assert moment.get_attribute("title").endswith(" UTC")
    other = demo.visit(browser, "root", timezone_id="Asia/Tokyo")
    other.open(with_times)
    assert other.page.locator("time[data-moment]").first.get_attribute("title").endswith(" UTC")
    with other.page.expect_response("**/clock"):
        other.page.locator(".tools [data-clock-switch] button").click()


def test_on_a_phone_the_places_come_out_of_a_menu(demo: Site, browser: Browser):
    phone = demo.visit(browser, "root", viewport=PHONE)
    phone.open("/nodes/")
    expect(phone.page.locator("#places")).not_to_be_visible()

    phone.page.get_by_role("button", name="Menu").press("Enter")

    expect(phone.page.locator("#places").get_by_role("link", name="GPUs", exact=True)).to_be_visible()
    assert phone.axe() == []
    phone.page.keyboard.press("Escape")
    expect(phone.page.locator("#places")).not_to_be_visible()
    expect(phone.page.get_by_role("button", name="Menu")).to_be_focused()


def test_without_scripts_one_still_gets_everywhere(demo: Site, browser: Browser):
    plain = demo.visit(browser, "root", java_script_enabled=False, viewport=PHONE)
    plain.page.goto(demo.origin + "/nodes/")

    plain.page.get_by_role("button", name="Menu").click()
    plain.page.locator("#places").get_by_role("link", name="GPUs", exact=True).click()
    plain.page.wait_for_url("**/gpus/")
    plain.page.locator("#quick").fill("h100")
    plain.page.locator("#quick").press("Enter")
    plain.page.wait_for_url("**/search/?q=h100")

    expect(plain.page.get_by_role("heading", name="Nodes")).to_be_visible()
    expect(plain.page.locator("[data-theme-switch]").first).not_to_be_visible()


def test_the_sign_in_page_lets_a_demo_person_in_with_one_press(demo: Site, browser: Browser):
    stranger = demo.visit(browser)
    stranger.open("/nodes/")
    assert stranger.axe() == []

    stranger.page.get_by_role("button", name="oona").click()

    stranger.page.wait_for_url("**/nodes/")
    expect(stranger.page.get_by_role("heading", level=1, name="Nodes")).to_be_visible()
    assert stranger.watch.faults == []


def test_a_new_token_is_copied_with_one_press(demo: Site, browser: Browser):
    visitor = demo.visit(browser, "root", permissions=["clipboard-read", "clipboard-write"])
    visitor.open("/tokens/new/")
    visitor.page.get_by_label("Name").fill("CI")
    visitor.page.get_by_role("checkbox", name="Read:").check()
    visitor.page.get_by_role("button", name="Create token").click()

    visitor.page.get_by_role("button", name="Copy").click()

    expect(visitor.page.locator("body > [role=status].unseen")).to_have_text("Copied")
    assert visitor.page.evaluate("navigator.clipboard.readText()") == visitor.page.locator("#secret").inner_text()


COLUMNS = """() => {
  const box = (one) => one.getBoundingClientRect();
  const [aside, head] = [box(document.querySelector("main > .aside")), box(document.querySelector("main > .page-head"))];
  const widest = Math.max(...[...document.querySelectorAll("main > :not(.aside)")].map((one) => box(one).width));
  const hidden = document.documentElement.scrollWidth - innerWidth;
  return { isBeside: aside.left > head.right && aside.top <= head.top, isBelow: aside.left === head.left && aside.top > head.bottom, widest, hidden };
}"""


@pytest.mark.parametrize(
    "address", ["/jobs/", "/nodes/", *(pytest.param(path, marks=pytest.mark.soak) for path in ("/gpus/", "/clusters/", "/quotas/"))]
)
def test_what_a_page_says_last_stands_beside_it_on_a_wide_screen(demo: Site, browser: Browser, address: str):
    visitor = demo.visit(browser, "root", viewport={"width": 1440, "height": 900})
    page = visitor.page
    visitor.open(address)
    visitor.open(page.locator("table.grid tbody th a").first.get_attribute("href") or "/")
    desk = page.evaluate(COLUMNS)
    page.set_viewport_size({"width": 2560, "height": 1440})
    wide = page.evaluate(COLUMNS)

    assert (desk["isBelow"], desk["hidden"]) == (True, 0)
    assert (wide["isBeside"], wide["hidden"]) == (True, 0)
    assert 1400 < wide["widest"] <= 1680
    assert [*visitor.watch.faults, *visitor.axe()] == []


def test_the_parts_of_home_are_moved_by_keyboard_and_by_dragging(demo: Site, browser: Browser):
    """As vic, who looks at nothing else here: the order is kept on the person."""
    visitor = demo.visit(browser, "vic", viewport={"width": 1440, "height": 900})
    page = visitor.page
    visitor.open("/overview/")
    page.get_by_role("link", name="Arrange").press("Enter")
    parts = page.locator("[data-arrange-part]")
    names = lambda: parts.evaluate_all("(all) => all.map((one) => one.dataset.arrangePart)")  # noqa: E731
    expect(parts).to_have_count(7)
    assert names() == ["chart", "types", "waits", "holders", "sick", "idle", "queue"]

    page.get_by_role("button", name="Move up: Queue").press("Enter")
    page.wait_for_url("**moved=**")
    assert names() == ["chart", "types", "waits", "holders", "sick", "queue", "idle"]
    assert visitor.axe() == []
    # The focus stays on the button, so that pressing it again goes on.
    expect(page.get_by_role("button", name="Move up: Queue")).to_be_focused()
    page.keyboard.press("Enter")
    expect(parts.nth(4)).to_have_attribute("data-arrange-part", "queue")

    with page.expect_navigation():  # after the order is kept
        page.locator("[data-arrange-part=types] strong").first.drag_to(page.locator("[data-arrange-part=queue] strong").first)
    assert page.locator("[data-arrange-column]").nth(1).locator("[data-arrange-part=types]").count() == 1

    page.get_by_role("button", name="Reset order").click()
    expect(parts.nth(1)).to_have_attribute("data-arrange-part", "types")
    expect(parts.nth(6)).to_have_attribute("data-arrange-part", "queue")
    page.get_by_role("link", name="Done").click()
    expect(parts).to_have_count(0)
    assert visitor.watch.faults == []
