"""One thing done to many jobs: what it would come to, what became of each, and that nobody does more by it than job by job."""

import re
import threading
from dataclasses import replace
from datetime import timedelta
from html import unescape
from itertools import pairwise
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from gpufleet.core.audit import SYSTEM
from gpufleet.core.faults import Conflict
from gpufleet.core.live.news import News
from gpufleet.core.models import AuditEntry
from gpufleet.core.times import now
from quotas.models import QuotaShare, RoleBinding
from scheduler.api.bulk import foreseen
from scheduler.jobs.schema import JobChange
from scheduler.models import HOLDING, Attempt, Dependency, Job, JobBatch, JobEvent, JobState, Order
from scheduler.presenters.bulk import bulk_view, preview_sentences
from scheduler.services.forecasts import fitting
from scheduler.services.jobs.bulk import MOST, Following, asked_checked, jobs_preview, jobs_steer
from scheduler.services.jobs.edits import job_edit, job_save_now
from scheduler.services.jobs.jobs import job_hold
from scheduler.services.jobs.steering import job_cancel, job_hold_back, job_release_hold
from scheduler.services.loop.timers import dependencies_settle
from tests import builders
from tests.builders import NOON, attempt, job, node, placement
from tests.scheduler.loop.worlds import H100, Loop, submit

pytestmark = pytest.mark.django_db


@pytest.fixture
def ours(personas):
    return personas.nodes["acme/research/nlp"]


@pytest.fixture
def theirs(personas):
    return personas.nodes["acme/product/search"]


def running(on: Any, **fields: Any) -> Job:
    found = job("runs", on=on, state=JobState.RUNNING, gpus_milli=1000, **fields)
    placement(found, node(gpus=1).gpus.get(), attempt=attempt(found, running_at=NOON))
    return found


def call(client: Any, status: int = 200, *, dry: bool = False, key: str = "", **body: Any) -> Any:
    headers = {"Idempotency-Key": key} if key else {}
    answer = client.post(f"/api/v1/jobs/bulk{'?dry_run=true' if dry else ''}", body, content_type="application/json", headers=headers)
    assert answer.status_code == status, answer.content
    return answer.json()


def named(*jobs: Job) -> list[dict[str, Any]]:
    return [{"id": found.public_id, "revision": found.revision} for found in jobs]


def effects(told: Any) -> dict[str, str]:
    return {verdict["id"]: verdict["effect"] for verdict in told["verdicts"]}


def entries() -> list[AuditEntry]:
    return list(AuditEntry.objects.filter(object_kind="job").order_by("id"))


def test_each_job_has_a_verdict_of_its_own_before_and_after(personas, ours, theirs):
    mine, changed = (job(on=ours, owner=personas.users["submitter"]) for _ in range(2))
    others, unseen = job(on=ours), job(on=theirs)
    over = job(on=ours, owner=personas.users["submitter"], state=JobState.COMPLETED)
    meant = [*named(mine, changed, others, over, unseen), {"id": "j-999999"}]
    meant[1]["revision"] = 7
    wanted = {
        mine.public_id: "changes",
        changed.public_id: "stale",
        others.public_id: "not_allowed",
        over.public_id: "refused",
        unseen.public_id: "unknown",
        "j-999999": "unknown",
    }
    client = personas.client("submitter")

    dry = call(client, dry=True, action="cancel", jobs=meant)
    assert effects(dry) == wanted
    assert dry["counts"] == {"changes": 1, "stale": 1, "not_allowed": 1, "refused": 1, "unknown": 2}
    assert (dry["batch"], dry["dry_run"]) == (None, True)
    assert not JobBatch.objects.exists() and not entries()

    done = call(client, action="cancel", jobs=meant, reason="Wrong data.")
    assert effects(done) == wanted
    assert dict(Job.objects.values_list("public_id", "state")) == {
        mine.public_id: "cancelled",
        changed.public_id: "queued",
        others.public_id: "queued",
        over.public_id: "completed",
        unseen.public_id: "queued",
    }
    names = {verdict["id"]: verdict["name"] for verdict in done["verdicts"]}
    assert names[unseen.public_id] == "", "what one may not see has no name"
    assert client.get(f"/api/v1/jobs/batches/{done['batch']}").json()["verdicts"] == done["verdicts"]
    assert personas.client("team_lead").get(f"/api/v1/jobs/batches/{done['batch']}").status_code == 404


