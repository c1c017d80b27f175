"""One thing done to many jobs: what it would come to, for these jobs and for others."""

import re
import threading
from dataclasses import replace
from datetime import timedelta
from html import unescape
from itertools import pairwise
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from gpufleet.core.live.news import News
from gpufleet.core.times import now
from quotas.models import QuotaShare
from scheduler.api.bulk import foreseen
from scheduler.models import Dependency, Job, JobState
from scheduler.presenters.bulk import bulk_view, preview_sentences
from scheduler.services.forecasts import fitting, grounds
from scheduler.services.jobs.bulk import Following, asked_checked, jobs_preview, jobs_steer
from scheduler.services.jobs.jobs import job_hold
from scheduler.services.loop.timers import dependencies_settle
from tests import builders
from tests.builders import NOON, job
from tests.scheduler.bulk_calls import call, named, preview_page, running
from tests.scheduler.loop.worlds import H100, Loop, submit

pytestmark = pytest.mark.django_db


@pytest.fixture
def ours(personas):
    return personas.nodes["acme/research/nlp"]


def test_a_preview_says_what_comes_free_and_who_ends_along(personas, ours):
    first, second = running(ours), job(on=ours)
    Dependency.objects.create(job=job("next", on=ours), on=first)
    Dependency.objects.create(job=second, on=first)
    Dependency.objects.create(job=job("anyway", on=ours), on=second, if_completed=False)

    told = call(personas.client("team_lead"), dry=True, action="cancel", jobs=named(first, second))

    assert told["freed_milli"] == {H100: 1000}
    assert told["cancelled_along"] == 1
    page = preview_page(personas.client("team_lead"), "cancel", row=[first.public_id, second.public_id])
    assert told["sentences"] and all(text in unescape(page) for text in told["sentences"]), "every face says the same"
    done = call(personas.client("team_lead"), action="cancel", jobs=named(second))
    assert [done[name] for name in ("sentences", "notified", "effects", "freed_micros_per_hour")] == [None] * 4


def test_a_preview_denies_no_notice_that_it_may_not_see(personas, ours):
    """Owners of those who end along hear of it; what became of jobs that are hidden or were left out is not denied."""
    lead = personas.users["team_lead"]
    first = job("first", on=ours, owner=lead)
    asked = asked_checked(action="cancel", jobs=[(first.public_id, None)])
    following = Following(NOON, (), 0)

    def told(preview: Any, **fields: Any) -> str:
        return " ".join(bulk_view(replace(preview, following=replace(following, **fields))).told.sentences)

    alone = jobs_preview(access=personas.access("team_lead"), asked=asked, now=now())
    assert "No owner is notified." in told(alone)
    assert "notified" not in told(alone, unseen=1) and "1 more job of other teams is affected." in told(alone, unseen=1)
    cut = told(alone, cut=2)
    assert "notified" not in cut and "2 more jobs are affected." in cut and "other teams" not in cut
    Dependency.objects.create(job=job("next", on=ours, owner=personas.users["submitter"]), on=first)
    along = jobs_preview(access=personas.access("team_lead"), asked=asked, now=now())
    assert "The owner of 1 job is notified." in told(along)
    freed = replace(along, freed={H100: 1000}, freed_micros=2_500_000)
    assert "At the guaranteed rate it costs" in told(freed)


def test_the_heading_stays_a_question_while_the_priority_is_typed_and_one_job_is_one(personas, ours):
    first, second = job("first", on=ours, priority=40), job("second", on=ours, priority=40)

    def worded(*jobs: Job, action: str = "priority", priority: int | None = None) -> tuple[str, str]:
        asked = asked_checked(action=action, jobs=[(one.public_id, None) for one in jobs], priority=priority)
        view = bulk_view(jobs_preview(access=personas.access("team_lead"), asked=asked, now=now()))
        return view.heading, view.button

    assert worded(first, second, priority=40) == worded(first, second, priority=80)
    assert worded(first, second, priority=40) == ("Change the priority of 2 jobs?", "Change the priority of 2 jobs")
    assert worded(first, priority=40) == ("Change the priority of first?", "Change priority")
    assert worded(first, action="hold") == ("Hold first?", "Hold job")


