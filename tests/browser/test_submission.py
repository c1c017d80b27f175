"""Submitting with hands on it: a preset in two clicks or by keyboard alone, what stands beside the form while one types, and no fault of axe."""

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from gpufleet.core.models import User
from gpufleet.core.times import now
from quotas.models import QuotaNode, QuotaShare
from quotas.permissions import access_for_user
from scheduler.models import Cluster, Job, JobDraft, JobState, Schedule
from scheduler.services.jobs.templates import template_save
from tests import builders
from tests.browser.harness import TWO_FRAMES, LiveConsole, Visitor, wait_for

pytestmark = pytest.mark.browser
PASSWORD = "correct horse battery"
H100 = "H100-SXM-80GB"
SHOTS = os.environ.get("TEST_SHOTS", "")  # a folder for pictures to look at


@pytest.fixture
def visit(live_console: LiveConsole, browser: Browser) -> Iterator[Callable[..., Visitor]]:
    team = builders.quota("nlp", parent=builders.quota("research", parent=builders.quota()))
    for node in (team, team.parent, team.parent.parent):
        QuotaShare.objects.create(node=node, gpu_type=H100, guaranteed_milli=16_000)
    for name in ("alpha", "beta"):
        builders.node(name, gpus=8)
    User.objects.create_superuser("root", "root@example.org", PASSWORD)

    def open_page(path: str, **options: Any) -> Visitor:
        visitor = live_console.visit(browser, "root", password=PASSWORD, **options)
        visitor.open(path)
        return visitor

    yield open_page


def shot(visitor: Visitor, name: str) -> None:
    if SHOTS:
        visitor.page.screenshot(path=Path(SHOTS) / f"{name}.png", full_page=True)


def unfold(page: Any, *sections: str) -> None:
    for section in sections:
        page.get_by_role("heading", name=section, exact=True).click()


def verdict(page: Any) -> Any:
    return page.locator("#fit [data-verdict]")


def test_a_preset_is_submitted_in_two_clicks_within_ten_seconds(visit):
    visitor = visit("/jobs/new/")
    page = visitor.page
    expect(page.get_by_role("link", name="Notebook")).to_contain_text("1 GPU")
    expect(page.locator('[data-preset="serving"]')).to_have_text("Starts now")
    began = time.monotonic()

    page.get_by_role("link", name="Notebook").click()
    expect(page.locator("h1")).to_have_text("Submit by Notebook")  # the page before has such a button, too
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.locator("h1")).to_have_text("notebook")

    assert time.monotonic() - began < 10
    made = Job.objects.get()
    assert (made.name, made.job_class, made.state, made.quota.path) == ("notebook", "interactive", JobState.QUEUED, "acme/research/nlp")
    assert visitor.watch.faults == []


def test_a_preset_that_was_filled_stays_so_until_an_answer_is_whole(visit):
    """What was found is kept for a reading of the fleet: after another one an answer in part lacks it."""
    visitor = visit("/jobs/queue/")
    page = visitor.page
    asked: list[Any] = []
    page.route("**/jobs/new/presets", lambda route: asked.append(route))
    visitor.open("/jobs/new/")

    def cards(answer: dict[str, Any], notebook: str, serving: str) -> None:
        wait_for(page, lambda: asked)
        asked.pop().fulfill(json=answer)
        if "again" in answer:
            wait_for(page, lambda: asked)  # what was answered is on the page
        expect(page.locator('[data-preset="notebook"]')).to_have_text(notebook)
        expect(page.locator('[data-preset="serving"]')).to_have_text(serving)

    cards({"presets": {"notebook": "Starts now"}, "again": 1}, "Starts now", "")
    cards({"presets": {"serving": "Starts in 5 min"}, "again": 1}, "Starts now", "Starts in 5 min")
    cards({"presets": {}, "again": 1}, "Starts now", "Starts in 5 min")
    cards({"presets": {"serving": "Starts now"}}, "", "Starts now")
    assert visitor.watch.faults == []


