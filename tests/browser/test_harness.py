"""The harness itself: a window opens on the real console, and its faults are seen."""

import pytest

pytestmark = pytest.mark.browser


def test_a_live_console_answers_over_the_database_of_the_test(live_console, browser):
    visitor = live_console.visit(browser)

    response = visitor.open("/healthz")

    assert response is not None
    assert response.json() == {"status": "ok"}


def test_calls_go_through_another_thread(live_console):
    from asgiref.sync import async_to_sync

    async def answer() -> int:
        return 42

    assert live_console.do(lambda: async_to_sync(answer)()) == 42


def test_what_no_page_may_do_is_seen(live_console, browser):
    visitor = live_console.visit(browser)
    visitor.open("/healthz")

    visitor.page.evaluate("console.error('it broke')")
    visitor.page.evaluate("fetch('https://example.org/').catch(() => 0)")
    visitor.page.evaluate("fetch('/no-such-asset.js')")
    with visitor.page.expect_event("requestfailed"):
        visitor.page.evaluate("location.href = 'http://localhost:9/'")

    told = "\n".join(visitor.watch.faults)
    assert "it broke" in told
    assert "Content Security Policy" in told
    assert "third party: http://localhost:9/" in told
    assert "404 for" in told
