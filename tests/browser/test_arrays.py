"""An array with hands on it: a sweep is typed, its jobs are looked at as a whole, and all of them are cancelled, part by part."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from gpufleet.core.models import User
from gpufleet.core.times import now
from scheduler.models import Job
from scheduler.services.jobs.arrays import array_steer
from scheduler.views import arrays
from tests import builders
from tests.browser.harness import CUT_TABLES, LiveConsole, Visitor

pytestmark = pytest.mark.browser
PASSWORD = "correct horse battery"


@pytest.fixture
def visit(live_console: LiveConsole, browser: Browser) -> Iterator[Callable[..., Visitor]]:
    builders.node("alpha", gpus=8)
    root = User.objects.create_superuser("root", "root@example.org", PASSWORD)
    team = builders.quota("nlp", parent=builders.quota())
    for place in range(6):
        state = "failed" if place == 4 else "queued"
        own = {"array": "a-1", "array_index": place, "parameters": {"LR": f"0.{place}"}}
        builders.job(f"lr[{place}]", on=team, owner=root, submitted_at=now(), state=state, **own)

    def open_page(path: str, **options: Any) -> Visitor:
        visitor = live_console.visit(browser, "root", password=PASSWORD, **options)
        visitor.open(path)
        return visitor

    yield open_page


def test_a_sweep_is_typed_and_says_what_it_comes_to(visit):
    page = visit("/jobs/new/").page
    page.get_by_label("Name", exact=True).fill("sweep")
    page.get_by_label("GPUs of each worker").fill("2")
    page.locator("details[data-group=many] > summary").click()
    page.get_by_label("Sweep").fill("LR=0.1 0.01\nSEED=1 2 3")

    expect(page.locator("#fit")).to_contain_text("6 jobs of 2 GPUs each: 12 GPUs if all run at once")
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.locator("h1")).to_have_text("sweep")
    expect(page.locator("tbody tr")).to_have_count(6)
    page.get_by_role("link", name="sweep[0]").click()
    expect(page.locator("h1")).to_contain_text("sweep[0]")
    asks = page.locator("section.panel", has=page.get_by_role("heading", name="Request"))
    expect(asks).to_contain_text("LR=0.1")
    asks.get_by_role("link", name="a-").click()
    expect(page.locator("h1")).to_have_text("sweep")


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), pytest.param("dark", 390, marks=pytest.mark.soak)])
def test_a_whole_array_is_cancelled_after_a_preview(visit, monkeypatch, theme, width):
    monkeypatch.setattr(arrays, "SLICES", 1)
    monkeypatch.setattr(array_steer, "__kwdefaults__", {**array_steer.__kwdefaults__, "size": 2})
    visitor = visit("/jobs/arrays/a-1/", theme=theme, viewport={"width": width, "height": 900})
    page = visitor.page
    expect(page.locator("tbody tr").first).to_contain_text("lr[4]")
    found = visitor.axe()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CUT_TABLES) == []

    page.get_by_role("button", name="Preview").click()
    expect(page.locator("h1")).to_have_text("Cancel 5 jobs?")
    found += visitor.axe()
    page.get_by_label("Reason").fill("old data")
    page.get_by_role("button", name="Cancel 5 jobs").click()
    expect(page.locator("h1")).to_have_text("lr")
    expect(page.get_by_text("Cancelled 5 jobs.")).to_be_visible()
    assert Job.objects.filter(state="cancelled").count() == 5
    assert [*visitor.watch.faults, *found] == []


@pytest.mark.parametrize(("theme", "width"), [pytest.param("light", 1280, marks=pytest.mark.soak), ("dark", 390)])
def test_a_change_of_a_whole_array_is_planned_and_called_off_on_its_page(visit, theme, width):
    visitor = visit("/jobs/arrays/a-1/steer/?action=hold", theme=theme, viewport={"width": width, "height": 900})
    page, begins = visitor.page, now() + timedelta(hours=3)
    page.get_by_label("Begins (UTC)").fill(f"{begins:%Y-%m-%dT%H:%M}")
    page.get_by_label("Reason").fill("night window")
    expect(page.locator("#change-preview")).to_contain_text(f"It begins at {begins:%Y-%m-%d %H:%M} UTC and is looked at again then.")
    found = visitor.axe()
    page.get_by_role("button", name="Schedule hold of 5 jobs").click()
    planned = page.get_by_role("region", name="Planned changes")
    expect(planned).to_contain_text("Hold 5 jobs")
    assert not Job.objects.filter(held_at__isnull=False).exists()
    found += visitor.axe()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    planned.get_by_role("button", name="Call off").click()
    expect(page.get_by_text("The planned change is called off.")).to_be_visible()
    expect(planned).to_be_hidden()
    assert [*visitor.watch.faults, *found] == []
