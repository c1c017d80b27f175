"""Every page in a real browser: no CSP violation, no console error, no third party, no broken asset, nothing that axe calls a fault."""

import pytest

from tests.browser.harness import Site, Visitor
from tests.browser.pages import Pages, crawl

pytestmark = pytest.mark.browser

# Addresses that no page links to, and why that is right.
REACHED_OTHERWISE = {
    "jobs/<slug:public_id>/connect/": "from running jobs on real machines, of which the demo has none",
    "jobs/<slug:public_id>/hold/": "from waiting jobs, and the crawl opens two that run (tests/browser/test_bulk.py holds some)",
    "jobs/<slug:public_id>/release/": "from jobs that are held, of which the demo has none",
    "jobs/<slug:public_id>/replicas/": "from services, and the crawl may open none (tests/browser/test_job_pages.py sets replicas)",
    "jobs/<slug:public_id>/replace/": "an entry of a menu of services that the crawl leaves closed",
    "jobs/<slug:public_id>/replace/stop/": "a button while replicas are being replaced, and the demo replaces none",
    "jobs/<slug:public_id>/service-level/course": "the chart of a service level, and no job of the demo has one",
    "jobs/<slug:public_id>/service-level/remove/": "a button on a service level, and no job of the demo has one",
    "activity/alerts/<slug:public_id>/": "an alert, and no round of the rules has run in the seeded demo",
    "accounts/": "allauth's steps of a flow: each is entered from the one before",
    "jobs/arrays/<": "an array, and nobody has submitted any in the demo (tests/browser/test_arrays.py looks at one)",
    "jobs/batches/<": "what became of many jobs, and nobody has steered any in the demo",
    "cost/<str:month>/close/": "a button on a month that is over and open, and the costs page without a month is of this one",
    "cost/exports/<": "the file of an export, and nobody has asked for any in the demo",
    "cost/lines/<": "a line of a month, chosen by parameters that the crawl drops",
    "cost/rates/<slug:public_id>/edit/": "a button on a draft, and the demo's rate cards are active",
    "inventory/import/<": "a preview, and the demo has imported nothing",
    "inventory/slurm/<": "a button on a Slurm cluster, and the demo has none",
    "inventory/kubernetes/<": "a button on a Kubernetes cluster, and the demo has none",
    "live/": "asked for by live.js",
    "nodes/planned/": "a button on the list of nodes once a change is planned, of which the demo has none (tests/browser/test_walks.py opens it)",
    "quotas/<str:public_id>/restore/": "a button on an archived node, of which the demo has none (tests/scheduler/test_undo.py restores one)",
    "scheduler/plans/": "a plan, and the demo is seeded without one",
    "static/": "assets",
    "clusters/<slug:name>/give-up/": "a button on a cluster that does not answer, and the demo has none",
    "clusters/<slug:name>/remove/": "an entry of a menu that the crawl leaves closed",
    "inventory/import/<slug:public_id>/": "the preview of a file that was sent",
    "telemetry/<": "a button on a telemetry server, and the demo has none",
    "tokens/<str:public_id>/revoke/": "a button on a token, and the demo has none",
    "webhooks/<": "a webhook, and the demo has none",
    "what-if/<": "a what-if, and the demo has none",
    "what-if/sweeps/<": "a sweep of a trace, and the demo has none",
    "what-if/traces/<": "a trace of the what-if lab, and the demo has none",
}
DESK = {"width": 1280, "height": 720}
PHONE = {"width": 390, "height": 844}


_crawled: dict[Site, Pages] = {}


def _pages(site: Site, browser) -> Pages:
    """What root reaches, found once: between the tests here nothing about it changes."""
    if site not in _crawled:
        site.visit(browser, "root")
        cookies = {cookie["name"]: cookie["value"] for cookie in site.signed_in["root"]["cookies"]}
        _crawled[site] = crawl(site.origin, cookies)
    return _crawled[site]


