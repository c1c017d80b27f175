"""Every face of a waiting job's start tells the same stored prediction: list, page, queue, API, `why` and what would start it sooner."""

import random
import re
from datetime import datetime, timedelta

import pytest
from django.core.cache import cache
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.client.words import starts as in_words
from gpufleet.core.templatetags.shell import starts as on_pages
from scheduler.loop.overrun import LEAST_JOBS
from scheduler.models import JobState, LearnedOverrun, Outlook
from scheduler.selectors.foreseen import ANY_MOMENT, late_since
from scheduler.services.forecasts.forecasting import ForecastMemory, forecast_run
from scheduler.services.forecasts.grounds import GROUNDS
from scheduler.simulation.futures import waits_foreseen
from tests import builders
from tests.builders import NOON
from tests.scheduler.loop.test_whole_way import Fleet
from tests.scheduler.loop.worlds import submit

TIME = re.compile(r'<time datetime="([^"]+)" data-moment="start"')
LOOKED_AT = 3  # of those who wait, in each quarter of an hour; another draw each time
moments = st.none() | st.integers(-600, 600).map(lambda seconds: NOON + timedelta(seconds=seconds))


def times(html: str) -> set[datetime]:
    return {datetime.fromisoformat(text) for text in TIME.findall(html)}


@pytest.mark.django_db
@pytest.mark.parametrize("hours", [3, pytest.param(24, marks=pytest.mark.soak)])
def test_all_faces_of_a_start_agree_over_a_day(personas, monkeypatch, hours):
    clock = [NOON]
    monkeypatch.setitem(waits_foreseen.__kwdefaults__, "futures", 2)  # of sixteen: how good they are is told elsewhere
    for place in ("views.jobs", "views.queue", "views.sooner", "api.why", "api.queue", "api.sooner"):
        monkeypatch.setattr(f"scheduler.{place}.now", lambda: clock[0])
    builders.node("n1", gpus=8)
    builders.node("n2", gpus=8)
    team, fleet, memory, rng = personas.nodes["acme/research/nlp"], Fleet(), ForecastMemory.empty(), random.Random(16)
    client, compared, late = personas.client("operator"), 0, 0
    for step in range(hours * 4):
        fleet.after(minutes=15)
        if step == hours * 2:
            LearnedOverrun.objects.create(learnt_at=fleet.now, factor_millionths=1_600_000, jobs=LEAST_JOBS)
        clock[0] = fleet.now
        for _ in range(rng.randrange(4)):
            gpus = rng.choice([1, 2, 4, 8])
            work, estimate = rng.choice([900, 3600, 9000]), rng.choice([900, 3600, 9000])
            # Estimates that are wrong by up to ten times: some start later than they were told.
            submit(team, gpus=gpus, at=fleet.now, spec={"work_s": work}, estimate_seconds=estimate)
        fleet.tick(force=True)
        if step % 3:
            forecast_run(holder="one", now=fleet.now, memory=memory, force=True)
        GROUNDS.forget()
        cache.clear()  # a day of requests within a minute is more than one client may send
        waiting = list(Outlook.objects.filter(job__state=JobState.QUEUED).select_related("job"))
        for outlook in rng.sample(waiting, min(len(waiting), LOOKED_AT)):
            told, name = stored(outlook), outlook.job.public_id
            why = client.get(f"/api/v1/jobs/{name}/why").json()
            faces = {
                "list": times(client.get(f"/jobs/?q={name}").content.decode()),
                "page": times(client.get(f"/jobs/{name}/").content.decode()),
                "why": api_start(why),
            }
            assert faces == dict.fromkeys(faces, told), (name, outlook.predicted_start, outlook.late_since)
            if told:
                assert datetime.fromisoformat(why["predicted_at"]) == outlook.forecast_at
                (start,) = told
                assert in_words(why, fleet.now) == on_pages(start, fleet.now).removeprefix("starts ").replace("\u202f", " ").replace("\u00a0", " ")
                late += fleet.now - start > ANY_MOMENT
                compared += 1
        compared += compare_queue(client, fleet.now)
    assert compared > 10 * hours
    assert late or hours < 24, "a day in which nobody is late shows nothing"


def stored(outlook: Outlook) -> set[datetime]:
    """What was told of an earlier wait is no start of this one."""
    if outlook.forecast_at is not None and outlook.forecast_at < outlook.job.state_since:
        return set()
    return {moment for moment in (outlook.late_since or outlook.predicted_start,) if moment}


def api_start(told: dict[str, str | None]) -> set[datetime]:
    return {datetime.fromisoformat(text) for text in (told["late_since"] or told["predicted_start"],) if text}


def compare_queue(client, now: datetime) -> int:
    """The queue and what would start a job sooner, which are worked out beside: they tell the stored start all the same."""
    GROUNDS.read(now)
    queue = client.get("/api/v1/jobs/queue").json()
    for item in queue["items"]:
        (outlook,) = Outlook.objects.filter(job__public_id=item["id"])
        assert api_start(item) == stored(outlook)
    for item in queue["items"][:2]:
        sooner = client.get(f"/api/v1/jobs/{item['id']}/sooner").json()
        if item["predicted_start"]:
            assert datetime.fromisoformat(sooner["at"]) in api_start(item)
    return len(queue["items"])


@given(moments, moments, moments)
def test_who_is_due_is_late_until_another_start_is_foreseen(due, before, start):
    found = late_since(due=due, before=before, start=start, now=NOON)

    if found is not None:
        assert found == (before or due)
        assert found <= NOON
    if start is not None and start > NOON + ANY_MOMENT:
        assert found is None, "it has been told another start"
    if start is not None and start <= NOON and due is not None and due <= NOON:
        assert found is not None or (before is not None and before > NOON), "saying once more that it starts now makes it no less late"