def test_what_was_done_to_many_is_undone_over_the_api_for_those_that_nobody_has_changed_since(personas, ours):
    first, second, other = (job(name, on=ours, owner=personas.users["submitter"]) for name in ("one", "two", "three"))
    client = personas.client("submitter")
    held = call(client, action="hold", jobs=[{"id": job.public_id} for job in (first, second, other)])
    call(client, action="release", jobs=[{"id": other.public_id}])

    undo = f"/api/v1/jobs/batches/{held['batch']}/undo"
    told = client.post(undo, content_type="application/json")

    assert (told.status_code, told.json()) == (200, {"done": 2, "left": 1, "changed": [other.name]})
    assert set(Job.objects.values_list("state", flat=True)) == {"queued"}
    again = client.post(undo, content_type="application/json")
    assert (again.status_code, again.json()["detail"]) == (409, "These jobs have changed since. Nothing was undone.")


def test_every_job_has_one_entry_in_the_audit_log_and_all_name_the_batch(personas, ours):
    jobs = [job(f"train-{number}", on=ours) for number in range(3)] + [running(ours)]

    done = call(personas.client("team_lead"), action="cancel", jobs=named(*jobs), reason="Wrong data.")

    assert [entry.object_id for entry in entries()] == [found.public_id for found in jobs]
    assert {entry.after["batch"] for entry in entries() if entry.after} == {done["batch"]}
    assert {(entry.reason, entry.quota_path, entry.action) for entry in entries()} == {("Wrong data.", ours.path, "job.state")}
    assert set(JobEvent.objects.values_list("cause", "actor_name")) == {("Wrong data.", "Team Lead")}


@pytest.mark.parametrize("again", [0, 1])
def test_a_job_that_was_leaving_already_is_written_down_too(personas, ours, again):
    leaving = running(ours)
    Attempt.objects.update(stop_to="preempted", stop_outcome="preempted", stop_asked_at=NOON, stop_until=NOON + timedelta(seconds=30))
    Job.objects.update(state=JobState.CHECKPOINTING)
    leaving.refresh_from_db()
    client = personas.client("team_lead")

    for _ in range(again):
        call(client, action="cancel", jobs=[{"id": leaving.public_id}])
    told = call(client, action="cancel", jobs=[{"id": leaving.public_id}])

    assert effects(told) == {leaving.public_id: "same" if again else "changes"}
    assert Attempt.objects.get().stop_to == "cancelled"
    (entry,) = entries()
    assert entry.after["becomes"] == "cancelled"


SINGLE = {
    "cancel": job_cancel,
    "hold": job_hold_back,
    "release": job_release_hold,
    "checkpoint": job_save_now,
    "priority": lambda *, reason, **asked: job_edit(change=JobChange(priority=80, reason=reason), **asked),
}


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("state", [state for state in JobState if state != JobState.RESERVED])
@pytest.mark.parametrize("action", SINGLE)
def test_many_at_once_come_to_what_each_would_by_itself(personas, ours, action, state, held):
    """The twin: the service of a single job, on a job alike."""
    pair = []
    for _ in range(2):
        made = job(on=ours, state=state, held_at=NOON if held else None, gpus_milli=1000)
        if state in HOLDING:
            leaves = {"stop_to": "preempted", "stop_outcome": "preempted", "stop_asked_at": NOON} if state == JobState.CHECKPOINTING else {}
            placement(made, node(gpus=1).gpus.get(), attempt=attempt(made, running_at=NOON, **leaves))
        pair.append(made)
    access = personas.access("team_lead")
    try:
        SINGLE[action](access=access, job=pair[0], reason="Why.", now=NOON)
        refused = False
    except Conflict:
        refused = True

    asked = asked_checked(action=action, jobs=[(pair[1].public_id, pair[1].revision)], priority=80 if action == "priority" else None)
    preview = jobs_preview(access=access, asked=asked, now=NOON)
    batch = jobs_steer(access=access, asked=asked, reason="Why.", now=NOON).batch

    verdict = batch.verdicts[0]
    assert verdict["effect"] == preview.verdicts[0].effect
    assert refused == (verdict["effect"] == "refused")
    alone, among = (Job.objects.get(pk=made.pk) for made in pair)
    for column in ("state", "held_at", "priority", "revision", "ended_at"):
        assert getattr(alone, column) == getattr(among, column), column
    told = [list(JobEvent.objects.filter(job=made).values_list("from_state", "to_state", "cause", "detail")) for made in pair]
    assert told[0] == told[1]
    orders = [list(Order.objects.filter(attempt__job=made).values_list("kind", "payload")) for made in pair]
    assert orders[0] == orders[1]
    stops = [list(Attempt.objects.filter(job=made).values_list("stop_to", "stop_outcome", "stop_cause", "stop_until")) for made in pair]
    assert stops[0] == stops[1]
    written = [list(AuditEntry.objects.filter(object_id=made.public_id).values_list("action", "before", "reason")) for made in pair]
    assert written[0] == written[1]


