"""Services that would break their level beside other work: what is predicted, what the scheduler is told, what it does, and who is shown it."""

from datetime import timedelta
from typing import Any

import pytest
from django.urls import reverse

from dashboards.fingerprints.apart import Service, neighbours_round, neighbours_turn, pairs_of
from dashboards.fingerprints.contention import Usage, Use, beside
from dashboards.fingerprints.models import RunLearned
from dashboards.fingerprints.phases import Phase
from dashboards.slo.models import ServiceLevel, ServiceSample
from quotas.models import QuotaNode
from scheduler.loop.policy import policy
from scheduler.models import Attempt, Job, JobState, KeptApart, Lease
from scheduler.services.loop.lease import lease_want
from scheduler.snapshots import Snapshots
from tests import builders
from tests.builders import NOON
from tests.dashboards.fingerprints.worlds import template_made

DAY = timedelta(days=1)


def busy(sm: float, *, storing: float = 0.0) -> Usage:
    phases = (
        Use(Phase.COMPUTE, 1 - storing, {"sm": sm, "dram": 0.1, "memory": 0.2}),
        Use(Phase.LOAD, storing, {"sm": 0.0, "dram": 0.0, "memory": 0.2}),
    )
    return Usage(8, phases)


def service(latency_ms: float = 100.0, allowed_ms: int = 110) -> Service:
    return Service("j-1", "serve", "p99 latency", latency_ms, allowed_ms)


def test_a_pair_that_slows_the_service_beyond_its_objective_on_one_gpu_has_no_instances_together():
    (pair,) = pairs_of([service()], {"train": busy(0.9)}, {"serve": busy(0.4)})

    assert beside(busy(0.4), busy(0.9)).gpu == 1.3
    assert pair == {"service": "j-1", "template": "train", "where": "gpu", "figure": "p99 latency", "predicted_ms": 130, "allowed_ms": 110}


def test_one_that_slows_it_by_the_storage_of_the_node_is_kept_off_the_node_and_told_once():
    (pair,) = pairs_of([service()], {"train": busy(0.9, storing=0.5)}, {"serve": busy(0.4, storing=0.5)})

    assert (pair["where"], pair["predicted_ms"]) == ("node", 125)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (service(allowed_ms=131), busy(0.9)),  # it keeps its objective
        (service(latency_ms=400.0), busy(0.3)),  # over its objective by itself: that is nobody else's fault
    ],
)
def test_who_is_not_the_cause_of_a_breach_is_kept_apart_from_nobody(one, other):
    assert pairs_of([one], {"train": other}, {"serve": busy(0.4)}) == []


def test_nothing_is_predicted_of_a_service_whose_template_has_too_few_runs():
    assert pairs_of([service()], {"train": busy(0.9)}, {}) == []


def learned(template: str, sm: float, runs: int = 3) -> None:
    for _ in range(runs):
        job = builders.job(state=JobState.COMPLETED, template=template)
        run = builders.attempt(job, started_at=NOON - DAY, ended_at=NOON)
        sums: dict[str, Any] = {"compute": [3600, sm, 20.0, None, 10.0]}
        RunLearned.objects.create(attempt=run, template=template, since=NOON - DAY, minutes=60, read=60, sums=sums)


@pytest.fixture
def world(personas):
    """A service of 100 ms, 110 allowed, whose template uses 40% of the SMs, and training that uses 90% and waits."""
    serve, train = template_made(personas, name="serve"), template_made(personas, name="train")
    builders.node("n1", gpus=8)
    own = builders.job("chat", job_class="inference", state=JobState.QUEUED, template=serve)
    ServiceLevel.objects.create(job=own, title="p99 latency", latency="x", objective_ms=110)
    for minute in range(3):
        ServiceSample.objects.create(job=own, at=NOON - timedelta(minutes=minute), objective_ms=110, latency_ms=90.0 + 10 * minute)
    builders.job("llama", template=train)
    learned(serve, 40.0)
    learned(train, 90.0)
    return own, serve, train


