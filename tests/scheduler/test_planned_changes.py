"""Actions on jobs that begin later: planned with their effect shown, begun with the rights that their author has by then, called off until then."""

import contextlib
import re
import threading
from collections.abc import Callable
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import connection, connections
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from gpufleet.core.faults import Conflict
from gpufleet.core.models import AuditEntry
from gpufleet.core.times import now
from gpufleet.core.undo import undo_of
from quotas.models import RoleBinding, ServiceToken
from scheduler.api.bulk import BulkIn
from scheduler.models import Job, JobBatch, JobState, Notice, PlannedJobChange
from scheduler.selectors.planned_changes import plans_seen
from scheduler.services.jobs import planned_changes
from scheduler.services.jobs.bulk import asked_checked
from scheduler.services.jobs.planned_changes import jobs_plan, plan_call_off, planned_changes_begin
from tests import builders
from tests.builders import NOON, job

pytestmark = pytest.mark.django_db


@pytest.fixture
def ours(personas):
    return personas.nodes["acme/research/nlp"]


def plan(
    personas: Any, *jobs: Job, action: str = "hold", who: str = "team_lead", hours: float = 2, priority: int | None = None, **more: Any
) -> PlannedJobChange:
    asked, moment = asked_checked(action=action, jobs=[(one.public_id, None) for one in jobs], priority=priority), now()
    begins = moment + timedelta(hours=hours)
    given = {"reason": "night window"} | more
    return jobs_plan(access=personas.access(who), asked=asked, begins_at=begins, **given, now=moment).plan


def entries(found: Job) -> list[tuple[str, str, str]]:
    rows = AuditEntry.objects.filter(object_kind="job", object_id=found.public_id).order_by("id")
    return [(row.action, row.actor_name, row.reason) for row in rows]


def fresh(found: Job) -> Job:
    return Job.objects.get(pk=found.pk)


def test_a_planned_change_begins_when_its_moment_has_come_and_as_its_author_would_do_it(personas, ours):
    mine, other = job("mine", on=ours), job("other", on=ours)
    found = plan(personas, mine, other)

    assert planned_changes_begin(now=found.begins_at - timedelta(seconds=1)) == 0
    assert fresh(mine).held_at is None
    assert planned_changes_begin(now=found.begins_at) == 1

    assert fresh(mine).held_at is not None and fresh(other).held_at is not None
    assert not PlannedJobChange.objects.exists()
    assert planned_changes_begin(now=found.begins_at) == 0
    lead = personas.users["team_lead"].display_name
    assert entries(mine) == [("job.plan", lead, "night window"), ("job.hold", lead, "night window")]
    assert AuditEntry.objects.filter(action="job.hold").first().via == "schedule"
    assert JobBatch.objects.get().user == personas.users["team_lead"]
    assert not Notice.objects.exists(), "it went as planned"


def test_the_feed_is_locked_before_the_lease_also_where_nothing_changes(personas, ours):
    """Locks are taken in one order everywhere, so that a turn and the scheduler never wait for each other."""
    over = job("over", on=ours)
    found = plan(personas, over)
    Job.objects.filter(pk=over.pk).update(state=JobState.COMPLETED, ended_at=NOON)

    with CaptureQueriesContext(connection) as seen:
        assert planned_changes_begin(now=found.begins_at) == 1

    written = [query["sql"].split("(")[0] for query in seen if query["sql"].startswith(("INSERT INTO feed", "INSERT INTO scheduler_lease"))]
    assert [sql.split()[2] for sql in written] == ["feed", "scheduler_lease", "feed"], "the last is the notice, under the same lock"


@pytest.mark.parametrize(
    ("action", "priority", "changed"),
    [("cancel", None, {"state": "cancelled"}), ("priority", 80, {"priority": 80}), ("hold", None, {"held": True})],
)
def test_each_action_that_is_done_at_once_can_be_planned(personas, ours, action, priority, changed):
    mine = job(on=ours)
    found = plan(personas, mine, action=action, priority=priority)
    planned_changes_begin(now=found.begins_at)
    after = fresh(mine)
    told = {"state": str(after.state), "priority": after.priority, "held": after.held_at is not None}
    assert {name: told[name] for name in changed} == changed


