"""Another number of replicas under the loop: grown one by one, given back from the highest, and how long it took."""

from datetime import timedelta
from typing import Any

import pytest

from gpufleet.core.audit import Actor
from quotas.permissions import Access
from scheduler.jobs.reading import change_read
from scheduler.models import Job, JobState, Order, Placement, ReplicaRule, Scaling, ScalingEnd
from scheduler.selectors.scaling import replicas_told, scale_ups_late
from scheduler.services.jobs import scaling
from scheduler.services.jobs.edits import job_edit
from scheduler.services.jobs.jobs import job_stop
from scheduler.services.jobs.scaling import job_scale
from scheduler.services.loop.runs import workers_left
from tests import builders
from tests.builders import NOON
from tests.personas import Personas
from tests.scheduler.loop.worlds import Loop, attempt_of, gpus_of, leaf, state, submit

pytestmark = pytest.mark.django_db


def service(least: int = 1, most: int = 4, *, desired: int | None = None, step: int = 1, gpus: int = 1, **fields: Any) -> Job:
    role = {"name": "server", "min": least, "max": most, "step": step, "gpus": gpus} | ({} if desired is None else {"desired": desired})
    return submit(gpus=gpus, workers=least, job_class="inference", preemptible="when_borrowed", spec={"roles": [role]}, **fields)


@pytest.fixture
def access(personas: Personas) -> Access:
    return personas.access("superuser")


def scale(access: Access, job: Job, replicas: int, loop: Loop, **facts: Any) -> Job:
    return job_scale(access=access, job=Job.objects.get(pk=job.pk), replicas=replicas, now=loop.now, **facts)


def indices(job: Job) -> list[int]:
    """Workers that stay."""
    rows = Placement.objects.filter(job=job, until__isnull=True, leaving_since__isnull=True)
    return sorted(rows.values_list("worker", flat=True).distinct())


def test_a_service_starts_with_as_many_replicas_as_it_states_and_grows_when_more_are_wanted(access: Access) -> None:
    builders.node(gpus=8)
    served, loop = service(desired=2), Loop()
    loop.tick()
    loop.up(served)
    loop.after(seconds=5).tick()
    assert indices(served) == [0, 1]
    # The carried path: what was planned for it before is not what is planned now.
    scale(access, served, 4, loop.after(seconds=5), reason="Evening.")
    loop.after(seconds=2).tick()
    loop.after(seconds=2).tick()
    loop.after(seconds=2).tick()

    assert indices(served) == [0, 1, 2, 3]
    (row,) = Scaling.objects.all()
    assert (row.before, row.after, row.stood, row.end, row.over_at) == (2, 4, 2, ScalingEnd.PLACED, NOON + timedelta(seconds=12))
    told = replicas_told(served, now=loop.now)
    assert told.last_grown is not None and told.last_grown.seconds == 2 and not told.last_grown.is_late
    event = served.events.get(cause__startswith="2 → 4")
    assert (event.cause, event.detail["replicas"]) == ("2 → 4 replicas wanted. Evening.", 4)


def test_fewer_replicas_are_given_back_from_the_highest(access: Access) -> None:
    builders.node(gpus=8)
    served, loop = service(), Loop()
    loop.tick()
    loop.up(served)
    assert indices(served) == [0, 1, 2, 3]
    scale(access, served, 2, loop.after(seconds=30))
    loop.tick()

    assert indices(served) == [0, 1]
    assert Order.objects.get(kind="resize").payload == {"add": [], "leave": [["server", 2], ["server", 3]]}
    assert Scaling.objects.get().over_at is None  # they have not gone yet
    workers_left(attempt=attempt_of(served), workers=[("server", 2), ("server", 3)], now=loop.after(seconds=9).now)
    loop.tick()
    assert (gpus_of(served), state(served)) == ([0, 1], JobState.RUNNING)
    assert (Scaling.objects.get().end, Scaling.objects.get().over_at) == (ScalingEnd.RELEASED, loop.now)


def test_a_scale_up_without_room_waits_says_so_and_is_late(access: Access, settings: Any) -> None:
    settings.SCHEDULER = settings.SCHEDULER | {"SCALE_UP_BOUND_S": 20}
    builders.node(gpus=2)
    served, loop = service(most=3, desired=2), Loop()
    loop.tick()
    loop.up(served)
    scale(access, served, 3, loop.after(seconds=10))
    loop.tick()
    loop.after(seconds=30).tick()

    told = replicas_told(Job.objects.get(pk=served.pk), now=loop.now)
    assert told.waiting is not None and told.waiting.is_late and told.waiting.seconds == 30
    assert (told.missing and told.missing.missing, [one.job for one in scale_ups_late(loop.now)]) == (1, [served])
    assert not scale_ups_late(loop.now - timedelta(seconds=15))
    # A machine comes, and with it the replica: the time until then is kept.
    builders.node("gpu-02", gpus=1)
    loop.after(seconds=5).tick(force=True)
    loop.after(seconds=1).tick()
    told = replicas_told(Job.objects.get(pk=served.pk), now=loop.now)
    assert told.waiting is None and told.last_grown is not None and (told.last_grown.seconds, told.last_grown.is_late) == (35, True)
    assert not scale_ups_late(loop.now)