def test_under_a_key_it_is_done_once(personas, ours):
    client, mine = personas.client("team_lead"), job(on=ours)
    first = call(client, key="k-1", action="hold", jobs=named(mine))
    again = call(client, key="k-1", action="hold", jobs=named(mine))

    assert (first["repeated"], again["repeated"]) == (False, True)
    assert first | {"repeated": True} == again
    assert len(entries()) == 1
    assert "used for something else" in call(client, 409, key="k-1", action="release", jobs=named(mine))["detail"]
    assert call(client, 422, key="x" * 101, action="hold", jobs=named(mine))["errors"][0]["path"] == "Idempotency-Key"
    assert call(personas.client("operator"), key="k-1", action="release", jobs=[{"id": mine.public_id}])["repeated"] is False


def test_those_that_match_the_list_are_meant_and_a_repeat_means_the_same(personas, ours, theirs):
    waiting = [job(f"sweep-{number}", on=ours, submitted_at=NOON + timedelta(minutes=number)) for number in range(3)]
    running(ours)
    job("sweep-9", on=theirs)
    client = personas.client("team_lead")
    meant = {"phase": ["waiting"], "q": "sweep"}

    told = call(client, key="all", action="cancel", matching=meant)

    assert [verdict["id"] for verdict in told["verdicts"]] == [found.public_id for found in reversed(waiting)]
    assert told["more"] is False
    assert call(client, key="all", action="cancel", matching=meant)["repeated"] is True
    assert "No job matches" in str(call(client, 422, action="cancel", matching=meant))
    assert "It can be Waiting" not in str(call(client, 422, action="cancel", matching={"phase": "nonsense"}))
    assert "matching.colour" in str(call(client, 422, action="cancel", matching={"colour": "red"}))
    assert "matching.size" in str(call(client, 422, action="cancel", matching={"size": "3"}))
    assert Job.objects.filter(state=JobState.CANCELLED).count() == 3


def test_what_makes_no_sense_is_refused_by_name(personas, ours):
    client, mine = personas.client("team_lead"), job(on=ours)
    assert [error["path"] for error in call(client, 422, action="cancel", jobs=[])["errors"]] == ["jobs"]
    assert [error["path"] for error in call(client, 422, action="priority", jobs=named(mine))["errors"]] == ["priority"]
    assert [error["path"] for error in call(client, 422, action="hold", priority=3, jobs=named(mine))["errors"]] == ["priority"]
    assert "not both" in str(call(client, 422, action="hold", jobs=named(mine), matching={"q": "x"}))
    assert call(client, 422, action="explode", jobs=named(mine))["errors"][0]["path"] == "action"
    assert call(client, 422, action="hold", jobs=[{"id": "j-\0"}, *named(mine)])["errors"][0]["path"] == "jobs[0].id"
    assert "printable" in preview_page(client, "hold", status=422, row=[mine.public_id, "x" * 25])
    for strange in ("ä" * 20, "\ud800".encode("utf-16", "surrogatepass").decode("utf-16", "replace"), ""):
        assert effects(call(client, action="hold", jobs=[{"id": strange}])) == {strange: "unknown"}