def test_a_release_can_be_planned_behind_the_hold_that_it_ends(personas, ours):
    mine = job(on=ours)
    plan(personas, mine, hours=2)
    later = plan(personas, mine, action="release", hours=8)

    assert planned_changes_begin(now=later.begins_at) == 2, "the console was away: both begin, in their order"
    assert fresh(mine).held_at is None
    assert [action for action, _, _ in entries(mine)] == ["job.plan", "job.plan", "job.hold", "job.hold"]


def test_jobs_that_no_longer_take_it_are_left_alone_and_the_author_is_told(personas, ours):
    waits, over, runs = job("waits", on=ours), job("over", on=ours), job("runs", on=ours)
    found = plan(personas, waits, over, runs)
    Job.objects.filter(pk=over.pk).update(state=JobState.COMPLETED, ended_at=NOON)
    Job.objects.filter(pk=runs.pk).update(state=JobState.RUNNING)

    assert planned_changes_begin(now=found.begins_at) == 1

    assert [fresh(one).held_at is not None for one in (waits, over, runs)] == [True, False, False]
    assert entries(over)[-1] == ("job.plan", "gpufleet", "Left alone: It has ended already.")
    notice = Notice.objects.get(user=personas.users["team_lead"])
    assert notice.title == f"Planned change {found.public_id} left 2 of 3 jobs alone"
    assert f"It has ended already: {over.public_id}." in notice.text
    assert f"It has its GPUs already; what waits can be held back: {runs.public_id}." in notice.text


def test_whoever_lost_the_right_by_then_changes_nothing_and_is_told(personas, ours):
    mine = job("mine", on=ours)
    found = plan(personas, mine)
    RoleBinding.objects.filter(user=personas.users["team_lead"]).delete()

    assert planned_changes_begin(now=found.begins_at) == 1

    assert fresh(mine).held_at is None and not PlannedJobChange.objects.exists() and not JobBatch.objects.exists()
    assert entries(mine)[-1] == ("job.plan", "gpufleet", "Did not begin: Team Lead may not change jobs any more.")
    assert Notice.objects.get().title == f"Planned change {found.public_id} did not begin"

    # Only for this team: the job is left alone, and named by its id.
    builders.role(personas.users["team_lead"], "team_lead", personas.nodes["acme/product/search"])
    builders.role(personas.users["submitter"], "team_lead", ours)
    again = plan(personas, mine, who="submitter")
    PlannedJobChange.objects.update(author=personas.users["team_lead"])
    planned_changes_begin(now=again.begins_at)
    assert fresh(mine).held_at is None
    assert entries(mine)[-1][2].startswith("Left alone: This job does not exist, or you cannot view its team.")
    assert mine.public_id in Notice.objects.latest("pk").text and "mine" not in Notice.objects.latest("pk").text


def test_a_person_who_is_switched_off_changes_nothing(personas, ours):
    mine = job(on=ours)
    found = plan(personas, mine)
    personas.users["team_lead"].is_active = False
    personas.users["team_lead"].save()

    planned_changes_begin(now=found.begins_at)
    assert fresh(mine).held_at is None and not PlannedJobChange.objects.exists() and not Notice.objects.exists()


@pytest.mark.parametrize("fate", ["revoked", "expired"])
def test_what_a_token_planned_does_not_begin_once_it_is_no_longer_valid(personas, ours, fate):
    mine = job(on=ours)
    headers = {"Authorization": f"Bearer {personas.token('team_lead', 'submit')}"}
    body = {"action": "cancel", "jobs": [{"id": mine.public_id}], "begins": (now() + timedelta(hours=1)).isoformat()}
    assert Client().post("/api/v1/jobs/bulk", body, content_type="application/json", headers=headers).status_code == 200
    ends = now() + timedelta(hours=2)
    ServiceToken.objects.update(**{"revoked_at": now()} if fate == "revoked" else {"expires_at": ends})

    planned_changes_begin(now=ends)

    assert fresh(mine).state == JobState.QUEUED
    assert entries(mine)[-1][2] == f"Did not begin: The token test, with which it was planned, is {fate}."


