"""Changing, cloning and restarting jobs over HTTP: only what was named, only by those who may, and not over somebody else's change."""

from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpufleet.core.models import AuditEntry
from gpufleet.core.times import now
from scheduler.jobs.reading import read_description
from scheduler.jobs.writing import description_of
from scheduler.models import Job, JobEvent, JobState, Order, OrderKind
from scheduler.services.jobs.submission import submission_create
from tests.builders import attempt, job, node, placement, spec_of

pytestmark = pytest.mark.django_db
TEAM = "acme/research/nlp"
ELASTIC = {"roles": [{"name": "worker", "min": 2, "max": 4, "gpus": 1}], "grace_s": 30}


@pytest.fixture
def mine(personas):
    node(gpus=4)
    return job("mine", on=personas.nodes[TEAM], owner=personas.users["submitter"], spec=ELASTIC, gpus_milli=2000, labels={"run": "1"})


@pytest.fixture
def ask(personas, mine):
    """`ask("PATCH", "", {…}, 200)` about the submitter's job; the answer, or what a problem says."""

    def call(method, path, body, status, *, of=None, who="submitter", **headers):
        send = getattr(personas.client(who), method.lower())
        address = f"/api/v1/jobs/{(of or mine).public_id}{path}"
        answer = send(address, headers=headers) if body is None else send(address, body, content_type="application/json", headers=headers)
        assert answer.status_code == status, answer.content
        return answer

    return call


def running(personas, workers=2):
    found = job("gang", on=personas.nodes[TEAM], owner=personas.users["submitter"], state=JobState.RUNNING, spec=ELASTIC, gpus_milli=2000)
    run = attempt(found, running_at=now())
    for number, gpu in enumerate(node(gpus=workers).gpus.order_by("index")):
        placement(found, gpu, attempt=run, worker=number)
    return found


@pytest.fixture
def draft(personas, mine):
    """A draft of yesterday, as the submitter made it."""
    wish = {"name": "later", "quota": TEAM, "gpus": 2, "labels": {"run": "2"}, "draft": True, "after": [{"job": mine.public_id}]}
    access = personas.access("submitter")
    (found,) = submission_create(access=access, description=wish, now=now() - timedelta(days=1), actor=access.actor)
    return found


def test_a_draft_is_put_in_the_queue_as_submitted_now(ask, draft, mine):
    before = now()
    told = ask("POST", "/enqueue", {"reason": "Data is there."}, 200, of=draft, **{"If-Match": '"1"'})

    found = Job.objects.get(pk=draft.pk)
    assert (told.json()["state"], told["ETag"], found.state, found.revision) == ("queued", '"2"', JobState.QUEUED, 2)
    assert found.submitted_at >= before and found.state_since == found.submitted_at
    assert (found.gpus_milli, found.labels, found.dependencies.get().on) == (2000, {"run": "2"}, mine)
    event = JobEvent.objects.filter(job=draft).latest("id")
    assert (event.from_state, event.to_state, event.cause, event.actor_name) == ("draft", "queued", "Data is there.", "Submitter")
    entry = AuditEntry.objects.get(action="job.state")
    assert (entry.object_id, entry.before, entry.after) == (draft.public_id, {"state": "draft"}, {"state": "queued"})
    assert "is not a draft" in ask("POST", "/enqueue", {}, 409, of=draft).json()["detail"]
    assert "is not a draft" in ask("POST", "/enqueue", {}, 409).json()["detail"]


