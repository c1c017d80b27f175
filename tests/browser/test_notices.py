"""The bell and the choices behind it, by keyboard alone, and the bell that rings while one looks."""

import random
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from gpufleet.core.models import User
from gpufleet.core.times import now
from scheduler.models import JobState, Notice, NoticeChoices
from scheduler.services.jobs.jobs import job_transition
from scheduler.services.notify.notices import Kind, Word, notice_say
from scheduler.services.notify.outbox import outbox_turn
from scheduler.services.notify.sending import sendings_turn
from tests import builders
from tests.browser.harness import CUT_TABLES, LiveConsole

pytestmark = pytest.mark.browser
PASSWORD = "correct horse battery"


@pytest.fixture
def root(transactional_db: None) -> User:
    builders.quota()
    return User.objects.create_superuser("root", "root@example.org", PASSWORD)


def tab_to(page: Page, target: Locator, most: int = 60) -> None:
    """Where the Tab key leads, as a person without a mouse finds it."""
    for _ in range(most):
        if target.evaluate("one => one === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"The Tab key does not lead to {target}.")


def test_the_bell_rings_on_a_page_that_one_looks_at(live_console: LiveConsole, browser: Browser, root: User) -> None:
    job = builders.job("train", owner=root, state=JobState.QUEUED)
    visitor = live_console.visit(browser, "root", password=PASSWORD)
    page = visitor.page
    visitor.open("/jobs/")
    expect(page.locator(".live-word")).to_have_text("Live")
    bell = page.locator("a.bell")
    expect(bell.locator(".bell-count")).to_be_hidden()

    live_console.do(job_transition, job=job, to=JobState.FAILED, now=now(), cause="Exit code 1.")
    live_console.do(outbox_turn, now=now())

    ringing = page.get_by_role("link", name="Notifications, 1 unread")
    expect(ringing).to_be_visible()
    ringing.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Notifications")).to_be_visible()
    tab_to(page, page.get_by_role("button", name="Mark read train failed"))
    page.keyboard.press("Enter")
    expect(page.locator("a.bell")).to_be_visible()
    assert Notice.objects.get().read_at is not None
    assert visitor.watch.faults == []


def test_choices_are_made_and_tried_by_keyboard(live_console: LiveConsole, browser: Browser, root: User, settings: Any, mailoutbox: Any) -> None:
    settings.EMAIL_HOST = "mail.example.org"
    visitor = live_console.visit(browser, "root", password=PASSWORD)
    page = visitor.page
    visitor.open("/notifications/settings/")

    tab_to(page, page.get_by_role("checkbox", name="A job failed: E-mail"))
    page.keyboard.press("Space")
    tab_to(page, page.get_by_role("checkbox", name="A job failed: also in quiet hours"))
    page.keyboard.press("Space")
    tab_to(page, page.get_by_label("Time zone"))
    page.keyboard.press("Control+A")
    page.keyboard.type("Europe/Berlin")
    tab_to(page, page.get_by_role("button", name="Save"))
    page.keyboard.press("Enter")
    expect(page.get_by_text("Your choices are saved.")).to_be_visible()
    row = NoticeChoices.objects.get()
    assert (row.ways["failed"], row.urgent, row.zone) == (["console", "email"], ["failed"], "Europe/Berlin")

    tab_to(page, page.get_by_role("button", name="Send me a test"))
    page.keyboard.press("Enter")
    expect(page.get_by_text("A test is on its way: console, e-mail.")).to_be_visible()
    expect(page.get_by_role("region", name="Log")).to_contain_text("Waiting")
    sendings_turn(clock=now, rng=random.Random(1))
    page.reload()
    expect(page.get_by_role("region", name="Log")).to_contain_text("Sent")
    assert [message.to for message in mailoutbox] == [["root@example.org"]]
    assert visitor.watch.faults == []


def test_the_pages_are_clean_on_a_phone(live_console: LiveConsole, browser: Browser, root: User) -> None:
    hook = builders.webhook(failing_since=now())
    delivery = builders.delivery(hook, excerpt="thank you", body='{"kind": "job.failed", "cause": "' + "long " * 50 + '"}')
    live_console.do(notice_say, kind=Kind.SCHEDULE, word=Word(root.pk, "Nightly evaluation is paused", "x" * 300, link="/schedules/"), now=now())
    visitor = live_console.visit(browser, "root", password=PASSWORD, theme="dark", viewport={"width": 390, "height": 844})

    for path in ("/webhooks/", "/webhooks/new/", f"/webhooks/{hook.public_id}/", f"/webhooks/{hook.public_id}/{delivery.public_id}/"):
        visitor.open(path)
        assert visitor.page.evaluate("document.documentElement.scrollWidth") <= 390, path
        assert visitor.axe() == [], path
    for path in ("/notifications/", "/notifications/settings/"):
        visitor.open(path)
        assert visitor.page.evaluate("document.documentElement.scrollWidth") <= 390, path
        assert visitor.page.evaluate(CUT_TABLES) == [], path
        assert visitor.axe() == [], path
    assert visitor.watch.faults == []
