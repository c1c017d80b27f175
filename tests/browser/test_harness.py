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


PALE = '<span style="color:#ccc;background:#fff">pale</span>'
PAGE = """<!doctype html><html lang="en"><head><title>A list</title></head><body style="background:#fff"><header>{head}</header>
<main><h1>A list</h1><table>{rows}</table><p style="height:3000px">below</p></main></body></html>"""


def list_of(rows: int, *, pale: int = 0, head: str = "gpufleet") -> str:
    return PAGE.format(head=head, rows="".join(f"<tr><td>{PALE if row == pale else f'row {row}'}</td></tr>" for row in range(1, rows + 1)))


def test_axe_sees_the_first_rows_and_leaves_the_page_as_it_was(live_console, browser):
    page = (visitor := live_console.visit(browser)).page
    told = {}
    for pale in (12, 13):
        page.set_content(list_of(30, pale=pale))
        page.locator("td").nth(19).evaluate("cell => { cell.tabIndex = 0; cell.focus(); }")
        page.evaluate("scrollTo(0, 700)")
        told[pale] = [line.split(": ", 1)[1].split(" ")[0] for line in visitor.axe()]
        assert page.locator("td").all_inner_texts() == ["pale" if row == pale else f"row {row}" for row in range(1, 31)]
        assert page.evaluate("[scrollY, document.activeElement.textContent]") == [700, "row 20"]

    assert told == {12: ["color-contrast"], 13: []}


def test_axe_passes_over_a_shell_that_it_has_seen_to_the_letter(live_console, browser):
    visitor = live_console.visit(browser)
    visitor.page.set_content(list_of(1, head="seen before"))
    assert visitor.axe() == []
    for head, faults in (("seen before", 0), (PALE, 1), (PALE, 1)):
        visitor.page.set_content(list_of(2, head=head))
        assert len(visitor.axe()) == faults, head
        # On another screen and in other colours it is another one.
        visitor.page.set_content(list_of(2, head=f"{head}<style>@media (max-width: 500px) {{ header {{ color: #eee }} }}</style>"))
        visitor.axe()
        visitor.see(theme="light", size={"width": 400, "height": 800})
        assert visitor.axe() != []
        visitor.see(theme="light", size={"width": 1280, "height": 720})