def test_the_number_of_jobs_is_bounded(personas):
    with pytest.raises(Exception, match="At most 500 jobs"):
        asked_checked(action="hold", jobs=[(f"j-{number}", None) for number in range(MOST + 1)])
    assert asked_checked(action="hold", jobs=[("j-1", 3), ("j-2", None), ("j-1", 4)]).jobs == (("j-2", None), ("j-1", 3))


@pytest.mark.parametrize("action", ["cancel", "hold"])
def test_it_asks_as_much_for_many_jobs_as_for_few(personas, ours, action):
    people = [builders.person() for _ in range(30)]
    for who in people:
        builders.role(who, "submitter", ours)
    counts = []
    for size in (2, 30):
        jobs = [job(on=builders.quota(f"p{number}", parent=ours), owner=people[number]) for number in range(size)]
        jobs += [running(ours, owner=people[number]) for number in range(size)]
        asked = asked_checked(action=action, jobs=[(found.public_id, found.revision) for found in jobs])
        access = personas.access("team_lead")
        with CaptureQueriesContext(connection) as looked:
            jobs_preview(access=access, asked=asked, now=now())
        with CaptureQueriesContext(connection) as done:
            jobs_steer(access=access, asked=asked, reason="", now=now())
        counts.append((len(looked), len(done)))

    assert counts[1][1] <= counts[0][1] + 1, counts  # many new rows may be two statements
    assert counts[1][0] <= counts[0][0], counts


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
        fitting.GROUNDS.forget()
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
    fitting.GROUNDS.forget()
    fitting.GROUNDS.read(NOON + timedelta(hours=2))
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
    fitting.GROUNDS.forget()
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
    fitting.GROUNDS.forget()
    fitting.GROUNDS.read(NOON)
    return jobs


@pytest.mark.parametrize("action", ["priority", "release"])
def test_previews_leave_next_to_nothing_with_what_trials_keep(personas, ground, action):
    """Each job of another kind is one more kind at its new priority. What joins the fleet for a preview is read by it, and counted."""
    if action == "release":
        for one in ground:
            job_hold(job=one, now=NOON)
        fitting.GROUNDS.forget()
        fitting.GROUNDS.read(NOON)
    side = fitting.GROUNDS._serving
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
    grounds, slow = fitting.GROUNDS, Slow()
    monkeypatch.setattr(fitting, "LONG_PATIENCE_SECONDS", 0.05)
    found: list[Any] = []

    def changed(jobs: Any, kinds: Any) -> Any:
        slow.extend(jobs[:-1])
        return slow

    thread = threading.Thread(target=lambda: found.append(grounds.sequel(changed, NOON)))
    thread.start()
    try:
        assert slow.asked.wait(10)
        wish = {"name": "train", "quota": "acme/research/nlp", "gpus": 8}
        assert fitting.fit_of(access=personas.access("team_lead"), description=wish, now=NOON) is not None
        # A second preview waits for its turn, and not for ever.
        assert grounds.sequel(lambda jobs, kinds: list(jobs), NOON) is None
        assert found == []
    finally:
        slow.let.set()
        thread.join(20)
    assert [one is not None for one in found] == [True]
    assert grounds.sequel(lambda jobs, kinds: jobs, NOON) == fitting.Sequel(NOON, ())


def test_people_can_steer_also_where_nobody_can_say_who_starts_then(personas, ours, monkeypatch, caplog):
    mine = job(on=ours)

    def broken(*_: Any) -> Any:
        raise ValueError("The fleet makes no sense.")

    monkeypatch.setattr("scheduler.services.jobs.bulk.sequel_of", broken)

    assert "cannot be computed now" in preview_page(personas.client("team_lead"), "cancel", mine)
    assert "could not be computed" in caplog.text


def preview_page(client: Any, action: str, *jobs: Job, status: int = 200, **more: Any) -> str:
    answer = client.post("/jobs/bulk/", {"action": action, "row": [found.public_id for found in jobs], **more})
    assert answer.status_code == status, answer.content.decode()
    return answer.content.decode()