@pytest.mark.parametrize("pressed", ["Submit", "Submit by Notebook"])
def test_an_answer_that_comes_while_the_pointer_is_pressed_moves_nothing_under_it(visit, pressed):
    """It is longer than what it replaces, above the button: what moves away between press and release is not clicked."""
    visitor = visit("/jobs/new/")
    page = visitor.page
    held: list[Any] = []
    page.route("**/jobs/new/look", lambda route: held.append((route, route.fetch())))
    page.get_by_role("link", name="Notebook").click()
    button = page.get_by_role("button", name="Submit", exact=True)
    expect(button).to_be_focused()
    wait_for(page, lambda: held)
    expect(page.locator("#fit")).to_have_text("Checking when and where it starts…")  # that moves the button, too, before it is pressed
    (button if pressed == "Submit" else page.get_by_role("heading", name=pressed)).hover()
    page.mouse.down()
    with page.expect_response("**/jobs/new/look") as answer:
        held[0][0].fulfill(response=held[0][1])
    answer.value.finished()
    page.evaluate(TWO_FRAMES)
    page.mouse.up()

    if pressed == "Submit":
        expect(page.locator("h1")).to_have_text("notebook")
    else:
        expect(verdict(page)).to_have_text("Starts now")
    assert visitor.watch.faults == []


def test_a_slow_answer_is_announced_in_the_place_of_what_was_typed_before(visit):
    page = visit("/jobs/new/").page
    held: list[Any] = []
    page.route("**/jobs/new/look", lambda route: held.append(route))
    expect(page.locator("#fit")).to_contain_text("Fill in the job")
    page.get_by_label("Name", exact=True).fill("slow")
    page.get_by_label("GPUs of each worker").fill("1")
    expect(page.locator("#fit")).to_have_text("Checking when and where it starts…")

    page.route("**/jobs/new/look", lambda route: route.continue_())  # the words may be of the request without GPUs, and the other may still come
    for route in held:
        route.continue_()
    expect(verdict(page)).to_have_text("Starts now")

    page.route("**/jobs/new/look", lambda route: route.abort())
    page.get_by_label("GPUs of each worker").fill("99")
    expect(page.locator("[data-say]")).to_have_text("The console did not answer. What you see may be old.")
    expect(verdict(page)).to_have_text("Starts now")


@pytest.mark.parametrize("width", [390, 1280])
def test_a_draft_with_a_long_name_keeps_the_page_as_wide_as_the_screen(visit, width):
    JobDraft.objects.create(user=User.objects.get(), public_id="d-1", name="x" * 120, text="")
    page = visit("/jobs/new/", viewport={"width": width, "height": 844}).page

    expect(page.get_by_role("link", name="x" * 120)).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("saved", [False, True], ids=["typed", "saved"])
def test_what_is_submitted_leaves_no_unfinished_draft(visit, saved):
    visitor = visit("/jobs/new/")
    page = visitor.page
    page.get_by_label("Name", exact=True).fill("whole")
    page.get_by_label("GPUs of each worker").fill("1")
    if saved:
        expect(page.locator("[data-saved]")).to_have_text("Draft saved", timeout=20_000)
        assert JobDraft.objects.count() == 1
    page.get_by_role("button", name="Keep as a draft").click()
    expect(page.locator("h1")).to_have_text("whole")
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.locator(".page-sub")).to_contain_text("Queued")

    page.goto(page.url.rsplit("/jobs/", 1)[0] + "/jobs/new/")
    expect(page.get_by_role("heading", name="Submit a job")).to_be_visible()
    assert (JobDraft.objects.count(), Job.objects.get().state) == (0, JobState.QUEUED)
    assert visitor.watch.faults == []