def test_one_that_breaks_keeps_no_other_from_beginning_and_is_tried_again(personas, ours, monkeypatch, caplog):
    first, second = job("first", on=ours), job("second", on=ours)
    plan(personas, first)
    found = plan(personas, second)
    steer = planned_changes.jobs_steer

    def breaks(*, asked: Any, **given: Any) -> Any:
        if asked.jobs[0][0] == first.public_id:
            raise RuntimeError("no")
        return steer(asked=asked, **given)

    monkeypatch.setattr(planned_changes, "jobs_steer", breaks)
    monkeypatch.setattr(planned_changes, "MOST_AT_A_TURN", 1)
    assert planned_changes_begin(now=found.begins_at) == 1
    assert fresh(first).held_at is None and fresh(second).held_at is not None
    assert "could not begin" in caplog.text
    monkeypatch.undo()
    assert planned_changes_begin(now=found.begins_at) == 1
    assert fresh(first).held_at is not None


@pytest.mark.django_db(transaction=True)
def test_turns_at_the_same_time_begin_each_once_or_find_it_called_off(personas, ours):
    """Whoever calls one off while it begins is told so, and then it has begun; or it has not."""
    jobs = [job(f"j{number}", on=ours) for number in range(4)]
    plans = [plan(personas, one) for one in jobs]
    access, start, begun, off, faults = personas.access("team_lead"), threading.Barrier(4), [], [], []

    def turn() -> None:
        begun.append(planned_changes_begin(now=plans[-1].begins_at))

    def call_off() -> None:
        for found in plans[:2]:
            with contextlib.suppress(Conflict):
                off.extend(plan_call_off(access=access, plan=found.public_id, reason="", now=now()).jobs)

    def run(what: Callable[[], None]) -> None:
        try:
            start.wait(10)
            what()
        except Exception as fault:
            faults.append(fault)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=[what]) for what in (turn, turn, turn, call_off)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    begun.append(planned_changes_begin(now=plans[-1].begins_at))

    assert faults == []
    held = set(Job.objects.filter(held_at__isnull=False))
    assert held | set(off) == set(jobs) and not held & set(off)
    assert sum(begun) == len(held) == JobBatch.objects.count()
    assert not PlannedJobChange.objects.exists()


def test_only_jobs_that_have_not_ended_and_are_the_callers_to_change_are_planned(personas, ours):
    mine, others = job("mine", on=ours, owner=personas.users["submitter"]), job("others", on=ours)
    over = job("over", on=ours, owner=personas.users["submitter"], state=JobState.COMPLETED)
    unseen = job(on=personas.nodes["acme/product/search"])

    found = plan(personas, mine, others, over, unseen, who="submitter")
    assert list(found.jobs.all()) == [mine]
    with pytest.raises(Conflict, match="None of these jobs"):
        plan(personas, others, over, unseen, who="submitter")
    with pytest.raises(PermissionDenied):
        plan(personas, mine, who="viewer")


def test_what_makes_no_sense_is_refused_at_its_field(personas, ours, monkeypatch):
    mine = job(on=ours)
    monkeypatch.setattr(planned_changes, "MOST_PLANS", 1)
    plan(personas, mine)
    for faulty, field in (({"hours": -1}, "begins"), ({"hours": 24 * 400}, "begins"), ({"reason": "x" * 281}, "reason"), ({}, "begins")):
        with pytest.raises(ValidationError) as raised:
            plan(personas, mine, **faulty)
        assert list(raised.value.message_dict) == [field], faulty
    assert PlannedJobChange.objects.count() == 1


