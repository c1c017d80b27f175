"""The serving ramp, end to end: a floor on weekdays from 08:00 to 20:00 in Berlin, over the night in which clocks are set back, and a fine-tune that
runs into the morning. docs/admin/reservations.md tells the figures that stand here.
"""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from gpufleet.core.models import User
from quotas.models import Idle, LedgerEntry, QuotaNode, Reservation, ReservationState, ShareClass, Window
from quotas.permissions import access_for_user
from scheduler.models import Attempt, Job, JobState
from scheduler.services.windows.reservations import reservation_request
from tests import builders
from tests.scheduler.loop.test_whole_way import Fleet
from tests.scheduler.loop.worlds import H100, leaf, state, submit

pytestmark = pytest.mark.django_db
BERLIN = ZoneInfo("Europe/Berlin")
GRACE = 240
# Friday is in summer time, Monday in winter time.
FRIDAY, MONDAY = datetime(2026, 10, 23, tzinfo=BERLIN), datetime(2026, 10, 26, tzinfo=BERLIN)


def floor(now: datetime, **given: object) -> Reservation:
    root = User.objects.create(username="root", is_superuser=True)
    asked = {
        "name": "Serving day",
        "job_class": "inference",
        "gpu_type": H100,
        "gpus": 8,
        "zone": "Europe/Berlin",
        "starts_at": FRIDAY.replace(hour=8).astimezone(UTC),
        "ends_at": FRIDAY.replace(hour=20).astimezone(UTC),
        "rule": "FREQ=WEEKLY;BYDAY=MO,TU,WE,TH,FR",
    }
    return reservation_request(access=access_for_user(root), given=asked | given, now=now)


def play(fleet: Fleet, until: datetime) -> None:
    """Tick whenever something is known to be due."""
    until = until.astimezone(UTC)
    while fleet.now < until:
        result = fleet.tick()
        after = fleet.now + timedelta(seconds=1) if result.again else result.next_at
        fleet.now = min(until, after if after is not None and after > fleet.now else until)
    fleet.tick()


def night_and_morning(fleet: Fleet, day: datetime, batch: QuotaNode, serve: QuotaNode) -> tuple[Job, Job]:
    """A fine-tune on all 16 GPUs from 02:00 on, and serving's 8 GPUs at 09:30."""
    play(fleet, day.replace(hour=2))
    saving = {"interval_s": 1800, "save_s": 60, "restore_s": 60}
    tune = submit(batch, gpus=8, workers=2, at=fleet.now, spec={"work_s": 40_000, "grace_s": GRACE, "checkpoint": saving})
    play(fleet, day.replace(hour=9, minute=30))
    serving = submit(serve, gpus=8, at=fleet.now, job_class="inference", spec={"work_s": 3600})
    play(fleet, day.replace(hour=10))
    return tune, serving


def wait_seconds(job: Job) -> float:
    return (Attempt.objects.filter(job=job).order_by("id")[0].started_at - job.submitted_at).total_seconds()


def world() -> tuple[Fleet, QuotaNode, QuotaNode]:
    for _ in range(2):
        builders.node(gpus=8)
    batch, serve = leaf("batch"), leaf("serve", 8)
    fleet = Fleet()
    fleet.now = FRIDAY.replace(hour=1).astimezone(UTC)
    return fleet, batch, serve


