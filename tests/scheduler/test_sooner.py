"""What would start a waiting job sooner: tried with the job at its place, told where it is done, and true."""

from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.urls import reverse

from gpufleet.core.times import now
from quotas.models import Budget, QuotaShare
from quotas.services.budgets import budget_create
from scheduler.jobs.reading import change_read
from scheduler.jobs.writing import description_again
from scheduler.models import Dependency, Job, JobState
from scheduler.presenters.sooner import proposals
from scheduler.services.forecasts import grounds, sooner
from scheduler.services.forecasts.sooner import DEPENDS, HELD, NO_BUDGET, NOT_ASKED, NOT_DUE, NOT_YOURS, PROMISED, Sooner, job_sooner
from scheduler.services.jobs.edits import job_clone, job_edit
from scheduler.services.jobs.steering import job_cancel
from scheduler.services.loop.lease import lease_pause
from tests import builders
from tests.builders import NOON
from tests.scheduler.loop.worlds import H100, Loop, state, submit

pytestmark = pytest.mark.django_db
OURS, THEIRS = "acme/research/nlp", "acme/product/search"


@pytest.fixture
def world(personas: Any) -> Any:
    """Two nodes of eight GPUs; each side has one guaranteed."""
    builders.cluster(levels=("spine", "leaf"))
    builders.node("n1", gpus=8, at="s1/l1")
    builders.node("n2", gpus=8, at="s1/l2")
    for path, share in (("acme", 16), ("acme/research", 8), ("acme/product", 8), (OURS, 8), (THEIRS, 8)):
        QuotaShare.objects.create(node=personas.nodes[path], gpu_type=H100, guaranteed_milli=1000 * share)
    return personas


@pytest.fixture
def loop() -> Loop:
    return Loop()


def run(loop: Loop, world: Any, path: str = OURS, **fields: Any) -> Job:
    made = submit(world.nodes[path], at=loop.now, **fields)
    loop.tick()
    loop.up(made)
    return made


def waits(loop: Loop, world: Any, **fields: Any) -> Job:
    made = submit(world.nodes[OURS], at=loop.now, owner=world.users["submitter"], **fields)
    loop.after(seconds=1).tick()
    assert state(made) == JobState.QUEUED
    return Job.objects.select_related("quota", "owner").get(pk=made.pk)


def asked(world: Any, job: Job, loop: Loop, who: str = "submitter") -> Sooner:
    grounds.GROUNDS.forget()
    grounds.GROUNDS.read(loop.now)
    found = job_sooner(access=world.access(who), job=job, description=description_again(job, with_launch=True), now=loop.now)
    assert found is not None
    return found


def test_fewer_workers_start_it_now_and_they_do(world, loop):
    run(loop, world, gpus=4, workers=3, limit_seconds=7200)
    job = waits(loop, world, gpus=4, workers=2)

    found = asked(world, job, loop)

    (one,) = proposals(job, found)
    assert (one.path, one.to, one.now, one.in_place, one.text) == ("workers", 1, True, True, "With 1 worker")
    assert one.href == f"/jobs/{job.public_id}/edit/?roles%5B0%5D.min=1"
    change = change_read({"workers": {"worker": {"min": 1}}})
    job_edit(access=world.access("submitter"), job=job, change=change, now=loop.now)
    loop.after(seconds=1).tick()
    assert state(job) == JobState.STARTING


def test_a_wider_level_is_for_another_submission_and_that_starts(world, loop):
    fives = [run(loop, world, gpus=5, spec={"preemptible": False}) for _ in range(2)]
    assert {one.placements.first().node.name for one in fives} == {"n1", "n2"}
    job = waits(loop, world, gpus=1, workers=5, spec={"topology": {"required": "leaf"}})

    found = asked(world, job, loop)

    wider = next(one for one in proposals(job, found) if one.path == "topology.required")
    assert (wider.now, wider.in_place, wider.text) == (True, False, "Anywhere, not in one domain")
    assert wider.href == f"/jobs/new/?clone={job.public_id}&with.topology.required="
    job_cancel(access=world.access("submitter"), job=job, reason="", now=loop.now)
    changes = {"topology": None}
    cloned = job_clone(access=world.access("submitter"), job=job, changes=changes, key="", now=loop.now)
    loop.after(seconds=1).tick()
    assert state(cloned.jobs[0]) == JobState.STARTING