def test_its_author_calls_all_of_it_off_and_others_do_for_their_jobs(personas, ours):
    theirs, mine = job("theirs", on=ours), job("mine", on=ours, owner=personas.users["submitter"])
    found = plan(personas, theirs, mine)
    call_off = {"plan": found.public_id, "reason": "not tonight", "now": now()}

    with pytest.raises(PermissionDenied):
        plan_call_off(access=personas.access("viewer"), **call_off)
    with pytest.raises(PermissionDenied):
        plan_call_off(access=personas.access("submitter"), jobs=[theirs.public_id], **call_off)
    off = plan_call_off(access=personas.access("submitter"), **call_off)
    assert ([one.name for one in off.jobs], off.left) == (["mine"], 1), "the owner of one of its jobs"
    assert entries(mine)[-1] == ("job.plan", "Submitter", "not tonight")
    off = plan_call_off(access=personas.access("team_lead"), **call_off)
    assert ([one.name for one in off.jobs], off.left) == (["theirs"], 0)
    assert not PlannedJobChange.objects.exists()
    with pytest.raises(Conflict, match="has begun or was called off"):
        plan_call_off(access=personas.access("team_lead"), **call_off)
    assert planned_changes_begin(now=found.begins_at) == 0 and fresh(theirs).held_at is None


def test_a_planned_change_is_told_as_far_as_its_jobs_may_be_seen(personas, ours):
    mine, secret = job("mine", on=ours), job("secret", on=personas.nodes["acme/product/search"])
    plan(personas, mine, secret, who="operator")
    hidden = plan(personas, secret, who="operator")

    (seen,), more = plans_seen(personas.access("viewer"))
    assert ([one.name for one in seen.jobs], seen.others, seen.may_call_off, more) == (["mine"], 1, False, False)
    assert len(plans_seen(personas.access("operator"))[0]) == 2
    viewer = personas.client("viewer")
    page = viewer.get(reverse("job_plans")).content.decode()
    assert "Hold 2 jobs" in page and "1 job of other teams" in page and "secret" not in page and "Call off" not in page
    assert viewer.get(f"/api/v1/jobs/planned-changes/{hidden.public_id}").status_code == 404
    told = viewer.get("/api/v1/jobs/planned-changes").json()["items"]
    assert [(row["jobs"], row["others"]) for row in told] == [([mine.public_id], 1)]


