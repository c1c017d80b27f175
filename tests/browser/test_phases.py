"""Phases with eyes on them: the band of a template's page, its tables, and the phase of a running job, on a desk and on a phone."""

from datetime import timedelta

import pytest
from playwright.sync_api import Browser, expect

from dashboards.fingerprints.store import runs_learn, runs_note
from gpufleet.core.models import User
from gpufleet.core.times import now
from quotas.permissions import access_for_user
from scheduler.services.jobs.templates import template_save
from tests import builders
from tests.browser.harness import LiveConsole
from tests.dashboards.fingerprints.drawn import drawn_run
from tests.dashboards.fingerprints.worlds import MINUTE, minutes_stored, run_made
from tests.dashboards.worlds import gpus_of

pytestmark = pytest.mark.browser
PASSWORD = "correct horse battery"


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_the_phases_of_a_template_and_of_its_job_are_seen(live_console: LiveConsole, browser: Browser, theme: str, width: int) -> None:
    root = User.objects.create_superuser("root", "root@example.org", PASSWORD)
    team, moment = builders.quota("nlp"), now().replace(second=0, microsecond=0)
    version = template_save(access=access_for_user(root), node=team, name="train", title="Train", body={"gpus": 1}, now=moment)
    for number in range(4):
        gpus = gpus_of(builders.node(f"n{number}", gpus=1, of=builders.cluster(f"c{number}")))
        minutes = 45 if number == 3 else 150
        since = moment - (minutes if number == 3 else 240) * MINUTE
        minutes_stored(gpus, drawn_run(minutes=minutes, seed=number).counters, since=since)
        until = None if number == 3 else since + minutes * MINUTE
        run = run_made(version.template.public_id, gpus, since=since, until=until, on=team)
    runs_note(since=moment - timedelta(hours=5), now=moment)
    assert runs_learn(now=moment) == 4

    visitor = live_console.visit(browser, "root", password=PASSWORD, theme=theme, viewport={"width": width, "height": 900})
    visitor.open("/templates/at/nlp:train")
    page = visitor.page
    expect(page.locator("#phases .js-plotly-plot")).to_be_visible()
    expect(page.locator("#phases")).to_contain_text("A checkpoint every 12 minutes")
    expect(page.locator("#beside")).to_contain_text("Memory too small")
    assert visitor.axe() == []
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")

    visitor.open(f"/jobs/{run.job.public_id}/")
    expect(page.locator("[data-part=phase]")).to_contain_text("Next: ")
    assert visitor.axe() == []
