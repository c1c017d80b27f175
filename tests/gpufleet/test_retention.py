"""What is past its time goes in small steps; what is kept is never touched."""

from datetime import timedelta

import pytest
from django.apps import apps
from django.contrib.sessions.models import Session

from dashboards.models import FleetSample
from gpufleet.core.audit import SYSTEM, audit_record
from gpufleet.core.live.feed import feed_publish, feed_revision
from gpufleet.core.models import AuditEntry, Change
from gpufleet.retention import KINDS, STEP_ROWS, STEPS_A_CALL, retention_prune
from scheduler.models import Attempt, Job, JobEvent, Placement
from tests import builders
from tests.builders import NOON

OURS = ("core", "quotas", "scheduler", "dashboards")
pytestmark = pytest.mark.django_db


def samples(count: int, *, days: int) -> None:
    FleetSample.objects.bulk_create(
        FleetSample(
            at=NOON - timedelta(days=days, minutes=number), gpu_type="H100", capacity_milli=0, healthy_milli=0, allocated_milli=0, active_milli=0
        )
        for number in range(count)
    )


def test_every_model_of_ours_has_a_decision() -> None:
    decided = {kind.model for kind in KINDS}
    assert {model._meta.label for label in OURS for model in apps.get_app_config(label).get_models()} <= decided


def test_a_call_is_bounded_and_the_next_one_goes_on() -> None:
    most = STEP_ROWS * STEPS_A_CALL
    samples(most + 30, days=401)
    samples(5, days=399)

    assert retention_prune(now=NOON) == {"dashboards.FleetSample": most}
    assert retention_prune(now=NOON) == {"dashboards.FleetSample": 30}
    assert retention_prune(now=NOON) == {}
    assert FleetSample.objects.count() == 5


def test_the_oldest_go_first() -> None:
    samples(6, days=401)
    retention_prune(now=NOON, step=2, steps=2)

    assert [sample.at for sample in FleetSample.objects.order_by("at")] == [NOON - timedelta(days=401, minutes=1), NOON - timedelta(days=401)]


def test_what_is_kept_for_ever_stays_however_old() -> None:
    held = builders.placement(until=NOON)
    JobEvent.objects.create(job=held.job, at=NOON, to_state="queued")
    audit_record(actor=SYSTEM, action="x", kind="y", object_id="1")
    long_after = NOON + timedelta(days=10_000)

    assert retention_prune(now=long_after) == {"scheduler.JobEvent": 1}
    assert (Job.objects.count(), Attempt.objects.count(), Placement.objects.count(), AuditEntry.objects.count()) == (1, 1, 1, 1)


def test_old_changes_go_and_the_feeds_counter_stays() -> None:
    feed_publish(changes={topic: [{"id": 1}] for topic in ("a", "b", "c")})
    Change.objects.update(at=NOON)
    Change.objects.filter(rev=3).update(at=NOON + timedelta(minutes=5))

    assert retention_prune(now=NOON + timedelta(minutes=11)) == {"core.Change": 2}
    assert list(Change.objects.values_list("rev", flat=True)) == [3]
    assert feed_revision() == 3


def test_only_sessions_that_ran_out_go() -> None:
    for key, hours in (("old", -1), ("new", 1)):
        Session.objects.create(session_key=key, session_data="", expire_date=NOON + timedelta(hours=hours))
    retention_prune(now=NOON)

    assert list(Session.objects.values_list("session_key", flat=True)) == ["new"]
