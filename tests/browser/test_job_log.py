"""A worker's log on the page of its job and on its own: followed, searched in whole, jumped about in, and always only text."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from gpufleet.core.models import User
from gpufleet.core.times import now
from scheduler.backends.base import BackendError, LogPart, NotFound
from scheduler.models import Attempt, Job, JobState
from tests import builders
from tests.browser.harness import LiveConsole, Visitor, wait_for
from tests.scheduler.test_log_search import Kept

pytestmark = pytest.mark.browser
PASSWORD = "correct horse battery"
FILLING = b"".join(b"step %06d loss 0.12\n" % number for number in range(60_000))
HOSTILE = b"<b id=x>needle</b><script>document.title='owned'</script>\x1b[2J\n"


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    """More than one answer looks through, with what is looked for at both ends."""
    found = Kept(HOSTILE + 4 * FILLING + b"the last NEEDLE\nend\n")
    monkeypatch.setattr("scheduler.selectors.logs.backend_for", lambda cluster: found)
    return found


@pytest.fixture
def running(transactional_db: None) -> Job:
    found = builders.job("train", on=builders.quota("nlp", parent=builders.quota()), state=JobState.RUNNING)
    builders.placement(found, builders.gpu(), attempt=builders.attempt(found))
    return found


@pytest.fixture
def visit(live_console: LiveConsole, browser: Browser, running: Job) -> Iterator[Callable[..., Visitor]]:
    User.objects.create_superuser("root", "root@example.org", PASSWORD)

    def open_page(path: str, **options: Any) -> Visitor:
        visitor = live_console.visit(browser, "root", password=PASSWORD, **options)
        visitor.open(path)
        return visitor

    yield open_page


@pytest.mark.parametrize("path", [pytest.param("/jobs/{}/", marks=pytest.mark.soak), "/jobs/{}/log/"])
def test_the_whole_log_is_searched_and_followed_at_once(visit: Callable[..., Visitor], running: Job, kept: Kept, path: str) -> None:
    visitor = visit(path.format(running.public_id))
    page = visitor.page
    text, found, hits = page.locator("[data-log-text]"), page.locator("[data-log-found]"), page.locator("[data-log-hits] button")
    expect(text).to_contain_text("end")
    expect(text).not_to_contain_text("script")  # it is 5 MB before what is shown

    page.get_by_role("searchbox", name="Search the whole log").fill("needle")
    page.keyboard.press("Enter")
    expect(found).to_have_text("2 lines.")
    expect(hits).to_have_text([re.compile(r"^1<b id=x>needle</b><script>"), re.compile("^240,002the last NEEDLE$")])

    page.keyboard.press("Enter")
    expect(found).to_have_text("1 of 2 lines.")
    expect(page.locator("[data-log-where]")).to_have_text("Around line 1.")
    expect(text.locator(".log-hit")).to_contain_text("<b id=x>needle</b><script>")
    expect(text.locator(".log-hit mark")).to_have_text("needle")
    assert text.evaluate("node => [...new Set([...node.querySelectorAll('*')].map((one) => one.tagName))].sort()") == ["MARK", "SPAN"]
    assert page.title() != "owned"

    kept.data += b"a third needle\nmore\n"
    expect(found).to_have_text("1 of 3 lines.")
    expect(page.locator("[data-log-where]")).to_have_text("Around line 1. More was written since.")
    page.keyboard.press("Shift+Enter")
    expect(found).to_have_text("3 of 3 lines.")
    expect(text.locator(".log-hit")).to_have_text("a third needle\n")
    expect(hits.nth(2)).to_have_attribute("aria-current", "true")
    assert visitor.axe() == []

    page.get_by_role("button", name="Back to its end").click()
    expect(text.locator("mark")).to_have_text(["NEEDLE", "needle"])
    kept.data += b"it goes on\n"
    expect(text).to_contain_text("it goes on")
    with page.expect_download() as downloading:
        page.get_by_role("link", name="These lines").click()
    assert [line.partition(":")[0] for line in downloading.value.path().read_text().splitlines()] == ["1", "240002", "240004"]

    page.get_by_role("searchbox", name="Search the whole log").press("Escape")
    expect(found).to_be_empty()
    expect(text.locator("mark")).to_have_count(0)
    assert visitor.watch.faults == []


def test_what_is_before_is_shown_piece_by_piece_as_far_as_it_is_kept(visit: Callable[..., Visitor], running: Job, kept: Kept) -> None:
    kept.data = b"".join(b"line %05d\n" % number for number in range(20_000))
    kept.begins = len(b"line 00000\n") * 200
    visitor = visit(f"/jobs/{running.public_id}/log/")
    text, more = visitor.page.locator("[data-log-text]"), visitor.page.get_by_role("button", name="Show what is before")
    expect(text).to_contain_text("line 19999")
    expect(text).not_to_contain_text("line 10000")

    more.click()
    expect(text).to_contain_text("line 10000")
    expect(text).not_to_contain_text("line 05000")
    assert text.evaluate("node => node.scrollTop") > 0, "what one reads stays where it is"
    assert visitor.axe() == []
    more.click()
    expect(text).to_contain_text("line 05000")
    more.click()
    expect(visitor.page.locator("[data-log-note]")).to_have_text("What is older is no longer kept.")
    expect(more).to_be_hidden()
    assert text.inner_text().splitlines() == [f"line {number:05}" for number in range(200, 20_000)], "nothing twice and nothing left out"
    assert visitor.watch.faults == []


def test_why_there_is_nothing_is_told_in_its_own_words(visit: Callable[..., Visitor], running: Job, kept: Kept) -> None:
    fault: list[Exception] = [NotFound("x")]
    logs = kept.logs

    def broken(**asked: Any) -> LogPart:
        if fault:
            raise fault[0]
        return logs(**asked)

    kept.logs = broken  # type: ignore[method-assign]
    visitor = visit(f"/jobs/{running.public_id}/")
    note = visitor.page.locator("[data-log-note]")
    expect(note).to_have_text("It has written nothing yet.")
    fault[0] = BackendError("no route to it")
    expect(note).to_contain_text("can't give it now: no route to it Retrying.")
    assert visitor.axe() == []
    fault.clear()
    expect(visitor.page.locator("[data-log-text]")).to_contain_text("the last NEEDLE")
    expect(note).to_be_empty()

    Attempt.objects.update(ended_at=now())
    fault.append(NotFound("x"))
    visitor.open(f"/jobs/{running.public_id}/")
    expect(note).to_contain_text("The log is no longer kept")
    waiting = builders.job("waits", on=running.quota)
    visitor.open(f"/jobs/{waiting.public_id}/")
    expect(note).to_have_text("It has not been started yet.")
    expect(visitor.page.locator("[data-log-search]")).to_be_hidden()
    assert visitor.watch.faults == []


def test_the_search_reads_without_scripts(visit: Callable[..., Visitor], running: Job, kept: Kept) -> None:
    visitor = visit(f"/jobs/{running.public_id}/", java_script_enabled=False)
    page = visitor.page
    page.get_by_role("searchbox", name="Search the whole log").fill("needle")
    page.get_by_role("button", name="Search", exact=True).click()
    hits = page.locator("[data-log-served] li")
    expect(hits).to_have_count(1)
    expect(hits.first.locator("mark")).to_have_text("needle")
    page.get_by_role("link", name="Search on").click()
    expect(hits).to_have_count(1)
    hits.first.get_by_role("link").click()
    expect(page.locator("[data-log-text]")).to_contain_text("the last NEEDLE")
    wait_for(page, lambda: "at=" in page.url)
    assert visitor.watch.faults == []


@pytest.mark.parametrize("path", ["/jobs/{}/", pytest.param("/jobs/{}/log/?rank=1", marks=pytest.mark.soak)])
def test_one_rank_is_chosen_followed_and_searched(visit: Callable[..., Visitor], running: Job, kept: Kept, path: str) -> None:
    Job.objects.filter(pk=running.pk).update(launch={"command": ["python", "train.py"], "per": "gpu"})
    builders.placement(running, builders.gpu(), attempt=running.attempts.get())
    lines = [b"[%d] %d needle\n" % (number % 2, number) for number in range(30_000)]
    kept.data = b"".join(lines)
    visitor = visit(path.format(running.public_id))
    page = visitor.page
    text, found = page.locator("[data-log-text]"), page.locator("[data-log-found]")
    if "rank" not in path:
        expect(text).to_contain_text("[1] 29999 needle")
        page.get_by_label("Worker or rank").select_option("worker 0, rank 1")
        expect(page.get_by_role("link", name="On its own page")).to_have_attribute("href", re.compile("role=worker&index=0&rank=1$"))
    expect(text).not_to_contain_text("[")
    expect(text).to_contain_text("29999 needle")
    expect(text).not_to_contain_text("29998 needle")
    kept.data += b"[0] not mine\n[1] mine\n"
    expect(text).to_contain_text("mine")
    expect(text).not_to_contain_text("not")

    more = page.get_by_role("button", name="Show what is before")
    while more.is_visible():
        before = len(text.inner_text())
        more.click()
        wait_for(page, lambda before=before: len(text.inner_text()) > before)
    assert text.inner_text().splitlines() == [f"{number} needle" for number in range(1, 30_000, 2)] + ["mine"]

    page.get_by_role("searchbox", name="Search the whole log").fill("101 needle")
    page.keyboard.press("Enter")
    expect(found).to_have_text("30 lines.")
    page.keyboard.press("Enter")
    expect(page.locator("[data-log-where]")).to_contain_text("Around line 51.")
    expect(text.locator(".log-hit")).to_have_text("101 needle\n")
    assert visitor.axe() == []
    assert visitor.watch.faults == []