def test_a_draft_has_to_hold_on_the_day_on_which_it_is_submitted(ask, draft, personas):
    Job.objects.filter(pk=draft.pk).update(deadline=now() - timedelta(minutes=1))
    assert ask("POST", "/enqueue", {}, 422, of=draft).json()["errors"][0]["path"] == "deadline"
    Job.objects.filter(pk=draft.pk).update(deadline=None, spec=spec_of(draft.spec | {"gpu_types": ["Z1"]}))
    assert ask("POST", "/enqueue", {}, 422, of=draft).json()["errors"][0]["path"] == "roles[0].gpu_types"
    page = personas.client("submitter").post(f"/jobs/{draft.public_id}/enqueue/")
    assert (page.status_code, "roles[0].gpu_types: The fleet knows no Z1" in page.content.decode()) == (422, True)
    Job.objects.filter(pk=draft.pk).update(spec=draft.spec)
    ask("POST", "/enqueue", {}, 403, of=draft, who="viewer")
    ask("POST", "/enqueue", {}, 403, of=draft, who="stranger")
    ask("POST", "/enqueue", {}, 412, of=draft, **{"If-Match": '"7"'})
    found = Job.objects.get(pk=draft.pk)
    assert (found.state, found.revision, JobEvent.objects.filter(job=draft).count()) == (JobState.DRAFT, 1, 1)


def test_only_what_is_named_changes_and_it_is_written_down(ask, mine):
    told = ask("PATCH", "", {"priority": 80, "limit_s": 3600, "labels": {"run": "2"}, "reason": "Urgent."}, 200).json()

    found = Job.objects.get(pk=mine.pk)
    assert (found.priority, found.limit_seconds, found.labels, found.name, found.spec) == (80, 3600, {"run": "2"}, "mine", ELASTIC)
    assert told["priority"] == 80 and told["revision"] == found.revision == 2
    event = JobEvent.objects.filter(job=mine).latest("id")
    assert (event.cause, event.detail["changed"], event.actor_name) == ("Urgent.", ["labels", "limit_s", "priority"], "Submitter")
    entry = AuditEntry.objects.get(action="job.edit")
    assert entry.before == {"priority": 50, "limit_seconds": None, "labels": {"run": "1"}}
    assert entry.after == {"priority": 80, "limit_seconds": 3600, "labels": {"run": "2"}}
    ask("PATCH", "", {"limit_s": None}, 200)
    assert Job.objects.get(pk=mine.pk).limit_seconds is None


def test_every_fault_of_a_change_is_told_at_its_path(ask, mine):
    told = ask("PATCH", "", {"priority": 9999, "colour": "red", "labels": {"a b": "x"}, "workers": {"worker": {"min": -1}}, "limit_s": 0}, 422).json()

    assert {error["path"] for error in told["errors"]} == {"priority", "colour", "labels.a b", "workers.worker.min", "limit_s"}
    assert ask("PATCH", "", {"labels": {"a": "b\0"}}, 422).json()["errors"][0]["path"] == "labels.a"
    assert ask("PATCH", "", {}, 422).json()["errors"]
    assert ask("PATCH", "", {"deadline": "2020-01-01T00:00:00Z"}, 422).json()["errors"][0]["path"] == "deadline"
    soon = now() + timedelta(hours=1)
    body = {"deadline": soon.isoformat(), "not_before": (soon + timedelta(hours=1)).isoformat()}
    assert ask("PATCH", "", body, 422).json()["errors"][0]["path"] == "deadline"
    told = {error["path"]: error["message"] for error in ask("PATCH", "", {"priorit": 1, "gpus": 4, "roles": []}, 422).json()["errors"]}
    assert told == {
        "priorit": "There is no key priorit here; priority was perhaps meant.",
        "gpus": "gpus stays as it was submitted; clone the job to have another one.",
        "roles": "roles stays as it was submitted; clone the job to have another one.",
    }
    assert Job.objects.get(pk=mine.pk).revision == 1