def test_a_preset_is_submitted_by_keyboard_alone(visit):
    page = visit("/jobs/").page
    began = time.monotonic()

    page.keyboard.press("g")
    page.keyboard.press("u")
    page.wait_for_url("**/jobs/new/")
    for _ in range(40):
        page.keyboard.press("Tab")
        if "Fine-tune" in (page.evaluate("document.activeElement.textContent") or ""):
            break
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs/new/?template=fine-tune")
    expect(page.locator("[data-submit]")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("fine-tune")

    assert time.monotonic() - began < 10
    assert Job.objects.get().gpus_milli == 1000


def test_a_job_is_made_to_recur_with_its_times_told_as_one_types(visit):
    visitor = visit("/jobs/new/")
    page = visitor.page
    page.get_by_label("Name", exact=True).fill("nightly")
    page.get_by_label("GPUs of each worker").fill("1")
    page.get_by_role("heading", name="Repeat").click()
    expect(page.locator("[data-due]")).to_have_text("The job is submitted once.")
    due = page.get_by_label("Due", exact=True)
    expect(page.get_by_label("Time zone")).to_be_hidden()
    due.select_option("cron")
    page.get_by_label("Cron expression").fill("61 2 * * *")
    expect(page.get_by_text("The minute can't be 61.")).to_be_visible()
    due.select_option("week")
    page.get_by_label("Time", exact=True).fill("02:30")
    page.get_by_label("Time zone").fill("Europe/Berlin")
    expect(page.locator("[data-due] li")).to_have_count(3)
    expect(page.locator("[data-due]")).to_contain_text(", 02:30")
    expect(page.locator("[data-due]")).to_contain_text("30 2 * * *")
    expect(page.get_by_text("The minute can't be 61.")).to_have_count(0)
    expect(verdict(page)).to_have_text("Starts now")
    expect(page.locator("[data-command]")).to_contain_text("gpufleet schedule add - --cron='30 2 * * *' --zone=Europe/Berlin")
    assert visitor.axe() == []
    shot(visitor, "repeat")
    expect(page.get_by_role("button", name="Keep as a draft")).to_be_hidden()
    # Without it the job is submitted once again.
    due.select_option("")
    expect(page.get_by_role("button", name="Submit", exact=True)).to_be_visible()
    due.select_option("week")
    for day in ("Sat", "Sun"):
        page.get_by_label(day, exact=True).uncheck()
    page.get_by_label("Time", exact=True).fill("06:00")
    page.get_by_label("Time zone").fill("")
    page.get_by_role("button", name="Create schedule").click()
    expect(page.locator("h1")).to_have_text("nightly")

    made = Schedule.objects.get()
    assert (made.cron, made.zone, made.description) == ("0 6 * * MON-FRI", "UTC", {"name": "nightly", "gpus": 1})
    assert not Job.objects.exists()
    assert visitor.watch.faults == []


def test_as_one_types_yaml_fit_and_faults_follow(visit):
    visitor = visit("/jobs/new/")
    page = visitor.page
    page.get_by_label("Name", exact=True).fill("train")
    page.get_by_label("GPUs of each worker").fill("8")
    expect(verdict(page)).to_have_text("Starts now")
    expect(page.locator("#yaml")).to_have_value("name: train\nquota: acme/research/nlp\ngpus: 8\n")
    expect(page.locator("#fit .places-picture")).to_contain_text("alpha")
    shot(visitor, "now")

    page.get_by_label("Workers", exact=True).fill("3")
    expect(verdict(page)).to_have_text("Never starts like this")
    better = page.get_by_role("button", name=re.compile("Use it.*With 2 workers"))
    shot(visitor, "never")
    better.click()
    expect(verdict(page)).to_have_text("Starts now")
    expect(page.get_by_label("Workers", exact=True)).to_have_value("2")

    page.locator("#f-gpu-types").fill("Z9")
    unfold(page, "Class, priority and run time")
    page.locator("#f-priority").fill("high")
    fault = page.locator('[data-path="gpu_types"] .error')
    expect(fault).to_have_text(f"The fleet knows no Z9; it knows {H100}.")
    expect(page.locator('[data-path="priority"] .error')).to_have_text("A whole number is wanted.")
    expect(page.locator("#f-priority")).to_have_attribute("aria-invalid", "true")
    shot(visitor, "faults")
    expect(page.locator("[data-saved]")).to_have_text("Draft saved", timeout=8_000)
    assert JobDraft.objects.get().name == "train"
    assert visitor.watch.faults == []


def test_a_yaml_that_is_half_typed_empties_no_form(visit):
    """Every bracket is open for a moment. Whoever then goes on in the form must not begin anew."""
    page = visit("/jobs/new/?template=notebook").page
    yaml, name = page.get_by_label("Job as YAML"), page.get_by_label("Name", exact=True)
    expect(name).to_have_value("notebook")
    unfold(page, "YAML")
    with page.expect_response("**/jobs/new/look"):
        yaml.fill("name: [\n")
    expect(page.get_by_text("this is not valid YAML")).to_be_visible()
    expect(name).to_have_value("notebook")

    with page.expect_response("**/jobs/new/look"):
        page.get_by_label("Priority").fill("70")
    expect(yaml).to_have_value(re.compile(r"name: notebook\n(.*\n)*priority: 70\n(.*\n)*gpus: 1\n"))
    expect(page.get_by_text("this is not valid YAML")).to_be_hidden()


@pytest.mark.parametrize("scripts", [True, False])
def test_the_summary_of_faults_leads_to_each_field(visit, scripts):
    """Many at once, from the YAML: nothing typed is lost, and each is a link away, also in a section that was closed."""
    visitor = visit("/jobs/new/", java_script_enabled=scripts)
    page = visitor.page
    text = "name: ''\nquota: none\ngpus: 99\npriority: 5000\nretries: -1\ngrace_s: -1\nroles: [{gpus: -2}]\ncolour: red\n"
    unfold(page, "YAML")
    page.get_by_label("Job as YAML").fill(text)
    if scripts:
        expect(page.locator("[data-count]")).to_contain_text("problems to fix")
        page.get_by_text("Where", exact=True).click()
        page.get_by_role("link", name="Grace").click()
        expect(page.get_by_label("Grace")).to_be_focused()
        page.get_by_role("button", name="Submit", exact=True).click()
        expect(page.locator("[data-others]")).to_be_focused()
    else:
        page.get_by_role("button", name="Submit the YAML").click()

    assert page.get_by_label("Job as YAML").input_value().strip() == text.strip()
    where = page.locator("[data-fault-links]")
    wanted = {"Name", "Team", "GPUs of each worker", "Priority", "Retries", "Grace", "GPUs each, role 1"}
    assert {link.inner_text() for link in where.get_by_role("link").all()} == wanted
    expect(page.get_by_text("Line 8: colour: There is no key colour here.")).to_be_visible()
    where.get_by_role("link", name="GPUs each, role 1").click()
    expect(page.get_by_label("GPUs each")).to_be_focused()
    expect(page.get_by_label("GPUs each")).to_be_in_viewport()


def test_the_form_follows_the_yaml_and_grows_with_it(visit):
    visitor = visit("/jobs/new/")
    page = visitor.page
    unfold(page, "YAML")
    page.locator("#yaml").fill(
        "name: a\nquota: acme/research/nlp\nroles:\n  - {name: head, gpus: 1}\n  - {name: worker, min: 2, gpus: 4}\ncolour: red\n"
    )

    expect(page.locator("[data-other-list]")).to_have_text("Line 6: colour: There is no key colour here.")
    expect(page.locator('[name="roles[1].min"]')).to_have_value("2")
    page.locator("#yaml").fill("name: a\nquota: acme/research/nlp\nroles:\n  - {name: head, gpus: 1}\n  - {name: worker, min: 2, gpus: 4}\n")
    expect(verdict(page)).to_have_text("Starts now")
    page.locator("[data-submit]").click()
    expect(page.locator("h1")).to_have_text("a")
    assert Job.objects.get().gpus_milli == 9000
    assert visitor.watch.faults == []


def test_what_the_yaml_sets_is_seen_in_the_form_and_stays(visit):
    """In a section that was folded, and in one that nobody needs where nothing is simulated."""
    cluster = Cluster.objects.get()
    cluster.backend = "local"
    cluster.save()
    visitor = visit("/jobs/new/")
    page = visitor.page
    expect(page.locator("[data-group=simulated]")).to_be_hidden()
    unfold(page, "YAML")
    page.locator("#yaml").fill("name: a\nquota: acme/research/nlp\ngpus: 1\npriority: 70\nwork_s: 60\n")

    expect(page.get_by_label("Priority")).to_be_visible()
    expect(page.get_by_label("Simulated work")).to_be_visible()
    expect(page.get_by_label("Simulated work")).to_have_value(re.compile("."))
    expect(page.locator("[data-group=place]")).not_to_have_attribute("open", "")
    page.get_by_label("Name", exact=True).fill("other")
    expect(page.locator("#yaml")).to_have_value(re.compile(r"name: other\n(.*\n)*work_s: 60\n"))
    assert [*visitor.watch.faults, *visitor.axe()] == []


def test_an_answer_that_comes_late_is_not_shown(visit):
    """A question that was overtaken is called off; what stands there is of the last one."""
    page = visit("/jobs/new/").page
    page.get_by_label("Name", exact=True).fill("train")
    for gpus in "1234":
        page.get_by_label("GPUs of each worker").fill(gpus)
    expect(page.locator("#yaml")).to_have_value("name: train\nquota: acme/research/nlp\ngpus: 4\n")
    expect(page.locator("#fit")).to_contain_text("4 of 16 guaranteed")


def test_a_clone_marks_what_differs(visit):
    team = builders.quota("nlp", parent=builders.quota("research", parent=builders.quota()))
    first = builders.job("train", on=team, spec={"roles": [{"name": "worker", "min": 2, "gpus": 4}]}, gpus_milli=8000)
    visitor = visit(f"/jobs/{first.public_id}/")
    page = visitor.page
    more = page.locator("details.more")
    page.get_by_text("More", exact=True).click()
    expect(page.get_by_role("link", name="Clone")).to_be_visible()
    page.keyboard.press("Escape")
    expect(more).not_to_have_attribute("open", "")
    page.get_by_text("More", exact=True).click()
    page.get_by_role("heading", level=1).click()
    expect(more).not_to_have_attribute("open", "")
    page.get_by_text("More", exact=True).click()
    assert visitor.axe() == []
    page.get_by_role("link", name="Clone").click()
    expect(page.locator("h1")).to_have_text("Submit train again")
    page.get_by_label("Workers", exact=True).fill("1")

    expect(page.locator('[data-path="workers"] [data-was]')).to_have_text("was 2")
    shot(visitor, "clone")
    assert visitor.watch.faults == []


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), pytest.param("dark", 390, marks=pytest.mark.soak)])
def test_it_holds_up_to_axe_in_both_themes_and_on_a_phone(visit, theme, width):
    visitor = visit("/jobs/new/?template=elastic-training", theme=theme, viewport={"width": width, "height": 900})
    expect(visitor.page.locator("#fit .fit-verdict")).to_be_visible()
    shot(visitor, f"template-{theme}-{width}")
    found = visitor.axe()
    unfold(visitor.page, "YAML")
    visitor.page.locator("#yaml").fill("name: ''\ngpus: none\ncolour: red\n")
    expect(visitor.page.locator("[data-other-list] li")).to_have_count(1)
    visitor.page.evaluate("scrollTo(0, 0)")
    shot(visitor, f"errors-{theme}-{width}")
    found += visitor.axe()
    visitor.open("/templates/")
    shot(visitor, f"templates-{theme}-{width}")
    found += visitor.axe()
    visitor.open("/templates/edit/?like=notebook")
    found += visitor.axe()
    visitor.open("/templates/at/notebook")
    found += visitor.axe()

    assert [*visitor.watch.faults, *found] == []
    assert visitor.page.evaluate("document.documentElement.scrollWidth") <= width


