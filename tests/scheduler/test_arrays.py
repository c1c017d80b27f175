"""An array as a whole: how far it is, when it is expected to be done, and one action on all of it, part by part."""

import re
from datetime import datetime, timedelta
from html import unescape

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from gpufleet.core.audit import SYSTEM
from gpufleet.core.models import AuditEntry
from gpufleet.core.times import now
from gpufleet.core.undo import undo_of
from scheduler.models import Job, JobBatch, JobState, PlannedJobChange
from scheduler.selectors.arrays import array_for
from scheduler.services.jobs import arrays
from scheduler.services.jobs.arrays import array_steer
from scheduler.services.jobs.jobs import job_hold
from scheduler.services.jobs.planned_changes import planned_changes_begin
from scheduler.views import arrays as pages
from tests.builders import attempt, gpu, gpu_type, job, node, outlook, placement, rate, spec_of
from tests.quotas.chargeback.worlds import H100, used
from tests.scheduler.test_undo import UNDO

pytestmark = pytest.mark.django_db


@pytest.fixture
def ours(personas):
    return personas.nodes["acme/research/nlp"]


@pytest.fixture
def sweep(ours, personas):
    """`sweep("completed", "queued")`: an array of the submitter with these states, a-1 unless it is named."""

    def make(*states, array="a-1", on=None, **fields):
        given = {"on": on or ours, "owner": personas.users["submitter"], "array": array, "submitted_at": now() - timedelta(hours=2)} | fields
        return [
            job(f"lr[{place}]", state=state, array_index=place, **{"parameters": {"LR": f"0.{place}"}} | given) for place, state in enumerate(states)
        ]

    return make


@pytest.fixture
def api(personas):
    def call(who, method, path, status=200, body=None):
        client = personas.client(who)
        address = f"/api/v1/arrays/{path}"
        answer = client.get(address) if method == "get" else client.post(address, body, content_type="application/json")
        assert answer.status_code == status, answer.content
        return answer.json()

    return call


# How far it is


def test_an_array_has_a_state_as_a_whole(api, sweep):
    jobs = sweep("completed", "failed", "queued", "queued", "running", held_at=None)
    Job.objects.filter(pk=jobs[2].pk).update(held_at=now())
    Job.objects.filter(pk=jobs[4].pk).update(gpus_milli=4000)

    told = api("viewer", "get", "a-1")

    assert (told["name"], told["size"], told["ended_percent"], told["held"], told["holding_milli"]) == ("lr", 5, 40, 1, 4000)
    assert told["counts"] == {"completed": 1, "failed": 1, "queued": 2, "running": 1}
    assert told["failed"] == [jobs[1].public_id]
    assert told["ended_at"] is None


def test_it_has_ended_when_its_last_job_has(api, sweep):
    _, last = sweep("completed", "cancelled")
    Job.objects.filter(pk=last.pk).update(ended_at=now())

    told = api("viewer", "get", "a-1")

    assert told["ended_percent"] == 100
    assert told["ended_at"] is not None and told["foreseen_end"] is None


def test_its_end_is_that_of_the_job_that_ends_last(personas, sweep):
    running, waiting = sweep("running", "queued", estimate_seconds=3600)
    moment = now()
    attempt(running, running_at=moment - timedelta(minutes=30))
    outlook(waiting, "full", predicted_start=moment + timedelta(minutes=20))

    seen = array_for(personas.access("viewer"), "a-1", moment).foreseen

    assert seen.by == "starts"
    assert seen.at == moment + timedelta(minutes=80)


@pytest.mark.parametrize(("ran", "left"), [(30, 30), (90, 0)])
def test_what_runs_ends_by_its_own_start_and_who_is_over_his_estimate_any_moment(personas, sweep, ran, left):
    (running,) = sweep("running", estimate_seconds=3600)
    moment = now()
    attempt(running, running_at=moment - timedelta(minutes=ran))

    assert array_for(personas.access("viewer"), "a-1", moment).foreseen.at == moment + timedelta(minutes=left)