def test_it_is_tried_in_its_place_and_not_behind_those_that_came_later(world, loop):
    run(loop, world, gpus=4, workers=2, limit_seconds=3600)
    run(loop, world, gpus=4, workers=2, limit_seconds=36_000)
    job = waits(loop, world, gpus=8, limit_seconds=36_000, preemptible="no")
    for _ in range(4):
        waits(loop, world, gpus=8, limit_seconds=36_000)

    found = asked(world, job, loop)

    assert found.at == NOON + timedelta(seconds=3600), "behind the others it would be ten hours later"


def test_of_what_starts_as_it_is_nothing_is_proposed(world, loop):
    submitted = submit(world.nodes[OURS], gpus=4, owner=world.users["submitter"])
    job = Job.objects.select_related("quota", "owner").get(pk=submitted.pk)

    assert asked(world, job, loop).idle == NOT_ASKED, "on this fleet it stands already: the next plan starts it"
    assert asked(world, job, loop).changes == ()


@pytest.mark.parametrize(("fields", "why"), [({"held_at": NOON}, HELD), ({"not_before": NOON + timedelta(hours=2)}, NOT_DUE)])
def test_what_is_held_back_is_not_asked(world, loop, fields, why):
    run(loop, world, gpus=8, workers=2)
    job = waits(loop, world, gpus=8)
    Job.objects.filter(pk=job.pk).update(**fields)
    job.refresh_from_db()

    assert asked(world, job, loop).idle == why


def test_what_waits_for_another_job_or_for_a_budget_is_told_so(world, loop):
    before = run(loop, world, gpus=8, workers=2)
    after, stopped = waits(loop, world, gpus=8), waits(loop, world, gpus=8)
    Dependency.objects.create(job=after, on=before)
    assert asked(world, after, loop).idle == DEPENDS

    given = {"name": "Month", "unit": "gpu_hours", "amount": 10_000, "period": "month", "quota": "acme/research"}
    budget = budget_create(access=world.access("superuser"), given=given, now=loop.now)
    Budget.objects.filter(pk=budget.pk).update(stopped_at=loop.now)
    assert asked(world, stopped, loop).idle == NO_BUDGET


def test_who_has_been_promised_his_gpus_is_told_so(world, loop):
    run(loop, world, gpus=8, workers=2)
    job = waits(loop, world, gpus=8)
    Job.objects.filter(pk=job.pk).update(state=JobState.RESERVED)
    job.refresh_from_db()

    assert asked(world, job, loop).idle == PROMISED


def test_a_fleet_that_was_read_before_the_job_came_is_not_the_answer(world, loop):
    run(loop, world, gpus=8, workers=2)
    grounds.GROUNDS.read(loop.now)
    loop.after(seconds=2)
    submitted = submit(world.nodes[OURS], gpus=8, owner=world.users["submitter"])
    Job.objects.filter(pk=submitted.pk).update(state_since=loop.now)
    job = Job.objects.select_related("quota", "owner").get(pk=submitted.pk)
    description = description_again(job, with_launch=True)

    assert job_sooner(access=world.access("submitter"), job=job, description=description, now=loop.now) is None, "it is asked again"
    assert asked(world, job, loop) is not None, "once the fleet has been read again"


def test_while_the_scheduler_is_paused_nothing_starts_sooner(world, loop):
    run(loop, world, gpus=8, workers=2)
    job = waits(loop, world, gpus=8)
    lease_pause(by="Ada", reason="Upgrade.", now=NOON)

    assert "paused" in asked(world, job, loop).idle


def test_only_for_those_who_may_steer_it(world, loop):
    run(loop, world, gpus=8, workers=2)
    job = waits(loop, world, gpus=8, workers=2)

    with pytest.raises(PermissionDenied):
        asked(world, job, loop, "viewer")
    assert asked(world, job, loop, "operator").idle == NOT_YOURS, "who manages jobs need not be one who may submit"
    assert world.client("viewer").get(reverse("job_sooner", args=[job.public_id])).status_code == 403


def test_it_is_looked_for_once_as_long_as_neither_job_nor_fleet_change(world, loop, monkeypatch):
    run(loop, world, gpus=4, workers=3, limit_seconds=7200)
    job = waits(loop, world, gpus=4, workers=2)
    first = asked(world, job, loop)
    monkeypatch.setattr(sooner, "changes_found", lambda *_: pytest.fail("It was found already."))
    description = description_again(job, with_launch=True)
    assert job_sooner(access=world.access("submitter"), job=job, description=description, now=loop.now) == first