def test_the_button_says_that_a_change_is_scheduled_also_with_scripts_off(personas, ours):
    first, second = job("first", on=ours), job("second", on=ours, state=JobState.RUNNING)
    begins = f"{now() + timedelta(hours=2):%Y-%m-%dT%H:%M}"

    def button(action: str, *jobs: Job, **sent: str) -> str:
        page = personas.client("team_lead").post(reverse("jobs_bulk"), {"action": action, "row": [one.public_id for one in jobs], **sent})
        (said,) = re.findall(r'<button type="submit" id="change-button"[^>]*>(.*?)</button>', page.content.decode())
        return said

    assert button("hold", first) == "Hold job"
    assert button("hold", first, begins=begins) == "Schedule hold"
    assert button("hold", first, second) == "Hold 1 job", "a running one cannot be held now"
    assert button("hold", first, second, begins=begins) == "Schedule hold of 2 jobs", "by then it may wait again"
    assert button("hold", second) == "Schedule hold", "now nothing would change"
    assert button("priority", first, priority="80", begins=begins) == "Schedule priority change"
    assert button("cancel", first, second, begins=begins) == "Schedule cancellation of 2 jobs"


def test_a_preview_counts_those_behind_others_as_they_then_end(personas, ours):
    first = job("first", on=ours)
    line = [first, *(job(f"step-{number}", on=ours) for number in range(6))]
    for before, after in pairwise(line):
        Dependency.objects.create(job=after, on=before)
    Dependency.objects.create(job=line[4], on=line[1])  # by two ways, and counted once
    Dependency.objects.create(job=job("anyway", on=ours), on=line[3], if_completed=False)
    Dependency.objects.create(job=job("draft", on=ours, state=JobState.DRAFT), on=line[2])
    Dependency.objects.create(job=running(ours), on=line[2])  # has started, and goes on
    asked = asked_checked(action="cancel", jobs=[(one.public_id, one.revision) for one in (first, line[5])])

    along = jobs_preview(access=personas.access("team_lead"), asked=asked, now=now()).along
    with CaptureQueriesContext(connection) as short:
        jobs_preview(access=personas.access("team_lead"), asked=asked_checked(action="cancel", jobs=[(line[5].public_id, None)]), now=now())
    with CaptureQueriesContext(connection) as long:
        jobs_preview(access=personas.access("team_lead"), asked=asked_checked(action="cancel", jobs=[(first.public_id, None)]), now=now())

    jobs_steer(access=personas.access("team_lead"), asked=asked, reason="", now=now())
    while dependencies_settle(now=now(), news=News()):
        pass
    assert along == Job.objects.filter(state=JobState.CANCELLED).count() - 2 == 6
    assert len(long) <= len(short)


@pytest.fixture
def full(personas):
    """One node of eight GPUs, all held by a job of another team, and who waits for them."""
    builders.node("n1", gpus=8)
    for path in ("acme", "acme/research", "acme/product", "acme/research/nlp", "acme/product/search"):
        QuotaShare.objects.create(node=personas.nodes[path], gpu_type=H100, guaranteed_milli=8000, limit_milli=None)
    loop = Loop()
    made = submit(personas.nodes["acme/product/search"], gpus=8)
    loop.tick()
    loop.up(made)
    return made