def test_what_asks_for_nothing_needs_no_body(ask, mine, personas):
    client = personas.client("submitter")
    assert client.generic("POST", f"/api/v1/jobs/{mine.public_id}/hold").status_code == 200
    assert client.generic("POST", f"/api/v1/jobs/{mine.public_id}/clone").status_code == 201
    told = client.generic("POST", f"/api/v1/jobs/{mine.public_id}/cancel")
    assert (told.status_code, told.json()["state"]) == (200, "cancelled")
    again = ask("POST", "/cancel", {}, 409).json()
    assert (again["title"], again["detail"]) == ("Conflict with the current state", f"{mine.public_id} has ended already.")
    assert ask("POST", "/cancel", {"reasn": "typo"}, 422).json()["errors"][0]["path"] == "reasn"


def test_a_write_on_a_revision_that_is_gone_is_refused_with_the_new_one(ask, mine):
    tag = ask("GET", "", None, 200)["ETag"]
    assert tag == '"1"'
    assert ask("PATCH", "", {"priority": 60}, 200, **{"If-Match": tag})["ETag"] == '"2"'

    for method, path, body in [("PATCH", "", {"priority": 70}), ("POST", "/hold", {}), ("POST", "/cancel", {}), ("POST", "/release", {})]:
        refused = ask(method, path, body, 412, **{"If-Match": tag})
        assert refused["ETag"] == '"2"'
        assert "revision 2 by now, not 1" in refused.json()["detail"]
    found = Job.objects.get(pk=mine.pk)
    assert (found.priority, found.held_at, found.state, found.revision) == (60, None, JobState.QUEUED, 2)
    assert ask("PATCH", "", {"priority": 70}, 422, **{"If-Match": "nonsense"}).json()["errors"][0]["path"] == "If-Match"
    ask("POST", "/hold", {}, 200, **{"If-Match": "*"})


def test_the_range_of_an_elastic_job_changes_with_what_its_minimum_needs(ask, mine):
    ask("PATCH", "", {"workers": {"worker": {"min": 3, "max": 8}}}, 200)

    found = Job.objects.get(pk=mine.pk)
    assert found.spec["roles"] == [{"name": "worker", "min": 3, "max": 8, "gpus": 1}]
    assert found.gpus_milli == 3000
    assert ask("PATCH", "", {"workers": {"ps": {"min": 1}}}, 422).json()["errors"][0]["path"] == "workers.ps"
    assert ask("PATCH", "", {"workers": {"worker": {"min": 4, "max": 2}}}, 422).json()["errors"][0]["path"].startswith("workers")


def test_a_run_must_lie_within_its_new_range(ask, personas):
    gang = running(personas, workers=3)

    told = ask("PATCH", "", {"workers": {"worker": {"min": 1, "max": 2}}}, 422, of=gang).json()
    assert "runs with 3" in told["errors"][0]["message"]
    ask("PATCH", "", {"workers": {"worker": {"min": 1, "max": 3}}}, 200, of=gang)
    assert ask("PATCH", "", {"not_before": (now() + timedelta(hours=1)).isoformat()}, 422, of=gang).json()["errors"][0]["path"] == "not_before"


def test_what_has_ended_is_not_changed(ask, mine):
    ask("POST", "/cancel", {}, 200)

    assert "clone" in ask("PATCH", "", {"priority": 1}, 409).json()["detail"]


def test_a_running_job_is_told_to_save_its_work_and_goes_on(ask, personas, mine):
    gang = running(personas)

    assert ask("POST", "/checkpoint", {"reason": "Before the upgrade."}, 200, of=gang).json()["state"] == "running"

    order = Order.objects.get()
    assert (order.kind, order.payload) == (OrderKind.SIGNAL, {"signal": "checkpoint"})
    assert AuditEntry.objects.get(action="job.checkpoint").reason == "Before the upgrade."
    ask("POST", "/checkpoint", {}, 409)


