"""The pages of jobs with hands on them: what changes by itself, what waits for the reader, and that they read without scripts."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import APIResponse, Browser, Page, Route, expect

from gpufleet.core.audit import SYSTEM
from gpufleet.core.models import User
from gpufleet.core.times import now
from quotas.permissions import access_for_user
from scheduler.backends.registry import backend_for
from scheduler.models import Gpu, Job, JobEvent, JobState, Order, PlanRecord
from scheduler.services.jobs.jobs import job_create, job_hold, job_transition
from scheduler.services.jobs.steering import scheduler_pause, scheduler_resume
from scheduler.services.jobs.submission import submission_create
from scheduler.services.loop.tick import Memory, tick_run
from tests import builders
from tests.browser.harness import COUNT_MUTATIONS, CUT_TABLES, LiveConsole, Visitor, wait_for
from tests.dashboards.worlds import readings

pytestmark = pytest.mark.browser
PASSWORD = "correct horse battery"


@pytest.fixture
def jobs(transactional_db: None) -> list[Job]:
    team = builders.quota("nlp", parent=builders.quota("research", parent=builders.quota()))
    node = builders.node("alpha", gpus=2)
    made = [builders.job(f"train-{number}", on=team, submitted_at=now()) for number in range(3)]
    builders.outlook(made[0], "needs 8 H100-SXM-80GB GPUs; 5 are free where it may run", "research uses all that it may")
    running = builders.job("running", on=team, state=JobState.RUNNING)
    builders.placement(running, node.gpus.first())
    builders.plan(decisions=[{"action": "start", "job": running.public_id, "workers": [], "why": {"code": "fits", "detail": "first"}}])
    return [*made, running]


@pytest.fixture
def visit(live_console: LiveConsole, browser: Browser, jobs: list[Job]) -> Iterator[Callable[..., Visitor]]:
    User.objects.create_superuser("root", "root@example.org", PASSWORD)

    def open_page(path: str, *, live: bool = True, **options: Any) -> Visitor:
        visitor = live_console.visit(browser, "root", password=PASSWORD, **options)
        frames: list[str] = []
        visitor.page.on("websocket", lambda socket: socket.on("framereceived", lambda payload: frames.append(str(payload))))
        visitor.open(path)
        if live:
            expect(visitor.page.locator(".live-word")).to_have_text("Live")
            # A heartbeat says "Live" as well. What changes before the page has joined its topic makes it ask for everything.
            wait_for(visitor.page, lambda: any('"joined"' in frame and '"bells"' not in frame for frame in frames))
        return visitor

    yield open_page


def submit(name: str, of: Job) -> Job:
    return job_create(
        name=name, quota=of.quota, owner=None, job_class="batch", spec=builders.spec_of(gpus=1), gpus_milli=1000, now=now(), actor=SYSTEM
    )


def names(page: Any) -> list[str]:
    return page.locator("#table-jobs tbody th a").all_inner_texts()


def pause(page: Page) -> None:
    page.get_by_role("button", name="Pause live updates").click()
    expect(page.locator(".live-word")).to_have_text("Paused")


def go_on(page: Page) -> None:
    # It keeps its name and says by `aria-pressed` which way it stands.
    page.get_by_role("button", name="Pause live updates").click()


def test_a_new_state_stands_in_its_row_without_a_reload(visit, live_console, jobs):
    page = visit("/jobs/").page
    page.evaluate("window.sameDocument = true")
    row = page.locator(f'tr[data-key="{jobs[1].public_id}"]')
    expect(row).to_contain_text("Queued")

    live_console.do(job_transition, job=jobs[1], to=JobState.RESERVED, now=now(), cause="promised")

    expect(row).to_contain_text("Reserved")
    assert page.evaluate("window.sameDocument") is True


def test_a_row_that_is_shown_is_asked_for_alone_and_one_that_left_the_list_goes(visit, live_console, jobs):
    page = visit("/jobs/?phase=waiting").page
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.partition("/jobs/")[2]))

    live_console.do(job_hold, job=jobs[0], now=now())
    expect(page.locator(f'tr[data-key="{jobs[0].public_id}"]')).to_contain_text("held", ignore_case=True)
    assert asked == [f"?phase=waiting&rows={jobs[0].public_id}"]

    live_console.do(job_transition, job=jobs[1], to=JobState.CANCELLED, now=now(), cause="not needed")
    expect(page.locator(f'tr[data-key="{jobs[1].public_id}"]')).to_have_count(0)
    assert asked[1:] == [f"?phase=waiting&rows={jobs[1].public_id}"], "the list was asked for its order, not for all of itself"


def test_on_a_phone_the_reason_stands_in_sight(visit, jobs):
    page = visit("/jobs/?phase=waiting", viewport={"width": 390, "height": 844}).page
    table = page.get_by_role("table")
    row = table.get_by_role("row").filter(has_text=jobs[0].public_id)

    box = row.locator(".job-line").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    expect(row.get_by_role("cell")).to_have_count(9)
    heads = table.get_by_role("columnheader")
    expect(heads).to_have_count(10)
    assert heads.evaluate_all("heads => heads.map(head => head.getBoundingClientRect().right).filter(right => right > 390)") == []


class Held:
    """Answers that were made in time and come late: `some` are those to `?rows=`, the others are the whole list."""

    def __init__(self, page: Page, *, some: bool) -> None:
        self.answers: list[tuple[Route, APIResponse]] = []
        self.holds = True
        page.route(lambda url: urlsplit(url).path == "/jobs/" and ("rows=" in url) == some, self._hold)

    def _hold(self, route: Route) -> None:
        if self.holds:
            self.answers.append((route, route.fetch()))
        else:
            route.continue_()

    def wait(self, page: Page) -> None:
        wait_for(page, lambda: self.answers)

    def let_go(self) -> None:
        self.holds = False
        for route, answer in self.answers:
            route.fulfill(response=answer)


def test_on_a_phone_one_gpu_is_one(visit, jobs):
    for row, milli in zip(jobs[:3], (1000, 500, 8000), strict=True):
        Job.objects.filter(pk=row.pk).update(gpus_milli=milli)
    page = visit("/jobs/", live=False, viewport={"width": 390, "height": 844}).page

    for row, told in zip(jobs[:3], ("1 GPU", "0.5 GPUs", "8 GPUs"), strict=True):
        cell = page.locator(f'tr[data-key="{row.public_id}"] .c-gpus')
        assert cell.evaluate("cell => cell.textContent.trim() + JSON.parse(getComputedStyle(cell, '::after').content)") == told


def test_new_rows_come_without_all_of_the_list(visit, live_console, jobs):
    page = visit("/jobs/").page
    page.mouse.move(0, 0)  # signing in may have left it where the list is now
    before = names(page)
    Held(page, some=False)

    for number in range(6):
        live_console.do(submit, f"newcomer-{number}", jobs[0])

    expect(page.locator("#table-jobs tbody tr").first).to_contain_text("newcomer-5")
    assert names(page) == [*(f"newcomer-{number}" for number in reversed(range(6))), *before]


def test_new_rows_that_are_told_one_at_a_time_come_all_the_same(visit, live_console, jobs):
    page = visit("/jobs/").page
    page.mouse.move(0, 0)
    Held(page, some=False)
    asked: list[str] = []

    def only_one(route: Route) -> None:
        asked.append(route.request.url)
        route.continue_(url=route.request.url.split("%2C")[0])

    page.route(lambda url: "rows=" in url, only_one)

    for number in range(4):
        live_console.do(submit, f"newcomer-{number}", jobs[0])

    expect(page.locator("#table-jobs tbody tr").first).to_contain_text("newcomer-3")
    assert any("%2C" in url for url in asked), "several were asked for at once"


def test_a_row_neither_waits_for_the_whole_list_nor_goes_back_with_it(visit, live_console, jobs):
    page = visit("/jobs/").page
    pause(page)
    live_console.do(submit, "first", jobs[0])
    held = Held(page, some=False)
    go_on(page)
    held.wait(page)
    row = page.locator(f'tr[data-key="{jobs[1].public_id}"]')

    live_console.do(job_transition, job=jobs[1], to=JobState.RESERVED, now=now(), cause="promised")
    live_console.do(submit, "second", jobs[0])

    expect(row).to_contain_text("Reserved")
    expect(page.locator("#table-jobs tbody tr").first).to_contain_text("second")
    assert len(held.answers) == 1, "all of it is still under way"
    row.evaluate("""row => {
        window.went_back = false;
        new MutationObserver(() => { window.went_back ||= row.innerText.includes("Queued") || !row.isConnected; })
            .observe(document.querySelector("#table-jobs"), {subtree: true, childList: true, characterData: true});
    }""")
    held.let_go()
    expect(page.locator(".tab-count").first).to_have_text("5")
    assert page.evaluate("window.went_back") is False
    assert names(page)[:2] == ["second", "first"]


def test_what_was_under_way_when_the_page_was_paused_comes_when_it_goes_on(visit, live_console, jobs):
    page = visit("/jobs/").page
    held = Held(page, some=True)
    live_console.do(job_transition, job=jobs[1], to=JobState.RESERVED, now=now(), cause="promised")
    held.wait(page)
    pause(page)
    page.evaluate(COUNT_MUTATIONS)
    with page.expect_response(lambda answer: "rows=" in answer.url):
        held.let_go()
    page.wait_for_timeout(3_500)  # longer than until the page would ask for all of itself
    assert page.evaluate("window.mutations") == 0

    go_on(page)

    expect(page.locator(f'tr[data-key="{jobs[1].public_id}"]')).to_contain_text("Reserved")


def test_a_question_that_failed_is_asked_again(visit, live_console, jobs):
    page = visit("/jobs/").page
    failed: list[str] = []

    def fail(route: Route) -> None:
        failed.append(route.request.url)
        route.abort()

    page.route(lambda url: "rows=" in url, fail)
    live_console.do(job_transition, job=jobs[1], to=JobState.RESERVED, now=now(), cause="promised")

    expect(page.locator(f'tr[data-key="{jobs[1].public_id}"]')).to_contain_text("Reserved")
    assert failed


def test_rows_come_by_themselves_but_never_under_the_pointer(visit, live_console, jobs):
    page = visit("/jobs/").page
    before, pointed_at = names(page), page.locator("#table-jobs tbody tr").nth(1)
    pointed_at.hover()
    place = pointed_at.bounding_box()

    live_console.do(submit, "newcomer", jobs[0])

    button = page.locator("[data-apply]")
    expect(button).to_be_visible()
    assert names(page) == before, "nothing moved under the pointer"
    assert pointed_at.bounding_box() == place, "the button that says so pushes nothing away either"
    button.press("Enter")  # a click would take the pointer off the table, and then the rows come by themselves
    expect(page.locator("#table-jobs tbody tr").first).to_contain_text("newcomer")
    page.mouse.move(0, 0)
    live_console.do(submit, "second", jobs[0])
    expect(page.locator("#table-jobs tbody tr").first).to_contain_text("second")


def test_the_page_of_a_job_follows_it(visit, live_console, jobs):
    page = visit(f"/jobs/{jobs[0].public_id}/").page
    expect(page.locator('[data-part="why"]')).to_contain_text("Needs 8 H100-SXM-80GB GPUs; 5 are free")

    live_console.do(job_transition, job=jobs[0], to=JobState.CANCELLED, now=now(), cause="Not needed any more.")

    expect(page.locator(".page-head")).to_contain_text("Cancelled")
    expect(page.locator('[data-part="why"]')).to_be_hidden()
    expect(page.locator(".timeline")).to_contain_text("Not needed any more.")


def test_what_the_pointer_is_on_waits_until_it_leaves(visit, live_console, jobs):
    page = visit(f"/jobs/{jobs[0].public_id}/").page
    page.locator('[data-part="history"]').hover()

    live_console.do(job_transition, job=jobs[0], to=JobState.CANCELLED, now=now(), cause="Not needed any more.")

    expect(page.locator("[data-apply]")).to_have_text("1 change – apply")
    expect(page.locator(".timeline")).not_to_contain_text("Not needed")
    page.mouse.move(0, 0)
    expect(page.locator(".timeline")).to_contain_text("Not needed")
    expect(page.locator("[data-apply]")).to_be_hidden()


@pytest.mark.parametrize("place", ["/jobs/", "/jobs/{}/"])
def test_a_scheduler_that_is_paused_is_said_at_once_and_so_is_that_it_goes_on(visit, live_console, jobs, place):
    page = visit(place.format(jobs[1].public_id)).page
    root = access_for_user(User.objects.get(username="root"))
    said = "once it is resumed" if "{}" in place else "The rack is moved."
    expect(page.get_by_text(said)).to_have_count(0)

    live_console.do(scheduler_pause, access=root, reason="The rack is moved.", now=now())
    expect(page.get_by_text(said)).to_be_visible()
    live_console.do(scheduler_resume, access=root, reason="", now=now())
    expect(page.get_by_text(said)).to_have_count(0)


def test_while_paused_nothing_moves_and_going_on_catches_up(visit, live_console, jobs):
    page = visit("/jobs/").page
    pause(page)
    live_console.do(submit, "newcomer", jobs[0])
    live_console.do(job_transition, job=jobs[1], to=JobState.RESERVED, now=now(), cause="promised")
    page.wait_for_timeout(1_500)
    assert "newcomer" not in " ".join(names(page))

    go_on(page)

    expect(page.locator("#table-jobs tbody tr").first).to_contain_text("newcomer")
    expect(page.locator(f'tr[data-key="{jobs[1].public_id}"]')).to_contain_text("Reserved")


def test_the_pages_read_without_scripts(visit, jobs):
    visitor = visit("/jobs/", live=False, java_script_enabled=False)
    expect(visitor.page.locator("#table-jobs")).to_contain_text("Too few GPUs free.")
    visitor.open(f"/jobs/{jobs[0].public_id}/")
    expect(visitor.page.locator('[data-part="why"]')).to_contain_text("Research uses all that it may.")
    visitor.open("/scheduler/")
    expect(visitor.page.locator("#table-plans")).to_contain_text("Carried out")


@pytest.fixture
def gang(jobs: list[Job]) -> Job:
    """It asks for more than the fleet has, and two of its workers would fit."""
    spec = {"roles": [{"name": "worker", "min": 8, "gpus": 1, "gpu_types": ["H100-SXM-80GB"]}]}
    return builders.job("gang", on=jobs[0].quota, submitted_at=now(), gpus_milli=8000, spec=spec)


@pytest.mark.parametrize("width", [1280, pytest.param(390, marks=pytest.mark.soak)])
def test_what_would_start_it_sooner_comes_after_the_page_and_leads_to_the_form(visit, live_console, gang, width):
    visitor = visit(f"/jobs/{gang.public_id}/", viewport={"width": width, "height": 800})
    page = visitor.page
    panel = page.locator("[data-sooner]")

    expect(panel).to_contain_text("With 1 worker: now")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert visitor.axe() == []
    panel.get_by_role("link", name="With 1 worker").focus()
    page.keyboard.press("Enter")
    expect(page.locator('[name="roles[0].min"]')).to_have_value("1")
    expect(page.locator(".submit-change")).to_contain_text("was 8")
    expect(page.locator("#change-preview")).to_contain_text("Workers at least 8 → 1")
    assert visitor.axe() == []
    page.locator('[name="priority"]').fill("60")
    expect(page.locator("#change-preview")).to_contain_text("Priority 50 → 60, workers at least 8 → 1")
    page.get_by_role("button", name="Apply").click()
    expect(page.locator("h1")).to_have_text("gang")
    assert Job.objects.get(pk=gang.pk).spec["roles"][0]["min"] == 1
    assert visitor.watch.faults == []


def test_once_it_waits_no_more_nothing_would_start_it_sooner(visit, live_console, gang):
    page = visit(f"/jobs/{gang.public_id}/").page
    expect(page.locator("[data-sooner]")).to_contain_text("With 1 worker")

    live_console.do(job_transition, job=gang, to=JobState.CANCELLED, now=now(), cause="Enough.")

    expect(page.locator("[data-sooner]")).to_be_hidden()


def test_without_scripts_a_link_leads_to_what_would_start_it_sooner(visit, gang):
    visitor = visit(f"/jobs/{gang.public_id}/", live=False, java_script_enabled=False)
    visitor.page.get_by_role("link", name="Changes that start it sooner").click()
    expect(visitor.page.locator("main")).to_contain_text("With 1 worker: now")


def test_axe_finds_nothing_on_jobs_in_any_state(visit, jobs):
    JobEvent.objects.create(job=jobs[3], at=now(), cause="Told to save its work.")
    builders.job("over", on=jobs[0].quota, state=JobState.FAILED)
    builders.job("held", on=jobs[0].quota, held_at=now())
    visitor = visit("/jobs/", theme="dark")
    found = visitor.axe()
    for address in (*(f"/jobs/{job.public_id}/" for job in Job.objects.all()), "/scheduler/", f"/scheduler/plans/{PlanRecord.objects.get().pk}/"):
        visitor.open(address)
        found += visitor.axe()

    assert [*visitor.watch.faults, *found] == []


@pytest.mark.parametrize("options", [{"theme": "light"}, {"theme": "dark", "viewport": {"width": 390, "height": 844}}], ids=["desk", "phone"])
def test_the_replicas_of_a_service_are_set_after_a_look(visit, jobs, options):
    spec = builders.spec_of({"roles": [{"name": "server", "min": 1, "max": 4, "gpus": 1}]})
    served = builders.job("serve", on=jobs[0].quota, state=JobState.RUNNING, job_class="inference", spec=spec, gpus_milli=1000)
    builders.placement(served, Gpu.objects.order_by("id")[1], role="server")
    visitor = visit(f"/jobs/{served.public_id}/", **options)
    page, found = visitor.page, visitor.axe()

    page.get_by_role("link", name="Set replicas").click()
    page.get_by_label("Replicas wanted").fill("5")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_label("Replicas wanted")).to_have_attribute("aria-invalid", "true")
    found += visitor.axe()
    page.get_by_label("Replicas wanted").fill("2")
    expect(page.get_by_text("Replicas wanted 4 → 2")).to_be_visible()
    found += visitor.axe()
    page.get_by_role("button", name="Apply").click()
    expect(page.locator('[data-part="replicas"]')).to_contain_text("of 2 wanted")
    assert found == []


def test_the_log_grows_on_the_page_and_stays_text(visit, live_console, jobs):
    team, home = jobs[0].quota, builders.cluster()

    def start() -> Job:
        root = access_for_user(User.objects.get(username="root"))
        wish = {"name": "writes", "quota": team.path, "gpus": 1, "work_s": 3600, "launch": {"simulated": {"load_s": 0}}}
        (made,) = submission_create(access=root, description=wish, now=now(), actor=root.actor)
        untold = Order.objects.filter(attempt__job=made, done_at__isnull=True)
        for _ in range(20):  # what a back-end does not take at once it is told again when that is due
            tick_run(holder="test", now=max([now(), *untold.values_list("due_at", flat=True)]), backends={home.pk: backend_for(home)})
            if made.attempts.exists() and not untold.exists():
                break
        return made

    visit("/jobs/")  # makes the superuser's window, and so its session
    writes = live_console.do(start)
    visitor = visit(f"/jobs/{writes.public_id}/")
    log = visitor.page.locator("[data-log-text]")

    expect(log).not_to_be_empty()
    assert log.evaluate("node => node.children.length") == 0
    assert [*visitor.watch.faults, *visitor.axe()] == []
    visitor.open(f"/jobs/{writes.public_id}/log/")
    assert visitor.axe() == []
    visitor.open(f"/jobs/{writes.public_id}/cancel/")
    assert [*visitor.watch.faults, *visitor.axe()] == []


@pytest.mark.parametrize("width", [pytest.param(1280, marks=pytest.mark.soak), 390])
def test_jobs_are_chosen_and_steered_after_a_look(visit, jobs, width):
    visitor = visit("/jobs/?phase=waiting", viewport={"width": width, "height": 844})
    page = visitor.page
    bar = page.get_by_role("form", name="Chosen jobs")
    expect(bar).to_be_hidden()

    page.get_by_role("checkbox", name=f"Choose {jobs[2].public_id}").check()
    page.get_by_role("checkbox", name=f"Choose {jobs[0].public_id}").click(modifiers=["Shift"])
    expect(bar.get_by_role("status")).to_have_text("3 jobs chosen")
    expect(page.get_by_label("Choose all rows of this page")).to_be_checked()
    page.get_by_role("checkbox", name=f"Choose {jobs[1].public_id}").uncheck()
    expect(bar.get_by_role("status")).to_have_text("2 jobs chosen")
    bar.get_by_label("What to do with them").select_option("priority")
    bar.get_by_role("spinbutton", name="Priority").fill("80")
    assert visitor.axe() == []
    bar.get_by_role("button", name="Preview", exact=True).click()

    expect(page.get_by_role("heading", level=1)).to_have_text("Change the priority of 2 jobs?")
    assert page.evaluate(CUT_TABLES) == []
    assert visitor.axe() == []
    assert set(Job.objects.values_list("priority", flat=True)) == {50}
    page.get_by_role("spinbutton", name="Priority").fill("85")  # the preview follows what is typed
    expect(page.locator("#change-preview")).to_contain_text("Priority 50 becomes 85.")
    page.get_by_role("button", name="Change the priority of 2 jobs").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Changed the priority of 2 jobs")
    assert visitor.axe() == []
    assert list(Job.objects.order_by("id").values_list("priority", flat=True)) == [85, 50, 85, 50]
    assert visitor.watch.faults == []


@pytest.mark.parametrize("width", [1280, pytest.param(390, marks=pytest.mark.soak)])
def test_a_change_of_jobs_is_planned_with_its_effect_shown_and_called_off(visit, jobs, width):
    visitor = visit("/jobs/?phase=waiting", viewport={"width": width, "height": 844})
    page, begins = visitor.page, now() + timedelta(hours=3)
    for chosen in jobs[:2]:
        page.get_by_role("checkbox", name=f"Choose {chosen.public_id}").check()
    bar = page.get_by_role("form", name="Chosen jobs")
    bar.get_by_label("What to do with them").select_option("hold")
    bar.get_by_role("button", name="Preview", exact=True).click()

    preview = page.locator("#change-preview")
    page.get_by_label("Begins (UTC)").fill("2020-01-01T00:00")
    page.get_by_label("Reason").focus()
    expect(preview).to_contain_text("The time must be in the future.")
    page.get_by_label("Begins (UTC)").fill(f"{begins:%Y-%m-%dT%H:%M}")
    page.get_by_label("Reason").fill("night window")
    expect(preview).to_contain_text(f"It begins at {begins:%Y-%m-%d %H:%M} UTC and is looked at again then.")
    assert visitor.axe() == []
    button = page.get_by_role("main").locator("#change-button")
    expect(button).to_have_text("Schedule hold of 2 jobs")
    page.get_by_label("Begins (UTC)").fill("")
    page.get_by_label("Reason").focus()
    expect(button).to_have_text("Hold 2 jobs")
    page.get_by_label("Begins (UTC)").fill(f"{begins:%Y-%m-%dT%H:%M}")
    page.get_by_label("Reason").focus()
    page.get_by_role("button", name="Schedule hold of 2 jobs").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Planned changes")
    expect(page.get_by_role("main")).to_contain_text("night window")
    assert not Job.objects.filter(held_at__isnull=False).exists()
    assert visitor.axe() == []

    page.get_by_role("main").get_by_role("link", name=jobs[0].public_id).click()
    panel = page.locator("[data-part=planned]")
    expect(panel).to_contain_text("Hold 2 jobs")
    assert visitor.axe() == []
    panel.get_by_role("button", name="Call off").click()
    expect(page.get_by_role("main")).to_contain_text("1 other job stays planned.")
    expect(panel).to_be_hidden()
    visitor.open("/jobs/")
    page.get_by_role("link", name="Planned").click()
    expect(page.get_by_role("main")).to_contain_text("Hold 1 job")
    assert visitor.watch.faults == []


def test_by_keyboard_alone_rows_are_chosen_and_keep_it_while_the_list_is_live(visit, live_console, jobs):
    page = visit("/jobs/?phase=waiting").page
    page.keyboard.press("j")
    page.keyboard.press("x")
    page.keyboard.press("j")
    page.keyboard.press("x")
    bar = page.get_by_role("form", name="Chosen jobs")
    expect(bar.get_by_role("status")).to_have_text("2 jobs chosen")
    live_console.do(job_hold, job=jobs[2], now=now())
    expect(page.locator(f'tr[data-key="{jobs[2].public_id}"]')).to_contain_text("held", ignore_case=True)
    expect(page.get_by_role("checkbox", name=f"Choose {jobs[2].public_id}")).to_be_checked()
    page.keyboard.press("x")
    expect(bar.get_by_role("status")).to_have_text("1 job chosen")
    page.keyboard.press("b")
    page.keyboard.press("Tab")  # past the choice of what to do
    page.keyboard.press("Enter")

    expect(page.get_by_role("heading", level=1)).to_contain_text("Cancel train")


def test_a_priority_that_is_missing_is_said_at_its_field_and_what_was_chosen_stays(visit, jobs):
    page = visit("/jobs/?phase=waiting&q=train").page
    box = page.get_by_role("checkbox", name=f"Choose {jobs[0].public_id}")
    box.check()
    page.get_by_label("What to do with them").select_option("priority")
    page.get_by_role("button", name="Preview", exact=True).click()

    number = page.get_by_role("spinbutton", name="Priority")
    expect(number).to_be_focused()
    expect(box).to_be_checked()
    number.fill("2000")
    page.get_by_role("button", name="Preview", exact=True).click()
    expect(box).to_be_checked()
    number.fill("80")
    page.get_by_role("button", name="Preview", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Change the priority of train")


def test_without_scripts_the_boxes_and_the_bar_are_a_form(visit, jobs):
    page = visit("/jobs/?phase=waiting&q=train", live=False, java_script_enabled=False).page
    page.get_by_role("checkbox", name=f"Choose {jobs[0].public_id}").check()
    page.get_by_label("What to do with them").select_option("hold")
    page.get_by_role("button", name="Preview", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Hold train")
    page.go_back()
    page.get_by_role("button", name="Preview for all that match").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("3 jobs")


@pytest.mark.parametrize("options", [{}, pytest.param({"viewport": {"width": 390, "height": 844}}, marks=pytest.mark.soak)])
def test_a_view_is_saved_as_the_list_is_filtered_now_and_marked_where_it_is_shown(visit, jobs, options):
    visitor = visit("/jobs/", **options)
    page = visitor.page
    page.locator("#table-jobs [data-search]").fill("train-1")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=train-1*")
    expect(page.locator("#table-jobs tbody tr")).to_have_count(1)  # what is drawn anew keeps the focus where it was
    page.locator(".view-save summary").press("Enter")
    page.get_by_role("textbox", name="Name").fill("Only <one>")
    assert visitor.axe() == []
    page.keyboard.press("Enter")

    link = page.get_by_role("navigation", name="Saved views").get_by_role("link", name="Only <one>")
    expect(link).to_have_attribute("aria-current", "page")
    assert names(page) == ["train-1"]
    page.get_by_role("link", name="Clear filters").click()
    expect(link).not_to_have_attribute("aria-current", "page")
    page.locator(".view-save summary").click()
    page.get_by_role("link", name="Views", exact=True).click()
    page.get_by_text("Change Only <one>").press("Enter")
    assert visitor.axe() == []
    page.get_by_label("Open the list with it").check()
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("the list opens with it")).to_be_visible()
    visitor.open("/jobs/")
    page.wait_for_url("**q=train-1*")
    assert visitor.axe() == []
    assert visitor.watch.faults == []


def line_up(name: str, like: Job, priority: int) -> Job:
    """A job for one GPU, and a plan that has seen it."""
    made = job_create(
        name=name,
        quota=like.quota,
        owner=None,
        job_class="batch",
        spec={"roles": [{"name": "worker", "min": 1, "gpus": 1}]},
        gpus_milli=1000,
        now=now(),
        actor=SYSTEM,
    )
    Job.objects.filter(pk=made.pk).update(priority=priority)
    tick_run(holder="browser", now=now(), backends={}, memory=Memory())
    return made


def test_the_queue_follows_who_comes_but_not_under_the_pointer(visit, live_console, jobs):
    Job.objects.filter(pk__in=[job.pk for job in jobs[:3]]).delete()
    live_console.do(line_up, "holder", jobs[3], 50)  # has the one GPU that is left
    live_console.do(line_up, "patient", jobs[3], 50)
    page = visit("/jobs/queue/").page
    page.get_by_role("button", name="Filter", exact=True).click()
    team = page.locator('.filters [name="team"]')
    team.press_sequentially("nl")
    expect(page.locator("datalist option")).to_have_count(1)
    expect(page.locator("datalist option")).to_have_attribute("value", jobs[0].quota.path)
    team.press("ControlOrMeta+a")
    team.press("Backspace")
    page.keyboard.press("Escape")
    rows = page.locator("#table-queue tbody tr")
    expect(rows).to_have_count(1)
    rows.first.hover()

    live_console.do(line_up, "urgent", jobs[3], 90)

    expect(page.locator("[data-apply]")).to_have_text("1 change – apply", timeout=20_000)
    expect(rows).to_have_count(1)
    page.mouse.move(0, 0)
    expect(rows.first).to_contain_text("urgent")
    expect(rows.first).to_have_attribute("role", "row")
    expect(rows.nth(1)).to_contain_text("2 of its team")
    expect(page.locator(".pager-extent")).to_contain_text("1–2 of 2 jobs")


def test_how_busy_a_job_is_follows_its_gpus_though_the_job_itself_stays_as_it_is(visit, live_console, jobs):
    held = builders.job("held", on=jobs[3].quota, state=JobState.RUNNING)
    gpu = jobs[3].placements.get().gpu.node.gpus.last()
    builders.placement(held, gpu)
    readings({gpu: 10}, at=now())
    page = visit(f"/jobs/{held.public_id}/").page
    page.clock.install()
    page.reload()
    expect(page.locator('[data-part="usage"]')).to_contain_text("0.1 busy (10%)")

    live_console.do(readings, {gpu: 90}, at=now())
    page.clock.run_for(10_000)

    expect(page.locator('[data-part="usage"]')).to_contain_text("0.9 busy (90%)")