def test_a_preview_says_who_would_start_then(personas, full):
    first, second = (submit(personas.nodes["acme/research/nlp"], gpus=8) for _ in range(2))
    held = job_hold(job=submit(personas.nodes["acme/product/search"], gpus=8), now=NOON)
    Loop().tick()

    def starts(who: str, action: str, *jobs: Job, priority: int | None = None) -> Any:
        grounds.GROUNDS.forget()
        asked = asked_checked(action=action, jobs=[(found.public_id, None) for found in jobs], priority=priority)
        found = jobs_preview(access=personas.access(who), asked=asked, now=NOON + timedelta(minutes=5)).following
        assert found is not None
        return [one.public_id for one in found.jobs], found.others

    assert starts("operator", "cancel", full) == ([first.public_id], 0)
    assert starts("operator", "cancel", full, first) == ([second.public_id], 0)
    assert starts("operator", "hold", second) == ([], 0)
    assert starts("operator", "release", held) == ([], 0)
    assert not Job.objects.filter(state=JobState.CANCELLED).exists()
    # Who may not see the other team is told how many, and not who.
    assert starts("team_lead", "hold", first, second) == ([], 0)
    html = preview_page(personas.client("operator"), "cancel", full)
    assert "Once it has gone 1 waiting job would start." in html
    assert first.public_id in html


def test_a_preview_names_who_is_preempted_who_waits_longer_and_who_is_notified(personas):
    """A raised priority preempts lower work of its own queue, and overtakes what waits there."""
    builders.node("n1", gpus=8)
    ours = personas.nodes["acme/research/nlp"]
    for path in ("acme", "acme/research", "acme/research/nlp"):
        QuotaShare.objects.create(node=personas.nodes[path], gpu_type=H100, guaranteed_milli=8000, limit_milli=8000)
    loop = Loop()
    low = submit(ours, gpus=8, preemptible=True, priority=40, owner=personas.users["submitter"])
    loop.tick()
    loop.up(low)
    between, urgent = submit(ours, gpus=8, priority=39), submit(ours, gpus=8, priority=30)
    grounds.GROUNDS.forget()
    grounds.GROUNDS.read(NOON + timedelta(hours=2))
    asked = asked_checked(action="priority", jobs=[(urgent.public_id, None)], priority=90)

    preview = jobs_preview(access=personas.access("operator"), asked=asked, now=NOON + timedelta(hours=2))

    assert preview.following is not None
    told = {one.job.public_id: one.effect for one in preview.following.effects}
    assert told == {urgent.public_id: "starts", low.public_id: "preempted", between.public_id: "later"}
    assert preview.notified == 1
    sentences = " ".join(bulk_view(preview).told.sentences)
    assert "1 running job is preempted." in sentences and "1 waiting job waits longer." in sentences
    assert "The owner of 1 job is notified." in sentences
    assert preview.following.repeated.micros is None, "operators may see no costs"
    builders.rate(H100, since=NOON, micros=2_500_000)
    priced = jobs_preview(access=personas.access("superuser"), asked=asked, now=NOON + timedelta(hours=2))
    repeated = "16.0 GPU-hours of work are repeated, worth $40.00 at the guaranteed rate."
    assert any(repeated in text for text in preview_sentences(priced)) and foreseen(priced)["lost_micros"] == 40_000_000
    told_api = foreseen(preview)
    assert [(one["job"], one["effect"]) for one in told_api["effects"]] == [
        *((low.public_id, "preempted"), (between.public_id, "later"), (urgent.public_id, "starts"))
    ]
    assert told_api["effects"][0]["lost_seconds"] == 7200 and (told_api["notified"], told_api["sentences"]) == (1, preview_sentences(preview))
    assert (Job.objects.get(pk=urgent.pk).priority, Job.objects.get(pk=low.pk).state) == (30, JobState.RUNNING)