def test_restarting_puts_out_what_runs_and_submits_what_has_ended_anew(ask, personas, mine):
    gang = running(personas)
    assert ask("POST", "/restart", {}, 200, of=gang).json()["state"] == "checkpointing"
    assert gang.attempts.get().stop_to == JobState.PREEMPTED
    ask("POST", "/restart", {}, 409)
    ask("POST", "/cancel", {}, 200)

    anew = ask("POST", "/restart", {}, 201, **{"Idempotency-Key": "again"}).json()
    same = ask("POST", "/restart", {}, 201, **{"Idempotency-Key": "again"}).json()

    assert anew["id"] == same["id"] != mine.public_id
    found = Job.objects.get(public_id=anew["id"])
    assert (found.name, found.spec, found.labels, found.state) == ("mine", ELASTIC, {"run": "1"}, JobState.QUEUED)


def test_a_clone_differs_in_what_is_named(ask, mine):
    told = ask("POST", "/clone", {"changes": {"name": "second", "labels": None, "priority": 7}}, 201, **{"Idempotency-Key": "c"}).json()
    ask("POST", "/clone", {"changes": {"name": "second", "labels": None, "priority": 7}}, 200, **{"Idempotency-Key": "c"})

    found = Job.objects.get(public_id=told["jobs"][0]["id"])
    assert (found.name, found.labels, found.priority, found.spec) == ("second", {}, 7, ELASTIC)
    assert ask("POST", "/clone", {"changes": {"colour": "red"}}, 422).json()["errors"][0]["path"] == "colour"
    assert ask("GET", "/description", None, 200).json()["roles"] == ELASTIC["roles"]
    ask("GET", "/description", None, 403, who="viewer")
    ask("PATCH", "", {"priority": 1}, 403, who="viewer")


SHAPES = st.one_of(
    st.fixed_dictionaries({"gpus": st.integers(0, 8), "workers": st.integers(1, 9)}),
    st.fixed_dictionaries({"roles": st.just([{"name": "a", "gpus": 2, "min": 1, "max": 3}, {"name": "b", "cpus": 4, "gpus": 0}])}),
    st.fixed_dictionaries({"gpus": st.just(1), "sharing": st.just("exclusive"), "topology": st.just({"required": "node"})}),
)
REST = st.fixed_dictionaries(
    {},
    optional={
        "class": st.sampled_from(["batch", "interactive", "inference"]),
        "priority": st.integers(-1000, 1000),
        "preemptible": st.sampled_from([True, False, "when_borrowed"]),
        "gpu_types": st.just(["H100-SXM-80GB"]),
        "checkpoint": st.sampled_from([None, {"interval_s": 60}]),
        "estimate_s": st.integers(1, 10**6),
        "limit_s": st.integers(1, 10**6),
        "retries": st.integers(0, 9),
        "labels": st.dictionaries(st.sampled_from("abc"), st.text("xyz", max_size=3)),
        "grace_s": st.sampled_from([0, 1.5, 60]),
        "array": st.just({"size": 2}),
        "launch": st.just({"command": ["true"], "env": {"A": "1"}, "secrets": {"B": "b"}}),
    },
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shape=SHAPES, rest=REST)
def test_what_was_submitted_can_be_said_and_submitted_again(personas, shape, rest):
    node(gpus=8) if not Job.objects.exists() else None
    access, moment = personas.access("submitter"), now()
    first = submission_create(access=access, description={"name": "x", "quota": TEAM} | shape | rest, now=moment, actor=access.actor)[0]
    first.refresh_from_db()

    said = description_of(first, moment)
    again = submission_create(access=access, description=said, now=moment, actor=access.actor)[0]
    again.refresh_from_db()

    assert read_description(said).faults == {}
    columns = (
        "job_class",
        "priority",
        "preemptible",
        "spec",
        "gpus_milli",
        "estimate_seconds",
        "limit_seconds",
        "labels",
        "retry_limit",
        "cost_centre",
    )
    assert {name: getattr(again, name) for name in columns} == {name: getattr(first, name) for name in columns}
    launched = {**first.launch, "env": {key: value for key, value in first.launch.get("env", {}).items() if key != "GPUFLEET_ARRAY_INDEX"}}
    assert {**again.launch, "env": again.launch.get("env", {})} == launched