def test_its_end_counts_on_the_speed_of_the_gpus_and_never_beyond_a_limit(personas, sweep):
    spec = {"throughput": {"H100-SXM-80GB": 2, "A100": 0.5}, "roles": [{"name": "worker"}]}
    fast, slow, waiting = sweep("running", "running", "queued", estimate_seconds=3600, limit_seconds=9000, spec=spec)
    moment = now()
    for one, name in ((fast, "H100-SXM-80GB"), (slow, "A100")):
        placement(one, gpu(node(gpus=1, gpu_type=gpu_type(name))), attempt=attempt(one, running_at=moment))
    outlook(waiting, "full", predicted_start=moment)

    def end() -> datetime | None:
        return array_for(personas.access("viewer"), "a-1", moment).foreseen.at

    assert end() == moment + timedelta(seconds=7200), "half as quick where it sits, or may sit"
    Job.objects.update(spec=spec_of(spec | {"gpu_types": ["H100-SXM-80GB"]}))
    Job.objects.filter(pk=slow.pk).update(state="completed", ended_at=moment)
    assert end() == moment + timedelta(seconds=1800)
    Job.objects.update(limit_seconds=600)
    assert end() == moment + timedelta(seconds=600)


def test_where_starts_are_not_known_it_goes_by_the_pace_until_now(personas, sweep):
    done, *_ = sweep("completed", "queued", "queued")
    moment = now()
    attempt(done, started_at=moment - timedelta(minutes=10))

    seen = array_for(personas.access("viewer"), "a-1", moment).foreseen

    assert (seen.by, seen.unknown, seen.at) == ("pace", 2, moment + timedelta(minutes=20))


def test_before_anything_is_known_nobody_can_say(personas, sweep):
    sweep("queued", "queued")

    assert array_for(personas.access("viewer"), "a-1", now()).foreseen.at is None
    assert "neither start nor length is known" in personas.client("viewer").get("/jobs/arrays/a-1/").content.decode()


def test_the_page_shows_failures_first_and_parameters_to_its_people(personas, sweep):
    sweep("completed", "queued", "failed", "running")

    html = personas.client("submitter").get("/jobs/arrays/a-1/").content.decode()
    assert "<dt>Running</dt>" in html and "On GPUs" not in html
    places = [html.index(f">lr[{place}]<") for place in (2, 3, 1, 0)]
    assert places == sorted(places)
    assert "<code>LR=0.2</code>" in html and "Preview" in html
    seen = personas.client("viewer").get("/jobs/arrays/a-1/").content.decode()
    assert "LR=0.2" not in seen and "Preview" not in seen
    assert ">Parameters<" in html
    sweep("queued", array="a-3", parameters={})
    assert ">Parameters<" not in personas.client("submitter").get("/jobs/arrays/a-3/").content.decode(), "an empty column says nothing"
    own = Job.objects.get(array="a-1", array_index=0)
    assert '<a href="/jobs/arrays/a-1/">a-1</a>' in personas.client("viewer").get(f"/jobs/{own.public_id}/").content.decode()


def test_arrays_of_other_teams_are_not_there(api, personas, sweep):
    sweep("queued", array="a-2", on=personas.nodes["acme/product/search"])

    api("viewer", "get", "a-2", 404)
    api("submitter", "post", "a-2/bulk", 404, {"action": "cancel"})
    assert personas.client("submitter").get("/jobs/arrays/a-2/").status_code == 404
    assert api("operator", "get", "a-2")["size"] == 1


def test_what_all_its_jobs_have_used_and_cost_so_far_is_told_to_those_who_may_see_costs(api, personas, sweep, ours):
    one, two, _ = sweep("completed", "running", "queued")
    began = now() - timedelta(hours=1)
    rate(H100, since=began - timedelta(days=1), micros=2_000_000)
    for of, hours in ((one, 0.5), (one, 0.25), (two, 0.25)):
        used(ours, began, hours, milli=2000, job=of.public_id, attempt=attempt(of).pk)
    used(ours, began, 5, job="j-0", attempt=10**6)

    page = unescape(personas.client("team_lead").get("/jobs/arrays/a-1/").content.decode())
    assert "Cost so far" in page and "$4.00" in page and "2.00 GPU-hours" in page
    hidden = personas.client("submitter").get("/jobs/arrays/a-1/").content.decode()
    assert "GPU-hours so far" in hidden and ">2.00<" in hidden and "$4.00" not in hidden
    assert [api(who, "get", "a-1")["cost_micros"] for who in ("team_lead", "submitter")] == [4_000_000, None]
    assert api("submitter", "get", "a-1")["gpu_hours"] == 2.0


def test_it_costs_the_same_for_few_and_for_many(personas, sweep, ours):
    def queries():
        with CaptureQueriesContext(connection) as seen:
            assert personas.client("submitter").get("/jobs/arrays/a-1/").status_code == 200
        return len(seen)

    def more(array_index):
        placement(job("n", on=ours, state=JobState.RUNNING, array="a-1", array_index=array_index), gpu(node(gpus=1)))
        outlook(job("w", on=ours, array="a-1", array_index=array_index + 1), "full", predicted_start=now())

    sweep("failed", "completed")
    more(10)
    queries()
    few = queries()
    for number in range(15):
        more(20 + 2 * number)
    assert queries() == few <= 15