@pytest.mark.parametrize("address", ["/jobs/planned/", "/api/v1/jobs/planned-changes", "/api/v1/jobs/planned-changes/{plan}", "/jobs/{job}/"])
def test_one_that_begins_while_it_is_looked_at_breaks_no_page(personas, ours, address):
    mine, other = job("mine", on=ours), job("other", on=ours)
    found = plan(personas, mine, other)
    client, gone = personas.client("viewer"), []

    def begins_meanwhile(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        answer = execute(sql, params, many, context)
        if not gone and 'FROM "planned_job_change"' in sql and '"made_at"' in sql:
            gone.append(sql)
            PlannedJobChange.objects.all().delete()
        return answer

    with connection.execute_wrapper(begins_meanwhile):
        answer = client.get(address.format(plan=found.public_id, job=mine.public_id))
    assert answer.status_code == 200 and gone
    if "planned-changes" in address:
        told = answer.json()
        assert [row["others"] for row in told.get("items", [told])] == [0]


def test_an_author_who_no_longer_sees_the_jobs_finds_the_plan_and_calls_it_off(personas, ours):
    """The jobs are others to him then: nothing of them is told but how many they are."""
    mine, other = job("mine", on=ours), job("other", on=ours)
    found = plan(personas, mine, other)
    RoleBinding.objects.filter(user=personas.users["team_lead"]).delete()
    builders.role(personas.users["team_lead"], "team_lead", personas.nodes["acme/product/search"])
    client = personas.client("team_lead")

    (seen,), _ = plans_seen(personas.access("team_lead"))
    assert (seen.jobs, seen.others, seen.may_call_off) == ((), 2, True)
    page = client.get(reverse("job_plans")).content.decode()
    assert "Hold 2 jobs" in page and "2 jobs of other teams" in page and "Call off" in page and "mine" not in page
    assert 'href="/jobs/planned/"' in client.get(reverse("jobs")).content.decode()
    assert client.get(f"/api/v1/jobs/planned-changes/{found.public_id}").json()["others"] == 2
    Job.objects.filter(pk=mine.pk).update(name="renamed since")
    off = client.post(reverse("job_plan_call_off"), {"plan": found.public_id, "job": mine.public_id}, follow=True)
    assert off.status_code == 200 and off.redirect_chain == [(reverse("job_plans"), 302)]
    told = off.content.decode()
    assert f"The planned change is called off for {mine.public_id}. 1 other job stays planned." in told and "renamed" not in told
    assert client.delete(f"/api/v1/jobs/planned-changes/{found.public_id}").status_code == 204
    assert not PlannedJobChange.objects.exists()


def test_a_token_for_one_team_finds_and_calls_off_what_is_planned_for_its_jobs_alone(personas, ours):
    mine, other = job("mine", on=ours), job("other", on=personas.nodes["acme/product/search"])
    found, unseen = plan(personas, mine, other, who="operator"), plan(personas, other, who="operator")
    client = Client(headers={"Authorization": f"Bearer {personas.token('operator', 'operate', path='acme/research/nlp')}"})

    assert [row["id"] for row in client.get("/api/v1/jobs/planned-changes").json()["items"]] == [found.public_id]
    assert client.delete(f"/api/v1/jobs/planned-changes/{unseen.public_id}").status_code == 404
    assert client.delete(f"/api/v1/jobs/planned-changes/{found.public_id}").status_code == 204
    assert list(found.jobs.all()) == [other]


def test_a_page_loads_only_the_jobs_that_it_shows(personas, ours):
    jobs = [job(f"sweep-{number}", on=ours, owner=personas.users["submitter"] if number == 3 else None) for number in range(4)]
    found = plan(personas, *jobs)

    (seen,), _ = plans_seen(personas.access("submitter"), shown=2)
    assert ([one.name for one in seen.jobs], seen.seen, seen.others, seen.may_call_off) == (["sweep-0", "sweep-1"], 4, 0, True)
    (seen,), _ = plans_seen(personas.access("submitter"), job=jobs[0].public_id, shown=0)
    assert (seen.jobs, seen.seen, seen.may_call_off) == ((), 4, False), "of this job, which is another's"
    (seen,), _ = plans_seen(personas.access("submitter"), job=jobs[3].public_id, shown=0)
    assert seen.may_call_off
    assert personas.client("submitter").get(f"/api/v1/jobs/planned-changes/{found.public_id}").json()["jobs"] == [one.public_id for one in jobs]
    page = personas.client("submitter").get(reverse("job", args=[jobs[0].public_id])).content.decode()
    assert "Hold 4 jobs" in page and "Call off" not in page


def test_pages_cost_the_same_for_few_plans_and_for_many(personas, ours):
    mine = job(on=ours)
    client = personas.client("submitter")

    def queries() -> list[int]:
        counts = []
        for address in (reverse("job_plans"), reverse("job", args=[mine.public_id]), "/api/v1/jobs/planned-changes"):
            with CaptureQueriesContext(connection) as seen:
                assert client.get(address).status_code == 200
            counts.append(len(seen))
        return counts

    plan(personas, mine)
    queries()
    few = queries()
    for number in range(6):
        plan(personas, mine, *(job(on=ours) for _ in range(number)))
    assert queries() == few
    assert few[0] <= 8 and few[2] <= 7, few


def sent_by(html: str) -> dict[str, Any]:
    form = html[html.index('<form class="form" id="change"') :].split("</form>")[0]
    found: dict[str, Any] = {}
    for name, value in re.findall(r'<input[^>]* name="([^"]+)"[^>]* value="([^"]*)"', form):
        found.setdefault(name, []).append(unescape(value))
    return found


def test_a_lead_plans_a_change_of_many_jobs_on_its_page_sees_it_and_takes_it_back(personas, ours):
    jobs = [job(f"sweep-{number}", on=ours) for number in range(2)]
    runs = job("runs", on=ours, state=JobState.RUNNING)
    client, begins = personas.client("team_lead"), (now() + timedelta(hours=2)).replace(second=0, microsecond=0)
    address = reverse("jobs_bulk")
    assert "Planned" not in client.get(reverse("jobs")).content.decode()

    html = client.post(address, {"action": "hold", "row": [one.public_id for one in (*jobs, runs)]}).content.decode()
    sent = sent_by(html) | {"begins": f"{begins:%Y-%m-%dT%H:%M}", "reason": "night window"}
    assert sent["later"] == [runs.public_id], "it may have lost its GPUs by then"
    shown = client.post(address, {**sent, "preview": "1"}).content.decode()
    assert f"It begins at {begins:%Y-%m-%d %H:%M} UTC and is looked at again then. This is what it would do now." in shown
    assert "1 job would not change now and is part of it all the same." in shown and "left alone" not in shown
    assert not PlannedJobChange.objects.exists()
    past = client.post(address, {**sent, "begins": "2020-01-01T00:00", "preview": "1"}).content.decode()
    assert "The time must be in the future." in past.split('id="change-preview"')[1].split("</section>")[0]
    refused = client.post(reverse("jobs_bulk_do"), {**sent, "begins": "2020-01-01T00:00"})
    assert refused.status_code == 422 and 'id="begins-error"' in refused.content.decode()
    assert sent_by(refused.content.decode())["later"] == [runs.public_id]

    done = client.post(reverse("jobs_bulk_do"), sent, follow=True)
    (message,) = done.context["messages"]
    assert str(message) == f"Planned for {begins:%Y-%m-%d %H:%M} UTC: Hold 3 jobs."
    assert client.post(reverse("jobs_bulk_do"), sent).status_code == 302 and PlannedJobChange.objects.count() == 1, "sent twice by mistake"
    listed = done.content.decode()
    assert "Hold 3 jobs" in listed and "night window" in listed and "Call off" in listed
    assert 'href="/jobs/planned/"' in client.get(reverse("jobs")).content.decode()
    own = client.get(reverse("job", args=[jobs[0].public_id])).content.decode()
    assert "Planned changes" in own and "Hold 3 jobs" in own and "Call off" in own
    assert "Call off" not in personas.client("viewer").get(reverse("job", args=[jobs[0].public_id])).content.decode()

    off = client.post(reverse("job_plan_call_off"), {"plan": PlannedJobChange.objects.get().public_id, "job": jobs[0].public_id}, follow=True)
    assert f"The planned change is called off for {jobs[0].name}. 2 other jobs stay planned." in off.content.decode()
    assert "Planned changes" not in client.get(reverse("job", args=[jobs[0].public_id])).content.decode()
    undo = undo_of(message)
    assert "The planned change is called off." in client.post(undo.address, undo.fields, follow=True).content.decode()
    assert not PlannedJobChange.objects.exists()
    assert "has begun or was called off since" in client.post(undo.address, undo.fields, follow=True).content.decode()


@pytest.mark.parametrize("action", ["cancel", "hold"])
def test_a_change_of_one_job_is_planned_on_its_own_page(personas, ours, action):
    mine = job("mine", on=ours)
    client, begins = personas.client("team_lead"), (now() + timedelta(hours=2)).replace(second=0, microsecond=0)
    address = reverse(f"job_{action}", args=[mine.public_id])

    sent = sent_by(client.get(address).content.decode()) | {"begins": f"{begins:%Y-%m-%dT%H:%M}"}
    assert client.post(address, sent | {"begins": "2020-01-01T00:00"}).status_code == 422
    done = client.post(address, sent)
    assert done["Location"] == reverse("job", args=[mine.public_id])
    assert (PlannedJobChange.objects.get().action, list(PlannedJobChange.objects.get().jobs.all())) == (action, [mine])
    assert fresh(mine).state == JobState.QUEUED and fresh(mine).held_at is None
    assert personas.client("viewer").post(address, sent).status_code == 403


def test_where_nothing_would_change_now_a_moment_is_needed(personas, ours):
    mine = job("mine", on=ours)
    client = personas.client("team_lead")
    html = client.post(reverse("jobs_bulk"), {"action": "release", "row": mine.public_id}).content.decode()
    assert "Nothing would change now" in html and "Schedule release" in html

    refused = client.post(reverse("jobs_bulk_do"), sent_by(html) | {"begins": ""})
    assert refused.status_code == 422 and "Nothing would change now. Say when it begins." in refused.content.decode()
    over = job("over", on=ours, state=JobState.COMPLETED)
    html = client.post(reverse("jobs_bulk"), {"action": "release", "row": over.public_id}).content.decode()
    assert "Nothing would change." in html and 'name="begins"' not in html


def test_the_api_plans_a_change_lists_it_and_calls_it_off(personas, ours):
    mine, other = job("mine", on=ours), job("other", on=ours)
    client, begins = personas.client("team_lead"), (now() + timedelta(hours=2)).replace(microsecond=0)
    body = {"action": "priority", "priority": 80, "jobs": [{"id": one.public_id} for one in (mine, other)], "begins": begins.isoformat()}

    def post(status: int = 200, query: str = "", key: str = "k", **changed: Any) -> Any:
        answer = client.post(f"/api/v1/jobs/bulk{query}", body | changed, content_type="application/json", headers={"Idempotency-Key": key})
        assert answer.status_code == status, answer.content
        return answer.json()

    dry = post(query="?dry_run=true")
    assert "is looked at again then" in dry["sentences"][0] and dry["planned"] is None and dry["counts"] == {"changes": 2}
    assert post(422, begins="2020-01-01T00:00:00Z")["errors"][0]["path"] == "begins"
    assert not PlannedJobChange.objects.exists()
    told = post()
    planned = told["planned"]
    assert (told["batch"], told["dry_run"], told["repeated"]) == (None, False, False)
    assert (planned["action"], planned["priority"], planned["jobs"], planned["author"]) == (
        "priority",
        80,
        [mine.public_id, other.public_id],
        "team_lead",
    )
    assert fresh(mine).priority == 50
    again = post()
    assert (again["planned"]["id"], again["repeated"]) == (planned["id"], True)
    assert "used for something else" in post(409, priority=90)["detail"]

    address = f"/api/v1/jobs/planned-changes/{planned['id']}"
    assert client.get("/api/v1/jobs/planned-changes", {"job": mine.public_id}).json() == {"items": [planned], "more": False}
    assert client.get("/api/v1/jobs/planned-changes", {"job": "j-999999"}).json()["items"] == []
    assert client.get(address).json() == planned
    assert personas.client("viewer").delete(address).status_code == 403
    assert client.delete(f"{address}?job={mine.public_id}").status_code == 204
    assert client.get(address).json()["jobs"] == [other.public_id]
    assert client.delete(address).status_code == 204
    assert client.get(address).status_code == 404 and client.delete(address).status_code == 404


def test_a_repeated_request_is_answered_as_the_first_also_once_the_moment_has_come(personas, ours):
    """As long as the row is there: the turn that begins it may be some seconds late."""
    mine, over = job("mine", on=ours), job("over", on=ours)
    access, client, begins = personas.access("team_lead"), personas.client("team_lead"), now().replace(second=0, microsecond=0)
    asked = asked_checked(action="hold", jobs=[(mine.public_id, None)])
    given = {"access": access, "asked": asked, "begins_at": begins, "now": begins - timedelta(hours=1)}
    body = {"action": "hold", "matching": {"phase": "waiting"}, "begins": begins.isoformat()}
    first = jobs_plan(**given, reason="", key="api", said=BulkIn.model_validate(body).dict()).plan
    Job.objects.filter(pk=mine.pk).update(state=JobState.RUNNING)
    Job.objects.filter(pk=over.pk).update(state=JobState.COMPLETED, ended_at=NOON)

    def post(**headers: str) -> Any:
        return client.post("/api/v1/jobs/bulk", body, content_type="application/json", headers=headers)

    answer = post(**{"Idempotency-Key": "api"})
    assert answer.status_code == 200, answer.content
    told = answer.json()
    assert (told["planned"]["id"], told["planned"]["jobs"], told["repeated"]) == (first.public_id, [mine.public_id], True)
    assert [verdict["id"] for verdict in told["verdicts"]] == [mine.public_id], "no job matches any more"
    assert post(**{"Idempotency-Key": "other"}).status_code == 422

    second = jobs_plan(**given, reason="night window", key="form").plan
    sent = {"action": "hold", "later": mine.public_id, "begins": f"{begins:%Y-%m-%dT%H:%M}", "reason": "night window", "key": "form"}
    assert client.post(reverse("jobs_bulk_do"), sent | {"key": "fresh"}).status_code == 422
    assert client.post(reverse("jobs_bulk_do"), sent).status_code == 302
    assert set(PlannedJobChange.objects.all()) == {first, second}