def test_another_change_overtakes_one_that_waits_and_an_end_ends_it(access: Access) -> None:
    builders.node(gpus=1)
    served, loop = service(), Loop()
    scale(access, served, 3, loop)
    assert Scaling.objects.get().end == ScalingEnd.NOT_RUNNING
    loop.tick()
    loop.up(served)
    scale(access, served, 2, loop.after(seconds=1))
    scale(access, served, 4, loop.after(seconds=1))
    assert [row.end for row in Scaling.objects.order_by("pk")] == ["not_running", "overtaken", ""]
    job_stop(job=served, to=JobState.CANCELLED, outcome="cancelled", cause="Over.", now=loop.after(seconds=1).now, actor=Actor(None, "Ada", "system"))
    loop.over(served)
    loop.tick()
    assert Scaling.objects.order_by("-pk")[0].end == ScalingEnd.ENDED


def test_what_had_been_placed_as_it_was_changed_again_was_placed(access: Access) -> None:
    """Its moment is that of the last replica, although no tick had written it down: who asks in that instant must not see it lost."""
    builders.node(gpus=4)
    served, loop = service(desired=1), Loop()
    loop.tick()
    loop.up(served)
    scale(access, served, 3, loop.after(seconds=1))
    loop.after(seconds=2).tick()
    placed = loop.now
    assert (indices(served), Scaling.objects.get().end) == ([0, 1, 2], "")
    scale(access, served, 1, loop.after(seconds=4))
    loop.tick()
    workers_left(attempt=attempt_of(served), workers=[("server", 1), ("server", 2)], now=loop.after(seconds=1).now)
    left = loop.now
    scale(access, served, 2, loop.after(seconds=4))

    rows = Scaling.objects.order_by("pk")
    assert [(row.after, row.end) for row in rows] == [(3, "placed"), (1, "released"), (2, "")]
    assert rows[0].over_at == placed and rows[1].over_at is not None and rows[1].over_at >= left


def test_a_batch_gang_of_the_same_shape_is_left_alone_by_it(access: Access) -> None:
    """Replicas above the minimum put out nobody's minimum."""
    builders.node(gpus=4)
    served = service(desired=1)
    batch = submit(leaf("other", 4), gpus=3)
    loop = Loop()
    loop.tick()
    loop.up(served)
    loop.up(batch)
    scale(access, served, 2, loop.after(hours=1))
    loop.tick()
    loop.after(seconds=5).tick()
    assert (indices(served), state(batch)) == ([0], JobState.RUNNING)


def test_another_range_overtakes_what_it_no_longer_allows(access: Access) -> None:
    """Nothing waits, late for ever, for replicas that are no longer wanted."""
    builders.node(gpus=1)
    served, loop = service(desired=1), Loop()
    loop.tick()
    loop.up(served)
    scale(access, served, 4, loop.after(seconds=1))

    def edited(least: int, most: int) -> list[tuple[int, int, str]]:
        change = change_read({"workers": {"server": {"min": least, "max": most}}, "reason": "Smaller."})
        job_edit(access=access, job=Job.objects.get(pk=served.pk), change=change, now=loop.after(seconds=1).now)
        return [(row.before, row.after, row.end) for row in Scaling.objects.order_by("pk")]

    assert edited(1, 5) == [(1, 4, "")], "it is as many as before"
    assert edited(1, 3) == [(1, 4, "overtaken"), (4, 3, "")]
    row = Scaling.objects.latest("pk")
    assert (row.stood, row.reason, row.actor_name) == (1, "Smaller.", access.actor.name)
    ReplicaRule.objects.create(job=served, role="server", cooldown_seconds=60, actor_name="Ada")
    assert edited(1, 1) == [(1, 4, "overtaken"), (4, 3, "overtaken")]
    assert not scale_ups_late(loop.now + timedelta(hours=1))
    # Without a range nobody could stop it; with one again it would set the number unasked.
    assert not ReplicaRule.objects.exists()
    assert served.events.latest("id").cause.startswith("It no longer follows its metric.")


def test_a_replica_that_is_lost_just_as_its_scale_up_is_settled_leaves_it_open(access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process tells of losses meanwhile."""
    builders.node(gpus=2)
    served, loop = service(desired=1), Loop()
    loop.tick()
    loop.up(served)
    scale(access, served, 2, loop.after(seconds=1))
    loop.tick()
    found = list(scaling.SCALED())
    assert found
    Placement.objects.filter(job=served, worker=1).update(until=loop.now)
    monkeypatch.setattr(scaling, "SCALED", lambda: found)
    assert scaling.scalings_settle(now=loop.now) == 0
    assert Scaling.objects.get().over_at is None


def test_one_that_was_put_out_and_is_held_back_is_not_late(access: Access) -> None:
    builders.node(gpus=1)
    served, loop = service(desired=1), Loop()
    loop.tick()
    loop.up(served)
    scale(access, served, 2, loop.after(seconds=1))
    later = loop.now + timedelta(hours=1)
    assert [row.job for row in scale_ups_late(later)] == [served]
    Job.objects.filter(pk=served.pk).update(state=JobState.PREEMPTED, held_at=loop.now)
    assert not scale_ups_late(later)