# One action on all of it


def test_a_whole_array_is_cancelled_in_parts(api, sweep):
    sweep("completed", *["queued"] * 5)

    first = api("submitter", "post", "a-1/bulk", body={"action": "cancel", "size": 3, "reason": "wrong data"})
    assert (first["counts"], first["next"]) == ({"changes": 3}, 3)
    second = api("submitter", "post", "a-1/bulk", body={"action": "cancel", "size": 3, "after": first["next"]})
    assert (second["counts"], second["next"]) == ({"changes": 2}, None)

    assert Job.objects.filter(state="cancelled").count() == 5
    assert JobBatch.objects.filter(public_id__in=[first["batch"], second["batch"]]).count() == 2
    assert AuditEntry.objects.filter(action="job.state", reason="wrong data").count() == 3
    again = api("submitter", "post", "a-1/bulk", body={"action": "cancel"})
    assert (again["counts"], again["next"], again["batch"]) == ({}, None, None), "it may be asked for again"


def test_a_dry_run_tells_of_the_whole_and_changes_nothing(api, sweep):
    jobs = sweep(*["queued"] * 3, "running")
    Job.objects.filter(pk=jobs[0].pk).update(held_at=now())

    told = api("submitter", "post", "a-1/bulk?dry_run=true", body={"action": "hold"})

    assert told["counts"] == {"same": 1, "changes": 2, "refused": 1}
    assert Job.objects.filter(held_at__isnull=False).count() == 1


@pytest.mark.parametrize(
    ("action", "more", "held"),
    [({"action": "hold"}, {}, 2), ({"action": "priority", "priority": 90}, {"priority": 90}, 0)],
)
def test_it_is_held_and_ranked_as_a_whole(api, sweep, action, more, held):
    sweep("queued", "queued", "completed")

    assert api("team_lead", "post", "a-1/bulk", body=action)["counts"] == {"changes": 2}
    assert Job.objects.filter(held_at__isnull=False).count() == held
    assert Job.objects.filter(**more, state="queued").count() == 2
    if held:
        assert api("team_lead", "post", "a-1/bulk", body={"action": "release"})["counts"] == {"changes": 2}


def test_what_makes_no_sense_is_refused(api, sweep):
    sweep("queued")

    api("submitter", "post", "a-1/bulk", 422, {"action": "priority"})
    api("submitter", "post", "a-1/bulk", 422, {"action": "cancel", "priority": 3})
    api("viewer", "post", "a-1/bulk", 403, {"action": "cancel"})
    assert Job.objects.filter(state="queued").count() == 1


def test_another_ones_jobs_are_left_alone(personas, sweep, ours, api):
    sweep("queued", owner=personas.users["team_lead"])

    assert api("submitter", "post", "a-1/bulk", body={"action": "cancel"})["counts"] == {"not_allowed": 1}
    assert personas.client("submitter").get("/jobs/arrays/a-1/steer/?action=cancel").status_code == 403


def test_the_page_previews_and_goes_on_where_it_was(personas, sweep, monkeypatch):
    monkeypatch.setattr(pages, "SLICES", 1)
    monkeypatch.setattr("scheduler.services.jobs.arrays.MOST", 2)
    monkeypatch.setattr(array_steer, "__kwdefaults__", {**array_steer.__kwdefaults__, "size": 2})
    sweep(*["queued"] * 3)
    client = personas.client("submitter")

    html = client.get("/jobs/arrays/a-1/steer/?action=cancel").content.decode()
    assert "Cancel 3 jobs?" in html and "Nothing has changed yet" in html
    assert Job.objects.filter(state="queued").count() == 3
    first = client.post("/jobs/arrays/a-1/steer/", {"action": "cancel", "reason": "old", "after": "-1"})
    assert first.status_code == 200
    html = first.content.decode()
    assert "2 done so far" in html and "data-go-on" in html and 'name="after" value="1"' in html and 'value="old"' in html
    last = client.post("/jobs/arrays/a-1/steer/", {"action": "cancel", "after": "1", "done": "2"}, follow=True)
    assert "Cancelled 3 jobs." in last.content.decode()
    assert Job.objects.filter(state="cancelled").count() == 3