def test_with_the_floor_the_fine_tune_is_gone_in_time_and_serving_waits_not_at_all() -> None:
    fleet, batch, serve = world()
    held = floor(fleet.now)
    for day in (FRIDAY, MONDAY):
        tune, serving = night_and_morning(fleet, day, batch, serve)
        start = day.replace(hour=8).astimezone(UTC)
        window = Window.objects.get(reservation=held, starts_at=start)
        ended = Attempt.objects.filter(job=tune).order_by("id")[0]

        assert window.leaving == [tune.public_id]
        assert window.cleared_at == start - timedelta(seconds=held.notice_s)
        assert ended.ended_at is not None and ended.ended_at <= start, "it was gone before the floor started"
        assert tune.checkpoints.filter(verified_at__isnull=False, verified_at__gte=window.cleared_at).exists(), "it saved its work on the way out"
        assert state(tune) == JobState.PREEMPTED, "the floor's idle GPUs are not lent to it"
        assert wait_seconds(serving) == 0
        fleet.over(serving)
        play(fleet, day.replace(hour=20, minute=30))
        assert state(tune) in (JobState.RUNNING, JobState.COMPLETED), "in the evening it goes on"
        play(fleet, day.replace(hour=23))
        Job.objects.filter(pk=tune.pk).update(held_at=fleet.now)
        if state(tune) == JobState.RUNNING:
            fleet.over(tune)
    assert MONDAY.utcoffset() != FRIDAY.utcoffset()


def test_without_the_floor_the_same_day_serving_waits_for_the_grace() -> None:
    fleet, batch, serve = world()
    tune, serving = night_and_morning(fleet, FRIDAY, batch, serve)

    assert 60 <= wait_seconds(serving) <= GRACE + 60
    assert state(tune) == JobState.PREEMPTED


def test_what_stands_on_a_floor_is_reserved_usage_and_borrowed_again_after_it() -> None:
    builders.node(gpus=8)
    serve = leaf("serve", 2)
    fleet = Fleet()
    fleet.now = FRIDAY.replace(hour=7).astimezone(UTC)
    serving = submit(serve, gpus=8, at=fleet.now, job_class="inference", spec={"work_s": 80_000})
    play(fleet, FRIDAY.replace(hour=7, minute=5))
    floor(fleet.now, idle=Idle.LENT)
    play(fleet, FRIDAY.replace(hour=20, minute=10))

    kinds = [
        (entry.share_class, entry.since.astimezone(BERLIN).hour)
        for entry in LedgerEntry.objects.filter(job=serving.public_id, phase="running").order_by("since")
    ]
    assert kinds == [(ShareClass.BORROWED, 7), (ShareClass.RESERVED, 8), (ShareClass.BORROWED, 20)]


def test_a_window_that_nobody_claims_is_released() -> None:
    builders.node(gpus=8)
    batch = leaf("batch")
    leaf("serve")
    fleet = Fleet()
    fleet.now = FRIDAY.replace(hour=7).astimezone(UTC)
    held = floor(fleet.now, decay_s=1800)
    tune = submit(batch, gpus=8, at=fleet.now, spec={"work_s": 80_000, "grace_s": GRACE})
    play(fleet, FRIDAY.replace(hour=8, minute=20))
    assert state(tune) == JobState.PREEMPTED
    play(fleet, FRIDAY.replace(hour=8, minute=45))

    window = Window.objects.get(reservation=held, starts_at=FRIDAY.replace(hour=8).astimezone(UTC))
    assert window.released_at == FRIDAY.replace(hour=8, minute=30).astimezone(UTC)
    assert state(tune) == JobState.RUNNING
    assert held.state == ReservationState.APPROVED


def test_a_job_that_names_another_type_claims_no_window() -> None:
    for name in (H100, "A100-SXM-40GB"):
        builders.node(gpus=8, gpu_type=builders.gpu_type(name))
    serve = leaf("serve", 8)
    fleet = Fleet()
    fleet.now = FRIDAY.replace(hour=7).astimezone(UTC)
    held = floor(fleet.now, decay_s=1800)
    elsewhere = submit(serve, gpus=8, at=fleet.now, job_class="inference", spec={"gpu_types": ["A100-SXM-40GB"], "work_s": 80_000})
    play(fleet, FRIDAY.replace(hour=8, minute=45))

    window = Window.objects.get(reservation=held, starts_at=FRIDAY.replace(hour=8).astimezone(UTC))
    assert state(elsewhere) == JobState.RUNNING
    assert (window.claimed_at, window.released_at) == (None, FRIDAY.replace(hour=8, minute=30).astimezone(UTC))