def test_a_preview_of_letting_go_says_which_of_them_start(personas):
    builders.node("n1", gpus=8)
    for path in ("acme", "acme/research", "acme/research/nlp"):
        QuotaShare.objects.create(node=personas.nodes[path], gpu_type=H100, guaranteed_milli=8000, limit_milli=None)
    held = [job_hold(job=submit(personas.nodes["acme/research/nlp"], gpus=8), now=NOON) for _ in range(2)]
    Job.objects.filter(pk=held[0].pk).update(retry_at=NOON + timedelta(hours=1))  # a release ends the wait for its next try too
    grounds.GROUNDS.forget()
    asked = asked_checked(action="release", jobs=[(found.public_id, None) for found in held])

    found = jobs_preview(access=personas.access("team_lead"), asked=asked, now=NOON + timedelta(minutes=5)).following

    assert found is not None
    assert [one.public_id for one in found.jobs] == [held[0].public_id]


@pytest.fixture
def ground(personas) -> list[Job]:
    """Four jobs of as many kinds that wait, on a fleet that has been read at noon."""
    builders.node("n1", gpus=8)
    for path in ("acme", "acme/research", "acme/research/nlp"):
        QuotaShare.objects.create(node=personas.nodes[path], gpu_type=H100, guaranteed_milli=8000, limit_milli=None)
    jobs = [submit(personas.nodes["acme/research/nlp"], gpus=gpus) for gpus in (1, 2, 4, 8)]
    grounds.GROUNDS.forget()
    grounds.GROUNDS.read(NOON)
    return jobs


@pytest.mark.parametrize("action", ["priority", "release"])
def test_previews_leave_next_to_nothing_with_what_trials_keep(personas, ground, action):
    """Each job of another kind is one more kind at its new priority. What joins the fleet for a preview is read by it, and counted."""
    if action == "release":
        for one in ground:
            job_hold(job=one, now=NOON)
        grounds.GROUNDS.forget()
        grounds.GROUNDS.read(NOON)
    side = grounds.GROUNDS._serving
    forms, counted = len(side.ground.kept.state.forms), side.kinds
    asked = asked_checked(action=action, jobs=[(one.public_id, None) for one in ground], priority=80 if action == "priority" else None)

    assert jobs_preview(access=personas.access("team_lead"), asked=asked, now=NOON).following is not None

    assert len(side.ground.kept.state.forms) == forms
    assert side.kinds - counted == (4 if action == "release" else 0)


class Slow(list[Any]):
    """Jobs that are not told before somebody lets them."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.let = threading.Event(), threading.Event()

    def __iter__(self) -> Any:
        self.asked.set()
        assert self.let.wait(10), "somebody waits for what waits for him"
        return super().__iter__()


def test_a_slow_preview_holds_up_nobody_who_asks_whether_a_job_fits(personas, ground, monkeypatch):
    slow = Slow()
    monkeypatch.setattr(grounds, "LONG_PATIENCE_SECONDS", 0.05)
    found: list[Any] = []

    def changed(jobs: Any, kinds: Any) -> Any:
        slow.extend(jobs[:-1])
        return slow

    thread = threading.Thread(target=lambda: found.append(grounds.GROUNDS.sequel(changed, NOON)))
    thread.start()
    try:
        assert slow.asked.wait(10)
        wish = {"name": "train", "quota": "acme/research/nlp", "gpus": 8}
        assert fitting.fit_of(access=personas.access("team_lead"), description=wish, now=NOON) is not None
        # A second preview waits for its turn, and not for ever.
        assert grounds.GROUNDS.sequel(lambda jobs, kinds: list(jobs), NOON) is None
        assert found == []
    finally:
        slow.let.set()
        thread.join(20)
    assert [one is not None for one in found] == [True]
    assert grounds.GROUNDS.sequel(lambda jobs, kinds: jobs, NOON) == grounds.Sequel(NOON, ())


def test_people_can_steer_also_where_nobody_can_say_who_starts_then(personas, ours, monkeypatch, caplog):
    mine = job(on=ours)

    def broken(*_: Any) -> Any:
        raise ValueError("The fleet makes no sense.")

    monkeypatch.setattr("scheduler.services.jobs.bulk.sequel_of", broken)

    assert "cannot be computed now" in preview_page(personas.client("team_lead"), "cancel", mine)
    assert "could not be computed" in caplog.text