def test_a_change_of_the_whole_is_undone_part_by_part_but_for_jobs_that_have_changed_since(personas, sweep, monkeypatch):
    monkeypatch.setattr(pages, "SLICES", 2)
    monkeypatch.setattr(array_steer, "__kwdefaults__", {**array_steer.__kwdefaults__, "size": 2})
    jobs = sweep(*["queued"] * 5)
    client, steer = personas.client("submitter"), "/jobs/arrays/a-1/steer/"

    def on(html: str) -> dict[str, str]:
        return {name: unescape(value) for name, value in re.findall(r'type="hidden" name="([a-z]+)" value="([^"]*)"', html)}

    going = client.post(steer, {"action": "priority", "priority": "90", "after": "-1"}).content.decode()
    done = client.post(steer, on(going), follow=True)
    assert "Changed the priority of 5 jobs." in done.content.decode()
    job_hold(job=jobs[1], now=now(), actor=SYSTEM)
    found = UNDO.search(done.content.decode())
    assert found is not None and found[1] == steer
    between = client.post(steer, on(found[2])).content.decode()
    assert "3 done so far" in between and "data-go-on" in between

    told = client.post(steer, on(between), follow=True).content.decode()

    assert "4 jobs are as before. 1 job has changed since and is left alone: lr[1]." in told
    assert list(Job.objects.order_by("array_index").values_list("priority", flat=True)) == [50, 90, 50, 50, 50]
    again = client.post(steer, on(found[2]), follow=True).content.decode()
    again = client.post(steer, on(again), follow=True).content.decode()
    assert "These jobs have changed since. Nothing was undone." in again
    cancelled = client.post(steer, {"action": "cancel", "after": "1"}, follow=True).content.decode()
    assert "Cancelled 3 jobs." in cancelled and UNDO.search(cancelled) is None, "a cancelled job stays so"


def test_what_was_done_before_it_was_stopped_can_be_undone(personas, sweep, monkeypatch):
    monkeypatch.setattr(pages, "SLICES", 1)
    monkeypatch.setattr(array_steer, "__kwdefaults__", {**array_steer.__kwdefaults__, "size": 2})
    sweep(*["queued"] * 5)
    client, steer = personas.client("submitter"), "/jobs/arrays/a-1/steer/"

    def on(html: str) -> dict[str, str]:
        return {name: unescape(value) for name, value in re.findall(r'type="hidden" name="([a-z]+)" value="([^"]*)"', html)}

    going = client.post(steer, {"action": "priority", "priority": "90", "after": "-1"}).content.decode()
    assert re.search(r'<button type="submit"[^>]* name="stop"', going)
    stopped = client.post(steer, {**on(going), "stop": "yes"}, follow=True).content.decode()
    assert "Stopped. Changed the priority of 2 jobs." in stopped
    assert list(Job.objects.order_by("array_index").values_list("priority", flat=True)) == [90, 90, 50, 50, 50]
    found = UNDO.search(stopped)
    assert found is not None
    assert "2 jobs are as before." in client.post(steer, on(found[2]), follow=True).content.decode()
    assert set(Job.objects.values_list("priority", flat=True)) == {50}


def test_the_page_says_what_is_wrong_with_what_is_asked(personas, sweep):
    sweep("queued")
    client = personas.client("submitter")

    assert client.get("/jobs/arrays/a-1/steer/?action=priority").status_code == 422
    assert client.get("/jobs/arrays/a-1/steer/?action=burn").status_code == 422
    assert client.post("/jobs/arrays/a-1/steer/", {"action": "hold", "reason": "x" * 300}).status_code == 422
    assert Job.objects.get().held_at is None


# Planned for later