def scenario_now(snapshots: Snapshots):
    return snapshots.take(settings=policy().engine, now=NOON, start_timeout=timedelta(minutes=5)).scenario


@pytest.mark.django_db
def test_the_scheduler_is_told_and_asked_to_plan_only_where_it_is_news(world, django_assert_max_num_queries):
    own, _, train = world

    def wanted() -> int:
        return sum(Lease.objects.values_list("wanted", flat=True))

    lease_want()
    before = wanted()

    with django_assert_max_num_queries(14):
        assert neighbours_round(now=NOON) is True
    asked = wanted()

    pairs = KeptApart.objects.get().pairs
    assert [(one["service"], one["template"], one["where"], one["predicted_ms"]) for one in pairs] == [(own.public_id, train, "gpu", 130)]
    assert asked > before
    assert neighbours_round(now=NOON) is False
    assert wanted() == asked


@pytest.mark.django_db
def test_a_round_is_one_of_ten_minutes(world):
    assert neighbours_turn(now=NOON) is None  # the first call ever only notes the moment
    assert neighbours_turn(now=NOON + timedelta(minutes=5)) is None
    assert neighbours_turn(now=NOON + timedelta(minutes=11)) is True
    assert neighbours_turn(now=NOON + timedelta(minutes=12)) is None


@pytest.mark.django_db
def test_snapshots_hand_pairs_and_tenants_to_the_engine_only_where_the_fleet_asks_for_it(world):
    own, _, train = world
    neighbours_round(now=NOON)
    snapshots = Snapshots()

    plain = scenario_now(snapshots)
    QuotaNode.objects.filter(parent__isnull=True).update(policy={"colocation": "gpu"})
    asked = scenario_now(snapshots)
    again = scenario_now(snapshots)

    assert (plain.apart, {job.kind.tenant for job in plain.jobs}) == ((), {""})
    assert [(one.service, one.other, one.where) for one in asked.apart] == [(own.public_id, train, "gpu")]
    assert {job.name: job.kind.tenant for job in asked.jobs} == {own.public_id: own.public_id, Job.objects.get(name="llama").public_id: train}
    assert all(one is other for one, other in zip(asked.jobs, again.jobs, strict=True))  # the engine knows them by identity


@pytest.mark.django_db
def test_pages_and_the_api_tell_who_is_kept_apart_to_those_who_may_see_it(personas, world):
    own, _, _ = world
    neighbours_round(now=NOON)
    client, ref = personas.client("superuser"), "acme/research/nlp:train"

    page = client.get(reverse("template", args=[ref])).content.decode()
    job_page = client.get(reverse("job", args=[own.public_id])).content.decode()

    assert "Not enforced: the fleet allows any neighbours" in page
    assert "130 ms" in page
    assert "MIG instances of one node: 130 ms of 110 ms" in job_page
    told = {"service": own.public_id, "where": "gpu", "figure": "p99 latency", "predicted_ms": 130, "allowed_ms": 110}
    assert client.get(f"/api/v1/fingerprints/{ref}").json()["apart"] == [told]
    level = client.get(f"/api/v1/jobs/{own.public_id}/service-level").json()
    assert level["apart"] == [{"template": ref, "where": "gpu", "predicted_ms": 130}]


@pytest.mark.django_db
def test_a_service_that_the_reader_may_not_see_is_not_named_on_the_page_of_a_template(personas, world):
    own, _, _ = world
    neighbours_round(now=NOON)
    Job.objects.filter(pk=own.pk).update(quota=builders.quota("acme/secret", parent=QuotaNode.objects.get(path="acme")))
    page = personas.client("team_lead").get(reverse("template", args=["acme/research/nlp:train"])).content.decode()

    assert own.public_id not in page


@pytest.mark.django_db
def test_runs_of_which_little_was_read_count_for_nothing(world):
    RunLearned.objects.filter(template=world[1]).update(read=2)
    assert Attempt.objects.exists()

    assert neighbours_round(now=NOON) is False
    assert KeptApart.objects.get().pairs == []