def test_it_works_without_scripts(visit):
    page = visit("/jobs/new/?template=notebook", java_script_enabled=False).page
    expect(page.get_by_label("Workers at least")).to_be_hidden()
    page.get_by_label("Name", exact=True).press("Enter")
    expect(page.locator("#fit")).to_contain_text("Starts now")
    expect(page.locator("fieldset.role")).to_have_count(1)  # Enter checks, and does nothing else
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.locator("h1")).to_have_text("notebook")


@pytest.mark.parametrize("width", [1280, 390])
def test_types_with_their_speeds_are_compared_and_fit_a_phone(visit, width):
    builders.gpu_type("A100-SXM-40GB", board="A100-40", memory_mib=40_960)
    builders.node("gamma", gpus=8, type_name="A100-SXM-40GB")
    visitor = visit("/jobs/new/", viewport={"width": width, "height": 900})
    page = visitor.page
    unfold(page, "Class, priority and run time")
    for path, text in (("name", "tune"), ("quota", "acme/research/nlp"), ("gpus", "2"), ("estimate_s", "2h"), ("limit_s", "3h")):
        page.locator(f'[name="{path}"]').fill(text)
    page.locator('[name="throughput"]').fill("A100-SXM-40GB=0.45")

    table = page.locator("#fit table")
    expect(table.get_by_role("row")).to_have_count(3)
    expect(table).to_contain_text("cut off by its limit")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate("scrollTo(0, 0)")  # a field half below the top bar is a small target
    assert visitor.axe() == []
    assert visitor.watch.faults == []