def _look(visitor: Visitor, pages: Pages) -> list[str]:
    """The faults of all pages, seen in one window."""
    for address in pages.found.values():
        visitor.open(address)
    return visitor.watch.faults


def none(faults: list[str]) -> None:
    """Fails with every fault on a line of its own."""
    if faults:
        pytest.fail(f"{len(faults)} faults:\n" + "\n".join(dict.fromkeys(faults)), pytrace=False)


@pytest.fixture
def demo_pages(sites, browser):
    site = sites("demo")
    return site, _pages(site, browser)


def test_every_address_answers_and_every_page_is_linked_from_somewhere(demo_pages):
    _, pages = demo_pages

    none(pages.broken)
    none([f"no page links to {route}" for route in pages.unseen if not route.startswith(tuple(REACHED_OTHERWISE))])


@pytest.mark.soak
def test_pages_that_a_viewer_may_not_open_say_so_and_are_clean(demo_pages, browser):
    site, pages = demo_pages
    visitor = site.visit(browser, "vic")
    visitor.watch.allowed_statuses = (403, 404)

    none(_look(visitor, pages))


SCREENS = (("light", DESK), ("dark", PHONE))
# What a page says where the demo has rows or figures.
SHOWS_NOTHING = "main .empty, main .nothing"


@pytest.mark.soak
@pytest.mark.parametrize("state", ["demo", "empty"])
def test_axe_finds_nothing_on_any_page(sites, browser, state):
    """Nor has any page a fault of its own (`Watch`). Each is opened once, of the demo on a desk in light, and before there is anything to show on a
    phone in dark, and then seen on the other screen: opening it and giving axe to it takes as long as axe does. A page that shows the same before
    there is anything as in the demo, a form, was seen on both screens there."""
    site = sites(state)
    visitor = site.visit(browser, "root")
    found: list[str] = []
    first, second = SCREENS if state == "demo" else SCREENS[::-1]
    in_demo = set() if state == "demo" else set(_pages(sites("demo"), browser).found)
    for route, address in _pages(site, browser).found.items():
        visitor.see(theme=first[0], size=first[1])
        visitor.open(address)
        found += visitor.axe()
        if route in in_demo and not visitor.page.locator(SHOWS_NOTHING).count():
            continue
        visitor.see(theme=second[0], size=second[1])
        found += visitor.axe()

    none([*visitor.watch.faults, *found])


EMPTY_FORM = """
() => {
  const form = [...document.querySelectorAll("main form[method=post]")].find(form => form.querySelector("[required]"));
  if (!form) return false;
  form.noValidate = true;
  for (const input of form.querySelectorAll("input:not([type=hidden]):not([type=submit]), textarea")) if (input.type !== "checkbox") input.value = "";
  form.id = "emptied";
  return true;
}
"""
# In a moment: the page that sends the form may be gone before it can answer.
SUBMIT = "() => { setTimeout(() => document.getElementById('emptied').requestSubmit()); }"


@pytest.mark.soak
def test_axe_finds_nothing_where_something_is_wrong(demo_pages, browser):
    """Addresses that do not exist, filters that make no sense, and every form sent empty; dark, where contrast is lost more easily."""
    site, pages = demo_pages
    visitor = site.visit(browser, "root", theme="dark")
    visitor.watch.allowed_statuses = (400, 404, 422)
    found: list[str] = []
    for address in ["/no/such/page", *(f"{address}?page=x&sort=x&order=x&q=%00" for address in pages.found.values())]:
        answer = visitor.open(address)
        # A page that minds nothing of this is the one that the tests above look at.
        if answer is None or answer.status != 200 or visitor.page.locator("[role=alert], .fault, .errorlist").count():
            found += visitor.axe()
    for address in sorted(pages.asking):
        visitor.open(address)
        if visitor.page.evaluate(EMPTY_FORM):
            # The old page is loaded already: without waiting for the new one, axe would look at a page that is about to go.
            with visitor.page.expect_navigation():
                visitor.page.evaluate(SUBMIT)
            found += visitor.axe()

    none([*visitor.watch.faults, *found])
