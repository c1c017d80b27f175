"""Pictures of the main pages, and what each costs to load:

    python -m tests.pictures http://127.0.0.1:8000 OUT [--user root] [--only home,jobs]

Desk in both themes and a phone. One line a picture: first contentful paint, longest task, scripts compressed, requests, height. Of a demo:
the names of a job, a node, a GPU and a team are the first of their lists. The longest task is in processor time of the page's own thread, so a busy
machine does not lengthen it; in brackets what it took by the clock.
"""

import argparse
import gzip
import json
import shutil
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, Response, sync_playwright

# Without what draws the browser's own toolbar as one more page (tests/browser/harness.py needs Django, and this only looks).
FLAGS = ["--no-sandbox", "--disable-features=PreloadTopChromeWebUI,InitialWebUI,WebUIReloadButton"]
PASSWORD = "gpufleet-demo"
VIEWS = {
    "desk-light": ("light", {"width": 1440, "height": 900}),
    "desk-dark": ("dark", {"width": 1440, "height": 900}),
    "phone": ("light", {"width": 390, "height": 844}),
}
# A list of which the first row's page is meant ends in `*`.
PAGES = {
    "home": "/",
    "fleet": "/fleet/",
    "jobs": "/jobs/",
    "job-waiting": "/jobs/?phase=waiting*",
    "submit": "/jobs/new/",
    "node": "/nodes/*",
    "team": "/quotas/*",
    "quotas": "/quotas/",
    "gap": "/gap/",
    "costs": "/cost/",
}
IN_VIEW = "() => [...document.querySelectorAll('[data-plot]')].some((one) => one.getBoundingClientRect().top < innerHeight)"
TRACED = ["toplevel", "devtools.timeline"]
PAINTED = "() => Math.round(performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? -1)"


def main() -> None:
    parser = argparse.ArgumentParser(description="Pictures of the main pages.")
    parser.add_argument("origin")
    parser.add_argument("out", type=Path)
    parser.add_argument("--user", default="root")
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium-headless-shell") or shutil.which("chromium"), args=FLAGS)
        for view, (theme, size) in VIEWS.items():
            context = browser.new_context(viewport=size, color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type]
            page = context.new_page()
            page.goto(f"{asked.origin}/accounts/login/?next=/healthz")
            page.fill("input[name=login]:not([type=hidden])", asked.user)
            page.fill("input[type=password]", PASSWORD)
            with page.expect_navigation():
                page.locator("input[type=password]").press("Enter")
            for name, address in PAGES.items():
                if not asked.only or name in asked.only.split(","):
                    print(f"{name}-{view}: {_picture(browser, page, asked.origin, address, asked.out / f'{name}-{view}.png')}", flush=True)
            context.close()
        browser.close()


def _picture(browser: Browser, page: Page, origin: str, address: str, file: Path) -> str:
    if address.endswith("*"):
        page.goto(origin + address[:-1])
        address = page.locator("table tbody th a").first.get_attribute("href") or "/"
    scripts: list[int] = []
    requests: list[str] = []

    def weigh(response: Response) -> None:
        requests.append(response.url)
        if response.request.resource_type == "script":
            scripts.append(len(gzip.compress(response.body(), 6)))

    page.on("response", weigh)
    browser.start_tracing(page=page, categories=TRACED)
    page.goto(origin + address, wait_until="load")
    if page.evaluate(IN_VIEW):
        # A chart is there, or says why not; one further down is loaded when it comes into view.
        page.wait_for_selector("[data-plot-canvas] .plot-container, [data-plot-note]:not(:has(.needs-scripts))")
    page.wait_for_timeout(500)  # the live connection's first answer
    busy, passed = _longest(json.loads(browser.stop_tracing())["traceEvents"])
    page.remove_listener("response", weigh)
    page.screenshot(path=file)
    height = page.evaluate("() => document.documentElement.scrollHeight")
    scripted = f"scripts {sum(scripts) / 1000:.0f} kB, {len(requests)} requests"
    return f"{address} painted {page.evaluate(PAINTED)} ms, longest task {busy} ms ({passed} ms), {scripted}, {height} px"


def _longest(events: list[dict[str, Any]]) -> tuple[int, int]:
    """Milliseconds of the page's longest task: of the processor, and by the clock."""
    pages = {(one["pid"], one["tid"]) for one in events if one["name"] == "thread_name" and one["args"]["name"] == "CrRendererMain"}
    tasks = [one for one in events if one["name"].endswith("RunTask") and "tdur" in one and (one["pid"], one["tid"]) in pages]
    found = max(tasks, key=lambda one: one["tdur"])
    return round(found["tdur"] / 1000), round(found["dur"] / 1000)


if __name__ == "__main__":
    main()