def test_a_change_of_a_whole_array_is_planned_shown_as_one_begun_and_called_off(personas, sweep, monkeypatch):
    monkeypatch.setattr(arrays, "MOST", 2)  # of one planned change
    jobs = sweep("completed", *["queued"] * 5)
    client, begins = personas.client("submitter"), (now() + timedelta(hours=2)).replace(second=0, microsecond=0)
    address, moment = "/jobs/arrays/a-1/steer/", f"{begins:%Y-%m-%d %H:%M} UTC"
    sent = {"action": "hold", "run": "one", "begins": f"{begins:%Y-%m-%dT%H:%M}", "reason": "night window"}

    assert ">Hold 5 jobs</button>" in client.get(address, {"action": "hold"}).content.decode()
    shown = client.post(address, sent | {"preview": "1"}).content.decode()
    assert f"It begins at {moment} and is looked at again then." in shown and ">Schedule hold of 5 jobs</button>" in shown
    refused = client.post(address, sent | {"begins": "2020-01-01T00:00"})
    assert refused.status_code == 422 and "The time must be in the future." in refused.content.decode()
    assert not PlannedJobChange.objects.exists() and not Job.objects.filter(held_at__isnull=False).exists()

    done = client.post(address, sent, follow=True)
    (message,) = done.context["messages"]
    assert str(message) == f"Planned for {moment}: Hold 5 jobs."
    assert sorted(plan.jobs.count() for plan in PlannedJobChange.objects.all()) == [1, 2, 2]
    client.post(address, sent)
    assert PlannedJobChange.objects.count() == 3, "the form that was sent twice plans once"
    Job.objects.filter(pk=jobs[1].pk).update(state=JobState.COMPLETED, ended_at=now())
    assert client.post(address, sent).status_code == 302 and PlannedJobChange.objects.count() == 3, "also where a job has ended since"
    Job.objects.filter(pk=jobs[1].pk).update(state=JobState.QUEUED, ended_at=None)
    for page in (done, client.get("/jobs/planned/")):
        html = page.content.decode()
        assert html.count("<strong>Hold 5 jobs</strong>") == 1 and html.count("Call off") == 1
    assert "Hold 2 jobs" in client.get(f"/jobs/{jobs[1].public_id}/").content.decode()

    undo = undo_of(message)
    off = client.post(undo.address, undo.fields, follow=True)
    assert off.redirect_chain[-1][0] == "/jobs/arrays/a-1/" and "The planned change is called off." in off.content.decode()
    assert not PlannedJobChange.objects.exists()

    client.post(address, sent | {"run": "two"})
    Job.objects.filter(pk=jobs[5].pk).update(state=JobState.COMPLETED, ended_at=now())
    assert planned_changes_begin(now=begins) == 3
    assert set(Job.objects.filter(held_at__isnull=False)) == set(jobs[1:5])


def test_of_an_array_that_is_so_already_a_later_change_needs_its_time(personas, sweep):
    sweep("queued", "queued")
    client, address = personas.client("submitter"), "/jobs/arrays/a-1/steer/"

    html = client.get(address, {"action": "release"}).content.decode()
    assert "Nothing would change now" in html and ">Schedule release of 2 jobs</button>" in html
    refused = client.post(address, {"action": "release", "later": "yes"})
    assert refused.status_code == 422 and "Nothing would change now. Say when it begins." in refused.content.decode()


def test_the_rest_of_a_planned_array_is_called_off_once_some_has_begun(personas, sweep, monkeypatch):
    monkeypatch.setattr(arrays, "MOST", 1)
    sweep("queued", "queued")
    client, begins = personas.client("submitter"), (now() + timedelta(hours=2)).replace(second=0, microsecond=0)
    client.post("/jobs/arrays/a-1/steer/", {"action": "hold", "run": "one", "begins": f"{begins:%Y-%m-%dT%H:%M}"})
    first, second = PlannedJobChange.objects.order_by("pk")
    ids = {"plan": f"{first.public_id} {second.public_id}", "array": "a-1"}
    first.delete()

    assert "The planned change is called off." in client.post("/jobs/planned/call-off/", ids, follow=True).content.decode()
    assert "has begun or was called off since" in client.post("/jobs/planned/call-off/", ids, follow=True).content.decode()


def test_programs_plan_an_array_part_by_part(api, personas, sweep):
    sweep(*["queued"] * 3)
    begins = (now() + timedelta(hours=2)).isoformat()
    body = {"action": "priority", "priority": 80, "begins": begins, "size": 2}

    dry = api("submitter", "post", "a-1/bulk?dry_run=true", body=body)
    assert "is looked at again then" in dry["sentences"][0] and dry["planned"] is None
    first = api("submitter", "post", "a-1/bulk", body=body)
    assert first["planned"].startswith("pc-") and first["counts"] == {"changes": 2} and first["next"] == 1
    second = api("submitter", "post", "a-1/bulk", body=body | {"after": first["next"]})
    assert second["planned"] != first["planned"] and second["next"] is None
    key = {"Idempotency-Key": "once"}
    again = [personas.client("submitter").post("/api/v1/arrays/a-1/bulk", body, content_type="application/json", headers=key) for _ in range(2)]
    assert again[0].json()["planned"] == again[1].json()["planned"]
    assert PlannedJobChange.objects.count() == 3
    assert set(Job.objects.values_list("priority", flat=True)) == {50}
    api("submitter", "post", "a-1/bulk", status=422, body=body | {"begins": "2020-01-01T00:00:00Z"})
    api("viewer", "post", "a-1/bulk", status=403, body=body)