def test_a_trial_leaves_the_fleet_as_it_was(world, loop):
    """Trials of one job, of changes of another and the queue go on from one another."""
    run(loop, world, gpus=4, workers=3, limit_seconds=7200)
    job = waits(loop, world, gpus=4, workers=2)
    other = waits(loop, world, gpus=8, workers=2)
    first, second = asked(world, job, loop), asked(world, other, loop)
    grounds.GROUNDS.forget()
    grounds.GROUNDS.read(loop.now)

    for _ in range(3):
        for one, before in ((other, second), (job, first)):
            grounds.GROUNDS._serving.answers.clear()
            description = description_again(one, with_launch=True)
            assert job_sooner(access=world.access("submitter"), job=one, description=description, now=loop.now) == before
        assert [turn.job.name for turn in grounds.GROUNDS.queue(loop.now).turns] == [job.public_id, other.public_id]


def test_the_part_of_the_page_leads_to_the_forms(world, loop):
    loop.now = now()
    run(loop, world, gpus=4, workers=3, limit_seconds=7200)
    job = waits(loop, world, gpus=4, workers=2)
    client = world.client("submitter")
    address = reverse("job_sooner", args=[job.public_id])

    page = client.get(reverse("job", args=[job.public_id])).content.decode()
    assert f'data-sooner="{address}"' in page
    assert "data-sooner=" not in world.client("viewer").get(reverse("job", args=[job.public_id])).content.decode()
    whole, part = client.get(address).content.decode(), client.get(f"{address}?part").content.decode()
    assert "<h1>" in whole and "<h1>" not in part
    assert "With 1 worker: <strong>now</strong>" in part and "With 1 worker" in whole
    form = client.get(f"/jobs/{job.public_id}/edit/?roles%5B0%5D.min=1")
    assert [(row.value, row.was) for row in form.context["roles"] if row.field.path == "roles[0].min"] == [("1", "2")]
    assert Job.objects.get(pk=job.pk).spec["roles"][0]["min"] == 2, "nothing is changed before it is saved"


def test_the_form_of_a_clone_begins_with_the_change_and_says_what_it_was(world, loop):
    job = waits_for_a_leaf(world, loop)
    client = world.client("submitter")

    form = client.get(f"/jobs/new/?clone={job.public_id}&with.topology.required=&with.priority=70&with.nonsense=1&with.repeat.cron=x")

    assert form.context["sent"].description["priority"] == 70
    assert "topology" not in form.context["sent"].description or "required" not in form.context["sent"].description["topology"]
    assert "was leaf" in form.content.decode() and "was 50" in form.content.decode()
    bad = client.get(f"/jobs/new/?clone={job.public_id}&with.limit_s=soon")
    assert bad.status_code == 200


def waits_for_a_leaf(world: Any, loop: Loop) -> Job:
    run(loop, world, gpus=8, workers=2)
    return waits(loop, world, gpus=1, workers=5, spec={"topology": {"required": "leaf"}})


def test_programs_are_told_the_same_and_asked_to_come_again_while_the_fleet_is_read(world, loop, monkeypatch):
    loop.now = now()
    run(loop, world, gpus=4, workers=3, limit_seconds=7200)
    job = waits(loop, world, gpus=4, workers=2)
    client = world.client("submitter")

    told = client.get(f"/api/v1/jobs/{job.public_id}/sooner").json()
    (one,) = told["changes"]
    assert (one["path"], one["to"], one["now"], one["in_place"], one["text"]) == ("workers", 1, True, True, "With 1 worker")
    assert told["note"] == ""
    assert client.get(f"/api/v1/jobs/{job.public_id}/why").json()["may_steer"]

    grounds.GROUNDS.forget()
    monkeypatch.setattr(grounds.Grounds, "_beside", lambda *_: None)
    monkeypatch.setattr(grounds, "PATIENCE_SECONDS", 0.01)
    answer = client.get(f"/api/v1/jobs/{job.public_id}/sooner")
    assert (answer.status_code, answer["Retry-After"]) == (202, "1")
    assert 'data-again="1000"' in client.get(f"/jobs/{job.public_id}/sooner/?part").content.decode()


def test_what_runs_is_not_looked_at(world, loop):
    running = run(loop, world, gpus=4)
    job = Job.objects.select_related("quota", "owner").get(pk=running.pk)

    assert "data-over" in world.client("superuser").get(f"/jobs/{job.public_id}/sooner/?part").content.decode()