def sent_by(html: str) -> dict[str, Any]:
    """What the preview's form sends."""
    found: dict[str, Any] = {}
    for name, value in re.findall(r'<input type="hidden" name="(action|priority|key|job|matching)" value="([^"]*)">', html):
        found.setdefault(name, []).append(value)
    if typed := re.search(r'name="priority" type="number"[^>]* value="([^"]*)"', html):
        found["priority"] = [typed[1]]
    return found


def test_in_the_console_rows_are_chosen_looked_at_and_then_steered(personas, ours):
    client = personas.client("team_lead")
    first, second = job("first", on=ours), job("second", on=ours)
    listed = client.get("/jobs/").content.decode()
    assert f'name="row" value="{first.public_id}" form="bulk"' in listed
    html = preview_page(client, "priority", first, second, priority="80")
    assert "Change the priority of 2 jobs?" in html
    assert "Priority 50 becomes 80." in html
    assert set(Job.objects.values_list("priority", flat=True)) == {50}

    # Somebody else is faster with one of them.
    job_hold(job=second, now=NOON, actor=SYSTEM)
    answer = client.post("/jobs/bulk/do/", sent_by(html) | {"reason": "More urgent."}, follow=True)

    told = answer.content.decode()
    assert dict(Job.objects.values_list("name", "priority")) == {"first": 80, "second": 50}
    assert "Changed the priority of 1 job" in told
    assert "1 job was left alone" in told and "Has changed meanwhile" in told and second.public_id in told
    # Pressed twice it is the same batch.
    assert client.post("/jobs/bulk/do/", sent_by(html) | {"reason": "More urgent."}).headers["Location"] == answer.redirect_chain[-1][0]
    assert JobBatch.objects.count() == 1
    assert personas.client("operator").get(answer.redirect_chain[-1][0]).status_code == 404


def test_the_console_says_what_is_left_alone_and_why(personas, ours, theirs):
    mine = job("mine", on=ours, owner=personas.users["submitter"])
    others, secret = job("others", on=ours), job("secret", on=theirs)

    html = preview_page(personas.client("submitter"), "hold", mine, others, secret)

    assert "Hold 1 job?" in html
    assert "2 jobs are left alone" in html
    assert "Not yours to touch" in html and "Not there" in html
    assert "secret" not in html
    nothing = preview_page(personas.client("submitter"), "hold", others)
    assert "Nothing would change" in nothing and 'name="reason"' not in nothing


def test_all_that_match_are_looked_at_in_the_console_too(personas, ours):
    for number in range(3):
        job(f"sweep-{number}", on=ours)
    job("other", on=ours)
    client = personas.client("team_lead")

    html = preview_page(client, "cancel", all="1", matching="?q=sweep&size=25&after=x")

    assert "Cancel 3 jobs?" in html
    assert 'href="/jobs/?q=sweep"' in html
    assert "can&#x27;t be “nonsense”" in preview_page(client, "cancel", status=422, all="1", matching="?state=nonsense")
    assert "names no job" in preview_page(client, "cancel", status=422)
    assert "whole number" in preview_page(client, "priority", Job.objects.get(name="other"), status=422, priority="high")


def test_filters_that_are_too_long_are_refused_and_not_cut(personas, ours):
    wanted, other = job("sweep", on=ours), job("other", on=ours)
    client = personas.client("team_lead")
    long = "&".join(["phase=waiting"] * 142 + ["sort=-state", "q=sweep"])  # cut at 2,000 it would be a list of all that waits

    html = preview_page(client, "cancel", status=422, all="1", matching=f"?{long}")

    assert "The filters are too long" in html
    assert other.public_id not in html and "jobs/bulk/do" not in html
    assert 'href="/jobs/"' in html
    # Who chose the jobs himself means those.
    html = preview_page(client, "cancel", wanted, matching=f"?{long}")
    assert "Cancel sweep?" in html and other.public_id not in html


def test_more_than_may_be_steered_at_once_are_cut_and_said(personas, ours, monkeypatch):
    monkeypatch.setattr("scheduler.views.bulk.MOST", 2)
    for number in range(3):
        job(f"sweep-{number}", on=ours)

    html = preview_page(personas.client("team_lead"), "cancel", all="1", matching="")

    assert "More jobs match" in html
    assert "Cancel 2 jobs?" in html