@pytest.mark.parametrize(("theme", "width"), [pytest.param("light", 1280, marks=pytest.mark.soak), ("dark", 390)])
def test_what_a_template_changed_is_seen_and_an_older_version_used(visit, theme, width):
    visitor = visit("/templates/", theme=theme, viewport={"width": width, "height": 900})
    access = access_for_user(User.objects.get(username="root"))
    node = QuotaNode.objects.order_by("path").first()
    for seen, gpus in enumerate((4, 8)):
        said = {"title": "Serve", "body": {"gpus": gpus}, "limits": {"gpus": {"least": 1, "most": gpus}}}
        template_save(access=access, node=node, name="serve", seen=seen, reason="Larger", now=now(), **said)
    page = visitor.page
    page.reload()
    page.get_by_role("link", name="Serve", exact=True).click()
    expect(page.locator(".diff ins").first).to_have_text("+ gpus: 8")
    found = visitor.axe()
    assert page.evaluate("document.documentElement.scrollWidth") <= width

    page.get_by_role("link", name="Version 1", exact=True).click()
    page.get_by_role("link", name="Use", exact=True).click()
    expect(page.locator(".page-sub")).to_contain_text("version 1 (an older one")
    expect(page.locator("[data-path=gpus]")).to_contain_text("1 to 4, by its template.")
    page.get_by_label("GPUs of each worker").fill("8")
    expect(page.locator("[data-path=gpus] .error")).to_contain_text("At most 4")
    assert [*visitor.watch.faults, *found] == []
