"""One thing done to many jobs: what became of each, and that nobody does more by it than job by job."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from gpufleet.core.faults import Conflict
from gpufleet.core.models import AuditEntry
from gpufleet.core.times import now
from quotas.models import RoleBinding
from scheduler.jobs.schema import JobChange
from scheduler.models import HOLDING, Attempt, Job, JobBatch, JobEvent, JobState, Order
from scheduler.services.jobs.bulk import MOST, asked_checked, jobs_preview, jobs_steer
from scheduler.services.jobs.edits import job_edit, job_save_now
from scheduler.services.jobs.steering import job_cancel, job_hold_back, job_release_hold
from tests import builders
from tests.builders import NOON, attempt, job, node, placement
from tests.scheduler.bulk_calls import call, effects, entries, named, preview_page, running

pytestmark = pytest.mark.django_db


@pytest.fixture
def ours(personas):
    return personas.nodes["acme/research/nlp"]


@pytest.fixture
def theirs(personas):
    return personas.nodes["acme/product/search"]


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