def test_who_steers_nothing_chooses_nothing(personas, ours):
    mine = job(on=ours)
    assert 'name="row"' not in personas.client("viewer").get("/jobs/").content.decode()
    assert 'name="row"' not in personas.client("viewer").get(f"/jobs/?rows={mine.public_id}").content.decode()
    assert 'name="row"' in personas.client("submitter").get(f"/jobs/?rows={mine.public_id}").content.decode()
    assert personas.client("viewer").post("/jobs/bulk/", {"action": "hold", "row": mine.public_id}).status_code == 403
    call(personas.client("viewer"), 403, action="hold", jobs=named(mine))


def test_a_reason_that_is_too_long_is_told_at_its_field(personas, ours):
    mine = job(on=ours)
    html = preview_page(personas.client("team_lead"), "hold", mine)

    answer = personas.client("team_lead").post("/jobs/bulk/do/", sent_by(html) | {"reason": "x" * 281})

    assert answer.status_code == 422
    assert "at most 280 characters" in answer.content.decode()
    assert reverse("job", args=[mine.public_id]) in answer.content.decode()
    assert Job.objects.get().held_at is None


@pytest.mark.parametrize("typed", ["5000", "soon", ""])
def test_a_priority_that_is_none_is_told_at_its_field_and_all_that_was_typed_stays(personas, ours, typed):
    mine = job("mine", on=ours)
    html = preview_page(personas.client("team_lead"), "priority", mine, priority="80")

    live = preview_page(personas.client("team_lead"), "priority", mine, status=422, priority=typed)
    preview = live.split('id="change-preview"')[1].split("</section>")[0]
    assert "Enter a whole number from -1000 to 1000." in preview and "becomes" not in preview
    refused = personas.client("team_lead").post("/jobs/bulk/do/", sent_by(html) | {"priority": typed, "reason": "More urgent."})

    page = refused.content.decode()
    assert refused.status_code == 422
    assert 'id="priority-error"' in page and f'inputmode="numeric" value="{typed}"' in page and 'aria-invalid="true"' in page
    assert 'value="More urgent."' in page
    assert sent_by(page)["job"] == sent_by(html)["job"], "the same jobs at the revision that was seen"
    assert Job.objects.get().priority == 50
    assert personas.client("team_lead").post("/jobs/bulk/do/", sent_by(page) | {"priority": "90", "reason": "Now."}).status_code == 302
    assert Job.objects.get().priority == 90


def test_a_batch_tells_nothing_of_jobs_that_its_reader_may_not_see(personas, ours, theirs):
    mine, secret = job("mine", on=ours), job("secret", on=theirs)
    body = {"action": "hold", "jobs": named(mine, secret)}
    told = call(personas.client("operator"), key="k", **body)
    assert effects(told) == {mine.public_id: "changes", secret.public_id: "changes"}
    address = f"/api/v1/jobs/batches/{told['batch']}"
    assert personas.client("operator").get(address).json()["verdicts"] == told["verdicts"]

    # A token of his for the other part of the tree, which also repeats what he did.
    headers = {"Authorization": f"Bearer {personas.token('operator', 'read', 'operate', path='acme/research/nlp')}"}
    again = Client().get(address, headers=headers)
    repeated = Client().post("/api/v1/jobs/bulk", body, content_type="application/json", headers=headers | {"Idempotency-Key": "k"})
    for answer in (again, repeated):
        assert answer.status_code == 200
        seen, unseen = answer.json()["verdicts"]
        assert (seen["name"], seen["effect"]) == ("mine", "changes")
        assert (unseen["id"], unseen["name"], unseen["state"], unseen["revision"], unseen["effect"]) == (secret.public_id, "", "", None, "unknown")
        assert answer.json()["counts"] == {"changes": 1, "unknown": 1}
    assert repeated.json()["repeated"] is True

    # Nor do they whose role ended meanwhile.
    RoleBinding.objects.filter(user=personas.users["operator"]).delete()
    builders.role(personas.users["operator"], "viewer", ours)
    page = personas.client("operator").get(f"/jobs/batches/{told['batch']}/")
    assert "· Held back." not in page.content.decode(), "the heading says so"
    assert page.status_code == 200
    assert "mine" in page.content.decode() and "secret" not in page.content.decode()
